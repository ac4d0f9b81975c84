"""The driver: when it steps, what it does with orders, and that it rests."""

import asyncio
import contextlib
from itertools import pairwise

import pytest
import uvloop

from millrace.engine.events import (
    Answer,
    AskTimestamp,
    ClockStepped,
    Command,
    DropQuery,
    Effects,
    FeedClosed,
    FeedHeld,
    FeedOpened,
    Grant,
    Heard,
    Measured,
    WakeAt,
)
from millrace.net.sink import Retention
from millrace.protocol import MAX_INT64, Refuse
from millrace.run.runner import FEW_FEEDS, Runner, Stopwatch
from tests.server.harness import lines, served, until


class Script:
    """An engine that returns the effects of a test, and records its steps."""

    def __init__(self, *effects):
        self.effects = list(effects)
        self.steps = []

    def step(self, now_us, events, *, budget):
        self.steps.append((now_us, list(events), budget))
        return self.effects.pop(0) if self.effects else Effects()


class Clock:
    def __init__(self):
        self.us = 1_000
        self.held_back_us = 0
        self.jump_us = 0
        self.tick_us = 0

    def now_us(self):
        self.us += self.tick_us
        return self.us

    def notice(self):
        jumped, self.jump_us = self.jump_us, 0
        self.us += jumped
        return jumped


def driven(*effects):
    """A test with a running runner, its engine and its clock."""

    def decorate(test):
        def wrapped():
            async def play():
                engine, clock, stopwatch = Script(*effects), Clock(), Stopwatch()
                runner = Runner(engine, stopwatch, budget=7, retain=Retention(0), clock=clock, look_seconds=0.01)
                task = asyncio.create_task(runner.run())
                try:
                    await asyncio.sleep(0)
                    await test(runner, engine, clock)
                finally:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

            uvloop.run(play())

        wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
        return wrapped

    return decorate


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


@driven()
async def test_nothing_happens_until_something_happens(runner, engine, clock):
    await turns()
    assert engine.steps == []
    runner.submit(FeedClosed("s", "f"))
    await turns()
    assert engine.steps == [(1_000, [FeedClosed("s", "f")], 7)]


@driven(Effects(more=True), Effects(more=True), Effects())
async def test_it_steps_while_there_is_more_and_then_rests(runner, engine, clock):
    runner.submit(FeedClosed("s", "f"))
    await runner.wait_drained()
    await turns()
    assert [len(events) for _, events, _ in engine.steps] == [1, 0, 0]


@driven(Effects([WakeAt(2_000)]))
async def test_a_few_events_do_not_wake_the_task(runner, engine, clock):
    for number in range(3):
        runner.submit(FeedClosed("s", str(number)))
        await turns()
    assert [[event.feed for event in events] for _, events, _ in engine.steps] == [["0"], ["1"], ["2"]]
    clock.us = 2_000  # the timer that the first step has set
    await until(lambda: len(engine.steps) == 4)


def receive(runner, engine, *events):
    """Act on bytes as a connection does; by the place in the list that is returned, how many steps a call saw."""
    seen = []
    runner.receives()
    for event in events:
        runner.submit(event)
    runner.after_step(lambda: seen.append(len(engine.steps)))
    runner.received()
    return seen


@driven(Effects(), Effects(more=True), Effects())
async def test_bytes_of_a_few_feeds_get_their_step_at_once(runner, engine, clock):
    await turns()
    assert receive(runner, engine, FeedClosed("s", "a"), FeedClosed("s", "b")) == [1]
    assert receive(runner, engine) == [1], "without events there is nothing to wait for"
    assert receive(runner, engine, FeedClosed("s", "c")) == [2]
    assert not runner.worked_off
    await runner.wait_drained()
    assert [len(events) for _, events, _ in engine.steps] == [2, 1, 0]


@driven()
async def test_bytes_of_many_feeds_share_a_step(runner, engine, clock):
    runner.feeds.update({("s", str(number)): None for number in range(FEW_FEEDS + 1)})
    await turns()
    seen = [receive(runner, engine, FeedClosed("s", name)) for name in ("a", "b")]
    assert engine.steps == []
    await runner.wait_drained()
    await turns()
    assert [len(events) for _, events, _ in engine.steps] == [2]
    assert seen == [[1], [1]]


@driven()
async def test_where_time_may_be_guessed_bytes_get_their_step_after_a_poll(runner, engine, clock):
    runner.guessing = True
    await turns()
    receive(runner, engine, FeedClosed("s", "a"))
    assert engine.steps == []
    clock.us = 2_000
    await runner.wait_drained()
    assert [events for _, events, _ in engine.steps] == [[FeedClosed("s", "a"), Heard(2_000)]]


@driven(*[Effects(more=True)] * 100)
async def test_others_have_their_turn_between_steps(runner, engine, clock):
    seen = []
    runner.submit(FeedClosed("s", "f"))
    for _ in range(10):
        await asyncio.sleep(0)
        seen.append(len(engine.steps))
    assert max(after - before for before, after in pairwise(seen)) == 1


@driven(Effects([WakeAt(500), WakeAt(2_000)]))
async def test_timers_step_once_each(runner, engine, clock):
    runner.submit(FeedClosed("s", "f"))
    await until(lambda: len(engine.steps) == 2)  # 500 is past: at once
    clock.us = 2_000
    await until(lambda: len(engine.steps) == 3)
    await turns()
    assert len(engine.steps) == 3


@driven(Effects([Answer(1, {"done": True}), Answer(2, refused=Refuse("no", code="in_use"))]))
async def test_commands_are_answered(runner, engine, clock):
    first, second = runner.command(DropQuery("a")), runner.command(DropQuery("b"))
    assert await first == {"done": True}
    with pytest.raises(Refuse) as caught:
        await second
    assert caught.value.code == "in_use"
    # Both were in one step: a text of statements is applied at once.
    assert engine.steps[0][1] == [Command(1, DropQuery("a")), Command(2, DropQuery("b"))]


@driven(Effects([Grant("s", "f", 5), AskTimestamp("s", "f", 1, 99), Grant("s", "gone", 1)]))
async def test_orders_reach_the_feeds_peer(runner, engine, clock):
    class Peer:
        def __init__(self):
            self.heard = []

        def granted(self, tuples):
            self.heard.append(tuples)

        def asked(self, request, need_us, group):
            self.heard.append((request, need_us))

    peer, other = Peer(), Peer()
    runner.open_feed("s", "f", peer, can_answer=True)
    await until(lambda: peer.heard == [5, (1, 99)])
    assert engine.steps[0][1] == [FeedOpened("s", "f", True)]
    runner.close_feed("s", "f", other)
    await turns()
    assert len(engine.steps) == 1, "who is not the owner closes nothing"


@driven()
async def test_a_jump_of_the_clock_is_told_before_anything_else_in_its_step(runner, engine, clock):
    clock.jump_us = 86_400_000_000
    runner.submit(FeedClosed("s", "f"))
    await turns()
    assert engine.steps == [(86_400_001_000, [ClockStepped(86_400_000_000), FeedClosed("s", "f")], 7)]


@driven(Effects([WakeAt(50_000_000)]))
async def test_a_jump_of_the_clock_is_noticed_although_nothing_happens(runner, engine, clock):
    runner.submit(FeedClosed("s", "f"))
    await turns()
    clock.jump_us = 60_000_000
    await until(lambda: len(engine.steps) == 2)
    assert engine.steps[1] == (60_001_000, [ClockStepped(60_000_000)], 7)


@driven(*[Effects(more=True)] * 3, Effects())
async def test_a_step_is_told_until_when_everything_was_heard(runner, engine, clock):
    """The clock advances while the sockets are polled; later times do not count as heard."""
    runner.guessing = True
    clock.tick_us = 10
    runner.submit(FeedClosed("s", "f"))
    await turns()
    assert len(engine.steps) == 4
    shown = [events[-1] for _, events, _ in engine.steps]
    assert all(isinstance(heard, Heard) for heard in shown)
    assert all(heard.until_us < now_us for heard, (now_us, _, _) in zip(shown, engine.steps, strict=True))
    assert all(heard.until_us > now_us for heard, (now_us, _, _) in zip(shown[1:], engine.steps, strict=False))


@driven()
async def test_what_lies_unread_came_after_the_last_hearing(runner, engine, clock):
    runner.guessing = True
    runner.submit(FeedClosed("s", "f"))
    await turns()
    heard = engine.steps[0][1][-1]
    clock.us += 5_000
    runner.hold_feed("s", "g", True)
    runner.hold_feed("s", "h", False)
    await turns()
    assert engine.steps[1][1][:4] == [heard, FeedHeld("s", "g", True), Heard(MAX_INT64), FeedHeld("s", "h", False)]
    assert engine.steps[1][1][4] == Heard(clock.us)


@driven()
async def test_readings_of_the_stopwatch_come_with_the_next_step(runner, engine, clock):
    runner.stopwatch.start()
    runner.stopwatch.stop("a", 3)
    runner.stopwatch.start()
    runner.stopwatch.stop("a", 4)
    await turns()
    assert engine.steps == [], "a reading alone is no reason to step"
    runner.submit(FeedClosed("s", "f"))
    await turns()
    measured, closed = engine.steps[0][1]
    assert isinstance(measured, Measured)
    assert (measured.operator, measured.tuples) == ("a", 7)
    assert measured.us > 0
    assert closed == FeedClosed("s", "f")


def test_the_last_reading_is_taken_though_no_execution_follows(monkeypatch):
    """Results are out of date for the application until their reading counts."""
    now = 10**9
    monkeypatch.setattr("millrace.run.runner.time.perf_counter_ns", lambda: now)
    stopwatch = Stopwatch()

    def execute(ns):
        nonlocal now
        stopwatch.start()
        now += ns
        stopwatch.stop("q.filter1", 1)

    execute(2_000)
    assert stopwatch.take() == [Measured("q.filter1", 1, 2.0)]
    execute(3_000)
    assert stopwatch.take() == []
    now += 10**9
    assert stopwatch.take() == [Measured("q.filter1", 1, 3.0)]
    assert stopwatch.take() == []


@served()
async def test_an_idle_server_makes_no_steps(daemon):
    async with lines(daemon) as nc:
        nc.say('{"stream": "s", "tuple": {"k": 1}}')
        await until(lambda: daemon.queries()[0].rows == 1)
        await daemon.runner.wait_drained()
        before = daemon.runner.steps
        await turns(200)
        assert daemon.runner.steps == before


def test_steps_take_fewer_tuples_where_they_are_dear(monkeypatch):
    """The stopwatch of a step is the test's; so is how long each takes."""
    took = [0.04, 0.04, 100.0, 100.0, 100.0, 0.004, 0.004, 0.009, 0.001, 0.001]
    begun: list[None] = []

    def perf_counter():
        begun.append(None)
        return 0.0 if len(begun) % 2 else took[len(begun) // 2 - 1]

    engine = Script(*[Effects(more=True)] * (len(took) - 2), Effects(), Effects())
    runner = Runner(engine, Stopwatch(), budget=8_000, retain=Retention(0), clock=Clock())
    monkeypatch.setattr("millrace.run.runner.time.perf_counter", perf_counter)
    for _ in took:
        runner.step()
    budgets = [budget for _, _, budget in engine.steps]
    # A slow one is never cut to less than a quarter, nor below the least; a fast one that left nothing says nothing.
    assert budgets == [8_000, 2_000, 500, 256, 256, 256, 512, 1_024, 1_024, 1_024]


@driven(Effects([Answer(1), Answer(2), Answer(3)]), Effects([Answer(4)]))
async def test_whoever_asks_is_told_once_how_long_the_step_took(runner, engine, clock):
    ours: list[float] = []
    theirs: list[float] = []
    answers = [runner.command(DropQuery("a"), took=ours.append) for _ in range(2)]
    answers.append(runner.command(DropQuery("b"), took=theirs.append))
    await asyncio.gather(*answers)
    assert ours == theirs
    assert len(ours) == 1
    await runner.command(DropQuery("c"))
    assert len(ours) == len(theirs) == 1
