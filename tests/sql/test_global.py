"""An aggregate of all rows, without GROUP BY and without a window, always has exactly one row.

The test generates streams of updates and of plain rows, with filters that pass no row, in any order and in any batches.
It compares the result with one row that is recomputed from the current rows.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, AddStream, Arrived, Command, Deliver, FeedClosed, FeedOpened, Punctuated
from millrace.protocol import Schema
from millrace.sql import Catalog, CreateStream, parse, plan_all
from millrace.values.batch import Batch
from tests.running import run_events
from tests.sql.test_updates import by, events, last_of, tuples

STREAMS = """
CREATE STREAM s (at TIMESTAMP, k BIGINT, g TEXT, v BIGINT) WITH (time = 'at', disorder = '8 us');
CREATE STREAM b (at TIMESTAMP, k BIGINT) WITH (time = 'at', disorder = '8 us');
CREATE STREAM empty (at TIMESTAMP, v BIGINT, d DOUBLE) WITH (time = 'at');
CREATE STREAM own (v BIGINT, d DOUBLE);
CREATE STREAM latent (v BIGINT, d DOUBLE) WITH (timestamps = 'latent');
"""
NOTHING = {"n": 0, "counted": 0, "total": None, "mean": None, "least": None, "many": 0}
CALLS = (
    "count(*) AS n, count(v) AS counted, sum(v) AS total, avg(d) AS mean, min(v) AS least, count(DISTINCT v) AS many"
)
OPTIONS = [(emit, order) for emit in ("latest", "every") for order in ("arrival", "event")]
OPTION_NAMES = ("emit", "order")
Row = dict[str, Any]


def one_row(rows: list[Row]) -> Row:
    """The last row of an aggregate without groups, which is never a tombstone."""
    assert rows, "there is always one row"
    assert not any("$gone" in row for row in rows)
    return rows[-1]


@pytest.mark.parametrize(OPTION_NAMES, OPTIONS)
@pytest.mark.parametrize("stream", ["empty", "own", "latent"])
def test_over_no_rows_the_result_is_emitted_when_the_input_ends(
    stream: str, emit: str, order: str, tmp_path: Path
) -> None:
    create = f"CREATE QUERY q WITH (emit = '{emit}', order = '{order}') AS SELECT {CALLS} FROM {stream};"
    assert run_events(STREAMS + create, [], tmp_path).rows["q"] == [NOTHING]


@pytest.mark.parametrize(OPTION_NAMES, OPTIONS)
def test_over_no_rows_the_result_is_emitted_at_the_first_watermark(emit: str, order: str, tmp_path: Path) -> None:
    create = f"CREATE QUERY q WITH (emit = '{emit}', order = '{order}') AS SELECT {CALLS} FROM empty WHERE v > 0;"
    data = [
        {"stream": "empty", "tuple": {"at": at, "v": v, "d": 1.0}} for at, v in [(10, 0), (20, 0), (30, 5), (40, 0)]
    ]
    got = run_events(STREAMS + create, data, tmp_path, close=False).rows["q"]
    assert [row["n"] for row in got] == [0, 1]
    assert got[0] == NOTHING
    events = [{"stream": "empty", "punctuation": 50}]
    assert run_events(STREAMS + create, events, tmp_path, close=False).rows["q"] == [NOTHING]


@pytest.mark.parametrize(("having", "rows"), [("count(*) < 1", [0, None]), ("count(*) = 1", [1]), ("sum(v) > 9", [])])
def test_having(having: str, rows: list[Any], tmp_path: Path) -> None:
    create = f"CREATE QUERY q AS SELECT count(*) AS n FROM empty WHERE v > 0 HAVING {having};"
    data = [{"stream": "empty", "tuple": {"at": at, "v": v, "d": 1.0}} for at, v in [(10, 0), (30, 5)]]
    got = run_events(STREAMS + create, data, tmp_path).rows["q"]
    assert [None if "$gone" in row else row["n"] for row in got] == rows


def test_windows_without_rows_stay_silent(tmp_path: Path) -> None:
    sql = "SELECT count(*) AS n FROM TUMBLE(empty, at, INTERVAL '10 us')"
    data = [{"stream": "empty", "tuple": {"at": at, "v": 1, "d": 1.0}} for at in (5, 95)]
    assert [row["n"] for row in run_events(STREAMS + sql, data, tmp_path).rows["q"]] == [1, 1]
    assert run_events(STREAMS + sql, [], tmp_path).rows["q"] == []


@pytest.mark.parametrize(OPTION_NAMES, OPTIONS)
@pytest.mark.parametrize("seed", range(8))
def test_of_current_rows_that_come_and_go(seed: int, emit: str, order: str, tmp_path: Path) -> None:
    """The current rows are keys with an odd number of tuples: every second tuple removes its key."""
    rows = [row for row in tuples(seed) if row["stream"] == "s"]
    inner = "SELECT k, count(*) AS v, max(v) AS d FROM s GROUP BY k HAVING count(*) % 2 = 1"
    calls = CALLS.replace("avg(d)", "sum(d)")
    create = f"CREATE QUERY q WITH (emit = '{emit}', order = '{order}') AS SELECT {calls} FROM ({inner});"
    got = one_row(run_events(STREAMS + create, events(rows), tmp_path).rows["q"])
    odd = [(len(current), [row["v"] for row in current]) for current in by(rows, "k").values() if len(current) % 2]
    most = [max((v for v in values if v is not None), default=None) for _, values in odd]
    known = [v for v in most if v is not None]
    counts = [count for count, _ in odd]
    assert got == {
        "n": len(odd),
        "counted": len(odd),
        "total": sum(counts) if odd else None,
        "mean": sum(known) if known else None,
        "least": min(counts, default=None),
        "many": len(set(counts)),
    }


def test_when_the_last_row_goes_it_returns_to_the_row_over_no_rows(tmp_path: Path) -> None:
    inner = "SELECT k, count(*) AS v FROM s GROUP BY k HAVING count(*) < 2"
    sql = f"SELECT count(*) AS n, sum(v) AS total FROM ({inner});"
    data = [{"stream": "s", "tuple": {"at": at, "k": 1, "g": "x", "v": 1}} for at in (100, 200)]
    got = run_events(STREAMS + sql, data, tmp_path).rows["q"]
    assert got == [{"n": 1, "total": 1}, {"n": 0, "total": None}]


# -- live --------------------------------------------------------------------------------------------------------------

TV = Schema.of(at="timestamp", v="bigint", d="double")


class Live:
    """An engine that is saved and restored between all steps, and the rows of each query."""

    def __init__(self, script: str) -> None:
        self.engine = Engine(share=True)
        self.now = 0
        self.rows: dict[str, list[tuple[Any, ...]]] = {}
        self.times: dict[str, list[int]] = {}
        statements, self.catalog = plan_all(parse(STREAMS + script), Catalog())
        for statement in statements:
            self.add(statement)
        self.step(FeedOpened("empty", "main"))

    def add(self, statement: Any) -> None:
        is_stream = isinstance(statement, CreateStream)
        self.step(Command(1, AddStream(statement.stream) if is_stream else AddQuery(statement.plan)))

    def step(self, *events: Any) -> None:
        self.now += 1
        effects = self.engine.step(self.now, events)
        for order in effects.orders:
            if isinstance(order, Deliver):
                self.rows.setdefault(order.query, []).extend(order.batch.rows())
                self.times.setdefault(order.query, []).extend(order.batch.ts.tolist())
            refused = getattr(order, "refused", None)
            assert refused is None, refused
        saved = self.engine.save()
        self.engine = Engine.restore(saved)
        assert self.engine.save() == saved

    def tuples(self, *rows: tuple[int, int]) -> None:
        batch = Batch.from_rows(TV, [(at, v, 1.0) for at, v in rows], [at for at, _ in rows])
        self.step(Arrived("empty", "main", batch))


@pytest.mark.parametrize("order", ["arrival", "event"])
def test_live_through_saves_and_restores(order: str) -> None:
    live = Live(f"CREATE QUERY q WITH (order = '{order}') AS SELECT count(*) AS n, sum(v) AS t FROM empty WHERE v > 0;")
    assert live.rows == {}
    live.step(Punctuated("empty", "main", 100))
    assert live.rows == {"q": [(0, None)]}
    assert live.times == {"q": [100]}
    live.step(Punctuated("empty", "main", 200))
    live.tuples((300, 0))
    assert live.rows == {"q": [(0, None)]}
    live.tuples((400, 5))
    live.step(FeedClosed("empty", "main", ended=True))
    assert live.rows == {"q": [(0, None), (1, 5)]}


def test_a_newcomer_gets_the_row_although_an_older_query_has_had_it() -> None:
    sql = "AS SELECT count(*) AS n FROM empty WHERE v > 0;"
    live = Live(f"CREATE QUERY q {sql}")
    live.step(Punctuated("empty", "main", 100))
    (statement,), _ = plan_all(parse(f"CREATE QUERY r {sql}"), live.catalog)
    live.add(statement)
    live.step(Punctuated("empty", "main", 200))
    assert live.rows == {"q": [(0,)], "r": [(0,)]}


def test_random_filters_against_recounting(tmp_path: Path) -> None:
    for seed in range(12):
        draw = random.Random(seed)
        rows = [row for row in tuples(seed) if row["stream"] == "s"]
        least = draw.choice([0, 3, 5, 99])
        sql = f"SELECT count(*) AS n, sum(v) AS total, last(v) AS newest FROM s WHERE v > {least};"
        got = one_row(run_events(STREAMS + sql, events(rows), tmp_path).rows["q"])
        passing = [row for row in sorted(rows, key=lambda row: row["at"]) if row["v"] is not None and row["v"] > least]
        total = sum(row["v"] for row in passing) if passing else None
        assert got == {"n": len(passing), "total": total, "newest": last_of(passing, "v")}
