"""Frames on a connection: the protocol's session rules joined to feeds and subscriptions.

Rule: a frame is taken whole or refused whole. DATA frames that arrived together are decoded together, one batch per
feed, but the order of everything that one feed says is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from millrace.access.access import AccessDenied
from millrace.access.callers import ANYONE
from millrace.access.needs import MESSAGES, check_said
from millrace.engine.events import Late
from millrace.formats.decoder import StreamDecoder
from millrace.net.connection import GREETING_BYTES, Connection, Dialect
from millrace.net.feeds import Acknowledger, UnderWay
from millrace.net.reads import stated
from millrace.net.sink import Outlet, Sender, Subscription
from millrace.observe.logs import sparing
from millrace.protocol import (
    Body,
    FrameReader,
    Head,
    Kind,
    PeerError,
    Refuse,
    Schema,
    Session,
    Side,
    carries_tuples,
    decode,
    peek,
)
from millrace.protocol.fields import pack_integer
from millrace.protocol.frames import HEAD_BYTES
from millrace.protocol.messages import (
    CAPABILITIES,
    PRODUCER_CHARACTERS,
    PROTOCOL,
    Bye,
    Close,
    Closed,
    Credit,
    Error,
    Ets,
    EtsRequest,
    Hello,
    Open,
    Opened,
    Ping,
    Pong,
    Progress,
    Punctuation,
    Subscribe,
    Subscribed,
    Welcome,
    arrow_head,
    channel_head,
)
from millrace.protocol.session import Stage
from millrace.protocol.units import MICROSECONDS
from millrace.run.runner import NOTHING
from millrace.standby.epoch import Lost
from millrace.values.batch import Batch

_ENCODE: Final = msgspec.msgpack.Encoder().encode

# Rows of a RESULT frame at the most: enough to make the frame's own price vanish, few enough to stay far below the
# frame limit with ordinary rows (a frame that is too long is halved).
FRAME_ROWS: Final = 4_096
# How long a peer may be silent before it receives a PING, and how long its PONG may take.
PING_SECONDS: Final = 60.0
PONG_SECONDS: Final = 30.0


class _Frame(NamedTuple):
    """A DATA frame that was accepted but not yet decoded; its first `skip` rows were received earlier."""

    head: Head
    body: Body
    skip: int


class FrameDialect(Dialect):
    """A peer that speaks frames."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.peer = connection.peer
        self.context = connection.context
        known = CAPABILITIES if self.context.runner.syncs else CAPABILITIES.keys() - {"durable"}
        self.session = Session(Side.SERVER, limits=self.context.limits, known=known)
        self._reader = FrameReader(min(GREETING_BYTES, self.context.limits.frame_bytes))
        self._heard_at = 0.0  # when the last whole frame came
        self._pings = 0
        self._pinged = False
        self._feeds: dict[int, _Feed] = {}
        self.subscriptions: dict[int, _Subscriber] = {}
        self._gathered: dict[int, list[_Frame]] = {}
        self._acknowledged: dict[int, int] = {}  # by channel, what is to be said soon
        self._said_bye = False
        self._holds = False  # whether some feed was said to be held

    # -- the connection's calls --------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        try:
            if self.session.stage is Stage.NEW:
                data = self._received_greeting(data)
            self._reader.feed(data)
            self._hear_frames()
        except PeerError as error:
            self._take_gathered()
            self._send_acknowledgements()
            self._connection.log_breach(error)
            farewell = self.session.say(Error.of(error))
            if isinstance(error, AccessDenied) and error.guessed:
                self._connection.wrong_token(farewell)
            else:
                self._connection.write(farewell)
                self._connection.close()
        self._tell_held()

    def _received_greeting(self, data: bytes) -> bytes:
        """Read the first frame, within the limit of strangers; the bytes after it."""
        size = self._reader.missing(data)
        self._reader.feed(data[:size])
        self._hear_frames()
        if self.session.stage is Stage.READY:
            self._reader.limit = self.context.limits.frame_bytes
        return data[size:]

    def _hear_frames(self) -> None:
        for body in self._reader.bodies():
            self._heard_at = self.context.timers.time()
            if body[1] != Kind.PONG:
                self._connection.heard_at = self._heard_at  # more than that the peer is there
            self._hear(body)
        self._take_gathered()

    def refuse_peer(self, error: PeerError) -> None:
        self.say(Error.of(error))

    # -- silence -----------------------------------------------------------------------------------

    def _watch_for_silence(self) -> None:
        self._connection.introduced()
        self._connection.expect(PING_SECONDS, self._look_for_silence)

    def _look_for_silence(self) -> None:
        """Ask a silent peer whether it is there, and end the connection of one that does not answer.

        Only whole frames count: a peer that sends half of one, byte by byte, keeps nothing alive by it.
        """
        silent = self.context.timers.time() - self._heard_at
        if self._connection.deaf:
            self._pinged = False  # its answer could not be heard
            self._connection.expect(PING_SECONDS, self._look_for_silence)
        elif silent < PING_SECONDS:
            self._pinged = False
            self._connection.expect(PING_SECONDS - silent, self._look_for_silence)
        elif not self._pinged:
            self._pinged = True
            self._pings += 1
            self.say(Ping(self._pings))
            self._connection.expect(PONG_SECONDS, self._look_for_silence)
        else:
            text = f"no frame arrived for {PING_SECONDS:g} seconds, nor within {PONG_SECONDS:g} seconds after PING"
            self._connection.end_for("silent", text)

    def settle(self) -> None:
        """Nothing waits here."""

    @property
    def buffered(self) -> int:
        return self._reader.buffered

    @property
    def feeds(self) -> bool:
        return bool(self._feeds)

    @property
    def only_feeds(self) -> bool:
        return bool(self._feeds) and not self.subscriptions

    def reading_changed(self) -> None:
        if self._connection.reads:
            self._heard_at = self.context.timers.time()
        self._tell_held()

    def _tell_held(self) -> None:
        if self._holds or self.context.feeds.guessed:
            unread = self._reader.buffered > 0 or not self._connection.reads
            self._holds = self.context.feeds.tell_held(self._feeds.values(), unread)

    def writable_again(self) -> None:
        for subscriber in tuple(self.subscriptions.values()):
            subscriber.subscription.pump()

    def half_closed(self) -> bool:
        return False  # a peer that can send neither credit nor BYE is gone

    def farewell(self, reason: str) -> None:
        self.say(Bye(reason))

    def ended(self) -> None:
        for feed in tuple(self._feeds.values()):
            feed.leave(lost=not (self._said_bye or feed.closing))
        for subscriber in tuple(self.subscriptions.values()):
            subscriber.leave()
        self._feeds.clear()
        self.subscriptions.clear()

    # -- speaking ----------------------------------------------------------------------------------

    def say(self, message: Any) -> None:
        if self._acknowledged:
            self._send_acknowledgements()
        self._connection.write(self.session.say(message))

    def acknowledge(self, feed: _Feed, next_sequence: int) -> None:
        """Say that the tuples below this number have arrived: once the rows that other peers read have left, and with a
        journal once they are in it."""
        if self.context.runner.recorded:
            self.context.runner.when_durable(lambda: feed.acknowledger.taken(next_sequence))
            return
        if not self._acknowledged:
            self.context.runner.after_step(self._send_acknowledgements)
        self._acknowledged[feed.channel] = next_sequence

    def acknowledge_now(self, channel: int, next_sequence: int, durable: bool) -> None:
        if channel in self.session.channels:
            self._connection.write(self.session.acknowledge(channel, next_sequence, durable))

    def _send_acknowledgements(self) -> None:
        acknowledged, self._acknowledged = self._acknowledged, {}
        for channel, next_sequence in acknowledged.items():
            self._connection.write(self.session.acknowledge(channel, next_sequence))

    @property
    def writable(self) -> bool:
        return self._connection.writable

    def hold_reading(self, feed: _Feed) -> None:
        """Read nothing more until the engine has taken what a feed has sent, unless this peer reads a query that waits
        for it: its credit for rows, which lets the query continue, would lie unread, too."""
        if not any(one.subscription.slow.policy == "wait" for one in self.subscriptions.values()):
            self._connection.hold_reading(f"bytes of channel {feed.channel}")

    def let_read(self, feed: _Feed) -> None:
        self._connection.let_read(f"bytes of channel {feed.channel}")

    @property
    def client(self) -> str:
        return self._connection.name

    @property
    def frame_limit(self) -> int:
        return self._reader.limit

    def write_result(self, channel: int, sequence: int, count: int, head: bytes, rest: bytes) -> None:
        if self._acknowledged:
            self._send_acknowledgements()  # on one connection they come first
        if self.session.give(channel, sequence, count):
            self._connection.write((len(head) + len(rest)).to_bytes(HEAD_BYTES, "big") + head, rest)

    # -- hearing -----------------------------------------------------------------------------------

    def _hear(self, body: Body) -> None:
        if carries_tuples(body):
            self._data(body)
            return
        self._take_gathered()
        message = decode(body)
        try:
            if self.session.receive(message):
                caller = self._connection.caller
                if caller is not None and caller is not ANYONE:  # before HELLO the client is not known
                    check_said(caller, message, MESSAGES)
                _HEARD[type(message)](self, message)
        except Refuse as error:
            lost = error.sequence if isinstance(error, Lost) else None
            self.refuse(error, getattr(message, "channel", None), lost)

    def _hello(self, said: Hello) -> None:
        self._connection.admit(said.token)
        self._watch_for_silence()
        self._connection.called(said.client)
        if said.epoch is not None and self.context.shown(said.epoch):
            return
        now_us, grants = self.context.runner.now_us(), self.session.grants
        epoch = self.context.epoch() if grants is not None and "epoch" in grants else None
        self.say(Welcome(PROTOCOL, self.context.server, self.context.limits, now_us, grants, epoch))

    def _bye(self, _: object) -> None:
        self._said_bye = True
        self._connection.close()

    def refuse(self, error: Refuse, channel: int | None, sequence: int | None = None) -> None:
        """Send the error. On a channel that is being opened it closes the channel, by the session's rules."""
        self._connection.log_refusal(error)
        self.say(Error.of(self._connection.told(error), channel, sequence))
        if channel is not None and channel not in self.session.channels:
            self._leave(channel)

    # -- feeds -------------------------------------------------------------------------------------

    def _open(self, wish: Open) -> None:
        feeds = self.context.feeds
        if len(wish.producer) > PRODUCER_CHARACTERS:
            text = f"producer: expected at most {PRODUCER_CHARACTERS:,} characters, got {len(wish.producer):,}"
            raise Refuse(text, code="bad_value")
        source = feeds.source(wish.stream, wish.fingerprint)
        taken = feeds.taken(wish.stream, wish.producer)
        self.context.epochs().check_tuples(wish.producer, taken, wish.sequence, wish.epoch)
        feed = self._feeds[wish.channel] = _Feed(self, wish, source)
        feed.taken = feeds.open(wish.stream, wish.producer, feed, can_answer=wish.answers)
        feed.next_sequence = max(feed.taken, wish.sequence or 0)

    def _data(self, body: Body) -> None:
        if self.session.stage is not Stage.READY or body[1] not in (Kind.DATA, Kind.DATA_ARROW):
            self.session.receive(decode(body))  # the table's word on it
            return
        head = peek(body)
        try:
            skip = self.session.take(head.channel, head.sequence, head.tuples)
        except Refuse as error:
            self._take_gathered()
            self.refuse(error, head.channel, head.sequence)
            return
        if skip and (repeating := self._feeds.get(head.channel)) is not None:
            repeating.skipped(skip)
        if skip < head.tuples:
            self._gathered.setdefault(head.channel, []).append(_Frame(head, body, skip))
        elif (feed := self._feeds.get(head.channel)) is not None:
            self._take_gathered()
            self.acknowledge(feed, self.session.channels[head.channel].next_sequence)

    def _take_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for channel, frames in gathered.items():
            feed = self._feeds.get(channel)
            if feed is not None:
                feed.take(frames)

    def _punctuation(self, said: Punctuation) -> None:
        feed = self._feeds[said.channel]
        where = None if said.where is None else dict(said.where)
        self.context.feeds.punctuated(feed.stream, feed.producer, said.value_us, where=where)

    def _ets(self, said: Ets) -> None:
        feed = self._feeds[said.channel]
        where = None if said.where is None else dict(said.where)
        self.context.feeds.answered(feed.stream, feed.producer, said.request, said.value_us, where)

    # -- subscriptions -----------------------------------------------------------------------------

    def _subscribe(self, wish: Subscribe) -> None:
        outlet = self.context.runner.outlet(wish.query)
        subscriber = _Subscriber(self, wish, outlet)
        subscriber.begin()

    def _credit(self, given: Credit) -> None:
        subscriber = self.subscriptions.get(given.channel)
        if subscriber is not None:
            subscriber.subscription.pump()

    def _close(self, wish: Close) -> None:
        feed = self._feeds.get(wish.channel)
        if feed is not None and "late" in self.session.capabilities:
            feed.close()
        else:
            self._leave(wish.channel)
            self.say(Closed(wish.channel))

    def closed(self, feed: _Feed) -> None:
        """All tuples of a feed that the client ended were judged."""
        if self._feeds.get(feed.channel) is feed:
            self._leave(feed.channel)
            self.say(Closed(feed.channel, late=feed.late_tuples))

    def _leave(self, channel: int) -> None:
        """End the channel's feed or subscription."""
        feed = self._feeds.pop(channel, None)
        if feed is not None:
            feed.leave()
        subscriber = self.subscriptions.pop(channel, None)
        if subscriber is not None:
            subscriber.leave()

    def forget(self, channel: int) -> None:
        """A channel was ended from this side."""
        self._feeds.pop(channel, None)
        self.subscriptions.pop(channel, None)


def _answer_ping(dialect: FrameDialect, ping: Ping) -> None:
    dialect.say(Pong(ping.token))


def _note_pong(dialect: FrameDialect, pong: Pong) -> None:
    """As any frame it says that the peer is there."""


# By the type of a message. One table for all connections: a table of bound methods in each would double its memory.
_HEARD: Final[Mapping[type, Callable[[FrameDialect, Any], None]]] = {
    Hello: FrameDialect._hello,
    Open: FrameDialect._open,
    Punctuation: FrameDialect._punctuation,
    Ets: FrameDialect._ets,
    Subscribe: FrameDialect._subscribe,
    Credit: FrameDialect._credit,
    Close: FrameDialect._close,
    Ping: _answer_ping,
    Pong: _note_pong,
    Error: FrameDialect._bye,
    Bye: FrameDialect._bye,
}


class _Feed:
    """One open feed: the engine's orders to it, and its frames to the source."""

    def __init__(self, dialect: FrameDialect, wish: Open, source: StreamDecoder) -> None:
        self.channel = wish.channel
        self.stream = wish.stream
        self.producer = wish.producer
        self.taken = 0  # the producer's next sequence number when it opened the feed
        self.next_sequence = 0
        tells_durable = "durable" in dialect.session.capabilities
        self.acknowledger = Acknowledger(dialect.context.runner, self._acknowledge, tells_durable)
        self._dialect = dialect
        self._feeds = dialect.context.feeds
        self._source = source
        self._under_way = UnderWay(source.schema, dialect.context.credit_bytes)
        self.held = False
        self.late_tuples = 0
        self._received = self._feeds.received_of(wish.stream)
        self.closing = False
        self._open = False
        self._unasked: tuple[int, int, tuple[Any, ...]] | None = None  # a request that arrived before the first credit

    # -- orders ------------------------------------------------------------------------------------

    def granted(self, tuples: int) -> None:
        self._under_way.granted(tuples)
        if not self._under_way.full:
            self._dialect.let_read(self)
        if self._open:
            self._dialect.say(Credit(self.channel, tuples))
            return
        # The first credit completes the opening: a feed without it could only wait.
        self._open = True
        stream = self._source.stream
        declared = stream.time_unit != "us" and "time_unit" in self._dialect.session.capabilities
        unit = stream.time_unit if declared else None
        self._dialect.say(
            Opened(self.channel, self.next_sequence, tuples, stream.schema, stream.timestamps, stream.time, unit)
        )
        if self.taken and self.acknowledger.tells_durable:
            self.acknowledger.taken(self.taken)
        if self._unasked is not None:
            self.asked(*self._unasked)

    def _acknowledge(self, next_sequence: int, durable: bool) -> None:
        self._dialect.acknowledge_now(self.channel, next_sequence, durable)

    def skipped(self, tuples: int) -> None:
        self._received.repeated += tuples

    def asked(self, request: int, need_us: int, group: tuple[Any, ...]) -> None:
        if not self._open:
            self._unasked = (request, need_us, group)
        else:
            key = self._source.stream.punctuation_key
            named = group and "groups" in self._dialect.session.capabilities
            where = tuple(zip(key, group, strict=True)) if named else None
            self._dialect.say(EtsRequest(self.channel, request, need_us, where))

    def late(self, late: Late) -> None:
        """Counted for CLOSED; the tuples themselves are read from the stream's late side stream."""
        self.late_tuples += len(late.batch)

    def hold(self, held: bool) -> None:
        if held != self.held:
            self.held = held
            self._feeds.hold(self.stream, self.producer, self, held)

    def _arrived(self, batch: Batch, wire: Sequence[bytes | memoryview] | None = None) -> None:
        self._feeds.arrived(self.stream, self.producer, batch, wire)
        self._under_way.add(batch)
        if self._under_way.full:
            self._dialect.hold_reading(self)

    def ended(self, code: str, text: str) -> None:
        self._dialect.let_read(self)
        self._dialect.forget(self.channel)
        if self._open:
            late = self.late_tuples if "late" in self._dialect.session.capabilities else None
            self._dialect.say(Closed(self.channel, code, text, late))
        else:
            self._dialect.say(Error(code, text, self.channel))

    def close(self) -> None:
        """End the feed once the engine has judged all its tuples: only then is it known how many were late."""
        self.closing = True
        judged = self._dialect.context.runner.command(NOTHING)
        judged.add_done_callback(lambda _: self._dialect.closed(self))

    def leave(self, *, lost: bool = False) -> None:
        self._dialect.let_read(self)
        self.hold(False)
        self._feeds.close(self.stream, self.producer, self, lost=lost)

    # -- frames ------------------------------------------------------------------------------------

    def take(self, frames: Sequence[_Frame]) -> None:
        """Decode frames, together where possible; refuse those that are unfit, each on its own; acknowledge all."""
        self._received.bytes += sum([len(frame.body) for frame in frames])
        last = frames[-1].head
        next_sequence = last.sequence + last.tuples
        self._feeds.took(self.stream, self.producer, next_sequence)
        rows = [frame for frame in frames if frame.head.kind == Kind.DATA and not frame.skip]
        if len(rows) < len(frames) or not self._take_together(rows):
            for frame in frames:
                self._take_one(frame)
        self._dialect.acknowledge(self, next_sequence)

    def _take_together(self, frames: Sequence[_Frame]) -> bool:
        try:
            batch = self._source.decode_many([memoryview(frame.body)[frame.head.offset :] for frame in frames])
            self._feeds.check_times(self.stream, batch)
        except Refuse:
            return False
        in_micros = self._source.unit is MICROSECONDS
        self._arrived(batch, [frame.body[frame.head.offset :] for frame in frames] if in_micros else None)
        return True

    def _take_one(self, frame: _Frame) -> None:
        try:
            batch = self._decode(frame)
        except Refuse as error:
            refused = error
            self._feeds.refused(self.stream, self.producer, frame.head.tuples, error)
            # The client need not send them again: that has to be durable, too.
            self._dialect.context.runner.when_durable(lambda: self._refuse(refused, frame))
        else:
            self._arrived(batch.slice(frame.skip, len(batch)))

    def _refuse(self, error: Refuse, frame: _Frame) -> None:
        """Refuse a frame. The engine never sees its tuples, so it would never return their credit."""
        if self.channel in self._dialect.session.channels:
            self._dialect.refuse(error, self.channel, frame.head.sequence)
            self._dialect.say(Credit(self.channel, frame.head.tuples - frame.skip))

    def _decode(self, frame: _Frame) -> Batch:
        payload = memoryview(frame.body)[frame.head.offset :]
        if frame.head.kind == Kind.DATA:
            batch = self._source.decode(payload)
        else:
            batch = self._source.from_arrow(payload, frame.head.tuples)
        self._feeds.check_times(self.stream, batch)
        return batch


class _Subscriber(Sender):
    """One open subscription, as a Sender of its rows."""

    def __init__(self, dialect: FrameDialect, wish: Subscribe, outlet: Outlet) -> None:
        self.channel = wish.channel
        self._dialect = dialect
        self._outlet = outlet
        self._wish = wish
        self._head = channel_head(Kind.RESULT if wish.format == "rows" else Kind.RESULT_ARROW, wish.channel)
        name = f"{dialect.client}#{wish.channel}"
        self.subscription = Subscription(name, dialect.context.slow, self)
        self._reads = stated(outlet, wish.refresh_us, wish.keys, self.end)

    def begin(self) -> None:
        outlet, wish = self._outlet, self._wish
        self._dialect.context.epochs().check_rows(outlet.query, outlet.history, wish.from_sequence, wish.epoch)
        first = outlet.first(wish.from_sequence, wish.history)
        history = self._outlet.history if "history" in self._dialect.session.capabilities else None
        self._dialect.say(Subscribed(self.channel, self._schema, first, history))
        self._dialect.subscriptions[self.channel] = self
        self._watch(True)
        self._outlet.add(self.subscription, self._wish.from_sequence)
        sparing.info("a subscription started", self._outlet.query, query=self._outlet.query)

    @property
    def _schema(self) -> Schema:
        """The schema of the rows in the names that this client knows."""
        renames = "deleted" in self._dialect.session.capabilities
        return self._outlet.schema.with_deleted() if renames else self._outlet.schema

    def _watch(self, wanted: bool) -> None:
        if self._wish.progress:
            self._dialect.context.runner.watch(self._outlet, wanted)
        if self._reads is not None:
            self._reads.state(self._dialect.context.runner, self.subscription.name, wanted)

    def room(self) -> int:
        if not self._dialect.writable:
            return 0
        state = self._dialect.session.channels.get(self.channel)
        return 0 if state is None else min(state.credit, FRAME_ROWS)

    def writable(self) -> bool:
        return self._dialect.writable

    def send_rows(self, sequence: int, batch: Batch) -> None:
        """A RESULT frame, or several where one would be above the frame limit."""
        rest = self._after_head(sequence, batch)
        size, limit = len(self._head) + len(rest), self._dialect.frame_limit
        if size <= limit:
            self._dialect.write_result(self.channel, sequence, len(batch), self._head, rest)
        elif len(batch) > 1:
            half = len(batch) // 2
            self.send_rows(sequence, batch.slice(0, half))
            self.send_rows(sequence + half, batch.slice(half, len(batch)))
        else:
            self.end(
                "failed", f"the row with sequence {sequence} has {size} bytes, more than a frame can hold ({limit})"
            )

    def _after_head(self, sequence: int, batch: Batch) -> bytes:
        """The body after its first bytes, equal for all subscribers of the format."""
        if self._wish.format == "rows":
            return self.subscription.shared.text(sequence, batch, "rows", lambda: _with_rows(sequence, batch))
        schema = self._schema
        form = "arrow", schema
        return self.subscription.shared.text(sequence, batch, form, lambda: _with_arrow(sequence, batch, schema))

    def send_progress(self, value_us: int) -> None:
        if self._wish.progress:
            self._dialect.say(Progress(self.channel, value_us))

    def end(self, code: str, reason: str) -> None:
        """End the subscription from this side."""
        self.leave()
        self._dialect.forget(self.channel)
        self._dialect.say(Closed(self.channel, code, reason))

    def leave(self) -> None:
        self._watch(False)
        self._outlet.remove(self.subscription)
        sparing.info("a subscription ended", self._outlet.query, query=self._outlet.query)


def _with_rows(sequence: int, batch: Batch) -> bytes:
    return pack_integer(sequence) + _ENCODE(batch.rows())


def _with_arrow(sequence: int, batch: Batch, schema: Schema) -> bytes:
    from millrace.formats.arrow import to_ipc  # pyarrow costs 60 MB: only subscribers who ask for it pay

    rows = to_ipc(batch, schema)
    return pack_integer(sequence) + arrow_head(len(batch), len(rows)) + rows
