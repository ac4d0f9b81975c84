"""Keys numbered in the order in which they first came; null is a value like any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace.operators.aggregate.groups import Keys, listed
from millrace.protocol import Field
from millrace.values.aggregates.accumulator import OBJECTS
from millrace.values.batch import Batch, Bools, Int64s, Values

Column = tuple[Values, Bools | None]


class KeyIndex:
    """KeyIndex for keys of these fields. Without fields there is one key, number 0, from the first row on."""

    def __init__(self, fields: Sequence[Field]) -> None:
        null_bits = [at for at, field in enumerate(fields) if field.nullable and field.type not in OBJECTS]
        self._keys = Keys([field.type for field in fields], null_bits) if fields else None
        self._one = 0

    @property
    def count(self) -> int:
        return self._one if self._keys is None else self._keys.count

    def find(self, columns: Sequence[Values], valid: Sequence[Bools | None], rows: int) -> Int64s:
        """The number of each row's key; new ones get the next numbers."""
        if self._keys is None:
            self._one = max(self._one, min(rows, 1))
            return np.zeros(rows, np.int64)
        return self._keys.find(columns, valid) if rows else np.zeros(0, np.int64)

    def find_one(self, batch: Batch, positions: Sequence[int]) -> int:
        """The same for the one row of a batch, whose key stands at these positions."""
        if self._keys is None:
            self._one = 1
            return 0
        return self._keys.find_one(batch.columns, batch.valid, positions)

    def columns(self, slots: Int64s) -> list[Column]:
        """The keys of these numbers."""
        return [] if self._keys is None else self._keys.decode_at(slots)

    def rows(self, slots: Int64s) -> list[tuple[Any, ...]]:
        """The keys of these numbers as Python values."""
        return [()] * len(slots) if self._keys is None else listed(self._keys.decode_at(slots))

    def keep(self, slots: Int64s) -> None:
        """Drop all other keys; these are renumbered, in this order."""
        if self._keys is not None:
            self._keys = self._keys.kept(slots)

    @property
    def nbytes(self) -> int:
        return 0 if self._keys is None else self._keys.nbytes

    def save(self) -> Any:
        return self._one if self._keys is None else self._keys.save()

    def restore(self, data: Any) -> None:
        if self._keys is None:
            self._one = data
        else:
            self._keys.restore(data)
