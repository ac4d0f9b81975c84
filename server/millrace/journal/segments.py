"""A log of opaque records in segments: files that are allocated as a whole, named by the LSN of their first record.

Rule: a segment is complete and synced before the next one has a name, so a crash can damage the last segment only, and
there only records that were never synced. Any other damage stops the server.

The next segment is made ahead of time, under the name `next`, when the present one is half full. A full disk is
noticed (`full`) while there is still room for the records under way.

`append` may be called from one thread, and everything else from another.
"""

from __future__ import annotations

import errno
import os
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NoReturn, Self

from millrace.journal.disk import Buffer, Disk, File
from millrace.journal.errors import JournalBroken, JournalDamaged, JournalError, JournalFull, JournalLocked, reason
from millrace.journal.layout import (
    FIRST_LSN,
    HEADER_BYTES,
    MOST_PAYLOAD,
    RECORD_BYTES,
    SERVER_ID_BYTES,
    Header,
    Torn,
    check_tail,
    pack_record,
    scan,
    segment_lsns,
    segment_name,
    size_of,
)
from millrace.journal.reader import JournalReader, lost, missing, open_segment

SEGMENT_BYTES: Final = 64 * 2**20
# Segments start small, for servers with little to record, and each is so many times as large as the one before.
FIRST_SEGMENT_BYTES: Final = 4 * 2**20
GROWTH: Final = 4
# A segment that has no first LSN yet. It never has records under this name.
SPARE: Final = "next"
# How long a full disk is left alone while the present segment has room.
RETRY_US: Final = 500_000
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_ZEROS: Final = bytes(2**20)
# Syncs are counted by these durations: a fast disk takes less than the first, and the last is an outage.
SYNC_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


@dataclass(frozen=True, slots=True)
class Segment:
    first_lsn: int
    bytes: int
    created_us: int


class Statistics:
    """What a journal has done since it was opened; `bytes` includes the headers of records."""

    __slots__ = ("bytes", "records", "sync_counts", "sync_seconds", "syncs")

    def __init__(self) -> None:
        self.bytes = 0
        self.records = 0
        self.syncs = 0
        self.sync_seconds = 0.0
        # By SYNC_BOUNDS, and the longer ones.
        self.sync_counts = [0] * (len(SYNC_BOUNDS) + 1)

    def count_sync(self, seconds: float) -> None:
        self.syncs += 1
        self.sync_seconds += seconds
        self.sync_counts[bisect_left(SYNC_BOUNDS, seconds)] += 1


class Journal:
    """The journal of one server, open for writing.

    `written` and `synced` are the newest LSNs that are in files and that are durable. `full` is the reason why the next
    segment could not be made; None: there is room. `torn` is an unfinished write of a crash, which opening has removed.
    """

    def __init__(self, disk: Disk, segment_bytes: int, now_us: Callable[[], int]) -> None:
        self.disk = disk
        self.segment_bytes = segment_bytes
        self.torn: Torn | None = None
        self.full: str | None = None
        self.next_lsn = self.written = self.synced = 0
        self.statistics = Statistics()
        self._now_us = now_us
        self._segments: list[Segment] = []
        self._broken: str | None = None
        # Appended, not yet seen by `write`; and what `write` has taken, but not written.
        self._appended: deque[tuple[int, list[Buffer], int | None]] = deque()
        self._taken: list[tuple[int, list[Buffer], int | None]] = []
        self._spare: File | None = None
        self._retry_us = 0
        self._file: File
        self._head: Header
        self._offset = HEADER_BYTES

    @classmethod
    def open(
        cls,
        disk: Disk,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        create: bool = True,
        server_id: bytes | None = None,
        first_lsn: int = FIRST_LSN,
        reaches: int = 0,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> Self:
        """Open a journal, or make one. It is locked until it is closed.

        `server_id` is the expected id, or the id of a new journal, which starts at `first_lsn`. `reaches` is an LSN
        that is known to be synced, such as the LSN of a checkpoint: a journal that ends earlier is damaged. If the
        journal is damaged, nothing on disk changes.
        """
        if (reaches or not create) and not segment_lsns(disk):
            raise missing(disk)
        try:
            if not disk.lock():
                raise JournalLocked(
                    f"{disk.path('')} is in use by another server: stop that one first, or use another data directory"
                )
        except OSError as error:
            raise JournalError(f"{disk.path('')} cannot be locked ({reason(error)}): check its permissions") from None
        journal = cls(disk, segment_bytes, now_us)
        try:
            journal._open(server_id, first_lsn, reaches)
        except BaseException:
            disk.unlock()
            raise
        return journal

    def _open(self, server_id: bytes | None, first_lsn: int, reaches: int) -> None:
        lsns = segment_lsns(self.disk)
        try:
            if lsns:
                self._recover(lsns, server_id, reaches)
            else:
                self._start(server_id or os.urandom(SERVER_ID_BYTES), first_lsn)
        except OSError as error:
            raise JournalError(f"{self.disk.path('')} cannot be opened ({reason(error)}): check the disk") from None

    def _start(self, server_id: bytes, first_lsn: int) -> None:
        head = Header(server_id, first_lsn, 0, min(FIRST_SEGMENT_BYTES, self.segment_bytes), self._now_us())
        self._place(self.disk.create(SPARE, head.size), head)
        self.next_lsn = first_lsn
        self.written = self.synced = first_lsn - 1

    def _recover(self, lsns: list[int], server_id: bytes | None, reaches: int) -> None:
        before = None
        for lsn in lsns:
            file, head = open_segment(self.disk, lsn, server_id, write=lsn == lsns[-1])
            if before is not None and head.previous != before:
                file.close()
                raise lost(self.disk, before, head)
            self._segments.append(Segment(lsn, head.size, head.created_us))
            before, server_id = lsn, head.server_id
            if lsn != lsns[-1]:
                file.close()
        try:
            self._recover_last(file, head, reaches)
        except BaseException:
            file.close()
            raise

    def _recover_last(self, file: File, head: Header, reaches: int) -> None:
        """Find the end of the last segment, and remove what a crash left after it."""
        lsn = head.first_lsn
        self._file, self._head, self.next_lsn = file, head, lsn
        path = self.disk.path(segment_name(lsn))
        for record in scan(file, path, head, HEADER_BYTES, lsn):
            self._offset, self.next_lsn = record.end, record.lsn + 1
        if self.next_lsn <= reaches:
            raise JournalDamaged(
                f"{path}: the journal ends at offset {self._offset} (LSN {self.next_lsn - 1}), but LSN {reaches} was "
                "synced: restore the file from a backup"
            )
        self.torn = check_tail(file, path, head, self._offset, self.next_lsn)
        if self.torn is not None:
            self._cut(self.torn)
        if SPARE in self.disk.names():
            self.disk.remove(SPARE)
        # Records may be here that were not synced before the crash: from now on they must stay.
        file.sync()
        self.disk.sync_folder()
        self.written = self.synced = self.next_lsn - 1

    def _cut(self, torn: Torn) -> None:
        """Zeros, so that no old record follows a new one by chance."""
        for offset in range(torn.offset, torn.offset + torn.bytes, len(_ZEROS)):
            left = torn.offset + torn.bytes - offset
            self._file.write_at(offset, _ZEROS[:left])
        self._file.sync()

    @property
    def server_id(self) -> bytes:
        return self._head.server_id

    @property
    def first_lsn(self) -> int:
        return self._segments[0].first_lsn

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Oldest first."""
        return tuple(self._segments)

    def append(self, payload: Buffer | list[Buffer], time_us: int | None = None) -> int:
        """Buffer a record, and return its LSN. Its bytes must not change until it is written. Its time is the one at
        which it is written, or that of the record that it is a copy of."""
        if self._broken is not None:
            self._refuse(self._broken)
        size = len(payload) if isinstance(payload, bytes) else size_of(payload)
        if size > MOST_PAYLOAD:
            raise JournalError(f"a record of {size} bytes is too large: the journal takes up to {MOST_PAYLOAD}")
        lsn = self.next_lsn
        self._appended.append((size, payload if isinstance(payload, list) else [payload], time_us))
        self.next_lsn = lsn + 1
        return lsn

    def write(self) -> int:
        """Hand all buffered records to the files, and return the newest LSN written.

        Raises `JournalFull` if the disk is full; the next `write()` continues with the first that is not written.
        """
        if self._broken is not None:
            self._refuse(self._broken)
        while self._appended:
            self._taken.append(self._appended.popleft())
        while self._taken:
            if self._offset + RECORD_BYTES + self._taken[0][0] > self._file.size:
                self._roll(self._taken[0][0])
            self._write_some()
        if self._spare is not None or self._offset <= self._file.size // 2:
            self.full = None
        elif self.full is None or self._now_us() >= self._retry_us:
            self._prepare(self.next_bytes)
        return self.written

    def _write_some(self) -> None:
        """Those that fit the present segment."""
        seed, synced, now_us = self._head.seed, self.synced, self._now_us()
        lsn, end, room = self.written, self._offset, self._file.size
        buffers: list[Buffer] = []
        for size, parts, time_us in self._taken:
            if end + RECORD_BYTES + size > room:
                break
            lsn, end = lsn + 1, end + RECORD_BYTES + size
            buffers += pack_record(seed, lsn, synced, now_us if time_us is None else time_us, size, parts)
        try:
            self._file.write_at(self._offset, buffers)
        except OSError as error:
            self._fail(error, f"writing {self._path} at offset {self._offset}")
        del self._taken[: lsn - self.written]
        self.statistics.records += lsn - self.written
        self.statistics.bytes += end - self._offset
        self.written, self._offset = lsn, end

    def _prepare(self, size: int) -> None:
        """Make the next segment, if there is room; `full` says so if not."""
        try:
            self._spare = self.disk.create(SPARE, size)
            self.full = None
        except OSError as error:
            self.full = f"creating {self.disk.path(SPARE)} of {size} bytes failed ({reason(error)})"
            self._retry_us = self._now_us() + RETRY_US

    def _roll(self, payload: int) -> None:
        """Continue in a new segment that takes a record of this size."""
        size = max(self.next_bytes, HEADER_BYTES + RECORD_BYTES + payload)
        if self._spare is not None and self._spare.size != size:
            self._spare.close()
            self._spare = None
        if self._spare is None:
            self._prepare(size)
        if self._spare is None:
            raise JournalFull(f"{self.full}: make room on the disk")
        self.sync()
        first = self.written + 1
        empty = self._head.first_lsn == first
        previous = self._head.previous if empty else self._head.first_lsn
        old = self._file
        self._place(self._spare, Header(self.server_id, first, previous, size, self._now_us()))
        self._spare = None
        old.close()

    def _place(self, file: File, head: Header) -> None:
        """Write a new segment's header, then rename it. Records count only in a segment whose name is durable."""
        name = segment_name(head.first_lsn)
        doing = f"starting {self.disk.path(name)}"
        try:
            file.write_at(0, head.pack())
        except OSError as error:
            self._fail(error, doing)
        try:
            file.sync()
            self.disk.rename(SPARE, name)
            self.disk.sync_folder()
        except OSError as error:
            self._break(f"{doing} failed ({reason(error)})")
        if self._segments and self._segments[-1].first_lsn == head.first_lsn:
            self._segments.pop()
        self._segments.append(Segment(head.first_lsn, head.size, head.created_us))
        self._file, self._head, self._offset = file, head, HEADER_BYTES

    def sync(self) -> int:
        """Wait until everything written is durable, and return the newest LSN that is."""
        if self._broken is not None:
            self._refuse(self._broken)
        if self.synced < self.written:
            began = time.perf_counter()
            try:
                self._file.sync()
            except OSError as error:
                self._break(f"syncing {self._path} failed ({reason(error)})")
            self.statistics.count_sync(time.perf_counter() - began)
            self.synced = self.written
        return self.synced

    def read(self, from_lsn: int) -> Iterator[tuple[int, bytes]]:
        """The written records from this LSN on."""
        reader = JournalReader(self.disk, server_id=self.server_id)
        try:
            yield from reader.read(from_lsn)
        finally:
            reader.close()

    def trim(self, before_lsn: int) -> list[Segment]:
        """Remove the segments that have only records before this LSN, oldest first; never the present one."""
        if self._broken is not None:
            self._refuse(self._broken)
        removed = []
        while len(self._segments) > 1 and self._segments[1].first_lsn <= before_lsn:
            name = segment_name(self._segments[0].first_lsn)
            try:
                self.disk.remove(name)
                # One by one: a crash that brings back the older of two would leave a gap.
                self.disk.sync_folder()
            except OSError as error:
                self._break(f"removing {self.disk.path(name)} failed ({reason(error)})")
            removed.append(self._segments.pop(0))
        self._retry_us = 0  # a full disk may have room now
        return removed

    def close(self) -> None:
        """Close the files. Records that are not written or synced may be lost: `write()` and `sync()` come first."""
        self._file.close()
        if self._spare is not None:
            self._spare.close()
            self._spare = None
        self.disk.unlock()
        self._broken = "the journal has been closed"

    @property
    def next_bytes(self) -> int:
        """The size of the next segment."""
        return min(GROWTH * self._head.size, self.segment_bytes)

    @property
    def _path(self) -> str:
        return self.disk.path(segment_name(self._head.first_lsn))

    def _fail(self, error: OSError, doing: str) -> NoReturn:
        """A write has failed. It can be repeated if the disk was full, because its bytes and its place stay."""
        text = f"{doing} failed ({reason(error)})"
        if error.errno not in _NO_ROOM:
            self._break(text)
        self.full = text
        raise JournalFull(f"{text}: make room on the disk") from None

    def _break(self, text: str) -> NoReturn:
        self._broken = text
        self._refuse(text)

    def _refuse(self, text: str) -> NoReturn:
        raise JournalBroken(f"{text}: restart the server, which reads what is on the disk") from None

    # The last of the class: its name hides the type.
    @property
    def bytes(self) -> int:
        """Bytes of all segments on disk, with their room for more records."""
        return sum(segment.bytes for segment in self._segments)
