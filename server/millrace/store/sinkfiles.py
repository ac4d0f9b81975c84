"""Where the rows of sinks go: files of lines, folders of whole files, the standard output. Plain blocking code;
`sink.py` runs it in a thread and decides what happens after an error.

Rule: a reader never sees half a row or half a file. Lines are appended whole: a row that an error or a kill has
torn is cut off. Parquet and Arrow rows wait in memory until their file is full or old enough; it is written aside, made
durable and then renamed to a free name. A write that fails has taken `taken` rows, and nothing of the others.
"""

from __future__ import annotations

import errno
import os
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import structlog

from millrace.formats.writers import ROW_GROUP, csv_lines, csv_names, file_batch, file_schema, json_lines
from millrace.protocol import Refuse, Schema, Type
from millrace.store.places import Identity, Place, SinkFolders, identity
from millrace.values.batch import Batch

log = structlog.get_logger()

# Digits of a sequence number in a name: all of an int64, so that names sort as the numbers do.
DIGITS: Final = 19
# The key of the metadata about a whole file.
KEY: Final = b"millrace"
# The end of the name of a file that is being written; such names start with a dot, so readers pass over them.
UNFINISHED: Final = ".part"
# Bytes that are looked at once in a file that was found.
CHUNK: Final = 1 << 20
# A link that the file system does not offer; a plain renaming has to do.
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
_JSON: Final = msgspec.json.Encoder()

Encode = Callable[[Batch], bytes]


class SinkFile(Protocol):
    """Takes batches of one schema.

    history     the count that the rows' sequence numbers belong to; set before the first `write`
    taken       rows that the newest `write` has taken, when it failed too
    unfinished  rows that are in no file under its final name yet
    """

    history: str | None
    taken: int

    @property
    def unfinished(self) -> int: ...

    @property
    def path(self) -> Path | None: ...

    @property
    def identity(self) -> Identity | None:
        """The open file or folder, by whatever name; None if none is open."""

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

    def close(self) -> None: ...


class Disk:
    """A regular file that is open for appending."""

    def __init__(self, places: SinkFolders, place: Place, *, makes: bool = False) -> None:
        self._places = places
        self._place = place
        self._handle = places.open_file(place, makes=makes)
        self.identity = identity(os.fstat(self._handle))

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

    def close(self) -> None:
        os.close(self._handle)


class LineFile:
    """JSON lines or CSV, appended. A file that was moved away or deleted is created again.

    `former` is an older encoding with its header. A file that starts with that header keeps this encoding.
    """

    taken = 0
    unfinished = 0

    def __init__(
        self,
        path: Path,
        open_disk: Callable[[bool], Appended],
        encode: Encode,
        header: bytes = b"",
        *,
        quoted: bool = False,
        former: tuple[Encode, bytes] | None = None,
    ) -> None:
        self.path = path
        self.history: str | None = None
        self._open_disk = open_disk
        self._current = (encode, header)
        self._former = former
        self._encode, self._header = self._current
        self._quoted = quoted  # whether a row may contain a line feed, between quotes
        self._disk: Appended | None = None
        self._whole: int | None = None  # where the last whole row ends, if a torn one follows
        self._known = False  # whether it was open before: a kill tears no row of another program

    @property
    def identity(self) -> Identity | None:
        return None if self._disk is None else self._disk.identity

    def open(self, *, makes: bool = False) -> None:
        self._ready(makes)

    def write(self, sequence: int, batch: Batch) -> None:
        self.taken = 0
        disk = self._ready()
        if self._header and not disk.size():
            self._append(disk, self._header)
        self._append(disk, self._encode(batch))
        self.taken = len(batch)

    def flush(self) -> None:
        self._ready()

    def due_seconds(self) -> float | None:
        return None

    def close(self) -> None:
        """Nothing is left to do: each write was complete. Retry to cut off torn bytes."""
        try:
            if self._disk is not None and self._whole is not None:
                self._mend(self._disk)
        finally:
            self.abandon()

    def abandon(self) -> None:
        disk, self._disk = self._disk, None
        if disk is not None:
            disk.close()

    def _ready(self, makes: bool = False) -> Appended:
        if self._disk is not None and self._disk.moved():
            self.abandon()
            self._whole = None
        if self._disk is None:
            disk = self._open_disk(makes)
            try:
                self._end_last_row(disk, cut=not (makes or self._known))
            except BaseException:
                disk.close()
                raise
            self._disk, self._known = disk, True
            self._encode, self._header = self._encoding_of(disk)
            if self._header and not disk.size():
                self._append(disk, self._header)
        self._mend(self._disk)
        return self._disk

    def _encoding_of(self, disk: Appended) -> tuple[Encode, bytes]:
        if self._former is not None and disk.read(len(self._former[1]), 0) == self._former[1]:
            return self._former
        return self._current

    def _append(self, disk: Appended, data: bytes) -> None:
        """Append rows; after an error the file ends with the last whole one, and `taken` counts those that it has."""
        begins, view, done = disk.size(), memoryview(data), 0
        try:
            while done < len(data):
                done += disk.write(view[done:])
        except OSError:
            ends = row_ends(data[:done], quoted=self._quoted)
            self.taken = 0 if data is self._header else len(ends)
            self._whole = begins + (int(ends[-1]) + 1 if len(ends) else 0)
            with suppress(OSError):  # else before the next write
                self._mend(disk)
            raise

    def _mend(self, disk: Appended) -> None:
        if self._whole is not None:
            if disk.size() > self._whole:
                disk.truncate(self._whole)
            self._whole = None

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
    in part leaves first, later."""

    taken = 0
    unfinished = 0
    path = None
    identity = None

    def __init__(self) -> None:
        self.history: str | None = None
        self._torn = 0  # bytes of the next row that have left already

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
            self._torn = done - (int(ends[-1]) + 1 if len(ends) else 0)
            raise
        self.taken, self._torn = len(batch), 0

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

    def __init__(self, path: Path, reason: Refuse) -> None:
        self.path = path
        self.history: str | None = None
        self._reason = reason

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
    """A folder for complete files."""

    def __init__(self, places: SinkFolders, place: Place, *, makes: bool = False) -> None:
        self.path = place.path
        self._handle = places.open_folder(place, makes=makes)
        self.identity = identity(os.fstat(self._handle))

    def names(self) -> list[str]:
        return os.listdir(self._handle)

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
        os.fsync(self._handle)

    def has(self, name: str, data: bytes) -> bool:
        """Whether there is a file of this name with exactly this content."""
        with suppress(OSError):
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._handle)
            with os.fdopen(handle, "rb") as file:
                return file.read(len(data) + 1) == data
        return False

    def moved(self) -> bool:
        try:
            return identity(os.stat(self.path, follow_symlinks=False)) != self.identity
        except OSError:
            return True

    def close(self) -> None:
        os.close(self._handle)


class WholeFiles:
    """Parquet or Arrow files in a folder, `<sink>-<first>-<last>.parquet`: the least and the greatest sequence number.

    The numbers of a query start again with the server. Where the folder has files of an earlier history, the
    history is part of the name: `<sink>-<history>-<first>-<last>.parquet`.
    """

    def __init__(
        self,
        path: Path,
        open_folder: Callable[[bool], Folder],
        label: Label,
        schema: Schema,
        rotation: Rotation,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
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

    @property
    def path(self) -> Path:
        return self._path if self._folder is None else self._folder.path

    @property
    def identity(self) -> Identity | None:
        return None if self._folder is None else self._folder.identity

    @property
    def unfinished(self) -> int:
        return self._held.count

    def open(self, *, makes: bool = False) -> None:
        self._ready(makes)

    def write(self, sequence: int, batch: Batch) -> None:
        self.taken = 0
        while self.taken < len(batch):
            self._finish_if_full()
            at = self.taken
            part = batch.slice(at, min(len(batch), at + self._rotation.rows - self._held.count))
            if not self._held.count:
                self._began = self._clock()
            self._held.add(sequence + at, part)
            self.taken += len(part)
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

            folder = self._folder = self._open_folder(makes)
            self._remove_leftovers(folder)
        return self._folder

    def _remove_leftovers(self, folder: Folder) -> None:
        """Remove the unfinished files of a killed server."""
        prefix = f".{self._label.sink}-"
        left = [name for name in folder.names() if name.startswith(prefix) and name.endswith(UNFINISHED)]
        for name in left:
            folder.remove(name)
        if left:
            log.warning("removed the unfinished files of a sink", sink=self._label.sink, files=len(left))

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
            if folder.has(name, data):  # all but the last step was done when this failed before
                break
            aside = f".{name}{UNFINISHED}"
            try:
                folder.write(aside, data)
                folder.rename(aside, name)
                break
            except FileExistsError:
                folder.remove(aside)
                self._stem = f"{self._label.sink}-{secrets.token_hex(8)}"
            except OSError:
                with suppress(OSError):
                    folder.remove(aside)
                raise
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


def line_file(places: SinkFolders, place: Place, schema: Schema, format: str) -> LineFile:  # noqa: A002 - the option's name
    """A file of JSON lines or CSV at a place."""

    def opened(makes: bool) -> Disk:
        return Disk(places, place, makes=makes)

    if format == "csv":
        quoted = any(field.type is Type.TEXT for field in schema)

        def encode(batch: Batch) -> bytes:
            return csv_lines(file_batch(batch))

        former = (csv_lines, csv_names(schema)) if schema.retracts else None
        return LineFile(place.path, opened, encode, csv_names(file_schema(schema)), quoted=quoted, former=former)
    return LineFile(place.path, opened, json_lines)


def whole_files(places: SinkFolders, place: Place, schema: Schema, label: Label, rotation: Rotation) -> WholeFiles:
    """Parquet or Arrow files in the folder at a place."""

    def opened(makes: bool) -> Folder:
        return Folder(places, places.find_folder(place), makes=makes)

    return WholeFiles(place.path, opened, label, schema, rotation)
