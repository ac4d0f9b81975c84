"""Deduplicate: the first row of each key per span of time."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from millrace.operators.deduplicate import kernel
from millrace.operators.deduplicate.spec import DeduplicateSpec
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import RowWise, Site
from millrace.operators.updates.key_index import KeyIndex
from millrace.protocol import Field
from millrace.values.arrays import grown
from millrace.values.batch import Batch
from millrace.values.evaluate import compile_columns
from millrace.values.eventtime import MIN_TIME, before, is_time


class Deduplicate(RowWise):
    """The rows whose key has kept no row at their time or up to `within` earlier; keys that are NULL are equal.

    Takes rows in order of time and keeps the order; punctuation passes. Rows whose key cannot be computed are dropped
    and counted. A key is dropped when its last row is further back than `within`.
    """

    kind: ClassVar[str] = "deduplicate"
    layout: ClassVar[Layout] = Layout(1)

    def __init__(self, site: Site, spec: DeduplicateSpec) -> None:
        super().__init__(site)
        self._within_us = spec.within_us
        self._columns = compile_columns(spec.keys)
        self._keys = KeyIndex([Field(f"key{at}", key.type, key.nullable) for at, key in enumerate(spec.keys)])
        self._last = np.zeros(0, np.int64)  # by key, the time of its last kept row
        self._swept_us = MIN_TIME

    def execute(self, limit: int) -> int:
        taken = super().execute(limit)
        self._forget(self.inputs[0].low_water())
        return taken

    def compute(self, batch: Batch) -> Batch:
        columns, valid, errors = self._columns(batch)
        if errors is not None:
            self.failed(int(errors.rows.sum()), errors.reason)
            batch = batch.take(~errors.rows)
            columns = [column[~errors.rows] for column in columns]
            valid = [None if mask is None else mask[~errors.rows] for mask in valid]
        slots = self._keys.find(columns, valid, len(batch))
        self._last = grown(self._last, self._keys.count, MIN_TIME)
        first = np.zeros(len(batch), np.uint8)
        kernel.first_of_spans(slots, batch.ts, self._within_us, MIN_TIME, self._last, first)
        return batch if first.all() else batch.take(first.view(np.bool_))

    def _forget(self, low_us: int) -> None:
        """Drop the keys that affect no row from this time on, once per span on the axis of time: a key is looked at
        twice at most, and operators that have read the same rows since drop the same keys."""
        since_us = before(low_us, self._within_us)
        swept_us = before(self._swept_us, self._within_us)
        if not is_time(low_us) or since_us // self._within_us <= swept_us // self._within_us:
            return
        self._swept_us = low_us
        times = self._last[: self._keys.count]
        alive = np.flatnonzero(times >= since_us)
        if len(alive) < len(times):
            self._keys.keep(alive)
            self._last = times[alive].copy()

    @property
    def state_tuples(self) -> int:
        return self._keys.count

    @property
    def state_bytes(self) -> int:
        return self._keys.nbytes + self._last.nbytes

    def save(self) -> Any:
        return [self._keys.save(), self._last[: self._keys.count].copy(), self._swept_us]

    def essence(self) -> Any:
        """Its keys by value, whatever their numbers."""
        keys = self._keys.rows(np.arange(self._keys.count))
        return sorted(zip(keys, self._last[: self._keys.count].tolist(), strict=True), key=repr)

    def restore(self, data: Any) -> None:
        keys, last, self._swept_us = data
        self._keys.restore(keys)
        self._last = last.copy()
