"""A queue that appends while its reader keeps up, and supersedes under overload (UPS, sections 2 and 8).

The load is measured over spans of at least a second of the engine's clock. While the queue appends, only a span in
which it was never empty shows the capacity: that many tuples were served, and more could not be. If nearly as many
arrived, the reader does not keep up (a feed that waits for credit sends as many as are served, and no more). From then
on the queue is an update queue, IN-PLACE. What arrives per second is compared with that capacity, superseded tuples
too, because an appending queue would have to serve them. With room to spare for long enough, it appends again. So it
does when it has superseded hardly anything for as long, whatever the capacity was.

The capacity may have grown since it was measured, and superseding hides that: it is assumed to grow a little in every
span. So under a lasting overload the queue appends for a span now and then, and measures it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from millrace.operators.queues.appending import AppendQueue
from millrace.operators.queues.queue import Key, Paging, Staleness, TupleQueue
from millrace.operators.queues.update import UpdateQueue
from millrace.protocol import Schema
from millrace.values.batch import Batch

# A span lasts this long at least, and while the queue appends until this many tuples were served: fewer say nothing.
SPAN_US: Final = 1_000_000
SERVED: Final = 64
# The loads from which it supersedes, and up to which it appends again after so many spans in turn.
OVERLOAD: Final = 0.9
ROOM: Final = 0.75
CALM: Final = 3
# The share of a span's tuples that may be superseded where it hardly differs from an appending queue.
HARDLY: Final = 1 / 64
# The share by which the capacity is assumed to grow per span.
GROWTH: Final = 1 / 64

Mode = Literal["append", "update"]


class QueueSwitch(NamedTuple):
    """The present mode, and what caused it: the load, and tuples per second that arrived and could be served."""

    mode: Mode
    load: float
    arrived: float
    capacity: float


class AutoQueue(TupleQueue):
    """All tuples while its reader keeps up, else the newest of each key.

    untold   the last switch, if it has not been reported
    """

    def __init__(self, schema: Schema, key: Sequence[int]) -> None:
        self._schema, self._key = schema, tuple(key)
        self._queue: AppendQueue | UpdateQueue = AppendQueue()
        self.bounded = False
        self.timed = False
        self.last: QueueSwitch | None = None
        self.switches = 0
        self.untold: QueueSwitch | None = None
        self._gone = 0
        self._capacity = 0.0
        self._calm = 0
        self._since_us = 0
        self._arrived = self._served = self._superseded = 0
        self._emptied = True

    @property
    def mode(self) -> Mode:
        return "update" if self.bounded else "append"

    @property
    def superseded(self) -> int:  # type: ignore[override]
        return self._gone + self._queue.superseded

    # -- tuples --------------------------------------------------------------------------------------------------------

    def enqueue(self, batch: Batch, now_us: int) -> None:
        if now_us - self._since_us >= SPAN_US:
            self._judge(now_us)
        self._arrived += len(batch)
        self._queue.enqueue(batch, now_us)

    def dequeue(self, limit: int, now_us: int) -> Batch | None:
        batch = self._queue.dequeue(limit, now_us)
        if batch is not None:
            self._served += len(batch)
        if not self._queue.waiting:
            self._emptied = True
        return batch

    def drain(self) -> Batch | None:
        self._emptied = True
        return self._queue.drain()

    # -- load ----------------------------------------------------------------------------------------------------------

    def _judge(self, now_us: int) -> None:
        """A span is over: whether the reader keeps up."""
        lasted = now_us - self._since_us
        busy = self._served > 0 and not self._emptied  # without any service its reader waits for another input
        if busy and self._served < SERVED:
            return
        if busy:
            self._capacity = self._served * SPAN_US / lasted
        arrived = self._arrived * SPAN_US / lasted
        load = arrived / self._capacity if self._capacity else 0.0
        if not self.bounded:
            if busy and load >= OVERLOAD:
                self._turn(QueueSwitch("update", load, arrived, self._capacity), now_us)
        elif load <= ROOM or self.superseded - self._superseded <= HARDLY * self._arrived:
            self._calm += lasted // SPAN_US
            if self._calm >= CALM:
                self._turn(QueueSwitch("append", load, arrived, self._capacity), now_us)
        else:
            self._calm = 0
            self._capacity += self._capacity * GROWTH
        self._since_us, self._arrived, self._served, self._superseded = now_us, 0, 0, self.superseded
        self._emptied = not self._queue.waiting

    def _turn(self, switch: QueueSwitch, now_us: int) -> None:
        """Continue in the other mode, with the queued tuples in order of service."""
        waiting = self._queue.drain()
        self._gone += self._queue.superseded
        self.bounded = switch.mode == "update"
        self._queue = self._made()
        if waiting is not None:
            self._queue.enqueue(waiting, now_us)
        self.last = self.untold = switch
        self.switches += 1
        self._calm = 0

    def _made(self) -> AppendQueue | UpdateQueue:
        if not self.bounded:
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
        return [
            [self.bounded, self.switches, self._gone, None if self.last is None else list(self.last)],
            [self._capacity, self._calm, self._since_us, self._arrived, self._served, self._superseded, self._emptied],
            self._queue.save(),
        ]

    def restore(self, data: Sequence[Any]) -> None:
        (self.bounded, self.switches, self._gone, last), span, queue = data
        self.last = None if last is None else QueueSwitch(*last)
        self._capacity, self._calm, self._since_us, self._arrived, self._served, self._superseded, self._emptied = span
        self._queue = self._made()
        self._queue.restore(queue)
