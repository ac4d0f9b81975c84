"""Windowed rows without aggregates: each row once per window that it falls into, at once.

Sessions are another matter: their bounds are known when they close (`sessionrows.py`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from millrace.operators.aggregate.row_positions import RowPositions
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import RowWise, Site
from millrace.operators.frame.windows import RowWindow, TimeWindow
from millrace.operators.window.spec import WindowSpec
from millrace.values.batch import Batch, Int64s
from millrace.values.evaluate import compile_columns


class Windowing(RowWise):
    """Rows with the bounds of their windows, at their own times, the earliest window first. Keeps the input's order.

    Windows that started before the query are left out unless `partial`, as for aggregates.
    """

    kind: ClassVar[str] = "map"
    layout: ClassVar[Layout] = Layout(1)

    def __init__(self, site: Site, spec: WindowSpec) -> None:
        super().__init__(site)
        self._spec = spec
        self._since = site.since_us if spec.partial == "skip" else None
        window = spec.window
        if isinstance(window, TimeWindow):
            self._size, self._slide, self._offset = window.size_us, window.slide_us, window.offset_us
        else:
            self._size, self._slide, self._offset = window.size, window.slide, 0

    def compute(self, batch: Batch) -> Batch:
        return self._windowed(batch, batch.ts)

    def _windowed(self, batch: Batch, places: Int64s) -> Batch:
        """Each row once per window, for rows at these places of the windows' axis."""
        rows, start = self._windows(places)
        if len(rows) != len(batch) or (rows[1:] == rows[:-1]).any():
            batch = batch.take(rows)
        bounds = [start if which == "start" else start + self._size for _, which in self._spec.bounds]
        valid = [*batch.valid, *(None for _ in bounds)]
        return Batch(self.output.schema, batch.ts, [*batch.columns, *bounds], valid, batch.arrival)

    def _windows(self, places: Int64s) -> tuple[Int64s, Int64s]:
        """The rows, once per window that contains them, and the starts of those windows."""
        places = places - self._offset
        last = places // self._slide
        counts = last - (places - self._size) // self._slide
        rows = np.repeat(np.arange(len(places)), counts)
        # A row's last window is number `last`; each other starts one slide earlier.
        back = np.repeat(np.cumsum(counts), counts) - 1 - np.arange(len(rows))
        start = (last[rows] - back) * self._slide + self._offset
        if self._since is None:
            return rows, start
        shown = start >= self._since
        return rows[shown], start[shown]

    def save(self) -> Any:
        return self._since

    def restore(self, data: Any) -> None:
        self._since = data


class RowWindowing(Windowing):
    """The same for windows of rows, whose places are their positions on the source's arc."""

    def __init__(self, site: Site, spec: WindowSpec) -> None:
        assert isinstance(spec.window, RowWindow)
        reader = site.inputs[0]
        self._positions = RowPositions(reader, spec.where, self.failed)
        super().__init__(site if site.since_us is None else site._replace(since_us=reader.position), spec)
        self._columns = None if spec.columns is None else compile_columns([column for _, column in spec.columns])
        self.place = reader.position

    def execute(self, limit: int) -> int:
        self.place = self.inputs[0].position  # what was skipped in a pause counts too
        return super().execute(limit)

    def compute(self, batch: Batch) -> Batch:
        batch, places = self._positions.of(batch, self.place)
        if self._columns is not None:
            columns, valid, errors = self._columns(batch)
            batch = Batch(batch.schema, batch.ts, columns, valid, batch.arrival)
            if errors is not None:
                self.failed(int(errors.rows.sum()), errors.reason)
                batch, places = batch.take(~errors.rows), places[~errors.rows]
        return self._windowed(batch, places)

    def save(self) -> Any:
        return [super().save(), self._positions.since_us]

    def restore(self, data: Any) -> None:
        saved, self._positions.since_us = data
        super().restore(saved)
