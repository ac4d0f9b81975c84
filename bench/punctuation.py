"""Thin punctuation: promises per 1,000 tuples and the cost of a tuple, with thinning and without.

Every tuple of the stream moves its mark (watermark), and tuples arrive one by one. A tumbling count follows two
selections. Without thinning, an arc could carry a punctuation per tuple. The rows must be the same.
"""

from __future__ import annotations

from typing import Any

from bench.aggregate import KEY, SCHEMA, Load
from bench.figure import Figure, best_of
from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, AddStream, Answer, Arrived, Command, Deliver, FeedClosed
from millrace.engine.plan import Node, QueryPlan, StreamDefinition
from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.frame.windows import TimeWindow
from millrace.protocol import Type
from millrace.values.expression import Call, Column, Constant

WINDOW_US = 10_000_000
EVERYTHING = Call(
    Type.BOOLEAN, True, ">=(bigint, bigint)", (Column(Type.BIGINT, True, 2, "v"), Constant(Type.BIGINT, False, 0))
)


def plan() -> QueryPlan:
    count = AggregateSpec(TimeWindow(WINDOW_US, WINDOW_US), KEY, (("n", AggregateCall(Type.BIGINT, False, "count()")),))
    nodes = (
        Node("q.filter1", SelectSpec(EVERYTHING), ("s.source",)),
        Node("q.filter2", SelectSpec(EVERYTHING), ("q.filter1",)),
        Node("q.aggregate1", count, ("q.filter2",)),
    )
    return QueryPlan("q", nodes, "q.aggregate1", count.schema([SCHEMA]), reads_streams=("s",))


class Run:
    """A load, `k` tuples at a time: its rows, and the punctuations of the stream."""

    def __init__(self, load: Load, k: int, *, thin: bool) -> None:
        self.rows: list[tuple[Any, ...]] = []
        engine = Engine(thin=thin)
        stream = AddStream(StreamDefinition("s", SCHEMA, "external", "ts"))
        for effect in engine.step(0, [Command(1, stream), Command(2, AddQuery(plan()))]).orders:
            assert isinstance(effect, Answer)
            assert effect.refused is None
        for batch in load.batches(k):
            self._take(engine, Arrived("s", "bench", batch))
        self._take(engine, FeedClosed("s", "bench", ended=True))
        self.punctuations = sum(engine.punctuations()["s"].values())

    def _take(self, engine: Engine, event: Any) -> None:
        effects = engine.step(1, [event])
        assert not effects.more
        for effect in effects.orders:
            if isinstance(effect, Deliver):
                self.rows += effect.batch.rows()


def thinning(tuples: int, *, interval_us: int = 10_000, repeats: int = 3) -> list[Figure]:
    """One tuple per `interval_us` of event time, one at a time."""
    load = Load(tuples, 100, apart_us=interval_us)
    thin, thick = Run(load, 1, thin=True), Run(load, 1, thin=False)
    assert thin.rows == thick.rows
    fast = best_of(repeats, lambda: Run(load, 1, thin=True)) / tuples * 1e6
    slow = best_of(repeats, lambda: Run(load, 1, thin=False)) / tuples * 1e6
    name = "tumbling count, 10 s, a tuple at a time"
    return [
        Figure(f"{name}: thin", thin.punctuations / tuples * 1e3, "per 1,000", 5.0),
        Figure(f"{name}: without thinning", thick.punctuations / tuples * 1e3, "per 1,000"),
        Figure(f"{name}: thin", fast, "us/tuple"),
        Figure(f"{name}: without thinning", slow, "us/tuple"),
        Figure(f"{name}: ratio", fast / slow, "times", 1.05),
    ]
