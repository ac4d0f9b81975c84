"""Samples as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.spec import PASSED_ON, STATEFUL, Edits, Leaving, PassingSpec, State, Updates
from millrace.protocol import Schema
from millrace.values.lags import Lags
from millrace.values.reach import Reaches, unbounded


@dataclass(frozen=True, slots=True)
class SampleSpec(PassingSpec):
    """Keep this share of the rows, drawn at random from the seed."""

    kind: ClassVar[str] = "select"
    word: ClassVar[str] = "filter"
    share: float
    seed: int

    def gives_order(self, inputs: Sequence[bool]) -> bool:
        return all(inputs)

    def state_keys(self, schemas: Sequence[Schema]) -> str:
        return "which rows it keeps depends on how many came before them"

    def reaches(self, lags: Sequence[Lags]) -> Reaches:
        return unbounded("which rows a sample keeps depends on how many came before them", 1)

    def leaving(self, inputs: Sequence[Leaving]) -> Leaving:
        return "unknown"

    def updates(self) -> Updates:
        return PASSED_ON

    def every(self) -> SampleSpec:
        return self

    def state(self) -> State:
        return STATEFUL._replace(lost=None, counts=True)

    def edits(self) -> Edits:
        return Edits(True, self.share, lambda spec: spec)

    def words(self, inputs: Sequence[str]) -> str:
        return self.kind

    def build(self, site: Site) -> Operator:
        from millrace.operators.sample.sample import Sample

        return Sample(site, self)
