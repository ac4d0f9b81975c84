"""Lines of JSON from sockets, for programs that listen: rows as tuples, parsed by orjson a piece at a time."""

from __future__ import annotations

import socket
from operator import itemgetter
from typing import Any

import orjson

RECEIVED = 1 << 18


def listen(port: int) -> socket.socket:
    server = socket.create_server(("127.0.0.1", port))
    print("listening", flush=True)
    return server


class Lines:
    """The rows of one connection."""

    def __init__(self, connection: socket.socket, names: tuple[str, ...]) -> None:
        self.connection = connection
        self._take = itemgetter(*names)
        self._rest = b""

    def read(self) -> list[Any] | None:
        """The next rows; None at the end."""
        data = self.connection.recv(RECEIVED)
        if not data:
            return None
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if not newline:
            return []
        take = self._take
        found = orjson.loads(b"[" + whole.replace(b"\n", b",") + b"]")
        return [take(line["tuple"]) for line in found if "tuple" in line]
