"""Which aggregates close groups early, and what a promise about a group must say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millrace.engine.events import AddStream, Punctuated
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.protocol import Refuse
from millrace.sql import Catalog, SqlError, parse, plan_all
from millrace.sql.planned import CreateQuery, CreateStream
from tests.engine.graphs import Bench
from tests.running import run_events

STREAMS = """
CREATE STREAM s (ts TIMESTAMP, k BIGINT, x TEXT, v BIGINT) WITH (time = 'ts', punctuation_key = 'k');
CREATE STREAM two (ts TIMESTAMP, k BIGINT, x TEXT) WITH (time = 'ts', punctuation_key = 'x, k');
CREATE STREAM plain (ts TIMESTAMP, k BIGINT) WITH (time = 'ts');
"""

PER_SECOND = "SELECT k, count(*) AS n, window_end - INTERVAL '1 us' AS at FROM TUMBLE(s, ts, '1 s') GROUP BY k"

VIEWS = f"""
CREATE QUERY renamed AS SELECT v, k AS g, ts FROM s WHERE v > 1;
CREATE QUERY mixed AS SELECT ts, k FROM s UNION ALL SELECT ts, k FROM plain;
CREATE QUERY in_order WITH (order = 'event') AS SELECT g, ts FROM renamed;
CREATE QUERY joined AS
  SELECT a.ts AS t, a.k, b.k AS j, a.x FROM s a [RANGE '1 s'] JOIN plain b [RANGE '1 s'] ON a.k = b.k;
CREATE QUERY left_joined AS SELECT a.ts AS t, a.k, b.k AS j
  FROM s a LEFT JOIN plain b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '1 s';
CREATE QUERY joined_by_x AS SELECT a.ts AS t, a.k FROM s a [RANGE '1 s'] JOIN two b [RANGE '1 s'] ON a.x = b.x;
CREATE QUERY per_second AS {PER_SECOND};
CREATE QUERY per_second_in_order WITH (order = 'event') AS {PER_SECOND};
"""


def early(select: str, options: str = "") -> list[bool]:
    _, catalog = plan_all(parse(f"{STREAMS} {VIEWS} CREATE QUERY q {options} AS {select};"), Catalog())
    specs = [node.spec for node in catalog.queries["q"].nodes]
    return [spec.early for spec in specs if isinstance(spec, AggregateSpec)]


@pytest.mark.parametrize(
    ("select", "closes"),
    [
        ("SELECT k, count(*) FROM TUMBLE(s, ts, '1 s') GROUP BY k", [True]),
        ("SELECT k, x, count(*) FROM SESSION(s, ts, '1 s') GROUP BY k, x", [True]),
        ("SELECT g, count(*) FROM TUMBLE((SELECT v, k AS g, ts FROM s WHERE v > 1), ts, '1 s') GROUP BY g", [True]),
        (f"SELECT k, max(n) FROM TUMBLE(({PER_SECOND}), at, '1 m') GROUP BY k", [True, True]),
        ("SELECT k, x, count(*) FROM TUMBLE(two, ts, '1 s') GROUP BY k, x", [True]),
        ("SELECT k, count(*) FROM TUMBLE(two, ts, '1 s') GROUP BY k", [False]),
        ("SELECT x, count(*) FROM TUMBLE(s, ts, '1 s') GROUP BY x", [False]),
        ("SELECT k + 1, count(*) FROM TUMBLE(s, ts, '1 s') GROUP BY k + 1", [False]),
        ("SELECT count(*) FROM TUMBLE(s, ts, '1 s')", [False]),
        (
            "SELECT k, count(*) FROM TUMBLE((SELECT ts, k FROM s UNION ALL SELECT ts, k FROM s), ts, '1 s') GROUP BY k",
            [True],
        ),
        ("SELECT k, count(*) FROM TUMBLE(mixed, ts, '1 s') GROUP BY k", [False]),
        (
            "SELECT k, count(*) FROM TUMBLE((SELECT ts, k FROM s UNION ALL SELECT ts, v FROM s), ts, '1 s') GROUP BY k",
            [False],
        ),
        ("SELECT g, count(*) FROM TUMBLE(renamed, ts, '1 s') GROUP BY g", [True]),
        ("SELECT v, count(*) FROM TUMBLE(renamed, ts, '1 s') GROUP BY v", [False]),
        ("SELECT g, count(*) FROM TUMBLE(in_order, ts, '1 s') GROUP BY g", [True]),
        ("SELECT k, max(n) FROM TUMBLE(per_second, at, '1 m') GROUP BY k", [True]),
        ("SELECT k, max(n) FROM TUMBLE(per_second_in_order, at, '1 m') GROUP BY k", [False]),
        ("SELECT k, count(*) FROM TUMBLE(joined, t, '1 s') GROUP BY k", [True]),
        ("SELECT j, count(*) FROM TUMBLE(joined, t, '1 s') GROUP BY j", [True]),
        ("SELECT x, count(*) FROM TUMBLE(joined, t, '1 s') GROUP BY x", [False]),
        ("SELECT k, count(*) FROM TUMBLE(left_joined, t, '1 s') GROUP BY k", [True]),
        ("SELECT j, count(*) FROM TUMBLE(left_joined, t, '1 s') GROUP BY j", [False]),
        ("SELECT k, count(*) FROM TUMBLE(joined_by_x, t, '1 s') GROUP BY k", [True]),
        ("SELECT k, count(*) FROM s GROUP BY k", [False]),
        ("SELECT k, count(*) FROM s [ROWS 3 SLIDE 3] GROUP BY k", [False]),
        ("SELECT k, count(*) FROM TUMBLE(plain, ts, '1 s') GROUP BY k", [False]),
    ],
)
def test_aggregates_by_the_punctuation_key_close_groups_early(select: str, closes: list[bool]) -> None:
    assert early(select) == closes
    assert not any(early(select, "WITH (order = 'event')"))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("time = 'ts', punctuation_key = 'q'", "punctuation_key: the column q does not exist; the columns are ts, k"),
        ("punctuation_key = 'k'", "punctuation_key"),
        ("time = 'ts', punctuation_key = 'k, ts'", "punctuation_key: expected columns other than the time field ts"),
    ],
)
def test_a_key_that_cannot_be_promised_is_refused(options: str, error: str) -> None:
    with pytest.raises(SqlError, match=error):
        plan_all(parse(f"CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH ({options});"), Catalog())


@pytest.mark.parametrize(
    ("stream", "where", "error"),
    [
        ("s", {"k": "seven"}, "line 1, where, field k: expected bigint .*, got 'seven'"),
        ("s", {"v": 7}, r"line 1, where: expected a value for each of k .*, got 'v'"),
        ("s", {}, r"line 1, where: expected a value for each of k .*, got none"),
        ("s", 7, r"line 1, where: expected a value for each of k .*, got 7"),
        ("two", {"k": 7}, r"line 1, where: expected a value for each of x, k .*, got 'k'"),
        ("plain", {"k": 7}, r"line 1, where: stream plain has no punctuation key: create it WITH"),
    ],
)
def test_what_names_no_group_is_refused(stream: str, where: Any, error: str, tmp_path: Path) -> None:
    with pytest.raises(Refuse, match=error):
        run_events(STREAMS, [{"stream": stream, "punctuation": 5, "where": where}], tmp_path)


def test_where_belongs_to_punctuation(tmp_path: Path) -> None:
    with pytest.raises(Refuse, match="line 1: expected where in a line with punctuation, got it with close"):
        run_events(STREAMS, [{"at": 1, "stream": "s", "close": True, "where": {"k": 1}}], tmp_path)


def test_an_aggregate_passes_promises_on_to_the_next_one(tmp_path: Path) -> None:
    """The second aggregate closes the windows of group 1 too, before any other group has reached their end."""
    sql = STREAMS + (
        "CREATE QUERY q AS SELECT k, sum(n) AS n, window_end FROM TUMBLE((SELECT k, count(*) AS n, window_end - "
        "INTERVAL '1 us' AS at FROM TUMBLE(s, ts, '10 us') GROUP BY k), at, '100 us') GROUP BY k;"
    )
    tuples = [{"stream": "s", "tuple": {"ts": ts, "k": k, "v": 0}} for ts, k in ((5, 1), (6, 2), (15, 1))]
    promise = {"stream": "s", "punctuation": 99, "where": {"k": 1}}
    found = run_events(sql, [*tuples, promise], tmp_path, close=False)
    assert found.rows["q"] == []
    found = run_events(sql, [*tuples, {**promise, "punctuation": 100}], tmp_path, close=False)
    assert found.rows["q"] == [{"k": 1, "n": 2, "window_end": 100}]


@pytest.mark.parametrize(
    ("select", "drops"),
    [
        (PER_SECOND, None),
        ("SELECT g FROM (SELECT ts, k AS g FROM s UNION ALL SELECT ts, k FROM s)", None),
        ("SELECT x, count(*) AS n FROM TUMBLE(s, ts, '1 s') GROUP BY x", "q.aggregate1"),
        ("SELECT v FROM s", "q.project1"),
        ("SELECT a.k FROM s a [RANGE '1 s'] JOIN plain b [RANGE '1 s'] ON a.k = b.k", None),
        ("SELECT b.k FROM s a [RANGE '1 s'] JOIN plain b [RANGE '1 s'] ON a.k = b.k", None),
        ("SELECT a.x FROM s a [RANGE '1 s'] JOIN plain b [RANGE '1 s'] ON a.k = b.k", "q.join1"),
        ("SELECT a.k FROM s a FOLLOWED BY plain b WITHIN '1 s' ON a.k = b.k", "q.followed_by1"),
    ],
)
def test_why_names_the_operator_that_drops_promises(select: str, drops: str | None) -> None:
    steps, _ = plan_all(parse(f"{STREAMS} CREATE QUERY q AS {select};"), Catalog())
    bench = Bench()
    for step in steps:
        if isinstance(step, CreateStream):
            bench.do(AddStream(step.stream))
        elif isinstance(step, CreateQuery):
            bench.query(step.plan)
    bench.run(Punctuated("s", "f", 20, (7,)))
    text = bench.engine.why("q").text
    assert "Punctuation is ahead of s's time for 1 group, for example k = 7" in text
    assert ("drops promises" in text) == (drops is not None)
    assert drops is None or f"{drops} drops promises about groups" in text
