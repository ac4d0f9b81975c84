"""Joins of update streams as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.picked import Picked, picked_origins, picked_positions, picked_schema, show_of
from millrace.operators.frame.spec import (
    FIXED,
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
    retracting,
)
from millrace.protocol import Schema
from millrace.values import expression as e
from millrace.values.lags import Lags
from millrace.values.reach import Reaches, unbounded
from millrace.values.written import show

_KINDS: Final = {(): "join", (0,): "left join", (1,): "right join", (0, 1): "full join"}


@dataclass(frozen=True, slots=True)
class CurrentJoinSpec(Spec):
    """The current rows of two update streams that have equal keys, put together (UPS, section 3.2).

    The result is an update stream with the keys of the inputs. A pair that no longer matches is taken back.

    columns   what the rows hold
    keys      pairs of columns of input 0 and input 1: the whole update key of both. NULL equals nothing
    key       the positions of the result's key in `columns`: of a full join, the keys of both inputs
    where     what else must hold for a pair, over `tested`
    outer     current rows of these inputs without a match are emitted too, with nulls for the other one. Of two rows
              that have no key, input 0's is emitted
    emit      as of a running total (see AggregateSpec)
    ordered   whether rows are taken in order of time, so that each pair is of rows that were current at one time
    """

    kind: ClassVar[str] = "join"
    word: ClassVar[str] = "join"
    columns: tuple[Picked, ...]
    keys: tuple[tuple[e.Column, e.Column], ...]
    key: tuple[int, ...]
    where: e.Expression | None = None
    tested: tuple[Picked, ...] = ()
    outer: tuple[int, ...] = ()
    emit: Literal["latest", "every"] = "latest"
    ordered: bool = False

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        rows = picked_schema(self.columns, inputs, self.missing)
        return retracting(rows.fields, self.key) if self.retracts(inputs) else rows

    @property
    def missing(self) -> set[int]:
        """The inputs whose columns may be null for want of a match."""
        return {1 - position for position in self.outer}

    @property
    def full(self) -> bool:
        """Whether a row of each side may be there alone, under a key that differs from the pair's."""
        return len(self.outer) == 2 and bool(self.keys)

    def retracts(self, inputs: Sequence[Schema]) -> bool:
        """Whether its rows may be taken back: where rows of a side do that every row needs, or a match may end."""
        if len(self.outer) == 1:
            return inputs[self.outer[0]].retracts
        return self.full or self.where is not None or any(schema.retracts for schema in inputs)

    def derivation(self) -> Derivation:
        return "other"

    def gives_order(self, inputs: Sequence[bool]) -> bool:
        return self.ordered

    def lags(self, inputs: Sequence[Lags], schemas: Sequence[Schema]) -> Lags:
        return {}

    def window_bound(self, column: int, width: int) -> bool:
        return False

    def used_columns(self, wanted: Positions, widths: Sequence[int]) -> list[Positions]:
        keys = [(side, key) for pair in self.keys for side, key in enumerate(pair)]
        return picked_positions([*self.columns, *self.tested], keys, len(widths))

    def state_keys(self, schemas: Sequence[Schema]) -> Sequence[Shared] | str:
        if not self.keys:
            return "both of its inputs are one row"
        return [list(enumerate(pair)) for pair in self.keys]

    def origins(self, key: e.Expression, schemas: Sequence[Schema]) -> list[Origin]:
        if any(column.position >= len(self.columns) for column in e.columns_of(key)):
            return [(0, None)]
        equal = [(0, left, 1, right) for left, right in self.keys]
        return picked_origins(key, self.columns, equal, schemas, self.missing)

    def reaches(self, lags: Sequence[Lags]) -> Reaches:
        return unbounded("the current row of a key can be of any age", len(lags))

    def leaving(self, inputs: Sequence[Leaving]) -> Leaving:
        return "unknown"

    def updates(self) -> Updates:
        return Updates(
            takes=True,
            reads_all=False,
            emits="updates",
            depends_on_steps=self.emit == "latest" or not self.ordered,
            by_order=False,
            retracts=True,
        )

    def every(self) -> CurrentJoinSpec:
        return replace(self, emit="every", ordered=True)

    def state(self) -> State:
        return STATEFUL._replace(lost="joins find no partners among earlier rows")

    def edits(self) -> Edits:
        return FIXED

    def words(self, inputs: Sequence[str]) -> str:
        left, right = inputs
        tests = [f"{show_of(left, one)} = {show_of(right, other)}" for one, other in self.keys]
        tests += [] if self.where is None else [show(self.where)]
        order = " in order of time" if self.ordered else ""
        every = " after every row" if self.emit == "every" else ""
        condition = " AND ".join(tests) or "TRUE"
        return f"{_KINDS[self.outer]} of current rows{order}{every}: {left} with {right} ON {condition}"

    def build(self, site: Site) -> Operator:
        from millrace.operators.current_join.current_join import CurrentJoin, OrderedCurrentJoin

        return OrderedCurrentJoin(site, self) if self.ordered else CurrentJoin(site, self)
