"""The engine by itself: five operators against the same arithmetic in numpy, and a single tuple through them."""

from __future__ import annotations

import itertools

import numpy as np

from bench.figure import Figure, best_of, median_of
from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, AddStream, Answer, Arrived, Command, Deliver, FeedOpened
from millrace.sql import Catalog, CreateQuery, CreateStream, parse, plan
from millrace.values.batch import Batch, Int64s

# Two paths of select, map, select, map into a union: each tuple passes five operators.
FIVE_OPERATORS = """
CREATE STREAM s (a BIGINT, b BIGINT);
CREATE STREAM t (a BIGINT, b BIGINT);
CREATE QUERY q WITH (order = '{order}', fuse = 'off') AS
  SELECT a - b AS a, b + 3 AS b FROM (SELECT a + 1 AS a, b * 2 AS b FROM s WHERE a > 5) WHERE b < 1099511627776
  UNION ALL
  SELECT a - b AS a, b + 3 AS b FROM (SELECT a + 1 AS a, b * 2 AS b FROM t WHERE a > 5) WHERE b < 1099511627776;
"""


def in_numpy(a: Int64s, b: Int64s) -> tuple[Int64s, Int64s]:
    """The same arithmetic as a programmer would write it over whole arrays."""
    passing = a > 5
    a, b = a[passing] + 1, b[passing] * 2
    passing = b < 1099511627776
    a, b = a[passing], b[passing]
    return a - b, b + 3


def engine_with(sql: str, strategy: str | None = None) -> Engine:
    """An engine that runs the statements."""
    catalog, engine = Catalog(), Engine()
    for statement in parse(sql):
        planned = plan(statement, catalog)
        catalog = catalog.with_(planned)
        match planned:
            case CreateStream(stream):
                body: AddStream | AddQuery = AddStream(stream)
            case CreateQuery(query):
                body = AddQuery(query, strategy)
            case _:
                raise AssertionError(planned)
        for effect in engine.step(0, [Command(1, body)]).orders:
            assert isinstance(effect, Answer), effect
            assert effect.refused is None, effect.refused
    for name in engine.streams_by_name:
        engine.step(0, [FeedOpened(name, "bench")])
    return engine


def throughput(tuples: int, *, order: str = "arrival", k: int = 4096, repeats: int = 5) -> list[Figure]:
    """Five operators at k tuples per execution, as a ratio to numpy over the whole arrays."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 1000, tuples), rng.integers(0, 1000, tuples)
    engine = engine_with(FIVE_OPERATORS.format(order=order), f"dfs({k})")
    schema = engine.streams_by_name["s"].definition.schema
    batches = [Batch(schema, a[at : at + k], [a[at : at + k], b[at : at + k]]) for at in range(0, tuples, k)]
    clock = itertools.count(1)
    rows = 0

    def run() -> None:
        nonlocal rows
        rows = 0
        for at in range(0, len(batches), 16):
            events = [Arrived("s", "bench", batch) for batch in batches[at : at + 16]]
            effects = engine.step(next(clock), events, budget=1 << 60)
            rows += sum(len(effect.batch) for effect in effects.orders if isinstance(effect, Deliver))

    direct = best_of(repeats, lambda: in_numpy(a, b))
    through = best_of(repeats, run)
    assert rows == len(in_numpy(a, b)[0])
    name = f"five operators, order = '{order}', k = {k}"
    return [
        Figure(f"{name}: numpy, whole arrays", direct / tuples * 1e9, "ns/tuple"),
        Figure(f"{name}: engine", through / tuples * 1e9, "ns/tuple"),
        Figure(f"{name}: engine / numpy", through / direct, "times", 3.0 if order == "arrival" and k == 4096 else None),
    ]


def single_tuple(steps: int, *, order: str = "arrival") -> list[Figure]:
    """One tuple in, one row out, by `Engine.step`."""
    engine = engine_with(FIVE_OPERATORS.format(order=order))
    batch = Batch.from_rows(engine.streams_by_name["s"].definition.schema, [(7, 3)], [0])
    clock = itertools.count(1)

    def run() -> None:
        effects = engine.step(next(clock), [Arrived("s", "bench", batch)])
        assert len(effects.orders) == 1

    note = "" if order == "arrival" else "with a timestamp asked of the silent input"
    bound = 21.0 if order == "arrival" else None
    return [
        Figure(
            f"one tuple through five operators, order = '{order}'", median_of(steps, run) * 1e6, "us", bound, note=note
        )
    ]
