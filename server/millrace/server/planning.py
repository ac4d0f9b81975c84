"""Where SQL is parsed and planned: in a thread beside the event loop, one text at a time, on a snapshot of the catalog.

Rule: what runs here reads values that nobody changes, and returns values. Planning is Python throughout, so the loop
gets the interpreter back within `SWITCH_SECONDS` whenever it asks; a process would need the catalog sent to it and the
plans sent back, which takes the loop longer than that. Requests are admitted up to a bound, from their arrival to their
answer, because each of them holds a text and a plan.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

from millrace.protocol import Refuse
from millrace.sql.limits import Limits

T = TypeVar("T")

# How long the loop waits for the interpreter while something is planned: Python's own 5 ms would be paid for every
# socket that is read, and switching ten times as often costs less than one percent.
SWITCH_SECONDS: Final = 0.0005


class Planning:
    """The thread, and who waits for it.

    limits   of one text
    most     requests that may be there at once
    refused  requests that found as many
    """

    def __init__(self, limits: Limits, most: int) -> None:
        self.limits = limits
        self.most = most
        self.refused = 0
        self._admitted = 0
        self._running = 0
        self._usual = sys.getswitchinterval()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="planning")

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request until it is answered. Raises Refuse where too many wait."""
        if self._admitted >= self.most:
            self.refused += 1
            raise Refuse(
                f"{self._admitted} requests with SQL are being planned or waiting, the maximum of limits.sql_waiting: "
                "send this one again in a second",
                code="busy",
            )
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    async def run(self, work: Callable[[], T]) -> T:
        """The work's result, or what it raised. Others have the loop meanwhile."""
        if self._running == 0:
            self._usual = sys.getswitchinterval()
            sys.setswitchinterval(min(SWITCH_SECONDS, self._usual))
        self._running += 1
        loop = asyncio.get_running_loop()
        job = self._thread.submit(_bounded, work)
        job.add_done_callback(lambda _: _call(loop, self._ended))
        return await asyncio.wrap_future(job)

    def _ended(self) -> None:
        self._running -= 1
        if self._running == 0:
            sys.setswitchinterval(self._usual)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(what)


def _bounded(work: Callable[[], T]) -> T:
    """The work, whose recursion the limits should bound: if they do not, that refuses a text and stops nothing."""
    try:
        return work()
    except RecursionError:
        raise Refuse("this SQL is nested too deeply: compute the inner parts in separate queries", code="sql") from None
