"""Windows in an engine: closed by clocks and by promises of silent streams, late tuples, the start of the query."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AskTimestamp,
    FeedClosed,
    FeedOpened,
    Late,
    Progressed,
    SetStrategy,
    WakeAt,
    WatchProgress,
)
from millrace.engine.plan import StreamDefinition
from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.operators.frame.windows import RowWindow, SessionWindow, TimeWindow
from millrace.operators.window.spec import WindowSpec
from millrace.protocol import Schema, Type
from millrace.values.expression import Column
from tests.engine.graphs import (
    Bench,
    V,
    arrive,
    compare,
    external,
    give_tv,
    identity,
    plan,
    punctuate,
    rows,
    select,
    sort,
    times,
    union,
)

COUNT = AggregateCall(Type.BIGINT, False, "count()")
COUNTED = Schema.of(n="bigint")


def counted(window: Any, **options: Any) -> AggregateSpec:
    return AggregateSpec(window, (), (("n", COUNT),), (("window_start", "start"),), **options)


def counting(window: Any, **options: Any) -> AggregateSpec:
    return AggregateSpec(window, (), (("n", COUNT),), **options)


def over(spec: AggregateSpec, *nodes: Any, last: str = "s.source", ordered: bool = False) -> Any:
    """A plan that ends in the aggregate, over sorted rows or as they arrive."""
    if ordered:
        nodes, last = (*nodes, ("O", sort(), [last])), "O"
    return plan("q", *nodes, ("A", spec, [last]), schema=spec.schema([V]))


@pytest.mark.parametrize("ordered", [False, True])
def test_a_window_of_an_internal_stream_closes_by_a_timer(ordered: bool) -> None:
    bench = Bench("s")
    bench.query(over(counted(TimeWindow(1000, 1000)), ordered=ordered))
    effects = bench.run(arrive("s", 1, 2), at=2_300)
    assert rows(effects, "q") == []
    assert effects.orders[-1] == WakeAt(3_000)
    effects = bench.run(at=3_000)
    assert rows(effects, "q") == [(2, 2_000)]
    assert times(effects, "q") == [2_999]
    assert not any(isinstance(order, WakeAt) for order in effects.orders), "nothing is open, nothing waits"


def test_a_session_of_an_internal_stream_closes_by_a_timer() -> None:
    bench = Bench("s")
    bench.query(over(counted(SessionWindow(500))))
    bench.run(arrive("s", 1), at=2_300)
    effects = bench.run(arrive("s", 1), at=2_700)
    assert WakeAt(2_800) in effects.orders or WakeAt(3_200) in effects.orders
    bench.run(at=2_800)
    assert rows(bench.run(at=3_200), "q") == [(2, 2_300)]


def test_the_rows_of_a_session_of_an_internal_stream_are_given_by_a_timer() -> None:
    bench = Bench("s")
    spec = AggregateSpec(SessionWindow(500), bounds=(("window_start", "start"),), rows=True)
    bench.query(over(spec))
    bench.run(arrive("s", 1), at=2_300)
    bench.engine = Engine.restore(bench.engine.save(), trace=True)
    bench.run(arrive("s", 2), at=2_700)
    assert rows(bench.run(at=3_199), "q") == []
    effects = bench.run(at=3_200)
    assert rows(effects, "q") == [(1, 2_300), (2, 2_300)]
    assert times(effects, "q") == [3_199, 3_199]


@pytest.mark.parametrize("partial", ["skip", "emit"])
def test_rows_are_not_in_windows_that_began_before_the_query(partial: Any) -> None:
    bench = Bench(external("s", disorder_us=10_000))
    bench.run(give_tv("s", 1_200))
    bounds: Any = (("window_start", "start"),)
    spec = WindowSpec(TimeWindow(1000, 1000), bounds, partial)
    bench.query(plan("q", ("W", spec, ["s.source"]), schema=spec.schema([V])))
    found = rows(bench.run(give_tv("s", 1_300, 2_100, 1_100)), "q")
    assert [start for *_, start in found] == ([1_000] if partial == "emit" else []) + [2_000]


def test_a_silent_stream_is_asked_for_the_end_of_the_window() -> None:
    bench = Bench(external("a"), external("b"))
    bench.step(FeedOpened("a", "main"), FeedOpened("b", "main", can_answer=True), at=0)
    bench.query(
        over(counted(TimeWindow(1000, 1000)), ("U", union(), ["a.source", "b.source"]), last="U"),
    )
    bench.run(give_tv("a", 100), give_tv("b", 50), at=100)
    effects = bench.run(give_tv("a", 1_500), at=1_500)
    asked = [order for order in effects.orders if isinstance(order, AskTimestamp)]
    assert [(order.stream, order.need_us) for order in asked] == [("b", 1_000)]
    waiter = bench.engine.graph.operator("q.A")
    assert waiter.blocked()  # type: ignore[attr-defined]
    assert waiter.idle_since == [1_500]  # type: ignore[attr-defined]
    assert rows(bench.run(punctuate("b", 1_000), at=1_700), "q") == [(2, 0)]
    assert waiter.idle_us == [200]  # type: ignore[attr-defined]


def test_a_window_that_is_not_over_yet_is_no_idle_waiting() -> None:
    bench = Bench("s")
    bench.query(over(counted(TimeWindow(1000, 1000))))
    bench.run(arrive("s", 1), at=100)
    bench.run(at=1_000)
    waiter = bench.engine.graph.operator("q.A")
    assert waiter.idle_us == [0]  # type: ignore[attr-defined]
    assert bench.engine.why("q").reason != "clock"


def test_late_tuples_are_in_no_window() -> None:
    bench = Bench(external("s"))
    bench.query(over(counted(TimeWindow(1000, 1000))))
    bench.run(give_tv("s", 100, 1_200))
    effects = bench.run(give_tv("s", 300, 1_300))
    assert any(isinstance(order, Late) for order in effects.orders)
    assert rows(bench.run(FeedClosed("s", "main", ended=True)), "q") == [(2, 1_000)]


@pytest.mark.parametrize("partial", ["skip", "emit"])
def test_windows_that_began_before_the_query(partial: Any) -> None:
    bench = Bench(external("s", disorder_us=10_000))
    bench.run(give_tv("s", 1_200))
    bench.query(over(counted(TimeWindow(1000, 1000), partial=partial), ("S", select(), ["s.source"]), last="S"))
    bench.run(give_tv("s", 1_300, 2_100, 1_100))
    found = rows(bench.run(FeedClosed("s", "main", ended=True)), "q")
    assert found == ([(1, 1_000)] if partial == "emit" else []) + [(1, 2_000)]


def test_windows_of_rows_count_positions_at_the_source() -> None:
    bench = Bench("s")
    bench.query(over(counted(RowWindow(3, 2))))
    assert rows(bench.run(arrive("s", 1, 2, 3, 4)), "q") == [(1, -2), (3, 0)]
    assert rows(bench.run(arrive("s", 5)), "q") == [(3, 2)]


def test_no_clock_closes_a_window_of_rows() -> None:
    """A downstream union requests a time and gets the clock's time: the window waits for its third tuple."""
    bench = Bench("s", "t")
    spec = AggregateSpec(RowWindow(3, 3), (), (("n", COUNT),), ())
    bench.query(
        plan("q", ("A", spec, ["s.source"]), ("U", union(ordered=True), ["A", "t.source"]), schema=spec.schema([V]))
    )
    found: list[Any] = []
    for at, stream, value in ((1_000, "s", 1), (2_000, "t", 7), (3_000, "s", 2), (4_000, "s", 3)):
        found += rows(bench.run(arrive(stream, value), at=at), "q")
    assert found == [(7,), (3,)]


@pytest.mark.parametrize("where", [False, True])
def test_an_open_window_of_rows_holds_no_promise_back(where: bool) -> None:
    """Its mark is its input's; a window that only the end closes is no older."""
    bench = Bench(external("s", disorder_us=50), external("t"))
    spec = AggregateSpec(RowWindow(3, 3), (), (("n", COUNT),), (), where=compare("<", 200) if where else None)
    union_of_both = ("U", union(ordered=True), ["A", "M"])
    bench.query(
        plan("q", ("A", spec, ["s.source"]), ("M", identity(V), ["t.source"]), union_of_both, schema=spec.schema([V]))
    )
    found = times(bench.run(give_tv("s", 100)), "q")
    assert found == []
    found = times(bench.run(give_tv("t", 140, 250), punctuate("s", 200)), "q")
    assert found == [140]
    # Even if the tuple that completes the window does not count, the row is no older than the promise.
    found = times(bench.run(give_tv("s", 300, 310), punctuate("s", 320), give_tv("t", 450)), "q")
    assert found == [250, 310]
    found = times(bench.run(give_tv("s", 330), give_tv("t", 500), punctuate("s", 400)), "q")
    assert found == []
    ends = [FeedClosed(stream, "main", ended=True) for stream in ("s", "t")]
    assert times(bench.run(*ends), "q") == ([450, 500] if where else [400, 450, 500])


@pytest.mark.parametrize("strategy", ["dfs(1)", "bfs", "rr", "dfs"])
@pytest.mark.parametrize("flush", ["none", "slow", "lazy"])
def test_no_strategy_withholds_a_row_and_a_saved_engine_goes_on(strategy: str, flush: Any) -> None:
    key = (("k", Column(Type.BIGINT, True, 1, "v")),)
    spec = AggregateSpec(TimeWindow(100, 50), key, (("n", COUNT),), (), flush=flush, max_delay_us=1_000)
    bench = Bench(external("a"), external("b"))
    bench.query(
        plan(
            "q",
            ("U", union(), ["a.source", "b.source"]),
            ("A", spec, ["U"]),
            ("S", select(), ["A"]),
            schema=spec.schema([V]),
        ),
        strategy,
    )
    found: list[Any] = []
    for at in range(0, 1_000, 10):
        found += rows(bench.run(give_tv("a", at, at + 5), give_tv("b", at), executions=3), "q")
        bench.engine = Engine.restore(bench.engine.save(), trace=True)
    found += rows(bench.run(FeedClosed("a", "main", ended=True), FeedClosed("b", "main", ended=True)), "q")
    # Each time is in two windows; times that are multiples of ten come twice.
    assert len(found) == 2 * 200
    assert sum(count for _, count in found) == 2 * 300


def test_latent_tuples_are_stamped_by_the_window_and_close_by_the_clock() -> None:
    bench = Bench(StreamDefinition("s", V, "latent"))
    bench.query(over(counted(TimeWindow(1000, 1000))))
    effects = bench.run(arrive("s", 1, 2), at=2_300)
    assert rows(effects, "q") == []
    assert effects.orders[-1] == WakeAt(3_000)
    effects = bench.run(arrive("s", 3), at=3_000)
    assert rows(effects, "q") == [(2, 2_000)]
    assert rows(bench.run(at=4_000), "q") == [(1, 3_000)]


# -- found by the simulator --------------------------------------------------------------------------------------------


def test_a_window_in_order_is_not_held_up_by_a_tuple_far_ahead() -> None:
    """The open window's end is less than the time of the waiting tuple: the engine requests that time."""
    bench = Bench(external("s", max_skew_us=0))
    bench.query(over(counting(TimeWindow(100, 100)), ordered=True))
    bench.run(FeedOpened("s", "x"), FeedOpened("s", "y"), at=50)
    bench.run(give_tv("s", 10, feed="x"), give_tv("s", 10, feed="y"), at=50)
    bench.run(give_tv("s", 10**9, feed="y"), at=60)
    (sorting,) = (o for o in bench.engine.operators() if o.kind == "sort")
    assert sorting.inputs[0].queue_tuples == 1
    assert rows(bench.run(at=140), "q") == [(2,)]


def test_a_slow_window_in_order_promises_no_more_than_what_lies_on_the_arc() -> None:
    """Rows are urgent, so no tuple is taken; the promise on the arc holds after the tuple on it."""
    bench = Bench(external("s"))
    bench.query(over(counting(TimeWindow(4, 1), flush="slow", max_delay_us=1), ordered=True), "dfs(1)")
    bench.do(WatchProgress("q"))
    given: list[int] = []
    progress = 0
    for at in range(0, 120, 4):
        effects = bench.step(give_tv("s", at), punctuate("s", at + 4), executions=1)
        given += times(effects, "q")
        assert all(time >= progress for time in times(effects, "q"))
        progress = max([progress, *(e.value_us for e in effects.orders if isinstance(e, Progressed))])
    given += times(bench.run(FeedClosed("s", "main", ended=True)), "q")
    assert given == sorted(given)
    assert len(given) == 4 * 30


@pytest.mark.parametrize("below", ["rr", "dfs"])
def test_slow_rows_come_behind_a_break_point_too(below: str) -> None:
    """A cycle that advances into a fragment that exits does not come back to rows that are still pending."""
    bench = Bench(external("s"))
    spec = counting(TimeWindow(1, 1), flush="slow", max_delay_us=1_000)
    bench.query(plan("q", ("agg", spec, ["s.source"]), ("id", identity(COUNTED), ["agg"]), schema=COUNTED), "dfs")
    bench.do(SetStrategy("s", below, "q.id"))
    bench.run()
    effects = bench.run(give_tv("s", *range(50)))
    assert rows(effects, "q") == [(1,)] * 49


def test_what_a_window_is_needed_for_is_less_than_the_need_itself() -> None:
    """A row waits for a window of another stream: it needs the window before that one to close, and no more."""
    bench = Bench(external("a"), StreamDefinition("b", V))
    bench.query(
        plan(
            "q",
            ("left", counting(TimeWindow(10, 10)), ["a.source"]),
            ("right", counting(TimeWindow(1_000, 1_000)), ["b.source"]),
            ("both", union(ordered=True), ["left", "right"]),
            schema=COUNTED,
            ordered=True,
        )
    )
    assert rows(bench.run(give_tv("a", 1_501, 1_600), at=1_200), "q") == [(1,)]


def test_each_window_begins_with_its_own_streams_whatever_order_the_plan_has() -> None:
    """A stream that is far ahead elsewhere in the query takes no window away."""
    for names in (("a", "b"), ("b", "a")):
        bench = Bench(external("a"), external("b"))
        bench.run(give_tv("a", 5), give_tv("b", 500))
        nodes = [(name, counting(TimeWindow(10, 10)), [f"{name}.source"]) for name in names]
        bench.query(plan("q", *nodes, ("both", union(), list(names)), schema=COUNTED))
        assert rows(bench.run(give_tv("a", 12, 21)), "q") == [(1,)]
