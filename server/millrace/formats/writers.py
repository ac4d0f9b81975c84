"""Rows as JSON lines and CSV, and the files of `millrace run`: JSON lines, CSV, Parquet, Arrow.

Rule: Parquet and Arrow, which have their directory at the end, are written aside and get their name when they are
closed. What sinks of a server write to is in `sinkfiles.py`.
"""

from __future__ import annotations

import csv
import io
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Protocol

import msgspec

from millrace.engine.events import Late
from millrace.engine.plan import StreamDefinition
from millrace.formats.textrows import csv_text, json_text
from millrace.protocol import DELETED, GONE, TOMBSTONE_NAMES, Field, Schema, Type
from millrace.protocol.timestamps import format_timestamp
from millrace.values.batch import Batch, Row

_JSON: Final = msgspec.json.Encoder()

# Rows of one row group of a Parquet file: Arrow's default, large enough to compress, small enough to hold.
ROW_GROUP: Final = 65_536


class Writer(Protocol):
    """Takes batches of one schema; `close` leaves a whole file."""

    def write(self, batch: Batch) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def json_rows(batch: Batch) -> Iterator[dict[str, Any]]:
    """The rows as JSON objects: keys in the schema's order, timestamps in ISO 8601, bytes in base64 when encoded.

    A tombstone has its key and the marks of a tombstone. Other rows have no marks.
    """
    names = batch.schema.names
    objects = (dict(zip(names, row, strict=True)) for row in zip(*_readable(batch), strict=True))
    return map(tombstone_or_row, objects) if batch.schema.retracts else objects


def tombstone_or_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row of an update stream as people read it, from all its columns.

    A tombstone has its key and is marked by both names; a row that exists has neither. Columns of a tombstone outside
    the key are null, and a null can be left out of a key as out of any JSON row.
    """
    marks = {name: row.pop(name, False) for name in TOMBSTONE_NAMES}
    if not any(marks.values()):
        return row
    return {name: value for name, value in row.items() if value is not None} | {GONE: True, DELETED: True}


def file_schema(schema: Schema) -> Schema:
    """The columns of files: GONE is followed by DELETED, which replaces it from 0.3 on."""
    if not schema.retracts:
        return schema
    mark = schema.fields[-1]
    return Schema((*schema.fields, Field(DELETED, mark.type, mark.nullable)))


def file_batch(batch: Batch) -> Batch:
    """The rows with the columns of files."""
    if not batch.schema.retracts:
        return batch
    columns, valid = (*batch.columns, batch.columns[-1]), (*batch.valid, batch.valid[-1])
    return Batch(file_schema(batch.schema), batch.ts, columns, valid, batch.arrival)


def _readable(batch: Batch) -> list[list[Any]]:
    """The columns as lists, timestamps as text."""
    return list(map(_spelt, batch.schema.fields, batch.lists()))


def _spelt(field: Field, values: list[Any]) -> list[Any]:
    return _iso(values) if field.type is Type.TIMESTAMP else values


def _iso(values: Iterable[int | None]) -> list[str | None]:
    return [None if value is None else format_timestamp(value) for value in values]


def json_lines(batch: Batch) -> bytes:
    """The rows as JSON lines."""
    text = json_text(batch)
    if text is not None:
        return text
    return b"".join(_JSON.encode(row) + b"\n" for row in json_rows(batch))


def row_lines(query: str, sequence: int, batch: Batch, history: str) -> bytes:
    """The rows as a subscriber by JSON lines gets them."""
    before, after = b'{"query":' + _JSON.encode(query) + b',"seq":', b',"history":' + _JSON.encode(history) + b"}"
    text = json_text(batch, before, after, sequence)
    if text is not None:
        return text
    return b"".join(
        [
            b'%b%d,"row":%b%b\n' % (before, number, _JSON.encode(row), after)
            for number, row in enumerate(json_rows(batch), sequence)
        ]
    )


def late_lines(late: Late, named: Mapping[str, str]) -> bytes:
    """Late tuples as lines of JSON for their feed, `named` as in its own lines."""
    times = zip(late.batch.ts.tolist(), late.marks.tolist(), strict=True)
    return b"".join(
        _JSON.encode({"late": _late(late, named, row, ts, mark)}) + b"\n"
        for row, (ts, mark) in zip(json_rows(late.batch), times, strict=True)
    )


def request_line(
    stream: StreamDefinition, named: Mapping[str, str], number: int, need_us: int, group: tuple[Any, ...]
) -> bytes:
    """A request for a timestamp as a line of JSON for the feed: of the group, if there is one."""
    request: dict[str, Any] = {"stream": stream.name, **named, "number": number, "need": format_timestamp(need_us)}
    if group:
        fields = Schema(tuple(stream.schema.fields[stream.schema.names.index(name)] for name in stream.punctuation_key))
        (request["where"],) = json_rows(Batch.from_rows(fields, [group], [0]))
    return _JSON.encode({"request": request}) + b"\n"


def _late(late: Late, named: Mapping[str, str], row: dict[str, Any], ts: int, mark: int) -> dict[str, Any]:
    return {
        "stream": late.stream,
        "tuple": row,
        "ts": format_timestamp(ts),
        "mark": format_timestamp(mark),
        "late_by_us": mark - ts,
        **named,
        "at": format_timestamp(late.at_us),
    }


class JsonLinesWriter:
    """One JSON object per line, appended."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    @classmethod
    def open(cls, path: Path, schema: Schema) -> JsonLinesWriter:
        return cls(path.open("ab"))

    def write(self, batch: Batch) -> None:
        self._file.write(json_lines(batch))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class CsvWriter:
    """Comma-separated values with a header line, appended; null is an empty field."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    @classmethod
    def open(cls, path: Path, schema: Schema) -> CsvWriter:
        writer = cls(path.open("ab"))
        if not writer._file.tell():
            writer._file.write(csv_names(file_schema(schema)))
        return writer

    def write(self, batch: Batch) -> None:
        self._file.write(csv_lines(file_batch(batch)))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def csv_names(schema: Schema) -> bytes:
    """The header line."""
    return _csv_bytes([schema.names])


def csv_lines(batch: Batch) -> bytes:
    """The rows as comma-separated values."""
    text = csv_text(batch)
    if text is not None:
        return text
    return _csv_bytes(list(zip(*map(_csv_values, _readable(batch)), strict=True)))


def _csv_bytes(rows: Sequence[Row]) -> bytes:
    text = _csv_text(rows, csv.QUOTE_MINIMAL)
    if "\r" in text:
        text = _csv_text(rows, csv.QUOTE_ALL)  # Python leaves a lone carriage return bare, which ends a row
    return text.encode()


def _csv_text(rows: Iterable[Row], quoting: Literal[0, 1]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=quoting).writerows(rows)
    return text.getvalue()


def _csv_values(values: list[Any]) -> list[Any]:
    """Booleans as JSON spells them, bytes in hexadecimal."""
    if not any(isinstance(value, bool | bytes) for value in values):
        return values
    return [
        value.hex() if isinstance(value, bytes) else str(value).lower() if isinstance(value, bool) else value
        for value in values
    ]


class TypedWriter:
    """One Parquet or Arrow file, written as `<name>.part` and renamed when it is closed."""

    def __init__(self, path: Path, schema: Schema) -> None:
        from millrace.formats.arrow import arrow_schema

        self._path = path
        self._aside = path.with_name(path.name + ".part")
        self._writer = self._begin(arrow_schema(file_schema(schema)))
        self._held: list[Batch] = []
        self._tuples = 0

    @abstractmethod
    def _begin(self, schema: Any) -> Any:
        """pyarrow's writer of the temporary file."""

    def write(self, batch: Batch) -> None:
        self._held.append(batch)
        self._tuples += len(batch)
        if self._tuples >= ROW_GROUP:
            self._write_group()

    def flush(self) -> None:
        """Nothing: a small row group per flush would make a bad file, and the file has no name yet."""

    def close(self) -> None:
        if self._held:
            self._write_group()
        self._writer.close()
        self._aside.rename(self._path)

    def abandon(self) -> None:
        """Leave nothing: half a result must not look like a whole one."""
        self._writer.close()
        self._aside.unlink()

    def _write_group(self) -> None:
        from millrace.formats.arrow import to_arrow

        self._writer.write_batch(to_arrow(file_batch(Batch.concat(self._held))))
        self._held, self._tuples = [], 0


class ParquetWriter(TypedWriter):
    """A Parquet file, with row groups of ROW_GROUP rows."""

    def _begin(self, schema: Any) -> Any:
        import pyarrow.parquet as pq

        return pq.ParquetWriter(self._aside, schema)


class ArrowWriter(TypedWriter):
    """An Arrow IPC file, with record batches of ROW_GROUP rows."""

    def _begin(self, schema: Any) -> Any:
        import pyarrow as pa

        return pa.ipc.new_file(str(self._aside), schema)
