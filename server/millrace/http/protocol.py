"""The HTTP port's transport: uvicorn's HTTP/1.1, within limits that hold before anything is known of the peer.

Rule: whatever arrives, the connection gets at most one answer to it and the log at most one line, without a traceback;
and every wait for the peer ends: for a TLS handshake, a head, a body, the next request, or room for an answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

import h11
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from millrace.access.certificates import names_of
from millrace.http.openapi import PROBLEM
from millrace.net.ports import to_streams
from millrace.net.refusals import Reason, Refusals
from millrace.observe.logs import sparing
from millrace.protocol import speaks_json
from millrace.run.timers import Handle, Timers

log = structlog.get_logger()

VERSIONS: Final = (b"1.0", b"1.1")
# A request's head: sixteen times what a browser sends.
HEAD_BYTES: Final = 32 * 2**10
HEAD_SECONDS: Final = 5.0
BODY_SECONDS: Final = 30.0
# An answer's first mebibyte, and each further one: the slowest reader has 35 kB/s.
ANSWER_SECONDS: Final = 30.0
HANDSHAKE_SECONDS: Final = 5.0
# The key of a request's scope that says that the transport has refused it already.
REFUSED: Final = "millrace.refused"
# The key of a request's state with the names in the client's certificate.
CERTIFICATE: Final = "millrace.certificate"
# The key of a request's state with a function that says that its answer has no end: nothing hurries for it.
ENDLESS: Final = "millrace.endless"
# How long a refused peer may take to read the answer.
FAREWELL_SECONDS: Final = 5.0


def http_protocol(
    listen: Callable[[], str], timers: Timers, connections: int, refusals: Refusals, hurry: Callable[[int], None]
) -> type[H11Protocol]:
    """The protocol class that uvicorn makes an instance of for each connection. `hurry` learns of requests that are one
    more, or one less, in progress."""

    idle: dict[HttpConnection, None] = {}

    class Bound(HttpConnection):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.bind(listen, timers, connections, refusals, hurry, idle)

    return Bound


class _Requests(h11.Connection):
    """h11's rules, and a limit for a head that arrives in one piece: h11 limits only those that arrive in several.

    `refusal` is the status of the answer to a violation.
    """

    refusal = 400

    def next_event(self) -> Any:
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.refusal = error.error_status_hint
            raise
        if isinstance(event, h11.Request):
            if _length(event) > HEAD_BYTES:
                self.refusal = 431
                raise h11.RemoteProtocolError("the head is too long")
            if event.http_version not in VERSIONS:
                raise h11.RemoteProtocolError("another version of HTTP")
        return event


def _length(head: h11.Request) -> int:
    """Bytes of a head, with two separators in each line."""
    return len(head.method) + len(head.target) + sum(len(key) + len(value) + 4 for key, value in head.headers)


class _Quiet:
    """uvicorn's logger: its warnings are about peers, which are counted and logged where they are refused; its errors
    are ours."""

    level = logging.WARNING

    def log(self, *_: Any, **__: Any) -> None: ...

    def warning(self, *_: Any, **__: Any) -> None: ...

    def error(self, _: str, *__: Any, exc_info: BaseException | None = None) -> None:
        log.error("internal error in a request", exc_info=exc_info)


class HttpConnection(H11Protocol):
    """One connection of an admin, a browser or Prometheus."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = _Requests(h11.SERVER, HEAD_BYTES)
        self.logger = cast(logging.Logger, _Quiet())
        self._begun = False  # whether the peer has said anything
        self._asked = False  # whether it waits for an answer
        self._phase: str | None = None  # the awaited part of a request: "head", "body" or None
        self._phase_ends: Handle | None = None
        self._answer_ends: Handle | None = None

    def bind(
        self,
        listen: Callable[[], str],
        timers: Timers,
        connections: int,
        refusals: Refusals,
        hurry: Callable[[int], None],
        idle: dict[HttpConnection, None],
    ) -> None:
        """`idle` has the connections of the port without a whole request that is being answered, oldest first."""
        self._listen, self._timers, self._most, self._refusals = listen, timers, connections, refusals
        self._hurry, self._idle = hurry, idle

    # -- asyncio's calls ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state[CERTIFICATE] = names_of(transport)
        self.app_state[ENDLESS] = partial(self._ask, False)
        if len(self.connections) > self._most and not self._make_room():
            self._refuse(
                "too_many_connections",
                503,
                f"the server already has {self._most} open HTTP connections "
                "(limits.admin_connections); try again later",
            )
            return
        self._idle[self] = None
        self._await("head")

    def _make_room(self) -> bool:
        """Close the oldest idle connection, as far as there is one: otherwise anybody could occupy the port."""
        oldest = next(iter(self._idle), None)
        if oldest is not None:
            oldest.evict()
        return oldest is not None

    def evict(self) -> None:
        """A newer connection needs the place of an idle one."""
        self._count("evicted", 503, "closed an idle connection to admit newer ones")
        self._idle.pop(self, None)
        self.connections.discard(self)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self._begun and (data[0] == 0 or speaks_json(data[0])):
            sparing.warning("a client used the wrong port", "http")
            self.transport.write(to_streams(data[0], self._listen()))
            self._close()
            return
        self._begun = True
        self._ask(True)
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        self._await(self._awaited())
        if self.cycle is not None and not self.cycle.response_complete:
            self._idle.pop(self, None)

    def _ask(self, asked: bool) -> None:
        """A request is in progress from its first byte to the end of its answer."""
        if asked is not self._asked:
            self._asked = asked
            self._hurry(1 if asked else -1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.pop(self, None)
        self._ask(False)
        self._await(None)
        self._answered_within(None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._answer_ends is None:
            self._answer_is_under_way()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._answered_within(None)

    def on_response_complete(self) -> None:
        self._idle[self] = None
        self._answer_is_under_way()
        self._ask(False)
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def shutdown(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._close()
        else:
            self.cycle.keep_alive = False

    # -- waiting for the peer ----------------------------------------------------------------------

    def _awaited(self) -> str | None:
        """The unfinished part of the peer's request."""
        if self.transport.is_closing():
            return None
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        if self.conn.their_state is h11.IDLE and (self._phase == "head" or self.conn.trailing_data[0]):
            return "head"
        return None

    def _await(self, phase: str | None) -> None:
        if phase == self._phase:
            return
        self._phase = phase
        if self._phase_ends is not None:
            self._phase_ends.cancel()
        seconds = BODY_SECONDS if phase == "body" else HEAD_SECONDS
        self._phase_ends = None if phase is None else self._timers.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        seconds = BODY_SECONDS if self._phase == "body" else HEAD_SECONDS
        text = f"the {self._phase} of a request was not complete after {seconds:g} seconds"
        if self._phase == "head" and not self.conn.trailing_data[0]:
            self._count("silent", 408, "the client sent nothing")
            self._close()  # it is owed no answer
        else:
            self._refuse("too_slow", 408, text)

    def _answer_is_under_way(self) -> None:
        mebibytes = self.transport.get_write_buffer_size() // 2**20
        self._answered_within(ANSWER_SECONDS * (1 + mebibytes))

    def _answered_within(self, seconds: float | None) -> None:
        if self._answer_ends is not None:
            self._answer_ends.cancel()
        self._answer_ends = None if seconds is None else self._timers.call_later(seconds, self._unread)

    def _unread(self) -> None:
        """The time for the answer is over: let a peer go that has not read it."""
        self._answer_ends = None
        if self.transport.is_closing() or self.transport.get_write_buffer_size() or self.flow.write_paused:
            self._count("not_read", 408, "the client did not read the answer")
            self.transport.abort()

    # -- refusing ----------------------------------------------------------------------------------

    @property
    def _host(self) -> str:
        return self.client[0] if self.client else ""

    def _should_upgrade(self) -> bool:
        return False  # a request to speak something else is a request without that

    def send_400_response(self, msg: str) -> None:
        """Uvicorn's answer to bytes that are not HTTP, or to a body that contradicts its head."""
        if cast(_Requests, self.conn).refusal == 431:
            self._refuse("too_large", 431, f"the head of a request has at most {HEAD_BYTES} bytes")
        else:
            self._refuse("malformed", 400, "expected an HTTP/1.1 request with a body of the announced length")

    def _count(self, reason: Reason, status: int, text: str) -> None:
        self._refusals.count("admin", reason)
        sparing.warning("refused an HTTP request", self._host, status=status, reason=text)

    def _refuse(self, code: Reason, status: int, text: str) -> None:
        """Answer unless an answer has started, and close."""
        self._count(code, status, text)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.is_closing():
            self.transport.write(_problem(status, code, text))
        if self.cycle is not None and not self.cycle.response_complete:
            # The handler of the request must neither answer nor log any more.
            cast(dict[str, Any], self.scope)[REFUSED] = True
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._close()

    def _close(self) -> None:
        self._await(None)
        self._unset_keepalive_if_required()
        if not self.transport.is_closing():
            self.transport.close()
            self._answered_within(FAREWELL_SECONDS)


def _problem(status: int, code: str, text: str) -> bytes:
    phrase = HTTPStatus(status).phrase
    body = json.dumps({"type": f"urn:millrace:{code}", "title": phrase, "status": status, "detail": text, "code": code})
    head = (
        f"HTTP/1.1 {status} {phrase}",
        f"content-type: {PROBLEM}",
        f"content-length: {len(body)}",
        "connection: close",
    )
    return "\r\n".join((*head, "", body)).encode()
