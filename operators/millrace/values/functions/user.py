"""Functions written by users: per tuple, or over whole arrays.

A user's function may do anything, so its results are not trusted: values are checked against the declared type, an
exception costs only the rows that raised it, and a shared array is read-only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat, starmap
from operator import index
from typing import Any, Final

import numpy as np

from millrace.protocol import MAX_INT64, MIN_INT64, Refuse, Type
from millrace.values.batch import DTYPES, FILLERS, Batch, Bools, Int64s, Values, listed, object_array
from millrace.values.functions.faults import Fault, told, user_fault
from millrace.values.functions.library import ALWAYS, Function
from millrace.values.functions.tape import playing
from millrace.values.functions.vectors import Faults, Operand, Run, Vector, both, first_fault

# Exceptions of a function that do not end the process; `sys.exit()` in a function is an error like others.
RAISED: Final = (Exception, SystemExit)


# -- values ------------------------------------------------------------------------------------------------------------


def _boolean(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise _wrong(Type.BOOLEAN, "True or False", value)


def _integer(type: Type) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
            raise _wrong(type, "an integer", value)
        number = index(value)
        if not MIN_INT64 <= number <= MAX_INT64:
            raise ValueError(f"expected {type} (64 bits), got {number}")
        return number

    return check


def _double(value: Any) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, float | int | np.floating | np.integer):
        raise _wrong(Type.DOUBLE, "a number", value)
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"expected double (a finite number), got {number}")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(Type.TEXT, "a str", value)
    if not value.isascii():
        value.encode()  # half a surrogate pair cannot be sent
    return str(value)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _wrong(Type.BYTES, "bytes", value)
    return bytes(value)


def _wrong(type: Type, expected: str, value: Any) -> TypeError:
    return TypeError(f"expected {type} ({expected}), got {value.__class__.__name__}")


# The check of a value by type; None is null and is not checked.
CHECKS: Final[dict[Type, Callable[[Any], Any]]] = {
    Type.BOOLEAN: _boolean,
    Type.BIGINT: _integer(Type.BIGINT),
    Type.DOUBLE: _double,
    Type.TEXT: _text,
    Type.BYTES: _bytes,
    Type.TIMESTAMP: _integer(Type.TIMESTAMP),
    Type.INTERVAL: _integer(Type.INTERVAL),
}
NONE: Final = type(None)
# Values of these classes, and no subclass of them, fit without being asked, apart from their size.
_PLAIN: Final[dict[Type, set[type]]] = {
    Type.BOOLEAN: {bool},
    Type.BIGINT: {int},
    Type.DOUBLE: {float, int},
    Type.TEXT: {str},
    Type.BYTES: {bytes},
    Type.TIMESTAMP: {int},
    Type.INTERVAL: {int},
}
# The kinds of numpy's types that arrays of a type may have; text and bytes are in arrays of objects or lists.
_KINDS: Final = {Type.BOOLEAN: "b", Type.BIGINT: "iu", Type.DOUBLE: "fiu", Type.TIMESTAMP: "i", Type.INTERVAL: "i"}


# -- functions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A user's function and its declaration.

    vectorised      it takes arrays and returns an array
    nulls           it is called for null arguments too: None, or masked arrays
    deterministic   it returns the same for the same arguments; otherwise its results are recorded
    """

    name: str
    arguments: tuple[Type, ...]
    result: Type
    call: Callable[..., Any]
    vectorised: bool = False
    nulls: bool = False
    deterministic: bool = True

    def row(self) -> Function:
        """Its row of the table of functions."""
        return Function(
            self.name, self.arguments, self.result, self._make, nullable=ALWAYS, deterministic=self.deterministic
        )

    def _make(self, operands: Sequence[Operand]) -> Run:
        runs = [operand.run for operand in operands]
        compute = self._over_arrays if self.vectorised else self._per_tuple
        key = self.row().key

        def run(batch: Batch) -> Vector:
            columns: list[Values] = []
            masks: list[Bools | None] = []
            wanted: Bools | None = None
            faults: Faults | None = None
            for one in runs:
                array, there, failed = one(batch)
                columns.append(array)
                masks.append(there)
                wanted = wanted if self.nulls else both(wanted, there)
                faults = first_fault(faults, failed)
            if faults is not None:
                wanted = both(wanted, faults == 0)
            tape = playing()
            own = None if tape is None else tape.read(key, len(batch))
            if own is None:
                made = _Made(self.result, len(batch), f"{self.name}()")
                compute(made, columns, masks, wanted)
                own = made.vector(wanted)
                if tape is not None and not self.deterministic:
                    tape.write(key, self.result, own)
            values, valid, failed = own
            return values, valid, first_fault(faults, failed)

        return run

    def _per_tuple(
        self, made: _Made, columns: Sequence[Values], masks: Sequence[Bools | None], wanted: Bools | None
    ) -> None:
        places = None if wanted is None else np.flatnonzero(wanted)
        if places is not None:
            columns = [column[places] for column in columns]
            masks = [None if mask is None else mask[places] for mask in masks]
        count = made.count if places is None else len(places)
        arguments = [listed(column, mask if self.nulls else None) for column, mask in zip(columns, masks, strict=True)]
        calls = map(self.call, *arguments) if arguments else starmap(self.call, repeat((), count))
        values: list[Any] = []
        failed: list[tuple[int, BaseException]] = []
        while len(values) < count:
            error: BaseException = StopIteration()  # which ends a loop without being raised
            try:
                for value in calls:
                    values.append(value)  # noqa: PERF402 (what was made before a call raised must be there)
            except RAISED as raised:
                error = raised
            if len(values) < count:
                failed.append((len(values), error))
                values.append(None)
        made.put_values(places, values)
        for at, error in failed:
            made.fail(at if places is None else int(places[at]), error)

    def _over_arrays(
        self, made: _Made, columns: Sequence[Values], masks: Sequence[Bools | None], wanted: Bools | None
    ) -> None:
        places: Int64s = np.arange(made.count) if wanted is None else np.flatnonzero(wanted)
        arrays = []
        for column, mask in zip(columns, masks, strict=True):
            array = np.asarray(column if wanted is None else column[places]).view()
            array.flags.writeable = False
            if self.nulls:
                hidden = np.zeros(len(places), np.bool_) if mask is None else ~mask[places]
                array = np.ma.MaskedArray(array, hidden)
            arrays.append(array)
        self._part(made, places, arrays)

    def _part(self, made: _Made, places: Int64s, arrays: Sequence[Values]) -> None:
        """Call it for these rows. If it raises, halves are tried, down to the rows that it raises for."""
        count = len(places)
        if not count:
            return
        try:
            with np.errstate(all="ignore"):
                given = self.call(*arrays)
        except RAISED as error:
            if count == 1:
                made.fail(int(places[0]), error)
                return
            half = count // 2
            self._part(made, places[:half], [array[:half] for array in arrays])
            self._part(made, places[half:], [array[half:] for array in arrays])
            return
        try:
            made.put_array(places, given)
        except RAISED as error:
            made.fail(places, error)


def absent(key: str, arguments: tuple[Type, ...], result: Type) -> Function:
    """In place of a function that does not exist any more: a replay has its results from the tape."""

    def make(operands: Sequence[Operand]) -> Run:
        def run(batch: Batch) -> Vector:
            faults: Faults | None = None
            for operand in operands:
                faults = first_fault(faults, operand.run(batch)[2])
            tape = playing()
            own = None if tape is None else tape.read(key, len(batch))
            if own is None:
                reason = f"function {key} does not exist; is its module configured?"
                if tape is not None:
                    tape.fail(reason)
                raise Refuse(reason)
            values, valid, failed = own
            return values, valid, first_fault(faults, failed)

        return run

    return Function(key.partition("(")[0], arguments, result, make, nullable=ALWAYS, deterministic=False)


class _Made:
    """The result of one call over a batch."""

    def __init__(self, result: Type, count: int, called: str) -> None:
        self.count = count
        self._result = result
        self._called = called
        self._check = CHECKS[result]
        dtype = DTYPES[result]
        self._values = np.full(count, FILLERS[result], dtype)
        self._null = np.zeros(count, np.bool_)
        self._faults = np.zeros(count, np.uint8)

    def put(self, at: int, value: Any) -> None:
        """One row's value."""
        if value is None:
            self._null[at] = True
        else:
            self._values[at] = self._check(value)

    def put_values(self, places: Int64s | None, values: list[Any]) -> None:
        """The values of these rows, or of all."""
        plain = _PLAIN[self._result]
        kinds = set(map(type, values))
        hidden = None
        if NONE in kinds:
            hidden = np.fromiter((value is None for value in values), np.bool_, len(values))
            filler = FILLERS[self._result]
            values = [filler if value is None else value for value in values]
            kinds -= {NONE}
        array = self._plain(values) if kinds <= plain else None
        if array is None:
            self._put_each(range(self.count) if places is None else places.tolist(), values, hidden)
            return
        at = slice(None) if places is None else places
        self._values[at] = array
        if hidden is not None:
            self._null[at] = hidden

    def _plain(self, values: list[Any]) -> Values | None:
        """The values as an array if all of them fit the type; None where they are to be checked one by one."""
        dtype = self._values.dtype
        if dtype.hasobject:
            return object_array(values) if self._result is not Type.TEXT or all(map(str.isascii, values)) else None
        try:
            array = np.fromiter(values, dtype, len(values))
        except OverflowError:
            return None
        return None if self._result is Type.DOUBLE and not np.isfinite(array).all() else array

    def fail(self, at: int | Int64s, error: BaseException) -> None:
        self._faults[at] = user_fault(self._called, told(error))
        self._null[at] = False

    def put_array(self, places: Int64s, given: Any) -> None:
        """The values of these rows, from the user's function."""
        hidden = np.ma.getmaskarray(given) if isinstance(given, np.ma.MaskedArray) else None
        array = _array(given)
        if array.shape != places.shape:
            shape = f"an array of the shape {array.shape}" if array.ndim != 1 else f"{len(array)}"
            raise ValueError(f"expected an array of {len(places)} values, one for each row, got {shape}")
        if array.dtype.hasobject:
            self._put_each(places.tolist(), array.tolist(), hidden)
            return
        if array.dtype.kind not in _KINDS.get(self._result, ""):
            raise TypeError(f"expected an array of {self._result}, got {array.dtype}")
        if array.dtype.kind == "u" and self._result is not Type.DOUBLE and (array > np.uint64(MAX_INT64)).any():
            raise ValueError(f"expected {self._result} (64 bits, signed), got {array.max()}")
        if hidden is not None:
            self._null[places] = hidden
            places, array = places[~hidden], array[~hidden]
        if self._result is Type.DOUBLE:
            finite = np.isfinite(array)
            self._faults[places[~finite]] = Fault.DOUBLE_RANGE
            places, array = places[finite], array[finite]
        self._values[places] = array

    def _put_each(self, places: Iterable[int], values: Iterable[Any], hidden: Bools | None) -> None:
        nulls: Iterable[bool] = repeat(False) if hidden is None else hidden.tolist()
        for at, value, null in zip(places, values, nulls, strict=False):
            try:
                self.put(at, None if null else value)
            except RAISED as error:
                self.fail(at, error)

    def vector(self, wanted: Bools | None) -> Vector:
        valid = both(wanted, ~self._null if self._null.any() else None)
        return self._values, valid, self._faults if self._faults.any() else None


def _array(given: Any) -> Values:
    """The user's result as an array, without numpy's guesses about texts."""
    if isinstance(given, np.ma.MaskedArray):
        given = given.data
    if isinstance(given, list | tuple):
        return object_array(given)
    array = np.asarray(given)
    return array.astype(object) if array.dtype.kind in "US" else array
