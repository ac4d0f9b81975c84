"""AsyncClient: a connection to a Millrace server that reconnects."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar, cast

from millrace.client.address import parse_addresses
from millrace.client.backoff import Backoff
from millrace.client.errors import ConnectionLost, Ended, ServerError
from millrace.client.feed import FRAME_ROWS, HELD_BYTES, HELD_TUPLES, Answer, AsyncFeed, GroupAnswer
from millrace.client.local import local_token
from millrace.client.outbox import Entry
from millrace.client.subscription import WINDOW, AsyncSubscription
from millrace.client.waiting import Waiting
from millrace.protocol import FrameReader, MillraceError, PeerError, Refuse, Schema, Session, Side, decode
from millrace.protocol.epochs import EpochMemory, epoch_number
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

HEARTBEAT = 15.0  # seconds without data before PING, and again before the connection counts as lost
WRITE_BUFFER = 2**20  # bytes in the transport before feeds wait: a few frames, so that it always has data
# Bytes before the rows of a frame at most: two heads, channel, sequence, count.
_FRAME_OVERHEAD = 32
# Codes of errors without a channel after which the client reconnects.
_TRY_AGAIN = frozenset(
    {"shutting_down", "memory", "too_slow", "too_many_connections", "silent", "standby", "superseded"}
)
# Codes after which another address may answer.
_TRY_ANOTHER = _TRY_AGAIN | {ConnectionLost.code}


class AsyncClient:
    """A connection to a Millrace server, for programs with an event loop.

        async with AsyncClient("127.0.0.1:7420") as client:
            async with await client.open("ticks") as feed:
                await feed.send([("abc", 10.5), ("xyz", 7.25)])

    When the connection breaks, the client reconnects. Feeds then send unacknowledged rows again (the server drops those
    it already has), and subscriptions resume after their last row. When the attempts of `reconnect` are used up,
    pending and later calls raise ConnectionLost.

    Args:
        address: `host`, `host:port` or `[::1]:port`. The default port is 7420. Several, as a list or with commas
            between, are a server and its standby: the client tries them in turn and follows a promotion.
        token: the token, if the server requires one; by default that of this user's server on this machine.
        tls: True to verify the server with the system's certificates, or an `ssl.SSLContext`.
        name: the name of this client in the server's log.
        reconnect: the pauses between attempts to reconnect. None: do not reconnect.
        heartbeat: seconds without data before the client sends PING, and again before it drops the connection.
        on_lost: called with the reason each time the connection breaks and the client tries to reconnect.
    """

    def __init__(
        self,
        address: str | Sequence[str] = "127.0.0.1",
        *,
        token: str | None = None,
        tls: ssl.SSLContext | bool | None = None,
        name: str = "python",
        reconnect: Backoff | None = Backoff(),  # noqa: B008 - frozen
        heartbeat: float = HEARTBEAT,
        on_lost: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        self._addresses = parse_addresses(address)
        self.host, self.port = self._addresses[0]
        self._memory = EpochMemory()
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
    async def connect(
        cls,
        address: str | Sequence[str] = "127.0.0.1",
        *,
        token: str | None = None,
        tls: ssl.SSLContext | bool | None = None,
        name: str = "python",
        reconnect: Backoff | None = Backoff(),  # noqa: B008 - frozen
        heartbeat: float = HEARTBEAT,
        on_lost: Callable[[BaseException | None], None] | None = None,
    ) -> AsyncClient:
        """Connect without a context manager. The caller ends the connection with `close`.

        Args:
            address: `host`, `host:port` or `[::1]:port`. The default port is 7420. Several, as a list or with commas
                between, are a server and its standby: the client tries them in turn and follows a promotion.
            token: the token, if the server requires one; by default that of this user's server on this machine.
            tls: True to verify the server with the system's certificates, or an `ssl.SSLContext`.
            name: the name of this client in the server's log.
            reconnect: the pauses between attempts to reconnect. None: do not reconnect.
            heartbeat: seconds without data before the client sends PING, and again before it drops the connection.
            on_lost: called with the reason each time the connection breaks and the client tries to reconnect.

        Raises:
            ConnectionLost: the server cannot be reached.
            ServerError: the server refused the connection, for example because the token is wrong.
        """
        client = cls(
            address,
            token=token,
            tls=tls,
            name=name,
            reconnect=reconnect,
            heartbeat=heartbeat,
            on_lost=on_lost,
        )
        await client.start()
        return client

    async def start(self) -> None:
        """Connect. Raises ConnectionLost, or the server's refusal, after one failed attempt."""
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
        answer_group: GroupAnswer | None = None,
        frame_rows: int = FRAME_ROWS,
        held_tuples: int = HELD_TUPLES,
        held_bytes: int = HELD_BYTES,
    ) -> AsyncFeed:
        """Open a feed, which sends rows to a stream.

        Args:
            stream: the name of the stream.
            producer: the feed's name on the server, which stores `next_sequence` for each name. A program that can
                repeat its input sets it and resumes at `feed.next_sequence`. The default is a new random name.
            schema: the schema that the program expects. The server refuses the feed if the stream's schema differs.
            answer: how to answer the server's request for a timestamp. A function takes the least timestamp that would
                help, in microseconds, and returns the least timestamp that a row not yet sent can have, or None.
                "clock": the current time of this machine, for rows that are stamped with it and sent at once.
            answer_group: how to answer a request that names the group that has waited the longest, on a stream with a
                `punctuation_key`. A function takes the least timestamp that would help, and the group's values by
                column (timestamps in microseconds), and returns the least timestamp that a row of this group not yet
                sent can have. If it returns None, `answer` answers for all rows.
            frame_rows: the most rows in a frame.
            held_tuples: `send` waits while this many tuples are not acknowledged.
            held_bytes: `send` waits while this many bytes are not acknowledged.

        Raises:
            ServerError: `unknown_stream`, `schema_mismatch` or another code of the protocol.
        """
        feed = AsyncFeed(
            self,
            stream,
            producer=producer if producer is not None else uuid.uuid4().hex,
            fingerprint=None if schema is None else schema.fingerprint(),
            answer=answer,
            answer_group=answer_group,
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
        refresh_us: int | None = None,
        keys: Sequence[object] | None = None,
        epoch: int | None = None,
    ) -> AsyncSubscription:
        """Subscribe to the rows of a query.

        Args:
            query: the name of the query.
            from_sequence: the sequence number of the first row to read. None: the next row that the query emits.
            window: the most rows in memory that the program has not read yet.
            progress: also receive progress; see `updates` and `progress_us`.
            format: "rows" for RowBatch, "arrow" for ArrowBatch (requires pyarrow).
            on_gap: what to do if the server no longer retains the rows that follow after a reconnect. "fail": raise
                ServerError `not_retained`, or `lost` if a promotion has lost rows. "continue": count the gap in `gaps`
                and resume, in a new history at sequence 0, at the first lost row, else at the next row.
            history: the history that `from_sequence` belongs to, from `subscription.history` of an earlier run. The
                server refuses a sequence number of an ended history with `not_retained`.
            refresh_us: how often the program looks at the rows, in microseconds. Edges `LATEST USING DEADLINE` of the
                query and of queries that it reads serve keys for that. Without one the server refuses: `no_deadline`.
            keys: the keys that it looks at so often: values of the update key, tuples if it has several columns. None:
                all keys.
            epoch: the epoch in which the program got the row before `from_sequence`, from `subscription.epoch` of an
                earlier run. The server refuses with `lost` if a promotion has lost rows that the program has.

        Raises:
            ServerError: `unknown_query`, `not_retained`, `lost` or another code of the protocol.
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
                refresh_us=refresh_us,
                keys=keys,
                epoch=epoch,
            )
        )

    async def close(self) -> None:
        """Flush and close every feed, close every subscription, and disconnect. A second call does nothing.

        If an error ended the connection earlier, `close` raises it: rows may not have arrived.
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

    @property
    def epoch(self) -> int | None:
        """The number of the highest epoch that the client has seen. Each promotion of a standby raises it.

        None: no server has said its epoch.
        """
        return self._memory.number or None

    # Used by feeds and subscriptions.

    @property
    def writable(self) -> bool:
        """Whether the transport accepts more bytes."""
        return self._wire is not None and not self._wire.paused

    def has(self, capability: str) -> bool:
        """Whether the server granted this capability on the current connection."""
        return self._wire is not None and capability in self._wire.session.capabilities

    @property
    def frame_room(self) -> int:
        """Bytes of rows that fit one frame."""
        return self.limits.frame_bytes - _FRAME_OVERHEAD

    def credit(self, channel: int) -> int:
        """Tuples that the server accepts on this channel; 0 between BYE and the next connection."""
        open_channel = None if self._wire is None else self._wire.session.channels.get(channel)
        return 0 if open_channel is None else open_channel.credit

    def say(self, message: Message) -> None:
        """Write a message. Does nothing without a connection."""
        if self._wire is not None:
            self._wire.write(self._wire.session.say(message))

    def write_tuples(self, channel: int, entry: Entry) -> None:
        """Write packed rows."""
        assert self._wire is not None
        skip = self._wire.session.take(channel, entry.sequence, entry.tuples)
        assert skip == 0 or skip == entry.tuples == 0, "an outbox returns each tuple once per connection"
        head, payload = entry.body(channel)
        self._wire.write((len(head) + len(payload)).to_bytes(HEAD_BYTES, "big") + head, payload)

    def forget(self, owner: _Owner) -> None:
        """Remove an ended feed or subscription, and close its channel if the server still has it open."""
        if owner in self._owners:
            self._owners.remove(owner)
        for number in [number for number, other in self._by_channel.items() if other is owner]:
            del self._by_channel[number]
            channel = self._wire.session.channels.get(number) if self._wire else None
            if channel is not None and channel.phase in (Phase.FEED, Phase.READING):
                self.say(Close(number))

    def ask_again(self, owner: _Owner) -> None:
        """Open a new channel for a feed or subscription whose first request was refused."""
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

    # Called by the wire.

    def received(self, message: Message) -> None:
        """Handle a message that the session rules allow."""
        match message:
            case Welcome() if not self._memory.accepts(message.epoch):
                self._drop(self._replaced(message.epoch))
            case Welcome():
                self.limits, self.server, self._ready = message.limits, message.server, True
                if self._wire is not None:
                    self._wire.adopt(message.limits)
            case Ping():
                self.say(Pong(message.token))
            case Pong():
                pass
            case Bye():
                self._drop(ConnectionLost(f"the server ended the connection: {message.reason or 'no reason'}"))
            case Error(channel=None):
                self._end_with(ServerError(message))
            case _:
                owner = self._by_channel.get(getattr(message, "channel", -1))
                if owner is not None:
                    owner.receive(message)
        self._waiting.wake()

    def writable_again(self) -> None:
        """The transport accepts more bytes."""
        for owner in self._feeds():
            owner.pump()

    def broken(self, error: PeerError | Refuse) -> None:
        """The server broke the protocol, so the client does not reconnect."""
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

    # The connection.

    async def _dial(self) -> asyncio.Future[None]:
        """Connect and exchange HELLO and WELCOME, then open a channel for every feed and subscription.

        The future ends with the connection. The addresses are tried in turn, the present one first.
        """
        lost = await self._greet_any()
        for owner in list(self._owners):
            try:
                self._connect_owner(owner)
            except Refuse as error:
                self.forget(owner)
                owner.fail(error)
        return lost

    async def _greet_any(self) -> asyncio.Future[None]:
        """Greet the first server that serves clients."""
        first = self._addresses.index((self.host, self.port))
        following = self._addresses[first + 1 :] + self._addresses[:first]
        while True:
            try:
                return await self._greet_somehow()
            except (ConnectionLost, ServerError) as error:
                if error.code not in _TRY_ANOTHER or not following:
                    raise
                self._end_wire()
                self.host, self.port = following.pop(0)

    async def _greet_somehow(self) -> asyncio.Future[None]:
        """Greet a server of any version: one without the epoch, or without capabilities, refuses these fields of HELLO,
        and the client connects again without them."""
        capabilities = tuple(CAPABILITIES)
        for epoch in [self._memory.text, None] if self._memory.text else [None]:
            try:
                return await self._greet(capabilities, epoch)
            except ServerError as error:
                if error.code != "bad_message":
                    raise
                self._end_wire()
                self._fatal = None
        return await self._greet(None, None)

    async def _greet(self, capabilities: tuple[str, ...] | None, epoch: str | None) -> asyncio.Future[None]:
        """Connect, send HELLO and wait for WELCOME."""
        lost: asyncio.Future[None] = self.loop.create_future()
        # With one address, the system decides how long to try; with several, another one may answer.
        seconds = self._heartbeat if len(self._addresses) > 1 else None
        where = f"{self.host}:{self.port}"
        try:
            async with asyncio.timeout(seconds):
                _, wire = await self.loop.create_connection(
                    lambda: _Wire(self, lost), self.host, self.port, ssl=self._tls
                )
        except OSError as error:
            reason = str(error) or f"no answer within {seconds} seconds"
            raise ConnectionLost(f"cannot connect to {where}: {reason}; is the server running there?") from error
        self._wire = wire
        self._next_channel = 0
        token = local_token(self.host, self.port) if self._token is None else self._token
        self.say(Hello(PROTOCOL, self._name, token, capabilities, epoch))
        await self._welcomed(lost)
        return lost

    def _replaced(self, epoch: str | None) -> ServerError:
        number = 1 if epoch is None else epoch_number(epoch)
        text = f"{self.host}:{self.port} has epoch {number}, and epoch {self._memory.number} has replaced it"
        return ServerError(Error("superseded", f"{text}: connect to the server that was promoted"))

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
        """Reconnect each time the connection breaks, until the attempts are used up."""
        connected: asyncio.Future[None] | None = lost
        while connected is not None:
            error = await self._watch(connected)
            self._end_wire()
            if self._on_lost is not None and self._reconnect is not None and self._fatal is None:
                self._on_lost(error)
            connected = await self._redial(error)

    async def _redial(self, error: BaseException | None) -> asyncio.Future[None] | None:
        """Reconnect. Returns None when the attempts are used up; every feed and subscription has failed then."""
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
        where = ", ".join(f"{host}:{port}" for host, port in self._addresses)
        lost = ConnectionLost(f"the connection to {where} is lost and could not be restored: {error}")
        lost.__cause__ = error
        return lost

    async def _watch(self, lost: asyncio.Future[None]) -> BaseException | None:
        """Wait until the connection is lost. No data for a heartbeat means PING, and none for another means a loss."""
        pinged = False
        while True:
            assert self._wire is not None
            received_bytes = self._wire.received_bytes
            await asyncio.wait([lost], timeout=self._heartbeat)
            if lost.done():
                return lost.exception()
            if self._wire.received_bytes != received_bytes:
                pinged = False
            elif pinged:
                self._drop(ConnectionLost("the server does not answer PING"))
            else:
                pinged = True
                self.say(Ping(received_bytes))

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
        self._fail(Ended("this client is closed; create another"))


class _Wire(asyncio.Protocol):
    """A connection: bytes to messages that the session rules allow, and back."""

    def __init__(self, client: AsyncClient, lost: asyncio.Future[None]) -> None:
        self.session = Session(Side.CLIENT)
        self.paused = False
        self.received_bytes = 0
        self._client = client
        self._lost = lost
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None

    def write(self, *parts: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(parts)

    def adopt(self, limits: Limits) -> None:
        """Apply the server's limits in both directions."""
        self.session.limits = limits
        self._frames.limit = min(limits.frame_bytes, LARGEST_LIMIT - 1)

    def end(self, error: BaseException | None) -> None:
        """Close after the written bytes. The first error is the one that callers see."""
        self._settle(error)
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from asyncio's
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
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
            self._lost.exception()  # marks the exception as retrieved
