"""What operators say about themselves holds of their rows: order, used columns, keys of state, and reach.

A query is run twice: over all tuples, and over what the facts say is enough. The rows must agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from millrace.backfill.columns import used_columns
from millrace.backfill.flow import Flow
from millrace.backfill.job import flow_of_text
from millrace.backfill.keys import keys_of
from millrace.backfill.margins import margins_of
from millrace.operators.kinds import kinds
from millrace.sql.facts import facts_of
from millrace.values.expression import Column
from tests.depth import examples
from tests.running import run_events

LAST: Final = 40
STREAMS: Final = "".join(
    f"CREATE STREAM {name} (ts TIMESTAMP, k BIGINT, v BIGINT, n BIGINT) WITH (time = 'ts', disorder = '1000 us');"
    for name in "ab"
)
RANGED: Final = "a [RANGE '4 us'] JOIN b [RANGE '7 us'] ON a.k = b.k"
NUMBERED: Final = "row_number() OVER (PARTITION BY window_end, k ORDER BY v DESC, n) AS r"
QUERIES: Final = [
    "SELECT k, n FROM a WHERE v > 0",
    "SELECT k, n FROM a UNION ALL SELECT k, n FROM b WHERE v = 1",
    "SELECT k, sum(v) AS v, window_end FROM TUMBLE(a, ts, '6 us') GROUP BY k",
    "SELECT k, count(*) AS v, window_end FROM HOP(a, ts, '2 us', '5 us') GROUP BY k",
    "SELECT k, max(n) AS n, window_end FROM SESSION(a, ts, '3 us') GROUP BY k",
    "SELECT k, n, window_start AS s FROM HOP(a, ts, '2 us', '5 us') a",
    "SELECT k, n, window_start AS s FROM SESSION(a, ts, '4 us' PARTITION BY k) a",
    "SELECT k, count(*) AS v FROM a WHERE v > 0 GROUP BY k",
    f"SELECT a.n AS an, b.n AS bn FROM {RANGED}",
    """SELECT a.n AS an, b.n AS bn FROM a LEFT JOIN b
       ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '3 us' AND a.ts + INTERVAL '5 us'""",
    "SELECT k, n FROM a DEDUPLICATE BY k WITHIN '6 us'",
    "SELECT a.n AS an, b.n AS bn FROM a FOLLOWED BY b WITHIN '9 us' ON a.k = b.k",
    "SELECT a.n AS an, b.n AS bn FROM a FOLLOWED BY b CHRONICLE ON a.k = b.k",
    "SELECT a.n AS an FROM a FOLLOWED BY NO b WITHIN '9 us' ON a.k = b.k",
    "SELECT a.n AS an, b.n AS bn, a.v - b.v AS d FROM a FOLLOWED BY b ON a.k = b.k WHERE a.v > b.v",
    """SELECT x.k, x.v, x.n, y.v AS w FROM (SELECT k, sum(v) AS v, max(n) AS n FROM a GROUP BY k) x
       LEFT JOIN (SELECT k, max(v) AS v FROM b GROUP BY k HAVING max(v) > 0) y ON x.k = y.k AND x.v <= y.v""",
    """SELECT x.k, y.k AS l, x.v, y.v AS w FROM (SELECT k, sum(v) AS v FROM a GROUP BY k) x
       FULL JOIN (SELECT k, max(v) AS v FROM b GROUP BY k) y ON x.k = y.k""",
    f"""SELECT k, s, count(*) AS v
        FROM TUMBLE((SELECT a.k AS k, a.ts AS s, b.ts AS t FROM {RANGED}), t, '5 us') GROUP BY k, s""",
    f"""SELECT a.ts AS s, date_trunc('millisecond', b.ts) AS t, count(*) AS v FROM {RANGED}
        GROUP BY a.ts, date_trunc('millisecond', b.ts)""",
    f"""SELECT k, n, r, window_end
        FROM (SELECT k, n, v, window_end, {NUMBERED} FROM TUMBLE(a, ts, '6 us') a) q WHERE r <= 2""",
]
feeds = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, LAST), st.none() | st.integers(0, 2), st.integers(-1, 2)),
    max_size=30,
)
queries = st.sampled_from(QUERIES)
Event = dict[str, Any]
Row = tuple[tuple[str, Any], ...]


@cache
def flow(sql: str, order: str = "arrival") -> Flow:
    return flow_of_text(f"{STREAMS} CREATE QUERY q WITH (order = '{order}') AS {sql}", "q")


def events(feed: Sequence[tuple[str, int, int | None, int]]) -> list[Event]:
    """Tuples by stream; n is the position in the feed."""
    return [
        {"stream": stream, "tuple": {"ts": ts, "k": key, "v": value, "n": n}}
        for n, (stream, ts, key, value) in enumerate(feed)
    ]


def rows(sql: str, tuples: Sequence[Event], order: str = "arrival") -> list[dict[str, Any]]:
    """The rows of a query, each with its own time."""
    with TemporaryDirectory() as folder:
        text = f"{STREAMS} CREATE QUERY q WITH (order = '{order}') AS SELECT *, ts AS own FROM ({sql}) q"
        return run_events(text, tuples, Path(folder)).rows["q"]


def result(sql: str, found: Iterable[Mapping[str, Any]]) -> Any:
    """What two runs have in common: the rows, or of an update stream the last row of each key."""
    key = flow(sql).query.update_key
    if key is None:
        return Counter(tuple(row.items()) for row in found)
    return {tuple(row[name] for name in key): row for row in found}


@given(feeds, queries, st.sampled_from(["arrival", "event"]))
@settings(max_examples=examples(60))
def test_rows_are_in_order_where_the_plan_says_so(feed: list[Any], sql: str, order: str) -> None:
    made = flow(sql, order)
    if not facts_of(made.query, made.catalog).orders[made.query.output]:
        assert order == "arrival"
        return
    times = [row["own"] for row in rows(sql, events(feed), order)]
    assert times == sorted(times)


@given(feeds, queries)
@settings(max_examples=examples(60))
def test_other_columns_than_the_used_ones_do_not_matter(feed: list[Any], sql: str) -> None:
    made, tuples = flow(sql), events(feed)
    used = {
        stream: {"ts", *(made.streams[stream].schema.names[at] for at in positions)}
        for stream, positions in used_columns(made).items()
    }
    blank = [
        {
            "stream": event["stream"],
            "tuple": {
                name: value if name in used.get(event["stream"], ()) or name == "ts" else None
                for name, value in event["tuple"].items()
            },
        }
        for event in tuples
    ]
    assert result(sql, rows(sql, blank)) == result(sql, rows(sql, tuples))


@given(feeds, queries)
@settings(max_examples=examples(60))
def test_rows_of_other_keys_do_not_matter(feed: list[Any], sql: str) -> None:
    keys = keys_of(flow(sql))
    assert keys.refused is None
    names = {
        stream: [column.name for column in key if isinstance(column, Column)] for stream, key in keys.streams.items()
    }
    parts: dict[Any, list[Event]] = {}
    for event in events(feed):
        part = tuple(event["tuple"][name] for name in names.get(event["stream"], ()))
        parts.setdefault(part, []).append(event)
    apart = [row for part in parts.values() for row in rows(sql, part)]
    assert result(sql, apart) == result(sql, rows(sql, events(feed)))


@given(feeds, queries, st.integers(0, LAST), st.integers(1, 20))
@settings(max_examples=examples(60))
def test_rows_beyond_the_reach_do_not_matter(feed: list[Any], sql: str, first: int, width: int) -> None:
    made = flow(sql)
    assume(made.query.update_key is None)  # a span of time does not decide which row of a key is the last
    reaches = margins_of(made).streams

    def near(event: Event) -> bool:
        back, ahead = reaches.get(event["stream"], (0, 0))
        at = event["tuple"]["ts"]
        return (back is None or at >= first - back) and (ahead is None or at < first + width + ahead)

    def inside(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in found if first <= row["own"] < first + width]

    tuples = events(feed)
    assert result(sql, inside(rows(sql, [event for event in tuples if near(event)]))) == result(
        sql, inside(rows(sql, tuples))
    )


def test_the_queries_use_the_kinds_that_a_backfill_meets() -> None:
    met = {type(node.spec).__name__ for sql in QUERIES for node in flow(sql, "event").nodes.values()}
    met |= {type(node.spec).__name__ for sql in QUERIES for node in flow(sql).nodes.values()}
    # A gate passes rows, and a sample is put in by hand.
    assert {kind.__name__ for kind in kinds()} - met == {"GateSpec", "SampleSpec"}
