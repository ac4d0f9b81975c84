"""Promises about groups at a join (OOP, section 7 and appendix A.1.1).

A group is named by values in columns of the inputs; columns that the join compares are one. A new row of the join has a
new row of some input. So the join may promise of a group what every input has promised of it. An input that has all of
the group's columns may promise more of the group than of its other rows; any other input counts with its own time.

A stored row of a group can match nothing more once each other input has promised the group past all times at which its
rows could match. So that row is dropped, or emitted alone, before the time of the whole input has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np

from millrace.operators.frame.clause import Clause, Equal
from millrace.operators.frame.group_passing import NOTHING, GroupPassing, Held, Holds, nothing_held
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator
from millrace.operators.join.bands import Bands
from millrace.operators.join.spec import JoinSpec
from millrace.operators.source.groups import Group, GroupMarks
from millrace.operators.updates.key_index import Column
from millrace.protocol import Field, Schema
from millrace.values import expression as e
from millrace.values.batch import Batch, Int64s
from millrace.values.eventtime import MAX_TIME, MIN_TIME, UNBOUNDED_US
from millrace.values.expression import TIME

# The saved state of a join that has heard of no group.
NO_GROUPS: Final[list[Any]] = [NOTHING, [], [], []]

# The columns of all inputs are numbered one after the other. `keys` are such numbers, the least of equal columns.
Keys = tuple[int, ...]


class Closed(NamedTuple):
    """Rows of an input in these groups can match nothing more below these times."""

    position: int
    keys: Keys
    groups: list[Group]
    floors: list[int]


class JoinGroups(GroupPassing):
    """The groups of a join that are ahead of its inputs' times.

    told       groups whose inputs' marks have risen since they were last put together (joint punctuation)
    _waiting   groups of an outer join that wait for a row that may still leave alone, and the time promised so far
    """

    def __init__(self, operator: Operator, spec: JoinSpec, bands: Bands, lows: Callable[[], Sequence[int]]) -> None:
        super().__init__(operator)
        self._spec = spec
        self._reach = bands.reach
        self._arc_lows = lows
        widths = [len(reader.schema) for reader in operator.inputs]
        self._base = [sum(widths[:at]) for at in range(len(widths))]
        self._columns = [(at, column) for at, width in enumerate(widths) for column in range(width)]
        self._equal = self._equalities()
        self._closes = [bands.expires(at) and not spec.counts_rows for at in range(len(widths))]
        self._closing: dict[tuple[int, Keys], GroupMarks] = {}
        self.told: dict[tuple[Keys, Group], None] = {}
        self._waiting: dict[tuple[Keys, Group], int] = {}
        self._promised_us = MIN_TIME

    def __bool__(self) -> bool:
        return bool(self._marks or self.later or self._closing or self.told)

    # -- columns -------------------------------------------------------------------------------------------------------

    def _equalities(self) -> list[list[int]]:
        """By column, all that equal it in each row of the join, from the least on."""
        equal = [[number] for number in range(len(self._columns))]
        for one in self._spec.equal:
            left, right = one.left_key, one.right_key
            if (
                isinstance(left, e.Column)
                and isinstance(right, e.Column)
                and TIME not in (left.position, right.position)
            ):
                a, b = self._base[one.left] + left.position, self._base[one.right] + right.position
                if equal[a] is not equal[b]:
                    both = sorted(equal[a] + equal[b])
                    for number in both:
                        equal[number] = both
        return equal

    def of_input(self, position: int, key: int) -> int | None:
        """The column of an input that has a key's values."""
        found = (self._columns[number] for number in self._equal[key])
        return next((column for at, column in found if at == position), None)

    def columns_of(self, position: int, keys: Sequence[int]) -> list[int] | None:
        """The columns of an input that have the keys' values, if it has them all."""
        columns = [column for key in keys if (column := self.of_input(position, key)) is not None]
        return columns if len(columns) == len(keys) else None

    def outputs_of(self, keys: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """The columns of the output that have the keys' values, in each combination."""
        places = [{self._columns[number] for number in self._equal[key]} for key in keys]
        picked = self._spec.columns
        yield from product(*([at for at, one in enumerate(picked) if one[1:] in equal] for equal in places))

    def beside(self, position: int, expression: e.Expression) -> int | None:
        """The column of the other one of two inputs that a column is compared with."""
        if not isinstance(expression, e.Column) or expression.position == TIME:
            return None
        return self.of_input(1 - position, self._base[position] + expression.position)

    def copied_from(self, column: int, position: int) -> int | None:
        """The column of an input whose value a column of the output has."""
        _, source, at = self._spec.columns[column]
        return None if at == TIME else self.of_input(position, self._base[source] + at)

    def behind(self, group: Equal, position: int) -> Equal:
        """What must be promised of an input for a promise about a group of the output. A null in a column that is
        compared, or of an input without a match, names no group of an input."""
        own = []
        for column, value in group:
            _, source, at = self._spec.columns[column]
            found = self.copied_from(column, position)
            lone = len(self._equal[self._base[source] + at]) == 1 and source not in self._spec.missing
            if found is not None and (value is not None or lone):
                own.append((found, value))
        return tuple(own)

    def _fields(self, keys: Sequence[int]) -> list[Field]:
        """Nulls are never in a column that is compared, but they are looked up."""
        inputs = self._operator.inputs
        fields = [inputs[at].schema.fields[column] for at, column in (self._columns[key] for key in keys)]
        return [Field(field.name, field.type, True) for field in fields]

    # -- hearing -------------------------------------------------------------------------------------------------------

    def heed(self, reader: Inlet, clause: Clause) -> None:
        if not clause.equal or [at for at, _ in clause.below] != [TIME] or reader.latent:
            return
        side = self._operator.inputs.index(reader)
        values: dict[int, Any] = {}
        for at, value in clause.equal:
            equal = self._equal[self._base[side] + at]
            if (value is None and len(equal) > 1) or values.setdefault(equal[0], value) != value:
                return  # no row of the join is in this group
        keys = tuple(sorted(values))
        group = tuple(values[key] for key in keys)
        value_us = clause.below[0][1]
        known = [self._of(keys), *(self._of_closing(at, keys) for at in self._closed_by(side, keys))]
        if any(marks.full for marks in known):
            return
        if self._of(keys).promise(side, group, value_us) and self._spec.times:
            self.told[keys, group] = None
        for at in self._closed_by(side, keys):
            self._of_closing(at, keys).promise(side, group, self._shifted(value_us, at, side))

    def _closed_by(self, side: int, keys: Keys) -> list[int]:
        """The inputs whose rows may be closed by a promise of another one."""
        return [
            at
            for at, closes in enumerate(self._closes)
            if closes and at != side and self.columns_of(at, keys) is not None
        ]

    def _of_closing(self, position: int, keys: Keys) -> GroupMarks:
        if (position, keys) not in self._closing:
            self._closing[position, keys] = GroupMarks(self._fields(keys))
        return self._closing[position, keys]

    def _shifted(self, low_us: int, position: int, other: int) -> int:
        """Up to which time rows of an input match nothing of another one from this time on."""
        most = self._reach[position][other]
        if low_us == MAX_TIME:
            return MAX_TIME
        return MIN_TIME if most == UNBOUNDED_US else max(low_us - most, MIN_TIME)

    # -- closing -------------------------------------------------------------------------------------------------------

    def close(self, waits: Sequence[bool]) -> Iterator[Closed]:
        """The groups of which rows can match less now. `waits`: per input, whether it has rows that have not looked for
        matches, of which the promises say nothing."""
        lows = self._arc_lows()
        for (position, keys), marks in list(self._closing.items()):
            if any(wait and at != position for at, wait in enumerate(waits)):
                continue
            risen = marks.rise(partial(self._closing_sides, position, lows))
            if risen:
                yield Closed(position, keys, [group for group, _, _ in risen], [now for _, _, now in risen])
            if not marks:
                del self._closing[position, keys]

    def _closing_sides(
        self, position: int, lows: Sequence[int], sides: Collection[Hashable]
    ) -> tuple[Mapping[Hashable, int], int]:
        shifted = {at: self._shifted(low, position, at) for at, low in enumerate(lows) if at != position}
        own: dict[Hashable, int] = {at: low for at, low in shifted.items() if at in sides}
        return own, min((low for at, low in shifted.items() if at not in sides), default=MAX_TIME)

    def floors(self, position: int, columns: Callable[[Sequence[int]], Sequence[Column]], rows: int) -> Int64s | None:
        """Per row of an input, the time below which it can match nothing more, as its group. None: by no group."""
        least: Int64s | None = None
        for (at, keys), marks in self._closing.items():
            if at == position:
                own = self.columns_of(at, keys)
                assert own is not None
                found = columns(own)
                floors = marks.of([column for column, _ in found], [mask for _, mask in found], rows)
                least = floors if least is None else np.maximum(least, floors)
        return least

    def batch(self, keys: Keys, groups: Sequence[Group]) -> Batch:
        return Batch.from_rows(Schema(tuple(self._fields(keys))), groups, [0] * len(groups))

    # -- passing on ----------------------------------------------------------------------------------------------------

    def _lows(self) -> Sequence[int]:
        return self._arc_lows()

    def _clauses(self, keys: Sequence[int], group: Group, below: tuple[tuple[int, int], ...]) -> Iterator[Clause]:
        missing = self._spec.missing
        for columns in self.outputs_of(keys):
            nulls = {self._spec.columns[at][1] for at, value in zip(columns, group, strict=True) if value is None}
            if not nulls & missing:
                yield Clause(tuple(zip(columns, group, strict=True)), below)

    def pass_on(self, holds: Holds = nothing_held, emitted_us: int = MAX_TIME) -> None:
        self._promised_us = emitted_us
        super().pass_on(holds, emitted_us)
        self._waiting = {group: us for group, us in self._waiting.items() if group[0] in self._marks}

    def _risen(self, keys: tuple[int, ...], marks: GroupMarks) -> list[tuple[Group, int, int]]:
        risen = super()._risen(keys, marks)
        if self._waiting and (self._operator.taken or self._operator.emitted):
            known = {group for group, _, _ in risen}
            more = [group for of, group in self._waiting if of == keys and group not in known]
            risen += [(group, marks.floor, marks.mark(group)) for group in more]
        return risen

    def _plan(self, keys: Sequence[int], risen: Sequence[tuple[Group, int, int]], held: Iterable[Held]) -> None:
        """A row without a match leaves at any time. So the time of a group's first held row is promised, and looked up
        again when rows have left. Such rows of other groups hold the join's own promise back."""
        if not self._spec.outer:
            super()._plan(keys, risen, held)
            return
        of = tuple(keys)
        spans = self._spans(keys, [group for group, _, _ in risen], held)
        above = self._operator.output.grain.above
        for number, (group, before, now) in enumerate(risen):
            before = max(min(before, self._promised_us), self._waiting.pop((of, group), MIN_TIME))
            time_us = min([now, *(begin_us for begin_us, _ in spans.get(number, ()))])
            if above(before) <= time_us:
                self.later += [(MIN_TIME, one) for one in self._clauses(keys, group, ((TIME, time_us),))]
                before = time_us
            if time_us < now:
                self._waiting[of, group] = before

    def pass_on_jointly(self) -> None:
        """Per group, how far each input has promised it: no later row of the group has all times below these."""
        lows = self._arc_lows()
        for keys, group in self.told:
            marks = self._of(keys)
            below = tuple(
                (column, max(low, marks.promised(at, group)))
                for at, ((column, _, _), low) in enumerate(zip(self._spec.times, lows, strict=True))
            )
            for clause in self._clauses(keys, group, below):
                self._operator.output.put_clause(clause)
        self.told.clear()

    # -- state ---------------------------------------------------------------------------------------------------------

    def save(self) -> Any:
        closing = [[at, list(keys), marks.save()] for (at, keys), marks in self._closing.items()]
        told = [[list(keys), list(group)] for keys, group in self.told]
        waiting = [[list(keys), list(group), us] for (keys, group), us in self._waiting.items()]
        return [super().save(), closing, told, waiting]

    def restore(self, data: Any) -> None:
        passing, closing, told, waiting = data
        super().restore(passing)
        for at, keys, saved in closing:
            self._of_closing(at, tuple(keys)).restore(saved)
        self.told = {(tuple(keys), tuple(group)): None for keys, group in told}
        self._waiting = {(tuple(keys), tuple(group)): us for keys, group, us in waiting}
