"""The cost of a text: it is refused at its place before it is parsed, or planned in proportion to its length.

The tests do not measure time: quadratic or exponential work would not end at these sizes.
"""

from __future__ import annotations

import contextlib
import sys
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import statements
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.filter.spec import SelectSpec
from millrace.run.config import LimitsSection
from millrace.run.daemon import SQL_STATEMENTS
from millrace.sql import Catalog, CreateQuery, Explain, SqlError, parse, plan_all
from millrace.sql import syntax as s
from millrace.sql.limits import LIST, STATEMENTS, Limits, pieces
from millrace.sql.parser import grammar
from millrace.sql.planner import _readers_of
from millrace.values import expression as e
from millrace.values.batch import Batch
from millrace.values.evaluate import evaluate
from millrace.values.written import show

CATALOG = plan_all(parse("CREATE STREAM s (a BIGINT, b BIGINT, t TEXT)"), Catalog())[1]
FEW = Limits(characters=10_000, tokens=50, depth=10)


def refused(sql: str, limits: Limits | None = None) -> SqlError:
    with pytest.raises(SqlError) as caught:
        plan_all(parse(sql) if limits is None else parse(sql, limits), CATALOG)
    return caught.value


def predicate(sql: str) -> e.Expression:
    (step,), _ = plan_all(parse(f"CREATE QUERY q AS SELECT * FROM s WHERE {sql}"), CATALOG)
    assert isinstance(step, CreateQuery)
    spec = step.plan.nodes[0].spec
    assert isinstance(spec, SelectSpec)
    return spec.predicate


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "words", "at"),
    [
        ("SELECT " + "(" * 11 + "a" + ")" * 11, "at most 10 levels of nesting here", 17),
        ("SELECT " + "NOT " * 11 + "a", "at most 10 levels of nesting here", 47),
        ("SELECT " + "- " * 11 + "a", "at most 10 levels of nesting here", 27),
        ("SELECT " + "CASE WHEN a THEN " * 11, "at most 10 levels of nesting here", 177),
        ("SELECT a" + " + 1" * 25, "at most 50 tokens in a statement", 105),
        ("; ".join(["DROP QUERY q"] * 51), f"at most {STATEMENTS * 50} tokens in a text", 700),
        (";" * 201, f"at most {STATEMENTS * 50} tokens in a text", 200),
        ("SELECT a FROM s WHERE t = '" + "x" * 10_000 + "'", "at most 10,000 characters of SQL, got 10,028", 10_000),
        ("SELECT " + "a" * 1001, "at most 1,000 characters, got 1,001", 7),
        ("SELECT " + "1" * 5000, "at most 1,000 characters, got 5,000", 7),
    ],
)
def test_a_text_beyond_a_limit_is_refused_at_the_place(sql: str, words: str, at: int) -> None:
    error = refused(sql, FEW)
    assert words in error.message
    assert (error.line, error.column) == (1, at + 1)
    assert error.pointer.split("\n")[1].endswith("^")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + "(" * 10 + "a" + ")" * 10 + " FROM s",
        "SELECT " + ", ".join(["(a)"] * 11).replace("(a)", "(a) + 1") + " FROM s",
        "SELECT " + " + ".join(["a"] * 23) + " AS x FROM s",
        "/* " + "( " * 20 + "*/ SELECT a -- " + "(" * 20 + "\nFROM s WHERE t = '" + "(" * 20 + "'",
        'SELECT a AS "' + "(" * 20 + '" FROM s',
        ";".join(["SELECT a FROM s"] * 40),
    ],
)
def test_a_text_within_the_limits_is_parsed(sql: str) -> None:
    parse(sql, Limits(characters=10_000, tokens=78, depth=10))


def test_each_statement_has_the_limit_to_itself() -> None:
    assert len(parse(";\n".join(["SELECT " + ", ".join(["a"] * 20) + " FROM s"] * 4), FEW)) == 4
    assert refused(";\n".join(["SELECT a FROM s", "SELECT " + ", ".join(["a"] * 30) + " FROM s"]), FEW).line == 2


def test_spans_are_places_in_the_whole_text() -> None:
    text = "DROP QUERY a;\n  DROP QUERY b ;; DROP QUERY c"
    assert [statement.sql for statement in parse(text)] == ["DROP QUERY a", "DROP QUERY b", "DROP QUERY c"]
    error = refused("CREATE QUERY q AS SELECT a FROM s;\nSELECT nope FROM s")
    assert (error.line, error.column) == (2, 8)
    error = refused("CREATE QUERY q AS SELECT a FROM s;\nSELECT a FRM s; DROP QUERY q")
    assert (error.line, error.column) == (2, 14)


@given(st.lists(st.sampled_from(["SELECT 1", "'a;b'", '"a;b"', "-- ;\n", "/* ; */", ";", " ", "x", "(", "''"])))
def test_pieces_are_the_text_between_semicolons(words: list[str]) -> None:
    text = " ".join(words)
    parts = pieces(text, Limits())
    assert all(text[piece.end - 1] == ";" for piece in parts[:-1])
    assert all(first.end <= second.start for first, second in pairwise(parts))
    for piece in parts:
        inner = grammar().lex(text[piece.start : piece.end]) if "'" not in text and "(" not in text else ()
        assert sum(token == ";" for token in inner) <= 1


# -- what a text holds in memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT '" + "a" * 900_000 + "' AS x FROM s",
        "SELECT '" + "''" * 450_000 + "' AS x FROM s",
        "SELECT '" + "''" * 450_000,
        "/*" + "* " * 450_000,
        "/*" * 450_000,
        "SELECT 1 " + "/*" * 450_000,
        'SELECT "' + '""' * 450_000,
        "SELECT " + "(" * 450_000,
        "SELECT a FROM s WHERE a IN (" + "1," * 450_000,
        "SELECT a FROM s WHERE " + "a=1 OR " * 100_000,
        ";" * 900_000,
        "SELECT " + "a" * 900_000,
        "SELECT " + ",".join(["b" * 999] * 900) + ", , FROM s",
        "EXPLAIN" + " " * 900_000 + "x y",
    ],
    ids=lambda sql: sql[:20].strip(),
)
def test_a_refusal_or_a_long_text_costs_a_few_megabytes(sql: str) -> None:
    grammar()
    tracemalloc.start()
    text = ""
    try:
        with contextlib.suppress(SqlError):
            parse(sql)
            text = "parsed"
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 50 * 2**20
    if not text:
        assert len(refused(sql).text) < 1_000


# Calls of functions until a statement is refused, in Python and in C: a tenth of a second.
MOST_CALLS = 1_200_000
ATTACKS = statements.attacks()
ATTACKED = statements.catalog()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_refusal_takes_bounded_work(name: str) -> None:
    grammar()
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        statements.refusal(ATTACKS[name], ATTACKED)
    finally:
        sys.setprofile(None)
    assert calls < MOST_CALLS


@pytest.mark.parametrize("name", ["IN", "tables", "AND", "UNION", "WITH 3x300", "expression"])
def test_a_refusal_takes_bounded_memory(name: str) -> None:
    grammar()
    tracemalloc.start()
    try:
        statements.refusal(ATTACKS[name], ATTACKED)
        assert tracemalloc.get_traced_memory()[1] < 25 * 2**20
    finally:
        tracemalloc.stop()


def test_the_attacks_are_as_long_as_a_server_lets_them_be() -> None:
    assert LimitsSection().sql_tokens == statements.LIMITS.tokens
    assert statements.LIMITS.statements == SQL_STATEMENTS


# -- lists of constants ------------------------------------------------------------------------------------------------

LITERALS = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.text("ab', ()").map(lambda text: "'" + text.replace("'", "''") + "'"),
    st.sampled_from(["NULL", "true", "FALSE", "- 1", "1e3", ".5", "2."]),
)


@given(st.lists(LITERALS, min_size=1, max_size=3), st.sampled_from([", ", ",", "\n ,\t"]))
def test_a_long_list_has_the_meaning_of_its_members(few: list[str], between: str) -> None:
    """A long list, which is one token, and a short one, in which each member is a token."""
    (long,) = parse(f"SELECT a IN ({between.join((few * LIST)[: LIST + 1])}) AS x FROM s")
    (short,) = parse(f"SELECT a IN ({between.join(few)}) AS x FROM s")
    members = [_values(statement) for statement in (long, short)]
    assert members[0] == (members[1] * LIST)[: LIST + 1]


def _values(statement: s.Statement) -> list[object]:
    assert isinstance(statement.body, s.SelectStatement)
    assert isinstance(statement.body.query.first, s.Select)
    item = statement.body.query.first.items[0]
    assert isinstance(item, s.Item)
    assert isinstance(item.expression, s.InList)
    members = item.expression.members
    assert all(isinstance(member, s.Constant) for member in members)
    for member in members:
        written = statement.text[member.span.start : member.span.end]
        assert parse(f"SELECT {written} AS x FROM s"), written
    return [(type(member.value), member.value) for member in members if isinstance(member, s.Constant)]


def test_the_place_of_a_wrong_member_of_a_long_list_is_shown() -> None:
    members = ", ".join(map(str, range(LIST)))
    error = refused(f"SELECT a FROM s WHERE a IN ({members}, 'x')")
    assert error.source[error.column - 1 :] == "'x')"


def test_ninety_thousand_constants_are_one_lookup() -> None:
    numbers, texts = ", ".join(map(str, range(0, 180_000, 2))), ", ".join(f"'{n}'" for n in range(999))
    expression = predicate(f"a IN ({numbers}) AND t NOT IN ({texts})")
    batch = Batch.from_rows(CATALOG.streams["s"].schema, [(n, 0, "x") for n in (0, 1, 179_998, 180_000)], [0] * 4)
    assert evaluate(expression, batch).values.tolist() == [True, False, True, False]
    assert show(expression).count(", ") > 90_000


# -- what is flat or deep is planned -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "condition",
    [
        " OR ".join(f"a = {n}" for n in range(4000)),
        " AND ".join(f"a <> {n}" for n in range(4000)),
        "coalesce(" + ", ".join(["a"] * 8000) + ") = 1",
        "CASE " + " ".join(f"WHEN a = {n} THEN {n}" for n in range(3000)) + " END = 1",
        "CASE a + b " + " ".join(f"WHEN {n} THEN {n}" for n in range(3000)) + " END = 1",
        "a IN (" + ", ".join(f"b + {n}" for n in range(4000)) + ")",
        "abs(" * 45 + "a" + ")" * 45 + " = 1",
        "(" * 45 + "a" + ")" * 45 + " = 1",
        "a" + " + 1" * 99 + " = 1",
        "t" + " || t" * 99 + " = 'x'",
        "CASE WHEN a = 1 THEN " * 22 + "1" + " END" * 22 + " = 1",
    ],
    ids=lambda text: text[:20],
)
def test_admitted_statements_pass_every_stage(condition: str) -> None:
    sql = f"CREATE QUERY q AS SELECT a FROM s WHERE {condition}; EXPLAIN SELECT b FROM s WHERE {condition}"
    (created, shown), _ = plan_all(parse(sql), CATALOG)
    assert isinstance(created, CreateQuery)
    assert isinstance(shown, Explain)
    assert created == plan_all(parse(created.plan.sql), CATALOG)[0][0]
    assert hash(created.plan.nodes[0].spec) == hash(created.plan.nodes[0].spec)
    batch = Batch.from_rows(CATALOG.streams["s"].schema, [(1, 1, "x"), (None, 2, None)], [0, 0])
    spec = created.plan.nodes[0].spec
    assert isinstance(spec, SelectSpec)
    assert len(evaluate(spec.predicate, batch).values) == 2


@pytest.mark.parametrize(
    "condition",
    [
        "(" * 25 + "a" + " BETWEEN 1 AND 3)::bigint" * 25 + " = 1",
        "(" * 25 + "a" + " IN (b, b + 1))::bigint" * 25 + " = 1",
        "CASE (" + " + ".join(["a"] * 90) + ") " + " ".join(f"WHEN {n} THEN {n}" for n in range(2000)) + " END = 1",
    ],
    ids=lambda text: text[-20:],
)
def test_a_value_that_is_tested_again_and_again_is_bounded(condition: str) -> None:
    assert "parts in an expression" in refused(f"CREATE QUERY q AS SELECT a FROM s WHERE {condition}").message


def test_columns_folded_into_rows_are_bounded() -> None:
    doubled = "(SELECT a + a AS a, b FROM " * 20 + "s" + ")" * 20
    sql = f"CREATE QUERY q AS SELECT count(*) AS n, sum(a) AS z FROM {doubled} [ROWS 10 SLIDE 10] AS w"
    assert "parts or 120 levels" in refused(sql).message
    deep = f"(SELECT a{' + 1' * 80} AS a, b FROM " * 10 + "s" + ")" * 10
    sql = f"CREATE QUERY q AS SELECT count(*) AS n, sum(a) AS z FROM {deep} [ROWS 10 SLIDE 10] AS w"
    assert "parts or 120 levels" in refused(sql).message
    few = "(SELECT a + a AS a, b FROM " * 4 + "s" + ")" * 4
    plan_all(parse(f"CREATE QUERY q AS SELECT count(*) AS n, sum(a) AS z FROM {few} [ROWS 10 SLIDE 10] AS w"), CATALOG)


def test_groups_and_aggregates_by_the_thousand() -> None:
    keys = [f"a + {n}" for n in range(800)]
    calls = [f"sum(b + {n}) AS s{n}" for n in range(800)]
    named = [f"{key} AS k{n}" for n, key in enumerate(keys)]
    sql = f"CREATE QUERY q AS SELECT {', '.join(named + calls)} FROM s GROUP BY {', '.join(keys)}"
    (step,), _ = plan_all(parse(sql), CATALOG)
    assert isinstance(step, CreateQuery)
    spec = next(node.spec for node in step.plan.nodes if isinstance(node.spec, AggregateSpec))
    assert (len(spec.keys), len(spec.calls)) == (800, 800)


# -- queries that read queries -----------------------------------------------------------------------------------------


def test_a_chain_of_a_thousand_queries() -> None:
    chain = [
        f"CREATE QUERY q{n} AS SELECT a, b FROM {'s' if n == 0 else f'q{n - 1}'} WHERE a > {n}" for n in range(1000)
    ]
    _, catalog = plan_all(parse("; ".join(chain)), CATALOG)
    assert _readers_of(catalog, "query", "q998") == ["query q999"]
    error = refused_in(catalog, "CREATE OR REPLACE QUERY q0 AS SELECT a, b FROM q999")
    assert "wait for each other" in error.message
    plan_all(parse("CREATE OR REPLACE QUERY q0 AS SELECT a, b FROM s WHERE a > 7"), catalog)


def refused_in(catalog: Catalog, sql: str) -> SqlError:
    with pytest.raises(SqlError) as caught:
        plan_all(parse(sql), catalog)
    return caught.value


def test_queries_that_read_the_one_before_twice() -> None:
    both = "SELECT a, b FROM x{0} UNION ALL SELECT a, b FROM y{0}"
    texts = ["CREATE QUERY x0 AS SELECT a, b FROM s", "CREATE QUERY y0 AS SELECT a, b FROM s"]
    for n in range(40):
        texts += [f"CREATE QUERY {name}{n + 1} AS {both.format(n)}" for name in "xy"]
    _, catalog = plan_all(parse("; ".join(texts)), CATALOG)
    assert len(catalog.queries) == 82
    assert "wait for each other" in refused_in(catalog, "CREATE OR REPLACE QUERY x0 AS SELECT a, b FROM y40").message


def test_facts_of_a_query_are_recomputed_after_its_input_was_replaced() -> None:
    ordered = "CREATE QUERY p AS SELECT a, b FROM s"
    _, catalog = plan_all(parse(f"{ordered}; CREATE QUERY q AS SELECT a, b FROM p"), CATALOG)
    union = "SELECT a, b FROM p UNION ALL SELECT a, b FROM s"
    again = (
        f"DROP QUERY q; CREATE OR REPLACE QUERY p AS {union.replace('p', 's')}; CREATE QUERY q AS SELECT a, b FROM p"
    )
    once = plan_all(
        parse(f"CREATE QUERY p AS {union.replace('p', 's')}; CREATE QUERY q AS SELECT a, b FROM p"), CATALOG
    )[1]
    twice = plan_all(parse(again), catalog)[1]
    for sql in ("EXPLAIN SELECT a FROM q", "EXPLAIN SELECT count(*) AS n FROM TUMBLE(q, ts, INTERVAL '1 second')"):
        (first,), (second,) = (plan_all(parse(sql), known)[0] for known in (once, twice))
        assert isinstance(first, Explain)
        assert isinstance(second, Explain)
        assert first.text == second.text


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("WITH c0 AS (SELECT a FROM s), " + ", ".join(f"c{n + 1} AS (SELECT a FROM c{n})" for n in range(60))
         + " SELECT a FROM c60", "40 levels of nesting"),
        (" UNION ALL ".join(["SELECT a FROM s WHERE a > 1"] * 1500), "operators in a query"),
        ("WITH c0 AS (" + " UNION ALL ".join(["SELECT a FROM s WHERE a > 1"] * 40) + "), "
         + ", ".join(f"c{n} AS ({' UNION ALL '.join(['SELECT a FROM c0'] * 10)})" for n in range(1, 20))
         + " SELECT a FROM s", "the queries of WITH need more than 1,000 operators when each is expanded"),
    ],
)  # fmt: skip
def test_queries_inside_each_other_are_bounded(sql: str, words: str) -> None:
    assert words in refused(sql).message


def test_stars_over_stars_are_bounded() -> None:
    wide = f"CREATE STREAM w ({', '.join(f'c{n} BIGINT' for n in range(1000))}); CREATE QUERY q AS "
    crossed = "SELECT * FROM w [RANGE '1 second'] AS a0" + "".join(
        f" JOIN w [RANGE '1 second'] AS a{n} ON a{n}.c0 = a{n - 1}.c0" for n in range(1, 30)
    )
    assert "columns in all operators" in refused(wide + crossed).message
    few = crossed.partition(" JOIN w [RANGE '1 second'] AS a3")[0]
    plan_all(parse(wide + few), CATALOG)
