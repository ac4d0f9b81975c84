"""Arrays with room for more: a copy costs little per value if each has twice the room of the one before."""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from millrace.values.text_cells import are_cells

Array = npt.NDArray[Any]

SMALLEST: Final = 16


def resized(array: Array, room: int, filler: Any = None) -> Array:
    """A copy of this length, or the same cells of texts; new places hold the filler, or else zero or an empty text."""
    if are_cells(array):
        return cast(Array, array.resize(room))
    if room <= len(array):
        return array[:room].copy()
    larger = np.full(room, None, object) if array.dtype.hasobject else np.zeros(room, array.dtype)
    if filler is not None:
        larger[len(array) :] = filler
    larger[: len(array)] = array
    return larger


def grown(array: Array, count: int, filler: Any, width: int = 1) -> Array:
    """The array, or a larger copy, so that `count` slots of this width have a place."""
    if count * width <= len(array):
        return array
    return resized(array, max(count, SMALLEST, 2 * len(array) // width) * width, filler)
