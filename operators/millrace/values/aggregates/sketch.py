"""approx_quantile: a t-digest for each group, by the DataSketches library.

A digest is deterministic, can be merged and saved, and accepts an array at a time. It buffers values until a query or a
save, so its later answers would depend on earlier queries: it is therefore compressed after each array, and then
queries and saves change nothing. `docs/decisions/windows-and-aggregates.md` has the alternatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np

from millrace.values.aggregates.accumulator import Accumulator, Rows, numbers
from millrace.values.batch import Int64s, Values
from millrace.values.functions.vectors import Vector

# Centroids; the error in rank is well below 1/100 in the middle and falls towards both ends.
SIZE: Final = 200
# The approximate bytes of a digest, for accounting.
WEIGHT: Final = 1_000


class Quantile(Accumulator):
    """The value below which approximately this share of the values lies."""

    def __init__(self, share: float) -> None:
        from datasketches import tdigest_double  # 2 MB that a server without quantiles does not need

        self._share = share
        self._make = tdigest_double
        self.digests: list[Any] = []

    def reserve(self, room: int) -> None:
        self.digests += [None] * (room - len(self.digests))

    def clear(self, slots: Int64s) -> None:
        for slot in slots.tolist():
            self.digests[slot] = None

    def update(self, slots: Int64s, columns: Sequence[Values], ts: Int64s) -> None:
        order = np.argsort(slots, kind="stable")
        ordered, values = slots[order], columns[0].astype(np.float64, copy=False)[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        for slot, part in zip(ordered[starts].tolist(), np.split(values, starts[1:]), strict=True):
            digest = self._digest(slot)
            digest.update(part)
            digest.compress()

    def _digest(self, slot: int) -> Any:
        if self.digests[slot] is None:
            self.digests[slot] = self._make(SIZE)
        return self.digests[slot]

    def merge(self, other: Self, slots: Int64s, rows: Rows) -> None:
        for slot, at in zip(slots.tolist(), numbers(rows), strict=True):
            digest = other.digests[at]
            if digest is not None:
                own = self._digest(slot)
                own.merge(digest)
                own.compress()

    def finish(self, slots: Int64s) -> Vector:
        digests = [self.digests[slot] for slot in slots.tolist()]
        valid = np.fromiter((digest is not None for digest in digests), np.bool_, len(digests))
        values = [0.0 if digest is None else digest.get_quantile(self._share) for digest in digests]
        return np.array(values, np.float64), None if valid.all() else valid, None

    def save(self, count: int) -> Any:
        return [None if digest is None else digest.serialize() for digest in self.digests[:count]]

    def restore(self, data: Any) -> None:
        for slot, saved in enumerate(data):
            self.digests[slot] = None if saved is None else self._make.deserialize(saved)

    @property
    def nbytes(self) -> int:
        return 8 * len(self.digests) + WEIGHT * sum(digest is not None for digest in self.digests)
