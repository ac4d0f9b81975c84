"""Whether the server has more to do than it can, and its reaction to that.

Rule: overload is a state that lasts. Feeds that wait for a moment are the protocol at work; feeds that wait at each
look for `LASTS_SECONDS` mean that more arrives than is worked off. It ends when they have not waited for as long.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import structlog

from millrace.protocol.admin.server import OverloadView
from millrace.run.shortage import Stage

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

log = structlog.get_logger()

LOOK_SECONDS: Final = 0.25
# Three seconds: the pauses of a collection, a checkpoint or a large change are shorter.
LASTS_SECONDS: Final = 3.0
# The looks that the load and the delay of the loop are taken from.
SPAN_SECONDS: Final = 10.0


class Mode(IntEnum):
    """What the server does: nothing; it lets feeds wait; it drops rows; it fails queries."""

    NONE = 0
    WAIT = 1
    SHED = 2
    FAIL = 3


class Lasting:
    """A condition that has held, or not, at each look for `LASTS_SECONDS`."""

    def __init__(self) -> None:
        self.on = False
        self._other_since: float | None = None

    def look(self, now: float, holds: bool) -> bool:
        if holds == self.on:
            self._other_since = None
        elif self._other_since is None:
            self._other_since = now
        elif now - self._other_since >= LASTS_SECONDS:
            self.on, self._other_since = holds, None
        return self.on


class Overload:
    """Of one server.

    mode      what it does
    load      the share of the last seconds in which the engine worked
    delay     the longest time in the last seconds for which the loop served no socket
    """

    def __init__(self, daemon: Daemon, clock: Callable[[], float] = time.monotonic) -> None:
        self.mode = Mode.NONE
        self.since_us: int | None = None
        self.load = self.delay = 0.0
        self._daemon = daemon
        self._clock = clock
        self._waits = Lasting()
        self._looks: deque[tuple[float, float, float]] = deque(maxlen=int(SPAN_SECONDS / LOOK_SECONDS))

    async def run(self) -> None:
        """Look forever."""
        while True:
            before = self._clock()
            await asyncio.sleep(LOOK_SECONDS)
            now = self._clock()
            await self._daemon.runner.at_rest()
            self.look(now, max(now - before - LOOK_SECONDS, 0.0))

    def look(self, now: float, delay: float) -> None:
        """Look once; the loop was that late."""
        runner, budget = self._daemon.runner, self._daemon.budget
        self._looks.append((now, runner.busy_seconds, delay))
        began, busy, _ = self._looks[0]
        elapsed = now - began
        self.load = min((runner.busy_seconds - busy) / elapsed, 1.0) if elapsed > 0 else 0.0
        self.delay = max(late for _, _, late in self._looks)
        waits = self._waits.look(now, budget.holds or bool(self._daemon.engine.owing))
        acts = Mode(budget.stage.value) if budget.holds and budget.stage >= Stage.SHED else Mode.NONE
        if not self._daemon.follows:  # a standby has its primary's feeds
            self._become(max(Mode.WAIT if waits else Mode.NONE, acts))

    def _become(self, mode: Mode) -> None:
        if mode is self.mode:
            return
        before, self.mode = self.mode, mode
        if before is Mode.NONE:
            self.since_us = self._daemon.runner.now_us()
            log.warning("the server is overloaded", mode=mode.name.lower(), streams=self.streams())
        elif mode is Mode.NONE:
            self.since_us = None
            log.info("the server is no longer overloaded")

    def streams(self) -> list[str]:
        """The streams with feeds that wait for credit."""
        return sorted(self._daemon.engine.owing)

    def view(self) -> OverloadView:
        return OverloadView(
            mode=self.mode.name.lower(),
            since_us=self.since_us,
            streams=self.streams(),
            load=self.load,
            loop_delay_seconds=self.delay,
        )
