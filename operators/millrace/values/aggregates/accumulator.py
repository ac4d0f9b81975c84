"""The state of one aggregate for all groups of a table.

An accumulator keeps arrays by slot (a group's number in its table, see `groups.py`). It receives only rows that count:
nulls, FILTER and DISTINCT have been applied. `merge` adds groups of another accumulator of the same kind (some of its
slots, or a range), each to its slot in `slots`; several may go into one, in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self, cast

import numpy as np

from millrace.protocol import MAX_INT64, Type
from millrace.values.arrays import resized
from millrace.values.batch import DTYPES, FILLERS, Bools, Int64s, Values, cells, column_of
from millrace.values.functions.faults import Fault
from millrace.values.functions.vectors import Faults, Vector, faults_where
from millrace.values.kernels import accumulating
from millrace.values.kernels import texts as kernel
from millrace.values.texts import as_texts

Make = Callable[[], "Accumulator"]
# Slots of a table: a range, or each by its number.
Rows = slice | Int64s
# Kept by reference in arrays of objects.
OBJECTS = (Type.TEXT, Type.BYTES)


def numbers(rows: Rows) -> Sequence[int]:
    """The numbers of these slots."""
    return range(rows.start, rows.stop) if isinstance(rows, slice) else cast("list[int]", rows.tolist())


class Accumulator(ABC):
    """One aggregate's state, by slot."""

    def words(self) -> int:
        """How many int64 of a group's row in its table hold its state (`place`); other state has its own arrays."""
        return 0

    def place(self, block: Int64s, at: int) -> int:
        """Keep state in the words of this block from `at` on, which hold it already; where the next state starts."""
        return at

    @abstractmethod
    def reserve(self, room: int) -> None:
        """Make room for this many groups in its own arrays."""

    @abstractmethod
    def update(self, slots: Int64s, columns: Sequence[Values], ts: Int64s) -> None:
        """Add rows: each one's group, its arguments, its time."""

    @abstractmethod
    def merge(self, other: Self, slots: Int64s, rows: Rows) -> None:
        """Add another accumulator's groups."""

    @abstractmethod
    def finish(self, slots: Int64s) -> Vector:
        """The results of these groups."""

    @abstractmethod
    def clear(self, slots: Int64s) -> None:
        """Reset these groups."""

    @abstractmethod
    def save(self, count: int) -> Any:
        """The state of the first `count` groups as plain data."""

    def essence(self, slots: Int64s) -> Any:
        """The state of these groups, as far as possible independent of the slots."""
        return self.save(int(slots.max(initial=-1)) + 1)

    @abstractmethod
    def restore(self, data: Any) -> None:
        """Restore the result of `save`."""

    @property
    def nbytes(self) -> int:
        return 0


class RetractableAccumulator(ABC):
    """An aggregate from which rows can be removed, as if they had never been added."""

    @abstractmethod
    def remove(self, slots: Int64s, columns: Sequence[Values]) -> None:
        """Remove rows: each one's group, its arguments."""


_INT64 = np.dtype(np.int64)
_DOUBLE = np.dtype(np.float64)
_BYTE = np.dtype(np.uint8)


class Arrays(Accumulator):
    """An accumulator all of whose state is arrays: `fields` says their names, types and numbers per group."""

    fields: Sequence[tuple[str, np.dtype[Any], int]] = ()
    _placed = False

    def __init__(self) -> None:
        # The fields that take one word per group, and the others.
        self._rowed: list[tuple[str, np.dtype[Any], int]] = []
        self._alone: list[tuple[str, np.dtype[Any], int]] = []
        for field in self.fields:
            is_word = field[2] == 1 and (field[1] is _INT64 or field[1] is _DOUBLE)
            (self._rowed if is_word else self._alone).append(field)
        for name, dtype, _ in self.fields:
            setattr(self, name, np.zeros(0, dtype))

    def words(self) -> int:
        return len(self._rowed)

    def place(self, block: Int64s, at: int) -> int:
        self._placed = True
        for name, dtype, _ in self._rowed:
            column = block[:, at]
            setattr(self, name, column if dtype is _INT64 else column.view(dtype))
            at += 1
        return at

    def _elsewhere(self) -> Sequence[tuple[str, np.dtype[Any], int]]:
        """The fields that have their own arrays."""
        return self._alone if self._placed else self.fields

    def reserve(self, room: int) -> None:
        for name, _, width in self._elsewhere():
            setattr(self, name, resized(getattr(self, name), room * width))

    def clear(self, slots: Int64s) -> None:
        for name, dtype, width in self.fields:
            for at in range(width):
                getattr(self, name)[slots * width + at] = None if dtype.hasobject else 0

    def save(self, count: int) -> Any:
        return [getattr(self, name)[: count * width].copy() for name, _, width in self.fields]

    def essence(self, slots: Int64s) -> Any:
        return [getattr(self, name).reshape(-1, width)[slots] for name, _, width in self.fields]

    def restore(self, data: Any) -> None:
        for (name, _, _), saved in zip(self.fields, data, strict=True):
            array = getattr(self, name)
            array[: len(saved)] = saved

    @property
    def nbytes(self) -> int:
        """Of its own arrays."""
        return sum(int(getattr(self, name).nbytes) for name, _, _ in self._elsewhere())


def ordinals(values: Values, type: Type) -> Int64s:
    """Integers that compare as the values do: not for text and bytes."""
    if type is Type.DOUBLE:
        # Below zero, doubles' bits fall while the numbers rise. Adding 0.0 makes both zeros one.
        bits: Int64s = (values + 0.0).view(np.int64)
        return bits ^ ((bits >> 63) & MAX_INT64)
    return values.astype(np.int64, copy=False)


class Count(Arrays, RetractableAccumulator):
    """How many rows."""

    fields = (("counts", _INT64, 1),)
    counts: Int64s

    def update(self, slots: Int64s, columns: Sequence[Values], ts: Int64s) -> None:
        accumulating.add_one(slots, self.counts)

    def merge(self, other: Self, slots: Int64s, rows: Rows) -> None:
        accumulating.add(slots, other.counts[rows], self.counts)

    def remove(self, slots: Int64s, columns: Sequence[Values]) -> None:
        accumulating.add(slots, np.full(len(slots), -1, np.int64), self.counts)

    def finish(self, slots: Int64s) -> Vector:
        return self.counts[slots], None, None


class WideSum(Arrays, RetractableAccumulator):
    """Exact sums of integers, null for nothing. One that does not fit 64 bits in the end is an error of its row."""

    fields = (("low", _INT64, 1), ("high", _INT64, 1), ("counts", _INT64, 1))
    low: Int64s
    high: Int64s
    counts: Int64s
    fault = Fault.BIGINT_RANGE

    def update(self, slots: Int64s, columns: Sequence[Values], ts: Int64s) -> None:
        accumulating.count_and_add(slots, columns[0], self.low, self.high, self.counts)

    def remove(self, slots: Int64s, columns: Sequence[Values]) -> None:
        # -x = ~x + 1, in two steps because the least integer has no negative.
        accumulating.add_wide(slots, ~columns[0], self.low, self.high)
        accumulating.add_wide(slots, np.ones(len(slots), np.int64), self.low, self.high)
        accumulating.add(slots, np.full(len(slots), -1, np.int64), self.counts)

    def merge(self, other: Self, slots: Int64s, rows: Rows) -> None:
        accumulating.add_wide(slots, other.low[rows], self.low, self.high)
        accumulating.add(slots, other.high[rows], self.high)
        accumulating.add(slots, other.counts[rows], self.counts)

    def finish(self, slots: Int64s) -> Vector:
        valid = self.counts[slots] != 0
        return self.low[slots], _mask(valid), faults_where(self.high[slots] != 0, self.fault)


class IntervalSum(WideSum):
    """Sums of intervals."""

    fault = Fault.INTERVAL_RANGE


class WideMean(WideSum):
    """Means of integers, from exact sums."""

    def finish(self, slots: Int64s) -> Vector:
        counts = self.counts[slots]
        sums = self.low[slots] + self.high[slots] * 2.0**64
        return sums / np.maximum(counts, 1), _mask(counts != 0), None


class PreciseSum(Arrays, RetractableAccumulator):
    """Sums of doubles, hardly changed by their order. One that is not finite is an error of its row."""

    fields = (("sums", _DOUBLE, 2), ("counts", _INT64, 1))
    sums: Values
    counts: Int64s

    def update(self, slots: Int64s, columns: Sequence[Values], ts: Int64s) -> None:
        accumulating.add_precise(slots, columns[0], self.sums)
        accumulating.add_one(slots, self.counts)

    def remove(self, slots: Int64s, columns: Sequence[Values]) -> None:
        accumulating.add_precise(slots, -columns[0], self.sums)
        accumulating.add(slots, np.full(len(slots), -1, np.int64), self.counts)

    def merge(self, other: Self, slots: Int64s, rows: Rows) -> None:
        sums = other.sums.reshape(-1, 2)[rows]
        accumulating.add_precise(slots, sums[:, 0], self.sums)
        accumulating.add_precise(slots, sums[:, 1], self.sums)
        accumulating.add(slots, other.counts[rows], self.counts)

    def finish(self, slots: Int64s) -> Vector:
        return self._result(slots, self.sums[2 * slots] + self.sums[2 * slots + 1], self.counts[slots])

    def _result(self, slots: Int64s, sums: Values, counts: Int64s) -> Vector:
        return _finite(sums, counts != 0)


class PreciseMean(PreciseSum):
    """Means of doubles."""

    def _result(self, slots: Int64s, sums: Values, counts: Int64s) -> Vector:
        return _finite(sums / np.maximum(counts, 1), counts != 0)


class Deviation(Arrays):
    """The sample's standard deviation: null for fewer than two values."""

    fields = (("moments", _DOUBLE, 3),)
    moments: Values

    def update(self, slots: Int64s, columns: Sequence[Values], ts: Int64s) -> None:
        accumulating.add_moments(slots, columns[0].astype(np.float64, copy=False), self.moments)

    def merge(self, other: Self, slots: Int64s, rows: Rows) -> None:
        accumulating.merge_moments(slots, other.moments.reshape(-1, 3)[rows].reshape(-1), self.moments)

    def finish(self, slots: Int64s) -> Vector:
        counts = self.moments[3 * slots]
        squares = self.moments[3 * slots + 2]
        return _finite(np.sqrt(squares / np.maximum(counts - 1, 1)), counts > 1)


class Extreme(Arrays):
    """The least or the greatest value of a type whose values integers can represent."""

    fields = (("best", _INT64, 1), ("seen", _BYTE, 1))
    best: Int64s
    seen: Values

    def __init__(self, type: Type, greatest: bool) -> None:
        super().__init__()
        self._type = type
        self._greatest = greatest

    def update(self, slots: Int64s, columns: Sequence[Values], ts: Int64s) -> None:
        found = ordinals(columns[0], self._type)
        accumulating.least(slots, ~found if self._greatest else found, self.best, self.seen)

    def merge(self, other: Self, slots: Int64s, rows: Rows) -> None:
        there = other.seen[rows] != 0
        accumulating.least(slots[there], other.best[rows][there], self.best, self.seen)

    def finish(self, slots: Int64s) -> Vector:
        found = ~self.best[slots] if self._greatest else self.best[slots]
        valid = self.seen[slots] != 0
        if self._type is Type.DOUBLE:
            found = np.where(valid, found ^ ((found >> 63) & MAX_INT64), 0)
            return found.view(np.float64), _mask(valid), None
        return np.where(valid, found, 0).astype(DTYPES[self._type]), _mask(valid), None


class Chosen(Arrays):
    """A value of the first row by rank, then by time; of equal ones, of the older row (or, if `newer`, of the newer).

    first: the time is the rank. last: the time turned over, and newer. arg_min and arg_max: the rank is the second
    argument, and of equal ones the earliest counts.
    """

    best_rank: Int64s
    best_time: Int64s
    seen: Values
    values: Values

    def __init__(self, type: Type, by: Type | None, greatest: bool) -> None:
        self._type = type
        self._by = by
        self._greatest = greatest
        self._newer = by is None and greatest
        self.fields = (
            ("best_rank", _INT64, 1),
            ("best_time", _INT64, 1),
            ("seen", _BYTE, 1),
            ("values", DTYPES[type], 1),
        )
        super().__init__()
        self.values = cells(type)

    def update(self, slots: Int64s, columns: Sequence[Values], ts: Int64s) -> None:
        ranks = ts if self._by is None else ordinals(columns[1], self._by)
        if self._greatest:
            ranks = ~ranks
        self._choose(slots, ranks, ts, columns[0])

    def merge(self, other: Self, slots: Int64s, rows: Rows) -> None:
        there = other.seen[rows] != 0
        taken = (array[rows][there] for array in (other.best_rank, other.best_time, other.values))
        self._choose(slots[there], *taken)

    def _choose(self, slots: Int64s, ranks: Int64s, times: Int64s, values: Values) -> None:
        won = np.zeros(len(slots), np.uint8)
        times = ranks if self._by is None else times
        accumulating.choose(slots, ranks, times, self._newer, self.best_rank, self.best_time, self.seen, won)
        rows = won.view(np.bool_)
        # Of several rows of one group numpy leaves the last, which is the best.
        self.values[slots[rows]] = values[rows]

    def finish(self, slots: Int64s) -> Vector:
        return _filled(self.values[slots], self.seen[slots] != 0, self._type)


class Compared(Arrays):
    """min, max, arg_min and arg_max by texts or bytes, which integers cannot represent; of equal ones the earliest
    counts.

    by   by slot the best text (or bytes); `values` has the results, and is the same column for min and max
    """

    best_time: Int64s
    seen: Values
    by: Values
    values: Values
    fields = (("best_time", _INT64, 1), ("seen", _BYTE, 1))

    def __init__(self, type: Type, by: Type | None, greatest: bool) -> None:
        super().__init__()
        self._type = type
        self._by = type if by is None else by
        self._better = np.greater if greatest else np.less
        self._greatest = greatest
        self.values = cells(type)
        self.by = self.values if by is None else cells(by)
        self._rows = np.zeros(0, np.int32)

    @property
    def _columns(self) -> list[tuple[str, Type]]:
        alone = self.by is self.values
        return [("values", self._type), *([] if alone else [("by", self._by)])]

    def reserve(self, room: int) -> None:
        super().reserve(room)
        self._rows = resized(self._rows, room)
        alone = self.by is self.values
        self.values = resized(self.values, room)
        self.by = self.values if alone else resized(self.by, room)

    def clear(self, slots: Int64s) -> None:
        super().clear(slots)
        for name, type in self._columns:
            getattr(self, name)[slots] = FILLERS[type]

    def update(self, slots: Int64s, columns: Sequence[Values], ts: Int64s) -> None:
        self._offer(slots, columns[0], columns[-1], ts)

    def merge(self, other: Self, slots: Int64s, rows: Rows) -> None:
        there = np.flatnonzero(other.seen[rows])
        at = there + rows.start if isinstance(rows, slice) else rows[there]
        self._offer(slots[there], other.values[at], other.by[at], other.best_time[at])

    def _offer(self, slots: Int64s, values: Values, by: Values, ts: Int64s) -> None:
        """Let rows compete: with each other first, the best ones then with those that are kept."""
        texts = as_texts(by, self._by is Type.BYTES)
        rows = np.empty(len(slots), np.int64)
        slots, ts = np.ascontiguousarray(slots), np.ascontiguousarray(ts)
        count = kernel.best(texts.data, texts.offsets, slots, ts, self._greatest, self._rows, rows)
        rows = rows[:count]
        slots, ts = slots[rows], ts[rows]
        new, old = cast(Values, texts[rows]), self.by[slots]
        wins = self._better(new, old) | (self.seen[slots] == 0) | ((new == old) & (ts < self.best_time[slots]))
        rows, slots = rows[wins], slots[wins]
        self.best_time[slots], self.seen[slots] = ts[wins], 1
        self.values[slots] = values[rows]
        if self.by is not self.values:
            self.by[slots] = new[wins]

    def finish(self, slots: Int64s) -> Vector:
        return _filled(self.values[slots], self.seen[slots] != 0, self._type)

    def save(self, count: int) -> Any:
        return [*super().save(count), *(getattr(self, name)[:count].copy() for name, _ in self._columns)]

    def essence(self, slots: Int64s) -> Any:
        return [*super().essence(slots), *(getattr(self, name)[slots].tolist() for name, _ in self._columns)]

    def restore(self, data: Any) -> None:
        if not data or not isinstance(data[0], np.ndarray):
            data = self._listed(data)
        super().restore(data[:2])
        for (name, _), saved in zip(self._columns, data[2:], strict=True):
            getattr(self, name)[: len(saved)] = saved

    def _listed(self, rows: Sequence[Any]) -> list[Any]:
        """The state that version 0.2 saved as a list: by slot None, or the text, its time and the result."""
        filled = [(FILLERS[self._by], 0, FILLERS[self._type]) if row is None else row for row in rows]
        by, times, values = zip(*filled, strict=True) if filled else ((), (), ())
        seen = np.array([row is not None for row in rows], np.uint8)
        columns = {"by": column_of(self._by, by), "values": column_of(self._type, values)}
        return [np.array(times, np.int64), seen, *(columns[name] for name, _ in self._columns)]

    @property
    def nbytes(self) -> int:
        columns = sum(int(getattr(self, name).nbytes) for name, _ in self._columns)
        return super().nbytes + int(self._rows.nbytes) + columns


# -- vectors of results ------------------------------------------------------------------------------------------------


def _mask(valid: Bools) -> Bools | None:
    return None if valid.all() else valid


def _finite(values: Values, valid: Bools) -> Vector:
    faults: Faults | None = faults_where(valid & ~np.isfinite(values), Fault.DOUBLE_RANGE)
    return np.where(valid, values, 0.0), _mask(valid), faults


def _filled(values: Values, valid: Bools, type: Type) -> Vector:
    if valid.all():
        return values, None, None
    return np.where(valid, values, FILLERS[type]).astype(DTYPES[type], copy=False), valid, None
