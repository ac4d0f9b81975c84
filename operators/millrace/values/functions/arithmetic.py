"""Arithmetic: `+ - * / %` and unary minus over bigint, double, timestamp and interval.

A result is right or the row fails: integers never wrap, doubles are never infinite or NaN. The checks are made to cost
little. Against a constant it is enough to know the largest (or least) number of the column; two columns go through a
compiled kernel, or through the sign rule in numpy where it is not compiled; a column of doubles is finite if its sum
is, and only otherwise looked at again.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from millrace.protocol import MAX_INT64, MIN_INT64, Type
from millrace.values.batch import Batch, Bools, Values
from millrace.values.functions.faults import Fault
from millrace.values.functions.library import Function, Make, strict
from millrace.values.functions.vectors import (
    Faults,
    Operand,
    Run,
    Vector,
    both,
    faults_where,
    fill,
    first_fault,
    only,
    scalar,
)
from millrace.values.kernels import arithmetic as kernel
from millrace.values.kernels import compiled

Compute = Callable[[Values, Values], tuple[Values, Faults | None]]

_INT64 = np.dtype(np.int64)
_max = np.maximum.reduce
_min = np.minimum.reduce

RANGE_FAULTS = {
    Type.BIGINT: Fault.BIGINT_RANGE,
    Type.TIMESTAMP: Fault.TIMESTAMP_RANGE,
    Type.INTERVAL: Fault.INTERVAL_RANGE,
}


def highest(values: Values) -> int:
    """The greatest of a column; one that says nothing of an empty one."""
    count = len(values)
    if count == 1:
        return values.item()  # type: ignore[no-any-return]
    return int(_max(values)) if count else 0


def lowest(values: Values) -> int:
    count = len(values)
    if count == 1:
        return values.item()  # type: ignore[no-any-return]
    return int(_min(values)) if count else 0


# -- integers: two columns ---------------------------------------------------------------------------------------------


def overflows_add(a: Values, b: Values, total: Values) -> Bools:
    """The sum of two numbers of one sign overflowed if its sign is the other one."""
    return ((a ^ total) & (b ^ total)) < 0


def overflows_subtract(a: Values, b: Values, difference: Values) -> Bools:
    return ((a ^ b) & (a ^ difference)) < 0


def overflows_multiply(a: Values, b: Values, product: Values) -> Bools:
    """A product that does not fit differs from the same product in doubles by about 2**64, others by 2**11 at most."""
    return np.abs(a.astype(np.float64) * b - product) > 2.0**62


Kernel = Callable[[Values, Values, Values], bool]


def integers(
    plain: Callable[[Values, Values], Values], checked: Kernel, overflows: Callable[..., Bools], fault: Fault
) -> Compute:
    """An operation of two integer columns that notices what does not fit."""

    def in_kernel(a: Values, b: Values) -> tuple[Values, Faults | None]:
        out = np.empty(len(a), _INT64)
        if not checked(a, b, out):
            return out, None
        return out, _marked(overflows(a, b, out), fault)

    def in_numpy(a: Values, b: Values) -> tuple[Values, Faults | None]:
        out = plain(a, b)
        failed = overflows(a, b, out)
        return out, faults_where(failed, fault)

    return in_kernel if compiled() else in_numpy


def _marked(failed: Bools, fault: Fault) -> Faults:
    return np.where(failed, np.uint8(fault), np.uint8(0))


# -- integers: a column and a constant ---------------------------------------------------------------------------------


def _add_constant(number: int, fault: Fault) -> Callable[[Values], tuple[Values, Faults | None]]:
    added = scalar(Type.BIGINT, number)
    extreme, bound, beyond = (
        (highest, MAX_INT64 - number, operator.gt) if number >= 0 else (lowest, MIN_INT64 - number, operator.lt)
    )

    def compute(a: Values) -> tuple[Values, Faults | None]:
        faults = _marked(beyond(a, bound), fault) if beyond(extreme(a), bound) else None
        return np.add(a, added), faults

    return compute


def _constant_minus(number: int, fault: Fault) -> Callable[[Values], tuple[Values, Faults | None]]:
    """number - a fits while a is between number - MAX and number - MIN, as far as those are within 64 bits."""
    whole = scalar(Type.BIGINT, number)
    least, most = max(number - MAX_INT64, MIN_INT64), min(number - MIN_INT64, MAX_INT64)

    def compute(a: Values) -> tuple[Values, Faults | None]:
        fits = least <= lowest(a) and highest(a) <= most
        return np.subtract(whole, a), None if fits else _marked((a < least) | (a > most), fault)

    return compute


def _multiply_constant(number: int, fault: Fault) -> Callable[[Values], tuple[Values, Faults | None]]:
    factor = scalar(Type.BIGINT, number)
    # The a with MIN <= a * number <= MAX; division rounded towards the inside of the range.
    if number > 0:
        least, most = -(-MIN_INT64 // number), MAX_INT64 // number
    elif number < 0:
        least, most = max(-(MAX_INT64 // -number), MIN_INT64), min(MIN_INT64 // number, MAX_INT64)
    else:
        least, most = MIN_INT64, MAX_INT64

    def compute(a: Values) -> tuple[Values, Faults | None]:
        fits = least <= lowest(a) and highest(a) <= most
        return np.multiply(a, factor), None if fits else _marked((a < least) | (a > most), fault)

    return compute


def divide(a: Values, b: Values, fault: Fault) -> tuple[Values, Faults | None]:
    """Truncated towards zero, as PostgreSQL and C do; numpy rounds down."""
    zero = b == 0
    divisor = np.where(zero, 1, b)
    faults = _marked(np.broadcast_to(zero, np.broadcast_shapes(a.shape, b.shape)), Fault.DIVISION_BY_ZERO)
    wraps = (a == MIN_INT64) & (b == -1)
    divisor = np.where(wraps, 1, divisor)
    quotient = a // divisor
    quotient += (quotient < 0) & (quotient * divisor != a)
    # A quotient of exactly -1 .. 0 rounds down to -1: the line above repairs it like any other negative one.
    if wraps.any():
        faults = np.where(wraps, np.uint8(fault), faults)
    return quotient, faults if faults.any() else None


def _divide_constant(number: int, fault: Fault) -> Callable[[Values], tuple[Values, Faults | None]]:
    divisor = scalar(Type.BIGINT, number)

    def compute(a: Values) -> tuple[Values, Faults | None]:
        quotient = np.floor_divide(a, divisor)
        quotient += (quotient < 0) & (quotient * divisor != a)
        return quotient, None

    return compute


def remainder(a: Values, b: Values) -> tuple[Values, Faults | None]:
    """With the sign of the dividend; what a constant divisor cannot be is checked by the caller's faults."""
    zero = b == 0
    rest = np.fmod(a, np.where(zero | (b == -1), 1, b))
    faults = _marked(np.broadcast_to(zero, rest.shape), Fault.DIVISION_BY_ZERO) if zero.any() else None
    return rest, faults


def _remainder_constant(number: int, fault: Fault) -> Callable[[Values], tuple[Values, Faults | None]]:
    divisor = scalar(Type.BIGINT, number)
    return lambda a: (np.fmod(a, divisor), None)


# -- doubles -----------------------------------------------------------------------------------------------------------


def check_finite(values: Values, fault: Fault = Fault.DOUBLE_RANGE) -> Faults | None:
    """The rows whose double is infinite or no number. A finite sum has finite parts."""
    if math.isfinite(values.item() if values.size == 1 else np.add.reduce(values, axis=None)):
        return None
    failed = ~np.isfinite(values)
    return faults_where(failed, fault)


def doubles(operation: Callable[[Values, Values], Values]) -> Compute:
    def compute(a: Values, b: Values) -> tuple[Values, Faults | None]:
        with np.errstate(all="ignore"):
            values = operation(a, b)
            faults = check_finite(values)
        return cleared(values, faults), faults

    return compute


def divide_doubles(a: Values, b: Values) -> tuple[Values, Faults | None]:
    with np.errstate(all="ignore"):
        values = np.true_divide(a, b)
        faults = check_finite(values)
        if faults is not None:
            zero = np.broadcast_to(b == 0, values.shape)
            faults = np.where(zero, np.uint8(Fault.DIVISION_BY_ZERO), faults)
    return cleared(values, faults), faults


def remainder_doubles(a: Values, b: Values) -> tuple[Values, Faults | None]:
    with np.errstate(all="ignore"):
        values = np.fmod(a, b)
        faults = check_finite(values, Fault.DIVISION_BY_ZERO)
    return cleared(values, faults), faults


def cleared(values: Values, faults: Faults | None) -> Values:
    """Without the infinities of failed rows, so that none is ever seen further on. Writes into `values`."""
    if faults is not None:
        values[faults != 0] = 0
    return values


# -- making ------------------------------------------------------------------------------------------------------------


def binary(result: Type, compute: Compute) -> Make:
    """A strict function of two columns."""
    general = strict(result, compute)

    def make(operands: Sequence[Operand]) -> Run:
        if any(operand.constant for operand in operands):
            return general(operands)
        left, right = (operand.run for operand in operands)

        def run(batch: Batch) -> Vector:
            a, a_valid, a_faults = left(batch)
            b, b_valid, b_faults = right(batch)
            values, faults = compute(a, b)
            valid = both(a_valid, b_valid)
            if valid is not None:
                fill(values, valid, result)
                faults = only(faults, valid)
            if a_faults is not None or b_faults is not None:
                faults = first_fault(first_fault(a_faults, b_faults), faults)
            return values, valid, faults

        return run

    return make


def unary(result: Type, compute: Callable[[Values], tuple[Values, Faults | None]]) -> Callable[[Operand], Run]:
    """A strict function of one column."""

    def make(operand: Operand) -> Run:
        argument = operand.run

        def run(batch: Batch) -> Vector:
            a, valid, before = argument(batch)
            values, faults = compute(a)
            if valid is not None:
                fill(values, valid, result)
                faults = only(faults, valid)
            return values, valid, faults if before is None else first_fault(before, faults)

        return run

    return make


Special = Callable[[int, Fault], Callable[[Values], tuple[Values, Faults | None]]]


def with_constants(result: Type, general: Make, left: Special | None, right: Special | None) -> Make:
    """The general function, or a faster one where the left or the right operand is a known number."""
    fault = RANGE_FAULTS[result]

    def make(operands: Sequence[Operand]) -> Run:
        first, second = operands
        if right is not None and second.known and not first.constant:
            return unary(result, right(second.value, fault))(first)
        if left is not None and first.known and not second.constant:
            return unary(result, left(first.value, fault))(second)
        return as_columns(general)(operands)

    return make


def as_columns(general: Make) -> Make:
    """Constants as whole columns: the kernels want arrays of one length."""

    def make(operands: Sequence[Operand]) -> Run:
        return general([Operand(operand.type, operand.run) for operand in operands])

    return make


def _subtract_constant(number: int, fault: Fault) -> Callable[[Values], tuple[Values, Faults | None]]:
    if number == MIN_INT64:  # its opposite does not fit: a - MIN fits for negative a alone
        least = scalar(Type.BIGINT, number)
        return lambda a: (a - least, None if highest(a) < 0 else _marked(a >= 0, fault))
    return _add_constant(-number, fault)


# On integers: by numpy, by a kernel that notices overflows, which rows overflowed, and with a constant on each side.
_ON_INTEGERS = {
    "+": (np.add, kernel.add_checked, overflows_add, _add_constant, _add_constant),
    "-": (np.subtract, kernel.sub_checked, overflows_subtract, _constant_minus, _subtract_constant),
    "*": (np.multiply, kernel.mul_checked, overflows_multiply, _multiply_constant, _multiply_constant),
}


def _on_integers(name: str, left: Type, right: Type, result: Type) -> Function:
    operation, checked, overflows, constant_left, constant_right = _ON_INTEGERS[name]
    general = binary(result, integers(operation, checked, overflows, RANGE_FAULTS[result]))
    return Function(name, (left, right), result, with_constants(result, general, constant_left, constant_right))


def _quotient(result: Type, special: Special, general: Compute) -> Make:
    """Division and remainder: the fast way where the divisor is a number that can neither be zero nor overflow."""
    columns = as_columns(binary(result, general))
    fast = with_constants(result, columns, None, special)

    def make(operands: Sequence[Operand]) -> Run:
        divisor = operands[1]
        return (columns if divisor.known and divisor.value in (0, -1) else fast)(operands)

    return make


def _division(left: Type, result: Type) -> Function:
    fault = RANGE_FAULTS[result]
    general: Compute = lambda a, b: divide(a, b, fault)  # noqa: E731
    return Function("/", (left, Type.BIGINT), result, _quotient(result, _divide_constant, general))


def _modulo(name: str) -> Function:
    make = _quotient(Type.BIGINT, _remainder_constant, remainder)
    return Function(name, (Type.BIGINT, Type.BIGINT), Type.BIGINT, make)


def _negative(type: Type) -> Function:
    fault = RANGE_FAULTS[type]

    def make(operands: Sequence[Operand]) -> Run:
        return unary(type, _constant_minus(0, fault))(operands[0])

    return Function("-", (type,), type, make)


def _scaled(operation: Callable[[Values, Values], Values]) -> Compute:
    """An interval times or divided by a double, to the nearest microsecond."""

    def compute(a: Values, b: Values) -> tuple[Values, Faults | None]:
        with np.errstate(all="ignore"):
            values = np.rint(operation(a.astype(np.float64), b.astype(np.float64)))
        fits = (values >= -(2.0**63)) & (values < 2.0**63)
        faults = faults_where(~fits, Fault.INTERVAL_RANGE)
        return np.where(fits, values, 0.0).astype(_INT64), faults

    return compute


def _interval_over_double(a: Values, b: Values) -> tuple[Values, Faults | None]:
    values, faults = _scaled(np.true_divide)(a, b)
    if faults is not None:
        faults = np.where(np.broadcast_to(b == 0, values.shape), np.uint8(Fault.DIVISION_BY_ZERO), faults)
    return values, faults


def _double_function(name: str, operation: Callable[[Values, Values], Values]) -> Function:
    return Function(name, (Type.DOUBLE, Type.DOUBLE), Type.DOUBLE, binary(Type.DOUBLE, doubles(operation)))


def _compute_function(name: str, arguments: tuple[Type, Type], result: Type, compute: Compute) -> Function:
    return Function(name, arguments, result, binary(result, compute))


def negate_doubles(operands: Sequence[Operand]) -> Run:
    compute: Callable[[Values], tuple[Values, Any]] = lambda a: (np.negative(a), None)  # noqa: E731
    return unary(Type.DOUBLE, compute)(operands[0])


_B, _D, _T, _I = Type.BIGINT, Type.DOUBLE, Type.TIMESTAMP, Type.INTERVAL

FUNCTIONS: Sequence[Function] = (
    _on_integers("+", _B, _B, _B),
    _double_function("+", np.add),
    _on_integers("+", _T, _I, _T),
    _on_integers("+", _I, _T, _T),
    _on_integers("+", _I, _I, _I),
    _on_integers("-", _B, _B, _B),
    _double_function("-", np.subtract),
    _on_integers("-", _T, _I, _T),
    _on_integers("-", _T, _T, _I),
    _on_integers("-", _I, _I, _I),
    _on_integers("*", _B, _B, _B),
    _double_function("*", np.multiply),
    _on_integers("*", _I, _B, _I),
    _on_integers("*", _B, _I, _I),
    _compute_function("*", (_I, _D), _I, _scaled(np.multiply)),
    _compute_function("*", (_D, _I), _I, _scaled(np.multiply)),
    _division(_B, _B),
    _compute_function("/", (_D, _D), _D, divide_doubles),
    _division(_I, _I),
    _compute_function("/", (_I, _D), _I, _interval_over_double),
    _modulo("%"),
    _modulo("mod"),
    _compute_function("%", (_D, _D), _D, remainder_doubles),
    _compute_function("mod", (_D, _D), _D, remainder_doubles),
    _negative(_B),
    _negative(_I),
    Function("-", (_D,), _D, negate_doubles),
)
