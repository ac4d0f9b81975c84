"""A server for tests of the client: the session rules over a real socket, without an engine.

It stores the rows of each feed, by stream and producer, across connections, as a server does while it runs. A test can
cut connections, refuse rows and withhold credit.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from millrace.protocol import FrameReader, Schema, Session, Side, decode
from millrace.protocol.errors import PeerError, Refuse
from millrace.protocol.messages import (
    Ack,
    Bye,
    Close,
    Closed,
    Credit,
    Data,
    DataArrow,
    Error,
    Ets,
    Hello,
    Kind,
    Limits,
    Open,
    Opened,
    Ping,
    Pong,
    Punctuation,
    Result,
    Subscribe,
    Subscribed,
    Welcome,
)

SCHEMA = Schema.of(ts="timestamp", k="bigint", name="text")


@dataclass
class FeedInput:
    """The input of one feed: rows and punctuation in the order of their arrival."""

    rows: list[Any] = field(default_factory=list)
    log: list[Any] = field(default_factory=list)  # rows as tuples, punctuation as integers
    frames: list[int] = field(default_factory=list)
    next_sequence: int = 0


class FakeServer:
    """`async with FakeServer() as server:`; then `server.address`."""

    def __init__(
        self,
        *,
        old=False,
        histories=None,
        credit=1_000,
        limits=None,
        token=None,
        give_back=True,
        acknowledge=True,
        refuse=None,
        tls=None,
        unit=None,
        epoch=None,
        standby=False,
    ):
        self.old = old  # without capabilities: HELLO has three fields, and WELCOME four
        # By query. None: the server does not grant the capability.
        self.histories: dict[str, str] | None = histories and dict(histories)
        self.unit = unit  # of the stream's times; None: the server does not grant the capability
        self.epoch = epoch  # as text; None: the server does not grant the capability
        self.standby = standby  # whether it follows another server
        self.hellos: list[Hello] = []
        self.lost_from: int | None = None  # the first row that its promotion has lost
        self.credit = credit
        self.limits = limits or Limits()
        self.token = token
        self.tls = tls
        self.give_back = give_back  # whether to return credit
        self.acknowledge = acknowledge
        self.refuse = refuse or (lambda rows: None)  # rows -> (code, row, expected, got) | None
        self.feeds: dict[tuple[str, str], FeedInput] = {}
        self.results: dict[str, list[tuple]] = {}
        self.opens: list[Open] = []
        self.subscribes: list[Subscribe] = []
        self.answers: list[Ets] = []
        self.connections: list[Connection] = []
        self.connected = 0
        self.pings = 0
        self.silent = False
        self.loop: Any = None
        self.complaints: list[str] = []

    @property
    def last(self) -> "Connection":
        return self.connections[-1]

    def feed(self, stream="s") -> FeedInput:
        [feed_input] = [feed_input for (name, _), feed_input in self.feeds.items() if name == stream]
        return feed_input

    async def __aenter__(self):
        await self.listen()
        return self

    async def listen(self, port=0):
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), "127.0.0.1", port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    async def stop_listening(self):
        self._server.close()
        for connection in list(self.connections):
            connection.cut()
        await self._server.wait_closed()

    async def __aexit__(self, *_):
        await self.stop_listening()


class Connection(asyncio.Protocol):
    def __init__(self, server):
        self.server = server
        self.session = Session(Side.SERVER, limits=server.limits)
        self.frames = FrameReader(server.limits.frame_bytes)

    def connection_made(self, transport):
        self.transport = transport
        self.server.connections.append(self)
        self.server.connected += 1

    def connection_lost(self, exc):
        if self in self.server.connections:
            self.server.connections.remove(self)

    def cut(self):
        self.transport.abort()

    def say(self, message):
        self.transport.write(self.session.say(message))

    def data_received(self, data):
        if self.server.silent:
            return
        self.frames.feed(data)
        for body in self.frames.bodies():
            if self.server.old and body[1] == Kind.HELLO and body[0] != 0x94:
                text = "HELLO: expected 3 fields after the kind, got 4"
                self.say(Error("bad_message", text))
                self.transport.close()
                return
            message = decode(body)
            try:
                self.act(message)
            except PeerError as error:
                self.say(Error.of(error))
                self.transport.close()
            except Refuse as error:
                self.say(Error.of(error, getattr(message, "channel", None), getattr(message, "sequence", None)))

    def act(self, message):
        if isinstance(message, Data | DataArrow):
            self.take(message)
        elif self.session.receive(message):
            getattr(self, type(message).__name__.lower())(message)

    def hello(self, message):
        server = self.server
        server.hellos.append(message)
        if server.token is not None and message.token != server.token:
            self.say(Error("unauthorised", "HELLO: expected the server's token"))
            self.transport.close()
            return
        if server.standby:
            self.say(Error("standby", "this server follows another one"))
            self.transport.close()
            return
        granted = self.session.grants if server.histories or server.unit or server.epoch else None
        self.say(Welcome(1, "fake", server.limits, 0, granted, server.epoch if granted else None))

    def open(self, message: Open):
        self.server.opens.append(message)
        if not message.stream.startswith("s"):
            self.say(Error("unknown_stream", f"no stream {message.stream}", message.channel))
            return
        feed_input = self.server.feeds.setdefault((message.stream, message.producer), FeedInput())
        if message.epoch is not None and (message.sequence or 0) > feed_input.next_sequence:
            self.say(Error("lost", "tuples were lost", message.channel, feed_input.next_sequence))
            return
        feed_input.next_sequence = max(feed_input.next_sequence, message.sequence or 0)
        sequence, unit = feed_input.next_sequence, self.server.unit
        self.say(Opened(message.channel, sequence, self.server.credit, SCHEMA, "external", "ts", unit))

    def feed_of(self, number) -> FeedInput:
        channel = self.session.channels[number]
        return self.server.feeds[channel.name, channel.producer]

    def take(self, message):
        rows = message.rows if isinstance(message, Data) else unarrow(message.batch)
        skip = self.session.take(message.channel, message.sequence, len(rows))
        if skip == len(rows):
            return
        feed_input = self.feed_of(message.channel)
        assert message.sequence + skip == feed_input.next_sequence
        feed_input.next_sequence += len(rows) - skip
        feed_input.frames.append(len(rows))
        refusal = self.server.refuse(rows)
        if refusal:
            code, row, expected, got = refusal
            self.say(Error(code, f"row {row}", message.channel, message.sequence, row, expected, got))
        else:
            feed_input.rows.extend(rows[skip:])
            feed_input.log.extend(rows[skip:])
        if self.server.acknowledge:
            self.say(Ack(message.channel, feed_input.next_sequence))
        if self.server.give_back:
            self.say(Credit(message.channel, len(rows) - skip))

    def punctuation(self, message: Punctuation):
        self.feed_of(message.channel).log.append(message.value_us)

    def ets(self, message: Ets):
        self.server.answers.append(message)

    def subscribe(self, message: Subscribe):
        self.server.subscribes.append(message)
        if message.query not in self.server.results:
            self.say(Error("unknown_query", f"no query {message.query}", message.channel))
            return
        start = message.from_sequence or 0
        history = None if self.server.histories is None else self.server.histories[message.query]
        if message.history is not None and message.history != history:
            self.say(Error("not_retained", f"row {start} is of another history", message.channel))
            return
        if self.server.lost_from is not None and message.epoch == 1 and start > self.server.lost_from:
            self.say(Error("lost", "rows were lost", message.channel, self.server.lost_from))
            return
        if start > len(self.server.results[message.query]):
            self.say(Error("not_retained", f"no row {start}", message.channel))
            return
        self.say(Subscribed(message.channel, SCHEMA, start, history))
        self.deliver(message.channel)

    def deliver(self, number):
        channel = self.session.channels[number]
        rows = self.server.results[channel.name]
        while channel.credit and channel.next_sequence < len(rows):
            start = channel.next_sequence
            self.say(Result(number, start, rows[start : start + min(channel.credit, 7)]))

    def credit(self, message: Credit):
        self.deliver(message.channel)

    def close(self, message: Close):
        self.say(Closed(message.channel))

    def ping(self, message: Ping):
        self.server.pings += 1
        self.say(Pong(message.token))

    def pong(self, _):
        pass

    def error(self, message):
        self.server.complaints.append(message.code)
        self.transport.close()

    def bye(self, _: Bye):
        self.transport.close()


def unarrow(stream):
    import pyarrow

    table = pyarrow.ipc.open_stream(stream).read_all()
    return [tuple(row.values()) for row in table.to_pylist()]
