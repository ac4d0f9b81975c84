"""LATEST and SHED RANDOM from SQL to rows: planned edges, refusals, and the output under load.

Every row must be the complete result of a window. The windows of a key only advance, and the last one is the newest.
"""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from millrace.engine.plan import Node
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.queues.edge import EdgeSpec
from millrace.sql import Catalog, Explain, SqlError, equality, parse, plan_all
from tests.running import run_events

STREAMS = """
CREATE STREAM ticks (at TIMESTAMP, v BIGINT, k TEXT) WITH (time = 'at', update_key = 'k', queue = 'linecutting');
CREATE STREAM plain (at TIMESTAMP, v BIGINT, k TEXT) WITH (time = 'at');
CREATE STREAM loose (v BIGINT, k TEXT) WITH (timestamps = 'latent', update_key = 'k');
CREATE QUERY totals AS SELECT k, sum(v) AS v FROM plain GROUP BY k;
"""
Row = dict[str, Any]


def planned(sql: str) -> tuple[list[Node], Explain]:
    steps, _ = plan_all(parse(f"{STREAMS} EXPLAIN {sql}"), Catalog())
    (*_, last) = steps
    assert isinstance(last, Explain)
    return list(last.plan.nodes), last


def edges(sql: str) -> dict[str, EdgeSpec]:
    nodes, _ = planned(sql)
    return {node.name: node.edge(at) for node in nodes for at in range(len(node.inputs)) if not node.edge(at).plain}


def refusal(sql: str) -> str:
    with pytest.raises(SqlError) as refused:
        planned(sql)
    return refused.value.message


# -- plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM ticks LATEST", {"q.project1": EdgeSpec("linecutting", (2,))}),
        ("SELECT k, v FROM ticks LATEST USING FIFO WHERE v > 2", {"q.filter1": EdgeSpec("fifo", (2,))}),
        ("SELECT k FROM (SELECT * FROM ticks LATEST) WHERE v > 2", {"q.filter1": EdgeSpec("linecutting", (2,))}),
        ("SELECT k, v FROM (SELECT v, k FROM ticks) LATEST", {"q.project2": EdgeSpec("linecutting", (1,))}),
        ("SELECT * FROM totals LATEST", {"q.project1": EdgeSpec("inplace", (0,))}),
        (
            "SELECT * FROM (SELECT k, max(v) AS v FROM plain GROUP BY k) LATEST",
            {"q.project1": EdgeSpec("inplace", (0,))},
        ),
        ("SELECT * FROM ticks LATEST USING APPEND", {}),
        ("SELECT * FROM ticks LATEST USING AUTO", {"q.project1": EdgeSpec("auto", (2,))}),
        ("SELECT sum(v) AS v FROM ticks LATEST USING INPLACE", {"q.aggregate1": EdgeSpec("inplace", (2,))}),
        ("SELECT v FROM plain SHED RANDOM 7", {"q.project1": EdgeSpec(shed=7)}),
        ("SELECT v FROM ticks SHED RANDOM 7 WHERE v > 2", {"q.filter1": EdgeSpec(shed=7)}),
        (
            "SELECT a.v FROM plain a SHED RANDOM 7 [RANGE '1 s'] JOIN ticks b [RANGE '1 s'] ON a.k = b.k",
            {"q.project1": EdgeSpec(shed=7)},
        ),
        (
            "SELECT k, v FROM ticks LATEST UNION ALL SELECT k, v FROM ticks LATEST USING FIFO",
            {"q.project1": EdgeSpec("linecutting", (2,)), "q.project2": EdgeSpec("fifo", (2,))},
        ),
        (
            "SELECT k, sum(v) AS v FROM HOP(ticks, at, '1 s', '3 s') LATEST EAGER USING FIFO WHERE v > 0 GROUP BY k",
            {"q.aggregate1": EdgeSpec("fifo", (2,), TimeWindow(3_000_000, 1_000_000), "eager")},
        ),
        (
            "SELECT k, sum(v) AS v FROM TUMBLE(ticks, at, '3 s') LATEST USING AUTO GROUP BY k",
            {"q.aggregate1": EdgeSpec("auto", (2,), TimeWindow(3_000_000, 3_000_000), "lazy")},
        ),
        (
            "SELECT k, sum(v) AS v, window_end FROM ticks [RANGE '2 s' SLIDE '2 s'] LATEST GROUP BY k, window_end",
            {"q.aggregate1": EdgeSpec("linecutting", (2,), TimeWindow(2_000_000, 2_000_000), "lazy")},
        ),
    ],
)
def test_the_edge_belongs_to_the_first_operator_that_reads_it(sql: str, expected: dict[str, EdgeSpec]) -> None:
    assert edges(sql) == expected


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT * FROM plain LATEST", "its input has no key"),
        ("SELECT * FROM (SELECT * FROM ticks WHERE v > 1) LATEST", "its input has no key"),
        ("SELECT * FROM ticks.late LATEST", "its input has no key"),
        ("SELECT * FROM loose LATEST", "latent"),
        ("SELECT * FROM ticks LATEST USING inplaec", "did you mean inplace?"),
        ("SELECT * FROM ticks LATEST SHED RANDOM 5", "one policy"),
        ("SELECT * FROM (SELECT * FROM ticks LATEST) LATEST", "one policy"),
        ("SELECT * FROM (SELECT * FROM ticks LATEST) SHED RANDOM 5", "one policy"),
        ("SELECT * FROM ticks LATEST LAZY", "TUMBLE"),
        ("SELECT v FROM ticks LATEST", "select k too"),
        ("SELECT * FROM totals SHED RANDOM 5", "write LATEST instead"),
        ("SELECT * FROM plain SHED RANDOM 0", "from 1 to"),
        ("SELECT * FROM HOP(ticks, at, '1 s', '2 s') LATEST", "aggregate it"),
        (
            "SELECT DISTINCT v FROM HOP(ticks, at, '1 s', '2 s') LATEST",
            "expected GROUP BY with k and the window's bounds only",
        ),
        (
            "SELECT sum(v) AS v FROM HOP(ticks, at, '1 s', '2 s') LATEST",
            "expected GROUP BY with k and the window's bounds only",
        ),
        (
            "SELECT k, v, count(*) AS n FROM HOP(ticks, at, '1 s', '2 s') LATEST GROUP BY k, v",
            "expected GROUP BY with k and the window's bounds only",
        ),
        ("SELECT count(*) AS n FROM HOP(ticks, at, '1 s', '2 s') LATEST GROUP BY k", "select this column too"),
        (
            "SELECT k, count(*) AS n FROM HOP(plain, at, '1 s', '2 s') LATEST GROUP BY k",
            "expected a stream WITH (update_key = '...')",
        ),
        ("SELECT k, count(*) AS n FROM SESSION(ticks, at, '1 s') LATEST GROUP BY k", "sessions"),
        ("SELECT k, count(*) AS n FROM TUMBLE(ticks, at, '1 s') LATEST USING APPEND GROUP BY k", "remove LATEST"),
        ("SELECT k, count(*) AS n FROM TUMBLE(ticks, at, '1 s') LATEST EAGER USING AUTO GROUP BY k", "write LAZY"),
        ("SELECT * FROM ticks LATEST USING AUTOM", "did you mean auto?"),
        ("SELECT count(*) AS n FROM (SELECT v FROM plain SHED RANDOM 5) [ROWS 5 SLIDE 5]", "every tuple"),
        (
            "SELECT a.v FROM plain a JOIN LATEST ticks b LATEST ON a.k = b.k",
            "remove LATEST and SHED RANDOM from its input",
        ),
        (
            "SELECT a.v FROM plain a JOIN LATEST ticks b SHED RANDOM 5 ON a.k = b.k",
            "remove LATEST and SHED RANDOM from its input",
        ),
        (
            "SELECT a.v FROM plain a JOIN LATEST (SELECT * FROM ticks LATEST) b ON a.k = b.k",
            "remove LATEST and SHED RANDOM from its input",
        ),
        (
            "SELECT a.v FROM plain a JOIN LATEST (SELECT * FROM ticks SHED RANDOM 5) b ON a.k = b.k",
            "remove LATEST and SHED RANDOM from its input",
        ),
        (
            "SELECT a.v FROM plain a JOIN LATEST (SELECT k FROM ticks SHED RANDOM 5) b ON a.k = b.k",
            "but b is not an update stream",
        ),
        ("SELECT * FROM (SELECT k, v FROM ticks SHED RANDOM 5) LATEST", "its input has no key"),
        ("SELECT a.v FROM plain a JOIN ticks b LATEST ON a.k = b.k", "JOIN LATEST"),
    ],
)
def test_invalid_clauses_are_refused_with_the_reason(sql: str, text: str) -> None:
    assert text in refusal(sql)


def test_an_order_of_time_and_the_newest_first_exclude_each_other() -> None:
    with pytest.raises(SqlError, match="order = 'arrival'") as refused:
        plan_all(parse(f"{STREAMS} CREATE QUERY d WITH (order = 'event') AS SELECT * FROM ticks LATEST"), Catalog())
    assert refused.value.column == 63


# Final places, of windows that replace each other or of all.
PLACES = (
    "SELECT k, w, n FROM (SELECT k, count(*) AS n, window_end AS w FROM TUMBLE(ticks, at, '1 s') {} GROUP BY k, "
    "window_end) QUALIFY ROW_NUMBER() OVER (PARTITION BY w ORDER BY n DESC) <= 2"
)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM ticks LATEST", "final"),
        ("SELECT v, count(*) AS n FROM ticks LATEST GROUP BY v", "final"),
        ("SELECT k, count(*) AS n FROM TUMBLE(ticks, at, '1 s') LATEST GROUP BY k", "final"),
        (PLACES.format("LATEST"), "load"),
        (PLACES.format(""), "rows"),
        ("SELECT count(*) AS n FROM TUMBLE((SELECT * FROM ticks LATEST), at, '1 s')", "load"),
        ("SELECT count(*) AS n FROM TUMBLE((SELECT k, v FROM ticks LATEST WHERE v > 1), ts, '1 s')", "load"),
        ("SELECT * FROM plain SHED RANDOM 5", "load"),
        ("SELECT * FROM ticks", "rows"),
    ],
)
def test_comparable_results(sql: str, expected: str) -> None:
    assert f"equality {expected}\n" in planned(sql)[1].text


def test_windows_over_a_query_of_the_newest_depend_on_the_load() -> None:
    sql = (
        "CREATE QUERY d AS SELECT * FROM ticks LATEST; CREATE QUERY w AS SELECT count(*) AS n FROM TUMBLE(d, at, '1 s')"
    )
    _, catalog = plan_all(parse(STREAMS + sql), Catalog())
    assert [equality(catalog.queries[name], catalog) for name in ("d", "w")] == ["final", "load"]


def test_explain_shows_the_edge() -> None:
    text = planned("SELECT k, sum(v) AS v FROM TUMBLE(ticks, at, '1 s') LATEST GROUP BY k")[1].text
    assert "<- ticks.source LATEST LAZY USING LINECUTTING by k\n" in text
    assert "update key k" in text
    assert "<- plain.source SHED RANDOM 5\n" in planned("SELECT v FROM plain SHED RANDOM 5")[1].text


# -- rows --------------------------------------------------------------------------------------------------------------


def ticks(seed: int, *, keys: int, disorder: int = 0) -> list[Row]:
    draw = random.Random(seed)
    times = sorted(draw.sample(range(400), 150), key=lambda at: at + draw.randrange(disorder + 1))
    return [{"at": at, "v": draw.randrange(100), "k": f"k{draw.randrange(keys)}"} for at in times]


def events(rows: list[Row]) -> list[Row]:
    reached = 0
    lines = []
    for row in rows:
        reached = max(reached, row["at"])
        lines.append({"at": reached, "stream": "ticks", "tuple": row})
    return lines


def stream(queue: str = "inplace", disorder: int = 0) -> str:
    options = f"time = 'at', disorder = '{disorder} us', update_key = 'k', queue = '{queue}'"
    return f"CREATE STREAM ticks (at TIMESTAMP, v BIGINT, k TEXT) WITH ({options});"


@pytest.mark.parametrize("queue", ["append", "auto", "fifo", "inplace", "linecutting"])
@pytest.mark.parametrize("cost", [None, "1", "9"])
def test_under_any_load_the_newest_rows_come_out_and_an_audit_loses_nothing(
    queue: str, cost: str | None, tmp_path: Path
) -> None:
    rows = ticks(1, keys=5, disorder=20)
    sql = "CREATE QUERY d AS SELECT * FROM ticks LATEST; CREATE QUERY audit AS SELECT * FROM ticks;"
    result = run_events(stream(queue, 20) + sql, events(rows), tmp_path, cost=cost)
    final = {row["k"]: row for row in sorted(rows, key=lambda row: row["at"])}
    newest: dict[str, Row] = {}
    for row in result.rows["d"]:
        if row["k"] not in newest or row["at"] >= newest[row["k"]]["at"]:
            newest[row["k"]] = row
    assert newest == final
    assert sorted(map(str, result.rows["audit"])) == sorted(map(str, rows))
    (operator,) = (operator for operator in result.engine.operators() if operator.name == "d.project1")
    queue_view = operator.inputs[0].queue
    if queue in ("append", "auto"):  # no span is over: it would have to last a second
        assert len(result.rows["d"]) == len(rows)
    else:
        assert queue_view is not None
        assert queue_view.superseded == len(rows) - len(result.rows["d"])
        assert (cost != "9") or len(result.rows["d"]) < len(rows)


def windows_of(rows: list[Row], size: int, slide: int) -> dict[str, dict[int, tuple[int, int]]]:
    """Every window of every key: the number of rows, and their sum."""
    windows: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    for row in rows:
        last = row["at"] - row["at"] % slide
        for start in range(last, row["at"] - size, -slide):
            count, total = windows[row["k"]].get(start, (0, 0))
            windows[row["k"]][start] = count + 1, total + row["v"]
    return windows


@pytest.mark.parametrize(
    ("commit", "kind"), [*product(("LAZY", "EAGER"), ("FIFO", "INPLACE", "LINECUTTING")), ("LAZY", "AUTO")]
)
@pytest.mark.parametrize(("size", "slide", "disorder"), [(40, 40, 0), (60, 20, 0), (10, 30, 0), (60, 20, 15)])
@pytest.mark.parametrize("cost", [None, "5"])
def test_windows_are_whole_go_forward_and_end_with_the_newest(
    commit: str, kind: str, size: int, slide: int, disorder: int, cost: str | None, tmp_path: Path
) -> None:
    rows = ticks(size + slide, keys=3, disorder=disorder)
    sql = f"""CREATE QUERY d AS SELECT count(*) AS n, k, window_start, sum(v) AS v
              FROM HOP(ticks, at, '{slide} us', '{size} us') LATEST {commit} USING {kind} GROUP BY k, window_start"""
    for close in (True, False):
        result = run_events(stream(disorder=disorder) + sql, events(rows), tmp_path, cost=cost, close=close)
        expected = windows_of(rows, size, slide)
        last: dict[str, int] = {}
        for row in result.rows["d"]:
            assert (row["n"], row["v"]) == expected[row["k"]][row["window_start"]]
            assert row["window_start"] > last.get(row["k"], -1000)
            last[row["k"]] = row["window_start"]
        if close:
            assert last == {key: max(starts) for key, starts in expected.items()}
        if close and kind == "AUTO":  # all of them: no span is over
            assert len(result.rows["d"]) == sum(map(len, expected.values()))


@pytest.mark.parametrize("commit", ["LAZY", "EAGER"])
def test_windows_before_1970_are_like_any_other(commit: str, tmp_path: Path) -> None:
    rows = [{**row, "at": row["at"] - 1_000_000} for row in ticks(60, keys=3)]
    sql = f"""CREATE QUERY d AS SELECT k, window_start, count(*) AS n, sum(v) AS v
              FROM HOP(ticks, at, '20 us', '60 us') LATEST {commit} GROUP BY k, window_start"""
    emitted = run_events(stream() + sql, events(rows), tmp_path).rows["d"]
    expected = windows_of(rows, 60, 20)
    assert all((row["n"], row["v"]) == expected[row["k"]][row["window_start"]] for row in emitted)
    assert {row["k"]: row["window_start"] for row in emitted} == {key: max(starts) for key, starts in expected.items()}


def test_conditions_over_the_newest_windows_take_rows_back(tmp_path: Path) -> None:
    rows = ticks(3, keys=2)
    sql = """CREATE QUERY d AS SELECT k, sum(v) AS v FROM TUMBLE(ticks, at, '40 us') LATEST
             WHERE v > 10 GROUP BY k HAVING sum(v) > 300"""
    result = run_events(stream() + sql, events(rows), tmp_path)
    windows = windows_of([row for row in rows if row["v"] > 10], 40, 40)
    final = {key: starts[max(starts)][1] for key, starts in windows.items()}
    current: dict[str, int | None] = {}
    for row in result.rows["d"]:
        current[row["k"]] = None if row.get("$gone") else row["v"]
    assert {key: v for key, v in current.items() if v is not None} == {key: v for key, v in final.items() if v > 300}
    assert None in current.values() or len(result.rows["d"]) > len(current)


def test_shedding_keeps_so_many_and_counts_the_rest(tmp_path: Path) -> None:
    rows = [{"at": 1, "v": number, "k": "a"} for number in range(100)]
    result = run_events(stream() + "CREATE QUERY d AS SELECT v FROM ticks SHED RANDOM 10;", events(rows), tmp_path)
    values = [row["v"] for row in result.rows["d"]]
    (operator,) = (operator for operator in result.engine.operators() if operator.name == "d.project1")
    queue_view = operator.inputs[0].queue
    assert queue_view is not None
    assert len(values) + queue_view.shed == 100
    assert values == sorted(values)
    assert queue_view.shed > 0
