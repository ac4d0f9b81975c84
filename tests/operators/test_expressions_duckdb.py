"""Expressions against DuckDB, from the same SQL text where both mean the same by it.

Where they differ the translation says how: `/` of whole numbers is `//` there, whose rounding is towards zero as well.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.plan import QueryPlan
from millrace.operators.project.spec import MapSpec
from millrace.sql import Catalog, parse, plan, plan_all
from millrace.values.batch import Batch
from millrace.values.evaluate import evaluate
from tests.depth import examples

_, CATALOG = plan_all(
    parse("CREATE STREAM s (p BOOLEAN, q BOOLEAN, r BOOLEAN, a BIGINT, b BIGINT, x DOUBLE, t TEXT, d TIMESTAMP)"),
    Catalog(),
)
SCHEMA = CATALOG.streams["s"].schema
TRUTHS = [True, False, None]
MOMENT = 1_709_251_199_999_999  # 2024-02-29 23:59:59.999999
ROWS: list[tuple[Any, ...]] = [
    (p, q, r, a, b, x, t, d)
    for (p, q, r), (a, b, x, t, d) in zip(
        itertools.product(TRUTHS, repeat=3),
        itertools.cycle(
            [
                (1, 2, 0.5, "abc", MOMENT),
                (None, 3, -2.5, "", 0),
                (-7, -3, 1e10, "a%_b", -1),
                (7, None, None, None, None),
                (0, 5, 2.0, "Hello World", 1_451_606_400_000_000),
                (2**40, 1, 3.5, " x ", 951_825_600_000_000),
                (5, 5, -0.25, "héllo", 1_104_537_600_123_456),
            ]
        ),
        strict=False,
    )
]
BATCH = Batch.from_rows(SCHEMA, ROWS, range(len(ROWS)))


@cache
def duck() -> Any:
    """DuckDB with the same rows, made once."""
    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    connection.execute(
        "CREATE TABLE s (n BIGINT, p BOOLEAN, q BOOLEAN, r BOOLEAN,"
        " a BIGINT, b BIGINT, x DOUBLE, t VARCHAR, d TIMESTAMP)"
    )
    for number, row in enumerate(ROWS):
        connection.execute("INSERT INTO s SELECT ?, ?, ?, ?, ?, ?, ?, ?, make_timestamp(?)", [number, *row])
    return connection


def ours(text: str) -> list[Any]:
    made = plan(parse(f"SELECT {text} AS v FROM s")[0], CATALOG)
    assert isinstance(made, QueryPlan)
    spec = made.nodes[-1].spec
    assert isinstance(spec, MapSpec)
    computed = evaluate(spec.columns[0][1], BATCH)
    assert computed.error is None, (text, computed.error)
    return Batch(made.schema, BATCH.ts, [computed.values], [computed.valid]).lists()[0]


def theirs(text: str) -> list[Any]:
    return [value for (value,) in duck().execute(f"SELECT {text} FROM s ORDER BY n").fetchall()]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and other is not None:
        return math.isclose(one, float(other), rel_tol=1e-12)
    return type(one) is type(other) and bool(one == other)


EXPRESSIONS = [
    "a + b * 2 - 1", "-a", "abs(a)", "a % 3", "-a % 3", "x * 2 + a", "x / 4", "floor(x)", "ceil(x)", "trunc(x)",
    "sqrt(abs(x))", "exp(x / 1e10)", "ln(abs(x))", "power(2, a % 5)", "sign(a)", "greatest(a, b)", "least(a, b, 3)",
    "coalesce(a, b, 0)", "nullif(a, 5)", "CASE WHEN a > b THEN 'more' WHEN a = b THEN 'same' ELSE t END",
    "CASE a WHEN 1 THEN 'one' WHEN 7 THEN 'seven' END", "a IN (1, 5, NULL)", "a NOT IN (1, 5)", "a BETWEEN b AND 9",
    "a NOT BETWEEN 1 AND 6", "a > x", "a = x", "x < b", "a IS DISTINCT FROM b", "a IS NOT DISTINCT FROM b", "t IS NULL",
    "t || 'x'", "t || a", "length(t)", "upper(t)", "lower(t)", "trim(t)", "ltrim(t)", "rtrim(t, 'c')",
    "replace(t, 'l', 'LL')",
    "substring(t, 2, 3)", "substring(t FROM 3)", "position('l' IN t)", "split_part(t, ' ', 2)", "left(t, 2)",
    "right(t, 2)",
    "starts_with(t, 'a')", "t LIKE '%l%'", "t LIKE 'a%'", "t LIKE '%c'", "t LIKE 'a_c'", "t LIKE 'a!%!_b' ESCAPE '!'",
    "t ILIKE 'h%'", "t NOT LIKE '%b%'", "t < 'b'", "t >= 'Hello'", "a::text", "a::double", "(a > 1)::bigint", "p::text",
    "extract(year FROM d)", "extract(quarter FROM d)", "extract(month FROM d)", "extract(day FROM d)",
    "extract(hour FROM d)",
    "extract(minute FROM d)", "extract(week FROM d)", "extract(doy FROM d)", "extract(dow FROM d)",
    "extract(isodow FROM d)",
    "extract(epoch FROM d)", "extract(isoyear FROM d)", "extract(decade FROM d)", "extract(century FROM d)",
    "(d + INTERVAL '90 minutes') > TIMESTAMP '2016-01-01'", "extract(epoch FROM (d - TIMESTAMP '2020-01-01'))",
    "d::text", "concat(t, a, 'z')", "octet_length(encode(t))", "regexp_replace(t, 'l+', 'L')",
]  # fmt: skip
# (A century starts in 2001 here and in PostgreSQL, in 2000 in DuckDB.)
TRUNCATED = ["second", "minute", "hour", "day", "week", "month", "quarter", "year", "decade"]
# The name in DuckDB, or the expression with the same meaning.
TRANSLATED = {"octet_length(encode(t))": "octet_length(t)"}


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression_gives_what_duckdb_gives(text: str) -> None:
    mine, others = ours(TRANSLATED.get(text, text)), theirs(text)
    assert all(map(same, mine, others)), [pair for pair in zip(mine, others, strict=True) if not same(*pair)]


@pytest.mark.parametrize("unit", TRUNCATED)
def test_times_are_truncated_as_duckdb_does(unit: str) -> None:
    mine = ours(f"date_trunc('{unit}', d)")
    assert mine == theirs(f"epoch_us(date_trunc('{unit}', d)::timestamp)")


@pytest.mark.parametrize(("mine", "other"), [("a / 3", "a // 3"), ("-a / 3", "-a // 3"), ("a / -3", "a // -3")])
def test_whole_numbers_are_divided_towards_zero(mine: str, other: str) -> None:
    assert ours(mine) == theirs(other)


def conditions(depth: int = 3) -> st.SearchStrategy[str]:
    leaves = st.sampled_from(
        ["p", "q", "r", "TRUE", "FALSE", "(a > 1)", "(b = 5)", "(x < a)", "(t = 'abc')", "(p = q)"]
    )
    if depth == 0:
        return leaves
    inner = conditions(depth - 1)
    tests = st.sampled_from(["IS NULL", "IS NOT NULL", "IS TRUE", "IS NOT TRUE", "IS FALSE", "IS NOT FALSE"])
    return st.one_of(
        leaves,
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("(NOT {})".format, inner),
        st.builds("({} {})".format, inner, tests),
        st.builds("({} IS DISTINCT FROM {})".format, inner, inner),
        st.builds("(CASE WHEN {} THEN {} ELSE {} END)".format, inner, inner, inner),
        st.builds("coalesce({}, {})".format, inner, inner),
    )


@given(conditions())
@settings(max_examples=examples(150))
def test_three_valued_logic_is_duckdbs(text: str) -> None:
    assert ours(text) == theirs(text)
