"""Computing expressions over batches.

An expression is compiled once, when its operator is made, into closures that run over whole columns; an execution
then pays for little more than numpy. Nulls are SQL's. A row that cannot be computed (an overflow, a division by zero,
a cast that does not fit) is an error of that row alone: it comes out marked, with the first reason, and the operator
drops and counts it. The result never has a wrong number, a NaN or an infinity.

Only needed parts can fail: a branch of CASE that is not taken, the other side of `false AND` or `true OR`, and
the rest of COALESCE fail no row. Everywhere else a failed argument fails the row, even if another one is null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from millrace.protocol import Refuse, Schema, Type
from millrace.values.batch import FILLERS, Batch, Bools, Values, constant_column
from millrace.values.eventtime import MIN_TIME
from millrace.values.expression import TIME, Call, Case, Cast, Column, Constant, Expression, parts
from millrace.values.functions import LIBRARY, Function, Library
from millrace.values.functions.casts import CASTS
from millrace.values.functions.faults import REASONS, Fault
from millrace.values.functions.tape import playing
from millrace.values.functions.user import absent
from millrace.values.functions.vectors import (
    Faults,
    Operand,
    Run,
    Vector,
    constant_run,
    first_fault,
    only,
)


@dataclass(frozen=True, slots=True)
class Errors:
    """The rows that could not be computed (a mask) and why the first of them could not."""

    rows: Bools
    reason: str


class Computed(NamedTuple):
    """A column: its values with fillers under nulls, where they are not null (None: everywhere), and its errors."""

    values: Values
    valid: Bools | None
    error: Errors | None


Columns = Callable[[Batch], tuple[list[Values], list[Bools | None], Errors | None]]
Predicate = Callable[[Batch], tuple[Bools | None, Errors | None]]


def compile_expression(expression: Expression, library: Library = LIBRARY) -> Callable[[Batch], Computed]:
    """A function that computes the expression over a batch."""
    run = _compiled(expression, library).run

    def compute(batch: Batch) -> Computed:
        values, valid, faults = run(batch)
        return Computed(values, valid, None if faults is None else errors_of(faults))

    return compute


def compile_columns(expressions: Sequence[Expression], library: Library = LIBRARY) -> Columns:
    """A function that computes all columns of a new row: values, masks, and the rows of which any column failed."""
    runs = [_compiled(expression, library).run for expression in expressions]

    def compute(batch: Batch) -> tuple[list[Values], list[Bools | None], Errors | None]:
        columns: list[Values] = []
        masks: list[Bools | None] = []
        faults: Faults | None = None
        for run in runs:
            values, valid, failed = run(batch)
            columns.append(values)
            masks.append(valid)
            if failed is not None:
                faults = first_fault(faults, failed)
        return columns, masks, None if faults is None else errors_of(faults)

    return compute


def compile_predicate(expression: Expression, library: Library = LIBRARY) -> Predicate:
    """A function that returns the rows for which the expression is true (a mask, None for all), and the errors."""
    assert expression.type is Type.BOOLEAN, expression
    run = _compiled(expression, library).run
    count_true = np.count_nonzero

    def test(batch: Batch) -> tuple[Bools | None, Errors | None]:
        # Null is not true: its filler is false.
        values, _, faults = run(batch)
        if faults is not None and (errors := errors_of(faults)) is not None:
            return values & ~errors.rows, errors
        count = len(values)
        everywhere = values.item() if count == 1 else count_true(values) == count
        return None if everywhere else values, None

    return test


def evaluate(expression: Expression, batch: Batch, library: Library = LIBRARY) -> Computed:
    """Compile and compute at once: for tests and constants."""
    return compile_expression(expression, library)(batch)


def without(errors: Errors, rows: Bools) -> Errors | None:
    """The errors of the other rows."""
    left = errors.rows & ~rows
    return Errors(left, errors.reason) if left.any() else None


def errors_of(faults: Faults | None) -> Errors | None:
    """The errors of rows with these faults, if there are any."""
    if faults is None:
        return None
    rows = faults != 0
    first = int(rows.argmax()) if len(rows) else 0
    if not len(rows) or not rows[first]:
        return None
    return Errors(rows, REASONS[Fault(int(faults[first]))])


# -- compiling ---------------------------------------------------------------------------------------------------------

_ONE_ROW = Batch(Schema(()), np.zeros(1, np.int64), ())


# What expressions were compiled to, by identity: they are compiled when they are planned, which may be in another
# thread, again for each operator that is made of them, and again when a change is tried. The newest, and of large ones,
# which may hold megabytes each, the last few.
_COMPILED: Final[dict[int, tuple[Expression, Library, Operand]]] = {}
_LARGE: Final[dict[int, tuple[Expression, Library, Operand]]] = {}
_KEPT: Final = 4096
_LARGE_KEPT: Final = 8
# Parts from which an expression is large: these take a millisecond.
_LARGE_PARTS: Final = 500


def _compiled(expression: Expression, library: Library) -> Operand:
    if isinstance(expression, Column | Constant):
        return _compile(expression, library)
    known = _COMPILED.get(id(expression)) or _LARGE.get(id(expression))
    if known is not None and known[0] is expression and known[1] is library:
        return known[2]
    operand = _compile(expression, library)
    large = _is_large(expression)
    kept = _LARGE if large else _COMPILED
    kept[id(expression)] = expression, library, operand
    if len(kept) > (_LARGE_KEPT if large else _KEPT):
        kept.pop(next(iter(kept)), None)
    return operand


def _is_large(expression: Expression) -> bool:
    """Whether it has many parts; found after as many."""
    waiting, seen = [expression], 0
    while waiting and seen <= _LARGE_PARTS:
        found = parts(waiting.pop())
        seen += 1 + len(found)
        waiting += found[:_LARGE_PARTS]
    return seen > _LARGE_PARTS


def _compile(expression: Expression, library: Library) -> Operand:
    match expression:
        case Constant():
            run = constant_run(expression.type, expression.value)
            return Operand(expression.type, run, True, expression.value)
        case Column():
            return Operand(expression.type, _column(expression))
        case Call():
            operands = [_compile(argument, library) for argument in expression.arguments]
            function = _function(expression, library)
            run = function.make(operands)
            return _folded(expression.type, run, operands) if function.deterministic else Operand(expression.type, run)
        case Cast():
            operand = _compile(expression.argument, library)
            make = CASTS.get((operand.type, expression.type))
            if make is None:
                raise Refuse(f"cannot cast {operand.type} to {expression.type}")
            return _folded(expression.type, make([operand]), [operand])
        case Case():
            return _compile_case(expression, library)
    raise AssertionError(f"no way to compute {expression!r}")


def _function(call: Call, library: Library) -> Function:
    """The function of a call. A replay needs none that has gone, as long as the steps have its results."""
    tape = playing()
    if tape is not None and tape.replays and call.function not in library:
        return absent(call.function, tuple(argument.type for argument in call.arguments), call.type)
    return library[call.function]


def _folded(type: Type, run: Run, operands: Sequence[Operand]) -> Operand:
    """A constant where all arguments are, computed now. One that fails keeps failing its rows, where it is needed."""
    if not all(operand.constant for operand in operands):
        return Operand(type, run)
    values, valid, faults = run(_ONE_ROW)
    if faults is not None and faults.any():
        return Operand(type, run)
    value = values.tolist()[0] if valid is None or valid[0] else None
    return Operand(type, constant_run(type, value), True, value)


def _column(column: Column) -> Run:
    position = column.position
    if position == TIME:
        return _time if column.nullable else _known_time

    def run(batch: Batch) -> Vector:
        return batch.columns[position], batch.valid[position], None

    return run


def _known_time(batch: Batch) -> Vector:
    return batch.ts, None, None


def _time(batch: Batch) -> Vector:
    """The time of a tuple that may have none yet: null until an operator stamps it."""
    stamped = batch.ts != MIN_TIME
    if stamped.all():
        return batch.ts, None, None
    return np.where(stamped, batch.ts, FILLERS[Type.TIMESTAMP]), stamped, None


def _compile_case(case: Case, library: Library) -> Operand:
    branches = [(_compile(test, library), _compile(value, library)) for test, value in case.branches]
    otherwise = _compile(case.otherwise, library)
    run = _case_run(case.type, [(test.run, value.run) for test, value in branches], otherwise.run)
    return _folded(case.type, run, [operand for branch in branches for operand in branch] + [otherwise])


def _case_run(type: Type, branches: Sequence[tuple[Run, Run]], otherwise: Run) -> Run:
    """Branch by branch, each for the rows that none before it took; a branch that no row takes is not computed."""
    filler = FILLERS[type]

    def run(batch: Batch) -> Vector:
        count = len(batch)
        values = constant_column(type, filler, count)
        valid = np.ones(count, np.bool_)
        faults: Faults | None = None
        open_rows = np.ones(count, np.bool_)
        for test, value in branches:
            if not open_rows.any():
                break
            true, _, failed = test(batch)
            faults = first_fault(faults, only(failed, open_rows))
            taken = true & open_rows
            open_rows &= ~taken
            values, failed = _put(values, valid, taken, value, batch)
            faults = first_fault(faults, failed)
        values, failed = _put(values, valid, open_rows, otherwise, batch)
        faults = first_fault(faults, failed)
        return values, None if valid.all() else valid, faults

    return run


def _put(values: Values, valid: Bools, rows: Bools, value: Run, batch: Batch) -> tuple[Values, Faults | None]:
    """The column with a branch's value where it is taken, and which of those rows failed; writes into the arrays."""
    if not rows.any():
        return values, None
    branch, there, faults = value(batch)
    if values.dtype.hasobject:
        values = np.where(rows, branch, values)
    else:
        np.copyto(values, branch, where=rows)
    if there is not None:
        valid &= there | ~rows
    return values, only(faults, rows)
