"""Deduplication as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.spec import (
    FIXED,
    INDIFFERENT,
    STATEFUL,
    Edits,
    Leaving,
    PassingSpec,
    Positions,
    Shared,
    State,
    Updates,
)
from millrace.protocol import Schema
from millrace.values import expression as e
from millrace.values.intervals import format_interval
from millrace.values.lags import Lags
from millrace.values.reach import Reaches, unbounded
from millrace.values.written import show


@dataclass(frozen=True, slots=True)
class DeduplicateSpec(PassingSpec):
    """Keep a row if its key has kept none at its time or up to `within_us` earlier. The input is in order of time."""

    kind: ClassVar[str] = "deduplicate"
    word: ClassVar[str] = "deduplicate"
    keys: tuple[e.Expression, ...]
    within_us: int

    def gives_order(self, inputs: Sequence[bool]) -> bool:
        return all(inputs)

    def used_columns(self, used: Positions, widths: Sequence[int]) -> list[Positions]:
        return [used | e.positions_of(self.keys)]

    def state_keys(self, schemas: Sequence[Schema]) -> Sequence[Shared]:
        return [[(0, key)] for key in self.keys]

    def reaches(self, lags: Sequence[Lags]) -> Reaches:
        return unbounded("which row starts a span of DEDUPLICATE depends on all spans before it", 1)

    def leaving(self, inputs: Sequence[Leaving]) -> Leaving:
        return "unknown"

    def updates(self) -> Updates:
        return INDIFFERENT._replace(reads_all=True)

    def every(self) -> DeduplicateSpec:
        return self

    def state(self) -> State:
        return STATEFUL._replace(lost="the first row of each key after the restart counts as new")

    def edits(self) -> Edits:
        return FIXED

    def words(self, inputs: Sequence[str]) -> str:
        keys, within = ", ".join(map(show, self.keys)), format_interval(self.within_us)
        return f"deduplicate by {keys} within {within}; keeps each key for {within}"

    def build(self, site: Site) -> Operator:
        from millrace.operators.deduplicate.deduplicate import Deduplicate

        return Deduplicate(site, self)
