"""Where a running server says which file has its token, for programs of the same user on the same machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def announced_at(port: int) -> Path | None:
    """The file of the server with this port: `$XDG_RUNTIME_DIR/millrace/PORT`. Without that variable, as in a
    container, it is in a folder of the user among the temporary files; with an empty one there is none."""
    folder = os.environ.get("XDG_RUNTIME_DIR")
    if folder is None:
        return Path(os.environ.get("TMPDIR") or "/tmp", f"millrace-{os.getuid()}", str(port))
    return Path(folder, "millrace", str(port)) if folder else None


def is_private(folder: Path) -> bool:
    """Whether a folder is this user's alone. Among the temporary files another user may have made it."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
