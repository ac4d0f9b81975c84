"""A copy of a data directory on its way to another machine: the pieces of `backups.py` as messages, the manifest last.

Rule: what arrives becomes a data directory when the manifest has come and everything is as it says, or nothing does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgpack

from millrace.protocol import MillraceError
from millrace.store.backups import (
    Backup,
    BackupError,
    Began,
    Ended,
    Left,
    Piece,
    Zeros,
    arriving,
    from_manifest,
    pieces_of,
    to_manifest,
)

# The kinds of messages: a piece each, then how the copy ends.
_KINDS: Final = (Began, Zeros, Ended, Left)
_BYTES, _DONE, _FAILED = 4, 5, 6
# Where the messages are from, in errors.
_SOURCE: Final = "the copy"


def messages_of(data_dir: Path, now_us: int) -> Iterator[bytes]:
    """A copy of a data directory as messages. An error is the last of them."""
    pieces = pieces_of(data_dir, now_us)
    try:
        while True:
            yield _packed(next(pieces))
    except StopIteration as end:
        yield msgpack.packb([_DONE, to_manifest(end.value)])
    except (MillraceError, OSError) as error:
        yield msgpack.packb([_FAILED, error.text if isinstance(error, MillraceError) else str(error)])


def _packed(piece: Piece) -> bytes:
    packed: bytes = msgpack.packb([_BYTES, piece] if isinstance(piece, bytes) else [_KINDS.index(type(piece)), *piece])
    return packed


def receive(messages: Iterable[Any], data_dir: Path, more: Mapping[str, bytes]) -> Backup:
    """Make a data directory of messages, with `more` files that were not sent; BackupError: it is as it was."""
    try:
        with arriving(data_dir, "name a new data directory for the copy") as copy:
            for message in messages:
                match message:
                    case [int(kind), dict(data)] if kind == _DONE:
                        backup = _manifest(data)
                        if copy.files != backup.files:
                            raise BackupError("the copy is damaged: it lacks files of its manifest, or has others")
                        for name, content in more.items():
                            (copy.folder / name).write_bytes(content)
                        return backup
                    case [int(kind), str(text)] if kind == _FAILED:
                        raise BackupError(f"the other server cannot copy its data directory: {text}")
                    case _:
                        copy.take(_piece(message))
            raise BackupError(f"the copy broke off after {len(copy.files)} files: start it again")
    except OSError as error:
        raise BackupError(f"the copy cannot be written: {error.strerror or error}") from None


def _piece(message: Any) -> Piece:
    try:
        kind, *fields = message
        if kind == _BYTES and isinstance(fields[0], bytes):
            return fields[0]
        piece: Piece = _KINDS[kind](*fields)
        return piece
    except (TypeError, ValueError, IndexError):
        raise BackupError("the copy is damaged: it has a message of no known kind") from None


def _manifest(data: Mapping[str, Any]) -> Backup:
    try:
        return from_manifest(data, _SOURCE)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BackupError("the copy is damaged: it ends with something other than a manifest") from None
