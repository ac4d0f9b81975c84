"""The announcement of `millrace serve` to programs of the same user, which `client/local.py` reads.

Rule: a file for each of the two ports, readable by its owner alone, as long as the server runs. It names the files with
the token and with the hashes of all tokens, never a token.
"""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from millrace.access.first import ADMIN
from millrace.formats.durable import write_whole
from millrace.protocol.announced import announced_at, is_private
from millrace.run.config import tokens_path

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

log = structlog.get_logger()


class Announcement:
    """The two files of a running server."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._written: list[Path] = []

    def write(self) -> None:
        daemon, server = self._daemon, self._daemon.settings.server
        first = None if server.data_dir is None else server.data_dir.absolute() / ADMIN
        made = first if first is not None and first.is_file() else None
        tokens = tokens_path(server)
        for port, token_file in (
            (daemon.listen.port, server.token_file or made),
            (daemon.admin.port, server.admin_token_file or server.token_file or made),
        ):
            path = announced_at(port)
            if path is None or ("XDG_RUNTIME_DIR" not in os.environ and not os.access(path.parent.parent, os.W_OK)):
                return  # the second is a read-only container
            about = {
                "listen": str(daemon.listen),
                "admin": daemon.admin_url,
                "token_file": None if token_file is None else str(token_file.absolute()),
                "tokens_file": None if tokens is None else str(tokens.absolute()),
                "pid": os.getpid(),
            }
            try:
                path.parent.mkdir(mode=0o700, exist_ok=True)
                if not is_private(path.parent):
                    raise PermissionError(errno.EACCES, f"{path.parent} is not this user's alone")
                write_whole(path, json.dumps(about).encode() + b"\n", private=True)
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                log.warning("the server cannot announce itself to programs", path=str(path), reason=reason)
                return
            self._written.append(path)

    def remove(self) -> None:
        """Unless another server has the port by now."""
        for path in self._written:
            with suppress(OSError, ValueError):
                if json.loads(path.read_bytes())["pid"] == os.getpid():
                    path.unlink()
        self._written.clear()
