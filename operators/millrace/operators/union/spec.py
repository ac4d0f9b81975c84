"""Unions as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

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
    Shared,
    Spec,
    State,
    Updates,
    all_columns,
    column_at,
    if_at_once,
)
from millrace.protocol import Field, Schema
from millrace.values import expression as e
from millrace.values.lags import Lags, widest
from millrace.values.reach import HERE, Reaches, unbounded


@dataclass(frozen=True, slots=True)
class UnionSpec(Spec):
    """All rows of all inputs, as they come or in event order. Names are the first input's.

    With a `key` (positions) the inputs are update streams that share it: of each key the youngest row is delivered, and
    rows older than the last delivered one are dropped.
    """

    kind: ClassVar[str] = "union"
    word: ClassVar[str] = "union"
    ordered: bool
    key: tuple[int, ...] | None = None

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        first, *others = inputs
        if not others:
            return first
        return Schema(
            tuple(
                Field(field.name, field.type, any(schema.fields[position].nullable for schema in inputs))
                for position, field in enumerate(first)
            )
        )

    def derivation(self) -> Derivation:
        return "other"

    def gives_order(self, inputs: Sequence[bool]) -> bool:
        return self.ordered

    def lags(self, inputs: Sequence[Lags], schemas: Sequence[Schema]) -> Lags:
        shared = [at for at in inputs[0] if all(at in other for other in inputs)]
        return {at: widest([lags[at] for lags in inputs]) for at in shared}

    def window_bound(self, column: int, width: int) -> bool:
        return False

    def used_columns(self, used: Positions, widths: Sequence[int]) -> list[Positions]:
        return [set(used) for _ in widths] if self.key is None else all_columns(widths)

    def state_keys(self, schemas: Sequence[Schema]) -> Sequence[Shared] | None:
        if self.key is None:
            return None
        return [[(at, column_at(schema, position)) for at, schema in enumerate(schemas)] for position in self.key]

    def origins(self, key: e.Expression, schemas: Sequence[Schema]) -> list[Origin]:
        return [(at, key) for at in range(len(schemas))]

    def reaches(self, lags: Sequence[Lags]) -> Reaches:
        if self.key is not None:
            return unbounded("the current row of a key can be of any age", len(lags))
        return Reaches([HERE] * len(lags))

    def leaving(self, inputs: Sequence[Leaving]) -> Leaving:
        return "unknown" if self.key is not None else if_at_once(inputs, 0 if self.ordered else "at once")

    def updates(self) -> Updates:
        if self.key is None:
            return INDIFFERENT
        return Updates(
            takes=True, reads_all=False, emits="updates", depends_on_steps=True, by_order=False, retracts=False
        )

    def every(self) -> UnionSpec:
        return self

    def state(self) -> State:
        return STATEFUL if self.key is not None else STATEFUL._replace(lost=None)

    def edits(self) -> Edits:
        return FIXED

    def words(self, inputs: Sequence[str]) -> str:
        if self.key is not None:
            return "union of the newest row of each key"
        return "union in order of time" if self.ordered else "union as rows arrive"

    def build(self, site: Site) -> Operator:
        from millrace.operators.union.union import ArrivalUnion, OrderedUnion, YoungestUnion

        if self.key is not None:
            return YoungestUnion(site, self.key)
        if self.ordered:
            return OrderedUnion(site)
        return ArrivalUnion(site)
