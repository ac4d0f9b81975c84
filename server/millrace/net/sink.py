"""Consumers of a query's rows: subscriptions, files and the standard output, each at its own pace.

Rule: an Outlet belongs to one query and hands every row to every consumer. A consumer holds and counts the rows that it
could not pass on yet, and follows its `on_slow` when they exceed its limit. Nothing here blocks the event loop: each
file is written in a separate thread.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np
import structlog

from millrace.net.freshness import Freshness, Key, in_json
from millrace.net.newest import Newest
from millrace.net.silence import SPEAKS, Silence
from millrace.observe.logs import sparing
from millrace.operators.frame.tap import Tap
from millrace.protocol import Refuse, Schema, format_timestamp
from millrace.protocol.words import counted
from millrace.standby.sinkfence import Outdated
from millrace.store.places import Identity, error_words
from millrace.store.resultlog import ResultLog
from millrace.store.sinkfiles import NotDurableError, SinkFile, SinkPosition
from millrace.values.batch import Batch

log = structlog.get_logger()

# The label under which the metrics count all subscribers of a query.
SUBSCRIPTIONS: Final = "subscriptions"
# How long a sink that cannot write pauses before it tries again: twice as long each time. A freed disk is noticed soon,
# and a try costs a system call.
LEAST_PAUSE_SECONDS: Final = 0.1
MOST_PAUSE_SECONDS: Final = 2.0
# How long the server's health shows what another program did to the file of a sink.
NOTICE_US: Final = 3_600_000_000
# Rows that are encoded at once: some megabytes.
JOINED_ROWS: Final = 16_384

# Histories differ by a random number: 64 bits are enough for the few that a client compares.
HISTORY_BYTES: Final = 8
# The characters of a history in an answer to a client: a valid one is complete, an invented one of 64 KiB is not.
HISTORY_SHOWN: Final = 64
# As many bytes as 100,000 rows of 670 bytes: ordinary rows meet the limit in tuples first.
SLOW_BYTES: Final = 64 * 2**20
# As many bytes as 10,000 rows of 3,300 bytes.
RETAINED_BYTES: Final = 32 * 2**20
# Bytes of the rows that leave at a time: encoding them takes little memory in addition to the held rows.
CHUNK_BYTES: Final = 2**20

# Rows of a query that several subscribers read, as they were written last: subscribers that read at different speeds
# still find them, and they are few in comparison with the rows that may wait.
SHARED_BYTES: Final = 2**23
# Rows of a consumer under `wait` in memory; if more wait, it reads them from the log of results later.
LIVE_BYTES: Final = 2**22
# A consumer that lags reads the log in such pieces, one ahead of what it passes on.
PIECE_BYTES: Final = 2**20
PIECE_ROWS: Final = 16_384
# Rows leave in pieces that start at a multiple of their length from this length on, so that subscribers whose credit
# differs meet in the same pieces again.
ALIGNED_ROWS: Final = 256

OnSlow = Literal["wait", "drop_oldest", "disconnect", "latest"]


# How many times its limit a consumer may hold before feeds wait for it even if other queries wait for them: that much
# memory is the price of letting other queries continue.
STRICT_FILL: Final = 2


class Backpressure(IntEnum):
    """Whether the feeds of a query wait for one of its consumers, and whether another query's wait is an exception."""

    NONE = 0
    SOFT = 1
    STRICT = 2


@dataclass(frozen=True, slots=True)
class Slow:
    """The policy for a consumer that holds `limit` tuples, or `most_bytes` bytes."""

    policy: OnSlow = "wait"
    limit: int = 100_000
    most_bytes: int = SLOW_BYTES


@dataclass(frozen=True, slots=True)
class Retention:
    """How many of a query's newest rows are retained for subscribers that request earlier ones: `tuples` or a few more,
    but at most `most_bytes`."""

    tuples: int
    most_bytes: int = RETAINED_BYTES


class Shared:
    """Rows as a dialect writes them, which several consumers need: made once.

    The number of the first row and how many they are identify rows. The newest are kept, up to SHARED_BYTES; for a
    single consumer none.
    """

    def __init__(self) -> None:
        self.consumers = 0
        self._texts: OrderedDict[Hashable, bytes] = OrderedDict()
        self._bytes = 0

    def text(self, sequence: int, batch: Batch, form: Hashable, make: Callable[[], bytes]) -> bytes:
        """The rows in this form, written by whoever asks first."""
        if self.consumers < 2:
            return make()
        key = form, sequence, len(batch)
        found = self._texts.get(key)
        if found is None:
            found = self._texts[key] = make()
            self._bytes += len(found)
            while self._bytes > SHARED_BYTES and len(self._texts) > 1:
                self._bytes -= len(self._texts.popitem(last=False)[1])
        return found

    def count(self, consumers: int) -> None:
        self.consumers = consumers
        if consumers < 2:
            self.clear()

    def clear(self) -> None:
        self._texts.clear()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        return self._bytes


@dataclass(slots=True)
class Counts:
    """The rows of one sink, or of all subscriptions, by their fate."""

    delivered: int = 0
    dropped: int = 0
    superseded: int = 0
    held: int = 0
    held_bytes: int = 0
    lag_us: int = 0
    breaches: int = 0


class Consumer:
    """Takes rows at its own pace.

    `held` and `held_bytes` count the tuples that it has not passed on. Under `drop_oldest` they exceed the limits at
    most by the rows that are being written; under `wait`, by the rows that the query emits for the credit that its
    feeds still have. Under `latest` it holds the newest row of each key, and no limit applies. `obstacle` says why a
    consumer takes no rows, if known: it keeps its rows, and only that makes feeds wait.

    With a `log`, a consumer that lags is a cursor: `_behind` is the number of the first row that it will read from the
    log, in pieces, as it has room. Rows in the queue precede it. Until it has caught up no row is queued on delivery,
    and limits do not apply, because its rows are on disk. Under `wait` the log keeps them, as far as `retain` allows,
    and a consumer that has caught up becomes a cursor again when more than LIVE_BYTES wait in memory.

    Without a log, limits do not apply to the retained rows that it starts with (`_earlier`): it cannot have read them.
    """

    def __init__(self, name: str, slow: Slow, label: str) -> None:
        self.name = name
        self.label = label
        self.slow = self.asked = slow
        self.held = 0
        self.delivered = 0
        self.dropped = 0
        self.obstacle: str | None = None
        self.drained: Callable[[Consumer], None] = _nothing
        self.history: str | None = None  # of the rows that it takes; None until an outlet has it
        self.shared = Shared()  # of its outlet
        self.log: ResultLog | None = None  # of its outlet
        self._behind: int | None = None
        self._reading: asyncio.Task[None] | None = None
        self._newest: Newest | None = None
        self._superseded = 0
        self._queue: deque[tuple[int, Batch]] = deque()
        # Bytes of the rows in the queue, and of those that were taken and have not left.
        self._queued_bytes = 0
        # Rows and bytes that it held when it started, or holds now if that is less.
        self._earlier = (0, 0)
        # Rows and bytes that are being written.
        self._in_flight = (0, 0)

    @property
    def held_bytes(self) -> int:
        return self._queued_bytes + (0 if self._newest is None else self._newest.weight)

    @property
    def follows(self) -> bool:
        """Whether another server, which this one follows, writes these rows."""
        return False

    @property
    def fill(self) -> float:
        """Its held rows as a part of the limit, or of what the log retains if that is more; 0 under another policy
        than `wait`."""
        if self.slow.policy != "wait":
            return 0.0
        unread = 0 if self._behind is None or self.log is None else self.log.bytes_from(self._behind)
        rows, held_bytes = self._limited
        fill = max(rows / self.slow.limit, (held_bytes + unread) / self.slow.most_bytes)
        if fill <= 1 / 2 or self.log is None or self._newest is not None:
            return fill
        first = self.log.next - self.held
        return fill if first < self.log.oldest else min(fill, self.log.fill(first))

    @property
    def too_slow(self) -> bool:
        """Whether it holds more in memory than it may."""
        if self._behind is not None:
            return False
        rows, held_bytes = self._limited
        return rows > self.slow.limit or held_bytes > self.slow.most_bytes

    @property
    def _limited(self) -> tuple[int, int]:
        """The rows and bytes that count for its limits."""
        rows, held_bytes = self._earlier
        return self.held - rows, self.held_bytes - held_bytes

    def settle(self, schema: Schema, key: Sequence[int] | None) -> None:
        """Apply the requested policy from now on, as far as rows with this update key (None: without one) allow it."""
        policy = self.asked.policy
        if policy == "latest" and key is None:
            policy = "wait"
        self.slow = replace(self.asked, policy=policy)
        self._keep_newest(schema, key if policy == "latest" else None)

    def _keep_newest(self, schema: Schema, key: Sequence[int] | None) -> None:
        """Hold the newest row of each key from now on, or every row. Rows that wait already are not superseded."""
        if self._newest is not None:
            self._superseded += self._newest.superseded
            self._take_newest(self._newest.waiting)
        self._newest = None if key is None else Newest(schema, key)

    @property
    def superseded(self) -> int:
        """Rows that a newer row of their key has replaced while they waited."""
        return self._superseded + (0 if self._newest is None else self._newest.superseded)

    def put(self, sequence: int, batch: Batch) -> None:
        if self._behind is not None:
            self.held += len(batch)
            self.pump()
            return
        self._accept(sequence, batch)
        self.pump()
        if self._newest is None:
            if self._queued_bytes > LIVE_BYTES:
                self._spill()
            if self.too_slow:
                self._fall_behind()

    def start_with(self, retained: Iterable[tuple[int, Batch]]) -> None:
        """Take these rows first, which were emitted earlier."""
        for sequence, batch in retained:
            self._accept(sequence, batch)
        if self._newest is None and self.log is None:
            self._earlier = self.held, self._queued_bytes
        self.pump()

    def _accept(self, sequence: int, batch: Batch) -> None:
        """Hold rows in memory."""
        if self._newest is not None:
            before = self._newest.waiting
            self._newest.put(sequence, batch)
            self.held += self._newest.waiting - before
        else:
            self._queue.append((sequence, batch))
            self.held += len(batch)
            self._queued_bytes += batch.weight

    # -- a cursor of the log -----------------------------------------------------------------------

    def start_at(self, sequence: int) -> None:
        """Read the rows from this number on from the log first."""
        assert self.log is not None
        if sequence >= self.log.next:
            return
        if self.slow.policy == "wait":
            self.log.hold(self, sequence)
        self._behind = sequence
        self.held += self.log.next - sequence
        self.pump()
        self._read_on()

    def _spill(self) -> None:
        """Under `wait`, leave the rows that wait in memory to the log, if it has them."""
        if self.slow.policy != "wait" or self.log is None or not self._queue:
            return
        first = self._queue[0][0]
        if self.log.hold(self, first):
            self._behind = first
            self._queued_bytes -= sum(batch.weight for _, batch in self._queue)
            self._queue.clear()

    def _read_on(self) -> None:
        """Read the next piece of the log, unless enough rows wait in memory."""
        if self._behind is not None and self._reading is None and self._queued_bytes < PIECE_BYTES:
            self._reading = asyncio.get_running_loop().create_task(self._read_piece(self._behind), name="results")

    async def _read_piece(self, sequence: int) -> None:
        log = self.log
        assert log is not None
        rows = PIECE_ROWS if self.slow.policy == "wait" else max(min(PIECE_ROWS, self.slow.limit), 1)
        pause = LEAST_PAUSE_SECONDS
        while True:
            try:
                found = await log.read_aside(sequence, rows, PIECE_BYTES)
                break
            except OSError as error:
                text = "retained rows cannot be read: the server retries"
                sparing.warning(text, self.name, consumer=self.name, reason=error_words(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, MOST_PAUSE_SECONDS)
        self._reading = None
        if self._behind != sequence or log is not self.log:
            return  # the consumer has left
        for first, batch in found:
            if first > self._behind and not self._miss(first - self._behind):
                return
            self.held -= len(batch)
            self._accept(first, batch)
            self._behind = first + len(batch)
        missing = 0 if found else min(log.oldest, self._log_end) - self._behind
        if missing and not self._miss(missing):
            return
        if self._behind >= self._log_end:
            self._behind = None
            log.release(self)
        elif self.slow.policy == "wait":
            log.hold(self, self._behind)
        self.pump()
        self._read_on()
        self.drained(self)

    @property
    def _log_end(self) -> int:
        """The number of the first row that it need not read from the log."""
        assert self.log is not None
        return self.log.next

    def _miss(self, rows: int) -> bool:
        """Rows are no longer retained that it has not read; whether it continues after them."""
        assert self._behind is not None
        self._behind += rows
        self.held -= rows
        self.dropped += rows
        text = "a consumer is too slow; its oldest rows are dropped"
        sparing.warning(text, self.name, rows, unit="tuples", consumer=self.name)
        if self.slow.policy in ("wait", "disconnect"):
            code = "too_slow" if self.slow.policy == "disconnect" else "not_retained"
            self.ended(code, f"{counted(rows, 'row')} that waited for {self.name} are no longer retained")
        return self._behind is not None

    def leave_log(self) -> None:
        """Read no further from the log."""
        if self._behind is not None and self.log is not None:
            self.log.release(self)
            self.held -= max(self._log_end - self._behind, 0)
        self._behind = None
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def progressed(self, value_us: int) -> None:
        """The query's rows are complete below this time."""
        if self._newest is not None:
            self._newest.promised(value_us)

    def pump(self) -> None:
        """Pass on as much as can be passed on now."""
        raise NotImplementedError

    def ended(self, code: str, text: str) -> None:
        """The query has ended, or the consumer was too slow."""
        raise NotImplementedError

    async def close(self) -> None:
        """Pass on the held rows, if possible, and end."""

    def take(self, most: int, most_bytes: int = CHUNK_BYTES) -> tuple[int, Batch] | None:
        """The oldest held rows and the number of the first: at most so many rows, and bytes."""
        if most > 0 and not self._queue and self._newest is not None:
            self._take_newest(most)
        if not self._queue or most <= 0:
            return None
        sequence, batch = self._queue[0]
        if batch.weight > most_bytes:
            most = min(most, max(len(batch) * most_bytes // batch.weight, 1))
        if len(batch) <= most:
            self._queue.popleft()
        else:
            if most >= ALIGNED_ROWS:
                length = 1 << (most.bit_length() - 1)
                most = length - sequence % length
            batch, rest = batch.split(most)
            self._queue[0] = (sequence + most, rest)
        return sequence, batch

    def _take_newest(self, most: int) -> None:
        assert self._newest is not None
        for sequence, batch in self._newest.take(most):
            self._queue.append((sequence, batch))
            self._queued_bytes += batch.weight

    @property
    def breaches(self) -> int:
        """How often its rows became older than its `freshness`."""
        return 0

    def lag_us(self, now_us: int) -> int:
        """The age of the oldest row that waits here."""
        if self._queue:
            return max(now_us - int(self._queue[0][1].arrival[0]), 0)
        if self._behind is not None and self.log is not None:
            return max(now_us - self.log.time_of(self._behind), 0)
        return 0 if self._newest is None else self._newest.oldest_us(now_us)

    def passed_on(self, *batches: Batch) -> None:
        """Rows that were taken have left."""
        self.delivered += self._let_go(*batches)
        self.drained(self)

    def _let_go(self, *batches: Batch) -> int:
        """Stop holding rows that were taken; the number of rows."""
        tuples = sum(map(len, batches))
        self.held -= tuples
        self._queued_bytes -= sum([batch.weight for batch in batches])
        rows, held_bytes = self._earlier
        if rows:
            self._earlier = min(rows, self.held), min(held_bytes, self._queued_bytes)
        return tuples

    def _fall_behind(self) -> None:
        if self.slow.policy == "drop_oldest":
            dropped = self.dropped
            self._drop_oldest()
            tuples = self.dropped - dropped
            if tuples:
                text = "a consumer is too slow; its oldest rows are dropped"
                sparing.warning(text, self.name, tuples, unit="tuples", consumer=self.name)
        elif self.slow.policy == "disconnect":
            held = f"{counted(self.held, 'row')} ({counted(self.held_bytes, 'byte')})"
            limit = f"{counted(self.slow.limit, 'row')} or {counted(self.slow.most_bytes, 'byte')}"
            self._drop(self.held)
            self.ended("too_slow", f"{held} waited for {self.name}, more than the limit of {limit}")

    def shed(self, least: int) -> int:
        """Memory is short: drop rows that the policy allows to drop, if they take `least` bytes; how many."""
        dropped = self.dropped
        if self.slow.policy == "drop_oldest" and self._queued_bytes >= least:
            self._drop(self.held)
            text = "a consumer is too slow; its oldest rows are dropped"
            sparing.warning(text, self.name, self.dropped - dropped, unit="tuples", consumer=self.name)
        return self.dropped - dropped

    def _drop_oldest(self) -> None:
        """Drop as few rows as bring the queue back to the limit. Rows that are being written have left the queue."""
        writing, writing_bytes = self._in_flight
        while self._queue:
            batch = self._queue[0][1]
            held, held_bytes = self._limited
            rows = held - writing - self.slow.limit
            excess = held_bytes - writing_bytes - self.slow.most_bytes
            if excess > 0:
                rows = max(rows, -(-excess * len(batch) // batch.weight))
            if rows <= 0:
                return
            self._drop(min(rows, len(batch)))

    def _drop(self, tuples: int) -> None:
        while tuples > 0 and (taken := self.take(tuples)) is not None:
            tuples -= len(taken[1])
            self.dropped += self._let_go(taken[1])


def _nothing(_: Consumer) -> None:
    """The default listener."""


def new_history() -> str:
    """The name of a count of rows that starts."""
    return secrets.token_hex(HISTORY_BYTES)


class Count(NamedTuple):
    """A count of rows: its name, and the number of the next row."""

    history: str
    next_sequence: int = 0


class Unwritten(Consumer):
    """The rows of a query that wait to be written to its log, as something that feeds wait for: there is no reader."""

    def __init__(self, log: ResultLog) -> None:
        super().__init__("the disk, on which results are retained", Slow(), SUBSCRIPTIONS)
        self.log = log

    @property
    def held_bytes(self) -> int:
        return 0 if self.log is None else self.log.waiting_bytes

    @property
    def fill(self) -> float:
        assert self.log is not None
        return self.log.pressure

    def pump(self) -> None:
        """The log's thread writes."""

    def ended(self, code: str, text: str) -> None:
        """The log stays."""


class Outlet:
    """The place where one query's rows leave the engine.

    `next_sequence` is the number of the next row, `history` the name of this count: both identify a row, because
    another history counts from 0 again. An outlet has one history. `_retained` holds the newest rows for subscribers
    that start earlier: at least the requested number, if there were so many. With a `log` they are on disk instead.
    After a restart the engine emits again what it emitted since its last checkpoint; the log's rows among them are
    passed to nobody. `key` is the key of an update stream (positions). Without a key no row is the newest one, so feeds
    wait for a consumer that requests `latest`.

    `backpressure` says how urgently feeds have to wait for consumers under `wait`. It starts when one consumer lags by
    its limit and ends when all lag by at most half of it, so that feeds do not stop at every row. `_lags` has the
    consumers that lag by more than that, so that a row passed on costs nothing for each of the others.
    """

    def __init__(
        self,
        query: str,
        schema: Schema,
        retain: Retention,
        press: Callable[[Backpressure], None],
        key: Sequence[int] | None = None,
        *,
        history: str | None = None,
        next_sequence: int = 0,
        log: ResultLog | None = None,
    ) -> None:
        self.history = history or new_history()
        self.query = query
        self.schema = schema
        self.key = key
        self.next_sequence = next_sequence
        self.log = log
        # The clock when the query received its first tuple; None: it has the earlier rows from history.
        self.since_us: int | None = None
        self.consumers: list[Consumer] = []
        self.shared = Shared()
        self.backpressure = Backpressure.NONE
        self._lags: dict[Consumer, Lag] = {}
        # Since when feeds wait, and how often and how long they waited before.
        self.waiting_since_us: int | None = None
        self.waits = 0
        self.waited_us = 0
        self.watchers = 0  # subscribers that want to know the progress
        self._gone = Counts()
        self._retain = retain
        self._retained: deque[tuple[int, Batch]] = deque()
        self._tuples = self._bytes = 0  # of these
        self._press = press
        self._progress: int | None = None
        # Called when the last consumer has left; None: the query stays without one.
        self.on_unread: Callable[[], None] | None = None
        self._unwritten = None if log is None else Unwritten(log)
        self.tap: Tap | None = None  # shows the newest rows to those who look at them

    @property
    def temporary(self) -> bool:
        """Whether its query ends with its last consumer."""
        return self.on_unread is not None

    def deliver(self, sequence: int, batch: Batch) -> None:
        self.next_sequence = sequence + len(batch.ts)
        log = self.log
        if log is not None:
            if sequence < log.next:
                if self.next_sequence <= log.next:
                    return
                batch = batch.slice(log.next - sequence, len(batch))
                sequence = log.next
            log.append(sequence, batch)
            if log.pressure > 1 / 2 or self._lags:
                self._weigh_log()
        if self.tap is not None:
            self.tap.add(self.next_sequence, batch)
        for consumer in tuple(self.consumers):
            consumer.put(sequence, batch)
            if consumer.held or self._lags:
                self._weigh(consumer)
        if log is None:
            self._keep(sequence, batch)
        self._adjust()

    def _weigh_log(self) -> None:
        """Feeds wait for the disk, too."""
        log, unwritten = self.log, self._unwritten
        if log is None or unwritten is None:
            return
        unwritten.obstacle = log.obstacle
        lag = _lag(unwritten.fill)
        if lag is Lag.LITTLE:
            self._lags.pop(unwritten, None)
            log.on_written = None
        else:
            self._lags[unwritten] = lag
            log.on_written = self._look_at_log

    def _look_at_log(self) -> None:
        self._weigh_log()
        self._adjust()

    def progressed(self, value_us: int) -> None:
        self._progress = value_us
        for consumer in tuple(self.consumers):
            consumer.progressed(value_us)

    def add(self, consumer: Consumer, from_sequence: int | None = None) -> int:
        """Pass the consumer every row from a number on (default: the next); the number of its first row."""
        first = self.first(from_sequence)
        self._settle(consumer)
        consumer.drained = self._look_at
        consumer.history = self.history
        consumer.shared = self.shared
        consumer.log = self.log
        self.consumers.append(consumer)
        self.shared.count(len(self.consumers))
        if self.log is not None:
            consumer.start_at(first)
        consumer.start_with(self._retained_from(first))
        if self._progress is not None:
            consumer.progressed(self._progress)  # the others know it already
        self._look_at(consumer)
        return first

    def resume_at(self, consumer: Consumer, wanted: int) -> int:
        """The number of the first row for a sink that wants the rows from this one on, after a restart. Rows that are
        retained no longer are lost; rows that it has already and that the engine emits again are passed to it again."""
        oldest = self.oldest_retained
        if wanted < oldest and not consumer.follows:
            consumer.dropped += oldest - wanted
            text = "rows that a sink had not written are no longer retained"
            log.error(text, sink=consumer.name, rows=oldest - wanted, first=wanted)
        return min(max(wanted, oldest), max(self.next_sequence, oldest))

    def rekey(self, key: Sequence[int] | None) -> None:
        """The query was replaced: from now on its rows are updates by this key, or no updates (None)."""
        if key == self.key:
            return
        self.key = key
        for consumer in self.consumers:
            self._settle(consumer)
            self._weigh(consumer)
        self._adjust()

    def _settle(self, consumer: Consumer) -> None:
        consumer.settle(self.schema, self.key)

    def remove(self, consumer: Consumer) -> None:
        if consumer in self.consumers:
            consumer.leave_log()
            self.consumers.remove(consumer)
            self.shared.count(len(self.consumers))
            self._gone.delivered += consumer.delivered
            self._gone.dropped += consumer.dropped
            self._gone.superseded += consumer.superseded
            self._gone.breaches += consumer.breaches
            self._lags.pop(consumer, None)
            self._adjust()
            if not self.consumers and self.on_unread is not None:
                self.on_unread()

    def counts(self, now_us: int) -> dict[str, Counts]:
        """By sink; all subscriptions are counted together under `subscriptions`."""
        found = {SUBSCRIPTIONS: replace(self._gone)}
        for consumer in self.consumers:
            at = found.setdefault(consumer.label, Counts())
            at.delivered += consumer.delivered
            at.dropped += consumer.dropped
            at.superseded += consumer.superseded
            at.breaches += consumer.breaches
            at.held += consumer.held
            at.held_bytes += consumer.held_bytes
            at.lag_us = max(at.lag_us, consumer.lag_us(now_us))
        return found

    @property
    def oldest_retained(self) -> int:
        if self.log is not None:
            return self.log.oldest
        return self._retained[0][0] if self._retained else self.next_sequence

    @property
    def retained_tuples(self) -> int:
        return self._tuples if self.log is None else self.log.next - self.log.oldest

    @property
    def retained_bytes(self) -> int:
        """In memory, or on disk."""
        return self._bytes if self.log is None else self.log.disk_bytes + self.log.waiting_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory of retained rows, and of rows as several consumers need them; not of those on disk."""
        return self._bytes + self.shared.bytes

    def shed(self) -> int:
        """Memory is short: let go of retained rows, whatever `retain` says, if they are in memory; how many."""
        self.shared.clear()
        rows, self._tuples, self._bytes = self._tuples, 0, 0
        self._retained.clear()
        return rows

    def first(self, wanted: int | None, history: str | None = None) -> int:
        """The number of the first row for a consumer that wants the rows from this one on (None: the next).

        The number is one of `history`, if the consumer names one.
        """
        if wanted is None:
            return self.next_sequence
        if history is not None and history != self.history:
            raise Refuse(
                f"sequence {wanted} belongs to history {history[:HISTORY_SHOWN]} of query {self.query}, which ended: "
                f"the query started again and counts from 0 in history {self.history}. {self._holds()}; "
                f"subscribe without the old history",
                code="not_retained",
            )
        following = self.next_sequence if self.log is None else max(self.next_sequence, self.log.next)
        if not self.oldest_retained <= wanted <= following:
            text = f"query {self.query} does not have sequence {wanted}. {self._holds()}"
            raise Refuse(f"{text}; without a sequence, a subscription starts there", code="not_retained")
        return wanted

    def _holds(self) -> str:
        oldest, following = self.oldest_retained, self.next_sequence
        if oldest == following:
            return f"It retains no rows, and the next sequence is {following}"
        rows = f"sequence {oldest}" if following - oldest == 1 else f"sequences {oldest} to {following - 1}"
        return f"It retains {rows}, and the next sequence is {following}"

    def _retained_from(self, first: int) -> Iterator[tuple[int, Batch]]:
        for sequence, batch in tuple(self._retained):
            if sequence + len(batch) > first:
                skip = max(first - sequence, 0)
                yield sequence + skip, batch.slice(skip, len(batch))

    async def newest(self, first: int, most: int, most_bytes: int) -> list[tuple[int, Batch]]:
        """The newest retained rows from a number on: at most so many rows, and about so many bytes."""
        first = max(first, self.next_sequence - most, self.oldest_retained)
        if self.log is None:
            return list(self._retained_from(first))
        return await self.log.read_aside(first, most, most_bytes)

    def end(self, code: str, text: str) -> None:
        """The query is gone: notify its consumers."""
        for consumer in tuple(self.consumers):
            consumer.ended(code, text)

    def _keep(self, sequence: int, batch: Batch) -> None:
        retained, limits = self._retained, self._retain
        if retained and retained[-1][0] + len(retained[-1][1].ts) != sequence:
            retained.clear()  # the numbers have a gap, which a subscriber could not notice
            self._tuples = self._bytes = 0
        retained.append((sequence, batch))
        self._tuples += len(batch.ts)
        self._bytes += batch.weight
        while retained and self._tuples - len(retained[0][1].ts) >= limits.tuples:
            self._forget_oldest()
        while self._bytes > limits.most_bytes:
            (first, oldest) = self._forget_oldest()
            if not retained:
                self._keep_part(first, oldest)

    def _forget_oldest(self) -> tuple[int, Batch]:
        sequence, batch = self._retained.popleft()
        self._tuples -= len(batch)
        self._bytes -= batch.weight
        return sequence, batch

    def _keep_part(self, sequence: int, batch: Batch) -> None:
        """Retain the newest rows of a batch that is too large, as a copy: a slice would keep all of it in memory."""
        rows = len(batch)
        while (rows := rows // 2) > 0:
            part = batch.take(np.arange(len(batch) - rows, len(batch)))
            if part.weight <= self._retain.most_bytes:
                self._retained.append((sequence + len(batch) - rows, part))
                self._tuples, self._bytes = rows, part.weight
                return

    def all_waited_us(self, now_us: int) -> int:
        """How long feeds have waited for consumers, including the present wait."""
        return self.waited_us + (0 if self.waiting_since_us is None else now_us - self.waiting_since_us)

    @property
    def slowest(self) -> Consumer | None:
        """The consumer that feeds wait for; of several, the one that lags most."""
        readers = self.consumers if self._unwritten is None else [*self.consumers, self._unwritten]
        waiting = (consumer for consumer in readers if consumer.fill > 0)
        return max(waiting, key=lambda consumer: consumer.fill, default=None) if self.backpressure else None

    def _look_at(self, consumer: Consumer) -> None:
        """Let feeds wait as soon as one consumer needs it, and resume them when all have caught up."""
        if consumer.held or self._lags:
            self._weigh(consumer)
            self._adjust()

    def _weigh(self, consumer: Consumer) -> None:
        lag = _lag(consumer.fill)
        if lag is Lag.LITTLE:
            self._lags.pop(consumer, None)
        elif consumer in self._lags or consumer in self.consumers:  # it may have left because of its lag
            self._lags[consumer] = lag

    def _adjust(self) -> None:
        before = self.backpressure
        if not self._lags and not before:
            return
        after = _backpressure(max(self._lags.values(), default=Lag.LITTLE), before)
        if after is not before:
            self.backpressure = after
            self._press(after)


class Lag(IntEnum):
    """How much a consumer holds: up to half of its limit, less than the limit, up to STRICT_FILL limits, or more."""

    LITTLE = 0
    HALF = 1
    LIMIT = 2
    MORE = 3


def _lag(fill: float) -> Lag:
    if fill <= 1 / 2:
        return Lag.LITTLE
    if fill < 1:
        return Lag.HALF
    return Lag.LIMIT if fill < STRICT_FILL else Lag.MORE


def _backpressure(lag: Lag, before: Backpressure) -> Backpressure:
    match lag:
        case Lag.LITTLE:
            return Backpressure.NONE
        case Lag.HALF:
            return min(before, Backpressure.SOFT)
        case Lag.LIMIT:
            return max(Backpressure.SOFT, before)
        case Lag.MORE:
            return Backpressure.STRICT


class Sender(Protocol):
    """The connection of a subscriber, as a subscription sees it.

    chunk_bytes   bytes of the rows that leave together: encoding them takes little memory in addition
    """

    chunk_bytes: int = CHUNK_BYTES

    def room(self) -> int:
        """How many rows may leave now: the credit, or none while the socket is full."""

    def writable(self) -> bool:
        """Whether the socket accepts more now, regardless of the credit."""

    def send_rows(self, sequence: int, batch: Batch) -> None: ...

    def send_progress(self, value_us: int) -> None: ...

    def end(self, code: str, reason: str) -> None: ...


class Subscription(Consumer):
    """A subscriber on a connection: rows leave within its credit, while its socket accepts them."""

    def __init__(self, name: str, slow: Slow, sender: Sender) -> None:
        super().__init__(name, slow, SUBSCRIPTIONS)
        self._sender = sender
        self._progress: int | None = None

    def put(self, sequence: int, batch: Batch) -> None:
        sender, rows = self._sender, len(batch.ts)
        if (
            not self.held  # so nothing is queued, and nothing waits in the log
            and self._newest is None
            and self._progress is None
            and rows <= sender.room()
            and batch.weight <= sender.chunk_bytes
        ):
            self.delivered += rows
            sender.send_rows(sequence, batch)
        else:
            super().put(sequence, batch)

    def progressed(self, value_us: int) -> None:
        super().progressed(value_us)
        self._progress = value_us
        self.pump()

    def pump(self) -> None:
        sender, held = self._sender, self.held
        while (taken := self.take(sender.room(), sender.chunk_bytes)) is not None:
            sender.send_rows(*taken)
            self.delivered += self._let_go(taken[1])
        self._read_on()
        if self.held != held:
            self.drained(self)
        if self._progress is not None and not self.held and self._sender.writable():
            value, self._progress = self._progress, None
            self._sender.send_progress(value)

    def shed(self, least: int) -> int:
        """Under `disconnect`, a subscriber with many rows to read is too slow already."""
        if self.slow.policy != "disconnect" or self._queued_bytes < least:
            return super().shed(least)
        held, size = self.held, self._queued_bytes
        self._drop(held)
        waiting = f"{counted(held, 'row')} ({counted(size, 'byte')}) waited for {self.name}"
        self.ended("too_slow", f"{waiting} while the server's memory was short")
        return held

    def ended(self, code: str, text: str) -> None:
        if code == "too_slow":
            log.warning("disconnected a slow subscriber", subscriber=self.name, reason=text)
        self._sender.end(code, text)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a sink cannot write, and since when."""

    reason: str
    since_us: int


class WriterSink(Consumer):
    """Rows to a file, a folder of files or the standard output, in a separate thread, as many at a time as have
    gathered.

    An error of the system (a full disk, a lost permission, a deleted folder) is retried until it is over. Meanwhile
    rows are held as for any slow consumer, and `on_slow` applies when there are too many. Any other error ends the
    sink.
    """

    def __init__(
        self,
        name: str,
        slow: Slow,
        writer: SinkFile,
        freshness: Freshness | None = None,
        now_us: Callable[[], int] = lambda: 0,
        silence: Silence = SPEAKS,
        *,
        private: bool = True,
        outdated: Callable[[str], object] = lambda _: None,
    ) -> None:
        super().__init__(name, slow, name)
        self.freshness = freshness
        self._silence = silence
        self._private = private  # whether no other server writes to its place
        self._followed = False  # whether it has rested because the server followed another one
        self._outdated = outdated
        self.position: SinkPosition | None = None
        self._now_us = now_us
        self._noticed: str | None = None
        self._noticed_us = 0
        # The first rows that positions need after a kill, of the last two checkpoints: the newest may be incomplete.
        self._needed: deque[int | None] = deque(maxlen=4)
        self.failed: str | None = None
        self.trouble: Trouble | None = None
        self.retries = 0
        self._writer = writer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"sink-{name}")
        self._writing: asyncio.Future[tuple[int, Exception | None]] | None = None
        self._being_written: Sequence[Batch] = ()
        self._breaches_told = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pause = LEAST_PAUSE_SECONDS
        self._closing = False
        self._last: int | None = None  # the row at which it ends, once it has left its outlet

    def settle(self, schema: Schema, key: Sequence[int] | None) -> None:
        super().settle(schema, key)
        if self.freshness is not None:
            self.freshness.key = tuple(key or ())

    @property
    def state(self) -> str:
        """`running`, `waiting` (it cannot write, and tries again) or `failed` (it has ended)."""
        if self.failed is not None:
            return "failed"
        return "running" if self.trouble is None else "waiting"

    @property
    def reason(self) -> str | None:
        """Why it is not running, or what another program did to its file."""
        if self.failed is not None:
            return self.failed
        return self._noticed if self.trouble is None else self.trouble.reason

    @property
    def unfinished(self) -> int:
        """Rows that were taken and are in no whole file yet."""
        return self._writer.unfinished

    @property
    def path(self) -> Path | None:
        return self._writer.path

    @property
    def identity(self) -> Identity | None:
        return self._writer.identity

    @property
    def breaches(self) -> int:
        return 0 if self.freshness is None else self.freshness.breaches

    def problem(self) -> str | None:
        """The problem, for the server's health."""
        if self.failed is not None:
            return f"sink {self.name} has ended: {self.failed}; {counted(self.dropped, 'row')} lost"
        if self.trouble is None:
            if self._noticed is None or self._now_us() - self._noticed_us > NOTICE_US:
                return None
            return f"sink {self.name}: {self._noticed}"
        since = format_timestamp(self.trouble.since_us)
        return (
            f"sink {self.name} cannot write since {since}: {self.trouble.reason}; it holds "
            f"{counted(self.held + self.unfinished, 'row')}, has lost {self.dropped}, and retries"
        )

    def look(self, now_us: int, above: Iterable[tuple[Key, int]]) -> None:
        """Compare the age of waiting rows with the `freshness`: rows here, and keys `above`, in the query."""
        freshness = self.freshness
        if freshness is None:
            return
        found = list(above)
        for batch in (*self._being_written, *(batch for _, batch in self._queue)):
            found += freshness.overdue(batch, now_us).items()
        if self._newest is not None:
            names = self._newest.key_names
            older = self._newest.older(now_us, freshness.bound_us)
            found += [(tuple(zip(names, map(in_json, key), strict=True)), age) for key, age in older]
        freshness.look(now_us, found)
        if (more := freshness.breaches - self._breaches_told) > 0:
            self._breaches_told += more
            text = "rows became older than a sink's freshness"
            # The log holds no data: the API and `millrace why` have the keys.
            sparing.warning(text, self.name, more, sink=self.name, reason=freshness.sentence(self.name, keys=False))

    # -- writing -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the file unless it is open, so that an error shows before the first row."""
        self._begin()

    def prepare(self, position: SinkPosition) -> None:
        """Continue at a position; before it is added to its outlet."""
        self.position = position
        self._writer.prepare(position, complete=self.asked.policy in ("wait", "disconnect"))

    def start_at(self, sequence: int) -> None:
        super().start_at(sequence)
        self._share_log()
        self._hold(sequence)

    def _hold(self, sequence: int) -> None:
        """Have the log keep the rows that a kill would lose here. A sink that drops rows anyway needs none."""
        if self.log is not None and self.asked.policy in ("wait", "disconnect") and not self.follows:
            needed = min([sequence, *(known for known in self._needed if known is not None)])
            if not self.log.hold((self, "durable"), needed):
                self.log.hold((self, "durable"), max(needed, self.log.oldest))

    async def commit(self) -> SinkPosition | None:
        """Make durable what was written, and say where the sink continues after a kill; None before its first row."""
        if not self._closing and self.failed is None:
            loop = asyncio.get_running_loop()
            try:
                position = await loop.run_in_executor(self._thread, self._writer.committed)
            except OSError as error:
                self._stop(str(NotDurableError(error)))
                return self.position
            except Outdated as outdated:
                self._depose(outdated)
                return self.position
            except Refuse:
                position = None
            if position is not None:
                self.position = position
        self.need_position()
        return self.position

    def need_position(self) -> None:
        """Rows that precede a checkpoint and follow its position must stay until a later checkpoint."""
        log, position = self.log, self.position
        if log is not None and position is not None:
            self._needed.append(position.next if position.next < log.next else None)
            self._hold(position.next if self._writer.resume_at is None else self._writer.resume_at)

    def pump(self) -> None:
        if self.failed is not None:
            held = self.held
            super().leave_log()
            self.dropped += held - self.held
            self._drop(self.held)
            self.drained(self)
            return
        if self._has_rows and self.trouble is None:
            self._begin()
        self._read_on()

    @property
    def _has_rows(self) -> bool:
        """Whether rows in memory wait."""
        return bool(self._queue) or (self._newest is not None and self._newest.waiting > 0)

    @property
    def _log_end(self) -> int:
        return super()._log_end if self._last is None else self._last

    def leave_log(self) -> None:
        """It writes the rows that it has not read yet, and no later ones."""
        if self._behind is not None:
            self._last = self._log_end

    def _begin(self) -> None:
        """Have the thread write the rows held."""
        if self._writing is not None or self._closing or self.failed is not None:
            return
        self._cancel_timer()
        if self._rests:
            self._followed = self.follows
            self._silence.hold(self)
            return
        parts = []
        # One row finds out whether an error is over; the others stay where `on_slow` can reach them.
        most = self.held if self.trouble is None else 1
        while (taken := self.take(most)) is not None:
            parts.append(taken)
            most -= len(taken[1])
        self._being_written = [batch for _, batch in parts]
        self._in_flight = sum(map(len, self._being_written)), sum(batch.weight for batch in self._being_written)
        self._writer.history = self.history
        self._writing = asyncio.get_running_loop().run_in_executor(self._thread, self._write, parts)
        self._writing.add_done_callback(lambda writing: self._written(writing, parts))

    def _write(self, parts: Sequence[Part]) -> tuple[int, Exception | None]:
        """In the thread: how many rows were taken, and the error that stopped the others."""
        taken = 0
        try:
            for sequence, batch in _joined(parts):
                if self._rests:
                    break
                try:
                    self._writer.write(sequence, batch)
                finally:
                    taken += self._writer.taken
            self._writer.flush()
        except Exception as error:  # of any kind: the rows that were taken count
            return taken, error
        return taken, None

    def _written(self, writing: asyncio.Future[tuple[int, Exception | None]], parts: Sequence[Part]) -> None:
        self._writing, self._being_written, self._in_flight = None, (), (0, 0)
        if writing.cancelled():
            return
        tuples, error = writing.result()
        done, rest = _divided(parts, tuples)
        self._queue.extendleft(reversed(rest))
        self._notice()
        if self._writer.resume_at is not None:
            self._hold(self._writer.resume_at)
        if error is not None:
            self._failed_to_write(error)
        elif self.trouble is not None:
            self._recovered()
        self.passed_on(*(batch for _, batch in done))
        if self.freshness is not None:
            for _, batch in done:
                self.freshness.written(batch, self._now_us())
        self._bound_queue()
        self.pump()
        self._set_timer()

    def _notice(self) -> None:
        notice = self._writer.notice
        if notice is not None and notice != self._noticed:
            self._noticed, self._noticed_us = notice, self._now_us()
            log.error("another program changed the file of a sink", sink=self.name, reason=notice)

    def _failed_to_write(self, error: Exception) -> None:
        reason = error_words(error)
        if isinstance(error, Outdated):
            self._depose(error)
        elif not isinstance(error, OSError | Refuse):
            self._stop(reason)
        elif self.trouble is None:
            self.trouble = Trouble(reason, self._now_us())
            log.error("a sink cannot write: it waits and retries", sink=self.name, reason=reason)
        else:
            self.trouble = replace(self.trouble, reason=reason)
            self.retries += 1
        self.obstacle = reason

    def _stop(self, reason: str) -> None:
        self.failed = reason
        log.error("a sink cannot write and has stopped", sink=self.name, reason=reason)

    def _depose(self, outdated: Outdated) -> None:
        """Another server has the place, and has taken over from this one."""
        self._stop(outdated.text)
        self._outdated(outdated.proof)

    def _recovered(self) -> None:
        assert self.trouble is not None
        seconds = round((self._now_us() - self.trouble.since_us) / 1e6, 3)
        self.trouble, self.obstacle, self._pause = None, None, LEAST_PAUSE_SECONDS
        log.info("a sink writes again", sink=self.name, seconds=seconds, lost=self.dropped)

    def _bound_queue(self) -> None:
        """Apply the limit to rows of a failed write, which are in the queue again."""
        if self.too_slow and self._newest is None and self.failed is None:
            self._fall_behind()

    def _set_timer(self) -> None:
        """Schedule another look: after an error, or for a file that is due although no row arrives."""
        if self._timer is not None or self._writing is not None or self._closing or self.failed is not None:
            return
        seconds = self._writer.due_seconds()
        if self.trouble is not None:
            seconds, self._pause = self._pause, min(2 * self._pause, MOST_PAUSE_SECONDS)
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look_again)

    @property
    def _rests(self) -> bool:
        return self._silence.rests(private=self._private)

    @property
    def follows(self) -> bool:
        return self._silence.follows and not self._private

    def _read_on(self) -> None:
        if not self._rests:
            super()._read_on()

    def _fall_behind(self) -> None:
        if not self.follows:
            super()._fall_behind()
            return
        dropped = self.dropped
        self._drop_oldest()
        self.dropped = dropped  # the other server has written them

    def _spill(self) -> None:
        super()._spill()
        self._share_log()

    def _share_log(self) -> None:
        """While another server writes them, rows stay in the log no longer than `retain` says."""
        if self.follows and self.log is not None:
            self.log.release(self)

    def speak(self) -> None:
        """The server may emit rows again."""
        if self._followed:
            self._followed = False
            self._take_place()
        self.pump()

    def _take_place(self) -> None:
        """The server that this one has followed wrote there. Rows that are no longer retained have been written."""
        if self.asked.policy in ("wait", "disconnect"):
            if self.log is not None:
                if self._behind is not None:
                    skipped = max(self.log.oldest - self._behind, 0)
                    self._behind += skipped
                    self.held -= skipped
                    if self.slow.policy == "wait":
                        self.log.hold(self, self._behind)
                self._hold(self.log.next - self.held)
            return
        # Lines do not say which numbers the other server has dropped. Rather than writing rows twice, continue with the
        # next row, and under `latest` with the newest of each key.
        if self._newest is None:
            dropped = self.dropped
            super().leave_log()
            self._drop(self.held)
            self.dropped = dropped
        if self.position is not None:
            self.prepare(SinkPosition(self.position.history, self.position.next))

    def _look_again(self) -> None:
        self._timer = None
        self._begin()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- the end -----------------------------------------------------------------------------------

    def ended(self, code: str, text: str) -> None:
        """Fail if too slow. If the query has ended, the catalog closes the file."""
        if code == "too_slow":
            if self.trouble is not None:
                text = f"{text}; it could not write: {self.trouble.reason}"
            self.failed = text
            log.warning("stopped a slow sink", sink=self.name, reason=text)

    async def close(self, *, resumes: bool = False) -> None:
        """Write the held rows, then complete the file. A sink that could not write retries once. `resumes`: a server
        that starts again continues after its position, so rows that are in the log are not lost."""
        await self._settled()
        if self._has_rows:
            self._begin()
            await self._settled()
        self._closing = True
        held = self.held
        super().leave_log()
        self._cancel_timer()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._writer.close)
            self.position = self._writer.committed() or self.position
        except Outdated as outdated:
            if self.failed is None:
                self._depose(outdated)
        except Exception as error:  # of any kind, as in a write: other sinks' files must still be completed
            self.failed = error_words(error)
            log.error("a sink could not complete its file", sink=self.name, reason=self.failed)
        kept = resumes and self.log is not None and self.asked.policy in ("wait", "disconnect")
        if not kept and self.log is not None:
            self.log.release((self, "durable"))
        if not kept and not self.follows and (lost := held + self._writer.unfinished):
            self.dropped += lost
            log.error("a sink ended without writing its last rows; they are lost", sink=self.name, rows=lost)
        self._thread.shutdown(wait=False)

    async def _settled(self) -> None:
        """Wait until the thread is idle, and the log is read as far as possible."""
        while running := [one for one in (self._writing, self._reading) if one is not None]:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # let the callback start the next write


# Rows that wait, and the number of the first.
Part = tuple[int, Batch]


def _joined(parts: Sequence[Part]) -> Iterator[Part]:
    """Parts that follow each other as one, so that single rows are not written singly."""
    group: list[Batch] = []
    first = rows = 0
    for sequence, batch in parts:
        if group and (sequence != first + rows or rows + len(batch) > JOINED_ROWS):
            yield first, Batch.concat(group)
            group, rows = [], 0
        if not group:
            first = sequence
        group.append(batch)
        rows += len(batch)
    if group:
        yield first, Batch.concat(group)


def _divided(parts: Sequence[Part], tuples: int) -> tuple[list[Part], list[Part]]:
    """The first `tuples` rows, and the others."""
    done: list[Part] = []
    rest: list[Part] = []
    for sequence, batch in parts:
        here = min(tuples, len(batch))
        tuples -= here
        if here == len(batch):
            done.append((sequence, batch))
        elif not here:
            rest.append((sequence, batch))
        else:
            first, last = batch.split(here)
            done.append((sequence, first))
            rest.append((sequence + here, last))
    return done, rest
