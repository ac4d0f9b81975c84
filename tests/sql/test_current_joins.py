"""Joins of update streams compared with DuckDB, which runs the same SQL over the same rows.

In order of time, DuckDB is asked for the result at each time. Otherwise the last row of each key has to agree.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.events import Arrived, Command, Deliver, Event, FeedClosed
from millrace.offline.script import plan_script
from millrace.protocol import Schema
from millrace.sql import Catalog, SqlError, parse, plan_all
from millrace.values.batch import Batch
from tests.depth import examples

STREAMS: Final = "".join(
    f"CREATE STREAM {name} (ts TIMESTAMP, k BIGINT, g TEXT, v BIGINT) WITH (time = 'ts', disorder = '100 us');"
    for name in "abc"
)
X: Final = "(SELECT k, sum(v) AS v FROM a GROUP BY k) x"
Y: Final = "(SELECT k, count(*) AS n, sum(v) AS v FROM b GROUP BY k HAVING sum(v) > 0) y"
KNOWN: Final = Y.replace("FROM b", "FROM b WHERE k IS NOT NULL")
Z: Final = "(SELECT k, max(v) AS v FROM c GROUP BY k) z"
ON: Final = "ON x.k = y.k"
TWO: Final = "SELECT k, g, count(*) AS n FROM {} GROUP BY k, g"
# A query, and the columns of its key.
QUERIES: Final[dict[str, tuple[str, ...]]] = {
    f"SELECT x.k, x.v, y.v AS w, n FROM {X} JOIN {Y} {ON}": ("k",),
    f"SELECT y.k, x.v, y.v AS w FROM {X} JOIN {Y} {ON} AND x.v < y.v WHERE y.v <> 3": ("k",),
    f"SELECT x.k, x.v, y.v AS w FROM {X} LEFT JOIN {Y} {ON} AND x.v <= n": ("k",),
    f"SELECT x.k, x.v, y.v AS w FROM {X} LEFT JOIN {Y} {ON} WHERE y.v IS NULL": ("k",),
    f"SELECT x.v, y.v AS w, y.k FROM {X} RIGHT JOIN {Y} {ON}": ("k",),
    f"SELECT x.k, y.k AS l, x.v, n FROM {X} FULL JOIN {Y} {ON} AND x.v + y.v > 1": ("k", "l"),
    f"SELECT z.k, x.v, y.v AS w, z.v AS u FROM {X} JOIN {Y} {ON} JOIN {Z} ON z.k = x.k": ("k",),
    f"SELECT x.k, y.v AS w, z.v AS u FROM {X} LEFT JOIN {Y} {ON} LEFT JOIN {Z} ON x.k = z.k": ("k",),
    f"SELECT x.v % 2 AS p, count(*) AS n, sum(y.v) AS w FROM {X} FULL JOIN {KNOWN} {ON} GROUP BY x.v % 2": ("p",),
    f"SELECT p, n FROM (SELECT y.n AS p, count(*) AS n FROM {X} JOIN {Y} {ON} GROUP BY y.n) q WHERE n > 1": ("p",),
    f"SELECT r.g, r.k, r.n, s.n AS m FROM ({TWO.format('a')}) r LEFT JOIN ({TWO.format('b')}) s "
    "ON s.g = r.g AND r.k = s.k": ("g", "k"),
    "SELECT v, n FROM (SELECT sum(v) AS v FROM a) x JOIN (SELECT count(*) AS n FROM b) y ON TRUE": (),
}
LAST: Final = 40
SCHEMA: Final = Schema.of(ts="timestamp", k="bigint", g="text", v="bigint")
DATABASE: Final = duckdb.connect(config={"threads": 1})
feeds = st.lists(
    st.tuples(
        st.sampled_from("aabbc"),
        st.integers(0, LAST),
        st.none() | st.integers(0, 2),
        st.sampled_from(["p", "", None]),
        st.integers(-2, 3),
    ),
    max_size=25,
)
Feed = list[tuple[str, int, int | None, str | None, int]]


def load(feed: Feed) -> None:
    for name in "abc":
        DATABASE.execute(f"CREATE OR REPLACE TABLE all_{name} (ts BIGINT, k BIGINT, g TEXT, v BIGINT)")
        rows = [row[1:] for row in feed if row[0] == name]
        if rows:
            DATABASE.executemany(f"INSERT INTO all_{name} VALUES (?, ?, ?, ?)", rows)


def expected(sql: str, key: tuple[str, ...], through: int) -> dict[Any, Any]:
    """What each key has, of the loaded tuples up to a time. Of two rows without any key, the first side's counts."""
    for name in "abc":
        DATABASE.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM all_{name} WHERE ts <= {through}")
    found = DATABASE.execute(sql)
    assert found.description is not None
    names = [column[0] for column in found.description]
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    rows.sort(key=lambda row: key == ("k", "l") and row["v"] is not None)
    return {tuple(row[name] for name in key): row for row in rows}


def rows_of(feed: Feed, options: str, sql: str) -> list[tuple[int, dict[str, Any]]]:
    """The rows of a query and their times."""
    engine = Engine()
    commands = plan_script(f"{STREAMS} CREATE QUERY q {options} AS {sql}").commands
    events: list[Event] = [Command(number, body) for number, body in enumerate(commands)]
    events += [Arrived(row[0], "main", Batch.from_rows(SCHEMA, [row[1:]], [row[1]])) for row in feed]
    events += [FeedClosed(stream, "main", ended=True) for stream in "abc"]
    delivered: list[tuple[int, dict[str, Any]]] = []
    for event in events:
        given, more = [event], True
        while more:
            effects = engine.step(0, given)
            given, more = [], effects.more
            for order in effects.orders:
                if isinstance(order, Deliver):
                    rows = [dict(zip(order.batch.schema.names, row, strict=True)) for row in order.batch.rows()]
                    delivered += zip(order.batch.ts.tolist(), rows, strict=True)
    return delivered


def keep(state: dict[Any, Any], row: dict[str, Any], key: tuple[str, ...]) -> None:
    at = tuple(row[name] for name in key)
    if row.pop("$gone", False):
        del state[at]
    else:
        state[at] = row


@given(feeds, st.sampled_from(list(QUERIES)), st.sampled_from(["", "WITH (emit = 'every')", "WITH (order = 'event')"]))
@settings(max_examples=examples(300), deadline=None)
def test_the_last_rows_are_those_of_duckdb(feed: Feed, sql: str, options: str) -> None:
    key, state = QUERIES[sql], dict[Any, Any]()
    for _, row in rows_of(feed, options, sql):
        keep(state, row, key)
    load(feed)
    assert state == expected(sql, key, LAST)


@given(feeds, st.sampled_from([sql for sql, key in QUERIES.items() if key]))
@settings(max_examples=examples(150), deadline=None)
def test_in_order_of_time_the_rows_are_those_of_duckdb_at_each_time(feed: Feed, sql: str) -> None:
    key, state = QUERIES[sql], dict[Any, Any]()
    load(feed)
    for time, rows in groupby(rows_of(feed, "WITH (order = 'event', emit = 'every')", sql), itemgetter(0)):
        for _, row in rows:
            keep(state, row, key)
        assert state == expected(sql, key, time)


KEYED: Final = "CREATE STREAM u (ts TIMESTAMP, k BIGINT, j TEXT, v BIGINT) WITH (time = 'ts', update_key = 'k, j');"


@pytest.mark.parametrize(
    ("sql", "fault"),
    [
        (f"SELECT x.k FROM {X} JOIN {Y} ON «x.v = y.v", "x is keyed by k; y by k. Group both by the same columns"),
        (f"SELECT x.k FROM {X} JOIN {Y} ON «x.k + 1 = y.k", "ON needs equalities of columns that cover the keys"),
        (f"SELECT x.k FROM {X}, «{Y} WHERE x.k = y.k", "ON needs equalities of columns"),
        (f"SELECT x.k FROM {X} JOIN u LATEST ON «u.k = x.k", "x is keyed by k; u by k, j"),
        (f"SELECT x.k FROM {X} LEFT JOIN u LATEST ON «u.j = x.k::text", "u by k, j"),
        ("SELECT x.k FROM (SELECT k, g, count(*) AS n FROM a GROUP BY k, g) x JOIN «u ON x.k = u.k AND x.g = u.j",
         "u is read row by row. u has the update key k, j: write LATEST after it"),
        (f"SELECT x.k FROM {X} «[RANGE '1 s'] JOIN {Y} ON x.k = y.k", "remove the range, or compare times in ON"),
        (f"SELECT «x.v FROM {X} LEFT JOIN {Y} ON x.k = y.k", "select x.k too"),
        (f"SELECT «x.k FROM {X} FULL JOIN {Y} ON x.k = y.k", "select y.k too"),
        (f"SELECT x.k FROM {X} JOIN {Y} ON x.k = y.k JOIN «c ON c.k = x.k", "this query is an update stream"),
        (f"SELECT x.k FROM «{X} JOIN {Y} ON x.k = y.k FOLLOWED BY c", "this query is an update stream"),
    ],
)  # fmt: skip
def test_what_cannot_be_joined_is_refused_with_what_can(sql: str, fault: str) -> None:
    text = KEYED + sql.replace("«", "")
    with pytest.raises(SqlError) as error:
        plan_all(parse(STREAMS + text), Catalog())
    assert fault in str(error.value)
    assert error.value.column == len(STREAMS + KEYED) + sql.index("«") + 1
