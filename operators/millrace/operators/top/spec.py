"""Top n as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from millrace.operators.frame.operator import Operator, Site
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
    all_columns,
    retracting,
    within,
)
from millrace.protocol import Field, Schema, Type
from millrace.values import expression as e
from millrace.values.definitions import Definition
from millrace.values.expression import Column, Expression
from millrace.values.lags import Lags
from millrace.values.reach import ALL_BEFORE, Reach, Reaches, unbounded
from millrace.values.written import show, show_name


@dataclass(frozen=True, slots=True)
class Rank(Definition):
    """What rows are ordered by."""

    by: Expression
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True, slots=True)
class TopSpec(Spec):
    """Number the rows of each partition in an order, from 1, ties by arrival, and emit those up to `most`.

    The result is an update stream: its key is the partition, with the number where there may be several.

    partition  columns of the input
    number     the name of the number's column, after the input's columns
    replaces   the input is an update stream with this key (positions). Else all rows stay, and no place is ever vacated
    closes_us  the input is cut in windows: `partition` holds a bound of them, at `closes_at` in the input, and a row's
               time is at most that bound plus so much. Then a partition is emitted once, when time is past that
               (emit means nothing)
    emit       as of a running total (see AggregateSpec)
    """

    kind: ClassVar[str] = "top"
    word: ClassVar[str] = "top"
    partition: tuple[Column, ...]
    order: tuple[Rank, ...]
    number: str
    most: int = 0
    replaces: tuple[int, ...] | None = None
    closes_at: int | None = None
    closes_us: int = 0
    emit: Literal["latest", "every"] = "latest"

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        fields = (*inputs[0].data_fields, Field(self.number, Type.BIGINT, False))
        if not self.retracts(inputs[0]):
            return Schema(fields)
        return retracting(fields, (*self.partition_at, len(fields) - 1))

    @property
    def partition_at(self) -> tuple[int, ...]:
        """The positions of the partition's columns."""
        return tuple(column.position for column in self.partition)

    def retracts(self, source: Schema) -> bool:
        """Whether places are vacated: where rows go, or move from one partition to another."""
        if self.replaces is None or self.closes_at is not None:
            return False
        return source.retracts or not set(self.partition_at) <= set(self.replaces)

    def derivation(self) -> Derivation:
        return "other"

    def gives_order(self, inputs: Sequence[bool]) -> bool:
        return self.closes_at is not None or all(inputs)

    def lags(self, inputs: Sequence[Lags], schemas: Sequence[Schema]) -> Lags:
        return {} if self.closes_at is None else {self.closes_at: (self.closes_us, self.closes_us)}

    def window_bound(self, column: int, width: int) -> bool:
        return False

    def used_columns(self, used: Positions, widths: Sequence[int]) -> list[Positions]:
        return all_columns(widths)

    def state_keys(self, schemas: Sequence[Schema]) -> Sequence[Shared] | str:
        if not self.partition:
            return "it ranks all rows together"
        replaces = self.replaces
        return [[(0, column)] for column in self.partition if replaces is None or column.position in replaces]

    def origins(self, key: e.Expression, schemas: Sequence[Schema]) -> list[Origin]:
        return within(key, len(schemas[0]))

    def reaches(self, lags: Sequence[Lags]) -> Reaches:
        if self.closes_at is None:
            return unbounded("a row can keep its rank for any time", 1)
        low, _ = lags[0].get(self.closes_at, (None, None))
        return Reaches([ALL_BEFORE if low is None else Reach(max(self.closes_us - low, 0), 0)])

    def leaving(self, inputs: Sequence[Leaving]) -> Leaving:
        return "unknown"

    def updates(self) -> Updates:
        final = self.closes_at is not None
        return Updates(
            takes=self.replaces is not None,
            reads_all=final and self.replaces is not None,
            emits="rows" if final and self.replaces is None else "updates",
            depends_on_steps=not final and self.emit == "latest",
            by_order=not final,
            retracts=True,
        )

    def every(self) -> TopSpec:
        return replace(self, emit="every") if self.closes_at is None else self

    def state(self) -> State:
        return STATEFUL._replace(lost="ranks ignore earlier rows")

    def edits(self) -> Edits:
        return FIXED

    def words(self, inputs: Sequence[str]) -> str:
        words = f"top {self.most}"
        if self.replaces is not None:
            words += " of the current rows"
        if self.partition:
            words += " by " + ", ".join(show_name(column.name) for column in self.partition)
        words += ", in order of " + ", ".join(map(_rank_words, self.order))
        final = ", emitted when the window closes" if self.closes_at is not None else ""
        return f"{words}{' after every row' if self.emit == 'every' else ''}{final}: {show_name(self.number)}"

    def build(self, site: Site) -> Operator:
        from millrace.operators.top.top import FinalTop, Top

        return Top(site, self) if self.closes_at is None else FinalTop(site, self)


def _rank_words(rank: Rank) -> str:
    words = show(rank.by) + (" DESC" if rank.descending else "")
    # The opposite is the default.
    return words if rank.nulls_first == rank.descending else f"{words} NULLS {'FIRST' if rank.nulls_first else 'LAST'}"
