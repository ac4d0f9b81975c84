"""Components: found, merged, split, and sharing the processor."""

from __future__ import annotations

import pytest

from millrace.engine.events import (
    AddQuery,
    AddStream,
    Change,
    CommandBody,
    DropQuery,
    DropStream,
    SetStrategy,
    SetWeight,
)
from millrace.engine.plan import StreamDefinition
from millrace.engine.scheduler.turns import QUANTUM
from tests.engine.graphs import Bench, V, arrive, figure_4, path, plan, refusal, rows, union


def names(bench: Bench) -> list[str]:
    return [component.name for component in bench.engine.components()]


def test_streams_that_nothing_connects_are_components_of_their_own() -> None:
    bench = Bench("s", "t")
    bench.query(path("q", 1))
    assert names(bench) == ["s", "t"]


def test_a_query_over_two_streams_merges_their_components_and_dropping_it_splits_them() -> None:
    bench = Bench("a", "b")
    bench.query(path("p", 1, "a"))
    bench.query(path("q", 1, "b"))
    bench.do(SetStrategy("b", "bfs(3)"))
    bench.query(figure_4(ordered=False))
    assert names(bench) == ["a"]
    # Existing rows keep their rule; new operators take the strategy of the component that continues.
    assert bench.rule("q.Q1") == "BFS(3)-Sink"
    assert bench.rule("p.Q1") == "DFS-Sink"
    assert bench.rule("u.U") == "DFS-Sink"
    bench.do(DropQuery("u"))
    assert names(bench) == ["a", "b"]
    assert bench.rule("q.Q1") == "BFS(3)-Sink"
    assert rows(bench.run(arrive("b", 7)), "q") == [(7,)]


def test_merging_in_the_middle_of_a_cycle_loses_nothing() -> None:
    bench = Bench("a", "b")
    bench.query(path("p", 3, "a"), "dfs(1)")
    first = bench.step(arrive("a", *range(10)), executions=4)
    assert first.more
    bench.query(figure_4(ordered=False))
    rest = bench.run()
    assert rows(first, "p") + rows(rest, "p") == [(value,) for value in range(10)]


def test_a_query_over_a_query_reads_its_result_and_keeps_it_alive() -> None:
    bench = Bench("s")
    bench.query(path("p", 1))
    bench.query(plan("q", ("U", union(), ["p.Q1"])))
    assert names(bench) == ["s"]
    effects = bench.run(arrive("s", 1, 2))
    assert rows(effects, "p") == rows(effects, "q") == [(1,), (2,)]
    assert refusal(bench, DropQuery("p")) == "query p is read by q: drop them first"
    assert refusal(bench, DropStream("s")) == "stream s is read by p: drop them first"


def test_names_are_taken_once() -> None:
    bench = Bench("s")
    bench.query(path("q", 1))
    before = bench.engine.save()
    assert refusal(bench, AddQuery(path("q", 2), None)) == "query q already exists"
    assert refusal(bench, AddQuery(path("s", 2), None)) == "stream s already exists"
    assert refusal(bench, AddStream(StreamDefinition("q", V))) == "query q already exists"
    assert refusal(bench, AddQuery(path("r", 1, "nowhere"), None)).startswith(
        "query r reads operator nowhere.source, which does not exist"
    )
    assert refusal(bench, DropQuery("nothing")) == "query nothing does not exist"
    assert bench.engine.save() == before


def test_a_busy_component_does_not_starve_another() -> None:
    bench = Bench("s", "t")
    bench.query(path("q", 1), "dfs(256)")
    bench.query(path("p", 1, "t"), "dfs(256)")
    effects = bench.step(arrive("s", *range(20 * QUANTUM)), arrive("t", 1), budget=2 * QUANTUM)
    assert effects.more
    assert rows(effects, "p") == [(1,)]


def test_a_branch_that_never_comes_to_its_end_does_not_starve_another() -> None:
    """Each of five branches takes a tenth of the input of a step: together less than all of it."""
    bench = Bench("s")
    for name in "pqrst":
        bench.query(path(name.upper(), 2, "s"), "dfs(1)")
    for number in range(0, 1000, 20):
        bench.step(arrive("s", *range(number, number + 20)), budget=20)
    operators = {operator.name: operator.input_tuples for operator in bench.engine.operators()}
    taken = {name: operators[f"{name.upper()}.Q1"] for name in "pqrst"}
    assert sum(taken.values()) > 400
    assert min(taken.values()) > max(taken.values()) // 2, taken


def test_weights_share_the_processor() -> None:
    bench = Bench("s", "t")
    bench.query(path("q", 1), "dfs(256)")
    bench.query(path("p", 1, "t"), "dfs(256)")
    bench.do(SetWeight("t", 3))
    effects = bench.step(arrive("s", *range(20 * QUANTUM)), arrive("t", *range(20 * QUANTUM)), budget=8 * QUANTUM)
    assert len(rows(effects, "p")) == 3 * len(rows(effects, "q")) == 6 * QUANTUM
    assert "whole number" in refusal(bench, SetWeight("t", 0))


def test_a_step_is_bounded_however_many_components_are_busy() -> None:
    streams = [f"s{n}" for n in range(5)]
    bench = Bench(*streams)
    for stream in streams:
        bench.query(path(f"q_{stream}", 2, stream), "dfs(10)")
    effects = bench.step(*(arrive(stream, *range(1000)) for stream in streams), budget=100)
    taken = sum(execution.took for execution in effects.executions)
    assert 100 <= taken < 110


@pytest.mark.parametrize("first", ["stream", "query"])
def test_a_stream_and_a_query_of_another_one_come_in_one_change(first: str) -> None:
    bench = Bench("s")
    bench.query(path("q", 1))
    commands: list[CommandBody] = [AddStream(StreamDefinition("t", V)), AddQuery(path("p", 1))]
    bench.do(Change(tuple(commands if first == "stream" else commands[::-1])))
    assert [component.name for component in bench.engine.components()] == ["s", "t"]
    assert (bench.rule("t.source"), len(bench.engine.table("t").rows)) == ("DFS-Source", 1)
    assert rows(bench.run(arrive("s", 1), arrive("t", 2)), "p") == [(1,)]
