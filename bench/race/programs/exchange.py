"""What the programs of the race share: columns in, rows and seconds out. Standard library alone.

A program is started as `python PROGRAM.py WORKLOAD FOLDER`. The folder has a file per column, `<stream>.<column>`, of
64-bit integers. The program writes its rows to `rows.csv` there and prints its seconds of CPU time, without the time
for reading the columns.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

Columns = Mapping[str, Sequence[int]]
Streams = Mapping[str, Columns]
Rows = Iterable[Sequence[float]]

SECOND_US = 1_000_000
WINDOW_US = 10 * SECOND_US
PANES = 6


def read(folder: Path) -> dict[str, dict[str, array[int]]]:
    """The columns of each stream."""
    streams: dict[str, dict[str, array[int]]] = {}
    for stream, names in json.loads((folder / "streams.json").read_text()).items():
        streams[stream] = {}
        for name in names:
            column = array("q")
            column.frombytes((folder / f"{stream}.{name}").read_bytes())
            streams[stream][name] = column
    return streams


def finish(folder: Path, rows: Rows, seconds: float) -> None:
    """Write the rows, and print the seconds."""
    with (folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    print(json.dumps({"seconds": seconds}))


def score(k: int, v: int) -> int:
    """The function of the line about functions in Python."""
    return v * 2 + 1 if v > k else k - v


class Alternating:
    """The aggregate of the line about aggregates in Python."""

    @staticmethod
    def init() -> int:
        return 0

    @staticmethod
    def iterate(state: int, value: int) -> int:
        return value - state

    @staticmethod
    def terminate(state: int) -> int:
        return state


def main(workloads: Mapping[str, Callable[[Streams], Rows]]) -> None:
    """Run the workload that the command line names."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    streams = read(folder)
    begin = time.process_time()
    rows = list(workloads[name](streams))
    finish(folder, rows, time.process_time() - begin)


def by_pane(panes: Mapping[tuple[int, int], Sequence[int]]) -> Rows:
    """Averages of the last minute every ten seconds, from (key, pane) to the sum and count of ten seconds."""
    windows: dict[tuple[int, int], list[int]] = {}
    for (key, pane), (total, count) in panes.items():
        for end in range(pane + 1, pane + 1 + PANES):
            window = windows.setdefault((key, end), [0, 0])
            window[0] += total
            window[1] += count
    return [(key, total / count, end * WINDOW_US) for (key, end), (total, count) in windows.items()]
