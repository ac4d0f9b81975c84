"""Texts numbered in the order in which they first appear: the keys of groups, and codes of texts in wider keys.

Their bytes stand one after another in an arena, and a hash table with open addressing finds them
(`kernels/texts.py`). A text takes its bytes, eight more for its end, and five per place of the table, which is at most
seven eighths full. An index that goes takes its texts along.
"""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np

from millrace.values.arrays import SMALLEST, resized
from millrace.values.kernels import texts as kernel
from millrace.values.texts import Bools, Int64s, Texts, Values, as_texts, chosen, texts_from, texts_full

# Bytes of the first arena.
FIRST_BYTES: Final = 256


def grown_by_quarters(size: int, needed: int) -> int:
    """The least size that reaches, of those that grow by a quarter from this one: it does not depend on what arrived
    together, so a restored index takes as much memory as the saved one."""
    while size < needed:
        size += size // 4
    return size


class TextIndex:
    """A set of texts, or of bytes, and perhaps null.

    count    how many there are, null included
    absent   the number of null, or -1 where it has not appeared
    """

    def __init__(self, binary: bool) -> None:
        self._binary = binary
        self.count = 0
        self.absent = -1
        self._tags, self._index = np.zeros(1, np.uint8), np.zeros(1, np.int32)
        self._ends, self._arena = np.zeros(1, np.int64), np.empty(0, np.uint8)

    def find(self, values: Values, mask: Bools | None) -> Int64s:
        """The number of each value; new ones get the next numbers."""
        column = as_texts(values, self._binary)
        if mask is None:
            return self.numbers(column)
        if self.absent < 0 and not mask.all():
            self.numbers(column[: int(mask.argmin())])
            self.null()
        numbers: Int64s = np.full(len(mask), self.absent)
        numbers[mask] = self.numbers(column[mask])
        return numbers

    def numbers(self, column: Texts) -> Int64s:
        """The numbers of texts of which none is null."""
        numbers = column.hashes()
        rows, done = len(numbers), 0
        while True:
            begun = done
            done = kernel.number(
                column.data,
                column.offsets,
                numbers,
                done,
                self._tags,
                self._index,
                self._ends,
                self._arena,
                self.count,
            )
            if done > begun:
                self.count = max(self.count, int(numbers[begun:done].max()) + 1)
            if done == rows:
                return numbers
            self._grow(int(column.offsets[done + 1] - column.offsets[done]))

    def contains(self, values: Values) -> Bools:
        """Whether each value is among the texts."""
        return self.places(values) >= 0

    def places(self, values: Values) -> Int64s:
        """The number of each value; a negative one where it is not among the texts."""
        column = as_texts(values, self._binary)
        numbers = column.hashes()
        kernel.look_up(column.data, column.offsets, numbers, self._tags, self._index, self._ends, self._arena)
        return numbers

    def null(self) -> int:
        """The number of null."""
        if self.absent < 0:
            if self.count == len(self._ends) - 1:
                self._grow(0)
            self.absent = self.count
            self._ends[self.count + 1] = self._ends[self.count]
            self.count += 1
        return self.absent

    def _grow(self, size: int) -> None:
        """Have room for one more text of so many bytes."""
        if self.count == len(self._ends) - 1:
            room = grown_by_quarters(SMALLEST, self.count + 1)
            self._ends = resized(self._ends, room + 1)
            if 7 * len(self._index) < 8 * room:
                self._hash(room)
        needed = int(self._ends[self.count]) + size
        if len(self._arena) < needed:
            self._arena = resized(self._arena, grown_by_quarters(FIRST_BYTES, needed))

    def _hash(self, room: int) -> None:
        """Make a hash table for so many texts."""
        places = 1 << (8 * room // 7).bit_length()
        self._tags, self._index = np.zeros(places, np.uint8), np.zeros(places, np.int32)
        kernel.reindex(self._arena, self._ends, self.count, self.absent, self._tags, self._index)

    # -- the texts -----------------------------------------------------------------------------------------------------

    def decode(self, start: int, stop: int) -> tuple[Values, Bools | None]:
        """The values from one number to another, sharing the arena."""
        found = Texts(self._arena, self._ends[start : stop + 1], self._binary)
        mask = None
        if start <= self.absent < stop:
            mask = np.ones(stop - start, np.bool_)
            mask[self.absent - start] = False
        return cast(Values, found), mask

    def decode_at(self, numbers: Int64s) -> tuple[Values, Bools | None]:
        """The values of these numbers; a negative one is null, too."""
        known = Texts(self._arena, self._ends[: self.count + 1], self._binary)
        there = numbers >= 0
        found = cast(Values, known.take(numbers[there]))
        if not there.all():
            places = np.maximum(np.cumsum(there) - 1, 0)
            filler = b"" if self._binary else ""
            filled = chosen(there, found[places], filler) if len(found) else texts_full(filler, len(numbers))
            found = cast(Values, filled)
        if self.absent >= 0:
            there &= numbers != self.absent
        return found, None if there.all() else there

    # -- state ---------------------------------------------------------------------------------------------------------

    def save(self) -> Any:
        return [self.absent, Texts(self._arena, self._ends[: self.count + 1], self._binary)]

    def restore(self, data: Any) -> None:
        self.absent, values = data
        texts = values if isinstance(values, Texts) else texts_from(values, self._binary)
        self.count = len(texts)
        packed = texts.packed
        if len(packed):
            self._arena = resized(packed, grown_by_quarters(FIRST_BYTES, len(packed)))
        if self.count:
            room = grown_by_quarters(SMALLEST, self.count)
            self._ends = resized(texts.offsets - texts.offsets[0], room + 1)
            self._hash(room)

    @property
    def content_bytes(self) -> int:
        """The bytes of the texts and of their places, without room for more."""
        return int(self._ends[self.count]) + 16 * self.count

    @property
    def nbytes(self) -> int:
        return self._tags.nbytes + self._index.nbytes + self._ends.nbytes + self._arena.nbytes
