"""Files and folders that survive a power cut: their contents, and their names.

Rule: bytes are durable after an fsync of their file. A name (made, renamed or removed) is durable after an fsync of its
folder.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

# What precedes the name of a file until it is complete: Spark, DuckDB's globs and Millrace's readers ignore it.
ASIDE: Final = "."


def write_whole(path: Path, data: bytes, *, private: bool = False) -> None:
    """Replace a small file as a whole. Only the owner of its folder can read a `private` one, also if root has
    written it."""
    aside = path.with_name(f"{ASIDE}{path.name}.part")
    if private:
        aside.unlink(missing_ok=True)
    with open(aside, "wb", opener=_private if private else None) as file:
        if private and os.geteuid() == 0:
            owner = path.parent.stat()
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    sync_folder(path.parent)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL, 0o600)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """The folder and its parents, each durable in its own parent. One that is there may not be: a server may have been
    killed after it made it."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=mode, exist_ok=True)
        sync_folder(one.parent)
    if not missing:
        with suppress(PermissionError):  # another user has made it
            sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Wait until every name in it is durable."""
    _sync(folder, os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Wait until the bytes of a file that another library has written are durable."""
    _sync(path)


def _sync(path: Path, flags: int = 0) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_absent(path: Path, data: bytes) -> bool:
    """Write a small file as a whole unless it exists; whether this call did. Of several writers only one does."""
    aside = path.with_name(f"{ASIDE}{path.name}.{uuid.uuid4().hex}")
    try:
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        aside.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True
