"""Arrow IPC payloads into columns: shared memory where the layouts agree, and nothing unchecked.

Rule: a payload comes from a stranger. Its offsets and its UTF-8 are validated before anything follows a pointer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa

from millrace.formats.decoder import EVENT_TIME, value_shown
from millrace.formats.timeunits import BeyondError, micros_of
from millrace.protocol import Field, PeerError, Refuse, RowError, Schema, Type
from millrace.protocol.errors import row_place
from millrace.protocol.units import MICROSECONDS, TimeUnit
from millrace.values.batch import FILLERS, TEXTS, Batch, Bools, Values
from millrace.values.texts import Texts, as_texts, chosen

# The types that may stand for one of ours, besides the exact one: widening only, so that no value changes.
ACCEPTED: Final[dict[Type, Callable[[pa.DataType], bool]]] = {
    Type.BOOLEAN: pa.types.is_boolean,
    Type.BIGINT: pa.types.is_integer,
    Type.DOUBLE: lambda kind: pa.types.is_floating(kind) or pa.types.is_integer(kind),
    Type.TEXT: lambda kind: _is_text(kind) or (pa.types.is_dictionary(kind) and _is_text(kind.value_type)),
    Type.BYTES: lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
    Type.TIMESTAMP: lambda kind: pa.types.is_timestamp(kind) or kind == pa.int64(),
}


def accepts(type_: Type, kind: pa.DataType, unit: TimeUnit = MICROSECONDS) -> bool:
    """Whether a column of this Arrow type may stand for one of ours, a time field's numbers being in this unit."""
    return ACCEPTED[type_](kind) or (unit is not MICROSECONDS and _is_number(kind, unit))


def _is_number(kind: pa.DataType, unit: TimeUnit) -> bool:
    """Whether times in a unit other than microseconds may have this type. 32 bits of float are minutes off."""
    return bool(pa.types.is_integer(kind) or (unit.fractions and kind == pa.float64()))


ARROW_TYPES: Final[dict[Type, pa.DataType]] = {
    Type.BOOLEAN: pa.bool_(),
    Type.BIGINT: pa.int64(),
    Type.DOUBLE: pa.float64(),
    Type.TEXT: pa.string(),
    Type.BYTES: pa.binary(),
    Type.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}


NO_BYTES: Final = np.empty(0, np.uint8)
# The most that 32-bit offsets reach.
MOST_BYTES: Final = 2**31 - 1

UnitOf = Callable[[Field], TimeUnit]


def all_micros(_: Field) -> TimeUnit:
    """Integers are microseconds in every field."""
    return MICROSECONDS


def read_arrow(
    payload: bytes | memoryview,
    fields: Sequence[Field],
    ignore_extra: bool,
    count: int | None = None,
    unit_of: UnitOf = all_micros,
) -> tuple[list[Values], list[Bools | None], int]:
    """The columns and masks of an IPC stream whose fields are matched by name, and the number of rows.

    `count`, if not None, is the number of rows that the stream must have, which the credit covers. `unit_of`: the unit
    of a timestamp field's numbers.
    """
    table = _open(payload)
    if count is not None and table.num_rows != count:
        raise Refuse(f"expected {count} rows, as the frame's head says, got {table.num_rows}", code="bad_row")
    for field in table.schema:
        if pa.types.is_dictionary(field.type):
            raise Refuse(
                f"field {field.name}: expected plain values, got a dictionary; decode it", code="schema_mismatch"
            )
    return *read_table(with_missing(table, fields), fields, ignore_extra, unit_of), table.num_rows


def read_table(
    table: Any, fields: Sequence[Field], ignore_extra: bool, unit_of: UnitOf = all_micros
) -> tuple[list[Values], list[Bools | None]]:
    """The columns and masks of a table or record batch whose fields are matched by name."""
    _check_names(table.schema.names, fields, ignore_extra)
    columns: list[Values] = []
    valid: list[Bools | None] = []
    for field in fields:
        column, mask = _column(field, table.column(field.name), unit_of(field))
        columns.append(column)
        valid.append(mask)
    return columns, valid


def with_missing(table: Any, fields: Sequence[Field]) -> Any:
    """The table with a column of nulls for each nullable field that it lacks, as a missing key of JSON is null."""
    known = set(table.schema.names)
    for field in fields:
        if field.nullable and field.name not in known:
            table = table.append_column(field.name, pa.nulls(table.num_rows, ARROW_TYPES[field.type]))
    return table


def _open(payload: bytes | memoryview) -> Any:
    if isinstance(payload, memoryview):
        payload = bytes(payload)  # lies at any offset of a frame; a copy costs less than unaligned columns
    try:
        if any(_is_compressed(bytes(message.metadata)) for message in pa.ipc.MessageReader.open_stream(payload)):
            raise Refuse("expected Arrow buffers as they are, got compressed ones: the limits count bytes on the wire")
        with pa.ipc.open_stream(payload) as reader:
            batches = list(reader)
        for batch in batches:
            batch.validate(full=True)
            assert batch.columns is not None  # wraps them: Arrow knows types that pyarrow does not
        assert reader.schema.names is not None  # decodes them: they may not be UTF-8
    except KeyError as error:
        raise PeerError(f"expected an Arrow IPC stream, got an unknown type ({error})", code="bad_message") from None
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise PeerError(f"expected an Arrow IPC stream, got {_first_line(error)}", code="bad_message") from None
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches, reader.schema).combine_chunks()


# The format's flatbuffers: Message {version, header_type, header, ...}, RecordBatch {length, nodes, buffers,
# compression} and DictionaryBatch {id, data, ...}, whose data is a RecordBatch.
_HEADER_TYPE, _HEADER, _COMPRESSION, _DATA = 1, 2, 3, 1
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


def _is_compressed(metadata: bytes) -> bool:
    """Whether a message's buffers are compressed. A few compressed bytes could claim all memory there is."""
    message = _follow(metadata, 0)
    kind = _field(metadata, message, _HEADER_TYPE)
    header = _field(metadata, message, _HEADER)
    if not kind or not header or metadata[kind] not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return False
    batch = _follow(metadata, header)
    if metadata[kind] == _DICTIONARY_BATCH:
        batch = _follow(metadata, _field(metadata, batch, _DATA))
    return _field(metadata, batch, _COMPRESSION) != 0


def _follow(data: bytes, at: int) -> int:
    """Where the offset that stands here leads."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Where a table's field stands, or 0 if it is not there."""
    entries = table - int(struct.unpack_from("<i", data, table)[0])
    at = 4 + 2 * number
    if at >= struct.unpack_from("<H", data, entries)[0]:
        return 0
    offset = int(struct.unpack_from("<H", data, entries + at)[0])
    return table + offset if offset else 0


def _check_names(names: Sequence[str], fields: Sequence[Field], ignore_extra: bool) -> None:
    wanted = {field.name for field in fields}
    missing = sorted(wanted - set(names))
    extra = [name for name in names if name not in wanted]
    if missing or len(set(names)) != len(names) or (extra and not ignore_extra):
        expected = ", ".join(field.name for field in fields)
        raise Refuse(f"expected the Arrow columns {expected}, got {', '.join(names) or 'none'}", code="schema_mismatch")


def _column(field: Field, column: Any, unit: TimeUnit) -> tuple[Values, Bools | None]:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not accepts(field.type, column.type, unit):
        expected = field.type if unit is MICROSECONDS else f"{field.type} (or {unit.words} as {_numbers(unit)})"
        hint = ""
        if field.type is Type.TIMESTAMP and column.type == pa.float64():
            hint = "; only the time column of a stream with time_unit = 's' or 'ms' takes fractions"
        text = f"field {field.name}: expected {expected}, got Arrow's {column.type}{hint}"
        raise Refuse(text, code="schema_mismatch")
    mask: Bools | None = None
    if column.null_count:
        mask = column.is_valid().to_numpy(zero_copy_only=False)
        if not field.nullable:
            raise _row_error(field, int(np.argmin(mask)), f"{field.type}, not null", "null")
    if unit is not MICROSECONDS and not pa.types.is_timestamp(column.type):
        return _from_numbers(field, column, unit), mask
    return _values(field, column, mask), mask


def _numbers(unit: TimeUnit) -> str:
    return "integers or float64" if unit.fractions else "integers"


def _from_numbers(field: Field, column: Any, unit: TimeUnit) -> Values:
    """A time field's numbers, none of them null, as microseconds."""
    numbers = column if pa.types.is_floating(column.type) else _cast_to(field, column, pa.int64())
    try:
        return micros_of(unit, numbers.to_numpy(zero_copy_only=False))
    except BeyondError as beyond:
        value = column[beyond.row].as_py()
        expected, got = EVENT_TIME, value_shown(value, unit) if unit.is_number(value) else str(value)
        raise _row_error(field, beyond.row, expected, got, "bad_value") from None


def _values(field: Field, column: Any, mask: Bools | None) -> Values:
    if field.type in (Type.TEXT, Type.BYTES):
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        return _texts(column, mask)
    column = _cast(field, column)
    if mask is not None:
        column = column.fill_null(FILLERS[field.type])
    values: Values = column.to_numpy(zero_copy_only=False)
    if field.type is Type.DOUBLE and not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise _row_error(field, row, "double (a finite number)", str(values[row]), "bad_value")
    return values


def _texts(column: Any, mask: Bools | None) -> Values:
    """A column of texts or of bytes, sharing Arrow's bytes. Below a null Arrow may have any."""
    kind = column.type
    wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    _, places, data = column.buffers()
    if places is None or not len(column):
        offsets = np.zeros(1, np.int64)
    else:
        width = 8 if wide else 4  # what follows the offsets may be of any length
        known = np.frombuffer(places, f"i{width}", len(column) + 1, column.offset * width)
        offsets = known.astype(np.int64, copy=False)
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    texts: Any = Texts(NO_BYTES if data is None else np.frombuffer(data, np.uint8), offsets, binary)
    if mask is not None and texts.lengths[~mask].any():
        texts = chosen(mask, texts, b"" if binary else "")
    return cast(Values, texts)


def _cast(field: Field, column: Any) -> Any:
    """To the exact type, or RowError at the first value that would not survive (an unsigned one above 2**63, say)."""
    wanted = pa.int64() if field.type is Type.TIMESTAMP else ARROW_TYPES[field.type]
    if field.type is Type.TIMESTAMP and pa.types.is_timestamp(column.type):
        wanted_time = pa.timestamp("us", tz=column.type.tz)
        column = column if column.type == wanted_time else _cast_to(field, column, wanted_time)
    return column if column.type == wanted else _cast_to(field, column, wanted)


def _cast_to(field: Field, column: Any, wanted: pa.DataType) -> Any:
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid:
        row = next(number for number in range(len(column)) if not _casts(column[number], wanted))
        raise _row_error(field, row, f"{field.type} without loss", _shown(column[row]), "bad_value") from None


def _shown(value: Any) -> str:
    """A value in words. Python's own times have no nanoseconds, so a time is shown as the integer that it is."""
    return f"{value.value} {value.type}" if isinstance(value, pa.TimestampScalar) else str(value)


def _casts(value: Any, wanted: pa.DataType) -> bool:
    try:
        value.cast(wanted)
    except pa.ArrowInvalid:
        return False
    return True


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _row_error(field: Field, row: int, expected: str, got: str, code: str = "bad_row") -> RowError:
    text = f"{row_place(row)}, field {field.name}: expected {expected}, got {got}"
    return RowError(text, row=row, expected=expected, got=got, code=code)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:120]


# -- out ---------------------------------------------------------------------------------------------------------------


def arrow_schema(schema: Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, ARROW_TYPES[field.type], field.nullable) for field in schema])


def to_arrow(batch: Batch) -> pa.RecordBatch:
    """The rows as an Arrow batch, for Parquet and bulk results."""
    arrays = [
        _from_texts(field, values, mask)
        if field.type in TEXTS
        else pa.array(values, ARROW_TYPES[field.type], mask=None if mask is None else ~mask)
        for field, values, mask in zip(batch.schema, batch.columns, batch.valid, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(batch.schema))


def _from_texts(field: Field, values: Values, mask: Bools | None) -> pa.Array:
    """A column of texts or of bytes, sharing its bytes."""
    texts = as_texts(values, field.type is Type.BYTES)
    data = texts.packed
    if len(data) > MOST_BYTES:  # Arrow's offsets have 32 bits
        return pa.array(texts.tolist(), ARROW_TYPES[field.type], mask=None if mask is None else ~mask)
    offsets = (texts.offsets - texts.offsets[0]).astype(np.int32)
    valid = None if mask is None else pa.array(mask).buffers()[1]
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(ARROW_TYPES[field.type], len(texts), buffers)


def to_ipc(batch: Batch, schema: Schema | None = None) -> bytes:
    """An Arrow IPC stream of one batch; `schema` renames its columns."""
    record_batch = to_arrow(batch)
    if schema is not None:
        record_batch = record_batch.rename_columns(schema.names)
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, record_batch.schema) as writer:
        writer.write_batch(record_batch)
    return bytes(out.getvalue().to_pybytes())
