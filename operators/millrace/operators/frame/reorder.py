"""Tuples that wait for their time, kept so that the least can be taken first.

Patience sorting: a tuple joins the oldest run whose last one is not above it, or begins a new run. An input in order
is one run and costs nothing; disorder costs a run per level of it. The ends of the runs fall from the oldest to the
newest run and only ever rise, so of two tuples of equal time the later can never be in an older run: a stable sort over
the runs in order of their age keeps the order of arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from millrace.values.batch import Batch, Int64s
from millrace.values.eventtime import untimed


class Run:
    """Batches that follow each other in time; `offset` tuples of the first are gone already."""

    __slots__ = ("batches", "last_us", "offset")

    def __init__(self, batch: Batch, offset: int = 0) -> None:
        self.batches = deque((batch,))
        self.offset = offset
        self.last_us = int(batch.ts[-1])

    def append(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.last_us = int(batch.ts[-1])

    @property
    def head_us(self) -> int:
        return int(self.batches[0].ts[self.offset])

    def least_timed(self) -> int | None:
        """The first time behind the tuples that have none."""
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
        """Forget the first tuples."""
        self.offset += count
        while self.batches and self.offset >= len(self.batches[0]):
            self.offset -= len(self.batches.popleft())


class Reorder:
    """The waiting tuples of one input."""

    __slots__ = ("count", "runs")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.count = 0

    def put(self, batch: Batch) -> None:
        """Add tuples in order of arrival."""
        self.count += len(batch)
        ts = batch.ts
        if len(ts) > 1 and (ts[1:] < ts[:-1]).any():
            batch = batch.take(np.argsort(ts, kind="stable"))
        stop = len(ts)
        for run in self.runs:
            start = 0 if run.last_us <= batch.ts[0] else int(np.searchsorted(batch.ts, run.last_us, "left"))
            if start < stop:
                run.append(batch if stop - start == len(ts) else batch.slice(start, stop))
                stop = start
            if not stop:
                return
        self.runs.append(Run(batch.slice(0, stop)))

    def head_us(self) -> int | None:
        """The least time that waits."""
        runs = self.runs
        if not runs:
            return None
        if len(runs) == 1:
            return runs[0].head_us
        return min(run.head_us for run in runs)

    def least_timed(self) -> int | None:
        """The least time that waits, of the tuples that have one."""
        return min((time for run in self.runs if (time := run.least_timed()) is not None), default=None)

    def times(self, through_us: int, limit: int) -> Int64s:
        """The least times that wait, up to one, at most `limit`."""
        pieces = [piece.ts for run in self.runs for piece in run.prefix(through_us, limit)]
        found = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
        if len(self.runs) > 1:
            found.sort()
        return found[:limit]

    def first(self) -> Batch | None:
        """The tuple with the least time, which stays."""
        if not self.runs:
            return None
        run = min(self.runs, key=lambda run: run.head_us)
        return run.batches[0].slice(run.offset, run.offset + 1)

    def forget(self, counts: Iterable[tuple[Run, int]]) -> None:
        """Drop tuples from the fronts of runs."""
        for run, count in counts:
            run.drop(count)
            self.count -= count
        self.runs = [run for run in self.runs if run.batches]

    def save(self) -> list[Any]:
        return [[run.offset, [batch.save() for batch in run.batches]] for run in self.runs]

    def restore(self, data: Sequence[Any]) -> None:
        self.runs = []
        self.count = 0
        for offset, batches in data:
            first, *others = (Batch.restore(batch) for batch in batches)
            run = Run(first, offset)
            for batch in others:
                run.append(batch)
            self.runs.append(run)
            self.count += sum(map(len, run.batches)) - offset


def merge_by_time(waiting: Sequence[Reorder], through_us: int, limit: int) -> Batch | None:
    """Take the tuples with the least times, at most `limit` in all and none above `through_us`.

    Equal times: in order of the inputs, then of arrival.
    """
    found = [
        (reorder, run, pieces)
        for reorder in waiting
        for run in reorder.runs
        if (pieces := run.prefix(through_us, limit))
    ]
    if not found:
        return None
    if len(found) == 1:
        reorder, run, pieces = found[0]
        batch = Batch.concat(pieces)
        reorder.forget(((run, len(batch)),))
        return batch
    lengths = [sum(map(len, pieces)) for _, _, pieces in found]
    batch = Batch.concat([piece for _, _, pieces in found for piece in pieces])
    order = np.argsort(batch.ts, kind="stable")[:limit]
    origins = np.bincount(np.repeat(np.arange(len(found)), lengths)[order], minlength=len(found)).tolist()
    for (reorder, run, _), count in zip(found, origins, strict=True):
        if count:
            reorder.forget(((run, count),))
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
    found = [
        (position, piece.ts)
        for position, reorder in enumerate(waiting)
        for run in reorder.runs
        for piece in run.prefix(through_us, limit)
    ]
    if not found:
        return [0] * len(waiting)
    order = np.argsort(np.concatenate([ts for _, ts in found]), kind="stable")[:limit]
    owners = np.repeat([position for position, _ in found], [len(ts) for _, ts in found])[order]
    counted: list[int] = np.bincount(owners, minlength=len(waiting)).tolist()
    return counted
