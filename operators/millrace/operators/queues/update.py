"""The update queue: per key the newest tuple and nothing else (UPS, sections 4 to 5 and 7.1).

Every key has a cell (see kernel.py); the cells with an update form a line. The key scheduler decides about places: FIFO
sends an updated key to the end, IN-PLACE keeps its place, LINECUTTING also sends a key that updates seldom to the
front, as long as such keys leave room for the others. DEADLINE serves the key first whose age is the greatest multiple
of the time until it is read next. Pages store the tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np

from millrace.operators.queues import kernel as updating
from millrace.operators.queues.pages import SLOTS, Pages
from millrace.operators.queues.queue import Floor, Paging, Staleness, TupleQueue
from millrace.operators.queues.reads import NextReads, Reads
from millrace.operators.updates.key_index import KeyIndex
from millrace.protocol import Schema
from millrace.values.arrays import resized
from millrace.values.batch import Batch, Int64s
from millrace.values.eventtime import MAX_TIME, MIN_TIME

Scheduler = Literal["fifo", "inplace", "linecutting", "deadline"]
SCHEDULERS: Final[tuple[Scheduler, ...]] = ("fifo", "inplace", "linecutting", "deadline")

# The numbers of a cell and of the line, as in the kernel.
CELL: Final = 9
LOCATION, SINCE, NEWEST, LAST, GAP, AHEAD, BEHIND, WRITER, SHOWN = range(CELL)
FIRST, END, COUNT, SUPERSEDED, HISTOGRAMS = range(5)
BUCKETS: Final = 64
WHOLE: Final = 1 << 30
LINE: Final = HISTOGRAMS + 2 * BUCKETS + 1
BLANK: Final = np.array([-1, 0, MIN_TIME, 0, -2, -1, -1, -1, 0], np.int64)
# The number of keys up to which none is dropped, and the first number of cells.
REMEMBERED: Final = 65_536
SMALLEST: Final = 16


class UpdateQueue(TupleQueue):
    """The newest tuple of each key, by event time; of two at one time the later arrival.

    An older tuple that arrives later is superseded at once, even if the newer one was served long ago. So a key stays
    known after it was served, until the arc's promise has passed it and it has not been updated for long.
    """

    def __init__(self, schema: Schema, key: Sequence[int], scheduler: Scheduler, *, slots: int = SLOTS) -> None:
        self._policy = SCHEDULERS.index(scheduler)
        self.cost_us = 0.0
        self.timed = False
        self._key = tuple(key)
        self._keys = KeyIndex([schema.fields[at] for at in key])
        self._pages = Pages(schema, slots)
        self._cells = np.zeros(0, np.int64)
        self._areas = np.zeros(2, np.float64)
        self._line = np.zeros(LINE, np.int64)
        self._line[FIRST] = self._line[END] = -1
        self._room = 0
        self._served: tuple[Int64s, Int64s] | None = None
        self._served_us = 0
        self.floor = Floor()
        self._promise = MIN_TIME
        self._known_us = MAX_TIME  # until the first key arrives
        self._key_time = 0.0
        self._forget_at = REMEMBERED
        self._forgot_us = MIN_TIME
        self._reads: NextReads | None = None
        self._groups = np.zeros(0, np.int64)

    @property
    def scheduler(self) -> Scheduler:
        return SCHEDULERS[self._policy]

    def reschedule(self, scheduler: Scheduler) -> None:
        """Schedule by another policy from now on; keys in line keep their places."""
        self._policy = SCHEDULERS.index(scheduler)
        self._reads = None

    def read_at(self, reads: Sequence[Reads]) -> None:
        """From now on, serve keys for these readers, if the policy is DEADLINE."""
        self._reads = NextReads(reads) if reads and self.scheduler == "deadline" else None
        self._groups = np.zeros(0, np.int64)

    def _choose(self, reads: NextReads, count: int, now_us: int) -> None:
        """Put the most urgent keys first in line."""
        slots = self._in_line()
        if len(self._groups) < self._keys.count:
            new = self._keys.rows(np.arange(len(self._groups), self._keys.count))
            self._groups = np.concatenate([self._groups, reads.groups(new)])
        since = self._cells.reshape(-1, CELL)[slots, SINCE]
        urgency = reads.urgency(self._groups[slots], since, now_us, self.cost_us)
        first = np.argsort(-urgency, kind="stable")[:count] if count > 1 else np.argmax(urgency, keepdims=True)
        updating.bring_forward(slots[first], self._cells, self._line)

    # -- in ------------------------------------------------------------------------------------------------------------

    def enqueue(self, batch: Batch, now_us: int) -> None:
        count = len(batch.ts)
        # Means over time and keys need the time that each key has existed.
        if now_us != self._known_us:
            if now_us > self._known_us:
                self._key_time += self._keys.count * (now_us - self._known_us)
            self._known_us = now_us
        if count == 1:
            self._enqueue_one(batch, now_us)
            return
        if self._keys.count + count > self._forget_at:
            self._forget(now_us)
        at = self._key
        slots = self._keys.find([batch.columns[k] for k in at], [batch.valid[k] for k in at], count)
        if self._keys.count > self._room:
            self._make_room(self._keys.count)
        entering = np.empty(count, np.int64)
        entered = updating.enqueue(
            slots,
            batch.ts,
            batch.arrival,
            self._cells,
            self._line,
            self._policy,
            self.cost_us,
            entering,
        )
        if entered:
            entering = entering[:entered]
            updating.place(entering, self._pages.allocate(entered), self._cells)
        rows = np.empty(count, np.int64)
        locations = np.empty(count, np.int64)
        newest = updating.newest(slots, self._cells, rows, locations)
        if not newest:
            return
        if newest < count:
            rows, locations = rows[:newest], locations[:newest]
            batch = batch.take(rows)
        self._pages.write(locations, batch)
        self.floor.met(int(batch.ts.min()))

    def _enqueue_one(self, batch: Batch, now_us: int) -> None:
        """The same for a single tuple, without arrays of one."""
        cell = self._keys.find_one(batch, self._key)
        if cell >= self._room:
            if self._keys.count > self._forget_at:
                self._forget(now_us)
                cell = self._keys.find_one(batch, self._key)  # it had no cell yet, and was dropped with the others
            self._make_room(self._keys.count)
        pages, ts, arrival = self._pages, batch.ts.item(0), batch.arrival.item(0)
        while True:
            location = updating.enqueue_one(
                cell,
                ts,
                arrival,
                self._cells,
                self._line,
                self._policy,
                self.cost_us,
                pages.slots,
                pages.books,
                pages.following,
            )
            if location >= 0:
                break
            if location == -1:
                return  # it is older than an earlier arrival
            pages.grow(1)
        pages.write_one(location, batch, ts, arrival)
        if ts < self.floor.value_us:
            self.floor.met(ts)

    def _make_room(self, count: int) -> None:
        """Make room for this many keys."""
        # A quarter more from this size on: half-empty tables of a million keys would waste too much memory.
        more = self._room * 2 if self._room < REMEMBERED else self._room + self._room // 4
        room = max(SMALLEST, count, more)
        self._cells = resized(self._cells, room * CELL)
        self._cells.reshape(room, CELL)[self._room :] = BLANK
        self._areas = resized(self._areas, 2 + room)
        self._room = room

    # -- out -----------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return self._line.item(COUNT)

    @property
    def superseded(self) -> int:  # type: ignore[override]
        return int(self._line[SUPERSEDED])

    def dequeue(self, limit: int, now_us: int) -> Batch | None:
        waiting = self._line.item(COUNT)
        count = limit if limit < waiting else waiting
        if not count:
            return None
        prompt = not self.timed
        if self._reads is not None:
            self._choose(self._reads, count, now_us)
        if count == 1 and prompt:
            return self._dequeue_one(now_us)
        if self._served is not None:
            self._show(now_us)
        taken, locations, since = np.empty((3, count), np.int64)
        updating.dequeue(now_us, prompt, self._cells, self._line, self._areas, taken, locations, since)
        if not prompt:
            self._served, self._served_us = (taken, since), now_us
        batch = self._pages.read(locations)
        self._pages.release(locations)
        self.floor.gone += count
        return batch

    def _dequeue_one(self, now_us: int) -> Batch:
        """The same for a single tuple, without arrays of one."""
        pages = self._pages
        location = updating.dequeue_one(
            now_us, self._cells, self._line, self._areas, pages.slots, pages.books, pages.following
        )
        batch = pages.read_freed(location)
        self.floor.gone += 1
        return batch

    def measured(self, us: float, now_us: int) -> None:
        if self._served is not None:
            self._show(self._served_us + round(us))

    def _show(self, at_us: int) -> None:
        assert self._served is not None
        updating.show(at_us, *self._served, self._cells, self._line, self._areas)
        self._served = None

    def costs(self, us_per_tuple: float) -> None:
        self.cost_us = us_per_tuple

    def drain(self) -> Batch | None:
        slots = self._in_line()
        if not len(slots):
            return None
        cells = self._cells.reshape(-1, CELL)
        locations = cells[slots, LOCATION]
        batch = self._pages.read(locations)
        self._pages.release(locations)
        cells[slots, LOCATION] = -1
        self._line[FIRST] = self._line[END] = -1
        self._line[COUNT] = 0
        return batch

    def _in_line(self) -> Int64s:
        cells = np.empty(self.waiting, np.int64)
        updating.in_line(self._cells, self._line, cells)
        return cells

    def _least(self) -> int:
        locations = self._cells.reshape(-1, CELL)[self._in_line(), LOCATION]
        return int(self._pages.ts[locations].min())

    # -- forgetting ----------------------------------------------------------------------------------------------------

    def promised(self, value_us: int, now_us: int) -> None:
        self._promise = value_us

    def _forget(self, now_us: int) -> None:
        """Drop keys that nothing depends on: no update waits or is being served, no later one can be older than the
        last, and the last one arrived before the previous call (so that no rate is lost early)."""
        self._show_all(now_us)
        count = self._keys.count
        cells = self._cells.reshape(-1, CELL)[:count]
        idle = (cells[:, LOCATION] < 0) & (cells[:, NEWEST] <= self._promise) & (cells[:, LAST] < self._forgot_us)
        self._forgot_us = now_us
        retained = np.flatnonzero(~idle)
        if len(retained) < count:
            self._keep(retained, count)
        self._forget_at = max(REMEMBERED, 2 * len(retained))

    def _show_all(self, now_us: int) -> None:
        if self._served is not None:
            self._show(now_us)

    def _keep(self, retained: Int64s, count: int) -> None:
        self._keys.keep(retained)
        self._groups = np.zeros(0, np.int64)
        numbers = np.full(count + 1, -1, np.int64)
        numbers[retained] = np.arange(len(retained))
        cells = self._cells.reshape(-1, CELL)[retained]
        areas = self._areas[2:][retained]
        for side in (AHEAD, BEHIND):
            cells[:, side] = numbers[cells[:, side]]  # -1, no neighbour, is the last of the numbers: -1
        for side in (FIRST, END):
            self._line[side] = numbers[self._line[side]]
        totals = self._areas[:2].copy()
        self._room = 0
        self._cells, self._areas = np.zeros(0, np.int64), np.zeros(2, np.float64)
        self._make_room(len(retained))
        self._cells.reshape(-1, CELL)[: len(retained)] = cells
        self._areas[:2] = totals
        self._areas[2 : 2 + len(retained)] = areas

    # -- counts and staleness ------------------------------------------------------------------------------------------

    @property
    def keys(self) -> int:
        """Known keys."""
        return self._keys.count

    @property
    def beside(self) -> int:
        """Bytes in addition to the tuples."""
        return self._keys.nbytes + self._cells.nbytes + self._areas.nbytes + self._line.nbytes

    @property
    def paging(self) -> Paging:
        pages = self._pages
        return Paging(pages.taken, pages.free, pages.returned, pages.in_use(), pages.nbytes + self.beside)

    def staleness(self, now_us: int, worst: int = 0) -> Staleness:
        count = self._keys.count
        cells = self._cells.reshape(-1, CELL)
        slots = self._in_line()
        ages = np.maximum(now_us - cells[slots, SINCE], 0)
        queue = float(self._areas[0]) + 0.5 * float((ages.astype(np.float64) ** 2).sum())
        application = float(self._areas[1]) + self._hidden_area(slots, now_us)
        lasted = self._key_time + count * max(0, now_us - self._known_us)
        order = np.lexsort((slots, -ages))[:worst]
        line = self._line.tolist()
        return Staleness(
            count,
            queue / lasted if lasted else 0.0,
            application / lasted if lasted else 0.0,
            line[HISTOGRAMS : HISTOGRAMS + BUCKETS],
            line[HISTOGRAMS + BUCKETS : HISTOGRAMS + 2 * BUCKETS],
            int(ages.max()) if len(ages) else 0,
            list(zip(self._keys.rows(slots[order]), ages[order].tolist(), strict=True)),
        )

    def older(self, now_us: int, than_us: int) -> list[tuple[tuple[Any, ...], int]]:
        slots = self._in_line()
        ages = now_us - self._cells.reshape(-1, CELL)[slots, SINCE]
        late = np.flatnonzero(ages > than_us)
        return list(zip(self._keys.rows(slots[late]), ages[late].tolist(), strict=True)) if len(late) else []

    def _hidden_area(self, slots: Int64s, now_us: int) -> float:
        """The area under the application's staleness of updates whose result is not out."""
        cells = self._cells.reshape(-1, CELL)
        since, shown = cells[slots, SINCE], cells[slots, SHOWN]
        if self._served is not None:
            # Updates being served are pending too; later ones of the same key are not older.
            served, served_since = self._served
            fresh = ~np.isin(slots, served)
            since = np.concatenate([since[fresh], served_since])
            shown = np.concatenate([shown[fresh], cells[served, SHOWN]])
        ages = np.maximum(now_us - since, 0).astype(np.float64)
        hidden = np.maximum(shown - since, 0).astype(np.float64)
        return 0.5 * float((ages**2 - hidden**2).sum())

    def mean_by_key(self, now_us: int) -> dict[tuple[Any, ...], float]:
        """Per key the area under its queue staleness so far, in square microseconds."""
        areas = self._areas[2 : 2 + self.keys].copy()
        slots = self._in_line()
        ages = np.maximum(now_us - self._cells.reshape(-1, CELL)[slots, SINCE], 0).astype(np.float64)
        areas[slots] += 0.5 * ages**2
        return dict(zip(self._keys.rows(np.arange(self.keys)), areas.tolist(), strict=True))

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self) -> list[Any]:
        served = None if self._served is None else [array.copy() for array in self._served]
        return [
            self._policy,
            [self.cost_us, self._served_us, self._promise, self._known_us],
            [self._key_time, self._forget_at, self._forgot_us, self._room],
            self._keys.save(),
            self._pages.save(),
            [self._cells.copy(), self._areas.copy(), self._line.copy()],
            served,
            self.floor.save(),
        ]

    def restore(self, data: Sequence[Any]) -> None:
        self._policy, times, rest, keys, pages, arrays, served, floor = data
        self.cost_us, self._served_us, self._promise, self._known_us = times
        self.floor.restore(floor)
        self._key_time, self._forget_at, self._forgot_us, self._room = rest
        self._keys.restore(keys)
        self._pages.restore(pages)
        self._cells, self._areas, self._line = (np.array(array) for array in arrays)
        self._line = resized(self._line, LINE)  # older states end before the share of keys that cut the line
        self._served = None if served is None else (np.array(served[0]), np.array(served[1]))
