"""Select: keep the rows for which a predicate is true."""

from __future__ import annotations

from typing import ClassVar

from millrace.operators.filter.index import Found
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import RowWise, Site
from millrace.values.batch import Batch
from millrace.values.evaluate import compile_predicate


class Select(RowWise):
    """The rows for which the predicate is true: neither false nor null.

    Rows whose predicate cannot be computed are dropped and counted. Keeps the input's order; punctuation passes.
    """

    kind: ClassVar[str] = "select"
    layout: ClassVar[Layout] = Layout(1)

    def __init__(self, site: Site, spec: SelectSpec) -> None:
        super().__init__(site)
        self.predicate = spec.predicate
        self._test = compile_predicate(spec.predicate)
        self.found: tuple[Batch, Found] | None = None  # by the arc's predicate index, in the batch that was put last

    def compute(self, batch: Batch) -> Batch:
        matches, self.found = self.found, None
        if matches is not None and matches[0] is batch:
            rows, errors = matches[1].result(batch)
            if errors is not None:
                self.failed(int(errors.rows.sum()), errors.reason)
            return rows
        passing, errors = self._test(batch)
        if errors is not None:
            self.failed(int(errors.rows.sum()), errors.reason)
        return batch if passing is None else batch.take(passing)
