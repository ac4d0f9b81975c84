"""Tuples by their positions on a source's arc, for windows of so many rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from millrace.operators.frame.inlet import Inlet
from millrace.values.batch import Batch, Int64s
from millrace.values.evaluate import compile_predicate
from millrace.values.expression import Expression


class RowPositions:
    """Which of a reader's tuples count, and their positions.

    Positions also count tuples from before the query's start and those that a WHERE excludes, so both are excluded
    here, not by the reader. `failed` gets the number of rows that could not be tested, and the reason.
    """

    def __init__(self, reader: Inlet, where: Expression | None, failed: Callable[[int, str], None]) -> None:
        self._reader = reader
        self.since_us = reader.since_us
        reader.since_us = None
        self._where = None if where is None else compile_predicate(where)
        self._failed = failed

    def of(self, batch: Batch, first: int) -> tuple[Batch, Int64s]:
        """The tuples that count, and their positions, if the first of all is at this one."""
        places: Int64s = np.arange(first, first + len(batch))
        counted = None if self.since_us is None else batch.ts >= self.since_us
        if counted is not None:
            self._reader.ignored += len(counted) - int(np.count_nonzero(counted))
        if self._where is not None:
            passing, errors = self._where(batch)
            if errors is not None:
                self._failed(int(errors.rows.sum()), errors.reason)
            if passing is not None:
                counted = passing if counted is None else counted & passing
        return (batch, places) if counted is None else (batch.take(counted), places[counted])
