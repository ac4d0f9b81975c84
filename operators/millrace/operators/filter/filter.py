"""Filter: which keys of an update stream have a row that passes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from millrace.operators.filter.spec import FilterSpec
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import Operator, Site
from millrace.operators.updates import kernel as replacing
from millrace.operators.updates.updates import KeyVersions, Stateful, UpdateState, blanked, gone_of, last_of_each
from millrace.values.arrays import grown
from millrace.values.batch import FILLERS, Batch, Bools, Values
from millrace.values.evaluate import compile_predicate, without


class Filter(Stateful):
    """The rows that pass; where a key's row passes no more, or goes, a tombstone of the key.

    A row for which the predicate cannot be computed does not pass, and is counted. Keeps the input's order.
    """

    kind: ClassVar[str] = "select"
    layout: ClassVar[Layout] = Layout(1)

    def __init__(self, site: Site, spec: FilterSpec) -> None:
        super().__init__(site)
        self.state = Shown(spec, self)


class Shown(UpdateState):
    """The keys, and for which of them the last emitted row is not a tombstone."""

    _newest: KeyVersions

    def __init__(self, spec: FilterSpec, operator: Operator) -> None:
        self._spec = spec
        self._operator = operator
        self._test = compile_predicate(spec.predicate)
        self._newest = KeyVersions(operator.inputs[0].schema, spec.key)
        self._shown = np.zeros(0, np.uint8)

    def consume(self, batch: Batch) -> Batch | None:
        rows, slots = self._newest.newest_rows(batch)
        if not len(rows):
            return None
        batch = batch.take(rows)
        self._shown = grown(self._shown, self._newest.count, 0)
        before = self._shown[slots]
        changes = np.zeros(len(slots), np.uint8)
        replacing.show(slots, self._passing(batch), self._shown, changes)
        reported = np.flatnonzero(changes)
        if self._spec.emit == "latest":
            reported = reported[last_of_each(slots[reported])]
            # A row that was replaced in the same execution was never visible.
            reported = reported[(changes[reported] == 1) | (before[reported] == 1)]
        return self._built(batch.take(reported), changes[reported] == 2) if len(reported) else None

    def _passing(self, batch: Batch) -> Values:
        """Which rows are there and pass, as bytes."""
        gone = gone_of(batch)
        passing, errors = self._test(batch)
        if errors is not None and gone is not None:
            errors = without(errors, gone)
        if errors is not None:
            self._operator.failed(int(errors.rows.sum()), errors.reason)
        if passing is None:
            passing = np.ones(len(batch), np.bool_)
        return (passing if gone is None else passing & ~gone).astype(np.uint8)

    def _built(self, batch: Batch, gone: Bools) -> Batch:
        """The rows as they are, and tombstones."""
        schema = self._operator.output.schema
        columns = list(batch.columns[: len(schema) - 1])
        valid = list(batch.valid[: len(schema) - 1])
        if gone.any():
            for at, field in enumerate(schema.data_fields):
                if at not in self._spec.key:
                    columns[at], valid[at] = blanked(columns[at], valid[at], gone, FILLERS[field.type])
        return Batch(schema, batch.ts, [*columns, gone], [*valid, None], batch.arrival)

    @property
    def tuples(self) -> int:
        return self._newest.count

    @property
    def nbytes(self) -> int:
        return self._newest.nbytes + self._shown.nbytes

    def save(self) -> Any:
        return [self._newest.save(), self._shown[: self._newest.count].copy()]

    def restore(self, data: Any) -> None:
        newest, shown = data
        self._newest.restore(newest)
        self._shown = shown.copy()
