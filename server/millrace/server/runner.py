"""The driver: collects what happened, steps the engine by the system clock, and carries out what it orders.

Rule: the engine is stepped from here and nowhere else, between two steps the event loop gets its turn, and an engine
that has nothing to do is not stepped at all.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import structlog

from millrace.engine.events import (
    Answer,
    AskTimestamp,
    Command,
    CommandBody,
    Deliver,
    Effect,
    Effects,
    Event,
    FeedClosed,
    FeedOpened,
    Grant,
    Late,
    Measured,
    PauseQuery,
    Progressed,
    Rejected,
    ResumeQuery,
    RowsFailed,
    WakeAt,
    WatchProgress,
)
from millrace.operators.batch import Batch
from millrace.protocol import Schema
from millrace.server.sink import Outlet

log = structlog.get_logger()


# An operator's failed rows are logged at most so often; its counters have them all.
COMPLAIN_EVERY_US: Final = 10_000_000
# How often the end of the server looks whether sinks and subscribers are done.
DRAIN_POLL_SECONDS: Final = 0.01


class Steps(Protocol):
    """The engine's one door."""

    def step(self, now_us: int, events: Sequence[Event], *, budget: int) -> Effects: ...


class FeedPeer(Protocol):
    """Whoever feeds a stream, as the engine's orders reach it."""

    def granted(self, tuples: int) -> None:
        """So many more tuples may come."""

    def asked(self, request: int, need_us: int) -> None:
        """A promise of at least `need_us` would unblock an operator."""


def system_clock_us() -> int:
    return time.time_ns() // 1_000


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
        retain: int,
        clock: Callable[[], int] = system_clock_us,
    ) -> None:
        self.engine = engine
        self.stopwatch = stopwatch
        self.feeds: dict[tuple[str, str], FeedPeer] = {}
        self.outlets: dict[str, Outlet] = {}
        self.steps = 0
        self.late: dict[str, int] = {}
        self.on_delivery: Callable[[str, int, Batch], None] = _ignore
        self.on_reconfiguration: Callable[[float], None] = _ignore
        self._clock = clock
        self._budget = budget
        self._retain = retain
        self._events: list[Event] = []
        self._more = False
        self._wakes: list[int] = []
        self._something = asyncio.Event()
        self._idle = asyncio.Event()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._last_command = 0
        self._watchers: dict[str, int] = {}
        # By operator: rows that failed and were not told yet, and when they may be.
        self._failed: dict[str, tuple[int, int]] = {}
        self._held: dict[str, asyncio.Future[Any]] = {}
        self._orders: Mapping[type, Callable[[Any], None]] = {
            Deliver: self._deliver,
            Progressed: self._progressed,
            Late: self._count_late,
            Grant: self._grant,
            AskTimestamp: self._ask,
            WakeAt: self._wake_at,
            Answer: self._answer,
            Rejected: self._rejected,
            RowsFailed: self._rows_failed,
        }

    def now_us(self) -> int:
        return self._clock()

    # -- in ----------------------------------------------------------------------------------------

    def submit(self, event: Event) -> None:
        """Something happened; the next step will know."""
        self._events.append(event)
        self._something.set()
        self._idle.clear()

    def command(self, body: CommandBody) -> asyncio.Future[Any]:
        """Ask the engine for something; the future has its answer, or its refusal as an exception."""
        self._last_command += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[self._last_command] = future
        self.submit(Command(self._last_command, body))
        return future

    def open_feed(self, stream: str, feed: str, peer: FeedPeer, *, can_answer: bool) -> None:
        self.feeds[stream, feed] = peer
        self.submit(FeedOpened(stream, feed, can_answer))

    def close_feed(self, stream: str, feed: str, peer: FeedPeer) -> None:
        """End a feed, unless another connection has taken it over meanwhile."""
        if self.feeds.get((stream, feed)) is peer:
            del self.feeds[stream, feed]
            self.submit(FeedClosed(stream, feed))

    def forget_feed(self, stream: str, feed: str) -> None:
        """The feed went with its stream."""
        self.feeds.pop((stream, feed), None)

    def add_outlet(self, query: str, schema: Schema) -> Outlet:
        outlet = Outlet(query, schema, self._retain, lambda wait, reason: self._wait(query, wait, reason))
        self.outlets[query] = outlet
        return outlet

    def remove_outlet(self, query: str) -> None:
        """The query was dropped."""
        outlet = self.outlets.pop(query, None)
        self._held.pop(query, None)
        self._watchers.pop(query, None)
        if outlet is not None:
            outlet.end("dropped", f"query {query} was dropped")

    def watch(self, query: str, wanted: bool) -> None:
        """One subscriber more, or one less, who wants to know the query's progress."""
        before = self._watchers.get(query, 0)
        after = self._watchers[query] = before + (1 if wanted else -1)
        if query in self.outlets and (before > 0) != (after > 0):
            self.command(WatchProgress(query, after > 0)).add_done_callback(_look_at)

    # -- waiting for slow consumers ----------------------------------------------------------------

    def _wait(self, query: str, wait: bool, reason: str) -> None:
        if query not in self.outlets:
            return
        log.warning("a query waits" if wait else "a query goes on", query=query, reason=reason)
        if wait:
            self._held[query] = self.command(PauseQuery(query, reason))
            self._held[query].add_done_callback(_look_at)
        elif (held := self._held.pop(query, None)) is not None:
            held.add_done_callback(lambda paused: self._go_on(query, paused))

    def _go_on(self, query: str, paused: asyncio.Future[Any]) -> None:
        """Resume what a slow consumer had paused; not what an admin had paused before, or what is gone."""
        if not paused.cancelled() and paused.exception() is None and query in self.outlets:
            self.command(ResumeQuery(query)).add_done_callback(_look_at)

    def forget_hold(self, query: str) -> bool:
        """Whether a slow consumer had paused the query; it is the admin's pause from now on."""
        return self._held.pop(query, None) is not None

    # -- the loop ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Step for ever."""
        while True:
            if not (self._events or self._more):
                self._idle.set()
                await self._wait_for_something()
            self.step()
            await asyncio.sleep(0)

    async def wait_drained(self) -> None:
        """Until the engine has worked off what it was told (a timer that is still to come does not count)."""
        while self._events or self._more:
            await self._idle.wait()

    async def wait_delivered(self) -> None:
        """Until no sink and no subscriber holds rows any more."""
        # A poll, because it runs once, at the end, and every consumer drains in a way of its own.
        while any(consumer.held for outlet in self.outlets.values() for consumer in outlet.consumers):  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    def step(self) -> None:
        """One step, and its orders."""
        now_us = self._clock()
        while self._wakes and self._wakes[0] <= now_us:
            heapq.heappop(self._wakes)
        events, self._events = self.stopwatch.take() + self._events, []
        self._something.clear()
        began = time.perf_counter()
        effects = self.engine.step(now_us, events, budget=self._budget)
        if any(isinstance(event, Command) for event in events):
            self.on_reconfiguration(time.perf_counter() - began)
        self.steps += 1
        self._more = effects.more
        for order in effects.orders:
            self._carry_out(order)

    async def _wait_for_something(self) -> None:
        if not self._wakes:
            await self._something.wait()
            return
        try:
            async with asyncio.timeout(max(self._wakes[0] - self._clock(), 0) / 1e6):
                await self._something.wait()
        except TimeoutError:
            pass  # the timer is due

    # -- orders ------------------------------------------------------------------------------------

    def _carry_out(self, order: Effect) -> None:
        self._orders[type(order)](order)

    def _deliver(self, order: Deliver) -> None:
        outlet = self.outlets.get(order.query)
        if outlet is not None and len(order.batch):
            self.on_delivery(order.query, self._clock(), order.batch)
            outlet.deliver(order.sequence, order.batch)

    def _progressed(self, order: Progressed) -> None:
        outlet = self.outlets.get(order.query)
        if outlet is not None:
            outlet.progressed(order.value_us)

    def _count_late(self, order: Late) -> None:
        self.late[order.stream] = self.late.get(order.stream, 0) + len(order.batch)

    def _grant(self, order: Grant) -> None:
        peer = self.feeds.get((order.stream, order.feed))
        if peer is not None:
            peer.granted(order.tuples)

    def _ask(self, order: AskTimestamp) -> None:
        peer = self.feeds.get((order.stream, order.feed))
        if peer is not None:
            peer.asked(order.request, order.need_us)

    def _wake_at(self, order: WakeAt) -> None:
        if order.at_us not in self._wakes:
            heapq.heappush(self._wakes, order.at_us)

    def _answer(self, order: Answer) -> None:
        future = self._answers.pop(order.id)
        if future.done():
            return  # whoever asked has gone
        if order.refused is not None:
            future.set_exception(order.refused)
        else:
            future.set_result(order.value)

    def _rejected(self, order: Rejected) -> None:
        log.warning("the engine rejected an event", kind=type(order.event).__name__, reason=order.refused.text)

    def _rows_failed(self, order: RowsFailed) -> None:
        """Told at once, then now and then: a stream of bad rows must not become a stream of lines."""
        rows, due_us = self._failed.get(order.operator, (0, 0))
        rows, now_us = rows + order.count, self._clock()
        if now_us >= due_us:
            log.warning("rows were dropped", operator=order.operator, rows=rows, reason=order.reason)
            rows, due_us = 0, now_us + COMPLAIN_EVERY_US
        self._failed[order.operator] = (rows, due_us)


class Stopwatch:
    """Times executions by the wall clock. Readings go back to the engine as events."""

    def __init__(self) -> None:
        self._began = 0
        self._readings: dict[str, tuple[int, int]] = {}

    def start(self) -> None:
        self._began = time.perf_counter_ns()

    def stop(self, operator: str, tuples: int) -> None:
        spent = time.perf_counter_ns() - self._began
        before, spent_before = self._readings.get(operator, (0, 0))
        self._readings[operator] = (before + tuples, spent_before + spent)

    def take(self) -> list[Event]:
        """What executions have cost since the last call."""
        readings, self._readings = self._readings, {}
        return [Measured(operator, tuples, spent / 1_000) for operator, (tuples, spent) in readings.items()]


def _ignore(*_: object) -> None:
    """The default listener."""


def _look_at(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
