"""JSON lines on a connection: the same feeds and subscriptions, spoken by hand.

Rule: each line is accepted or refused separately and the connection continues; only a line beyond the limit, or a
missing token, ends it. This dialect has no credit: the server stops reading from a feed that is ahead of the engine.

The tuples of a producer are numbered. The server takes each number once, and says how far it is after each read of the
socket, behind the refusals of the same lines.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from operator import itemgetter
from typing import Any, Final

import numpy as np

from millrace.access.access import AccessDenied
from millrace.access.callers import ANYONE
from millrace.access.needs import LINES, check_said
from millrace.access.roles import Action
from millrace.engine.events import Late
from millrace.formats.linecolumns import WORTHWHILE, LineColumns, Read, newlines
from millrace.formats.writers import late_lines, request_line, row_lines
from millrace.net.connection import GREETING_BYTES, Connection, Dialect
from millrace.net.feeds import Acknowledger, UnderWay
from millrace.net.reads import stated
from millrace.net.sink import Outlet, Sender, Subscription
from millrace.observe.logs import sparing
from millrace.protocol import MillraceError, PeerError, Refuse, RowError
from millrace.protocol.jsonlines import (
    LINE_BYTES,
    AnswerLine,
    AnswersLine,
    CloseLine,
    EpochLine,
    FeedLine,
    Line,
    LineReader,
    OpenLine,
    PunctuationLine,
    SubscribeLine,
    Token,
    TupleLine,
    UnsubscribeLine,
    ack_line,
    claimed,
    epoch_line,
    error_line,
    lines_of,
    parse,
    progress_line,
)
from millrace.values.batch import Batch, Int64s

# How long a line may take from its first byte to its newline.
LINE_SECONDS: Final = 30.0
# Bytes of lines that a thread reads while the loop does other things: handing fewer over takes as long as reading them.
MANY_BYTES: Final = 2**15
# With more bytes waiting for it, or more lines than a feed has credit for, nothing is read from the connection.
WAITING_BYTES: Final = 2**18
# Rows, and their bytes, that are written together: the rest waits where it can be dropped or counted.
ROWS_AT_A_TIME: Final = 1_024
BYTES_AT_A_TIME: Final = 2**16

# The lines of tuples, in order.
LineNumbers = Int64s | range
# A feed of a connection: its stream, its own name, and its producer if it has one.
_Key = tuple[str, str, str | None]


class LineDialect(Dialect):
    """A peer that speaks JSON lines."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.context = connection.context
        self._limit = min(LINE_BYTES, self.context.limits.frame_bytes)
        self._trusted = connection.caller is not None
        self._reader = LineReader(self._limit if self._trusted else min(GREETING_BYTES, self._limit), newlines)
        self._unfinished: int | None = None  # the number of an incomplete line, and when it started
        self._begun_at = 0.0
        self._over = False  # whether no further line is heard
        self._feeds: dict[_Key, _LineFeed] = {}
        self._lost: dict[_Key, Refuse] = {}  # feeds of producers that ended from the server's side, and why
        self._readers: dict[str, _LineReaderOf] = {}
        self._columns = LineColumns(self.context.feeds.source, self.context.feeds.version)
        # Lines that a thread reads, in order, with the number of the first; `_reading` is the first of these pieces.
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._reading: Future[Read] | None = None
        self._number = self._length = 0
        # Of the lines that arrived together: refusals, numbers of tuples by line, and the feeds that get an answer.
        self._refusals: list[tuple[int, MillraceError]] = []
        self._sequences: dict[int, int] = {}
        self._owed: dict[_ProducerFeed, None] = {}
        self._awaited = 0  # acknowledgements that wait for the journal
        self._half_closed = False
        self._holds = False  # whether some feed was said to be held
        if self._trusted:
            connection.introduced()

    # -- the connection's calls --------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        self.connection.said_something()
        while not self._trusted and data and not self._over:
            line, end, data = data.partition(b"\n")
            self._reader.feed(line + end)
            self._hear_lines()
        if not self._over:
            self._reader.feed(data)
            self._hear_lines()
            self._watch_the_line()

    def _watch_the_line(self) -> None:
        """An incomplete line has to end in time; between lines a peer may be silent forever."""
        line = self._reader.number if self._reader.buffered else None
        if not self._trusted or line == self._unfinished:
            return
        armed, self._unfinished = self._unfinished is not None, line
        self._begun_at = self.context.timers.time()
        if line is None:
            self.connection.expect_nothing()
        elif not armed:
            self.connection.expect(LINE_SECONDS, self._look_at_the_line)

    def _look_at_the_line(self) -> None:
        if self.connection.deaf:
            self._begun_at = self.context.timers.time()  # its end may have arrived unread
        rest = self._begun_at + LINE_SECONDS - self.context.timers.time()
        if rest > 0:
            self.connection.expect(rest, self._look_at_the_line)
        else:
            self.connection.end_for("too_slow", f"a started line did not end within {LINE_SECONDS:g} seconds")

    def refuse_peer(self, error: PeerError) -> None:
        self.connection.write(error_line(error, self._reader.number))

    def _hear_lines(self) -> None:
        breach = None
        try:
            for number, data in self._reader.pieces():
                if self._waiting or self._is_long(data):
                    self._let_wait(number, data)
                else:
                    self._hear_piece(number, data)
        except PeerError as error:
            self.settle()
            self._over = True
            breach = error
        self._take_all()
        self._answer_lines()
        if breach is not None:
            self.connection.log_breach(breach)
            self.connection.write(error_line(breach, self._number + 1))
            self.connection.close()
        self._tell_held()

    # -- lines that a thread reads -----------------------------------------------------------------

    def _is_long(self, data: bytes) -> bool:
        return len(data) >= MANY_BYTES and self.context.reader is not None and WORTHWHILE and self._trusted

    def _let_wait(self, number: int, data: bytes) -> None:
        self._waiting.append((number, data))
        lines = self._reader.number - self._waiting[0][0]
        credit = min((feed.credit for feed in self._feeds.values()), default=0)
        if lines > credit or sum(len(waiting) for _, waiting in self._waiting) > WAITING_BYTES:
            self.connection.hold_reading("lines")
        self._read_next()

    def _read_next(self) -> None:
        """Have the thread read the next lines; what it knows of feeds does not change meanwhile."""
        if self._reading is not None or not self._waiting or self._lacks_credit():
            return
        assert self.context.reader is not None
        data, loop = self._waiting[0][1], asyncio.get_running_loop()
        reading = self._reading = self.context.reader.submit(lambda: self._columns.read(data))
        reading.add_done_callback(
            lambda _: loop.call_soon_threadsafe(self.connection.guarded, self._have_read, reading)
        )

    def _have_read(self, reading: Future[Read]) -> None:
        if reading is not self._reading or self._lacks_credit():
            return  # it was waited for, or has to wait
        self._hear_waiting()
        self._take_all()
        self._answer_lines()
        self._tell_held()
        self._read_next()

    def _lacks_credit(self) -> bool:
        """Whether a feed has to wait for the engine, and so all that the connection says."""
        return any(feed.exhausted for feed in self._feeds.values())

    def have_credit(self) -> None:
        """A feed may continue: so do the waiting lines, once the engine's orders are carried out."""
        if self._waiting:
            asyncio.get_running_loop().call_soon(self.connection.guarded, self._continue)

    def _continue(self) -> None:
        if self._reading is None:
            self._read_next()
        elif self._reading.done():
            self._have_read(self._reading)

    def _hear_waiting(self) -> None:
        """Take the first of the waiting lines, once they are read."""
        assert self._reading is not None
        read, self._reading = self._reading.result(), None
        self._hear_piece(*self._waiting.popleft(), read)
        self.connection.let_read("lines")

    def settle(self) -> None:
        while self._waiting:
            if self._reading is not None:
                self._hear_waiting()
            else:
                self._hear_piece(*self._waiting.popleft())
        self.connection.let_read("lines")
        self._take_all()
        self._answer_lines()

    def _answer_lines(self) -> None:
        """Refusals in the order of the lines: tuples are checked together, after lines of other kinds that followed
        them. Then acknowledgements, which cover refused tuples, too."""
        if self._refusals:
            refusals, self._refusals = self._refusals, []
            for line, error in sorted(refusals, key=itemgetter(0)):
                self.connection.write(error_line(self.connection.told(error), line, self._sequences.get(line)))
        if self._sequences:
            self._sequences.clear()
        if self._owed:
            owed, self._owed = self._owed, {}
            for feed in owed:
                self._awaited += 1
                feed.acknowledge()

    def owe(self, feed: _ProducerFeed) -> None:
        """Acknowledge the feed's tuples after the lines that arrived together."""
        self._owed[feed] = None

    def acknowledged(self) -> None:
        """One acknowledgement waits no more."""
        self._awaited -= 1
        if self._half_closed and not (self._awaited or self._readers):
            self.connection.close()

    @property
    def buffered(self) -> int:
        return self._reader.buffered + sum(len(data) for _, data in self._waiting)

    @property
    def feeds(self) -> bool:
        return bool(self._feeds)

    @property
    def only_feeds(self) -> bool:
        return bool(self._feeds) and not self._readers

    def reading_changed(self) -> None:
        self._tell_held()

    def _tell_held(self) -> None:
        if self._holds or self.context.feeds.guessed:
            unread = self._reader.buffered > 0 or bool(self._waiting) or not self.connection.reads
            self._holds = self.context.feeds.tell_held(self._feeds.values(), unread)

    def writable_again(self) -> None:
        for reader in tuple(self._readers.values()):
            reader.subscription.pump()

    def half_closed(self) -> bool:
        self._reader.end()
        self._hear_lines()
        self.settle()
        self._leave_feeds()
        # A peer that has left looks like one that only reads, so a temporary query ends for both.
        for query in [query for query, reader in self._readers.items() if reader.temporary]:
            self._readers.pop(query).leave()
        self._half_closed = True
        return bool(self._readers or self._awaited)

    def farewell(self, reason: str) -> None:
        self.connection.write(error_line(MillraceError(reason, code="shutting_down"), None))

    def ended(self) -> None:
        self.settle()
        self._leave_feeds()
        for reader in tuple(self._readers.values()):
            reader.leave()
        self._readers.clear()

    def _leave_feeds(self) -> None:
        for feed in tuple(self._feeds.values()):
            feed.leave(lost=True)
        self._feeds.clear()

    # -- hearing -----------------------------------------------------------------------------------

    def _hear_piece(self, number: int, data: bytes, read: Read | None = None) -> None:
        """Hear these lines, the first of which may have been read already."""
        if not (WORTHWHILE and self._trusted):
            for self._number, line in lines_of(number, data):
                self._hear(line)
            return
        at = 0
        while at < len(data):
            if read is None or not self._columns.is_current():
                read = self._columns.read(data, at)
            heard = self._hear_read(number, data, read)
            number += heard
            at = int(read.starts[heard])
            read = None

    def _hear_read(self, number: int, data: bytes, read: Read) -> int:
        """Take the rows of lines, and hear the lines between them one by one; how many lines that were. A feed's first
        line teaches how to read the following ones."""
        count = len(read.starts) - 1
        try:
            feeds = [self._feed((found.stream, found.feed, None)) for found in read.tuples]
        except MillraceError:  # every line is refused by itself
            feeds, read = [], read._replace(tuples=(), left=range(count))
        if not read.left and len(feeds) == 1:
            found = read.tuples[0]
            numbers = range(number, number + count) if len(found.batch.ts) == count else found.lines + number
            feeds[0].read(found.batch, numbers, read.sizes.item(0) if count == 1 else int(read.sizes.sum()))
            return count
        taken = [0] * len(feeds)
        for at in (*read.left, count):
            for place, (feed, found) in enumerate(zip(feeds, read.tuples, strict=True)):
                stop = int(found.lines.searchsorted(at))
                if stop > taken[place]:
                    lines = found.lines[taken[place] : stop]
                    feed.read(found.batch.slice(taken[place], stop), lines + number, int(read.sizes[lines].sum()))
                    taken[place] = stop
            if at < count and self._hear_line(number + at, read.line(data, at)):
                return at + 1
        return count

    def _hear_line(self, number: int, line: bytes) -> bool:
        """Hear a line that was not read; whether the lines behind it are to be read again: its like can be read now, or
        their feed has been closed."""
        self._number = number
        said = self._hear(line) if line else None
        if isinstance(said, TupleLine):
            return said.producer is None and self._columns.learn(said.stream, said.feed)
        return isinstance(said, CloseLine)

    def _hear(self, line: bytes) -> Line | None:
        """Obey a line, or refuse it; what it said if it was obeyed."""
        if not self._trusted:
            self._hear_token(line)
            return None
        self._length = len(line)
        try:
            said = self._parse(line)
            if said is not None:
                if self.connection.caller is not ANYONE:
                    self._check(said)
                _HEARD[type(said)](self, said)
        except MillraceError as error:
            self.refuse(error, self._number)
            return None
        return said

    def _check(self, said: Line) -> None:
        """Refuse what this client may not say."""
        assert self.connection.caller is not None, "a client without a token is not heard"
        check_said(self.connection.caller, said, LINES)

    def _parse(self, line: bytes) -> Line | None:
        """A line; None if it is a tuple that was refused before. A refused tuple uses its number."""
        try:
            return parse(line)
        except PeerError:
            claim = claimed(line)
            if claim is None or self._claims(claim):
                raise
            return None

    def _hear_token(self, line: bytes) -> None:
        """The first line, where the server wants a token: any other ends the connection."""
        try:
            said = parse(line)
        except PeerError:
            said = None
        try:
            self.connection.admit(said.token if isinstance(said, Token) else None)
        except AccessDenied as error:
            self._over = True
            if error.guessed:
                self.connection.log_refusal(error)
                self.connection.wrong_token(error_line(error, self._number))
                return
            text = 'expected {"token": "..."} as the first line: this server requires a token'
            self.refuse(AccessDenied(text, error.reason), self._number)
            self._answer_lines()
            self.connection.close()
        else:
            self._trusted = True
            self._reader.limit = self._limit
            self.connection.introduced()

    def refuse(self, error: MillraceError, line: int | None) -> None:
        if line is None:  # about something that has ended
            self.connection.write(error_line(error, None))
        else:
            self.connection.log_refusal(error)
            self._refusals.append((line, error))

    def _token(self, _: Token) -> None:
        """A token without need, or a second one: the client is known."""

    def _epoch(self, said: EpochLine) -> None:
        if said.epoch is None or not self.context.shown(said.epoch):
            self.connection.write(epoch_line(self.context.epoch()))

    # -- feeds -------------------------------------------------------------------------------------

    def _tuple(self, said: TupleLine) -> None:
        if said.producer is None or self._claims(said):
            self._feed(_key(said)).gather(self._number, said.values, self._length)

    def _claims(self, said: TupleLine) -> bool:
        """Whether a numbered tuple is the next of its producer; False if it was taken before."""
        self._sequences[self._number] = said.sequence
        return self._feed(_key(said)).claim(said.sequence)

    def _open(self, said: OpenLine) -> None:
        key = _key(said)
        taken = self.context.feeds.taken(said.stream, said.producer)
        self.context.epochs().check_tuples(said.producer, taken, said.sequence, said.epoch)
        self._lost.pop(key, None)
        feed = self._feed(key, answers=said.answers, sequence=said.sequence)
        if said.answers and not feed.answers:
            text = f"this connection already feeds {said.stream} as {feed.label}, without answers: close it first"
            raise Refuse(text, code="already_open")
        feed.open_again()

    def _punctuation(self, said: PunctuationLine) -> None:
        feed = self._feed(_key(said))
        feed.refuse_gap()
        feed.take()
        unit = self.context.feeds.source(said.stream).unit
        self.context.feeds.punctuated(said.stream, feed.producer, said.time_us(unit), unit, said.where)

    def _answers(self, said: AnswersLine) -> None:
        key = _key(said)
        if (feed := self._feeds.get(key)) is not None:
            text = f"this connection already feeds {said.stream} as {feed.label}: send answers as the feed's first line"
            raise Refuse(text, code="already_open")
        self._lost.pop(key, None)
        self._feed(key, answers=True)

    def _answer(self, said: AnswerLine) -> None:
        feed = self._feeds.get(_key(said))
        if feed is None or not feed.answers:
            text = f"this connection does not feed {said.stream} as {said.producer or said.feed} with answers"
            raise Refuse(text, code="not_open")
        feed.refuse_gap()
        feed.take()
        unit, promise = self.context.feeds.source(said.stream).unit, said.promise
        value_us, where = (None, None) if promise is None else (promise.time_us(unit), promise.where)
        self.context.feeds.answered(said.stream, feed.producer, said.request, value_us, where, unit)

    def _close(self, said: CloseLine) -> None:
        feed = self._feeds.pop(_key(said), None)
        if feed is None:
            text = f"this connection does not feed {said.stream} as {said.producer or said.feed}"
            raise Refuse(text, code="not_open")
        feed.leave()

    def _feed(self, key: _Key, *, answers: bool = False, sequence: int = 0) -> _LineFeed:
        feed = self._feeds.get(key)
        if feed is None:
            if key in self._lost:
                raise self._lost[key]
            caller = self.connection.caller
            if caller is not None and caller is not ANYONE:  # lines that are read together come here unchecked
                caller.must(Action.FEED, key[0])
            if len(self._feeds) + len(self._lost) >= self.context.limits.channels:
                text = f"this connection has {len(self._feeds)} feeds, the limit: close one"
                raise Refuse(text, code="too_many_channels")
            if key[2] is None:
                feed = _LineFeed(self, key, f"{self.connection.peer}/{key[1]}", answers)
            else:
                feed = _ProducerFeed(self, key, key[2], answers, sequence)
            self._feeds[key] = feed
        return feed

    def forget_feed(self, key: _Key, why: Refuse | None = None) -> None:
        """A feed was ended from this side. Its further lines open it again, unless there is a reason to refuse them."""
        self._feeds.pop(key, None)
        if why is not None:
            self._lost[key] = why

    def _take_all(self) -> None:
        for feed in tuple(self._feeds.values()):
            feed.take()

    # -- subscriptions -----------------------------------------------------------------------------

    def _subscribe(self, said: SubscribeLine) -> None:
        outlet = self.context.runner.outlet(said.query)
        if said.query in self._readers:
            raise Refuse(f"this connection has already subscribed to {said.query}", code="already_open")
        reader = _LineReaderOf(self, said, outlet)
        self.context.epochs().check_rows(outlet.query, outlet.history, said.from_sequence, said.epoch)
        outlet.first(said.from_sequence, said.history)
        self._readers[said.query] = reader
        reader.begin()

    def _unsubscribe(self, said: UnsubscribeLine) -> None:
        reader = self._readers.pop(said.query, None)
        if reader is None:
            raise Refuse(f"this connection is not subscribed to {said.query}", code="not_open")
        reader.leave()

    def forget_reader(self, query: str) -> None:
        self._readers.pop(query, None)


# By the type of a line. One table for all connections: a table of bound methods in each would take a kilobyte.
_HEARD: Final[Mapping[type, Callable[[LineDialect, Any], None]]] = {
    TupleLine: LineDialect._tuple,
    PunctuationLine: LineDialect._punctuation,
    OpenLine: LineDialect._open,
    AnswersLine: LineDialect._answers,
    AnswerLine: LineDialect._answer,
    CloseLine: LineDialect._close,
    SubscribeLine: LineDialect._subscribe,
    UnsubscribeLine: LineDialect._unsubscribe,
    Token: LineDialect._token,
    EpochLine: LineDialect._epoch,
}


def _key(said: FeedLine) -> _Key:
    return said.stream, said.feed, said.producer


class _LineFeed:
    """A feed by lines: gathers the tuples of one read into a batch, and stops the reading when it is ahead.

    Its name, `producer`, is made unique by the connection's: two people with `nc` are two feeds. `label` is its name
    for its own connection.
    """

    def __init__(self, dialect: LineDialect, key: _Key, producer: str, answers: bool) -> None:
        self.stream, self.label, _ = key
        self.answers = answers
        self.producer = producer
        self._key = key
        self._named: Mapping[str, str] = {"feed": self.label}
        self._dialect = dialect
        self._feeds = dialect.context.feeds
        self._under_way = UnderWay(self._feeds.source(self.stream).schema, dialect.context.credit_bytes)
        self.held = False
        self.credit = 0
        self._gathered: list[Mapping[str, Any]] = []
        self._numbers: list[int] = []
        self._batches: list[tuple[Batch, LineNumbers]] = []
        self._received = self._feeds.received_of(self.stream)
        self.next_sequence = self._feeds.open(self.stream, producer, self, can_answer=answers)

    def claim(self, sequence: int) -> bool:
        raise AssertionError("only tuples of producers are numbered")

    def open_again(self) -> None:
        raise AssertionError("only producers open their feeds")

    def refuse_gap(self) -> None:
        """Refuse a promise that follows missing tuples."""

    def gather(self, line: int, values: Mapping[str, Any], length: int) -> None:
        self._received.bytes += length
        self._gathered.append(values)
        self._numbers.append(line)

    def read(self, batch: Batch, numbers: LineNumbers, length: int) -> None:
        """Tuples of these lines, which have been read together."""
        self._received.bytes += length
        if self._gathered:
            self._decode()
        self._batches.append((batch, numbers))

    def take(self) -> None:
        """Pass on the gathered lines; unfit lines are refused separately."""
        if self._gathered:
            self._decode()
        batches, self._batches = self._batches, []
        if len(batches) == 1:
            self._take_times(*batches[0])
        elif batches:
            numbers = np.concatenate([numbers for _, numbers in batches])
            self._take_times(Batch.concat([batch for batch, _ in batches]), numbers)

    def _decode(self) -> None:
        gathered, self._gathered = self._gathered, []
        numbers, self._numbers = self._numbers, []
        self._take(gathered, numbers)

    def _take(self, gathered: list[Mapping[str, Any]], numbers: list[int]) -> None:
        while gathered:
            try:
                batch = self._feeds.source(self.stream).from_objects(gathered)
            except RowError as error:
                # One kind of check goes over all lines before the next: those before this one may not fit either.
                self._take(gathered[: error.row], numbers[: error.row])
                self._refuse_line(error, numbers[error.row])
                gathered, numbers = gathered[error.row + 1 :], numbers[error.row + 1 :]
            else:
                self._batches.append((batch, np.array(numbers)))
                return

    def _take_times(self, batch: Batch, numbers: LineNumbers) -> None:
        """Hand on the tuples whose times the stream takes. A refusal does not decode the other lines again."""
        while len(batch.ts):
            try:
                self._feeds.check_times(self.stream, batch)
            except RowError as error:
                row = error.row
                self._take_times(batch.slice(0, row), numbers[:row])
                self._refuse_line(error, int(numbers[row]))
                batch, numbers = batch.slice(row + 1, len(batch)), numbers[row + 1 :]
            else:
                self._arrived(batch)
                return

    def _refuse_line(self, error: RowError, number: int) -> None:
        self._feeds.refused(self.stream, self.producer, 1, error)
        self._dialect.refuse(_about_the_tuple(error), number)

    def _arrived(self, batch: Batch) -> None:
        self._feeds.arrived(self.stream, self.producer, batch)
        self.credit -= len(batch.ts)
        self._under_way.add(batch)
        if self.exhausted:
            self._dialect.connection.hold_reading(f"credit of {self.stream}/{self.producer}")

    @property
    def exhausted(self) -> bool:
        """Whether it has to wait until the engine has taken more of what it sent."""
        return self.credit <= 0 or self._under_way.full

    def granted(self, tuples: int) -> None:
        self.credit += tuples
        self._under_way.granted(tuples)
        if not self.exhausted:
            self._let_read()

    def _let_read(self) -> None:
        self._dialect.connection.let_read(f"credit of {self.stream}/{self.producer}")
        self._dialect.have_credit()

    def asked(self, request: int, need_us: int, group: tuple[Any, ...]) -> None:
        stream = self._feeds.source(self.stream).stream
        self._dialect.connection.write(request_line(stream, self._named, request, need_us, group))

    def late(self, late: Late) -> None:
        """Report each late tuple to the peer, under the peer's name of the feed."""
        self._dialect.connection.write(late_lines(late, self._named))

    def hold(self, held: bool) -> None:
        if held != self.held:
            self.held = held
            self._feeds.hold(self.stream, self.producer, self, held)

    def ended(self, code: str, text: str) -> None:
        self._let_read()
        self._dialect.forget_feed(self._key)
        self._dialect.refuse(MillraceError(text, code=code), None)

    def leave(self, *, lost: bool = False) -> None:
        """Without a producer, nobody can continue a lost feed."""
        self._leave(lost=False)

    def _leave(self, *, lost: bool) -> None:
        self.take()
        self._let_read()
        self.hold(False)
        self._feeds.close(self.stream, self.producer, self, lost=lost)


class _ProducerFeed(_LineFeed):
    """A feed by lines that a producer can continue on another connection: each of its numbered tuples is taken once.

    next_sequence  the number of the next tuple, of which the engine knows up to `_known`
    """

    def __init__(self, dialect: LineDialect, key: _Key, producer: str, answers: bool, sequence: int) -> None:
        super().__init__(dialect, key, producer, answers)
        self.label = producer
        self._named = {"producer": producer}
        self._who = f"producer {producer} of stream {self.stream}"
        self._known = self.next_sequence
        self._accepted = self._durable = 0
        self._gap = False
        self.next_sequence = max(self._known, sequence)
        runner = dialect.context.runner
        self._acknowledger = Acknowledger(runner, self._say_acknowledged, runner.syncs)
        dialect.owe(self)

    def claim(self, sequence: int) -> bool:
        self._dialect.owe(self)
        if sequence > self.next_sequence:
            self._gap = True
            raise Refuse(
                f"{self._who}: expected tuple {self.next_sequence}, got {sequence}; "
                f"send the tuples from {self.next_sequence} on",
                code="out_of_order",
            )
        if sequence < self.next_sequence:
            self._received.repeated += 1
            return False
        self._gap = False
        self.next_sequence += 1
        return True

    def open_again(self) -> None:
        self._gap = False
        self._dialect.owe(self)

    def refuse_gap(self) -> None:
        """A promise would make the missing tuples late."""
        if self._gap:
            raise Refuse(
                f"{self._who}: send the tuples from {self.next_sequence} on first, then this line again",
                code="out_of_order",
            )

    def take(self) -> None:
        if self.next_sequence > self._known:
            self._known = self.next_sequence
            self._feeds.took(self.stream, self.producer, self._known)
        super().take()

    def acknowledge(self) -> None:
        """Say how far the feed is, once that is in the journal."""
        next_sequence = self.next_sequence
        self._dialect.context.runner.when_durable(lambda: self._taken(next_sequence))

    def _taken(self, next_sequence: int) -> None:
        self._acknowledger.taken(next_sequence)
        self._dialect.acknowledged()

    def _say_acknowledged(self, next_sequence: int, durable: bool) -> None:
        self._accepted = max(self._accepted, next_sequence)
        if durable:
            self._durable = max(self._durable, next_sequence)
        on_disk = self._durable if self._acknowledger.tells_durable else None
        self._dialect.connection.write(ack_line(self.stream, self.producer, self._accepted, on_disk))

    def ended(self, code: str, text: str) -> None:
        super().ended(code, text)
        line = f'{{"stream": "{self.stream}", "producer": "{self.producer}", "open": true}}'
        self._dialect.forget_feed(self._key, Refuse(f"{text}; to feed it from here again, send {line}", code=code))

    def leave(self, *, lost: bool = False) -> None:
        self._leave(lost=lost)


def _about_the_tuple(error: RowError) -> RowError:
    """The error without the row's place: a line has one tuple."""
    return type(error)(error.fault.lstrip(":, "), row=0, expected=error.expected, got=error.got, code=error.code)


class _LineReaderOf(Sender):
    """A subscription by lines, as a Sender of its rows: the socket alone limits it.

    It keeps the name that the peer requested, even if the query was renamed since.
    """

    chunk_bytes = BYTES_AT_A_TIME

    def __init__(self, dialect: LineDialect, wish: SubscribeLine, outlet: Outlet) -> None:
        self._dialect = dialect
        self._wish = wish
        self._outlet = outlet
        self.subscription = Subscription(f"{dialect.connection.peer}/{wish.query}", dialect.context.slow, self)
        self._reads = stated(outlet, wish.refresh, wish.keys, self.end)

    @property
    def temporary(self) -> bool:
        return self._outlet.temporary

    def begin(self) -> None:
        self._watch(True)
        self._outlet.add(self.subscription, self._wish.from_sequence)
        sparing.info("a subscription started", self._outlet.query, query=self._outlet.query)

    def _watch(self, wanted: bool) -> None:
        if self._wish.progress:
            self._dialect.context.runner.watch(self._outlet, wanted)
        if self._reads is not None:
            self._reads.state(self._dialect.context.runner, self.subscription.name, wanted)

    def room(self) -> int:
        return ROWS_AT_A_TIME if self._dialect.connection.writable else 0

    def writable(self) -> bool:
        return self._dialect.connection.writable

    def send_rows(self, sequence: int, batch: Batch) -> None:
        query, history = self._wish.query, self._outlet.history
        lines = self.subscription.shared.text(
            sequence, batch, ("lines", query), lambda: row_lines(query, sequence, batch, history)
        )
        self._dialect.connection.write(lines)

    def send_progress(self, value_us: int) -> None:
        if self._wish.progress:
            self._dialect.connection.write(progress_line(self._wish.query, value_us))

    def end(self, code: str, reason: str) -> None:
        self.leave()
        self._dialect.forget_reader(self._wish.query)
        self._dialect.refuse(MillraceError(reason, code=code), None)

    def leave(self) -> None:
        self._watch(False)
        self._outlet.remove(self.subscription)
        sparing.info("a subscription ended", self._outlet.query, query=self._outlet.query)
