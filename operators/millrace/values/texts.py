"""Columns of texts and of bytes: the bytes one after another, and where each value ends, as Arrow has them.

A `Texts` stands where a numpy array stands in a batch. It has what operators do with a column: slices share the bytes,
rows are taken by position or by mask, columns are compared and concatenated, and numpy's other functions receive an
array of Python's strings. Bytes in UTF-8 sort as code points do, so comparisons never decode.

Rule: a `Texts` never changes, and a null is an empty text, as in every column (`batch.FILLERS`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeGuard, cast

import numpy as np
import numpy.typing as npt

from millrace.values.kernels import texts as kernel

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]

_OBJECT: Final = np.dtype(object)
_INT64: Final = np.dtype(np.int64)
_UINT8: Final = np.dtype(np.uint8)
# Inputs and user functions are checked for halves of surrogate pairs; a batch that a test makes may have them.
ERRORS: Final = "surrogatepass"
# Where a text has a part (`kernels/texts.py`).
STARTS, ENDS, ANYWHERE, WHOLE = range(4)


class Texts(np.lib.mixins.NDArrayOperatorsMixin):
    """Value i is `data[offsets[i]:offsets[i + 1]]`: UTF-8, or bytes if `binary`."""

    __slots__ = ("binary", "data", "offsets")
    dtype = _OBJECT
    ndim = 1

    def __init__(self, data: Bytes, offsets: Int64s, binary: bool) -> None:
        self.data = data
        self.offsets = offsets
        self.binary = binary

    # -- what an array has ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int]:
        return (len(self.offsets) - 1,)

    @property
    def size(self) -> int:
        return len(self.offsets) - 1

    @property
    def size_bytes(self) -> int:
        """Bytes of the values."""
        return int(self.offsets.item(-1) - self.offsets.item(0))

    @property
    def nbytes(self) -> int:
        """Bytes of the values and of their places."""
        return self.size_bytes + 8 * len(self)

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self.offsets) - 1)
            if step == 1:
                return Texts(self.data, self.offsets[start : max(start, stop) + 1], self.binary)
            rows = np.arange(start, stop, step)
        elif not isinstance(rows, np.ndarray):
            if isinstance(rows, int | np.integer):
                return self.item(int(rows))
            rows = np.asarray(rows, None if len(rows) else _INT64)
        return self.take(rows.nonzero()[0] if rows.dtype == np.bool_ else rows)

    def take(self, rows: Values) -> Texts:
        """The values at these positions."""
        rows = np.ascontiguousarray(rows, _INT64)
        made = np.empty(len(rows) + 1, _INT64)
        if (row := kernel.measure(self.offsets, rows, made)) < len(rows):
            raise IndexError(f"position {rows[row]} of {len(self)} values")
        data = np.empty(made[-1], _UINT8)
        kernel.gather(self.data, self.offsets, rows, made, data)
        return Texts(data, made, self.binary)

    def item(self, row: int) -> Any:
        """One value as Python has it."""
        count = len(self)
        if not -count <= row < count:
            raise IndexError(f"position {row} of {count} values")
        row %= count
        value = self.data[self.offsets.item(row) : self.offsets.item(row + 1)].tobytes()
        return value if self.binary else value.decode("utf-8", ERRORS)

    def tolist(self) -> list[Any]:
        """The values as Python has them."""
        found: list[Any] = [None] * len(self)
        kernel.decoded(self.data, self.offsets, self.binary, found)
        return found

    def __iter__(self) -> Any:
        return iter(self.tolist())

    def copy(self) -> Texts:
        return self

    def astype(self, dtype: Any, copy: bool = True) -> Values:
        return cast(Values, self) if dtype == _OBJECT else self.__array__().astype(dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Values:
        array = np.empty(len(self), object)
        array[:] = self.tolist()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        compute = _COMPARISONS.get(ufunc) if method == "__call__" and not options and len(inputs) == 2 else None
        if compute is not None:
            found = compute(*inputs)
            if found is not None:
                return found
        return getattr(ufunc, method)(*map(_plain, inputs), **options)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        compute = _FUNCTIONS.get(function)
        if compute is not None and not kwargs:
            return compute(*args)
        return function(*map(_plain, args), **{name: _plain(value) for name, value in kwargs.items()})

    def __repr__(self) -> str:
        return f"Texts({self.tolist()})"

    __hash__ = None  # type: ignore[assignment]

    # -- more than an array has ----------------------------------------------------------------------------------------

    @property
    def packed(self) -> Bytes:
        """The bytes of these values alone."""
        return self.data[self.offsets[0] : self.offsets[-1]]

    @property
    def lengths(self) -> Int64s:
        """Bytes of each value."""
        found: Int64s = np.diff(self.offsets)
        return found

    def is_ascii(self) -> bool:
        """Whether each character is one byte below 128."""
        packed = self.packed
        return not len(packed) or bool(packed.max() < 128)

    def characters(self) -> Int64s:
        """Characters of each text."""
        found = np.empty(len(self), _INT64)
        kernel.characters(self.data, self.offsets, found)
        return found

    def folded(self, letters: bytes) -> Any:
        """The texts with ASCII's letters between these two in the other case."""
        packed = self.packed
        data = np.empty(len(packed), _UINT8)
        kernel.folded(packed, letters[0], letters[1], data)
        return Texts(data, self.offsets - self.offsets[0], self.binary)

    def has(self, part: bytes, place: int) -> Bools:
        """Whether each value has this part at a place: WHOLE, STARTS, ENDS or ANYWHERE."""
        found = np.empty(len(self), np.bool_)
        kernel.has_part(self.data, self.offsets, np.frombuffer(part, _UINT8), place, found.view(_UINT8))
        return found

    def followed(self, other: Texts) -> Any:
        """Each value followed by the other's; one value stands for all rows."""
        rows, others = len(self), len(other)
        count = others if rows == 1 else rows
        sizes = (self.packed.size * (count if rows == 1 else 1), other.packed.size * (count if others == 1 else 1))
        made, out = np.empty(count + 1, _INT64), np.empty(sum(sizes), _UINT8)
        kernel.joined(
            self.data,
            self.offsets,
            int(rows != 1),
            other.data,
            other.offsets,
            int(others != 1),
            made,
            out,
        )
        return Texts(out, made, self.binary)

    def check(self) -> None:
        """UnicodeDecodeError if a text is not UTF-8."""
        if self.is_ascii():
            return
        self.packed.tobytes().decode()
        begins = self.offsets[:-1][self.lengths > 0]
        if ((self.data[begins] & 0xC0) == 0x80).any():  # two texts that are UTF-8 only together
            for begin, end in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True):
                self.data[begin:end].tobytes().decode()

    def hashes(self) -> Int64s:
        """A number for each value that depends on its bytes alone."""
        found = np.empty(len(self), _INT64)
        kernel.hashes(self.data, self.offsets, found)
        return found

    def save(self) -> list[Any]:
        """Plain data, equal for equal columns."""
        lengths = self.lengths
        kind = np.min_scalar_type(int(lengths.max(initial=0)))
        return [self.binary, kind.str, lengths.astype(kind).tobytes(), self.packed.tobytes()]

    @staticmethod
    def restore(data: Sequence[Any]) -> Texts:
        binary, kind, lengths, values = data
        return Texts(np.frombuffer(values, _UINT8), offsets_of(np.frombuffer(lengths, np.dtype(kind))), binary)


class OneText(Texts):
    """A column of one value as Python has it. A single tuple then costs no more than its strings: the bytes are made
    when a loop over columns asks for them."""

    __slots__ = ("value",)

    def __init__(self, value: Any, binary: bool) -> None:
        self.value = value
        self.binary = binary

    def __getattr__(self, name: str) -> Any:
        if name not in ("data", "offsets"):
            raise AttributeError(name)
        data = encoded(self.value)
        self.data = np.frombuffer(data, _UINT8)
        self.offsets = np.array((0, len(data)))
        return getattr(self, name)

    def __len__(self) -> int:
        return 1

    def __getitem__(self, rows: Any) -> Any:
        if type(rows) is slice:
            if not rows.start and rows.step is None and (rows.stop is None or rows.stop > 0):
                return self
        elif type(rows) is np.ndarray and len(rows) == 1:
            first = rows.item(0)
            if first is False:
                return _NOTHING[self.binary]
            if first is True or not first:
                return self
        return super().__getitem__(rows)

    def item(self, row: int) -> Any:
        return self.value if not row else super().item(row)

    def tolist(self) -> list[Any]:
        return [self.value]

    @property
    def size_bytes(self) -> int:
        return len(self.value) if self.binary or self.value.isascii() else len(encoded(self.value))


_NOTHING: Final = {binary: Texts(np.empty(0, _UINT8), np.zeros(1, _INT64), binary) for binary in (False, True)}


# -- making ------------------------------------------------------------------------------------------------------------


def encoded(value: Any) -> bytes:
    """The bytes of a text, or bytes themselves."""
    return value if isinstance(value, bytes) else value.encode("utf-8", ERRORS)


def offsets_of(lengths: Values) -> Int64s:
    """Where values of these lengths stand one after another."""
    offsets = np.zeros(len(lengths) + 1, _INT64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def texts_from(values: Sequence[Any], binary: bool) -> Texts:
    """A column of Python's strings, or of bytes."""
    if len(values) == 1:
        return OneText(values[0], binary)
    if not binary:
        joined = "".join(values)
        data = joined.encode("utf-8", ERRORS)
        if len(data) > len(joined):
            values = list(map(encoded, values))
    else:
        data = b"".join(values)
    offsets = np.zeros(len(values) + 1, _INT64)
    np.cumsum(np.fromiter(map(len, values), _INT64, len(values)), out=offsets[1:])
    return Texts(np.frombuffer(data, _UINT8), offsets, binary)


def texts_at(data: Bytes, starts: Int64s, lengths: Int64s, binary: bool) -> Texts:
    """A column of the values at these places of `data`."""
    offsets = offsets_of(lengths)
    out = np.empty(offsets[-1], _UINT8)
    kernel.collect(data, np.ascontiguousarray(starts), offsets, out)
    return Texts(out, offsets, binary)


def texts_full(value: Any, count: int) -> Texts:
    """A column of equal values."""
    binary = isinstance(value, bytes)
    if count == 1:
        return OneText(value, binary)
    data = encoded(value)
    return Texts(np.frombuffer(data * count, _UINT8), np.arange(count + 1) * len(data), binary)


def as_texts(values: Values, binary: bool) -> Texts:
    """A column as `Texts`, whatever an operator has made it of."""
    return values if is_texts(values) else texts_from(values.tolist(), binary)


def concatenated(parts: Sequence[Any]) -> Any:
    """The values of all columns, in order; some may be arrays of Python's strings."""
    known = next(part for part in parts if isinstance(part, Texts))
    columns = [as_texts(part, known.binary) for part in parts]
    data = np.concatenate([column.packed for column in columns])
    offsets = np.zeros(sum(map(len, columns)) + 1, _INT64)
    at, end = 0, 0
    for column in columns:
        count = len(column)
        np.add(column.offsets[1:], end - column.offsets[0], out=offsets[at + 1 : at + count + 1])
        at += count
        end = int(offsets[at])
    return Texts(data, offsets, known.binary)


def chosen(rows: Bools, first: Any, second: Any) -> Any:
    """Row by row the first column's value where `rows` is true, else the second's."""
    if not isinstance(first, Texts):
        first, second, rows = second, first, ~rows
    if len(rows) == 1 and len(first) == 1:
        one = first if rows[0] else second
        return one if isinstance(one, Texts) else texts_from([_one_value(one)], first.binary)
    found = _against(first, second)
    if found is None or len(first) != len(rows):
        return np.where(rows, _plain(first), _plain(second))
    other, step = found
    made = np.empty(len(rows) + 1, _INT64)
    size = int(first.lengths[rows].sum())
    rest = ~rows
    size += int(other.lengths[rest].sum()) if step else int(other.lengths[0]) * int(rest.sum())
    out = np.empty(size, _UINT8)
    kernel.select(rows.view(_UINT8), first.data, first.offsets, other.data, other.offsets, step, made, out)
    return Texts(out, made, first.binary)


# -- comparing ---------------------------------------------------------------------------------------------------------


def _against(column: Texts, other: Any) -> tuple[Texts, int] | None:
    """The other side of an operation and its step, 0 for one value; None where it is not of the same kind."""
    if isinstance(other, np.ndarray) and other.ndim == 0:
        other = other.item()
    if isinstance(other, bytes if column.binary else str):
        return texts_from([other], column.binary), 0
    if isinstance(other, np.ndarray) and other.dtype == _OBJECT and other.ndim == 1:
        other = texts_from(other.tolist(), column.binary)
    if isinstance(other, Texts) and other.binary == column.binary:
        if len(other) == len(column):
            return other, 1
        if len(other) == 1:
            return other, 0
    return None


_OPERATORS: Final = {
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
}
_ONE_ROW: Final = {True: np.ones(1, np.bool_), False: np.zeros(1, np.bool_)}


def _one_value(values: Any) -> Any:
    return values.item() if isinstance(values, np.ndarray) else values


def _comparison(name: str) -> Callable[[Any, Any], Bools | None]:
    python = getattr(operator, _OPERATORS[name])
    mirrored = {"less": "greater", "greater": "less", "less_equal": "greater_equal", "greater_equal": "less_equal"}

    def compute(first: Any, second: Any) -> Bools | None:
        if not isinstance(first, Texts):
            return _COMPARISONS[getattr(np, mirrored.get(name, name))](second, first)
        if type(first) is OneText and type(second) is OneText:
            return _ONE_ROW[bool(python(first.value, second.value))].copy()
        found = _against(first, second)
        if found is None:
            return None
        other, step = found
        if name in ("equal", "not_equal"):
            result = np.empty(len(first), np.bool_)
            kernel.same(first.data, first.offsets, other.data, other.offsets, step, result.view(_UINT8))
            return result if name == "equal" else np.logical_not(result, out=result)
        order = np.empty(len(first), np.int8)
        kernel.compare(first.data, first.offsets, other.data, other.offsets, step, order)
        sided: Bools = getattr(np, name)(order, 0)
        return sided

    return compute


_COMPARISONS: Final[dict[Any, Callable[[Any, Any], Bools | None]]] = {
    getattr(np, name): _comparison(name) for name in _OPERATORS
}


def _repeated(values: Any, counts: Any) -> Any:
    return values.take(np.repeat(np.arange(len(values)), counts)) if isinstance(values, Texts) else None


_FUNCTIONS: Final[dict[Any, Callable[..., Any]]] = {
    np.concatenate: concatenated,
    np.where: chosen,
    np.repeat: _repeated,
}


def _plain(value: Any) -> Any:
    """An argument of a numpy function as numpy knows it."""
    if isinstance(value, Texts):
        return value.__array__()
    if isinstance(value, list | tuple) and any(isinstance(one, Texts) for one in value):
        return type(value)(map(_plain, value))
    return value


def is_texts(values: Any) -> TypeGuard[Texts]:
    """Whether a column is a `Texts`, which the type of columns does not say."""
    return isinstance(values, Texts)
