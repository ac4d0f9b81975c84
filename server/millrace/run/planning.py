"""A worker thread parses and plans SQL, one text at a time, on a snapshot of the catalog.

Rule: the work reads immutable values, and returns values. A process would need the catalog sent to it
and the plans sent back, which takes the loop longer than it waits for the interpreter. Requests are admitted up to a
bound, from their arrival to their answer, because each of them holds a text and a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from millrace.protocol import Refuse
from millrace.run.worker import Worker
from millrace.sql.limits import Limits

T = TypeVar("T")


class Planning:
    """The worker, and who waits for it.

    limits   of one text
    most     requests that may be there at once
    refused  requests that found as many
    """

    def __init__(self, limits: Limits, most: int) -> None:
        self.limits = limits
        self.most = most
        self.refused = 0
        self.worker = Worker("planning")
        self._admitted = 0

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
        """The result or the exception of the work. The event loop stays free meanwhile."""
        return await self.worker.run(lambda: _bounded(work))

    def close(self) -> None:
        self.worker.close()


def _bounded(work: Callable[[], T]) -> T:
    """The work, whose recursion the limits should bound: if they do not, that refuses a text and stops nothing."""
    try:
        return work()
    except RecursionError:
        raise Refuse("this SQL is nested too deeply: compute the inner parts in separate queries", code="sql") from None
