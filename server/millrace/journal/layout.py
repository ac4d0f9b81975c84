"""The bytes of a segment: its header, its records, and a torn write after the last of them.

    header   magic 8, version u32, zero u32, server id 16, first LSN u64, first LSN of the segment before it u64,
             size of the file u64, time u64, zero u32, CRC u32                                    (little-endian)
    record   CRC u32, length u32, LSN u64, newest LSN known to be synced u64, time u64, payload
    zeros    to the end of the file

A record's CRC covers everything after it and starts from the CRC of the server's id, so a record of another server is
never valid here, nor is one in a payload that a client made. Times are microseconds since the epoch.

A record may be damaged by a crash only if it was never synced. `synced` in later records decides that: one that says
that the damaged record was synced proves that the damage is the disk's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import google_crc32c
import numpy as np

from millrace.journal.disk import Buffer, Disk, File
from millrace.journal.errors import JournalDamaged, JournalError, reason

MAGIC: Final = b"MRJOURNL"
# A newer server reads older segments, never the other way round.
VERSION: Final = 1
SERVER_ID_BYTES: Final = 16
# LSNs count from 1, so that 0 means none.
FIRST_LSN: Final = 1
# Digits of an LSN in a name: all of a u64, so that names sort as the numbers do.
DIGITS: Final = 20
SUFFIX: Final = ".segment"
MOST_PAYLOAD: Final = 2**32 - 1

_HEADER: Final = struct.Struct("<8sII16sQQQQI")
_CRC: Final = struct.Struct("<I")
HEADER_BYTES: Final = _HEADER.size + _CRC.size
_RECORD: Final = struct.Struct("<IIQQQ")
# The part of a record's header that its CRC covers.
_COVERED: Final = struct.Struct("<IQQQ")
RECORD_BYTES: Final = _RECORD.size
_IDENTITY: Final = struct.Struct("<QQ")
# Bytes read at once: the first time few, because often only the newest records are to be read.
_CHUNK: Final = 2**20
_FIRST_CHUNK: Final = 2**16


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a segment; `previous` is the first LSN of the segment before it, 0 for the first of all."""

    server_id: bytes
    first_lsn: int
    previous: int
    size: int
    created_us: int

    @property
    def seed(self) -> int:
        """The CRC that records start from."""
        return seed_of(self.server_id)

    def pack(self) -> bytes:
        head = _HEADER.pack(
            MAGIC, VERSION, 0, self.server_id, self.first_lsn, self.previous, self.size, self.created_us, 0
        )
        return head + _CRC.pack(google_crc32c.value(head))


class Record(NamedTuple):
    lsn: int
    payload: bytes
    # The newest LSN known to be synced when this record was written.
    synced: int
    # When it was written to its file.
    time_us: int
    # Where the next one starts.
    end: int


@dataclass(frozen=True, slots=True)
class Torn:
    """Bytes after the last record of a journal that a crash left: no record in them was synced."""

    file: str
    offset: int
    bytes: int


def seed_of(server_id: bytes) -> int:
    seed: int = google_crc32c.value(server_id)
    return seed


def segment_name(first_lsn: int) -> str:
    return f"{first_lsn:0{DIGITS}d}{SUFFIX}"


def segment_lsns(disk: Disk) -> list[int]:
    """The first LSNs of a journal's segments, ascending."""
    try:
        names = disk.names()
    except OSError as error:
        raise JournalError(f"{disk.path('')} cannot be read ({reason(error)}): check its permissions") from None
    stems = (name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))
    return sorted(int(stem) for stem in stems if len(stem) == DIGITS and stem.isascii() and stem.isdecimal())


def size_of(payload: Buffer | list[Buffer]) -> int:
    if isinstance(payload, list):
        return sum(map(size_of, payload))
    return payload.nbytes if isinstance(payload, memoryview) else len(payload)


def pack_record(seed: int, lsn: int, synced: int, time_us: int, size: int, parts: list[Buffer]) -> list[Buffer]:
    """The buffers of a record."""
    crc = google_crc32c.extend(seed, _COVERED.pack(size, lsn, synced, time_us))
    for part in parts:
        crc = google_crc32c.extend(crc, part if isinstance(part, bytes) else np.frombuffer(part, np.uint8))
    return [_RECORD.pack(crc, size, lsn, synced, time_us), *parts]


def digest_of(seed: int, lsn: int, time_us: int, payload: bytes) -> int:
    """Identifies a record on whatever machine it is: its own CRC also covers when that machine had synced what."""
    digest: int = google_crc32c.extend(google_crc32c.extend(seed, _IDENTITY.pack(lsn, time_us)), payload)
    return digest


def read_header(disk: Disk, file: File, first_lsn: int) -> Header:
    """The header of a segment, by its name; raises if the file is not what its name says."""
    path = disk.path(segment_name(first_lsn))
    data = read(file, path, 0, HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        raise JournalDamaged(
            f"{path} has {len(data)} bytes, too few for the header of a segment: restore the whole file from a backup"
        )
    magic, version, _, server_id, first, previous, size, created_us, _ = _HEADER.unpack_from(data)
    if magic == MAGIC and version > VERSION:
        raise JournalError(
            f"{path} was written by a newer Millrace (journal format {version}, this one reads {VERSION}): "
            "start that version, or another data directory",
            code="journal_newer",
        )
    if magic != MAGIC or _CRC.unpack_from(data, _HEADER.size) != (google_crc32c.value(data[: _HEADER.size]),):
        raise JournalDamaged(f"{path}: the header at offset 0 is damaged: restore the file from a backup")
    if first != first_lsn:
        raise JournalDamaged(
            f"{path} has records from LSN {first} on, so it had the name {segment_name(first)}: rename it back"
        )
    if file.size != size:
        raise JournalDamaged(
            f"{path} has {file.size} bytes, not {size}, so it is an incomplete copy: copy the whole file again"
        )
    return Header(server_id, first, previous, size, created_us)


def read(file: File, path: str, offset: int, size: int) -> bytes:
    try:
        return file.read_at(offset, size)
    except OSError as error:
        raise JournalDamaged(
            f"{path}: reading {size} bytes at offset {offset} failed ({reason(error)}): "
            "replace the disk and restore a backup"
        ) from None


def scan(file: File, path: str, head: Header, offset: int, lsn: int) -> Iterator[Record]:
    """The records from this offset on, up to the first that is not valid."""
    seed, size = head.seed, file.size
    chunk, begin, room = b"", offset, _FIRST_CHUNK
    while offset + RECORD_BYTES <= size:
        record = _record(chunk, offset - begin, seed, lsn, offset)
        if record is None and (begin != offset or not chunk):
            # Cut off by the end of the chunk, or written since it was read.
            begin, chunk = offset, read(file, path, offset, min(room, size - offset))
            length = int.from_bytes(chunk[4:8], "little")
            if room - RECORD_BYTES < length <= size - offset - RECORD_BYTES:
                chunk = read(file, path, offset, RECORD_BYTES + length)
            room = _CHUNK
            record = _record(chunk, 0, seed, lsn, offset)
        if record is None:
            return
        yield record
        lsn, offset = lsn + 1, record.end


def _record(chunk: bytes, at: int, seed: int, lsn: int, offset: int) -> Record | None:
    """The record at this place of a chunk, if it is valid and there as a whole."""
    if at + RECORD_BYTES > len(chunk):
        return None
    crc, length, found, synced, time_us = _RECORD.unpack_from(chunk, at)
    end = at + RECORD_BYTES + length
    if found != lsn or synced >= lsn or end > len(chunk):
        return None
    covered = np.frombuffer(chunk, np.uint8, end - at - _CRC.size, at + _CRC.size)  # not copied
    if crc != google_crc32c.extend(seed, covered):
        return None
    return Record(lsn, chunk[at + RECORD_BYTES : end], synced, time_us, offset + RECORD_BYTES + length)


def check_tail(file: File, path: str, head: Header, offset: int, lsn: int) -> Torn | None:
    """What a crash left after the last valid record, at whose end `lsn` would start; None if there are only zeros.

    Raises if a record there proves that `lsn` was synced.
    """
    last = offset
    for begin, chunk in _overlapping(file, path, offset):
        kept = chunk.rstrip(b"\0")
        if not kept:
            continue
        last = begin + len(kept)
        for at in _candidates(chunk, lsn, (file.size - offset) // RECORD_BYTES):
            if proves(file, path, head, begin + at, lsn):
                raise damaged(path, offset, lsn)
    return Torn(path, offset, last - offset) if last > offset else None


def damaged(path: str, offset: int, lsn: int) -> JournalDamaged:
    return JournalDamaged(
        f"{path}: the record at offset {offset} (LSN {lsn}) is damaged, but it was synced, and later ones refer to it: "
        "restore the file from a backup, or check the disk"
    )


def _overlapping(file: File, path: str, offset: int) -> Iterator[tuple[int, bytes]]:
    """The rest of a file in chunks; every header of a record is in one of them as a whole."""
    while offset < file.size:
        chunk = read(file, path, offset, _CHUNK + RECORD_BYTES)
        yield offset, chunk
        offset += _CHUNK


def _candidates(chunk: bytes, lsn: int, most: int) -> Iterator[int]:
    """Where a record may start that is later than `lsn` and says that `lsn` was synced."""
    least = np.uint64(lsn)
    for shift in range(8):
        count = (len(chunk) - shift) // 8
        if count < RECORD_BYTES // 8:
            return
        words = np.frombuffer(chunk, "<u8", count, shift)
        lsns, synced = words[1:-2], words[2:-1]
        hits = (lsns - least <= np.uint64(most)) & (synced >= least) & (synced < lsns)
        yield from (np.flatnonzero(hits) * 8 + shift).tolist()


def proves(file: File, path: str, head: Header, offset: int, lsn: int) -> bool:
    """Whether there is a valid record at this offset that says that `lsn` was synced."""
    fixed = read(file, path, offset, RECORD_BYTES)
    if len(fixed) < RECORD_BYTES:
        return False
    _, length, found, synced, _ = _RECORD.unpack(fixed)
    if synced < lsn or offset + RECORD_BYTES + length > file.size:
        return False
    data = read(file, path, offset, RECORD_BYTES + length)
    return _record(data, 0, head.seed, found, offset) is not None
