"""Waiting for a condition in one event loop, with one place that reports failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Waiting:
    """Coroutines that wait for a change. All of them run in one event loop."""

    def __init__(self) -> None:
        self.failed: BaseException | None = None
        self._sleepers: list[asyncio.Future[None]] = []

    async def until(self, true: Callable[[], bool]) -> None:
        """Return once the condition holds. Raise the error of `fail` as soon as that is called."""
        while not true():
            if self.failed is not None:
                raise self.failed
            sleeper = asyncio.get_running_loop().create_future()
            self._sleepers.append(sleeper)
            await sleeper

    def wake(self) -> None:
        """Let all waiting coroutines check their conditions again."""
        sleepers, self._sleepers = self._sleepers, []
        for sleeper in sleepers:
            if not sleeper.done():
                sleeper.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Raise this error in all waiting coroutines, now and later. Only the first error counts."""
        if self.failed is None:
            self.failed = error
        self.wake()
