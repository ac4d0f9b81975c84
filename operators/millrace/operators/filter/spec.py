"""Filters as data: of rows, and of the keys of an update stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.spec import (
    STATEFUL,
    Derivation,
    Edits,
    Leaving,
    Origin,
    PassingSpec,
    Positions,
    RowSpec,
    Shared,
    Spec,
    State,
    Updates,
    all_columns,
    column_at,
    retracting,
    within,
)
from millrace.protocol import Schema
from millrace.values import expression as e
from millrace.values.lags import Lags
from millrace.values.reach import Reaches, unbounded
from millrace.values.written import show


@dataclass(frozen=True, slots=True)
class SelectSpec(PassingSpec, RowSpec):
    """Keep the rows for which the predicate is true (not false, not null)."""

    kind: ClassVar[str] = "select"
    word: ClassVar[str] = "filter"
    predicate: e.Expression

    def used_columns(self, used: Positions, widths: Sequence[int]) -> list[Positions]:
        return [used | e.positions_of([self.predicate])]

    def edits(self) -> Edits:
        return Edits(True, None, lambda spec: spec)

    def words(self, inputs: Sequence[str]) -> str:
        return f"filter WHERE {show(self.predicate)}"

    def build(self, site: Site) -> Operator:
        from millrace.operators.filter.select import Select

        return Select(site, self)


@dataclass(frozen=True, slots=True)
class FilterSpec(Spec):
    """Keep the keys of an update stream whose row passes the predicate; a key whose row no longer passes gets a
    tombstone.

    key     the positions of the update key
    emit    as of a running total (see AggregateSpec)
    """

    kind: ClassVar[str] = "select"
    word: ClassVar[str] = "filter"
    predicate: e.Expression
    key: tuple[int, ...]
    emit: Literal["latest", "every"] = "latest"

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        return retracting(inputs[0].fields, self.key)

    def derivation(self) -> Derivation:
        return "passed"

    def gives_order(self, inputs: Sequence[bool]) -> bool:
        return all(inputs)

    def lags(self, inputs: Sequence[Lags], schemas: Sequence[Schema]) -> Lags:
        return inputs[0]

    def window_bound(self, column: int, width: int) -> tuple[int, int]:
        return 0, column

    def used_columns(self, used: Positions, widths: Sequence[int]) -> list[Positions]:
        return all_columns(widths)

    def state_keys(self, schemas: Sequence[Schema]) -> Sequence[Shared]:
        return [[(0, column_at(schemas[0], position))] for position in self.key]

    def origins(self, key: e.Expression, schemas: Sequence[Schema]) -> list[Origin]:
        return within(key, len(schemas[0]))

    def reaches(self, lags: Sequence[Lags]) -> Reaches:
        return unbounded("the current row of a key can be of any age", 1)

    def leaving(self, inputs: Sequence[Leaving]) -> Leaving:
        return "unknown"

    def updates(self) -> Updates:
        return Updates(
            takes=True,
            reads_all=False,
            emits="updates",
            depends_on_steps=self.emit == "latest",
            by_order=False,
            retracts=True,
        )

    def every(self) -> FilterSpec:
        return replace(self, emit="every")

    def state(self) -> State:
        return STATEFUL

    def edits(self) -> Edits:
        return Edits(False, None, self._with_predicate)

    def _with_predicate(self, spec: Spec) -> Spec | None:
        return replace(self, predicate=spec.predicate) if isinstance(spec, SelectSpec) else None

    def words(self, inputs: Sequence[str]) -> str:
        return f"filter current rows WHERE {show(self.predicate)}{' after every row' if self.emit == 'every' else ''}"

    def build(self, site: Site) -> Operator:
        from millrace.operators.filter.filter import Filter

        return Filter(site, self)
