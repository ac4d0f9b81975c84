"""The clock and the timers of connections: the event loop's, or a test's own, which the test advances."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol


class Handle(Protocol):
    """A call that can be cancelled until it is made."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """Two methods of asyncio's loop."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> Handle: ...


class LoopTimers(Timers):
    """The running event loop's timers."""

    def time(self) -> float:
        return time.monotonic()  # uvloop's clock, without the way to it

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> Handle:
        return asyncio.get_running_loop().call_later(delay, callback, *args)


async def sleep(timers: Timers, seconds: float) -> None:
    """Wait by these timers."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    handle = timers.call_later(seconds, over.set_result, None)
    try:
        await over
    finally:
        handle.cancel()
