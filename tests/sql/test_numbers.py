"""Bigints beyond 2^53 and doubles: comparisons are exact in every form that compares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.running import run_events

BIG = 2**53  # the least whole number whose successor is not a double

STREAMS = """
CREATE STREAM s (ts TIMESTAMP, i BIGINT, d DOUBLE) WITH (time = 'ts');
CREATE STREAM r (ts TIMESTAMP, i BIGINT, d DOUBLE) WITH (time = 'ts');
"""


def rows_of(query: str, rows: Sequence[tuple[int | None, float | None]], folder: Path) -> list[dict[str, Any]]:
    """The rows of a query over rows of both streams."""
    events = [
        {"stream": stream, "tuple": {"ts": at, "i": i, "d": d}} for at, (i, d) in enumerate(rows, 1) for stream in "sr"
    ]
    return list(run_events(f"{STREAMS}CREATE QUERY q AS {query};", events, folder).rows["q"])


def value(expression: str, i: int | None, d: float | None, folder: Path) -> Any:
    (row,) = rows_of(f"SELECT {expression} AS x FROM s", [(i, d)], folder)
    return row["x"]


PAIRS = [
    ("i IN (9007199254740992.0)", "i = 9007199254740992.0"),
    ("i IN (9007199254740992.0, 1.5)", "i = 9007199254740992.0 OR i = 1.5"),
    ("i NOT IN (9007199254740992.0)", "i <> 9007199254740992.0"),
    ("i IN (9007199254740993, 0.5)", "i = 9007199254740993 OR i = 0.5"),
    ("i IN (0.5)", "i = 0.5"),
    ("i IN (0.5, NULL)", "i = 0.5 OR NULL"),
    ("i IN (9007199254740992.0, NULL)", "i = 9007199254740992.0 OR NULL"),
    ("i IN (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 9007199254740992.0)", "i = 9007199254740992.0"),
    ("i IN (d)", "i = d"),
    ("i IN (d, 1)", "i = d OR i = 1"),
    ("d IN (9007199254740993)", "d = 9007199254740993"),
    ("d IN (9007199254740993, 0.5)", "d = 9007199254740993 OR d = 0.5"),
    ("d IN (i)", "d = i"),
    ("i IN (1e300)", "i = 1e300"),
    ("i BETWEEN 9007199254740992.0 AND 9007199254740992.0", "i = 9007199254740992.0"),
    ("i BETWEEN d AND d", "i = d"),
    ("d BETWEEN i AND i", "d = i"),
    ("CASE i WHEN 9007199254740992.0 THEN true ELSE false END", "i = 9007199254740992.0"),
    ("CASE i WHEN d THEN true ELSE false END", "i = d"),
    ("CASE d WHEN 9007199254740993 THEN true ELSE false END", "d = 9007199254740993"),
    ("i IS NOT DISTINCT FROM 9007199254740992.0", "i = 9007199254740992.0"),
    ("i IS NOT DISTINCT FROM d", "i = d"),
    ("nullif(i, 9007199254740992.0) IS NULL", "i = 9007199254740992.0"),
    ("nullif(i, d) IS NULL", "i = d"),
    ("nullif(d, i) IS NULL", "d = i"),
]


@pytest.mark.parametrize(("form", "same"), PAIRS, ids=[form for form, _ in PAIRS])
@pytest.mark.parametrize("i", [BIG - 1, BIG, BIG + 1, BIG + 2, -BIG - 1, 2**63 - 1, 0])
def test_every_form_compares_like_the_plain_comparison(form: str, same: str, i: int, tmp_path: Path) -> None:
    assert value(form, i, float(BIG), tmp_path) == value(same, i, float(BIG), tmp_path)


def test_the_plain_comparison_is_exact(tmp_path: Path) -> None:
    assert value("i = 9007199254740992.0", BIG, 0.0, tmp_path) is True
    assert value("i = 9007199254740992.0", BIG + 1, 0.0, tmp_path) is False
    assert value("i > d", BIG + 1, float(BIG), tmp_path) is True
    assert value("i = 9223372036854775808.0", 2**63 - 1, 0.0, tmp_path) is False


@pytest.mark.parametrize(
    "on", ["s.i = r.d", "s.i IN (r.d)", "s.i BETWEEN r.d AND r.d", "r.d = s.i", "s.i = r.d AND s.ts = r.ts"]
)
def test_a_join_of_a_bigint_with_a_double_is_exact(on: str, tmp_path: Path) -> None:
    query = f"SELECT s.i AS i, r.d AS d FROM s [RANGE '1 second'] JOIN r [RANGE '1 second'] ON {on}"
    rows = [(BIG, float(BIG)), (BIG + 1, float(BIG)), (BIG + 2, float(BIG + 2))]
    pairs = {(row["i"], row["d"]) for row in rows_of(query, rows, tmp_path)}
    assert pairs == {(BIG, float(BIG)), (BIG + 2, float(BIG + 2))}


@pytest.mark.parametrize(
    "query",
    [
        "SELECT i, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 second') GROUP BY i",
        "SELECT DISTINCT i FROM TUMBLE(s, ts, INTERVAL '1 second')",
        "SELECT i, max(d) AS d FROM s GROUP BY i",
    ],
)
def test_neighbours_beyond_doubles_are_different_groups(query: str, tmp_path: Path) -> None:
    groups = rows_of(query, [(BIG, 1.0), (BIG + 1, 2.0), (BIG + 2, 3.0)], tmp_path)
    assert sorted(row["i"] for row in groups) == [BIG, BIG + 1, BIG + 2]
