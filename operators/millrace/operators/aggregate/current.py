"""Aggregates over the current rows of an update stream: an update replaces its key's contribution to its group.

Counts, and sums and means of integers, are adjusted exactly: a row's contribution is subtracted again. Sums and means
of doubles are adjusted with a compensation for rounding. A group that may have lost more than the last digits, because
larger numbers were added and subtracted, is recomputed. Every other aggregate (least, last, DISTINCT, deviation,
quantile, a user's) is recomputed from the current rows of the groups that have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from millrace.operators.aggregate.groups import Call, ComputedRows, Distinct, Grouping
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.frame.operator import Operator
from millrace.operators.updates.key_index import Column, KeyIndex
from millrace.operators.updates.updates import (
    ColumnStore,
    KeyVersions,
    Members,
    UpdateState,
    before_each,
    gone_of,
    last_of_each,
)
from millrace.values.aggregates.accumulator import PreciseSum, RetractableAccumulator
from millrace.values.arrays import grown
from millrace.values.batch import FILLERS, Batch, Bools, Int64s, Values, spread
from millrace.values.evaluate import without
from millrace.values.eventtime import MIN_TIME
from millrace.values.functions.faults import REASONS, Fault
from millrace.values.functions.vectors import Faults, Vector, first_fault
from millrace.values.kernels import accumulating

# A compensated sum of n numbers is off by less than n times this share of the sum of their sizes (the square of what a
# double rounds by), and a result may be off by this share of itself.
_LOST: Final = 1.3e-32
_ALLOWED: Final = 1e-11

Arguments = Callable[[Int64s], tuple[Int64s, list[Values]]]


class Adjusted:
    """A call whose state can subtract rows: each group's result is available."""

    def __init__(self, call: Call) -> None:
        self._inner: Any = call.make(True)
        self._doubles = isinstance(self._inner, PreciseSum)
        # Of doubles, by group: the sum of the sizes of all numbers that came or went, and how many they were.
        self._gross = np.zeros(0, np.float64)
        self._moves = np.zeros(0, np.float64)
        self._room = 0

    def reserve(self, count: int) -> None:
        if count <= self._room:
            return
        self._room = max(count, 16, 2 * self._room)
        self._inner.reserve(self._room)
        if self._doubles:
            self._gross = grown(self._gross, self._room, 0.0)
            self._moves = grown(self._moves, self._room, 0.0)

    def add(self, groups: Int64s, columns: Sequence[Values]) -> None:
        self._inner.update(groups, columns, groups)
        self._moved(groups, columns)

    def remove(self, groups: Int64s, columns: Sequence[Values]) -> None:
        self._inner.remove(groups, columns)
        self._moved(groups, columns)

    def _moved(self, groups: Int64s, columns: Sequence[Values]) -> None:
        if self._doubles:
            with np.errstate(over="ignore"):
                np.add.at(self._gross, groups, np.abs(columns[0]))
            np.add.at(self._moves, groups, 1.0)

    def finish(self, groups: Int64s, current: Arguments) -> Vector:
        """The results of these groups; `current` returns the rows of some of them."""
        if self._doubles:
            self._again(groups[self._doubtful(groups)], current)
        results: Vector = self._inner.finish(groups)
        return results

    def _doubtful(self, groups: Int64s) -> Bools:
        sums = self._inner.sums
        with np.errstate(invalid="ignore", over="ignore"):
            totals = np.abs(sums[2 * groups] + sums[2 * groups + 1])
            lost = self._gross[groups] * self._moves[groups] * _LOST
            # Also where a sum has been infinite or worse on the way, which compares as false.
            doubtful: Bools = ~(lost <= totals * _ALLOWED)
        return doubtful

    def _again(self, groups: Int64s, current: Arguments) -> None:
        if not len(groups):
            return
        self._inner.clear(groups)
        self._gross[groups] = self._moves[groups] = 0.0
        places, columns = current(groups)
        self.add(groups[places], columns)

    @property
    def nbytes(self) -> int:
        return int(self._inner.nbytes + self._gross.nbytes + self._moves.nbytes)

    def save(self, count: int) -> Any:
        return [self._inner.save(count), self._gross[:count].copy(), self._moves[:count].copy()]

    def restore(self, data: Any) -> None:
        inner, gross, moves = data
        self._inner.restore(inner)
        self._gross[: len(gross)] = gross
        self._moves[: len(moves)] = moves


class Recomputed:
    """A call that is computed from the current rows of a group whenever the group has changed. It has no state."""

    nbytes = 0

    def __init__(self, call: Call) -> None:
        self._call = call

    def compute(self, count: int, places: Int64s, columns: Sequence[Values], ts: Int64s) -> Vector:
        """The results of so many groups, from rows with the number of their group."""
        state: Any = Distinct(self._call) if self._call.distinct else self._call.make(True)
        state.reserve(max(count, 1))
        if len(places):
            state.update(places, columns, ts)
        results: Vector = state.finish(np.arange(count))
        return results


def _way_of(call: Call) -> Adjusted | Recomputed:
    adjusts = isinstance(call.make(True), RetractableAccumulator) and not call.distinct
    return Adjusted(call) if adjusts else Recomputed(call)


class CurrentTotals(UpdateState):
    """The current row of each key, the groups of these rows, and the newest time and last state emitted per group.

    A row whose group or arguments cannot be computed still replaces its key's, and counts in no group.
    """

    _newest: KeyVersions

    def __init__(self, spec: AggregateSpec, operator: Operator) -> None:
        assert spec.replaces is not None
        self._spec = spec
        self._operator = operator
        self._grouping = grouping = Grouping(spec)
        self._calls = [_way_of(call) for call in grouping.calls]
        self._newest = KeyVersions(operator.inputs[0].schema, spec.replaces)
        # The calls' arguments in each current row.
        types = {at: type for call in grouping.calls for at, type in zip(call.arguments, call.types, strict=True)}
        self._arguments = sorted(types)
        self._rows = ColumnStore([types[at] for at in self._arguments])
        self._times = np.zeros(0, np.int64)
        self._order = np.zeros(0, np.int64)
        self._taken = 0
        self._groups = KeyIndex(operator.output.schema.fields[: len(spec.keys)])
        self._members = Members()
        self._given = np.zeros(0, np.int64)
        self._arrived = np.zeros(0, np.int64)
        self._shown = np.zeros(0, np.bool_)
        self.owes = not spec.keys

    # -- taking --------------------------------------------------------------------------------------------------------

    def consume(self, batch: Batch) -> Batch | None:
        newest, slots = self._newest.newest_rows(batch)
        if not len(newest):
            return None
        batch = batch.take(newest)
        rows, dead = self._evaluated(batch)
        if self._spec.emit == "latest":
            parts = [self._change(rows, slots, dead)]
        else:
            places = range(len(slots))
            parts = [self._change(rows.slice(at, at + 1), slots[at : at + 1], dead[at : at + 1]) for at in places]
        changes = [part for part in parts if part is not None]
        if not changes:
            return None
        batch = Batch.concat(changes)
        return batch if len(batch) else None

    def begin(self, ts: int, now_us: int) -> Batch | None:
        self.owes = False
        groups = self._groups.find([], [], 1)
        self._reserve(self._newest.count, self._groups.count)
        self._given[0], self._arrived[0] = ts, now_us
        return self._built(groups)

    def _evaluated(self, batch: Batch) -> tuple[ComputedRows, Bools]:
        """Groups and arguments, and which rows are in no group: tombstones, and rows that cannot be computed."""
        gone = gone_of(batch)
        rows, errors = self._grouping.evaluate(batch)
        dead = np.zeros(len(batch), np.bool_) if gone is None else gone
        if errors is not None and gone is not None:
            errors = without(errors, gone)
        if errors is not None:
            self._operator.failed(int(errors.rows.sum()), errors.reason)
            dead = dead | errors.rows
        return rows, dead

    def _change(self, rows: ComputedRows, slots: Int64s, dead: Bools) -> Batch | None:
        """Let rows replace the earlier ones of their keys; the rows of the groups that this has changed.

        Of a key's rows only the last counts, but each changes the group that it joins and the one that it leaves: a
        group's time does not depend on which rows are taken together.
        """
        groups = self._groups_of(rows, dead)
        keys, count = self._newest.count, self._groups.count
        self._reserve(keys, count)
        # A row is the cause of the change in the group that it leaves, and in the group that it joins.
        owners = np.stack([before_each(slots, groups, self._members.owner), groups], axis=1).reshape(-1)
        causes = np.repeat(np.arange(len(slots)), 2)[owners >= 0]
        owners = owners[owners >= 0]
        self._replace(rows, slots, groups)
        if not len(owners):
            return None
        self.owes = False
        accumulating.raise_to(owners, rows.ts[causes], self._given)
        accumulating.raise_to(owners, np.ascontiguousarray(rows.arrival)[causes], self._arrived)
        return self._built(owners[last_of_each(owners)])

    def _replace(self, rows: ComputedRows, slots: Int64s, groups: Int64s) -> None:
        """Let the last row of each key replace the one before the batch."""
        last = last_of_each(slots)
        if len(last) < len(slots):
            rows, slots, groups = rows.take(last), slots[last], groups[last]
        old = self._members.move(slots, groups)
        self._adjust(rows, slots, old, groups)
        self._order[slots] = np.arange(self._taken, self._taken + len(slots))
        self._taken += len(slots)
        self._times[slots] = rows.ts

    def _groups_of(self, rows: ComputedRows, dead: Bools) -> Int64s:
        groups = np.full(len(dead), -1, np.int64)
        alive = np.flatnonzero(~dead)
        known = rows if len(alive) == len(dead) else rows.take(alive)
        at = self._grouping.key_columns
        if len(alive):
            groups[alive] = self._groups.find([known.columns[k] for k in at], [known.valid[k] for k in at], len(alive))
        return groups

    def _reserve(self, keys: int, groups: int) -> None:
        self._rows.reserve(keys)
        self._times = grown(self._times, keys, 0)
        self._order = grown(self._order, keys, 0)
        self._members.reserve(keys, groups)
        self._given = grown(self._given, groups, MIN_TIME)
        self._arrived = grown(self._arrived, groups, MIN_TIME)
        self._shown = grown(self._shown, groups, False)
        for call in self._calls:
            if isinstance(call, Adjusted):
                call.reserve(groups)

    def _adjust(self, rows: ComputedRows, slots: Int64s, old: Int64s, groups: Int64s) -> None:
        """Subtract the replaced rows, and store and add the new ones."""
        went, came = np.flatnonzero(old >= 0), np.flatnonzero(groups >= 0)
        adjusted = [(at, call) for at, call in enumerate(self._calls) if isinstance(call, Adjusted)]
        for at, call in adjusted:
            places, columns = self._arguments_of(at, slots[went])
            call.remove(old[went][places], columns)
        self._rows.put(
            slots[came],
            [rows.columns[at][came] for at in self._arguments],
            [None if (mask := rows.valid[at]) is None else mask[came] for at in self._arguments],
        )
        for at, call in adjusted:
            places, columns = self._arguments_of(at, slots[came])
            call.add(groups[came][places], columns)

    def _arguments_of(self, call: int, slots: Int64s) -> tuple[Int64s, list[Values]]:
        """A call's arguments from the rows of these keys: which of them count, and their values."""
        columns = [self._rows.column(self._arguments.index(at), slots) for at in self._grouping.calls[call].arguments]
        there: Bools | None = None
        for _, mask in columns:
            if mask is not None:
                there = mask if there is None else there & mask
        if there is None:
            return np.arange(len(slots)), [values for values, _ in columns]
        places = np.flatnonzero(there)
        return places, [values[places] for values, _ in columns]

    # -- giving --------------------------------------------------------------------------------------------------------

    def _built(self, changed: Int64s) -> Batch | None:
        """The rows of groups, and tombstones of groups that were emitted and have no row any more. The one group of
        all rows always has a row."""
        there = self._members.sizes[changed] > 0 if self._spec.keys else np.ones(len(changed), np.bool_)
        reported = there | self._shown[changed]
        changed, there = changed[reported], there[reported]
        before = self._shown[changed]
        self._shown[changed] = there
        if not len(changed):
            return None
        live = changed[there]
        columns: list[Column] = list(self._groups.columns(changed))
        faults: Faults | None = None
        schema = self._operator.output.schema
        for field, (values, mask, failed) in zip(schema.fields[len(columns) :], self._results(live), strict=False):
            columns.append(_spread(values, mask, there, FILLERS[field.type]))
            if failed is not None:
                faults = first_fault(faults, failed)
        if schema.retracts:
            columns.append((~there, None))
        batch = Batch(
            schema, self._given[changed], [v for v, _ in columns], [m for _, m in columns], self._arrived[changed]
        )
        if faults is None or not faults.any():
            return batch
        # A row that cannot be computed is not emitted: the group's last row, if any, stays valid.
        failed = faults != 0
        self._shown[live[failed]] = before[there][failed]
        return self._without_failed(batch, there, faults, failed)

    def _without_failed(self, batch: Batch, there: Bools, faults: Faults, failed: Bools) -> Batch:
        self._operator.failed(int(failed.sum()), REASONS[Fault(int(faults[failed][0]))])
        passing = np.ones(len(batch), np.bool_)
        passing[np.flatnonzero(there)[failed]] = False
        return batch.take(passing)

    def _results(self, groups: Int64s) -> list[Vector]:
        """By call, the results of these groups."""
        results: list[Vector] = []
        members = local = None
        for at, call in enumerate(self._calls):
            if isinstance(call, Adjusted):
                results.append(call.finish(groups, partial(self._current, at)))
                continue
            if members is None or local is None:
                members, local = self._located(groups)
            places, columns = self._arguments_of(at, members)
            results.append(call.compute(len(groups), local[places], columns, self._times[members[places]]))
        return results

    def _located(self, groups: Int64s) -> tuple[Int64s, Int64s]:
        """The keys that are in these groups, as their rows came, and for each the place of its group among them."""
        members = self._members.of(groups)
        members = members[np.argsort(self._order[members], kind="stable")]
        order = np.argsort(groups, kind="stable")
        return members, order[np.searchsorted(groups[order], self._members.owner[members])]

    def _current(self, call: int, groups: Int64s) -> tuple[Int64s, list[Values]]:
        members, local = self._located(groups)
        places, columns = self._arguments_of(call, members)
        return local[places], columns

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def tuples(self) -> int:
        return self._newest.count + self._groups.count

    @property
    def nbytes(self) -> int:
        parts = (self._newest, self._rows, self._groups, self._members, *self._calls)
        arrays = (self._times, self._order, self._given, self._arrived, self._shown)
        return sum(part.nbytes for part in parts) + sum(int(array.nbytes) for array in arrays)

    def save(self) -> Any:
        keys, groups = self._newest.count, self._groups.count
        calls = [call.save(groups) if isinstance(call, Adjusted) else None for call in self._calls]
        return [
            self._newest.save(),
            self._groups.save(),
            groups,
            self._members.save(keys),
            self._rows.save(keys),
            [self._times[:keys].copy(), self._order[:keys].copy(), self._taken],
            [self._given[:groups].copy(), self._arrived[:groups].copy(), self._shown[:groups].copy(), self.owes],
            calls,
        ]

    def restore(self, data: Any) -> None:
        newest, numbers, groups, members, rows, (times, order, self._taken), said, calls = data
        self._newest.restore(newest)
        self._groups.restore(numbers)
        self._rows.restore(rows)
        self._times, self._order = times.copy(), order.copy()
        *arrays, self.owes = said
        self._given, self._arrived, self._shown = (array.copy() for array in arrays)
        self._members.restore(members, groups)
        self._reserve(self._newest.count, groups)
        for call, saved in zip(self._calls, calls, strict=True):
            if isinstance(call, Adjusted):
                call.restore(saved)


def _spread(values: Values, mask: Bools | None, there: Bools, filler: Any) -> Column:
    """Results of the groups that have rows, with nulls for the others."""
    if there.all():
        return values, mask
    valid = there.copy()
    if mask is not None:
        valid[there] = mask
    return spread(values, there, filler), valid
