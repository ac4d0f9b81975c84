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

from millrace.operators.queues import kernel as updating
from millrace.protocol import Schema
from millrace.values.arrays import resized
from millrace.values.batch import DTYPES, FILLERS, Batch, Bools, Int64s, Values

# 256 slots of a few columns are some pages of the machine's memory.
SLOTS: Final = 256
# Pages that a queue keeps at the least, so that one that fills and empties does not move its arrays all the time.
FEWEST: Final = 4
# The numbers of the pool and of a page in the kernel's books.
POOL: Final = 4
ROOM, FREE, TAKEN, RETURNED = range(POOL)
PAGE: Final = 5
EMPTY, USED, BEFORE, AFTER, FREE_PAGE = range(PAGE)


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
        self._texts = [(at, FILLERS[field.type]) for at, field in enumerate(schema) if DTYPES[field.type].hasobject]
        self._count = 0
        self.books = np.array([-1, 0, 0, 0], np.int64)
        self.following = np.zeros(0, np.int32)
        self._one = np.zeros(1, np.int64)
        self._shrink_at = 0
        self.ts: Int64s = np.zeros(0, np.int64)
        self.arrival: Int64s = np.zeros(0, np.int64)
        self.columns: list[Values] = [np.zeros(0, DTYPES[field.type]) for field in schema]
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
        """Slots that hold something."""
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
        """So many empty slots."""
        found = np.empty(count, np.int64)
        done = 0
        while True:
            done += updating.allocate(found[done:] if done else found, self.slots, self.books, self.following)
            if done == count:
                return found
            self.grow(count - done)

    def allocate_one(self) -> int:
        """An empty slot."""
        one = self._one
        while not updating.allocate(one, self.slots, self.books, self.following):
            self.grow(1)
        return int(one.item(0))

    def release(self, locations: Int64s) -> None:
        """Slots that are empty again."""
        for at, filler in self._texts:
            # Texts must not outlive the tuples that they came with.
            if self.width == 1:
                self.columns[at][locations] = filler
            else:
                self.columns[at].reshape(-1, self.width)[locations] = filler
        updating.release(locations, self.slots, self.books, self.following)
        if self.books.item(RETURNED) > self._shrink_at:
            self._tidy()

    def _tidy(self) -> None:
        """Give memory up that is not needed. Looking for it is paid for by the pages that came back meanwhile."""
        self._shrink_at = self.returned + self._count // 4
        if self._count > FEWEST and self.taken * 4 <= self._count:
            self._shrink()

    def grow(self, slots: int) -> None:
        """Twice as many pages, or as many as hold so many slots more."""
        before = self._count
        wanted = before + max(FEWEST, before, -(-slots // self.slots))
        self._resize(wanted)
        self._fill_pool(np.arange(wanted - 1, before - 1, -1))  # it was empty

    def _fill_pool(self, pages: Int64s) -> None:
        """Let the pool be these pages; the last is given out first."""
        self._by_page()[: len(pages), FREE_PAGE] = pages
        self.books[FREE] = len(pages)

    def _shrink(self) -> None:
        """Give up the pages behind the last one in use, if they are half of all or more.

        The pool gives the lowest pages first afterwards, so that the last ones get empty in time.
        """
        held = np.flatnonzero(self._held())
        wanted = max(FEWEST, int(held[-1]) + 1 if len(held) else 0)
        pool = self._by_page()[: self.free, FREE_PAGE].copy()
        if wanted * 2 <= self._count:
            pool = pool[pool < wanted]
            self._resize(wanted)
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
        """Put the tuples of a batch at these places. If two go to one place, the later stays."""
        self.ts[rows] = batch.ts
        self.arrival[rows] = batch.arrival
        for at, (values, mask) in enumerate(zip(batch.columns, batch.valid, strict=True)):
            self.columns[at][rows] = values
            own = self._mask(at, mask)
            if own is not None:
                own[rows] = True if mask is None else mask

    def write_one(self, row: int, batch: Batch, ts: int, arrival: int) -> None:
        """Put a single tuple at this place, whose time and arrival the caller has looked at already."""
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
        """The tuples at these places, copied."""
        valid = [None if mask is None else mask[rows] for mask in self.valid]
        return Batch(
            self.schema,
            self.ts[rows],
            [column[rows] for column in self.columns],
            [None if mask is None or mask.all() else mask for mask in valid],
            self.arrival[rows],
        )

    def read_freed(self, row: int) -> Batch:
        """A single tuple whose location has just been given back."""
        batch = self.read_one(row)
        for at, filler in self._texts:
            self.columns[at][row] = filler
        if self.books.item(RETURNED) > self._shrink_at:
            self._tidy()
        return batch

    def read_one(self, row: int) -> Batch:
        """A single tuple, copied."""
        stop = row + 1
        valid = [None if mask is None else mask[row:stop].copy() for mask in self.valid] if self._masked else None
        columns = [column[row:stop].copy() for column in self.columns]
        return Batch(self.schema, self.ts[row:stop].copy(), columns, valid, self.arrival[row:stop].copy())

    def save(self) -> list[Any]:
        masks = [None if mask is None else mask.copy() for mask in self.valid]
        books = [self.books.copy(), self.following.copy()]
        own = [self._count, self._shrink_at]
        return [own, books, self.ts.copy(), self.arrival.copy(), [c.copy() for c in self.columns], masks]

    def restore(self, data: Sequence[Any]) -> None:
        (self._count, self._shrink_at), books, ts, arrival, columns, masks = data
        self.books, self.following = np.array(books[0]), np.array(books[1])
        self.ts, self.arrival = np.array(ts), np.array(arrival)
        self.columns = [np.array(column) for column in columns]
        self.valid = [None if mask is None else np.array(mask) for mask in masks]
        self._masked = any(mask is not None for mask in masks)
