"""Promises about groups at an operator that emits the rows of its inputs (OOP, figure A-1).

The operator may promise of a group what each of its inputs has promised of it, by a promise about the group or by its
own time. A latent input promises nothing: its rows get their times downstream.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from millrace.operators.frame.clause import Clause
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator
from millrace.operators.source.groups import Group, GroupMarks
from millrace.operators.updates.key_index import Column, KeyIndex
from millrace.protocol import Field, Schema
from millrace.values.batch import Batch, Int64s
from millrace.values.eventtime import MAX_TIME, MIN_TIME
from millrace.values.expression import TIME

# The saved state of an operator that has heard of no group.
NOTHING: Final[list[list[Any]]] = [[], []]


class Held(NamedTuple):
    """Tuples that an operator has taken and not emitted. Rows that follow from them have their times, or later ones up
    to `through_us`. Without key columns they may belong to any group."""

    ts: Int64s
    keys: Sequence[Column] | None
    through_us: int = MIN_TIME


# By key columns, what the operator holds.
Holds = Callable[[Sequence[int]], Iterable[Held]]


def nothing_held(keys: Sequence[int]) -> Iterable[Held]:
    return ()


class GroupPassing:
    """By key columns, the groups that are ahead of the operator's own promise.

    later   promises that wait until the operator has emitted its rows up to a time: their tuples were held in it
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
        self._of(keys).promise(inputs.index(reader), group, clause.below[0][1])

    def _of(self, keys: tuple[int, ...]) -> GroupMarks:
        if keys not in self._marks:
            self._marks[keys] = GroupMarks(self._fields(keys))
        return self._marks[keys]

    def _fields(self, keys: Sequence[int]) -> list[Field]:
        return [self._operator.output.schema.fields[at] for at in keys]

    def _clauses(self, keys: Sequence[int], group: Group, below: tuple[tuple[int, int], ...]) -> Iterator[Clause]:
        """The promise in columns of the output."""
        yield Clause(tuple(zip(keys, group, strict=True)), below)

    def pass_on(self, holds: Holds = nothing_held, emitted_us: int = MAX_TIME) -> None:
        """Put the promises that follow now. The operator has emitted its rows below `emitted_us`."""
        for keys, marks in list(self._marks.items()):
            risen = self._risen(keys, marks)
            if risen:
                self._plan(keys, risen, holds(keys))
            if not marks:
                del self._marks[keys]
        emitted_us = max(emitted_us, MIN_TIME + 1)  # what waits for nothing is due
        due = [clause for until_us, clause in self.later if until_us < emitted_us]
        if due:
            self.later = [item for item in self.later if item[0] >= emitted_us]
        for clause in due:
            self._operator.output.put_clause(clause)

    def _risen(self, keys: tuple[int, ...], marks: GroupMarks) -> list[tuple[Group, int, int]]:
        return marks.rise(self._sides)

    def _sides(self, sides: Collection[Hashable]) -> tuple[Mapping[Hashable, int], int]:
        lows = self._lows()
        own: dict[Hashable, int] = {side: low for side, low in enumerate(lows) if side in sides}
        return own, min((low for side, low in enumerate(lows) if side not in sides), default=MAX_TIME)

    def _lows(self) -> Sequence[int]:
        return [reader.low_water() for reader in self._operator.inputs]

    def _plan(self, keys: Sequence[int], risen: Sequence[tuple[Group, int, int]], held: Iterable[Held]) -> None:
        """Add what may be promised of these groups: the time of a group's first held tuple, as soon as the rows that
        follow from it are emitted the time of the next, and in the end the group's mark."""
        spans = self._spans(keys, [group for group, _, _ in risen], held)
        above = self._operator.output.grain.above
        for number, (group, before, now) in enumerate(risen):
            last_us = MIN_TIME
            for begin_us, through_us in [*sorted(spans.get(number, ())), (now, now)]:
                if begin_us > last_us and above(before) <= (time_us := min(begin_us, now)):
                    self.later += [(last_us, one) for one in self._clauses(keys, group, ((TIME, time_us),))]
                    before = time_us
                last_us = max(last_us, through_us)

    def _spans(
        self, keys: Sequence[int], groups: Sequence[Group], held: Iterable[Held]
    ) -> dict[int, set[tuple[int, int]]]:
        """By the number of a group, between which times rows may follow from its tuples."""
        fields = self._fields(keys)
        made = Batch.from_rows(Schema(tuple(fields)), groups, [0] * len(groups))
        spans: dict[int, set[tuple[int, int]]] = {}
        for piece in held:
            times = [(ts, max(ts, piece.through_us)) for ts in piece.ts.tolist()]
            if piece.keys is None:
                for number in range(len(groups)):
                    spans.setdefault(number, set()).update(times)
                continue
            index = KeyIndex(fields)
            index.find(made.columns, made.valid, len(groups))
            slots = index.find([column for column, _ in piece.keys], [mask for _, mask in piece.keys], len(times))
            for row in np.flatnonzero(slots < len(groups)).tolist():
                spans.setdefault(int(slots[row]), set()).add(times[row])
        return spans

    def save(self) -> Any:
        marks = [[list(keys), marks.save()] for keys, marks in self._marks.items()]
        return [marks, [[until_us, clause.save()] for until_us, clause in self.later]]

    def restore(self, data: Any) -> None:
        marks, later = data
        self._marks = {}
        for keys, saved in marks:
            self._of(tuple(keys)).restore(saved)
        self.later = [(until_us, Clause.restore(clause)) for until_us, clause in later]
