"""Window buffers: a key's tuples in blocks of pages (UPS, section 7.2 and figure 11), and their times in order."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from millrace.operators.queues.pages import Pages
from millrace.operators.queues.queue import Floor
from millrace.values.batch import Int64s


class Blocks:
    """The pages of a queue, shared by its buffers.

    count      tuples in all buffers
    floor      a time below which no buffer has a tuple
    released   empty blocks. They return to their pages when a call ends: until then their tuples are read
    """

    __slots__ = ("count", "floor", "pages", "released")

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self.floor = Floor()
        self.count = 0
        self.released: list[int] = []

    def give_back(self) -> None:
        if self.released:
            self.pages.release(np.array(self.released, np.int64))
            self.released.clear()


class WindowBuffer:
    """Tuples in order of arrival, in blocks that follow each other.

    Tuples enter at the end and leave at the beginning (the paper's FixedLengthContiguousZone is a block with its two
    offsets; only the first block needs an offset to dequeue from, and only the last one to enqueue at).
    """

    __slots__ = ("_blocks", "_first", "count", "locations")

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self.locations = array("q")
        self._first = 0
        self.count = 0

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

    def copy(self, rows: Int64s) -> None:
        """Append copies of tuples that another buffer holds at these rows."""
        pages, end = self._blocks.pages, self._first + self.count
        while len(self.locations) * pages.width < end + len(rows):
            self.locations.append(pages.allocate_one())
        self.count += len(rows)
        self._blocks.count += len(rows)
        pages.write(self._rows(end, len(rows)), pages.read(rows))

    def rows(self) -> Int64s:
        """The rows of the pages with its tuples, in order."""
        return self._rows(self._first, self.count)

    def times(self) -> Int64s:
        times: Int64s = self._blocks.pages.ts[self.rows()]
        return times

    def _rows(self, first: int, count: int) -> Int64s:
        width = self._blocks.pages.width
        block, end = first // width, -(-(first + count) // width)
        blocks = np.array(self.locations[block:end], np.int64)[:, None] * width + np.arange(width)
        first -= block * width
        rows: Int64s = blocks.ravel()[first : first + count]
        return rows

    def take(self, limit: int) -> tuple[Int64s, Int64s]:
        """Remove the first tuples: their rows, readable until blocks return to their pages, and their times."""
        rows = self._rows(self._first, min(limit, self.count))
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
        self._first += count
        self.count -= count
        self._blocks.count -= count
        if not self.count:
            blocks, self._first = len(self.locations), 0
        else:
            blocks, self._first = divmod(self._first, self._blocks.pages.width)
        if blocks:
            self._blocks.released.extend(self.locations[:blocks])
            del self.locations[:blocks]

    def save(self) -> list[Any]:
        return [list(self.locations), self._first, self.count]

    def restore(self, data: Sequence[Any]) -> None:
        locations, self._first, self.count = data
        self.locations = array("q", locations)
        self._blocks.count += self.count


class SortedTimes:
    """The times of a buffer's tuples in order, to count a window without a scan.

    A time takes eight bytes; one that is not earlier than the last is appended.
    """

    __slots__ = ("_first", "_times")

    def __init__(self, times: Iterable[int] = ()) -> None:
        self._times = array("q", sorted(times))
        self._first = 0

    def add(self, time_us: int) -> None:
        if self._times and time_us < self._times[-1]:
            insort(self._times, time_us, self._first)
        else:
            self._times.append(time_us)

    def first(self, from_us: int) -> int | None:
        """The earliest time from this one on."""
        at = bisect_left(self._times, from_us, self._first)
        return self._times[at] if at < len(self._times) else None

    def count(self, from_us: int, below_us: int) -> int:
        at = bisect_left(self._times, from_us, self._first)
        return bisect_left(self._times, below_us, at) - at

    def drop_below(self, time_us: int) -> None:
        self._first = bisect_left(self._times, time_us, self._first)
        if self._first * 2 >= len(self._times):  # the times that leave pay for moving those that stay
            del self._times[: self._first]
            self._first = 0
