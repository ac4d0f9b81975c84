"""The engine by itself against DuckDB with one thread, in one process and in turn: `python -m bench race-engine`."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from bench.engine import engine_with
from bench.figure import Figure
from bench.race.workloads import TUPLES, WORKLOADS, Column, InDuckDB, Stream, Workload, digest
from millrace.engine.events import Arrived, Deliver, Event, FeedClosed
from millrace.values.batch import Batch

# Tuples in a frame. Two streams send their frames of the same time in one step.
FRAME: Final = 10_000


class InEngine:
    """The workload as frames through `Engine.step`. The frames and the query are there before the time starts."""

    def __init__(self, workload: Workload, streams: Mapping[str, Stream], frame: int = FRAME) -> None:
        self._workload = workload
        self._streams = list(streams)
        self._steps: list[Sequence[Event]] = [
            [
                Arrived(name, "bench", Batch(stream.schema, part.ts, part.columns))
                for name, stream in streams.items()
                if len(part := stream.part(at, at + frame))
            ]
            for at in range(0, max(map(len, streams.values())), frame)
        ]

    def prepare(self) -> None:
        self._engine = engine_with(self._workload.sql)

    def run(self) -> list[Column]:
        """The rows as columns."""
        engine = self._engine
        now = itertools.count(1)
        rows: list[Batch] = []
        ends: Sequence[Event] = [FeedClosed(name, "bench", ended=True) for name in self._streams]
        for events in (*self._steps, ends):
            effects = engine.step(next(now), events)
            while True:
                rows += [order.batch for order in effects.orders if isinstance(order, Deliver)]
                if not effects.more:
                    break
                effects = engine.step(next(now))
        names = rows[0].schema.names
        made = Batch.concat(rows)
        return [made.columns[names.index(name)] for name in self._workload.columns]


def against_duckdb(name: str, tuples: int = TUPLES, repeats: int = 3) -> list[Figure]:
    """The CPU seconds of both, in turn, and the engine's speed as a multiple of DuckDB's: the median of the pairs."""
    workload = WORKLOADS[name]
    streams = workload.streams(tuples)
    count = sum(map(len, streams.values()))
    ours, theirs = InEngine(workload, streams), InDuckDB(workload, streams)
    ours.prepare()
    found, expected = digest(ours.run()), digest(theirs.run())
    assert found == expected, f"{name}: the engine's rows have the digest {found}, DuckDB's {expected}"
    spent = [(_cpu_seconds(ours), _cpu_seconds(theirs)) for _ in range(repeats)]
    engine, duckdb = (min(pair[side] for pair in spent) for side in (0, 1))
    ratios = sorted(pair[1] / pair[0] for pair in spent)
    title = f"{name}: {workload.title}"
    return [
        Figure(f"{title}: engine", engine / count * 1e9, "ns/tuple"),
        Figure(f"{title}: DuckDB", duckdb / count * 1e9, "ns/tuple", note="one thread, CPU time, the same columns"),
        Figure(
            f"{title}: speed / DuckDB's",
            float(np.median(ratios)),
            "times",
            1.0,
            most=False,
            note=f"from {ratios[0]:.2f} to {ratios[-1]:.2f}, digest {found}",
        ),
    ]


def _cpu_seconds(program: InEngine | InDuckDB) -> float:
    program.prepare()
    gc.collect()
    begin = time.process_time()
    program.run()
    return time.process_time() - begin
