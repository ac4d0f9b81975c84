"""`python -m tests.simulation --seeds 1000 --from 0`: plays so many worlds; a failure says how to play it again."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.simulator import simulate
from tests.simulation.world import world_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--styles", type=int, default=3, help="wild styles per world")
    given = parser.parse_args()
    began, steps, failures = time.perf_counter(), 0, 0
    for seed in range(given.first, given.first + given.seeds):
        try:
            steps += simulate(world_of(seed), given.styles)
        except Exception:
            failures += 1
            sys.stderr.write(f"{traceback.format_exc()}\nseed {seed} fails; again: {again(seed, given.styles)}\n\n")
    spent = time.perf_counter() - began
    sys.stdout.write(f"{given.seeds} worlds, {steps} steps, {spent:.0f} s, {failures} failures\n")
    return 1 if failures else 0


def again(seed: int, styles: int = 3) -> str:
    return f"python -m tests.simulation --from {seed} --seeds 1 --styles {styles}"


if __name__ == "__main__":
    sys.exit(main())
