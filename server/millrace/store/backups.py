"""Backups of a data directory: made while its server runs or not, and restored into a new directory.

Rule: a backup is what a kill would have left, at one moment. So the order of the copies matters: a checkpoint, then the
files outside the journal, which have at least what was durable at the checkpoint, then the journal, which has at least
what those files have. Nothing is locked and nothing in the data directory changes. The manifest is written last: a
backup without it is not complete. A restored directory is complete, too, or it does not exist.

    <backup>/backup.json     the manifest: what it is a backup of, and the size and SHA-256 of each file
    <backup>/data/           the data directory
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

from millrace.journal.checkpoints import FOLDER as CHECKPOINTS
from millrace.journal.checkpoints import CheckpointError, CheckpointRefused, Checkpoints
from millrace.journal.disk import JOURNAL_FOLDER, RealDisk
from millrace.journal.layout import HEADER_BYTES, scan, segment_lsns, segment_name
from millrace.journal.reader import open_segment
from millrace.protocol import MillraceError
from millrace.protocol.timestamps import format_timestamp

MANIFEST: Final = "backup.json"
DATA: Final = "data"
# A newer version reads older forms, never the other way round.
FORM: Final = 1
# Of a running server, or derived from the journal: a start writes them again.
_LEFT_OUT: Final = ("addresses.json", "addresses.part", "running.json", "catalog.sqlite", JOURNAL_FOLDER, CHECKPOINTS)
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


@dataclass(slots=True)
class _Copies:
    """The copies made so far, by their path in the data directory."""

    target: Path
    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    # When a file was copied, its size and when it was changed.
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, name: str, source: BinaryIO, limit: int | None = None, size: int | None = None) -> None:
        """Copy a file: up to `limit`, then zeros up to `size`."""
        target = self.target / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.files[name] = _copy(source, target, limit, size)
        with suppress(FileNotFoundError):  # its server has removed it meanwhile
            shutil.copystat(source.name, target)

    def forget(self, name: str) -> None:
        (self.target / name).unlink()
        del self.files[name], self.seen[name]


def make_backup(data_dir: Path, target: Path, now_us: int) -> Backup:
    """Copy what belongs to a data directory into a new or empty folder."""
    if not data_dir.is_dir():
        raise BackupError(f"{data_dir} is not a directory: name the data directory of a server")
    if target.resolve().is_relative_to(data_dir.resolve()):
        raise BackupError(f"{target} is in the data directory {data_dir}: name a folder outside it")
    _refuse_contents(target, "name a new folder for the backup")
    checkpoints = Checkpoints(data_dir)
    if not checkpoints.complete():
        raise BackupError(
            f"{data_dir} has no checkpoint: name the data directory of a server that this version has started"
        )
    try:
        target.mkdir(parents=True, exist_ok=True)
        copies = _Copies(target / DATA)
        _copy_others(data_dir, copies)  # most of it, so that little is left to copy once there is a checkpoint
        checkpoint, control = _copy_checkpoint(checkpoints, copies)
        _copy_others(data_dir, copies)
        last_lsn = _copy_journal(data_dir, checkpoint, control["server"], copies)
        backup = Backup(
            control["server"].hex(),
            control["version"],
            now_us,
            checkpoint,
            last_lsn,
            dict(sorted(copies.files.items())),
        )
        for folder in sorted({path.parent for path in (target / DATA).rglob("*")}, reverse=True):
            _sync_folder(folder)
        _write_manifest(target, backup)
    except OSError as error:
        raise BackupError(f"the backup in {target} is not complete: {_words(error)}") from None
    return backup


def _copy_others(data_dir: Path, copies: _Copies) -> None:
    """Everything outside the journal and the checkpoints that is new or has changed since it was copied."""
    there = set()
    for path in _others(data_dir):
        name = path.relative_to(data_dir).as_posix()
        try:
            with path.open("rb") as source:
                status = os.fstat(source.fileno())
                there.add(name)
                if copies.seen.get(name) != (status.st_size, status.st_mtime_ns):
                    copies.add(name, source)
                    copies.seen[name] = status.st_size, status.st_mtime_ns
        except FileNotFoundError:
            continue  # its server has removed it
    for name in copies.seen.keys() - there:
        copies.forget(name)


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


def _copy_checkpoint(checkpoints: Checkpoints, copies: _Copies) -> tuple[int, dict[str, Any]]:
    """The newest checkpoint that can be read; its server may replace it meanwhile by newer ones."""
    complete = checkpoints.complete()
    while complete:
        lsn = complete.pop()
        try:
            control = checkpoints.read(lsn).control
            for path in checkpoints.files(lsn):
                with path.open("rb") as source:
                    copies.add(f"{CHECKPOINTS}/{path.name}", source)
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


def _copy_journal(data_dir: Path, checkpoint: int, server_id: bytes, copies: _Copies) -> int:
    """The segments with records after the checkpoint, up to the newest record; returns its number."""
    disk = RealDisk(data_dir / JOURNAL_FOLDER)
    lsns = segment_lsns(disk)
    if not lsns or lsns[0] > checkpoint + 1:
        raise BackupError(f"{disk.folder} lacks the records after {checkpoint}: run `millrace journal check`")
    first = max(lsn for lsn in lsns if lsn <= checkpoint + 1)
    while True:
        last = _copy_segment(disk, first, server_id, copies)
        following = [lsn for lsn in segment_lsns(disk) if lsn > first]
        if not following:
            break
        if following[0] > last + 1:
            # Complete before the next one starts, so what was added since is there now.
            last = _copy_segment(disk, first, server_id, copies)
            if following[0] > last + 1:
                raise BackupError(
                    f"{disk.path(segment_name(first))} ends with record {last}, and the next segment starts with "
                    f"{following[0]}: run `millrace journal check`"
                )
        first = following[0]
    if last < checkpoint:
        raise BackupError(f"{disk.folder} ends before the checkpoint {checkpoint}: run `millrace journal check`")
    return last


def _copy_segment(disk: RealDisk, first: int, server_id: bytes, copies: _Copies) -> int:
    """One segment, whose server may be appending to it; returns the number of its last record."""
    name = segment_name(first)
    try:
        file, head = open_segment(disk, first, server_id)
    except FileNotFoundError:
        raise BackupError(f"{disk.path(name)} was removed by its server during the backup: start it again") from None
    try:
        end, last = HEADER_BYTES, first - 1
        for record in scan(file, disk.path(name), head, HEADER_BYTES, first):
            end, last = record.end, record.lsn
    finally:
        file.close()
    with (disk.folder / name).open("rb") as source:
        copies.add(f"{JOURNAL_FOLDER}/{name}", source, end, head.size)
    return last


# -- restoring ---------------------------------------------------------------------------------------------------------


def restore_backup(source: Path, data_dir: Path) -> Backup:
    """Make a data directory of a backup: verified and whole, or not there."""
    backup = read_manifest(source)
    _refuse_contents(data_dir, "name a new data directory")
    if data_dir.is_mount():
        raise BackupError(f"{data_dir} is a mount point, which cannot be replaced as a whole: name a directory in it")
    aside = None
    try:
        parent = data_dir.absolute().parent
        parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{data_dir.name}.restoring-", dir=parent))
        for name, (size, digest) in backup.files.items():
            target = aside / name
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = source / DATA / name
            with path.open("rb") as file:
                found = _copy(file, target)
                shutil.copystat(path, target)
            if found != (size, digest):
                raise BackupError(
                    f"{path} is damaged: it has {found[0]} bytes with another checksum than the {size} bytes in "
                    f"{MANIFEST}; nothing was restored"
                )
        for folder in sorted({path.parent for path in aside.rglob("*")}, reverse=True):
            _sync_folder(folder)
        if data_dir.exists():
            aside.chmod(data_dir.stat().st_mode & 0o777)
        aside.rename(data_dir)
        _sync_folder(parent)
        aside = None
    except OSError as error:
        raise BackupError(f"nothing was restored: {_words(error)}") from None
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
    return backup


def read_manifest(source: Path) -> Backup:
    path = source / MANIFEST
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError
        if isinstance(data["form"], int) and data["form"] > FORM:
            raise BackupError(
                f"{path} was written by a newer Millrace (backup form {data['form']}, this one reads {FORM}): restore "
                "it with that version"
            )
        files = {name: (int(at["bytes"]), str(at["sha256"])) for name, at in data["files"].items()}
        backup = Backup(data["server"], data["version"], data["at_us"], data["checkpoint"], data["last_lsn"], files)
    except FileNotFoundError:
        raise BackupError(
            f"{source} is not a complete backup: it has no {MANIFEST}, which `millrace backup` writes last"
        ) from None
    except OSError as error:
        raise BackupError(f"the backup cannot be read: {_words(error)}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BackupError(f"{path} is damaged: it is not the manifest of a backup") from None
    for name in backup.files:
        where = PurePosixPath(name)
        if where.is_absolute() or ".." in where.parts or not where.parts:
            raise BackupError(f"{path} is damaged: {name!r} is not a path in a data directory")
    return backup


def _write_manifest(target: Path, backup: Backup) -> None:
    data = {
        "form": FORM,
        "version": backup.version,
        "server": backup.server,
        "at": format_timestamp(backup.at_us),
        "at_us": backup.at_us,
        "checkpoint": backup.checkpoint,
        "last_lsn": backup.last_lsn,
        "files": {name: {"bytes": size, "sha256": digest} for name, (size, digest) in backup.files.items()},
    }
    aside = target / f"{MANIFEST}.part"
    with aside.open("w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    aside.rename(target / MANIFEST)
    _sync_folder(target)


# -- files -------------------------------------------------------------------------------------------------------------


def _copy(source: BinaryIO, target: Path, limit: int | None = None, size: int | None = None) -> tuple[int, str]:
    """Copy a file durably: up to `limit`, then zeros up to `size`. Returns the size and the SHA-256 of the copy."""
    digest, done = hashlib.sha256(), 0
    with target.open("wb") as file:
        while chunk := source.read(_CHUNK if limit is None else min(_CHUNK, limit - done)):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
        if size is not None:
            file.truncate(size)
            for begin in range(done, size, _CHUNK):
                digest.update(bytes(min(_CHUNK, size - begin)))
            done = max(done, size)
        file.flush()
        os.fsync(file.fileno())
    return done, digest.hexdigest()


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


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _words(error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    return reason if error.filename is None else f"{error.filename}: {reason}"
