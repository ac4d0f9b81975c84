"""Comparison and choice: `= <> < <= > >=`, IS [NOT] DISTINCT FROM, IN, greatest, least.

Text and bytes compare by code point and byte. A bigint and a double compare as the numbers they are: no bigint is
rounded to a double first, so 9007199254740993 > 9007199254740992.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from millrace.protocol import MAX_INT64, MIN_INT64, Type
from millrace.values.batch import DTYPES, Batch, Bools, Values, column_of
from millrace.values.functions.library import NEVER, Function, Make
from millrace.values.functions.vectors import Operand, Run, Vector, both, first_fault, scalar
from millrace.values.text_index import TextIndex

Compare = Callable[[Values, Values], Bools]

COMPARISONS: dict[str, Compare] = {
    "=": np.equal,
    "<>": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
# The same comparison with its sides swapped.
MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_ZERO = np.zeros((), np.int8)
# Every whole number up to here is a double.
EXACT_INTEGERS = 2**53


def order_exactly(integers: Values, doubles: Values) -> Values:
    """-1, 0 or 1 per row: a bigint compared with a double."""
    high = doubles >= 2.0**63
    low = doubles < -(2.0**63)
    whole = np.where(high | low, 0.0, np.trunc(doubles))
    order = np.sign((integers > whole.astype(np.int64)).astype(np.int8) - (integers < whole.astype(np.int64)))
    # Equal whole parts: the fraction decides.
    order = np.where(order == 0, np.sign(whole - doubles), order)
    return np.where(high, -1, np.where(low, 1, order))


def _mixed(compare: Compare) -> Compare:
    """A bigint column against a double one."""

    def exact(integers: Values, doubles: Values) -> Bools:
        if integers.size and int(integers.max()) <= EXACT_INTEGERS and int(integers.min()) >= -EXACT_INTEGERS:
            return compare(integers, doubles)
        return compare(order_exactly(integers, doubles), _ZERO)

    return exact


def as_bigint(value: float) -> int | None:
    """The bigint that is exactly this double."""
    return int(value) if value.is_integer() and MIN_INT64 <= value <= MAX_INT64 else None


def comparison(name: str, left: Type, right: Type) -> Make:
    compare = COMPARISONS[name]
    if {left, right} == {Type.BIGINT, Type.DOUBLE}:
        mixed, mirrored = _mixed(compare), _mixed(COMPARISONS[MIRRORED[name]])
        compare = mixed if left is Type.BIGINT else (lambda a, b: mirrored(b, a))

    def make(operands: Sequence[Operand]) -> Run:
        first, second = operands
        if second.known and not first.constant:
            return _against_constant(name, compare, first, second)
        if first.known and not second.constant:
            flipped: Compare = lambda a, b: compare(b, a)  # noqa: E731
            return _against_constant(MIRRORED[name], flipped, second, first)
        return compared(compare, first.run, second.run)

    return make


def _against_constant(name: str, compare: Compare, column: Operand, constant: Operand) -> Run:
    if column.type is Type.BIGINT and constant.type is Type.DOUBLE:
        whole = as_bigint(constant.value)
        if whole is not None:
            return _constant_run(COMPARISONS[name], column.run, scalar(Type.BIGINT, whole))
    elif column.type is constant.type:
        compare = COMPARISONS[name]
    return _constant_run(compare, column.run, scalar(constant.type, constant.value))


def _constant_run(compare: Compare, column: Run, value: Values) -> Run:
    def run(batch: Batch) -> Vector:
        values, valid, faults = column(batch)
        result = compare(values, value)
        if valid is not None:
            result &= valid
        return result, valid, faults

    return run


def compared(compare: Compare, left: Run, right: Run) -> Run:
    def run(batch: Batch) -> Vector:
        a, a_valid, a_faults = left(batch)
        b, b_valid, b_faults = right(batch)
        result = compare(a, b)
        valid = both(a_valid, b_valid)
        if valid is not None:
            result &= valid
        return result, valid, first_fault(a_faults, b_faults)

    return run


def _distinct(name: str, left: Type, right: Type, distinct: bool) -> Function:
    """IS [NOT] DISTINCT FROM: null equals null and nothing else."""
    equal = comparison("=", left, right)

    def make(operands: Sequence[Operand]) -> Run:
        same, sides = equal(operands), [operand.run for operand in operands]

        def run(batch: Batch) -> Vector:
            values, _, faults = same(batch)
            (_, left_valid, _), (_, right_valid, _) = (side(batch) for side in sides)
            if left_valid is not None or right_valid is not None:
                there = np.ones(len(batch), np.bool_)
                a, b = (there if valid is None else valid for valid in (left_valid, right_valid))
                values = values | ~(a | b)
            return ~values if distinct else values, None, faults

        return run

    return Function(name, (left, right), Type.BOOLEAN, make, nullable=NEVER)


# -- IN ----------------------------------------------------------------------------------------------------------------


def _member(type: Type) -> Make:
    """`x IN (constants)`: null where x is, and where nothing matches but the list has a null."""

    def make(operands: Sequence[Operand]) -> Run:
        column, *others = operands
        members = [other.value for other in others if other.value is not None]
        has_null = len(members) < len(others)
        contains = _contains(type, members)

        def run(batch: Batch) -> Vector:
            values, valid, faults = column.run(batch)
            found = contains(values)
            if valid is not None:
                found &= valid
            if has_null:
                valid = found
            return found, valid, faults

        return run

    return make


# Lists up to this length are compared number by number; in longer lists each row is looked up.
_SHORT_LIST = 8


def _contains(type: Type, members: Sequence[Any]) -> Callable[[Values], Bools]:
    if type in (Type.TEXT, Type.BYTES):
        known = TextIndex(type is Type.BYTES)
        known.find(column_of(type, members), None)
        one_row = frozenset(members)
        return lambda values: np.array([values.item(0) in one_row]) if len(values) == 1 else known.contains(values)
    distinct = sorted(set(members))
    if len(distinct) <= _SHORT_LIST:
        return _equals_any([scalar(type, member) for member in distinct])
    array = np.array(distinct, DTYPES[type])
    last = len(array) - 1
    return lambda values: np.equal(array[np.minimum(array.searchsorted(values), last)], values)


def _equals_any(members: Sequence[Values]) -> Callable[[Values], Bools]:
    def contains(values: Values) -> Bools:
        found = np.zeros(len(values), np.bool_)
        for member in members:
            found |= np.equal(values, member)
        return found

    return contains


# -- greatest and least ------------------------------------------------------------------------------------------------


def _extreme(type: Type, better: Compare) -> Make:
    """The greatest or least of the arguments that are not null."""

    def choose(a: Vector, b: Vector) -> Vector:
        values, valid, faults = a
        others, others_valid, others_faults = b
        takes = better(others, values)
        if valid is not None:
            takes |= ~valid
        if others_valid is not None:
            takes &= others_valid
        faults = first_fault(faults, others_faults)
        either = None if valid is None or others_valid is None else valid | others_valid
        return np.where(takes, others, values), either, faults

    def make(operands: Sequence[Operand]) -> Run:
        runs = [operand.run for operand in operands]

        def run(batch: Batch) -> Vector:
            result = runs[0](batch)
            for other in runs[1:]:
                result = choose(result, other(batch))
            return result

        return run

    return make


def _functions() -> list[Function]:
    orderable = list(Type)
    pairs = [(type, type) for type in orderable] + [(Type.BIGINT, Type.DOUBLE), (Type.DOUBLE, Type.BIGINT)]
    made = []
    for left, right in pairs:
        made += [Function(name, (left, right), Type.BOOLEAN, comparison(name, left, right)) for name in COMPARISONS]
        made.append(_distinct("is distinct from", left, right, True))
        made.append(_distinct("is not distinct from", left, right, False))
    for type in orderable:
        made.append(Function("in", (type, type), Type.BOOLEAN, _member(type), variadic=True))
        made.append(Function("greatest", (type,), type, _extreme(type, np.greater), variadic=True, nullable=all))
        made.append(Function("least", (type,), type, _extreme(type, np.less), variadic=True, nullable=all))
    return made


FUNCTIONS: Sequence[Function] = _functions()
