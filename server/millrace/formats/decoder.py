"""The source wrapper of one stream: a whole frame of rows becomes a Batch, or is refused whole.

Rule: every value that leaves this file fits its field. The fast way decodes a frame with a decoder typed by the schema
and turns rows into columns; when it meets anything it does not like, the slow way walks the same frame value by value
and finds the words: which row, which field, expected, got. Both must refuse the same frames (the tests compare them).
A new type needs a line in each of the tables below.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, cast

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.engine.plan import StreamDefinition
from millrace.formats.timeunits import BeyondError, micros_of
from millrace.protocol import MAX_INT64, MIN_INT64, Field, Refuse, RowError, Schema, Type
from millrace.protocol.errors import row_place
from millrace.protocol.timestamps import FIRST_US, LAST_US, format_timestamp, parse_timestamp
from millrace.protocol.units import CENTURY_US, MICROSECONDS, UNITS, TimeUnit, in_century, likely_unit
from millrace.protocol.words import SHOWN_CHARACTERS, spelt
from millrace.sql.parser import written
from millrace.values.batch import (
    FILLERS,
    Batch,
    Bools,
    Int64s,
    Row,
    Values,
    column_of,
    constant_int64,
)
from millrace.values.eventtime import outside
from millrace.values.kernels import compiled, unpacking
from millrace.values.texts import texts_at

# What msgspec checks while it decodes. Its integers are unbounded and its floats may be NaN: columns check those.
WIRE_TYPES: Final[dict[Type, Any]] = {
    Type.BOOLEAN: bool,
    Type.BIGINT: int,
    Type.DOUBLE: float,
    Type.TEXT: str,
    Type.BYTES: bytes,
    Type.TIMESTAMP: int | str,
}

# How each type is called when a value does not fit it.
EXPECTED: Final[dict[Type, str]] = {
    Type.BOOLEAN: "boolean (true or false)",
    Type.BIGINT: "bigint (an integer of 64 bits)",
    Type.DOUBLE: "double (a finite number)",
    Type.TEXT: "text (valid UTF-8)",
    Type.BYTES: "bytes",
    Type.TIMESTAMP: "timestamp (integer microseconds or ISO 8601 text)",
}
EVENT_TIME: Final = f"a time from {format_timestamp(FIRST_US)} to {format_timestamp(LAST_US)}"
# Rows of a batch whose unit is looked at one by one; of more the extremes speak for all.
LOOKED_AT: Final = 64
# Rows that the kernel reads at the least: numpy's price per array is that of a few rows decoded one by one.
FEW_ROWS: Final = 32


class _Unfit(Exception):  # noqa: N818 - a signal inside this file, not an error that anyone meets
    """A column holds a value that does not fit; the slow way will say which."""


class TooFarAheadError(RowError):
    """A tuple is further above the server's clock than its stream's `max_ahead`."""


class StreamDecoder:
    """Decodes the rows of one stream's feeds."""

    def __init__(self, stream: StreamDefinition) -> None:
        self.stream = stream
        self.schema = stream.schema
        # The time field may not be null, whatever its declaration says: a tuple without a time has no place in time.
        self._fields = tuple(
            Field(field.name, field.type, field.nullable and field.name != stream.time) for field in stream.schema
        )
        self.unit = UNITS[stream.time_unit]
        row_type: Any = tuple.__class_getitem__(tuple(map(self.wire_type, self._fields)))
        self._decoder: msgspec.msgpack.Decoder[list[Row]] = msgspec.msgpack.Decoder(list.__class_getitem__(row_type))
        self._columns = tuple(self._numbers if self._counts(field) else _COLUMNS[field.type] for field in self._fields)
        self._names = stream.schema.names
        self._known = frozenset(self._names)
        self._required = frozenset(field.name for field in self._fields if not field.nullable)
        self._time = stream.time_position
        self._counted = tuple(map(self._counts, self._fields))
        self._kinds = np.array([_KINDS[field.type] for field in self._fields], np.int64)
        self._nullable = np.array([field.nullable for field in self._fields], np.int64)
        self._slices = any(field.type in (Type.TEXT, Type.BYTES) for field in self._fields)
        self._unpacks = compiled()

    def _counts(self, field: Field) -> bool:
        """Whether numbers of this field count in another unit than microseconds."""
        return self.unit is not MICROSECONDS and field.name == self.stream.time

    def wire_type(self, field: Field) -> Any:
        """The type that a decoder of msgspec checks for a field."""
        kind = int | float | str if self._counts(field) and self.unit.fractions else WIRE_TYPES[field.type]
        return kind | None if field.nullable and field.name != self.stream.time else kind

    def expected(self, field: Field) -> str:
        """The values that a field accepts, in words."""
        return f"timestamp ({self.unit.forms})" if self._counts(field) else EXPECTED[field.type]

    def fraction_hint(self, field: Field, value: Any) -> str:
        """What to do about a fraction in the time field; empty for other fields and values."""
        return self.unit.fraction_hint(value, written(self.stream.name)) if field.name == self.stream.time else ""

    # -- row frames --------------------------------------------------------------------------------

    def decode(self, payload: bytes | memoryview) -> Batch:
        """The rows of one frame (a msgpack array of arrays)."""
        return self.decode_many([payload])

    def decode_many(self, payloads: Sequence[bytes | memoryview]) -> Batch:
        """The rows of several frames as one batch; RowError if any is unfit, without information about the others.

        With several frames this saves numpy's cost per array. The caller then falls back to single frames.
        """
        if self._unpacks and (batch := self._unpacked(payloads)) is not None:
            return batch
        rows: list[Row] = []
        for payload in payloads:
            try:
                rows += self._decoder.decode(payload)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise self._explain(payload, error) from None
        try:
            return self._batch(rows)
        except (_Unfit, BeyondError) as error:
            raise self._explain_first(payloads, error) from None

    def _unpacked(self, payloads: Sequence[bytes | memoryview]) -> Batch | None:
        """The rows of frames whose values all have their plain types; None for others, and for few."""
        width = len(self._fields)
        if len(payloads) == 1 and len(payloads[0]) < FEW_ROWS * (width + 1):
            return None
        data = payloads[0] if len(payloads) == 1 else b"".join(payloads)
        array = np.frombuffer(data, np.uint8)
        starts = np.fromiter(accumulate(map(len, payloads), initial=0), np.int64, len(payloads) + 1)
        counts = np.empty(len(payloads), np.int64)
        count = unpacking.count_rows(array, starts, counts)
        if count < FEW_ROWS or count * (width + 1) > len(data):
            return None
        values, valid = np.empty(count * width, np.int64), np.empty(count * width, np.uint8)
        doubles, lengths = values.view(np.float64), np.empty_like(values) if self._slices else values
        if not unpacking.read_frames(
            array, starts, counts, count, self._kinds, self._nullable, values, doubles, lengths, valid
        ):
            return None
        full = bool(valid.all())
        columns: list[Values] = []
        masks: list[Bools | None] = []
        try:
            for begin, field in zip(range(0, count * width, count), self._fields, strict=True):
                span = slice(begin, begin + count)
                columns.append(self._unpacked_column(field, data, values[span], lengths[span]))
                mask = None if full or not field.nullable else valid[span].view(np.bool_)
                masks.append(None if mask is None or mask.all() else mask)
        except (BeyondError, UnicodeDecodeError):
            return None
        return self._timed(columns, masks, count)

    def _unpacked_column(self, field: Field, data: bytes | memoryview, values: Int64s, lengths: Int64s) -> Values:
        match field.type:
            case Type.DOUBLE:
                return values.view(np.float64)
            case Type.BOOLEAN:
                return values.astype(np.bool_)
            case Type.TEXT | Type.BYTES:
                return checked_texts(np.frombuffer(data, np.uint8), values, lengths, field.type)
        return micros_of(self.unit, values) if self._counts(field) else values

    def _batch(self, rows: Sequence[Row]) -> Batch:
        if not rows:
            return Batch.empty(self.schema)
        columns: list[Values] = []
        valid: list[Bools | None] = []
        for make, field, values in zip(self._columns, self._fields, zip(*rows, strict=True), strict=True):
            column, mask = make(field, values)
            columns.append(column)
            valid.append(mask)
        return self._timed(columns, valid, len(rows))

    def _timed(self, columns: Sequence[Values], valid: Sequence[Bools | None], count: int) -> Batch:
        if self._time is None:
            return Batch(self.schema, constant_int64(0, count), columns, valid)
        ts: Int64s = columns[self._time]
        if (row := outside(ts)) is not None:
            raise _row_error(row, EVENT_TIME, time_shown(int(ts[row])), self.stream.time, "bad_value")
        return Batch(self.schema, ts, columns, valid)

    def nullable(self, position: int) -> bool:
        """Whether rows may leave this field out."""
        return self._fields[position].nullable

    def counts(self, position: int) -> bool:
        """Whether numbers of this field count in another unit than microseconds."""
        return self._counted[position]

    def timed(self, columns: Sequence[Values], valid: Sequence[Bools | None]) -> Batch:
        """The rows of columns whose values fit; RowError for a time beyond event time."""
        count = len(columns[0])
        return self._timed(columns, valid, count) if count else Batch.empty(self.schema)

    def from_rows(self, rows: Sequence[Row]) -> Batch:
        """Rows of the types that a decoder checks (WIRE_TYPES); RowError if a value still does not fit."""
        try:
            return self._batch(rows)
        except (_Unfit, BeyondError):
            for number, row in enumerate(rows):
                self._check_row(number, row)
            raise AssertionError("a row fits by itself and not among others") from None

    # -- rows by name (JSON lines) -----------------------------------------------------------------

    def from_objects(self, objects: Sequence[Mapping[str, Any]]) -> Batch:
        """The rows of JSON objects: a missing key is null, an unknown one is refused unless extras are ignored."""
        rows = [self._named_row(number, values) for number, values in enumerate(objects)]
        for number, row in enumerate(rows):
            self._check_row(number, row)
        return self._batch(rows)

    def _named_row(self, number: int, values: Mapping[str, Any]) -> Row:
        if self.stream.extra == "refuse" and not values.keys() <= self._known:
            unknown = next(name for name in values if name not in self._known)
            raise _row_error(number, f"the fields {', '.join(self._names)}", f"unknown field {spelt(unknown)}")
        if not values.keys() >= self._required:
            raise self._missing(number, values)
        return tuple(from_json(field, values.get(field.name)) for field in self._fields)

    def _missing(self, number: int, values: Mapping[str, Any]) -> RowError:
        field = next(field for field in self._fields if not field.nullable and field.name not in values)
        expected, got = f"{field.type}, not null", f"only {', '.join(values)}" if values else "no fields"
        return RowError(
            f"{row_place(number)}: missing field {field.name} ({expected})", row=number, expected=expected, got=got
        )

    # -- groups ------------------------------------------------------------------------------------

    def group(self, where: object) -> Row:
        """The values of the stream's punctuation key in the `where` of a punctuation; Refuse if they do not fit."""
        key = self.stream.punctuation_key
        if not key:
            hint = "create it WITH (punctuation_key = '...'), or promise a time for the whole stream"
            raise Refuse(f"where: stream {self.stream.name} has no punctuation key: {hint}", code="bad_value")
        if not isinstance(where, Mapping) or where.keys() != set(key):
            got = ", ".join(map(spelt, where)) or "none" if isinstance(where, Mapping) else spelt(where)
            raise Refuse(
                f"where: expected a value for each of {', '.join(key)} (the punctuation key of stream "
                f"{self.stream.name}), got {got}",
                code="bad_value",
            )
        columns = Schema(tuple(field for field in self._fields if field.name in key))
        try:
            batch = StreamDecoder(StreamDefinition(self.stream.name, columns)).from_objects([where])
        except RowError as error:
            raise Refuse(error.text.replace(row_place(0), "where", 1), code="bad_value") from None
        (values,) = batch.rows()
        return tuple(values[columns.names.index(name)] for name in key)

    # -- Arrow frames ------------------------------------------------------------------------------

    @property
    def _ignores_extra(self) -> bool:
        return self.stream.extra == "ignore"

    def _unit_of(self, field: Field) -> TimeUnit:
        return self.unit if self._counts(field) else MICROSECONDS

    def from_arrow(self, payload: bytes | memoryview, count: int | None = None) -> Batch:
        """The rows of an Arrow IPC stream of `count` rows; fixed-width columns share the payload's memory."""
        from millrace.formats.arrow import read_arrow  # pyarrow costs 60 MB: only feeds that use it pay

        columns, valid, count = read_arrow(payload, self._fields, self._ignores_extra, count, self._unit_of)
        return self._timed(columns, valid, count) if count else Batch.empty(self.schema)

    def from_table(self, table: Any) -> Batch:
        """The rows of an Arrow table or record batch in memory; a nullable column that it lacks is null."""
        from millrace.formats.arrow import read_table, with_missing

        table = with_missing(table, self._fields)
        columns, valid = read_table(table, self._fields, self._ignores_extra, self._unit_of)
        return self._timed(columns, valid, table.num_rows) if table.num_rows else Batch.empty(self.schema)

    # -- time ---------------------------------------------------------------------------------------

    def _numbers(self, field: Field, values: Sequence[Any]) -> tuple[Values, Bools | None]:
        """The time field of rows whose numbers are not microseconds."""
        kinds = set(map(type, values))
        try:
            if kinds == {int}:
                return micros_of(self.unit, np.fromiter(values, np.int64, len(values))), None
            if kinds == {float}:
                return micros_of(self.unit, np.fromiter(values, np.float64, len(values))), None
            times = np.fromiter(map(self.unit.parse, values), np.int64, len(values))
        except (OverflowError, ValueError):
            raise _Unfit from None
        if outside(times) is not None:
            raise _Unfit
        return times, None

    def check_ahead(self, batch: Batch, now_us: int) -> None:
        """TooFarAheadError for the first row whose time lies further above the clock than the stream allows."""
        ahead_us = self.stream.ahead_us
        if ahead_us is None or self._time is None or not len(batch.ts):
            return
        most_us = now_us + ahead_us
        if batch.ts.max() <= most_us:
            return
        row = int((batch.ts > most_us).argmax())
        expected = f"at most {format_timestamp(most_us)} (max_ahead: {ahead_us / 1e6:g} s ahead of the server's clock)"
        got = format_timestamp(int(batch.ts[row]))
        raise _row_error(row, expected, got, self.stream.time, "bad_value", TooFarAheadError)

    def check_unit(self, batch: Batch, now_us: int) -> bool:
        """RowError for the first row whose time makes sense in another unit alone.

        Returns whether the batch shows that the stream has such early times by intention: a row from before this
        century that is not a time of this century in any unit. The caller then stops asking.
        """
        ts = batch.ts
        if self._time is None or not len(ts) or not in_century(now_us):
            return False
        least = ts.item(0) if len(ts) == 1 else ts.min()
        if least >= CENTURY_US[0]:
            return False
        early = ts[ts < CENTURY_US[0]]
        unit = self.unit
        values = early.tolist() if len(early) <= LOOKED_AT else [int(early.min()), int(early.max())]
        if any(likely_unit(unit.count(value), unit) is None for value in values):
            return True
        row = int((ts < CENTURY_US[0]).argmax())
        time_us = int(ts[row])
        value = unit.count(time_us)
        got = f"{value}, which is {format_timestamp(time_us)}; {likely_unit(value, unit)}"
        raise _row_error(row, f"{unit.words} since 1970", got, self.stream.time, "bad_value")

    # -- the slow way ------------------------------------------------------------------------------

    def _explain_first(self, payloads: Sequence[bytes | memoryview], error: Exception) -> RowError:
        if len(payloads) > 1:
            return _row_error(0, "rows that fit the schema", "one that does not")
        return self._explain(payloads[0], error)

    def _explain(self, payload: bytes | memoryview, error: Exception) -> RowError:
        """The first thing wrong with a frame that the fast way refused."""
        try:
            raws = _RAW_LIST.decode(payload)
        except (msgspec.DecodeError, RecursionError) as unread:
            return _row_error(0, "an array of rows", _reason(unread))
        for number, raw in enumerate(raws):
            try:
                self._check_row(number, self._raw_row(number, raw))
            except RowError as found:
                return found
        # Both ways refuse the same values; this text would mean that they no longer do.
        return _row_error(0, "rows that fit the schema", _reason(error))

    def _raw_row(self, number: int, raw: msgspec.Raw) -> Row:
        expected = f"an array of {len(self._fields)} values ({', '.join(self._names)})"
        try:
            values = _RAW_LIST.decode(raw)
        except (msgspec.DecodeError, RecursionError) as unread:
            raise _row_error(number, expected, _reason(unread)) from None
        if len(values) != len(self._fields):
            raise _row_error(number, expected, f"{len(values)} values")
        return tuple(map(_decode_any, values))

    def _check_row(self, number: int, row: Row) -> None:
        for field, value in zip(self._fields, row, strict=True):
            if not self._fits(field, value):
                expected = self.expected(field) if value is not None else f"{field.type}, not null"
                code = "bad_value" if self._right_type(field, value) else "bad_row"
                hint = self.fraction_hint(field, value)
                raise _row_error(number, expected, spelt(value) + hint, field.name, code)
        if self._time is not None and not FIRST_US <= self.unit.parse(row[self._time]) <= LAST_US:
            raise _row_error(number, EVENT_TIME, value_shown(row[self._time], self.unit), self.stream.time, "bad_value")

    def _fits(self, field: Field, value: Any) -> bool:
        if value is None:
            return field.nullable
        if type(value) is float and self._counts(field):
            return self.unit.is_number(value)
        return _FITS[field.type](value)

    def _right_type(self, field: Field, value: Any) -> bool:
        """Whether a value that does not fit has the right type: a NaN, say, or 2**63."""
        fraction = type(value) is float and self._counts(field) and self.unit.fractions
        return fraction or type(value) in _PYTHON_TYPES[field.type]


# -- columns -----------------------------------------------------------------------------------------------------------
# Each makes the array and the mask of one column of wire values, or raises _Unfit.


def _integers(field: Field, values: Sequence[Any]) -> tuple[Values, Bools | None]:
    try:
        return np.fromiter(values, np.int64, len(values)), None
    except TypeError:  # a null: numpy has no integer for it
        values, mask = _without_nulls(field, values)
    except OverflowError:
        raise _Unfit from None
    try:
        return np.fromiter(values, np.int64, len(values)), mask
    except OverflowError:
        raise _Unfit from None


def _doubles(field: Field, values: Sequence[Any]) -> tuple[Values, Bools | None]:
    array = np.fromiter(values, np.float64, len(values))
    if np.isfinite(array).all():
        return array, None
    values, mask = _without_nulls(field, values)  # numpy reads a null as NaN
    array = np.fromiter(values, np.float64, len(values))
    if not np.isfinite(array).all():
        raise _Unfit
    return array, mask


def _booleans(field: Field, values: Sequence[Any]) -> tuple[Values, Bools | None]:
    values, mask = _without_nulls(field, values)
    return np.fromiter(values, np.bool_, len(values)), mask


def _objects(field: Field, values: Sequence[Any]) -> tuple[Values, Bools | None]:
    values, mask = _without_nulls(field, values)
    return column_of(field.type, values), mask


def _timestamps(field: Field, values: Sequence[Any]) -> tuple[Values, Bools | None]:
    if str in set(map(type, values)):  # numpy would read "5" as five
        try:
            values = [parse_timestamp(value) if type(value) is str else value for value in values]
        except ValueError:
            raise _Unfit from None
    return _integers(field, values)


def _without_nulls(field: Field, values: Sequence[Any]) -> tuple[Sequence[Any], Bools | None]:
    """The values with fillers for the nulls, and the mask of those that are not null (None if all are not)."""
    if not field.nullable or None not in values:
        return values, None
    filler = FILLERS[field.type]
    mask = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return [filler if value is None else value for value in values], mask


_COLUMNS: Final[dict[Type, Callable[[Field, Sequence[Any]], tuple[Values, Bools | None]]]] = {
    Type.BOOLEAN: _booleans,
    Type.BIGINT: _integers,
    Type.DOUBLE: _doubles,
    Type.TEXT: _objects,
    Type.BYTES: _objects,
    Type.TIMESTAMP: _timestamps,
}


# What the kernel reads of each type.
_KINDS: Final = {
    Type.BOOLEAN: unpacking.BOOLEAN,
    Type.BIGINT: unpacking.INTEGER,
    Type.DOUBLE: unpacking.DOUBLE,
    Type.TEXT: unpacking.TEXT,
    Type.BYTES: unpacking.BYTES,
    Type.TIMESTAMP: unpacking.INTEGER,
}


def checked_texts(data: npt.NDArray[np.uint8], starts: Values, lengths: Values, type: Type) -> Values:
    """The texts or bytes at these places; UnicodeDecodeError if a text is not UTF-8."""
    found = texts_at(data, starts, lengths, type is Type.BYTES)
    if type is Type.TEXT:
        found.check()
    return cast(Values, found)


# -- single values -----------------------------------------------------------------------------------------------------

_RAW_LIST: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])


class _BadText:
    """Stands for text that is not UTF-8, so that the check by value refuses it."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def __repr__(self) -> str:
        return f"the bytes {self.raw!r}, which are not UTF-8"


def _decode_any(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.msgpack.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _BadText(bytes(raw)[:SHOWN_CHARACTERS])


def from_json(field: Field, value: Any) -> Any:
    """A value of a JSON object as row frames would carry it: JSON spells bytes in base64, or as SQL's casts do.

    No base64 has a backslash in it, so the two are never taken for each other.
    """
    if field.type is not Type.BYTES or type(value) is not str:
        return value
    try:
        if value.startswith("\\x"):
            return bytes.fromhex(value[2:])
        return base64.b64decode(value, validate=True)
    except ValueError:
        return value  # refused by the check, with the text that came


def _fits_bigint(value: Any) -> bool:
    return type(value) is int and MIN_INT64 <= value <= MAX_INT64


def _fits_double(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _fits_timestamp(value: Any) -> bool:
    if type(value) is not str:
        return _fits_bigint(value)
    try:
        parse_timestamp(value)
    except ValueError:
        return False
    return True


_FITS: Final[dict[Type, Callable[[Any], bool]]] = {
    Type.BOOLEAN: lambda value: type(value) is bool,
    Type.BIGINT: _fits_bigint,
    Type.DOUBLE: _fits_double,
    Type.TEXT: lambda value: type(value) is str and _encodes(value),
    Type.BYTES: lambda value: type(value) is bytes,
    Type.TIMESTAMP: _fits_timestamp,
}


def _encodes(text: str) -> bool:
    # JSON can spell half a surrogate pair, which no UTF-8 can say again.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_PYTHON_TYPES: Final[dict[Type, tuple[type, ...]]] = {
    Type.BOOLEAN: (bool,),
    Type.BIGINT: (int,),
    Type.DOUBLE: (float, int),
    Type.TEXT: (str, _BadText),
    Type.BYTES: (bytes,),
    Type.TIMESTAMP: (int, str),
}


def _row_error(
    row: int,
    expected: str,
    got: str,
    field: str | None = None,
    code: str = "bad_row",
    made: type[RowError] = RowError,
) -> RowError:
    where = row_place(row) if field is None else f"{row_place(row)}, field {field}"
    return made(f"{where}: expected {expected}, got {got}", row=row, expected=expected, got=got, code=code)


def may_promise(value_us: int) -> bool:
    """Whether a punctuation is in event time; one past the last microsecond promises the end of the stream."""
    return FIRST_US <= value_us <= LAST_US + 1


def check_promise(where: str, value_us: int, unit: TimeUnit = MICROSECONDS) -> None:
    """Refuse a punctuation or an answer beyond event time; `unit` is the one in which it arrived."""
    if not may_promise(value_us):
        got = value_shown(unit.count(value_us), unit)
        raise Refuse(f"{where}, punctuation: expected {EVENT_TIME}, got {got}", code="bad_value")


def check_clock(where: str, value_us: int) -> None:
    """Refuse a virtual clock that leaves event time."""
    if not FIRST_US <= value_us <= LAST_US:
        raise Refuse(f"{where}, at: expected {EVENT_TIME}, got {time_shown(value_us)}", code="bad_value")


def value_shown(value: Any, unit: TimeUnit = MICROSECONDS) -> str:
    """A time outside the domain as it was written, and its likely meaning."""
    time_us = unit.parse(value)
    if unit is MICROSECONDS or isinstance(value, str):
        return time_shown(time_us)
    likely = likely_unit(unit.count(time_us), unit)
    return f"{value} {unit.words} ({format_timestamp(time_us)})" + (f"; {likely}" if likely else "")


def time_shown(value_us: int) -> str:
    """A time outside the domain in microseconds, in both spellings, and its likely meaning."""
    unit = likely_unit(value_us)
    return f"{value_us} ({format_timestamp(value_us)})" + (f"; {unit}" if unit else "")


def _reason(error: Exception) -> str:
    """msgspec says "Expected `array`, got `int`": return the received type."""
    text = str(error)
    return text.partition(", got ")[2].partition(" - at")[0].strip("`") or text
