"""Queues that append: all tuples, or a random choice of limited size.

Both serve in order of arrival. An edge has the first if it was an update queue before. The second is the baseline of
update queues (UPS, figure 7).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from millrace.operators.queues import kernel as updating
from millrace.operators.queues.pages import SLOTS, Pages
from millrace.operators.queues.queue import Floor, Key, Paging, TupleQueue
from millrace.protocol import Schema
from millrace.values.arrays import resized
from millrace.values.batch import Batch, Int64s
from millrace.values.splitmix import draws, state_after

# Numbers of a queued tuple and of the line, as in the kernel.
ENTRY: Final = 3
FIRST, END, COUNT, SHED, CHANCE = range(5)
SMALLEST: Final = 64


class InOrder(TupleQueue):
    """Tuples without keys, in order of arrival."""

    def drain(self) -> Batch | None:
        return self.dequeue(self.waiting, 0)

    def older(self, now_us: int, than_us: int) -> list[tuple[Key, int]]:
        age = now_us - self._first_us() if self.waiting else 0
        return [((), age)] if age > than_us else []

    @abstractmethod
    def _first_us(self) -> int:
        """When the first of the queued tuples arrived."""


class AppendQueue(InOrder):
    """All tuples; the batches are shared with the arc."""

    bounded: bool = False

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self._waiting = 0
        self.floor = Floor()

    @property
    def waiting(self) -> int:
        return self._waiting

    def enqueue(self, batch: Batch, now_us: int) -> None:
        self._batches.append(batch)
        self._waiting += len(batch)
        self.floor.met(int(batch.ts.min()))

    def dequeue(self, limit: int, now_us: int) -> Batch | None:
        batches: list[Batch] = []
        while self._batches and limit:
            batch = self._batches.popleft()
            if len(batch) > limit:
                self._batches.appendleft(batch.slice(limit, len(batch)))
                batch = batch.slice(0, limit)
            batches.append(batch)
            limit -= len(batch)
        if not batches:
            return None
        count = sum(map(len, batches))
        self._waiting -= count
        self.floor.gone += count
        return Batch.concat(batches)

    def _first_us(self) -> int:
        return int(self._batches[0].arrival[0])

    def _least(self) -> int:
        return min(int(batch.ts.min()) for batch in self._batches)

    def save(self) -> Any:
        return [[batch.save() for batch in self._batches], self.floor.save()]

    def restore(self, data: Any) -> None:
        batches, floor = data
        self.floor.restore(floor)
        self._batches = deque(Batch.restore(batch) for batch in batches)
        self._waiting = sum(map(len, self._batches))


class SheddingQueue(InOrder):
    """At most `limit` tuples: beyond that, a queued tuple or the new one is shed, each with the same chance.

    The queue's seed decides, so a repetition sheds the same tuples.
    """

    def __init__(self, schema: Schema, limit: int, *, seed: int = 0, slots: int = SLOTS) -> None:
        assert 0 < limit < 2**31 - 1
        self.limit = limit
        self._pages = Pages(schema, slots)
        self._entries = np.zeros(0, np.int64)
        self._line = np.array([-1, -1, 0, 0, seed], np.int64)
        self.floor = Floor()

    @property
    def waiting(self) -> int:
        return self._line.item(COUNT)

    @property
    def shed(self) -> int:  # type: ignore[override]
        return self._line.item(SHED)

    def enqueue(self, batch: Batch, now_us: int) -> None:
        count = len(batch.ts)
        room = min(count, self.limit - self.waiting)
        if self.waiting + room > len(self._entries) // ENTRY:
            entries = min(self.limit, max(SMALLEST, 2 * (self.waiting + room)))
            self._entries = resized(self._entries, entries * ENTRY)
        self.floor.met(int(batch.ts.min()))
        rows, locations = np.empty((2, count), np.int64)
        entered = updating.append(
            count,
            self.limit,
            self._pages.allocate(room),
            self._drawn(count - room),
            self._entries,
            self._line,
            rows,
            locations,
        )
        if entered == count:
            self._pages.write(locations, batch)
        elif entered:
            self._pages.write(locations[:entered], batch.take(rows[:entered]))

    def _drawn(self, count: int) -> Int64s:
        """Numbers from 0 to the limit: the waiting tuple to shed, or at the limit the new one."""
        state = self._line.item(CHANCE)
        self._line[CHANCE] = state_after(state, count)
        scaled = (draws(state, count) >> np.uint64(33)) * np.uint64(self.limit + 1)
        return (scaled >> np.uint64(31)).astype(np.int64)

    def dequeue(self, limit: int, now_us: int) -> Batch | None:
        count = min(limit, self.waiting)
        if not count:
            return None
        locations = np.empty(count, np.int64)
        updating.serve(self._entries, self._line, locations)
        batch = self._pages.read(locations)
        self._pages.release(locations)
        self.floor.gone += count
        return batch

    def _queued(self) -> Int64s:
        """The locations of the queued tuples, in order."""
        locations = np.empty(self.waiting, np.int64)
        updating.waiting(self._entries, self._line, locations)
        return locations

    def _first_us(self) -> int:
        return int(self._pages.arrival[self._queued()[0]])

    def _least(self) -> int:
        return int(self._pages.ts[self._queued()].min())

    @property
    def paging(self) -> Paging:
        pages = self._pages
        nbytes = pages.nbytes + self._entries.nbytes + self._line.nbytes
        return Paging(pages.taken, pages.free, pages.returned, pages.in_use(), nbytes)

    def save(self) -> Any:
        return [self._pages.save(), self._entries.copy(), self._line.copy(), self.floor.save()]

    def restore(self, data: Sequence[Any]) -> None:
        pages, entries, line, floor = data
        self.floor.restore(floor)
        self._pages.restore(pages)
        self._entries, self._line = np.array(entries), np.array(line)
