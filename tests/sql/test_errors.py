"""Errors: the sentence, the line and column, and the caret under the named place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.sql import Catalog, SqlError, parse, plan_all
from millrace.sql.errors import COMPARED, similar_name
from tests.depth import examples

STREAMS = """
CREATE STREAM s (a BIGINT, b BIGINT, price DOUBLE, t TEXT);
CREATE STREAM p (ts TIMESTAMP, len BIGINT) WITH (time = 'ts');
CREATE QUERY x AS SELECT a FROM s;
CREATE QUERY run AS SELECT a, count(*) AS n FROM s GROUP BY a;
CREATE SINK k FROM x WITH (type = 'stdout');
"""
_, CATALOG = plan_all(parse(STREAMS), Catalog())


def refused(sql: str) -> SqlError:
    with pytest.raises(SqlError) as caught:
        plan_all(parse(sql), CATALOG)
    return caught.value


# The caret is under the « of each statement. The sentence starts with the words, or contains them.
CASES = [
    # syntax
    ("SELECT «FROM s", "expected '*' or an expression, got FROM"),
    ("SELECT a FRM «s", "did you mean FROM instead of FRM?"),
    ("«SELEC a FROM s", "did you mean SELECT?"),
    ("SELECT a FROM s WHERE«", "expected an expression here, got the end"),
    ("SELECT a FROM s WHERE «'x", "this quote is never closed"),
    ('SELECT «"x FROM s', "this quote is never closed"),
    ("SELECT a FROM s «/* x", "this comment is never closed"),
    ("CREATE «STREEM z (a BIGINT)", "did you mean STREAM?"),
    ("CREATE STREAM z (a BIGINT«", "expected ')' or ','"),
    ("SELECT (a «FROM s", "expected ')', got FROM"),
    ("SELECT a FROM s WHERE a = «= 2", "expected an expression, got ="),
    ("SELECT CASE WHEN a = 1 THEN 2 «FROM s", "expected ELSE, END or WHEN, got FROM"),
    ("SELECT «1a FROM s", "got 1a"),
    ("«#", "got #"),
    # names
    ("SELECT «pric FROM s", "the column pric does not exist in s; did you mean price?"),
    ("SELECT a FROM «ss", "no stream or query is called ss; did you mean s?"),
    ("SELECT a FROM «nowhere_near", "no stream or query is called nowhere_near; there are s, "),
    ("SELECT «z.a FROM s", "FROM has no table z; the table here is s"),
    ("SELECT z.* FROM s".replace("z", "«z"), "FROM has no table z"),
    ("SELECT «lenght(t) FROM s", "the function lenght does not exist; did you mean length?"),
    ("SELECT a::«bigin FROM s", "the type bigin does not exist; did you mean bigint?"),
    ("SELECT a FROM «tumbel(s, ts, INTERVAL '1 s')", "did you mean tumble?"),
    ("SELECT extract(«hours FROM ts) FROM s", "extract has no field hours; did you mean hour?"),
    ("SELECT a FROM s.«lat", "s.lat does not exist; did you mean late?"),
    ("SELECT a FROM s.«early", "s.early does not exist; a stream has one side stream, s.late"),
    ("SELECT a FROM «nowhere.late", "the stream nowhere does not exist"),
    ("SELECT a FROM «pp.late", "the stream pp does not exist; did you mean p?"),
    ("SELECT a FROM «x.late", "x is a query, and only a stream has late tuples"),
    ("WITH w AS (SELECT a FROM s) SELECT a FROM «w.late", "w is a query, and only a stream has late tuples"),
    ("SELECT «late_by FROM p.late", "the column late_by does not exist in late; did you mean late_by_us?"),
    ("CREATE QUERY y AS SELECT len FROM p.late; DROP STREAM «p", "p is still read by query y: drop that first"),
    ("CREATE SINK z FROM «p.late WITH (type = 'stdout')", "CREATE QUERY name AS SELECT * FROM p.late first"),
    ("CREATE STREAM e (at TIMESTAMP) WITH (time = 'at'); SELECT «ts FROM e", "the column ts does not exist in e"),
    ("SELECT a, «a FROM s", "two columns are called a"),
    ("SELECT ts, «len AS ts FROM p", "two columns are called ts"),
    ("CREATE STREAM «s (a BIGINT)", "there is already a stream called s"),
    ("CREATE QUERY «s AS SELECT a FROM p", "there is already a stream called s"),
    ("CREATE STREAM z (a BIGINT, «a TEXT)", "two columns are called a"),
    ('CREATE STREAM «"a.b" (a BIGINT)', "expected a name of letters"),
    # types
    ("SELECT a + «t FROM s", "+: expected bigint or double, got text"),
    ("SELECT «t * 2 FROM s", "*: expected bigint, double or interval, got text"),
    ("SELECT a FROM s WHERE «a", "WHERE: expected boolean, got bigint"),
    ("SELECT a FROM s WHERE a > 1 AND «b", "AND: expected boolean, got bigint"),
    ("SELECT a FROM p WHERE ts > «'soon'", "expected a timestamp (integer microseconds or ISO 8601"),
    ("SELECT a FROM p WHERE ts > ts - «'5 parsecs'", "or a word such as seconds), got 'parsecs'"),
    ("SELECT a FROM s WHERE t > «5", ">: expected text, got bigint"),
    ("SELECT CASE WHEN a = 1 THEN 2 ELSE «'x' END FROM s", "the branches of CASE must have one type"),
    ("SELECT CASE WHEN «a THEN 2 END FROM s", "CASE WHEN: expected boolean, got bigint"),
    ("SELECT «sqrt(a, b) FROM s", "sqrt: expected 1 argument, got 2"),
    ("SELECT «price::timestamp FROM s", "double cannot be cast to timestamp"),
    ("SELECT «INTERVAL '1 s' FROM s", "a query cannot return an interval: CAST it AS text, or use extract"),
    ("SELECT ts - «INTERVAL '1 month' FROM s", "a month has no fixed length"),
    ("SELECT «TIMESTAMP '2026-13-01' FROM s", "is not a valid time"),
    ("SELECT «9223372036854775808 FROM s", "expected a number within 64 bits"),
    ("SELECT «regexp_like(t, '(') FROM s", "the pattern is not valid: '(': missing )"),
    ("SELECT «regexp_like(t, '(?=a)b') FROM s", "lookahead and lookbehind are not available (patterns have the"),
    ("SELECT «date_trunc('hourr', ts) FROM s", "got 'hourr'"),
    ("SELECT a FROM s UNION ALL «SELECT t FROM s", "column 1 of UNION ALL: expected bigint, got text (t)"),
    ("SELECT a FROM s UNION ALL «SELECT a, b FROM s", "expected 1 column, got 2"),
    ("CREATE STREAM z (a «INTERVAL)", "a column cannot be an interval"),
    # options
    ("CREATE STREAM z (a BIGINT) WITH («timestamp = 'internal')", "no option timestamp; did you mean timestamps?"),
    ("CREATE STREAM z (a BIGINT) WITH (timestamps = «'intrenal')", "did you mean internal?"),
    (
        "CREATE STREAM z (a BIGINT) WITH (timestamps = «'external')",
        "an external stream needs a time column of type TIMESTAMP",
    ),
    ("CREATE STREAM z (at TIMESTAMP) WITH (timestamps = «'external')", "add time = 'at'"),
    ("CREATE STREAM z (at TIMESTAMP) WITH (time = «'att')", "time: the column att does not exist; did you mean at?"),
    ("CREATE STREAM z (a BIGINT) WITH (update_key = «'a, k')", "update_key: the column k does not exist"),
    ("CREATE STREAM z (a BIGINT) WITH (lull = «'-1 s')", "lull: expected a time above 0"),
    ("CREATE STREAM z (a BIGINT) WITH (lull = «5)", "lull: expected a time in quotes"),
    ("CREATE STREAM z (a BIGINT) WITH (history = «'maybe')", "history: expected true or false"),
    ("CREATE STREAM z (a BIGINT) WITH (ets = 'none', «ets = 'none')", "the option ets is set twice"),
    ("CREATE STREAM «z (at BIGINT) WITH (time = 'at')", "must be a TIMESTAMP"),
    ("CREATE STREAM z (a BIGINT) WITH («disorder = '1 s')", "z is internal, the server's clock stamps its tuples"),
    ("CREATE STREAM z (a BIGINT) WITH («max_ahead = '1 d')", "It applies to streams whose timestamps are external"),
    ("CREATE STREAM z (at TIMESTAMP) WITH (timestamps = 'internal', «time = 'at')", "time does not apply here"),
    ("CREATE STREAM z (at TIMESTAMP) WITH (timestamps = 'latent', «time = 'at')", "its tuples have no time"),
    ("CREATE STREAM z (a BIGINT) WITH (timestamps = 'latent', «ets = 'periodic')", "are external or internal"),
    ("CREATE STREAM z (at TIMESTAMP) WITH (time = 'at', propagation = «'arc')", "did you mean arcs?"),
    ("CREATE STREAM z (at TIMESTAMP) WITH (time = 'at', max_skew = «0.5)", "such as '10 seconds' or 'none', got 0.5"),
    # changes of a stream
    ("ALTER STREAM «pp SET (ets = 'none')", "the stream pp does not exist; did you mean p?"),
    ("ALTER STREAM «x SET (ets = 'none')", "x is a query, not a stream"),
    ("ALTER STREAM p SET (etz = 'none')".replace("etz", "«etz"), "ALTER STREAM has no option etz; did you mean ets?"),
    ("ALTER STREAM p SET (ets = «'never')", "ets: expected 'none', 'periodic' or 'on-demand', got 'never'"),
    ("ALTER STREAM p SET (ets = 'none', «ets = 'none')", "the option ets is set twice"),
    (
        "ALTER STREAM p SET («time = 'ts')",
        "time cannot change after p was created; the options that can change are time_unit, disorder,",
    ),
    ("ALTER STREAM p SET («timestamps = 'latent')", "timestamps cannot change after p was created"),
    ("ALTER STREAM s SET (ets = 'none', «grace = '1 s')", "grace does not apply here: s is internal"),
    ("ALTER STREAM p SET ()«", "expected the options to set"),
    ("ALTER STREAM p «STE (ets = 'none')", "expected ADD, RENAME or SET"),
    ("«ALTER TABLE p SET (ets = 'none')", "ALTER TABLE is not supported"),
    ("ALTER QUERY «s RENAME TO z", "s is a stream, not a query"),
    ("ALTER QUERY «xx RENAME TO z", "the query xx does not exist; did you mean x?"),
    ("ALTER QUERY x RENAME TO «p", "there is already a stream called p"),
    ("ALTER QUERY x RENAME TO «x", "there is already a query called x"),
    ('ALTER QUERY x RENAME TO «"a.b"', "expected a name of letters, digits"),
    ("ALTER QUERY x «TO z", "expected RENAME"),
    ("ALTER QUERY x RENAME TO «select", "expected a name"),
    ("CREATE QUERY z WITH (ordre = 'event') AS SELECT a FROM s".replace("ordre", "«ordre"), "did you mean order?"),
    ("CREATE QUERY z WITH (max_state = «0) AS SELECT a FROM s", "expected a whole number above 0"),
    ("CREATE QUERY z WITH («join = 'sync') AS SELECT a FROM s", "add order = 'event'"),
    ("CREATE QUERY z WITH (order = 'arrival', «alpha = 0.2) AS SELECT a FROM s", "add order = 'event'"),
    ("CREATE QUERY z WITH (order = 'event', join = «'hash') AS SELECT a FROM s", "'sync', 'filter' or 'adaptive'"),
    (
        "CREATE QUERY z WITH (order = 'event', alpha = «1) AS SELECT a FROM s",
        "alpha: expected a number of at least 0 and less than 1",
    ),
    ("CREATE QUERY z WITH (on_max_state = «'spill') AS SELECT a FROM s", "on_max_state: expected 'fail' or"),
    (
        "CREATE QUERY z WITH («on_max_state = 'backpressure') AS SELECT a, count(*) AS n FROM s GROUP BY a",
        "this query reads only one stream",
    ),
    ("CREATE SINK «z FROM x", "a sink needs a type"),
    ("CREATE SINK z FROM «s WITH (type = 'stdout')", "s is a stream, not a query: create a query that reads it first"),
    ("CREATE SINK z FROM x WITH («type = 'file')", "add path"),
    ("CREATE SINK z FROM x WITH (type = 'stdout', «path = 'a')", "only a file sink has a path"),
    # what cannot run
    ("SELECT a FROM s «ORDER BY a", "ORDER BY needs all rows"),
    ("SELECT a FROM s «LIMIT 3", "LIMIT needs an end"),
    ("SELECT a FROM s «UNION SELECT a FROM s", "UNION would keep every row of an unbounded stream"),
    ("SELECT a FROM s «EXCEPT SELECT a FROM s", "EXCEPT would keep every row of an unbounded stream"),
    ("«SELECT DISTINCT a FROM s", "SELECT DISTINCT would keep every row"),
    ("«SELECT 1", "add FROM"),
    # aggregates
    ("SELECT a FROM s WHERE «count(*) > 1", "WHERE tests rows before aggregation; move this condition to HAVING"),
    ("SELECT sum(«max(a)) FROM s", "max is an aggregate: aggregates do not nest; aggregate again over (SELECT"),
    ("SELECT sum(a) FILTER (WHERE «sum(b) > 1) FROM s", "FILTER tests rows"),
    ("SELECT a, count(*) FROM s GROUP BY a, «sum(b)", "GROUP BY is evaluated before aggregation"),
    ("SELECT «b, count(*) FROM s GROUP BY a", "b is neither grouped nor aggregated: add it to GROUP BY"),
    ("SELECT a, sum(b) + length(«t) FROM s GROUP BY a", "t is neither grouped nor aggregated"),
    ("SELECT count(b) + «b FROM s", "b is neither grouped nor aggregated"),
    ("SELECT a, count(*) FROM TUMBLE(s, ts, '1 s') GROUP BY a HAVING «price > 1", "price is neither grouped"),
    ("SELECT «*, count(*) FROM s", "but a group has only the columns of GROUP BY: name the columns"),
    ("SELECT a + 1 FROM s GROUP BY «a", "and each row must identify the row that it replaces: select this column too"),
    ("SELECT a FROM s GROUP BY «3", "GROUP BY 3: expected a column's number from 1 to 1"),
    ("SELECT a FROM s GROUP BY «0", "GROUP BY 0: expected a column's number from 1 to 1"),
    ("SELECT * FROM s GROUP BY «1", "a number cannot refer to *"),
    ("SELECT a FROM s GROUP BY a, «'x'", "expected a column or an expression of columns, got a constant"),
    ("SELECT a FROM s GROUP BY «bb", "the column bb does not exist in s"),
    ("SELECT «sum(*) FROM s", "sum needs an expression, not *"),
    ("SELECT «count() FROM s", "count takes * or an expression"),
    ("SELECT «count(DISTINCT *) FROM s", "count takes * or an expression"),
    ("SELECT sum(«t) FROM s", "sum: expected bigint, double or interval, got text"),
    ("SELECT «sum(a, b) FROM s", "sum: expected 1 argument, got 2"),
    ("SELECT «count(DISTINCT a, b) FROM s", "count: expected 1 argument, got 2"),
    ("SELECT approx_quantile(a, «price) FROM s", "approx_quantile: expected a constant here"),
    ("SELECT approx_quantile(a, «9) FROM s", "a share from 0 to 1, got 9"),
    ("SELECT sum(a) FILTER (WHERE «b) FROM s", "FILTER: expected boolean, got bigint"),
    ("SELECT abs(a) FILTER (WHERE «a > 1) FROM s", "abs is not an aggregate, so FILTER does not apply"),
    ("SELECT «abs(DISTINCT a) FROM s", "abs is not an aggregate"),
    ("SELECT «cuont(a) FROM s", "the function cuont does not exist; did you mean count?"),
    ("SELECT «sum(ts - ts) FROM s", "a query cannot return an interval: CAST it AS text, or use extract"),
    # windows
    ("SELECT count(*) FROM s [RANGE '5 minutes'«]", "this window needs a slide: [RANGE '5 minutes' SLIDE '...']"),
    ("SELECT count(*) FROM s [ROWS 5«]", "this window needs a slide: [ROWS 5 SLIDE ...]"),
    ("SELECT count(*) FROM s [RANGE UNBOUNDED SLIDE «'1 s']", "remove SLIDE"),
    ("SELECT count(*) FROM s «[ROWS 0 SLIDE 1]", "expected at least one row"),
    ("SELECT count(*) FROM s «[ROWS 99999999999999999999 SLIDE 1]", "expected at most 1,000,000,000 rows"),
    ("SELECT count(*) FROM s «[ROWS 1000000 SLIDE 1]", "each row would be in 1,000,000 windows"),
    ("SELECT count(*) FROM s «[RANGE '1 day' SLIDE '1 us']", "each row would be in 86,400,000,000 windows"),
    ("SELECT count(*) FROM s [RANGE «'0 s' SLIDE '1 s']", "expected a time above 0"),
    ("SELECT count(*) FROM TUMBLE(s, ts, «INTERVAL '0 s')", "expected a time above 0"),
    ("SELECT count(*) FROM HOP(s, ts, '1 s', «INTERVAL '-1 s')", "expected a time above 0"),
    ("SELECT count(*) FROM SESSION(s, ts, «'0 s')", "expected a time above 0"),
    ("SELECT count(*) FROM TUMBLE(s, ts, «10)", "expected a time such as INTERVAL '10 seconds', got bigint"),
    ("SELECT count(*) FROM «TUMBLE(s, ts)", "expected TUMBLE(s, ts, size [, offset]), got 2 arguments"),
    ("SELECT count(*) FROM «HOP(s, ts, '1 s')", "expected HOP(s, ts, slide, size [, offset]), got 3 arguments"),
    ("SELECT count(*) FROM «SESSION(s, ts, '1 s', '1 s')", "expected SESSION(s, ts, gap [PARTITION BY k])"),
    ("SELECT count(*) FROM TUMBLE(s, ts, '1 s' PARTITION BY «a)", "for TUMBLE use GROUP BY"),
    ("SELECT count(*) FROM TUMBLE(s, «a, '1 s')", "a window uses the rows' own time: expected ts here"),
    ("SELECT count(*) FROM TUMBLE(s, «ts + INTERVAL '1 s', '1 s')", "expected ts here"),
    ("SELECT count(*) FROM TUMBLE((SELECT ts AS at, len FROM p), «len, '1 s')", "expected at here"),
    ("SELECT count(*) FROM TUMBLE((SELECT len::timestamp AS ts FROM p), «ts, '1 s')", "select ts in the inner query"),
    ("SELECT count(*) FROM TUMBLE(«a + 1, ts, '1 s')", "expected a stream, a query, or a query in parentheses"),
    ("SELECT count(*) FROM TUMBLE(«ss, ts, '1 s')", "no stream or query is called ss; did you mean s?"),
    ("SELECT count(*) FROM TUMBLE(s, ts, '1 s') «[RANGE '1 s' SLIDE '1 s']", "this table already has a window"),
    ("SELECT «window_start FROM s", "the column window_start does not exist"),
    ("SELECT «window_start, count(*) FROM s [RANGE UNBOUNDED]", "the column window_start does not exist"),
    ("SELECT count(*) FROM TUMBLE(s, ts, '1 s') WHERE «window_start > '2026-01-01'", "move this condition to HAVING"),
    ("SELECT max(«ts - window_start) > INTERVAL '1 s' FROM TUMBLE(s, ts, '1 s')", "use the window's bounds outside"),
    ("SELECT count(*) FROM TUMBLE(s, ts, '1 s') GROUP BY «date_trunc('day', window_start)", "GROUP BY window_start"),
    (
        "SELECT count(*) FROM SESSION(s, ts, '1 s' PARTITION BY a) GROUP BY «b",
        "PARTITION BY already divides these sessions",
    ),
    ("SELECT count(*) FROM (SELECT a FROM s UNION ALL SELECT a FROM s) «[ROWS 3 SLIDE 1]", "ROWS counts the tuples"),
    ("SELECT count(*) FROM x «[ROWS 3 SLIDE 1]", "ROWS counts the tuples of one stream"),
    ("SELECT a FROM SESSION(s, ts, '1 s' PARTITION BY «window_start)", "the bounds of a session are known when it"),
    ("SELECT a FROM SESSION(s, ts, '1 s' PARTITION BY a, «1)", "got a constant"),
    ("SELECT DISTINCT a FROM SESSION(s, ts, '1 s' PARTITION BY «c)", "the column c does not exist"),
    ("SELECT a FROM (SELECT a FROM s UNION ALL SELECT a FROM s) «[ROWS 3 SLIDE 1]", "ROWS counts the tuples"),
    (
        "SELECT DISTINCT «a + extract(hour FROM window_start) FROM TUMBLE(s, ts, '1 s')",
        "not in an expression with other columns",
    ),
    ("«SELECT DISTINCT a, count(*) FROM TUMBLE(s, ts, '1 s') GROUP BY a", "remove DISTINCT"),
    ("SELECT ts c FROM p; SELECT sum(1) FROM TUMBLE(q,c,'1s'); CREATE OR REPLACE QUERY «q AS SELECT ts + '1s' c FROM p",
     "q is read by query q2"),
    # update streams
    ("SELECT «n FROM run", "this reads an update stream keyed by a, and each row must identify the row that it"),
    (
        "SELECT a FROM s UNION ALL «SELECT a FROM run",
        "the first side of this UNION ALL is an append stream, this one keyed",
    ),
    (
        "SELECT a, n FROM run UNION ALL «SELECT n, a FROM run",
        "is keyed by a (column 1), this one keyed by a (column 2): it is undefined which row",
    ),
    (
        "SELECT «n + 1 AS m FROM (SELECT a, n FROM run WHERE n > 1)",
        "and each row must identify the row that it replaces",
    ),
    ('SELECT a, «b AS "$gone" FROM s', "$gone marks deleted rows"),
    ('SELECT a, «b AS "$deleted" FROM s', "$deleted marks deleted rows"),
    (
        'SELECT «"$gone" FROM (SELECT a, n FROM run WHERE n > 1)',
        "the column $gone does not exist; the columns are a, n, ts",
    ),
    ("CREATE QUERY z WITH («max_delay = '1 s') AS SELECT count(*) FROM TUMBLE(s, ts, '1 s')", "add flush = 'slow'"),
    ("CREATE QUERY z WITH (flush = «'quick') AS SELECT count(*) FROM TUMBLE(s, ts, '1 s')", "flush: expected 'none', "),
    ("CREATE QUERY z WITH (partial = «'omit') AS SELECT count(*) FROM TUMBLE(s, ts, '1 s')", "did you mean emit?"),
    ("SELECT a FROM s WHERE «EXISTS (SELECT a FROM p)", "write JOIN LATEST with a query that groups by a key"),
    ("SELECT a FROM s WHERE «a IN (SELECT len FROM p)", "write JOIN LATEST with a query that groups by a key"),
    ("SELECT «(SELECT a FROM s) FROM s", "write JOIN LATEST with a query that groups by a key"),
    ("SELECT «now() FROM s", "would make the result depend on the clock"),
    ("CREATE QUERY z AS SELECT a FROM «z", "z cannot read itself"),
    ("CREATE QUERY y AS SELECT a FROM x; CREATE OR REPLACE QUERY x AS SELECT a FROM «y", "y reads x"),
    ("CREATE QUERY y AS SELECT a FROM x; CREATE OR REPLACE QUERY «x AS SELECT b FROM s", "x is read by query y"),
    ("DROP STREAM «s", "s is still read by query x, query run: drop them first"),
    ("DROP QUERY «x", "x is still read by sink k: drop that first"),
    ("DROP QUERY «xx", "the query xx does not exist; did you mean x?"),
    ("DROP SINK «nowhere", "the sink nowhere does not exist; there is k"),
    ("«WITH RECURSIVE r AS (SELECT a FROM s) SELECT a FROM r", "a query cannot read itself"),
    ("WITH r AS (SELECT «z FROM s) SELECT a FROM s", "the column z does not exist"),
    # what cannot run yet
    (
        "SELECT a, «ROW_NUMBER() OVER (PARTITION BY a ORDER BY b DESC) FROM s",
        "of all rows would change with every new row",
    ),
    ("SELECT a FROM s WHERE «ROW_NUMBER() OVER (ORDER BY b) = 1", "Millrace numbers rows after WHERE"),
    ("SELECT a, «rank() OVER (ORDER BY b) FROM s", "rank OVER (...) is not available. Write SELECT"),
    ("SELECT a, «sum(b) OVER (ORDER BY b) FROM s", "sum OVER (...) is not available"),
    ("SELECT a FROM s QUALIFY «a > 1", "QUALIFY limits a ROW_NUMBER() OVER (...); test rows in WHERE"),
    ("SELECT a, b FROM s QUALIFY «ROW_NUMBER() OVER (PARTITION BY a) = 1", "ROW_NUMBER() needs an order"),
    (
        "SELECT a, b FROM s QUALIFY «ROW_NUMBER() OVER (PARTITION BY a ORDER BY b) <= 2",
        "select ROW_NUMBER() OVER (...) AS",
    ),
    (
        "SELECT a, b FROM s QUALIFY «ROW_NUMBER() OVER (ORDER BY b) > 2",
        "this condition has no upper bound that is a whole number",
    ),
    ("SELECT * FROM s «NATURAL JOIN s AS t", "NATURAL JOIN is not supported"),
    ("SELECT * FROM s JOIN s AS t «USING (a)", "USING is not supported: write ON"),
    ("SELECT * FROM s JOIN s AS t ON s.a = t.a; SELECT * FROM s «USING fifo", "expected LATEST before it"),
    ("SELECT * FROM s FOLLOWED BY p «USING (a)", "USING is not supported: write ON"),
    ("SELECT * FROM s JOIN «USING (a)", "expected '(' or a name, got USING"),
    ("SELECT * FROM s JOIN s AS t ON s.a = t.a «USING (a)", "or an operator, got USING"),
    ("EXPLAIN «s", "s is a stream; EXPLAIN takes the name of a query, or a SELECT"),
    ('EXPLAIN «"A q"; SELECT a FROM s', "the query A q does not exist; EXPLAIN takes the name of a query, or a SELECT"),
    ("EXPLAIN SELEC «* FROM s", "did you mean SELECT instead of SELEC?"),
    ("EXPLAIN «selec", "the query selec does not exist"),
    ("EXPLAIN «CREATE QUERY z AS SELECT a FROM s", "expected '(', SELECT, WITH or a name, got CREATE"),
    ("SELECT a FROM s; EXPLAIN ANALYZE «zz", "the query zz does not exist"),
    ("EXPLAIN ANALYZE «SELECT a FROM s", "EXPLAIN ANALYZE measures a query that runs: write its name"),
    ("SELECT a, b FROM s QUALIFY «ROW_NUMBER() OVER (ORDER BY b) <= 0", "and numbers start at 1"),
    (
        "SELECT a, b FROM s QUALIFY ROW_NUMBER() OVER (PARTITION BY «a % 2 ORDER BY b) = 1",
        "PARTITION BY takes columns here",
    ),
    ("SELECT «b FROM s QUALIFY ROW_NUMBER() OVER (PARTITION BY a ORDER BY b) = 1", "select a too"),
    (
        "SELECT a, count(*), «ROW_NUMBER() OVER (ORDER BY a) AS r FROM s GROUP BY a",
        "rows are numbered individually: group them in a query in parentheses",
    ),
    (
        "SELECT a, ROW_NUMBER() OVER (ORDER BY a) AS r, «ROW_NUMBER() OVER (ORDER BY b) AS q FROM s",
        "the two numbers have different orders",
    ),
    (
        "SELECT count(*) FROM TUMBLE((SELECT a, «ROW_NUMBER() OVER (ORDER BY b) AS r FROM s), ts, '1 s')",
        "of all rows would change with every new row",
    ),
    ("SELECT «a FROM (SELECT a, row_number() OVER (ORDER BY b) AS n FROM s) WHERE n <= 3", "select n too"),
    (
        "SELECT a FROM HOP(s, ts, INTERVAL '1 s', INTERVAL '2 s') h «LATEST LAZY USING FIFO",
        "its input has no key: expected a stream WITH",
    ),
    ("SELECT t, price FROM s «LATEST USING LINECUTTING", "its input has no key"),
    ("SELECT t FROM s «LATEST EAGER USING INPLACE", "its input has no key"),
    ("SELECT t FROM s «SHED RANDOM 0", "expected a number of tuples from 1"),
]  # fmt: skip


@pytest.mark.parametrize(("marked", "words"), CASES)
def test_the_caret_is_under_the_place(marked: str, words: str) -> None:
    at = marked.index("«")
    sql = marked.replace("«", "")
    error = refused(sql)
    assert words in error.message
    assert (error.line, error.column) == (1, at + 1)
    assert str(error) == f"line 1, column {at + 1}: {error.message}\n{error.pointer}"
    shown, caret = error.pointer.split("\n")
    assert caret.strip() == "^"
    assert shown[caret.index("^") :] == sql[at:][: len(shown) - caret.index("^")].rstrip()


def test_line_and_column_in_a_long_text() -> None:
    error = refused("SELECT a\nFROM s\n\tWHERE nope > 1;\nSELECT b FROM s")
    assert (error.line, error.column) == (3, 8)
    assert error.pointer == "  \tWHERE nope > 1;\n  \t      ^"
    assert error.code == "sql"


def test_a_long_line_is_cut_around_the_place() -> None:
    error = refused("SELECT " + ", ".join(f"a AS a{n}" for n in range(200)) + ", nope FROM s")
    shown, caret = error.pointer.split("\n")
    assert len(shown) < 130
    assert shown[caret.index("^") :].startswith("nope")


@pytest.mark.parametrize("letters", ["(" * 5000, "SELECT " + "(" * 5000, "SELECT " + "NOT " * 5000 + "a FROM s"])
def test_nesting_without_end_is_refused(letters: str) -> None:
    assert refused(letters).line == 1
    assert "levels of nesting" in refused("SELECT " + "-" + "(" * 500 + "a" + ")" * 500 + " FROM s").message


def test_long_conditions_are_no_deep_ones() -> None:
    condition = " OR ".join(f"a = {n}" for n in range(3000))
    members = ", ".join(f"b + {n}" for n in range(3000))
    plan_all(parse(f"EXPLAIN SELECT a FROM s WHERE ({condition}) AND a IN ({members})"), CATALOG)


def test_depth_counts_operators_in_a_row_too() -> None:
    deep = "a" + " + 1" * 100
    plan_all(parse(f"EXPLAIN SELECT {deep} AS x FROM s"), CATALOG)
    assert "levels of nesting" in refused(f"SELECT ({deep}){' + 1' * 100} AS x FROM s").message


def test_queries_that_double_are_refused_in_time() -> None:
    doubling = ", ".join(f"d{n + 1} AS (SELECT * FROM d{n} UNION ALL SELECT a FROM d{n})" for n in range(40))
    assert "more than 1,000 operators" in refused(f"WITH d0 AS (SELECT a FROM s), {doubling} SELECT a FROM d40").message


TABLES = "JOIN LEFT LATEST FOLLOWED BY NO WITHIN '1 s' ON TRUE s.a = p.len x p FROM [RANGE '1 s'] SELECT"


@given(
    st.text(max_size=60)
    | st.lists(
        st.sampled_from([*STREAMS.split(), *TABLES.split(), "(", ")", ",", "'", "=", "1", "SELECT", "NOT"]), max_size=20
    ).map(" ".join)
)
@settings(max_examples=examples(300))
def test_any_text_is_planned_or_refused(text: str) -> None:
    try:
        plan_all(parse(text), CATALOG)
    except SqlError as error:
        refusal = error
    else:
        return
    assert 1 <= refusal.line <= text.count("\n") + 1
    assert refusal.message


@pytest.mark.parametrize("length", [5, 128, 1_000, 65_536])
def test_the_search_for_a_similar_name_is_bounded(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def compare(wrong: str, names: list[str], n: int) -> list[str]:
        compared.append(sum(len(wrong) * len(name) for name in names))
        return names[:n]

    monkeypatch.setattr("difflib.get_close_matches", compare)
    known = [f"{number:0128d}" for number in range(1_000)]
    similar_name("x" * length, known)
    assert compared[0] <= COMPARED
    assert similar_name("ABC", [*known, "abc"]) == "abc"  # the case alone, however many names there are
