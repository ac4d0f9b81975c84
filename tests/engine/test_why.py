"""Why a query emits no rows: one sentence for a person and the same as data, in every situation."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.engine.events import Answered, FeedClosed, FeedHeld, FeedOpened, PauseQuery
from millrace.engine.plan import StreamDefinition
from millrace.operators.frame.windows import TimeWindow
from millrace.protocol import Refuse
from millrace.protocol.admin.data import to_data
from millrace.protocol.admin.queries import Why
from tests.engine.graphs import (
    TV,
    Bench,
    V,
    arrive,
    compare,
    external,
    figure_4,
    give_tv,
    identity,
    path,
    plan,
    select,
    sort,
    union,
)
from tests.engine.test_windows import counting, over

SECOND = 1_000_000
NOON = 1_767_268_800 * SECOND  # 2026-01-01 12:00:00


def waiting_for(b: StreamDefinition, *events: Any, answers: bool = False, feed: bool = True) -> Bench:
    """An ordered union that holds back a tuple of `a`, two seconds old, because of `b`."""
    bench = Bench(external("a"), b)
    bench.query(plan("u", ("U", union(ordered=True), ["a.source", "b.source"]), schema=TV, ordered=True))
    bench.run(at=NOON)
    if feed:
        bench.run(FeedOpened("b", "client-7", can_answer=answers), at=NOON)
    for event in events:
        bench.run(event, at=NOON)
    bench.run(give_tv("a", NOON + SECOND), at=NOON + SECOND)
    return bench


def why(bench: Bench, query: str = "u") -> Why:
    return bench.engine.why(query)


def test_a_silent_client_that_cannot_be_asked() -> None:
    found = why(waiting_for(external("b"), give_tv("b", NOON, feed="client-7")))
    assert to_data(found) == {
        "text": "Blocked since 2026-01-01T12:00:01Z: u.U holds 1 tuple until its input from b.source reaches "
        "2026-01-01T12:00:01Z (it is at 2026-01-01T12:00:00Z); client client-7 of b is silent and cannot answer "
        "requests for its time, and b has no max_skew.",
        "reason": "silent",
        "operator": "u.U",
        "input": "b.source",
        "stream": "b",
        "feed": "client-7",
        "since": NOON + SECOND,
        "held": 1,
        "asked": None,
        "answered": None,
        "group": None,
        "try": "millrace sql \"ALTER STREAM b SET (max_skew = '2 seconds')\"",
    }


def test_a_wait_starts_with_its_first_tuple_and_again_after_each_output() -> None:
    bench = waiting_for(external("b"), give_tv("b", NOON, feed="client-7"))
    for seconds in (2, 3, 4):
        bench.run(give_tv("a", NOON + seconds * SECOND), at=NOON + seconds * SECOND)
    assert (why(bench).since, why(bench).held) == (NOON + SECOND, 4)
    bench.run(give_tv("b", NOON + 2 * SECOND, feed="client-7"), at=NOON + 9 * SECOND)
    assert (why(bench).since, why(bench).held) == (NOON + 9 * SECOND, 2)
    (union,) = [one for one in bench.engine.operators() if one.name == "u.U"]
    assert union.inputs[1].idle_wait_us == 8 * SECOND


def test_no_client_feeds_the_stream() -> None:
    found = why(waiting_for(external("b"), feed=False))
    assert (found.reason, found.feed, found.try_) == ("no_feed", None, "millrace feed b FILE")
    assert "no client is feeding b" in found.text


def test_a_client_was_asked_and_has_not_answered_yet() -> None:
    found = why(waiting_for(external("b"), answers=True))
    assert (found.reason, found.asked, found.answered) == ("asked", NOON + SECOND, None)


def test_a_client_did_not_answer_in_time() -> None:
    bench = waiting_for(external("b", ets_retry_us=10), answers=True)
    bench.engine.step(bench.now_us + 10)
    # Its time has been requested again immediately, and the report is about that request.
    assert why(bench).reason == "asked"
    assert why(bench).asked == NOON + SECOND + 10


def test_a_client_answered_with_less_than_is_needed() -> None:
    bench = waiting_for(external("b"), answers=True)
    bench.run(Answered("b", "client-7", 1, NOON + 5), at=NOON + SECOND + 20)
    found = why(bench)
    assert (found.reason, found.answered) == ("answered_below", NOON + SECOND + 20)
    assert "answered with 2026-01-01T12:00:00.000005Z" in found.text


def test_a_clients_own_clock_cannot_be_there_yet() -> None:
    bench = waiting_for(external("b"), give_tv("b", NOON - 60 * SECOND, feed="client-7"), answers=True)
    assert why(bench).reason == "clock_behind"


def test_a_declared_skew_is_being_waited_for() -> None:
    found = why(waiting_for(external("b", max_skew_us=5 * SECOND), give_tv("b", NOON, feed="client-7")))
    assert found.reason == "skew"
    assert "may be 5 s late (max_skew)" in found.text


def test_a_skew_helps_nothing_before_the_first_tuple() -> None:
    assert why(waiting_for(external("b", max_skew_us=5 * SECOND))).reason == "no_first_tuple"


def test_something_of_the_clients_may_lie_unread() -> None:
    bench = waiting_for(external("b", max_skew_us=SECOND), give_tv("b", NOON, feed="client-7"))
    bench.run(FeedHeld("b", "client-7", held=True), at=bench.now_us)
    assert why(bench).reason == "unread"


def test_a_client_lost_its_connection_and_has_grace() -> None:
    bench = waiting_for(external("b", grace_us=30 * SECOND), give_tv("b", NOON, feed="client-7"))
    bench.run(FeedClosed("b", "client-7", lost=True), at=bench.now_us)
    found = why(bench)
    assert found.reason == "grace"
    assert "the server waits another 30 s for it (grace)" in found.text


def test_a_stream_is_never_asked() -> None:
    found = why(waiting_for(external("b", ets="none")))
    assert (found.reason, found.try_) == (
        "ets_none",
        "millrace sql \"ALTER STREAM b SET (ets = 'on-demand')\"",
    )


def test_a_stream_with_periodic_time() -> None:
    bench = Bench("a", StreamDefinition("b", V, ets="periodic", ets_interval_us=SECOND))
    bench.query(figure_4(ordered=True))
    bench.run(at=NOON)
    bench.run(arrive("a", 1), at=NOON + 1)
    found = why(bench)
    assert found.reason == "periodic"
    assert "its time advances only every 1 s" in found.text


def test_a_stream_with_periodic_time_and_no_clock() -> None:
    def looked(*fed: FeedOpened) -> Any:
        bench = Bench(external("a"), external("b", ets="periodic", ets_interval_us=SECOND))
        bench.query(plan("u", ("U", union(ordered=True), ["a.source", "b.source"]), schema=TV, ordered=True))
        bench.run(*fed, give_tv("a", NOON), at=NOON)
        return [bench.engine.why("u", NOON + seconds * SECOND).reason for seconds in (1, 2)]

    assert looked() == ["periodic", "no_feed"]
    assert looked(FeedOpened("b", "client-7")) == ["periodic", "silent"]


def test_a_tuple_of_the_future_waits_for_the_clock() -> None:
    bench = Bench(external("a"), StreamDefinition("b", TV))
    bench.query(plan("u", ("U", union(ordered=True), ["a.source", "b.source"]), schema=TV, ordered=True))
    bench.run(give_tv("a", NOON + SECOND), at=NOON)
    assert why(bench).reason == "clock"


def test_a_disordered_stream_holds_itself_back() -> None:
    bench = Bench(external("s", disorder_us=5 * SECOND))
    bench.query(plan("q", ("S", sort(), ["s.source"]), schema=TV, ordered=True))
    bench.run(give_tv("s", NOON), at=NOON)
    found = why(bench, "q")
    assert (found.operator, found.stream, found.feed, found.reason) == ("q.S", "s", "main", "sending")
    assert "main of s is sending and has reached 2026-01-01T12:00:00Z, less a disorder of 5 s" in found.text
    # An idle engine makes no steps, but the clock has advanced.
    assert bench.engine.why("q", NOON + 2 * SECOND).reason == "silent"


def counted(bench: Bench) -> None:
    """A query that counts per second."""
    bench.query(over(counting(TimeWindow(SECOND, SECOND))))


def test_an_open_window_is_not_blocked() -> None:
    bench = Bench(external("s"))
    counted(bench)
    bench.run(give_tv("s", NOON, NOON + 5), at=NOON)
    found = why(bench, "q")
    assert (found.reason, found.operator, found.input) == ("gathering", "q.A", "s.source")
    assert found.text == (
        "Not blocked: q.A holds 1 tuple in its state and emits rows when its input from s.source reaches "
        "2026-01-01T12:00:01Z; it is at 2026-01-01T12:00:00.000005Z. q has emitted 0 rows."
    )


def test_an_open_window_of_a_stream_without_a_feed() -> None:
    bench = Bench(external("s"))
    counted(bench)
    bench.run(give_tv("s", NOON), FeedClosed("s", "main"), at=NOON)
    found = why(bench, "q")
    assert (found.reason, found.try_) == ("gathering", "millrace feed s FILE")
    assert "it is at 2026-01-01T12:00:00Z, and no client is feeding s. q has emitted 0 rows." in found.text


def test_a_window_that_is_over_waits_with_what_it_has_gathered() -> None:
    bench = Bench(external("s", disorder_us=5 * SECOND))
    counted(bench)
    bench.run(give_tv("s", NOON, NOON + 3 * SECOND), at=NOON)
    found = bench.engine.why("q", NOON + 2 * SECOND)
    assert (found.reason, found.held) == ("silent", 0)
    assert found.text.startswith(
        "Blocked since 2026-01-01T12:00:00Z: q.A holds 2 tuples in its state until its input from"
    )


def test_a_query_that_remembered_too_much_is_not_simply_resumed() -> None:
    bench = Bench(external("s"))
    counted(bench)
    bench.engine.query("q").paused = "its state grew to 2 tuples, and max_state is 1"
    bench.engine.query("q").failed = True
    found = why(bench, "q")
    assert (found.reason, found.try_) == ("failed", "millrace explain q")
    assert "raise max_state" in found.text


def test_a_paused_query_and_one_that_reads_it() -> None:
    bench = Bench("s")
    bench.query(path("p", 1))
    bench.query(plan("q", ("U", union(), ["p.Q1"])))
    bench.do(PauseQuery("p", "its subscriber is slow"))
    assert why(bench, "p").text == "p is paused: its subscriber is slow."
    assert why(bench, "q").text == "q reads p, which is paused: its subscriber is slow."
    assert why(bench, "q").try_ == "millrace query resume p"


def test_a_query_that_is_still_working() -> None:
    bench = Bench("s")
    bench.query(path("q", 1), "dfs(1)")
    bench.step(arrive("s", *range(50)), at=NOON, executions=3)
    found = why(bench, "q")
    assert (found.reason, found.held) == ("working", 47)


def test_a_long_wait_is_reported_while_other_rows_are_processed() -> None:
    bench = waiting_for(external("b"), give_tv("b", NOON, feed="client-7"))
    late = NOON + 2 * SECOND
    bench.step(give_tv("a", *range(late, late + 50)), at=late, executions=0)
    assert bench.engine.graph.component_of(bench.engine.query("u").operators[0]).busy()
    assert why(bench).reason == "working"
    assert bench.engine.why("u", late + 1).reason == "silent"


def test_of_two_open_windows_the_one_with_the_earlier_input_is_reported() -> None:
    bench = Bench(external("a"), external("b"))
    spec = counting(TimeWindow(SECOND, SECOND))
    bench.query(
        plan(
            "q",
            ("A", spec, ["a.source"]),
            ("B", spec, ["b.source"]),
            ("U", union(), ["A", "B"]),
            schema=spec.schema([TV]),
        )
    )
    bench.run(give_tv("a", NOON, NOON + 9 * SECOND), give_tv("b", NOON), at=NOON)
    assert (why(bench, "q").operator, why(bench, "q").stream) == ("q.B", "b")


def test_a_stream_of_late_tuples_has_no_feed() -> None:
    bench = Bench(external("s"))
    schema = bench.engine.streams_by_name["s"].definition.late.schema
    bench.query(plan("q", ("M", identity(schema), ["s.late.source"]), schema=schema))
    bench.run(at=NOON)
    found = why(bench, "q")
    assert found.text == ("No input yet: s.late has received no tuples; it receives only the late tuples of s.")
    assert found.try_ == "millrace stream show s"


def test_nothing_has_come_yet() -> None:
    bench = Bench("s")
    bench.query(path("q", 1))
    bench.run(at=NOON)
    assert why(bench, "q").text == "No input yet: s has received no tuples; no client is feeding it."
    bench.run(FeedOpened("s", "x"), at=NOON)
    assert "1 feed is open" in why(bench, "q").text


def test_all_that_came_was_late() -> None:
    bench = Bench(external("s"))
    bench.query(plan("q", ("M", identity(TV), ["s.source"]), schema=TV))
    bench.run(give_tv("s", NOON), at=NOON)
    other = Bench(external("s"))
    other.run(FeedOpened("s", "x"), at=NOON)
    other.engine.source("s").promise(other.engine.source("s").open("x"), NOON, "client")
    other.query(plan("q", ("M", identity(TV), ["s.source"]), schema=TV))
    other.run(give_tv("s", NOON - 5, feed="x"), at=NOON)
    found = why(other, "q")
    assert (found.reason, found.try_) == ("late", "millrace late s")


def test_all_that_came_was_too_far_in_the_future() -> None:
    bench = Bench(external("s", ahead_us=60_000_000))
    bench.query(plan("q", ("M", identity(TV), ["s.source"]), schema=TV))
    bench.run(give_tv("s", NOON + 3_600_000_000), at=NOON)
    found = why(bench, "q")
    assert found.text == "No input: of 1 tuple of s, 0 were late and 1 too far in the future."
    assert (found.reason, found.try_) == ("late", "millrace stream show s")


def test_the_last_tuple_was_filtered() -> None:
    bench = Bench("s")
    bench.query(plan("q", ("S", select(compare(">", 5)), ["s.source"]), ("M", identity(), ["S"])))
    bench.run(arrive("s", 9), at=NOON)
    assert why(bench, "q").reason == "flowing"
    bench.run(arrive("s", 1), at=NOON + SECOND)
    found = why(bench, "q")
    assert found.reason == "filtered"
    assert found.text == (
        "Not blocked: the last tuple of s arrived at 2026-01-01T12:00:01Z, and q.S filtered it out; "
        "it has passed 1 of 2 tuples."
    )


def test_all_is_well() -> None:
    bench = Bench("s")
    bench.query(path("q", 1))
    bench.run(arrive("s", 9), at=NOON)
    assert (
        why(bench, "q").text == "Not blocked: the last tuple of s arrived at 2026-01-01T12:00:00Z; q has emitted 1 row."
    )


def test_an_unknown_query_is_refused() -> None:
    with pytest.raises(Refuse, match="query nothing does not exist"):
        Bench().engine.why("nothing")
