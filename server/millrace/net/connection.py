"""One TCP connection: its first byte chooses frames or JSON lines, and a Dialect speaks from then on.

Rule: nothing here waits. One call checks, decodes and passes on a peer's bytes; answers go to the transport. The server
stops reading from a peer that does not read its answers; an idle peer costs little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Protocol, cast

import structlog

from millrace.access.access import Access, AccessDenied
from millrace.access.callers import NOT_PERMITTED, Caller
from millrace.access.certificates import names_of
from millrace.formats.decoder import TooFarAheadError
from millrace.net import ports
from millrace.net.feeds import Feeds
from millrace.net.guesses import Guesses
from millrace.net.refusals import Reason, Refusals
from millrace.net.silence import Silence
from millrace.net.sink import Slow
from millrace.net.turns import FEW_BYTES, FEW_SECONDS, Turns
from millrace.observe.logs import client, sparing, without_data
from millrace.protocol import Limits, MillraceError, PeerError, encode, frame, speaks_http, speaks_json
from millrace.protocol.jsonlines import error_line
from millrace.protocol.messages import Error
from millrace.run.runner import Runner
from millrace.run.timers import Handle, Timers
from millrace.run.worker import Worker
from millrace.standby.epoch import Epochs

log = structlog.get_logger()

# How long a peer may take to read the last message.
FAREWELL_SECONDS: Final = 5.0
# How long a peer may take for its first byte, and for HELLO, or the line with the token where one is required.
GREETING_SECONDS: Final = 5.0
# Bytes that a peer may send before the server knows it: a name and a token, many times over.
GREETING_BYTES: Final = 4_096
# Connections beyond the limit that are answered, in their own dialect; further ones are not.
TURNED_AWAY: Final = 64
# Answers (acknowledgements, errors) may exceed the write buffer's limit by this factor before reading stops: a peer
# that both feeds and subscribes must not be blocked by its own results.
ANSWERS_FACTOR: Final = 8
# The reason why a connection is not read until its turn comes.
TURN: Final = "turn"
# Copying more than this takes longer than handing two pieces to the socket.
COPIED_BYTES: Final = 8_192


class Dialect(Protocol):
    """The protocol of a connection."""

    def received(self, data: bytes) -> None:
        """Act on these bytes."""

    def writable_again(self) -> None:
        """The socket takes bytes again."""

    def half_closed(self) -> bool:
        """The peer sends no more; whether the connection stays open for further messages to it."""

    def reading_changed(self) -> None:
        """Reading from the socket has stopped, or continues."""

    def farewell(self, reason: str) -> None:
        """Say goodbye: the server is ending."""

    def refuse_peer(self, error: PeerError) -> None:
        """Send the peer the reason why its connection ends."""

    def ended(self) -> None:
        """The connection is gone: leave its feeds and subscriptions."""

    def settle(self) -> None:
        """Act on all bytes that have been received."""

    @property
    def buffered(self) -> int:
        """Bytes that were received and are not acted on yet."""

    @property
    def feeds(self) -> bool:
        """Whether the peer feeds streams."""

    @property
    def only_feeds(self) -> bool:
        """Whether it feeds streams and reads no query."""


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """The shared state of all connections."""

    runner: Runner
    feeds: Feeds
    limits: Limits
    slow: Slow
    write_buffer: int
    credit_bytes: int
    access: Access
    server: str
    most_connections: int
    admin: Callable[[], str]
    frames: Callable[[Connection], Dialect]
    json_lines: Callable[[Connection], Dialect]
    reader: Worker | None  # reads long pieces of JSON lines; None: the loop does
    connections: dict[Connection, None]
    timers: Timers
    guesses: Guesses
    turns: Turns
    refusals: Refusals
    silence: Silence
    # What is known of promotions, this server's epoch as text, and whether a peer shows a higher one: the server ends.
    epochs: Callable[[], Epochs]
    epoch: Callable[[], str | None]
    shown: Callable[[str], bool]
    # Connections without a greeting so far, oldest first, and those that are to be closed.
    most_strangers: int
    strangers: dict[Connection, None]
    turned_away: dict[Connection, None]
    # Why this server serves none of them now.
    refused: Callable[[], MillraceError | None]


class Connection(asyncio.Protocol):
    """The transport's side of a peer."""

    def __init__(self, context: ConnectionContext) -> None:
        self.context = context
        self._host = self._name = self.peer = "?"
        # Known from the start by its certificate, or because the server requires nothing.
        self.caller: Caller | None = None
        self.writable = True
        self.heard_at = context.timers.time()
        self._deadline: Handle | None = None
        self._transport: asyncio.Transport | None = None
        self._dialect: Dialect | None = None
        self._ending = False
        self._holds_reading: set[str] = set()
        self._unsaid: list[tuple[bytes, bytes]] = []  # while the server must say nothing
        self._kept: list[bytes] = []  # until its turn comes

    # -- asyncio's calls ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports keep asyncio's interface without being its subclasses.
        self._transport = transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        if name:
            self._host, self._name = name[0], f"{name[0]}:{name[1]}"
            self.peer = self._name
        self.caller = self.context.access.unnamed("listen", names_of(transport))
        transport.set_write_buffer_limits(high=self.context.write_buffer)
        if len(self.context.connections) >= self.context.most_connections:
            self._turn_away()
            return
        self.context.connections[self] = None
        self.context.strangers[self] = None
        self.expect(GREETING_SECONDS, self._nothing_said)
        if len(self.context.strangers) > self.context.most_strangers:
            next(iter(self.context.strangers)).evict()
        log.debug("a client connected", client=self.peer)

    @property
    def name(self) -> str:
        """The peer's address and the name that it sent."""
        return self._name

    def _turn_away(self) -> None:
        """The limit is reached: a peer that speaks soon gets the answer in its dialect."""
        self.context.refusals.count("listen", "too_many_connections")
        sparing.warning("refused a connection: the limit is reached", "", client=self.peer)
        if len(self.context.turned_away) >= TURNED_AWAY:
            self.abort()
            return
        self.context.turned_away[self] = None
        self.expect(GREETING_SECONDS, self.abort)

    def evict(self) -> None:
        """Newer connections need the place of one that has not introduced itself."""
        self.context.refusals.count("listen", "evicted")
        sparing.warning("closed an unauthenticated connection to admit newer ones", "", client=self.peer)
        self.context.strangers.pop(self, None)
        self.abort()

    def _nothing_said(self) -> None:
        reason: Reason = "silent" if self._dialect is None else "too_slow"
        self.end_for(reason, f"expected HELLO or a line within {GREETING_SECONDS:g} seconds")

    def end_for(self, reason: Reason, text: str) -> None:
        """Close because of the peer's behaviour, with the reason if a dialect was chosen."""
        self.context.refusals.count("listen", reason)
        sparing.warning("a client was disconnected", f"{self._host} {reason}", code=reason, reason=text)
        if self._dialect is not None and not self._ending:
            self._dialect.refuse_peer(PeerError(text, code=reason))
        self.close()

    # -- deadlines ---------------------------------------------------------------------------------

    def expect(self, seconds: float, otherwise: Callable[[], None]) -> None:
        """Call this after a delay. A connection has one deadline, which a new one replaces."""
        self.expect_nothing()
        self._deadline = self.context.timers.call_later(seconds, otherwise)

    def expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def introduced(self) -> None:
        """The peer has said who it is, or that it speaks a dialect that needs no more."""
        self.context.strangers.pop(self, None)
        self.expect_nothing()

    def admit(self, token: str | None) -> Caller:
        """The client that shows this token. Raises AccessDenied."""
        if self.caller is None:
            self.caller = self.context.access.named("listen", token, "the role feed or read")
        return self.caller

    def told(self, error: MillraceError) -> MillraceError:
        """An error without what this client may not know."""
        if self.caller is None or (text := self.caller.told(error)) == error.text:
            return error
        return MillraceError(text, code=error.code)

    def look_at_token(self) -> None:
        """Tokens were revoked or have expired: close unless this client is still known."""
        if self.caller is not None and not self.context.access.holds("listen", self.caller):
            log.info("closed a connection: its token is no longer valid", client=self.peer, token=self.caller.name)
            if self._dialect is not None and not self._ending:
                self._dialect.refuse_peer(AccessDenied("the token is no longer valid: send another one", "expired"))
            self.close()

    def wrong_token(self, answer: bytes) -> None:
        """Let the answer to a wrong token wait; nothing more is heard meanwhile."""
        self._ending = True
        self.hold_reading("token")
        delay = self.context.guesses.wrong("listen", self._host)
        if delay is None:
            self.abort()
            return

        def answer_and_close() -> None:
            self.write(answer)
            self.close()

        self.expect(delay, answer_and_close)

    def called(self, name: str) -> None:
        """The peer's name of itself, for the log."""
        self._name = f"{self.peer} ({name})"
        client.set(self._name)

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        if self in self.context.turned_away:
            self._say_that_the_limit_is_reached(data)
            return
        if self._dialect is None and speaks_http(data, self.context.limits.frame_bytes):
            self.write(ports.to_http(self.context.admin()))
            sparing.warning("a client used the wrong port", "streams", client=self.peer)
            self.close()
            return
        if self._dialect is None and (refused := self.context.refused()) is not None:
            self._send_away(data, refused)
            return
        if self._dialect is None:
            begin = self.context.json_lines if speaks_json(data[0]) else self.context.frames
            self._dialect = begin(self)
        turns = self.context.turns
        if self._kept or (self._dialect.feeds and turns.is_over()):
            self._keep(data)
            return
        self._act(data)

    def _act(self, data: bytes) -> None:
        """Act on bytes, and count the time if they may take long."""
        assert self._dialect is not None
        runner, many = self.context.runner, len(data) > FEW_BYTES
        began = perf_counter() if many else 0.0
        runner.receives()
        self.guarded(self._dialect.received, data)
        runner.received()
        self.context.turns.spend(perf_counter() - began if many else FEW_SECONDS)

    def _keep(self, data: bytes) -> None:
        """Other feeds have used the time until the next poll: wait for a turn."""
        if not self._kept:
            self.context.turns.wait(self)
        self._kept.append(data)
        self.hold_reading(TURN)

    def take_turn(self) -> None:
        """Act on the bytes that were kept, and read on."""
        data = b"".join(self._kept)
        self._kept.clear()
        if not self._ending and self._dialect is not None:
            self._act(data)
        self.let_read(TURN)

    def guarded(self, work: Callable[..., None], *about: Any) -> None:
        """Do something for this peer. With an internal error it loses its connection, and the others do not notice."""
        before = client.set(self._name)
        try:
            work(*about)
        except Exception:
            log.exception("internal error in a connection")
            self._ending = True
            self.abort()
        finally:
            client.reset(before)

    def _say_that_the_limit_is_reached(self, data: bytes) -> None:
        most = self.context.most_connections
        text = f"the server already has {most} connections (limits.connections); try again later"
        self._send_away(data, MillraceError(text, code="too_many_connections"))

    def _send_away(self, data: bytes, error: MillraceError) -> None:
        """Answer a peer that has just spoken in its dialect, and close."""
        self.write(error_line(error, None) if speaks_json(data[0]) else frame(encode(Error(error.code, error.text))))
        self.close()

    def eof_received(self) -> bool:
        return self._dialect is not None and not self._ending and self._dialect.half_closed()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        if self._unsaid:
            return
        self.writable = True
        self.let_read("answers")
        if self._dialect is not None:
            self._dialect.writable_again()

    def connection_lost(self, error: Exception | None) -> None:
        known = self in self.context.connections  # or it was turned away
        self.context.connections.pop(self, None)
        self.context.strangers.pop(self, None)
        self.context.turned_away.pop(self, None)
        self.context.silence.forget(self)
        if self._kept:
            self.context.turns.forget(self)
            self._kept.clear()
        self.expect_nothing()
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

    def write(self, data: bytes, shared: bytes = b"") -> None:
        """Write bytes, and `shared` ones that other connections write, too: many are not copied for this one."""
        transport = self._transport
        if not data or transport is None or transport.is_closing():
            return
        if self._unsaid or self.context.silence.lasts():
            self._leave_unsaid(data, shared)
            return
        if len(shared) > COPIED_BYTES:
            transport.writelines((data, shared))
        else:
            transport.write(data + shared if shared else data)
        if not self.writable and transport.get_write_buffer_size() > ANSWERS_FACTOR * self.context.write_buffer:
            self.hold_reading("answers")

    def _leave_unsaid(self, data: bytes, shared: bytes) -> None:
        """Keep bytes until the server may speak. Subscriptions wait as for a socket that takes none."""
        self.writable = False
        self._unsaid.append((data, shared))
        self.context.silence.hold(self)
        if sum(len(data) + len(shared) for data, shared in self._unsaid) > ANSWERS_FACTOR * self.context.write_buffer:
            self.hold_reading("answers")

    def speak(self) -> None:
        """The server may speak again."""
        unsaid, self._unsaid = self._unsaid, []
        self.writable = True  # unless the transport objects
        for data, shared in unsaid:
            self.write(data, shared)
        if self.writable:
            self.resume_writing()

    @property
    def reads(self) -> bool:
        return not self._holds_reading

    @property
    def buffered(self) -> int:
        """Bytes in memory that came from the peer or are going there."""
        transport, dialect = self._transport, self._dialect
        unsent = 0 if transport is None else transport.get_write_buffer_size()
        unsaid = sum(len(data) + len(shared) for data, shared in self._unsaid)
        return unsent + unsaid + sum(map(len, self._kept)) + (0 if dialect is None else dialect.buffered)

    @property
    def only_feeds(self) -> bool:
        return self._dialect is not None and self._dialect.only_feeds

    @property
    def deaf(self) -> bool:
        """Whether the server stopped reading for a reason other than that the peer does not read its answers."""
        return bool(self._holds_reading - {"answers"})

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
        """End after the written bytes have left, and in any case soon."""
        self._ending = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self.expect(FAREWELL_SECONDS, self._transport.abort)

    def settle(self) -> None:
        """Act on all bytes that have been received."""
        if self._kept:
            self.context.turns.forget(self)
            self.take_turn()
        if self._dialect is not None:
            self.guarded(self._dialect.settle)

    def farewell(self, reason: str) -> None:
        """The server is ending."""
        if self._dialect is not None and not self._ending:
            self._dialect.farewell(reason)
        self.close()

    def log_refusal(self, error: MillraceError) -> None:
        if isinstance(error, TooFarAheadError):
            return  # told where it is counted, with its stream
        if error.code == NOT_PERMITTED:
            self.context.access.lacks_role("listen")
        sparing.warning("a client was refused", self._culprit(error), code=error.code, reason=without_data(error.text))

    def log_breach(self, error: MillraceError) -> None:
        text = "a client violated the protocol"
        sparing.warning(text, self._culprit(error), code=error.code, reason=without_data(error.text))

    def _culprit(self, error: MillraceError) -> str:
        """The host: a client that reconnects repeatedly uses another port each time."""
        return f"{self._host} {error.code}"

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def said_something(self) -> None:
        """The peer has said more than that it is there."""
        self.heard_at = self.context.timers.time()

    def idle_since(self, now: float) -> float:
        """For how long the peer has said nothing."""
        return now - self.heard_at
