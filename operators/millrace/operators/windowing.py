"""Windowed rows without aggregates: each row once per window that it falls into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from millrace.operators.batch import Batch
from millrace.operators.buffer import Buffer, Reader
from millrace.operators.operator import RowWise
from millrace.operators.spec import WindowSpec


class Windowing(RowWise):
    """Rows with the bounds of their windows, at their own times, the earliest window first. Keeps the input's order."""

    kind: ClassVar[str] = "map"

    def __init__(self, name: str, spec: WindowSpec, inputs: Sequence[Reader], output: Buffer) -> None:
        super().__init__(name, inputs, output)
        self._spec = spec

    def compute(self, batch: Batch) -> Batch:
        window = self._spec.window
        places = batch.ts - window.offset_us
        last = places // window.slide_us
        counts = last - (places - window.size_us) // window.slide_us
        rows = np.repeat(np.arange(len(batch)), counts)
        if len(rows) != len(batch) or (counts != 1).any():
            batch = batch.take(rows)
        # Of a row's windows the last one of `last`; the others begin one slide earlier each.
        back = np.repeat(np.cumsum(counts), counts) - 1 - np.arange(len(rows))
        start = (last[rows] - back) * window.slide_us + window.offset_us
        bounds = [start if which == "start" else start + window.size_us for _, which in self._spec.bounds]
        valid = [*batch.valid, *(None for _ in bounds)]
        return Batch(self.output.schema, batch.ts, [*batch.columns, *bounds], valid, batch.arrival)
