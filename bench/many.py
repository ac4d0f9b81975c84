"""Many queries on one stream, each with its own filter: the cost of a tuple, and of creating them.

Processor time, because a machine with other work would otherwise decide the figures.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np

from bench.figure import Figure
from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, AddStream, Answer, Arrived, Command, Deliver, FeedOpened
from millrace.sql import Catalog, CreateQuery, CreateStream, parse, plan_all
from millrace.values.batch import Batch

STREAM: Final = "CREATE STREAM s (k BIGINT, v BIGINT);"
# Filters of query number n of so many. The first two keep a tuple for one query, the last one for a hundredth of them.
FILTERS: Final[Mapping[str, Callable[[int, int], str]]] = {
    "k = n": lambda n, _: f"k = {n}",
    "a range each": lambda n, of: f"v >= {n * 10_000 // of} AND v < {(n + 1) * 10_000 // of}",
    "overlapping ranges": lambda n, of: f"v BETWEEN {n * 10_000 // of} AND {n * 10_000 // of + 99}",
}


def engine_with(queries: int, where: Callable[[int, int], str], *, index: bool = True) -> tuple[Engine, float]:
    """An engine with so many queries, and the processor seconds that planning and creating them took."""
    engine = Engine(index=index)
    begin = time.process_time()
    made = "".join(f"CREATE QUERY q{n} AS SELECT k, v FROM s WHERE {where(n, queries)};" for n in range(queries))
    for step in plan_all(parse(STREAM + made), Catalog())[0]:
        assert isinstance(step, CreateStream | CreateQuery)
        body = AddStream(step.stream) if isinstance(step, CreateStream) else AddQuery(step.plan)
        for effect in engine.step(0, [Command(1, body)]).orders:
            assert not isinstance(effect, Answer) or effect.refused is None
    seconds = time.process_time() - begin
    engine.step(0, [FeedOpened("s", "bench")])
    return engine, seconds


def queries(numbers: Iterable[int], frames: int = 30, size: int = 100, repeats: int = 3) -> list[Figure]:
    """Frames of so many tuples through so many filters, none of which any two queries share."""
    figures: list[Figure] = []
    for number in numbers:
        for name, where in FILTERS.items():
            engine, created = engine_with(number, where)
            if where is FILTERS["k = n"]:
                bound = 2.0 if number == 1_000 else None
                figures.append(Figure(f"creating {number:,} queries", created, "s", bound))
            clock, rng = itertools.count(1), np.random.default_rng(1)
            schema = engine.streams_by_name["s"].definition.schema
            batches = []
            for _ in range(frames):
                k, v = rng.integers(0, number, size), rng.integers(0, 10_000, size)
                batches.append(Batch(schema, k, [k, v]))
            run(engine, batches[:2], clock)
            best = float("inf")
            for _ in range(repeats):
                begin = time.process_time()
                rows = run(engine, batches, clock)
                best = min(best, time.process_time() - begin)
            assert name == "overlapping ranges" or rows == frames * size, rows
            bound = 20.0 if number == 1_000 and name != "overlapping ranges" else None
            figures.append(Figure(f"{number:,} queries, {name}: a tuple", best / frames / size * 1e6, "us", bound))
    return figures


def run(engine: Engine, batches: Iterable[Batch], clock: itertools.count[int]) -> int:
    """The rows delivered for these frames."""
    rows = 0
    for batch in batches:
        effects = engine.step(next(clock), [Arrived("s", "bench", batch)])
        while True:
            rows += sum(len(order.batch) for order in effects.orders if isinstance(order, Deliver))
            if not effects.more:
                break
            effects = engine.step(next(clock))
    return rows
