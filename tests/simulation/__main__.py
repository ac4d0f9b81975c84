"""`python -m tests.simulation --seeds 1000 --from 0`: plays so many worlds; a failure says how to play it again.

With `--clocks` the worlds are those of clients with clocks, who are asked for the time; with `--updates` those of
update streams; with `--sql` those of SQL. `--odds` prints the table of probabilities.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.clocks import simulate_clocks
from tests.simulation.joined import joined_world_of
from tests.simulation.odds import printed
from tests.simulation.simulator import simulate
from tests.simulation.sqlplay import simulate_sql
from tests.simulation.updates import simulate_updates
from tests.simulation.world import world_of

KINDS = {
    "graphs": "worlds of graphs alone",
    "joins": "worlds of joins and sequences alone",
    "clocks": "worlds of clocks",
    "updates": "worlds of update streams",
    "sql": "worlds of SQL",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--styles", type=int, default=3, help="wild styles per world")
    for name, what in KINDS.items():
        parser.add_argument(f"--{name}", dest="kind", action="store_const", const=name, default="", help=what)
    parser.add_argument("--odds", action="store_true", help="print the probabilities with which worlds are drawn")
    given = parser.parse_args()
    if given.odds:
        sys.stdout.write(printed())
        return 0
    kind = given.kind
    began, steps, failures = time.perf_counter(), 0, 0
    for seed in range(given.first, given.first + given.seeds):
        try:
            steps += play(seed, given.styles, kind=kind)
        except Exception:
            failures += 1
            sys.stderr.write(
                f"{traceback.format_exc()}\nseed {seed} fails; again: {again(seed, given.styles, kind)}\n\n"
            )
    spent = time.perf_counter() - began
    sys.stdout.write(f"{given.seeds} worlds, {steps} steps, {spent:.0f} s, {failures} failures\n")
    return 1 if failures else 0


def play(seed: int, styles: int, *, kind: str = "") -> int:
    match kind:
        case "graphs":
            return simulate(world_of(seed), styles)
        case "joins":
            return simulate(joined_world_of(seed), styles)
        case "clocks":
            return simulate_clocks(seed, styles)
        case "updates":
            return simulate_updates(seed, styles)
        case "sql":
            return simulate_sql(seed, styles)
    return simulate(world_of(seed), styles) + simulate(joined_world_of(seed), styles)


def again(seed: int, styles: int = 3, kind: str = "") -> str:
    return f"python -m tests.simulation --from {seed} --seeds 1 --styles {styles}{f' --{kind}' if kind else ''}"


if __name__ == "__main__":
    sys.exit(main())
