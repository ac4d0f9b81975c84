"""The order in which the strategies visit operators, against traces worked out by hand from the papers' rules."""

from __future__ import annotations

import pytest

from millrace.engine.events import SetBreak, SetStrategy
from tests.engine.graphs import (
    TV,
    Bench,
    arrive,
    at_times,
    compare,
    external,
    figure_4,
    identity,
    path,
    plan,
    punctuate,
    select,
)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        # Forward after each tuple; the operator before the sink ignores Forward and, with nothing more, backtracks.
        ("dfs(1)", "Q1 Q2 Q1 Q2 Q1 Q2"),
        # Encore before Forward: the first operator empties its input, then the second.
        ("bfs(1)", "Q1 Q1 Q1 Q2 Q2 Q2"),
        # As breadth first on a path: the difference is only in how a cycle ends.
        ("rr(1)", "Q1 Q1 Q1 Q2 Q2 Q2"),
        # At most two tuples an execution, never three.
        ("dfs(2)", "Q1 Q2 Q1 Q2"),
        ("dfs(3)", "Q1 Q2"),
        ("dfs", "Q1 Q2"),
        ("bfs(2)", "Q1 Q1 Q2 Q2"),
    ],
)
def test_a_burst_of_three_on_a_path_of_two(strategy: str, expected: str) -> None:
    bench = Bench("s")
    bench.query(path("q", 2), strategy)
    assert bench.visits(arrive("s", 1, 2, 3)) == expected


def test_a_path_of_three_goes_deep_before_it_takes_the_next_tuple() -> None:
    bench = Bench("s")
    bench.query(path("q", 3), "dfs(1)")
    assert bench.visits(arrive("s", 1, 2)) == "Q1 Q2 Q3 Q1 Q2 Q3"


def test_a_filtered_tuple_ends_its_descent_where_it_is_dropped() -> None:
    bench = Bench("s")
    bench.query(plan("q", ("S", select(compare(">", 5)), ["s.source"]), ("M", identity(), ["S"])), "dfs(1)")
    # 1 is dropped: no yield, but more, so Encore.
    assert bench.visits(arrive("s", 1, 9, 2)) == "S S M S"


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        # A1 goes forward to the union, which is executed and, with both inputs empty, backtracks to the first one; that
        # has more. When the left side is empty, the cycle ends at the left source and starts again at the right one.
        ("dfs(1)", "A U A U B U"),
        ("bfs(1)", "A A U U B U"),
    ],
)
def test_a_union_in_order_of_arrival(strategy: str, expected: str) -> None:
    bench = Bench("a", "b")
    bench.query(figure_4(ordered=False), strategy)
    assert bench.visits(arrive("a", 1, 2), arrive("b", 3)) == expected


def test_an_ordered_union_backtracks_to_the_input_that_holds_it_back() -> None:
    bench = Bench(external("a", ets="none"), external("b", ets="none"))
    bench.query(figure_4(ordered=True), "dfs(1)")
    # Five of a wait: each is brought to the union, which can take none and finds the source of b empty.
    assert bench.visits(at_times("a", 10, 20, schema=TV)) == "A U A U"
    # 15 of b frees 10 of a (and itself), and 20 has to wait.
    assert bench.visits(at_times("b", 15, schema=TV)) == "B U U"


def test_a_fork_visits_its_readers_in_turn() -> None:
    bench = Bench("s")
    bench.query(path("p", 1), "dfs(1)")
    bench.query(path("q", 1), "dfs(1)")
    executed = [execution.operator for execution in bench.run(arrive("s", 1, 2)).executions]
    # Each reader, before its sink, continues until its own head has passed everything; then the fork has its turn.
    assert executed == ["p.Q1", "p.Q1", "q.Q1", "q.Q1"]
    # Round-robin: the next burst starts with the branch whose turn it is.
    again = [execution.operator for execution in bench.run(arrive("s", 3)).executions]
    assert again == ["p.Q1", "q.Q1"]


def test_a_break_point_makes_two_fragments_of_a_path() -> None:
    bench = Bench("s")
    bench.query(path("q", 3), "dfs(1)")
    bench.do(SetBreak("q.Q1", on=True))
    # Q1 is the sink of the first fragment, so it ignores Forward; the second fragment runs depth first by itself.
    assert bench.visits(arrive("s", 1, 2)) == "Q1 Q1 Q2 Q3 Q2 Q3"
    bench.do(SetBreak("q.Q1", on=False))
    assert bench.visits(arrive("s", 1, 2)) == "Q1 Q2 Q3 Q1 Q2 Q3"


def test_operators_of_one_graph_run_under_different_rules() -> None:
    bench = Bench("s")
    bench.query(path("q", 3), "dfs(1)")
    bench.do(SetStrategy("s", "bfs(1)", "q.Q2"))
    # Q1 goes forward after each tuple; Q2 has one tuple at a time, so its Encore finds nothing.
    assert bench.visits(arrive("s", 1, 2)) == "Q1 Q2 Q3 Q1 Q2 Q3"
    bench.do(SetStrategy("s", "bfs(1)", "q.Q1"))
    # Now Q1 empties its input first, then Q2 does, then Q3.
    assert bench.visits(arrive("s", 1, 2)) == "Q1 Q1 Q2 Q2 Q3 Q3"


def test_no_strategy_leaves_a_tuple_behind_when_rules_are_mixed() -> None:
    bench = Bench("s")
    bench.query(path("q", 3), "dfs(1)")
    bench.do(SetStrategy("s", "rr(1)", "q.Q2"))
    # Round robin exits where Q1's depth-first rule counted on being backtracked to.
    effects = bench.run(arrive("s", 1, 2, 3))
    assert sum(len(order.batch) for order in effects.orders if hasattr(order, "batch")) == 3


def test_the_trace_tells_the_rule_and_where_it_led() -> None:
    bench = Bench("s")
    bench.query(path("q", 2), "dfs(2)")
    first, second, *_ = bench.run(arrive("s", 1, 2, 3)).executions
    assert (first.operator, first.rule, first.took, first.gave, first.next) == ("q.Q1", "DFS(2)-NOS", 2, 2, "q.Q2")
    assert (second.operator, second.rule, second.took, second.next) == ("q.Q2", "DFS(2)-Sink", 2, "q.Q1")


def test_a_step_ends_with_its_budget_and_the_next_goes_on_in_the_same_cycle() -> None:
    whole, cut = Bench("s"), Bench("s")
    for bench in (whole, cut):
        bench.query(path("q", 3), "dfs(1)")
    expected = [(e.operator, e.took, e.next) for e in whole.run(arrive("s", *range(7))).executions]
    got = [(e.operator, e.took, e.next) for e in cut.run(arrive("s", *range(7)), budget=2, executions=1).executions]
    assert got == expected


def test_an_idle_engine_makes_no_executions() -> None:
    bench = Bench("s")
    bench.query(path("q", 2))
    bench.run(arrive("s", 1))
    effects = bench.run(punctuate("s", 10**9))
    assert effects.executions == []
    assert not effects.more
