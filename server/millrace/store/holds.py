"""Files and folders that the sinks of this process write, locked against other servers.

Rule: the system unlocks them when the process ends, however it ends. The sinks of one process share a lock: while one
is replaced by another, both have the file open. A file system without locks has none.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Final

from millrace.protocol import Refuse
from millrace.store.places import Identity, identity

_lock: Final = threading.Lock()
# By file, the handle with the lock, and how many sinks have the file open.
_held: Final[dict[Identity, tuple[int, int]]] = {}


def hold(handle: int, path: Path) -> Identity:
    """Lock an open file or folder until it is released; Refuse if another server has."""
    key = identity(os.fstat(handle))
    with _lock:
        own, count = _held.get(key, (-1, 0))
        if not count:
            own = os.dup(handle)
            try:
                fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(own)
                raise Refuse(
                    f"cannot write {path}: another server writes it; stop that one first", code="in_use"
                ) from None
            except OSError:
                pass
        _held[key] = own, count + 1
    return key


def release(key: Identity) -> None:
    """A sink has closed it."""
    with _lock:
        own, count = _held.pop(key)
        if count > 1:
            _held[key] = own, count - 1
        else:
            os.close(own)
