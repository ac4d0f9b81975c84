"""Queries of update streams over the same arrivals, in other batches, under other strategies.

The last row of each key that has one is the same, its time included. With `emit = 'every'` all rows are, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import (
    Arrived,
    Command,
    Deliver,
    Effects,
    Event,
    FeedClosed,
    QueryFailed,
    RowsFailed,
    SetStrategy,
)
from millrace.offline.script import plan_script
from millrace.values.batch import Batch
from tests.sql.test_updates import QUERIES, STREAMS, Row, tuples

Deliveries = list[tuple[int, dict[str, Any]]]
PLENTY = 1_000_000
CUTS = [1, 2, 7, PLENTY]
STRATEGIES = ["dfs(1)", "dfs", "bfs", "rr"]
FIELDS = {"s": ("at", "k", "g", "v"), "b": ("at", "k")}

# An update stream without missing rows, for queries to read.
CURRENT = """CREATE QUERY c WITH (emit = 'every', order = '{order}') AS
             SELECT k, last(g) AS g, last(v) AS v, count(*) AS n FROM s GROUP BY k;"""

FORMS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{name: (sql, key) for name, (sql, key, _) in QUERIES.items()},
    "totals": ("SELECT k, g, count(*) AS n, min(v) AS least FROM s GROUP BY k, g", ("k", "g")),
    "everything": ("SELECT count(*) AS n, sum(v) AS t FROM s", ()),
    "distinct": ("SELECT DISTINCT k, window_end FROM TUMBLE(s, ts, INTERVAL '10 us')", ("k", "window_end")),
    "current rows": ("SELECT * FROM c", ("k",)),
    "current totals": ("SELECT g, count(*) AS n, max(v) AS most, sum(v) AS t FROM c GROUP BY g", ("g",)),
    "one current total": ("SELECT count(*) AS n, avg(v) AS a FROM c HAVING count(*) > 1", ()),
    "current having": ("SELECT g, count(*) AS n FROM c GROUP BY g HAVING count(*) > 1", ("g",)),
    "current where": ("SELECT k, n, v FROM c WHERE v % 2 = 1", ("k",)),
    "first place": ("SELECT * FROM c QUALIFY ROW_NUMBER() OVER (PARTITION BY g ORDER BY v DESC, k) = 1", ("g",)),
    "places": (
        "SELECT *, ROW_NUMBER() OVER (ORDER BY v DESC NULLS LAST, k) AS r FROM c QUALIFY r <= 3",
        ("r",),
    ),
    "places of groups": (
        "SELECT *, ROW_NUMBER() OVER (PARTITION BY g ORDER BY n % 5, k) AS r FROM c QUALIFY r <= 2",
        ("g", "r"),
    ),
    "places of windows": (
        """SELECT k, n, window_end, ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY n DESC, k) AS r
           FROM (SELECT k, count(*) AS n, window_end FROM TUMBLE(s, ts, INTERVAL '10 us') GROUP BY k)
           QUALIFY r <= 2""",
        ("window_end", "r"),
    ),
    "join latest": ("SELECT b.at AS at, b.k AS k, c.n AS n FROM b LEFT JOIN LATEST c ON b.k = c.k", ("at",)),
    "join latest having": (
        """SELECT b.at AS at, b.k AS k, c.n AS n FROM b LEFT JOIN LATEST
           (SELECT k, count(*) AS n FROM s GROUP BY k HAVING count(*) % 3 = 1) c ON b.k = c.k""",
        ("at",),
    ),
    "newest of both": (
        """SELECT k, at, 's' AS arm FROM s QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY at DESC) = 1
           UNION ALL
           SELECT k, at, 'b' FROM b QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY at DESC) = 1""",
        ("k",),
    ),
}  # fmt: skip
# The input of a union that arrives first decides which rows are older.
UNIONS = ("united", "newest of both")


def batches(engine: Engine, rows: Sequence[Row], cut: int) -> Iterator[list[Event]]:
    """The arrivals, `cut` per step; consecutive rows of one stream arrive together."""
    for begin in range(0, len(rows), cut):
        runs: list[tuple[str, list[Row]]] = []
        for row in rows[begin : begin + cut]:
            if not runs or runs[-1][0] != row["stream"]:
                runs.append((row["stream"], []))
            runs[-1][1].append(row)
        yield [Arrived(name, "main", batch_of(engine, name, run)) for name, run in runs]


def batch_of(engine: Engine, stream: str, rows: Sequence[Row]) -> Batch:
    schema = engine.streams_by_name[stream].definition.schema
    return Batch.from_rows(
        schema, [tuple(row[name] for name in FIELDS[stream]) for row in rows], [row["at"] for row in rows]
    )


def play(commands: Sequence[Any], rows: Sequence[Row], cut: int, strategy: str) -> Deliveries:
    """The rows of query q with their times."""
    engine = Engine()
    deliveries: Deliveries = []

    def step(now_us: int, events: Sequence[Event]) -> None:
        effects = engine.step(now_us, events, budget=PLENTY, executions=PLENTY)
        collect(effects, deliveries)
        while effects.more:
            effects = engine.step(now_us, [], budget=PLENTY, executions=PLENTY)
            collect(effects, deliveries)

    for number, body in enumerate(commands):
        step(0, [Command(number, body)])
    for number, component in enumerate(list(engine.graph.components)):
        step(0, [Command(len(commands) + number, SetStrategy(component.name, strategy))])
    for now_us, events in enumerate(batches(engine, rows, cut), 1):
        step(now_us, events)
    step(len(rows) + 1, [FeedClosed(name, "main", ended=True) for name in engine.streams_by_name])
    return deliveries


def collect(effects: Effects, deliveries: Deliveries) -> None:
    for order in effects.orders:
        assert not isinstance(order, QueryFailed | RowsFailed), order
        if isinstance(order, Deliver) and order.query == "q":
            names = order.batch.schema.names
            rows = (dict(zip(names, row, strict=True)) for row in order.batch.rows())
            deliveries += zip(order.batch.ts.tolist(), rows, strict=True)


def last_of(deliveries: Deliveries, key: Sequence[str]) -> dict[tuple[Any, ...], tuple[int, Row]]:
    newest = {tuple(row[name] for name in key): (ts, row) for ts, row in deliveries}
    return {at: last for at, last in newest.items() if not last[1].get("$gone")}


# An inner query with another key emits only the last rows of a step, so the outer query reads other rows.
NESTED = ("regrouped", "chained", "ranked")
SEEDS = [seed for seed in range(20) if len(tuples(seed)) > 30][:2]
CASES = [(form, emit) for form in FORMS for emit in ("latest", "every") if emit == "every" or form not in NESTED]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("order", ["arrival", "event"])
@pytest.mark.parametrize(("form", "emit"), CASES)
def test_rows_and_their_times_do_not_depend_on_batches(form: str, emit: str, order: str, seed: int) -> None:
    sql, key = FORMS[form]
    options = f"WITH (emit = '{emit}', order = '{order}')"
    script = f"{STREAMS}{CURRENT.format(order=order)}CREATE QUERY q {options} AS {sql};"
    commands, rows = plan_script(script).commands, tuples(seed)
    first = play(commands, rows, CUTS[0], STRATEGIES[0])
    assert first
    for at, cut in enumerate(CUTS):
        for strategy in (STRATEGIES[at], STRATEGIES[at - 1]):
            emitted = play(commands, rows, cut, strategy)
            assert last_of(emitted, key) == last_of(first, key), (cut, strategy)
            if emit == "every" and form not in UNIONS:
                assert emitted == first, (cut, strategy)
