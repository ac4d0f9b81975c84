"""Window buffers: a key's tuples in blocks of pages (UPS, section 7.2 and figure 11)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from millrace.operators.queues.pages import Pages
from millrace.operators.queues.queue import Floor
from millrace.values.batch import Int64s
from millrace.values.eventtime import MAX_TIME


@dataclass(slots=True)
class Blocks:
    """The pages of a queue, shared by its buffers.

    count      tuples in all buffers
    floor      a time below which no buffer has a tuple
    released   empty blocks. They return to their pages when a call ends: until then their tuples are read
    """

    pages: Pages
    floor: Floor
    count: int = 0
    released: list[int] = field(default_factory=list)

    def give_back(self) -> None:
        if self.released:
            self.pages.release(np.array(self.released, np.int64))
            self.released.clear()


@dataclass(slots=True)
class WindowBuffer:
    """Tuples in order of arrival, in blocks that follow each other.

    Tuples enter at the end and leave at the start (the paper's FixedLengthContiguousZone is a block with its two
    offsets; only the first block needs an offset to dequeue from, and only the last one to enqueue at).
    """

    _blocks: Blocks
    locations: array[int] = field(default_factory=lambda: array("q"))
    _first: int = 0
    count: int = 0

    def append(self, time_us: int) -> int:
        """Reserve a row of the pages for a tuple of this time; the caller writes the rest of the tuple."""
        blocks = self._blocks
        pages = blocks.pages
        block, offset = divmod(self._first + self.count, pages.width)
        if block == len(self.locations):
            self.locations.append(pages.allocate_one())
        self.count += 1
        blocks.count += 1
        row = self.locations[block] * pages.width + offset
        pages.ts[row] = time_us
        blocks.floor.met(time_us)
        return row

    def fill(self, rows: Int64s) -> None:
        """Store copies of the tuples that another buffer has at these rows. This buffer is empty."""
        pages = self._blocks.pages
        self.count = len(rows)
        self._blocks.count += len(rows)
        while len(self.locations) * pages.width < len(rows):
            self.locations.append(pages.allocate_one())
        pages.write(self.rows(), pages.read(rows))

    def rows(self, limit: int = MAX_TIME) -> Int64s:
        """The rows of the pages with its first tuples, in order."""
        first, width, count = self._first, self._blocks.pages.width, min(limit, self.count)
        blocks = np.array(self.locations[: -(-(first + count) // width)], np.int64)
        rows: Int64s = (blocks[:, None] * width + np.arange(width)).ravel()[first : first + count]
        return rows

    def times(self) -> Int64s:
        times: Int64s = self._blocks.pages.ts[self.rows()]
        return times

    def take(self, limit: int) -> tuple[Int64s, Int64s]:
        """Remove the first tuples: their rows, readable until blocks return to their pages, and their times."""
        rows = self.rows(limit)
        self.drop(len(rows))
        return rows, self._blocks.pages.ts[rows]

    def drop_below(self, time_us: int) -> None:
        """Drop the first tuples that are earlier than a time."""
        width, ts = self._blocks.pages.width, self._blocks.pages.ts
        at, end = self._first, self._first + self.count
        while at < end and ts.item(self.locations[at // width] * width + at % width) < time_us:
            at += 1
        self.drop(at - self._first)

    def drop(self, count: int) -> None:
        """Drop the first tuples, and release the blocks whose tuples have all left."""
        self.count -= count
        self._blocks.count -= count
        blocks, self._first = divmod(self._first + count, self._blocks.pages.width)
        if not self.count:
            blocks, self._first = len(self.locations), 0
        if blocks:
            self._blocks.released.extend(self.locations[:blocks])
            del self.locations[:blocks]

    def save(self) -> list[Any]:
        return [list(self.locations), self._first, self.count]

    def restore(self, data: Sequence[Any]) -> None:
        locations, self._first, self.count = data
        self.locations = array("q", locations)
        self._blocks.count += self.count
