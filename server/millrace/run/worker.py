"""Threads for long work: one plans SQL, one takes long steps of the engine, one reads long pieces of JSON lines.

Rule: a worker does one piece of work after the other, in order of submission, while the loop serves sockets. No other
code changes the objects that it works on. The work is Python throughout, so the loop gets the interpreter back within
`SWITCH_SECONDS` whenever it asks. docs/decisions/planning.md has the figures.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from millrace.protocol import Refuse

T = TypeVar("T")

# How long the loop waits for the interpreter while a worker works: Python's own 5 ms would be paid for every
# socket that is read, and switching ten times as often costs less than one percent.
SWITCH_SECONDS: Final = 0.0005
# New objects that one collection may examine afterwards: a generation of the daemon.
MANY_OBJECTS: Final = 100_000
# A full collection keeps the loop waiting for 100 ms and more. Without one, dropped queries would stay in memory: 9 MB
# for each change that drops 500.
COLLECT_EVERY: Final = 8


class _Interpreter:
    """Settings of the interpreter, and so of the process, while any worker works.

    Threads switch often. The cyclic collector is off: each collection keeps the interpreter for 4 ms per 100,000 new
    objects, and many times that on a loaded machine. Where the work leaves many, no collection examines them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._working = 0
        self._switch_seconds = sys.getswitchinterval()
        self._collects = True
        self._passed_over = 0

    def begin(self) -> None:
        with self._lock:
            if self._working == 0:
                self._switch_seconds, self._collects = sys.getswitchinterval(), gc.isenabled()
                sys.setswitchinterval(min(SWITCH_SECONDS, self._switch_seconds))
                gc.disable()
            self._working += 1

    def end(self) -> None:
        with self._lock:
            self._working -= 1
            if self._working:
                return
            sys.setswitchinterval(self._switch_seconds)
            if self._collects:
                if gc.get_count()[0] > MANY_OBJECTS:
                    self._pass_over()
                gc.enable()

    def _pass_over(self) -> None:
        """Put the new objects among the oldest ones, unexamined; every so often examine all."""
        self._passed_over += 1
        if self._passed_over % COLLECT_EVERY == 0:
            gc.collect()
        else:
            gc.freeze()
            gc.unfreeze()


_interpreter: Final = _Interpreter()


class Worker:
    """One thread; `running` is the work that it has not done yet."""

    def __init__(self, name: str) -> None:
        self.running = 0
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        """The work's result, or its exception. A cancelled caller does not interrupt work that has started."""
        return await asyncio.wrap_future(self.submit(work))

    async def run_whole(self, work: Callable[[], T]) -> T:
        """The same, but a cancelled caller waits for the end of the work first."""
        job = asyncio.wrap_future(self.submit(work))
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            await asyncio.wait([job])
            raise

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have the work done; `Refuse` if the server is ending."""
        with self._lock:
            self.running += 1
        _interpreter.begin()
        try:
            job = self._thread.submit(work)
        except RuntimeError:
            self._ended()
            raise Refuse("the server is ending: try again once it has started again", code="shutting_down") from None
        job.add_done_callback(self._ended)
        return job

    def _ended(self, _: object = None) -> None:
        _interpreter.end()
        with self._lock:
            self.running -= 1

    def close(self) -> None:
        """Take no more work, and cancel work that has not started."""
        self._thread.shutdown(wait=False, cancel_futures=True)
