"""Changes of a row's time as data."""

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
    PassingSpec,
    Positions,
    RowSpec,
    State,
    Updates,
)
from millrace.protocol import Schema
from millrace.values.intervals import format_interval
from millrace.values.lags import EXACT, Lags, minus
from millrace.values.reach import Reach, Reaches


@dataclass(frozen=True, slots=True)
class RetimeSpec(PassingSpec, RowSpec):
    """The same rows at the time in one of their columns, as when a window reads a join by one side's time.

    The planner guarantees that no row's column is more than `lag_us` below its time: promises lose that much. Rows
    whose column is null have no time: they are counted as failed.
    """

    kind: ClassVar[str] = "map"
    word: ClassVar[str] = "retime"
    position: int
    lag_us: int

    def derivation(self) -> Derivation:
        return "other"

    def gives_order(self, inputs: Sequence[bool]) -> bool:
        return False

    def lags(self, inputs: Sequence[Lags], schemas: Sequence[Schema]) -> Lags:
        low, high = inputs[0].get(self.position, (None, None))
        return {
            at: EXACT if at == self.position else (minus(lag[0], high), minus(lag[1], low))
            for at, lag in inputs[0].items()
        }

    def used_columns(self, used: Positions, widths: Sequence[int]) -> list[Positions]:
        return [used | {self.position}]

    def reaches(self, lags: Sequence[Lags]) -> Reaches:
        low, _ = lags[0].get(self.position, (None, None))
        return Reaches([Reach(None if low is None else max(-low, 0), max(self.lag_us, 0))])

    def leaving(self, inputs: Sequence[Leaving]) -> Leaving:
        return "unknown"

    def updates(self) -> Updates:
        return INDIFFERENT

    def state(self) -> State:
        return STATEFUL._replace(lost=None)

    def edits(self) -> Edits:
        return FIXED

    def words(self, inputs: Sequence[str]) -> str:
        if self.lag_us < 0:
            distance = f"at least {format_interval(-self.lag_us)} after the row's own"
        else:
            distance = f"at most {format_interval(self.lag_us)} before the row's own"
        return f"retime to the time of column {self.position + 1}, {distance} (individual punctuation)"

    def build(self, site: Site) -> Operator:
        from millrace.operators.retime.retime import Retime

        return Retime(site, self)
