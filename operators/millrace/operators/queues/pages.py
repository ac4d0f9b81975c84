"""Pages: the storage of a queue's tuples (UPS, section 7.1).

A page has a fixed number of slots, in columns. A queue takes a page from the pool when no page in use has room, and
returns it as soon as it is empty. All pages of a queue share one array per column, so that a batch of tuples is
written or read at once, wherever its locations are.

A slot has room for one tuple, or for a block of `width` tuples that follow each other (section 7.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from millrace.operators.queues import kernel as updating
from millrace.protocol import Schema
from millrace.values.arrays import resized
from millrace.values.batch import FILLERS, TEXTS, Batch, Bools, Int64s, Values, cells, cells_of

# 256 slots of a few columns are some pages of the machine's memory.
SLOTS: Final = 256
# The least number of pages, so that a queue that fills and empties does not resize its arrays all the time.
FEWEST: Final = 4
# The numbers of the pool and of a page in the books of the kernel.
POOL: Final = 4
ROOM, FREE, TAKEN, RETURNED = range(POOL)
PAGE: Final = 5
EMPTY, USED, BEFORE, AFTER, FREE_PAGE = range(PAGE)


class Pages:
    """Slots for tuples of one schema.

    taken      pages in use, which are exactly those with tuples
    free       pages in the pool
    returned   how often a page returned to the pool
    """

    def __init__(self, schema: Schema, slots: int = SLOTS, width: int = 1) -> None:
        self.schema = schema
        self.slots = slots
        self.width = width
        self._texts = [(at, FILLERS[field.type]) for at, field in enumerate(schema) if field.type in TEXTS]
        self._count = 0
        self.books = np.array([-1, 0, 0, 0], np.int64)
        self.following = np.zeros(0, np.int32)
        self._one = np.zeros(1, np.int64)
        self._shrink_at = 0
        self.ts: Int64s = np.zeros(0, np.int64)
        self.arrival: Int64s = np.zeros(0, np.int64)
        self.columns: list[Values] = [cells(field.type) for field in schema]
        self.valid: list[Bools | None] = [None for _ in schema]
        self._masked = False

    @property
    def taken(self) -> int:
        return self.books.item(TAKEN)

    @property
    def free(self) -> int:
        return self.books.item(FREE)

    @property
    def returned(self) -> int:
        return self.books.item(RETURNED)

    @property
    def nbytes(self) -> int:
        """All arrays, of tuples and of pages."""
        own = self.books.nbytes + self.following.nbytes + self.ts.nbytes + self.arrival.nbytes
        return own + sum(v.nbytes for v in self.columns) + sum(v.nbytes for v in self.valid if v is not None)

    def in_use(self) -> int:
        """Used slots."""
        return int(self._by_page()[self._held(), USED].sum())

    def _by_page(self) -> Int64s:
        """The numbers of each page."""
        return self.books[POOL:].reshape(-1, PAGE)

    def _held(self) -> Bools:
        """Which pages are not in the pool."""
        held = np.ones(self._count, np.bool_)
        held[self._by_page()[: self.free, FREE_PAGE]] = False
        return held

    # -- locations -----------------------------------------------------------------------------------------------------

    def allocate(self, count: int) -> Int64s:
        """Reserve empty slots."""
        locations = np.empty(count, np.int64)
        done = 0
        while True:
            done += updating.allocate(locations[done:] if done else locations, self.slots, self.books, self.following)
            if done == count:
                return locations
            self.grow(count - done)

    def allocate_one(self) -> int:
        """Reserve an empty slot."""
        location = self._one
        while not updating.allocate(location, self.slots, self.books, self.following):
            self.grow(1)
        return int(location.item(0))

    def release(self, locations: Int64s) -> None:
        """Free these slots."""
        for at, filler in self._texts:
            # Texts must not outlive their tuples.
            rows = locations if self.width == 1 else (locations[:, None] * self.width + np.arange(self.width)).ravel()
            self.columns[at][rows] = filler
        updating.release(locations, self.slots, self.books, self.following)
        if self.books.item(RETURNED) > self._shrink_at:
            self._tidy()

    def _tidy(self) -> None:
        """Free unneeded memory. The pages that returned since the last look pay for looking."""
        self._shrink_at = self.returned + self._count // 4
        if self._count > FEWEST and self.taken * 4 <= self._count:
            self._shrink()

    def grow(self, slots: int) -> None:
        """Double the pages, or add enough for this many slots."""
        before = self._count
        pages = before + max(FEWEST, before, -(-slots // self.slots))
        self._resize(pages)
        self._fill_pool(np.arange(pages - 1, before - 1, -1))  # it was empty

    def _fill_pool(self, pages: Int64s) -> None:
        """Make these pages the pool; the last one is used first."""
        self._by_page()[: len(pages), FREE_PAGE] = pages
        self.books[FREE] = len(pages)

    def _shrink(self) -> None:
        """Free the pages after the last one in use, if they are at least half of all.

        Afterwards the pool hands out the lowest pages first, so that the last ones become empty in time.
        """
        held = np.flatnonzero(self._held())
        pages = max(FEWEST, int(held[-1]) + 1 if len(held) else 0)
        pool = self._by_page()[: self.free, FREE_PAGE].copy()
        if pages * 2 <= self._count:
            pool = pool[pool < pages]
            self._resize(pages)
        self._fill_pool(np.sort(pool)[::-1])

    def _resize(self, pages: int) -> None:
        slots, rows = pages * self.slots, pages * self.slots * self.width
        self._count = pages
        self.books = resized(self.books, POOL + pages * PAGE)
        self.following = resized(self.following, slots)
        self.ts = resized(self.ts, rows)
        self.arrival = resized(self.arrival, rows)
        self.columns = [
            resized(column, rows, FILLERS[field.type]) for field, column in zip(self.schema, self.columns, strict=True)
        ]
        self.valid = [None if mask is None else resized(mask, rows, True) for mask in self.valid]

    # -- tuples --------------------------------------------------------------------------------------------------------

    def write(self, rows: Int64s, batch: Batch) -> None:
        """Write the tuples of a batch to these rows. Of two for one row the later stays."""
        self.ts[rows] = batch.ts
        self.arrival[rows] = batch.arrival
        for at, (values, mask) in enumerate(zip(batch.columns, batch.valid, strict=True)):
            self.columns[at][rows] = values
            own = self._mask(at, mask)
            if own is not None:
                own[rows] = True if mask is None else mask

    def write_one(self, row: int, batch: Batch, ts: int, arrival: int) -> None:
        """Write a single tuple, whose time and arrival the caller already has, to this row."""
        self.ts[row] = ts
        self.arrival[row] = arrival
        for own, values in zip(self.columns, batch.columns, strict=True):
            own[row] = values.item(0)
        for at, mask in enumerate(batch.valid):
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
        """Copies of the tuples in these rows."""
        valid = [None if mask is None else mask[rows] for mask in self.valid]
        return Batch(
            self.schema,
            self.ts[rows],
            [column[rows] for column in self.columns],
            [None if mask is None or mask.all() else mask for mask in valid],
            self.arrival[rows],
        )

    def read_freed(self, row: int) -> Batch:
        """A copy of a single tuple whose row was just released."""
        batch = self.read_one(row)
        for at, filler in self._texts:
            self.columns[at][row] = filler
        if self.books.item(RETURNED) > self._shrink_at:
            self._tidy()
        return batch

    def read_one(self, row: int) -> Batch:
        """A copy of a single tuple."""
        stop = row + 1
        valid = [None if mask is None else mask[row:stop].copy() for mask in self.valid] if self._masked else None
        columns = [column[row:stop].copy() for column in self.columns]
        return Batch(self.schema, self.ts[row:stop].copy(), columns, valid, self.arrival[row:stop].copy())

    def save(self) -> list[Any]:
        masks = [None if mask is None else mask.copy() for mask in self.valid]
        books = [self.books.copy(), self.following.copy()]
        own = [self._count, self._shrink_at]
        return [own, books, self.ts.copy(), self.arrival.copy(), [c[:].copy() for c in self.columns], masks]

    def restore(self, data: Sequence[Any]) -> None:
        (self._count, self._shrink_at), books, ts, arrival, columns, masks = data
        self.books, self.following = np.array(books[0]), np.array(books[1])
        self.ts, self.arrival = np.array(ts), np.array(arrival)
        self.columns = [cells_of(field.type, column) for field, column in zip(self.schema, columns, strict=True)]
        self.valid = [None if mask is None else np.array(mask) for mask in masks]
        self._masked = any(mask is not None for mask in masks)
