"""AND, OR, NOT, IS ..., coalesce, nullif: where null and failure are decided row by row.

Three-valued logic with failure as a fourth value: false AND anything is false, true OR anything is true, also when
the other side failed; else a failure wins over null. A boolean's filler under null is false, which the formulas use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import and_, or_

import numpy as np

from millrace.protocol import Type
from millrace.values.batch import FILLERS, Batch, Bools
from millrace.values.functions.comparison import comparison
from millrace.values.functions.library import ALWAYS, NEVER, Function, Make
from millrace.values.functions.vectors import Faults, Operand, Run, Vector, both, first_fault, only


def _connective(combine: Callable[[Bools, Bools], Bools], decides: bool) -> Make:
    """AND and OR: where one side is surely false or true, which `decides`, the other one does not matter."""

    def make(operands: Sequence[Operand]) -> Run:
        left, right = (operand.run for operand in operands)

        def run(batch: Batch) -> Vector:
            a, a_valid, a_faults = left(batch)
            b, b_valid, b_faults = right(batch)
            result = combine(a, b)
            if a_valid is None and b_valid is None and a_faults is None and b_faults is None:
                return result, None, None
            a_decides = _surely(a if decides else ~a, a_valid, a_faults)
            b_decides = _surely(b if decides else ~b, b_valid, b_faults)
            return _decided(result, a_decides | b_decides, (a_valid, a_faults), (b_valid, b_faults))

        return run

    return make


def _surely(values: Bools, valid: Bools | None, faults: Faults | None) -> Bools:
    if valid is not None:
        values = values & valid
    return values if faults is None else values & (faults == 0)


def _decided(
    result: Bools, decided: Bools, left: tuple[Bools | None, Faults | None], right: tuple[Bools | None, Faults | None]
) -> Vector:
    """The result where one side decides it alone, else as strict as any function."""
    valid = both(left[0], right[0])
    faults = only(first_fault(left[1], right[1]), ~decided)
    if valid is not None:
        valid = valid | decided
        result &= valid
    if faults is not None:
        result &= faults == 0
    return result, valid, faults


def negation(operands: Sequence[Operand]) -> Run:
    argument = operands[0].run

    def run(batch: Batch) -> Vector:
        values, valid, faults = argument(batch)
        result = ~values
        if valid is not None:
            result &= valid
        return result, valid, faults

    return run


def _is_null(wanted: bool) -> Make:
    def make(operands: Sequence[Operand]) -> Run:
        argument = operands[0].run

        def run(batch: Batch) -> Vector:
            _, valid, faults = argument(batch)
            if valid is None:
                return np.full(len(batch), not wanted), None, faults
            return ~valid if wanted else valid, None, faults

        return run

    return make


def _is_truth(truth: bool, negated: bool) -> Make:
    """IS [NOT] TRUE and IS [NOT] FALSE: never null."""

    def make(operands: Sequence[Operand]) -> Run:
        argument = operands[0].run

        def run(batch: Batch) -> Vector:
            values, valid, faults = argument(batch)
            result = values if truth else ~values
            if valid is not None:
                result = result & valid
            return ~result if negated else result, None, faults

        return run

    return make


def coalesce(operands: Sequence[Operand]) -> Run:
    """The first argument that is not null. One that is not needed in a row cannot fail that row."""
    first, *others = (operand.run for operand in operands)

    def run(batch: Batch) -> Vector:
        values, valid, faults = first(batch)
        for other in others:
            if valid is None:
                break
            missing = ~valid
            if not missing.any():
                break
            more, more_valid, more_faults = other(batch)
            values = np.where(missing, more, values)
            valid = None if more_valid is None else valid | more_valid
            faults = first_fault(faults, only(more_faults, missing))
        return values, valid, faults

    return run


def _nullif(type: Type, other: Type) -> Make:
    """Null where the two are equal, else the first."""
    equality = comparison("=", type, other)

    def make(operands: Sequence[Operand]) -> Run:
        first = operands[0].run
        equal = equality(operands)

        def run(batch: Batch) -> Vector:
            same, _, faults = equal(batch)
            values, valid, _ = first(batch)
            keep = ~same if valid is None else ~same & valid
            return np.where(keep, values, FILLERS[type]).astype(values.dtype, copy=False), keep, faults

        return run

    return make


_BOOLEAN = Type.BOOLEAN
_NUMBERS = ((Type.BIGINT, Type.DOUBLE), (Type.DOUBLE, Type.BIGINT))

FUNCTIONS: Sequence[Function] = (
    Function("and", (_BOOLEAN, _BOOLEAN), _BOOLEAN, _connective(and_, decides=False)),
    Function("or", (_BOOLEAN, _BOOLEAN), _BOOLEAN, _connective(or_, decides=True)),
    Function("not", (_BOOLEAN,), _BOOLEAN, negation),
    Function("is true", (_BOOLEAN,), _BOOLEAN, _is_truth(True, False), nullable=NEVER),
    Function("is not true", (_BOOLEAN,), _BOOLEAN, _is_truth(True, True), nullable=NEVER),
    Function("is false", (_BOOLEAN,), _BOOLEAN, _is_truth(False, False), nullable=NEVER),
    Function("is not false", (_BOOLEAN,), _BOOLEAN, _is_truth(False, True), nullable=NEVER),
    *(Function("is null", (type,), _BOOLEAN, _is_null(True), nullable=NEVER) for type in Type),
    *(Function("is not null", (type,), _BOOLEAN, _is_null(False), nullable=NEVER) for type in Type),
    *(Function("coalesce", (type,), type, coalesce, variadic=True, nullable=all) for type in Type),
    *(
        Function("nullif", (type, other), type, _nullif(type, other), nullable=ALWAYS)
        for type, other in (*zip(Type, Type, strict=True), *_NUMBERS)
    ),
)
