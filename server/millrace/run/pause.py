"""How long one change keeps tuples waiting that arrive meanwhile.

Rule: what counts is the change's work on the event loop and the time in which the engine belongs to it alone; waiting
for a lock, a disk or planning does not count.
"""

from __future__ import annotations

import time
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class Pause:
    """How long a change has held up everything else: its own work, and the engine's steps for it (`add`)."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.seconds += seconds

    @types.coroutine
    def of(self, work: Coroutine[Any, Any, T]) -> Generator[Any, None, T]:
        """Do the work, and add up how long it runs from each of its waits to the next."""
        thrown: BaseException | None = None
        while True:
            began = time.perf_counter()
            try:
                waits_for = work.send(None) if thrown is None else work.throw(thrown)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                self.add(time.perf_counter() - began)
            thrown = None
            try:
                yield waits_for
            except BaseException as error:  # a cancellation, and it is the work's to say what becomes of it
                thrown = error
