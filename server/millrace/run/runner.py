"""The driver: collects events, steps the engine by the system clock, and carries out its effects.

Rule: the engine is stepped from here and nowhere else, between two steps the event loop gets its turn, and an engine
that has nothing to do is not stepped at all. A step for a few events is a callback of the loop, which no task waits
for: with single tuples, waking a task takes longer than the step of a small query. While few connections feed, a step
for a few tuples is a part of the callback that has read them: the loop then neither turns nor polls once more for it.

A worker thread takes each step with a command that may change the graph, because it may take long, and with `threads`
above 1 each step with many tuples: the loop serves sockets and decodes meanwhile, and events wait for the next step.
Such steps, and other long work on the engine, hold `_turn`. The loop reads the engine only `at_rest`.

Where a stream's time may be guessed by the clock, a guess must not overtake bytes that have arrived. So the clock is
read, then the loop polls its sockets once, and the next step is notified (`Heard`) that everything from before that
reading has arrived. uvloop polls exactly once between two turns of a task that only lets the others go first,
and a poll reads a socket until it is empty; asyncio's own loop would need two such turns.

With a journal, each step is recorded when it has been computed, and its orders are carried out once its record is
durable: nothing that leaves the server can be lost afterwards. Timers and requests for timestamps do not wait. Steps
continue meanwhile, but a step with a change ends only when it is durable.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import structlog

from millrace.changes.names import nearest
from millrace.engine.events import (
    AggregateTurned,
    Answer,
    Archived,
    Arrived,
    AskEnded,
    AskTimestamp,
    ChainDecided,
    Change,
    ClockStepped,
    Command,
    CommandBody,
    Deliver,
    Effect,
    Effects,
    Event,
    FeedClosed,
    FeedHeld,
    FeedOpened,
    Grant,
    Heard,
    JoinTurned,
    Late,
    Measured,
    PauseQuery,
    ProducerForgotten,
    Progressed,
    QueryFailed,
    QueueTurned,
    Rejected,
    RenameQuery,
    ResumeQuery,
    RowsFailed,
    SetReads,
    TooFar,
    WakeAt,
    WatchProgress,
    WithholdCredit,
)
from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.journal.steps import Step
from millrace.net.silence import SPEAKS, Silence
from millrace.net.sink import Backpressure, Count, Outlet, Retention, new_history
from millrace.observe.logs import sparing
from millrace.protocol import MAX_INT64, Refuse, Schema
from millrace.run.clock import Clock
from millrace.run.worker import Worker
from millrace.store.resultlog import ResultLog
from millrace.store.results import Results
from millrace.values.batch import Batch
from millrace.values.retention import DEFAULT as RETAIN
from millrace.values.retention import parse_retain

log = structlog.get_logger()

T = TypeVar("T")


# How long a step should take at most, so that sockets and admins are served, and the fewest tuples that one may take
# for it: below that the loop itself would cost more than the work.
STEP_SECONDS: Final = 0.01
LEAST_BUDGET: Final = 256
# By how much a step is shorter while an admin waits.
HURRIED: Final = 4
# Tuples from which the worker takes a step: handing fewer over would take as long as the loop needs for them.
MANY_TUPLES: Final = 16_384
# Feeds and tuples up to which a connection's bytes get their own step. Of more feeds, several have often sent something
# by the same poll, and of more tuples, more may follow at once: one step for all of them takes less.
FEW_FEEDS: Final = 8
FEW_TUPLES: Final = 64
# How long the readings of a stopwatch are gathered at the least.
READINGS_NS: Final = 50_000_000
# How often the system's clock is looked at while nothing happens.
LOOK_SECONDS: Final = 1.0
# Orders that do not wait until their step is durable: they reveal nothing of it.
AT_ONCE: Final = (WakeAt, AskTimestamp, AskEnded)
# A command that changes nothing: its answer means that the engine has taken all earlier events.
NOTHING: Final = Change(())
# How often the end of the server looks whether sinks and subscribers are done.
DRAIN_POLL_SECONDS: Final = 0.01


class Steps(Protocol):
    """The engine's one door."""

    def step(self, now_us: int, events: Sequence[Event], *, budget: int) -> Effects: ...


class StepLog(Protocol):
    """Where steps are recorded: see `Recorder`."""

    @property
    def stalled(self) -> bool:
        """Whether no step may be taken now: the disk is full, or far behind."""

    @property
    def syncs(self) -> bool:
        """Whether records are synced soon after they are written."""

    @property
    def synced(self) -> bool:
        """Whether all steps that are durable are synced, too."""

    def record(self, step: Step) -> int:
        """Record a step; its number. `Runner.durable` is called with that number later."""

    def when_synced(self, call: Callable[[], None]) -> None:
        """Call this once all steps that are durable now are synced, too."""

    async def wait_room(self) -> None:
        """Wait until it is not stalled."""

    def refuse_changes(self) -> None:
        """Raise Refuse if no change can be recorded now."""


class FeedPeer(Protocol):
    """The feeder of a stream, as the engine's orders reach it."""

    def granted(self, tuples: int) -> None:
        """Grant credit for more tuples."""

    def asked(self, request: int, need_us: int, group: tuple[Any, ...]) -> None:
        """A promise of at least `need_us`, about the `group` if there is one, would unblock an operator."""

    def late(self, late: Late) -> None:
        """Tuples were late and entered no query."""


class Timepiece(Protocol):
    """The part of a clock that the driver needs: see `Clock`."""

    held_back_us: int

    def now_us(self) -> int: ...

    def notice(self) -> int: ...


class Runner:
    """Runs one engine on the event loop.

    `feeds` and `outlets` are where its orders go; connections and the catalog enter themselves there.
    """

    def __init__(
        self,
        engine: Steps,
        stopwatch: Stopwatch,
        *,
        budget: int,
        retain: Retention,
        results: Results | None = None,
        clock: Timepiece | None = None,
        look_seconds: float = LOOK_SECONDS,
        threads: int = 1,
        silence: Silence = SPEAKS,
    ) -> None:
        self.engine = engine
        self.stopwatch = stopwatch
        self.feeds: dict[tuple[str, str], FeedPeer] = {}
        self.outlets: dict[str, Outlet] = {}
        self.built_in: dict[str, Outlet] = {}  # rows about the server itself, of no engine
        self.steps = 0
        self.busy_seconds = 0.0  # in steps
        self.requests = 0  # of admins, in progress: steps are shorter meanwhile
        self._progress: dict[Outlet, int] = {}
        self.late: dict[str, int] = {}
        self.far: dict[str, int] = {}
        self.replays = False  # whether recorded steps are taken again, so that nothing is asked of the engine
        self.guessing = False  # whether some stream's time may be guessed by the clock
        self.on_delivery: Callable[[Outlet, int, Batch], None] = _ignore
        self.on_history: Callable[[Archived], None] = _ignore
        self.on_ask_ended: Callable[[AskEnded], None] = _ignore
        self.on_failure: Callable[[], None] = _ignore
        self.on_forgotten: Callable[[ProducerForgotten], None] = _ignore
        self._clock = Clock() if clock is None else clock
        self._look_seconds = look_seconds
        self._stepped_us = 0
        self._held_back = False
        # Everything from before this time has been handed over to the engine.
        self._heard_us = 0
        self._most = budget
        self._budget = budget
        self._retain = retain
        self.results = results or Results(None)
        self.silence = silence
        self._threads = threads
        self._events: list[Event] = []
        self._tuples = 0  # in these events
        self._more = False
        self._worker = Worker("engine")
        self._turn = asyncio.Lock()
        self._reconfigures = False  # whether an event of the next step may change the graph
        self._ended = False
        self._aside = False  # whether a step is being taken by the worker
        self._computes = False  # whether it is not recorded yet
        self._wakes: list[int] = []
        self._something = asyncio.Event()
        self._rests = False  # whether `run` waits for something
        self._scheduled = False  # whether a step is about to be taken without it
        self._receives = False  # whether a connection acts on bytes that have arrived
        self._afterwards: list[Callable[[], None]] = []
        self._failure: Exception | None = None
        self._log: StepLog | None = None
        self._undurable: deque[_StepTaken] = deque()
        # To be called once the events that wait, or those of the step in progress, are durable.
        self._settled: list[Callable[[], None]] = []
        self._settling: list[Callable[[], None]] = []
        self._turned: asyncio.Future[None] | None = None  # done when more steps are durable
        self._all_durable = asyncio.Event()
        self._all_durable.set()
        self._idle = asyncio.Event()
        self._answers: dict[int, _Asked] = {}
        self._last_command = 0
        self._orders: Mapping[type, Callable[[Any], None]] = {
            Deliver: self._deliver,
            Progressed: self._progressed,
            Late: self._late,
            Archived: self._archived,
            TooFar: self._too_far,
            ProducerForgotten: lambda order: self.on_forgotten(order),
            Grant: self._grant,
            AskTimestamp: self._ask,
            AskEnded: self._ask_ended,
            WakeAt: self._wake_at,
            Answer: self._answer,
            Rejected: self._rejected,
            RowsFailed: self._rows_failed,
            AggregateTurned: self._aggregate_turned,
            JoinTurned: self._join_turned,
            QueueTurned: self._queue_turned,
            ChainDecided: self._chain_decided,
            QueryFailed: self._query_failed,
        }

    def now_us(self) -> int:
        return self._clock.now_us()

    # -- in ----------------------------------------------------------------------------------------

    def submit(self, event: Event) -> None:
        """Something happened; the next step will know."""
        self._events.append(event)
        if isinstance(event, Arrived):
            self._tuples += len(event.batch.ts)
        if not self._receives:
            self._schedule()

    def _schedule(self) -> None:
        """Have a step taken soon."""
        self._idle.clear()
        if not self._rests or self.guessing or self._reconfigures:
            self._something.set()
        elif not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._step_at_once)

    def receives(self) -> None:
        """A connection acts on bytes that have arrived: what it submits waits for `received`."""
        self._receives = True

    def received(self) -> None:
        """It has acted on all of them: take the step for them, now if nothing forbids it."""
        self._receives = False
        if self._events:
            if self._tuples > FEW_TUPLES or len(self.feeds) > FEW_FEEDS:
                self._schedule()
            else:
                self._step_at_once()
                if self._events:
                    self._schedule()
        if self._afterwards:
            calls, self._afterwards = self._afterwards, []
            for call in calls:
                self.after_step(call)

    def after_step(self, call: Callable[[], None]) -> None:
        """Call this once the step for what the present connection submits is taken, if it is taken soon."""
        if self._receives:
            self._afterwards.append(call)
        elif self._events:
            asyncio.get_running_loop().call_soon(call)
        else:
            call()

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call this once everything submitted so far is durable, which is now without a journal."""
        if self._log is None:
            call()
        elif self._events:
            self._settled.append(call)
        elif self._computes:
            self._settling.append(call)
        elif self._undurable:
            self._undurable[-1].settled.append(call)
        else:
            call()

    @property
    def syncs(self) -> bool:
        """Whether what is durable soon survives a power cut, too."""
        return self._log is not None and self._log.syncs

    @property
    def synced(self) -> bool:
        """Whether all that is durable survives a power cut, too."""
        return self._log is not None and self._log.synced

    def when_synced(self, call: Callable[[], None]) -> None:
        """Call this once all that is durable now survives a power cut, too: never without a journal."""
        if self._log is not None:
            self._log.when_synced(call)

    @property
    def recorded(self) -> bool:
        """Whether steps are recorded."""
        return self._log is not None

    def record_in(self, log: StepLog | None) -> None:
        """Record all further steps, or no more of them."""
        self._log = log

    def command(
        self,
        body: CommandBody,
        obeyed: Callable[[], None] | None = None,
        took: Callable[[float], None] | None = None,
        note: Any = None,
        row: tuple[Any, ...] | None = None,
    ) -> asyncio.Future[Any]:
        """Ask the engine for something; the future has its answer, or its refusal as an exception.

        `obeyed` is called before any row is delivered that the engine emits afterwards. `took` receives the number of
        seconds that tuples waited for it: the step, once for all its commands with the same `took`, and `obeyed`.
        `note` is recorded with the step, if steps are recorded. `row` enters the stream of changes with the command.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._ended:
            _refuse_at_the_end(future)
            return future
        if self._log is not None and note is not None:
            try:
                self._log.refuse_changes()
            except Refuse as refused:
                future.set_exception(refused)
                return future
        self._last_command += 1
        self._answers[self._last_command] = _Asked(future, obeyed, took or _ignore, note)
        self._reconfigures = self._reconfigures or _may_change_graph(body)
        self.submit(Command(self._last_command, body, row))
        return future

    def open_feed(self, stream: str, feed: str, peer: FeedPeer, *, can_answer: bool) -> None:
        self.feeds[stream, feed] = peer
        self.submit(FeedOpened(stream, feed, can_answer))

    async def feed_at_once(self, stream: str, feed: str, peer: FeedPeer, batch: Batch) -> None:
        """Open a feed, let its tuples arrive and close it, all in one step; return after that step."""
        self.feeds[stream, feed] = peer
        self.submit(FeedOpened(stream, feed))
        self.submit(Arrived(stream, feed, batch))
        self.submit(FeedClosed(stream, feed))
        try:
            await self.command(Change(()))
        finally:
            self.feeds.pop((stream, feed), None)

    def close_feed(self, stream: str, feed: str, peer: FeedPeer, *, lost: bool = False) -> None:
        """End a feed, unless another connection has taken it over meanwhile."""
        if self.feeds.get((stream, feed)) is peer:
            del self.feeds[stream, feed]
            self.submit(FeedClosed(stream, feed, lost=lost))

    def hold_feed(self, stream: str, feed: str, held: bool) -> None:
        """Whether bytes of the feed may be unread: they arrived after the last reading of its socket."""
        if held:
            self.submit(Heard(self._heard_us))
        self.submit(FeedHeld(stream, feed, held))
        if held:
            self.submit(Heard(MAX_INT64))

    def forget_feed(self, stream: str, feed: str) -> None:
        """The feed ended with its stream."""
        self.feeds.pop((stream, feed), None)

    def add_outlet(self, plan: QueryPlan, *, temporary: bool = False, count: Count | None = None) -> Outlet:
        """The outlet of a query; without a count it starts a new one."""
        count = count or Count(new_history())
        log = (
            None
            if temporary
            else self.results.open(count.history, plan.schema, parse_retain(plan.options.retain), count.next_sequence)
        )
        outlet = self._make_outlet(plan.name, plan.schema, *count, log, key_of(plan))
        outlet.since_us = self.now_us()
        return outlet

    def _make_outlet(
        self,
        name: str,
        schema: Schema,
        history: str,
        next_sequence: int,
        log: ResultLog | None,
        key: Sequence[int] | None = None,
    ) -> Outlet:
        def press(backpressure: Backpressure) -> None:
            self._press(outlet, backpressure)

        outlet = self.outlets[name] = Outlet(
            name, schema, self._retain, press, key, history=history, next_sequence=next_sequence, log=log
        )
        return outlet

    def _continue_outlet(self, before: Outlet, schema: Schema, key: Sequence[int] | None = None) -> Outlet:
        """Replace an outlet by one whose rows have other columns: the same history, without the rows before."""
        if before.log is not None:
            before.log.adopt(schema, before.next_sequence)
        return self._make_outlet(before.query, schema, before.history, before.next_sequence, before.log, key)

    def add_side_outlet(self, late: StreamDefinition, count: Count | None = None) -> None:
        """The outlet of a stream's late tuples."""
        count = count or Count(new_history())
        log = self.results.open(count.history, late.schema, parse_retain(RETAIN), count.next_sequence)
        self._make_outlet(late.name, late.schema, *count, log)

    def replace_side_outlet(self, late: StreamDefinition) -> None:
        """Late tuples may have more columns now: subscribers with fewer must subscribe again."""
        before = self.outlets[late.name]
        if before.schema == late.schema:
            return
        self._release(before)
        self._continue_outlet(before, late.schema)
        before.end("dropped", f"{late.name} has other columns now: subscribe again")

    def outlet(self, query: str) -> Outlet:
        """Where a query's rows, or a stream's late tuples, are read."""
        found = self.outlets.get(query) or self.built_in.get(query)
        if found is None:
            raise Refuse(f"query {query} does not exist{nearest(query, list(self.outlets))}", code="unknown_query")
        return found

    def remove_outlet(self, query: str) -> None:
        """The query was dropped, and its rows with it."""
        outlet = self.outlets.get(query)
        self._end_outlet(query, "was dropped")
        if outlet is not None and outlet.log is not None:
            outlet.log.remove()

    def _end_outlet(self, query: str, why: str) -> bool:
        """End the query's consumers with the reason; whether any of them watched its progress."""
        outlet = self.outlets.pop(query, None)
        if outlet is None:
            return False
        watched = outlet.watchers > 0
        self._release(outlet)
        outlet.end("dropped", f"query {query} {why}")
        return watched

    def replace_outlet(self, plan: QueryPlan) -> None:
        """Consumers of a replaced query continue; subscribers with other columns must subscribe again."""
        before = self.outlets[plan.name]
        if before.log is not None:
            before.log.retain(parse_retain(plan.options.retain))
        if before.schema == plan.schema:
            before.rekey(key_of(plan))
            before.since_us = self.now_us()
            return
        watched = self._end_outlet(plan.name, "has other columns now: subscribe again")
        self._continue_outlet(before, plan.schema, key_of(plan)).since_us = self.now_us()
        if watched:  # by consumers that are gone now
            self.command(WatchProgress(plan.name, False)).add_done_callback(_look_at)

    def rename_outlet(self, before: str, after: str) -> None:
        """Consumers continue under the query's new name, and so do pending requests."""
        self.outlets = {after if name == before else name: outlet for name, outlet in self.outlets.items()}
        self.outlets[after].query = after
        self._events = [_renamed(event, before, after) for event in self._events]

    def watch(self, outlet: Outlet, wanted: bool) -> None:
        """One subscriber more, or one less, who wants to know the query's progress."""
        before = outlet.watchers > 0
        outlet.watchers += 1 if wanted else -1
        after = outlet.watchers > 0
        if self.outlets.get(outlet.query) is outlet and before != after:
            self.command(WatchProgress(outlet.query, after)).add_done_callback(_look_at)

    # -- backpressure from slow consumers ----------------------------------------------------------------

    def _press(self, outlet: Outlet, backpressure: Backpressure) -> None:
        if self.replays or self.outlets.get(outlet.query) is not outlet:
            return  # no feed is connected, or the query is gone
        query, slowest, now_us = outlet.query, outlet.slowest, self.now_us()
        if outlet.waiting_since_us is None and slowest is not None:
            outlet.waiting_since_us = now_us
            outlet.waits += 1
            text = "feeds wait for a slow reader"
            sparing.warning(text, query, query=query, reader=slowest.name, tuples=slowest.held)
        elif outlet.waiting_since_us is not None and not backpressure:
            outlet.waited_us += now_us - outlet.waiting_since_us
            outlet.waiting_since_us = None
            sparing.info("feeds continue: every reader has caught up", query, query=query)
        strict = backpressure is Backpressure.STRICT
        self.command(WithholdCredit(query, bool(backpressure), strict)).add_done_callback(_look_at)

    def press_again(self) -> None:
        """The replay has ended: feeds wait for readers that are slow now."""
        self.replays = False
        for outlet in self.outlets.values():
            if outlet.backpressure:
                self._press(outlet, outlet.backpressure)

    def _release(self, outlet: Outlet) -> None:
        """Let feeds continue when an outlet is removed with its consumers."""
        if outlet.backpressure:
            self.command(WithholdCredit(outlet.query, withheld=False)).add_done_callback(_look_at)

    # -- the loop ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Step forever."""
        look = asyncio.create_task(self._look_at_the_clock())
        try:
            while True:
                if self.worked_off:
                    self._idle.set()
                    self._rests = True
                    await self._wait_for_something()
                    self._rests = False
                    if self._failure is not None:
                        raise self._failure
                    if self.worked_off and not self._is_due():
                        self._something.clear()  # a step without this loop has set another timer
                        continue
                    if self.guessing:
                        await self._hear()
                if not self._reconfigures:
                    await self.at_rest()
                if self._log is not None and self._log.stalled:
                    await self._log.wait_room()
                if self._reconfigures or self._is_long():
                    await self._step_aside()
                else:
                    self.step()
                await self._hear()
        finally:
            look.cancel()
            self._worker.close()
            self._refuse_rest()

    def _refuse_rest(self) -> None:
        """No further step will answer."""
        self._ended = True
        for asked in self._answers.values():
            _refuse_at_the_end(asked.answer)

    def _step_at_once(self) -> None:
        """Step for a few events without waking `run`, which continues if more follows from that."""
        self._scheduled = False
        if not self._rests or not self._events or self._something.is_set():
            return
        stalled = self._log is not None and self._log.stalled
        if self.guessing or self._reconfigures or self._is_long() or self._turn.locked() or stalled:
            self._something.set()
            return
        first = self._wakes[0] if self._wakes else MAX_INT64
        try:
            self.step()
        except Exception as error:
            self._failure = error
        if self._events or self._more or self._failure or (self._wakes and self._wakes[0] < first):
            self._idle.clear()
            self._something.set()
        elif not self._idle.is_set():
            self._idle.set()

    def _is_long(self) -> bool:
        """Whether the worker takes the next step, as there are cores for both and the step is worth it."""
        return self._threads > 1 and (self._tuples >= MANY_TUPLES or self._more)

    def _is_due(self) -> bool:
        return bool(self._wakes) and self._wakes[0] <= self._clock.now_us()

    async def at_rest(self) -> None:
        """Wait until no thread works on the engine. The caller then reads it between two steps, until its next wait."""
        if self._turn.locked():
            async with self._turn:
                pass

    async def between_steps(self, work: Callable[[], T], took: Callable[[float], None] | None = None) -> T:
        """Run `work`, which reads the engine, in the worker between two steps. `took` gets the seconds for which that
        kept tuples waiting."""
        async with self._turn:
            began = time.perf_counter()
            try:
                return await self._worker.run_whole(work)
            finally:
                (took or _ignore)(time.perf_counter() - began)

    async def _hear(self) -> None:
        """Let the sockets be read once, and know until when nothing can have been missed."""
        if self.guessing:
            self._heard_us = self._clock.now_us()
        await asyncio.sleep(0)

    @property
    def worked_off(self) -> bool:
        """Whether no event waits for a step and the engine has no work left."""
        return not (self._events or self._more)

    async def wait_drained(self) -> None:
        """Wait until the engine has processed its events (pending timers do not count)."""
        while not self.worked_off or self._aside or self._undurable:
            await self._idle.wait()
            await self._all_durable.wait()

    async def wait_delivered(self) -> None:
        """Until no sink and no subscriber holds rows any more."""
        # A poll, because it runs once, at the end, and each consumer drains differently.
        outlets = [*self.outlets.values(), *self.built_in.values()]
        while any(consumer.held for outlet in outlets for consumer in outlet.consumers):  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    def step(self) -> None:
        """One step, and its orders."""
        now_us, events = self._begin()
        budget = self._step_budget
        began = time.perf_counter()
        effects = self.engine.step(now_us, events, budget=budget)
        took = time.perf_counter() - began
        if budget == self._budget:
            self._adapt(took, effects.more)
        self._finish(now_us, budget, events, effects, took)

    @property
    def _step_budget(self) -> int:
        """The tuples of the next step: fewer while an admin waits for an answer, which takes several turns of the loop.
        A step in the worker lets the loop turn anyway."""
        return self._budget if not self.requests else max(self._budget // HURRIED, min(LEAST_BUDGET, self._budget))

    async def _step_aside(self) -> None:
        """One step in the worker, and its orders. The duration of a change does not change the budget."""
        changes = self._reconfigures
        async with self._turn:
            now_us, events = self._begin()
            budget = self._budget
            self._aside = self._computes = True
            try:
                began = time.perf_counter()
                effects = await self._worker.run_whole(lambda: self.engine.step(now_us, events, budget=budget))
                took = time.perf_counter() - began
                if not changes:
                    self._adapt(took, effects.more)
                self._finish(now_us, budget, events, effects, took)
                self._computes = False
                if changes:
                    # What follows goes by the change, whose effects outside the engine wait until it is durable.
                    await self._all_durable.wait()
            finally:
                self._aside = self._computes = False

    def _begin(self) -> tuple[int, list[Event]]:
        """The time and the events of a step."""
        self._notice()
        now_us = self._clock.now_us()
        while self._wakes and self._wakes[0] <= now_us:
            heapq.heappop(self._wakes)
        events = self._gather()
        self._settling += self._settled
        self._settled.clear()
        self._something.clear()
        return now_us, events

    def _finish(self, now_us: int, budget: int, events: Sequence[Event], effects: Effects, took: float) -> None:
        """The orders of a step: now, or once it is durable."""
        if self._answers:
            for tell in dict.fromkeys(self._answers[event.id].took for event in events if isinstance(event, Command)):
                tell(took)
        self.steps += 1
        self.busy_seconds += took
        self._more = effects.more
        if self._log is None:
            self._carry_out(effects.orders)
            return
        later = []
        for order in effects.orders:
            if isinstance(order, AT_ONCE):
                self._orders[type(order)](order)
            else:
                later.append(order)
        number = self._log.record(Step(now_us, budget, events, self._notes(events), effects.results or {}))
        settled, self._settling = self._settling, []
        self._undurable.append(_StepTaken(number, later, settled))
        self._all_durable.clear()

    def _notes(self, events: Sequence[Event]) -> dict[int, Any] | None:
        """By command, what is noted about it."""
        if not self._answers:
            return None
        asked = {event.id: self._answers[event.id] for event in events if isinstance(event, Command)}
        return {number: one.note for number, one in asked.items() if one.note is not None} or None

    def durable(self, number: int) -> None:
        """All steps up to this one are durable: carry out their orders. Acknowledgements precede rows."""
        try:
            while self._undurable and self._undurable[0].number <= number:
                taken = self._undurable.popleft()
                for call in taken.settled:
                    call()
                self._carry_out(taken.orders)
        except Exception as error:
            self.fail(error)
        if not self._undurable:
            self._all_durable.set()
        self._note_turn()

    def _note_turn(self) -> None:
        turned, self._turned = self._turned, None
        if turned is not None:
            turned.set_result(None)

    def fail(self, error: Exception) -> None:
        """An error that ends the server: the next turn of `run` raises it."""
        self._failure = error
        self._all_durable.set()
        self._note_turn()
        self._idle.clear()
        self._something.set()

    @property
    def settles(self) -> bool:
        """Whether steps wait to be durable, so that the engine is ahead of what reads it."""
        return bool(self._undurable)

    def undurable_orders(self) -> Iterable[Effect]:
        """The orders of steps that are not durable yet."""
        for taken in self._undurable:
            yield from taken.orders

    async def wait_durable(self, number: int) -> None:
        """Wait until the steps up to this one are durable, and their orders carried out."""
        while self._undurable and self._undurable[0].number <= number and self._failure is None:
            self._turned = self._turned or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._turned)

    def _carry_out(self, orders: Iterable[Effect]) -> None:
        for order in orders:
            self._orders[type(order)](order)
        if self._progress:
            self._tell_progress()

    # -- recovery ----------------------------------------------------------------------------------

    def replayed(self, now_us: int, effects: Effects) -> None:
        """Bring what reads the engine to the state after a replayed step. Nobody is connected, and what was counted or
        logged then is not counted or logged again."""
        self._more = effects.more
        while self._wakes and self._wakes[0] <= now_us:
            heapq.heappop(self._wakes)
        for order in effects.orders:
            match order:
                case Deliver(query=query):
                    if query in self.outlets and len(order.batch.ts):
                        self.outlets[query].deliver(order.sequence, order.batch)
                case Late():
                    self._deliver_late(order)
                case Archived():
                    self.on_history(order)
                case Progressed():
                    self._progressed(order)
                case WakeAt():
                    self._wake_at(order)
                case _:
                    pass
        if self._progress:
            self._tell_progress()

    def _adapt(self, took: float, more: bool) -> None:
        """Fewer tuples a step where they are dear, up to `engine.budget` where they are cheap."""
        if took > STEP_SECONDS:
            # One slow step may have had another cause: never to less than a quarter at once.
            fewer = max(int(self._budget * STEP_SECONDS / took), self._budget // 4)
            self._budget = max(fewer, min(LEAST_BUDGET, self._most))
        elif more and took < STEP_SECONDS / 2:
            self._budget = min(self._budget * 2, self._most)

    def _gather(self) -> list[Event]:
        """The events of a step. Tuples came by now; what the clock alone says counts to the last hearing only."""
        now, self._events, self._reconfigures = self._events, [], False
        if self._answers:  # there may be commands
            now.sort(key=_renames)  # requests that follow one may have the former name
        self._tuples = 0
        events = self.stopwatch.take() + now
        if self._stepped_us:
            events.insert(0, ClockStepped(self._stepped_us))
            self._heard_us += self._stepped_us
            self._stepped_us = 0
        if self.guessing:
            events.append(Heard(self._heard_us))
        return events

    async def _wait_for_something(self) -> None:
        while not self._something.is_set():
            if not self._wakes:
                await self._something.wait()
                return
            ahead_us = self._wakes[0] - self._clock.now_us()
            if ahead_us <= 0:
                return
            try:
                # The loop counts in whole milliseconds, and rounding down would have it spin for the rest.
                async with asyncio.timeout(math.ceil(ahead_us / 1_000) / 1_000):
                    await self._something.wait()
            except TimeoutError:
                pass  # the timer is due, or nearly

    # -- the clock ---------------------------------------------------------------------------------

    @property
    def clock_held_back_us(self) -> int:
        """How far the system's clock was set back, as long as this one is not near it."""
        return self._clock.held_back_us

    async def _look_at_the_clock(self) -> None:
        """Notice soon when the system's clock is set, although nothing else happens."""
        while True:
            await asyncio.sleep(self._look_seconds)
            sparing.flush()
            self._notice()
            if self._is_due():
                self._something.set()

    def _notice(self) -> None:
        stepped_us = self._clock.notice()
        if stepped_us:
            self._stepped_us += stepped_us
            log.warning("the system clock jumped forward; the server clock follows", seconds=stepped_us / 1e6)
        held_back = self._clock.held_back_us > 0
        if held_back and not self._held_back:
            log.warning(
                "the system clock was set back; the server clock slows down until both agree",
                seconds=self._clock.held_back_us / 1e6,
            )
        elif self._held_back and not held_back:
            log.info("the system clock and the server clock agree again")
        self._held_back = held_back

    # -- orders ------------------------------------------------------------------------------------

    def _deliver(self, order: Deliver) -> None:
        outlet = self.outlets.get(order.query)
        if outlet is not None and len(order.batch.ts):
            now_us = self._clock.now_us()
            outlet.deliver(order.sequence, order.batch)
            self.on_delivery(outlet, now_us, order.batch)

    def _progressed(self, order: Progressed) -> None:
        outlet = self.outlets.get(order.query)
        if outlet is not None:
            self._progress[outlet] = order.value_us

    def _tell_progress(self) -> None:
        """Report the last progress of each query in a step, after all its rows."""
        progress, self._progress = self._progress, {}
        for outlet, value_us in progress.items():
            outlet.progressed(value_us)

    def _late(self, order: Late) -> None:
        self.late[order.stream] = self.late.get(order.stream, 0) + len(order.batch)
        peer = self.feeds.get((order.stream, order.feed))
        if peer is not None:
            peer.late(order)
        self._deliver_late(order)
        whose = {"stream": order.stream, "feed": order.feed}
        if late := len(order.batch) - order.broken:
            sparing.warning("tuples arrived late", " ".join(whose.values()), late, unit="tuples", **whose)
        if order.broken:
            text = "a client sent tuples older than its punctuation; they are late"
            sparing.warning(text, " ".join(whose.values()), order.broken, unit="tuples", **whose)

    def _deliver_late(self, order: Late) -> None:
        outlet = self.outlets.get(f"{order.stream}.late")
        if outlet is not None:
            outlet.deliver(outlet.next_sequence, order.told(outlet.schema, order.at_us))

    def _archived(self, order: Archived) -> None:
        self.on_history(order)

    def _too_far(self, order: TooFar) -> None:
        self.refuse_far(order.stream, order.feed, len(order.batch))

    def refuse_far(self, stream: str, feed: str, tuples: int) -> None:
        """Count and log tuples beyond `max_ahead`, whether the server or the engine found them."""
        self.far[stream] = self.far.get(stream, 0) + tuples
        text = "tuples too far in the future were refused"
        sparing.warning(text, f"{stream} {feed}", tuples, unit="tuples", stream=stream, feed=feed)

    def _grant(self, order: Grant) -> None:
        peer = self.feeds.get((order.stream, order.feed))
        if peer is not None:
            peer.granted(order.tuples)

    def _ask(self, order: AskTimestamp) -> None:
        peer = self.feeds.get((order.stream, order.feed))
        if peer is not None:
            log.debug("requested a timestamp", stream=order.stream, feed=order.feed, need_us=order.need_us)
            peer.asked(order.request, order.need_us, order.group)

    def _ask_ended(self, order: AskEnded) -> None:
        log.debug(
            "a request for a timestamp ended",
            stream=order.stream,
            feed=order.feed,
            outcome=order.outcome,
            took_us=order.took_us,
        )
        self.on_ask_ended(order)

    def _wake_at(self, order: WakeAt) -> None:
        if order.at_us not in self._wakes:
            heapq.heappush(self._wakes, order.at_us)

    def _answer(self, order: Answer) -> None:
        future, obeyed, took, _ = self._answers.pop(order.id)
        if order.refused is None and obeyed is not None:
            began = time.perf_counter()
            obeyed()
            took(time.perf_counter() - began)
        if future.done():
            return  # its client has gone
        if order.refused is not None:
            future.set_exception(order.refused)
        else:
            future.set_result(order.value)

    def _rejected(self, order: Rejected) -> None:
        log.warning("the engine rejected an event", kind=type(order.event).__name__, reason=order.refused.text)

    def _rows_failed(self, order: RowsFailed) -> None:
        about = {"operator": order.operator, "reason": order.reason}
        sparing.warning("rows were dropped", order.operator, order.count, unit="tuples", **about)

    def _join_turned(self, order: JoinTurned) -> None:
        log.info("a join switched its order", operator=order.operator, **order.numbers)

    def _aggregate_turned(self, order: AggregateTurned) -> None:
        log.info("an aggregate changed what it keeps", operator=order.operator, **order.numbers)

    def _queue_turned(self, order: QueueTurned) -> None:
        log.info("a queue turned with the load", operator=order.operator, input=order.input, **order.numbers)

    def _chain_decided(self, order: ChainDecided) -> None:
        cuts = [name for name, link in order.links.items() if link.break_]
        log.info("chain updated its segments", component=order.component, decisions=order.decisions, breaks=cuts)

    def _query_failed(self, order: QueryFailed) -> None:
        log.error(
            "a query failed", query=order.query, reason=order.reason, lost=order.lost, detail=order.detail or None
        )
        self.on_failure()


class Stopwatch:
    """Times executions by the wall clock. Readings go back to the engine as events, several at once: with single tuples
    their events would take longer than the tuples."""

    def __init__(self) -> None:
        self._began = 0
        self._taken = 0
        self._readings: dict[str, tuple[int, int]] = {}

    def start(self) -> None:
        self._began = time.perf_counter_ns()

    def stop(self, operator: str, tuples: int) -> None:
        spent = time.perf_counter_ns() - self._began
        before, spent_before = self._readings.get(operator, (0, 0))
        self._readings[operator] = (before + tuples, spent_before + spent)

    def take(self) -> list[Event]:
        """The costs of executions since they were taken last, unless that was just now."""
        if not self._readings:
            return []
        now = time.perf_counter_ns()  # not the last start: after the last execution there may be none for long
        if now - self._taken < READINGS_NS:
            return []
        self._taken = now
        readings, self._readings = self._readings, {}
        return [Measured(operator, tuples, spent / 1_000) for operator, (tuples, spent) in readings.items()]


class _Asked(NamedTuple):
    """A command that the engine has not answered yet."""

    answer: asyncio.Future[Any]
    obeyed: Callable[[], None] | None
    took: Callable[[float], None]
    note: Any


@dataclass(slots=True)
class _StepTaken:
    """A step that is not durable yet: its number in the log, its orders, and what to call before them."""

    number: int
    orders: Sequence[Effect]
    settled: list[Callable[[], None]] = field(default_factory=list)


def _ignore(*_: object) -> None:
    """The default listener."""


def _may_change_graph(body: CommandBody) -> bool:
    return not isinstance(body, WithholdCredit) and body != NOTHING


def _renames(event: Event) -> bool:
    """Whether an event renames a query."""
    body = event.body if isinstance(event, Command) else None
    return isinstance(body, RenameQuery) or (
        isinstance(body, Change) and any(isinstance(command, RenameQuery) for command in body.commands)
    )


def _renamed(event: Event, before: str, after: str) -> Event:
    match event:
        case Command(body=PauseQuery() | ResumeQuery() | WatchProgress() | SetReads() | WithholdCredit() as body) if (
            body.name == before
        ):
            return replace(event, body=replace(body, name=after))
        case _:
            return event


def key_of(plan: QueryPlan) -> list[int] | None:
    """The positions of the update key in a query's rows, if they have one."""
    return None if plan.update_key is None else [plan.schema.names.index(name) for name in plan.update_key]


def _refuse_at_the_end(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(Refuse("the server is ending: nothing more is changed", code="shutting_down"))
        _look_at(answer)


def _look_at(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
