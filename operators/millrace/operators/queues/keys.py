"""Update keys: which cell of a queue a tuple belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace.operators.aggregates.accumulator import OBJECTS
from millrace.operators.batch import Batch, Int64s
from millrace.operators.groups import Keys
from millrace.protocol import Schema


class UpdateKeys:
    """The keys of a stream, numbered in the order in which they first came; null is a key like any other.

    Without key columns every tuple updates the one before it, whatever it says: there is one key.
    """

    def __init__(self, schema: Schema, key: Sequence[int]) -> None:
        self.key = tuple(key)
        self._fields = [schema.fields[at] for at in self.key]
        self._types = [field.type for field in self._fields]
        self._null_bits = [at for at, f in enumerate(self._fields) if f.nullable and f.type not in OBJECTS]
        self._keys = Keys(self._types, self._null_bits)
        self._any = False

    @property
    def count(self) -> int:
        return self._keys.count if self.key else int(self._any)

    def find(self, batch: Batch) -> Int64s:
        """The number of each row's key; new ones get the next numbers."""
        if not self.key:
            self._any = True
            return np.zeros(len(batch.ts), np.int64)
        return self._keys.find([batch.columns[at] for at in self.key], [batch.valid[at] for at in self.key])

    def find_one(self, batch: Batch) -> int:
        """The number of a single row's key."""
        if not self.key:
            self._any = True
            return 0
        return self._keys.find_one(batch.columns, batch.valid, self.key)

    def rows(self, numbers: Int64s) -> list[tuple[Any, ...]]:
        """The keys of these numbers as Python values."""
        if not self.key:
            return [()] * len(numbers)
        listed = []
        for values, mask in self._keys.decode_at(numbers):
            column = values.tolist()
            listed.append(column if mask is None else [v if m else None for v, m in zip(column, mask, strict=True)])
        return list(zip(*listed, strict=True))

    def keep(self, numbers: Int64s) -> None:
        """Forget all other keys; these are numbered anew, in this order."""
        if not self.key:
            return
        decoded = self._keys.decode_at(numbers)
        self._keys = Keys(self._types, self._null_bits)
        if len(numbers):
            self._keys.find([values for values, _ in decoded], [mask for _, mask in decoded])

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes

    def save(self) -> list[Any]:
        return [self._any, self._keys.save()]

    def restore(self, data: Sequence[Any]) -> None:
        self._any, keys = data
        self._keys.restore(keys)
