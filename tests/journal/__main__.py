"""`python -m tests.journal --seeds 1000 --from 0`: plays so many journals and their cuts."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.journal.world import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.journal", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many worlds")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    began, cuts, failures = time.perf_counter(), 0, 0
    for seed in range(options.first, options.first + options.seeds):
        try:
            cuts += play(seed)
        except Exception:
            failures += 1
            sys.stderr.write(f"{traceback.format_exc()}\n")
    spent = time.perf_counter() - began
    sys.stdout.write(f"{options.seeds} journals, {cuts} cuts, {spent:.0f} s, {failures} failures\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
