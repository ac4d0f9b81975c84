"""Rows from files and to files: JSON lines, CSV, Parquet, Arrow, by a path's ending; `-` is the standard stream.

Rule: every problem with a file is one line with the file, the place, the expected and the actual value. The fast path
decodes thousands of rows at a time. If it fails, the slow path walks the same rows one by one to find the place and the
text. Batches depend on the file's contents only, never on the pieces in which it was read.
"""

from __future__ import annotations

import csv
import io
import json
import math
import operator
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from millrace.engine.plan import StreamDefinition
from millrace.formats.decoder import StreamDecoder, check_promise
from millrace.formats.linecolumns import LineColumns, newlines
from millrace.formats.writers import ArrowWriter, CsvWriter, JsonLinesWriter, ParquetWriter, Writer
from millrace.protocol import Field, Refuse, RowError, Schema, TimestampError, Type, parse_timestamp
from millrace.protocol.units import MICROSECONDS, TimeUnit
from millrace.protocol.words import spelt
from millrace.values.batch import Batch, Row

STANDARD: Final = "-"
ENDINGS: Final = ("jsonl", "csv", "parquet", "arrow")

# Rows of one batch: long enough that an array's fixed cost vanishes, short enough that it stays in the cache.
ROWS: Final = 8_192
# Rows of a Parquet file that are decoded at once, into batches that share their columns.
DECODED_ROWS: Final = 65_536
# Bytes of text read at a time: some thousands of rows.
CHUNK: Final = 1 << 20
# Text files up to this size are counted, which takes less than a second.
COUNTED_BYTES: Final = 1 << 27
# A field with one of these in its name has no place in what msgspec decodes to.
UNTYPED: Final = re.compile(r'["\\\x00-\x1f\x7f]')

# The key of a line of punctuation among the rows of a feed.
PUNCTUATION: Final = "punctuation"
QUOTED: Final = f'"{PUNCTUATION}"'.encode()

Advanced = Callable[[int], None]


def ending(path: str, what: str) -> str:
    """The format of a path, by its ending; the standard streams carry JSON lines."""
    suffix = "jsonl" if path == STANDARD else Path(path).suffix.lstrip(".").lower()
    if suffix not in ENDINGS:
        raise Refuse(
            f"{what} {path}: expected a path that ends in .{', .'.join(ENDINGS)}, or - for JSON lines", code="bad_path"
        )
    return suffix


def refuse_file(path: str, error: Exception) -> Refuse:
    """One line for a file that cannot be read or written."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).partition("\n")[0]
    return Refuse(f"{shown(path)}: {reason[:1].lower()}{reason[1:200]}", code="bad_file")


def shown(path: str) -> str:
    return "standard input" if path == STANDARD else path


# -- reading -----------------------------------------------------------------------------------------------------------


def _nothing(amount: int) -> None:
    """The default: no reader of the progress."""


def read_batches(
    path: str,
    stream: StreamDefinition,
    advanced: Advanced = _nothing,
    format: str | None = None,  # noqa: A002 - the option's name
) -> Iterator[Batch]:
    """The rows of a file as batches of the stream's schema, in the file's order.

    `advanced` receives the number of bytes that each step has read. `format` overrides the path's ending.
    """
    format = _format_of(path, format)  # noqa: A001 - the option's name
    with _opened(path) as file:
        yield from read_opened(file, path, stream, advanced, format)


def read_feed(
    path: str,
    stream: StreamDefinition,
    advanced: Advanced = _nothing,
    format: str | None = None,  # noqa: A002 - the option's name
) -> Iterator[Batch | Promise]:
    """The same, and the punctuation between the rows of a file of JSON lines."""
    format = _format_of(path, format)  # noqa: A001 - the option's name
    with _opened(path) as file:
        if has_promises(stream, format):
            yield from _read_promising(file, path, StreamDecoder(stream), advanced)
        else:
            yield from read_opened(file, path, stream, advanced, format)


def _format_of(path: str, format: str | None) -> str:  # noqa: A002 - the option's name
    if format is not None and format not in ENDINGS:
        raise Refuse(f"a format is one of {', '.join(ENDINGS)}, not {format!r}", code="bad_path")
    return format or ending(path, "an input")


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    try:
        if path == STANDARD:
            # Unbuffered: the rows of a pipe are passed on as they arrive.
            yield getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        else:
            with Path(path).open("rb") as file:
                yield file
    except OSError as error:
        raise refuse_file(path, error) from None


class Promise(NamedTuple):
    """A line of punctuation among rows: no later row is below this time; `where`: no later row with these values."""

    time_us: int
    where: Mapping[str, Any] | None


def has_promises(stream: StreamDefinition, format: str) -> bool:  # noqa: A002 - the option's name
    """Whether a line of a feed's file may be punctuation. Of a stream with such a column each line is a row."""
    return format == "jsonl" and PUNCTUATION not in stream.schema.names


def read_opened(
    file: BinaryIO,
    path: str,
    stream: StreamDefinition,
    advanced: Advanced,
    format: str,  # noqa: A002 - the option's name
) -> Generator[Batch, None, None]:
    """The rows of an open file; errors name it by `path`."""
    yield from _READERS[format](file, path, StreamDecoder(stream), advanced)


def _read_promising(file: BinaryIO, path: str, source: StreamDecoder, advanced: Advanced) -> Iterator[Batch | Promise]:
    """JSON lines of rows with punctuation between them."""
    read = _reader_of_pieces(path, source)
    for number, piece in lines_of(file, path, advanced):
        if QUOTED not in piece:
            yield from read(number, piece)
            continue
        rows: list[bytes] = []
        lines = piece.split(b"\n")
        for at, line in enumerate(lines, number):
            promise = _promise(line, f"{shown(path)}, line {at}", source) if QUOTED in line else None
            if promise is None:
                rows.append(line)
            else:
                if any(rows):
                    yield from read(at - len(rows), b"\n".join(rows))
                yield promise
                rows.clear()
        if any(rows):
            yield from read(number + len(lines) - len(rows), b"\n".join(rows))


def _promise(line: bytes, where: str, source: StreamDecoder) -> Promise | None:
    """The punctuation in a line; None if it is a row."""
    values = read_object(line, where)
    if PUNCTUATION not in values:
        return None
    for key in values:
        if key not in (PUNCTUATION, "where"):
            raise Refuse(f"{where}: expected the keys {PUNCTUATION}, where, got {spelt(key)}", code="bad_row")
    group = values.get("where")
    try:
        time_us = source.unit.parse(values[PUNCTUATION])
        check_promise(where, time_us, source.unit)
    except TimestampError as error:
        raise Refuse(f"{where}, {PUNCTUATION}: {error.text}", code=error.code) from None
    try:
        if group is not None:
            source.group(group)
    except Refuse as error:
        raise Refuse(f"{where}, {error.text}", code=error.code) from None
    return Promise(time_us, group)


def lines_of(file: BinaryIO, path: str, advanced: Advanced) -> Iterator[tuple[int, bytes]]:
    """Complete lines in large pieces, each with the number of its first line."""
    number, rest = 1, b""
    first = True
    while piece := file.read(CHUNK):
        advanced(len(piece))
        if first:
            piece, first = piece.removeprefix(b"\xef\xbb\xbf"), False
        whole, newline, tail = piece.rpartition(b"\n")
        if not newline:
            rest += tail
            continue
        whole = rest + whole + newline
        yield number, whole
        number += newlines(whole)
        rest = tail
    if rest.strip():
        yield number, rest


def _read_jsonl(file: BinaryIO, path: str, source: StreamDecoder, advanced: Advanced) -> Iterator[Batch]:
    read = _reader_of_pieces(path, source)
    for number, piece in lines_of(file, path, advanced):
        yield from read(number, piece)


def _reader_of_pieces(path: str, source: StreamDecoder) -> Callable[[int, bytes], Iterator[Batch]]:
    """A function that reads the rows of lines, the first of which has this number."""
    decode = None if any(map(UNTYPED.search, source.stream.schema.names)) else _row_decoder(source)
    columns = LineColumns(lambda _: source, bare=True)
    columns.learn(source.stream.name)

    def read(number: int, piece: bytes) -> Iterator[Batch]:
        if decode is None:
            yield from _portions(_slow_jsonl(path, number, piece, source))
            return
        batch = columns.read_all(piece if piece.endswith(b"\n") else piece + b"\n")
        if batch is not None:
            yield from _portions(batch)
            return
        try:
            rows = decode(piece)
            # Two objects on one line decode, too: unless there are as many rows as lines, the slow path decides.
            fits = len(rows) == piece.count(b"\n") + (not piece.endswith(b"\n"))
            batch = source.from_rows(rows) if fits else _slow_jsonl(path, number, piece, source)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, RowError):
            batch = _slow_jsonl(path, number, piece, source)
        yield from _portions(batch)

    return read


def _portions(batch: Batch) -> Iterator[Batch]:
    for start in range(0, len(batch), ROWS):
        yield batch.slice(start, min(start + ROWS, len(batch)))


def _row_decoder(source: StreamDecoder) -> Callable[[bytes], list[Row]]:
    """A decoder of many lines, typed by the schema. Field names may be anything, attribute names may not."""
    stream = source.stream
    names = [f"f{position}" for position in range(len(stream.schema))]
    fields: list[Any] = [
        (name, source.wire_type(field), *((None,) if _may_be_null(field, stream) else ()))
        for name, field in zip(names, stream.schema, strict=True)
    ]
    row = msgspec.defstruct(
        "Row",
        fields,
        rename=dict(zip(names, stream.schema.names, strict=True)),
        forbid_unknown_fields=stream.extra == "refuse",
        kw_only=True,
        gc=False,
    )
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(row)
    take = operator.attrgetter(*names)

    def decode(piece: bytes) -> list[Row]:
        rows = decoder.decode_lines(piece)
        return list(map(take, rows)) if len(names) > 1 else [(take(row),) for row in rows]

    return decode


def _may_be_null(field: Field, stream: StreamDefinition) -> bool:
    return field.nullable and field.name != stream.time


def _slow_jsonl(path: str, number: int, piece: bytes, source: StreamDecoder) -> Batch:
    """The same lines one by one: the error of the first wrong line, or their rows."""
    rows = []
    for offset, line in enumerate(piece.split(b"\n")):
        if line.strip():
            where = f"{shown(path)}, line {number + offset}"
            values = read_object(line, where)
            with located(where):
                source.from_objects([values])
            rows.append(values)
    return source.from_objects(rows)


def read_object(line: bytes, where: str) -> dict[str, Any]:
    """A line's JSON object; Refuse with the reason if it is not one."""
    try:
        text = line.decode()
        value = json.loads(text, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise Refuse(f"{where}: expected UTF-8, got bytes that are not", code="bad_row") from None
    except _Constant as constant:
        raise Refuse(f"{where}: expected finite numbers, got {constant.name}", code="bad_value") from None
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        at_end = isinstance(error, json.JSONDecodeError) and error.pos >= len(text.rstrip())
        got = "half an object (is the file cut off?)" if at_end else f"{line.decode(errors='replace').strip()!r:.80}"
        raise Refuse(f"{where}: expected a JSON object, got {got}", code="bad_row") from None
    if not isinstance(value, dict):
        raise Refuse(f"{where}: expected a JSON object, got {line.decode().strip()!r:.80}", code="bad_row")
    return value


class _Constant(Exception):  # noqa: N818 - a signal inside this file
    """NaN or an infinity: not JSON, but Python's reader accepts them."""

    def __init__(self, name: str) -> None:
        self.name = name


def _no_constant(name: str) -> Any:
    raise _Constant(name)


class located:  # noqa: N801 - reads as a statement
    """Adds the place in the file to the error of a row: `trades.jsonl, line 3, field price: expected ...`."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RowError):
            raise Refuse(f"{self._where}{error.fault}", code=error.code) from None


def _is_promise(line: bytes) -> bool:
    return QUOTED in line and PUNCTUATION in json.loads(line)


def count_rows(
    path: str,
    format: str | None = None,  # noqa: A002 - the option's name
    *,
    promises: bool = False,
) -> int | None:
    """The number of rows in a file; None where counting them would take long. `promises`: some lines may be
    punctuation."""
    try:
        if path == STANDARD or not Path(path).is_file():
            return None
        format = format or ending(path, "an input")  # noqa: A001 - the option's name
        if format == "parquet":
            import pyarrow.parquet as pq

            rows: int = pq.read_metadata(path).num_rows
            return rows
        if format == "arrow" or Path(path).stat().st_size > COUNTED_BYTES:
            return None
        if format == "jsonl":
            with Path(path).open("rb") as file:
                return sum(1 for line in file if line.strip() and not (promises and _is_promise(line)))
        with Path(path).open(encoding="utf-8-sig", newline="") as text:
            return max(sum(1 for row in csv.reader(text) if row) - 1, 0)
    except Exception:  # the count only completes a message
        return None


# -- CSV ---------------------------------------------------------------------------------------------------------------


def _read_csv(file: BinaryIO, path: str, source: StreamDecoder, advanced: Advanced) -> Iterator[Batch]:
    text = io.TextIOWrapper(_Watched(file, advanced), "utf-8-sig", newline="")  # type: ignore[type-var]
    reader = csv.reader(text, strict=True)
    try:
        header = next(reader, None)
        if header is None:
            raise Refuse(f"{shown(path)}, line 1: expected a header with the names of the columns, got an empty file")
        layout = _layout(header, path, source.stream)
        yield from _csv_batches(reader, path, source, layout, len(header))
    except UnicodeDecodeError:
        raise Refuse(f"{shown(path)}, after line {reader.line_num}: expected UTF-8, got bytes that are not") from None
    except csv.Error as error:
        raise Refuse(f"{shown(path)}, line {reader.line_num}: {error}", code="bad_row") from None
    finally:
        text.detach()


class _Watched(io.BufferedIOBase):
    """A file that reports the number of bytes read."""

    def __init__(self, file: BinaryIO, advanced: Advanced) -> None:
        self._file = file
        self._advanced = advanced

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        piece = self._file.read(-1 if size is None else size)
        self._advanced(len(piece))
        return piece

    read1 = read


def _layout(header: Sequence[str], path: str, stream: StreamDefinition) -> list[int | None]:
    """For each field of the schema its column; None if the file has none."""
    where = f"{shown(path)}, line 1"
    known = set(stream.schema.names)
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise Refuse(f"{where}: the column {twice[0]!r:.60} appears twice", code="bad_row")
    unknown = [name for name in header if name not in known]
    if unknown and stream.extra == "refuse":
        expected = ", ".join(stream.schema.names)
        raise Refuse(f"{where}: expected the columns {expected}, got a column {unknown[0]!r:.60}", code="bad_row")
    for field in stream.schema:
        if field.name not in header and not _may_be_null(field, stream):
            raise Refuse(f"{where}: expected a column {field.name} ({field.type}, not null), got none", code="bad_row")
    return [header.index(name) if name in header else None for name in stream.schema.names]


def _csv_batches(
    reader: Any, path: str, source: StreamDecoder, layout: Sequence[int | None], width: int
) -> Iterator[Batch]:
    fields = [Field(field.name, field.type, _may_be_null(field, source.stream)) for field in source.stream.schema]
    rows: list[list[str]] = []
    numbers: list[int] = []
    for row in reader:
        if len(row) == width:
            rows.append(row)
            numbers.append(reader.line_num)
        elif row:
            raise Refuse(
                f"{shown(path)}, line {reader.line_num}: expected {width} values, got {len(row)}", code="bad_row"
            )
        if len(rows) == ROWS:
            yield _csv_batch(rows, numbers, path, source, fields, layout)
            rows, numbers = [], []
    if rows:
        yield _csv_batch(rows, numbers, path, source, fields, layout)


def _csv_batch(
    rows: list[list[str]],
    numbers: list[int],
    path: str,
    source: StreamDecoder,
    fields: Sequence[Field],
    layout: Sequence[int | None],
) -> Batch:
    texts = list(zip(*rows, strict=True))
    nulls = (None,) * len(rows)
    columns = [
        nulls if column is None else _csv_column(field, texts[column], path, numbers, source)
        for field, column in zip(fields, layout, strict=True)
    ]
    try:
        return source.from_rows(list(zip(*columns, strict=True)))
    except RowError as error:
        with located(f"{shown(path)}, line {numbers[error.row]}"):
            raise


def _csv_column(
    field: Field, texts: Sequence[str], path: str, numbers: Sequence[int], source: StreamDecoder
) -> Sequence[Any]:
    unit = source.unit if field.name == source.stream.time else MICROSECONDS
    convert = _CSV_VALUES[field.type] if unit is MICROSECONDS else partial(_csv_time, unit)
    values: list[Any] = []
    for number, text in zip(numbers, texts, strict=True):
        value = None
        try:
            if text:
                value = convert(text)
        except (ValueError, TimestampError):
            pass
        if value is None and (text or not field.nullable):
            place = f"{shown(path)}, line {number}, field {field.name}"
            raise Refuse(f"{place}: {_csv_complaint(field, text, source)}", code="bad_row")
        values.append(value)
    return values


def _csv_complaint(field: Field, text: str, source: StreamDecoder) -> str:
    if not text:
        return f"expected {field.type}, not null, got nothing"
    hint = source.fraction_hint(field, float(text)) if _DECIMAL.fullmatch(text) else ""
    return f"expected {_CSV_EXPECTED.get(field.type, source.expected(field))}, got {text!r:.60}{hint}"


_INTEGER = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
_DECIMAL = re.compile(r"\s*[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?\s*", re.ASCII)
_DIGITS = 20  # more than a 64-bit integer ever needs: Python refuses to read thousands of them


def _csv_integer(text: str) -> int:
    if not _INTEGER.fullmatch(text) or len(text.strip()) > _DIGITS:
        raise ValueError(text)
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise ValueError(text)
    return value


def _csv_double(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or "_" in text:
        raise ValueError(text)
    return value


def _csv_timestamp(text: str) -> int:
    return _csv_integer(text) if _INTEGER.fullmatch(text) else parse_timestamp(text)


def _csv_time(unit: TimeUnit, text: str) -> int | float | str:
    """A time in another unit than microseconds, as in JSON: a number, or text in ISO 8601."""
    if _INTEGER.fullmatch(text):
        return _csv_integer(text)
    if unit.fractions and _DECIMAL.fullmatch(text):
        return _csv_double(text)
    parse_timestamp(text)
    return text


_BOOLEANS: Final = {"true": True, "false": False, "t": True, "f": False}


def _csv_boolean(text: str) -> bool:
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise ValueError(text)
    return value


def _csv_bytes(text: str) -> bytes:
    """Hexadecimal digits, also as SQL's casts spell them."""
    return bytes.fromhex(text.removeprefix("\\x"))


_CSV_VALUES: Final[Mapping[Type, Callable[[str], Any]]] = {
    Type.BOOLEAN: _csv_boolean,
    Type.BIGINT: _csv_integer,
    Type.DOUBLE: _csv_double,
    Type.TEXT: str,
    Type.BYTES: _csv_bytes,
    Type.TIMESTAMP: _csv_timestamp,
}
_CSV_EXPECTED: Final = {Type.BYTES: "bytes (hexadecimal digits)"}


# -- Parquet and Arrow -------------------------------------------------------------------------------------------------


def _read_parquet(file: BinaryIO, path: str, source: StreamDecoder, advanced: Advanced) -> Iterator[Batch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with _seekable(file) as whole:
            opened = pq.ParquetFile(whole)
            tables = opened.iter_batches(batch_size=DECODED_ROWS)
            yield from _arrow_batches(tables, path, source, _share(whole, advanced, opened.metadata.num_rows))
    except pa.ArrowException as error:
        raise _unread(path, "a Parquet file", error) from None


def _read_arrow(file: BinaryIO, path: str, source: StreamDecoder, advanced: Advanced) -> Iterator[Batch]:
    """An Arrow IPC file, or an IPC stream: the first bytes distinguish them."""
    import pyarrow as pa

    try:
        with _seekable(file) as whole:
            is_file = whole.read(6) == b"ARROW1"
            whole.seek(0)
            if is_file:
                opened = pa.ipc.open_file(whole)
                tables: Iterator[Any] = (opened.get_batch(number) for number in range(opened.num_record_batches))
            else:
                tables = iter(pa.ipc.open_stream(whole))
            yield from _arrow_batches(tables, path, source, lambda rows: advanced(0))
    except pa.ArrowException as error:
        raise _unread(path, "an Arrow IPC file or stream", error) from None


def _arrow_batches(tables: Iterator[Any], path: str, source: StreamDecoder, passed: Advanced) -> Iterator[Batch]:
    first = 1
    for table in tables:
        table.validate(full=True)
        try:
            batch = source.from_table(table)
        except RowError as error:
            where = f"{shown(path)}, row {first + error.row}"
            raise Refuse(f"{where}{error.fault}", code=error.code) from None
        except Refuse as error:
            raise Refuse(f"{shown(path)}: {error.text}", code=error.code) from None
        first += len(batch)
        passed(len(batch))
        yield from _portions(batch)


@contextmanager
def _seekable(file: BinaryIO) -> Iterator[BinaryIO]:
    """The file, or a copy of a pipe's content: a format with its index at the end needs random access."""
    if file.seekable():
        yield file
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(file, copy)
        copy.seek(0)
        yield copy


def _share(file: BinaryIO, advanced: Advanced, rows: int) -> Advanced:
    """Reports rows as their share of the file's bytes."""
    size = file.seek(0, io.SEEK_END)
    return lambda read: advanced(size * read // max(rows, 1))


def _unread(path: str, expected: str, error: Exception) -> Refuse:
    reason = str(error).partition("\n")[0][:120]
    return Refuse(f"{shown(path)}: expected {expected}, got something else ({reason})", code="bad_file")


_READERS: Final[Mapping[str, Callable[[BinaryIO, str, StreamDecoder, Advanced], Iterator[Batch]]]] = {
    "jsonl": _read_jsonl,
    "csv": _read_csv,
    "parquet": _read_parquet,
    "arrow": _read_arrow,
}


# -- writing -----------------------------------------------------------------------------------------------------------


class PlainTimes:
    """Writes timestamps as integers, through a writer that would format them."""

    def __init__(self, writer: Writer, schema: Schema) -> None:
        self._writer = writer
        self._schema = plain_times(schema)

    def write(self, batch: Batch) -> None:
        self._writer.write(batch.renamed(self._schema))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def plain_times(schema: Schema) -> Schema:
    """The schema with integers in place of timestamps, which are stored in the same way."""
    return Schema(
        tuple(
            Field(field.name, Type.BIGINT if field.type is Type.TIMESTAMP else field.type, field.nullable)
            for field in schema
        )
    )


def create(path: str, schema: Schema, *, format: str | None = None, iso: bool = True) -> Writer:  # noqa: A002
    """A writer of a new file, which replaces an existing one. Typed formats keep timestamps."""
    name = format or ending(path, "an output")
    target = Path(path)
    try:
        if name == "parquet":
            return ParquetWriter(target, schema)
        if name == "arrow":
            return ArrowWriter(target, schema)
        if name not in ENDINGS:
            raise Refuse(f"an output's format is one of {', '.join(ENDINGS)}, not {name!r}")
        target.write_bytes(b"")
        text = (JsonLinesWriter if name == "jsonl" else CsvWriter).open(target, schema)
    except OSError as error:
        raise refuse_file(path, error) from None
    return text if iso else PlainTimes(text, schema)
