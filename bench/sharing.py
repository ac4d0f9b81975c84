"""Queries with the same filter over one stream: the cost of ten of them, shared and separate."""

from __future__ import annotations

import itertools

import numpy as np

from bench.figure import Figure, best_of
from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, AddStream, Arrived, Command, Deliver, FeedOpened
from millrace.sql import Catalog, CreateQuery, CreateStream, parse, plan_all
from millrace.values.batch import Batch

FILTER = "SELECT a, b FROM s WHERE (a * 7 + b) % 1000 = 0"


def engine_with(queries: int, *, share: bool) -> Engine:
    """An engine with this number of queries with the filter."""
    engine = Engine(share=share)
    sql = "CREATE STREAM s (a BIGINT, b BIGINT);" + "".join(f"CREATE QUERY q{n} AS {FILTER};" for n in range(queries))
    for step in plan_all(parse(sql), Catalog())[0]:
        assert isinstance(step, CreateStream | CreateQuery)
        body = AddStream(step.stream) if isinstance(step, CreateStream) else AddQuery(step.plan)
        engine.step(0, [Command(1, body)])
    engine.step(0, [FeedOpened("s", "bench")])
    return engine


def filters(tuples: int, *, queries: int = 10, k: int = 4096, repeats: int = 3) -> list[Figure]:
    """Nanoseconds per tuple."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 1 << 40, tuples), rng.integers(0, 1 << 40, tuples)
    seconds: list[float] = []
    for count, share in ((1, False), (queries, True), (queries, False)):
        engine = engine_with(count, share=share)
        schema = engine.streams_by_name["s"].definition.schema
        batches = [Batch(schema, a[at : at + k], [a[at : at + k], b[at : at + k]]) for at in range(0, tuples, k)]
        clock = itertools.count(1)
        totals: list[int] = []

        def run(
            engine: Engine = engine, batches: list[Batch] = batches, clock: itertools.count[int] = clock,
            totals: list[int] = totals,
        ) -> None:  # fmt: skip
            rows = 0
            for at in range(0, len(batches), 16):
                events = [Arrived("s", "bench", batch) for batch in batches[at : at + 16]]
                effects = engine.step(next(clock), events, budget=1 << 60)
                rows += sum(len(effect.batch) for effect in effects.orders if isinstance(effect, Deliver))
            totals.append(rows)

        seconds.append(best_of(repeats, run))
        assert set(totals) == {count * int(((a * 7 + b) % 1000 == 0).sum())}
    single, shared, apart = (elapsed / tuples * 1e9 for elapsed in seconds)
    name = f"{queries} queries with one filter"
    return [
        Figure("one query with the filter", single, "ns/tuple"),
        Figure(f"{name}, separate", apart, "ns/tuple"),
        Figure(f"{name}, shared", shared, "ns/tuple"),
        Figure(f"{name}, shared / one query", shared / single, "times", 1.5),
    ]
