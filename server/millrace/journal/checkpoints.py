"""Checkpoints: the state of a server after a step, from which the journal's later records lead to the present.

A checkpoint is two files. `<lsn>.state` has the engine, and is written first, by a child process that has a copy of the
server's memory. `<lsn>.control` has the rest and makes it complete: it is written when everything that the steps up to
`lsn` have led to (rows for subscribers, files of sinks, history) is durable too. Recovery needs nothing before it then.

Rule: a checkpoint is complete or it does not exist. Which ones stay is decided in `keeping.py`.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from millrace.engine.saved_parts import Part
from millrace.formats.durable import make_folder, sync_folder
from millrace.journal.steps import FORM, pack, unpack
from millrace.protocol import MillraceError

FOLDER: Final = "checkpoints"
# The last character is the form. A newer server reads older forms, never the other way round.
_MAGIC: Final = b"MRCHECK1"
_NAME: Final = re.compile(r"(\d{20})\.(state|control)(\.part\d*)?")
_CHUNK: Final = 1 << 24


class CheckpointError(MillraceError):
    """A checkpoint cannot be read or written."""

    code = "checkpoint"


class CheckpointRefused(CheckpointError):  # noqa: N818 - named after the event
    """The checkpoint is whole, but of a newer version or another user: an older one must not be used instead."""

    code = "checkpoint_refused"


class Checkpoint(NamedTuple):
    """A complete checkpoint: the number of its last step, the saved engine, and the control state as plain data."""

    lsn: int
    state: bytes
    control: dict[str, Any]


class Checkpoints:
    """The checkpoints of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir / FOLDER

    def prepare(self) -> None:
        """Create the folder, and remove what a killed server has left unfinished. What stays is durable then, which it
        may not have been."""
        make_folder(self.folder)
        sync_folder(self.folder)
        complete = set(self.complete())
        for path in self._files():
            lsn, _, part = _parsed(path)
            if part or lsn not in complete:
                path.unlink(missing_ok=True)

    def complete(self) -> list[int]:
        """The complete checkpoints, oldest first."""
        found: dict[int, set[str]] = {}
        for path in self._files():
            lsn, kind, part = _parsed(path)
            if not part:
                found.setdefault(lsn, set()).add(kind)
        return sorted(lsn for lsn, kinds in found.items() if kinds == {"state", "control"})

    def write_state(self, lsn: int, *state: Part) -> None:
        """Write the state of an engine, in one part or several."""
        _write(self._path(lsn, "state"), state)

    def write_control(self, lsn: int, control: dict[str, Any]) -> None:
        """Complete the checkpoint."""
        _write(self._path(lsn, "control"), [pack(control)])

    def read(self, lsn: int) -> Checkpoint:
        control, state = (_read(self._path(lsn, kind)) for kind in ("control", "state"))
        return Checkpoint(lsn, state, self._unpacked(lsn, control))

    def control(self, lsn: int) -> dict[str, Any]:
        """The control state alone: that of the engine may be large."""
        return self._unpacked(lsn, _read(self._path(lsn, "control")))

    def _unpacked(self, lsn: int, control: bytes) -> dict[str, Any]:
        try:
            data: dict[str, Any] = unpack(control)
        except Exception as error:  # its checksum is right
            raise _newer(self._path(lsn, "control"), str(error) or type(error).__name__) from error
        if data["form"] > FORM:
            raise _newer(self._path(lsn, "control"), f"form {data['form']}, this one reads {FORM}")
        return data

    def bytes(self, lsn: int) -> int:
        """The size of a complete checkpoint."""
        return sum(self._path(lsn, kind).stat().st_size for kind in ("state", "control"))

    def files(self, lsn: int) -> list[Path]:
        """The two files of a complete checkpoint."""
        return [self._path(lsn, kind) for kind in ("state", "control")]

    def forget(self, lsn: int) -> None:
        """Remove a checkpoint."""
        # Without its control file it is none.
        self._path(lsn, "control").unlink(missing_ok=True)
        self._path(lsn, "state").unlink(missing_ok=True)

    def discard(self, lsn: int) -> None:
        """Remove the state of a checkpoint that was not completed."""
        for path in self._files():
            if _parsed(path)[0] == lsn:
                path.unlink(missing_ok=True)

    def _path(self, lsn: int, kind: str) -> Path:
        return self.folder / f"{lsn:020}.{kind}"

    def _files(self) -> Iterator[Path]:
        if self.folder.exists():
            yield from sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name))


def _parsed(path: Path) -> tuple[int, str, bool]:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), match[2], match[3] is not None


def _write(path: Path, parts: Sequence[Part]) -> None:
    """A whole file under its final name, durable, or none."""
    aside = path.with_name(f"{path.name}.part{os.getpid()}")
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    head = _MAGIC + sum(map(len, parts)).to_bytes(8, "big") + checksum.to_bytes(4, "big")
    handle = os.open(aside, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(handle, [memoryview(part) for part in (head, *parts)])
        os.fsync(handle)
    finally:
        os.close(handle)
    aside.rename(path)
    sync_folder(path.parent)


def _write_all(handle: int, parts: Sequence[memoryview]) -> None:
    for part in parts:
        done = 0
        while done < len(part):
            done += os.write(handle, part[done : done + _CHUNK])


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except PermissionError as error:
        reason = (error.strerror or str(error)).lower()
        raise CheckpointRefused(f"cannot read {path}: {reason}: give it to the server's user") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    head = len(_MAGIC) + 12
    magic = data[: len(_MAGIC)]
    if len(data) >= head and magic[:-1] == _MAGIC[:-1] and magic > _MAGIC:
        raise _newer(path, f"checkpoint form {magic[-1:].decode(errors='replace')}, this one reads {chr(_MAGIC[-1])}")
    if magic != _MAGIC or len(data) < head:
        raise CheckpointError(f"{path} is damaged: it does not start as a checkpoint does")
    size, checksum = int.from_bytes(data[head - 12 : head - 4], "big"), int.from_bytes(data[head - 4 : head], "big")
    body = data[head:]
    if len(body) != size or zlib.crc32(body) != checksum:
        raise CheckpointError(f"{path} is damaged: its checksum does not match its {len(body)} bytes")
    return body


def _newer(path: Path, why: str) -> CheckpointRefused:
    return CheckpointRefused(
        f"{path} was written by a newer Millrace ({why}): start that version, or use another data directory"
    )
