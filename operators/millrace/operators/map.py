"""Map: compute a new row from each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from millrace.operators.batch import Batch, Bools, Values
from millrace.operators.buffer import Buffer, Reader
from millrace.operators.evaluate import Errors, compile_expression
from millrace.operators.operator import RowWise
from millrace.operators.spec import MapSpec


class Map(RowWise):
    """One new row per row, at the same time.

    Rows of which a column cannot be computed are dropped and counted. Keeps the input's order; punctuation passes.
    """

    kind: ClassVar[str] = "map"

    def __init__(self, name: str, spec: MapSpec, inputs: Sequence[Reader], output: Buffer) -> None:
        super().__init__(name, inputs, output)
        self._columns = [compile_expression(expression) for _, expression in spec.columns]

    def compute(self, batch: Batch) -> Batch:
        columns: list[Values] = []
        valid: list[Bools | None] = []
        failed: list[Errors] = []
        for column in self._columns:
            computed = column(batch)
            columns.append(computed.values)
            valid.append(computed.valid)
            if computed.error is not None:
                failed.append(computed.error)
        given = Batch(self.output.schema, batch.ts, columns, valid, batch.arrival)
        return self._without(given, failed) if failed else given

    def _without(self, given: Batch, failed: Sequence[Errors]) -> Batch:
        bad = np.logical_or.reduce([errors.rows for errors in failed])
        self.failed(int(bad.sum()), failed[0].reason)
        return given.take(~bad)
