"""The four workloads in one process, over columns in memory: the engine, DuckDB, a loop, and the peers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from bench.race.inprocess import InEngine
from bench.race.lines import DUCKDB, MILLRACE, PLAIN, Contender, Line, Metric, Scale, cpu_seconds
from bench.race.peers import read_rows, run_program, write_columns
from bench.race.workloads import WORKLOADS, InDuckDB, Workload, digest

SPEED: Final = {"speed": Metric("M tuples per CPU second", more=True)}
# The orders and sizes that show nothing new of a peer take only DuckDB.
WITH_PEERS: Final = ("w1", "w2", "w3", "w4")
PROGRAMS: Final = {"bytewax": "in_bytewax", "csp": "in_csp", "Flink": "in_flink"}
UNFAIR: Final = (
    "DuckDB, plain Python and bytewax have all rows before they emit any: in their favour. Flink reads CSV and "
    "compiles its code while it runs: in Millrace's favour."
)


def contenders(workload: Workload, scale: Scale) -> Iterator[Contender]:
    streams = workload.streams(scale.tuples)
    count = sum(map(len, streams.values()))
    expected = digest(InDuckDB(workload, streams).run())
    for name, program in ((MILLRACE, InEngine(workload, streams)), (DUCKDB, InDuckDB(workload, streams))):
        yield Contender(name, partial(_own, program, count, expected))
    folder = write_columns(streams, scale.folder / f"{workload.name}-{scale.tuples}")
    programs = {PLAIN: (sys.executable, "plain")}
    if scale.peers is not None and workload.name in WITH_PEERS:
        programs |= {name: (str(python), PROGRAMS[name]) for name, python in scale.peers.pythons.items()}

    def run(name: str) -> Mapping[str, float]:
        python, program = programs[name]
        seconds = run_program(python, program, workload.name, str(folder))["seconds"]
        check(name, digest(read_rows(folder)), expected)
        return {"speed": count / seconds / 1e6}

    for name in programs:
        yield Contender(name, partial(run, name), once=name == "Flink")


def _own(program: InEngine | InDuckDB, count: int, expected: str) -> Mapping[str, float]:
    found: list[str] = []
    program.prepare()
    rows: list[object] = []
    seconds = cpu_seconds(lambda: rows.append(program.run()))
    found.append(digest(rows[0]))  # type: ignore[arg-type]
    check(type(program).__name__, found[0], expected)
    return {"speed": count / seconds / 1e6}


def check(program: str, found: str, expected: str) -> None:
    """A figure of other rows does not count."""
    if found != expected:
        raise AssertionError(f"{program}: the rows have the digest {found}, DuckDB's {expected}")


LINES: Final = [
    Line(
        name,
        f"in process: {workload.title}",
        SPEED,
        partial(contenders, workload),
        goal="at least DuckDB's speed",
        unfair=UNFAIR,
    )
    for name, workload in WORKLOADS.items()
]
