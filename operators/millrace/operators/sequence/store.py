"""The rows of a sequence's first input that may still be followed, in order of time and by key.

A row has a cell; cells are in order of time, then arrival, and a dead row's cell stays empty. When more cells are
empty than full, the living rows are moved together. When more keys have no row than have one, keys are renumbered. So
each row is moved about once more, and texts and keys without rows are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.operators.aggregate.groups import Keys
from millrace.operators.sequence import kernel
from millrace.protocol import Schema, Type
from millrace.values.arrays import SMALLEST, resized
from millrace.values.batch import Batch, Bools, Int64s, Values, cells, cells_of
from millrace.values.expression import TIME

# What a new store has room for, and how many dead cells or keys without a row are not worth a sweep.
IDLE: Final = 256

Marks = npt.NDArray[np.uint8]


class SequenceStore:
    """Rows in cells, and per key (by its slot) the chain of its cells.

    used, first   cells are used from 0 to `used`; none before `first` is alive
    live          how many are alive
    slots         by cell, the slot of its key; -1 if something in it is null
    head, tail    by slot, the first and the last cell of its chain, or -1; `following` leads from one to the next
    arrivals      by cell, when its row reached the engine
    """

    def __init__(self, schema: Schema, positions: Sequence[int], key_types: Sequence[Type]) -> None:
        self._schema = schema
        self._positions = positions
        self._key_types = key_types
        self._types = [schema.fields[position].type for position in positions]
        self.clear()

    def clear(self) -> None:
        """Drop all rows and keys."""
        none = np.zeros(0, np.int64)
        self._keys = Keys(self._key_types, ())
        self._begin(none, none, none, [cells(type) for type in self._types], [None] * len(self._positions))

    def _begin(
        self,
        times: Int64s,
        arrivals: Int64s,
        slots: Int64s,
        columns: Sequence[Values],
        valid: Sequence[Bools | None],
    ) -> None:
        """Start with these rows, all alive."""
        count = len(times)
        room = max(SMALLEST, 2 * count)
        self.used = self.live = count
        self.first = 0
        self.times = resized(times, room)
        self.arrivals = resized(arrivals, room)
        self.slots = resized(slots, room)
        self.following = np.zeros(room, np.int64)
        self.alive: Marks = np.ones(room, np.uint8)
        self._columns = [cells_of(type, column, room) for type, column in zip(self._types, columns, strict=True)]
        self._valid = [None if mask is None else resized(mask, room) for mask in valid]
        keys = max(SMALLEST, 2 * self._key_count)
        self.head = np.full(keys, -1, np.int64)
        self.tail = np.full(keys, -1, np.int64)
        kernel.link(slots, 0, self.head, self.tail, self.following)

    # -- keys ----------------------------------------------------------------------------------------------------------

    @property
    def _key_count(self) -> int:
        return self._keys.count if self._key_types else 1

    def find(self, columns: Sequence[Values], valid: Sequence[Bools | None], rows: int) -> Int64s:
        """The slot of each row's key, -1 where something in it is null; new keys get new slots."""
        if not columns:
            return np.zeros(rows, np.int64)
        there: Bools | None = None
        for mask in valid:
            if mask is not None:
                there = mask if there is None else there & mask
        if there is None or there.all():
            slots = self._keys.find(columns, [None] * len(columns))
        else:
            slots = np.full(rows, -1, np.int64)
            if there.any():
                slots[there] = self._keys.find([column[there] for column in columns], [None] * len(columns))
        if self._keys.count > len(self.head):
            room = 2 * self._keys.count
            self.head = resized(self.head, room, -1)
            self.tail = resized(self.tail, room, -1)
        return slots

    # -- rows ----------------------------------------------------------------------------------------------------------

    def append(self, batch: Batch, slots: Int64s) -> int:
        """Put rows into new cells, alive and in no chain; the first of the cells."""
        base, stop = self.used, self.used + len(batch)
        if stop > len(self.times):
            self._reserve(max(stop, 2 * len(self.times)))
        self.times[base:stop] = batch.ts
        self.arrivals[base:stop] = batch.arrival
        self.slots[base:stop] = slots
        for at, position in enumerate(self._positions):
            self._columns[at][base:stop] = batch.columns[position]
            mask = batch.valid[position]
            if mask is not None and self._valid[at] is None:
                self._valid[at] = np.ones(len(self.times), np.bool_)
            marks = self._valid[at]
            if marks is not None:
                marks[base:stop] = True if mask is None else mask
        self.used = stop
        self.live += len(batch)
        return base

    def _reserve(self, room: int) -> None:
        self.times = resized(self.times, room)
        self.arrivals = resized(self.arrivals, room)
        self.slots = resized(self.slots, room)
        self.following = resized(self.following, room)
        self.alive = resized(self.alive, room, 1)
        self._columns = [resized(column, room) for column in self._columns]
        self._valid = [None if mask is None else resized(mask, room, True) for mask in self._valid]

    def column(self, position: int, cells: Int64s) -> tuple[Values, Bools | None]:
        """A column of the rows in these cells, dead ones too until they are swept."""
        if position == TIME:
            return self.times[cells], None
        at = self._positions.index(position)
        mask = self._valid[at]
        if mask is not None and (mask := mask[cells]).all():
            mask = None  # whether earlier rows had nulls, which a sweep drops, must not show
        return self._columns[at][cells], mask

    def next_time(self) -> int | None:
        """The least time of a living row."""
        self.first = kernel.first_alive(self.alive, self.first, self.used)
        return int(self.times[self.first]) if self.first < self.used else None

    def remove_below(self, time_us: int, limit: int) -> Int64s:
        """Let the oldest rows die, those below a time and at most `limit`; their cells, in order of time."""
        first, used = self.first, self.used
        if first == used or self.times[first] >= time_us:
            return _NONE
        stop = first + int(np.searchsorted(self.times[first:used], time_us, "left"))
        cells: Int64s = first + np.flatnonzero(self.alive[first:stop])
        if len(cells) > limit:
            cells = cells[:limit]
            stop = int(cells[-1]) + 1
        self.alive[first:stop] = 0
        self.live -= len(cells)
        self.first = stop
        return cells

    def remove(self, cells: Int64s) -> None:
        """Let the rows in these cells die; they may be named twice."""
        cells = np.unique(cells)
        self.live -= int(np.count_nonzero(self.alive[cells]))
        self.alive[cells] = 0

    # -- forgetting ----------------------------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Sweep if it is worth it."""
        worth = 2 * self.live + IDLE
        keys = self._key_count > worth
        if keys or self.used > worth:
            self.sweep(keys=keys)

    def sweep(self, *, keys: bool) -> None:
        """Move the living rows together. With `keys`, drop all keys but theirs, which are numbered by their first rows,
        so that a saved state does not depend on earlier sweeps."""
        cells: Int64s = self.first + np.flatnonzero(self.alive[self.first : self.used])
        slots = self.slots[cells]
        if keys and self._key_types:
            there = slots >= 0
            used, first, numbers = np.unique(slots[there], return_index=True, return_inverse=True)
            order = np.argsort(first)
            slots[there] = np.argsort(order)[numbers]
            self._keys = self._keys.kept(used[order])
        self._begin(
            self.times[cells],
            self.arrivals[cells],
            slots,
            [column[cells] for column in self._columns],
            [None if mask is None or (kept_mask := mask[cells]).all() else kept_mask for mask in self._valid],
        )

    @property
    def nbytes(self) -> int:
        marks = sum(mask.nbytes for mask in self._valid if mask is not None)
        fixed = (self.times, self.arrivals, self.slots, self.following, self.alive, self.head, self.tail)
        return marks + self._keys.nbytes + sum(array.nbytes for array in (*fixed, *self._columns))

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self) -> Any:
        """Only what lives: it is swept first."""
        self.sweep(keys=True)
        count = self.used
        arrays = [array[:count].copy() for array in (self.times, self.arrivals, self.slots)]
        columns = [column[:count].copy() for column in self._columns]
        return [
            *arrays,
            columns,
            [None if mask is None else mask[:count].copy() for mask in self._valid],
            self._keys.save(),
        ]

    def restore(self, data: Any) -> None:
        times, arrivals, slots, columns, valid, keys = data
        self._keys = Keys(self._key_types, ())
        self._keys.restore(keys)
        self._begin(times, arrivals, slots, columns, valid)


_NONE: Final[Int64s] = np.zeros(0, np.int64)
