"""Random windowed GROUP BY queries through `millrace run`, compared with DuckDB over the same rows.

A window in DuckDB is a row of generate_series, joined to the tuples between its bounds. Tuples arrive in disorder,
within the limit of the stream, so that none is late.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.comparison import same_rows
from tests.depth import examples
from tests.running import run_events

STREAM = """CREATE STREAM s (ts TIMESTAMP, k BIGINT, t TEXT, v BIGINT, x DOUBLE)
  WITH (time = 'ts', disorder = '1000 us');"""
LAST = 60

# The same words in both, or (ours, DuckDB's).
CALLS: list[str | tuple[str, str]] = [
    "count(*)",
    "count(v)",
    "count(DISTINCT v)",
    "count(DISTINCT t)",
    "sum(v)",
    "sum(x)",
    "avg(v)",
    "avg(x)",
    "min(v)",
    "max(x)",
    "min(t)",
    "max(t)",
    "stddev(v)",
    "sum(DISTINCT v)",
    "sum(v) FILTER (WHERE k > 1)",
    "count(*) FILTER (WHERE t = 'a' OR x > 0)",
    "sum(v) * 2 + count(*)",
    "max(v) - min(v)",
    "coalesce(sum(v), -1) + count(t)",
    ("sum(v) / count(*)", "sum(v) // count(*)"),
    "sum(v + k) % 3",
]
KEYS = ["k", "t", "v % 2", "coalesce(t, '-')", "x > 0"]
HAVING = [None, "count(*) > 1", "sum(v) > 0 OR min(t) IS NULL"]
WHERE = [None, "v > 0", "t IS NOT NULL AND x < 2"]

tuples = st.lists(
    st.tuples(
        st.integers(0, LAST),
        st.none() | st.integers(0, 3),
        st.none() | st.sampled_from("abc"),
        st.none() | st.integers(-5, 5),
        st.none() | st.sampled_from([-1.5, 0.0, 0.25, 3.0]),
    ),
    max_size=25,
)
queries = st.fixed_dictionaries(
    {
        "size": st.integers(1, 25),
        "slide": st.integers(1, 25),
        "offset": st.integers(-7, 7),
        "tumble": st.booleans(),
        "keys": st.lists(st.sampled_from(KEYS), max_size=3, unique=True),
        "calls": st.lists(st.sampled_from(CALLS), max_size=4, unique_by=str),
        "having": st.sampled_from(HAVING),
        "where": st.sampled_from(WHERE),
    }
)


def ours(query: dict[str, Any]) -> str:
    size, slide, offset = query["size"], query["slide"], query["offset"]
    table = (
        f"TUMBLE(s, ts, '{size} us', '{offset} us')"
        if query["tumble"]
        else f"HOP(s, ts, '{slide} us', '{size} us', '{offset} us')"
    )
    return select(query, 0, table, "window_start, window_end")


def theirs(query: dict[str, Any]) -> str:
    size, offset = query["size"], query["offset"]
    slide = size if query["tumble"] else query["slide"]
    table = f"""(SELECT w AS window_start, w + {size} AS window_end, s.*
                 FROM generate_series({offset} - {slide} * 40, {LAST + 40}, {slide}) g(w)
                 JOIN s ON s.ts >= w AND s.ts < w + {size})"""
    return select(query, 1, table, "window_start, window_end")


def select(query: dict[str, Any], whose: int, table: str, bounds: str) -> str:
    calls = [call if isinstance(call, str) else call[whose] for call in query["calls"]]
    items = [f"{text} AS c{n}" for n, text in enumerate([*query["keys"], *calls])]
    where = f" WHERE {query['where']}" if query["where"] else ""
    having = f" HAVING {query['having']}" if query["having"] else ""
    groups = ", ".join([*query["keys"], bounds])
    return f"SELECT {', '.join([*items, bounds])} FROM {table}{where} GROUP BY {groups}{having}"


@given(tuples, queries, st.sampled_from(["arrival", "event"]))
@settings(max_examples=examples(100))
def test_grouping_in_windows_agrees_with_duckdb(rows: list[Any], query: dict[str, Any], order: str) -> None:
    database = duckdb.connect()
    database.execute("CREATE TABLE s (ts BIGINT, k BIGINT, t VARCHAR, v BIGINT, x DOUBLE)")
    if rows:
        database.executemany("INSERT INTO s VALUES (?, ?, ?, ?, ?)", rows)
    expected = database.execute(theirs(query)).fetchall()
    names = ["ts", "k", "t", "v", "x"]
    events = [{"stream": "s", "tuple": dict(zip(names, row, strict=True))} for row in rows]
    with TemporaryDirectory() as folder:
        result = run_events(STREAM + ours(query), events, Path(folder), order=order)
    difference = same_rows(result.rows["q"], expected)
    assert difference is None, f"{ours(query)}: {difference}"


@given(tuples, st.integers(1, 25), st.integers(1, 25), st.sampled_from(["arrival", "event"]))
@settings(max_examples=examples(30))
def test_rows_of_windows_agree_with_duckdb(rows: list[Any], size: int, slide: int, order: str) -> None:
    database = duckdb.connect()
    database.execute("CREATE TABLE s (ts BIGINT, k BIGINT, t VARCHAR, v BIGINT, x DOUBLE)")
    if rows:
        database.executemany("INSERT INTO s VALUES (?, ?, ?, ?, ?)", rows)
    series = f"generate_series(-{slide} * 40, {LAST}, {slide}) g(w)"
    joined = f"{series} JOIN s ON s.ts >= w AND s.ts < w + {size}"
    all_rows = database.execute(f"SELECT s.ts, v, w, w + {size} FROM {joined}").fetchall()
    distinct = database.execute(f"SELECT DISTINCT t, v > 0, w FROM {joined}").fetchall()
    table = f"s [RANGE '{size} us' SLIDE '{slide} us']"
    sql = f"""{STREAM} SELECT ts, v, window_start, window_end FROM {table};
              SELECT DISTINCT t, v > 0, window_start FROM {table};"""
    names = ["ts", "k", "t", "v", "x"]
    events = [{"stream": "s", "tuple": dict(zip(names, row, strict=True))} for row in rows]
    with TemporaryDirectory() as folder:
        result = run_events(sql, events, Path(folder), order=order)
    assert same_rows(result.rows["q"], all_rows) is None, same_rows(result.rows["q"], all_rows)
    assert same_rows(result.rows["q2"], distinct) is None, same_rows(result.rows["q2"], distinct)


@given(tuples, st.integers(1, 12), st.sampled_from([[], ["k"], ["t", "v % 2"]]), st.sampled_from(["arrival", "event"]))
@settings(max_examples=examples(60))
def test_rows_of_sessions_agree_with_duckdb(rows: list[Any], gap: int, keys: list[str], order: str) -> None:
    database = duckdb.connect()
    database.execute("CREATE TABLE s (ts BIGINT, k BIGINT, t VARCHAR, v BIGINT, x DOUBLE)")
    if rows:
        database.executemany("INSERT INTO s VALUES (?, ?, ?, ?, ?)", rows)
    by = ", ".join(keys) or "1"
    database.execute(f"""CREATE TABLE cut AS
        SELECT *, min(ts) OVER w AS window_start, max(ts) OVER w + {gap} AS window_end FROM (
          SELECT *, sum(fresh) OVER (PARTITION BY {by} ORDER BY ts RANGE UNBOUNDED PRECEDING) AS number FROM (
            SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY {by} ORDER BY ts) < {gap} THEN 0 ELSE 1 END AS fresh
            FROM s WHERE v IS NULL OR v > -3))
        WINDOW w AS (PARTITION BY {by}, number)""")
    condition = "window_end % 2 = 0"
    all_rows = database.execute(f"SELECT ts, v, t, window_start, window_end FROM cut WHERE {condition}").fetchall()
    distinct = database.execute(
        f"SELECT t, z FROM (SELECT DISTINCT t, v > 0 AS z, {by}, window_start, window_end FROM cut)"
    ).fetchall()
    table = f"SESSION(s, ts, '{gap} us'{' PARTITION BY ' + by if keys else ''})"
    sql = f"""{STREAM}
              SELECT ts, v, t, window_start, window_end FROM {table}
                WHERE (v IS NULL OR v > -3) AND extract(microseconds FROM window_end) % 2 = 0;
              SELECT DISTINCT t, v > 0 FROM {table} WHERE v IS NULL OR v > -3;"""
    names = ["ts", "k", "t", "v", "x"]
    events = [{"stream": "s", "tuple": dict(zip(names, row, strict=True))} for row in rows]
    with TemporaryDirectory() as folder:
        result = run_events(sql, events, Path(folder), order=order)
    assert same_rows(result.rows["q"], all_rows) is None, same_rows(result.rows["q"], all_rows)
    assert same_rows(result.rows["q2"], distinct) is None, same_rows(result.rows["q2"], distinct)
    ends = [row["window_end"] for row in result.rows["q"]]
    assert ends == sorted(ends)
