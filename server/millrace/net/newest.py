"""The rows that wait for a slow consumer of an update stream: the newest of each key, by the queue of edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from millrace.operators.queues.update import UpdateQueue
from millrace.protocol import Field, Schema, Type
from millrace.values.batch import Batch

# The additional column with the rows' numbers; no column of SQL can have this name.
NUMBER = "$number"


class Newest:
    """Rows in the order of their numbers, each the newest of its key.

    FIFO, because every update moves its key to the end of the line: a row is never older than an earlier one.
    """

    def __init__(self, schema: Schema, key: Sequence[int]) -> None:
        self._schema = schema
        self.key_names = [schema.fields[at].name for at in key]
        self._numbered = Schema((*schema.fields, Field(NUMBER, Type.BIGINT, False)))
        self._queue = UpdateQueue(self._numbered, key, "fifo")
        self._now_us = 0
        self._put_rows = self._put_bytes = 0

    @property
    def weight(self) -> int:
        """Bytes of the rows that wait, by the mean of those that have been put."""
        return self.waiting * self._put_bytes // self._put_rows if self._put_rows else 0

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    @property
    def superseded(self) -> int:
        return self._queue.superseded

    def put(self, sequence: int, batch: Batch) -> None:
        self._now_us = max(self._now_us, int(batch.arrival.max()))
        self._put_rows += len(batch)
        self._put_bytes += batch.weight
        numbers = np.arange(sequence, sequence + len(batch))
        columns, valid = [*batch.columns, numbers], [*batch.valid, None]
        self._queue.enqueue(Batch(self._numbered, batch.ts, columns, valid, batch.arrival), self._now_us)

    def promised(self, value_us: int) -> None:
        """No later row is below this time: old keys may be dropped."""
        self._queue.promised(value_us, self._now_us)

    def take(self, most: int) -> Iterator[tuple[int, Batch]]:
        """At most `most` rows, in runs with consecutive numbers."""
        batch = self._queue.dequeue(most, self._now_us)
        if batch is None:
            return
        numbers = batch.columns[-1]
        rows = Batch(self._schema, batch.ts, batch.columns[:-1], batch.valid[:-1], batch.arrival)
        edges = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(batch)]
        for begin, end in pairwise(edges):
            if end > begin:
                yield int(numbers[begin]), rows.slice(begin, end)

    def older(self, now_us: int, than_us: int) -> list[tuple[tuple[Any, ...], int]]:
        """The keys that have waited for longer, and for how long."""
        return self._queue.older(now_us, than_us)

    def oldest_us(self, now_us: int) -> int:
        """For how long the key has waited that waits longest."""
        return self._queue.staleness(now_us).oldest_us
