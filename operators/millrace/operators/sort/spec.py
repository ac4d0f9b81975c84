"""Sorting as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.spec import FIXED, PASSED_ON, STATEFUL, Edits, Leaving, PassingSpec, State, Updates
from millrace.protocol import Schema
from millrace.values.lags import Lags
from millrace.values.reach import HERE, Reaches


@dataclass(frozen=True, slots=True)
class SortSpec(PassingSpec):
    """The rows in order of time; equal times in order of arrival."""

    kind: ClassVar[str] = "sort"
    word: ClassVar[str] = "sort"

    def gives_order(self, inputs: Sequence[bool]) -> bool:
        return True

    def state_keys(self, schemas: Sequence[Schema]) -> None:
        return None

    def reaches(self, lags: Sequence[Lags]) -> Reaches:
        return Reaches([HERE])

    def leaving(self, inputs: Sequence[Leaving]) -> Leaving:
        return 0 if inputs[0] == "at once" else inputs[0]

    def updates(self) -> Updates:
        return PASSED_ON

    def every(self) -> SortSpec:
        return self

    def state(self) -> State:
        return STATEFUL._replace(lost=None)

    def edits(self) -> Edits:
        return FIXED

    def words(self, inputs: Sequence[str]) -> str:
        return "sort by time"

    def build(self, site: Site) -> Operator:
        from millrace.operators.sort.sort import Sort

        return Sort(site)
