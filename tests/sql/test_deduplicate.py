"""DEDUPLICATE BY k WITHIN t: its plan, its rows under disorder, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.plan import QueryPlan
from millrace.operators.deduplicate.spec import DeduplicateSpec
from millrace.sql import Catalog, SqlError, explain, parse, plan_all
from tests.depth import examples
from tests.oracles.deduplication import first_rows
from tests.running import run_events

STREAMS = """CREATE STREAM s (ts TIMESTAMP, k BIGINT, n BIGINT) WITH (time = 'ts', disorder = '40 us');
CREATE STREAM i (k BIGINT);
CREATE STREAM l (k BIGINT) WITH (timestamps = 'latent');
CREATE QUERY totals AS SELECT k, count(*) AS n FROM s GROUP BY k;
"""
rows = st.lists(st.tuples(st.integers(0, 40), st.none() | st.integers(0, 2)), max_size=30)


def planned(sql: str) -> tuple[QueryPlan, Catalog]:
    steps, catalog = plan_all(parse(f"{STREAMS} CREATE QUERY q AS {sql}"), Catalog())
    made = steps[-1].plan  # type: ignore[union-attr]
    assert isinstance(made, QueryPlan)
    return made, catalog


def names(sql: str) -> list[str]:
    """The operators of a query, without its name and their numbers."""
    return [node.name.split(".")[1].rstrip("0123456789") for node in planned(sql)[0].nodes]


@pytest.mark.parametrize(
    ("sql", "operators"),
    [
        ("SELECT * FROM s DEDUPLICATE BY k WITHIN '1 s'", ["sort", "deduplicate"]),
        ("SELECT * FROM i DEDUPLICATE BY k WITHIN '1 s'", ["deduplicate"]),
        ("SELECT * FROM l DEDUPLICATE BY k WITHIN '1 s'", ["union", "deduplicate"]),
        (
            "SELECT x.n FROM s DEDUPLICATE BY k WITHIN '1 s' AS x WHERE x.k > 1",
            ["sort", "deduplicate", "filter", "project"],
        ),
        (
            "SELECT k, count(*) AS n FROM TUMBLE(s, ts, '1 min') DEDUPLICATE BY k, n WITHIN '1 s' GROUP BY k",
            ["sort", "deduplicate", "aggregate"],
        ),
        (
            "SELECT s.n FROM s DEDUPLICATE BY k WITHIN '1 s' [RANGE '3 s'] JOIN i [RANGE '1 s'] ON s.k = i.k",
            ["sort", "deduplicate", "join"],
        ),
        (
            "SELECT i.k FROM i FOLLOWED BY s DEDUPLICATE BY k WITHIN '1 s' WITHIN '9 s' ON s.k = i.k",
            ["sort", "deduplicate", "followed_by"],
        ),
        ("SELECT * FROM (SELECT k FROM i WHERE k > 0) DEDUPLICATE BY k WITHIN '1 s'", ["filter", "deduplicate"]),
    ],
)
def test_rows_are_sorted_before_where_they_need_it(sql: str, operators: list[str]) -> None:
    assert names(sql) == operators


def test_explain_shows_keys_and_the_span() -> None:
    words = "deduplicate by k, n % 2 within 00:00:10; keeps each key for 00:00:10 <- q.sort1"
    assert words in explain(*planned("SELECT * FROM s DEDUPLICATE BY k, n % 2 WITHIN '10 s'"))


def test_an_update_stream_is_read_as_rows() -> None:
    query, _ = planned("SELECT * FROM totals DEDUPLICATE BY k WITHIN '1 s'")
    assert query.update_key is None
    assert "create it WITH (emit = 'every', order = 'event')" in query.warnings[0]


def test_a_key_that_is_named_twice_counts_once() -> None:
    query, _ = planned("SELECT * FROM i DEDUPLICATE BY k, k WITHIN '1 s'")
    spec = query.nodes[-1].spec
    assert isinstance(spec, DeduplicateSpec)
    assert len(spec.keys) == 1


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM s DEDUPLICATE BY k", "expected ',' or WITHIN here, got the end"),
        ("SELECT * FROM s DEDUPLICATE k WITHIN '1 s'", "expected BY, got k"),
        ("SELECT * FROM s DEDUPLICATE BY k WITHIN '0 s'", "expected a time above 0 after WITHIN"),
        ("SELECT * FROM s DEDUPLICATE BY k WITHIN '-1 s'", "expected a time above 0 after WITHIN"),
        ("SELECT * FROM s DEDUPLICATE BY x WITHIN '1 s'", "the column x does not exist in s"),
        ("SELECT * FROM s DEDUPLICATE BY 1 WITHIN '1 s'", "expected a column or an expression of columns after BY"),
        ("SELECT * FROM s DEDUPLICATE BY max(k) WITHIN '1 s'", "DEDUPLICATE reads rows before aggregation"),
        (
            "SELECT * FROM s DEDUPLICATE BY k WITHIN '1 s' DEDUPLICATE BY n WITHIN '1 s'",
            "this table already has DEDUPLICATE",
        ),
        (
            "SELECT * FROM (SELECT *, row_number() OVER (ORDER BY n) AS r FROM s) q DEDUPLICATE BY k WITHIN '1 s'",
            "limit",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(sql: str, message: str) -> None:
    with pytest.raises(SqlError) as refused:
        planned(sql)
    assert message in refused.value.message


def test_the_words_stay_names() -> None:
    assert names("SELECT deduplicate FROM (SELECT k AS deduplicate FROM i) x") == ["project"]


@given(rows, st.integers(1, 20), st.sampled_from(["arrival", "event"]))
@settings(max_examples=examples(100))
def test_rows_agree_with_the_oracle_under_disorder(feed: list[Any], within: int, order: str) -> None:
    events = [{"stream": "s", "tuple": {"ts": ts, "k": key, "n": n}} for n, (ts, key) in enumerate(feed)]
    sql = f"SELECT n FROM s DEDUPLICATE BY k WITHIN '{within} us'"
    with TemporaryDirectory() as folder:
        text = f"{STREAMS} CREATE QUERY q WITH (order = '{order}') AS {sql}"
        found = run_events(text, events, Path(folder)).rows["q"]
    ordered = sorted(((ts, key, n) for n, (ts, key) in enumerate(feed)), key=lambda row: row[0])
    assert [row["n"] for row in found] == [n for _, n in first_rows(ordered, within)]
