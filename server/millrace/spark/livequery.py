"""The StreamingQuery of a live job: its errors are one line, and its checkpoint is free when it ends."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.streaming.query import StreamingQuery

from millrace.backfill.running import in_plain_words
from millrace.protocol import Refuse
from millrace.spark.lock import Lock


class LiveQuery(StreamingQuery):
    """Spark's query of a job.

    failures  errors of epochs, as they were before Spark wrapped them
    """

    def __init__(self, query: StreamingQuery, failures: Sequence[Refuse], lock: Lock | None) -> None:
        super().__init__(query._jsq)
        self._failures, self._lock = failures, lock

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait for the end of the query, as Spark's does; Refuse says why it failed."""
        try:
            with in_plain_words():
                ended = super().awaitTermination(timeout)
        except Refuse as error:
            self._release()
            if self._failures:
                raise self._failures[-1] from None
            raise error from None
        if ended is not False:
            self._release()
        return ended

    def stop(self) -> None:
        super().stop()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
