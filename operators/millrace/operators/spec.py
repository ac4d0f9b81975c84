"""What an operator is to do, as plain data: one frozen class per kind of operator.

A spec says nothing of buffers or neighbours. Two operators with equal specs over equal inputs compute the same
rows, which is what lets a plan be compared, shared, saved and shipped. `build.py` makes the operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from millrace.operators.expression import Expression
from millrace.protocol import Field, Schema, Type


@dataclass(frozen=True, slots=True)
class Spec:
    """The definition of an operator; `kind` is the word that users see."""

    kind: ClassVar[str] = ""

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        """The schema of the rows it gives, from those it takes."""
        return inputs[0]


@dataclass(frozen=True, slots=True)
class SelectSpec(Spec):
    """Keep the rows for which the predicate is true (not false, not null)."""

    kind: ClassVar[str] = "select"
    predicate: Expression


@dataclass(frozen=True, slots=True)
class MapSpec(Spec):
    """Compute a new row from each row."""

    kind: ClassVar[str] = "map"
    columns: tuple[tuple[str, Expression], ...]

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        return Schema(tuple(Field(name, column.type, column.nullable) for name, column in self.columns))


@dataclass(frozen=True, slots=True)
class UnionSpec(Spec):
    """All rows of all inputs: as they come, or in event order. Names are the first input's."""

    kind: ClassVar[str] = "union"
    ordered: bool

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        first, *others = inputs
        return (
            Schema(
                tuple(
                    Field(field.name, field.type, any(schema.fields[position].nullable for schema in inputs))
                    for position, field in enumerate(first)
                )
            )
            if others
            else first
        )


@dataclass(frozen=True, slots=True)
class SortSpec(Spec):
    """The rows in order of time; equal times in order of arrival."""

    kind: ClassVar[str] = "sort"


# -- windows and aggregates --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Windows [start, start + size) of time, one beginning every `slide`, aligned to the epoch plus an offset.

    TUMBLE has slide = size. A slide above the size leaves gaps, whose tuples are in no window.
    """

    size_us: int
    slide_us: int
    offset_us: int = 0


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """Per key, tuples that follow each other by less than `gap`: [first, last + gap)."""

    gap_us: int


@dataclass(frozen=True, slots=True)
class RowWindow:
    """Windows of `size` tuples in the order in which the source took them in, one beginning every `slide` tuples.

    It counts positions on the arc that it reads. So its operator reads the source itself, and what stood in between
    (selects and maps) is folded into the spec: predicates into `where`, computed columns into the expressions.
    """

    size: int
    slide: int


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One aggregate of the select list: `function` is a key of the registry (`aggregates.AGGREGATES`)."""

    type: Type
    nullable: bool
    function: str
    arguments: tuple[Expression, ...] = ()
    distinct: bool = False
    filter: Expression | None = None


@dataclass(frozen=True, slots=True)
class AggregateSpec(Spec):
    """Group rows and aggregate each group, per window or (without one) as a running total.

    The rows it gives: keys, then calls, then bounds of the window. Each bound is `start` or `end`: timestamps, or
    positions in the arc under a RowWindow. Without a window the result is an update stream whose key is `keys`.

    ordered   take tuples in order of time (IOP) instead of as they come (OOP)
    flush     `none`: a closed window is given before anything more is taken. `slow`: one row per `flush_every` tuples
              taken. `lazy`: only when nothing else waits. Both give a row at the latest when time has gone
              `max_delay_us` past the end of its window, and go on whenever no tuple waits
    partial   whether windows that began before the query did are given
    emit      of a running total: the last of a group's rows of one execution, or one row per tuple
    where     rows that count for nothing but their position (see RowWindow)
    rows      of sessions: give each row that it took, when its session closes, instead of one row per session. Then
              there are no calls, `keys` only say what sessions are cut by, and a row has the input's columns and the
              bounds
    """

    kind: ClassVar[str] = "aggregate"
    window: TimeWindow | SessionWindow | RowWindow | None
    keys: tuple[tuple[str, Expression], ...] = ()
    calls: tuple[tuple[str, AggregateCall], ...] = ()
    bounds: tuple[tuple[str, Literal["start", "end"]], ...] = ()
    ordered: bool = False
    flush: Literal["none", "slow", "lazy"] = "none"
    max_delay_us: int = 0
    flush_every: int = 4
    partial: Literal["skip", "emit"] = "skip"
    emit: Literal["latest", "every"] = "latest"
    where: Expression | None = None
    rows: bool = False

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        if self.rows:
            return Schema((*inputs[0], *(Field(name, Type.TIMESTAMP, False) for name, _ in self.bounds)))
        bound = Type.BIGINT if isinstance(self.window, RowWindow) else Type.TIMESTAMP
        return Schema(
            (
                *(Field(name, key.type, key.nullable) for name, key in self.keys),
                *(Field(name, call.type, call.nullable) for name, call in self.calls),
                *(Field(name, bound, False) for name, _ in self.bounds),
            )
        )


@dataclass(frozen=True, slots=True)
class WindowSpec(Spec):
    """Each row once per window that it falls into, with the bounds behind its columns, at the row's own time.

    Under a RowWindow it reads the source itself, and what stood in between is folded into the spec, as with aggregates:
    `columns` (None: the input's) and `where`. Bounds are positions then. For sessions see AggregateSpec.
    """

    kind: ClassVar[str] = "map"
    window: TimeWindow | RowWindow
    bounds: tuple[tuple[str, Literal["start", "end"]], ...]
    partial: Literal["skip", "emit"] = "skip"
    columns: tuple[tuple[str, Expression], ...] | None = None
    where: Expression | None = None

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        bound = Type.BIGINT if isinstance(self.window, RowWindow) else Type.TIMESTAMP
        fields = inputs[0].fields
        if self.columns is not None:
            fields = tuple(Field(name, column.type, column.nullable) for name, column in self.columns)
        return Schema((*fields, *(Field(name, bound, False) for name, _ in self.bounds)))
