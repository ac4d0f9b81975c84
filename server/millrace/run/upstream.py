"""The standby's connection to the server that it follows: requests to its HTTP port, in threads.

Rule: every problem is a MillraceError in one line. `Unreachable` may pass by itself; `Rejected` is the other server's
answer, with its code.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgpack

from millrace.protocol import MillraceError
from millrace.run.config import Where, read_token

# The other server says something each second.
TIMEOUT_SECONDS: Final = 10.0
# Bytes that are read at once.
READ_BYTES: Final = 1 << 20


class Unreachable(MillraceError):  # noqa: N818 - named after the state
    """The other server cannot be reached, or has broken off."""

    code = "unreachable"


class Rejected(MillraceError):  # noqa: N818 - named after the event
    """The other server has refused: the code and the text of its answer."""

    code = "rejected"


class Stream:
    """The messages of an answer without a known end, in a thread. `close` may be called from another one."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, name: str) -> None:
        self._connection, self._response, self._name = connection, response, name
        self._messages = msgpack.Unpacker(max_buffer_size=2**32 - 1)
        self.received = 0

    def __iter__(self) -> Iterator[Any]:
        for some in self.batches():
            yield from some

    def batches(self) -> Iterator[list[Any]]:
        """Messages, as many as there are."""
        while True:
            try:
                data = self._response.read1(READ_BYTES)
            except http.client.IncompleteRead:
                raise Unreachable(f"{self._name} has closed the connection") from None
            except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
                raise Unreachable(f"the connection to {self._name} broke ({_reason(error)})") from None
            if not data:
                return
            self.received += len(data)
            self._messages.feed(data)
            try:
                messages = list(self._messages)
            except (msgpack.UnpackException, ValueError):
                raise Rejected(f"the answer of {self._name} is not a standby's: is it a Millrace server?") from None
            if messages:
                yield messages

    def close(self) -> None:
        """Break off, also while another thread reads."""
        sock = self._connection.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """The reading thread needs it no more."""
        self._response.close()
        self._connection.close()


class Upstream:
    """The server that is followed."""

    def __init__(self, where: Where, token_file: Path | None, ca_file: Path | None) -> None:
        self.where = where
        self.token_file = token_file
        self.ca_file = ca_file
        self._lock = threading.Lock()
        self._kept: http.client.HTTPConnection | None = None
        self._closed = False

    def open(self, path: str, **query: str | int) -> Stream:
        """The messages of a route."""
        connection = self._connect()
        try:
            response = self._say(connection, "GET", f"/api/v1/standby/{path}?{urlencode(query)}")
            return Stream(connection, response, str(self.where))
        except BaseException:
            connection.close()
            raise

    def post(self, path: str, body: dict[str, Any]) -> None:
        """Report something, on a connection that stays."""
        with self._lock:
            connection, self._kept = self._kept, None
        connection = connection or self._connect()
        try:
            self._say(connection, "POST", f"/api/v1/standby/{path}", json.dumps(body).encode()).read()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if not self._closed:
                self._kept, connection = connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """No connection stays, also not that of a report which is under way in another thread."""
        with self._lock:
            self._closed = True
            kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self.where.address
        if self.where.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        try:
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise Rejected(f"standby.ca_file: {self.ca_file}: {_reason(error)}") from None
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=context)

    def _say(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None
    ) -> http.client.HTTPResponse:
        headers = {"user-agent": "millrace standby", "content-type": "application/json"}
        if self.token_file is not None:
            headers["authorization"] = f"Bearer {read_token(self.token_file)}"
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            if response.status < 400:
                return response
            content = response.read()
        except ssl.SSLCertVerificationError as error:
            raise Rejected(f"{self.where} is not trusted ({error.verify_message}): set standby.ca_file") from None
        except ssl.SSLError as error:
            raise Rejected(f"no TLS with {self.where} ({_reason(error)}): does its HTTP port use it?") from None
        except (OSError, http.client.HTTPException) as error:
            mute = self.where.scheme == "http" and isinstance(error, ConnectionResetError)
            hint = "; if its HTTP port uses TLS, follow https://" if mute else ""
            raise Unreachable(f"{self.where} does not answer ({_reason(error)}){hint}") from None
        raise self._rejection(response.status, content)

    def _rejection(self, status: int, content: bytes) -> MillraceError:
        if status == 401:
            reply = "requires a token" if self.token_file is None else f"refuses the token in {self.token_file}"
            return Rejected(f"{self.where} {reply}: set standby.token_file to the one of its HTTP port", code="token")
        try:
            answer = json.loads(content)
            code, detail = str(answer["code"]), str(answer["detail"])
        except (ValueError, KeyError, TypeError):
            return Rejected(f"{self.where} is not the HTTP port of a Millrace server (status {status})")
        if status == 503:
            return Unreachable(f"{self.where} is not ready: {detail}", code=code)
        if status == 404:
            return Rejected(f"{self.where} is an older Millrace, which no standby can follow: upgrade it first")
        return Rejected(f"{self.where} refuses this standby: {detail}", code=code)


def _reason(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
