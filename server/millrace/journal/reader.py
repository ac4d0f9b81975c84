"""Read a journal without its lock, also while another process appends to it.

Rule: a reader changes nothing on disk. It stops at the end of the journal and continues there when it is called again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from millrace.journal.disk import Disk, File
from millrace.journal.errors import JournalDamaged, JournalError, JournalMissing, NotRetained, reason
from millrace.journal.layout import (
    HEADER_BYTES,
    RECORD_BYTES,
    Header,
    Record,
    Torn,
    check_tail,
    damaged,
    read,
    read_header,
    scan,
    segment_lsns,
    segment_name,
)


@dataclass(frozen=True, slots=True)
class Checked:
    """A journal that has been read from its first record to its last."""

    segments: int
    records: int
    bytes: int
    first_lsn: int
    next_lsn: int
    torn: Torn | None


class JournalReader:
    """Records in order; `next_lsn` is the one after the last that was read."""

    def __init__(self, disk: Disk, *, server_id: bytes | None = None) -> None:
        self.disk = disk
        self.server_id = server_id
        self.next_lsn = 0
        self._file: File | None = None
        self._head: Header | None = None
        self._offset = 0

    @property
    def first_lsn(self) -> int:
        """The first LSN that the journal holds now."""
        return self._lsns()[0]

    def read(self, from_lsn: int) -> Iterator[tuple[int, bytes]]:
        """The records from this LSN on, up to the last that is written."""
        for record in self.records(from_lsn):
            yield record.lsn, record.payload

    def records(self, from_lsn: int) -> Iterator[Record]:
        if self._file is None or from_lsn != self.next_lsn:
            self._seek(from_lsn)
        again = False
        while True:
            file, head = self._position()
            lsn = self.next_lsn
            path = self.disk.path(segment_name(head.first_lsn))
            for record in scan(file, path, head, self._offset, lsn):
                self._offset, self.next_lsn = record.end, record.lsn + 1
                if record.lsn >= from_lsn:
                    yield record
                    if self._file is not file:
                        return  # the caller has moved or closed this reader
            lsns = self._lsns()
            if lsns[0] > self.next_lsn:
                raise self._removed(self.next_lsn, lsns[0])
            if self.next_lsn in lsns and (self.next_lsn != head.first_lsn or self._replaced()):
                with suppress(FileNotFoundError):  # removed since the folder was listed
                    self._open(self.next_lsn)
            elif lsns[-1] > self.next_lsn:
                # A segment is complete and synced before the next one starts. It may have been completed just now.
                if again and self.next_lsn == lsn:
                    self._check_follower(min(first for first in lsns if first > head.first_lsn))
                    raise damaged(path, self._offset, self.next_lsn)
                again = self.next_lsn == lsn
            elif again and self.next_lsn == lsn:
                self._check_tail()
                return
            elif any(read(file, path, self._offset, RECORD_BYTES)):
                again = True  # a record that is being written, or damage
            else:
                return

    def check(self) -> Checked:
        """Read everything. Raises at the first damaged byte."""
        while True:
            first_lsn, sizes = self.first_lsn, dict[int, int]()
            try:
                for _ in self.records(first_lsn):
                    self._count_segment(sizes)
                break
            except NotRetained:
                continue  # its server removes old segments: check the others
        self._count_segment(sizes)
        torn = self._check_tail()
        records = self.next_lsn - first_lsn
        return Checked(len(sizes), records, sum(sizes.values()), first_lsn, self.next_lsn, torn)

    def _count_segment(self, sizes: dict[int, int]) -> None:
        file, head = self._position()
        sizes[head.first_lsn] = file.size

    def _check_tail(self) -> Torn | None:
        """What follows the last record."""
        file, head = self._position()
        path = self.disk.path(segment_name(head.first_lsn))
        try:
            return check_tail(file, path, head, self._offset, self.next_lsn)
        except JournalDamaged:
            # Its writer may have completed this record and later ones after they were scanned.
            if next(scan(file, path, head, self._offset, self.next_lsn), None) is None:
                raise
            return None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _position(self) -> tuple[File, Header]:
        assert self._file is not None
        assert self._head is not None
        return self._file, self._head

    def _lsns(self) -> list[int]:
        lsns = segment_lsns(self.disk)
        if not lsns:
            raise missing(self.disk)
        return lsns

    def _removed(self, lsn: int, first_lsn: int) -> NotRetained:
        return NotRetained(f"{self.disk.path('')} has LSN {first_lsn} and later ones: LSN {lsn} has been removed")

    def _seek(self, lsn: int) -> None:
        while True:
            lsns = self._lsns()
            if lsn < lsns[0]:
                raise self._removed(lsn, lsns[0])
            self.close()
            try:
                self._open(max(first for first in lsns if first <= lsn))
                return
            except FileNotFoundError:
                continue  # removed since the folder was listed

    def _check_follower(self, first_lsn: int) -> None:
        """Raise if a segment is missing between this one and the next that is there."""
        _, before = self._position()
        file, head = open_segment(self.disk, first_lsn, self.server_id)
        file.close()
        if before.first_lsn not in (head.previous, head.first_lsn):
            raise lost(self.disk, before.first_lsn, head)

    def _open(self, first_lsn: int) -> None:
        if self._file is not None:
            self._check_follower(first_lsn)
        file, head = open_segment(self.disk, first_lsn, self.server_id)
        self.close()
        self._file, self._head, self.server_id = file, head, head.server_id
        self._offset, self.next_lsn = HEADER_BYTES, first_lsn

    def _replaced(self) -> bool:
        """Whether the segment, empty so far, has been replaced by a larger one."""
        file, head = self._position()
        other = self.disk.open(segment_name(head.first_lsn))
        size = other.size
        other.close()
        return size != file.size


def open_segment(disk: Disk, first_lsn: int, server_id: bytes | None, *, write: bool = False) -> tuple[File, Header]:
    """A segment and its header, of this server."""
    name = segment_name(first_lsn)
    try:
        file = disk.open(name, write=write)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise JournalError(f"{disk.path(name)} cannot be opened ({reason(error)}): check its permissions") from None
    try:
        head = read_header(disk, file, first_lsn)
        if server_id is not None and head.server_id != server_id:
            raise JournalError(
                f"{disk.path(name)} belongs to another server ({head.server_id.hex()}, expected {server_id.hex()}): "
                "move it back to its data directory",
                code="journal_foreign",
            )
    except BaseException:
        file.close()
        raise
    return file, head


def missing(disk: Disk) -> JournalMissing:
    return JournalMissing(f"{disk.path('')} has no journal: name the data directory of a server")


def lost(disk: Disk, before: int, head: Header) -> JournalDamaged:
    """A gap between two segments."""
    return JournalDamaged(
        f"{disk.path(segment_name(head.previous))} is missing between {segment_name(before)} and "
        f"{segment_name(head.first_lsn)}: restore it from a backup"
    )
