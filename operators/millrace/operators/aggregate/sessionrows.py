"""Sessions without aggregates: every row is emitted when its session closes, with the session's bounds.

Sessions are found as for aggregates (`sessions.py`). The rows are in a store of columns, linked to a chain per session,
so that two sessions are merged without touching the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace.operators.aggregate.groups import ComputedRows, Grouping, listed
from millrace.operators.aggregate.sessions import Sessions
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.protocol import Field, Schema
from millrace.values.arrays import SMALLEST, resized
from millrace.values.batch import FILLERS, Batch, Bools, Int64s, Values, cells, cells_of
from millrace.values.eventtime import HORIZON_US
from millrace.values.expression import Column
from millrace.values.kernels import grouping as kernel


class SessionRows(Sessions):
    """Open sessions with their rows.

    out    rows of closed sessions, in order: by their session's end, then by their own time, then by arrival. `emitted`
           of them have been emitted
    """

    def __init__(self, spec: AggregateSpec, schema: Schema, since: int | None) -> None:
        fields = schema.fields[: len(schema) - len(spec.bounds)]
        columns = [Column(field.type, field.nullable, at, field.name) for at, field in enumerate(fields)]
        super().__init__(spec, schema, Grouping(spec, stored=columns), since)
        self.store = RowStore(fields)
        self.out: Batch | None = None
        self.emitted = 0

    # -- taking --------------------------------------------------------------------------------------------------------

    def take(self, rows: ComputedRows, at: Int64s) -> None:
        sessions = self.place(rows)
        positions = self.grouping.kept_columns
        self.store.add(rows, [rows.columns[p] for p in positions], [rows.valid[p] for p in positions], sessions)

    def _merge_old(self, there: Int64s, target: Int64s) -> None:
        moved = there != target
        self.store.move(there[moved], target[moved])
        super()._merge_old(there, target)

    # -- giving --------------------------------------------------------------------------------------------------------

    def next_end(self) -> int | None:
        if self.out is not None:
            return int(self.out.ts[self.emitted]) + 1
        return super().next_end()

    def flush(self, limit: int) -> tuple[Batch | None, int]:
        handled = 0
        if limit > 0 and self.out is None and self.due():
            handled = self._take_out(limit)
        if limit <= 0 or self.out is None:
            return None, handled
        stop = min(len(self.out), self.emitted + limit)
        piece = self.out.slice(self.emitted, stop)
        handled = max(handled, len(piece))
        self.emitted = stop
        if stop == len(self.out):
            self.out = None
            self.emitted = 0
        return piece, handled

    def _take_out(self, limit: int) -> int:
        """Take closed sessions' rows out of the store: at least `limit` rows, and all of sessions with equal ends."""
        self._close()
        slots = np.array(self.pending, np.int64)
        ends = self.last[slots] + self.gap
        reach = min(int(np.searchsorted(np.cumsum(self.store.counts[slots]), limit)), len(slots) - 1)
        count = int(np.searchsorted(ends, ends[reach], "right"))
        slots = slots[:count]
        del self.pending[:count]
        places, sessions = self.store.chains(slots)
        if self.since is not None:
            shown = self.first[sessions] >= self.since
            places, sessions = places[shown], sessions[shown]
        if len(places):
            self.out = self._sorted(places, self.first[sessions], self.last[sessions] + self.gap)
        handled = self.store.free(slots)
        self._free(slots)
        self._least = None
        self._tidy()
        return handled

    def _sorted(self, places: Int64s, start: Int64s, end: Int64s) -> Batch:
        store = self.store
        order = np.lexsort((store.number[places], store.ts[places], end))
        places, start, end = places[order], start[order], end[order]
        bounds = [start if which == "start" else end for _, which in self.spec.bounds]
        columns = [column[places] for column in store.columns]
        valid = [None if mask is None or (there := mask[places]).all() else there for mask in store.valid]
        ts = np.minimum(end - 1, HORIZON_US)
        masks = [*valid, *(None for _ in bounds)]
        return Batch(self.schema, ts, [*columns, *bounds], masks, store.arrival[places])

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def tuples(self) -> int:
        """Stored rows."""
        return self.store.count + (0 if self.out is None else len(self.out) - self.emitted)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.store.nbytes + (0 if self.out is None else self.out.nbytes)

    def save(self) -> Any:
        out = None if self.out is None else self.out.slice(self.emitted, len(self.out)).save()
        return [super().save(), self.store.save(), out]

    def essence(self) -> Any:
        out = None if self.out is None else self.out.slice(self.emitted, len(self.out)).save()
        return [super().essence(), self.store.essence(self._slots_by_arrival()), out]

    def restore(self, data: Any) -> None:
        sessions, store, out = data
        super().restore(sessions)
        self.store.restore(store)
        self.out = None if out is None else Batch.restore(out)
        self.emitted = 0


class RowStore:
    """Rows by place, each on the chain of its session; places are used again.

    number             how many rows had come before it
    head, counts       by session, the first row of its chain and how many there are
    following          by place, the next row of its chain; -1 ends it
    valid              a column's mask, once it has had a null
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = fields
        self._taken = 0
        self._begin()

    def _begin(self) -> None:
        """Have no rows."""
        self.count = 0
        self.columns: list[Values] = [cells(field.type) for field in self._fields]
        self.valid: list[Bools | None] = [None] * len(self._fields)
        self.ts, self.arrival, self.number, self.following = (np.empty(0, np.int64) for _ in range(4))
        self._unused = np.empty(0, np.int64)
        self.head = np.empty(0, np.int64)
        self.counts = np.empty(0, np.int64)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def add(
        self, rows: ComputedRows, columns: Sequence[Values], valid: Sequence[Bools | None], sessions: Int64s
    ) -> None:
        """Keep rows on the chains of these sessions."""
        places = self._places(len(sessions))
        for at, (column, mask) in enumerate(zip(columns, valid, strict=True)):
            self.columns[at][places] = column
            own = self.valid[at]
            if own is None and mask is not None:
                own = self.valid[at] = np.ones(len(self.ts), np.bool_)
            if own is not None:
                own[places] = True if mask is None else mask
        self.ts[places] = rows.ts
        self.arrival[places] = rows.arrival
        self.number[places] = np.arange(self._taken, self._taken + len(places))
        self._taken += len(places)
        self._reach(int(sessions.max()))
        kernel.link(places, sessions, self.head, self.following)
        np.add.at(self.counts, sessions, 1)
        self.count += len(places)

    def _places(self, count: int) -> Int64s:
        """Unused places, as many as needed."""
        if len(self._unused) < count:
            size = max(SMALLEST, 2 * len(self.ts), self.count + count)
            fresh = np.arange(len(self.ts), size)
            fillers = [FILLERS[field.type] for field in self._fields]
            self.columns = [resized(column, size, filler) for column, filler in zip(self.columns, fillers, strict=True)]
            self.valid = [None if mask is None else resized(mask, size, True) for mask in self.valid]
            self.ts, self.arrival, self.number, self.following = (
                resized(array, size) for array in (self.ts, self.arrival, self.number, self.following)
            )
            self._unused = np.concatenate((fresh[::-1], self._unused))
        places = self._unused[len(self._unused) - count :][::-1]
        self._unused = self._unused[: len(self._unused) - count]
        return places

    def _reach(self, session: int) -> None:
        """Have a chain for each session up to this one."""
        if session >= len(self.head):
            room = 2 * session + SMALLEST
            self.head, self.counts = resized(self.head, room, -1), resized(self.counts, room)

    # -- chains --------------------------------------------------------------------------------------------------------

    def chains(self, sessions: Int64s) -> tuple[Int64s, Int64s]:
        """The places of these sessions' rows, and each one's session."""
        counts = self.counts[sessions]
        places = np.empty(int(counts.sum()), np.int64)
        kernel.chained(sessions, self.head, self.following, places)
        return places, np.repeat(sessions, counts)

    def move(self, sessions: Int64s, to: Int64s) -> None:
        """Put the rows of sessions onto the chains of others."""
        if not len(sessions):
            return
        places, _ = self.chains(sessions)
        counts = self.counts[sessions]
        self.head[sessions] = -1
        self.counts[sessions] = 0
        kernel.link(places, np.repeat(to, counts), self.head, self.following)
        np.add.at(self.counts, to, counts)

    def free(self, sessions: Int64s) -> int:
        """Drop the rows of these sessions; how many there were."""
        places, _ = self.chains(sessions)
        self.count -= len(places)
        if not self.count:
            self._begin()
            return len(places)
        for field, column in zip(self._fields, self.columns, strict=True):
            if column.dtype.hasobject:
                column[places] = FILLERS[field.type]  # or the texts would live on
        self._unused = np.concatenate((self._unused, places[::-1]))
        self.head[sessions] = -1
        self.counts[sessions] = 0
        return len(places)

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        masks = sum(mask.nbytes for mask in self.valid if mask is not None)
        chains = self.head.nbytes + self.counts.nbytes + self._unused.nbytes
        return int(4 * self.ts.nbytes + masks + chains + sum(column.nbytes for column in self.columns))

    def save(self) -> Any:
        arrays = [self.ts, self.arrival, self.number, self.following, self.head, self.counts, self._unused]
        return [
            self.count,
            self._taken,
            [array.copy() for array in arrays],
            [column[:] for column in self.columns],
            list(self.valid),
        ]

    def essence(self, sessions: Int64s) -> Any:
        """The rows by arrival, each with its session's rank among these."""
        places, _ = self.chains(sessions)
        order = np.argsort(self.number[places])
        places = places[order]
        ranks = np.repeat(np.arange(len(sessions)), self.counts[sessions])[order]
        columns = [
            (column[places], None if mask is None else mask[places])
            for column, mask in zip(self.columns, self.valid, strict=True)
        ]
        return [ranks, self.ts[places], self.arrival[places], listed(columns)]

    def restore(self, data: Any) -> None:
        self.count, self._taken, arrays, columns, valid = data
        self.ts, self.arrival, self.number, self.following, self.head, self.counts, self._unused = (
            array.copy() for array in arrays
        )
        self.columns = [cells_of(field.type, column) for field, column in zip(self._fields, columns, strict=True)]
        self.valid = [None if mask is None else mask.copy() for mask in valid]
