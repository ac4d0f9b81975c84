"""Windowed rows as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.spec import (
    FIXED,
    INDIFFERENT,
    STATEFUL,
    Derivation,
    Edits,
    Leaving,
    Origin,
    Positions,
    Spec,
    State,
    Updates,
    all_columns,
    computed,
    within,
)
from millrace.operators.frame.windows import COUNTED, RowWindow, TimeWindow, bound_lags, window_words
from millrace.protocol import Field, Schema, Type
from millrace.values import expression as e
from millrace.values import lags as time
from millrace.values.expression import Expression
from millrace.values.lags import Lags
from millrace.values.reach import HERE, Reaches, unbounded
from millrace.values.written import show, show_column


@dataclass(frozen=True, slots=True)
class WindowSpec(Spec):
    """Each row once per window that contains it, with the bounds after its columns, at the row's own time.

    Under a RowWindow it reads the source itself, and the operators in between are folded into the spec, as in an
    aggregate: `columns` (None: the input's) and `where`. Bounds are positions then. For sessions see AggregateSpec.
    """

    kind: ClassVar[str] = "map"
    word: ClassVar[str] = "window"
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

    def derivation(self) -> Derivation:
        return "extended"

    def gives_order(self, inputs: Sequence[bool]) -> bool:
        return all(inputs)

    def lags(self, inputs: Sequence[Lags], schemas: Sequence[Schema]) -> Lags:
        """Bounds enclose the row's own time: start <= time < end. The bounds of ROWS windows are positions."""
        if isinstance(self.window, RowWindow):
            return inputs[0] if self.columns is None else time.computed([key for _, key in self.columns], inputs[0])
        size = self.window.size_us
        return {**inputs[0], **bound_lags(self.bounds, len(schemas[0]), (0, size - 1), (-size, -1))}

    def window_bound(self, column: int, width: int) -> bool:
        return isinstance(self.window, TimeWindow) and column >= width - len(self.bounds)

    def used_columns(self, used: Positions, widths: Sequence[int]) -> list[Positions]:
        if isinstance(self.window, RowWindow):
            return all_columns(widths)
        return [{at for at in used if at < widths[0]}]

    def state_keys(self, schemas: Sequence[Schema]) -> str | None:
        return "it counts all rows" if isinstance(self.window, RowWindow) else None

    def origins(self, key: e.Expression, schemas: Sequence[Schema]) -> list[Origin]:
        if self.columns is not None:
            return computed(key, [column for _, column in self.columns])
        return within(key, len(schemas[0]))

    def reaches(self, lags: Sequence[Lags]) -> Reaches:
        if isinstance(self.window, RowWindow):
            return unbounded(COUNTED, 1)
        return Reaches([HERE])

    def leaving(self, inputs: Sequence[Leaving]) -> Leaving:
        return "unknown"

    def updates(self) -> Updates:
        return INDIFFERENT._replace(reads_all=True)

    def every(self) -> WindowSpec:
        return self

    def state(self) -> State:
        return STATEFUL._replace(lost=None, counts=isinstance(self.window, RowWindow))

    def edits(self) -> Edits:
        return FIXED

    def words(self, inputs: Sequence[str]) -> str:
        words = f"{window_words(self.window)}, each row once per window"
        if self.columns is not None:
            words += ": " + ", ".join(show_column(name, column) for name, column in self.columns)
        return words if self.where is None else f"{words} WHERE {show(self.where)}"

    def build(self, site: Site) -> Operator:
        from millrace.operators.window.windowing import RowWindowing, Windowing

        kind = RowWindowing if isinstance(self.window, RowWindow) else Windowing
        return kind(site, self)
