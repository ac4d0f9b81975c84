"""A queue of tuples that appends while its reader keeps up, and supersedes under overload (UPS, sections 2 and 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millrace.operators.queues.appending import AppendQueue
from millrace.operators.queues.load import Load
from millrace.operators.queues.queue import Key, Paging, Staleness, TupleQueue
from millrace.operators.queues.update import UpdateQueue
from millrace.protocol import Schema
from millrace.values.batch import Batch


class AutoQueue(TupleQueue):
    """All tuples while its reader keeps up, else the newest of each key, IN-PLACE."""

    def __init__(self, schema: Schema, key: Sequence[int]) -> None:
        self._schema, self._key = schema, tuple(key)
        self._queue: AppendQueue | UpdateQueue = AppendQueue()
        self._load = Load()
        self.timed = False
        self._gone = 0

    @property
    def load(self) -> Load:  # type: ignore[override]
        return self._load

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        return self.load.supersedes

    @property
    def superseded(self) -> int:  # type: ignore[override]
        return self._gone + self._queue.superseded

    # -- tuples --------------------------------------------------------------------------------------------------------

    def enqueue(self, batch: Batch, now_us: int) -> None:
        load = self.load
        if load.span_over(now_us):
            if load.turns(now_us, self.superseded, load.arrived):
                self._turn(now_us)
            load.start_span(now_us, self.superseded, empty=not self._queue.waiting)
        load.arrived += len(batch)
        self._queue.enqueue(batch, now_us)

    def dequeue(self, limit: int, now_us: int) -> Batch | None:
        batch = self._queue.dequeue(self.load.most(limit), now_us)
        if batch is not None:
            self.load.served += len(batch)
        if not self._queue.waiting:
            self.load.emptied = True
        return batch

    def drain(self) -> Batch | None:
        self.load.emptied = True
        return self._queue.drain()

    def supersede(self, now_us: int) -> None:
        """Memory is short: supersede, whatever the load is, until a load shows that this is not needed."""
        self.load.supersede(now_us)
        self._turn(now_us)

    def _turn(self, now_us: int) -> None:
        """Continue in the other mode, with the queued tuples in order of service."""
        waiting = self._queue.drain()
        self._gone += self._queue.superseded
        self._queue = self._made()
        if waiting is not None:
            self._queue.enqueue(waiting, now_us)

    def _made(self) -> AppendQueue | UpdateQueue:
        if not self.load.supersedes:
            return AppendQueue()
        queue = UpdateQueue(self._schema, self._key, "inplace")
        queue.timed = self.timed
        return queue

    # -- passed on to the queue of its mode ----------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    def floor_us(self) -> int:
        return self._queue.floor_us()

    def tighten(self) -> None:
        self._queue.tighten()

    def _least(self) -> int:
        return self._queue._least()

    def promised(self, value_us: int, now_us: int) -> None:
        self._queue.promised(value_us, now_us)

    def measured(self, us: float, now_us: int) -> None:
        self._queue.measured(us, now_us)

    def costs(self, us_per_tuple: float) -> None:
        self.load.cost_us = us_per_tuple

    @property
    def paging(self) -> Paging:
        return self._queue.paging

    def staleness(self, now_us: int, worst: int = 0) -> Staleness:
        if isinstance(self._queue, UpdateQueue):
            return self._queue.staleness(now_us, worst)
        return Staleness(oldest_us=max((age for _, age in self._queue.older(now_us, 0)), default=0))

    def older(self, now_us: int, than_us: int) -> list[tuple[Key, int]]:
        return self._queue.older(now_us, than_us)

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self) -> list[Any]:
        (supersedes, switches, last), span = self.load.save()
        return [[supersedes, switches, self._gone, last], span, self._queue.save()]

    def restore(self, data: Sequence[Any]) -> None:
        (supersedes, switches, self._gone, last), span, queue = data
        self.load.restore([supersedes, switches, last], span)
        self._queue = self._made()
        self._queue.restore(queue)
