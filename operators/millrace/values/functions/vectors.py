"""The result of a compiled expression: values, which of them are not null, and which rows have failed.

A vector is a plain triple because a single tuple passes through a dozen of them and every name lookup counts:

    values   an array as long as the batch; with a filler (`batch.FILLERS`) where the row is null
    valid    True where the value is not null, or None if none is null
    faults   0 where the row is fine, else the number of its fault (`faults.py`), or None if all rows are fine

A function never writes into the arrays of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.protocol import Type
from millrace.values.batch import DTYPES, FILLERS, TEXTS, Batch, Bools, Values, column_of, constant_column
from millrace.values.functions.faults import Fault, RowFault

Faults = npt.NDArray[np.uint8]
Vector = tuple[Values, Bools | None, Faults | None]
Run = Callable[[Batch], Vector]


@dataclass(frozen=True, slots=True)
class Operand:
    """A compiled argument. A constant also says its value, so that a function can be made for just that value."""

    type: Type
    run: Run
    constant: bool = False
    value: Any = None

    @property
    def known(self) -> bool:
        """Whether it is a constant that is not null."""
        return self.constant and self.value is not None


def scalar(type: Type, value: Any) -> Values:
    """A value as an array without dimensions, or as a text of one row: it combines with columns of any length."""
    return column_of(type, [value]) if type in TEXTS else np.array(value, DTYPES[type])


def constant_run(type: Type, value: Any) -> Run:
    """A column of one value, None meaning null."""
    filler = FILLERS[type] if value is None else value

    def run(batch: Batch) -> Vector:
        count = len(batch)
        return constant_column(type, filler, count), None if value is not None else np.zeros(count, np.bool_), None

    return run


def both(left: Bools | None, right: Bools | None) -> Bools | None:
    """Where neither is null."""
    if left is None:
        return right
    return left if right is None else left & right


def first_fault(left: Faults | None, right: Faults | None) -> Faults | None:
    """The fault of the left argument, else of the right one."""
    if left is None:
        return right
    return left if right is None else np.where(left != 0, left, right)


def faults_where(failed: Bools, fault: Fault) -> Faults | None:
    """This fault where `failed` is true; None if that is nowhere."""
    return np.where(failed, np.uint8(fault), np.uint8(0)) if failed.any() else None


def only(faults: Faults | None, rows: Bools | None) -> Faults | None:
    """The faults of these rows alone."""
    if faults is None or rows is None:
        return faults
    kept = np.where(rows, faults, np.uint8(0))
    return kept if kept.any() else None


def fill(values: Values, valid: Bools | None, type: Type) -> Values:
    """The same values with fillers where they are null. Only for an array that the caller has just made."""
    if valid is None:
        return values
    if type in TEXTS:
        return np.where(valid, values, constant_column(type, FILLERS[type], 1))
    values[~valid] = FILLERS[type]
    return values


def per_row(
    result: Type, compute: Callable[..., Any], arguments: Sequence[Iterable[Any]], valid: Bools | None, count: int
) -> Vector:
    """Call `compute` for every row that is not null. It may return None for null, and raise RowFault."""
    filler = FILLERS[result]
    try:
        if valid is None:
            made = list(map(compute, *arguments))
        else:
            rows = zip(valid.tolist(), *arguments, strict=True)
            made = [compute(*row) if there else None for there, *row in rows]
    except RowFault:
        return _per_row_with_faults(result, compute, arguments, valid, count)
    if None in made:
        valid = np.fromiter((value is not None for value in made), np.bool_, count)
        made = [filler if value is None else value for value in made]
    return _array(result, made), valid, None


def _per_row_with_faults(
    result: Type, compute: Callable[..., Any], arguments: Sequence[Iterable[Any]], valid: Bools | None, count: int
) -> Vector:
    faults = np.zeros(count, np.uint8)
    there = np.ones(count, np.bool_) if valid is None else valid.copy()
    made = [FILLERS[result]] * count
    for position, row in enumerate(zip(*arguments, strict=True)):
        if not there[position]:
            continue
        try:
            value = compute(*row)
        except RowFault as error:
            faults[position] = error.fault
            continue
        if value is None:
            there[position] = False
        else:
            made[position] = value
    return _array(result, made), there, faults


def _array(type: Type, values: list[Any]) -> Values:
    return column_of(type, values) if type in TEXTS else np.fromiter(values, DTYPES[type], len(values))
