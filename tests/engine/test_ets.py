"""On-demand timestamps (requested watermarks): their feeds, times and reasons, and requests without an answer."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.engine.events import (
    AlterStream,
    Answered,
    AskEnded,
    AskTimestamp,
    ClockStepped,
    FeedClosed,
    FeedHeld,
    FeedOpened,
    Heard,
    Late,
    SetBreak,
    SetStrategy,
    TooFar,
    WakeAt,
)
from millrace.engine.plan import StreamDefinition
from millrace.operators.frame.idle_waiting import IdleWaiting
from tests.engine.graphs import (
    TV,
    Bench,
    V,
    arrive,
    external,
    figure_4,
    give_tv,
    identity,
    plan,
    punctuate,
    refusal,
    rows,
    select,
    times,
    union,
)

SKEW = 100


def two(b: StreamDefinition, *, answers: bool = False) -> Bench:
    """An ordered union of a talkative stream `a` and a silent one `b`, with a selection on each."""
    bench = Bench(external("a"), b)
    bench.query(
        plan(
            "u",
            ("A", select(), ["a.source"]),
            ("B", select(), ["b.source"]),
            ("U", union(ordered=True), ["A", "B"]),
            schema=TV,
            ordered=True,
        )
    )
    bench.run(FeedOpened("a", "main"), FeedOpened("b", "main", can_answer=answers), at=0)
    return bench


def asked(effects: Any) -> list[tuple[int, int]]:
    return [(effect.request, effect.need_us) for effect in effects.orders if isinstance(effect, AskTimestamp)]


def ended(effects: Any) -> list[tuple[str, int]]:
    return [(effect.outcome, effect.took_us) for effect in effects.orders if isinstance(effect, AskEnded)]


def woken(effects: Any) -> list[int]:
    return [effect.at_us for effect in effects.orders if isinstance(effect, WakeAt)]


# -- asking clients ----------------------------------------------------------------------------------------------------


def test_a_client_that_can_answer_is_asked_for_just_what_is_needed() -> None:
    bench = two(external("b"), answers=True)
    effects = bench.run(give_tv("a", 1_000, 1_500), at=2_000)
    assert times(effects, "u") == []
    assert asked(effects) == [(1, 1_000)]
    effects = bench.run(Answered("b", "main", 1, 1_600), at=2_050)
    assert times(effects, "u") == [1_000, 1_500]
    assert ended(effects) == [("answered", 50)]


def test_nobody_is_asked_while_nobody_waits() -> None:
    bench = Bench(external("a"), external("b"))
    bench.query(plan("q", ("U", union(), ["a.source", "b.source"]), schema=TV))
    bench.run(FeedOpened("a", "main", can_answer=True), FeedOpened("b", "main", can_answer=True), at=0)
    effects = bench.run(give_tv("a", 5, 9), at=10)
    assert times(effects, "q") == [5, 9]
    assert asked(effects) == []
    assert woken(effects) == []


def test_only_one_request_is_under_way_for_a_feed() -> None:
    bench = two(external("b"), answers=True)
    assert asked(bench.run(give_tv("a", 1_000), at=2_000)) == [(1, 1_000)]
    assert asked(bench.run(give_tv("a", 1_100), at=2_001)) == []
    assert asked(bench.run(give_tv("a", 1_200), at=2_002)) == []


def test_a_client_is_not_asked_before_its_own_clock_can_have_reached_the_need() -> None:
    bench = two(external("b"), answers=True)
    bench.run(give_tv("b", 500), at=600)
    # b's clock shows 500 + 10 now; what it says cannot be 900 yet.
    effects = bench.run(give_tv("a", 900), at=610)
    assert asked(effects) == []
    assert woken(effects) == [1_000]
    assert asked(bench.run(at=1_000)) == [(1, 900)]


def test_a_client_whose_clock_is_behind_is_asked_when_another_input_has_passed_the_need() -> None:
    bench = two(external("b"), answers=True)
    bench.run(give_tv("b", 500), at=600)
    assert asked(bench.run(give_tv("a", 900, 901), at=610)) == [(1, 900)]


def test_an_answer_below_the_need_is_followed_by_a_higher_need_or_by_patience() -> None:
    bench = two(external("b", ets_retry_us=400), answers=True)
    bench.run(give_tv("a", 1_000), at=2_000)
    effects = bench.run(Answered("b", "main", 1, 700), at=2_010)
    assert ended(effects) == [("below", 10)]
    assert asked(effects) == []
    assert woken(effects) == [2_400]
    # The need is still 1000: a's next tuple does not make it higher.
    assert asked(bench.run(give_tv("a", 1_200), at=2_020)) == []
    assert asked(bench.run(at=2_400)) == [(2, 1_000)]


def test_a_higher_need_is_asked_for_at_once() -> None:
    bench = two(external("b", ets_retry_us=400), answers=True)
    bench.run(give_tv("a", 1_000), at=2_000)
    assert times(bench.run(Answered("b", "main", 1, 1_000), at=2_010), "u") == [1_000]
    assert asked(bench.run(give_tv("a", 1_200), at=2_020)) == [(2, 1_200)]


def test_a_client_that_never_answers_is_given_up_and_asked_again() -> None:
    bench = two(external("b", ets_retry_us=400), answers=True)
    effects = bench.run(give_tv("a", 1_000), at=2_000)
    assert woken(effects) == [2_400]
    effects = bench.run(at=2_400)
    assert ended(effects) == [("timeout", 400)]
    assert asked(effects) == [(2, 1_000)]


def test_after_a_time_out_the_clock_speaks_for_the_client_if_a_skew_is_declared() -> None:
    bench = two(external("b", ets_retry_us=400, max_skew_us=SKEW), answers=True)
    bench.run(give_tv("b", 800), at=900)
    bench.run(give_tv("a", 1_000, 1_001), at=1_150)
    effects = bench.run(at=1_550)
    # 800 and 650 passed, less the skew of 100.
    assert ended(effects) == [("timeout", 400)]
    assert times(effects, "u") == [1_000, 1_001]
    assert bench.engine.streams()[1].mark_us == 800 + 650 - SKEW


def test_a_late_answer_is_a_promise_all_the_same() -> None:
    bench = two(external("b", ets_retry_us=400), answers=True)
    bench.run(give_tv("a", 1_000), at=2_000)
    bench.run(at=2_400)
    effects = bench.run(Answered("b", "main", 1, 5_000), at=2_500)
    assert times(effects, "u") == [1_000]
    assert ended(effects) == []


def test_an_answer_below_what_the_client_sent_takes_nothing_back() -> None:
    bench = two(external("b"), answers=True)
    bench.run(give_tv("b", 3_000), at=3_000)
    bench.run(Answered("b", "main", 99, 10), at=3_001)
    assert bench.engine.streams()[1].mark_us == 3_000


def test_a_client_that_leaves_while_it_is_asked_ends_the_request_and_its_hold() -> None:
    bench = two(external("b"), answers=True)
    # The other feed's own tuple cannot be released either while the first one may undercut it.
    effects = bench.run(FeedOpened("b", "other"), give_tv("b", 4_000, feed="other"), at=1_000)
    assert asked(effects) == [(1, 4_000)]
    bench.run(give_tv("a", 1_000), at=2_000)
    effects = bench.run(FeedClosed("b", "main"), at=2_030)
    assert ended(effects) == [("closed", 1_030)]
    assert times(effects, "u") == [1_000]


def test_only_the_feeds_that_hold_the_stream_back_are_asked() -> None:
    bench = two(external("b"), answers=True)
    events = [FeedOpened("b", "fast", can_answer=True), give_tv("b", 9_000, feed="fast"), give_tv("a", 1_000)]
    (ask,) = (effect for effect in bench.run(*events, at=2_000).orders if isinstance(effect, AskTimestamp))
    assert ask.feed == "main"


# -- the clock alone ---------------------------------------------------------------------------------------------------


def test_the_clock_speaks_for_a_silent_feed_once_the_skew_has_passed() -> None:
    bench = two(external("b", max_skew_us=SKEW))
    bench.run(give_tv("b", 500), at=510)
    effects = bench.run(give_tv("a", 550), at=560)
    assert times(effects, "u") == [500]
    # 500 + (t - 510) - 100 reaches 550 at 660.
    assert woken(effects) == [660]
    assert times(bench.run(at=660), "u") == [550]


def test_without_a_declared_skew_the_clock_says_nothing() -> None:
    bench = two(external("b"))
    bench.run(give_tv("b", 500), at=510)
    effects = bench.run(give_tv("a", 550), at=10**9)
    assert times(effects, "u") == [500]
    assert woken(effects) == []


def test_time_in_which_something_may_lie_unread_does_not_count() -> None:
    bench = two(external("b", max_skew_us=SKEW))
    bench.run(give_tv("b", 500), at=510)
    bench.run(FeedHeld("b", "main", held=True), at=520)
    effects = bench.run(give_tv("a", 550), at=5_000)
    assert times(effects, "u") == [500]
    assert woken(effects) == []
    effects = bench.run(FeedHeld("b", "main", held=False), at=6_000)
    # Ten had passed before; 140 are missing.
    assert woken(effects) == [6_140]
    assert times(bench.run(at=6_140), "u") == [550]


def test_a_feed_without_credit_is_not_taken_for_silent() -> None:
    bench = Bench(external("a"), external("b", max_skew_us=SKEW), credit=2, most_queued=1)
    bench.query(plan("u", ("U", union(ordered=True), ["a.source", "b.source"]), schema=TV, ordered=True))
    bench.run(FeedOpened("a", "main"), FeedOpened("b", "main"), at=0)
    # b has no credit left; a lags, so nothing is released and b gets no credit.
    bench.run(give_tv("b", 500, 501), at=510)
    feed = bench.engine.source("b").feeds.by_name["main"]
    assert feed.held_since == 510
    bench.run(give_tv("a", 9_000), at=20_000)
    mark_us = bench.engine.streams()[1].mark_us
    assert mark_us is not None
    assert mark_us < 9_000


def test_only_what_came_before_the_sockets_were_read_counts_as_heard() -> None:
    bench = two(external("b", max_skew_us=SKEW))
    bench.run(give_tv("b", 500), at=510)
    effects = bench.run(Heard(540), give_tv("a", 550), at=900)
    assert times(effects, "u") == [500]
    # By the last input, b's clock showed 530: after another 120 the engine tries again.
    assert woken(effects) == [1_020]
    assert times(bench.run(at=1_020), "u") == [550]


def test_a_clock_that_jumps_makes_no_feed_silent() -> None:
    bench = two(external("b", max_skew_us=SKEW))
    bench.run(give_tv("b", 500), at=510)
    day = 86_400_000_000
    effects = bench.run(ClockStepped(day), give_tv("a", 550), at=day + 520)
    assert times(effects, "u") == [500]
    # An honest tuple of b is still on time.
    assert not [e for e in bench.run(give_tv("b", 520), at=day + 530).orders if isinstance(e, Late)]


# -- policies ----------------------------------------------------------------------------------------------------------


def test_a_periodic_stream_tells_its_time_whether_anybody_waits_or_not() -> None:
    bench = Bench("a", StreamDefinition("b", V, ets="periodic", ets_interval_us=50))
    bench.query(figure_4(ordered=True))
    assert woken(bench.run(at=100)) == [150]
    effects = bench.run(arrive("a", 1), at=120)
    assert times(effects, "u") == []
    assert times(bench.run(at=150), "u") == [120]
    assert woken(bench.run(at=160)) == [200]


def test_a_periodic_stream_that_nobody_reads_makes_no_steps() -> None:
    bench = Bench(StreamDefinition("b", V, ets="periodic", ets_interval_us=50))
    assert woken(bench.run(at=100)) == []


def test_policies_change_while_tuples_wait() -> None:
    bench = Bench("a", StreamDefinition("b", V, ets="none"))
    bench.query(figure_4(ordered=True))
    assert times(bench.run(arrive("a", 1), at=100), "u") == []
    bench.do(AlterStream("b", (("ets", "on-demand"),)))
    assert times(bench.run(at=200), "u") == [100]
    assert "cannot be changed" in refusal(bench, AlterStream("b", (("schema", TV),)))
    bench.do(AlterStream("b", (("ets", "periodic"), ("ets_interval_us", 10))))
    assert woken(bench.run(at=300)) == [210 if bench.now_us < 210 else 310]


# -- grace, lateness, the far future -----------------------------------------------------------------------------------


def test_a_feed_that_lost_its_connection_counts_for_its_grace() -> None:
    bench = Bench(external("s", grace_us=100))
    bench.run(FeedOpened("s", "x"), FeedOpened("s", "y"), give_tv("s", 50, feed="x"), give_tv("s", 90, feed="y"), at=0)
    assert woken(bench.run(FeedClosed("s", "x", lost=True), at=10)) == [110]
    assert bench.engine.streams()[0].mark_us == 50
    # It returns in time and continues; then it leaves permanently.
    bench.run(FeedOpened("s", "x"), at=60)
    bench.run(at=200)
    assert bench.engine.streams()[0].mark_us == 50
    bench.run(FeedClosed("s", "x", lost=True), at=300)
    bench.run(at=400)
    assert bench.engine.streams()[0].mark_us == 90


def test_a_feed_that_says_goodbye_has_no_grace() -> None:
    bench = Bench(external("s", grace_us=100))
    bench.run(give_tv("s", 50, feed="x"), give_tv("s", 90, feed="y"), FeedClosed("s", "x"), at=10)
    assert bench.engine.streams()[0].mark_us == 90


def test_late_tuples_are_a_stream_that_can_be_queried() -> None:
    bench = Bench(external("s"))
    schema = bench.engine.streams_by_name["s"].definition.late.schema
    assert schema.names == ("ts", "v", "late_by_us", "mark", "feed", "at")
    bench.query(plan("q", ("M", identity(schema), ["s.late.source"]), schema=schema))
    effects = bench.run(give_tv("s", 30, 10, 40, 25), at=1_000)
    assert rows(effects, "q") == [(10, 10, 20, 30, "main", 1_000), (25, 25, 15, 40, "main", 1_000)]
    assert times(effects, "q") == [1_000, 1_000]


def test_a_client_that_breaks_its_own_word_is_told_apart_from_one_that_is_late() -> None:
    bench = Bench(external("s"))
    (late,) = (e for e in bench.run(give_tv("s", 50), give_tv("s", 40), at=1).orders if isinstance(e, Late))
    assert late.broken == 0
    (late,) = (e for e in bench.run(punctuate("s", 90), give_tv("s", 80), at=2).orders if isinstance(e, Late))
    assert late.broken == 1
    assert bench.engine.streams()[0].broke_promise == 1
    assert bench.engine.streams()[0].feeds[0].broke_promise == 1


def test_a_time_absurdly_far_ahead_is_refused_and_drags_nothing_along() -> None:
    bench = Bench(external("s", ahead_us=1_000))
    bench.query(plan("q", ("M", identity(TV), ["s.source"]), schema=TV))
    effects = bench.run(give_tv("s", 400, 10**15, 500), at=100)
    assert times(effects, "q") == [400, 500]
    (far,) = (effect for effect in effects.orders if isinstance(effect, TooFar))
    assert (far.batch.ts.tolist(), far.bound_us) == ([10**15], 1_100)
    assert bench.engine.streams()[0].mark_us == 500
    assert bench.engine.streams()[0].too_far_ahead == 1


# -- arcs --------------------------------------------------------------------------------------------------------------


def deep(bench: Bench) -> None:
    """EQG's figure 10, in small: unions below unions, with selections in between."""
    bench.query(
        plan(
            "d",
            ("A", select(), ["a.source"]),
            ("B", select(), ["b.source"]),
            ("B2", select(), ["B"]),
            ("U", union(ordered=True), ["A", "B2"]),
            ("M", identity(), ["U"]),
            ("C", select(), ["c.source"]),
            ("W", union(ordered=True), ["M", "C"]),
            ordered=True,
        )
    )


def streams(propagation: str) -> list[StreamDefinition]:
    return [StreamDefinition(name, V, propagation=propagation) for name in "abc"]  # type: ignore[arg-type]


def test_by_arcs_no_operator_in_between_is_executed_for_a_promise() -> None:
    bench = Bench(*streams("arcs"))
    deep(bench)
    executions = bench.run(arrive("a", 1), at=10).executions
    assert [e.operator for e in executions if not e.took and not e.gave and e.operator not in ("d.U", "d.W")] == []
    assert {e.operator for e in executions} == {"d.A", "d.U", "d.M", "d.W"}


def test_by_punctuation_every_operator_in_between_is() -> None:
    bench = Bench(*streams("punctuation"))
    deep(bench)
    executed = {e.operator for e in bench.run(arrive("a", 1), at=10).executions}
    assert executed == {"d.A", "d.B", "d.B2", "d.C", "d.U", "d.M", "d.W"}


def test_both_ways_release_the_same_rows_and_leave_the_same_registers() -> None:
    benches = [Bench(*streams(way)) for way in ("arcs", "punctuation")]
    seen = []
    for bench in benches:
        deep(bench)
        found = []
        for turn in range(40):
            effects = bench.run(arrive("abc"[(turn * 7) % 3], turn), at=10 * turn)
            unions = [bench.engine.graph.operators[f"d.{name}"] for name in "UW"]
            registers = [each.registers() for each in unions if isinstance(each, IdleWaiting)]
            found.append((times(effects, "d"), registers))
        seen.append(found)
    assert seen[0] == seen[1]


def test_each_value_passes_an_arc_once() -> None:
    bench = Bench(*streams("arcs"))
    deep(bench)
    bench.run(arrive("a", 1), at=10)
    before = [stream.punctuations_by_cause["ets"] for stream in bench.engine.streams()]
    bench.run(at=10)
    bench.run(at=10)
    assert [stream.punctuations_by_cause["ets"] for stream in bench.engine.streams()] == before


@pytest.mark.parametrize("strategy", ["dfs(1)", "bfs(2)", "rr(1)", "dfs(3)"])
def test_what_is_under_way_is_never_overtaken_by_a_promise(strategy: str) -> None:
    """A tuple of b lies before a skipped operator when the promise is made: the bypass must not be taken."""
    bench = Bench(*streams("arcs"))
    deep(bench)
    bench.do(SetBreak("d.B", on=True))
    bench.do(SetStrategy("a", strategy))
    released: list[int] = []
    for turn in range(30):
        effects = bench.step(arrive("b", turn), arrive("a", turn), at=5 * turn, executions=1 + turn % 3)
        released += times(effects, "d")
    released += times(bench.run(at=1_000), "d")
    assert len(released) == 60
    assert released == sorted(released)


# -- under load --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("propagation", ["arcs", "punctuation"])
def test_a_blocked_operator_asks_while_there_is_other_work(propagation: str) -> None:
    """One timestamp frees the whole burst, as soon as its first tuple waits: not when the selection has done it all."""
    bench = Bench(*(StreamDefinition(name, V, propagation=propagation) for name in "ab"))  # type: ignore[arg-type]
    bench.query(figure_4(ordered=True), "dfs(1)")
    bench.engine.step(1, [arrive("a", 0, 1, 2, 3, 4)], executions=0)
    given = bench.run(at=2).executions
    first = next(at for at, execution in enumerate(given) if execution.gave and execution.operator == "u.U")
    selected = [at for at, execution in enumerate(given) if execution.gave and execution.operator == "u.A"]
    assert first < selected[2]
    assert sum(execution.operator == "u.U" and not execution.took for execution in given) == 1


@pytest.mark.parametrize("strategy", ["dfs(1)", "bfs(1)", "rr(1)", "dfs"])
def test_rows_come_out_of_a_component_that_is_never_idle(strategy: str) -> None:
    bench = Bench("a", "b")
    bench.query(figure_4(ordered=True), strategy)
    delivered = 0
    for at in range(1, 60):
        effects = bench.engine.step(at, [arrive("a", at)], executions=2)
        assert effects.more
        delivered += len(rows(effects, "u"))
    assert delivered >= 10
