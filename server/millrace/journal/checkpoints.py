"""Checkpoints: the state of a server after a step, from which the journal's later records lead to the present.

A checkpoint is two files, and parts of others. `<lsn>.state` has the engine, and is written first, by a child process
that has a copy of the server's memory, or by the follower. Large arrays are not in it: it names their chunks, which are
in `<lsn>.chunks` as far as they are new, and in the `.chunks` of earlier checkpoints. `<lsn>.control` has the rest and
makes it complete: it is written when everything that the steps up to `lsn` have led to (rows for subscribers, files of
sinks, history) is durable too. Recovery needs nothing before it then.

Rule: a checkpoint is complete or it does not exist. The newest two have no chunk in common, because one of them could
be damaged: each refers to chunks of the one before the one before it. Which ones stay is decided in `keeping.py`; a
file of chunks stays as long as a state refers to it.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from millrace.engine.saving import Put, SavedState, no_array
from millrace.formats.durable import make_folder, sync_folder
from millrace.journal.chunks import CHUNK_BYTES, ChunkWriter, DamagedChunk, Manifest, arrays_of, manifest_of, write_all
from millrace.journal.steps import FORM, pack, unpack
from millrace.protocol import MillraceError

FOLDER: Final = "checkpoints"
# The last character is the form. A newer server reads older forms, never the other way round. A state of form 1 is in
# one piece.
_MAGIC: Final = b"MRCHECK2"
_WHOLE: Final = b"MRCHECK1"
_HEAD_BYTES: Final = len(_MAGIC) + 12
# In front of a manifest, the bytes of the whole state.
_SIZE_BYTES: Final = 8
_NAME: Final = re.compile(r"(\d{20})\.(state|control|chunks)(\.part\d*)?")


class CheckpointError(MillraceError):
    """A checkpoint cannot be read or written."""

    code = "checkpoint"


class CheckpointRefused(CheckpointError):  # noqa: N818 - named after the event
    """The checkpoint is whole, but of a newer version or another user: an older one must not be used instead."""

    code = "checkpoint_refused"


class Checkpoint(NamedTuple):
    """A complete checkpoint: the number of its last step, the saved engine, and the control state as plain data."""

    lsn: int
    state: SavedState
    control: dict[str, Any]


class Checkpoints:
    """The checkpoints of one data directory.

    damaged  complete ones that could not be read
    """

    chunk_bytes: ClassVar[int] = CHUNK_BYTES

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir / FOLDER
        self.damaged: set[int] = set()
        self._uses: dict[int, frozenset[int]] = {}  # by state, the files that have its chunks

    def prepare(self) -> None:
        """Create the folder, and remove what a killed server has left unfinished. What stays is durable then, which it
        may not have been."""
        make_folder(self.folder)
        sync_folder(self.folder)
        complete = set(self.complete())
        for path, lsn, kind, part in self._files():
            if part or (lsn not in complete and kind != "chunks"):
                path.unlink(missing_ok=True)
        self._sweep(lambda _: True)

    def complete(self) -> list[int]:
        """The complete checkpoints, oldest first."""
        found: dict[int, set[str]] = {}
        for _, lsn, kind, part in self._files():
            if not part:
                found.setdefault(lsn, set()).add(kind)
        return sorted(lsn for lsn, kinds in found.items() if kinds >= {"state", "control"})

    def write_state(self, lsn: int, save: Callable[[Put], bytes]) -> None:
        """Write a state: `save` puts its large arrays, and returns the rest."""
        path = self._path(lsn, "chunks")
        aside = _aside(path)
        writer = ChunkWriter(lsn, aside, self._known_chunks(), self.chunk_bytes)
        try:
            manifest = writer.finish(save(writer.put))
        finally:
            writer.close()
        if writer.written:
            aside.rename(path)  # durable with the name of the state
        size = manifest.size.to_bytes(_SIZE_BYTES, "big")
        _write(self._path(lsn, "state"), [size, manifest.to_bytes()])

    def _known_chunks(self) -> dict[bytes, tuple[int, int]]:
        """The chunks that a new state may refer to: those of the older of the newest two."""
        base = self.complete()[-2:-1]
        if not base or base[0] in self.damaged:
            return {}
        try:
            manifest = self._manifest(base[0])
            return {} if manifest is None else manifest.reusable(self._chunks)
        except (CheckpointError, OSError):
            return {}  # it is written as a whole

    def write_control(self, lsn: int, control: dict[str, Any]) -> None:
        """Complete the checkpoint."""
        _write(self._path(lsn, "control"), [pack(control)])

    def read(self, lsn: int) -> Checkpoint:
        try:
            control = self.control(lsn)
            return Checkpoint(lsn, self._state(lsn), control)
        except CheckpointRefused:
            raise
        except CheckpointError:
            self.damaged.add(lsn)
            raise

    def control(self, lsn: int) -> dict[str, Any]:
        """The control state alone: that of the engine may be large."""
        path = self._path(lsn, "control")
        _, control = _read(path)
        data: dict[str, Any] = _unpacked(path, lambda: unpack(control))
        if data["form"] > FORM:
            raise _newer(path, f"form {data['form']}, this one reads {FORM}")
        return data

    def _state(self, lsn: int) -> SavedState:
        manifest = self._manifest(lsn)
        if manifest is None:
            return SavedState(_read(self._path(lsn, "state"))[1], no_array)
        try:
            return SavedState(manifest.body, arrays_of(manifest, self._chunks).__getitem__)
        except DamagedChunk as error:
            raise CheckpointError(str(error)) from None
        except OSError as error:
            raise _unreadable(Path(error.filename or self._path(lsn, "chunks")), error) from None

    def _manifest(self, lsn: int) -> Manifest | None:
        """None: the state is in one piece."""
        path = self._path(lsn, "state")
        magic, data = _read(path)
        return None if magic == _WHOLE else _unpacked(path, lambda: manifest_of(data[_SIZE_BYTES:]))

    def bytes(self, lsn: int) -> int:
        """The size of a complete checkpoint, whatever it shares with others."""
        path = self._path(lsn, "state")
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES + _SIZE_BYTES)
        whole = head.startswith(_WHOLE)
        state = path.stat().st_size if whole else int.from_bytes(head[_HEAD_BYTES:], "big")
        return state + self._path(lsn, "control").stat().st_size

    def written_bytes(self, lsn: int) -> int:
        """The bytes of a complete checkpoint's own files."""
        own = [path for path, number, _, part in self._files() if number == lsn and not part]
        return sum(path.stat().st_size for path in own)

    def files(self, lsn: int) -> list[Path]:
        """The files of a complete checkpoint, also those that it shares with others."""
        return [self._path(lsn, "state"), self._path(lsn, "control"), *map(self._chunks, sorted(self._used(lsn)))]

    def forget(self, lsn: int) -> None:
        """Remove a checkpoint."""
        self._remove(lsn)
        newest = max(self.complete(), default=0)
        self._sweep(lambda chunks: chunks <= newest)  # another state may be about to be written

    def discard(self, lsn: int) -> None:
        """Remove the state of a checkpoint that was not completed."""
        self._remove(lsn)
        self._sweep(lambda chunks: chunks == lsn)

    def _remove(self, lsn: int) -> None:
        """Its control file first: without that it is none."""
        self._uses.pop(lsn, None)
        for path, number, kind, part in self._files():
            if number == lsn and (part or kind != "chunks"):
                path.unlink(missing_ok=True)

    def _sweep(self, may_go: Callable[[int], bool]) -> None:
        """Remove chunks that no state refers to."""
        files = [(lsn, kind) for _, lsn, kind, part in self._files() if not part]
        there = [lsn for lsn, kind in files if kind == "chunks" and may_go(lsn)]
        if not there:
            return
        try:
            used = frozenset[int]().union(*(self._used(lsn) for lsn, kind in files if kind == "state"))
        except CheckpointError:
            return  # until the state that cannot be read has gone
        unused = [lsn for lsn in there if lsn not in used]
        if unused:
            sync_folder(self.folder)  # a removed state must not come back without them
        for lsn in unused:
            self._chunks(lsn).unlink(missing_ok=True)

    def _used(self, lsn: int) -> frozenset[int]:
        """The files that have the chunks of a state."""
        if lsn not in self._uses:
            manifest = self._manifest(lsn)
            self._uses[lsn] = frozenset() if manifest is None else frozenset(manifest.files)
        return self._uses[lsn]

    def _chunks(self, lsn: int) -> Path:
        return self._path(lsn, "chunks")

    def _path(self, lsn: int, kind: str) -> Path:
        return self.folder / f"{lsn:020}.{kind}"

    def _files(self) -> Iterator[tuple[Path, int, str, bool]]:
        """Each file with its checkpoint, its kind, and whether it is unfinished."""
        if self.folder.exists():
            for path in sorted(self.folder.iterdir()):
                match = _NAME.fullmatch(path.name)
                if match is not None:
                    yield path, int(match[1]), match[2], match[3] is not None


def _unpacked(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # its checksum is right
        raise _newer(path, str(error) or type(error).__name__) from error


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.part{os.getpid()}")


def _write(path: Path, parts: Sequence[bytes]) -> None:
    """A whole file under its final name, durable, or none."""
    aside = _aside(path)
    size, checksum = 0, 0
    for part in parts:
        size, checksum = size + len(part), zlib.crc32(part, checksum)
    head = _MAGIC + size.to_bytes(8, "big") + checksum.to_bytes(4, "big")
    handle = os.open(aside, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(handle, [head, *parts])
        os.fsync(handle)
    finally:
        os.close(handle)
    aside.rename(path)
    sync_folder(path.parent)


def _read(path: Path) -> tuple[bytes, bytes]:
    """The form of a file, and its contents."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    magic = data[: len(_MAGIC)]
    if len(data) >= _HEAD_BYTES and magic[:-1] == _MAGIC[:-1] and magic > _MAGIC:
        raise _newer(path, f"checkpoint form {magic[-1:].decode(errors='replace')}, this one reads {chr(_MAGIC[-1])}")
    if magic not in (_WHOLE, _MAGIC) or len(data) < _HEAD_BYTES:
        raise CheckpointError(f"{path} is damaged: it does not start as a checkpoint does")
    size = int.from_bytes(data[_HEAD_BYTES - 12 : _HEAD_BYTES - 4], "big")
    checksum = int.from_bytes(data[_HEAD_BYTES - 4 : _HEAD_BYTES], "big")
    body = data[_HEAD_BYTES:]
    if len(body) != size or zlib.crc32(body) != checksum:
        raise CheckpointError(f"{path} is damaged: its checksum does not match its {len(body)} bytes")
    return magic, body


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    reason = (error.strerror or str(error)).lower()
    if isinstance(error, PermissionError):
        return CheckpointRefused(f"cannot read {path}: {reason}: give it to the server's user")
    return CheckpointError(f"cannot read {path}: {reason}")


def _newer(path: Path, why: str) -> CheckpointRefused:
    return CheckpointRefused(
        f"{path} was written by a newer Millrace ({why}): start that version, or use another data directory"
    )
