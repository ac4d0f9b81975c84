"""What the operators over update streams share: the newest row of each key, tombstones, and members of groups.

A row replaces its key's previous row. Newest means newest by event time: an older row that arrives later is superseded
at once. Of rows of one time the later arrival counts.

A tombstone says that its key has no row any more: the last column, `$gone`, is true, and its other columns are null
except the key's (`retracting` in `frame/spec.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace.operators.frame.operator import Operator, Site
from millrace.operators.updates import kernel as replacing
from millrace.operators.updates.key_index import Column, KeyIndex
from millrace.protocol import Schema, Type
from millrace.values.arrays import grown
from millrace.values.batch import FILLERS, Batch, Bools, Int64s, Values, cells, cells_of
from millrace.values.eventtime import MAX_TIME, MIN_TIME, is_time
from millrace.values.kernels import grouping


def gone_of(batch: Batch) -> Bools | None:
    """Which rows are tombstones; None if none is."""
    if not batch.schema.retracts:
        return None
    gone: Bools = batch.columns[-1]
    return gone if gone.any() else None


def blanked(values: Values, valid: Bools | None, gone: Bools, filler: Any) -> tuple[Values, Bools]:
    """A column that is null where rows are gone."""
    values = np.where(gone, filler, values)
    return values, ~gone if valid is None else valid & ~gone


def last_of_each(slots: Int64s) -> Int64s:
    """Where each slot stands last, in the order of those places."""
    if len(slots) == 1:
        return np.zeros(1, np.int64)
    _, back = np.unique(slots[::-1], return_index=True)
    return np.sort(len(slots) - 1 - back)


def before_each(slots: Int64s, values: Int64s, last: Int64s) -> Int64s:
    """The value before each row's own of its slot: the previous row's, or for the first row the last one."""
    before: Int64s = last[slots]
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    before[order[again + 1]] = values[order[again]]
    return before


class KeyVersions:
    """The keys of an update stream, and the newest time of each."""

    def __init__(self, schema: Schema, key: Sequence[int]) -> None:
        self._key = list(key)
        self._key_index = KeyIndex([schema.fields[at] for at in key])
        self._last = np.zeros(0, np.int64)
        self.superseded = 0

    @property
    def count(self) -> int:
        return self._key_index.count

    def slots(self, batch: Batch) -> Int64s:
        """The number of each row's key."""
        columns = [batch.columns[at] for at in self._key]
        slots = self._key_index.find(columns, [batch.valid[at] for at in self._key], len(batch))
        self._last = grown(self._last, self.count, MIN_TIME)
        return slots

    def newest_rows(self, batch: Batch) -> tuple[Int64s, Int64s]:
        """The rows that count, which are not older than any before of their key, and their keys."""
        slots = self.slots(batch)
        current = np.zeros(len(slots), np.uint8)
        replacing.newest(slots, batch.ts, self._last, current)
        rows = np.flatnonzero(current)
        self.superseded += len(slots) - len(rows)
        return rows, slots[rows]

    @property
    def nbytes(self) -> int:
        return self._key_index.nbytes + self._last.nbytes

    def save(self) -> Any:
        return [self._key_index.save(), self._last[: self.count].copy(), self.superseded]

    def restore(self, data: Any) -> None:
        numbers, last, self.superseded = data
        self._key_index.restore(numbers)
        self._last = last.copy()


class ColumnStore:
    """Rows of columns by slot."""

    def __init__(self, types: Sequence[Type]) -> None:
        self._types = list(types)
        self._columns: list[Values] = [cells(type) for type in types]
        self._valid: list[Values] = [np.zeros(0, np.bool_) for _ in types]

    def reserve(self, count: int) -> None:
        for at, type in enumerate(self._types):
            self._columns[at] = grown(self._columns[at], count, FILLERS[type])
            self._valid[at] = grown(self._valid[at], count, False)

    def put(self, slots: Int64s, columns: Sequence[Values], valid: Sequence[Bools | None]) -> None:
        for own, there, column, mask in zip(self._columns, self._valid, columns, valid, strict=True):
            own[slots] = column
            there[slots] = True if mask is None else mask

    def clear(self, slots: Int64s) -> None:
        """Drop references to values."""
        for own, type in zip(self._columns, self._types, strict=True):
            if own.dtype.hasobject:
                own[slots] = FILLERS[type]

    def column(self, at: int, slots: Int64s) -> Column:
        there: Bools = self._valid[at][slots]
        return self._columns[at][slots], None if there.all() else there

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in (*self._columns, *self._valid))

    def save(self, count: int) -> Any:
        return [[array[:count].copy() for array in arrays] for arrays in (self._columns, self._valid)]

    def restore(self, data: Any) -> None:
        columns, valid = data
        self._columns = [cells_of(type, column) for type, column in zip(self._types, columns, strict=True)]
        self._valid = [array.copy() for array in valid]


class Members:
    """Which owner each member belongs to, and the members of each owner."""

    def __init__(self) -> None:
        self.owner, self._following, self._before, self._head, self.sizes = (np.zeros(0, np.int64) for _ in range(5))

    def reserve(self, members: int, owners: int) -> None:
        self.owner = grown(self.owner, members, -1)
        self._following = grown(self._following, members, -1)
        self._before = grown(self._before, members, -1)
        self._head = grown(self._head, owners, -1)
        self.sizes = grown(self.sizes, owners, 0)

    def move(self, members: Int64s, owners: Int64s) -> Int64s:
        """Move members, each once, to these owners (-1: to none); their previous owners."""
        old: Int64s = self.owner[members]
        np.subtract.at(self.sizes, old[old >= 0], 1)
        np.add.at(self.sizes, owners[owners >= 0], 1)
        replacing.move(members, owners, self.owner, self._head, self._following, self._before)
        return old

    def of(self, owners: Int64s) -> Int64s:
        """All members of these owners."""
        members = np.empty(int(self.sizes[owners].sum()), np.int64)
        grouping.chained(owners, self._head, self._following, members)
        return members

    @property
    def nbytes(self) -> int:
        arrays = (self.owner, self._following, self._before, self._head, self.sizes)
        return sum(int(array.nbytes) for array in arrays)

    def save(self, members: int) -> Any:
        return self.owner[:members].copy()

    def restore(self, data: Any, owners: int) -> None:
        members = np.flatnonzero(data >= 0)
        self.reserve(len(data), owners)
        self.move(members, data[members])


# -- operators with state ----------------------------------------------------------------------------------------------


class UpdateState(ABC):
    """The state of an operator, and the rows that follow from new ones.

    _newest   the keys, if the input is an update stream
    owes      whether it still has to emit the row over no rows (an aggregate of all rows, without groups)
    """

    _newest: KeyVersions | None = None
    owes: bool = False

    @property
    def superseded(self) -> int:
        """Rows older than the one that their key had when they arrived."""
        return 0 if self._newest is None else self._newest.superseded

    @abstractmethod
    def consume(self, batch: Batch) -> Batch | None:
        """The rows that follow from these."""

    def begin(self, ts: int, now_us: int) -> Batch | None:
        """The row over no rows."""
        raise AssertionError("it owes none")

    @property
    @abstractmethod
    def tuples(self) -> int: ...

    @property
    @abstractmethod
    def nbytes(self) -> int: ...

    @abstractmethod
    def save(self) -> Any: ...

    def essence(self) -> Any:
        """The part that later rows depend on."""
        return self.save()

    @abstractmethod
    def restore(self, data: Any) -> None: ...


def first_time(low_us: int, now_us: int) -> int | None:
    """The time of a row over no rows, if a watermark or the end of the input has come: the watermark, or now."""
    if low_us == MAX_TIME:
        return now_us
    return low_us if is_time(low_us) else None


class Stateful(Operator):
    """Rows as they arrive. The output is in order if the input is; else each key's own rows are."""

    state: UpdateState

    def __init__(self, site: Site) -> None:
        super().__init__(site.name, site.inputs, site.output)

    def run(self, limit: int) -> None:
        batch = self.take(self.inputs[0], limit)
        rows = None if batch is None else self.state.consume(batch)
        if rows is not None:
            self.emit(rows)
        if self.state.owes:
            self.inputs[0].mark_seen()
            self.begin()

    def begin(self) -> None:
        """Emit the row over no rows, if it is due."""

    @property
    def state_tuples(self) -> int:
        return self.state.tuples

    @property
    def state_bytes(self) -> int:
        return self.state.nbytes

    @property
    def superseded(self) -> int:
        return self.state.superseded

    def save(self) -> Any:
        return self.state.save()

    def essence(self) -> Any:
        return self.state.essence()

    def restore(self, data: Any) -> None:
        self.state.restore(data)
