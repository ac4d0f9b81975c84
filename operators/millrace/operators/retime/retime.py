"""The same rows at another time, for windows by the time of one side of a join."""

from __future__ import annotations

from typing import ClassVar

from millrace.operators.frame.clause import Clause
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import RowWise, Site
from millrace.operators.frame.punctuation_grain import EVERY, PunctuationGrain, union_of
from millrace.operators.retime.spec import RetimeSpec
from millrace.values.batch import Batch
from millrace.values.eventtime import HORIZON_US, after, before
from millrace.values.expression import TIME


class Retime(RowWise):
    """Rows at the time in a column, in no order. A row without a time, or with one outside the time domain, fails.

    No row's column is more than the spec's lag below its time. So promises are lowered by the lag, and needs raised.
    """

    kind: ClassVar[str] = "map"
    layout: ClassVar[Layout] = Layout(1)
    shifts_time: ClassVar[bool] = True

    def __init__(self, site: Site, spec: RetimeSpec) -> None:
        super().__init__(site)
        self._position = spec.position
        self._lag_us = spec.lag_us

    def compute(self, batch: Batch) -> Batch:
        mask = batch.valid[self._position]
        if mask is not None and not mask.all():
            self.failed(int((~mask).sum()), "the column for the row's time is null")
            batch = batch.take(mask)
        times = batch.columns[self._position]
        beyond = (times > HORIZON_US) | (times < -HORIZON_US)
        if beyond.any():
            self.failed(int(beyond.sum()), "the column for the row's time is far outside the years 1 to 9999")
            batch = batch.take(~beyond)
        return Batch(self.output.schema, batch.columns[self._position], batch.columns, batch.valid, batch.arrival)

    def declares(self) -> PunctuationGrain | None:
        """What readers need at their boundaries is needed `lag_us` above them here."""
        return union_of((EVERY, self.output.grain)) if self.output.punctuates else None

    def promised(self, low_us: int) -> int:
        return before(low_us, self._lag_us)

    def passed(self, clause: Clause) -> Clause | None:
        if [at for at, _ in clause.below] != [TIME]:
            return None
        return clause._replace(below=((TIME, self.promised(clause.below[0][1])),))

    def demand(self, need_us: int) -> int:
        return after(need_us, self._lag_us)
