"""The owner of each feed, and the progress of each producer.

Rule: a feed is a stream and a producer, whatever connection carries it; it has one owner at a time, the newest.
The next sequence numbers outlive connections, so that a producer that reconnects can skip what was taken already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from millrace.changes.names import nearest
from millrace.engine.events import Answered, Arrived, ProducerForgotten, Punctuated, Sequenced
from millrace.engine.plan import CHANGE_STREAM, StreamDefinition, origin_of
from millrace.formats.decoder import StreamDecoder, TooFarAheadError, check_promise
from millrace.net.sink import Count
from millrace.observe.logs import sparing
from millrace.operators.frame.buffer import has_texts
from millrace.protocol import Refuse, Schema
from millrace.protocol.units import MICROSECONDS, TimeUnit
from millrace.run.runner import FeedPeer, Runner
from millrace.values.batch import Batch
from millrace.values.eventtime import MIN_TIME


@dataclass(slots=True)
class Received:
    """What has come in for one stream, counted at the socket; `rejected` without tuples too far ahead, which the runner
    counts: the engine meets some, too. `repeated` tuples had been taken before."""

    connections: int = 0
    tuples: int = 0
    bytes: int = 0
    rejected: int = 0
    repeated: int = 0
    forgotten: int = 0  # producers


class OwnedFeed(FeedPeer, Protocol):
    """A feed with an owner that can lose it."""

    def ended(self, code: str, text: str) -> None:
        """The feed no longer belongs to this peer: send it the reason."""


@dataclass(slots=True)
class _Stream:
    """A stream's wrapper, and by fingerprint the wrappers of feeds whose schema omits columns at the end.

    early   the stream has taken times from before this century that can't be mistaken for another unit
    """

    source: StreamDecoder
    received: Received
    narrower: dict[str, StreamDecoder] = field(default_factory=dict)
    early: bool = False

    def alter(self, definition: StreamDefinition) -> str | None:
        """Another definition. Feeds that are open continue with the fields that they were opened with; with another
        unit, or another name of a field, none stays open: returns why."""
        ended = None
        names = definition.schema.names
        if definition.time_unit != self.source.unit.name:
            ended = f"its time_unit is {definition.time_unit!r} now"
            self.source, self.narrower, self.early = StreamDecoder(definition), {}, False
        elif renamed := [pair for pair in zip(self.source.schema.names, names, strict=False) if pair[0] != pair[1]]:
            ended = ", ".join(f"its column {before} is called {after} now" for before, after in renamed)
            self.source, self.narrower = StreamDecoder(definition), {}
        elif definition.schema != self.source.schema:
            self.narrower[self.source.schema.fingerprint()] = self.source
            self.source = StreamDecoder(definition)
        for source in (self.source, *self.narrower.values()):
            source.stream = replace(definition, schema=source.schema)
        return ended

    def by(self, fingerprint: str | None) -> StreamDecoder:
        """The wrapper for a feed of this schema: the stream's own, or one that lacks nullable columns at its end."""
        schema = self.source.schema
        if fingerprint is None or fingerprint == schema.fingerprint():
            return self.source
        if fingerprint not in self.narrower:
            found = _without_the_last(self.source.stream, fingerprint)
            if found is None:
                fields = ", ".join(map(str, schema))
                raise Refuse(
                    f"fingerprint {fingerprint} does not match stream {self.source.stream.name}: "
                    f"its schema is ({fields}), fingerprint {schema.fingerprint()}",
                    code="schema_mismatch",
                )
            self.narrower[fingerprint] = StreamDecoder(found)
        return self.narrower[fingerprint]


def _without_the_last(stream: StreamDefinition, fingerprint: str) -> StreamDefinition | None:
    """The stream without the nullable columns at its end that a feed with this fingerprint omits."""
    fields = stream.schema.fields
    while len(fields) > 1 and fields[-1].nullable and fields[-1].name != stream.time:
        fields = fields[:-1]
        if Schema(fields).fingerprint() == fingerprint:
            return replace(stream, schema=Schema(fields))
    return None


class UnderWay:
    """Bytes of a feed's tuples for which it has not got credit again, measured as the engine does.

    With `most` of them nothing more is read from the feed's connection: credit is counted in tuples, and a peer with
    large rows would not run out of it for gigabytes.
    """

    def __init__(self, schema: Schema, most: int) -> None:
        self._texts = has_texts(schema)
        self._width = 16 + 8 * len(schema)
        self._most = most
        self._batches: deque[tuple[int, int]] = deque()
        self._bytes = 0

    @property
    def full(self) -> bool:
        return self._bytes >= self._most

    def add(self, batch: Batch) -> None:
        tuples = len(batch.ts)
        size = batch.weight if self._texts else tuples * self._width
        self._batches.append((tuples, size))
        self._bytes += size

    def granted(self, tuples: int) -> None:
        """Credit for this many tuples was granted: the oldest tuples in flight are that no longer."""
        while tuples > 0 and self._batches:
            oldest, size = self._batches.popleft()
            self._bytes -= size
            if oldest > tuples:
                rest = size * (oldest - tuples) // oldest
                self._batches.appendleft((oldest - tuples, rest))
                self._bytes += rest
            tuples -= oldest


class Acknowledger:
    """Says how far the server has taken a feed: accepted once that survives `kill -9`, durable once it is on the disk.
    It says both at once where the server waits for the disk, and the former alone unless it `tells_durable`.

    Invariant: at most one call waits for the disk, so a slow disk gets fewer acknowledgements and not more calls.
    """

    def __init__(self, runner: Runner, say: Callable[[int, bool], None], tells_durable: bool) -> None:
        self.tells_durable = tells_durable
        self._runner = runner
        self._say = say
        self._accepted = self._durable = 0
        self._waits = False

    def taken(self, next_sequence: int) -> None:
        """All that was submitted about tuples below this number is in the journal. Call it through `when_durable`."""
        synced = self.tells_durable and self._runner.synced
        self._say(next_sequence, synced)
        if synced:
            self._durable = next_sequence
        elif self.tells_durable:
            self._accepted = next_sequence
            self._wait()

    def _wait(self) -> None:
        if not self._waits:
            self._waits = True
            accepted = self._accepted
            self._runner.when_synced(lambda: self._synced(accepted))

    def _synced(self, next_sequence: int) -> None:
        self._waits = False
        if next_sequence > self._durable:
            self._durable = next_sequence
            self._say(next_sequence, True)
        if self._accepted > next_sequence:
            self._wait()


class MayBeHeld(Protocol):
    """A feed that records whether some of its bytes may be unread."""

    stream: str
    held: bool

    def hold(self, held: bool) -> None: ...


class Feeds:
    """All streams' doors. The catalog adds and removes streams, connections open and close feeds."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._streams: dict[str, _Stream] = {}
        self._owners: dict[tuple[str, str], OwnedFeed] = {}
        # By stream and producer; what the engine keeps, which alone decides how long.
        self._next: dict[tuple[str, str], int] = {}
        runner.on_forgotten = self._forgotten
        # The streams whose time may be guessed by the clock: for them unread bytes matter.
        self.guessed: frozenset[str] = frozenset()
        self._version = 0

    def tell_held(self, feeds: Iterable[MayBeHeld], unread: bool) -> bool:
        """Say of a connection's feeds whose time may be guessed whether something of theirs may lie unread; whether
        any is said to be held now."""
        held = False
        for feed in feeds:
            feed.hold(unread and feed.stream in self.guessed)
            held |= feed.held
        return held

    # -- streams -----------------------------------------------------------------------------------

    def add_stream(self, definition: StreamDefinition, late: Count | None = None) -> None:
        """A stream, and the count of its late tuples unless that is new."""
        self._streams[definition.name] = _Stream(StreamDecoder(definition), Received())
        if definition.timestamps == "external":
            self._runner.add_side_outlet(definition.late, late)
        self._changed()

    def alter_stream(self, definition: StreamDefinition) -> None:
        ended = self._streams[definition.name].alter(definition)
        if ended is not None:
            self._end_feeds(definition.name, ended)
        if definition.timestamps == "external":
            self._runner.replace_side_outlet(definition.late)
        self._changed()

    def _end_feeds(self, name: str, why: str) -> None:
        """End the feeds of a stream whose unit or names have changed, as if their connections were lost.

        A feed that was opened for one unit must not have its numbers read in another without noticing it.
        """
        text = f"stream {name} was altered: {why}; open the feed again"
        for stream, producer in [key for key in self._owners if key[0] == name]:
            owner = self._owners[stream, producer]
            self.hold(stream, producer, owner, False)
            self.close(stream, producer, owner, lost=True)
            owner.ended("altered", text)

    def version(self) -> int:
        """A number that is another one after each change of the streams."""
        return self._version

    def _changed(self) -> None:
        """Streams are new, other ones or gone."""
        self._version += 1
        definitions = [stream.source.stream for stream in self._streams.values()]
        self.guessed = frozenset(
            definition.name
            for definition in definitions
            if definition.timestamps == "external"
            and (definition.lull_us is not None or (definition.max_skew_us is not None and definition.ets != "none"))
        )
        self._runner.guessing = bool(self.guessed)

    def drop_stream(self, name: str) -> None:
        """Remove the stream's feeds, and the sequence numbers of its producers."""
        dropped = self._streams.pop(name)
        if dropped.source.stream.timestamps == "external":
            self._runner.remove_outlet(dropped.source.stream.late.name)
        self._runner.far.pop(name, None)
        self._changed()
        for stream, producer in [key for key in self._owners if key[0] == name]:
            owner = self._owners.pop((stream, producer))
            self._runner.forget_feed(stream, producer)
            owner.ended("dropped", f"stream {name} was dropped")
        for key in [key for key in self._next if key[0] == name]:
            del self._next[key]

    def source(self, stream: str, fingerprint: str | None = None) -> StreamDecoder:
        """What decodes the rows of a feed; SCHEMA_MISMATCH if the stream takes none of this fingerprint."""
        return self._find(stream).by(fingerprint)

    def received_of(self, stream: str) -> Received:
        return self._find(stream).received

    def received(self) -> Mapping[str, Received]:
        return {name: stream.received for name, stream in self._streams.items()}

    def _find(self, stream: str) -> _Stream:
        found = self._streams.get(stream)
        if found is None:
            if stream == CHANGE_STREAM.name:
                raise Refuse(f"{stream} cannot be fed: it contains what the server has changed", code="unknown_stream")
            origin = origin_of(stream)
            if origin in self._streams:
                text = f"{stream} cannot be fed: it contains the late tuples of {origin}; feed {origin}"
                raise Refuse(text, code="unknown_stream")
            raise Refuse(f"stream {stream} does not exist{nearest(stream, list(self._streams))}", code="unknown_stream")
        return found

    # -- feeds -------------------------------------------------------------------------------------

    def open(self, stream: str, producer: str, owner: OwnedFeed, *, can_answer: bool = False) -> int:
        """Make the owner the stream's feed of this producer; the sequence number that its next tuple has."""
        found = self._find(stream)
        previous = self._owners.get((stream, producer))
        if previous is not None:
            # The feed continues with its new owner: the tuples that it holds back stay held.
            previous.ended("taken_over", f"another connection opened producer {producer} of stream {stream}")
            found.received.connections -= 1
        self._owners[stream, producer] = owner
        found.received.connections += 1
        self._runner.open_feed(stream, producer, owner, can_answer=can_answer)
        sparing.info("a feed opened", stream, stream=stream, feed=producer)
        return self.taken(stream, producer)

    def taken(self, stream: str, producer: str) -> int:
        """The sequence number of the producer's next tuple."""
        return self._next.get((stream, producer), 0)

    def close(self, stream: str, producer: str, owner: OwnedFeed, *, lost: bool = False) -> None:
        """The owner has ended the feed, or was lost with its connection and may return."""
        if self._owners.get((stream, producer)) is owner:
            del self._owners[stream, producer]
            self._runner.close_feed(stream, producer, owner, lost=lost)
            self._find(stream).received.connections -= 1
            sparing.info("a feed ended", stream, stream=stream, feed=producer, lost=lost)

    def hold(self, stream: str, producer: str, owner: OwnedFeed, held: bool) -> None:
        """Whether bytes of the feed may be unread."""
        if self._owners.get((stream, producer)) is owner:
            self._runner.hold_feed(stream, producer, held)

    def took(self, stream: str, producer: str, next_sequence: int) -> None:
        """The producer's tuples below this number were dealt with."""
        self._next[stream, producer] = next_sequence
        self._runner.submit(Sequenced(stream, producer, next_sequence))

    def _forgotten(self, order: ProducerForgotten) -> None:
        """The engine does not keep a producer's number any more, unless the producer has returned meanwhile."""
        key = order.stream, order.feed
        if self._next.get(key) == order.next_sequence and key not in self._owners and order.stream in self._streams:
            del self._next[key]
            self._streams[order.stream].received.forgotten += 1
            sparing.info("forgot the position of a producer", order.stream, stream=order.stream, feed=order.feed)

    def continue_from(self, stream: str, sequences: Mapping[str, int]) -> None:
        """The next sequence numbers of a stream's producers, from before a restart."""
        for producer, next_sequence in sequences.items():
            self._next[stream, producer] = next_sequence

    def arrived(
        self, stream: str, producer: str, batch: Batch, wire: Sequence[bytes | memoryview] | None = None
    ) -> None:
        """Tuples arrived, in these row frames if they are given."""
        if tuples := len(batch.ts):
            self._find(stream).received.tuples += tuples
            self._runner.submit(Arrived(stream, producer, batch, None, wire))

    def punctuated(
        self,
        stream: str,
        producer: str,
        value_us: int,
        unit: TimeUnit = MICROSECONDS,
        where: Mapping[str, object] | None = None,
    ) -> None:
        check_promise(f"stream {stream}", value_us, unit)
        group = () if where is None else self._find(stream).source.group(where)
        self._runner.submit(Punctuated(stream, producer, value_us, group))

    def answered(
        self,
        stream: str,
        producer: str,
        request: int,
        value_us: int | None,
        where: Mapping[str, object] | None = None,
        unit: TimeUnit = MICROSECONDS,
    ) -> None:
        """The answer to a request; None, and one that is refused, promises nothing and ends the request."""
        promise_us, group = MIN_TIME, ()
        try:
            if value_us is not None:
                check_promise(f"stream {stream}", value_us, unit)
                group = () if where is None else self._find(stream).source.group(where)
                promise_us = value_us
        finally:
            self._runner.submit(Answered(stream, producer, request, promise_us, group))

    def check_times(self, stream: str, batch: Batch) -> None:
        """RowError for a tuple further above the clock than the stream allows, or with a time in another unit."""
        found = self._find(stream)
        definition = found.source.stream
        if definition.time is None or (found.early and definition.ahead_us is None):
            return
        now_us = self._runner.now_us()
        found.source.check_ahead(batch, now_us)
        if not found.early:
            found.early = found.source.check_unit(batch, now_us)

    def owns(self, stream: str, producer: str) -> bool:
        """Whether a connection feeds the stream as this producer."""
        return (stream, producer) in self._owners

    def count_tuples(self, stream: str, tuples: int) -> None:
        """Tuples that no connection brings, for the metrics."""
        self._find(stream).received.tuples += tuples

    def refused(self, stream: str, producer: str, tuples: int, error: Refuse) -> None:
        """Count refused tuples of any form by the kind of error."""
        if isinstance(error, TooFarAheadError):
            self._runner.refuse_far(stream, producer, tuples)
        else:
            self._find(stream).received.rejected += tuples
