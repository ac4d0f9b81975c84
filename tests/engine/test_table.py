"""The state table: the papers' tables, and that the scheduler reads nothing else."""

from __future__ import annotations

import pytest

from millrace.engine.events import DropQuery, SetBreak, SetStrategy
from millrace.engine.scheduler.rules import RULES
from millrace.engine.scheduler.table import Role, Strategy, StrategyKind
from millrace.protocol import Refuse
from tests.engine.graphs import Bench, arrive, figure_4, path, plan, refusal, union


def rows_of(bench: Bench, component: str) -> list[tuple[str, str, str, str]]:
    """The table as the papers print it: one line per successor of a fork, `-` for none."""
    return [
        (row.state, " ".join(row.pred) or "-", succ, row.transition)
        for row in bench.engine.table(component).rows
        for succ in (row.succ or ["-"])
    ]


def test_table_1_a_single_path() -> None:
    bench = Bench("s")
    bench.query(path("q", 2))
    assert rows_of(bench, "s") == [
        ("s.source", "-", "q.Q1", "DFS-Source"),
        ("q.Q1", "s.source", "q.Q2", "DFS-NOS"),
        ("q.Q2", "q.Q1", "-", "DFS-Sink"),
    ]


def test_table_2_a_virtual_break_point() -> None:
    bench = Bench("s")
    bench.query(path("q", 2))
    bench.do(SetBreak("q.Q1", on=True))
    assert rows_of(bench, "s") == [
        ("s.source", "-", "q.Q1", "DFS-Source"),
        ("q.Q1", "s.source", "-", "DFS-Sink"),
        ("q.Q2", "-", "-", "DFS-Source-Sink"),
    ]
    bench.do(SetBreak("q.Q1", on=False))
    assert rows_of(bench, "s")[1] == ("q.Q1", "s.source", "q.Q2", "DFS-NOS")


def test_table_3_a_fork() -> None:
    bench = Bench("s")
    bench.query(path("p", 1))
    bench.query(path("q", 1))
    assert rows_of(bench, "s") == [
        ("s.source", "-", "s.fork1", "DFS-Source"),
        ("s.fork1", "s.source", "p.Q1", "DFS-Fork"),
        ("s.fork1", "s.source", "q.Q1", "DFS-Fork"),
        ("p.Q1", "s.fork1", "-", "DFS-Sink"),
        ("q.Q1", "s.fork1", "-", "DFS-Sink"),
    ]
    bench.do(DropQuery("q"))
    assert rows_of(bench, "s") == [
        ("s.source", "-", "p.Q1", "DFS-Source"),
        ("p.Q1", "s.source", "-", "DFS-Sink"),
    ]


def test_a_rule_is_decided_for_every_role_and_strategy() -> None:
    assert {kind: set(rules) for kind, rules in RULES.items()} == {kind: set(Role) for kind in StrategyKind}


@pytest.mark.parametrize("kind", list(StrategyKind))
@pytest.mark.parametrize("role", [Role.SOURCE, Role.INNER, Role.SINK, Role.SOURCE_SINK, Role.FORK, Role.WAITING])
def test_changing_one_row_changes_the_next_trace_line(role: Role, kind: StrategyKind) -> None:
    """Each rule of the library, put into one row: its name is in the table and in the trace, no neighbour's changes."""
    bench = Bench("a", "b")
    bench.query(figure_4("u", ordered=True), "dfs(1)")
    bench.query(path("p", 3, "a"), "dfs(1)")
    operator = {
        Role.SOURCE: "p.Q2",  # the first operator after a break point
        Role.INNER: "p.Q2",
        Role.SINK: "p.Q3",
        Role.SOURCE_SINK: "p.Q3",
        Role.FORK: "a.fork1",
        Role.WAITING: "u.U",
    }[role]
    if role is Role.SOURCE:
        bench.do(SetBreak("p.Q1", on=True))
    if role is Role.SOURCE_SINK:
        bench.do(SetBreak("p.Q2", on=True))
    before = {row[0]: row[3] for row in rows_of(bench, "a")}
    strategy = f"{kind.value}(7)"
    bench.do(SetStrategy("a", strategy, operator))
    after = {row[0]: row[3] for row in rows_of(bench, "a")}
    assert after.pop(operator) == f"{strategy.upper()}-{role.value}"
    before.pop(operator)
    assert after == before
    executions = bench.run(arrive("a", 1, 2, 3), arrive("b", 4)).executions
    rules = {execution.rule for execution in executions if execution.operator == operator}
    # A fork is never executed: what it decides is where the executions of its neighbours lead.
    assert rules == (set() if role is Role.FORK else {f"{strategy.upper()}-{role.value}"})


def test_the_fork_decides_by_its_own_row_alone() -> None:
    """Depth first, a fork backtracks when its branches are empty; round robin exits. Both leave no tuple."""
    for strategy in ("dfs(1)", "rr(1)"):
        bench = Bench("s")
        bench.query(path("p", 1), "dfs(1)")
        bench.query(path("q", 1), "dfs(1)")
        bench.do(SetStrategy("s", strategy, "s.fork1"))
        assert bench.visits(arrive("s", 1, 2)) == "Q1 Q1 Q1 Q1"


def test_round_robin_sets_break_points_of_its_own_where_the_graph_is_no_path() -> None:
    bench = Bench("a", "b")
    bench.query(figure_4(ordered=False))
    bench.query(path("p", 1, "a"))
    bench.do(SetStrategy("a", "rr"))
    (component,) = bench.engine.components()
    assert component.breaks == {"a.source": "rr", "u.A": "rr", "u.B": "rr"}
    table = {row[0]: row[1:] for row in rows_of(bench, "a")}
    assert table["u.A"] == ("a.fork1", "-", "RR-Sink")
    assert table["u.U"] == ("-", "-", "RR-Source-Sink")
    assert refusal(bench, SetBreak("a.fork1", on=True)).startswith("a.fork1 is a fork")
    bench.do(SetStrategy("a", "dfs"))
    assert bench.engine.components()[0].breaks == {}


def test_a_break_point_is_set_once_and_unset_once() -> None:
    bench = Bench("s")
    bench.query(path("q", 2))
    bench.do(SetBreak("q.Q1", on=True))
    assert refusal(bench, SetBreak("q.Q1", on=True)) == "operator q.Q1 already has a break point"
    bench.do(SetBreak("q.Q1", on=False))
    assert "no break point" in refusal(bench, SetBreak("q.Q1", on=False))
    assert refusal(bench, SetBreak("q.sink1", on=True)).startswith("q.sink1 is a sink")
    assert refusal(bench, SetBreak("q.none", on=True)) == "operator q.none does not exist"


@pytest.mark.parametrize("text", ["", "depth", "dfs(0)", "dfs()", "dfs(-1)", "dfs(1", "rr(1)x", "dfs(9999999999)"])
def test_a_strategy_that_makes_no_sense_is_refused_and_changes_nothing(text: str) -> None:
    bench = Bench("s")
    bench.query(path("q", 1))
    before = bench.engine.save()
    assert "strategy" in refusal(bench, SetStrategy("s", text))
    assert bench.engine.save() == before


def test_strategies_are_read_and_printed_alike() -> None:
    for text in ("dfs", "bfs(4)", "rr", "dfs(16384)"):
        assert str(Strategy.parse(text)) == text
    assert str(Strategy.parse(" DFS ( 2 ) ")) == "dfs(2)"
    with pytest.raises(Refuse):
        Strategy.parse("chainsaw")


def test_an_operator_of_another_component_is_refused() -> None:
    bench = Bench("s", "t")
    bench.query(path("q", 1))
    bench.query(path("p", 1, "t"))
    assert refusal(bench, SetStrategy("s", "bfs", "p.Q1")) == "operator p.Q1 is not in component s but in t"
    assert refusal(bench, SetStrategy("x", "bfs")) == "component x does not exist; there are: s, t"


def test_a_union_that_reads_one_stream_twice_has_a_fork_of_two_branches() -> None:
    bench = Bench("s")
    bench.query(plan("u", ("U", union(), ["s.source", "s.source"])))
    assert rows_of(bench, "s")[:3] == [
        ("s.source", "-", "s.fork1", "DFS-Source"),
        ("s.fork1", "s.source", "u.U", "DFS-Fork"),
        ("s.fork1", "s.source", "u.U", "DFS-Fork"),
    ]
