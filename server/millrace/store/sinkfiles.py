"""Where the rows of sinks go: files of lines, folders of whole files, the standard output. Plain blocking code;
`sink.py` runs it in a thread and decides what happens after an error.

Rule: a reader never sees half a row or half a file, and no row twice. Lines are appended whole: a row that an error or
a kill has torn is cut off. Parquet and Arrow rows wait in memory until their file is full or old enough; it is written
aside, made durable, renamed to a free name, and listed in the folder's manifest. A write that fails has taken `taken`
rows, and nothing of the others. After a kill rows arrive again from a position on, and a file skips what it has.
Nothing is changed where a server of a higher epoch has written.
"""

from __future__ import annotations

import errno
import os
import secrets
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import structlog

from millrace.formats.writers import ROW_GROUP, csv_lines, csv_names, file_batch, file_schema, json_lines
from millrace.journal.disk import settle
from millrace.protocol import Refuse, Schema, Type
from millrace.standby.sinkfence import OPEN, SinkFence
from millrace.store import placemarks
from millrace.store.holds import hold, release
from millrace.store.places import Identity, Place, SinkFolders, error_words, identity, names_in
from millrace.values.batch import Batch

log = structlog.get_logger()

# Digits of a sequence number in a name: all of an int64, so that names sort as the numbers do.
DIGITS: Final = 19
# The key of the metadata about a whole file.
KEY: Final = b"millrace"
# The end of the name of a file that is being written; such names start with a dot, so readers pass over them.
UNFINISHED: Final = ".part"
# The end of the name of a list of whole files.
LISTS: Final = ".manifest.jsonl"
# Bytes that are looked at once in a file that was found.
CHUNK: Final = 1 << 20
# Bytes before a position whose checksum identifies a file of lines.
MARK_BYTES: Final = 4_096
# The extended attribute with the label of a file of lines.
LABEL: Final = "user.millrace"
# A link that the file system does not offer; a plain renaming has to do.
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
# Errors of a disk that is full or broken, not of one that lacks something.
_FAILING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
# More than a line of a manifest has: the name of a file, twice at most, and numbers.
MOST_LINE_BYTES: Final = 4_096
_JSON: Final = msgspec.json.Encoder()

Encode = Callable[[Batch], bytes]


@dataclass(frozen=True, slots=True)
class SinkPosition:
    """How far a sink is, durably: every row of the history below `next` is where it belongs.

    A file of lines has `offset` bytes then, of which the last ones have the checksum `mark`; `inode` is for people.
    """

    history: str
    next: int
    offset: int | None = None
    mark: int = 0
    inode: int = 0

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> SinkPosition:
        return SinkPosition(**data)


class SinkFile(Protocol):
    """The contract of a sink: rows of one history and one schema go to one place, each once, in order of their numbers.

    The life of a sink is `prepare`, `write` again and again, `committed` from time to time, `close`. Calls come from
    one thread at a time. `write(sequence, batch)` takes the rows numbered from `sequence` on, so the last is known.
    Numbers rise, and they skip rows that `on_slow` dropped or superseded.

    After a kill the server calls `prepare` with the newest position that it has stored, and `write` with every row from
    there on. Some of them may have been written after that position. A sink recognizes them by their number and by what
    its place contains, and takes them without writing them again. It never reports a position before the rows below it
    are durable. If its place has lost or changed rows, it says so in `notice` and continues with the next row.

    After a promotion two servers may have the place, and the older one may not know yet that it was replaced. So the
    sink leaves the epoch of its server there, durably, before its first row, and each call that may change the place
    first compares what is left there: both is `SinkFence.look`. A call that finds a higher epoch raises Outdated, and
    has changed nothing. A place with transactions should compare and write in one.

    history     the count that the rows' sequence numbers belong to; set before the first `write`
    next        the number of the row after the last that was taken; None before the first
    resume_at   the number of the first row that a kill would lose here; None before the first row
    taken       rows that the newest `write` has taken, when it failed too
    unfinished  rows that are in no file under its final name yet
    notice      what another program did to the place
    """

    history: str | None
    next: int | None
    taken: int
    notice: str | None

    @property
    def resume_at(self) -> int | None: ...

    @property
    def unfinished(self) -> int: ...

    @property
    def path(self) -> Path | None: ...

    @property
    def identity(self) -> Identity | None:
        """The open file or folder, by whatever name; None if none is open."""

    def prepare(self, position: SinkPosition, *, complete: bool) -> None:
        """Continue at a position when opening; without an offset, nothing is known of the place. `complete`: no number
        is skipped, so that the place shows how many rows it has."""

    def start(self) -> dict[str, int]:
        """Where a new sink starts in its open place: fields of its first position, beyond the number of the row."""

    def committed(self) -> SinkPosition | None:
        """Make durable what was taken, as far as it can be, and say how far that is; None if nothing was taken yet.
        OSError: it is not durable, and must not be believed to be later."""

    def open(self, *, makes: bool = False) -> None:
        """Be ready to write; `makes` for the first time, when folders on the way may be created."""

    def write(self, sequence: int, batch: Batch) -> None: ...

    def flush(self) -> None:
        """Finish files that are due; also called without rows."""

    def due_seconds(self) -> float | None:
        """In how long something is due although no row arrives; None if nothing is."""

    def close(self) -> None:
        """Finish everything."""

    def abandon(self) -> None:
        """Close handles, without writing anything."""


class NotDurableError(Exception):
    """A sync failed, and a second one could succeed without what the system has dropped. The next start finds out which
    rows are there."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"its file could not be made durable: {error_words(error)}; restart the server")


# -- lines -------------------------------------------------------------------------------------------------------------


class Appended(Protocol):
    """A file that is open for appending."""

    @property
    def identity(self) -> Identity | None: ...

    def size(self) -> int: ...

    def write(self, data: memoryview) -> int:
        """Write as many bytes as possible now; their number."""

    def truncate(self, size: int) -> None: ...

    def read(self, size: int, at: int) -> bytes: ...

    def moved(self) -> bool:
        """Whether the path leads elsewhere now: the file was deleted, renamed or replaced."""

    def deleted(self) -> bool:
        """Whether the file has no name any more."""

    def sync(self) -> None:
        """Make it durable, with its label and its name."""

    def settle(self) -> None:
        """Show what is durable: a server that was killed, or whose sync failed, may have left bytes in memory alone."""

    def label(self) -> str | None:
        """The text that was stored with the file; None if there is none, or the file system has no such thing."""

    def set_label(self, text: str) -> None: ...

    def rotated(self) -> Iterator[Appended]:
        """Files next to it that may have had its name before. The caller closes each."""

    def epoch(self) -> str | None:
        """The epoch that was left for other servers; None if there is none."""

    def leave_epoch(self, text: str) -> None: ...

    def close(self) -> None: ...


class Claimed(Protocol):
    """A place that servers of several epochs may have."""

    def epoch(self) -> str | None: ...

    def leave_epoch(self, text: str) -> None: ...


def claim(place: Claimed, path: Path, fence: SinkFence) -> None:
    """Before a place is changed: Outdated if a server of a higher epoch has written there."""
    text = fence.look(path, place.epoch())
    if text is not None:
        place.leave_epoch(text)


def held(handle: int, path: Path) -> Identity:
    """Lock an open file or folder against other servers, or close it."""
    try:
        return hold(handle, path)
    except BaseException:
        os.close(handle)
        raise


class Disk:
    """A regular file that is open for appending."""

    def __init__(self, places: SinkFolders, place: Place, *, makes: bool = False) -> None:
        self._places = places
        self._place = place
        self._handle = places.open_file(place, makes=makes)
        self._named = False  # whether its name is known to be durable
        self.identity = held(self._handle, place.path)
        try:
            self._folder = places.open_parent(place)
        except BaseException:
            self._close_file()
            raise

    def size(self) -> int:
        return os.fstat(self._handle).st_size

    def write(self, data: memoryview) -> int:
        return os.write(self._handle, data)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._handle, size)

    def read(self, size: int, at: int) -> bytes:
        return os.pread(self._handle, size, at)

    def moved(self) -> bool:
        try:
            return identity(os.stat(self._place.path, follow_symlinks=False)) != self.identity
        except OSError:
            return True

    def deleted(self) -> bool:
        return os.fstat(self._handle).st_nlink == 0

    def sync(self) -> None:
        os.fsync(self._handle)
        if not self._named:
            self._places.sync_name(self._place)
            self._named = True

    def settle(self) -> None:
        settle(self._handle)

    def label(self) -> str | None:
        try:
            return os.getxattr(self._handle, LABEL).decode()
        except (OSError, UnicodeDecodeError):
            return None

    def set_label(self, text: str) -> None:
        try:
            os.setxattr(self._handle, LABEL, text.encode())
        except OSError as error:
            if error.errno in _FAILING:
                raise  # the file system has labels, and could not store this one

    def rotated(self) -> Iterator[Disk]:
        name = self._place.names[-1]
        for other in names_in(self._folder):
            if other.startswith(name) and other != name:
                with suppress(FileNotFoundError, PermissionError, Refuse):  # not a file, or not ours
                    yield Disk(self._places, self._place.named(other))

    def epoch(self) -> str | None:
        return placemarks.found(self._folder, self._place.names[-1])

    def leave_epoch(self, text: str) -> None:
        placemarks.leave(self._folder, self._place.names[-1], text)

    def close(self) -> None:
        os.close(self._folder)
        self._close_file()

    def _close_file(self) -> None:
        os.close(self._handle)
        release(self.identity)


@dataclass(slots=True)
class Tail:
    """Rows that a file has after its position: from the offset `at` on, up to the row before `following`."""

    at: int
    following: int


class LineFile:
    """JSON lines or CSV, appended. A file that was moved away or deleted is created again.

    `former` is an older encoding with its header. A file that starts with that header keeps this encoding. A new file
    is labelled with the history and the number of its first row, durably before that row: after log rotation and a
    kill, that says which rows are in the earlier file. If the kill came before the label, the earlier file is looked
    for, by its label or the checksum of the position, among those whose name starts with this one's.

    While rows arrive again that the file has (`_tail`), each is compared with the bytes there.
    """

    taken = 0
    unfinished = 0
    notice: str | None = None

    def __init__(
        self,
        path: Path,
        open_disk: Callable[[bool], Appended],
        encode: Encode,
        header: bytes = b"",
        *,
        quoted: bool = False,
        former: tuple[Encode, bytes] | None = None,
        fence: SinkFence = OPEN,
    ) -> None:
        self.path = path
        self.history: str | None = None
        self._fence = fence
        self._open_disk = open_disk
        self._current = (encode, header)
        self._former = former
        self._encode, self._header = self._current
        self._quoted = quoted  # whether a row may contain a line feed, between quotes
        self._disk: Appended | None = None
        self._whole: int | None = None  # where the last whole row ends, if a torn one follows
        self._known = False  # whether it was open before: a kill tears no row of another program
        self.next: int | None = None
        self._position: SinkPosition | None = None
        self._complete = False
        self._tail: Tail | None = None
        self._size: int | None = None  # of the file, if no other program changes it
        self._first: int | None = None  # the first row that this file got while it was open

    @property
    def identity(self) -> Identity | None:
        return None if self._disk is None else self._disk.identity

    @property
    def resume_at(self) -> int | None:
        return self.next

    def prepare(self, position: SinkPosition, *, complete: bool) -> None:
        self._position, self._complete = position, complete
        self.next = position.next

    def start(self) -> dict[str, int]:
        disk = self._disk
        if disk is None:
            return {}
        offset = disk.size()
        return {"offset": offset, "mark": _mark(disk, offset)}

    def committed(self) -> SinkPosition | None:
        disk = self._disk
        if disk is not None and self.next is not None and self.history is not None:
            claim(disk, self.path, self._fence)
            self._mend(disk)
            disk.sync()
            offset = disk.size() if self._tail is None else self._tail.at
            inode = 0 if disk.identity is None else disk.identity.inode
            self._position = SinkPosition(self.history, self.next, offset, _mark(disk, offset), inode)
        return self._position

    def open(self, *, makes: bool = False) -> None:
        disk = self._ready(makes)
        if makes:
            disk.sync()

    def write(self, sequence: int, batch: Batch) -> None:
        self.taken = 0
        disk = self._ready()
        first = sequence
        if self.next is not None and sequence < self.next:
            sequence = min(self.next, sequence + len(batch))
        if self._tail is not None:
            sequence = self._compare(disk, sequence, batch.slice(sequence - first, len(batch)))
        self.taken = sequence - first
        if self.taken == len(batch):
            return
        if self._first is None:
            if disk.size() <= len(self._header):
                self._head(disk, sequence)
            self._first = sequence
        if self._header and not disk.size():
            self._append(disk, self._header)
        try:
            self._append(disk, self._encode(batch.slice(self.taken, len(batch))))
        except OSError:
            self.taken += self._appended
            self.next = first + self.taken
            raise
        self.taken = len(batch)
        self.next = first + len(batch)

    def _head(self, disk: Appended, sequence: int) -> None:
        """Before its first row, make a new file's header and label durable: a power cut must not leave rows alone."""
        if self._header and not disk.size():
            self._append(disk, self._header)
        try:
            disk.set_label(f"{self.history} {sequence}")
            disk.sync()
        except OSError:
            with suppress(OSError):  # what a failed sync has dropped is written again
                disk.truncate(0)
            self._size = disk.size()
            raise

    def _compare(self, disk: Appended, sequence: int, batch: Batch) -> int:
        """Skip the rows that the file has, after a look at them; the number of the first that it lacks."""
        tail = self._tail
        assert tail is not None
        if self.next is not None and sequence > self.next:  # the rows before are no longer retained
            self.next, self._tail = max(sequence, tail.following), None
            return min(self.next, sequence + len(batch))
        rows = min(tail.following - sequence, len(batch))
        if rows > 0:
            data = self._encode(batch.slice(0, rows))
            found = disk.read(len(data), tail.at)
            if found != data:
                same = _equal_rows(found, data, quoted=self._quoted)
                self._say(
                    f"row {sequence + same} in {self.path} is not the one that the query emitted: another program has "
                    f"changed the file. The rows up to {tail.following - 1} count as written, and are not written again"
                )
                self.next, self._tail = tail.following, None
                return sequence + rows
            tail.at += len(data)
            sequence += rows
            self.next = sequence
        if sequence >= tail.following:
            self._tail = None
        return sequence

    def _say(self, notice: str) -> None:
        self.notice = notice

    def flush(self) -> None:
        self._ready()

    def due_seconds(self) -> float | None:
        return None

    def close(self) -> None:
        """Nothing is left to do: each write was complete. Retry to cut off torn bytes."""
        try:
            if self._disk is not None and self._whole is not None:
                claim(self._disk, self.path, self._fence)
                self._mend(self._disk)
            self.committed()
        finally:
            self.abandon()

    def abandon(self) -> None:
        disk, self._disk = self._disk, None
        if disk is not None:
            disk.close()

    def _ready(self, makes: bool = False) -> Appended:
        if self._disk is not None and self._disk.moved():
            self._leave(self._disk)
        if self._disk is None:
            disk = self._open_disk(makes)
            try:
                claim(disk, self.path, self._fence)
                if not (makes or self._known):
                    disk.settle()
                self._drop_torn_header(disk)
                self._encode, self._header = self._encoding_of(disk)
                if self._known or not self._resume(disk, makes=makes):
                    self._end_last_row(disk, cut=not (makes or self._known))
            except BaseException:
                disk.close()
                raise
            self._disk, self._known = disk, True
            if self._header and not disk.size():
                self._append(disk, self._header)
            self._size = disk.size()
        else:
            claim(self._disk, self.path, self._fence)
        self._mend(self._disk)
        self._look_at_size(self._disk)
        return self._disk

    def _leave(self, disk: Appended) -> None:
        """The file has been moved away, as log rotation does, or deleted: the next row starts a new one."""
        if disk.deleted():
            if self._first is not None and self.next is not None and self.next > self._first:
                self._say(
                    f"{self.path} was deleted with the rows {self._first} to {self.next - 1}; a new file starts at row "
                    f"{self.next}"
                )
        else:
            try:
                disk.sync()
            except OSError as error:
                raise NotDurableError(error) from error
        self.abandon()
        self._whole = self._tail = self._first = None

    def _look_at_size(self, disk: Appended) -> None:
        """Notice what another program did to the file."""
        size = disk.size()
        if self._size is not None and size != self._size:
            if size < self._size:
                self._say(
                    f"{self.path} was shrunk from {self._size} to {size} bytes by another program; rows up to "
                    f"{(self.next or 0) - 1} that were there are gone"
                )
            else:
                self._say(f"another program wrote {size - self._size} bytes to {self.path}")
            self._tail = None
            self._end_last_row(disk, cut=False)
            size = disk.size()
        self._size = size

    def _resume(self, disk: Appended, *, makes: bool) -> bool:
        """Find out which rows the file has, after a restart; False if the file is not the one that the sink wrote."""
        position = self._position
        if makes or position is None:
            return False
        size = disk.size()
        began = self._label_of(disk) if self._complete or position.offset is not None else None
        at, begin = position.offset or 0, len(self._header)
        known = position.offset is not None and size >= at and _mark(disk, at) == position.mark
        if known and (at > begin or (began is None and size > begin)):  # else any file looks like it
            offset, first = at, position.next
        elif began is not None and began >= position.next:
            offset, first = begin, began  # the rows below are in the file before log rotation
        elif (following := self._after_rotated(disk)) is not None:
            offset, first = begin, following
        elif known:
            offset, first = at, position.next
        else:
            if at > begin:
                lost = "is gone" if not size else "is another file, or was changed by another program"
                missing = f"the rows up to {position.next - 1} may be missing"
                self._say(f"{self.path} {lost}: {missing}; it continues with row {position.next}")
            return False
        self.next = first
        if not self._complete:
            disk.truncate(min(offset, size))
            return True
        whole, rows = _whole_rows(disk, offset, size, quoted=self._quoted)
        if whole < size:
            disk.truncate(whole)
            log.warning("removed a partially written row", path=str(self.path), bytes=size - whole)
        if rows:
            self._tail = Tail(offset, first + rows)
        return True

    def _after_rotated(self, disk: Appended) -> int | None:
        """The number of the row after those in files that were renamed since the position, if a kill or a power cut
        came before the present file had its label; None if none is found."""
        position = self._position
        if position is None or position.offset is None or not self._complete:
            return None
        ends = []
        for other in disk.rotated():
            try:
                other.settle()
                size, began = other.size(), self._label_of(other)
                if began is not None and began >= position.next:
                    begin, first = len(self._header), began
                elif len(self._header) < position.offset <= size and _mark(other, position.offset) == position.mark:
                    begin, first = position.offset, position.next
                else:
                    continue
                whole, rows = _whole_rows(other, begin, size, quoted=self._quoted)
                if whole < size:
                    other.truncate(whole)
                    other.sync()
                ends.append(first + rows)
            finally:
                other.close()
        return max(ends, default=None)

    def _label_of(self, disk: Appended) -> int | None:
        """The number of the file's first row in this history."""
        history, _, first = (disk.label() or "").partition(" ")
        mine = self._position is not None and history == self._position.history
        return int(first) if mine and first.isdecimal() else None

    def _drop_torn_header(self, disk: Appended) -> None:
        """A kill may have left a part of a new file's header, and a power cut zeros in place of some of it."""
        size = disk.size()
        if 0 < size <= len(self._header):
            data = disk.read(size, 0)
            torn = all(found in (0, wanted) for found, wanted in zip(data, self._header, strict=False))
            if data != self._header and torn:
                disk.truncate(0)

    def _encoding_of(self, disk: Appended) -> tuple[Encode, bytes]:
        if self._former is not None and disk.read(len(self._former[1]), 0) == self._former[1]:
            return self._former
        return self._current

    def _append(self, disk: Appended, data: bytes) -> None:
        """Append rows; after an error the file ends with the last whole one, and `taken` counts those that it has."""
        claim(disk, self.path, self._fence)  # again: rows were encoded meanwhile
        begins, view, done = disk.size(), memoryview(data), 0
        self._appended = 0
        try:
            while done < len(data):
                done += disk.write(view[done:])
        except OSError:
            ends = row_ends(data[:done], quoted=self._quoted)
            self._appended = 0 if data is self._header else len(ends)
            self._whole = begins + (int(ends[-1]) + 1 if len(ends) else 0)
            with suppress(OSError):  # else before the next write
                self._mend(disk)
            raise
        self._size = begins + len(data)

    def _mend(self, disk: Appended) -> None:
        if self._whole is not None:
            if disk.size() > self._whole:
                disk.truncate(self._whole)
            self._size, self._whole = disk.size(), None

    def _end_last_row(self, disk: Appended, *, cut: bool) -> None:
        """Have the next row start on a new line. `cut` a row that a killed server wrote in part; a row of another
        program stays and gets the line feed that it lacks."""
        size = disk.size()
        whole = _whole_size(disk, size, quoted=self._quoted)
        if whole == size:
            return
        if not cut or (not self._header and _is_json(disk.read(min(size - whole, CHUNK), whole))):
            self._append(disk, b"\n")
            return
        disk.truncate(whole)
        log.warning("removed a partially written row", path=str(self.path), bytes=size - whole)


def row_ends(data: bytes, *, quoted: bool) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where rows end in data that starts with a whole row; `quoted` if rows may contain line feeds between quotes."""
    found = np.frombuffer(data, np.uint8)
    ends = found == ord("\n")
    if quoted:
        ends &= np.cumsum(found == ord('"')) % 2 == 0
    return np.flatnonzero(ends)


def _equal_rows(found: bytes, data: bytes, *, quoted: bool) -> int:
    """How many rows at the start of both are equal."""
    begin = 0
    for number, end in enumerate(row_ends(data, quoted=quoted).tolist()):
        if found[begin : end + 1] != data[begin : end + 1]:
            return number
        begin = end + 1
    return 0


def _mark(disk: Appended, offset: int) -> int:
    """A checksum of the bytes before an offset: another file hardly has the same."""
    begin = max(offset - MARK_BYTES, 0)
    return zlib.crc32(disk.read(offset - begin, begin))


def _whole_rows(disk: Appended, begin: int, size: int, *, quoted: bool) -> tuple[int, int]:
    """Where the last whole row ends of those that start at an offset, and how many they are. Sectors that a power cut
    has lost are zeros, which no row contains: the rows end before them."""
    whole = at = begin
    rows = quotes = 0
    while at < size:
        data = disk.read(min(CHUNK, size - at), at)
        if (zeros := data.find(b"\0")) >= 0:
            data, size = data[:zeros], at
        if not data:
            break
        inside = quotes % 2
        ends = row_ends(b'"' + data if inside else data, quoted=quoted)
        if len(ends):
            whole = at + int(ends[-1]) + 1 - inside
            rows += len(ends)
        quotes += data.count(b'"') if quoted else 0
        at += len(data)
    return whole, rows


def _whole_size(disk: Appended, size: int, *, quoted: bool) -> int:
    """How much of a file is whole rows. With quotes they have to be counted from the start; else the end suffices."""
    if quoted:
        whole = at = quotes = 0
        while at < size:
            data = disk.read(CHUNK, at)
            if not data:
                break
            ends = row_ends(b'"' + data if quotes % 2 else data, quoted=True)
            if len(ends):
                whole = at + int(ends[-1]) + 1 - quotes % 2
            quotes += data.count(b'"')
            at += len(data)
        return whole
    at = size
    while at > 0:
        begins = max(at - CHUNK, 0)
        if (found := disk.read(at - begins, begins).rfind(b"\n")) >= 0:
            return begins + found + 1
        at = begins
    return 0


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


class StandardOutput:
    """JSON lines on the daemon's standard output, which stays open and cannot be truncated: the rest of a row that left
    in part leaves first, later. It cannot be read, either: after a kill, rows since the newest position leave again."""

    taken = 0
    unfinished = 0
    path = None
    identity = None
    notice: str | None = None

    def __init__(self) -> None:
        self.history: str | None = None
        self.next: int | None = None
        self._torn = 0  # bytes of the next row that have left already

    @property
    def resume_at(self) -> int | None:
        return self.next

    def prepare(self, position: SinkPosition, *, complete: bool) -> None:
        self.next = position.next

    def start(self) -> dict[str, int]:
        return {}

    def committed(self) -> SinkPosition | None:
        return None if self.next is None or self.history is None else SinkPosition(self.history, self.next)

    def open(self, *, makes: bool = False) -> None:
        """It is open."""

    def write(self, sequence: int, batch: Batch) -> None:
        self.taken = 0
        data = json_lines(batch)
        done = self._torn
        try:
            while done < len(data):
                done += self._put(data[done : done + CHUNK])
        except OSError:
            ends = row_ends(data[:done], quoted=False)
            self.taken = len(ends)
            self.next = sequence + self.taken
            self._torn = done - (int(ends[-1]) + 1 if len(ends) else 0)
            raise
        self.taken, self._torn = len(batch), 0
        self.next = sequence + len(batch)

    def _put(self, data: bytes) -> int:
        return os.write(sys.stdout.fileno(), data)

    def flush(self) -> None:
        """Nothing waits here."""

    def due_seconds(self) -> float | None:
        return None

    def close(self) -> None:
        """It stays open."""

    def abandon(self) -> None:
        """It stays open."""


class Unwritable:
    """A path that a sink has from earlier, and may not write to."""

    taken = 0
    unfinished = 0
    identity = None
    notice: str | None = None
    next: int | None = None
    resume_at: int | None = None

    def __init__(self, path: Path, reason: Refuse) -> None:
        self.path = path
        self.history: str | None = None
        self._reason = reason
        self._position: SinkPosition | None = None

    def prepare(self, position: SinkPosition, *, complete: bool) -> None:
        self._position = position
        self.resume_at = position.next

    def start(self) -> dict[str, int]:
        return {}

    def committed(self) -> SinkPosition | None:
        return self._position

    def open(self, *, makes: bool = False) -> None:
        raise self._reason

    def write(self, sequence: int, batch: Batch) -> None:
        raise self._reason

    def flush(self) -> None:
        raise self._reason

    def due_seconds(self) -> float | None:
        return None

    def close(self) -> None:
        """Nothing is open."""

    def abandon(self) -> None:
        """Nothing is open."""


# -- whole files -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rotation:
    """The size of a file: its most rows or bytes in memory, or the time since its first row."""

    rows: int
    bytes: int
    age_us: int


@dataclass(frozen=True, slots=True)
class Label:
    """The sink and the query, for names and for the metadata of a file."""

    sink: str
    query: str
    format: str


class Folder:
    """A folder for the complete files of a sink."""

    def __init__(self, places: SinkFolders, place: Place, sink: str, *, makes: bool = False) -> None:
        self.path = place.path
        self._sink = sink
        self._handle = places.open_folder(place, makes=makes)
        self.identity = held(self._handle, place.path)

    def names(self) -> list[str]:
        return os.listdir(self._handle)

    def epoch(self) -> str | None:
        return placemarks.found(self._handle, self._sink)

    def leave_epoch(self, text: str) -> None:
        placemarks.leave(self._handle, self._sink, text)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._handle)

    def write(self, name: str, data: bytes) -> None:
        """A new file, durable when this returns."""
        self.remove(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o666, dir_fd=self._handle), "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())

    def sync(self) -> None:
        """Make every name durable."""
        os.fsync(self._handle)

    def rename(self, name: str, to: str) -> None:
        """Give a file its final name; FileExistsError if another has it."""
        try:
            os.link(name, to, src_dir_fd=self._handle, dst_dir_fd=self._handle, follow_symlinks=False)
            os.unlink(name, dir_fd=self._handle)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if to in self.names():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
            os.rename(name, to, src_dir_fd=self._handle, dst_dir_fd=self._handle)
        self.sync()

    def has(self, name: str, data: bytes) -> bool:
        """Whether there is a file of this name with exactly this content."""
        with suppress(OSError):
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._handle)
            with os.fdopen(handle, "rb") as file:
                return file.read(len(data) + 1) == data
        return False

    def lines(self, name: str) -> bytes:
        """The whole lines of a file. They are durable; a torn one at its end is cut off."""
        try:
            handle = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._handle)
        except FileNotFoundError:
            return b""
        with os.fdopen(handle, "r+b", buffering=0) as file:
            settle(file.fileno())
            data = file.readall()
            lines = data.partition(b"\0")[0]  # sectors that a power cut has lost are zeros
            whole = lines.rfind(b"\n") + 1
            if whole < len(data):
                os.ftruncate(file.fileno(), whole)
            return data[:whole]

    def add_line(self, name: str, line: bytes) -> None:
        """Append a line, durable when this returns. It takes the place of what an earlier try has left of it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(name, flags, 0o666, dir_fd=self._handle)
        try:
            size = os.fstat(handle).st_size
            begin = max(size - MOST_LINE_BYTES, 0)
            end = os.pread(handle, size - begin, begin)
            whole = end.rfind(b"\n") + 1
            if end[:whole].endswith(line):
                whole -= len(line)
            if whole < len(end):
                os.ftruncate(handle, begin + whole)
            view = memoryview(line)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
            self.sync()
        finally:
            os.close(handle)

    def open(self, name: str) -> Any:
        """A file for reading."""
        return os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._handle), "rb")

    def moved(self) -> bool:
        try:
            return identity(os.stat(self.path, follow_symlinks=False)) != self.identity
        except OSError:
            return True

    def close(self) -> None:
        os.close(self._handle)
        release(self.identity)


class WholeFile(msgspec.Struct, frozen=True):
    """A line of a manifest."""

    file: str
    history: str | None
    first_seq: int
    last_seq: int
    rows: int


def _metadata(file: Any, format: str) -> Mapping[bytes, bytes]:  # noqa: A002 - the option's name
    """The metadata of a Parquet or Arrow file; ValueError if it is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pq.read_schema(file) if format == "parquet" else pa.ipc.open_file(file).schema
    return schema.metadata or {}


class WholeFiles:
    """Parquet or Arrow files in a folder, `<sink>-<first>-<last>.parquet`: the least and the greatest sequence number.

    Where the folder has files of an earlier history, the history is part of the name:
    `<sink>-<history>-<first>-<last>.parquet`. The manifest `_<sink>.manifest.jsonl` has a line for each whole file, in
    their order. After a kill the sink continues after the last one, wherever its position is; a file that was whole and
    is not in the manifest yet is added.
    """

    notice: str | None = None

    def __init__(
        self,
        path: Path,
        open_folder: Callable[[bool], Folder],
        label: Label,
        schema: Schema,
        rotation: Rotation,
        clock: Callable[[], float] = time.monotonic,
        fence: SinkFence = OPEN,
    ) -> None:
        self._path = path
        self._fence = fence
        self.history: str | None = None
        self.taken = 0
        self._open_folder = open_folder
        self._label = label
        self._schema = schema
        self._rotation = rotation
        self._clock = clock
        self._folder: Folder | None = None
        self._stem: str | None = None
        self._held = BufferedRows()
        self._began = 0.0
        self._data: bytes | None = None  # the file that could not be written yet
        self.next: int | None = None
        self._continued = False  # whether the folder was searched for files of this history

    @property
    def path(self) -> Path:
        return self._path if self._folder is None else self._folder.path

    @property
    def identity(self) -> Identity | None:
        return None if self._folder is None else self._folder.identity

    @property
    def unfinished(self) -> int:
        return self._held.count

    @property
    def resume_at(self) -> int | None:
        return self._held.first if self._held.count else self.next

    def prepare(self, position: SinkPosition, *, complete: bool) -> None:
        self.next = position.next

    def start(self) -> dict[str, int]:
        return {}

    def committed(self) -> SinkPosition | None:
        """Whole files are durable."""
        if self._folder is not None:
            claim(self._folder, self.path, self._fence)
        at = self.resume_at
        return None if at is None or self.history is None else SinkPosition(self.history, at)

    def open(self, *, makes: bool = False) -> None:
        self._ready(makes)

    def write(self, sequence: int, batch: Batch) -> None:
        self.taken = 0
        if not self._continued:
            self._continue(self._ready())
        if self.next is not None and sequence < self.next:
            self.taken = min(self.next - sequence, len(batch))
        while self.taken < len(batch):
            self._finish_if_full()
            at = self.taken
            part = batch.slice(at, min(len(batch), at + self._rotation.rows - self._held.count))
            if not self._held.count:
                self._began = self._clock()
            self._held.add(sequence + at, part)
            self.taken += len(part)
            self.next = sequence + self.taken
        self._finish_if_full()

    def flush(self) -> None:
        self._ready()
        if (due := self.due_seconds()) is not None and due <= 0:
            self._finish()

    def due_seconds(self) -> float | None:
        if not self._held.count:
            return None
        if self._full():
            return 0.0
        return max(self._began + self._rotation.age_us / 1e6 - self._clock(), 0.0)

    def close(self) -> None:
        try:
            if self._held.count:
                self._finish()
        finally:
            self.abandon()

    def abandon(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.close()

    def _ready(self, makes: bool = False) -> Folder:
        if self._folder is not None and self._folder.moved():
            self.abandon()
        if self._folder is None:
            import pyarrow.parquet  # noqa: F401 - it takes a second, in which the first rows would wait

            folder = self._open_folder(makes)
            try:
                claim(folder, folder.path, self._fence)
                self._remove_leftovers(folder)
                folder.sync()  # the names of whole files may not be durable yet
            except BaseException:
                folder.close()
                raise
            self._folder = folder
        else:
            claim(self._folder, self.path, self._fence)
        return self._folder

    def _remove_leftovers(self, folder: Folder) -> None:
        """Remove the unfinished files of a killed server."""
        prefix = f".{self._label.sink}-"
        left = [name for name in folder.names() if name.startswith(prefix) and name.endswith(UNFINISHED)]
        for name in left:
            folder.remove(name)
        if left:
            log.warning("removed the unfinished files of a sink", sink=self._label.sink, files=len(left))

    @property
    def _manifest(self) -> str:
        return f"_{self._label.sink}{LISTS}"

    def _continue(self, folder: Folder) -> None:
        """Find the whole files of this history, and continue after them."""
        entries = []
        for line in folder.lines(self._manifest).splitlines():
            with suppress(msgspec.DecodeError, msgspec.ValidationError):
                entries.append(msgspec.json.decode(line, type=WholeFile))
        listed = {entry.file for entry in entries}
        for name in sorted(folder.names()):
            if name not in listed and (entry := self._whole_file(folder, name)) is not None:
                folder.add_line(self._manifest, _JSON.encode(entry) + b"\n")
                entries.append(entry)
        mine = [entry for entry in entries if entry.history == self.history]
        if mine:
            self._stem = mine[-1].file.rsplit("-", 2)[0]
            self.next = max(self.next or 0, *(entry.last_seq + 1 for entry in mine))
        self._continued = True

    def _whole_file(self, folder: Folder, name: str) -> WholeFile | None:
        """The entry of a file of this sink and history; None for other files."""
        if not name.startswith(f"{self._label.sink}-") or not name.endswith(f".{self._label.format}"):
            return None
        try:
            with folder.open(name) as file:
                about = msgspec.json.decode(_metadata(file, self._label.format).get(KEY, b"{}"))
            entry = WholeFile(name, about["history"], about["first_seq"], about["last_seq"], about["rows"])
        except (OSError, ValueError, KeyError, TypeError, msgspec.DecodeError):
            return None  # a file of another program
        return entry if about.get("sink") == self._label.sink and entry.history == self.history else None

    def _full(self) -> bool:
        return self._held.count >= self._rotation.rows or self._held.bytes >= self._rotation.bytes

    def _finish_if_full(self) -> None:
        if self._full():
            self._finish()

    def _finish(self) -> None:
        """Make a whole file of the rows that are held; after an error they are held still."""
        folder = self._ready()
        if self._data is None:
            self._data = self._encoded()
        data, ending = self._data, f".{self._label.format}"
        while True:
            name = f"{self._stem_in(folder)}-{self._held.first:0{DIGITS}d}-{self._held.last:0{DIGITS}d}{ending}"
            if folder.has(name, data):  # all but the last steps were done when this failed before
                folder.sync()
                break
            aside = f".{name}{UNFINISHED}"
            try:
                folder.write(aside, data)
                claim(folder, self.path, self._fence)  # again: that took a while
                folder.rename(aside, name)
                break
            except FileExistsError:
                folder.remove(aside)
                self._stem = f"{self._label.sink}-{secrets.token_hex(8)}"
            except OSError:
                with suppress(OSError):
                    folder.remove(aside)
                raise
        entry = WholeFile(name, self.history, self._held.first, self._held.last, self._held.count)
        folder.add_line(self._manifest, _JSON.encode(entry) + b"\n")
        self._held, self._data = BufferedRows(), None

    def _stem_in(self, folder: Folder) -> str:
        """The first part of names in this history."""
        if self._stem is None:
            prefix = f"{self._label.sink}-"
            used = any(name.startswith(prefix) for name in folder.names())
            self._stem = f"{prefix}{self.history or secrets.token_hex(8)}" if used else self._label.sink
        return self._stem

    def _encoded(self) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        about = {
            "sink": self._label.sink,
            "query": self._label.query,
            "history": self.history,
            "first_seq": self._held.first,
            "last_seq": self._held.last,
            "rows": self._held.count,
        }
        table = self._held.table()
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), KEY: _JSON.encode(about)})
        buffer = pa.BufferOutputStream()
        if self._label.format == "parquet":
            pq.write_table(table, buffer, row_group_size=ROW_GROUP)
        else:
            with pa.ipc.new_file(buffer, table.schema) as writer:
                writer.write_table(table, ROW_GROUP)
        found: bytes = buffer.getvalue().to_pybytes()
        return found


class BufferedRows:
    """Rows in memory, as Arrow's tables: copies, so that they keep nothing else alive."""

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.first = 0
        self.last = 0
        self._parts: list[Any] = []

    def add(self, sequence: int, batch: Batch) -> None:
        """Rows numbered from `sequence`; under `on_slow = 'latest'` they need not follow those before."""
        import pyarrow as pa

        from millrace.formats.arrow import to_arrow

        last = sequence + len(batch) - 1
        self.first, self.last = (min(self.first, sequence), max(self.last, last)) if self.count else (sequence, last)
        self.count += len(batch)
        part = pa.Table.from_batches([to_arrow(file_batch(batch))])
        # Each part is larger than the next: single rows do not pile up, and each is copied a few times at most.
        while self._parts and self._parts[-1].num_rows <= part.num_rows:
            part = pa.concat_tables([self._parts.pop(), part]).combine_chunks()
        self._parts.append(part)
        self.bytes = sum(part.nbytes for part in self._parts)

    def table(self) -> Any:
        import pyarrow as pa

        return pa.concat_tables(self._parts)


# -- which one a sink has ----------------------------------------------------------------------------------------------


def line_file(
    places: SinkFolders,
    place: Place,
    schema: Schema,
    format: str,  # noqa: A002 - the option's name
    fence: SinkFence = OPEN,
) -> LineFile:
    """A file of JSON lines or CSV at a place."""

    def opened(makes: bool) -> Disk:
        return Disk(places, place, makes=makes)

    if format == "csv":
        quoted = any(field.type is Type.TEXT for field in schema)

        def encode(batch: Batch) -> bytes:
            return csv_lines(file_batch(batch))

        former = (csv_lines, csv_names(schema)) if schema.retracts else None
        header = csv_names(file_schema(schema))
        return LineFile(place.path, opened, encode, header, quoted=quoted, former=former, fence=fence)
    return LineFile(place.path, opened, json_lines, fence=fence)


def whole_files(
    places: SinkFolders, place: Place, schema: Schema, label: Label, rotation: Rotation, fence: SinkFence = OPEN
) -> WholeFiles:
    """Parquet or Arrow files in the folder at a place."""

    def opened(makes: bool) -> Folder:
        return Folder(places, places.find_folder(place), label.sink, makes=makes)

    return WholeFiles(place.path, opened, label, schema, rotation, fence=fence)
