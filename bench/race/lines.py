"""What a line of the race is: contenders that take turns, and the figures that they produce.

Rule: a contender checks its rows before it returns a figure. CPU time is that of the process that does the work, and
of all its threads. Every figure has the spread of its runs.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from bench.race.peers import Peers

MILLRACE: Final = "Millrace"
DUCKDB: Final = "DuckDB"
PLAIN: Final = "plain Python"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run.

    tuples   of a workload; lines that need fewer take a share
    repeats  turns of each contender
    peers    the other programs; None: Millrace, DuckDB and plain Python alone
    folder   for files of tuples
    """

    tuples: int
    repeats: int
    folder: Path
    peers: Peers | None = None


class Metric(NamedTuple):
    """A figure of a line: its unit, and whether more is better."""

    unit: str
    more: bool


class Contender(NamedTuple):
    """A program in a line. `x` is its place in a picture of growth; `run` takes a turn and returns its figures. A turn
    that takes minutes is taken `once`."""

    program: str
    run: Callable[[], Mapping[str, float]]
    x: float | None = None
    once: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the race.

    metrics  its figures by name
    goal     what is wanted of it, in words
    unfair   what is unfair in whose favour
    x        the name of the contenders' `x`
    """

    name: str
    title: str
    metrics: Mapping[str, Metric]
    contenders: Callable[[Scale], Iterable[Contender]]
    goal: str = ""
    unfair: str = ""
    x: str = ""


class Sample(NamedTuple):
    """A figure of one contender: the median of its turns, the least and the most."""

    line: str
    metric: str
    program: str
    x: float | None
    median: float
    least: float
    most: float
    turns: int


def race(line: Line, scale: Scale) -> Iterator[Sample]:
    """The samples of a line, whose contenders take turns."""
    contenders = list(line.contenders(scale))
    turns: list[list[Mapping[str, float]]] = [[] for _ in contenders]
    for turn in range(scale.repeats):
        for contender, figures in zip(contenders, turns, strict=True):
            if not (turn and contender.once):
                figures.append(contender.run())
    for contender, figures in zip(contenders, turns, strict=True):
        for metric in figures[0]:
            values = [found[metric] for found in figures]
            yield Sample(
                line.name,
                metric,
                contender.program,
                contender.x,
                statistics.median(values),
                min(values),
                max(values),
                len(values),
            )


def cpu_seconds(run: Callable[[], object]) -> float:
    """The CPU time that a call takes in this process."""
    gc.collect()
    begin = time.process_time()
    run()
    return time.process_time() - begin
