"""Projections as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.spec import FIXED, Derivation, Edits, Origin, Positions, RowSpec, computed
from millrace.protocol import Field, Schema
from millrace.values import expression as e
from millrace.values import lags as time
from millrace.values.lags import Lags
from millrace.values.written import show_column


@dataclass(frozen=True, slots=True)
class MapSpec(RowSpec):
    """Compute a new row from each row."""

    kind: ClassVar[str] = "map"
    word: ClassVar[str] = "project"
    columns: tuple[tuple[str, e.Expression], ...]

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        schema = Schema(tuple(Field(name, column.type, column.nullable) for name, column in self.columns))
        if not schema.retracts:
            return schema
        # What is computed is null in a tombstone; what is copied may be its key.
        copied = [isinstance(column, e.Column) and column.position >= 0 for _, column in self.columns]
        fields = zip(schema, copied, strict=True)
        return Schema(tuple(field if plain else Field(field.name, field.type) for field, plain in fields))

    def derivation(self) -> Derivation:
        return "made"

    def lags(self, inputs: Sequence[Lags], schemas: Sequence[Schema]) -> Lags:
        return time.computed([column for _, column in self.columns], inputs[0])

    def window_bound(self, column: int, width: int) -> bool | tuple[int, int]:
        copied = self.columns[column][1]
        return (0, copied.position) if isinstance(copied, e.Column) and copied.position >= 0 else False

    def used_columns(self, used: Positions, widths: Sequence[int]) -> list[Positions]:
        return [e.positions_of(self.columns[at][1] for at in used)]

    def origins(self, key: e.Expression, schemas: Sequence[Schema]) -> list[Origin]:
        return computed(key, [column for _, column in self.columns])

    def edits(self) -> Edits:
        return FIXED

    def words(self, inputs: Sequence[str]) -> str:
        return "project " + ", ".join(show_column(name, column) for name, column in self.columns)

    def build(self, site: Site) -> Operator:
        from millrace.operators.project.map import Map

        return Map(site, self)
