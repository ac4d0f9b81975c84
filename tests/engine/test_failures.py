"""A failed query stops alone, reports the reason, and can start again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import (
    Command,
    DropQuery,
    Effects,
    FeedOpened,
    Grant,
    JoinTurned,
    PauseQuery,
    QueryFailed,
    ResumeQuery,
    SetOrder,
)
from millrace.engine.plan import QueryPlan
from millrace.operators.frame.operator import Operator
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.join.bands import Band
from millrace.protocol.admin.changes import ResumeReply
from millrace.protocol.admin.queries import JoinOrderView
from tests.engine.graphs import (
    TV,
    Bench,
    arrive,
    external,
    figure_4,
    give_tv,
    identity,
    path,
    plan,
    punctuate,
    refusal,
    rows,
    select,
    union,
)
from tests.engine.test_joins import joined, pairs
from tests.engine.test_windows import counted


class Fails(Bench):
    """A bench whose queries may fail."""

    may_fail = True

    def breaks(self, name: str, *, after: int = 0) -> Operator:
        """Let an operator raise at an execution from now on."""
        operator = self.engine.graph.operators[name]
        execute = operator.execute
        left = [after]

        def broken(limit: int) -> int:
            if not left[0]:
                raise ValueError("it is broken")
            left[0] -= 1
            return execute(limit)

        operator.execute = broken  # type: ignore[method-assign]
        return operator

    def state(self, name: str) -> tuple[Any, ...]:
        (found,) = (query for query in self.engine.queries() if query.name == name)
        return found.state, found.reason, found.lost


def failures(effects: Effects) -> list[QueryFailed]:
    return [order for order in effects.orders if isinstance(order, QueryFailed)]


def limited(made: QueryPlan, **options: Any) -> QueryPlan:
    return replace(made, options=replace(made.options, **options))


def windowed(name: str, *streams: str, **options: Any) -> QueryPlan:
    """Counts per window of 10 us over streams."""
    sources = [f"{stream}.source" for stream in streams]
    spec = counted(TimeWindow(10, 10))
    nodes = [("A", spec, sources)] if len(sources) == 1 else [("U", union(), sources), ("A", spec, ["U"])]
    return limited(plan(name, *nodes, schema=spec.schema([])), **options)


def test_neighbours_of_a_query_that_fails_lose_nothing() -> None:
    bench = Fails("s")
    bench.query(path("good", 2))
    bench.query(path("bad", 3))
    bench.breaks("bad.Q2", after=1)
    given: list[Any] = []
    for value in range(5):
        effects = bench.run(arrive("s", value))
        given += rows(effects, "good")
        told = failures(effects)
        assert len(told) == (value == 1)
        if told:
            assert told[0].query == "bad"
            assert told[0].reason == "bad.Q2 failed: ValueError: it is broken"
            assert "test_failures.py" in told[0].detail
    assert given == [(value,) for value in range(5)]
    assert bench.state("bad") == ("failed", "bad.Q2 failed: ValueError: it is broken", 1)
    assert bench.state("good") == ("running", None, 0)


def test_a_failed_query_begins_again_at_the_end_and_counts_what_it_missed() -> None:
    bench = Fails("s")
    bench.query(path("q", 2))
    operator = bench.breaks("q.Q1")
    assert rows(bench.run(arrive("s", 1)), "q") == []
    bench.run(arrive("s", 2, 3))
    assert bench.do(ResumeQuery("q")) == ResumeReply(query="q", skipped=3)
    assert bench.state("q")[0] == "running"
    effects = bench.run(arrive("s", 4))
    assert rows(effects, "q") == [(4,)]
    assert not failures(effects)
    new = bench.engine.graph.operators["q.Q1"]
    assert new is not operator
    assert new.counts is operator.counts


def test_the_broken_operator_of_a_window_loses_its_state_and_says_how_much() -> None:
    bench = Fails(external("s"))
    bench.query(windowed("q", "s"))
    bench.run(give_tv("s", 1, 2, 15))
    bench.breaks("q.A")
    bench.run(give_tv("s", 16, 17))
    state, _, lost = bench.state("q")
    assert state == "failed"
    assert lost == 1, "one group of the window that is open"
    assert bench.engine.operators()[1].state_tuples == 0
    bench.do(ResumeQuery("q"))
    # It starts like a new query, later than all earlier tuples: the window at 10 started before.
    effects = bench.run(give_tv("s", 18, 22, 31, 45))
    assert rows(effects, "q") == [(1, 20), (1, 30)]


def test_who_reads_a_failed_query_goes_on_when_it_does() -> None:
    bench = Fails("s")
    bench.query(path("q", 1))
    bench.query(plan("r", ("Q1", identity(), ["q.Q1"])))
    bench.breaks("q.Q1")
    bench.run(arrive("s", 1))
    why = bench.engine.why("r")
    assert why.reason == "failed"
    assert "r reads q, which failed: q.Q1 failed" in why.text
    assert why.try_ == "millrace query resume q"
    bench.do(ResumeQuery("q"))
    assert rows(bench.run(arrive("s", 2)), "r") == [(2,)]


def test_a_union_that_breaks_lets_go_of_what_waits() -> None:
    bench = Fails("a", "b")
    bench.query(figure_4(ordered=True))
    bench.run(arrive("a", 1, 2))
    bench.breaks("u.U")
    bench.run(arrive("b", 1))
    assert bench.engine.gauge.tuples == 0
    bench.do(ResumeQuery("u"))
    effects = bench.run(arrive("a", 3))
    effects.orders += bench.run(arrive("b", 4)).orders
    effects.orders += bench.run(at=1000).orders
    assert rows(effects, "u") == [(3,), (4,)]


def test_a_failed_query_can_be_dropped_but_not_paused() -> None:
    bench = Fails("s")
    bench.query(path("q", 1))
    bench.breaks("q.Q1")
    bench.run(arrive("s", 1))
    assert refusal(bench, PauseQuery("q")) == "query q has already failed: q.Q1 failed: ValueError: it is broken"
    bench.do(DropQuery("q"))
    assert rows(bench.run(arrive("s", 1)), "q") == []


def test_a_failure_outlives_saving() -> None:
    bench = Fails("s")
    bench.query(path("q", 1))
    bench.breaks("q.Q1")
    bench.run(arrive("s", 1))
    before = bench.state("q")
    bench.engine = Engine.restore(bench.engine.save())
    assert bench.state("q") == before
    bench.do(ResumeQuery("q"))
    assert rows(bench.run(arrive("s", 2)), "q") == [(2,)]


def test_a_query_that_remembers_too_much_fails_and_says_so() -> None:
    bench = Fails(external("s"))
    bench.query(windowed("q", "s", max_state=2))
    bench.query(windowed("other", "s"))
    bench.run(FeedOpened("s", "slow"), give_tv("s", 1, 11))
    effects = bench.run(give_tv("s", 21, 31))
    (told,) = failures(effects)
    assert told.query == "q"
    assert told.reason == "its state grew to 4 tuples, and max_state is 2"
    assert told.lost == 4
    assert bench.state("other")[0] == "running"


@pytest.mark.parametrize("ahead", ["a", "b"])
def test_under_backpressure_the_stream_that_is_ahead_gets_no_credit(ahead: str) -> None:
    behind = "b" if ahead == "a" else "a"
    bench = Fails(external("a"), external("b"), credit=4)
    bench.query(windowed("q", "a", "b", max_state=3, on_max_state="backpressure"))

    def granted(effects: Effects) -> dict[str, int]:
        found: dict[str, int] = {}
        for order in effects.orders:
            if isinstance(order, Grant):
                found[order.stream] = found.get(order.stream, 0) + order.tuples
        return found

    bench.run(FeedOpened("a", "main"), FeedOpened("b", "main"))
    assert granted(bench.run(give_tv(behind, 1), give_tv(ahead, 1, 11))) == {ahead: 2, behind: 1}
    assert granted(bench.run(give_tv(ahead, 21, 31))) == {}, "four windows are open"
    assert bench.state("q")[0] == "running"
    assert granted(bench.run(give_tv(behind, 2))) == {behind: 1}
    effects = bench.run(punctuate(behind, 35))
    assert len(rows(effects, "q")) == 3
    assert granted(effects) == {ahead: 2}


def test_backpressure_that_frees_nothing_fails_in_the_end() -> None:
    bench = Fails(external("a"), external("b"), credit=2)
    bench.query(windowed("q", "a", "b", max_state=3, on_max_state="backpressure"))
    bench.run(FeedOpened("b", "silent"), give_tv("a", *range(1, 81, 10)))
    assert bench.state("q")[0] == "running"
    (told,) = failures(bench.run(give_tv("a", 81, 91, 101)))
    assert told.reason == "its state grew to 11 tuples although its streams waited, and max_state is 3"


def test_a_join_that_begins_again_goes_by_the_order_that_was_decided() -> None:
    bench = Fails(external("a"), external("b"))
    bench.query(joined(pairs(Band(0, 1, -10, 10))))
    bench.do(SetOrder("q", "adaptive", 0.25))
    bench.breaks("q.J")
    bench.run(give_tv("a", 100))
    assert bench.state("q")[0] == "failed"
    bench.do(ResumeQuery("q"))
    (order,) = bench.engine.queries()[0].joins.values()
    assert order == JoinOrderView(order="adaptive", alpha=0.25)


def test_an_order_decided_before_the_first_row_is_no_turn() -> None:
    bench = Bench(external("a"), external("b"))
    bench.query(joined(pairs(Band(0, 1, -10, 10), order="sync")))
    bench.do(SetOrder("q", "filter"))
    assert not [order for order in bench.run(give_tv("a", 100)).orders if isinstance(order, JoinTurned)]
    effects = bench.step(Command(1, SetOrder("q", "sync")))
    (turned,) = [order for order in effects.orders if isinstance(order, JoinTurned)]
    assert (turned.numbers["at_us"], turned.numbers["mode"]) == (100, "sync")


@pytest.mark.parametrize("asked", ["more", "fresh", "need", "clock_idle", "horizon"])
def test_an_operator_that_raises_when_it_is_asked_costs_its_own_query_alone(asked: str) -> None:
    bench = Fails(external("s"), external("t"))
    bench.query(plan("good", ("A", select(), ["s.source"])))
    bench.query(plan("bad", ("U", union(ordered=True), ["s.source", "t.source"]), schema=TV, ordered=True))
    bench.run(give_tv("s", 1), give_tv("t", 1))

    def raises(*_: Any) -> Any:
        raise ValueError("it is broken")

    operator = bench.engine.graph.operators["bad.U"]
    setattr(operator, asked, raises)
    bench.engine.graph.component_of(operator).ready.add(operator)
    effects = bench.run(give_tv("s", 2, 3), give_tv("t", 2))
    assert rows(effects, "good") == [(2, 2), (3, 3)]
    assert [failed.query for failed in failures(effects)] == ["bad"]
    assert "ValueError: it is broken" in failures(effects)[0].reason
    assert rows(bench.run(give_tv("s", 4)), "good") == [(4, 4)]
    bench.do(ResumeQuery("bad"))
    assert rows(bench.run(give_tv("s", 5), give_tv("t", 6)), "bad") == [(5, 5)]


def test_a_failed_query_has_no_turn_even_if_its_new_operators_raise() -> None:
    bench = Fails("s")
    bench.query(path("good", 1))
    bench.query(path("bad", 2))
    bench.breaks("bad.Q1")
    assert len(failures(bench.run(arrive("s", 1)))) == 1
    for name in ("bad.Q1", "bad.Q2"):
        bench.engine.graph.operators[name].inputs[0].unseen = True
        bench.breaks(name)
    bench.do(PauseQuery("good"))
    bench.do(ResumeQuery("good"))
    effects = bench.run(arrive("s", 2))
    assert rows(effects, "good") == [(2,)]
    assert not failures(effects)


def test_a_step_in_which_operators_never_stop_raising_comes_to_its_end() -> None:
    bench = Fails("s")
    bench.query(path("q", 1))
    bench.breaks("q.Q1")
    component = bench.engine.graph.components[0]
    operator = bench.engine.graph.operators["q.Q1"]
    failed = 0
    for _ in range(3):
        component.ready.add(operator)
        effects = bench.step(arrive("s", 1))
        failed += len(failures(effects))
        operator = bench.breaks("q.Q1")
    assert failed == 1
    assert bench.state("q")[0] == "failed"


def test_a_sink_that_raises_costs_its_own_query_alone() -> None:
    bench = Fails("s")
    bench.query(path("good", 1))
    bench.query(path("bad", 1))

    def raises() -> None:
        raise ValueError("it is broken")

    bench.engine.queries_by_name["bad"].sink.drain = raises  # type: ignore[method-assign]
    effects = bench.run(arrive("s", 1))
    assert rows(effects, "good") == [(1,)]
    assert [failed.query for failed in failures(effects)] == ["bad"]
    assert rows(bench.run(arrive("s", 2)), "good") == [(2,)]


def test_a_failed_query_stands_still_after_a_restore_too() -> None:
    bench = Fails("s")
    bench.query(path("q", 1))
    bench.breaks("q.Q1")
    bench.run(arrive("s", 1))
    bench.engine = Engine.restore(bench.engine.save(), trace=True)
    assert list(bench.engine.graph.stopped) == [bench.engine.graph.operators["q.Q1"]]
    bench.do(ResumeQuery("q"))
    assert not bench.engine.graph.stopped
    assert rows(bench.run(arrive("s", 2)), "q") == [(2,)]
