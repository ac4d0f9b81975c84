"""Sample: keep a share of the rows, drawn at random, so that the operators downstream have less work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import RowWise, Site
from millrace.operators.sample.spec import SampleSpec
from millrace.values.batch import Batch
from millrace.values.splitmix import draws, state_after


class Sample(RowWise):
    """Each row with the same chance; the others are shed and counted. Keeps the input's order; punctuation passes.

    Whether a row stays depends on the seed and the number of earlier rows, not on the executions' sizes.
    """

    kind: ClassVar[str] = "select"
    layout: ClassVar[Layout] = Layout(1)

    def __init__(self, site: Site, spec: SampleSpec) -> None:
        super().__init__(site)
        # 2 ** 64 does not fit into 64 bits: a share of 1 keeps every number up to the greatest one.
        self._below = np.uint64(min(int(spec.share * 2.0**64), 2**64 - 1))
        self._seed = spec.seed
        self._drawn = self._shed = 0

    def compute(self, batch: Batch) -> Batch:
        count = len(batch)
        rows = batch.take(draws(state_after(self._seed, self._drawn), count) <= self._below)
        self._drawn += count
        self._shed += count - len(rows)
        return rows

    @property
    def shed(self) -> int:
        return self._shed

    def save(self) -> Any:
        return [self._drawn, self._shed]

    def restore(self, data: Sequence[Any]) -> None:
        self._drawn, self._shed = data
