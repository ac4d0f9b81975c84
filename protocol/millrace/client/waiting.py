"""Waiting for a condition of this loop's own making. One place, so that a failure reaches whoever waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Waiting:
    """Those who wait for something to change. Everything happens in one event loop."""

    def __init__(self) -> None:
        self.failed: BaseException | None = None
        self._sleepers: list[asyncio.Future[None]] = []

    async def until(self, true: Callable[[], bool]) -> None:
        """Return once the condition holds; raise what `fail` was given as soon as that is called."""
        while not true():
            if self.failed is not None:
                raise self.failed
            sleeper = asyncio.get_running_loop().create_future()
            self._sleepers.append(sleeper)
            await sleeper

    def wake(self) -> None:
        """Something changed: let everybody look again."""
        sleepers, self._sleepers = self._sleepers, []
        for sleeper in sleepers:
            if not sleeper.done():
                sleeper.set_result(None)

    def fail(self, error: BaseException) -> None:
        """It will never come. The first reason stays."""
        if self.failed is None:
            self.failed = error
        self.wake()
