"""The few things that a journal wants from a file system, and the real one.

Rule: everything on disk goes through `Disk` and `File`, so a simulated disk can lose, tear and refuse it. A write is
durable after `sync()` of its file. The name of a file (made, renamed or removed) is durable after `sync_folder()`.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from millrace.formats.durable import make_folder, sync_folder

Buffer = bytes | bytearray | memoryview

# The journal's folder in a data directory.
JOURNAL_FOLDER: Final = "journal"
# A process that writes the journal locks this file; the system unlocks it when the process ends.
LOCK_FILE: Final = "lock"
# Buffers that one system call takes (Linux: UIO_MAXIOV).
_BUFFERS: Final = 1_024
_ZEROS: Final = bytes(2**20)
# Whole blocks of a large write go to the disk directly, in pieces of this size. The system's cache would take several
# times as much processor time for them, and longer until they are durable.
_DIRECT_BYTES: Final = 2**20
_LARGE: Final = 2**16
_BLOCK: Final = 4_096
# While so large a part of a file is worked on, the system reads as many bytes of what follows.
_AHEAD_FROM: Final = 2**20
_AHEAD_BYTES: Final = 2**22


class File(Protocol):
    """An open file of a fixed size."""

    @property
    def size(self) -> int: ...

    def write_at(self, offset: int, data: Buffer | Sequence[Buffer]) -> None:
        """Write all of it. After an error any part of it may be written."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer at the end of the file."""

    def sync(self) -> None:
        """Wait until everything written so far is durable."""

    def close(self) -> None: ...


class Disk(Protocol):
    """One folder."""

    def path(self, name: str) -> str:
        """A file's path, for messages."""

    def names(self) -> list[str]:
        """The files of the folder; none if the folder does not exist."""

    def create(self, name: str, size: int) -> File:
        """A file of zeros with all its blocks allocated, replacing a file of that name. A full disk is an `OSError`,
        and then the file does not exist."""

    def open(self, name: str, *, write: bool = False) -> File: ...

    def rename(self, name: str, new: str) -> None:
        """Replaces a file called `new`."""

    def remove(self, name: str) -> None: ...

    def sync_folder(self) -> None:
        """Wait until every name made, changed or removed so far is durable."""

    def lock(self) -> bool:
        """Hold the folder against other processes, making it if necessary; False: another process holds it."""

    def unlock(self) -> None: ...


class RealFile:
    """`direct` is another handle of the file, for whole blocks, if the system has such a thing."""

    def __init__(self, handle: int, direct: int | None = None) -> None:
        self._handle = handle
        self._direct = direct
        self._room: npt.NDArray[np.uint8] | None = None  # where blocks are aligned in memory
        self.size = os.fstat(handle).st_size

    def write_at(self, offset: int, data: Buffer | Sequence[Buffer]) -> None:
        if isinstance(data, bytes | bytearray | memoryview):
            data = [data]
        if self._direct is not None and sum(map(len, data)) >= _LARGE:
            self._write_large(offset, data)
        else:
            self._write(offset, data)

    def _write_large(self, offset: int, data: Sequence[Buffer]) -> None:
        """The blocks that it fills go directly, and its ends the other way."""
        size = sum(map(len, data))
        first, last = -offset % _BLOCK, size - (offset + size) % _BLOCK
        pieces = _Pieces(data)
        if first:
            self._write(offset, pieces.take(first))
        for begin in range(first, last, _DIRECT_BYTES):
            blocks = pieces.take(min(_DIRECT_BYTES, last - begin))
            if not self._write_blocks(offset + begin, blocks):
                self._write(offset + begin, blocks)
        if last < size:
            self._write(offset + last, pieces.take(size - last))

    def _write_blocks(self, offset: int, data: Sequence[Buffer]) -> bool:
        """Whether this file system takes blocks directly, and has written these."""
        if self._direct is None:
            return False
        if self._room is None:
            self._room = np.frombuffer(mmap.mmap(-1, _DIRECT_BYTES), np.uint8)
        size = 0
        for piece in data:
            self._room[size : size + len(piece)] = np.frombuffer(piece, np.uint8)  # without the interpreter's lock
            size += len(piece)
        try:
            if os.pwrite(self._direct, self._room[:size].data, offset) == size:
                return True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        self._close_direct()
        return False

    def _write(self, offset: int, data: Sequence[Buffer]) -> None:
        for first in range(0, len(data), _BUFFERS):
            buffers = data[first : first + _BUFFERS]
            size = sum(map(len, buffers))
            written = os.pwritev(self._handle, buffers, offset)
            while written < size:
                rest = b"".join(buffers)[written:]
                written += os.pwrite(self._handle, rest, offset + written)
            offset += size

    def read_at(self, offset: int, size: int) -> bytes:
        data = os.pread(self._handle, size, offset)
        while len(data) < size and (more := os.pread(self._handle, size - len(data), offset + len(data))):
            data += more
        if size >= _AHEAD_FROM and sys.platform != "darwin":
            os.posix_fadvise(self._handle, offset + size, _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        return data

    def sync(self) -> None:
        _sync(self._handle)

    def close(self) -> None:
        self._close_direct()
        os.close(self._handle)

    def _close_direct(self) -> None:
        direct, self._direct = self._direct, None
        if direct is not None:
            os.close(direct)


class _Pieces:
    """Hands out the bytes of several buffers in order, without copying them."""

    def __init__(self, data: Sequence[Buffer]) -> None:
        self._left = deque(memoryview(one) for one in data)

    def take(self, size: int) -> list[memoryview]:
        """The next bytes: there are at least so many."""
        taken = []
        while size:
            piece = self._left.popleft()
            if len(piece) > size:
                self._left.appendleft(piece[size:])
                piece = piece[:size]
            taken.append(piece)
            size -= len(piece)
        return taken


class RealDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: int | None = None

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.folder))
        except FileNotFoundError:
            return []

    def create(self, name: str, size: int) -> RealFile:
        path = self.folder / name
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _allocate(handle, size)
            return RealFile(handle, _open_direct(path))
        except OSError:
            os.close(handle)
            os.unlink(path)
            raise

    def open(self, name: str, *, write: bool = False) -> RealFile:
        handle = os.open(self.folder / name, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)
        if write:
            settle(handle)
        return RealFile(handle, _open_direct(self.folder / name) if write else None)

    def rename(self, name: str, new: str) -> None:
        os.rename(self.folder / name, self.folder / new)

    def remove(self, name: str) -> None:
        os.unlink(self.folder / name)

    def sync_folder(self) -> None:
        sync_folder(self.folder)

    def lock(self) -> bool:
        make_folder(self.folder, 0o700)
        handle = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            os.close(handle)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._lock = handle
        return True

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _open_direct(path: Path) -> int | None:
    """A handle that passes the system's cache; None if there is no such thing here."""
    if not (flag := getattr(os, "O_DIRECT", 0)):
        return None
    try:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC | flag)
    except OSError:
        return None


def _sync(handle: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(handle)


def _allocate(handle: int, size: int) -> None:
    """Allocate all blocks of a new file, as zeros."""
    if sys.platform == "darwin":
        for offset in range(0, size, len(_ZEROS)):
            os.pwrite(handle, _ZEROS[: size - offset], offset)
    else:
        os.posix_fallocate(handle, 0, size)


def settle(handle: int) -> None:
    """Have a file that another process may have written show what is durable: what it shows is on the disk then, and
    not only in memory. After a failed sync the system may still show bytes that it has dropped."""
    _sync(handle)
    _read_from_disk(handle)


def _read_from_disk(handle: int) -> None:
    """Drop the system's copy of a file, so that the next read asks the disk."""
    if sys.platform == "darwin":
        fcntl.fcntl(handle, fcntl.F_NOCACHE, 1)
    else:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
