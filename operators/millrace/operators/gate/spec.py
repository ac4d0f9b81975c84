"""Gates as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.spec import FIXED, STATELESS, Edits, Leaving, PassingSpec, RowSpec, State


@dataclass(frozen=True, slots=True)
class GateSpec(PassingSpec, RowSpec):
    """Hold the input back until its query has taken over the state of its past; then pass everything."""

    kind: ClassVar[str] = "gate"
    word: ClassVar[str] = "gate"

    def leaving(self, inputs: Sequence[Leaving]) -> Leaving:
        return "unknown"

    def state(self) -> State:
        return STATELESS._replace(shared="never", start="beginning")

    def edits(self) -> Edits:
        return FIXED

    def words(self, inputs: Sequence[str]) -> str:
        return self.kind

    def build(self, site: Site) -> Operator:
        from millrace.operators.gate.gate import Gate

        return Gate(site)
