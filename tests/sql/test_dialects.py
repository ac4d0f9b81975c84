"""Words of other dialects: each error names the equivalent in Millrace, and no suggestion is refused itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.sql import Catalog, SqlError, dialects, parse, plan_all
from millrace.sql.binder import TYPE_NAMES
from millrace.sql.parser import grammar
from millrace.sql.windows import FUNCTIONS as WINDOWS
from millrace.values.aggregates import AGGREGATES
from millrace.values.functions import LIBRARY

ROOT = Path(__file__).parents[2]
COLUMNS = "(ts TIMESTAMP, k BIGINT, v BIGINT, x DOUBLE, t TEXT)"
STREAMS = f"""
CREATE STREAM s {COLUMNS} WITH (time = 'ts');
CREATE STREAM r {COLUMNS} WITH (time = 'ts');
CREATE STREAM u {COLUMNS} WITH (time = 'ts', update_key = 'k');
"""
_, CATALOG = plan_all(parse(STREAMS), Catalog())
_, WITH_QUERY = plan_all(parse(STREAMS + "CREATE QUERY q AS SELECT v FROM s;"), Catalog())
TUMBLE = "TUMBLE(s, ts, INTERVAL '1 minute')"


def refused(sql: str) -> SqlError:
    with pytest.raises(SqlError) as caught:
        plan_all(parse(sql), CATALOG)
    return caught.value


# -- what is suggested works -------------------------------------------------------------------------------------------


def suggestions() -> Iterator[tuple[str, str]]:
    """For each word, a statement that contains the suggestion."""
    for table in (dialects.FUNCTIONS, dialects.COLUMNS, dialects.TABLES, dialects.OVER):
        for name, word in table.items():
            yield name, _statement(word.write)
    for name, word in dialects.AGGREGATES.items():
        yield name, f"SELECT {word.write} AS y FROM {TUMBLE}" if word.write else ""
    for name, word in dialects.TYPES.items():
        yield name, f"CREATE STREAM z (a {word.write})" if word.write else ""
    for phrase in dialects.PHRASES:
        yield phrase.pattern.pattern, phrase.word.write


def _statement(write: str) -> str:
    if not write or write.startswith("SELECT"):
        return write
    if write.startswith("FROM"):
        return f"SELECT count(*) AS n {write}"
    if write.startswith("GROUP BY"):
        return f"SELECT k, count(*) AS n FROM s {write}"
    if write.startswith("QUALIFY"):
        return f"SELECT v FROM s {write}"
    if write.startswith("window_"):
        return f"SELECT {write}, count(*) AS n FROM {TUMBLE}"
    return f"SELECT {write} AS y FROM s"


@pytest.mark.parametrize(("word", "sql"), [(word, sql) for word, sql in suggestions() if sql])
def test_suggestions_are_accepted(word: str, sql: str) -> None:
    plan_all(parse(sql), WITH_QUERY if re.search(r"FROM q\b|DROP QUERY q", sql) else CATALOG)


def test_known_words_are_not_words_of_another_dialect() -> None:
    assert not set(dialects.FUNCTIONS) & {*LIBRARY.names, *AGGREGATES.names}
    assert not set(dialects.AGGREGATES) & {*LIBRARY.names, *AGGREGATES.names}
    assert not set(dialects.FUNCTIONS) & set(dialects.AGGREGATES)
    assert not set(dialects.TYPES) & set(TYPE_NAMES)
    assert not set(dialects.TABLES) & set(WINDOWS)


@pytest.mark.parametrize("word", sorted(dialects.REFUSED))
def test_a_word_that_is_refused_is_never_offered(word: str) -> None:
    assert word in {terminal.name.strip("_") for terminal in grammar().terminals}
    for wrong in (word[:-1], word[1:], word + "S", word[0] + word[2] + word[1] + word[3:]):
        if wrong == word:
            continue
        for sql in (f"SELECT k, count(*) AS n FROM s GROUP BY k {wrong} 5", f"SELECT v FROM s WHERE v > 1 {wrong} 5"):
            message = refused(sql).message
            assert not re.search(rf"\b{word}\b", message.replace(f"got {wrong}", "")), message


def test_no_operator_is_offered_for_a_function() -> None:
    for name in ("hourr", "ora", "nott", "an", "lik", "ins"):
        assert not re.search(r"did you mean (and|or|not|in|like|ilike)\?", refused(f"SELECT {name}(v) FROM s").message)


def test_the_join_that_a_subquery_suggests_is_taken() -> None:
    message = refused("SELECT (SELECT max(v) FROM r) FROM s").message
    suggested = message[message.index("FROM s") :].partition("; see ")[0]
    plan_all(parse(f"SELECT s.v, m.most {suggested}"), CATALOG)


def test_the_first_rows_that_order_by_suggests_are_taken() -> None:
    message = refused("SELECT v FROM s ORDER BY v").message
    select, qualify = re.search(r"select (.* AS n) and write (QUALIFY .*);", message).groups()  # type: ignore[union-attr]
    plan_all(parse(f"SELECT v, {select.replace('...', 'v')} FROM s {qualify}"), CATALOG)


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted({**dialects.FUNCTIONS, **dialects.AGGREGATES}.keys() - {"if", "array", "map"}))
def test_a_function_of_another_dialect_is_answered(name: str) -> None:
    word = {**dialects.FUNCTIONS, **dialects.AGGREGATES}[name]
    message = refused(f"SELECT {name}(DISTINCT v) AS y FROM s GROUP BY k").message
    assert message == word.sentence(f"the function {name} does not exist")


def test_every_answer_names_the_guide_and_pages_that_exist() -> None:
    tables = (dialects.FUNCTIONS, dialects.AGGREGATES, dialects.COLUMNS, dialects.TABLES, dialects.TYPES, dialects.OVER)
    sentences = [word.sentence("x does not exist") for table in tables for word in table.values()]
    sentences += [phrase.sentence for phrase in dialects.PHRASES]
    for sentence in sentences:
        assert sentence.endswith("docs/guides/coming-from.md"), sentence
        assert sentence.count("see docs/") == 1, sentence
    pages = {page for sentence in sentences for page in re.findall(r"docs/[\w/-]+\.md", sentence)}
    assert {"docs/functions.md", "docs/guides/coming-from.md", "docs/howto/secure.md"} <= pages
    for page in pages:
        assert (ROOT / page).is_file(), page


CASES = [
    # the caret is under «
    (
        "SELECT «array_agg(DISTINCT v) FROM s GROUP BY k",
        "the function array_agg does not exist: Millrace has no list type",
    ),
    (
        "SELECT «string_agg(t, ',') FROM s GROUP BY k",
        "the function string_agg does not exist: Millrace has no list type",
    ),
    ("SELECT «hour(ts) FROM s", "the function hour does not exist. Write extract(hour FROM ts)"),
    ("SELECT s.v FROM s «ASOF JOIN r ON s.k = r.k AND s.ts >= r.ts", "ASOF JOIN is not supported. Write SELECT"),
    ("SELECT s.v FROM s ASOF «LEFT JOIN r ON s.k = r.k", None),
    ("SELECT s.v FROM s «SEMI JOIN r ON s.k = r.k", "SEMI JOIN is not supported"),
    ("SELECT s.v FROM s «ANTI JOIN r ON s.k = r.k", "ANTI JOIN is not supported"),
    ("SELECT s.v FROM s «TEMPORAL JOIN r ON s.k = r.k", "Millrace does not keep past versions of a table"),
    (
        "SELECT s.v FROM s JOIN r «FOR SYSTEM_TIME AS OF s.ts ON s.k = r.k",
        "Millrace does not keep past versions of a table",
    ),
    ("SELECT v FROM s «EMIT CHANGES", "EMIT is not supported"),
    ("SELECT v FROM s «EMIT FINAL", "EMIT is not supported"),
    ("SELECT k, count(*) FROM s GROUP BY k «EMIT CHANGES", "EMIT is not supported"),
    ("SELECT k, count(*) FROM s GROUP BY k «EMIT ON WINDOW CLOSE", "EMIT is not supported"),
    ("SELECT k, count(*) FROM s GROUP BY «GROUPING SETS ((k), ())", "a query has one grouping"),
    ("SELECT k, count(*) FROM s GROUP BY «ROLLUP (k)", "the function rollup does not exist. Write GROUP BY k"),
    ("SELECT k, count(*) FROM s «GROUP BY ALL", "a query has one grouping"),
    ("SELECT * FROM s, «LATERAL (SELECT 1)", "LATERAL is not supported"),
    ("SELECT * FROM s CROSS JOIN «LATERAL (SELECT 1)", "LATERAL is not supported"),
    ("SELECT * FROM «TABLE(TUMBLE(TABLE s, DESCRIPTOR(ts), INTERVAL '1' MINUTE))", "a window does not need TABLE"),
    ("SELECT «lag(v) OVER (PARTITION BY k ORDER BY ts) FROM s", "lag OVER (...) is not available. Write SELECT"),
    ("SELECT «sum(v) OVER (PARTITION BY k ORDER BY ts) FROM s", "sum OVER (...) is not available. Use ROW_NUMBER()"),
    ("SELECT «rank() OVER (ORDER BY v) FROM s", "rank OVER (...) is not available. Write SELECT"),
    ("SELECT «(SELECT max(v) FROM r) FROM s", "a query cannot be used as one value"),
    ("SELECT «now() FROM s", "now would make the result depend on the clock"),
    ("SELECT «CURRENT_TIMESTAMP FROM s", "the column current_timestamp does not exist in s. Write ts"),
    ("SELECT «proctime() FROM s", "the function proctime does not exist. Write ts"),
    ("SELECT v FROM s «FETCH FIRST 5 ROWS ONLY", "a stream has no end"),
    ("«SELECT TOP 5 v FROM s", "a stream has no end"),
    ("«CREATE TABLE z (v BIGINT)", "CREATE TABLE is not supported. Write CREATE STREAM"),
    ("«CREATE TABLE z AS SELECT v FROM s", "CREATE TABLE is not supported. Write CREATE QUERY"),
    ("«CREATE MATERIALIZED VIEW z AS SELECT v FROM s", "CREATE MATERIALIZED VIEW is not supported. Write CREATE QUERY"),
    ("«CREATE OR REPLACE VIEW z AS SELECT v FROM s", "CREATE VIEW is not supported. Write CREATE QUERY"),
    ("«CREATE SOURCE z (v BIGINT)", "CREATE SOURCE is not supported. Write CREATE STREAM"),
    (
        "«CREATE STREAM z AS SELECT v FROM s",
        "CREATE STREAM ... AS is not supported. Write CREATE QUERY q AS SELECT v FROM s",
    ),
    ("«CREATE OR REPLACE SINK z FROM q", "a sink cannot be replaced. Write CREATE SINK z FROM q WITH"),
    ("CREATE STREAM z (ts TIMESTAMP, «WATERMARK FOR ts AS ts - INTERVAL '5' SECOND)", "WATERMARK FOR is not supported"),
    ("CREATE STREAM z (v BIGINT «PRIMARY KEY)", "PRIMARY KEY is not supported"),
    ("CREATE STREAM z (v «DECIMAL(10, 2))", "the type decimal does not exist. Write double"),
    ("CREATE STREAM z (v «JSON)", "the type json does not exist. Write text"),
    ("CREATE STREAM z (v «ARRAY<BIGINT>)", "Millrace has no lists, maps or structs"),
    ("«INSERT OVERWRITE s VALUES (1)", "INSERT only adds rows. Write INSERT INTO s"),
    ("«INSERT INTO s VALUES (1) ON CONFLICT DO NOTHING", "INSERT only adds rows"),
    ("«INSERT INTO z SELECT v FROM s", "INSERT INTO ... SELECT is not supported. Write CREATE SINK z FROM q WITH"),
    ("«DELETE FROM s", "rows of a stream never change"),
    ("«SHOW MATERIALIZED VIEWS", "Write SHOW QUERIES"),
    ("«SHOW DATABASES", "SHOW lists STREAMS, QUERIES, SINKS, COMPONENTS or OPERATORS"),
    ("«LIST TOPICS", "Write SHOW STREAMS"),
    ("«DESCRIBE EXTENDED s", "Write DESCRIBE s"),
    ("«SET x = 1", "Millrace has no session settings"),
    ("SELECT * FROM s «MATCH_RECOGNIZE (PARTITION BY k)", "MATCH_RECOGNIZE is not supported"),
    ("SELECT k, count(*) FROM s «WINDOW TUMBLING (SIZE 30 SECONDS) GROUP BY k", "a window belongs in FROM"),
    (
        "SELECT k, count(*) FROM s GROUP BY k, «TUMBLE(ts, INTERVAL '1' MINUTE)",
        "the function tumble does not exist. Write FROM",
    ),
    ("SELECT * FROM «HOPPING(s, ts, INTERVAL '1 minute')", "the table function hopping does not exist. Write FROM HOP"),
    ("SELECT * FROM s «PARTITION BY k", "this clause takes no PARTITION BY. Write SELECT k"),
    ("SELECT s.v FROM s «JOIN r WITHIN 5 SECONDS ON s.k = r.k", "a join takes a range after each table"),
    ("SELECT «median(x) FROM s", "the function median does not exist. Write approx_quantile(x, 0.5)"),
    ("SELECT percentile_cont(0.5) «WITHIN GROUP (ORDER BY x) FROM s", "WITHIN GROUP is not supported"),
    ("SELECT t «~ 'a' FROM s", "pattern operators are not supported. Write SELECT regexp_like"),
    ("SELECT t «RLIKE 'a' FROM s", "pattern operators are not supported. Write SELECT regexp_like"),
    ("SELECT «try_cast(t AS BIGINT) FROM s", "TRY_CAST is not supported. Write SELECT cast(t AS bigint)"),
    ("SELECT t«->>'a' FROM s", "Millrace has no JSON type"),
    ("SELECT v «== 1 FROM s", "equality is written ="),
    ("SELECT «`v` FROM s", "a name with special characters needs double quotes"),
    ("«DROP TABLE s", "Millrace has only streams, queries and sinks"),
    ("SELECT 1 AS one; «SHOW TABLES", "Millrace has only streams, queries and sinks. Write SHOW STREAMS"),
    # not a word of another dialect: quoted, hidden, or elsewhere
    ("SELECT 'EMIT CHANGES' AS x FROM s WHERE v = «= 2", "expected an expression, got ="),
    ("SELECT v FROM s /* LATERAL */ WHERE«", "expected an expression here, got the end"),
    ("SELECT v FROM s -- EMIT CHANGES\nWHERE v = «) 2", "expected an expression, got )"),
]


@pytest.mark.parametrize(("sql", "words"), [case for case in CASES if case[1]])
def test_the_sentence_and_its_place(sql: str, words: str) -> None:
    at = sql.index("«")
    before = sql[:at]
    error = refused(sql.replace("«", ""))
    assert words in error.message
    assert (error.line, error.column) == (before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1), error.message


def test_an_alias_may_be_any_word_after_as() -> None:
    plan_all(parse("SELECT asof.v, r.v AS w FROM s AS asof JOIN r ON asof.k = r.k"), CATALOG)


def test_a_long_statement_is_looked_through_once() -> None:
    many = " OR ".join(["v = 1"] * 20_000)
    assert "expected" in refused(f"SELECT v FROM s WHERE {many} )").message


# -- a plain join with an update stream --------------------------------------------------------------------------------


def warnings(sql: str) -> str:
    (plan,), _ = plan_all(parse(f"CREATE QUERY z AS {sql}"), CATALOG)
    return " ".join(plan.plan.warnings)  # type: ignore[union-attr]


def test_a_plain_join_of_versions_names_join_latest() -> None:
    warning = warnings("SELECT s.v, u.v AS w FROM s JOIN u ON s.k = u.k")
    assert "k), and this join emits a row for every version of a key" in warning
    assert "write JOIN LATEST u ON its key" in warning
    assert "update key" in warnings(
        "SELECT s.v, y.v AS w FROM s JOIN (SELECT k, v FROM u WHERE v > 1) AS y ON s.k = y.k"
    )
    assert "update key" not in warnings("SELECT s.v, u.v AS w FROM s JOIN LATEST u ON s.k = u.k")
    assert "update key" not in warnings("SELECT s.v, r.v AS w FROM s JOIN r ON s.k = r.k")
