"""`python -m bench race [NAME...]`: the lines of the race, or those whose name starts with one of the words.

It installs the peers once, runs every line with contenders in turn, and writes `docs/race` and a section of
`docs/performance.md`. `--own` leaves the peers and the pages out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench.race import inengine, inmemory, overfiles, page, served
from bench.race.lines import Line, Sample, Scale, race
from bench.race.peers import ROOT, Peers, install

LINES: Final[Sequence[Line]] = [*inmemory.LINES, *overfiles.LINES, *inengine.LINES, *served.LINES]


def main(words: Sequence[str]) -> int:
    names = ", ".join(line.name for line in LINES)
    parser = argparse.ArgumentParser(prog="python -m bench race", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("lines", nargs="*", metavar="LINE", help=f"only lines that start so: {names}")
    parser.add_argument("--tuples", type=int, default=5_000_000, help="tuples of a workload (default 5,000,000)")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each contender (default 3)")
    parser.add_argument("--own", action="store_true", help="without the peers; print the figures alone")
    options = parser.parse_args(words)
    chosen = [line for line in LINES if not options.lines or line.name.startswith(tuple(options.lines))]
    if not chosen:
        parser.error(f"no line starts with {' or '.join(options.lines)}; lines: {names}")
    folder = ROOT / "build" / "race"
    folder.mkdir(parents=True, exist_ok=True)
    scale = Scale(options.tuples, options.repeats, folder, None if options.own else install())
    load = os.getloadavg()[0]
    new: list[Sample] = []
    failed = []
    for line in chosen:
        try:
            for sample in race(line, scale):
                new.append(sample)
                print(text(line, sample), flush=True)
        except Exception as error:  # the other lines still count
            failed.append(line.name)
            print(f"race: {line.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    if scale.peers is not None:
        write(new, conditions(options, scale.peers, load))
    return int(bool(failed))


def text(line: Line, sample: Sample) -> str:
    name = f"{line.name} {sample.metric}" + ("" if sample.x is None else f" at {sample.x:,.0f}")
    return f"{name:<32} {sample.program:<26} {page.value_text(sample):>28} {line.metrics[sample.metric].unit}"


def conditions(options: argparse.Namespace, peers: Peers, load: float) -> dict[str, str]:
    """What the figures depend on."""
    versions = {"DuckDB": version("duckdb"), "numpy": version("numpy"), **peers.versions}
    return {
        "on": f"{datetime.now(UTC):%Y-%m-%d}",
        "cores": f"{os.cpu_count()} ({_processor()})",
        "load average": f"{load:.1f} before, {os.getloadavg()[0]:.1f} after, of which one is the race itself",
        "tuples": f"{options.tuples:,}",
        "CPython": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def write(new: Sequence[Sample], found: dict[str, str]) -> None:
    """Renew the results, the pictures and the page."""
    samples = page.merged(page.read(), new, LINES)
    page.write(samples)
    samples = page.read()  # as rounded, so that the page can be made again from the file
    page.CONDITIONS.write_text(json.dumps(found, indent=2) + "\n")
    page.draw(LINES, samples)
    page.update(LINES, samples, found)
    print(f"race: wrote {page.PAGE.relative_to(ROOT)} at {time.strftime('%H:%M')}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
