"""How tuples that arrive in one order are cut into batches and steps never changes the rows.

Generated: two streams with many equal times, in one order of arrival, cut in several ways and under several strategies.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, AddStream, Arrived, Command, Deliver, FeedClosed, FeedOpened
from millrace.protocol import Schema
from millrace.sql import Catalog, CreateQuery, CreateStream, parse, plan_all
from millrace.values.batch import Batch

STREAMS = """
CREATE STREAM a (at TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'at', disorder = '3 us');
CREATE STREAM b (at TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'at', disorder = '3 us');
"""
SCHEMA = Schema.of(at="timestamp", k="bigint", v="bigint")
Row = tuple[int, int, int]
JOINS = {
    "one": "SELECT a.v AS v, b.v AS w FROM a [ROWS 2] JOIN b ON a.k = b.k",
    "both": "SELECT a.v AS v, b.v AS w FROM a [ROWS 1] JOIN b [ROWS 3] ON a.k = b.k",
    "all": "SELECT a.v AS v, b.v AS w FROM a [ROWS 2] JOIN b [RANGE '4 us'] ON TRUE",
}


def _arrivals(draw: random.Random) -> list[tuple[str, Row]]:
    newest, found = 10, []
    for number in range(40):
        newest += draw.choice([0, 0, 0, 1, 2])
        at = newest - draw.choice([0, 0, 1, 3])
        found.append((draw.choice("ab"), (at, draw.randrange(2), number)))
    return found


def _played(sql: str, arrivals: list[tuple[str, Row]], draw: random.Random, strategy: str) -> list[tuple[Any, ...]]:
    engine = Engine()
    rows: list[tuple[Any, ...]] = []
    now = 0

    def step(*events: Any) -> None:
        nonlocal now
        now += 1
        for order in engine.step(now, events).orders:
            assert getattr(order, "refused", None) is None, order
            if isinstance(order, Deliver):
                rows.extend(zip(order.batch.ts.tolist(), order.batch.rows(), strict=True))

    statements, _ = plan_all(parse(f"{STREAMS} CREATE QUERY q {sql};"), Catalog())
    for statement in statements:
        if isinstance(statement, CreateStream):
            step(Command(1, AddStream(statement.stream)))
        else:
            assert isinstance(statement, CreateQuery)
            step(Command(1, AddQuery(statement.plan, strategy)))
    step(FeedOpened("a", "main"), FeedOpened("b", "main"))
    first = 0
    while first < len(arrivals):
        last = first + draw.choice([1, 2, 5, 40])
        events: list[Arrived] = []
        for stream, row in arrivals[first:last]:
            batch = Batch.from_rows(SCHEMA, [row], [row[0]])
            if events and events[-1].stream == stream:
                events[-1] = Arrived(stream, "main", Batch.concat([events[-1].batch, batch]))
            else:
                events.append(Arrived(stream, "main", batch))
        step(*events)
        first = last
    step(FeedClosed("a", "main", ended=True), FeedClosed("b", "main", ended=True))
    return rows


@pytest.mark.parametrize("order", ["arrival", "event"])
@pytest.mark.parametrize("kind", JOINS)
def test_joins_over_the_newest_rows(kind: str, order: str) -> None:
    for seed in range(25):
        draw = random.Random(seed)
        arrivals = _arrivals(draw)
        sql = f"WITH (order = '{order}') AS {JOINS[kind]}"
        wanted = _played(sql, arrivals, random.Random(0), "dfs(1)")
        for number, strategy in enumerate(("dfs", "bfs", "rr(2)", "dfs(3)")):
            found = _played(sql, arrivals, random.Random(number + 1), strategy)
            assert sorted(found) == sorted(wanted), (seed, strategy)
