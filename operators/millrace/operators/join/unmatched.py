"""Rows of one input of an outer join that have matched nothing so far, and may be emitted alone.

They are stored like all others; here are only their places, in order of time. Whether a row has matched is a mark in
its segment, so nothing is looked up when it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from millrace.operators.frame.reorder import Reorder, merge_by_time
from millrace.operators.join.matching import Matcher
from millrace.operators.join.segments import Segment
from millrace.protocol import Schema
from millrace.values.batch import Batch, Bools, Int64s
from millrace.values.eventtime import MAX_TIME, MIN_TIME

# Where a row is stored.
PLACE: Final = Schema.of(segment="bigint", slot="bigint")


class Unmatched:
    """The rows of one input that are waited for.

    newest   the latest time of a row of that input, matched or not
    most     how many rows an execution looks at, at the most
    """

    def __init__(self, matcher: Matcher, position: int, most: int) -> None:
        self.position = position
        self.newest = MIN_TIME
        self._matcher = matcher
        self._store = matcher.stores[position]
        self._pending = Reorder()
        self._most = most

    @property
    def count(self) -> int:
        return self._pending.count

    def head_us(self) -> int:
        """The time of the first of them, of which there are some."""
        head = self._pending.head_us()
        assert head is not None
        return head

    def watch(self, placed: Sequence[tuple[Segment, int]], greatest: int) -> None:
        """Wait for the rows just stored, unless they have matched."""
        self.newest = max(self.newest, greatest)
        for segment, start in placed:
            assert segment.matched is not None
            slots = start + np.flatnonzero(~segment.matched[start : segment.count])
            if len(slots):
                numbers = np.full(len(slots), segment.number)
                self._pending.put(Batch(PLACE, segment.ts[slots], [numbers, slots]))

    def oldest(self) -> int | None:
        """The time of the oldest one that has not matched."""
        return self._pending.head_us()

    def rows(self) -> Iterator[tuple[Segment, Int64s]]:
        """All that have not matched, by their segments."""
        for batch in self._pending.batches():
            for segment, slots in self._places(batch):
                assert segment.matched is not None
                yield segment, slots[~segment.matched[slots]]

    def first_row(self) -> tuple[Segment, Int64s] | None:
        """The first one."""
        first = self._pending.first()
        return None if first is None else self._places(first)[0]

    def forget(self) -> None:
        """Let go of those that have matched, as far as they are older than all that have not."""
        pending = self._pending
        size = 1
        while (first := pending.first()) is not None and self._matched(first)[0]:
            size *= 2
            batch = merge_by_time([pending], MAX_TIME, size)
            assert batch is not None
            open_rows = np.flatnonzero(~self._matched(batch))
            if len(open_rows):
                pending.put(batch.take(open_rows))

    def may_give_up(self, lows: Sequence[int]) -> bool:
        return self._pending.count > 0 and self.head_us() < self._matcher.bands.floor(self.position, lows)

    def give_up(self, lows: Sequence[int], batches: list[Batch]) -> None:
        """Emit the rows that nothing can match any more, without a partner."""
        pending = self._pending
        floor = self._matcher.bands.floor(self.position, lows)
        batch = merge_by_time([pending], floor - 1, self._most) if floor > MIN_TIME else None
        if batch is not None:
            self._give_alone(batch, batches)
        while self._store.shape.newest is not None and (head := pending.head_us()) is not None:
            # All rows of one time together, because rows of equal times may be in any order.
            batch = merge_by_time([pending], head, pending.count)
            assert batch is not None
            behind = self._left_behind(batch)
            self._give_alone(batch.take(behind), batches)
            if not behind.all():
                pending.put(batch.take(~behind))
                break

    def _left_behind(self, batch: Batch) -> Bools:
        """Which rows are not among the newest any more."""
        store = self._store
        assert store.shape.newest is not None
        oldest = store.rows - store.shape.newest
        behind = np.empty(len(batch), np.bool_)
        numbers = batch.columns[0]
        for segment, slots in self._places(batch):
            behind[numbers == segment.number] = segment.first_row + slots < oldest
        return behind

    def _give_alone(self, batch: Batch, batches: list[Batch]) -> None:
        for segment, slots in self._places(batch):
            assert segment.matched is not None
            slots = slots[~segment.matched[slots]]
            if len(slots):
                batches.append(self._matcher.alone(self.position, segment.strip(slots)))

    def _matched(self, batch: Batch) -> Bools:
        """Which rows have matched after all."""
        matched = np.empty(len(batch), np.bool_)
        numbers = batch.columns[0]
        for segment, slots in self._places(batch):
            assert segment.matched is not None
            matched[numbers == segment.number] = segment.matched[slots]
        return matched

    def _places(self, batch: Batch) -> list[tuple[Segment, Int64s]]:
        """Rows by their segments."""
        numbers, slots = batch.columns
        segments = {segment.number: segment for segment in self._store.segments}
        return [(segments[number], slots[numbers == number]) for number in np.unique(numbers).tolist()]

    def save(self) -> Any:
        return [self.newest, self._pending.save()]

    def restore(self, data: Any) -> None:
        self.newest, pending = data
        self._pending.restore(pending)
