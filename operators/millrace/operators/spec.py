"""What an operator is to do, as plain data: one frozen class per kind of operator.

A spec says nothing of buffers or neighbours. Two operators with equal specs over equal inputs compute the same
rows, which is what lets a plan be compared, shared, saved and shipped. `build.py` makes the operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from millrace.operators.expression import Expression
from millrace.protocol import Field, Schema


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
