"""Texts in cells that are written again and again: the columns of states.

The bytes of a cell stand anywhere in an arena. What a cell had before is garbage, and is swept when the arena is full
and at least a quarter of it is garbage: so the arena has at most a third more bytes than the cells need, or half as
many again while it grows.
"""

from __future__ import annotations

from typing import Any, Final, TypeGuard, cast

import numpy as np

from millrace.values.kernels import texts as kernel
from millrace.values.texts import ERRORS, OneText, Texts, Values, as_texts, encoded, offsets_of

# An arena that is smaller is not worth sweeping.
SMALLEST_ARENA: Final = 256


class TextCells:
    """Cells for texts, or for bytes if `binary`; one that was never written has an empty one.

    Cells are read as a `Texts`, by a slice or by positions, and written in the same ways from a column or from one
    value.
    """

    dtype: Final = np.dtype(object)
    ndim: Final = 1

    def __init__(self, binary: bool, count: int = 0) -> None:
        self._binary = binary
        self._starts = np.zeros(count, np.int64)
        self._lengths = np.zeros(count, np.int32)
        self._arena = np.empty(0, np.uint8)
        self._used = 0

    @staticmethod
    def of(values: Values, binary: bool) -> TextCells:
        """Cells with the values of a column."""
        cells = TextCells(binary, len(values))
        cells[:] = values
        return cells

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def shape(self) -> tuple[int]:
        return self._starts.shape

    @property
    def nbytes(self) -> int:
        return int(self._starts.nbytes + self._lengths.nbytes + self._arena.nbytes)

    def __getitem__(self, rows: Any) -> Any:
        starts, lengths = self._starts[rows], self._lengths[rows]
        if not isinstance(starts, np.ndarray):
            return self.item(int(rows))
        if len(starts) == 1:
            start = starts.item(0)
            value = self._arena[start : start + lengths.item(0)].tobytes()
            return OneText(value if self._binary else value.decode("utf-8", ERRORS), self._binary)
        offsets = offsets_of(lengths)
        data = np.empty(offsets[-1], np.uint8)
        kernel.collect(self._arena, np.ascontiguousarray(starts), offsets, data)
        return Texts(data, offsets, self._binary)

    def item(self, row: int) -> Any:
        return self[np.array([row])].item(0)

    def tolist(self) -> list[Any]:
        found: list[Any] = self[:].tolist()
        return found

    def __setitem__(self, rows: Any, values: Any) -> None:
        if isinstance(values, np.ndarray | Texts) and len(values) > 1:
            self._put(rows, as_texts(cast(Values, values), self._binary))
            return
        value = values.item(0) if isinstance(values, np.ndarray | Texts) and len(values) else values
        if not isinstance(value, str | bytes) or not value:  # nothing, or an empty text
            self._lengths[rows] = 0
            return
        data = encoded(value)
        if len(data) > len(self._arena) - self._used:
            self._lengths[rows] = 0
            self._make_room(len(data))
        # Cells that are written together share the bytes until the arena is swept.
        self._arena[self._used : self._used + len(data)] = np.frombuffer(data, np.uint8)
        self._starts[rows], self._lengths[rows] = self._used, len(data)
        self._used += len(data)

    def _put(self, rows: Any, texts: Texts) -> None:
        packed = texts.packed
        if len(packed) > len(self._arena) - self._used:
            self._lengths[rows] = 0
            self._make_room(len(packed))
        self._arena[self._used : self._used + len(packed)] = packed
        self._starts[rows] = texts.offsets[:-1] + (self._used - texts.offsets[0])
        self._lengths[rows] = texts.lengths
        self._used += len(packed)

    def _make_room(self, size: int) -> None:
        """Have a place for so many bytes."""
        needed = int(self._lengths.sum()) + size
        room = len(self._arena)
        if 4 * needed > 3 * room:
            room = max(SMALLEST_ARENA, needed + needed // 2)
        offsets = offsets_of(self._lengths)
        arena = np.empty(room, np.uint8)
        kernel.collect(self._arena, self._starts, offsets, arena[: offsets[-1]])
        self._arena, self._starts, self._used = arena, offsets[:-1].copy(), int(offsets[-1])

    def resize(self, count: int) -> TextCells:
        """The same object with so many cells."""
        kept = min(count, len(self))
        for name in ("_starts", "_lengths"):
            old = getattr(self, name)
            new = np.zeros(count, old.dtype)
            new[:kept] = old[:kept]
            setattr(self, name, new)
        return self

    def copy(self) -> TextCells:
        return TextCells.of(cast(Values, self[:]), self._binary)


def are_cells(values: Any) -> TypeGuard[TextCells]:
    """Whether a column is `TextCells`, which the type of columns does not say."""
    return isinstance(values, TextCells)
