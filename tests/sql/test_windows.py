"""Plans of windows and aggregates: the operators and their settings."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from millrace.engine.plan import QueryPlan
from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.operators.frame.windows import RowWindow, SessionWindow, TimeWindow
from millrace.operators.sort.spec import SortSpec
from millrace.operators.window.spec import WindowSpec
from millrace.protocol import Type
from millrace.sql import Catalog, CreateQuery, Explain, parse, plan, plan_all
from millrace.values.expression import Column, Constant
from millrace.values.written import show
from tests.running import run_events

STREAMS = """
CREATE STREAM s (ts TIMESTAMP, a BIGINT, b BIGINT, t TEXT NOT NULL) WITH (time = 'ts');
CREATE STREAM i (a BIGINT);
CREATE STREAM l (a BIGINT) WITH (timestamps = 'latent');
CREATE QUERY renamed AS SELECT ts AS at, a FROM s WHERE a > 0;
CREATE QUERY run AS SELECT a AS key, count(*) AS n FROM s GROUP BY a;
CREATE QUERY win AS SELECT a, sum(b) AS sum FROM TUMBLE(s, ts, '1 s') GROUP BY a;
"""
_, CATALOG = plan_all(parse(STREAMS), Catalog())
SECOND = 1_000_000


def planned(sql: str) -> QueryPlan:
    result = plan(parse(sql)[0], CATALOG)
    if isinstance(result, CreateQuery):
        return result.plan
    assert isinstance(result, QueryPlan)
    return result


def aggregate(sql: str) -> AggregateSpec:
    """The only aggregate operator of a query."""
    (spec,) = [node.spec for node in planned(sql).nodes if isinstance(node.spec, AggregateSpec)]
    return spec


def shape(query: QueryPlan) -> str:
    return " ".join(f"{node.name}({','.join(node.inputs)})" for node in query.nodes)


SHAPES = {
    "SELECT a, count(*) AS n, window_start FROM TUMBLE(s, ts, '1 s') GROUP BY a": "q.aggregate1(s.source)",
    "SELECT count(*), a FROM TUMBLE(s, ts, '1 s') GROUP BY a": "q.aggregate1(s.source) q.project1(q.aggregate1)",
    "SELECT sum(b) / count(*) FROM TUMBLE(s, ts, '1 s')": "q.aggregate1(s.source) q.project1(q.aggregate1)",
    "SELECT a, count(*) FROM TUMBLE(s, ts, '1 s') WHERE b > 1 GROUP BY a HAVING sum(b) > 2": (
        "q.filter1(s.source) q.aggregate1(q.filter1) q.filter2(q.aggregate1) q.project1(q.filter2)"
    ),
    "SELECT * FROM TUMBLE(s, ts, '1 s')": "q.window1(s.source)",
    "SELECT a FROM TUMBLE(s, ts, '1 s') WHERE window_start > '2026-01-01'": (
        "q.window1(s.source) q.filter1(q.window1) q.project1(q.filter1)"
    ),
    "SELECT DISTINCT a FROM TUMBLE(s, ts, '1 s')": "q.aggregate1(s.source)",
    "SELECT * FROM SESSION(s, ts, '1 s' PARTITION BY a)": "q.aggregate1(s.source)",
    "SELECT a FROM SESSION(s, ts, '1 s') WHERE b > 1 AND window_start > '2026-01-01'": (
        "q.filter1(s.source) q.aggregate1(q.filter1) q.filter2(q.aggregate1) q.project1(q.filter2)"
    ),
    "SELECT DISTINCT t FROM SESSION(s, ts, '1 s' PARTITION BY a)": (
        "q.aggregate1(s.source) q.aggregate2(q.aggregate1) q.project1(q.aggregate2)"
    ),
    "SELECT count(*) FROM TUMBLE((SELECT a, window_end FROM SESSION(s, ts, '1 s')), ts, '1 min')": (
        "q.aggregate1(s.source) q.project1(q.aggregate1) q.aggregate2(q.project1)"
    ),
    "SELECT * FROM s [ROWS 5 SLIDE 1]": "q.window1(s.source)",
    "SELECT c FROM (SELECT a + b AS c FROM s WHERE a > 1) [ROWS 5 SLIDE 1] WHERE c > 3": (
        "q.window1(s.source) q.filter1(q.window1) q.project1(q.filter1)"
    ),
    "SELECT at FROM TUMBLE((SELECT * FROM (SELECT a, ts AS at FROM s) [ROWS 5 SLIDE 1]), at, '1 s')": (
        "q.window1(s.source) q.project1(q.window1) q.window2(q.project1) q.project2(q.window2)"
    ),
    "SELECT count(*) FROM s": "q.aggregate1(s.source)",
    "SELECT a FROM s GROUP BY a": "q.aggregate1(s.source)",
    "SELECT count(*) FROM TUMBLE(s, ts, '1 s') UNION ALL SELECT sum(a) FROM HOP(s, ts, '1 s', '2 s')": (
        "q.aggregate1(s.source) q.aggregate2(s.source) q.union1(q.aggregate1,q.aggregate2)"
    ),
    "SELECT max(n) FROM TUMBLE((SELECT count(*) AS n FROM TUMBLE(s, ts, '1 s')), ts, '9 s')": (
        "q.aggregate1(s.source) q.aggregate2(q.aggregate1)"
    ),
    "WITH w AS (SELECT count(*) AS n FROM TUMBLE(s, ts, '1 s')) SELECT max(n) FROM w [RANGE '9 s' SLIDE '1 s'] x": (
        "q.aggregate1(s.source) q.aggregate2(q.aggregate1)"
    ),
    "SELECT max(sum) FROM TUMBLE(win, ts, '9 s')": "q.aggregate1(win.aggregate1)",
    "SELECT sum(a) FROM TUMBLE(renamed, at, '9 s')": "q.aggregate1(renamed.project1)",
    "SELECT late_by_us, count(*) FROM TUMBLE(s.late, at, '9 s') GROUP BY 1": "q.aggregate1(s.late.source)",
    "SELECT sum(c) FROM (SELECT a AS c FROM s WHERE a > 1) [ROWS 5 SLIDE 1] WHERE c > 3": "q.aggregate1(s.source)",
    "SELECT count(*) FROM s [ROWS 5 SLIDE 1] UNION ALL SELECT a FROM s WHERE a > 1": (
        "q.aggregate1(s.source) q.filter1(s.source) q.project1(q.filter1) q.union1(q.aggregate1,q.project1)"
    ),
    # Latent tuples have no time yet.
    "SELECT count(*) FROM TUMBLE(l, ts, '1 s')": "q.union1(l.source) q.aggregate1(q.union1)",
    "SELECT count(*) FROM l": "q.union1(l.source) q.aggregate1(q.union1)",
    # In event order windows read sorted rows, and they close in order of their ends.
    "CREATE QUERY q WITH (order = 'event') AS SELECT count(*) FROM TUMBLE(s, ts, '1 s')": (
        "q.sort1(s.source) q.aggregate1(q.sort1)"
    ),
    "CREATE QUERY q WITH (order = 'event') AS SELECT count(*) FROM TUMBLE((SELECT * FROM s WHERE a > 1), ts, '1 s')": (
        "q.filter1(s.source) q.sort1(q.filter1) q.aggregate1(q.sort1)"
    ),
    "CREATE QUERY q WITH (order = 'event') AS SELECT * FROM SESSION(s, ts, '1 s')": (
        "q.sort1(s.source) q.aggregate1(q.sort1)"
    ),
    "CREATE QUERY q WITH (order = 'event') AS SELECT DISTINCT a FROM SESSION(s, ts, '1 s')": (
        "q.sort1(s.source) q.aggregate1(q.sort1) q.aggregate2(q.aggregate1) q.project1(q.aggregate2)"
    ),
    "CREATE QUERY q WITH (order = 'event') AS SELECT max(sum) FROM TUMBLE(win, ts, '9 s')": (
        "q.aggregate1(win.aggregate1)"
    ),
    "CREATE QUERY q WITH (order = 'event') AS SELECT count(*) FROM TUMBLE(i, ts, '1 s')": "q.aggregate1(i.source)",
    "CREATE QUERY q WITH (order = 'event') AS SELECT count(*) FROM s [ROWS 5 SLIDE 1]": (
        "q.aggregate1(s.source) q.sort1(q.aggregate1)"
    ),
    "CREATE QUERY q WITH (order = 'event') AS SELECT a FROM win": "q.project1(win.aggregate1)",
    "CREATE QUERY q WITH (order = 'event') AS SELECT a FROM TUMBLE(s, ts, '1 s')": (
        "q.window1(s.source) q.project1(q.window1) q.sort1(q.project1)"
    ),
}


@pytest.mark.parametrize(("sql", "expected"), SHAPES.items())
def test_operators_are_named_in_plan_order(sql: str, expected: str) -> None:
    assert shape(planned(sql)) == expected


WINDOWS = {
    "TUMBLE(s, ts, INTERVAL '10 seconds')": TimeWindow(10 * SECOND, 10 * SECOND),
    "TUMBLE(s, ts, INTERVAL '10' SECOND, '3 s')": TimeWindow(10 * SECOND, 10 * SECOND, 3 * SECOND),
    "TUMBLE(s, ts, '10 s', INTERVAL '-3 s')": TimeWindow(10 * SECOND, 10 * SECOND, 7 * SECOND),
    "HOP(s, ts, '2 s', '10 s')": TimeWindow(10 * SECOND, 2 * SECOND),
    "HOP(s, ts, '10 s', '2 s', '21 s')": TimeWindow(2 * SECOND, 10 * SECOND, 1 * SECOND),
    "HOP(i, ts, '2 s', '3 s')": TimeWindow(3 * SECOND, 2 * SECOND),
    "SESSION(s, ts, '5 s')": SessionWindow(5 * SECOND),
    "s [RANGE '5 s' SLIDE '1 s']": TimeWindow(5 * SECOND, 1 * SECOND),
    "s [RANGE '5 s' SLIDE '1 s'] AS w": TimeWindow(5 * SECOND, 1 * SECOND),
    "s w [RANGE '5 s' SLIDE '1 s']": TimeWindow(5 * SECOND, 1 * SECOND),
    "s [ROWS 100 SLIDE 10]": RowWindow(100, 10),
    "s [RANGE UNBOUNDED]": None,
    "s": None,
}


@pytest.mark.parametrize(("table", "window"), WINDOWS.items())
def test_windows(table: str, window: object) -> None:
    assert aggregate(f"SELECT count(*) FROM {table}").window == window


A, B = Column(Type.BIGINT, True, 1, "a"), Column(Type.BIGINT, True, 2, "b")


def test_selected_columns_are_keys_calls_and_bounds() -> None:
    spec = aggregate(
        "SELECT a AS k, count(*) AS n, sum(b) AS total, count(*) + 1 AS more, window_end AS e "
        "FROM TUMBLE(s, ts, '1 s') GROUP BY a, window_start"
    )
    assert spec.keys == (("k", A),)
    assert spec.calls == (
        ("n", AggregateCall(Type.BIGINT, False, "count()")),
        ("total", AggregateCall(Type.BIGINT, True, "sum(bigint)", (B,))),
    )
    assert spec.bounds == (("e", "end"),)


def test_the_forms_of_an_aggregate() -> None:
    spec = aggregate(
        "SELECT count(DISTINCT a), avg(b) FILTER (WHERE a IS NULL), approx_quantile(a, 0.9), arg_max(t, a), last(t)"
        " FROM s [RANGE '1 s' SLIDE '1 s']"
    )
    distinct, filtered, quantile, best, last = (call for _, call in spec.calls)
    assert (distinct.function, distinct.distinct) == ("count(bigint)", True)
    assert filtered.filter is not None
    assert quantile.function == "approx_quantile(double, double)"
    assert quantile.arguments[1] == Constant(Type.DOUBLE, False, 0.9)
    assert (best.function, best.type) == ("arg_max(text, bigint)", Type.TEXT)
    assert (last.function, last.arguments[0].type) == ("last(text)", Type.TEXT)


@pytest.mark.parametrize(
    ("group_by", "keys"),
    [
        ("a", ["a"]),
        ("s.a, a, window_start, window_end", ["a"]),
        ("1, 2", ["a", "b + 1"]),
        ("a, x", ["a", "b + 1"]),
        ("x, a", ["b + 1", "a"]),
        # A column of the source takes precedence over a name of the select list.
        ("a, x, b", ["a", "b + 1", "b"]),
    ],
)
def test_group_by(group_by: str, keys: list[str]) -> None:
    second = "b + 1 AS x" if "x" in group_by or "2" in group_by else "count(*) AS b"
    spec = aggregate(f"SELECT a, {second} FROM TUMBLE(s, ts, '1 s') GROUP BY {group_by}")
    assert [show(key) for _, key in spec.keys] == keys


def test_an_expression_of_groups_may_be_part_of_another() -> None:
    query = planned("SELECT (a + 1) * 2 + count(*) AS x FROM TUMBLE(s, ts, '1 s') GROUP BY a + 1")
    assert shape(query) == "q.aggregate1(s.source) q.project1(q.aggregate1)"


def test_sessions_are_cut_by_partition_by_or_group_by() -> None:
    by_group = aggregate("SELECT a, count(*) AS n FROM SESSION(s, ts, '1 s') GROUP BY a, window_start")
    assert aggregate("SELECT a, count(*) AS n FROM SESSION(s, ts, '1 s' PARTITION BY a)") == by_group
    assert aggregate("SELECT a, count(*) AS n FROM SESSION(s, ts, '1 s' PARTITION BY a) GROUP BY 1") == by_group


def test_rows_counts_the_tuples_of_the_source() -> None:
    folded = aggregate(
        "SELECT sum(d) AS d FROM (SELECT c * 2 AS d, t FROM (SELECT a + 1 AS c, t FROM s WHERE b > 1)) [ROWS 9 SLIDE 3]"
        " WHERE d > 4 AND t = 'x'"
    )
    plain = aggregate(
        "SELECT sum((a + 1) * 2) AS d FROM s [ROWS 9 SLIDE 3] WHERE b > 1 AND ((a + 1) * 2 > 4 AND t = 'x')"
    )
    assert folded == plain
    assert folded.where is not None


def test_distinct_groups_by_all_that_is_selected() -> None:
    spec = aggregate("SELECT DISTINCT t, a + 1, 5, window_start FROM TUMBLE(s, ts, '1 s')")
    assert [name for name, _ in spec.keys] == ["t", "column2"]
    assert spec.calls == ()
    assert spec.bounds == (("window_start", "start"),)
    starred = aggregate("SELECT DISTINCT * FROM TUMBLE(s, ts, '1 s')")
    assert [name for name, _ in starred.keys] == ["ts", "a", "b", "t"]


def test_rows_without_aggregates_have_their_bounds() -> None:
    query = planned("SELECT * FROM HOP(i, ts, '1 s', '2 s')")
    assert query.schema.names == ("a", "window_start", "window_end")
    (node,) = query.nodes
    assert node.spec == WindowSpec(TimeWindow(2 * SECOND, SECOND), (("window_start", "start"), ("window_end", "end")))


def test_rows_of_sessions_are_emitted_when_the_session_closes() -> None:
    query = planned("SELECT * FROM SESSION(s, ts, '1 s' PARTITION BY a, t, a)")
    assert query.schema.names == ("ts", "a", "b", "t", "window_start", "window_end")
    spec = aggregate("SELECT * FROM SESSION(s, ts, '1 s' PARTITION BY a, t, a)")
    assert (spec.rows, spec.calls, [show(key) for _, key in spec.keys]) == (True, (), ["a", "t"])
    options = "order = 'event', flush = 'slow', max_delay = '3 s', partial = 'emit'"
    delayed = aggregate(f"CREATE QUERY q WITH ({options}) AS SELECT * FROM SESSION(s, ts, '1 s')")
    assert (delayed.flush, delayed.max_delay_us, delayed.partial) == ("slow", 3 * SECOND, "emit")


def test_rows_of_windows_of_rows_read_the_source() -> None:
    (node,) = planned("SELECT * FROM (SELECT a + b AS c, ts FROM s WHERE a > 1) [ROWS 5 SLIDE 2]").nodes
    assert isinstance(node.spec, WindowSpec)
    assert node.spec.columns is not None
    assert [(name, show(column)) for name, column in node.spec.columns] == [("c", "a + b"), ("ts", "ts")]
    assert node.spec.where is not None
    assert show(node.spec.where) == "a > 1"
    plain = planned("SELECT a, window_start FROM s [ROWS 5 SLIDE 2]").nodes[0]
    assert plain.spec == WindowSpec(RowWindow(5, 2), (("window_start", "start"), ("window_end", "end")))


def test_a_windows_bounds_hide_columns_of_their_names() -> None:
    nested = "TUMBLE((SELECT a, window_end FROM HOP(s, ts, '1 s', '2 s') GROUP BY a), ts, '8 s')"
    starred = planned(f"SELECT * FROM {nested}")
    assert starred.schema.names == ("a", "window_start", "window_end")
    grouped = planned(f"SELECT window_end, count(*) AS n FROM {nested} GROUP BY window_end")
    spec = grouped.nodes[1].spec
    assert isinstance(spec, AggregateSpec)
    assert (spec.keys, spec.bounds) == ((), (("window_end", "end"),))


def test_types_of_the_bounds() -> None:
    times = planned("SELECT window_start, window_end, count(*) FROM TUMBLE(s, ts, '1 s')")
    assert [str(field) for field in times.schema] == [
        "window_start timestamp not null", "window_end timestamp not null", "count bigint not null",
    ]  # fmt: skip
    positions = planned("SELECT window_start FROM s [ROWS 3 SLIDE 3] GROUP BY window_start")
    assert [str(field) for field in positions.schema] == ["window_start bigint not null"]


# -- update streams ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT a, count(*) FROM s GROUP BY a", ("a",)),
        ("SELECT count(*) AS n, a AS k, lower(t) AS w FROM s GROUP BY k, w", ("k", "w")),
        ("SELECT count(*) FROM s", ()),
        ("SELECT a, count(*) FROM s [RANGE UNBOUNDED] GROUP BY a", ("a",)),
        ("SELECT n + 1 AS m, key AS k FROM run WHERE key > 3", ("k",)),
        ("SELECT * FROM run", ("key",)),
        ("SELECT a, count(*) FROM TUMBLE(s, ts, '1 s') GROUP BY a", None),
        ("SELECT a FROM s", None),
    ],
)
def test_the_key_of_an_update_stream(sql: str, key: tuple[str, ...] | None) -> None:
    query = planned(sql)
    assert query.update_key == key
    explained = plan(parse("EXPLAIN " + sql)[0], CATALOG)
    assert isinstance(explained, Explain)
    assert explained.text.splitlines()[0].endswith("rows" if key is None else "final")


# -- options -----------------------------------------------------------------------------------------------------------


def test_options_of_windows() -> None:
    head = "CREATE QUERY q WITH ({}) AS SELECT count(*) FROM TUMBLE(s, ts, '1 s')"
    plain = aggregate(head.format("order = 'arrival'"))
    assert (plain.flush, plain.max_delay_us, plain.partial) == ("none", 0, "skip")
    spec = aggregate(head.format("order = 'event', flush = 'slow', max_delay = '3 s', partial = 'emit'"))
    assert (spec.flush, spec.max_delay_us, spec.partial) == ("slow", 3 * SECOND, "emit")
    assert aggregate(head.format("flush = 'lazy'")).max_delay_us == SECOND


def test_options_of_running_totals() -> None:
    query = planned("CREATE QUERY q WITH (order = 'event', emit = 'every') AS SELECT count(*) FROM s")
    assert [type(node.spec) for node in query.nodes] == [SortSpec, AggregateSpec]
    spec = query.nodes[1].spec
    assert isinstance(spec, AggregateSpec)
    assert spec.emit == "every"


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        (
            "SELECT a, count(*) AS n FROM TUMBLE(s, ts, '1 min') GROUP BY a",
            "aggregate windows of 00:01:00 by a: count(*) AS n",
        ),
        (
            "SELECT a, b % 2 AS odd, sum(b) AS n FROM HOP(s, ts, '40 s', '1 min', '3 s') WHERE b > 0 GROUP BY 1, odd",
            "windows of 00:01:00 every 00:00:40 from 00:00:03 in panes of 00:00:20 by a, b % 2 AS odd: sum(b) AS n",
        ),
        (
            "SELECT count(DISTINCT t) AS n, window_end FROM SESSION(s, ts, '1 s')",
            "aggregate sessions with gaps of 00:00:01: count(DISTINCT t) AS n, window_end",
        ),
        (
            "SELECT sum(a) FILTER (WHERE a > 2) AS n FROM s [ROWS 9 SLIDE 3] WHERE b > 1",
            "aggregate windows of 9 rows every 3 WHERE b > 1: sum(a) FILTER (WHERE a > 2) AS n",
        ),
        ("SELECT a FROM s GROUP BY a", "aggregate all rows so far by a"),
        (
            "SELECT * FROM HOP(s, ts, '1 s', '2 s')",
            "windows of 00:00:02 every 00:00:01, each row once per window",
        ),
        (
            "SELECT * FROM SESSION(s, ts, '1 s' PARTITION BY a)",
            "aggregate sessions with gaps of 00:00:01 by a, each row when its session closes: window_start, window_end",
        ),
        (
            "SELECT * FROM (SELECT a + 1 AS c FROM s WHERE b > 1) [ROWS 3 SLIDE 1]",
            "windows of 3 rows every 1, each row once per window: a + 1 AS c WHERE b > 1",
        ),
    ],
)
def test_explain_prints_window_panes_groups_and_aggregates(sql: str, words: str) -> None:
    explained = plan(parse("EXPLAIN " + sql)[0], CATALOG)
    assert isinstance(explained, Explain)
    assert f"{words} <- " in explained.text


@pytest.mark.parametrize("window", ["[ROWS 1 SLIDE 1]", "[ROWS 3 SLIDE 1]", "[ROWS 2 SLIDE 2]"])
def test_windows_of_rows_are_emitted_in_order_of_time_if_the_query_is(window: str, tmp_path: Path) -> None:
    """A row's time is the newest in its window, and the stream accepts tuples in order of arrival."""
    stream = "CREATE STREAM d (at TIMESTAMP, k BIGINT) WITH (time = 'at', disorder = '50 us');"
    chance = random.Random(3)
    times = [number * 10 + chance.randrange(50) for number in range(200)]
    events = [{"stream": "d", "at": 9_000, "tuple": {"at": at, "k": at % 3}} for at in times]
    emitted = []
    for order in ("arrival", "event"):
        query = f"CREATE QUERY q WITH (order = '{order}') AS SELECT max(at) AS at, sum(k) AS k FROM d {window};"
        rows = run_events(stream + query, events, tmp_path).rows["q"]
        emitted.append([(row["at"], row["k"]) for row in rows])
    came, ordered = emitted
    assert sorted(came) == sorted(ordered)
    assert [at for at, _ in came] != sorted(at for at, _ in came)
    assert [at for at, _ in ordered] == sorted(at for at, _ in ordered)


@pytest.mark.parametrize(
    ("options", "keeps", "note"),
    [
        ("", "adaptive", ""),
        ("aggregate = 'adaptive'", "adaptive", "starts with a partial result per group, and buffers rows while"),
        ("aggregate = 'groups'", "groups", "keeps a partial result per group"),
        ("aggregate = 'buffered'", "buffered", "buffers the rows of a window until it closes"),
        ("aggregate = 'bounded', slots = 7", "bounded", "counts in a low-level table of 7 slots first (aggregate"),
    ],
)
def test_a_query_says_what_its_windows_keep(options: str, keeps: str, note: str) -> None:
    head = f"WITH ({options}) " if options else ""
    found = planned(f"CREATE QUERY q {head}AS SELECT a, count(*) AS n FROM TUMBLE(s, ts, '1 s') GROUP BY a")
    (spec,) = [node.spec for node in found.nodes if isinstance(node.spec, AggregateSpec)]
    assert spec.keeps == keeps
    assert "".join(found.notes).startswith(f"the aggregate {note}" if note else "")
