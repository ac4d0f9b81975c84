"""Tuples by their positions on a source's arc, for windows of so many rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from millrace.operators.frame.inlet import Inlet
from millrace.values.batch import Batch, Int64s
from millrace.values.evaluate import compile_predicate
from millrace.values.expression import Expression


class RowPositions:
    """Which of a reader's tuples count, and where they stand.

    Positions count tuples from before the query's beginning too, and those that a WHERE leaves out: they are left out
    here, not by the reader. `failed` is told how many rows could not be tested, and why.
    """

    def __init__(self, reader: Inlet, where: Expression | None, failed: Callable[[int, str], None]) -> None:
        self._reader = reader
        self.since_us = reader.since_us
        reader.since_us = None
        self._where = None if where is None else compile_predicate(where)
        self._failed = failed

    def of(self, batch: Batch, first: int) -> tuple[Batch, Int64s]:
        """The tuples that count, and their places, where the first of all stands at this one."""
        places: Int64s = np.arange(first, first + len(batch))
        kept = None if self.since_us is None else batch.ts >= self.since_us
        if kept is not None:
            self._reader.ignored += len(kept) - int(np.count_nonzero(kept))
        if self._where is not None:
            passing, errors = self._where(batch)
            if errors is not None:
                self._failed(int(errors.rows.sum()), errors.reason)
            if passing is not None:
                kept = passing if kept is None else kept & passing
        return (batch, places) if kept is None else (batch.take(kept), places[kept])
