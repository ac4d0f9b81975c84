"""No input waits forever: while others are served, its oldest tuple has its turn after a bounded number of executions.

Generated: every operator with several inputs, and every branch that a scheduler chooses among, under every strategy,
with steps that end by a budget of tuples and steps that end by a number of executions (`millrace run --cost`). One
input always has more tuples than a step takes; the other gets a single tuple.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, AddStream, Arrived, Command, Deliver, Event, FeedOpened, Measured
from millrace.engine.scheduler.component import PATIENCE
from millrace.protocol import Schema
from millrace.sql import Catalog, CreateQuery, CreateStream, parse, plan_all
from millrace.values.batch import Batch

STREAMS = """
CREATE STREAM a (v BIGINT, k BIGINT) WITH (queue = 'fifo', update_key = 'k');
CREATE STREAM b (v BIGINT, k BIGINT) WITH (queue = 'fifo', update_key = 'k');
"""
SCHEMA = Schema.of(v="bigint", k="bigint")
STRATEGIES = (
    *("dfs", "dfs(1)", "dfs(7)", "bfs", "bfs(1)", "bfs(7)", "rr", "rr(1)", "rr(64)"),
    *("chain", "chain(1)", "chain(7)"),
)
# What reads both streams, and which of its rows only the waiting input can cause.
QUERIES = {
    "arrival union": "SELECT v FROM a UNION ALL SELECT v FROM b",
    "ordered union": "SELECT v FROM a UNION ALL SELECT v FROM b",
    "wide union": "SELECT v FROM a WHERE v > 0 UNION ALL SELECT v FROM a UNION ALL SELECT v FROM b",
    "youngest union": "SELECT k, v FROM a LATEST UNION ALL SELECT k, v FROM b LATEST",
    "join": "SELECT b.v FROM b [RANGE '1 hour'] JOIN a [RANGE '1 hour'] ON a.v = -b.v",
    "left join": "SELECT b.v FROM b LEFT JOIN a ON a.k = b.v AND a.ts BETWEEN b.ts AND b.ts",
    "wide join": "SELECT b.v FROM b [RANGE '1 hour'] JOIN a [RANGE '1 hour'] ON a.v = -b.v "
    "JOIN a c [RANGE '1 us'] ON c.v = a.v",
    "ordered join": "SELECT b.v FROM b LEFT JOIN a ON a.k = b.v AND a.ts BETWEEN b.ts AND b.ts",
    "latest join": "SELECT b.v FROM b LEFT JOIN LATEST a ON a.k = b.k",
    "sequence": "SELECT b.v FROM a FOLLOWED BY b WITHIN '1 hour'",
    "chronicle": "SELECT b.v FROM a FOLLOWED BY b CHRONICLE WITHIN '1 hour'",
    "absence": "SELECT b.v FROM b FOLLOWED BY NO a WITHIN '1 us' ON a.k = b.k",
    "selection below": "SELECT v FROM a WHERE v > 0 UNION ALL SELECT v + 0 AS v FROM b WHERE v < 0 AND v > -2",
}
ORDERED = {"ordered union", "ordered join"}
MARKED = -1
# Executions that may pass, per tuple that was queued anywhere when the one in question came: a tuple costs one at most
# in each operator, plus another turn of a neighbour.
PER_TUPLE = 24
# Under `chain` the one that has waited longest has one turn in so many.
PER_TUPLE_CHAINED = PER_TUPLE * PATIENCE // 4
SPARE = 3_000


def _rows(stream: str, values: list[int]) -> Arrived:
    return Arrived(
        stream,
        "main",
        Batch.from_rows(SCHEMA, [(value, value % 5 if value > 0 else value) for value in values], [0] * len(values)),
    )


def _engine(sql: str, order: str, strategy: str, also: str = "") -> Engine:
    engine = Engine(share=True)
    script = f"{STREAMS} CREATE QUERY q WITH (order = '{order}') AS {sql}; {also}"
    statements, _ = plan_all(parse(script), Catalog())
    for number, statement in enumerate(statements):
        if isinstance(statement, CreateStream):
            body: AddStream | AddQuery = AddStream(statement.stream)
        else:
            assert isinstance(statement, CreateQuery)
            body = AddQuery(statement.plan, strategy)
        answers = engine.step(0, [Command(number, body)], executions=0).orders
        assert not any(getattr(answer, "refused", None) for answer in answers), answers
    for stream in ("a", "b"):
        engine.step(0, [FeedOpened(stream, "main")], executions=0)
    return engine


def _served(engine: Engine, query: str, limits: Mapping[str, Any], per_tuple: int, *, busy: str, waits: str) -> bool:
    """Whether the one tuple of `waits` comes out in time although more of `busy` come in every step, and all that any
    input of an operator holds is taken in time."""
    executed = now = 0
    heads: dict[tuple[str, int], tuple[int, int]] = {}

    def step(*events: Event) -> Iterator[tuple[int, ...]]:
        nonlocal executed, now
        now += 10
        effects = engine.step(now, events, **limits)
        executed = sum(component.steps for component in engine.components())
        for order in effects.orders:
            if isinstance(order, Deliver) and order.query == query:
                yield from order.batch.rows()

    def held_long(limit: int) -> bool:
        """Whether the oldest tuple of an input is still the one of so many executions ago."""
        seen = {
            (operator.name, at): inlet.position
            for operator in engine.graph.operators.values()
            for at, inlet in enumerate(operator.inputs)
            if inlet.waiting
        }
        for key, position in seen.items():
            if key not in heads or heads[key][0] != position:
                heads[key] = position, executed
        for key in heads.keys() - seen.keys():
            del heads[key]
        return any(executed - since > limit for _, since in heads.values())

    flood = list(range(1, 31))
    for _ in range(20):
        list(step(_rows(busy, flood)))
    before = executed
    queued = sum(component.queued() for component in engine.graph.components)
    found = list(step(_rows(waits, [MARKED]), _rows(busy, flood)))
    while not any(MARKED in row for row in found):
        limit = per_tuple * queued + SPARE
        if executed - before > limit or held_long(limit):
            return False
        found = list(step(_rows(busy, flood)))
    return True


# How a step ends: by its tuples, as in the server, or by its executions, as in a run with a cost.
LIMITS = {"a budget": {"budget": 16}, "executions": {"executions": 5}, "one execution": {"executions": 1}}
CASES = list(product(STRATEGIES, LIMITS))


def _per_tuple(strategy: str) -> int:
    return PER_TUPLE_CHAINED if strategy.startswith("chain") else PER_TUPLE


@pytest.mark.parametrize("kind", QUERIES)
@pytest.mark.parametrize(("strategy", "limits"), CASES)
def test_no_input_of_an_operator_waits_for_ever(kind: str, strategy: str, limits: str) -> None:
    engine = _engine(QUERIES[kind], "event" if kind in ORDERED else "arrival", strategy)
    assert _served(engine, "q", LIMITS[limits], _per_tuple(strategy), busy="a", waits="b")


@pytest.mark.parametrize(("strategy", "limits"), CASES)
def test_no_branch_of_a_component_waits_for_ever(strategy: str, limits: str) -> None:
    """The stream with many tuples has two separate branches; a third query reads the one that waits."""
    also = "CREATE QUERY other AS SELECT v FROM b WHERE v < 1; CREATE QUERY third AS SELECT v, k FROM a WHERE v > 3;"
    engine = _engine("SELECT v FROM a UNION ALL SELECT v FROM b", "arrival", strategy, also)
    assert _served(engine, "other", LIMITS[limits], _per_tuple(strategy), busy="a", waits="b")


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("strategy", ["chain", "chain(1)", "chain(7)"])
def test_no_segment_waits_for_ever_for_steeper_ones(strategy: str, limits: str) -> None:
    """The operators of the stream with many tuples cost nothing, those of the other nearly everything."""
    engine = _engine(QUERIES["selection below"], "arrival", strategy)
    for stream in ("a", "b"):
        engine.step(0, [_rows(stream, list(range(1, 200)))])
    inner = [operator for operator in engine.operators() if operator.kind not in ("source", "sink")]
    costs = {str(operator.name): 1.0 if operator.reads == ["a.source"] else 900.0 for operator in inner}
    for _ in range(3):
        engine.step(0, [Measured(name, 200, us * 200) for name, us in costs.items()])
    (component,) = engine.components()
    assert component.chain is not None
    assert component.chain.decisions, "nothing was decided: the slopes are equal"
    assert _served(engine, "q", LIMITS[limits], PER_TUPLE_CHAINED, busy="a", waits="b")
