"""Input files merged by event time: the file whose head is earliest goes first, and each keeps its own order.

Rule: two ways to cut the merged rows into instants, for the same rows.

    exact    one instant per time: the clock stands at each row's own time when it arrives. What a trace or a price
             measures is measured so, and so is everything that depends on the clock.
    slices   thousands of rows per instant, of a long input. A slice ends where the exact merge would have taken from
             every file all that lies up to a time, so the same rows are late, and results are equal by their class. A
             row of a file arrives at the newest time up to it, because the file with the earliest head goes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from millrace.engine.events import Arrived, Event
from millrace.engine.plan import StreamDefinition
from millrace.offline.driver import Instant
from millrace.offline.files import ROWS
from millrace.offline.release import Releases
from millrace.values.batch import Batch, Int64s
from millrace.values.eventtime import MAX_TIME, MIN_TIME

# Rows that are merged exactly: a short input arrives as a user expects. A file with more at hand is sliced at once.
EXACT_ROWS: Final = 4_096


class Cursor:
    """The unread rows of one file."""

    def __init__(self, stream: StreamDefinition, feed: str, batches: Iterator[Batch]) -> None:
        self.stream = stream
        self.feed = feed
        self.timed = stream.timestamps == "external"
        self._batches = batches
        self._batch: Batch | None = None
        self._at = 0
        self.head_us: int | None = None
        self.newest_us = MIN_TIME  # of the rows taken
        self._advance(0)

    def ts(self) -> Int64s:
        """The times of the rows at hand."""
        assert self._batch is not None
        return self._batch.ts[self._at :]

    def take(self, rows: int) -> Batch:
        """The next rows, of those at hand."""
        assert self._batch is not None
        batch = self._batch.slice(self._at, self._at + rows)
        if self.timed:
            self.newest_us = max(self.newest_us, int(batch.ts.max()))
        self._advance(rows)
        return batch

    def arrived(self, batch: Batch, at_us: Int64s | None = None) -> Arrived:
        return Arrived(self.stream.name, self.feed, batch, at_us)

    def _advance(self, rows: int) -> None:
        self._at += rows
        while self._batch is None or self._at >= len(self._batch):
            self._batch = next(self._batches, None)
            self._at = 0
            if self._batch is None:
                self.head_us = None
                return
        # Rows without a time arrive at once.
        self.head_us = int(self._batch.ts[self._at]) if self.timed else MIN_TIME


class Merge:
    """Instants from files. `sliced` is true from the first slice on. `releases` receives the times of its tuples."""

    def __init__(self, cursors: Sequence[Cursor], *, exact: bool, releases: Releases | None = None) -> None:
        self._cursors = cursors
        self._releases = releases
        self._exact_rows = None if exact or not _may_slice(cursors) else EXACT_ROWS
        timed = [cursor.head_us for cursor in cursors if cursor.timed and cursor.head_us is not None]
        self.clock_us = min(timed, default=0)
        self.sliced = False

    def instants(self) -> Iterator[Instant]:
        if self._exact_rows is None or not self._long():
            yield from self._exact()
        self.sliced = True
        yield from self._slices()

    def _long(self) -> bool:
        """Whether more rows are at hand than a short input has."""
        return sum(len(cursor.ts()) for cursor in self._cursors if cursor.head_us is not None) > EXACT_ROWS

    def _exact(self) -> Iterator[Instant]:
        events: list[Event] = []
        rows = 0
        while (cursor := self._earliest()) is not None:
            if self._exact_rows is not None and rows >= self._exact_rows:
                break
            batch = cursor.take(self._run_length(cursor))
            rows += len(batch)
            for at_us, part in self._by_time(cursor, batch):
                if at_us != self.clock_us:
                    if events:
                        yield Instant(self.clock_us, events)
                    events = []
                    self.clock_us = at_us
                events.append(cursor.arrived(part))
        if events:
            yield Instant(self.clock_us, events)

    def _earliest(self) -> Cursor | None:
        """The cursor with the earliest head; of several the first."""
        earliest: Cursor | None = None
        earliest_us = MAX_TIME + 1
        for cursor in self._cursors:
            if cursor.head_us is not None and cursor.head_us < earliest_us:
                earliest, earliest_us = cursor, cursor.head_us
        return earliest

    def _run_length(self, cursor: Cursor) -> int:
        """How many of the rows at hand go before every other file's head."""
        ts = cursor.ts()
        if not cursor.timed:
            return len(ts)
        before = True
        ends = []
        for other in self._cursors:
            if other is cursor:
                before = False
            elif other.head_us is not None:
                beyond = ts >= other.head_us if before else ts > other.head_us
                ends.append(int(beyond.argmax()) if beyond.any() else len(ts))
        return max(min(ends, default=len(ts)), 1)

    def _by_time(self, cursor: Cursor, batch: Batch) -> Iterator[tuple[int, Batch]]:
        """The rows by the clock's time at which each arrives."""
        if not cursor.timed:
            yield self.clock_us, batch
            return
        clock = np.maximum(np.maximum.accumulate(batch.ts), self.clock_us)
        starts = [0, *(np.flatnonzero(clock[1:] != clock[:-1]) + 1).tolist(), len(batch)]
        for start, stop in pairwise(starts):
            yield int(clock[start]), batch.slice(start, stop)

    def _slices(self) -> Iterator[Instant]:
        while open_ := [cursor for cursor in self._cursors if cursor.head_us is not None]:
            windows = [cursor.ts()[:ROWS] for cursor in open_]
            through_us = min(int(ts.max()) for ts in windows)
            events: list[Event] = []
            for cursor, ts in zip(open_, windows, strict=True):
                beyond = ts > through_us
                rows = int(beyond.argmax()) if beyond.any() else len(ts)
                if rows:
                    events.append(self._arrived(cursor, rows))
            self.clock_us = max(self.clock_us, through_us)
            yield Instant(self.clock_us, events)

    def _arrived(self, cursor: Cursor, rows: int) -> Arrived:
        """The next rows of a file in a slice."""
        if self._releases is None:
            return cursor.arrived(cursor.take(rows))
        before_us = cursor.newest_us
        batch = cursor.take(rows)
        newest = np.maximum(np.maximum.accumulate(batch.ts), before_us)
        self._releases.arrived(cursor.stream.name, before_us, newest)
        return cursor.arrived(batch, newest)


def _may_slice(cursors: Sequence[Cursor]) -> bool:
    """Whether slices leave the results unchanged: every file has its own times, and no stream has several files."""
    names = [cursor.stream.name for cursor in cursors]
    return all(cursor.timed for cursor in cursors) and len(set(names)) == len(names)


def in_time_order(batches: Iterator[Batch]) -> Iterator[Batch]:
    """All rows of a file, sorted by time; equal times keep the file's order."""
    read = list(batches)
    if not read:
        return
    whole = Batch.concat(read)
    whole = whole.take(np.argsort(whole.ts, kind="stable"))
    for start in range(0, len(whole), ROWS):
        yield whole.slice(start, min(start + ROWS, len(whole)))
