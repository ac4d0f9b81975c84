"""AsyncClient: one connection to a Millrace server, kept up."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import uuid
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar, cast

from millrace.client.address import parse_address
from millrace.client.backoff import Backoff
from millrace.client.errors import ConnectionLost, Ended, ServerError
from millrace.client.feed import FRAME_ROWS, HELD_BYTES, HELD_TUPLES, Answer, AsyncFeed
from millrace.client.outbox import Entry
from millrace.client.subscription import WINDOW, AsyncSubscription
from millrace.client.waiting import Waiting
from millrace.protocol import FrameReader, MillraceError, PeerError, Refuse, Schema, Session, Side, decode
from millrace.protocol.frames import HEAD_BYTES, LARGEST_LIMIT
from millrace.protocol.messages import (
    CAPABILITIES,
    PROTOCOL,
    Bye,
    Close,
    Error,
    Hello,
    Limits,
    Message,
    Ping,
    Pong,
    Welcome,
)
from millrace.protocol.session import Phase, Stage

_Owner = AsyncFeed | AsyncSubscription
_T = TypeVar("_T", AsyncFeed, AsyncSubscription)

HEARTBEAT = 15.0  # seconds of silence before PING, and again before the connection counts as lost
WRITE_BUFFER = 2**20  # bytes handed to the transport before feeds wait; a few frames, so that it never runs dry
# What stands before the rows in a frame: two heads, channel, sequence, count, at their longest.
_FRAME_OVERHEAD = 32
# Errors without a channel after which connecting again makes sense.
_TRY_AGAIN = frozenset({"shutting_down", "too_slow", "too_many_connections", "silent"})


class AsyncClient:
    """A connection to a server. Use it as `async with AsyncClient("127.0.0.1:7420") as client:`.

    Connects again, by itself and with growing pauses, when the connection breaks: feeds send what was not
    acknowledged once more (the server drops what it had), subscriptions go on after their last row. When that is given
    up, everything that waits raises ConnectionLost. `reconnect=None` gives up at once. `on_lost` is called each time
    that the connection breaks and another is tried.
    """

    def __init__(
        self,
        address: str = "127.0.0.1",
        *,
        token: str | None = None,
        tls: ssl.SSLContext | bool | None = None,
        name: str = "python",
        reconnect: Backoff | None = Backoff(),  # noqa: B008 - frozen
        heartbeat: float = HEARTBEAT,
        on_lost: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        self.host, self.port = parse_address(address)
        self.limits = Limits()
        self.server = ""
        self._token = token
        self._tls = ssl.create_default_context() if tls is True else tls or None
        self._name = name
        self._reconnect = reconnect
        self._heartbeat = heartbeat
        self._on_lost = on_lost
        self._wire: _Wire | None = None
        # Feeds and subscriptions to be opened again on the next connection, and who owns which channel of this one.
        self._owners: list[_Owner] = []
        self._by_channel: dict[int, _Owner] = {}
        self._next_channel = 0
        self._keeper: asyncio.Task[None] | None = None
        self._waiting = Waiting()
        self._ready = False
        self._fatal: BaseException | None = None

    @classmethod
    async def connect(cls, address: str = "127.0.0.1", **options: object) -> AsyncClient:
        """Connect without a context manager; end with `close`. Takes what the class takes."""
        client = cls(address, **options)  # type: ignore[arg-type]
        await client.start()
        return client

    async def start(self) -> None:
        """Connect. Fails at once, with ConnectionLost or the server's refusal, if that cannot be done."""
        self.loop = asyncio.get_running_loop()
        try:
            lost = await self._dial()
        except MillraceError:
            self._end_wire()
            raise
        self._keeper = self.loop.create_task(self._keep(lost))

    async def open(
        self,
        stream: str,
        *,
        producer: str | None = None,
        schema: Schema | None = None,
        answer: Answer | None = None,
        frame_rows: int = FRAME_ROWS,
        held_tuples: int = HELD_TUPLES,
        held_bytes: int = HELD_BYTES,
    ) -> AsyncFeed:
        """Open a feed of a stream.

        `producer` names the feed for the server, which knows how far it came (`feed.next_sequence`); by default it
        is a new name each time. `schema`, if given, must be the stream's. `answer` is asked when the server needs a
        timestamp: a function from the need to the least timestamp that rows still to come may have, or 'clock'. The
        rest bounds frames and memory.
        """
        feed = AsyncFeed(
            self,
            stream,
            producer=producer if producer is not None else uuid.uuid4().hex,
            fingerprint=None if schema is None else schema.fingerprint(),
            answer=answer,
            frame_rows=frame_rows,
            held_tuples=held_tuples,
            held_bytes=held_bytes,
        )
        return await self._add(feed)

    async def subscribe(
        self,
        query: str,
        *,
        from_sequence: int | None = None,
        window: int = WINDOW,
        progress: bool = False,
        format: Literal["rows", "arrow"] = "rows",  # noqa: A002 - the protocol's word
        on_gap: Literal["fail", "continue"] = "fail",
        history: str | None = None,
    ) -> AsyncSubscription:
        """Read a query's rows, from now on or from a sequence number. At most `window` rows wait in memory.

        `history` is the history that `from_sequence` belongs to (`subscription.history` of an earlier run): in another
        one the number would mean another row, and the server refuses it with `not_retained`. `on_gap` says what to do
        when the server, after a reconnect, no longer has the rows that follow: fail with ServerError `not_retained`, or
        count the gap in `subscription.gaps` and continue, with row 0 of a new history or else with the next row.
        """
        return await self._add(
            AsyncSubscription(
                self,
                query,
                from_sequence=from_sequence,
                window=window,
                progress=progress,
                format=format,
                on_gap=on_gap,
                history=history,
            )
        )

    async def close(self) -> None:
        """Close every feed (which flushes it) and subscription, say BYE and disconnect. Twice is fine.

        Raises what ended the connection, if something had: rows sent may not have arrived then.
        """
        failed = self._waiting.failed if self._keeper is not None else None
        try:
            for owner in list(self._owners):
                await owner.close()
        finally:
            await self._stop()
        if failed is not None:
            raise failed

    async def __aenter__(self) -> AsyncClient:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self._stop()

    # What feeds and subscriptions use.

    @property
    def writable(self) -> bool:
        """Whether the transport takes more."""
        return self._wire is not None and not self._wire.paused

    def has(self, capability: str) -> bool:
        """Whether the server of this connection granted this capability of the protocol."""
        return self._wire is not None and capability in self._wire.session.capabilities

    @property
    def frame_room(self) -> int:
        """Bytes of rows that fit one frame."""
        return self.limits.frame_bytes - _FRAME_OVERHEAD

    def credit(self, channel: int) -> int:
        """Tuples that the server will take on this channel: none once the server said BYE, until a new connection."""
        open_channel = None if self._wire is None else self._wire.session.channels.get(channel)
        return 0 if open_channel is None else open_channel.credit

    def say(self, message: Message) -> None:
        """Write a message; nothing if there is no connection."""
        if self._wire is not None:
            self._wire.write(self._wire.session.say(message))

    def write_tuples(self, channel: int, entry: Entry) -> None:
        """Write rows that are packed already."""
        assert self._wire is not None
        skip = self._wire.session.take(channel, entry.sequence, entry.tuples)
        assert skip == 0 or skip == entry.tuples == 0, "an outbox gives each tuple of a connection once"
        head, payload = entry.body(channel)
        self._wire.write((len(head) + len(payload)).to_bytes(HEAD_BYTES, "big") + head, payload)

    def forget(self, owner: _Owner) -> None:
        """This feed or subscription has ended: close its channel if the server still has it open."""
        if owner in self._owners:
            self._owners.remove(owner)
        for number in [number for number, other in self._by_channel.items() if other is owner]:
            del self._by_channel[number]
            channel = self._wire.session.channels.get(number) if self._wire else None
            if channel is not None and channel.phase in (Phase.FEED, Phase.READING):
                self.say(Close(number))

    def ask_again(self, owner: _Owner) -> None:
        """What this one asked for was refused; it has something else to ask for."""
        self._by_channel = {number: other for number, other in self._by_channel.items() if other is not owner}
        self._connect_owner(owner)

    async def _add(self, owner: _T) -> _T:
        if self._waiting.failed is not None:
            raise self._waiting.failed
        if self._keeper is None:
            raise Ended("this client is not connected: use `async with`, or call start()")
        self._owners.append(owner)
        try:
            if self._ready:
                self._connect_owner(owner)
            await owner.opened()
        except BaseException:
            self.forget(owner)
            raise
        return owner

    def _connect_owner(self, owner: _Owner) -> None:
        channel, self._next_channel = self._next_channel, self._next_channel + 1
        self._by_channel[channel] = owner
        owner.connect(channel)

    # What the wire tells.

    def received(self, message: Message) -> None:
        """One message of the server's that the session rules allow."""
        match message:
            case Welcome():
                self.limits, self.server, self._ready = message.limits, message.server, True
                if self._wire is not None:
                    self._wire.adopt(message.limits)
            case Ping():
                self.say(Pong(message.token))
            case Pong():
                pass
            case Bye():
                self._drop(ConnectionLost(f"the server said goodbye: {message.reason or 'no reason given'}"))
            case Error(channel=None):
                self._end_with(ServerError(message))
            case _:
                owner = self._by_channel.get(getattr(message, "channel", -1))
                if owner is not None:
                    owner.receive(message)
        self._waiting.wake()

    def writable_again(self) -> None:
        """The transport takes more."""
        for owner in self._feeds():
            owner.pump()

    def broken(self, error: PeerError | Refuse) -> None:
        """The server broke the protocol: connecting again would not mend it."""
        self._end_with(error)

    def _feeds(self) -> Iterator[AsyncFeed]:
        return (owner for owner in list(self._owners) if isinstance(owner, AsyncFeed))

    def _end_with(self, error: MillraceError) -> None:
        if error.code not in _TRY_AGAIN:
            self._fatal = error
        self._drop(error)

    def _drop(self, error: BaseException) -> None:
        if self._wire is not None:
            self._wire.end(error)

    # Keeping the connection.

    async def _dial(self) -> asyncio.Future[None]:
        """Connect and exchange HELLO and WELCOME; then every feed and subscription asks for its channel.

        The future ends with the connection. A server of before there were capabilities does not know HELLO's last field
        and refuses the message: it gets one without.
        """
        try:
            lost = await self._greet(tuple(CAPABILITIES))
        except ServerError as error:
            if error.code != "bad_message":
                raise
            self._end_wire()
            self._fatal = None
            lost = await self._greet(None)
        for owner in list(self._owners):
            try:
                self._connect_owner(owner)
            except Refuse as error:
                self.forget(owner)
                owner.fail(error)
        return lost

    async def _greet(self, capabilities: tuple[str, ...] | None) -> asyncio.Future[None]:
        """Connect, say HELLO and wait for WELCOME."""
        lost: asyncio.Future[None] = self.loop.create_future()
        try:
            _, wire = await self.loop.create_connection(lambda: _Wire(self, lost), self.host, self.port, ssl=self._tls)
        except OSError as error:
            where = f"{self.host}:{self.port}"
            raise ConnectionLost(f"cannot connect to {where}: {error}; is the server running there?") from error
        self._wire = wire
        self._next_channel = 0
        self.say(Hello(PROTOCOL, self._name, self._token, capabilities))
        await self._welcomed(lost)
        return lost

    async def _welcomed(self, lost: asyncio.Future[None]) -> None:
        late = ConnectionLost("the server does not answer HELLO")
        deadline = self.loop.call_later(self._heartbeat, self._drop, late)
        lost.add_done_callback(lambda _: self._waiting.wake())
        try:
            await self._waiting.until(lambda: self._ready or lost.done())
        finally:
            deadline.cancel()
        if not self._ready:
            error = lost.exception()
            if isinstance(error, ServerError | PeerError):
                raise error
            raise ConnectionLost(f"{self.host}:{self.port} closed the connection before WELCOME: {error}") from error

    async def _keep(self, lost: asyncio.Future[None]) -> None:
        """Wait for the connection to break, make another, until that is given up."""
        connected: asyncio.Future[None] | None = lost
        while connected is not None:
            error = await self._watch(connected)
            self._end_wire()
            if self._on_lost is not None and self._reconnect is not None and self._fatal is None:
                self._on_lost(error)
            connected = await self._redial(error)

    async def _redial(self, error: BaseException | None) -> asyncio.Future[None] | None:
        """Connect again; None, and everything has failed, if that is given up."""
        for pause in () if self._reconnect is None else self._reconnect.pauses():
            if self._fatal is not None:
                break
            await asyncio.sleep(pause)
            try:
                return await self._dial()
            except MillraceError as next_error:
                self._end_wire()
                error = next_error
        self._fail(self._fatal or self._lost(error))
        return None

    def _lost(self, error: BaseException | None) -> ConnectionLost:
        lost = ConnectionLost(f"the connection to {self.host}:{self.port} is lost, and it was given up: {error}")
        lost.__cause__ = error
        return lost

    async def _watch(self, lost: asyncio.Future[None]) -> BaseException | None:
        """Until the connection is lost. Silence is asked about, and silence after the question is a loss."""
        asked = False
        while True:
            assert self._wire is not None
            heard = self._wire.heard
            await asyncio.wait([lost], timeout=self._heartbeat)
            if lost.done():
                return lost.exception()
            if self._wire.heard != heard:
                asked = False
            elif asked:
                self._drop(ConnectionLost("the server does not answer PING"))
            else:
                asked = True
                self.say(Ping(heard))

    def _end_wire(self) -> None:
        if self._wire is not None:
            self._wire.end(None)
        self._wire, self._ready = None, False
        self._by_channel.clear()
        for owner in list(self._owners):
            owner.disconnect()

    def _fail(self, error: BaseException) -> None:
        self._waiting.fail(error)
        for owner in list(self._owners):
            owner.fail(error)
        self._owners.clear()

    async def _stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        if self._wire is not None and self._wire.session.stage is not Stage.ENDED:
            self.say(Bye(""))
        self._end_wire()
        self._fail(Ended("this client is closed; make another"))


class _Wire(asyncio.Protocol):
    """One connection: bytes to messages that the rules allow, and back."""

    def __init__(self, client: AsyncClient, lost: asyncio.Future[None]) -> None:
        self.session = Session(Side.CLIENT)
        self.paused = False
        self.heard = 0  # bytes
        self._client = client
        self._lost = lost
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None

    def write(self, *parts: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(parts)

    def adopt(self, limits: Limits) -> None:
        """Go by the server's limits, both ways."""
        self.session.limits = limits
        self._frames.limit = min(limits.frame_bytes, LARGEST_LIMIT - 1)

    def end(self, error: BaseException | None) -> None:
        """Close, after what was written; the first reason is kept."""
        self._settle(error)
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its bases
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)

    def data_received(self, data: bytes) -> None:
        self.heard += len(data)
        self._frames.feed(data)
        try:
            for body in self._frames.bodies():
                message = decode(body)
                if self.session.receive(message):
                    self._client.received(message)
        except (PeerError, Refuse) as error:
            self.write(self.session.say(Error.of(error)))
            self._client.broken(error)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._client.writable_again()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._settle(exc)

    def _settle(self, error: BaseException | None) -> None:
        if not self._lost.done():
            self._lost.set_exception(error or ConnectionLost("the server closed the connection"))
            self._lost.exception()  # looked at: nobody else needs to
