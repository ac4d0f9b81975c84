"""The follower of a server: when there is one, its lag, and the differences that it finds.

Rule: the server never depends on its follower. One that has ended, lags or differs is replaced when the server has made
a checkpoint itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Literal

import structlog

from millrace.journal.replay import Differs
from millrace.protocol.admin.server import DifferenceView, FollowerView
from millrace.run.followerprocess import FollowerGone, FollowerProcess

log = structlog.get_logger()

Mode = Literal["on", "off", "auto"]

# `auto`: bytes of a checkpoint from which a follower is worth its processor time. Below, a fork stops the loop for
# less than a millisecond or two.
WORTH_BYTES: Final = 64 * 2**20
# How long the server waits for a checkpoint of its follower.
PATIENCE_SECONDS: Final = 300.0
# How often a checkpoint of the follower is looked for.
LOOK_SECONDS: Final = 1.0
# The oldest times that are kept of recorded steps, for the lag.
SAMPLES: Final = 4_096

Start = Callable[[Path, str | None], Coroutine[Any, Any, FollowerProcess]]


class Following:
    """The follower of one server.

    process      the present one; None: there is none
    starts       how many have been started, and `failures` how many of those ended by themselves or lagged too much
    differences  how often a state differed; `difference` is the latest, at `differed_us`
    suspicious   whether the newest checkpoints may have such a state: the server is to make one now
    reason       why none runs
    """

    def __init__(
        self,
        mode: Mode,
        folder: Path,
        functions: str | None,
        now_us: Callable[[], int],
        objection: Callable[[int], str | None],
        start: Start = FollowerProcess.start,
    ) -> None:
        self.process: FollowerProcess | None = None
        self.starts = self.failures = self.differences = 0
        self.difference: Differs | None = None
        self.suspicious = False
        self.differed_us: int | None = None
        self.reason: str | None = "journal.follower is off" if mode == "off" else "the server has just started"
        self._mode = mode
        self._folder = folder
        self._functions = functions
        self._now_us = now_us
        self._start = start
        # By the bytes of a checkpoint: why there is not enough memory for a follower.
        self._lacks_memory = objection
        # The checkpoints that the server is to make itself before the next follower starts: from the last one.
        self._rests = 0
        self._closed = False
        # When which record was the newest one.
        self._recorded: deque[tuple[int, float]] = deque(maxlen=SAMPLES)

    # -- its life ----------------------------------------------------------------------------------

    async def look(self, newest: int, checkpoint_bytes: int) -> None:
        """Start a follower if there is none and one is wanted; note the end of one. `newest` is the newest record."""
        self._sample(newest)
        process = self.process
        if process is not None and process.ended is not None:
            await self._fail(process.ended)
        if self.process is None and not self._rests and not self._closed:
            self.reason = self._objection(checkpoint_bytes)
            if self.reason is None:
                await self._begin()

    async def _begin(self) -> None:
        try:
            self.process = await self._start(self._folder, self._functions)
        except OSError as error:
            self._rests = 1
            self.failures += 1
            self.reason = f"it cannot be started: {error.strerror or error}"
            log.warning("the follower cannot be started; the server makes its checkpoints itself", reason=self.reason)
            return
        self.starts += 1
        log.info("started a follower of the journal", pid=self.process.pid)

    async def _fail(self, reason: str) -> None:
        """End the present follower: the server makes the next checkpoint itself, and starts another one from there."""
        process, self.process = self.process, None
        if process is None:
            return
        self._rests = 1
        self.failures += 1
        self.reason = f"the last one failed: {reason}"
        if process.difference is not None:
            self.differed(process.difference)
        else:
            log.warning("the follower failed; the server makes the next checkpoint itself", reason=reason)
        await process.stop(reason)

    def differed(self, difference: Differs) -> None:
        """A replay, by the follower or by a start, has led to another state than the server's."""
        self._rests = 2  # one now, in the place of those that a follower has made, and the next one in its time
        self.suspicious = True
        self.differences += 1
        self.difference, self.differed_us = difference, self._now_us()
        log.error(
            "a replay of the journal leads to another state than the server's",
            step=difference.lsn,
            operators=difference.operators,
        )

    def _objection(self, checkpoint_bytes: int) -> str | None:
        """Why there should be no follower."""
        if self._mode != "auto":
            return "journal.follower is off" if self._mode == "off" else None
        if checkpoint_bytes < WORTH_BYTES:
            return f"checkpoints have less than {WORTH_BYTES >> 20} MB"
        return self._lacks_memory(checkpoint_bytes)

    async def make_room(self) -> None:
        """Memory is short: end a follower, unless the configuration demands one."""
        process = self.process
        if self._mode == "auto" and process is not None:
            self.process, self._rests = None, 1
            self.reason = "memory is short"
            log.warning("the follower was stopped: memory is short")
            await process.stop(self.reason)

    # -- checkpoints -------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether it can make a checkpoint."""
        process = self.process
        return process is not None and process.ended is None and process.lsn is not None

    async def wait_saved(self, lsn: int, far: Callable[[], bool]) -> None:
        """Wait until the follower has saved the state after this record; FollowerGone if it does not. `far` says
        whether the server has recorded too much since."""
        process, until = self.process, time.monotonic() + PATIENCE_SECONDS
        if process is None:
            raise FollowerGone(self.reason or "it has ended")
        waiting = asyncio.create_task(process.wait_saved(lsn))
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=LOOK_SECONDS)
                if not waiting.done() and (far() or time.monotonic() > until):
                    raise FollowerGone(f"it lacks {lsn - (process.lsn or 0)} steps of the checkpoint")
            waiting.result()
        except FollowerGone as gone:
            await self._fail(gone.text)
            raise
        finally:
            waiting.cancel()

    def checkpoint_made(self) -> None:
        """The server has made one itself: another follower may start from it."""
        self._rests = max(self._rests - 1, 0)
        self.suspicious = False

    async def close(self) -> None:
        """End the follower with the server."""
        self._closed = True
        process, self.process = self.process, None
        if process is not None:
            self.reason = "the server is ending"
            await process.stop(self.reason)

    # -- views -------------------------------------------------------------------------------------

    def _sample(self, newest: int) -> None:
        if not self._recorded or self._recorded[-1][0] < newest:
            self._recorded.append((newest, time.monotonic()))
        done = 0 if self.process is None else self.process.lsn or 0
        while len(self._recorded) > 1 and self._recorded[0][0] <= done:
            self._recorded.popleft()

    def _lag_seconds(self, done: int) -> float:
        """For how long the oldest step that it lacks has been recorded, by the looks at the journal."""
        first = next((at for lsn, at in self._recorded if lsn > done), None)
        return 0.0 if first is None else time.monotonic() - first

    def view(self, newest: int) -> FollowerView:
        process, found = self.process, self.difference
        done = None if process is None else process.lsn
        return FollowerView(
            mode=self._mode,
            running=process is not None and process.ended is None,
            pid=None if process is None else process.pid,
            reason=None if process is not None else self.reason,
            lsn=done,
            lag_steps=0 if done is None else max(newest - done, 0),
            lag_seconds=0.0 if done is None or done >= newest else self._lag_seconds(done),
            starts=self.starts,
            failures=self.failures,
            differences=self.differences,
            difference=None
            if found is None
            else DifferenceView(at_us=self.differed_us, lsn=found.lsn, operators=found.operators),
        )

    def problems(self) -> list[str]:
        """For the server's health."""
        found = self.difference
        if found is None:
            return []
        where = f"{listed(found.operators)} after step {found.lsn}"
        return [f"a replay of the journal leads to another state of {where}: a restart may emit other rows"]


def listed(operators: list[str]) -> str:
    """Operators in a sentence: the first of many."""
    if len(operators) <= 2:
        return " and ".join(operators)
    return f"{operators[0]} and {len(operators) - 1} more"
