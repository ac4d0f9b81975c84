"""What the simulator found broken, each as small as it can be said."""

from __future__ import annotations

import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AlterStream,
    Arrived,
    Command,
    Deliver,
    DropQuery,
    DropStream,
    FeedClosed,
    FeedOpened,
    Late,
    PauseQuery,
    ResumeQuery,
    SetBreak,
    SetStrategy,
    WakeAt,
    WithholdCredit,
)
from millrace.engine.plan import StreamDefinition
from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.join import join, segments
from millrace.operators.join.bands import Band
from millrace.operators.join.spec import JoinSpec
from millrace.operators.queues.windows import WindowQueue
from millrace.operators.sequence.spec import SequenceSpec
from millrace.protocol import Field, Schema, Type
from millrace.values.batch import Batch
from millrace.values.eventtime import MAX_TIME, MIN_TIME
from tests.engine.graphs import (
    TV,
    Bench,
    V,
    arrive,
    compare,
    external,
    give_tv,
    path,
    plan,
    punctuate,
    rows,
    select,
    sort,
    times,
    union,
)
from tests.engine.test_edges import TICKS, dashboard, seen, tick, ticks
from tests.simulation.auditors import grammar

LATENT = StreamDefinition("l", TV, "latent")


def passing(source="s.source"):
    return ("A", select(compare(">=", 0)), [source])


def test_a_paused_query_looks_at_nothing():
    # The select's scheduler asked it for more, and it reached for batches that were gone.
    bench = Bench("s")
    bench.query(path("q", 2))
    bench.query(path("p", 1))
    bench.do(PauseQuery("q"))
    assert rows(bench.run(arrive("s", 1, 2)), "p") == [(1,), (2,)]
    bench.do(SetStrategy("s", "bfs(1)"))
    assert rows(bench.run(arrive("s", 3)), "q") == []
    bench.do(ResumeQuery("q"))
    assert rows(bench.run(arrive("s", 4)), "q") == [(4,)]
    assert [query.skipped for query in bench.engine.queries()] == [3, 0]


def test_a_paused_query_is_restored_as_one():
    bench = Bench("s")
    bench.query(path("q", 1))
    bench.query(path("p", 1))
    bench.do(PauseQuery("q"))
    bench.run(arrive("s", 1, 2))
    saved = bench.engine.save()
    restored = Engine.restore(saved, trace=True)
    assert restored.save() == saved
    bench.engine = restored
    bench.do(ResumeQuery("q"))
    assert rows(bench.run(arrive("s", 3)), "q") == [(3,)]
    assert [query.skipped for query in restored.queries()] == [2, 0]


def test_who_comes_back_passes_on_what_was_promised_meanwhile():
    # The select's output went on promising what it had promised before the pause, and the sort behind the union waited.
    bench = Bench(external("s"))
    bench.query(plan("q", passing(), ("U", union(), ["A"]), ("S", sort(), ["U"]), schema=TV, ordered=True))
    bench.run(give_tv("s", 10), punctuate("s", 10))
    bench.do(PauseQuery("q"))
    bench.run(punctuate("s", 50))
    bench.do(ResumeQuery("q"))
    bench.run()
    (found,) = (operator for operator in bench.engine.operators() if operator.name == "q.U")
    assert found.low_water_us == 50


def test_a_fork_is_finished_although_a_cycle_ended_behind_a_break_point():
    # Branch B ends in the union, whose other input lies behind a break point: the cycle exits there and never saw C.
    bench = Bench(external("s"))
    bench.query(
        plan(
            "q",
            passing(),
            ("B", select(compare(">=", 0)), ["A"]),
            ("C", sort(), ["A"]),
            ("U", union(ordered=True), ["B", "C"]),
            schema=TV,
            ordered=True,
        ),
        "bfs",
    )
    bench.do(SetBreak("q.C", True))
    effects = bench.run(give_tv("s", 1, 2, 3), FeedClosed("s", "main", ended=True))
    assert times(effects, "q") == [1, 1, 2, 2, 3, 3]


def test_a_restored_fork_keeps_its_component_strategy():
    bench = Bench("s")
    bench.do(SetStrategy("s", "rr(2)"))
    bench.query(path("q", 1))
    bench.query(path("p", 1))
    fork = bench.rule("s.fork1")
    bench.engine = Engine.restore(bench.engine.save())
    assert bench.rule("s.fork1") == fork == "RR(2)-Fork"


def test_readers_stand_in_one_order_before_and_after_a_restore():
    bench = Bench("s")
    bench.query(path("q", 1))
    bench.query(path("p", 1))
    bench.do(PauseQuery("q"))
    bench.do(ResumeQuery("q"))
    before = [operator.name for operator in bench.engine.graph.operators.values()]
    restored = Engine.restore(bench.engine.save())
    table = restored.table("s").rows
    assert table == bench.engine.table("s").rows
    assert [operator.name for operator in restored.graph.operators.values()] == before


def test_a_latent_tuple_is_not_stamped_above_one_that_still_waits():
    bench = Bench(external("s"), LATENT)
    bench.query(plan("u", ("U", union(ordered=True), ["l.source", "s.source"]), schema=TV, ordered=True), "dfs(1)")
    effects = bench.run(give_tv("l", 0), give_tv("s", 5, 6, 90), at=70)
    assert times(effects, "u") == [5, 5, 6, 90]


def test_what_stamps_latent_tuples_promises_no_more_than_the_clock():
    # The inner union had promised the end of time, so the outer one gave what a later stamp undercut.
    bench = Bench(external("s"), external("t"), LATENT)
    inner = ("I", union(ordered=True), ["l.source", "s.source"])
    outer = ("O", union(ordered=True), ["I", "t.source"])
    bench.query(plan("u", inner, outer, schema=TV, ordered=True))
    effects = bench.run(punctuate("s", 200), give_tv("t", 100), at=50)
    assert times(effects, "u") == []
    assert [order.at_us for order in effects.orders if isinstance(order, WakeAt)] == [100]
    assert times(bench.run(give_tv("l", 0), at=60), "u") == [60]
    assert times(bench.run(at=100), "u") == [100]
    assert times(bench.run(give_tv("t", 500), at=110), "u") == []
    ended = [FeedClosed(stream, "main", ended=True) for stream in ("s", "t", "l")]
    assert times(bench.run(*ended, at=111), "u") == [500]


def test_latent_tuples_come_first_while_nothing_is_known_of_the_others():
    bench = Bench(external("s"), LATENT)
    bench.query(plan("u", ("U", union(ordered=True), ["l.source", "s.source"]), schema=TV, ordered=True))
    assert times(bench.run(give_tv("l", 0), at=70), "u") == [MIN_TIME]
    assert times(bench.run(give_tv("s", 5), at=71), "u") == [5]


def test_a_query_added_later_counts_what_it_reads_and_nothing_older():
    bench = Bench(external("s", disorder_us=100))
    bench.run(give_tv("s", 50))
    bench.do(AddQuery(plan("q", ("U", union(), ["s.source", "s.source"]), schema=TV)))
    assert times(bench.run(give_tv("s", 40, 60)), "q") == [60, 60]
    (found,) = (operator for operator in bench.engine.operators() if operator.name == "q.U")
    assert found.input_tuples == found.output_tuples == 2


def test_what_comes_after_the_end_of_a_stream_is_late_whatever_stamps_it():
    # An internal tuple was stamped with the end of time itself.
    for definition in (StreamDefinition("s", V), StreamDefinition("s", V, "latent")):
        bench = Bench(definition)
        bench.query(path("q", 1))
        bench.run(arrive("s", 1), FeedClosed("s", "main", ended=True))
        effects = bench.run(arrive("s", 2), at=70)
        assert rows(effects, "q") == []
        (late,) = (order for order in effects.orders if isinstance(order, Late))
        assert (late.batch.rows(), late.batch.ts.tolist(), late.marks.tolist()) == ([(2,)], [70], [MAX_TIME])


def test_nobody_is_looked_at_again_for_whom_nobody_waits_any_more():
    # The timer of a need stayed when a tuple had met the need already, and when the stream was dropped.
    bench = Bench(external("a"), external("b", max_skew_us=100))
    bench.query(plan("u", ("U", union(ordered=True), ["a.source", "b.source"]), schema=TV, ordered=True))
    bench.run(give_tv("b", 500), at=510)
    effects = bench.run(give_tv("a", 550), at=560)
    assert [order.at_us for order in effects.orders if isinstance(order, WakeAt)] == [660]
    effects = bench.run(give_tv("b", 550), at=570)
    assert times(effects, "u") == [550, 550]
    assert not [order for order in effects.orders if isinstance(order, WakeAt)]
    bench.run(give_tv("a", 590), at=600)
    bench.do(DropQuery("u"))
    bench.do(DropStream("b"))
    assert not [order for order in bench.run(at=610).orders if isinstance(order, WakeAt)]


@pytest.mark.parametrize("kind", ["fifo", "inplace", "linecutting"])
def test_a_resumed_update_queue_knows_what_it_served(kind):
    # Its queue began anew with the resumption, and an older row of a key came out after a newer one.
    bench = Bench(ticks(disorder_us=100))
    bench.query(dashboard(kind=kind))
    assert rows(bench.run(tick(("a", 1000, 1))), "d") == [(1000, "a", 1)]
    bench.do(PauseQuery("d"))
    bench.do(ResumeQuery("d"))
    assert rows(bench.run(tick(("a", 950, 2))), "d") == []
    assert seen(bench).superseded == 1
    assert rows(bench.run(tick(("a", 1001, 3))), "d") == [(1001, "a", 3)]


@pytest.mark.parametrize("commit", ["lazy", "eager"])
def test_a_restored_queue_of_windows_knows_when_its_query_began(commit):
    # Where its reader was restored without the beginning, it gave the window that had begun before the query.
    made, restored = (
        WindowQueue(TICKS, (1,), TimeWindow(10, 10), commit, "fifo", by_tuples=False, begin_us=begin)
        for begin in (13, MIN_TIME)
    )
    restored.restore(made.save())
    restored.enqueue(tick(("a", 15, 1), ("a", 26, 1)).batch, 26)
    restored.promised(40, 40)
    assert [one.start_us for one in restored.serve(9, 40).finished] == [20]


def test_the_clock_speaks_at_a_heartbeat_for_a_client_that_did_not_answer_the_last():
    # A client that could answer and never did was asked at every heartbeat, and its declared skew was forgotten.
    periodic = external("b", ets="periodic", ets_interval_us=100, ets_retry_us=30, max_skew_us=20)
    bench = Bench(external("a"), periodic)
    bench.query(plan("u", ("U", union(ordered=True), ["a.source", "b.source"]), schema=TV, ordered=True))
    bench.run(FeedOpened("b", "main", can_answer=True), give_tv("b", 500), at=500)
    bench.run(give_tv("a", 550), at=560)
    # It was asked at 500 and given up at 530. 500 and 100 passed, less the skew of 20.
    assert times(bench.run(at=600), "u") == [550]
    assert bench.engine.streams()[1].mark_us == 580


def test_absences_are_gone_on_with_although_the_cycle_ended_behind_them():
    # One at a time, and the select behind exits instead of going back: nobody asked for the others again.
    bench = Bench(external("a"), external("b"))
    absence = SequenceSpec((("x", 0, 0), ("y", 0, 1)), within_us=5, absent=True)
    bench.query(plan("q", ("J", absence, ["a.source", "b.source"]), ("S", select(), ["J"]), schema=TV), "dfs(1)")
    bench.do(SetStrategy("a", "rr(1)", "q.S"))
    ends = [FeedClosed(name, "main", ended=True) for name in "ab"]
    bench.run(give_tv("a", *range(20)))
    assert times(bench.run(*ends), "q") == list(range(5, 25))


@pytest.mark.parametrize("strategy", ["dfs", "dfs(5)"])
def test_a_join_that_leaves_rows_to_its_next_execution_has_one(monkeypatch, strategy):
    # With a limit, an execution that only finished earlier rows left the queued ones to nobody.
    for module, name in ((join, "MOST_LOOKED"), (segments, "FEW_PAIRS"), (segments, "MOST_PAIRS")):
        monkeypatch.setattr(module, name, 2)
    bench = Bench(external("a"), external("b"))
    pairs = JoinSpec((("x", 0, 0), ("y", 1, 0)), (Band(0, 1, 0, 0),))
    bench.query(plan("q", ("J", pairs, ["a.source", "b.source"]), ("S", select(), ["J"])), strategy)
    bench.do(SetStrategy("a", "rr(1)", "q.S"))
    bench.run(give_tv("a", *range(20)))
    assert sorted(times(bench.run(give_tv("b", *range(20))), "q")) == list(range(20))


def test_a_join_does_not_count_rows_from_before_its_query():
    bench = Bench(external("a", disorder_us=50))
    bench.run(give_tv("a", 100))
    pairs = JoinSpec((("x", 0, 0), ("y", 1, 0)), (Band(0, 1, -5, 5),))
    bench.query(plan("q", ("J", pairs, ["a.source", "a.source"])))
    bench.run(give_tv("a", 90, 91))
    bench.run(give_tv("a", 92))
    (found,) = (operator for operator in bench.engine.operators() if operator.name == "q.J")
    assert found.input_tuples == 0


@pytest.mark.parametrize("ordered", [False, True])
def test_a_total_over_a_stream_that_has_ended_emits_its_row(ordered):
    # Its arc had promised the end of time when it was built, and the row over no rows came after that.
    bench = Bench(external("s"))
    bench.run(give_tv("s", 1), FeedClosed("s", "main", ended=True))
    total = AggregateSpec(None, (), (("n", AggregateCall(Type.BIGINT, False, "count()", ())),))
    above = [("O", sort(), ["s.source"])] if ordered else []
    with grammar():
        bench.query(
            plan("q", *above, ("T", total, ["O" if ordered else "s.source"]), ("S", select(compare(">=", 0)), ["T"]))
        )
        effects = bench.run(at=70)
    assert (times(effects, "q"), rows(effects, "q")) == ([70], [(0,)])


def test_a_feed_that_gets_credit_again_is_looked_at_again():
    # Its clock stood still without credit, and nobody came back to the union that waits for it.
    bench = Bench(external("a"), external("b", max_skew_us=100))
    bench.query(plan("u", ("U", union(ordered=True), ["a.source", "b.source"]), schema=TV, ordered=True))
    bench.do(WithholdCredit("u", True, True))
    bench.run(FeedOpened("b", "main"), give_tv("b", 500), at=510)
    assert not [order for order in bench.run(give_tv("a", 550), at=560).orders if isinstance(order, WakeAt)]
    bench.do(WithholdCredit("u", False, False))
    assert [order.at_us for order in bench.run(at=570).orders if isinstance(order, WakeAt)] == [710]
    assert times(bench.run(at=710), "u") == [550]


@pytest.mark.parametrize("at", [101, 106])
def test_an_unmatched_row_does_not_wait_for_an_older_one_of_the_other_side(at):
    # Only the older row's need was carried, to a stream without an answer; the clock could answer the other's.
    bench = Bench(external("a", disorder_us=20), StreamDefinition("b", TV, "internal"))
    full = JoinSpec((("x", 0, 0), ("y", 1, 0)), (Band(0, 1, -3, 5),), outer=(0, 1))
    bench.query(plan("q", ("J", full, ["a.source", "b.source"])))
    bench.run(give_tv("b", 96), at=96)
    effects = bench.run(give_tv("a", 100), at=at)
    assert [order.at_us for order in effects.orders if isinstance(order, WakeAt)] == ([106] if at < 106 else [])
    assert rows(effects, "q") + rows(bench.run(at=106), "q") == [(100, None)]


def test_what_waits_off_an_arc_counts_as_much_when_its_stream_gets_a_field():
    # What an update queue held counted as so many bytes when it came, and as more when it left; a restored engine that
    # found it there counted more from the beginning.
    bench = Bench(ticks())
    bench.query(dashboard())
    bench.step(tick(("a", 1, 1), ("b", 2, 2)), budget=0)
    restored = Engine.restore(bench.engine.save())
    for engine in (bench.engine, restored):
        before = engine.gauge.bytes
        engine.step(1, [Command(1, AlterStream("s", (), fields=(Field("more", Type.BIGINT),)))], budget=0)
        assert engine.gauge.bytes == before == Engine.restore(engine.save()).gauge.bytes
        engine.step(2)
        assert (engine.gauge.tuples, engine.gauge.bytes) == (0, 0)


def test_what_waits_in_line_counts_as_much_when_its_stream_gets_a_field():
    bench = Bench(external("a"), external("b"))
    bench.query(plan("u", ("U", union(ordered=True), ["a.source", "b.source"]), schema=TV, ordered=True))
    bench.run(give_tv("a", 5, 6))
    before = bench.engine.gauge.bytes
    bench.do(AlterStream("a", (), fields=(Field("more", Type.BIGINT),)))
    assert bench.engine.gauge.bytes == before == Engine.restore(bench.engine.save()).gauge.bytes
    bench.run(punctuate("b", 10))
    assert (bench.engine.gauge.tuples, bench.engine.gauge.bytes) == (0, 0)


def test_a_saved_sequence_emits_the_same_masks_as_one_that_was_not():
    # A save sweeps dead rows, and with them the nulls by which later rows had a mask.
    benches = [Bench(external("a"), external("b")) for _ in range(2)]
    pairs = SequenceSpec((("x", 0, 1), ("y", 1, 1)), within_us=5)
    found = []
    for bench in benches:
        bench.query(plan("q", ("J", pairs, ["a.source", "b.source"]), schema=Schema.of(x="bigint", y="bigint")))
        first = Batch.from_rows(TV, [(1, None)], [1])
        bench.run(Arrived("a", "main", first), give_tv("b", 2), punctuate("a", 3))
        bench.run(give_tv("a", 20), punctuate("b", 20), punctuate("a", 21))
        if bench is benches[1]:
            bench.engine.save()
        orders = bench.run(give_tv("b", 22), punctuate("a", 30)).orders
        found += [order.batch.valid[0] for order in orders if isinstance(order, Deliver)]
    assert found == [None, None]
