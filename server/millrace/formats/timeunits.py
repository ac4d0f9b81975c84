"""The time fields of streams whose numbers count in another unit than microseconds (option `time_unit`).

Rule: a column is converted once, as an array. It ends in event time or is refused: a number that would leave 64 bits is
found before it is multiplied. `TimeUnit.micros` converts single values in the same way, and tests compare the two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.protocol.timestamps import FIRST_US, LAST_US
from millrace.protocol.units import TimeUnit
from millrace.values.batch import Int64s
from millrace.values.eventtime import outside

# Beyond event time, and still within 64 bits: microseconds that stand for every float that is larger, or NaN.
_MOST_FLOAT = 2.0**60


def micros_of(unit: TimeUnit, numbers: npt.NDArray[Any]) -> Int64s:
    """The numbers of a time field as microseconds. Raises BeyondError at the first that is not in event time."""
    return _from_integers(unit, numbers) if numbers.dtype == np.int64 else _from_floats(unit, numbers)


class BeyondError(Exception):
    """A number lies outside event time; `row` is its index."""

    def __init__(self, row: int) -> None:
        self.row = row


def _from_integers(unit: TimeUnit, numbers: Int64s) -> Int64s:
    if unit.denominator > 1:  # 64 bits of it are all within event time
        return numbers // unit.denominator
    low, high = -(-FIRST_US // unit.numerator), LAST_US // unit.numerator
    if len(numbers) == 1:
        if not low <= numbers.item(0) <= high:
            raise BeyondError(0)
    elif len(numbers) and not (numbers.min() >= low and numbers.max() <= high):
        raise BeyondError(int(((numbers < low) | (numbers > high)).argmax()))
    return numbers * unit.numerator


def _from_floats(unit: TimeUnit, numbers: npt.NDArray[np.float64]) -> Int64s:
    most = _MOST_FLOAT / unit.numerator
    fits = np.abs(numbers) <= most  # false for NaN
    fractions, wholes = np.modf(numbers if fits.all() else np.where(fits, numbers, most))
    micros: Int64s = wholes.astype(np.int64) * unit.numerator + np.rint(fractions * unit.numerator).astype(np.int64)
    if (row := outside(micros)) is not None:
        raise BeyondError(row)
    return micros
