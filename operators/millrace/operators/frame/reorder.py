"""Tuples that wait for their time, kept so that the least can be taken first.

Patience sorting: a tuple joins the oldest run whose last one is not above it, or starts a new run. An input in order
is one run and costs nothing; disorder costs a run per level of it. The ends of the runs fall from the oldest to the
newest run and only ever rise, so of two tuples of equal time the later can never be in an older run: a stable sort over
the runs in order of their age keeps the order of arrival.

Disorder over n tuples makes about the square root of n runs. No step looks at all of them: the run that a tuple joins
is found by bisection over the ends, and the runs whose heads may leave by a heap. Where disorder is wide, as in the
rows of a join, a batch would be scattered over many runs in pieces of a few rows. So the newest runs are merged
when there are too many short ones, each run being at least twice as long as the next: a tuple is copied a logarithmic
number of times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Any, Final

import numpy as np

from millrace.values.batch import Batch, Int64s
from millrace.values.eventtime import MAX_TIME, untimed

# Short runs that are not merged, and the tuples from which on a run is long: merging so many takes a few milliseconds.
SHORT_RUNS: Final = 16
LONG: Final = 65_536


class Run:
    """Batches that follow each other in time; `offset` tuples of the first are gone already. `age` orders runs."""

    __slots__ = ("age", "batches", "count", "last_us", "offset")

    def __init__(self, batch: Batch, age: int, offset: int = 0) -> None:
        self.age = age
        self.batches = deque((batch,))
        self.count = len(batch) - offset
        self.offset = offset
        self.last_us = int(batch.ts[-1])

    def append(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.count += len(batch)
        self.last_us = int(batch.ts[-1])

    @property
    def head_us(self) -> int:
        return int(self.batches[0].ts[self.offset])

    def least_timed(self) -> int | None:
        """The first time after the tuples that have none."""
        offset = self.offset
        for batch in self.batches:
            at = max(offset, untimed(batch.ts))
            if at < len(batch):
                return int(batch.ts[at])
            offset = 0
        return None

    def prefix(self, through_us: int, limit: int) -> list[Batch]:
        """The tuples up to a time, at most `limit`; they stay."""
        pieces = []
        offset = self.offset
        for batch in self.batches:
            stop = len(batch)
            if int(batch.ts[stop - 1]) > through_us:
                stop = int(np.searchsorted(batch.ts, through_us, "right"))
            stop = min(stop, offset + limit)
            if stop <= offset:
                break
            pieces.append(batch if offset == 0 and stop == len(batch) else batch.slice(offset, stop))
            limit -= stop - offset
            if stop < len(batch):
                break
            offset = 0
        return pieces

    def drop(self, count: int) -> None:
        """Drop the first tuples."""
        self.count -= count
        self.offset += count
        while self.batches and self.offset >= len(self.batches[0]):
            self.offset -= len(self.batches.popleft())


class Reorder:
    """The waiting tuples of one input.

    runs      by age
    _ends     the last time of each run, negated, so that they rise
    _heads    a heap of the runs: the first time of each, its age (which decides ties), and the run
    """

    __slots__ = ("_ends", "_heads", "_next_age", "count", "runs")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.runs: list[Run] = []
        self._ends: list[int] = []
        self._heads: list[tuple[int, int, Run]] = []
        self._next_age = 0
        self.count = 0

    def put(self, batch: Batch) -> None:
        """Add tuples in order of arrival."""
        self.count += len(batch)
        ts = batch.ts
        if len(ts) > 1 and (ts[1:] < ts[:-1]).any():
            batch = batch.take(np.argsort(ts, kind="stable"))
            ts = batch.ts
        stop = len(ts)
        while stop:
            at = bisect_left(self._ends, -int(ts[stop - 1]))
            if at == len(self.runs):
                self._add(batch.slice(0, stop))
                self._merge_short_runs()
                return
            run = self.runs[at]
            start = 0 if run.last_us <= ts[0] else int(np.searchsorted(ts[:stop], run.last_us, "left"))
            run.append(batch if stop - start == len(ts) else batch.slice(start, stop))
            self._ends[at] = -run.last_us
            stop = start

    def _add(self, batch: Batch, offset: int = 0) -> Run:
        run = Run(batch, self._next_age, offset)
        self._next_age += 1
        self.runs.append(run)
        self._ends.append(-run.last_us)
        heappush(self._heads, (run.head_us, run.age, run))
        return run

    def _merge_short_runs(self) -> None:
        """If there are too many short runs at the end, merge the newest ones, up to one that is twice as long."""
        runs = self.runs
        first = len(runs)
        while first and runs[first - 1].count < LONG:
            first -= 1
        if len(runs) - first <= SHORT_RUNS:
            return
        at = len(runs) - 1
        count = runs[at].count
        while at > first and (runs[at - 1].count <= 2 * count or at == len(runs) - 1):
            at -= 1
            count += runs[at].count
        merged = runs[at:]
        batch = Batch.concat([piece for run in merged for piece in run.prefix(MAX_TIME, run.count)])
        del runs[at:], self._ends[at:]
        ages = {run.age for run in merged}
        self._heads = [entry for entry in self._heads if entry[1] not in ages]
        heapify(self._heads)
        self._add(batch.take(np.argsort(batch.ts, kind="stable")))

    def head_us(self) -> int | None:
        """The least time that waits."""
        return self._heads[0][0] if self._heads else None

    def first(self) -> Batch | None:
        """The tuple with the least time, which stays."""
        if not self._heads:
            return None
        run = self._heads[0][2]
        return run.batches[0].slice(run.offset, run.offset + 1)

    def batches(self) -> Iterator[Batch]:
        """All tuples, in no order; they stay."""
        for run in self.runs:
            yield from run.prefix(MAX_TIME, run.count)

    def release(self, through_us: int, limit: int) -> list[Run]:
        """The runs that have the least times, up to one and at most `limit` of them, by age.

        The caller drops tuples of each, if only none.
        """
        heads = self._heads
        released: list[Run] = []
        while heads and heads[0][0] <= through_us and len(released) < limit:
            released.append(heappop(heads)[2])
        released.sort(key=attrgetter("age"))
        return released

    def drop(self, run: Run, count: int) -> None:
        """Drop the first tuples of a run that has been released."""
        self.count -= count
        run.drop(count)
        if run.batches:
            heappush(self._heads, (run.head_us, run.age, run))
        else:
            at = bisect_left(self._ends, -run.last_us)
            del self.runs[at], self._ends[at]

    def least_timed(self) -> int | None:
        """The least time that waits, of the tuples that have one."""
        return min((time for run in self.runs if (time := run.least_timed()) is not None), default=None)

    def times(self, through_us: int, limit: int) -> Int64s:
        """The least times that wait, up to one, at most `limit`."""
        pieces = [piece.ts for run in self.runs for piece in run.prefix(through_us, limit)]
        times = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
        if len(self.runs) > 1:
            times.sort()
        return times[:limit]

    def save(self) -> list[Any]:
        return [[run.offset, [batch.save() for batch in run.batches]] for run in self.runs]

    def restore(self, data: Sequence[Any]) -> None:
        self._clear()
        for offset, batches in data:
            first, *others = (Batch.restore(batch) for batch in batches)
            run = self._add(first, offset)
            for batch in others:
                run.append(batch)
            self._ends[-1] = -run.last_us
            self.count += sum(map(len, run.batches)) - offset


def merge_by_time(waiting: Sequence[Reorder], through_us: int, limit: int) -> Batch | None:
    """Take the tuples with the least times, at most `limit` in all and none above `through_us`.

    Equal times: in order of the inputs, then of arrival.
    """
    taken = [
        (reorder, run, run.prefix(through_us, limit))
        for reorder in waiting
        for run in reorder.release(through_us, limit)
    ]
    if not taken:
        return None
    if len(taken) == 1:
        reorder, run, pieces = taken[0]
        batch = Batch.concat(pieces)
        reorder.drop(run, len(batch))
        return batch
    lengths = [sum(map(len, pieces)) for _, _, pieces in taken]
    batch = Batch.concat([piece for _, _, pieces in taken for piece in pieces])
    order = np.argsort(batch.ts, kind="stable")
    if len(order) > limit:
        order = order[:limit]
        origins = np.repeat(np.arange(len(taken)), lengths)[order]
        lengths = np.bincount(origins, minlength=len(taken)).tolist()
    for (reorder, run, _), count in zip(taken, lengths, strict=True):
        reorder.drop(run, count)
    return batch.take(order)


def least_of_each(waiting: Sequence[Reorder], through_us: Sequence[int], limit: int) -> list[Batch | None]:
    """Take the tuples with the least times, at most `limit` in all, each input's by themselves and up to its own bound.

    Equal times: in order of the inputs, then of arrival; so one tuple is not taken without those before it.
    """
    counts = [limit] * len(waiting)
    if sum(reorder.count for reorder in waiting) > limit:
        times = [reorder.times(bound, limit) for reorder, bound in zip(waiting, through_us, strict=True)]
        origins = np.repeat(np.arange(len(times)), [len(found) for found in times])
        order = np.argsort(np.concatenate(times), kind="stable")[:limit]
        counts = np.bincount(origins[order], minlength=len(times)).tolist()
    return [
        merge_by_time((reorder,), bound, count) if count and reorder.runs else None
        for reorder, bound, count in zip(waiting, through_us, counts, strict=True)
    ]


def shares(waiting: Sequence[Reorder], through_us: int, limit: int) -> list[int]:
    """How many each has of the tuples with the least times, at most `limit` in all and none above `through_us`.

    Equal times: in order of the inputs.
    """
    if sum(reorder.count for reorder in waiting) <= limit:
        return [limit] * len(waiting)
    taken = [
        (position, piece.ts)
        for position, reorder in enumerate(waiting)
        for run in reorder.runs
        for piece in run.prefix(through_us, limit)
    ]
    if not taken:
        return [0] * len(waiting)
    order = np.argsort(np.concatenate([ts for _, ts in taken]), kind="stable")[:limit]
    owners = np.repeat([position for position, _ in taken], [len(ts) for _, ts in taken])[order]
    counted: list[int] = np.bincount(owners, minlength=len(waiting)).tolist()
    return counted
