"""Sequences as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.picked import (
    Picked,
    picked_lags,
    picked_origins,
    picked_positions,
    picked_schema,
    show_of,
)
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
)
from millrace.protocol import Schema
from millrace.values import expression as e
from millrace.values.intervals import format_interval
from millrace.values.lags import EXACT, Lag, Lags
from millrace.values.reach import HERE, Reach, Reaches, unbounded
from millrace.values.written import show


@dataclass(frozen=True, slots=True)
class SequenceSpec(Spec):
    """Input 0 FOLLOWED BY input 1, in order of time: a row of 1 with a row of 0 at or before its time (EQG, section 5).

    columns     what the rows hold
    keys        pairs of expressions over input 0 and input 1 that must be equal: they separate patterns.
                NULL equals nothing
    where       what must hold for the chosen pair, over `tested`, or over `columns` if that is empty. A pair is chosen
                by time and keys alone: if it fails there is no row, and under `chronicle` both are used up
    mode        `recent`: the newest row of 0 with these keys, which may be chosen again. `chronicle`: the oldest that
                has not been used, and both are used up
    within_us   how much later the row of 1 may be; None is any time
    absent      instead: a row of 0 at its time + within_us (which is required), if no row of 1 with these keys arrived
                by then for which `where` holds. Its `columns` are of input 0 alone; `mode` means nothing
    outer       a row of 1 without a row of 0 is emitted with nulls, also if the chosen pair fails
                (`a LEFT JOIN LATEST b`). Not with `absent`
    tested      the columns of a pair that `where` is over, of either input; the time of such a row is input 1's
    """

    kind: ClassVar[str] = "sequence"
    word: ClassVar[str] = "followed_by"
    columns: tuple[Picked, ...]
    keys: tuple[tuple[e.Expression, e.Expression], ...] = ()
    where: e.Expression | None = None
    mode: Literal["recent", "chronicle"] = "recent"
    within_us: int | None = None
    absent: bool = False
    outer: bool = False
    tested: tuple[Picked, ...] = ()

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        return picked_schema(self.columns, inputs, self.missing)

    @property
    def missing(self) -> set[int]:
        """The inputs whose columns may be null for want of a match."""
        return {0} if self.outer else set()

    def derivation(self) -> Derivation:
        return "other"

    def gives_order(self, inputs: Sequence[bool]) -> bool:
        return True

    def lags(self, inputs: Sequence[Lags], schemas: Sequence[Schema]) -> Lags:
        first: Lag = (self.within_us if self.absent else 0, self.within_us)
        return picked_lags(self.columns, inputs, [first, EXACT])

    def window_bound(self, column: int, width: int) -> bool:
        return False

    def used_columns(self, used: Positions, widths: Sequence[int]) -> list[Positions]:
        keys = [(side, key) for pair in self.keys for side, key in enumerate(pair)]
        return picked_positions([*self.columns, *self.tested], keys, len(widths))

    def state_keys(self, schemas: Sequence[Schema]) -> Sequence[Shared] | str:
        if not self.keys:
            return "it has no equality condition"
        return [[(0, left), (1, right)] for left, right in self.keys if left.type == right.type]

    def origins(self, key: e.Expression, schemas: Sequence[Schema]) -> list[Origin]:
        equal = [(0, left, 1, right) for left, right in self.keys]
        return picked_origins(key, self.columns, equal, schemas, self.missing)

    def reaches(self, lags: Sequence[Lags]) -> Reaches:
        if self.absent:
            return Reaches([Reach(self.within_us, 0), Reach(self.within_us, 0)])
        if self.mode == "chronicle":
            return unbounded("CHRONICLE consumes rows, so each match depends on all earlier ones", 2)
        if self.within_us is None:
            return unbounded("FOLLOWED BY without WITHIN has no time bound", 2)
        return Reaches([Reach(self.within_us, 0), HERE])

    def leaving(self, inputs: Sequence[Leaving]) -> Leaving:
        return "unknown"

    def updates(self) -> Updates:
        return INDIFFERENT._replace(reads_all=True)

    def every(self) -> SequenceSpec:
        return self

    def state(self) -> State:
        return STATEFUL._replace(lost="sequences find no earlier rows")

    def edits(self) -> Edits:
        return FIXED

    def words(self, inputs: Sequence[str]) -> str:
        first, second = inputs
        if self.absent:
            words = f"each {first} that no {second} follows"
        elif self.mode == "chronicle":
            words = f"each {second} with the oldest {first} before it that is not used yet (CHRONICLE)"
        else:
            words = f"each {second} with the newest {first} before it" + (
                ", if there is one" if self.outer else " (RECENT)"
            )
        keys = [f"{show_of(first, left)} = {show_of(second, right)}" for left, right in self.keys]
        if keys:
            words += f" ON {' AND '.join(keys)}"
        if self.within_us is not None:
            words += f" WITHIN {format_interval(self.within_us)}"
        if self.where is not None:
            words += f" WHERE {show(self.where)}"
        return f"sequence: {words}; keeps {self._state_words(first)}"

    def _state_words(self, first: str) -> str:
        each = " of each key" if self.keys else ""
        if not self.absent and self.mode == "recent":
            return f"the newest {first}{each}"
        unused = f"{first} until it is used" if not self.absent else first
        return f"{unused}, forever" if self.within_us is None else f"{unused}, for {format_interval(self.within_us)}"

    def build(self, site: Site) -> Operator:
        from millrace.operators.sequence.sequence import Absence, Following

        return Absence(site, self) if self.absent else Following(site, self)
