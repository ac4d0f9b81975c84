"""Update queues on the edges of a graph: with append readers, swapped, paused, saved, with true promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    Arrived,
    Change,
    Deliver,
    DropQuery,
    FeedOpened,
    Grant,
    Measured,
    MemoryHeld,
    PauseQuery,
    Progressed,
    QueueTurned,
    ReplaceQuery,
    ResumeQuery,
    SetQueue,
    WatchProgress,
)
from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.queues.edge import EdgeSpec
from millrace.operators.queues.inlet import QueueInlet
from millrace.protocol import Schema, Type
from millrace.protocol.admin.operators import QueueView
from millrace.protocol.admin.streams import StaleKeyView
from millrace.values.batch import Batch
from millrace.values.expression import Column
from tests.depth import examples
from tests.engine.graphs import Bench, identity, plan, punctuate, refusal, rows, select, sort, times, union

TICKS = Schema.of(ts="timestamp", k="text", v="bigint")
KINDS = ("append", "auto", "fifo", "inplace", "linecutting")


def ticks(name: str = "s", **options: Any) -> StreamDefinition:
    return StreamDefinition(name, TICKS, "external", "ts", update_key=("k",), **options)


def tick(*items: tuple[str, int, int], stream: str = "s", feed: str = "main") -> Arrived:
    """Tuples of (key, time, value)."""
    return Arrived(
        stream, feed, Batch.from_rows(TICKS, [(at, key, v) for key, at, v in items], [at for _, at, _ in items])
    )


def latest(kind: Any = "inplace", **more: Any) -> EdgeSpec:
    return EdgeSpec(kind, (1,), **more)


def with_edges(made: QueryPlan, edges: Sequence[EdgeSpec]) -> QueryPlan:
    """The plan with these edges at its first operator."""
    first, *others = made.nodes
    return replace(made, nodes=(replace(first, edges=tuple(edges)), *others))


def dashboard(name: str = "d", kind: Any = "inplace", **more: Any) -> QueryPlan:
    made = plan(name, ("Q", identity(TICKS), ["s.source"]), schema=TICKS)
    return with_edges(made, [latest(kind, **more)])


def audit(name: str = "audit") -> QueryPlan:
    return plan(name, ("A", select(), ["s.source"]), schema=TICKS)


def queue_of(bench: Bench, operator: str = "d.Q") -> QueueInlet:
    reader = bench.engine.graph.operators[operator].inputs[0]
    assert isinstance(reader, QueueInlet)
    return reader


def seen(bench: Bench, operator: str = "d.Q") -> QueueView:
    (found,) = (one for one in bench.engine.operators() if one.name == operator)
    queue = found.inputs[0].queue
    assert queue is not None
    return queue


# -- several readers of one arc ----------------------------------------------------------------------------------------


def test_figure_6_on_an_edge_beside_an_audit_that_loses_nothing() -> None:
    everything = plan("audit", ("A", identity(TICKS), ["s.source"]), schema=TICKS)
    for kind, order in (("fifo", [2, 3, 4]), ("inplace", [4, 2, 3]), ("append", [1, 2, 3, 4])):
        bench = Bench(ticks())
        bench.query(everything)
        bench.query(dashboard(kind=kind))
        bench.step(tick(("IBM", 0, 1), ("SUN", 1, 2), ("MSFT", 2, 3), ("IBM", 3, 4)), budget=0)
        effects = bench.run()
        assert [row[2] for row in rows(effects, "d")] == order
        assert [row[2] for row in rows(effects, "audit")] == [1, 2, 3, 4]
        assert queue_of(bench).superseded == 4 - len(order)
        assert bench.engine.gauge.tuples == 0


def test_nobody_holds_batches_for_an_update_queue() -> None:
    bench = Bench(ticks())
    bench.query(dashboard())
    for at in range(50):
        bench.step(tick(("a", at, at), ("b", at, at)), budget=0)
    source = bench.engine.graph.operators["s.source"]
    assert not source.output.segments
    assert bench.engine.gauge.tuples == 2
    assert seen(bench).superseded == 98
    assert seen(bench).pages.taken == 1
    assert [row[1:] for row in rows(bench.run(), "d")] == [("a", 49), ("b", 49)]


def test_everything_at_one_time_is_done_before_the_next() -> None:
    """Without a price of work only what is simultaneous supersedes: the newest of each time gets through."""
    bench = Bench(ticks())
    bench.query(dashboard())
    found: list[Any] = []
    for at in range(10):
        found += rows(bench.run(tick(("a", at, 1), ("a", at, 2)), at=at), "d")
    assert [row[2] for row in found] == [2] * 10


def test_random_shedding_on_an_edge() -> None:
    bench = Bench(ticks())
    bench.query(with_edges(audit(), [EdgeSpec(shed=10)]))
    bench.step(tick(*(("a", at, at) for at in range(100))), budget=0)
    found = times(bench.run(), "audit")
    assert len(found) == 10
    assert found == sorted(found)
    assert seen(bench, "audit.A").shed == 90


# -- promises ----------------------------------------------------------------------------------------------------------

WINDOW = AggregateSpec(
    TimeWindow(10, 10),
    (("k", Column(Type.TEXT, True, 1, "k")),),
    (("n", AggregateCall(Type.BIGINT, False, "count()")),),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["dfs(1)", "dfs(3)", "bfs(2)", "rr(1)"])
def test_what_is_promised_behind_an_update_queue_holds(kind: str, strategy: str) -> None:
    bench = Bench(ticks(disorder_us=7))
    bench.query(dashboard(kind=kind), strategy)
    bench.query(plan("w", ("W", WINDOW, ["d.Q"]), schema=WINDOW.schema([TICKS])), strategy)
    bench.do(WatchProgress("d"))
    reached = -(2**63)
    for at in range(60):
        given_now = [(f"k{(at * 3 + n) % 11}", at + (at * 5 + n * 3) % 7, at) for n in range(3)]
        effects = bench.step(tick(*given_now), executions=3)  # more comes than can be done
        for effect in effects.orders:
            if isinstance(effect, Progressed) and effect.query == "d":
                reached = effect.value_us
            if isinstance(effect, Deliver) and effect.query == "d":
                assert int(effect.batch.ts.min()) >= reached
    assert reached > 20
    assert bench.engine.operators()[-2].errors == 0


def test_the_result_of_an_update_queue_is_not_taken_for_ordered() -> None:
    bench = Bench(StreamDefinition("s", TICKS, "internal", update_key=("k",)))
    bench.query(dashboard())
    assert bench.engine.graph.operators["s.source"].output.ordered
    assert not bench.engine.graph.operators["d.Q"].output.ordered


def test_an_edge_draws_its_lots_on_under_another_name() -> None:
    bench = Bench(ticks())
    bench.query(with_edges(plan("q", ("A", identity(TICKS), ["s.source"]), schema=TICKS), [EdgeSpec(shed=3)]))
    again = plan("q", ("B", identity(TICKS), ["s.source"]), schema=TICKS)
    bench.do(ReplaceQuery(with_edges(again, [EdgeSpec(shed=3)])))
    other = Bench()
    other.engine, other.now_us = Engine.restore(bench.engine.save(), trace=True), bench.now_us
    for one in (bench, other):
        one.do(PauseQuery("q"))
        one.do(ResumeQuery("q"))
    many = [(f"k{at % 7}", at, at) for at in range(1, 40)]
    assert rows(bench.run(tick(*many)), "q") == rows(other.run(tick(*many)), "q")


# -- exchanging --------------------------------------------------------------------------------------------------------


def test_a_queue_is_exchanged_while_it_runs() -> None:
    bench = Bench(ticks())
    bench.query(audit())
    bench.query(plan("d", ("Q", identity(TICKS), ["s.source"]), schema=TICKS))
    bench.step(tick(("a", 1, 1), ("b", 2, 2), ("a", 3, 3)), budget=0)
    assert bench.do(SetQueue("d.Q", "inplace")).superseded == 1
    assert bench.do(SetQueue("d.Q", "fifo")).superseded == 0
    bench.step(tick(("a", 4, 4)), budget=0)
    assert bench.do(SetQueue("d.Q", "append")).superseded == 0
    bench.step(tick(("b", 5, 5), ("b", 6, 6)), budget=0)
    effects = bench.run()
    assert [row[2] for row in rows(effects, "d")] == [2, 4, 5, 6]
    assert times(effects, "audit") == [1, 2, 3, 4, 5, 6]
    assert queue_of(bench).superseded == 2
    assert bench.do(SetQueue("d.Q", "linecutting")).kind == "linecutting"
    restored = Engine.restore(bench.engine.save())
    assert restored.save() == bench.engine.save()
    assert restored.operators() == bench.engine.operators()


def test_a_queue_behind_a_sort_takes_its_key_from_the_stream() -> None:
    bench = Bench(ticks(disorder_us=10))
    bench.query(plan("d", ("S", sort(), ["s.source"]), ("Q", identity(TICKS), ["S"]), schema=TICKS))
    assert bench.do(SetQueue("d.Q", "inplace")).kind == "inplace"
    effects = bench.step(tick(("a", 3, 1), ("a", 2, 2), ("b", 1, 3), ("b", 13, 4)))
    assert rows(effects, "d") == [(1, "b", 3), (3, "a", 1)]


def test_what_cannot_be_exchanged_is_refused_and_changes_nothing() -> None:
    bench = Bench(ticks(), StreamDefinition("plain", TICKS))
    bench.query(plan("p", ("Q", identity(TICKS), ["plain.source"]), schema=TICKS))
    bench.query(plan("o", ("Q", identity(TICKS), ["plain.source"]), schema=TICKS, ordered=True))
    bench.query(plan("u", ("U", union(), ["s.source", "plain.source"]), schema=TICKS))
    before = bench.engine.save()
    assert "no update stream" in refusal(bench, SetQueue("p.Q", "inplace"))
    assert "operator nobody does not exist" in refusal(bench, SetQueue("nobody", "inplace"))
    assert "from 0 to 1, got 2" in refusal(bench, SetQueue("u.U", "inplace", 2))
    for name in ("s.source", "p.sink1", "plain.fork1"):
        assert "only operators of queries" in refusal(bench, SetQueue(name, "inplace"))
    assert bench.engine.save() == before
    bench = Bench(StreamDefinition("s", TICKS, "internal", update_key=("k",)))
    bench.query(plan("o", ("Q", identity(TICKS), ["s.source"]), schema=TICKS, ordered=True))
    assert "in order of time" in refusal(bench, SetQueue("o.Q", "inplace"))


def test_an_exchange_takes_the_order_of_all_that_follows() -> None:
    """Whatever read an ordered arc and reads an update queue now promises only what the queue can keep."""
    bench = Bench(StreamDefinition("s", TICKS, "internal", update_key=("k",)))
    bench.query(plan("d", ("Q", identity(TICKS), ["s.source"]), ("R", select(), ["Q"]), schema=TICKS))
    bench.query(plan("e", ("Q", identity(TICKS), ["d.R"]), schema=TICKS))
    bench.do(SetQueue("d.Q", "inplace"))
    operators = bench.engine.graph.operators
    assert not any(operators[name].output.ordered for name in ("d.Q", "d.R", "e.Q"))
    bench.do(SetQueue("d.Q", "append"))
    # What is disordered stays so, also in an engine that is made from the same definitions.
    restored = Engine.restore(bench.engine.save())
    assert restored.save() == bench.engine.save()
    assert not any(restored.graph.operators[name].output.ordered for name in ("d.Q", "d.R", "e.Q"))
    before = bench.engine.save()
    changed = plan("d", ("Q", select(), ["s.source"]), ("R", identity(TICKS), ["Q"]), schema=TICKS)
    assert "would be in order of time" in refusal(
        bench, Change((AddStream(StreamDefinition("z", TICKS)), ReplaceQuery(changed)))
    )
    assert bench.engine.save() == before
    assert not operators["d.Q"].output.ordered
    assert Engine.restore(bench.engine.save()).save() == bench.engine.save()


@pytest.mark.parametrize(
    ("edge", "text"),
    [
        (EdgeSpec("inplace", (7,)), "position 7"),
        (EdgeSpec("inplace", (1,), shed=5), "sheds nothing"),
        (EdgeSpec("append", shed=0), "from 1 to"),
        (EdgeSpec("inplace", (1,), commit="lazy"), "both a window and"),
        (EdgeSpec("append", window=TimeWindow(1, 1), commit="lazy"), "deadline, got append"),
        (EdgeSpec("auto", (1,), window=TimeWindow(1, 1), commit="eager"), "expected LAZY with auto"),
    ],
)
def test_edges_that_make_no_sense_are_refused(edge: EdgeSpec, text: str) -> None:
    bench = Bench(ticks())
    assert text in refusal(bench, AddQuery(with_edges(audit(), [edge])))
    assert "edges for 2" in refusal(bench, AddQuery(with_edges(audit(), [latest(), latest()])))


# -- coming and going --------------------------------------------------------------------------------------------------


def test_a_pause_skips_and_counts() -> None:
    bench = Bench(ticks())
    bench.query(dashboard())
    bench.step(tick(("a", 1, 1), ("b", 2, 2)), budget=0)
    bench.do(PauseQuery("d"))
    assert bench.engine.gauge.tuples == 0
    bench.run(tick(("c", 3, 3)))
    assert [query.skipped for query in bench.engine.queries() if query.name == "d"] == [3]
    assert bench.do(ResumeQuery("d")).skipped == 1
    assert queue_of(bench).skipped == 3
    assert [row[2] for row in rows(bench.run(tick(("a", 4, 4))), "d")] == [4]


def test_dropping_a_query_frees_what_waits() -> None:
    bench = Bench(ticks())
    bench.query(audit())
    bench.query(dashboard())
    bench.step(tick(("a", 1, 1), ("b", 2, 2)), budget=0)
    bench.do(DropQuery("d"))
    bench.do(DropQuery("audit"))
    assert bench.engine.gauge.tuples == 0
    assert not bench.engine.graph.operators["s.source"].output.absorbers


def test_feeds_are_not_slowed_down_for_an_update_queue() -> None:
    def granted(made: QueryPlan) -> bool:
        bench = Bench(ticks(), credit=8, most_queued=4)
        bench.query(made)
        bench.step(FeedOpened("s", "main"))
        effects = bench.step(tick(*((f"k{at}", at, at) for at in range(20))), budget=0)
        return any(isinstance(effect, Grant) for effect in effects.orders)

    assert granted(dashboard())
    assert not granted(audit())


# -- staleness ---------------------------------------------------------------------------------------------------------


class Watch:
    """A stopwatch of a driver that reads nothing: readings come as events in these tests."""

    def start(self) -> None:
        """Nothing."""

    def stop(self, operator: str, tuples: int) -> None:
        """Nothing."""


def test_staleness_of_queue_and_application() -> None:
    bench = Bench(ticks(), stopwatch=Watch())
    bench.query(dashboard())
    bench.step(tick(("a", 0, 0)), at=0, budget=0)
    bench.step(at=2, executions=1)  # waited 2
    bench.step(Measured("d.Q", 1, 3.0), tick(("a", 4, 1)), at=4, budget=0)  # out at 5: shown after 5
    bench.step(at=5, executions=1)  # waited 1
    bench.step(Measured("d.Q", 1, 3.0), at=10, budget=0)  # out at 8: 3 more, since 5
    found = bench.engine.staleness("d.Q")
    assert found.keys == 1
    assert found.queue_mean_us == pytest.approx((2 * 2 / 2 + 1 / 2) / 10)
    assert found.application_mean_us == pytest.approx((5 * 5 / 2 + (4 * 4 - 1) / 2) / 10)
    assert queue_of(bench).queue.cost_us == 3.0  # type: ignore[attr-defined]
    bench.step(tick(("b", 12, 1)), at=12, budget=0)
    bench.step(at=20, budget=0)
    assert bench.engine.staleness("d.Q").worst == [StaleKeyView(key={"k": "b"}, stale_us=8)]
    assert seen(bench).oldest_us == 8


# -- saved at any time -------------------------------------------------------------------------------------------------

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9)), max_size=5)),
        st.tuples(st.just("work"), st.integers(1, 4)),
        st.tuples(st.just("kind"), st.sampled_from(KINDS)),
        st.tuples(st.just("pause"), st.none()),
        st.tuples(st.just("punctuate"), st.integers(-3, 0)),
    ),
    max_size=15,
)


@given(actions=ACTIONS, kind=st.sampled_from(KINDS), shed=st.booleans())
@settings(max_examples=examples(40))
def test_nothing_is_lost_and_a_restored_engine_goes_on_alike(actions: list[Any], kind: str, shed: bool) -> None:
    bench = Bench(ticks(disorder_us=1_000))
    first = with_edges(dashboard(), [EdgeSpec(shed=3)]) if shed else dashboard(kind=kind)
    bench.query(first, "dfs(2)")
    bench.query(plan("after", ("Q", identity(TICKS), ["d.Q"]), schema=TICKS), "dfs(1)")
    bench.query(plan("audit", ("A", identity(TICKS), ["s.source"]), schema=TICKS))
    bench.do(WatchProgress("d"))
    delivered = audited = base = 0
    for action, value in actions:
        base += 2
        other = Engine.restore(bench.engine.save(), trace=True)
        events: list[Any] = []
        limits: dict[str, Any] = {"executions": 0}
        match action:
            case "give":
                if value:
                    events = [tick(*((key, base + extra, extra) for key, extra in value))]
            case "work":
                limits = {"executions": value}
            case "punctuate":
                events = [punctuate("s", base + value)]
            case "kind":
                bench.do(SetQueue("d.Q", value))
            case _:
                bench.do(PauseQuery("d"))
                bench.do(ResumeQuery("d"))
        if action in ("give", "work", "punctuate"):
            effects = bench.step(*events, **limits)
            assert other.step(bench.now_us, events, **limits) == effects
            assert other.save() == bench.engine.save()
            delivered += len(rows(effects, "d"))
            audited += len(rows(effects, "audit"))
        assert bench.engine.gauge.tuples >= queue_of(bench).waiting >= 0
    effects = bench.run()
    delivered += len(rows(effects, "d"))
    audited += len(rows(effects, "audit"))
    arrived = bench.engine.graph.operators["s.source"].counts.output_tuples
    reader = queue_of(bench)
    assert audited == arrived == delivered + reader.superseded + reader.shed + reader.skipped
    assert bench.engine.gauge.tuples == 0
    assert reader.queue.waiting == 0


# -- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", ["lazy", "eager"])
def test_an_edge_of_windows_gives_whole_windows_with_marks(commit: Any) -> None:
    bench = Bench(ticks())
    bench.query(dashboard(window=TimeWindow(10, 10), commit=commit))
    bench.do(WatchProgress("d"))
    found: list[Any] = []
    for at in range(35):
        found += rows(bench.run(tick(("a", at, at)), budget=2, at=at), "d")
    reader = queue_of(bench)
    found += rows(bench.run(punctuate("s", 100), at=100), "d")
    windows = [[row[2] for row in found if row[2] // 10 == n] for n in range(4)]
    assert windows == [list(range(n * 10, n * 10 + 10)) for n in range(3)] + [[30, 31, 32, 33, 34]]
    assert reader.superseded == 0
    assert Engine.restore(bench.engine.save()).save() == bench.engine.save()
    assert "windows, LAZY or EAGER" in refusal(bench, SetQueue("d.Q", "append"))
    assert bench.do(SetQueue("d.Q", "fifo")).kind == "fifo"
    assert reader.queue.last.finished or commit == "lazy"  # type: ignore[attr-defined]


def test_under_load_windows_are_dropped_whole_and_counted() -> None:
    bench = Bench(ticks())
    bench.query(dashboard(window=TimeWindow(10, 10), commit="lazy"))
    for at in range(50):
        bench.step(tick(("a", at, at)), budget=0)
    found = [row[2] for row in rows(bench.run(), "d")]
    assert found == list(range(30, 40))  # 40 to 49 has not arrived: the mark is 49
    assert queue_of(bench).superseded == 3


# -- what waits for too long -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge", [latest("fifo"), EdgeSpec(shed=10), EdgeSpec(), EdgeSpec(queued=True)])
def test_what_waits_for_too_long_is_told_with_its_keys(edge: EdgeSpec) -> None:
    bench = Bench(ticks())
    bench.query(with_edges(audit(), [edge]))
    bench.step(tick(("a", 1, 1)), at=100, budget=0)
    bench.step(tick(("b", 2, 2)), at=200, budget=0)
    bench.step(tick(("a", 3, 3)), at=250, budget=0)
    a, b = ((("k", "a"),), (("k", "b"),)) if edge.updates else ((), ())
    older = bench.engine.older
    assert older("audit", 1100, 999) == [(a, 1000)]
    assert older("audit", 1100, 1000) == []
    # A key has waited since its first update came; where no key is known, the oldest stands for all.
    assert sorted(older("audit", 1100, 10)) == ([(a, 1000), (b, 900)] if edge.updates else [((), 1000)])
    bench.run()
    assert older("audit", 5000, 0) == []


def test_windows_that_wait_for_too_long_are_told_once_they_have_arrived() -> None:
    bench = Bench(ticks())
    window = WINDOW
    assert isinstance(window.window, TimeWindow)
    edge = latest("fifo", window=window.window, commit="lazy")
    made = plan("w", ("W", replace(window, newest=True), ["s.source"]), schema=window.schema([TICKS]))
    bench.query(with_edges(made, [edge]))
    bench.step(tick(("a", 1, 1)), at=100, budget=0)
    assert bench.engine.older("w", 1000, 0) == []
    bench.step(tick(("a", 12, 2)), at=200, budget=0)
    assert bench.engine.older("w", 1000, 0) == [((("k", "a"),), 800)]


# -- an edge that the load turns ---------------------------------------------------------------------------------------

SECOND = 1_000_000


def seconds(bench: Bench, count: int, arrive: int, serve: int) -> list[Any]:
    """So many seconds, in tenths: so many tuples of 30 keys arrive, and so many are processed; the switches."""
    turned: list[Any] = []
    for _ in range(10 * count):
        at = bench.now_us + SECOND // 10
        given_now = [(f"k{n % 30}", at + n, n) for n in range(arrive)]
        orders = bench.step(tick(*given_now), at=at, budget=serve).orders
        turned += [order for order in orders if isinstance(order, QueueTurned)]
    return turned


def test_the_load_turns_an_edge_and_all_of_it_is_shown_and_saved() -> None:
    bench = Bench(ticks())
    bench.query(dashboard(kind="auto"), "dfs(10)")
    assert seconds(bench, 3, 20, 200) == []
    assert "newest row" not in bench.engine.why("d").text
    (turned,) = seconds(bench, 3, 80, 40)
    assert (turned.operator, turned.input, turned.numbers["mode"]) == ("d.Q", 0, "update")
    assert turned.numbers["load"] >= 0.9
    auto = seen(bench).auto
    assert auto is not None
    assert (auto.mode, auto.switches) == ("update", 1)
    assert bench.engine.queries()[0].auto == {"d.Q": "update"}
    assert bench.engine.staleness("d.Q").auto == auto
    assert "d.Q reads only the newest row of each key until the load falls" in bench.engine.why("d").text
    other = Bench()
    other.engine, other.now_us = Engine.restore(bench.engine.save(), trace=True), bench.now_us
    assert other.engine.save() == bench.engine.save()
    before = seconds(bench, 9, 10, 200)
    assert seconds(other, 9, 10, 200) == before
    assert [order.numbers["mode"] for order in before] == ["append"]
    assert other.engine.save() == bench.engine.save()
    auto = seen(bench).auto
    assert auto is not None
    assert auto.switches == 2
    assert bench.do(SetQueue("d.Q", "inplace")).kind == "inplace"
    assert seen(bench).auto is None


@pytest.mark.parametrize("way", ["twin", "exchanged"])
def test_the_load_turns_an_edge_of_windows(way: str) -> None:
    """All windows are processed while there is no overload, under it only the newest, and all again after it."""
    bench = Bench(ticks())
    tenths = TimeWindow(SECOND // 10, SECOND // 10)
    bench.query(dashboard(kind="auto", window=tenths, commit="lazy"), "dfs(10)")
    assert queue_of(bench).presses
    assert seconds(bench, 3, 20, 200) == []
    assert queue_of(bench).superseded == 0
    (turned,) = seconds(bench, 4, 80, 40)
    assert (turned.operator, turned.numbers["mode"], turned.numbers["load"] >= 0.9) == ("d.Q", "update", True)
    assert queue_of(bench).superseded > 100
    assert not queue_of(bench).presses
    assert "reads only the newest window of each key" in bench.engine.why("d").text
    if way == "twin":
        other = Bench()
        other.engine, other.now_us = Engine.restore(bench.engine.save(), trace=True), bench.now_us
        found = seconds(bench, 9, 10, 200)
        assert seconds(other, 9, 10, 200) == found
        assert other.engine.save() == bench.engine.save()
        assert [order.numbers["mode"] for order in found] == ["append"]
        before = queue_of(bench).superseded
        seconds(bench, 3, 20, 200)
        assert queue_of(bench).superseded == before
    else:
        for kind in ("deadline", "auto", "fifo"):
            other = Bench()
            other.engine, other.now_us = Engine.restore(bench.engine.save(), trace=True), bench.now_us
            for one in (bench, other):
                assert one.do(SetQueue("d.Q", kind)).kind == kind
                assert queue_of(one).presses == (kind == "auto")
                seconds(one, 1, 80, 40)
            assert other.engine.save() == bench.engine.save()
        assert seen(bench).auto is None
    seconds(bench, 1, 0, 10_000)
    bench.run(punctuate("s", bench.now_us + SECOND), at=bench.now_us)
    assert queue_of(bench).queue.waiting == 0
    assert bench.engine.gauge.tuples == 0
    assert bench.engine.older("d", bench.now_us + 1, 0) == [], "the application has seen all windows"


@pytest.mark.parametrize("windows", [False, True])
def test_memory_that_is_short_lets_an_edge_supersede_at_any_load(windows: bool) -> None:
    """All that waited is superseded but the newest of each key, and the gauge of queued tuples knows."""
    bench = Bench(ticks())
    window = TimeWindow(SECOND // 10, SECOND // 10) if windows else None
    bench.query(dashboard(kind="auto", window=window, commit="lazy" if windows else None), "dfs(10)")
    assert seconds(bench, 1, 90, 1) == []
    waited = queue_of(bench).queue.waiting
    (turned,) = [
        one for one in bench.step(MemoryHeld(True, True), at=bench.now_us).orders if isinstance(one, QueueTurned)
    ]
    assert (turned.operator, turned.numbers["mode"]) == ("d.Q", "update")
    assert not queue_of(bench).presses
    assert queue_of(bench).superseded > 0
    assert bench.engine.gauge.tuples == queue_of(bench).queue.waiting < waited
    other = Bench()
    other.engine, other.now_us = Engine.restore(bench.engine.save(), trace=True), bench.now_us
    assert other.engine.save() == bench.engine.save()
    assert not [one for one in bench.step(MemoryHeld(True, True)).orders if isinstance(one, QueueTurned)]
    bench.run(MemoryHeld(False))
    assert [one.numbers["mode"] for one in seconds(bench, 9, 10, 200)] == ["append"]


def test_feeds_wait_for_an_edge_that_appends_and_not_for_one_that_supersedes() -> None:
    bench = Bench(ticks())
    bench.query(dashboard(kind="auto"), "dfs(10)")
    assert queue_of(bench).presses
    seconds(bench, 4, 80, 40)
    assert not queue_of(bench).presses
