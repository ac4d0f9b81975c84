"""Functions of numbers.

What IEEE 754 defines to the last bit (roots, rounding) runs over whole arrays. exp, ln and power go through the C
library row by row: a vectorised one has other last digits on other processors, and the same events must produce the
same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from millrace.protocol import MIN_INT64, Type
from millrace.values.batch import Values
from millrace.values.functions.arithmetic import check_finite, cleared
from millrace.values.functions.faults import Fault, RowFault
from millrace.values.functions.library import Function, each_row, strict
from millrace.values.functions.vectors import Faults, faults_where

_BIGINT, _DOUBLE, _INTERVAL = Type.BIGINT, Type.DOUBLE, Type.INTERVAL


def _absolute(fault: Fault) -> Callable[[Values], tuple[Values, Faults | None]]:
    """The least integer has no opposite within 64 bits."""

    def compute(values: Values) -> tuple[Values, Faults | None]:
        return np.abs(values), faults_where(values == MIN_INT64, fault)

    return compute


def _exact(compute: Callable[[Values], Values]) -> Callable[[Values], tuple[Values, None]]:
    """A function that returns a finite double for every finite one. Adding zero turns -0.0 from rounding into 0.0."""
    return lambda values: (compute(values) + 0.0, None)


def _square_root(values: Values) -> tuple[Values, Faults | None]:
    with np.errstate(all="ignore"):
        roots = np.asarray(np.sqrt(values))
    faults = check_finite(roots, Fault.DOMAIN)
    return cleared(roots, faults), faults


def _of_row(compute: Callable[..., float]) -> Callable[..., float]:
    """A function of the C library with its complaints as faults."""

    def row(*values: float) -> float:
        try:
            return compute(*values)
        except ValueError:
            raise RowFault(Fault.DOMAIN) from None
        except OverflowError:
            raise RowFault(Fault.DOUBLE_RANGE) from None

    return row


# Beyond these a double has no digits left to round, or none at all.
_MOST_DIGITS = 400


def round_to(value: float, digits: int) -> float:
    """To that many decimal places, by the exact value of the double; the even one of two equally near."""
    rounded = round(value, max(min(digits, _MOST_DIGITS), -_MOST_DIGITS))
    if math.isinf(rounded):
        raise RowFault(Fault.DOUBLE_RANGE)
    return rounded + 0.0


def _row_function(name: str, count: int, compute: Callable[..., Any]) -> Function:
    return Function(name, (_DOUBLE,) * count, _DOUBLE, each_row(_DOUBLE, compute))


def _array_function(name: str, type: Type, compute: Callable[[Values], tuple[Values, Any]]) -> Function:
    return Function(name, (type,), type, strict(type, compute))


FUNCTIONS: Sequence[Function] = (
    _array_function("abs", _BIGINT, _absolute(Fault.BIGINT_RANGE)),
    _array_function("abs", _DOUBLE, lambda values: (np.abs(values), None)),
    _array_function("abs", _INTERVAL, _absolute(Fault.INTERVAL_RANGE)),
    _array_function("sign", _BIGINT, lambda values: (np.sign(values), None)),
    _array_function("sign", _DOUBLE, _exact(np.sign)),
    _array_function("ceil", _DOUBLE, _exact(np.ceil)),
    _array_function("ceiling", _DOUBLE, _exact(np.ceil)),
    _array_function("floor", _DOUBLE, _exact(np.floor)),
    _array_function("round", _DOUBLE, _exact(np.rint)),
    _array_function("trunc", _DOUBLE, _exact(np.trunc)),
    Function("round", (_DOUBLE, _BIGINT), _DOUBLE, each_row(_DOUBLE, round_to)),
    _array_function("sqrt", _DOUBLE, _square_root),
    _row_function("power", 2, _of_row(math.pow)),
    _row_function("pow", 2, _of_row(math.pow)),
    _row_function("ln", 1, _of_row(math.log)),
    _row_function("log", 1, _of_row(math.log10)),
    _row_function("log10", 1, _of_row(math.log10)),
    _row_function("exp", 1, _of_row(math.exp)),
)
