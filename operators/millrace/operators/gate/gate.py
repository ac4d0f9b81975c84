"""Gate: the input of a query that waits for its history."""

from __future__ import annotations

from typing import Any, ClassVar

from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import RowWise, Site
from millrace.operators.frame.punctuation_grain import PunctuationGrain
from millrace.values.batch import Batch
from millrace.values.eventtime import MIN_TIME


class Gate(RowWise):
    """Passes tuples and punctuation in order once it is open. While it is closed, its input queues them.

    The operators downstream of a closed gate have no state of the stream yet, not even its promise: a backfill restores
    both.
    """

    kind: ClassVar[str] = "gate"
    layout: ClassVar[Layout] = Layout(1)

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.closed = True

    def open(self) -> None:
        self.closed = False
        self.inputs[0].wake()

    def more(self) -> bool:
        return not self.closed and super().more()

    def execute(self, limit: int) -> int:
        if self.closed:
            self.inputs[0].unseen = False
            return 0
        return super().execute(limit)

    def compute(self, batch: Batch) -> Batch:
        return batch

    def low_water(self) -> int:
        return MIN_TIME if self.closed else super().low_water()

    def declares(self) -> PunctuationGrain | None:
        return None if self.closed else super().declares()

    def decision(self) -> bool:
        return self.closed

    def decide(self, decision: bool) -> None:
        self.closed = decision

    def save(self) -> bool:
        return self.closed

    def restore(self, data: Any) -> None:
        self.closed = data
