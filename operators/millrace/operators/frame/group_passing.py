"""Promises about groups at an operator that emits the rows of its inputs unchanged (OOP, figure A-1).

The operator may promise of a group what each of its inputs has promised of it, by a promise about the group or by its
own time. A latent input promises nothing: its rows get their times downstream.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import numpy as np

from millrace.operators.frame.clause import Clause
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator
from millrace.operators.source.groups import Group, GroupMarks
from millrace.operators.updates.key_index import KeyIndex
from millrace.protocol import Schema
from millrace.values.batch import Batch
from millrace.values.eventtime import MAX_TIME, MIN_TIME
from millrace.values.expression import TIME

# The saved state of an operator that has heard of no group.
NOTHING: Final[list[list[Any]]] = [[], []]


class GroupPassing:
    """By key columns, the groups that are ahead of the operator's own promise.

    later   promises that wait until the operator has emitted its tuples up to a time: their rows were queued in it
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator  # its inputs change when operators are inserted
        self._marks: dict[tuple[int, ...], GroupMarks] = {}
        self.later: list[tuple[int, Clause]] = []

    def __bool__(self) -> bool:
        return bool(self._marks or self.later)

    def heed(self, reader: Inlet, clause: Clause) -> None:
        inputs = self._operator.inputs
        if not clause.equal or [at for at, _ in clause.below] != [TIME] or any(one.latent for one in inputs):
            return
        keys, group = zip(*sorted(clause.equal, key=itemgetter(0)), strict=True)
        if keys not in self._marks:
            self._marks[keys] = self._empty(keys)
        self._marks[keys].promise(inputs.index(reader), group, clause.below[0][1])

    def _empty(self, keys: Sequence[int]) -> GroupMarks:
        return GroupMarks([self._operator.output.schema.fields[at] for at in keys])

    def pass_on(self, queued: Callable[[], Iterable[Batch]] = tuple, emitted_us: int = MAX_TIME) -> None:
        """Put the promises that follow now. `queued`: tuples that the operator has taken and not emitted; it has
        emitted those below `emitted_us`."""
        for keys, marks in list(self._marks.items()):
            risen = marks.rise(self._sides)
            if risen:
                self._plan(keys, risen, queued())
            if not marks:
                del self._marks[keys]
        due = [clause for until_us, clause in self.later if until_us < emitted_us]
        if due:
            self.later = [item for item in self.later if item[0] >= emitted_us]
        for clause in due:
            self._operator.output.put_clause(clause)

    def _sides(self, sides: Collection[Hashable]) -> tuple[Mapping[Hashable, int], int]:
        lows = [reader.low_water() for reader in self._operator.inputs]
        own: dict[Hashable, int] = {side: low for side, low in enumerate(lows) if side in sides}
        return own, min((low for side, low in enumerate(lows) if side not in sides), default=MAX_TIME)

    def _plan(self, keys: Sequence[int], risen: Sequence[tuple[Group, int, int]], pieces: Iterable[Batch]) -> None:
        """Add what may be promised of these groups: the time of a group's first queued tuple, as soon as that one is
        emitted the time of the next, and in the end the group's mark."""
        groups = [group for group, _, _ in risen]
        times = self._times(keys, groups, pieces)
        above = self._operator.output.grain.above
        for number, (group, before, now) in enumerate(risen):
            equal = tuple(zip(keys, group, strict=True))
            last_us = MIN_TIME
            for time_us in [*sorted(time for time in times.get(number, ()) if time < now), now]:
                if time_us >= above(before):
                    self.later.append((last_us, Clause(equal, ((TIME, time_us),))))
                    before = time_us
                last_us = time_us

    def _times(self, keys: Sequence[int], groups: Sequence[Group], pieces: Iterable[Batch]) -> dict[int, set[int]]:
        """By the number of a group, the times of its tuples."""
        fields = [self._operator.output.schema.fields[at] for at in keys]
        made = Batch.from_rows(Schema(tuple(fields)), groups, [0] * len(groups))
        times: dict[int, set[int]] = {}
        for piece in pieces:
            index = KeyIndex(fields)
            index.find(made.columns, made.valid, len(groups))
            slots = index.find([piece.columns[at] for at in keys], [piece.valid[at] for at in keys], len(piece))
            known = np.flatnonzero(slots < len(groups))
            for slot, time_us in zip(slots[known].tolist(), piece.ts[known].tolist(), strict=True):
                times.setdefault(slot, set()).add(time_us)
        return times

    def save(self) -> Any:
        marks = [[list(keys), marks.save()] for keys, marks in self._marks.items()]
        return [marks, [[until_us, clause.save()] for until_us, clause in self.later]]

    def restore(self, data: Any) -> None:
        marks, later = data
        self._marks = {tuple(keys): self._empty(keys) for keys, _ in marks}
        for keys, saved in marks:
            self._marks[tuple(keys)].restore(saved)
        self.later = [(until_us, Clause.restore(clause)) for until_us, clause in later]
