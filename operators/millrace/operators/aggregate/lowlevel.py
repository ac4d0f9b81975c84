"""The states that rows may be in before they count in the table of their pane.

`LowTable` is the paper's low-level aggregation: a hash table of fixed size, from which collisions and closing windows
hand partial results up (OOP, section 6 and figure 7). `BufferedRows` keeps the rows themselves until their pane is
needed (section 5.5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from millrace.operators.aggregate import kernel
from millrace.operators.aggregate.groups import MIX, ComputedRows, Grouping, Keys, Table, side_by_side
from millrace.values.batch import Bools, Int64s, Values
from millrace.values.eventtime import MAX_TIME
from millrace.values.kernels import grouping as hashing

# The most rows that are placed at once, and the fewest for which a table has room. Twice as many groups may lose their
# slots before they are handed up together.
CHUNK: Final = 4096
SMALLEST: Final = 256

KeyColumns = list[tuple[Values, Bools | None]]
# Takes groups into a pane: its number, the table that they are rows of, their keys, and which rows.
HandUp = Callable[[int, Table, KeyColumns, Int64s], None]


class LowTable:
    """Partial results in a fixed number of slots.

    A group's slot follows from its key alone, so a group has it in one pane at a time, and its partial results go up in
    the order in which its tuples arrived. Whichever group needs the slot next evicts it. Evicted groups go up together,
    so that few of them cost little: until then they are in the `spare` rows of the table, of which there are more rows
    than slots.

    count     partial results in it, also evicted ones
    tuples    counted so far
    evicted   partial results that a collision handed up
    flushed   partial results that the end of a window handed up
    """

    def __init__(self, grouping: Grouping, slots: int, hand_up: HandUp) -> None:
        self.slots = slots
        self.count = self.tuples = self.evicted = self.flushed = 0
        self._grouping = grouping
        self._hand_up = hand_up
        self._width = 1 + grouping.width
        self._chunk = min(CHUNK, max(slots, SMALLEST))
        self._spare = 2 * self._chunk
        self._rows = slots + self._spare
        self._table = grouping.table(False)
        self._table.reserve(self._rows)
        self._table.count = self._rows
        self._index = np.zeros(slots, np.int32)
        self._stored = np.zeros(self._rows * self._width, np.int64)
        self._free = np.arange(self._rows - 1, -1, -1)
        self._left = self._rows
        self._lost = np.empty(self._spare, np.int64)
        self._losers = 0
        self._position = 0

    def take(self, panes: Int64s, rows: ComputedRows) -> None:
        """Let rows count, each in the pane of this number."""
        for start in range(0, len(panes), self._chunk):
            stop = start + self._chunk
            self._take(panes[start:stop], rows.slice(start, stop))

    def _take(self, panes: Int64s, rows: ComputedRows) -> None:
        count = len(panes)
        if self._losers + count > self._spare:
            self._up_evicted()
        keys = self._grouping.key_columns
        coded = self._keys.encode([rows.columns[at] for at in keys], [rows.valid[at] for at in keys], count)
        hashes = np.zeros(count, np.int64)
        for column in coded:
            hashing.fold(np.ascontiguousarray(column), 0, MIX, hashes)
        slots = np.empty(count, np.int64)
        flat = side_by_side([panes, *coded]).reshape(-1)
        lost = self._lost[self._losers :]
        before = self._left
        evicted, self._left = kernel.place(
            flat, self._width, hashes, self._index, self._stored, self._free, before, slots, lost
        )
        self.count += before - self._left
        self._losers += evicted
        self._table.update(slots, rows)
        self.tuples += count
        self.evicted += evicted
        if self._keys.texts > 2 * self._rows:
            self._forget_texts()

    def _up_evicted(self) -> None:
        """Hand up the groups that have lost their slots."""
        losers, self._losers = self._losers, 0
        self._up(self._lost[:losers])

    def _up(self, rows: Int64s) -> None:
        """Hand up groups that have no slot, in this order."""
        if not len(rows):
            return
        self.count -= len(rows)
        stored = self._stored.reshape(-1, self._width)[rows]
        numbers = stored[:, 0]
        for number in np.unique(numbers).tolist() if (numbers != numbers[0]).any() else [int(numbers[0])]:
            chosen = np.flatnonzero(numbers == number)
            keys = self._keys.decode_rows(stored[chosen, 1:]) if self._grouping.width else []
            self._hand_up(number, self._table, keys, rows[chosen])
        self._table.clear(rows)
        self._free[self._left : self._left + len(rows)] = rows
        self._left += len(rows)

    def rewind(self) -> None:
        """The next window is about to close: look through all slots again."""
        self._position = 0

    def leave(self, beyond: int, limit: int) -> int:
        """Hand up at most so many groups of panes before this one; how many. None is left if that is 0."""
        lost = self._losers
        self._up_evicted()
        rows = np.empty(min(limit, self.count), np.int64)
        if not len(rows):
            return lost
        count, self._position = kernel.leave(self._index, self._stored, self._width, beyond, self._position, rows)
        self.flushed += count
        self._up(rows[:count])
        return lost + count

    # -- keys ----------------------------------------------------------------------------------------------------------

    @property
    def _keys(self) -> Keys:
        """It encodes keys; their numbers in it are of no use."""
        return self._table.key_set

    def _forget_texts(self) -> None:
        """Hand up all and start again, so that the texts of keys take no more memory than its groups may."""
        position = self._position
        self.rewind()
        self.leave(MAX_TIME, self._rows)
        self._position = position
        self._table.key_set = Keys(self._grouping.key_types, self._grouping.null_bits)

    # -- state ---------------------------------------------------------------------------------------------------------

    def numbers(self) -> dict[str, int]:
        """For reports."""
        return {
            "slots": self.slots,
            "partials": self.count,
            "table_bytes": self.nbytes,
            "table_tuples": self.tuples,
            "evicted": self.evicted,
            "flushed": self.flushed,
        }

    @property
    def nbytes(self) -> int:
        return self._table.nbytes + self._index.nbytes + self._stored.nbytes + self._free.nbytes + self._lost.nbytes

    def save(self) -> Any:
        counts = [self.count, self.tuples, self.evicted, self.flushed, self._left, self._losers, self._position]
        arrays = [self._index.copy(), self._stored.copy(), self._free.copy(), self._lost[: self._losers].copy()]
        return [counts, arrays, self._table.save()]

    def restore(self, data: Any) -> None:
        counts, arrays, table = data
        self.count, self.tuples, self.evicted, self.flushed, self._left, self._losers, self._position = counts
        self._index, self._stored, self._free, lost = (array.copy() for array in arrays)
        self._lost[: self._losers] = lost
        self._table.restore(table)


class BufferedRows:
    """Rows of a pane as they arrived.

    parts   joined two by two while they are small, so that rows that arrive one by one take little more than a column
    count   rows, and `table` has those that were counted
    """

    def __init__(self, grouping: Grouping, whole: bool) -> None:
        self.table = grouping.table(whole)
        self.parts: list[ComputedRows] = []
        self.count = 0

    def take(self, rows: ComputedRows) -> None:
        self.count += len(rows.ts)
        parts = self.parts
        parts.append(joined([rows]))
        while len(parts) > 1 and len(parts[-2].ts) < min(CHUNK, 2 * len(parts[-1].ts)):
            parts[-2:] = [joined(parts[-2:])]

    def settle(self, limit: int) -> int:
        """Count at most so many rows; how many. The table is complete if no rows are left."""
        done = 0
        while self.parts and done < limit:
            part = self.parts[0]
            count = min(len(part.ts), limit - done)
            self.table.take(part.slice(0, count))
            if count == len(part.ts):
                del self.parts[0]
            else:
                self.parts[0] = part.slice(count, len(part.ts))
            done += count
        self.count -= done
        return done

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + sum(size_of(part) for part in self.parts)

    def save(self) -> Any:
        return [self.table.save(), [list(joined(self.parts))] if self.parts else []]

    def restore(self, data: Any) -> None:
        table, parts = data
        self.table.restore(table)
        self.parts = [ComputedRows(*part) for part in parts]
        self.count = sum(len(part.ts) for part in self.parts)


def joined(parts: Sequence[ComputedRows]) -> ComputedRows:
    """All rows of these, in arrays of their own."""
    first = parts[0]
    return ComputedRows(
        np.concatenate([part.ts for part in parts]),
        np.concatenate([part.arrival for part in parts]),
        [np.concatenate([part.columns[at] for part in parts]) for at in range(len(first.columns))],
        [_masks([(part.valid[at], len(part.ts)) for part in parts]) for at in range(len(first.valid))],
    )


def _masks(masks: Sequence[tuple[Bools | None, int]]) -> Bools | None:
    if all(mask is None for mask, _ in masks):
        return None
    return np.concatenate([np.ones(count, np.bool_) if mask is None else mask for mask, count in masks])


def size_of(rows: ComputedRows) -> int:
    """Their bytes."""
    masks = sum(mask.nbytes for mask in rows.valid if mask is not None)
    return rows.ts.nbytes + rows.arrival.nbytes + masks + sum(column.nbytes for column in rows.columns)
