"""Running totals: the result of an aggregate without a window is an update stream, whose key is the group.

A group's row is emitted whenever the group has changed: once per execution (`emit = 'latest'`), or once per tuple
(`emit = 'every'`). Its time is the later of the causing tuple's and the group's last one, so a group's rows never go
back in time.

An aggregate of all rows, without groups, always has exactly one row. Over no rows it is emitted at the first watermark,
with that time, or when the input ends.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from millrace.operators.aggregate.current import CurrentTotals
from millrace.operators.aggregate.groups import ComputedRows, Grouping, Table, listed
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.punctuation_grain import EVERY, PunctuationGrain
from millrace.operators.updates.updates import Stateful, UpdateState, first_time
from millrace.values.batch import Batch, Int64s
from millrace.values.evaluate import errors_of
from millrace.values.eventtime import MAX_TIME, MIN_TIME
from millrace.values.functions.vectors import Faults
from millrace.values.kernels import accumulating


class Totals(UpdateState):
    """The groups of a running total, and the newest time of each."""

    def __init__(self, spec: AggregateSpec, operator: Operator) -> None:
        self._spec = spec
        self._operator = operator
        self._grouping = Grouping(spec)
        self.table = Table(self._grouping, True)
        self._times = np.zeros(0, np.int64)
        self.owes = not spec.keys

    def begin(self, ts: int, now_us: int) -> Batch | None:
        self.owes = False
        slots = self.table.find([], [], 1)
        self._reserve()
        self._times[0], self.table.arrived[0] = ts, now_us
        return self._given([self._built(slots)])

    def consume(self, batch: Batch) -> Batch | None:
        """The rows that follow from tuples."""
        rows, failed, reason = self._grouping.compute(batch)
        if failed:
            self._operator.failed(failed, reason)
        if not len(rows.ts):
            return None
        self.owes = False
        if self._spec.emit == "latest":
            return self._given([self._changed(rows, self.table.groups_of(rows))])
        return self._given(self._each(rows))

    def _changed(self, rows: ComputedRows, slots: Int64s) -> tuple[Batch, Faults | None]:
        """Let rows count in these groups; a row for each group, in the order of the groups' last rows."""
        self.table.update(slots, rows)
        self._reserve()
        accumulating.raise_to(slots, rows.ts, self._times)
        changed, last = np.unique(slots[::-1], return_index=True)
        order = np.argsort(-last, kind="stable")
        return self._built(changed[order])

    def _reserve(self) -> None:
        if len(self._times) < self.table.count:
            times = np.full(2 * self.table.count, MIN_TIME, np.int64)
            times[: len(self._times)] = self._times
            self._times = times

    def _each(self, rows: ComputedRows) -> list[tuple[Batch, Faults | None]]:
        """A total per row, over the rows up to it.

        Groups are independent: the first rows of all groups are computed together, then the second ones.
        """
        slots = self.table.groups_of(rows)
        places = rounds(slots)
        parts = [self._changed(rows.take(place), slots[place]) for place in places]
        order = np.argsort(np.concatenate(places))
        batch = Batch.concat([part for part, _ in parts]).take(order)
        if all(faults is None for _, faults in parts):
            return [(batch, None)]
        faults = [np.zeros(len(part), np.uint8) if failed is None else failed for part, failed in parts]
        return [(batch, np.concatenate(faults)[order])]

    def _built(self, slots: Int64s) -> tuple[Batch, Faults | None]:
        columns, valid, faults = self.table.finish(slots)
        keys = self.table.keys_of(slots)
        batch = Batch(
            self._operator.output.schema,
            self._times[slots],
            [*(values for values, _ in keys), *columns],
            [*(mask for _, mask in keys), *valid],
            self.table.arrived[slots],
        )
        return batch, faults

    def _given(self, parts: list[tuple[Batch, Faults | None]]) -> Batch | None:
        batches = []
        for batch, faults in parts:
            batches.append(self._operator.without_failed(batch, errors_of(faults)))
        rows = Batch.concat(batches)
        return rows if len(rows) else None

    @property
    def tuples(self) -> int:
        return self.table.count

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + self._times.nbytes

    def save(self) -> Any:
        return [self.table.save(), self._times, self.owes]

    def essence(self) -> Any:
        """The groups by key: their rows leave in the order of the causing tuples."""
        slots = np.arange(self.table.count)
        keys = listed(self.table.keys_of(slots))
        if keys:
            slots = np.array(sorted(slots.tolist(), key=list(map(repr, keys)).__getitem__), np.int64)
        return [sorted(keys, key=repr), self.table.essence(slots), self._times[slots], self.owes]

    def restore(self, data: Any) -> None:
        table, times, self.owes = data
        self.table.restore(table)
        self._times = times.copy()


def rounds(slots: Int64s) -> list[Int64s]:
    """The positions where each slot occurs first, second and so on: in each round every slot at most once, in order."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    number = np.arange(len(slots)) - np.searchsorted(ordered, ordered)
    rank = np.empty(len(slots), np.int64)
    rank[order] = number
    by_rank = np.argsort(rank, kind="stable")
    return np.split(by_rank, np.cumsum(np.bincount(rank))[:-1])


class RunningAggregate(Stateful):
    """Running totals of tuples as they arrive. The output is in order if the input is; else each group's rows are."""

    kind: ClassVar[str] = "aggregate"
    layout: ClassVar[Layout] = Layout(1)

    def __init__(self, site: Site, spec: AggregateSpec) -> None:
        super().__init__(site)
        self.state = Totals(spec, self) if spec.replaces is None else CurrentTotals(spec, self)
        self.clock = site.clock


class TotalOfAll(RunningAggregate):
    """The running total of all tuples, without groups, which has a row even before the first tuple."""

    shifts_time: ClassVar[bool] = True

    def declares(self) -> PunctuationGrain | None:
        """It has a use for the first promise, whichever that is."""
        return EVERY

    def fresh(self) -> bool:
        return self.inputs[0].unseen or (self.state.owes and self._first_time() is not None)

    def _first_time(self) -> int | None:
        """None while tuples are queued: their row replaces this one."""
        inlet = self.inputs[0]
        if inlet.waiting or inlet.arc.held:
            return None
        return first_time(inlet.low_water(), self.clock.now_us)

    def low_water(self) -> int:
        """After the input's end, the row that it owes has the clock's time."""
        low_us = super().low_water()
        return min(low_us, self.clock.now_us) if self.state.owes and low_us == MAX_TIME else low_us

    def begin(self) -> None:
        time = self._first_time()
        row = None if time is None else self.state.begin(time, self.clock.now_us)
        if row is not None:
            self.emit(row)
