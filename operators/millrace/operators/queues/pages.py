"""Pages: where the tuples of a queue lie (UPS, section 7.1).

A page has a fixed number of slots; its tuples stand in columns. Pages come from a pool when nothing in use has room,
and go back to it as soon as they are empty. All pages of a queue lie in one array per column, so that a batch of
tuples is written or read in one go wherever its locations are.

A slot has room for one tuple, or with `width` for a block of so many that follow each other (section 7.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from millrace.operators.batch import DTYPES, FILLERS, Batch, Bools, Int64s, Values
from millrace.operators.kernels import updating
from millrace.protocol import Schema

# 256 slots of a few columns are some pages of the machine's memory.
SLOTS: Final = 256
# Pages that a queue keeps at the least, so that one that fills and empties does not move its arrays all the time.
FEWEST: Final = 4
# How many numbers the kernel keeps per page.
PAGE: Final = 4
ROOM, FREE, TAKEN, RETURNED = range(4)


class Pages:
    """Slots for tuples of one schema.

    taken      pages in use: each holds something, and no page that holds something is missing
    free       pages in the pool
    returned   how often a page went back to the pool
    """

    def __init__(self, schema: Schema, slots: int = SLOTS, width: int = 1) -> None:
        self.schema = schema
        self.slots = slots
        self.width = width
        self._texts = [at for at, field in enumerate(schema) if DTYPES[field.type].hasobject]
        self._count = 0
        self._pages = np.zeros(0, np.int64)
        self._following = np.zeros(0, np.int32)
        self._pool = np.zeros(0, np.int64)
        self._account = np.array([-1, 0, 0, 0], np.int64)
        self._one = np.zeros(1, np.int64)
        self._shrink_at = 0
        self.ts: Int64s = np.zeros(0, np.int64)
        self.arrival: Int64s = np.zeros(0, np.int64)
        self.columns: list[Values] = [np.zeros(0, DTYPES[field.type]) for field in schema]
        self.valid: list[Bools | None] = [None for _ in schema]
        self._masked = False

    @property
    def taken(self) -> int:
        return int(self._account[TAKEN])

    @property
    def free(self) -> int:
        return int(self._account[FREE])

    @property
    def returned(self) -> int:
        return int(self._account[RETURNED])

    @property
    def nbytes(self) -> int:
        """All arrays, of tuples and of pages."""
        own = self._pages.nbytes + self._following.nbytes + self._pool.nbytes + self.ts.nbytes + self.arrival.nbytes
        return own + sum(v.nbytes for v in self.columns) + sum(v.nbytes for v in self.valid if v is not None)

    def in_use(self) -> int:
        """Slots that hold something."""
        return int(self._pages.reshape(-1, PAGE)[self._held(), 1].sum())

    def _held(self) -> Bools:
        """Which pages are not in the pool."""
        held = np.ones(self._count, np.bool_)
        held[self._pool[: self.free]] = False
        return held

    # -- locations -----------------------------------------------------------------------------------------------------

    def allocate(self, count: int) -> Int64s:
        """So many empty slots."""
        found = np.empty(count, np.int64)
        done = 0
        while True:
            done += updating.allocate(
                found[done:] if done else found, self.slots, self._pages, self._following, self._pool, self._account
            )
            if done == count:
                return found
            self._grow(count - done)

    def allocate_one(self) -> int:
        """An empty slot."""
        one = self._one
        while not updating.allocate(one, self.slots, self._pages, self._following, self._pool, self._account):
            self._grow(1)
        return int(one.item(0))

    def release(self, locations: Int64s) -> None:
        """Slots that are empty again."""
        for at in self._texts:
            # Texts must not outlive the tuples that they came with.
            filler = FILLERS[self.schema.fields[at].type]
            if self.width == 1:
                self.columns[at][locations] = filler
            else:
                self.columns[at].reshape(-1, self.width)[locations] = filler
        updating.release(locations, self.slots, self._pages, self._following, self._pool, self._account)
        if self._account.item(RETURNED) > self._shrink_at:
            # Looking through all pages is paid for by those that came back since the last look.
            self._shrink_at = self.returned + self._count // 4
            if self._count > FEWEST and self.taken * 4 <= self._count:
                self._shrink()

    def _grow(self, slots: int) -> None:
        """Twice as many pages, or as many as hold so many slots more."""
        before = self._count
        wanted = before + max(FEWEST, before, -(-slots // self.slots))
        self._resize(wanted)
        self._pool[: wanted - before] = np.arange(wanted - 1, before - 1, -1)  # the pool was empty
        self._account[FREE] = wanted - before

    def _shrink(self) -> None:
        """Give up the pages behind the last one in use, if they are half of all or more.

        The pool gives the lowest pages first afterwards, so that the last ones get empty in time.
        """
        held = np.flatnonzero(self._held())
        wanted = max(FEWEST, int(held[-1]) + 1 if len(held) else 0)
        pool = self._pool[: self.free]
        if wanted * 2 <= self._count:
            kept = pool[pool < wanted]
            self._resize(wanted)
        else:
            kept = pool
        self._account[FREE] = len(kept)
        self._pool[: len(kept)] = np.sort(kept)[::-1]

    def _resize(self, pages: int) -> None:
        slots, rows = pages * self.slots, pages * self.slots * self.width
        self._count = pages
        self._pages = resized(self._pages, pages * PAGE)
        self._following = resized(self._following, slots)
        self._pool = resized(self._pool, pages)
        self.ts = resized(self.ts, rows)
        self.arrival = resized(self.arrival, rows)
        self.columns = [
            resized(column, rows, FILLERS[field.type]) for field, column in zip(self.schema, self.columns, strict=True)
        ]
        self.valid = [None if mask is None else resized(mask, rows, True) for mask in self.valid]

    # -- tuples --------------------------------------------------------------------------------------------------------

    def write(self, rows: Int64s, batch: Batch) -> None:
        """Put the tuples of a batch at these places. If two go to one place, the later stays."""
        self.ts[rows] = batch.ts
        self.arrival[rows] = batch.arrival
        for at, (values, mask) in enumerate(zip(batch.columns, batch.valid, strict=True)):
            self.columns[at][rows] = values
            own = self._mask(at, mask)
            if own is not None:
                own[rows] = True if mask is None else mask

    def write_one(self, row: int, batch: Batch) -> None:
        """Put a single tuple at this place."""
        self.ts[row] = batch.ts[0]
        self.arrival[row] = batch.arrival[0]
        for at, (values, mask) in enumerate(zip(batch.columns, batch.valid, strict=True)):
            self.columns[at][row] = values[0]
            if mask is not None or self._masked:
                owned = self._mask(at, mask)
                if owned is not None:
                    owned[row] = True if mask is None else mask[0]

    def _mask(self, at: int, mask: Bools | None) -> Bools | None:
        """The mask of a column; it has one from the first null on."""
        own = self.valid[at]
        if own is None and mask is not None:
            own = self.valid[at] = np.ones(len(self.ts), np.bool_)
            self._masked = True
        return own

    def read(self, rows: Int64s) -> Batch:
        """The tuples at these places, copied."""
        valid = [None if mask is None else mask[rows] for mask in self.valid]
        return Batch(
            self.schema,
            self.ts[rows],
            [column[rows] for column in self.columns],
            [None if mask is None or mask.all() else mask for mask in valid],
            self.arrival[rows],
        )

    def read_one(self, row: int) -> Batch:
        """A single tuple, copied."""
        one = slice(row, row + 1)
        valid = [None if mask is None else mask[one].copy() for mask in self.valid] if self._masked else None
        columns = [column[one].copy() for column in self.columns]
        return Batch(self.schema, self.ts[one].copy(), columns, valid, self.arrival[one].copy())

    def save(self) -> list[Any]:
        masks = [None if mask is None else mask.copy() for mask in self.valid]
        books = [self._pages.copy(), self._following.copy(), self._pool.copy(), self._account.copy()]
        own = [self._count, self._shrink_at]
        return [own, books, self.ts.copy(), self.arrival.copy(), [c.copy() for c in self.columns], masks]

    def restore(self, data: Sequence[Any]) -> None:
        (self._count, self._shrink_at), books, ts, arrival, columns, masks = data
        self._pages, self._following, self._pool, self._account = (np.array(book) for book in books)
        self.ts, self.arrival = np.array(ts), np.array(arrival)
        self.columns = [np.array(column) for column in columns]
        self.valid = [None if mask is None else np.array(mask) for mask in masks]
        self._masked = any(mask is not None for mask in masks)


def resized(array: Values, length: int, filler: Any = 0) -> Values:
    """The same beginning in an array of this length; new places hold the filler."""
    if length <= len(array):
        return array[:length].copy()
    made: Values = np.full(length, filler, array.dtype)
    made[: len(array)] = array
    return made
