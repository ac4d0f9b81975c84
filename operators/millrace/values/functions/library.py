"""The table of functions and operators: name, argument types, result, and how to make it.

One row per signature; an operator such as `+` is a function whose name is `+`. The binder finds a row by name and
argument types (`resolve`), the plan keeps the row's `key`, the evaluator makes it (`make`). Functions that a user
registers become rows of the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from millrace.protocol import Type
from millrace.values.batch import TEXTS, Batch, Bools, Values
from millrace.values.expression import functions_in
from millrace.values.functions.vectors import (
    Faults,
    Operand,
    Run,
    Vector,
    both,
    fill,
    first_fault,
    only,
    per_row,
    scalar,
)
from millrace.values.signatures import Signatures
from millrace.values.texts import as_texts

Make = Callable[[Sequence[Operand]], Run]
# Whether the result may be null, from whether each argument may.
Nullability = Callable[[Sequence[bool]], bool]

NEVER: Nullability = lambda _: False  # noqa: E731
ALWAYS: Nullability = lambda _: True  # noqa: E731


@dataclass(frozen=True, slots=True)
class Function:
    """One signature.

    `variadic` repeats the last argument type any number of times (also not at all). `nullable` defaults to: null if any
    argument is. One that is not `deterministic` is called once for each row, and its results are recorded (`tape.py`).
    """

    name: str
    arguments: tuple[Type, ...]
    result: Type
    make: Make
    variadic: bool = False
    nullable: Nullability = any
    deterministic: bool = True

    @property
    def key(self) -> str:
        """The name of this row in a plan: its signature as people write it."""
        more = ", ..." if self.variadic else ""
        return f"{self.name}({', '.join(map(str, self.arguments))}{more})"

    def expected(self, count: int) -> tuple[Type, ...] | None:
        """The types of its arguments, or None if it does not take `count` of them."""
        if not self.variadic:
            return self.arguments if count == len(self.arguments) else None
        extra = count - len(self.arguments)
        return self.arguments + self.arguments[-1:] * extra if extra >= 0 else None


class Library(Signatures[Function]):
    """The functions. `draws`: whether any of them is not deterministic, which engines ask at each step."""

    noun: ClassVar[str] = "a function"

    def __init__(self, rows: Sequence[Function] = ()) -> None:
        self.draws = False
        super().__init__(rows)

    def add(self, row: Function) -> None:
        super().add(row)
        self.draws = self.draws or not row.deterministic

    def remove(self, row: Function) -> None:
        super().remove(row)
        self.draws = any(not left.deterministic for left in self)

    def drawn(self, definition: Any) -> list[str]:
        """The functions that a definition calls and that are not deterministic, by key."""
        if not self.draws:
            return []
        return [key for key in functions_in(definition) if key in self and not self[key].deterministic]


# -- ways to make a row of the table -----------------------------------------------------------------------------------


def strict(result: Type, compute: Callable[..., tuple[Values, Faults | None]]) -> Make:
    """A function over whole arrays that is null where any argument is.

    `compute` takes the arrays (a constant has no dimensions) and returns a new array and the faults. It also
    receives the fillers of nulls; results and faults for them are dropped.
    """

    def make(operands: Sequence[Operand]) -> Run:
        if all(operand.known for operand in operands):
            getters = [operand.run for operand in operands]
        else:
            getters = [_scalar_run(operand) if operand.known else operand.run for operand in operands]

        def run(batch: Batch) -> Vector:
            arrays = []
            valid: Bools | None = None
            faults: Faults | None = None
            for getter in getters:
                array, there, failed = getter(batch)
                arrays.append(array)
                valid = both(valid, there)
                faults = first_fault(faults, failed)
            values, own = compute(*arrays)
            if valid is not None:
                values = fill(values, valid, result)
                own = only(own, valid)
            return values, valid, first_fault(faults, own)

        return run

    return make


def over_texts(result: Type, compute: Callable[..., Values | None], row: Callable[..., Any] | None = None) -> Make:
    """A function over whole columns of which the first is of texts or of bytes, null where any argument is.

    `compute` takes columns, constants having one row. It returns None where the columns do not suit it: then `row` is
    called for each row, as by `each_row`.
    """

    def make(operands: Sequence[Operand]) -> Run:
        folds = all(operand.known for operand in operands)
        getters = [_scalar_run(one) if one.known and not folds else one.run for one in operands]

        def run(batch: Batch) -> Vector:
            arrays = []
            valid: Bools | None = None
            faults: Faults | None = None
            for operand, getter in zip(operands, getters, strict=True):
                array, there, failed = getter(batch)
                arrays.append(as_texts(array, operand.type is Type.BYTES) if operand.type in TEXTS else array)
                valid = both(valid, there)
                faults = first_fault(faults, failed)
            # A single row is quicker by itself.
            values = None if row is not None and len(batch) == 1 else compute(*arrays)
            if values is not None:
                return fill(values, valid, result), valid, faults
            assert row is not None
            count = len(batch)
            lists = [
                [one.value] * count if one.known and not folds else array.tolist()
                for one, array in zip(operands, arrays, strict=True)
            ]
            wanted = valid if faults is None else both(valid, faults == 0)
            values, there, own = per_row(result, row, lists, wanted, count)
            return values, there, first_fault(faults, own)

        return run

    return make


def each_row(result: Type, compute: Callable[..., Any]) -> Make:
    """A function of one row's Python values, called for the rows in which no argument is null.

    It returns None for null and raises RowFault for a row that fails.
    """

    def make(operands: Sequence[Operand]) -> Run:
        runs = [operand.run for operand in operands]

        def run(batch: Batch) -> Vector:
            columns: list[list[Any]] = []
            valid: Bools | None = None
            faults: Faults | None = None
            for one in runs:
                array, there, failed = one(batch)
                columns.append(array.tolist())
                valid = both(valid, there)
                faults = first_fault(faults, failed)
            wanted = valid if faults is None else both(valid, faults == 0)
            values, there, own = per_row(result, compute, columns, wanted, len(batch))
            return values, there, first_fault(faults, own)

        return run

    return make


def _scalar_run(operand: Operand) -> Run:
    value = scalar(operand.type, operand.value)

    def run(batch: Batch) -> Vector:
        return value, None, None

    return run


def no_faults(compute: Callable[..., Any]) -> Callable[..., tuple[Values, None]]:
    """An array function that cannot fail, in the shape `strict` wants."""

    def computed(*arrays: Values) -> tuple[Values, None]:
        return np.asarray(compute(*arrays)), None

    return computed
