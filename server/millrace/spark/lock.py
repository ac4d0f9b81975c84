"""The lock of a checkpoint: one driver at a time.

The system's lock on an open file ends with its process, however that ends, so a dead driver's checkpoint is free at
once. The file's text only says who has the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from millrace.protocol import Refuse

LOCK: Final = "lock"


class Lock:
    """The lock of a folder, held from the start of this object until `release`."""

    def __init__(self, folder: Path) -> None:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(os.pread(handle, 1_000, 0))
            os.close(handle)
            raise Refuse(
                f"checkpoint {folder} is in use by {holder}; stop that driver first, or use another checkpoint",
                code="locked",
            ) from None
        except OSError as error:
            os.close(handle)
            raise Refuse(
                f"checkpoint {folder}: cannot lock it ({(error.strerror or str(error)).lower()}); use a file system "
                "with locks",
                code="locked",
            ) from None
        since = datetime.now(UTC).isoformat(timespec="seconds")
        text = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": since}).encode()
        os.ftruncate(handle, 0)
        os.pwrite(handle, text, 0)
        self._handle: int | None = handle

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def _holder(text: bytes) -> str:
    """Who has the lock, in words."""
    try:
        told = json.loads(text)
        return f"process {told['pid']} on {told['host']} since {told['since']}"
    except (ValueError, KeyError, TypeError):
        return "another driver"  # that has not written its name yet
