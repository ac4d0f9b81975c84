"""One TCP connection: its first byte chooses frames or JSON lines, and a Dialect speaks from then on.

Rule: nothing here waits. What a peer says is judged, decoded and handed on within one call; what it is told goes to the
transport. A peer that does not read is not read either once its answers pile up; an idle one costs little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, cast

import structlog

from millrace.protocol import Limits, MillraceError, speaks_http, speaks_json
from millrace.server import ports
from millrace.server.feeds import Feeds
from millrace.server.logs import client, sparing, without_data
from millrace.server.runner import Runner
from millrace.server.sink import Slow
from millrace.server.source import TooFarAheadError

log = structlog.get_logger()

# How long a peer that was told goodbye may take to read it.
FAREWELL_SECONDS: Final = 5.0
# Answers (acknowledgements, errors) may exceed the write buffer's limit so many times before reading stops: a peer that
# both feeds and subscribes must not be blocked by its own results.
ANSWERS_FACTOR: Final = 8


class Dialect(Protocol):
    """What is spoken on a connection."""

    def received(self, data: bytes) -> None:
        """Act on these bytes."""

    def writable_again(self) -> None:
        """The socket takes bytes again."""

    def half_closed(self) -> bool:
        """The peer will say no more; whether the connection should stay open for what it is still told."""

    def reading_changed(self) -> None:
        """Reading from the socket has stopped, or goes on."""

    def farewell(self, reason: str) -> None:
        """Say goodbye: the server is ending."""

    def ended(self) -> None:
        """The connection is gone: leave its feeds and subscriptions."""


@dataclass(frozen=True, slots=True)
class Hall:
    """What all connections share."""

    runner: Runner
    feeds: Feeds
    limits: Limits
    slow: Slow
    write_buffer: int
    token: str | None
    server: str
    most_connections: int
    admin: Callable[[], str]
    frames: Callable[[Connection], Dialect]
    json_lines: Callable[[Connection], Dialect]
    connections: dict[Connection, None]


class Connection(asyncio.Protocol):
    """The transport's side of a peer."""

    def __init__(self, hall: Hall) -> None:
        self.hall = hall
        self._host = self._name = self.peer = "?"
        self.writable = True
        self.heard_at = asyncio.get_running_loop().time()
        self._transport: asyncio.Transport | None = None
        self._dialect: Dialect | None = None
        self._ending = False
        self._holds_reading: set[str] = set()

    # -- asyncio's calls ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports keep asyncio's interface without being its subclasses.
        self._transport = transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        if name:
            self._host, self._name = name[0], f"{name[0]}:{name[1]}"
            self.peer = self._name
        transport.set_write_buffer_limits(high=self.hall.write_buffer)
        if len(self.hall.connections) >= self.hall.most_connections:
            sparing.warning("turned a connection away: the limit is reached", "", client=self.peer)
            transport.abort()
            return
        self.hall.connections[self] = None
        log.debug("a client connected", client=self.peer)

    @property
    def name(self) -> str:
        """The peer's address, and what it calls itself."""
        return self._name

    def called(self, name: str) -> None:
        """What the peer calls itself; for the log."""
        self._name = f"{self.peer} ({name})"
        client.set(self._name)

    def data_received(self, data: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        if self._ending:
            return
        if self._dialect is None and speaks_http(data, self.hall.limits.frame_bytes):
            self.write(ports.to_http(self.hall.admin()))
            sparing.warning("a client took the wrong port", "streams", client=self.peer)
            self.close()
            return
        if self._dialect is None:
            begin = self.hall.json_lines if speaks_json(data[0]) else self.hall.frames
            self._dialect = begin(self)
        before = client.set(self._name)
        try:
            self._dialect.received(data)
        except Exception:
            # A mistake of ours that this peer found: it loses its connection, the others must not notice.
            log.exception("a connection failed by a mistake of the server")
            self._ending = True
            self.abort()
        finally:
            client.reset(before)

    def eof_received(self) -> bool:
        return self._dialect is not None and not self._ending and self._dialect.half_closed()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.let_read("answers")
        if self._dialect is not None:
            self._dialect.writable_again()

    def connection_lost(self, error: Exception | None) -> None:
        known = self in self.hall.connections  # or it was turned away
        self.hall.connections.pop(self, None)
        self._ending = True
        self.writable = False
        before = client.set(self._name)
        try:
            if self._dialect is not None:
                self._dialect.ended()
                self._dialect = None
            if known:
                log.debug("a client left", reason=None if error is None else str(error))
        finally:
            client.reset(before)

    # -- for dialects ------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        transport = self._transport
        if not data or transport is None or transport.is_closing():
            return
        transport.write(data)
        if not self.writable and transport.get_write_buffer_size() > ANSWERS_FACTOR * self.hall.write_buffer:
            self.hold_reading("answers")

    @property
    def reads(self) -> bool:
        return not self._holds_reading

    def hold_reading(self, why: str) -> None:
        """Read nothing more from the peer until every reason has been lifted."""
        begins = not self._holds_reading
        self._holds_reading.add(why)
        if begins and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._tell_dialect()

    def let_read(self, why: str) -> None:
        if why in self._holds_reading:
            self._holds_reading.discard(why)
            if not self._holds_reading and self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()
                self._tell_dialect()

    def _tell_dialect(self) -> None:
        if self._dialect is not None:
            self._dialect.reading_changed()

    def close(self) -> None:
        """End after what was written has left, and in any case soon."""
        self._ending = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            asyncio.get_running_loop().call_later(FAREWELL_SECONDS, self._transport.abort)

    def farewell(self, reason: str) -> None:
        """The server is ending."""
        if self._dialect is not None and not self._ending:
            self._dialect.farewell(reason)
        self.close()

    def log_refusal(self, error: MillraceError) -> None:
        if isinstance(error, TooFarAheadError):
            return  # told where it is counted, with its stream
        sparing.warning("a client was refused", self._culprit(error), code=error.code, reason=without_data(error.text))

    def log_breach(self, error: MillraceError) -> None:
        text = "a client broke the protocol"
        sparing.warning(text, self._culprit(error), code=error.code, reason=without_data(error.text))

    def _culprit(self, error: MillraceError) -> str:
        """By host: a client that comes again and again does so from another port each time."""
        return f"{self._host} {error.code}"

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def idle_since(self, now: float) -> float:
        """For how long the peer has said nothing."""
        return now - self.heard_at
