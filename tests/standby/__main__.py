"""`python -m tests.standby --seeds 1000 --from 0`: plays so many worlds of a primary and its standby."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.standby.world import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.standby", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many worlds")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    began, failures, promotions, emitted, lost = time.process_time(), 0, 0, 0, 0
    for seed in range(options.first, options.first + options.seeds):
        try:
            world = play(seed)
        except Exception:
            failures += 1
            sys.stderr.write(f"{traceback.format_exc()}\n")
        else:
            promotions += world.auditor.highest - 1
            emitted += world.auditor.emitted
            lost += sum(client.lost_rows for client in world.clients)
    spent = time.process_time() - began
    sys.stdout.write(
        f"{options.seeds} worlds, {promotions} promotions, {emitted} messages of servers, {lost} rows reported lost, "
        f"{spent:.0f} s of CPU, {failures} failures\n"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
