"""A disk as system calls leave it: what is durable, what the system shows, and what a crash may lose.

Rule: a write, a size or an attribute of a file is durable after a sync of the file. A name is durable after a sync of
its folder. Until then a crash keeps any subset of them: of a write any sectors of 512 bytes, so that the others read as
zeros, and of a name that was added, changed or removed either state. A failed sync makes some of it durable and drops
the rest, and the system shows that still.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

SECTOR = 512


@dataclass(frozen=True, slots=True)
class Write:
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    size: int


@dataclass(frozen=True, slots=True)
class SetLabel:
    name: str
    value: bytes


FileChange = Write | Resize | SetLabel


class Content:
    """The bytes and the extended attributes of a file."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.labels: dict[str, bytes] = {}

    def apply(self, change: FileChange) -> None:
        match change:
            case Write(offset, data):
                self._reach(offset + len(data))
                self.data[offset : offset + len(data)] = data
            case Resize(size):
                del self.data[size:]
                self._reach(size)
            case SetLabel(name, value):
                self.labels[name] = value

    def _reach(self, size: int) -> None:
        if len(self.data) < size:
            self.data.extend(bytes(size - len(self.data)))

    def apply_some(self, change: FileChange, random: Random, share: float) -> None:
        """What the disk has of a change that was not synced."""
        if not isinstance(change, Write):
            if random.random() < share:
                self.apply(change)
            return
        for piece in sectors(change):
            if random.random() < share:
                self.apply(piece)
        if random.random() < share / 2:  # the size, and not the bytes
            self._reach(change.offset + len(change.data))


def sectors(write: Write) -> Iterator[Write]:
    offset, data = write.offset, write.data
    while data:
        room = SECTOR - offset % SECTOR
        yield Write(offset, data[:room])
        offset, data = offset + room, data[room:]


class File:
    def __init__(self) -> None:
        self.durable, self.shown = Content(), Content()
        self.pending: list[FileChange] = []

    def change(self, change: FileChange) -> None:
        self.shown.apply(change)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            self.durable.apply(change)
        self.pending.clear()

    def fail_sync(self, random: Random) -> None:
        for change in self.pending:
            self.durable.apply_some(change, random, 0.5)
        self.pending.clear()

    def reload(self) -> None:
        """Show what is on the disk, as far as nothing waits to be written."""
        self.shown = Content()
        self.shown.labels = dict(self.durable.labels)
        self.shown.data = bytearray(self.durable.data)
        for change in self.pending:
            self.shown.apply(change)

    def crash(self, random: Random, share: float) -> None:
        for change in self.pending:
            self.durable.apply_some(change, random, share)
        self.pending.clear()
        self.reload()


@dataclass(eq=False)
class Folder:
    """`pending` are the names that were removed and set since the last sync."""

    shown: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[tuple[str | None, str | None, Node | None]] = field(default_factory=list)

    def change(self, removed: str | None, name: str | None = None, node: Node | None = None) -> None:
        change = (removed, name, node)
        _rename(self.shown, *change)
        self.pending.append(change)

    def sync(self) -> None:
        self.durable = dict(self.shown)
        self.pending.clear()

    def fail_sync(self, random: Random) -> None:
        self.crash_names(random, 0.5)

    def crash_names(self, random: Random, share: float) -> None:
        for change in self.pending:
            if random.random() < share:
                _rename(self.durable, *change)
        self.pending.clear()

    def crash(self, random: Random, share: float) -> None:
        self.crash_names(random, share)
        self.shown = dict(self.durable)
        for node in {id(node): node for node in self.shown.values()}.values():
            node.crash(random, share)


Node = File | Folder


def _rename(names: dict[str, Node], removed: str | None, name: str | None, node: Node | None) -> None:
    if removed is not None:
        names.pop(removed, None)
    if name is not None and node is not None:
        names[name] = node


def crash(root: Folder, random: Random, share: float | None = None) -> None:
    """Lose what is not durable: all of it (0), nothing (1), or by default any share."""
    root.crash(random, random.choice((0.0, 0.1, 0.5, 0.9, 1.0, random.random())) if share is None else share)


def store(folder: Folder, path: Path) -> None:
    """Make the files that the system shows, in a new folder of the real disk."""
    path.mkdir()
    made: dict[int, Path] = {}
    for name, node in folder.shown.items():
        target = path / name
        if isinstance(node, Folder):
            store(node, target)
        elif id(node) in made:
            target.hardlink_to(made[id(node)])
        else:
            target.write_bytes(node.shown.data)
            made[id(node)] = target
