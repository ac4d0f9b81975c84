"""Marks, lateness and feeds at the source; order and release at an ordered union."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.engine.events import (
    Arrived,
    FeedClosed,
    FeedOpened,
    Grant,
    Late,
    PauseQuery,
    Progressed,
    Rejected,
    ResumeQuery,
    WakeAt,
    WatchProgress,
)
from millrace.engine.plan import StreamDefinition
from millrace.operators.frame.waiting import TimeOrdered
from millrace.protocol import Schema
from millrace.protocol.admin.changes import ResumeReply
from millrace.values.batch import Batch
from tests.engine.graphs import (
    TV,
    Bench,
    V,
    arrive,
    at_times,
    external,
    figure_4,
    identity,
    path,
    plan,
    punctuate,
    refusal,
    rows,
    sort,
    times,
    union,
)


def ordered(*streams: str) -> Any:
    return plan("u", ("U", union(ordered=True), [f"{stream}.source" for stream in streams]), schema=TV, ordered=True)


def give(stream: str, *at: int, feed: str = "main") -> Any:
    return at_times(stream, *at, feed=feed, schema=TV)


# -- lateness ----------------------------------------------------------------------------------------------------------


def test_a_tuple_below_the_mark_is_late_and_one_at_the_mark_is_not() -> None:
    bench = Bench(external("s"))
    bench.query(plan("q", ("M", identity(TV), ["s.source"]), schema=TV))
    effects = bench.run(give("s", 10, 20, 20, 19, 5, 21))
    assert times(effects, "q") == [10, 20, 20, 21]
    (late,) = (effect for effect in effects.orders if isinstance(effect, Late))
    assert late.batch.ts.tolist() == [19, 5]
    assert list(late.marks) == [20, 20]
    (stream,) = bench.engine.streams()
    assert (stream.tuples, stream.late, stream.mark_us) == (6, 2, 21)


def judged_one_by_one(log: list[tuple[str, int]], disorder: int) -> list[tuple[int, bool]]:
    """The oracle: each tuple against the least of the feeds' marks, as the rules say it, without a batch in sight."""
    marks: dict[str, int] = {}
    mark = -(2**63)
    judged = []
    for feed, time in log:
        marks.setdefault(feed, mark)
        late = time < mark
        judged.append((time, late))
        if not late:
            marks[feed] = max(marks[feed], time - disorder)
            mark = max(mark, min(marks.values()))
    return judged


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 30)), max_size=40),
    st.integers(0, 8),
    st.lists(st.integers(1, 5), min_size=1, max_size=40),
)
def test_lateness_is_decided_tuple_by_tuple_however_batches_are_cut(
    log: list[tuple[str, int]], disorder: int, cuts: list[int]
) -> None:
    bench = Bench(external("s", disorder_us=disorder))
    bench.query(plan("q", ("M", identity(TV), ["s.source"]), schema=TV))
    on_time: list[int] = []
    late: list[int] = []
    position = 0
    turn = 0
    while position < len(log):
        feed = log[position][0]
        size = cuts[turn % len(cuts)]
        turn += 1
        stop = position
        while stop < len(log) and stop - position < size and log[stop][0] == feed:
            stop += 1
        effects = bench.run(give("s", *(time for _, time in log[position:stop]), feed=feed))
        on_time += times(effects, "q")
        late += [int(time) for effect in effects.orders if isinstance(effect, Late) for time in effect.batch.ts]
        position = stop
    judged = judged_one_by_one(log, disorder)
    assert on_time == [time for time, is_late in judged if not is_late]
    assert late == [time for time, is_late in judged if is_late]


def test_with_progress_by_punctuation_tuples_do_not_move_the_mark() -> None:
    bench = Bench(external("s", progress="punctuation"))
    bench.query(plan("q", ("M", identity(TV), ["s.source"]), schema=TV))
    assert times(bench.run(give("s", 30, 10, 20)), "q") == [30, 10, 20]
    assert times(bench.run(punctuate("s", 15), give("s", 14, 15)), "q") == [15]


# -- feeds -------------------------------------------------------------------------------------------------------------


def test_progress_is_the_least_over_the_feeds_and_a_new_one_holds_it_where_it_is() -> None:
    bench = Bench(external("s"))
    bench.run(FeedOpened("s", "x"), give("s", 50, feed="x"))
    bench.run(FeedOpened("s", "y"), give("s", 90, feed="x"))
    assert bench.engine.streams()[0].mark_us == 50
    bench.run(give("s", 70, feed="y"))
    assert bench.engine.streams()[0].mark_us == 70
    bench.run(FeedClosed("s", "y"))
    assert bench.engine.streams()[0].mark_us == 90


def test_with_no_feed_left_the_mark_stays_or_the_stream_ends() -> None:
    bench = Bench(external("s"))
    bench.run(give("s", 50), FeedClosed("s", "main"))
    assert (bench.engine.streams()[0].mark_us, bench.engine.streams()[0].ended) == (50, False)
    bench.run(give("s", 60), FeedClosed("s", "main", ended=True))
    assert bench.engine.streams()[0].ended


# -- the ordered union -------------------------------------------------------------------------------------------------


def test_a_tuple_is_released_when_no_input_can_undercut_it() -> None:
    bench = Bench(external("a"), external("b"))
    bench.query(ordered("a", "b"))
    assert times(bench.run(give("a", 1, 3, 5)), "u") == []
    assert times(bench.run(give("b", 2, 4, 6)), "u") == [1, 2, 3, 4, 5]
    assert times(bench.run(FeedClosed("a", "main", ended=True)), "u") == [6]


def test_simultaneous_tuples_never_wait_for_each_other() -> None:
    bench = Bench(external("a"), external("b"))
    bench.query(ordered("a", "b"), "dfs(1)")
    assert times(bench.run(give("a", 5, 5, 5)), "u") == []
    assert times(bench.run(give("b", 5)), "u") == [5, 5, 5, 5]
    assert times(bench.run(give("b", 5)), "u") == [5]


def test_equal_times_come_in_the_order_of_the_inputs_then_of_arrival() -> None:
    bench = Bench(external("a"), external("b"))
    bench.query(ordered("a", "b"))

    def numbered(stream: str, *values: int) -> Arrived:
        return Arrived(stream, "main", Batch.from_rows(TV, [(7, value) for value in values], [7] * len(values)))

    bench.run(numbered("b", 1, 2))
    assert [row[1] for row in rows(bench.run(numbered("a", 3, 4)), "u")] == [3, 4, 1, 2]


def test_at_one_tuple_per_execution_the_registers_are_the_papers() -> None:
    """The relaxed `more`: true if a head's time is the least register. Checked against the horizon, step by step."""
    bench = Bench(external("a"), external("b"), external("c"))
    bench.query(ordered("a", "b", "c"), "dfs(1)")
    rng = np.random.default_rng(7)
    clock = {"a": 0, "b": 0, "c": 0}
    released: list[int] = []
    for _ in range(300):
        stream = "abc"[rng.integers(3)]
        clock[stream] += int(rng.integers(0, 4))
        effects = bench.step(give(stream, clock[stream]), executions=int(rng.integers(0, 4)))
        released += times(effects, "u")
        operator = bench.engine.graph.operators["u.U"]
        assert isinstance(operator, TimeOrdered)
        registers = operator.registers()
        heads = [reorder.head_us() for reorder in operator.waiting]
        papers_more = any(head is not None and head == min(registers) for head in heads)
        # The horizon counts the promise after a queue's head, so it may release more; it never releases less.
        assert operator.more() or not papers_more
    released += times(bench.run(), "u")
    assert released == sorted(released)


def test_the_sum_of_all_is_sorted_and_nothing_is_lost() -> None:
    bench = Bench(external("a", disorder_us=5), external("b"))
    bench.query(ordered("a", "b"))
    out = times(bench.run(give("a", 9, 5, 7, 4, 12), give("b", 6, 6, 11)), "u")
    out += times(bench.run(FeedClosed("a", "main", ended=True), FeedClosed("b", "main", ended=True)), "u")
    assert out == [4, 5, 6, 6, 7, 9, 11, 12]


def test_sort_gives_order_back_as_the_mark_moves() -> None:
    bench = Bench(external("s", disorder_us=10))
    bench.query(plan("q", ("S", sort(), ["s.source"]), schema=TV, ordered=True))
    assert times(bench.run(give("s", 20, 12, 15)), "q") == []
    # 30 - 10: what lies at 20 or below can be undercut no more.
    assert times(bench.run(give("s", 30)), "q") == [12, 15, 20]


# -- on demand ---------------------------------------------------------------------------------------------------------


def test_a_silent_internal_stream_is_asked_for_the_time_and_holds_nothing_back() -> None:
    bench = Bench("a", "b")
    bench.query(figure_4(ordered=True))
    assert times(bench.run(arrive("a", 1, 2), at=100), "u") == [100, 100]
    # What b sends now is stamped at or above what it promised.
    assert times(bench.run(arrive("b", 3), at=100), "u") == [100]


def test_without_the_policy_a_silent_stream_holds_everything_back() -> None:
    bench = Bench("a", StreamDefinition("b", V, ets="none"))
    bench.query(figure_4(ordered=True))
    assert times(bench.run(arrive("a", 1, 2), at=100), "u") == []
    (held,) = (o for o in bench.engine.operators() if o.blocked)
    assert held.name == "u.U"
    assert times(bench.run(arrive("b", 3), at=400), "u") == [100, 100, 400]
    waited = {o.name: [i.idle_wait_us for i in o.inputs] for o in bench.engine.operators()}
    assert waited["u.U"] == [0, 300]


def test_a_need_in_the_future_is_met_by_a_timer() -> None:
    bench = Bench(external("a"), StreamDefinition("b", TV))
    bench.query(ordered("a", "b"))
    effects = bench.run(give("a", 1_000), at=400)
    assert times(effects, "u") == []
    assert [effect for effect in effects.orders if isinstance(effect, WakeAt)] == [WakeAt(1_000)]
    assert times(bench.run(at=1_000), "u") == [1_000]


def test_nothing_is_asked_while_nobody_waits() -> None:
    bench = Bench("a", "b")
    bench.query(figure_4(ordered=False))
    bench.run(arrive("a", 1), at=100)
    assert [stream.mark_us for stream in bench.engine.streams()] == [100, None]


def test_latent_tuples_wait_for_nothing() -> None:
    bench = Bench(StreamDefinition("a", V, "latent"), StreamDefinition("b", V, "latent"))
    bench.query(figure_4(ordered=True))
    assert rows(bench.run(arrive("a", 1, 2), at=50), "u") == [(1,), (2,)]
    assert times(bench.run(arrive("b", 3), at=60), "u") == [60]


def test_internal_time_never_goes_back_with_the_clock() -> None:
    bench = Bench("s")
    bench.query(path("q", 1))
    assert times(bench.run(arrive("s", 1), at=1_000), "q") == [1_000]
    assert times(bench.run(arrive("s", 2), at=10), "q") == [1_000]


# -- progress, beginnings, pauses --------------------------------------------------------------------------------------


def test_a_watched_query_tells_its_progress() -> None:
    bench = Bench(external("s"))
    bench.query(plan("q", ("M", identity(TV), ["s.source"]), schema=TV))
    assert not [e for e in bench.run(give("s", 5)).orders if isinstance(e, Progressed)]
    bench.do(WatchProgress("q"))
    progress = [e.value_us for e in bench.run(give("s", 8), punctuate("s", 12)).orders if isinstance(e, Progressed)]
    assert progress == [12]
    bench.do(WatchProgress("q", wanted=False))
    assert not [e for e in bench.run(give("s", 20)).orders if isinstance(e, Progressed)]


def test_a_query_begins_one_microsecond_above_the_newest_tuple_taken_in() -> None:
    bench = Bench(external("s", disorder_us=10))
    bench.run(give("s", 20))
    bench.query(plan("q", ("M", identity(TV), ["s.source"]), schema=TV))
    # On time for the stream, but older than the query.
    assert times(bench.run(give("s", 15, 20, 21, 25)), "q") == [21, 25]
    assert bench.engine.queries()[0].skipped == 2


def test_a_paused_query_skips_and_counts_and_its_neighbour_does_not_notice() -> None:
    bench = Bench("s")
    bench.query(path("p", 2))
    bench.query(path("q", 2))
    bench.run(arrive("s", 1))
    bench.do(PauseQuery("q"))
    effects = bench.run(arrive("s", 2, 3))
    assert rows(effects, "p") == [(2,), (3,)]
    assert rows(effects, "q") == []
    assert refusal(bench, PauseQuery("q")) == "query q is already paused: paused by an admin"
    assert [query.skipped for query in bench.engine.queries()] == [0, 2]
    assert bench.do(ResumeQuery("q")) == ResumeReply(query="q", skipped=2)
    assert refusal(bench, ResumeQuery("q")) == "query q is not paused"
    assert rows(bench.run(arrive("s", 4)), "q") == [(4,)]


# -- credit ------------------------------------------------------------------------------------------------------------


def granted(effects: Any) -> list[int]:
    return [effect.tuples for effect in effects.orders if isinstance(effect, Grant)]


def test_credit_comes_with_the_feed_and_again_as_tuples_are_taken() -> None:
    bench = Bench("s", credit=100)
    bench.query(path("q", 1))
    assert granted(bench.run(FeedOpened("s", "f"))) == [100]
    assert granted(bench.run(arrive("s", *range(20), feed="f"))) == []
    assert granted(bench.run(arrive("s", *range(10), feed="f"))) == [30]


def test_a_full_component_grants_nothing_until_it_has_worked() -> None:
    bench = Bench("s", credit=100, most_queued=50)
    bench.query(path("q", 1), "dfs(10)")
    bench.run(FeedOpened("s", "f"))
    assert granted(bench.step(arrive("s", *range(90), feed="f"), budget=10)) == []
    assert granted(bench.run()) == [90]


def test_a_stream_that_others_wait_for_gets_credit_from_a_full_component() -> None:
    bench = Bench(external("a"), external("b"), credit=100, most_queued=50)
    bench.query(ordered("a", "b"))
    bench.run(FeedOpened("a", "f"), FeedOpened("b", "f"))
    assert granted(bench.run(give("a", *range(60, 120), feed="f"))) == []
    # b holds a's sixty back: it must be able to speak.
    assert granted(bench.run(give("b", *range(30), feed="f"))) == [30]


TEXT = StreamDefinition("t", Schema.of(text="text"))


def heavy(count: int, size: int = 1_000, feed: str = "f") -> Arrived:
    return Arrived("t", feed, Batch.from_rows(TEXT.schema, [("x" * size,)] * count, [0] * count))


def test_credit_comes_again_as_bytes_are_taken() -> None:
    bench = Bench(TEXT, credit=1_000, credit_bytes=100_000)
    bench.query(path("q", 1, "t"))
    assert granted(bench.run(FeedOpened("t", "f"))) == [1_000]
    assert granted(bench.run(heavy(10))) == []
    assert bench.engine.streams()[0].feeds[0].credit_used_bytes == heavy(10).batch.weight
    assert granted(bench.run(heavy(20))) == [30]
    assert bench.engine.streams()[0].feeds[0].credit_used_bytes == 0


def test_a_component_that_is_full_of_bytes_grants_nothing_until_it_has_worked() -> None:
    bench = Bench(TEXT, credit=100, most_queued=1_000, most_queued_bytes=50_000)
    bench.query(path("q", 1, "t"), "dfs(10)")
    bench.run(FeedOpened("t", "f"))
    assert granted(bench.step(heavy(90), budget=10)) == []
    assert bench.engine.components()[0].queued_bytes > 80_000
    assert granted(bench.run()) == [90]
    assert bench.engine.components()[0].queued_bytes == 0


@pytest.mark.parametrize("event", [FeedOpened("x", "f"), FeedClosed("x", "f"), punctuate("x", 5), arrive("x", 1)])
def test_an_event_for_a_stream_that_is_not_there_changes_nothing(event: Any) -> None:
    bench = Bench("s")
    bench.run(at=0)
    before = bench.engine.save()
    (effect,) = bench.step(event, at=0).orders
    assert isinstance(effect, Rejected)
    assert effect.refused.code == "unknown_stream"
    assert bench.engine.save() == before
