"""Joins and sequences as plans: the meaning of conditions, the columns that remain, and refusals with their reasons."""

from __future__ import annotations

import pytest

from millrace.engine.plan import QueryPlan
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.join.bands import Band
from millrace.operators.join.spec import JoinSpec
from millrace.operators.retime.spec import RetimeSpec
from millrace.operators.sequence.spec import SequenceSpec
from millrace.sql import Catalog, CreateQuery, Explain, SqlError, equality, parse, plan, plan_all
from millrace.values.written import show

STREAMS = """
CREATE STREAM a (ts TIMESTAMP, k BIGINT, v BIGINT, x DOUBLE) WITH (time = 'ts');
CREATE STREAM b (ts TIMESTAMP, k BIGINT, v BIGINT, t TEXT) WITH (time = 'ts');
CREATE STREAM c (at TIMESTAMP, k BIGINT, w TEXT) WITH (time = 'at');
CREATE STREAM i (k BIGINT, n BIGINT);
CREATE STREAM l (k BIGINT) WITH (timestamps = 'latent');
CREATE STREAM ticks (symbol TEXT, venue TEXT, price DOUBLE) WITH (update_key = 'symbol, venue');
CREATE QUERY totals AS SELECT k, sum(v) AS total FROM b GROUP BY k;
CREATE QUERY every WITH (emit = 'every', order = 'event') AS SELECT k, sum(v) AS total FROM b GROUP BY k;
CREATE QUERY windowed AS SELECT k, max(v) AS most, window_start, window_end FROM TUMBLE(b, ts, '10 s') GROUP BY k;
"""
_, CATALOG = plan_all(parse(STREAMS), Catalog())
SECOND = 1_000_000
MINUTE = 60 * SECOND


def planned(sql: str) -> QueryPlan:
    result = plan(parse(sql)[0], CATALOG)
    if isinstance(result, CreateQuery):
        return result.plan
    assert isinstance(result, QueryPlan)
    return result


def shape(query: QueryPlan) -> str:
    return " ".join(f"{node.name.removeprefix('q.')}({','.join(node.inputs)})" for node in query.nodes)


def joins(query: QueryPlan) -> list[JoinSpec]:
    return [node.spec for node in query.nodes if isinstance(node.spec, JoinSpec)]


def join(condition: str, tables: str = "a JOIN b") -> JoinSpec:
    (spec,) = joins(planned(f"SELECT a.v FROM {tables} ON {condition}"))
    return spec


@pytest.mark.parametrize(
    ("commas", "written_out"),
    [
        ("a, b", "a CROSS JOIN b"),
        ("a x, b", "a x CROSS JOIN b"),
        ("a, b, c", "a CROSS JOIN b CROSS JOIN c"),
        ("a, b JOIN c ON b.k = c.k", "a CROSS JOIN b JOIN c ON b.k = c.k"),
        ("a [RANGE '1 s'], b LEFT JOIN c ON b.k = c.k", "a [RANGE '1 s'] CROSS JOIN b LEFT JOIN c ON b.k = c.k"),
        ("a JOIN b ON a.k = b.k, c", "a JOIN b ON a.k = b.k CROSS JOIN c"),
    ],
)
def test_a_comma_is_a_join_by_the_conditions_of_where(commas: str, written_out: str) -> None:
    where = "WHERE b.k = 3 AND b.ts BETWEEN b.ts AND b.ts + INTERVAL '2 s'"
    query, expected = (planned(f"SELECT b.v FROM {tables} {where}") for tables in (commas, written_out))
    assert (shape(query), joins(query)) == (shape(expected), joins(expected))


def test_where_bounds_tables_with_a_comma_between_them() -> None:
    (spec,) = joins(planned("SELECT a.v FROM a, b WHERE a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '2 s'"))
    assert spec == join("a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '2 s'")


@pytest.mark.parametrize("right", ["b RIGHT JOIN c ON b.k = c.k", "b FOLLOWED BY c"])
def test_a_comma_before_a_clause_that_needs_an_order(right: str) -> None:
    with pytest.raises(SqlError, match="a comma before this kind of join is ambiguous"):
        planned(f"SELECT b.v FROM a, {right}")


def sequence(sql: str) -> SequenceSpec:
    (spec,) = [node.spec for node in planned(sql).nodes if isinstance(node.spec, SequenceSpec)]
    return spec


def keys(spec: JoinSpec) -> list[str]:
    return [f"{pair.left}.{show(pair.left_key)} = {pair.right}.{show(pair.right_key)}" for pair in spec.equal]


# -- bands -------------------------------------------------------------------------------------------------------------

# The effect of a condition: the bounds on b's time less a's, and whether the condition must be tested as well.
BANDS = {
    "b.ts BETWEEN a.ts - INTERVAL '1 s' AND a.ts + INTERVAL '2 s'": (-SECOND, 2 * SECOND, None),
    "a.ts BETWEEN b.ts - INTERVAL '1 s' AND b.ts + INTERVAL '2 s'": (-2 * SECOND, SECOND, None),
    "a.ts <= b.ts": (0, None, None),
    "a.ts < b.ts": (1, None, None),
    "a.ts > b.ts": (None, -1, None),
    "b.ts <= a.ts": (None, 0, None),
    "a.ts = b.ts": (0, 0, None),
    "b.ts = a.ts + INTERVAL '1 s'": (SECOND, SECOND, None),
    "b.ts - a.ts < INTERVAL '1 s' AND a.ts < b.ts": (1, SECOND - 1, None),
    "b.ts - a.ts BETWEEN INTERVAL '-1 s' AND INTERVAL '1 s'": (-SECOND, SECOND, None),
    "INTERVAL '2 s' >= a.ts - b.ts": (-2 * SECOND, None, None),
    "abs(a.ts - b.ts) <= INTERVAL '3 s'": (-3 * SECOND, 3 * SECOND, None),
    "INTERVAL '3 s' > abs(b.ts - a.ts)": (1 - 3 * SECOND, 3 * SECOND - 1, None),
    "a.ts - INTERVAL '1 s' - INTERVAL '1 s' <= b.ts": (-2 * SECOND, None, None),
    "a.ts + (b.ts - a.ts) > a.ts": (1, None, None),
    "-(b.ts - a.ts) <= INTERVAL '1 s' * 2": (-2 * SECOND, None, None),
    "a.ts <= b.ts AND a.ts <= b.ts + INTERVAL '1 s' AND b.ts < a.ts + INTERVAL '1 min'": (0, MINUTE - 1, None),
    # Rounded to spans: rows of one span are at most this far apart.
    "date_trunc('minute', a.ts) <= date_trunc('minute', b.ts)": (
        1 - MINUTE,
        None,
        "date_trunc('minute', a.ts) <= date_trunc('minute', b.ts)",
    ),
    "NOT (a.ts > b.ts)": (None, None, "NOT (a.ts > b.ts)"),
    "a.ts <> b.ts": (None, None, "a.ts <> b.ts"),
}


@pytest.mark.parametrize(("condition", "bounds"), BANDS.items())
def test_a_condition_on_times_is_a_band(condition: str, bounds: tuple[int | None, int | None, str | None]) -> None:
    spec = join(condition)
    low, high, where = bounds
    assert spec.bands == (() if low is None and high is None else (Band(0, 1, low, high),))
    assert (None if spec.where is None else show(spec.where)) == where
    assert not spec.equal
    # The same condition in WHERE has the same effect.
    (other,) = joins(planned(f"SELECT a.v FROM a JOIN b ON TRUE WHERE {condition}"))
    assert other == spec


@pytest.mark.parametrize(
    ("ranges", "band"),
    [
        ("a [RANGE '3 min'] JOIN b [RANGE '2 min']", (Band(0, 1, -2 * MINUTE, 3 * MINUTE),)),
        ("a [RANGE '3 min'] JOIN b", (Band(0, 1, None, 3 * MINUTE),)),
        ("a [RANGE UNBOUNDED] JOIN b [RANGE '2 min']", (Band(0, 1, -2 * MINUTE, None),)),
        ("a [RANGE UNBOUNDED] JOIN b [RANGE UNBOUNDED]", ()),
        ("a [RANGE '0 s'] JOIN b [RANGE '0 s']", (Band(0, 1, 0, 0),)),
    ],
)
def test_a_row_is_retained_for_its_own_range(ranges: str, band: tuple[Band, ...]) -> None:
    assert join("a.k = b.k", ranges).bands == band


def test_equal_spans_are_a_key_and_a_band() -> None:
    spec = join("date_trunc('minute', a.ts) = date_trunc('minute', b.ts)")
    assert spec.bands == (Band(0, 1, 1 - MINUTE, MINUTE - 1),)
    assert keys(spec) == ["0.date_trunc('minute', ts) = 1.date_trunc('minute', ts)"]


def test_windows_are_joined_within_their_size() -> None:
    query = planned(
        "SELECT x.v FROM TUMBLE(a, ts, '10 s') x JOIN HOP(b, ts, '5 s', '10 s') y ON x.window_start = y.window_start "
        "AND x.window_end = y.window_end"
    )
    (spec,) = joins(query)
    assert spec.bands == (Band(0, 1, 1 - 10 * SECOND, 10 * SECOND - 1),)
    assert keys(spec) == ["0.window_start = 1.window_start", "0.window_end = 1.window_end"]
    assert not query.warnings


@pytest.mark.parametrize("windows", ["windowed", "(SELECT window_end AS e, most, window_end FROM windowed)"])
def test_rows_are_joined_with_an_aggregate_of_their_window(windows: str) -> None:
    (spec,) = joins(
        planned(
            f"SELECT a.v FROM a JOIN {windows} m ON a.v = m.most "
            "WHERE a.ts BETWEEN m.window_end - INTERVAL '10 s' AND m.window_end"
        )
    )
    # The row of a window is at its end less 1 us, so a condition on its end is exact.
    assert spec.bands == (Band(0, 1, -1, 10 * SECOND - 1),)
    assert spec.where is None


def test_times_of_a_join_stay_progressing() -> None:
    both = "(SELECT a.ts AS at, b.ts AS bt, a.k FROM a [RANGE '1 s'] JOIN b [RANGE '2 s'] ON a.k = b.k) d"
    query = planned(f"SELECT c.w FROM {both} JOIN c ON d.at = c.at")
    spec = joins(query)[-1]
    # The joined row is at most 1 s later than a's time and never earlier.
    assert spec.bands == (Band(0, 1, -SECOND, 0),)
    assert keys(spec) == ["0.at = 1.at"]


# -- keys and the rest -------------------------------------------------------------------------------------------------


def test_conditions_are_classified_by_their_meaning() -> None:
    query = planned(
        "SELECT a.x, c.w FROM a JOIN b ON a.k = b.k AND a.v + 1 = b.v * 2 JOIN c ON b.t = c.w AND a.v < c.k "
        "WHERE b.v > 3 AND a.x > 0.5 AND (a.v = 1 OR b.v = 2) AND TRUE AND a.x = b.v"
    )
    assert shape(query) == "filter1(a.source) filter2(b.source) join1(q.filter1,q.filter2,c.source) project1(q.join1)"
    first, second, spec, _ = (node.spec for node in query.nodes)
    assert isinstance(first, SelectSpec)
    assert isinstance(second, SelectSpec)
    assert isinstance(spec, JoinSpec)
    assert (show(first.predicate), show(second.predicate)) == ("x > 0.5", "v > 3")
    assert keys(spec) == ["0.k = 1.k", "0.v + 1 = 1.v * 2", "1.t = 2.w"]
    # A bigint and a double have no common form without rounding, so comparing them is not a key.
    assert spec.where is not None
    assert show(spec.where) == "(a.v < k) AND (((a.v = 1) OR (b.v = 2)) AND (x = b.v))"
    assert [name for name, _, _ in spec.columns] == ["x", "w", "a.v", "k", "b.v"]


def test_only_needed_columns_are_retained() -> None:
    (spec,) = joins(planned("SELECT b.t FROM a JOIN b ON a.k = b.k AND a.ts <= b.ts WHERE a.v = 1"))
    assert spec.columns == (("t", 1, 3),)
    (counted,) = joins(planned("SELECT count(*) AS n, b.k FROM a JOIN b ON a.k = b.k GROUP BY b.k"))
    assert counted.columns == (("k", 1, 1),)
    (nothing,) = joins(planned("SELECT 1 AS one FROM a JOIN b ON a.k = b.k"))
    assert len(nothing.columns) == 1


def test_up_to_six_inputs_are_one_operator() -> None:
    for count in range(2, 10):
        tables = "a t1" + "".join(f" JOIN a t{n} ON t{n}.k = t{n - 1}.k" for n in range(2, count + 1))
        query = planned(f"SELECT t1.v, t{count}.v AS w FROM {tables}")
        assert [len(node.inputs) for node in query.nodes if isinstance(node.spec, JoinSpec)] == (
            [count] if count <= 6 else [6, count - 5]
        )


def test_every_pair_with_ranges_is_bound() -> None:
    (spec,) = joins(
        planned("SELECT a.v FROM a [RANGE '1 s'] JOIN b [RANGE '2 s'] ON a.k = b.k JOIN c [RANGE '3 s'] ON b.k = c.k")
    )
    assert spec.bands == (
        Band(0, 1, -2 * SECOND, SECOND),
        Band(0, 2, -3 * SECOND, SECOND),
        Band(1, 2, -3 * SECOND, 2 * SECOND),
    )


def test_ranges_reach_through_a_pipeline() -> None:
    query = planned(
        "SELECT c.w, b.v FROM a [RANGE '1 s'] LEFT JOIN b [RANGE '2 s'] ON a.k = b.k JOIN c [RANGE '3 s'] ON a.k = c.k"
    )
    left, last = joins(query)
    assert left.outer == (0,)
    assert left.bands == (Band(0, 1, -2 * SECOND, SECOND),)
    # A row of the left join is up to 1 s later than a's, so the bound is wider, and tested; b may be missing.
    assert last.bands == (Band(0, 1, -4 * SECOND, SECOND),)
    assert last.where is not None
    assert "b.ts IS NULL" in show(last.where)
    assert "at <= (a.ts + INTERVAL '00:00:01')" in show(last.where)


def test_outer_joins() -> None:
    query = planned("SELECT a.v, b.t FROM a LEFT JOIN b ON a.k = b.k AND b.v > 1 AND a.v > 2 AND a.ts = b.ts")
    assert shape(query) == "filter1(b.source) join1(a.source,q.filter1)"
    (spec,) = joins(query)
    assert spec.outer == (0,)
    assert spec.where is not None
    assert show(spec.where) == "v > 2"
    assert query.schema.fields[1].nullable
    right = planned("SELECT a.v, b.t FROM a RIGHT JOIN b ON a.k = b.k AND a.ts = b.ts")
    assert shape(right).startswith("join1(a.source,b.source)")
    assert joins(right)[0].outer == (1,)
    assert right.schema.fields[0].nullable
    # The join preserves rows without a match here ...
    lonely = planned("SELECT a.v FROM a LEFT JOIN b ON a.k = b.k AND a.ts = b.ts WHERE b.k IS NULL")
    assert joins(lonely)[0].outer
    # ... and WHERE excludes them here, so that no row has to wait for a match.
    inner = planned("SELECT a.v FROM a LEFT JOIN b ON a.k = b.k WHERE b.ts BETWEEN a.ts AND a.ts + INTERVAL '1 s'")
    assert not joins(inner)[0].outer
    assert joins(inner)[0].bands == (Band(0, 1, 0, SECOND),)


def test_full_joins() -> None:
    on = "a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '1 s' AND a.v > 1 AND b.v > 2"

    def outer(where: str) -> tuple[int, ...]:
        return joins(planned(f"SELECT a.v, b.t FROM a FULL JOIN b ON {on} WHERE {where}"))[0].outer

    query = planned(f"SELECT a.v, b.t FROM a FULL JOIN b ON {on}")
    # A row that fails a test of ON has no match, but is still emitted: neither side loses rows before the join.
    assert shape(query) == "join1(a.source,b.source) project1(q.join1)"
    assert all(field.nullable for field in query.schema)
    assert [outer(where) for where in ("TRUE", "a.v > 7", "b.t = 'x'", "a.v > 7 AND b.v > 8")] == [
        (0, 1),
        (0,),
        (1,),
        (),
    ]
    # A condition of WHERE on one side decides nothing while rows of the other side are emitted without a match.
    assert shape(planned(f"SELECT b.t FROM a FULL JOIN b ON {on} WHERE coalesce(a.v, 0) = 0")) == (
        "join1(a.source,b.source) filter1(q.join1) project1(q.filter1)"
    )
    endless = planned("SELECT a.v FROM a FULL JOIN b ON a.k = b.k")
    warnings = [warning for warning in endless.warnings if "without a match" in warning]
    assert [warning.split(" without")[0] for warning in warnings] == ["rows of a", "rows of b"]


@pytest.mark.parametrize(
    ("kind", "group", "closes"),
    [
        ("", "b.ts", True),
        ("LEFT", "a.ts", True),
        ("LEFT", "b.ts", False),
        ("RIGHT", "a.ts", False),
        ("FULL", "a.ts", False),
        ("FULL", "a.ts, b.ts", True),
    ],
)
def test_rows_without_a_time_of_one_side_are_one_group_forever(kind: str, group: str, closes: bool) -> None:
    """Rows without a match have no time of the other side: they form one group, which no window ends."""
    columns = ", ".join(f"{column} AS t{at}" for at, column in enumerate(group.split(", ")))
    query = planned(f"SELECT {columns}, count(*) AS n FROM a {kind} JOIN b ON a.ts = b.ts GROUP BY {group}")
    (aggregate,) = (node.spec for node in query.nodes if isinstance(node.spec, AggregateSpec))
    assert (aggregate.window is not None) is closes


def test_where_on_the_preserved_side_of_an_outer_join_is_tested_first() -> None:
    query = planned(
        "SELECT a.v, b.t FROM a LEFT JOIN b ON a.k = b.k AND a.ts = b.ts WHERE a.v > 1 AND coalesce(b.v, 0) = 0"
    )
    assert shape(query) == "filter1(a.source) join1(q.filter1,b.source) filter2(q.join1) project1(q.filter2)"
    first, spec, *_ = (node.spec for node in query.nodes)
    assert isinstance(first, SelectSpec)
    assert show(first.predicate) == "v > 1"
    assert isinstance(spec, JoinSpec)
    assert spec.outer


def test_a_join_in_parentheses_is_a_table() -> None:
    inner = "(SELECT x.v, y.t FROM a x JOIN b y ON x.ts = y.ts) d"
    assert planned(f"SELECT d.v FROM {inner} WHERE d.t IS NULL").schema.names == ("v",)
    assert shape(planned(f"SELECT d.t, c.w FROM {inner} JOIN c ON d.v = c.k AND d.ts = c.at")) == (
        "join1(a.source,b.source) join2(q.join1,c.source)"
    )
    assert planned(f"SELECT v FROM {inner} UNION ALL SELECT v FROM a").schema.names == ("v",)


def test_rows_are_counted_before_conditions() -> None:
    query = planned("SELECT a.v FROM a [ROWS 5] JOIN b [RANGE '1 s'] ON a.k = b.k WHERE a.v > 1 AND b.v > 2")
    assert shape(query) == "filter1(b.source) join1(a.source,q.filter1)"
    (spec,) = joins(query)
    assert spec.rows == (5, None)
    assert spec.where is not None
    assert joins(planned("SELECT d.e FROM (SELECT v + 1 AS e, k FROM a) d [ROWS 3] JOIN b ON d.k = b.k"))


# -- names -------------------------------------------------------------------------------------------------------------


def test_star_selects_every_column_and_names_the_table_of_a_duplicate_name() -> None:
    assert planned("SELECT * FROM a JOIN b ON a.k = b.k").schema.names == (
        "ts", "k", "v", "x", "b_ts", "b_k", "b_v", "t",
    )  # fmt: skip
    assert planned("SELECT b.*, a.x FROM a JOIN b ON a.k = b.k").schema.names == ("ts", "k", "v", "t", "x")
    assert planned("SELECT * FROM a RIGHT JOIN c ON a.k = c.k").schema.names == (
        "ts", "k", "v", "x", "at", "c_k", "w",
    )  # fmt: skip
    assert planned("SELECT y.v, x.v AS xv FROM a x JOIN a y ON x.k = y.k").schema.names == ("v", "xv")


def test_ts_is_the_joined_rows_own_time_where_no_table_has_such_a_column() -> None:
    query = planned("SELECT i.n, ts FROM c JOIN i ON c.k = i.k WHERE ts > TIMESTAMP '2026-01-01'")
    assert shape(query) == "join1(c.source,i.source) filter1(q.join1) project1(q.filter1)"
    assert planned("SELECT i.ts AS it, c.at FROM c JOIN i ON c.k = i.k").schema.names == ("it", "at")
    # A column of a table takes precedence.
    assert joins(planned("SELECT ts FROM a JOIN i ON a.k = i.k"))[0].columns == (("ts", 0, 0),)


# -- order and warnings ------------------------------------------------------------------------------------------------


def test_the_discipline_is_the_querys() -> None:
    assert join("a.k = b.k").order == "arrival"
    for options, order in (
        ("", "sync"),
        (", join = 'filter'", "filter"),
        (", join = 'adaptive', alpha = 0.5", "adaptive"),
    ):
        query = planned(f"CREATE QUERY q WITH (order = 'event'{options}) AS SELECT a.v FROM a JOIN b ON a.ts = b.ts")
        (spec,) = joins(query)
        assert spec.order == order
        assert query.output == "q.join1" or query.output == "q.project1"
        assert "sort" not in shape(query)
    assert spec.alpha == 0.5


def test_unbounded_state_causes_a_warning() -> None:
    assert not planned("SELECT a.v FROM a [RANGE '1 s'] JOIN b [RANGE '1 s'] ON a.k = b.k").warnings
    assert not planned("SELECT a.v FROM a [ROWS 5] JOIN b [ROWS 1] ON a.k = b.k").warnings
    (both,) = planned("SELECT a.v FROM a JOIN b ON a.k = b.k").warnings
    assert both.startswith("this join keeps the rows of a and of b without a time limit, up to max_state = 10000000")
    (single,) = planned("CREATE QUERY q WITH (max_state = 9) AS SELECT a.v FROM a JOIN b ON a.ts >= b.ts").warnings
    assert single.startswith(
        "this join keeps the rows of b without a time limit, up to max_state = 9 tuples. Add [RANGE"
    )
    _, never = planned("SELECT a.v FROM a LEFT JOIN b ON a.k = b.k").warnings
    assert never.startswith("rows of a without a match are emitted only when b ends")
    (nothing,) = planned("SELECT a.v FROM a JOIN b ON a.ts < b.ts AND b.ts < a.ts").warnings
    assert nothing.startswith("no rows can match: the ranges and conditions on time contradict each other")
    assert "CHRONICLE" not in planned("SELECT a.v FROM a FOLLOWED BY b").warnings
    assert planned("SELECT a.v FROM a FOLLOWED BY b CHRONICLE").warnings
    (explained,) = plan_all(parse("EXPLAIN SELECT a.v FROM a JOIN b ON a.k = b.k"), CATALOG)[0]
    assert isinstance(explained, Explain)
    assert "\n  warning: this join keeps the rows of a and of b" in explained.text


# -- groups and windows over joins -------------------------------------------------------------------------------------

RANGED = "a [RANGE '1 s'] JOIN b [RANGE '2 s'] ON a.k = b.k"


@pytest.mark.parametrize(
    ("groups", "tables", "size"),
    [
        (["a.ts", "b.ts"], RANGED, 1),
        (["a.ts", "a.k", "b.ts"], RANGED, 1),
        (["date_trunc('minute', a.ts)", "date_trunc('minute', b.ts)"], RANGED, MINUTE),
        (["date_trunc('minute', a.ts)", "b.ts"], RANGED, MINUTE),
        (["a.ts"], "a JOIN b ON a.ts = b.ts", 1),
        (["a.ts"], RANGED, None),
        (["a.ts", "b.k"], RANGED, None),
        (["a.ts + INTERVAL '1 s'", "b.ts"], RANGED, None),
        (["date_trunc('month', a.ts)", "b.ts"], RANGED, None),
        (["a.ts", "b.ts", "c.at"], f"{RANGED} JOIN c ON c.k = b.k", 1),
        (["a.ts", "c.at"], f"{RANGED} JOIN c ON c.k = b.k", None),
    ],
)
def test_groups_by_all_times_are_complete_together(groups: list[str], tables: str, size: int | None) -> None:
    items = ", ".join(f"{text} AS g{number}" for number, text in enumerate(groups))
    query = planned(f"SELECT {items}, count(*) AS n FROM {tables} GROUP BY {', '.join(groups)}")
    # A name of the select list and a number have the same meaning.
    names = ", ".join(["1", *(f"g{number}" for number in range(1, len(groups)))])
    assert planned(f"SELECT {items}, count(*) AS n FROM {tables} GROUP BY {names}").nodes == query.nodes
    (spec,) = [node.spec for node in query.nodes if isinstance(node.spec, AggregateSpec)]
    assert spec.window == (None if size is None else TimeWindow(size, size))
    assert (query.update_key is None) == (size is not None)
    assert any("joint punctuation" in note for note in query.notes) == (size is not None)


def test_a_window_by_one_sides_time_loses_the_lag() -> None:
    query = planned(
        "SELECT count(*) AS n FROM TUMBLE((SELECT a.ts AS at, b.ts AS bt FROM a [RANGE '1 s'] JOIN b [RANGE '2 s'] "
        "ON a.k = b.k), bt, '1 min')"
    )
    (spec,) = [node.spec for node in query.nodes if isinstance(node.spec, RetimeSpec)]
    assert spec == RetimeSpec(1, 2 * SECOND)


# -- sequences ---------------------------------------------------------------------------------------------------------


def test_sequences() -> None:
    spec = sequence("SELECT a.v, c.w FROM a FOLLOWED BY c WITHIN '5 s' ON a.k = c.k AND c.w <> 'x' RECENT")
    assert (spec.mode, spec.within_us, spec.absent, spec.where) == ("recent", 5 * SECOND, False, None)
    assert [(show(first), show(second)) for first, second in spec.keys] == [("k", "k")]
    assert spec.columns == (("v", 0, 2), ("w", 1, 2))
    spec = sequence("SELECT c.w FROM a FOLLOWED BY c CHRONICLE ON a.k = c.k AND c.w <> 'x' AND a.v > 1")
    assert spec.mode == "chronicle"
    assert spec.where is not None
    assert show(spec.where) == "(w <> 'x') AND (v > 1)"
    assert [name for name, _, _ in spec.tested] == ["w", "v"]
    spec = sequence("SELECT v, ts FROM a FOLLOWED BY NO b WITHIN '5 s' ON a.k = b.k AND b.v > a.v")
    assert spec.absent
    assert {at for _, at, _ in spec.columns} == {0}
    assert {at for _, at, _ in spec.tested} == {0, 1}


def test_chains_of_sequences_are_pipelines() -> None:
    query = planned(
        "SELECT a.v, b.v AS w, c.w AS z FROM a FOLLOWED BY b ON a.k = b.k "
        "FOLLOWED BY c CHRONICLE WITHIN '1 s' ON b.k = c.k FOLLOWED BY NO i WITHIN '2 s' ON i.k = a.k"
    )
    assert shape(query) == (
        "followed_by1(a.source,b.source) followed_by2(q.followed_by1,c.source) "
        "followed_by3(q.followed_by2,i.source) project1(q.followed_by3)"
    )
    both = planned("SELECT c.w FROM a JOIN b ON a.ts = b.ts FOLLOWED BY c ON a.k = c.k")
    assert shape(both).startswith("join1(a.source,b.source) followed_by1(q.join1,c.source)")


# -- latest ------------------------------------------------------------------------------------------------------------


def test_join_latest_takes_the_current_row() -> None:
    spec = sequence("SELECT a.v, e.total FROM a LEFT JOIN LATEST every e ON a.k = e.k AND e.total > a.v")
    assert (spec.mode, spec.outer) == ("recent", True)
    assert spec.columns == (("v", 1, 2), ("total", 0, 1))
    assert spec.where is not None
    query = planned("SELECT a.v FROM a JOIN LATEST ticks x ON x.symbol = 's' || a.k AND x.venue = a.k::text")
    assert shape(query) == "latest_join1(ticks.source,a.source)"
    renamed = "(SELECT venue AS v, symbol AS s, price FROM ticks)"
    assert sequence(f"SELECT a.v FROM a JOIN LATEST {renamed} x ON x.s = a.k::text AND x.v = 'X' || a.k").keys


def test_totals_before_latest_emit_every_row_in_order() -> None:
    query = planned("SELECT a.v, e.n FROM a JOIN LATEST (SELECT k, count(*) AS n FROM b GROUP BY k) e ON a.k = e.k")
    (spec,) = [node.spec for node in query.nodes if isinstance(node.spec, AggregateSpec)]
    assert (spec.emit, shape(query)) == (
        "every",
        "sort1(b.source) aggregate1(q.sort1) latest_join1(q.aggregate1,a.source)",
    )
    assert equality(query, CATALOG) == "rows"
    steps = planned("SELECT a.v, e.total FROM a JOIN LATEST totals e ON a.k = e.k")
    assert equality(steps, CATALOG) == "load"
    assert "create it WITH (emit = 'every', order = 'event')" in steps.warnings[0]
    whole = planned("SELECT a.v, e.total FROM a JOIN LATEST every e ON a.k = e.k")
    assert equality(whole, CATALOG) == "rows"
    assert not whole.warnings


# -- refusals ----------------------------------------------------------------------------------------------------------

# The caret is under the «.
REFUSED = [
    ("SELECT v FROM a JOIN «b", "or ON TRUE for every pair of rows"),
    ("SELECT a.v FROM a CROSS JOIN b ON «a.k = b.k", "CROSS JOIN takes no ON"),
    ("SELECT «v FROM a JOIN b ON a.k = b.k", "several tables have a column v: write a.v or b.v"),
    ("SELECT a.v FROM a JOIN b ON «k = 1", "several tables have a column k: write a.k or b.k"),
    ("SELECT a.v FROM c JOIN i ON «ts > TIMESTAMP '2026-01-01' JOIN a ON TRUE", "write c.ts or i.ts"),
    ("SELECT a.«q FROM a JOIN b ON a.k = b.k", "the column q does not exist in a"),
    ("SELECT «q FROM a JOIN b ON a.k = b.k", "the column q does not exist in the joined tables"),
    ("SELECT «z.v FROM a JOIN b ON a.k = b.k", "FROM has no table z; the tables here are a, b"),
    ("SELECT a.v FROM a JOIN b ON a.k = «c.k JOIN c ON TRUE", "FROM has no table c"),
    ("SELECT «z.* FROM a JOIN b ON a.k = b.k", "FROM has no table z"),
    ("SELECT a.v, «b.v FROM a JOIN b ON a.k = b.k", "two columns are called v"),
    ("SELECT a.v FROM a JOIN «a ON TRUE", "two tables are called a: add an alias to each"),
    ("SELECT a.v FROM a JOIN b ON «a.k", "ON: expected boolean, got bigint"),
    ("SELECT a.v FROM a JOIN b ON «count(*) > 1", "count is an aggregate: ON tests rows"),
    ("SELECT a.v FROM a [RANGE «'-1 s'] JOIN b ON TRUE", "expected a time of 0 or more"),
    ("SELECT d.v FROM (SELECT * FROM a WHERE v > 1) d «[ROWS 5] JOIN b ON TRUE", "move conditions to the WHERE"),
    ("SELECT a.v FROM a «[ROWS 0] JOIN b ON TRUE", "expected at least one row"),
    ("SELECT a.v FROM a JOIN «totals t ON a.k = t.k", "t is an update stream"),
    ("SELECT a.v FROM a JOIN «(SELECT k, max(v) AS v FROM b GROUP BY k) m ON a.k = m.k", "JOIN LATEST m ON its key"),
    ("SELECT a.v FROM «totals t FOLLOWED BY a", "t is an update stream"),
    ("SELECT a.v FROM a JOIN LATEST «b ON a.k = b.k", "JOIN LATEST needs a key, but b is not an update stream"),
    ("SELECT a.v FROM a JOIN LATEST every e ON «a.v = e.total", "expected an equality for each of k (missing: k)"),
    ("SELECT a.v FROM a JOIN LATEST ticks x ON «x.symbol = a.k::text", "(missing: venue)"),
    ("SELECT a.v FROM a RIGHT JOIN LATEST «every e ON a.k = e.k", "RIGHT JOIN LATEST is not supported"),
    ("SELECT a.v FROM a JOIN LATEST every e «[RANGE '1 s'] ON a.k = e.k", "a range belongs to a JOIN"),
    ("SELECT a.v FROM a FOLLOWED BY NO «b", "add that time, FOLLOWED BY NO ... WITHIN '5 seconds'"),
    ("SELECT a.v FROM a FOLLOWED BY NO «b CHRONICLE WITHIN '1 s'", "remove it"),
    ("SELECT «b.v FROM a FOLLOWED BY NO b WITHIN '1 s'", "b.v is not available: the result means that no row"),
    ("SELECT «b.* FROM a FOLLOWED BY NO b WITHIN '1 s'", "b.* is not available"),
    ("SELECT «t FROM a FOLLOWED BY NO b WITHIN '1 s'", "t is not available"),
    ("SELECT a.v FROM a FOLLOWED BY b WITHIN «'-1 s'", "expected a time of 0 or more"),
    ("SELECT a.v FROM a «[RANGE '1 s'] FOLLOWED BY b", "limit a pattern with WITHIN '...' instead"),
    ("SELECT a.v FROM a FOLLOWED BY «TUMBLE(b, ts, '1 s') b", "an event once per window"),
    ("SELECT a.v FROM a FOLLOWED BY b RECENT «CHRONICLE", "FOLLOWED BY takes RECENT or CHRONICLE only once"),
    ("SELECT count(*) AS n FROM TUMBLE((SELECT a.ts AS at FROM a JOIN b ON a.k = b.k), «at, '1 s')", "by any amount"),
    (
        "SELECT count(*) AS n FROM TUMBLE((SELECT b.ts AS bt FROM a LEFT JOIN b ON a.ts = b.ts), «bt, '1 s')",
        "bt may be null",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("marked", "words"), REFUSED)
def test_a_refusal_has_its_reason(marked: str, words: str) -> None:
    with pytest.raises(SqlError) as refused:
        planned(marked.replace("«", ""))
    assert words in refused.value.message
    assert (refused.value.line, refused.value.column) == (1, marked.index("«") + 1)
