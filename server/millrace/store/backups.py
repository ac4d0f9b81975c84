"""Backups of a data directory: made while its server runs or not, and restored into a new directory.

Rule: a backup is what a kill would have left, at one moment. So the order of the copies matters: a checkpoint, then the
files outside the journal, which have at least what was durable at the checkpoint, then the journal, which has at least
what those files have. Nothing is locked and nothing in the data directory changes. The manifest is written last: a
backup without it is not complete. A restored directory is complete, too, or it does not exist.

    <backup>/backup.json     the manifest: what it is a backup of, and the size and SHA-256 of each file
    <backup>/data/           the data directory
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, NamedTuple

from millrace.formats.durable import sync_folder, write_whole
from millrace.journal.checkpoints import FOLDER as CHECKPOINTS
from millrace.journal.checkpoints import CheckpointError, CheckpointRefused, Checkpoints
from millrace.journal.disk import JOURNAL_FOLDER, RealDisk
from millrace.journal.layout import HEADER_BYTES, scan, segment_lsns, segment_name
from millrace.journal.reader import open_segment
from millrace.protocol import MillraceError
from millrace.protocol.timestamps import format_timestamp
from millrace.run.config import FIRST_TOKENS
from millrace.store.sinkfiles import LISTS

MANIFEST: Final = "backup.json"
DATA: Final = "data"
# A newer version reads older forms, never the other way round.
FORM: Final = 1
# Of a running server, or derived from the journal: a start writes them again. Tokens are secrets of this directory; a
# backup has their hashes.
_LEFT_OUT: Final = (
    *FIRST_TOKENS,
    "addresses.json",
    "addresses.part",
    "running.json",
    "standby.json",
    "alone.json",
    "catalog.sqlite",
    JOURNAL_FOLDER,
    CHECKPOINTS,
)
_CHUNK: Final = 1 << 20


class BackupError(MillraceError):
    """A backup cannot be made or restored. What was there before is as it was."""

    code = "backup"


@dataclass(frozen=True, slots=True)
class Backup:
    """A complete backup. A server that is restored from it replays the steps after `checkpoint`, up to `last_lsn`."""

    server: str
    version: str
    at_us: int
    checkpoint: int
    last_lsn: int
    files: dict[str, tuple[int, str]]

    @property
    def bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


# -- the pieces of a copy ----------------------------------------------------------------------------------------------


class Began(NamedTuple):
    """A file of the data directory, by its path in it. Its contents follow, and replace earlier ones."""

    name: str
    mode: int
    mtime_ns: int
    attributes: dict[str, bytes]


class Zeros(NamedTuple):
    """So many zero bytes of the file."""

    size: int


class Ended(NamedTuple):
    """The file is complete: its bytes and their SHA-256."""

    size: int
    digest: str


class Left(NamedTuple):
    """A copied file is in the data directory no more."""

    name: str


Piece = Began | bytes | Zeros | Ended | Left


@dataclass(slots=True)
class _Copied:
    """What the pieces so far add up to, by path in the data directory."""

    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    # When a file was copied, its size and when it was changed.
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, name: str, source: BinaryIO, limit: int | None = None, size: int | None = None) -> Iterator[Piece]:
        """A file: up to `limit`, then zeros up to `size`."""
        digest, done = hashlib.sha256(), 0
        yield _head(name, source)
        while chunk := source.read(_CHUNK if limit is None else min(_CHUNK, limit - done)):
            digest.update(chunk)
            done += len(chunk)
            yield chunk
        if size is not None and size > done:
            for begin in range(done, size, _CHUNK):
                digest.update(bytes(min(_CHUNK, size - begin)))
            yield Zeros(size - done)
            done = size
        self.files[name] = done, digest.hexdigest()
        yield Ended(*self.files[name])

    def forget(self, name: str) -> Iterator[Piece]:
        del self.files[name], self.seen[name]
        yield Left(name)


def _head(name: str, source: BinaryIO) -> Began:
    status = os.fstat(source.fileno())
    attributes = {}
    with suppress(OSError, AttributeError):  # of systems without such attributes
        for key in os.listxattr(source.fileno()):
            if key.startswith("user."):
                attributes[key] = os.getxattr(source.fileno(), key)
    return Began(name, stat.S_IMODE(status.st_mode), status.st_mtime_ns, attributes)


def pieces_of(data_dir: Path, now_us: int) -> Generator[Piece, None, Backup]:
    """A copy of what belongs to a data directory, piece by piece; returns the manifest of all pieces."""
    checkpoints, copied = Checkpoints(data_dir), _Copied()
    if not checkpoints.complete():
        raise BackupError(
            f"{data_dir} has no checkpoint: name the data directory of a server that this version has started"
        )
    yield from _others_changed(data_dir, copied)  # most of it, so that little is left once there is a checkpoint
    checkpoint, control = yield from _newest_checkpoint(checkpoints, copied)
    yield from _others_changed(data_dir, copied)
    last_lsn = yield from _journal_after(data_dir, checkpoint, control["server"], copied)
    files = dict(sorted(copied.files.items()))
    return Backup(control["server"].hex(), control["version"], now_us, checkpoint, last_lsn, files)


def _others_changed(data_dir: Path, copied: _Copied) -> Iterator[Piece]:
    """Everything outside the journal and the checkpoints that is new or has changed since it was copied.

    A list of a sink's files is copied as far as it went before its folder was read: each file in it is copied, too. A
    sink finds files that are not in its list.
    """
    there, sizes = set(), {}
    for path in _others(data_dir):
        with suppress(FileNotFoundError):
            if path.name.endswith(LISTS):
                sizes[path] = path.stat().st_size
    for path in _others(data_dir):
        name = path.relative_to(data_dir).as_posix()
        try:
            source = path.open("rb")
        except FileNotFoundError:
            continue  # its server has removed it
        with source:
            status = os.fstat(source.fileno())
            there.add(name)
            if copied.seen.get(name) != (status.st_size, status.st_mtime_ns):
                yield from copied.add(name, source, sizes.get(path, 0) if name.endswith(LISTS) else None)
                copied.seen[name] = status.st_size, status.st_mtime_ns
    for name in copied.seen.keys() - there:
        yield from copied.forget(name)


def _others(data_dir: Path) -> Iterator[Path]:
    """Newest first in each folder: if its server removes the oldest meanwhile, there is no gap."""
    for folder, folders, names in os.walk(data_dir):
        top = Path(folder) == data_dir
        folders[:] = sorted(name for name in folders if not (top and name in _LEFT_OUT))
        for name in sorted(names, reverse=True):
            if top and name.startswith(_LEFT_OUT):
                continue
            path = Path(folder) / name
            if not (name.startswith(".") and ".part" in name) and path.is_file() and not path.is_symlink():
                yield path


def _newest_checkpoint(checkpoints: Checkpoints, copied: _Copied) -> Generator[Piece, None, tuple[int, dict[str, Any]]]:
    """The newest checkpoint that can be read; its server may replace it meanwhile by newer ones."""
    complete = checkpoints.complete()
    while complete:
        lsn = complete.pop()
        try:
            control = checkpoints.read(lsn).control
            with ExitStack() as stack:
                for source in [stack.enter_context(path.open("rb")) for path in checkpoints.files(lsn)]:
                    yield from copied.add(f"{CHECKPOINTS}/{Path(source.name).name}", source)
        except CheckpointRefused:
            raise
        except (CheckpointError, FileNotFoundError) as error:
            newer = [one for one in checkpoints.complete() if one > lsn]
            if newer:
                complete = newer
            elif not complete:
                raise BackupError(f"{error}: no checkpoint can be copied") from None
            continue
        return lsn, control
    raise BackupError(f"{checkpoints.folder} has no checkpoint any more")


def _journal_after(data_dir: Path, checkpoint: int, server_id: bytes, copied: _Copied) -> Generator[Piece, None, int]:
    """The segments with records after the checkpoint, up to the newest record; returns its number."""
    disk = RealDisk(data_dir / JOURNAL_FOLDER)
    lsns = segment_lsns(disk)
    if not lsns or lsns[0] > checkpoint + 1:
        raise BackupError(f"{disk.folder} lacks the records after {checkpoint}: run `millrace journal check`")
    first = max(lsn for lsn in lsns if lsn <= checkpoint + 1)
    while True:
        last = yield from _segment(disk, first, server_id, copied)
        following = [lsn for lsn in segment_lsns(disk) if lsn > first]
        if not following:
            break
        if following[0] > last + 1:
            # Complete before the next one starts, so what was added since is there now.
            last = yield from _segment(disk, first, server_id, copied)
            if following[0] > last + 1:
                raise BackupError(
                    f"{disk.path(segment_name(first))} ends with record {last}, and the next segment starts with "
                    f"{following[0]}: run `millrace journal check`"
                )
        first = following[0]
    if last < checkpoint:
        raise BackupError(f"{disk.folder} ends before the checkpoint {checkpoint}: run `millrace journal check`")
    return last


def _segment(disk: RealDisk, first: int, server_id: bytes, copied: _Copied) -> Generator[Piece, None, int]:
    """One segment, whose server may be appending to it; returns the number of its last record."""
    name = segment_name(first)
    try:
        file, head = open_segment(disk, first, server_id)
        source = (disk.folder / name).open("rb")
    except FileNotFoundError:
        raise BackupError(f"{disk.path(name)} was removed by its server during the backup: start it again") from None
    try:
        end, last = HEADER_BYTES, first - 1
        for record in scan(file, disk.path(name), head, HEADER_BYTES, first):
            end, last = record.end, record.lsn
    finally:
        file.close()
    with source:
        yield from copied.add(f"{JOURNAL_FOLDER}/{name}", source, end, head.size)
    return last


# -- the folder of a copy ----------------------------------------------------------------------------------------------


class Copy:
    """A folder that pieces become files in, durably. `files` are those that are complete, with size and SHA-256."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, tuple[int, str]] = {}
        self._file: BinaryIO | None = None
        self._head = Began("", 0, 0, {})
        self._size = 0
        self._digest = hashlib.sha256()

    def take(self, piece: Piece) -> None:
        """The next piece. BackupError if it is not what was sent."""
        match piece:
            case Began():
                self._begin(piece)
            case Left(name):
                if self.files.pop(name, None) is None:
                    raise BackupError(f"the copy is damaged: it removes {name!r}, which it does not have")
                (self.folder / name).unlink()
            case Ended():
                self._end(piece)
            case _:
                self._write(piece)

    def _begin(self, head: Began) -> None:
        check_name(head.name, "the copy")
        path = self.folder / head.name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.close()
        self._file = path.open("wb")
        self._head, self._size, self._digest = head, 0, hashlib.sha256()

    def _write(self, data: bytes | Zeros) -> None:
        if self._file is None:
            raise BackupError("the copy is damaged: it has bytes of no file")
        if isinstance(data, bytes):
            self._file.write(data)
            self._digest.update(data)
            self._size += len(data)
            return
        size = self._size + data.size
        self._file.truncate(size)
        for begin in range(self._size, size, _CHUNK):
            self._digest.update(bytes(min(_CHUNK, size - begin)))
        self._size = size

    def _end(self, end: Ended) -> None:
        file, head = self._file, self._head
        if file is None:
            raise BackupError("the copy is damaged: it ends no file")
        file.flush()
        for key, value in head.attributes.items():
            with suppress(OSError, AttributeError):  # of a file system without such attributes
                os.setxattr(file.fileno(), key, value)
        os.fsync(file.fileno())
        self.close()
        path, found = self.folder / head.name, Ended(self._size, self._digest.hexdigest())
        path.chmod(head.mode)
        os.utime(path, ns=(head.mtime_ns, head.mtime_ns))
        if found != end:
            raise CopyDiffers(head.name, found, end)
        self.files[head.name] = found

    def sync_folders(self) -> None:
        for folder in sorted({path.parent for path in self.folder.rglob("*")}, reverse=True):
            sync_folder(folder)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class CopyDiffers(BackupError):  # noqa: N818 - named after the state
    """A file arrived with other bytes than it left with."""

    def __init__(self, name: str, found: Ended, sent: Ended) -> None:
        self.found, self.sent = found, sent
        super().__init__(
            f"the copy of {name} is damaged: {found.size} bytes arrived, with another checksum than the {sent.size} "
            "bytes that were sent"
        )


@contextmanager
def arriving(data_dir: Path, advice: str) -> Iterator[Copy]:
    """A copy that becomes a data directory when the block ends: whole, or, after an error, not there."""
    _refuse_contents(data_dir, advice)
    if data_dir.is_mount():
        raise BackupError(f"{data_dir} is a mount point, which cannot be replaced as a whole: name a directory in it")
    data_dir = data_dir.absolute()
    parent = data_dir.parent
    parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{data_dir.name}.restoring-"
    _remove_abandoned(parent, prefix)
    aside = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    copy, held = Copy(aside), _hold(aside)
    try:
        yield copy
        copy.sync_folders()
        if data_dir.exists():
            aside.chmod(data_dir.stat().st_mode & 0o777)
        aside.rename(data_dir)
        sync_folder(parent)
    finally:
        copy.close()
        shutil.rmtree(aside, ignore_errors=True)
        os.close(held)


def _hold(folder: Path) -> int:
    """Lock a folder as long as the handle is open, or this process lives."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove what killed processes have copied in vain."""
    for path in parent.iterdir():
        if path.name.startswith(prefix):
            with suppress(OSError):  # it is another's, who still copies
                os.close(_hold(path))
                shutil.rmtree(path, ignore_errors=True)


# -- backups -----------------------------------------------------------------------------------------------------------


def make_backup(data_dir: Path, target: Path, now_us: int) -> Backup:
    """Copy what belongs to a data directory into a new or empty folder."""
    if not data_dir.is_dir():
        raise BackupError(f"{data_dir} is not a directory: name the data directory of a server")
    if target.resolve().is_relative_to(data_dir.resolve()):
        raise BackupError(f"{target} is in the data directory {data_dir}: name a folder outside it")
    _refuse_contents(target, "name a new folder for the backup")
    copy, pieces = Copy(target / DATA), pieces_of(data_dir, now_us)
    try:
        first = next(pieces)
        target.mkdir(parents=True, exist_ok=True)
        copy.take(first)
        while True:
            copy.take(next(pieces))
    except StopIteration as end:
        backup: Backup = end.value
        copy.sync_folders()
        _write_manifest(target, backup)
        return backup
    except OSError as error:
        raise BackupError(f"the backup in {target} is not complete: {_words(error)}") from None
    finally:
        copy.close()


def restore_backup(source: Path, data_dir: Path) -> Backup:
    """Make a data directory of a backup: verified and whole, or not there."""
    backup = read_manifest(source)
    try:
        with arriving(data_dir, "name a new data directory") as copy:
            for name, sent in backup.files.items():
                with (source / DATA / name).open("rb") as file:
                    _restore(copy, name, file, Ended(*sent))
    except OSError as error:
        raise BackupError(f"nothing was restored: {_words(error)}") from None
    return backup


def _restore(copy: Copy, name: str, file: BinaryIO, sent: Ended) -> None:
    copy.take(_head(name, file))
    while chunk := file.read(_CHUNK):
        copy.take(chunk)
    try:
        copy.take(sent)
    except CopyDiffers as error:
        raise BackupError(
            f"{file.name} is damaged: it has {error.found.size} bytes with another checksum than the {sent.size} bytes "
            f"in {MANIFEST}; nothing was restored"
        ) from None


def read_manifest(source: Path) -> Backup:
    path = source / MANIFEST
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        backup = from_manifest(data, str(path))
    except FileNotFoundError:
        raise BackupError(
            f"{source} is not a complete backup: it has no {MANIFEST}, which `millrace backup` writes last"
        ) from None
    except OSError as error:
        raise BackupError(f"the backup cannot be read: {_words(error)}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BackupError(f"{path} is damaged: it is not the manifest of a backup") from None
    return backup


def from_manifest(data: Any, source: str) -> Backup:
    """A manifest as data; ValueError, KeyError, TypeError or AttributeError if it is none."""
    if not isinstance(data, dict):
        raise ValueError
    if isinstance(data["form"], int) and data["form"] > FORM:
        raise BackupError(
            f"{source} was written by a newer Millrace (backup form {data['form']}, this one reads {FORM}): restore "
            "it with that version"
        )
    files = {name: (int(at["bytes"]), str(at["sha256"])) for name, at in data["files"].items()}
    for name in files:
        check_name(name, source)
    return Backup(data["server"], data["version"], data["at_us"], data["checkpoint"], data["last_lsn"], files)


def check_name(name: str, source: str) -> None:
    """Refuse a name that leads out of the data directory."""
    where = PurePosixPath(name)
    if where.is_absolute() or ".." in where.parts or not where.parts:
        raise BackupError(f"{source} is damaged: {name!r} is not a path in a data directory")


def to_manifest(backup: Backup) -> dict[str, Any]:
    return {
        "form": FORM,
        "version": backup.version,
        "server": backup.server,
        "at": format_timestamp(backup.at_us),
        "at_us": backup.at_us,
        "checkpoint": backup.checkpoint,
        "last_lsn": backup.last_lsn,
        "files": {name: {"bytes": size, "sha256": digest} for name, (size, digest) in backup.files.items()},
    }


def _write_manifest(target: Path, backup: Backup) -> None:
    write_whole(target / MANIFEST, json.dumps(to_manifest(backup), indent=1).encode() + b"\n")


# -- files -------------------------------------------------------------------------------------------------------------


def _refuse_contents(folder: Path, advice: str) -> None:
    try:
        if not folder.exists():
            return
        if not folder.is_dir():
            raise BackupError(f"{folder} is not a directory: {advice}")
        if any(folder.iterdir()):
            raise BackupError(f"{folder} is not empty: {advice}")
    except OSError as error:
        raise BackupError(_words(error)) from None


def _words(error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    return reason if error.filename is None else f"{error.filename}: {reason}"
