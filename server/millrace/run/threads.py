"""Calls that may wait for a disk, outside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from millrace.protocol import Refuse

T = TypeVar("T")

# How long a disk may take for a handful of names: a network file system that is gone never answers.
SECONDS: Final = 10.0


async def in_thread(call: Callable[[], T], undo: Callable[[T], Any] = lambda _: None) -> T:
    """The result of a call in a thread that the end of the process does not wait for; `undo` takes back a result that
    arrives too late."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            if error is None:
                undo(result)  # type: ignore[arg-type]
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as failure:
            error = failure
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="disk", daemon=True).start()
    try:
        async with asyncio.timeout(SECONDS):
            return await future
    except TimeoutError:
        text = f"the disk did not answer within {SECONDS:g} seconds: look at the file system, then try again"
        raise Refuse(text, code="timeout") from None
