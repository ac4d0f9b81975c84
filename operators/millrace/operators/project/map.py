"""Map: compute a new row from each row."""

from __future__ import annotations

from typing import ClassVar

from millrace.operators.frame.clause import Clause
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import RowWise, Site
from millrace.operators.project.spec import MapSpec
from millrace.operators.updates.updates import blanked, gone_of
from millrace.values.batch import FILLERS, Batch
from millrace.values.evaluate import compile_columns, without
from millrace.values.expression import Column


class Map(RowWise):
    """One new row per row, at the same time.

    Rows of which a column cannot be computed are dropped and counted; of a tombstone nothing is computed. Keeps the
    input's order; punctuation passes.
    """

    kind: ClassVar[str] = "map"
    layout: ClassVar[Layout] = Layout(1)

    def __init__(self, site: Site, spec: MapSpec) -> None:
        super().__init__(site)
        self._columns = compile_columns([expression for _, expression in spec.columns])
        copied = [isinstance(column, Column) and column.position >= 0 for _, column in spec.columns]
        self._computed = [at for at, plain in enumerate(copied) if not plain]
        self._places = {one.position: at for at, (_, one) in enumerate(spec.columns) if isinstance(one, Column)}
        self._retracts = self.output.schema.retracts

    def passed(self, clause: Clause) -> Clause | None:
        return clause.moved(self._places)

    def copied_from(self, position: int, side: int = 0) -> int | None:
        return next((column for column, at in self._places.items() if at == position), None)

    def compute(self, batch: Batch) -> Batch:
        columns, valid, errors = self._columns(batch)
        if self._retracts and (gone := gone_of(batch)) is not None:
            errors = None if errors is None else without(errors, gone)
            for at in self._computed:
                filler = FILLERS[self.output.schema.fields[at].type]
                columns[at], valid[at] = blanked(columns[at], valid[at], gone, filler)
        rows = Batch(self.output.schema, batch.ts, columns, valid, batch.arrival)
        return rows if errors is None else self.without_failed(rows, errors)
