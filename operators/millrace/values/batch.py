"""Columnar batches: the only shape in which tuples travel inside the engine.

A batch is immutable. Its arrays are flagged read-only when it is made, slices share them, and no
operator writes into an array of its input. Rows are Python tuples at the edges only.

Per type, the array and the filler at nulls (the filler is fixed, so that equal
batches have equal bytes):

    boolean    bool_     False         text    Texts    ""
    bigint     int64     0             bytes   Texts    b""
    double     float64   0.0           timestamp, interval      int64, 0

An operator may leave texts and bytes in an array of Python's strings, which stands for the same column: `as_texts`
makes `Texts` of it where the bytes are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from millrace.protocol import Schema, Type
from millrace.values.arrays import resized
from millrace.values.text_cells import TextCells
from millrace.values.texts import Texts, as_texts, is_texts, offsets_of, texts_from, texts_full

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]
Row = tuple[Any, ...]

DTYPES: Final[dict[Type, np.dtype[Any]]] = {
    Type.BOOLEAN: np.dtype(np.bool_),
    Type.BIGINT: np.dtype(np.int64),
    Type.DOUBLE: np.dtype(np.float64),
    Type.TEXT: np.dtype(object),
    Type.BYTES: np.dtype(object),
    Type.TIMESTAMP: np.dtype(np.int64),
    Type.INTERVAL: np.dtype(np.int64),
}

FILLERS: Final[dict[Type, Any]] = {
    Type.BOOLEAN: False,
    Type.BIGINT: 0,
    Type.DOUBLE: 0.0,
    Type.TEXT: "",
    Type.BYTES: b"",
    Type.TIMESTAMP: 0,
    Type.INTERVAL: 0,
}

_INT64: Final = np.dtype(np.int64)
_BOOL: Final = np.dtype(np.bool_)


# Types whose columns are `Texts`.
TEXTS: Final = (Type.TEXT, Type.BYTES)

# Measured with CPython 3.11: an array takes 112 bytes more than its data, and a `Texts` is two arrays; a batch with its
# two arrays of times and two tuples of columns takes about 500.
ARRAY_BYTES: Final = 112
BATCH_BYTES: Final = 500


def tuple_width(fields: int) -> int:
    """Bytes of a tuple in a batch, without its texts: its two times and a value per field."""
    return 16 + 8 * fields


_ZERO: Final = np.zeros(1, _INT64)
_ZERO.flags.writeable = False


def constant_int64(value: int, count: int) -> Int64s:
    """An array of `count` equal integers that stores one: eight bytes however long it is."""
    if count == 1 and value == 0:
        return _ZERO
    one = np.empty(1, _INT64)
    one[0] = value
    return one if count == 1 else np.ndarray((count,), _INT64, one, 0, (0,))


def object_array(values: Sequence[Any]) -> Values:
    """An object array of the values themselves, whatever they are (numpy would unpack sequences)."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def column_from(type: Type, values: Sequence[Any]) -> tuple[Values, Bools | None]:
    """The array and validity mask of Python values, None meaning null. Values are of the type already."""
    valid: Bools | None = None
    if None in values:
        valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
        filler = FILLERS[type]
        values = [filler if value is None else value for value in values]
    return column_of(type, values), valid


def column_of(type: Type, values: Sequence[Any]) -> Values:
    """A column of Python values, none of them null, that are of the type already."""
    if type in TEXTS:
        return cast(Values, texts_from(values, type is Type.BYTES))
    return np.array(values, DTYPES[type])


def constant_column(type: Type, value: Any, count: int) -> Values:
    """A column of equal values."""
    return cast(Values, texts_full(value, count)) if type in TEXTS else np.full(count, value, DTYPES[type])


def empty_column(type: Type) -> Values:
    return constant_column(type, FILLERS[type], 0)


def cells(type: Type, count: int = 0) -> Values:
    """A column to write into, of fillers."""
    return cast(Values, TextCells(type is Type.BYTES, count)) if type in TEXTS else np.zeros(count, DTYPES[type])


def cells_of(type: Type, values: Values, room: int | None = None) -> Values:
    """A column to write into, of so many places, that starts with these values."""
    room = len(values) if room is None else room
    if type in TEXTS:
        return cast(Values, TextCells.of(values, type is Type.BYTES).resize(room))
    return resized(values, room)


def interleaved(first: Bools, values: Values, others: Values) -> Values:
    """These values where `first` is true and the others elsewhere, each in their order."""
    if not values.dtype.hasobject:
        merged = np.empty(len(first), values.dtype)
        merged[first], merged[~first] = values, others
        return merged
    rows = np.empty(len(first), np.int64)
    rows[first], rows[~first] = np.arange(len(values)), len(values) + np.arange(len(others))
    both: Values = np.concatenate([values, others])
    return both[rows]


def spread(values: Values, there: Bools, filler: Any) -> Values:
    """These values where `there` is true, the filler elsewhere."""
    if not values.dtype.hasobject:
        filled = np.full(len(there), filler, values.dtype)
        filled[there] = values
        return filled
    lengths = np.zeros(len(there), np.int64)
    texts = as_texts(values, isinstance(filler, bytes))
    lengths[there] = texts.lengths
    return cast(Values, Texts(texts.packed, offsets_of(lengths), texts.binary))


class Batch:
    """Rows of one schema with their times.

    ts        int64, microseconds; MIN_TIME for a latent tuple, which has no time yet
    arrival   int64, when each tuple (the newest of those it was made from) reached the engine
    columns   one array per field of the schema
    valid     per field a mask of the rows that are not null, or None if none is
    """

    __slots__ = ("_weight", "arrival", "columns", "schema", "ts", "valid")

    def __init__(
        self,
        schema: Schema,
        ts: Int64s,
        columns: Sequence[Values],
        valid: Sequence[Bools | None] | None = None,
        arrival: Int64s | None = None,
    ) -> None:
        self.schema = schema
        self.ts = ts
        self.columns = tuple(columns)
        self.valid = tuple(valid) if valid is not None else (None,) * len(self.columns)
        self.arrival = arrival if arrival is not None else constant_int64(0, len(ts))
        self._weight: int | None = None

    def __len__(self) -> int:
        return len(self.ts)

    # -- making --------------------------------------------------------------------------------------------------------

    @staticmethod
    def empty(schema: Schema) -> Batch:
        return Batch(schema, np.empty(0, _INT64), [empty_column(field.type) for field in schema])

    @staticmethod
    def from_rows(schema: Schema, rows: Sequence[Sequence[Any]], ts: Sequence[int] | Int64s, arrival: int = 0) -> Batch:
        """A batch of Python rows whose values have been checked against the schema."""
        if not rows:
            return Batch.empty(schema)
        made = [column_from(field.type, values) for field, values in zip(schema, zip(*rows, strict=True), strict=True)]
        return Batch(
            schema,
            np.asarray(ts, _INT64),
            [values for values, _ in made],
            [valid for _, valid in made],
            constant_int64(arrival, len(rows)),
        )

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """The rows of all batches, in order. The schemas have equal types (names come from the first)."""
        if len(batches) == 1:
            return batches[0]
        first = batches[0]
        columns = []
        valid = []
        for position in range(len(first.columns)):
            columns.append(np.concatenate([batch.columns[position] for batch in batches]))
            valid.append(_concat_masks([(batch.valid[position], len(batch)) for batch in batches]))
        return Batch(
            first.schema,
            np.concatenate([batch.ts for batch in batches]),
            columns,
            valid,
            np.concatenate([batch.arrival for batch in batches]),
        )

    # -- parts ---------------------------------------------------------------------------------------------------------

    def slice(self, start: int, stop: int) -> Batch:
        """Rows start to stop, sharing the arrays."""
        return Batch(
            self.schema,
            self.ts[start:stop],
            [values[start:stop] for values in self.columns],
            [None if mask is None else mask[start:stop] for mask in self.valid],
            self.arrival[start:stop],
        )

    def split(self, at: int) -> tuple[Batch, Batch]:
        """The rows before a position and the others; the weight is divided in proportion, without another look."""
        parts = self.slice(0, at), self.slice(at, len(self))
        parts[0]._weight = self.weight * at // max(len(self), 1)
        parts[1]._weight = self.weight - parts[0]._weight
        return parts

    def take(self, rows: Int64s | Bools) -> Batch:
        """The rows at these positions, or where this mask is true."""
        if rows.dtype == _BOOL:
            rows = rows.nonzero()[0]  # numpy takes positions from several columns much faster than masks
        return Batch(
            self.schema,
            take_times(self.ts, rows),
            [values[rows] for values in self.columns],
            [None if mask is None else mask[rows] for mask in self.valid],
            take_times(self.arrival, rows),
        )

    def at(self, ts: Int64s) -> Batch:
        """The same rows at these times."""
        return self if ts is self.ts else Batch(self.schema, ts, self.columns, self.valid, self.arrival)

    def arrived(self, arrival_us: int) -> Batch:
        """The same rows as they reached the engine at this time."""
        return Batch(self.schema, self.ts, self.columns, self.valid, constant_int64(arrival_us, len(self.ts)))

    def stamped(self, stamp_us: int, arrival_us: int) -> Batch:
        """The same rows as they reached the engine at this time, all with one time."""
        arrival = constant_int64(arrival_us, len(self.ts))
        ts = arrival if stamp_us == arrival_us else constant_int64(stamp_us, len(self.ts))
        return Batch(self.schema, ts, self.columns, self.valid, arrival)

    def arrived_at(self, arrival_us: Int64s) -> Batch:
        """The same rows as each reached the engine at its own time."""
        return Batch(self.schema, self.ts, self.columns, self.valid, arrival_us)

    def narrowed(self, schema: Schema, columns: Sequence[int]) -> Batch:
        """These columns alone."""
        found = [self.columns[at] for at in columns]
        return Batch(schema, self.ts, found, [self.valid[at] for at in columns], self.arrival)

    def widened(self, schema: Schema) -> Batch:
        """The same rows with more fields, which are null."""
        count, at = len(self.ts), {name: position for position, name in enumerate(self.schema.names)}
        columns: list[Values] = []
        valid: list[Bools | None] = []
        for field in schema:
            position = at.get(field.name)
            if position is None:
                columns.append(constant_column(field.type, FILLERS[field.type], count))
                valid.append(np.zeros(count, np.bool_))
            else:
                columns.append(self.columns[position])
                valid.append(self.valid[position])
        return Batch(schema, self.ts, columns, valid, self.arrival)

    def renamed(self, schema: Schema) -> Batch:
        """The same rows under a schema of equal types."""
        return Batch(schema, self.ts, self.columns, self.valid, self.arrival)

    # -- at the edges --------------------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """The rows as Python values, null as None."""
        return list(zip(*self.lists(), strict=True)) if self.columns else [()] * len(self)

    def lists(self) -> list[list[Any]]:
        """The columns as lists of Python values, null as None."""
        return list(map(listed, self.columns, self.valid))

    @property
    def weight(self) -> int:
        """Bytes of memory that the rows take, texts included: an estimate that is seldom too low, made once."""
        if self._weight is None:
            count, width = len(self.ts), len(self.columns)
            texts = [_text_bytes(values) for values in self.columns if values.dtype.hasobject]
            self._weight = BATCH_BYTES + ARRAY_BYTES * (width + len(texts)) + count * tuple_width(width) + sum(texts)
        return self._weight

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        masks = sum(mask.nbytes for mask in self.valid if mask is not None)
        return self.ts.nbytes + masks + sum(values.nbytes for values in self.columns)

    def __repr__(self) -> str:
        return f"Batch({list(zip(self.ts.tolist(), self.rows(), strict=True))})"

    def __eq__(self, other: object) -> bool:
        """Equal rows at equal times; when they arrived does not count."""
        if not isinstance(other, Batch):
            return NotImplemented
        return self.schema == other.schema and np.array_equal(self.ts, other.ts) and self.lists() == other.lists()

    __hash__ = None  # type: ignore[assignment]

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self) -> list[Any]:
        return [
            self.schema.to_data(),
            self.ts,
            list(self.columns),
            list(self.valid),
            np.ascontiguousarray(self.arrival),
        ]

    @staticmethod
    def restore(data: Sequence[Any]) -> Batch:
        schema, ts, columns, valid, arrival = data
        return Batch(Schema.from_data(schema), ts, columns, valid, arrival)


def _text_bytes(values: Values) -> int:
    """Bytes of the texts themselves; Python's strings count as the column that they stand for."""
    if is_texts(values):
        return values.size_bytes
    return sum([len(value) if type(value) is bytes else len(value.encode()) for value in values.tolist()])


def listed(values: Values, mask: Bools | None) -> list[Any]:
    """A column as Python values, None for nulls."""
    found: list[Any] = values.tolist()
    if mask is None:
        return found
    return [value if there else None for value, there in zip(found, mask.tolist(), strict=True)]


def take_times(times: Int64s, rows: Int64s | Bools) -> Int64s:
    """The times at these positions. Constant ones stay so: most batches arrived in one frame, and gathering would
    double the cost of a select."""
    count = len(rows)
    if times.strides != (0,) or not count:
        return times[rows]
    return times[:count] if count <= len(times) else constant_int64(int(times[0]), count)


def _concat_masks(masks: Iterable[tuple[Bools | None, int]]) -> Bools | None:
    masks = list(masks)
    if all(mask is None for mask, _ in masks):
        return None
    return np.concatenate([np.ones(count, np.bool_) if mask is None else mask for mask, count in masks])
