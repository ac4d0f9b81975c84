"""A disk in memory that loses what it may lose.

It keeps synced and unsynced bytes apart. `crash` keeps any subset of the unsynced writes, torn at sectors of 512
bytes, and any subset of the names made, changed and removed since the folder was synced. `before` is called ahead of
every operation: it may raise the error of a failing disk, or `PowerCut`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from millrace.journal.disk import LOCK_FILE, Buffer

SECTOR = 512


class PowerCut(BaseException):
    """The machine stops in the middle of an operation."""


def nothing(_operation: str, _name: str) -> None:
    pass


@dataclass(eq=False)
class Inode:
    """The contents of a file: on the disk, as the system shows them, and the writes that make the difference."""

    durable: bytearray
    shown: bytearray
    # None: the allocation. A write that a failed sync dropped is in `shown` only.
    unsynced: list[tuple[int, bytes] | None] = field(default_factory=list)

    def crash(self, random: Random, share: float) -> None:
        for write in self.unsynced:
            if write is None:
                if random.random() < share:
                    self.durable.extend(bytes(len(self.shown) - len(self.durable)))
                continue
            for offset, piece in sectors(*write):
                if random.random() < share and len(self.durable) >= offset + len(piece):
                    self.durable[offset : offset + len(piece)] = piece
        self.reload()

    def sync(self) -> None:
        for write in self.unsynced:
            if write is None:
                self.durable.extend(bytes(len(self.shown) - len(self.durable)))
            else:
                offset, data = write
                self.durable[offset : offset + len(data)] = data
        self.unsynced.clear()

    def reload(self) -> None:
        """Show what is on the disk."""
        self.shown = bytearray(self.durable)
        self.unsynced.clear()


def sectors(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    pieces = []
    while data:
        room = SECTOR - offset % SECTOR
        pieces.append((offset, data[:room]))
        offset, data = offset + room, data[room:]
    return pieces


class SimulatedFile:
    def __init__(self, disk: SimulatedDisk, name: str, inode: Inode) -> None:
        self._disk, self._name, self._inode = disk, name, inode
        self._life = disk.life
        self.size = len(inode.shown)
        self.open = True

    def _enter(self, operation: str) -> Inode:
        assert self.open, f"{operation} on a closed file"
        assert self._life == self._disk.life, "a file of before the crash"
        self._disk.before(operation, self._name)
        return self._inode

    def write_at(self, offset: int, data: Buffer | Sequence[Buffer]) -> None:
        data = bytes(data) if isinstance(data, bytes | bytearray | memoryview) else b"".join(data)
        assert offset + len(data) <= self.size, "a write beyond the end of the file"
        assert self.open
        # Both parts can be cut off, and a reader in between sees half of it.
        half = self._disk.random.randrange(len(data) + 1)
        for start, part in ((0, data[:half]), (half, data[half:])):
            inode = self._enter("write")
            inode.shown[offset + start : offset + start + len(part)] = part
            inode.unsynced.append((offset + start, part))
            self._disk.midway()

    def read_at(self, offset: int, size: int) -> bytes:
        return bytes(self._enter("read").shown[offset : offset + size])

    def sync(self) -> None:
        try:
            inode = self._enter("sync")
        except OSError:
            # Like a real disk: some of it is durable, the rest is dropped, and still shown.
            for write in [write for write in self._inode.unsynced if write is not None]:
                for at, piece in sectors(*write):
                    if self._disk.random.random() < 0.5 and len(self._inode.durable) >= at + len(piece):
                        self._inode.durable[at : at + len(piece)] = piece
            self._inode.unsynced.clear()
            raise
        inode.sync()

    def close(self) -> None:
        self.open = False


class SimulatedDisk:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.before: Callable[[str, str], None] = nothing
        self.midway: Callable[[], None] = lambda: None
        self.life = 0
        self.syncs = 0
        self._names: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        # Unsynced changes of the folder: names removed, names set.
        self._changes: list[tuple[str | None, str | None, Inode | None]] = []
        self._locked = False

    def path(self, name: str) -> str:
        return f"disk/{name}"

    def names(self) -> list[str]:
        return sorted(self._names)

    def create(self, name: str, size: int) -> SimulatedFile:
        self.before("create", name)
        inode = Inode(bytearray(), bytearray(size), [None])
        self._change(None, name, inode)
        return SimulatedFile(self, name, inode)

    def open(self, name: str, *, write: bool = False) -> SimulatedFile:
        self.before("open", name)
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        inode = self._names[name]
        if write:
            inode.sync()
            inode.reload()
        return SimulatedFile(self, name, inode)

    def rename(self, name: str, new: str) -> None:
        self.before("rename", name)
        self._change(name, new, self._names[name])

    def remove(self, name: str) -> None:
        self.before("remove", name)
        self._change(name, None, None)

    def sync_folder(self) -> None:
        self.before("sync_folder", "")
        self._durable = dict(self._names)
        self._changes.clear()

    def lock(self) -> bool:
        if self._locked:
            return False
        self._locked = True
        if LOCK_FILE not in self._names:
            self._change(None, LOCK_FILE, Inode(bytearray(), bytearray()))
        return True

    def unlock(self) -> None:
        self._locked = False

    def _change(self, removed: str | None, name: str | None, inode: Inode | None) -> None:
        self._changes.append((removed, name, inode))
        _apply(self._names, removed, name, inode)

    def crash(self) -> None:
        """Lose unsynced writes: all, none, or any share."""
        share = self.random.choice((0.0, 0.1, 0.5, 0.9, 1.0, self.random.random()))
        for inode in self._names.values():
            inode.crash(self.random, share)
        for change in self._changes:
            if self.random.random() < share:
                _apply(self._durable, *change)
        for inode in self._durable.values():
            inode.crash(self.random, share)
        self._names = dict(self._durable)
        self._changes.clear()
        self.end_process()

    def end_process(self) -> None:
        """The process ends, the machine does not: nothing is lost but handles and the lock."""
        self._locked = False
        self.life += 1

    # For tests that damage a disk.

    def contents(self) -> dict[str, bytes]:
        return {name: bytes(inode.shown) for name, inode in sorted(self._names.items()) if name != LOCK_FILE}

    def store(self, name: str, data: bytes) -> None:
        self._names[name] = self._durable[name] = Inode(bytearray(data), bytearray(data))

    def lose(self, name: str) -> None:
        del self._names[name], self._durable[name]


def _apply(names: dict[str, Inode], removed: str | None, name: str | None, inode: Inode | None) -> None:
    if removed is not None:
        names.pop(removed, None)
    if name is not None and inode is not None:
        names[name] = inode
