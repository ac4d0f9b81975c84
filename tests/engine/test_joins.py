"""Joins in an engine: silent inputs, clocks, orders, the papers' timelines, what stands below them."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import (
    Answered,
    Arrived,
    AskTimestamp,
    Deliver,
    DropQuery,
    FeedClosed,
    FeedOpened,
    Measured,
    SetOrder,
    WakeAt,
)
from millrace.engine.plan import StreamDefinition
from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.join.bands import Band
from millrace.operators.join.join import Join
from millrace.operators.join.spec import Equal, JoinSpec
from millrace.operators.retime.spec import RetimeSpec
from millrace.protocol import Schema, Type
from millrace.values.batch import Batch
from millrace.values.expression import TIME, Column
from tests.engine.graphs import TV, Bench, V, arrive, external, give_tv, plan, punctuate, refusal, rows, select, times
from tests.oracles import joins as oracle

LV = Schema.of(x="timestamp", letter="text")


def pairs(*bands: Band, columns: Any = (("a", 0, TIME), ("b", 1, TIME)), **options: Any) -> JoinSpec:
    return JoinSpec(columns, bands, **options)


def joined(spec: JoinSpec, *nodes: Any, inputs: Any = ("a.source", "b.source"), schema: Schema = TV) -> Any:
    """A plan that ends in the join, or in the nodes that follow it."""
    made = [("J", spec, list(inputs)), *nodes]
    return plan("q", *made, schema=spec.schema([schema] * len(inputs)), ordered=spec.order != "arrival")


def the_join(bench: Bench) -> Join:
    operator = bench.engine.graph.operator("q.J")
    assert isinstance(operator, Join)
    return operator


def asked(effects: Any) -> list[tuple[str, int]]:
    return [(order.stream, order.need_us) for order in effects.orders if isinstance(order, AskTimestamp)]


def two(**options: Any) -> Bench:
    bench = Bench(external("a", **options), external("b", **options))
    opened = [FeedOpened(name, "main", can_answer=True) for name in "ab"]
    bench.step(*opened, at=0)
    return bench


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_a_join_as_rows_come_waits_for_nobody() -> None:
    bench = two()
    bench.query(joined(pairs(Band(0, 1, -10, 10))))
    effects = bench.run(give_tv("a", 100), at=100)
    assert asked(effects) == []
    assert rows(bench.run(give_tv("b", 105), at=105), "q") == [(100, 105)]
    assert the_join(bench).idle_us == [0, 0]
    assert bench.engine.why("q").reason == "flowing"


@pytest.mark.parametrize("order", ["sync", "filter"])
def test_an_ordered_join_asks_the_silent_input_for_its_head(order: Any) -> None:
    bench = two()
    bench.query(joined(pairs(Band(0, 1, -10, 10), order=order)))
    bench.run(give_tv("a", 90), give_tv("b", 95), at=95)
    effects = bench.run(give_tv("a", 100, 101), at=101)
    # Under sync it is the least waiting tuple, under filter the least result row.
    assert rows(effects, "q") == [(90, 95)]
    assert asked(effects) == [("b", 100)]
    assert rows(bench.run(punctuate("b", 101), at=102), "q") == [(100, 95), (101, 95)]


def answered(bench: Bench, effects: Any, at: int, query: str = "q") -> tuple[list[tuple[str, int]], list[Any]]:
    """Answer requests with exactly the needed time until none is left; return the requests and the rows."""
    needs, found = asked(effects), rows(effects, query)
    while requests := [order for order in effects.orders if isinstance(order, AskTimestamp)]:
        events = [Answered(one.stream, one.feed, one.request, one.need_us) for one in requests]
        effects = bench.run(*events, at=at)
        needs += asked(effects)
        found += rows(effects, query)
    return needs, found


@pytest.mark.parametrize("order", ["arrival", "sync", "filter"])
def test_a_row_without_a_match_asks_the_other_side_for_the_end_of_its_window(order: Any) -> None:
    bench = two()
    bench.query(joined(pairs(Band(0, 1, -10, 20), order=order, outer=(0,))))
    effects = bench.run(give_tv("b", 50), give_tv("a", 100), at=100)
    assert rows(effects, "q") == []
    # In order of time the row has to be taken first; the clock of b cannot have reached 121 yet.
    assert asked(effects) == []
    needs, found = answered(bench, bench.run(at=200), 201)
    assert needs == ([("b", 100), ("b", 121)] if order == "sync" else [("b", 121)])
    assert found == [(100, None)]


@pytest.mark.parametrize("order", ["arrival", "sync", "filter"])
def test_a_full_join_asks_each_side_for_the_end_of_the_other_s_windows(order: Any) -> None:
    """A row of a at 100 may match until b is past 120, one of b at 300 until a is past 310; no more is requested."""
    bench = two()
    columns = (("a", 0, TIME), ("b", 1, TIME))
    bench.query(joined(pairs(Band(0, 1, -10, 20), order=order, columns=columns, outer=(0, 1))))
    bench.run(give_tv("a", 100), at=100)
    needs, found = answered(bench, bench.run(give_tv("b", 300), at=300), 301)
    assert found == [(100, None)]
    assert set(needs) <= {("a", 300)}
    needs, found = answered(bench, bench.run(at=400), 401)
    assert needs[-1] == ("a", 311)
    assert found == [(None, 300)]


def test_an_outer_join_of_internal_streams_is_woken_by_a_timer() -> None:
    bench = Bench("a", "b")
    bench.query(joined(pairs(Band(0, 1, 0, 500), columns=(("v", 0, 0), ("b", 1, TIME)), outer=(0,)), schema=V))
    effects = bench.run(arrive("a", 7), at=1_000)
    assert effects.orders[-1] == WakeAt(1_501)
    effects = bench.run(at=1_501)
    assert rows(effects, "q") == [(7, None)]
    assert not any(isinstance(order, WakeAt) for order in effects.orders)


COUNT = AggregateCall(Type.BIGINT, False, "count()")


def counted(size: int) -> AggregateSpec:
    window = TimeWindow(size, size)
    return AggregateSpec(window, (), (("n", COUNT),), (("start", "start"),))


@pytest.mark.parametrize("order", ["arrival", "sync", "filter"])
def test_an_aggregate_below_an_outer_join_gets_what_it_needs(order: Any) -> None:
    """A window that ends at 1,000 needs the right side at 1,020: a row at 999 may match until then."""
    bench = two()
    spec = pairs(Band(0, 1, -10, 20), order=order, outer=(0,))
    bench.query(joined(spec, ("A", counted(1_000), ["J"])))
    effects = bench.run(give_tv("a", 990, 1_500), give_tv("b", 500), at=1_500)
    needs, found = answered(bench, effects, 1_501)
    assert ("b", 1_011) in needs
    assert ("a", 1_000) not in needs
    # The row at 1,500 is pending still, but the window is complete once the one at 990 is.
    assert found == [(1, 0)]
    needs, found = answered(bench, bench.run(at=3_000), 3_001)
    assert needs[-1] == ("a", 2_000) or ("b", 2_000) in needs
    assert found == [(1, 1_000)]


def test_a_window_by_one_side_s_time_asks_for_the_lag_besides() -> None:
    """Rows of a in [0, 1,000) are complete once joined rows are past 1,000 + 50: the most by which b may be later."""
    bench = two()
    spec = pairs(Band(0, 1, 0, 50))
    bench.query(joined(spec, ("R", RetimeSpec(0, 50), ["J"]), ("A", counted(1_000), ["R"])))
    bench.run(give_tv("a", 980), give_tv("b", 1_001), at=1_001)
    retimed = bench.engine.graph.operator("q.R")
    assert not retimed.output.ordered
    effects = bench.run(give_tv("a", 1_100), at=1_100)
    assert asked(effects) == [("b", 1_050)]
    assert rows(bench.run(punctuate("b", 1_049), at=1_101), "q") == []
    assert rows(bench.run(punctuate("b", 1_050), at=1_102), "q") == [(1, 0)]


def test_a_row_that_has_no_time_of_the_other_side_fails() -> None:
    bench = two()
    bench.query(joined(pairs(Band(0, 1, 0, 50), outer=(0,)), ("R", RetimeSpec(1, 50), ["J"])))
    effects = bench.run(give_tv("a", 100, 200), give_tv("b", 210), punctuate("a", 300), punctuate("b", 300), at=300)
    assert rows(effects, "q") == [(200, 210)]
    assert times(effects, "q") == [210]
    assert bench.engine.graph.operator("q.R").counts.errors == 1


def arrivals() -> list[dict[str, tuple[int, int]]]:
    """Per step the two times that come on each of three streams, the second of them late by up to 30."""
    return [
        {name: (at, at - (at // 20 * (number + 3)) % 30) for number, name in enumerate("abc")}
        for at in range(100, 340, 20)
    ]


@functools.cache
def expected() -> list[tuple[int, ...]]:
    given = {name: [time for step in arrivals() for time in step[name]] for name in "abc"}
    inputs = [[(time, (time,)) for time in given[name]] for name in ("a", "b", "c", "a")]
    bands = [(0, 1, -20, 15), (1, 2, -5, 20), (0, 3, 0, 0)]
    results = oracle.join(inputs, bands, [(0, 0, 3, 0)])
    return sorted(tuple(row[0] for row in found if row) for _, found in results)


@pytest.mark.parametrize("strategy", ["dfs(1)", "bfs", "rr", "dfs", "dfs(3)"])
@pytest.mark.parametrize("order", ["arrival", "sync", "filter", "adaptive"])
def test_no_strategy_withholds_a_row_and_a_saved_engine_goes_on(strategy: str, order: Any) -> None:
    """Three streams, one of them twice, between selects; a restored engine continues after every step."""
    bench = Bench(*(external(name, disorder_us=30) for name in "abc"))
    key = Column(Type.BIGINT, True, 1, "v")
    spec = JoinSpec(
        (("a", 0, TIME), ("b", 1, TIME), ("c", 2, TIME), ("again", 3, TIME)),
        (Band(0, 1, -20, 15), Band(1, 2, -5, 20), Band(0, 3, 0, 0)),
        (Equal(0, key, 3, key),),
        order=order,
    )
    made = plan(
        "q",
        ("F", select(), ["a.source"]),
        ("J", spec, ["F", "b.source", "c.source", "a.source"]),
        ("S", select(), ["J"]),
        schema=spec.schema([TV] * 4),
        ordered=order != "arrival",
    )
    bench.query(made, strategy)
    found: list[Any] = []
    left: list[int] = []
    for step in arrivals():
        effects = bench.run(*(give_tv(name, *pair) for name, pair in step.items()), executions=3)
        found += rows(effects, "q")
        left += times(effects, "q")
        bench.engine = Engine.restore(bench.engine.save(), trace=True)
    effects = bench.run(*(FeedClosed(name, "main", ended=True) for name in "abc"))
    found += rows(effects, "q")
    left += times(effects, "q")
    assert sorted(found) == expected()
    assert len(found) > 100
    if order != "arrival":
        assert left == sorted(left)
    assert the_join(bench).state_tuples == 0


def test_nothing_stays_queued_when_a_query_with_waiting_rows_is_dropped() -> None:
    bench = two()
    bench.query(joined(pairs(Band(0, 1, -10, 10), order="sync")))
    bench.run(give_tv("a", 100, 101, 102), at=102)
    assert bench.engine.gauge.tuples == 3
    bench.do(DropQuery("q"))
    assert bench.engine.gauge.tuples == 0


def test_latent_rows_join_at_the_clock() -> None:
    bench = Bench(external("a"), StreamDefinition("b", TV, "latent"))
    bench.query(joined(pairs(Band(0, 1, 0, 50), order="sync")))
    bench.run(give_tv("a", 1_000, 1_500), at=900)
    effects = bench.run(give_tv("b", 0), at=1_020)
    # What arrived for the latent stream is stamped with the clock; the row at 1,500 waits for the clock.
    assert rows(effects, "q") == [(1_000, 1_020)]
    assert WakeAt(1_500) in effects.orders
    bench.run(at=1_500)
    assert rows(bench.run(give_tv("b", 0), at=1_510), "q") in ([], [(1_500, 1_510)])
    assert the_join(bench).counts.input_tuples >= 3


# -- the papers' timelines ---------------------------------------------------------------------------------------------

# NILE, figure 1 (C): the letters are the keys and the indices the times; the window is six units long. a8 comes at 11.
UNIT = 1_000
S: list[tuple[int, str, int]] = [(2, "d", 2), (4, "c", 4), (6, "b", 6), (11, "a", 8), (12, "a", 12)]
T: list[tuple[int, str, int]] = [(1, "a", 1), (5, "a", 5), (9, "b", 9), (10, "c", 10)]


class Timeline:
    """A clock that advances with arrivals and by the cost of tuples; and the time when each result row was emitted."""

    def __init__(self, order: Any, cost: int) -> None:
        self.cost = cost
        self.bench = Bench(*(StreamDefinition(name, LV, "external", "x") for name in "ST"))
        letter = Column(Type.TEXT, True, 1, "letter")
        spec = JoinSpec(
            (("letter", 0, 1), ("s", 0, TIME), ("t", 1, TIME)),
            (Band(0, 1, -6 * UNIT, 6 * UNIT),),
            (Equal(0, letter, 1, letter),),
            order=order,
        )
        made = plan("q", ("J", spec, ["S.source", "T.source"]), schema=spec.schema([LV, LV]), ordered=True)
        self.bench.query(made, "dfs(1)")
        self.join = the_join(self.bench)
        self.now = 0
        self.left: list[tuple[str, int, int, float]] = []

    def play(self) -> list[tuple[str, int, int, float]]:
        lines = (("S", S), ("T", T))
        arrivals = sorted((at, stream, letter, time) for stream, line in lines for at, letter, time in line)
        for at, stream, letter, time in arrivals:
            self.now = max(self.now, at * UNIT)
            row = Batch.from_rows(LV, [(time * UNIT, letter)], [time * UNIT])
            self.work(Arrived(stream, "main", row))
        return self.left

    def work(self, *events: Any) -> None:
        """One execution at a time; each costs what the tuples that it takes cost."""
        more = True
        while more:
            before = self.join.counts.input_tuples
            effects = self.bench.engine.step(self.now, events, executions=1)
            events = ()
            self.now += self.cost * (self.join.counts.input_tuples - before)
            for order in effects.orders:
                if isinstance(order, Deliver):
                    for letter, s, t in order.batch.rows():
                        self.left.append((letter, s // UNIT, t // UNIT, self.now / UNIT))
            more = effects.more


COST = UNIT // 10
SYNC = [("a", 8, 5, 11.1), ("b", 6, 9, 12.1), ("c", 4, 10, 12.2)]
FILTER = [("a", 8, 5, 11.1), ("b", 6, 9, 12.0), ("c", 4, 10, 12.0)]


@pytest.mark.parametrize(("order", "left"), [("sync", SYNC), ("filter", FILTER), ("adaptive", SYNC)])
def test_the_timelines_of_figures_3_and_4(order: Any, left: Any) -> None:
    """Sync-Filter processes b9 and c10 when a12 has come; Filter-Order has done so by then and only lets them go."""
    timeline = Timeline(order, COST)
    assert timeline.play() == left
    # Figure 3 leaves b9 and c10 in the queue of T until then; now a12 waits until T continues.
    assert timeline.join.held_tuples() == (0 if order == "filter" else 1)


def test_as_rows_come_the_rows_of_figure_1_leave_out_of_order() -> None:
    assert Timeline("arrival", COST).play() == [("b", 6, 9, 9.1), ("c", 4, 10, 10.1), ("a", 8, 5, 11.1)]


# -- changing the order ------------------------------------------------------------------------------------------------


def test_measured_costs_reach_the_join_and_move_it() -> None:
    bench = two()
    bench.query(joined(pairs(Band(0, 1, -500_000, 500_000), order="adaptive", alpha=0.3)))
    modes = []
    for second in range(1, 12):
        at = second * 1_000_000
        ticks = range(at, at + 1_000_000, 100_000)
        cost = 500.0 if second < 4 or second > 8 else 60_000.0
        bench.run(give_tv("a", *ticks), give_tv("b", *ticks), Measured("q.J", 20, 20 * cost), at=at)
        modes.append(the_join(bench).mode)
        bench.engine = Engine.restore(bench.engine.save(), trace=True)
    assert modes[0] == modes[-1] == "sync"
    assert "filter" in modes
    assert the_join(bench).pacing.switches == 2


def test_the_order_of_a_query_is_changed_by_a_command() -> None:
    bench = two()
    bench.query(joined(pairs(Band(0, 1, -10, 10), order="sync")))
    bench.run(give_tv("b", 95), give_tv("a", 100, 101), at=101)
    assert the_join(bench).held_tuples() == 2
    bench.do(SetOrder("q", "filter"))
    effects = bench.run(at=102)
    assert the_join(bench).held_tuples() == 0, "what stood in line has been joined"
    assert the_join(bench).hold.count == 2, "and waits for b"
    bench.do(SetOrder("q", "adaptive", 0.5))
    assert the_join(bench).numbers()["alpha"] == 0.5
    bench.run(give_tv("a", 103), at=103)
    assert the_join(bench).hold.count == 2
    assert the_join(bench).held_tuples() == 1, "in line again, while the hold buffer drains"
    effects = bench.run(give_tv("b", 103), at=104)
    assert rows(effects, "q") == [(100, 95), (101, 95), (103, 95), (100, 103), (101, 103), (103, 103)]
    assert "needs its rows in order" in refusal(bench, SetOrder("q", "arrival"))
    assert "query r does not exist" in refusal(bench, SetOrder("r"))


def test_a_query_without_a_join_has_no_order_to_change() -> None:
    bench = Bench(external("a"))
    bench.query(plan("q", ("S", select(), ["a.source"]), schema=TV))
    assert "no join" in refusal(bench, SetOrder("q", "sync"))
