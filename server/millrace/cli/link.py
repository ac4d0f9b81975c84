"""The command line's connection to a server: its HTTP API.

Rule: every problem on the way is a MillraceError that names the next step. Most commands import this module and send no
request: the libraries for HTTP and TLS are imported with the first request.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlsplit

from millrace.protocol.errors import MillraceError

if TYPE_CHECKING:
    import http.client
    import ssl

T = TypeVar("T")

# Every route answers within a few engine steps: a server that takes longer is stuck.
TIMEOUT_SECONDS: Final = 60.0
# How long one of several servers may take to say whether it is ready.
CHOICE_SECONDS: Final = 5.0
DEFAULT_ADMIN: Final = "127.0.0.1:7421"
TOKEN_WAYS: Final = "use --token-file FILE, or set MILLRACE_TOKEN_FILE or MILLRACE_TOKEN"
FEED_TOKEN_WAYS: Final = "use --feed-token-file FILE, or set MILLRACE_FEED_TOKEN_FILE or MILLRACE_FEED_TOKEN"


class ServerError(MillraceError):
    """The server refused a request: the code and the text of its answer."""

    code = "server"


@dataclass(frozen=True, slots=True)
class Link:
    """The address of the server, the credentials for it, and the form of the output. `command` is the command that
    uses it, under which the server's log and its list of changes name the client.

    `admin` may name several servers, with commas: one and its standbys. Each request goes to the one that leads.
    """

    admin: str
    server: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    feed_token_file: Path | None = None
    as_json: bool = False
    timeout_seconds: float = TIMEOUT_SECONDS
    command: str = ""

    @classmethod
    def from_environment(cls) -> Link:
        """The connection of a command without options."""

        def path(variable: str) -> Path | None:
            return Path(value) if (value := os.environ.get(variable)) else None

        return cls(
            os.environ.get("MILLRACE_ADMIN") or DEFAULT_ADMIN,
            os.environ.get("MILLRACE_SERVER"),
            path("MILLRACE_TOKEN_FILE"),
            path("MILLRACE_CA_FILE"),
            path("MILLRACE_CERT_FILE"),
            path("MILLRACE_FEED_TOKEN_FILE"),
        )

    def within(self, seconds: float) -> Link:
        """The same connection for a caller that cannot wait longer."""
        return replace(self, timeout_seconds=seconds)

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def view(self, kind: type[T], path: str) -> T:
        """The view that a route answers with."""
        from millrace.protocol.admin.data import from_data

        return from_data(kind, self.get(path))

    def views(self, kind: type[T], path: str) -> list[T]:
        """The list of views that a route answers with."""
        from millrace.protocol.admin.data import from_data

        return [from_data(kind, item) for item in self.get(path)]

    def post(self, path: str, body: object = None) -> Any:
        return self.request("POST", path, body)

    def put(self, path: str, body: object = None) -> Any:
        return self.request("PUT", path, body)

    def delete(self, path: str) -> Any:
        return self.request("DELETE", path)

    @property
    def token(self) -> str | None:
        """The token for the HTTP port: by default the one that a server of this user on this machine announces."""
        given = _token(self.token_file, "MILLRACE_TOKEN")
        if given is not None or self.cert_file is not None:
            return given
        from millrace.client.local import local_token

        host, port = self.address()
        return local_token(host, port)

    @property
    def feed_token(self) -> str | None:
        """The token for the TCP port; by default the HTTP port's token."""
        separate = _token(self.feed_token_file, "MILLRACE_FEED_TOKEN")
        return self.token if separate is None else separate

    def turned_away(self) -> MillraceError:
        """The error for an HTTP port that refuses our token."""
        where = f"the server at {self.admin}"
        if not self.token:
            return _unauthorised(f"{where} requires a token: {TOKEN_WAYS}")
        token = _source(self.token_file, "--token-file", "MILLRACE_TOKEN")
        text = f"{where}, the HTTP port, refuses {token}: create one with `millrace token create`, or use the one that"
        return _unauthorised(f"{text} its configuration names (server.admin_token_file, else server.token_file)")

    def turned_away_from_streams(self, address: str) -> MillraceError:
        """The error for a TCP port that refuses our token. It may differ from the HTTP port's token."""
        where = f"the server at {address}, its port for feeds and subscribers"
        if not self.feed_token:
            return _unauthorised(f"{where}, requires a token: {FEED_TOKEN_WAYS}")
        text = "create one with `millrace token create`, or use the one of server.token_file"
        if self.feed_token_file is not None or os.environ.get("MILLRACE_FEED_TOKEN") is not None:
            token = _source(self.feed_token_file, "--feed-token-file", "MILLRACE_FEED_TOKEN")
        else:
            token = _source(self.token_file, "--token-file", "MILLRACE_TOKEN")
            text += f"; if that differs from the HTTP port's, {FEED_TOKEN_WAYS}"
        return _unauthorised(f"{where}, refuses {token}: {text}")

    def tls(self) -> ssl.SSLContext:
        """Trusts the certificate authority of `ca_file`, or the system's, and shows the certificate of `cert_file`."""
        import ssl

        try:
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise MillraceError(f"CA file {self.ca_file}: {getattr(error, 'strerror', None) or error}") from None
        if self.cert_file is not None:
            try:
                context.load_cert_chain(self.cert_file)
            except (OSError, ssl.SSLError) as error:
                reason = getattr(error, "strerror", None) or error
                raise MillraceError(f"client certificate and key {self.cert_file}: {reason}") from None
        return context

    def text(self, path: str) -> str:
        """A page that is not JSON, by its whole path."""
        status, content = self._say("GET", path)
        if status >= 400:
            self._checked(status, content)
        return content.decode(errors="replace")

    def request(self, method: str, path: str, body: object = None) -> Any:
        """The answer to one request below `/api/v1/`, as JSON."""
        return self._checked(*self._say(method, f"/api/v1/{path}", body))

    def _checked(self, status: int, content: bytes) -> Any:
        if status == 401:
            raise self.turned_away()
        try:
            answer = json.loads(content)
        except ValueError:
            text = f"the answer from {self.admin} is not from a Millrace server: set its address with --admin HOST:PORT"
            raise MillraceError(text) from None
        if status >= 400:
            raise ServerError(answer.get("detail", f"status {status}"), code=answer.get("code", "server"))
        return answer

    @property
    def addresses(self) -> list[str]:
        return [address.strip() for address in self.admin.split(",")]

    def at(self, address: str) -> Link:
        """The same connection to one of the servers."""
        return replace(self, admin=address)

    def leading(self) -> Link:
        """The connection to the first of several servers that is ready, as a standby is not; without one to the first
        that answers."""
        answering, errors = [], []
        for link in map(self.at, self.addresses):
            try:
                status, _ = link.within(min(CHOICE_SECONDS, self.timeout_seconds))._say("GET", "/-/ready")
            except MillraceError as error:
                errors.append(error)
                continue
            if status == 200:
                return link
            answering.append(link)
        if answering:
            return answering[0]
        raise errors[-1]

    def lines(self, path: str) -> Iterator[Any]:
        """The lines of an answer without an end, as JSON, until the server ends it."""
        with self._answer("GET", f"/api/v1/{path}") as answer:
            if answer.status != 200:
                self._checked(answer.status, answer.read())
            for line in answer:
                if not line.endswith(b"\n"):
                    raise MillraceError(f"{self.admin} closed the connection within a line: it may have been killed")
                yield json.loads(line)

    def _say(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        with self._answer(method, path, body) as answer:
            return answer.status, answer.read()

    @contextmanager
    def _answer(self, method: str, path: str, body: object = None) -> Iterator[http.client.HTTPResponse]:
        """The answer to a request, while it is read."""
        import http.client
        import ssl

        if len(self.addresses) > 1:
            with self.leading()._answer(method, path, body) as answer:
                yield answer
            return
        if is_dataclass(body):
            from millrace.protocol.admin.data import to_body

            body = to_body(body)
        connection = self._connect()
        headers = {
            "accept": "application/json",
            "content-type": "application/json",
            "user-agent": f"millrace {self.command}".strip(),
        }
        if token := self.token:
            headers["authorization"] = f"Bearer {token}"
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            yield connection.getresponse()
        except ssl.SSLCertVerificationError as error:
            raise MillraceError(
                f"the server at {self.admin} is not trusted ({error.verify_message}): set its CA with --ca-file"
            ) from None
        except ssl.SSLError as error:
            hint = "if it does not use TLS, leave out --ca-file and https://"
            raise MillraceError(f"no TLS with {self.admin} ({_reason(error)}); {hint}") from None
        except (ConnectionResetError, http.client.HTTPException):
            # A server that accepts TLS only closes the connection, too.
            hint = "check that it is the HTTP port; if it uses TLS, set --ca-file"
            raise MillraceError(f"{self.admin} closed the connection without an HTTP answer: {hint}") from None
        except OSError as error:
            raise MillraceError(
                f"no Millrace server answers at {self.admin} ({_reason(error)}): "
                "start one with `millrace serve`, or set its address with --admin HOST:PORT"
            ) from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        import http.client

        host, port = self.address()
        if self.admin.startswith("https://") or ("://" not in self.admin and self.ca_file):
            return http.client.HTTPSConnection(host, port, timeout=self.timeout_seconds, context=self.tls())
        return http.client.HTTPConnection(host, port, timeout=self.timeout_seconds)

    def address(self) -> tuple[str, int]:
        """The host and port of the HTTP API."""
        parts, host, port = None, None, None
        try:
            parts = urlsplit(self.admin if "://" in self.admin else f"//{self.admin}")
            host, port = parts.hostname, parts.port
        except ValueError:
            pass
        if parts is None or parts.scheme not in ("", "http", "https") or not host:
            raise MillraceError(f"--admin: expected HOST:PORT or a URL, such as 127.0.0.1:7421, got {self.admin!r}")
        return host, port or 7421


def _token(file: Path | None, variable: str) -> str | None:
    """The first line of the file, or without a file the value of the variable."""
    if file is None:
        return os.environ.get(variable)
    try:
        return file.read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise MillraceError(f"token file {file}: {getattr(error, 'strerror', None) or error}") from None


def _source(file: Path | None, option: str, variable: str) -> str:
    return f"the token in {variable}" if file is None else f"the token in {file} ({option})"


def _unauthorised(text: str) -> MillraceError:
    return MillraceError(text, code="unauthorised")


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
