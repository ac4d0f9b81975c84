"""A server on this machine, as `millrace serve` announces it to programs of the same user.

Its file (`protocol/announced.py`) is an object of JSON with `listen`, `admin`, `token_file`, `tokens_file` and `pid`,
for each of the server's two ports.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from millrace.protocol.announced import announced_at, is_private

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def local_token(host: str, port: int) -> str | None:
    """The token of a server of this user on this machine; None if none is known."""
    about = local_server(host, port)
    try:
        token_file = about["token_file"] if about is not None else None
        return None if token_file is None else Path(token_file).read_text("utf-8").partition("\n")[0].strip() or None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def local_server(host: str, port: int) -> dict[str, Any] | None:
    """What a running server of this user on this machine has announced; None if there is none."""
    path = announced_at(port)
    if host not in LOOPBACK or path is None:
        return None
    try:
        if not is_private(path.parent):
            return None
        with path.open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
                return None  # another user may have written it
            about: dict[str, Any] = json.load(file)
        os.kill(about["pid"], 0)  # a killed server leaves its file, and another user may have the port by now
    except (OSError, OverflowError, ValueError, KeyError, TypeError):
        return None
    return about
