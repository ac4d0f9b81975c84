"""Promises about groups: how far each side has promised for the rows of one group (OOP, appendix A.1.1).

A group is all rows with certain values in the key columns. Its mark is the least over the sides (the feeds of a stream,
the inputs of an operator) of the greater of the side's own mark and the side's promise for the group. It never goes
back. Promises that the marks of all sides have passed are forgotten: only groups that are ahead of the rest are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from millrace.operators.updates.key_index import KeyIndex
from millrace.protocol import Field, Schema
from millrace.values.batch import Batch, Bools, Int64s, Values
from millrace.values.eventtime import MIN_TIME

# Groups that may be ahead at a time: a look at all of them takes 0.1 ms per side.
MOST_GROUPS: Final = 65_536
# So many slots of forgotten groups stay, so that the index is not rebuilt with each promise.
FEW: Final = 1_024

Group = tuple[Any, ...]
# Of some sides, the marks of each, and the least mark of all other sides.
Sides = Callable[[Collection[Hashable]], tuple[Mapping[Hashable, int], int]]


class GroupMarks:
    """The groups that are ahead, and their marks.

    marks     by slot, the group's mark; a group that was only looked up has none
    promises  by side and slot
    turns     by slot, the order in which the stored groups became ahead: results are in this order, whatever the slots
    ahead     how many groups are stored; `ignored` counts the promises for more than MOST_GROUPS
    floor     the mark of all sides, up to which promises have been forgotten
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self._schema = Schema(tuple(fields))
        self.ignored = 0
        self._clear()

    def _clear(self) -> None:
        self._index = KeyIndex(self._schema.fields)
        self.marks, self.turns = np.empty(0, np.int64), np.empty(0, np.int64)
        self._turn = 0
        self.promises: dict[Hashable, Int64s] = {}
        self.ahead = 0
        self.floor = MIN_TIME

    def __bool__(self) -> bool:
        return self.ahead > 0

    # -- promising -----------------------------------------------------------------------------------------------------

    def promise(self, side: Hashable, group: Group, value_us: int) -> bool:
        """The side will send nothing of the group below this time; say whether that is news."""
        batch = Batch.from_rows(self._schema, [group], [0])
        slot = int(self._slots(batch.columns, batch.valid, 1)[0])
        if not self._live()[slot]:
            if self.ahead >= MOST_GROUPS:
                self.ignored += 1
                return False
            self._store(slot)
        row = self.promises.get(side)
        if row is None:
            row = self.promises[side] = np.full(len(self.marks), MIN_TIME, np.int64)
        if value_us <= row[slot]:
            return False
        row[slot] = value_us
        return True

    def _store(self, slot: int) -> None:
        """Start without what was promised of the group before the floor passed it."""
        self.marks[slot] = MIN_TIME
        for row in self.promises.values():
            row[slot] = MIN_TIME
        self.ahead += 1
        self.turns[slot] = self._turn
        self._turn += 1

    def promised(self, side: Hashable, group: Group) -> int:
        """What a side has promised of a group, by a promise about that group."""
        row = self.promises.get(side)
        if row is None:
            return MIN_TIME
        batch = Batch.from_rows(self._schema, [group], [0])
        slot = int(self._slots(batch.columns, batch.valid, 1)[0])
        return int(self.promises[side][slot])

    def mark(self, group: Group) -> int:
        """A group's mark."""
        batch = Batch.from_rows(self._schema, [group], [0])
        return max(int(self.of(batch.columns, batch.valid, 1)[0]), self.floor)

    @property
    def full(self) -> bool:
        return self.ahead >= MOST_GROUPS

    def leave(self, side: Hashable) -> None:
        """The side holds nothing back any more."""
        self.promises.pop(side, None)

    def rise(self, sides: Sides) -> list[tuple[Group, int, int]]:
        """Promises or marks have risen: the groups whose marks rise with them, each with its mark before and now."""
        own, others = sides(self.promises)
        whole = max(self.floor, min([others, *own.values()]))
        found = self._least(own, others)
        risen = self._in_turn(found > np.maximum(self.marks, whole))
        before, now = np.maximum(self.marks[risen], whole).tolist(), found[risen].tolist()
        groups = list(zip(self._index.rows(risen), before, now, strict=True))
        self.marks[risen] = found[risen]
        self.forget(whole)
        return groups

    def _least(self, own: Mapping[Hashable, int], others: int) -> Int64s:
        """By slot, the least over these sides of mark and promise, and the least mark of the others."""
        least = np.full(len(self.marks), others, np.int64)
        for side, mark in own.items():
            np.minimum(least, np.maximum(self.promises[side], mark), out=least)
        return least

    def forget(self, mark: int) -> None:
        """Drop the groups of which nothing is promised above the mark of all sides."""
        self.floor = max(self.floor, mark)
        self.ahead = int(np.count_nonzero(self._live()))
        if not self.ahead:
            self._clear()

    def _in_turn(self, chosen: Bools) -> Int64s:
        slots = np.flatnonzero(chosen)
        return slots[np.argsort(self.turns[slots])]

    def _live(self) -> Bools:
        """By slot, whether anything above the floor is promised."""
        live = self.marks > self.floor
        for row in self.promises.values():
            live |= row > self.floor
        return live

    # -- asking --------------------------------------------------------------------------------------------------------

    def of(self, columns: Sequence[Values], valid: Sequence[Bools | None], rows: int) -> Int64s:
        """The marks of the rows' groups; of most groups there is none, and MIN_TIME or less than the floor instead."""
        slots = self._slots(columns, valid, rows)
        found: Int64s = self.marks[slots]
        return found

    def promises_of(
        self, columns: Sequence[Values], valid: Sequence[Bools | None], rows: int
    ) -> dict[Hashable, Int64s]:
        """What the sides have promised of the rows' groups, as far as it is above the floor."""
        slots = self._slots(columns, valid, rows)
        return {side: row[slots] for side, row in self.promises.items()}

    def met(
        self, side: Hashable, columns: Sequence[Values], valid: Sequence[Bools | None], own: Int64s, sides: Sides
    ) -> tuple[Int64s, Int64s]:
        """The marks of the rows' groups as each row of a side meets them, if the side's own mark is at `own` then; and
        what the side itself has promised of these groups."""
        slots = self._slots(columns, valid, len(own))
        beside = self._least(*sides([one for one in self.promises if one != side]))[slots]
        row = self.promises.get(side)
        promised = np.full(len(own), MIN_TIME, np.int64) if row is None else row[slots]
        return np.maximum(self.marks[slots], np.minimum(beside, np.maximum(promised, own))), promised

    def _slots(self, columns: Sequence[Values], valid: Sequence[Bools | None], rows: int) -> Int64s:
        """The slots of the rows' groups. Groups of which nothing is promised get one too, and soon lose it."""
        if len(self.marks) > 2 * self.ahead + FEW:
            live = np.flatnonzero(self._live())
            self._index.keep(live)
            self.marks, self.turns = self.marks[live], self.turns[live]
            self.promises = {side: row[live] for side, row in self.promises.items()}
        slots = self._index.find(columns, valid, rows)
        more = self._index.count - len(self.marks)
        if more:
            fresh = np.full(more, MIN_TIME, np.int64)
            self.marks, self.turns = np.append(self.marks, fresh), np.append(self.turns, fresh)
            self.promises = {side: np.append(row, fresh) for side, row in self.promises.items()}
        return slots

    def __iter__(self) -> Iterator[tuple[Group, int, dict[Hashable, int]]]:
        """The stored groups, each with its mark and what the sides have promised."""
        slots = self._in_turn(self._live())
        sides = sorted(self.promises, key=str)
        for slot, group in zip(slots.tolist(), self._index.rows(slots), strict=True):
            by = {side: int(self.promises[side][slot]) for side in sides if self.promises[side][slot] > MIN_TIME}
            yield group, int(self.marks[slot]), by

    # -- state ---------------------------------------------------------------------------------------------------------

    def save(self) -> Any:
        groups = [[list(group), mark, [list(item) for item in by.items()]] for group, mark, by in self]
        return [self.ignored, self.floor, groups]

    def restore(self, data: Any) -> None:
        self._clear()
        self.ignored, floor, groups = data
        for group, mark, by in groups:
            batch = Batch.from_rows(self._schema, [group], [0])
            slot = int(self._slots(batch.columns, batch.valid, 1)[0])
            self._store(slot)
            self.marks[slot] = mark
            for side, value_us in by:
                if side not in self.promises:
                    self.promises[side] = np.full(len(self.marks), MIN_TIME, np.int64)
                self.promises[side][slot] = value_us
        self.floor = floor
