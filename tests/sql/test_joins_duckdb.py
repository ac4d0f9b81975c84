"""Random joins and sequences through `millrace run`, compared with DuckDB over the same rows.

Tuples arrive in disorder, within the limits of the streams, so that none is late. In DuckDB times are numbers; `{n}` in
a condition is a time of n microseconds. Of two rows of one stream at one time, the later row of the feed is more
recent.
"""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.comparison import same_event_order, same_rows
from tests.depth import examples
from tests.running import run_events

NAMES = ("a", "b", "c")
STREAMS = "".join(
    f"CREATE STREAM {name} (ts TIMESTAMP, k BIGINT, v BIGINT, n BIGINT) WITH (time = 'ts', disorder = '1000 us');"
    for name in NAMES
)
LAST = 40
DATABASE = duckdb.connect()

# (stream, time, key, value); n is the position in the feed.
feeds = st.lists(
    st.tuples(
        st.sampled_from(NAMES), st.integers(0, LAST), st.none() | st.integers(0, 2), st.none() | st.integers(-2, 2)
    ),
    max_size=30,
)
KEYS = ["TRUE", "a.k = b.k", "a.k = b.k AND a.v % 2 = b.v % 2", "a.k + 1 = b.v", "a.v = b.v * 1.0"]
BANDS = [
    "a.ts BETWEEN b.ts - {3} AND b.ts + {5}",
    "b.ts > a.ts AND b.ts <= a.ts + {6}",
    "b.ts - a.ts BETWEEN {-4} AND {2}",
    "abs(a.ts - b.ts) < {4}",
    "a.ts = b.ts",
    "a.ts >= b.ts",
    "b.ts + {2} < a.ts - {1}",
    "TRUE",
    "a.ts + {2} = b.ts AND b.v > -2",
]
MORE = ["TRUE", "a.v < b.v", "a.v > 0", "b.v IS NOT NULL", "a.v = 1 OR b.v = 0"]
WHERES = ["TRUE", "a.v <> 1", "b.v > -1", "b.v IS NULL", "a.ts + {1} >= b.ts", "coalesce(b.v, 0) = 0", "a.v IS NULL"]
ORDERS = ["arrival", "sync", "filter", "adaptive"]
joins = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["", "LEFT ", "RIGHT ", "FULL "]),
        "key": st.sampled_from(KEYS),
        "band": st.sampled_from(BANDS),
        "more": st.sampled_from(MORE),
        "where": st.sampled_from(WHERES),
        "ranges": st.none() | st.tuples(st.integers(0, 8), st.integers(0, 8)),
    }
)


def ours(condition: str) -> str:
    return re.sub(r"\{(-?\d+)\}", r"INTERVAL '\1 us'", condition)


def theirs(condition: str) -> str:
    return re.sub(r"\{(-?\d+)\}", r"(\1)", condition)


def expected(feed: list[Any], sql: str) -> list[Any]:
    for name in NAMES:
        DATABASE.execute(f"CREATE OR REPLACE TABLE {name} (ts BIGINT, k BIGINT, v BIGINT, n BIGINT)")
        rows = [(ts, key, value, n) for n, (stream, ts, key, value) in enumerate(feed) if stream == name]
        if rows:
            DATABASE.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?)", rows)
    return DATABASE.execute(sql).fetchall()


def got(feed: list[Any], sql: str) -> list[dict[str, Any]]:
    events = [
        {"stream": stream, "tuple": {"ts": ts, "k": key, "v": value, "n": n}}
        for n, (stream, ts, key, value) in enumerate(feed)
    ]
    with TemporaryDirectory() as folder:
        return run_events(STREAMS + sql, events, Path(folder)).rows["q"]


def with_order(sql: str, order: str) -> str:
    options = "order = 'arrival'" if order == "arrival" else f"order = 'event', join = '{order}'"
    return f"CREATE QUERY q WITH ({options}) AS {sql};"


def check(feed: list[Any], sql: str, reference: str, order: str = "arrival") -> None:
    """The same rows; with event order, in order of the joined rows' time, which is the column `late`."""
    actual, expected_rows = got(feed, with_order(sql, order)), expected(feed, reference)
    difference = same_rows(actual, expected_rows)
    assert difference is None, f"{sql} ({order}): {difference}"
    if order != "arrival":
        assert same_event_order(actual, actual, lambda row: row["late"]) is None


# -- joins -------------------------------------------------------------------------------------------------------------

ITEMS = "a.ts, a.n AS an, b.n AS bn, a.v, b.k, {late} AS late"


@given(feeds, joins, st.sampled_from(ORDERS))
@settings(max_examples=examples(100))
def test_joins_agree_with_duckdb(feed: list[Any], query: dict[str, Any], order: str) -> None:
    conditions = [query["key"], query["band"], query["more"]]
    ranges = ["", ""]
    limits = []
    if query["ranges"] is not None:
        first, second = query["ranges"]
        ranges = [f" [RANGE '{first} us']", f" [RANGE '{second} us']"]
        limits = [f"b.ts BETWEEN a.ts - {second} AND a.ts + {first}"]
    late = "coalesce(greatest(a.ts, b.ts), a.ts, b.ts)"
    items = ITEMS.format(late=late)
    on = " AND ".join(conditions)
    sql = (
        f"SELECT {items} FROM a{ranges[0]} {query['kind']}JOIN b{ranges[1]} ON {ours(on)} WHERE {ours(query['where'])}"
    )
    peer = (
        f"SELECT {items} FROM a {query['kind']}JOIN b ON {theirs(' AND '.join([on, *limits]))} "
        f"WHERE {theirs(query['where'])}"
    )
    check(feed, sql, peer, order)


CHAINS = [
    "a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - {4} AND a.ts + {4} JOIN c ON b.k = c.k AND abs(c.ts - b.ts) <= {5}",
    "a JOIN b ON b.ts BETWEEN a.ts AND a.ts + {3} JOIN c ON c.k = a.k AND c.ts BETWEEN a.ts AND b.ts",
    "a JOIN b ON a.k = b.k JOIN c ON b.v = c.v AND c.ts > a.ts AND a.v < c.k",
    "a LEFT JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + {3} JOIN c ON c.k = a.k AND c.ts = a.ts + {1}",
    "a JOIN b ON a.k = b.k AND abs(a.ts - b.ts) < {5} LEFT JOIN c ON c.v = b.v AND c.ts BETWEEN b.ts - {5} AND b.ts",
    "a JOIN a b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + {3} JOIN a c ON b.ts < c.ts AND c.ts < b.ts + {4}",
    "a CROSS JOIN b JOIN c ON a.ts = b.ts AND c.ts = b.ts",
]


@given(feeds, st.sampled_from(CHAINS), st.sampled_from(ORDERS))
@settings(max_examples=examples(100))
def test_chains_of_joins_agree_with_duckdb(feed: list[Any], tables: str, order: str) -> None:
    items = "a.n AS an, b.n AS bn, c.n AS cn, greatest(a.ts, coalesce(b.ts, a.ts), coalesce(c.ts, a.ts)) AS late"
    check(feed, f"SELECT {items} FROM {ours(tables)}", f"SELECT {items} FROM {theirs(tables)}", order)


@given(feeds, st.integers(1, 9), st.integers(1, 9), st.sampled_from(ORDERS))
@settings(max_examples=examples(30))
def test_joined_windows_agree_with_duckdb(feed: list[Any], size: int, slide: int, order: str) -> None:
    sql = f"""SELECT a.n AS an, b.n AS bn, a.window_start, greatest(a.ts, b.ts) AS late
              FROM HOP(a, ts, '{slide} us', '{size} us') JOIN HOP(b, ts, '{slide} us', '{size} us')
              ON a.window_start = b.window_start AND a.k = b.k"""
    series = f"generate_series(-{slide} * 40, {LAST}, {slide}) g(w)"
    peer = f"""SELECT a.n, b.n, w, greatest(a.ts, b.ts) FROM {series} JOIN a ON a.ts >= w AND a.ts < w + {size}
                 JOIN b ON b.ts >= w AND b.ts < w + {size} AND a.k = b.k"""
    check(feed, sql, peer, order)


@given(feeds, st.integers(1, 9), st.sampled_from(ORDERS))
@settings(max_examples=examples(30))
def test_rows_joined_with_their_windows_aggregate_agree_with_duckdb(feed: list[Any], size: int, order: str) -> None:
    sql = f"""SELECT a.n, m.most, m.window_end - INTERVAL '1 us' AS late
              FROM a JOIN (SELECT max(v) AS most, window_end FROM TUMBLE(b, ts, '{size} us') GROUP BY window_end) m
              ON a.v = m.most WHERE a.ts >= m.window_end - INTERVAL '{size} us' AND a.ts < m.window_end"""
    peer = f"""SELECT a.n, most, w + {size - 1}
                 FROM a JOIN (SELECT max(v) AS most, ts // {size} * {size} AS w FROM b GROUP BY w) m
                 ON a.v = most AND a.ts >= w AND a.ts < w + {size}"""
    check(feed, sql, peer, order)


GROUPED = "a [RANGE '3 us'] JOIN b [RANGE '5 us'] ON a.k = b.k"
BOUNDED = "a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - 5 AND a.ts + 3"


@given(feeds, st.sampled_from(["arrival", "sync", "filter"]))
@settings(max_examples=examples(30))
def test_groups_by_both_times_are_emitted_once(feed: list[Any], order: str) -> None:
    items = "a.ts AS at, b.ts AS bt, count(*) AS n, sum(a.v) AS total, greatest(a.ts, b.ts) AS late"
    check(
        feed,
        f"SELECT {items} FROM {GROUPED} GROUP BY a.ts, b.ts",
        f"SELECT {items} FROM {BOUNDED} GROUP BY a.ts, b.ts",
        order,
    )


@given(feeds, st.integers(1, 9), st.sampled_from(["x", "y"]), st.sampled_from(["arrival", "sync", "filter"]))
@settings(max_examples=examples(30))
def test_windows_by_one_sides_time_agree_with_duckdb(feed: list[Any], size: int, time: str, order: str) -> None:
    sql = f"""SELECT count(*) AS n, window_start, window_end AS late
              FROM TUMBLE((SELECT a.ts AS x, b.ts AS y FROM {GROUPED}), {time}, '{size} us')"""
    peer = f"""SELECT count(*), {time} // {size} * {size} AS w, w + {size}
                 FROM (SELECT a.ts AS x, b.ts AS y FROM {BOUNDED}) GROUP BY w"""
    check(feed, sql, peer, order)


# -- sequences ---------------------------------------------------------------------------------------------------------

sequences = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["", "a.k = b.k", "a.k = b.k AND a.v + 1 = b.v"]),
        "test": st.sampled_from(["", "a.v < b.v", "a.v > 0", "b.v > 0"]),
        "within": st.none() | st.integers(0, 12),
    }
)


def words(query: dict[str, Any]) -> str:
    on = " AND ".join(filter(None, [query["key"], query["test"]]))
    within = "" if query["within"] is None else f" WITHIN '{query['within']} us'"
    return within + (f" ON {on}" if on else "")


def recent(key: str) -> str:
    """The same in DuckDB, whose sequence has one inequality: rows are ordered by time, then by number."""
    first, then = {"": ("0", "0"), "a.k = b.k": ("k", "k")}.get(key, ("k * 100 + v + 1", "k * 100 + v"))
    return (
        f"FROM (SELECT *, {then} AS key, ts * 1000 + 999 AS place FROM b) b "
        f"ASOF JOIN (SELECT *, {first} AS key, ts * 1000 + n AS place FROM a) a ON a.key = b.key AND b.place >= a.place"
    )


@given(feeds, sequences, st.sampled_from(["arrival", "sync"]))
@settings(max_examples=examples(100))
def test_recent_agrees_with_asof(feed: list[Any], query: dict[str, Any], order: str) -> None:
    items = "a.n AS an, b.n AS bn, b.ts AS late"
    tests = [query["test"] or "TRUE"]
    tests += [] if query["within"] is None else [f"b.ts - a.ts <= {query['within']}"]
    check(
        feed,
        f"SELECT {items} FROM a FOLLOWED BY b RECENT{words(query)}",
        f"SELECT {items} {recent(query['key'])} WHERE {' AND '.join(tests)}",
        order,
    )


@given(feeds, sequences)
@settings(max_examples=examples(100))
def test_absence_agrees_with_not_exists(feed: list[Any], query: dict[str, Any]) -> None:
    query = {**query, "within": query["within"] or 0}
    on = " AND ".join(filter(None, [query["key"], query["test"]])) or "TRUE"
    check(
        feed,
        f"SELECT a.n, a.v FROM a FOLLOWED BY NO b{words(query)}",
        f"""SELECT a.n, a.v FROM a WHERE NOT EXISTS
            (SELECT * FROM b WHERE {on} AND b.ts BETWEEN a.ts AND a.ts + {query["within"]})""",
    )


def chronicle(feed: list[Any], keyed: bool, within: int | None) -> list[tuple[int, int]]:
    """Every row of b with the oldest row of a that it may follow, which is consumed."""
    rows = sorted((ts, stream, n, key) for n, (stream, ts, key, _) in enumerate(feed) if stream != "c")
    unused: list[tuple[int, int, int | None]] = []
    pairs = []
    for ts, stream, n, key in rows:
        if keyed and key is None:
            continue
        if stream == "a":
            unused.append((ts, n, key))
            continue
        for place, (since, first, own) in enumerate(unused):
            if (not keyed or own == key) and (within is None or ts - since <= within):
                pairs.append((first, n))
                del unused[place]
                break
    return pairs


@given(feeds, st.booleans(), st.none() | st.integers(0, 12))
@settings(max_examples=examples(100))
def test_chronicle_uses_each_row_once(feed: list[Any], keyed: bool, within: int | None) -> None:
    query = {"key": "a.k = b.k" if keyed else "", "test": "", "within": within}
    rows = got(feed, f"SELECT a.n AS an, b.n AS bn FROM a FOLLOWED BY b CHRONICLE{words(query)}")
    difference = same_rows(rows, chronicle(feed, keyed, within))
    assert difference is None, difference


@given(feeds)
@settings(max_examples=examples(30))
def test_chains_of_sequences_agree_with_asof(feed: list[Any]) -> None:
    check(
        feed,
        """SELECT a.n AS an, b.n AS bn, c.n AS cn
           FROM a FOLLOWED BY b ON a.k = b.k FOLLOWED BY c ON b.v = c.v WITHIN '9 us'""",
        """SELECT an, bn, c.n FROM (SELECT *, ts * 1000 + 999 AS place FROM c) c ASOF JOIN
             (SELECT a.n AS an, b.n AS bn, b.v, b.ts, b.ts * 1000 + b.n AS place
              FROM (SELECT *, ts * 1000 + 999 AS late FROM b) b
              ASOF JOIN (SELECT *, ts * 1000 + n AS place FROM a) a ON a.k = b.k AND b.late >= a.place) ab
           ON c.v = ab.v AND c.place >= ab.place WHERE c.ts - ab.ts <= 9""",
    )


@given(feeds, st.booleans())
@settings(max_examples=examples(30))
def test_latest_is_the_current_row(feed: list[Any], left: bool) -> None:
    """Of running totals, which change with every row: the sum so far of each key."""
    kind = "LEFT " if left else ""
    sql = (
        f"""SELECT b.n, m.total FROM b {kind}JOIN LATEST (SELECT k, sum(v) AS total FROM a GROUP BY k) m ON m.k = b.k"""
    )
    peer = f"""SELECT b.n, m.total FROM (SELECT *, ts * 1000 + 999 AS place FROM b) b ASOF {kind}JOIN
                 (SELECT k, ts * 1000 + n AS place, sum(v) OVER (PARTITION BY k ORDER BY ts, n)::BIGINT AS total
                  FROM a) m
                 ON m.k = b.k AND b.place >= m.place"""
    check(feed, sql, peer)
