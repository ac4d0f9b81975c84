"""Whatever a call into an operator raises costs the operator's own query, and nothing else.

Each method and property of each kind of operator raises in turn, in a world in which everything is asked: events,
commands about other queries, views, plans, saves. The oracle is the same world in which nothing raises.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    Answer,
    Arrived,
    Command,
    Effects,
    FeedOpened,
    Measured,
    PauseQuery,
    Punctuated,
    ResumeQuery,
    SetStrategy,
)
from millrace.operators.frame.operator import Operator
from millrace.protocol import Refuse
from millrace.values.batch import Batch
from tests.backfill.test_facts import flow
from tests.engine.graphs import Bench, identity, plan, rows
from tests.engine.test_edges import TICKS, latest, tick, ticks, with_edges
from tests.simulation.world import moved

QUERIES = {
    "filter": "SELECT k, n FROM a WHERE v > 0",
    "union": "SELECT k, n FROM a UNION ALL SELECT k, n FROM b WHERE v = 1",
    "aggregate": "SELECT k, count(*) AS v, window_end FROM HOP(a, ts, '2 us', '5 us') GROUP BY k",
    "session": "SELECT k, max(n) AS n, window_end FROM SESSION(a, ts, '3 us') GROUP BY k",
    "running": "SELECT k, count(*) AS v FROM a WHERE v > 0 GROUP BY k",
    "join": "SELECT a.n AS an, b.n AS bn FROM a [RANGE '4 us'] JOIN b [RANGE '7 us'] ON a.k = b.k",
    "outer": """SELECT a.n AS an, b.n AS bn FROM a LEFT JOIN b
                ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '3 us' AND a.ts + INTERVAL '5 us'""",
    "deduplicate": "SELECT k, n FROM a DEDUPLICATE BY k WITHIN '6 us'",
    "sequence": "SELECT a.n AS an, b.n AS bn FROM a FOLLOWED BY b WITHIN '9 us' ON a.k = b.k",
    "top": """SELECT k, n, r, window_end FROM (SELECT k, n, v, window_end,
              row_number() OVER (PARTITION BY window_end, k ORDER BY v DESC, n) AS r FROM TUMBLE(a, ts, '6 us') a) q
              WHERE r <= 2""",
}
GOOD = "SELECT n FROM a WHERE v > -7 UNION ALL SELECT n FROM b WHERE v = 2"
OTHER = "SELECT n FROM a WHERE v > 5"
TUPLES = [(at, at % 3, at % 4 - 1, at) for at in range(100, 140)]


class FaultError(Exception):
    """What the operator raises."""


def broken(operator: Operator, name: str) -> None:
    """Let a method or a property of an operator raise from now on."""

    def raises(*_: Any, **__: Any) -> Any:
        raise FaultError(name)

    kind = type(operator)
    member: Any = property(raises) if isinstance(getattr(kind, name), property) else raises
    operator.__class__ = type(kind.__name__, (kind,), {name: member})


def members(kind: type) -> list[str]:
    """The methods and properties by which others call an operator."""
    found = [name for name in dir(kind) if not name.startswith("_")]
    return [name for name in found if callable(getattr(kind, name)) or isinstance(getattr(kind, name), property)]


class World:
    """The query `bad` and the query `good`, over the same two streams."""

    def __init__(self, kind: str) -> None:
        made = flow(QUERIES[kind])
        self.engine = Engine(share=True)
        self.now = 0
        self.good: list[Any] = []
        streams = flow(QUERIES["union"]).streams
        for stream in streams.values():
            self.do(AddStream(stream))
        self.streams = list(streams.items())
        self.do(AddQuery(moved(made.query, "bad")))
        self.do(AddQuery(moved(flow(GOOD).query, "good")))
        self.step(*(FeedOpened(name, "main", can_answer=True) for name, _ in self.streams))

    def do(self, body: Any) -> None:
        effects = self.step(Command(1, body))
        (answer,) = (order for order in effects.orders if isinstance(order, Answer))
        if answer.refused is not None:
            raise answer.refused

    def step(self, *events: Any) -> Effects:
        self.now += 1
        effects = first = self.engine.step(self.now, events, executions=40)
        while effects.more:
            self.good += rows(effects, "good")
            effects = self.engine.step(self.now, (), executions=40)
        self.good += rows(effects, "good")
        return first

    def give(self, at: int) -> None:
        for name, stream in self.streams:
            row = TUPLES[at]
            self.step(Arrived(name, "main", Batch.from_rows(stream.schema, [row], [row[0]])))
            self.step(Punctuated(name, "main", row[0] - 2))
        for operator in list(self.engine.graph.operators):
            self.step(Measured(operator, 1, 1.0))

    def look(self) -> None:
        """Everything that a server asks between two steps. Of the query that is broken it may be refused."""
        engine = self.engine
        engine.streams()
        engine.queries()
        engine.components()
        engine.operators()
        engine.withheld()
        engine.older("bad", self.now, 0)
        engine.plan([PauseQuery("good")])
        for name in ("bad", "good"):
            assert engine.why(name).text
        for name in engine.graph.operators:
            with suppress(Refuse):
                engine.staleness(name)

    def play(self, breaks: str | None = None, operator: str = "") -> None:
        for at in range(10):
            self.give(at)
        if breaks is not None:
            broken(self.engine.graph.operators[operator], breaks)
        self.look()
        saved = self.engine.save()
        for at in range(10, 20):
            self.give(at)
        self.look()
        self.do(PauseQuery("good"))
        self.do(ResumeQuery("good"))
        self.do(SetStrategy("a", "bfs", None))
        self.do(AddQuery(moved(flow(OTHER).query, f"other{self.now}")))
        for at in range(20, 30):
            self.give(at)
        self.look()
        self.engine.save()
        self.restored = Engine.restore(saved)
        self.restored.step(self.now)


@cache
def expected(kind: str) -> list[Any]:
    world = World(kind)
    world.play()
    assert all(query.state == "running" for query in world.engine.queries())
    return world.good


def cases() -> list[Any]:
    found = []
    for kind in QUERIES:
        world = World(kind)
        seen: set[type] = set()
        for operator in world.engine.queries_by_name["bad"].operators:
            if type(operator) not in seen:
                seen.add(type(operator))
                found.append(pytest.param(kind, operator.name, id=f"{kind}-{operator.kind}"))
    return found


@pytest.mark.parametrize(("kind", "operator"), cases())
def test_an_operator_that_raises_costs_its_own_query_alone(kind: str, operator: str) -> None:
    for name in members(type(World(kind).engine.graph.operators[operator])):
        world = World(kind)
        try:
            world.play(name, operator)
            assert world.good == expected(kind), "other rows than without the fault"
            states = {query.name: query.state for query in world.engine.queries()}
            assert states.pop("bad") in ("running", "failed")
            assert set(states.values()) == {"running"}
            restored = {query.name: query.state for query in world.restored.queries()}
            assert restored == {"bad": "failed" if name == "save" else "running", "good": "running"}
        except BaseException as error:
            error.add_note(f"{operator}.{name} raises")
            raise


def test_a_queue_that_raises_costs_the_query_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tuples are put into the queue by the operator upstream, which belongs to another query."""
    bench = Bench(ticks())
    bench.may_fail = True
    bench.query(plan("good", ("A", identity(TICKS), ["s.source"]), schema=TICKS))
    bench.query(with_edges(plan("bad", ("B", identity(TICKS), ["good.A"]), schema=TICKS), [latest()]))
    queue = bench.engine.graph.operators["bad.B"].inputs[0].queue  # type: ignore[attr-defined]
    bench.run(tick(("a", 1, 1)))

    def raises(*_: Any) -> None:
        raise FaultError

    monkeypatch.setattr(type(queue), "enqueue", raises)
    effects = bench.run(tick(("a", 2, 2)))
    assert rows(effects, "good") == [(2, "a", 2)]
    assert {query.name: query.state for query in bench.engine.queries()} == {"good": "running", "bad": "failed"}
    monkeypatch.undo()
    bench.do(ResumeQuery("bad"))
    effects = bench.run(tick(("a", 3, 3)))
    assert rows(effects, "good") == rows(effects, "bad") == [(3, "a", 3)]
