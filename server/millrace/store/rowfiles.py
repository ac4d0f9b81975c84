"""The form of a file of retained rows: a head with the schema, then records of rows as columns.

    head      magic, length, CRC-32, and what `Head` says
    record    length, CRC-32, number of the first row, rows, when the first row was emitted; then the columns

Rule: a file grows at its end only. A record counts if it is whole and its checksum fits; the first that does not ends
the file. Checksums cover everything but themselves. `VERSION` changes with the form.
"""

from __future__ import annotations

import os
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from millrace.engine.saved_parts import Part, pack_parts
from millrace.engine.saving import pack, unpack
from millrace.protocol import MillraceError, Schema
from millrace.values.batch import Batch, Int64s, constant_int64

VERSION: Final = 1
MAGIC: Final = b"MILLROWS"
ENDING: Final = ".rows"
# Digits of a sequence number in a name: all of an int64, so that names sort as the numbers do.
DIGITS: Final = 19
# A head describes a schema of at most some thousand fields.
MOST_HEAD_BYTES: Final = 1 << 24
# How far apart the places are at which a file can be entered.
STRIDE_BYTES: Final = 1 << 16
CHUNK_BYTES: Final = 1 << 20

_HEAD: Final = struct.Struct("<8sII")
_RECORD: Final = struct.Struct("<IIqIq")
_CHECKED: Final = struct.Struct("<IqIq")


class DamagedRowsError(MillraceError):
    """Retained rows that cannot be read; the text names file and offset."""

    code = "damaged"


@dataclass(frozen=True, slots=True)
class Head:
    """The start of a file.

    first      number of its first row
    before     number of the first row of the file before it; None if it is the first of its history or schema
    since_us   when its first row was emitted
    """

    history: str
    schema: Schema
    first: int
    before: int | None
    since_us: int


class Record(NamedTuple):
    """The place of a record, and its bytes after the head."""

    first: int
    rows: int
    since_us: int
    offset: int
    size: int
    payload: memoryview


def name_of(first: int) -> str:
    return f"{first:0{DIGITS}d}{ENDING}"


def number_of(name: str) -> int | None:
    """The number of the first row of a file of this name; None for other files."""
    stem = name.removesuffix(ENDING)
    return int(stem) if name.endswith(ENDING) and len(stem) == DIGITS and stem.isdecimal() else None


def write_head(head: Head) -> bytes:
    data = pack([VERSION, head.history, head.schema.to_data(), head.first, head.before, head.since_us])
    return _HEAD.pack(MAGIC, len(data), zlib.crc32(data)) + data


def read_head(handle: int, path: Path) -> tuple[Head, int] | None:
    """The head of a file and its size; None if it is torn. One of a later version is an error."""
    start = os.pread(handle, _HEAD.size, 0)
    if len(start) < _HEAD.size:
        return None
    magic, length, checksum = _HEAD.unpack(start)
    if magic != MAGIC or not 0 < length <= MOST_HEAD_BYTES:
        return None
    data = os.pread(handle, length, _HEAD.size)
    if len(data) < length or zlib.crc32(data) != checksum:
        return None
    version, *rest = unpack(data)
    if version > VERSION:
        raise DamagedRowsError(f"{path}: a newer Millrace wrote it (form {version}; this one reads up to {VERSION})")
    history, schema, first, before, since_us = rest
    return Head(history, Schema.from_data(schema), first, before, since_us), _HEAD.size + length


def write_record(sequence: int, batch: Batch, since_us: int) -> list[Part]:
    """The parts of a record, which share memory with the batch."""
    columns = [_times(batch.ts), list(batch.columns), list(batch.valid), _times(batch.arrival)]
    parts = pack_parts(columns)
    size = sum(map(len, parts))
    checksum = zlib.crc32(_CHECKED.pack(size, sequence, len(batch), since_us))
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return [_RECORD.pack(size, checksum, sequence, len(batch), since_us), *parts]


def read_batch(record: Record, schema: Schema) -> Batch:
    ts, columns, valid, arrival = unpack(bytes(record.payload))
    return Batch(schema, _array(ts, record.rows), columns, valid, _array(arrival, record.rows))


def _times(values: Int64s) -> Any:
    """Equal times as one number."""
    if len(values) and values.strides == (0,):
        return int(values[0])
    return np.ascontiguousarray(values)


def _array(times: Any, rows: int) -> Int64s:
    found: Int64s = constant_int64(times, rows) if isinstance(times, int) else times
    return found


@dataclass(slots=True, eq=False)
class RowFile:
    """A file as far as its records are known to be whole.

    `firsts` and `offsets` are some of its records, in order: where it can be entered. `following` is the number of the
    row after its last one.
    """

    path: Path
    head: Head
    size: int
    following: int
    newest_us: int
    firsts: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    @property
    def first(self) -> int:
        return self.head.first

    def note(self, first: int, offset: int) -> None:
        """A record starts here."""
        if not self.offsets or offset >= self.offsets[-1] + STRIDE_BYTES:
            self.firsts.append(first)
            self.offsets.append(offset)

    def cut(self, record: Record) -> None:
        """The file ends before this record."""
        self.size, self.following = record.offset, record.first
        while len(self.offsets) > 1 and self.offsets[-1] >= record.offset:
            self.offsets.pop()
            self.firsts.pop()

    def entry(self, sequence: int) -> int:
        """The offset of a record at or before the one with this row."""
        return self.offsets[max(bisect_right(self.firsts, sequence) - 1, 0)]


def records(handle: int, offset: int, size: int) -> Iterator[Record]:
    """The whole records of a file between two offsets. The first torn or damaged one ends them."""
    data, at = memoryview(b""), offset  # `data` is what follows `at`
    while at + _RECORD.size <= size:
        if len(data) < _RECORD.size:
            data = memoryview(os.pread(handle, min(CHUNK_BYTES, size - at), at))
        if len(data) < _RECORD.size:
            return
        length, checksum, first, rows, since_us = _RECORD.unpack_from(data)
        whole = _RECORD.size + length
        if at + whole > size:
            return
        if len(data) < whole:
            data = memoryview(os.pread(handle, max(whole, min(CHUNK_BYTES, size - at)), at))
        if len(data) < whole:
            return
        payload = data[_RECORD.size : whole]
        if zlib.crc32(payload, zlib.crc32(_CHECKED.pack(length, first, rows, since_us))) != checksum:
            return
        yield Record(first, rows, since_us, at, whole, payload)
        data, at = data[whole:], at + whole
