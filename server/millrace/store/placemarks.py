"""The text that a sink leaves at its place for other servers: a small file next to its rows, `.NAME.epoch`.

Rule: the text changes as a whole, and is durable when `leave` returns. Names that start with a dot belong to no sink,
and readers of a folder pass over them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from millrace.store.places import sync_names

ENDING: Final = ".epoch"
# More than a text has: a number, a hyphen and 16 digits.
MOST_BYTES: Final = 256
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def mark_name(name: str) -> str:
    """The file for a place of this name in the same folder, or for a sink of this name in its folder."""
    return f".{name}{ENDING}"


def found(folder: int, name: str) -> str | None:
    """The text for a place in an open folder; None if there is none."""
    try:
        handle = os.open(mark_name(name), _READ, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        return os.read(handle, MOST_BYTES).decode("ascii", "replace").strip()
    finally:
        os.close(handle)


def leave(folder: int, name: str, text: str) -> None:
    """Leave a text in place of an earlier one."""
    mark = mark_name(name)
    aside = f"{mark}.part"
    with suppress(FileNotFoundError):
        os.unlink(aside, dir_fd=folder)
    handle = os.open(aside, _NEW, 0o666, dir_fd=folder)
    try:
        os.write(handle, text.encode() + b"\n")
        os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(aside, mark, src_dir_fd=folder, dst_dir_fd=folder)
    sync_names(folder)
