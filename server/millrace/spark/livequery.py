"""The StreamingQuery of a live job: its errors are one line, and its checkpoint is free when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql.streaming.query import StreamingQuery

from millrace.backfill.running import in_plain_words
from millrace.protocol import Refuse
from millrace.spark.epochs import Outdated
from millrace.spark.lock import Lock


class LiveQuery(StreamingQuery):
    """Spark's query of a job. When the job changes, another one replaces it: in `awaitTermination`.

    launch    starts Spark's query
    failures  errors of epochs, as they were before Spark wrapped them; each is reported once
    """

    def __init__(self, launch: Callable[[], StreamingQuery], failures: list[Refuse], lock: Lock | None) -> None:
        super().__init__(launch()._jsq)
        self._launch, self._failures, self._lock = launch, failures, lock

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait for the end of the query, as Spark's does; Refuse says why it failed."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if until is None else max(int(until - time.monotonic()), 1)
            try:
                return self._wait(left)
            except Outdated:
                self._jsq = self._launch()._jsq

    def _wait(self, timeout: int | None) -> bool | None:
        try:
            with in_plain_words():
                ended = super().awaitTermination(timeout)
        except Refuse as error:
            # An error of the source is not among them, and one of an earlier query must not hide it.
            told = self._failures.pop() if self._failures else error
            if not isinstance(told, Outdated):
                self._release()
            raise told from None
        if ended is not False:
            self._release()
        return ended

    def stop(self) -> None:
        super().stop()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
