"""Plans by the names of their operators, and the properties of each operator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.engine import plan as plans
from millrace.engine.plan import QueryPlan
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.project.spec import MapSpec
from millrace.operators.sort.spec import SortSpec
from millrace.operators.union.spec import UnionSpec
from millrace.protocol import Field, Type
from millrace.sql import (
    AlterStatement,
    Catalog,
    CreateQuery,
    CreateSink,
    CreateStream,
    DropStatement,
    Explain,
    parse,
    plan,
    plan_all,
)
from millrace.values.expression import TIME, Column

STREAMS = """
CREATE STREAM s (a BIGINT, b BIGINT, t TEXT NOT NULL);
CREATE STREAM p (ts TIMESTAMP, a BIGINT, x DOUBLE) WITH (time = 'ts');
CREATE STREAM l (a BIGINT) WITH (timestamps = 'latent');
"""
_, CATALOG = plan_all(parse(STREAMS), Catalog())


def planned(sql: str, catalog: Catalog = CATALOG) -> QueryPlan:
    result = plan(parse(sql)[0], catalog)
    if isinstance(result, CreateQuery):
        return result.plan
    assert isinstance(result, QueryPlan)
    return result


def shape(query: QueryPlan) -> str:
    """`name(inputs)` of every operator, in plan order."""
    return " ".join(f"{node.name}({','.join(node.inputs)})" for node in query.nodes)


SHAPES = {
    "SELECT a, b + 1 FROM s WHERE a > 5": "q.filter1(s.source) q.project1(q.filter1)",
    "SELECT * FROM s": "q.project1(s.source)",
    "SELECT a, b, t FROM s": "q.project1(s.source)",
    "SELECT * FROM s WHERE a > 5": "q.filter1(s.source)",
    "SELECT a, b, t FROM s WHERE a > 5": "q.filter1(s.source)",
    "SELECT b, a, t FROM s WHERE a > 5": "q.filter1(s.source) q.project1(q.filter1)",
    "SELECT a, b AS c, t FROM s WHERE a > 5": "q.filter1(s.source) q.project1(q.filter1)",
    "SELECT * FROM s UNION ALL SELECT * FROM s": "q.union1(s.source,s.source)",
    "SELECT a FROM s UNION ALL SELECT a FROM p UNION ALL SELECT a FROM l": (
        "q.project1(s.source) q.project2(p.source) q.union1(q.project1,q.project2,l.source)"
    ),
    "(SELECT * FROM s UNION ALL SELECT * FROM s) UNION ALL (SELECT * FROM s)": ("q.union1(s.source,s.source,s.source)"),
    "SELECT a FROM (SELECT * FROM s WHERE a > 1) WHERE a < 9": (
        "q.filter1(s.source) q.filter2(q.filter1) q.project1(q.filter2)"
    ),
    "SELECT * FROM (SELECT * FROM (SELECT a FROM s) u) v": "q.project1(s.source)",
    "WITH big AS (SELECT * FROM s WHERE a > 9) SELECT a FROM big UNION ALL SELECT b FROM big": (
        "q.filter1(s.source) q.project1(q.filter1) q.filter2(s.source) q.project2(q.filter2) "
        "q.union1(q.project1,q.project2)"
    ),
    "WITH unused AS (SELECT a FROM s WHERE a > 9) SELECT b FROM s": "q.project1(s.source)",
    "WITH s AS (SELECT a FROM p) SELECT a + 1 AS a FROM s": "q.project1(p.source) q.project2(q.project1)",
    # A branch with computed columns widens them itself; another branch needs a map.
    "SELECT a FROM s UNION ALL SELECT x FROM p": (
        "q.project1(s.source) q.project2(p.source) q.union1(q.project1,q.project2)"
    ),
    "SELECT * FROM l UNION ALL SELECT x FROM p": (
        "q.project1(p.source) q.project2(l.source) q.union1(q.project2,q.project1)"
    ),
    # Late tuples.
    "SELECT a FROM p.late WHERE late_by_us > 5": "q.filter1(p.late.source) q.project1(q.filter1)",
    "SELECT l.a FROM p.late AS l": "q.project1(p.late.source)",
    "SELECT late.* FROM p.late": "q.project1(p.late.source)",
    "SELECT a, ts FROM p UNION ALL SELECT a, ts FROM p.late": (
        "q.project1(p.source) q.project2(p.late.source) q.union1(q.project1,q.project2)"
    ),
    # Order.
    "CREATE QUERY q WITH (order = 'event') AS SELECT a FROM s": "q.project1(s.source)",
    "CREATE QUERY q WITH (order = 'event') AS SELECT a FROM l": "q.project1(l.source)",
    "CREATE QUERY q WITH (order = 'event') AS SELECT a FROM p": "q.project1(p.source) q.sort1(q.project1)",
    "CREATE QUERY q WITH (order = 'event') AS SELECT * FROM p": "q.project1(p.source) q.sort1(q.project1)",
    "CREATE QUERY q WITH (order = 'event') AS SELECT * FROM p UNION ALL SELECT * FROM p": (
        "q.union1(p.source,p.source)"
    ),
    "CREATE QUERY q WITH (order = 'event') AS SELECT * FROM p.late": "q.project1(p.late.source)",
    "CREATE QUERY q WITH (order = 'event') AS SELECT a + 1 FROM (SELECT a FROM p UNION ALL SELECT a FROM p)": (
        "q.project1(p.source) q.project2(p.source) q.union1(q.project1,q.project2) q.project3(q.union1)"
    ),
}


@pytest.mark.parametrize(("sql", "expected"), SHAPES.items())
def test_operators_are_named_in_plan_order(sql: str, expected: str) -> None:
    query = planned(sql)
    assert shape(query) == expected
    assert query.output == query.nodes[-1].name
    assert query.sink == "q.sink1"


def test_a_union_is_ordered_if_the_query_is() -> None:
    for order, ordered in (("arrival", False), ("event", True)):
        query = planned(f"CREATE QUERY q WITH (order = '{order}') AS SELECT * FROM s UNION ALL SELECT * FROM s")
        assert query.nodes[-1].spec == UnionSpec(ordered)
        assert query.options.order == order


def test_a_union_takes_names_from_the_first_branch_and_the_wider_type() -> None:
    query = planned("SELECT a AS n, t FROM s UNION ALL SELECT x, 'x' FROM p")
    assert query.schema.fields == (Field("n", Type.DOUBLE), Field("t", Type.TEXT, False))
    assert query.reads_streams == ("s", "p")


def test_where_and_projection() -> None:
    query = planned("SELECT b, ts, t FROM s WHERE a > 5")
    select, projection = (node.spec for node in query.nodes)
    assert isinstance(select, SelectSpec)
    assert isinstance(projection, MapSpec)
    assert projection.columns == (
        ("b", Column(Type.BIGINT, True, 1, "b")),
        ("ts", Column(Type.TIMESTAMP, False, TIME, "ts")),
        ("t", Column(Type.TEXT, False, 2, "t")),
    )


@pytest.mark.parametrize(
    ("sql", "column"),
    [
        ("SELECT ts FROM s", Column(Type.TIMESTAMP, False, TIME, "ts")),
        ("SELECT ts FROM l", Column(Type.TIMESTAMP, True, TIME, "ts")),
        ("SELECT ts FROM p", Column(Type.TIMESTAMP, False, 0, "ts")),
        ("SELECT ts FROM (SELECT a FROM p) d", Column(Type.TIMESTAMP, False, TIME, "ts")),
        ("SELECT ts FROM p.late", Column(Type.TIMESTAMP, False, 0, "ts")),
        ("SELECT ts FROM s.late", Column(Type.TIMESTAMP, False, TIME, "ts")),
        ("SELECT ts FROM l.late", Column(Type.TIMESTAMP, False, TIME, "ts")),
        ("SELECT d.ts FROM (SELECT a, ts FROM p) d", Column(Type.TIMESTAMP, False, 1, "ts")),
        ("SELECT ts FROM (SELECT a FROM l) d", Column(Type.TIMESTAMP, True, TIME, "ts")),
    ],
)
def test_ts_is_a_column_of_that_name_or_the_rows_own_time(sql: str, column: Column) -> None:
    spec = planned(sql).nodes[-1].spec
    assert isinstance(spec, MapSpec)
    assert spec.columns[-1][1] == column


def test_columns_without_as_are_named_after_their_expression() -> None:
    query = planned("SELECT a, s.b, length(t), a + 1, t::text, CASE WHEN a > 1 THEN 1 END, abs(a), abs(b) FROM s")
    assert query.schema.names == ("a", "b", "length", "column4", "t", "case", "abs", "column8")


def test_names_fold_unless_quoted() -> None:
    _, catalog = plan_all(parse('CREATE STREAM "Odd-Name" ("Select" BIGINT, UPPER BIGINT)'), Catalog())
    query = planned('SELECT "Select", Upper FROM "Odd-Name"', catalog)
    assert query.schema.names == ("Select", "upper")
    assert query.nodes[0].inputs == ("Odd-Name.source",)


def test_a_query_reads_another_by_its_last_operator() -> None:
    _, catalog = plan_all(parse("CREATE QUERY x WITH (order = 'event') AS SELECT a FROM p"), CATALOG)
    query = planned("CREATE QUERY y WITH (order = 'event') AS SELECT a * 2 AS d FROM x WHERE a > 1", catalog)
    assert shape(query) == "y.filter1(x.sort1) y.project1(y.filter1)"
    assert query.reads_queries == ("x",)
    assert query.reads_streams == ()
    unsorted = plan_all(parse("CREATE QUERY x AS SELECT a FROM p"), CATALOG)[1]
    assert shape(planned("CREATE QUERY y WITH (order = 'event') AS SELECT a FROM x", unsorted)) == (
        "y.project1(x.project1) y.sort1(y.project1)"
    )


def test_a_sort_is_the_last_operator() -> None:
    query = planned("CREATE QUERY q WITH (order = 'event') AS SELECT a + 1 FROM p WHERE a > 1")
    assert [type(node.spec) for node in query.nodes] == [SelectSpec, MapSpec, SortSpec]


def test_bare_selects_are_numbered() -> None:
    statements, catalog = plan_all(
        parse("SELECT a FROM s; SELECT b FROM s; EXPLAIN SELECT b FROM q2; SELECT a FROM q"), CATALOG
    )
    assert [statement.name for statement in statements if isinstance(statement, QueryPlan)] == ["q", "q2", "q3"]
    assert statements[-1].reads_queries == ("q",)  # type: ignore[union-attr]
    assert set(catalog.queries) == {"q", "q2", "q3"}


def test_create_stream_takes_all_options() -> None:
    created = plan(
        parse(
            "CREATE STREAM n (at TIMESTAMP, k TEXT, v DOUBLE PRECISION) WITH (timestamps = 'external', time = 'at',"
            " disorder = '1 s', max_skew = '2 min', ets = 'periodic', ets_interval = '50 ms', ets_retry = '20 ms',"
            " progress = 'punctuation', grace = '1 h', update_key = 'k', queue = 'linecutting', history = true,"
            " extra = 'ignore', lull = '1.5 seconds', max_ahead = '2 h', propagation = 'punctuation')"
        )[0],
        CATALOG,
    )
    assert isinstance(created, CreateStream)
    stream = created.stream
    assert (stream.timestamps, stream.time, stream.disorder_us, stream.max_skew_us) == (
        "external", "at", 1_000_000, 120_000_000,
    )  # fmt: skip
    assert (stream.ets, stream.ets_interval_us, stream.ets_retry_us) == ("periodic", 50_000, 20_000)
    assert (stream.progress, stream.grace_us, stream.update_key, stream.queue) == (
        "punctuation", 3_600_000_000, ("k",), "linecutting",
    )  # fmt: skip
    assert (stream.history, stream.extra, stream.lull_us) == (True, "ignore", 1_500_000)
    assert (stream.ahead_us, stream.propagation) == (7_200_000_000, "punctuation")
    assert [str(field) for field in stream.schema] == ["at timestamp not null", "k text", "v double"]


def test_late_tuples_have_the_fields_of_their_stream_and_their_lateness() -> None:
    query = planned("SELECT * FROM p.late")
    assert query.reads_streams == ("p.late",)
    assert [str(field) for field in query.schema] == [
        "ts timestamp not null", "a bigint", "x double",
        "late_by_us bigint not null", "mark timestamp not null", "feed text not null", "at timestamp not null",
    ]  # fmt: skip
    over = planned("SELECT at - mark > INTERVAL '1 s' AS very FROM p.late")
    assert [str(field) for field in over.schema] == ["very boolean not null"]


def test_a_query_over_late_tuples_is_explained_and_read_like_any() -> None:
    statements, catalog = plan_all(
        parse(
            "CREATE QUERY y AS SELECT a, feed FROM l.late; CREATE QUERY z WITH (order = 'event') AS SELECT feed FROM y"
        ),
        CATALOG,
    )
    assert isinstance(statements[1], CreateQuery)
    assert shape(statements[1].plan) == "z.project1(y.project1)"
    explained = plan(parse("EXPLAIN SELECT a FROM l.late")[0], catalog)
    assert isinstance(explained, Explain)
    assert explained.text.splitlines()[:2] == [
        "query q: order arrival, equality rows",
        "  l.late.source  late tuples of stream l, internal time at",
    ]


# -- changes of streams ------------------------------------------------------------------------------------------------

POLICIES = {
    "disorder": ("'2 s'", "disorder_us", 2_000_000),
    "max_skew": ("'1 s'", "max_skew_us", 1_000_000),
    "max_ahead": ("'1 day'", "ahead_us", 86_400_000_000),
    "grace": ("'1 min'", "grace_us", 60_000_000),
    "ets": ("periodic", "ets", "periodic"),
    "ets_interval": ("'10 ms'", "ets_interval_us", 10_000),
    "ets_retry": ("'20 ms'", "ets_retry_us", 20_000),
    "propagation": ("'punctuation'", "propagation", "punctuation"),
    "lull": ("'2 s'", "lull_us", 2_000_000),
    "history": ("'on'", "history", True),
    "time_unit": ("'ns'", "time_unit", "ns"),
}
CREATED = {
    "nothing said": "CREATE STREAM n (at TIMESTAMP, v BIGINT) WITH (time = 'at')",
    "all said": "CREATE STREAM n (at TIMESTAMP, v BIGINT /* ) */) -- words\n WITH (disorder = '9 s', max_skew = '9 s',"
    " max_ahead = '9 s', grace = '9 s', time = at, ets = 'none', ets_interval = '9 s', ets_retry = '9 s',"
    " propagation = 'arcs', time_unit = 's' -- more\n)",
    "no options": "CREATE STREAM n (v BIGINT)",
    "empty options": "CREATE STREAM n (v BIGINT) WITH ( )",
}


@given(st.sampled_from(sorted(CREATED)), st.lists(st.sampled_from(sorted(POLICIES)), min_size=1, unique=True))
def test_an_altered_stream_is_the_one_that_its_rewritten_statement_creates(created: str, chosen: list[str]) -> None:
    external = "at" in CREATED[created]
    chosen = [name for name in chosen if external or name in ("ets", "ets_interval", "propagation", "lull")] or ["ets"]
    options = ", ".join(f"{name} = {POLICIES[name][0]}" for name in chosen)
    (_, altered), catalog = plan_all(parse(f"{CREATED[created]}; ALTER STREAM n SET ({options})"), CATALOG)
    assert isinstance(altered, AlterStatement)
    assert altered.changes == tuple(POLICIES[name][1:] for name in chosen)
    stream = catalog.streams["n"]
    assert [getattr(stream, POLICIES[name][1]) for name in chosen] == [POLICIES[name][2] for name in chosen]
    (again,), _ = plan_all(parse(stream.sql), Catalog())
    assert isinstance(again, CreateStream)
    assert again.stream == stream


def test_a_bound_can_be_taken_away() -> None:
    _, catalog = plan_all(
        parse(
            "CREATE STREAM n (at TIMESTAMP) WITH (time = 'at', max_skew = '1 s', max_ahead = '1 day');"
            "ALTER STREAM n SET (max_skew = 'none', max_ahead = 'None')"
        ),
        Catalog(),
    )
    assert (catalog.streams["n"].max_skew_us, catalog.streams["n"].ahead_us) == (None, None)


def test_all_policies_of_the_engine_can_be_altered() -> None:
    assert {attribute for _, attribute, _ in POLICIES.values()} == plans.POLICIES


def test_set_is_free_as_a_name() -> None:
    script = (
        "CREATE STREAM set (set BIGINT, alter BIGINT); SELECT s.set set FROM set s; ALTER STREAM set SET (ets = none)"
    )
    statements, _ = plan_all(parse(script), Catalog())
    assert isinstance(statements[1], QueryPlan)
    assert statements[1].schema.names == ("set",)


def test_create_query_takes_its_options() -> None:
    query = planned(
        "CREATE QUERY q WITH (order = event, fuse = 'off', emit = 'every', max_state = 500) AS SELECT a FROM s"
    )
    options = query.options
    assert (options.order, options.fuse, options.emit, options.max_state) == ("event", False, "every", 500)


def test_sinks_and_drops() -> None:
    script = (
        "CREATE QUERY x AS SELECT a FROM s;"
        "CREATE SINK f FROM x WITH (type = 'file', path = 'a/b.parquet', slow_limit = 9);"
        "CREATE SINK o FROM x WITH (type = 'stdout', on_slow = 'disconnect'); DROP SINK f; DROP SINK o; DROP QUERY x;"
        "DROP STREAM s"
    )
    statements, catalog = plan_all(parse(script), CATALOG)
    _, file, out, *drops = statements
    assert isinstance(file, CreateSink)
    assert isinstance(out, CreateSink)
    assert (file.sink.type, file.sink.path, file.sink.format, file.sink.slow_limit) == (
        "file",
        "a/b.parquet",
        "parquet",
        9,
    )
    assert (out.sink.type, out.sink.on_slow, out.sink.format) == ("stdout", "disconnect", "jsonl")
    assert drops[-1] == DropStatement("stream", "s")
    assert (set(catalog.streams), dict(catalog.queries), dict(catalog.sinks)) == ({"p", "l"}, {}, {})


def test_each_statement_keeps_its_own_words() -> None:
    statements, _ = plan_all(
        parse("-- first\nCREATE QUERY x AS SELECT a FROM s ; SELECT b /* here */ FROM s;"), CATALOG
    )
    assert isinstance(statements[0], CreateQuery)
    assert statements[0].plan.sql == "CREATE QUERY x AS SELECT a FROM s"
    assert statements[1].sql == "SELECT b /* here */ FROM s"  # type: ignore[union-attr]


def test_replace() -> None:
    _, catalog = plan_all(parse("CREATE QUERY x AS SELECT a FROM s; CREATE QUERY y AS SELECT a FROM x"), CATALOG)
    replaced = plan(parse("CREATE OR REPLACE QUERY x AS SELECT a + 1 AS a FROM s")[0], catalog)
    assert isinstance(replaced, CreateQuery)
    assert replaced.replaces
    fresh = plan(parse("CREATE OR REPLACE QUERY z AS SELECT a FROM s")[0], catalog)
    assert isinstance(fresh, CreateQuery)
    assert not fresh.replaces


@pytest.mark.parametrize(("table", "word"), [("s", "rows"), ("l", "load")])
def test_explain_prints_the_class_of_equality(table: str, word: str) -> None:
    _, catalog = plan_all(parse(f"CREATE QUERY below AS SELECT a FROM {table}"), CATALOG)
    for source in (table, "below"):
        explained = plan(parse(f"EXPLAIN SELECT a + 1 FROM {source}")[0], catalog)
        assert isinstance(explained, Explain)
        assert explained.text.splitlines()[0] == f"query q: order arrival, equality {word}"


def test_printed_expressions_read_back_as_themselves() -> None:
    from millrace.values.written import show

    for text in (
        "a + 1 > 3 AND NOT b IS NULL OR t LIKE 'a%' ESCAPE '!'",
        "-(-a) - (b - (a - 1)) * 2 % 3",
        "CASE WHEN a = 1 THEN 'x''y' ELSE NULL END || t",
        "a IN (1, 2, NULL) AND (ts - INTERVAL '1 day 00:00:01.5' > TIMESTAMP '2026-01-01')",
        "extract(hour FROM ts) = 3 AND CAST(a AS double) / 2.5 < 1e300 AND (a IS NOT DISTINCT FROM b) IS TRUE",
        "substring(t, 1, 2) = left(t, 2) AND NOT (a BETWEEN 1 AND 2)",
    ):
        sql = f"SELECT {text} AS x FROM s"
        first = planned(sql).nodes[-1].spec
        assert isinstance(first, MapSpec)
        again = planned(f"SELECT {show(first.columns[0][1])} AS x FROM s").nodes[-1].spec
        assert again == first
