"""The arcs of the graph: what an operator has given and its readers have not taken.

A buffer stores batches once, however many operators read it; each reader has a head pointer of its own (the papers'
dummy buffers), and a tuple is freed when the slowest reader has passed it. Punctuation is not a row: every reader has
a queue of `(position, value)` beside the tuples, where a position counts the tuples put before it. A punctuation
directly behind another makes the first void, so at most one stands between any two tuples. A promise that is of no
use to any reader (`grain`) holds like any other, but nobody is woken for it and none is put.

`ordered` says that tuples come in order of time. Then each of them promises as much as a punctuation of its own time
would, and `promise` (what holds for every tuple still to come) follows the newest tuple by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from millrace.operators.frame.punctuation_grain import EVERY, PunctuationGrain
from millrace.protocol import Schema, Type
from millrace.values.batch import Batch
from millrace.values.eventtime import LATENT, MIN_TIME

if TYPE_CHECKING:
    from millrace.operators.frame.operator import Operator


def has_texts(schema: Schema) -> bool:
    """Whether the size of a tuple depends on its values."""
    return any(field.type in (Type.TEXT, Type.BYTES) for field in schema)


class Gauge:
    """Tuples queued on all arcs of an engine, now and at the most; a tuple that a fork shares counts once."""

    __slots__ = ("bytes", "peak_bytes", "peak_tuples", "tuples")

    def __init__(self) -> None:
        self.tuples = self.bytes = self.peak_tuples = self.peak_bytes = 0

    def add(self, tuples: int, width: int) -> None:
        self.tuples += tuples
        self.bytes += tuples * width
        if self.tuples > self.peak_tuples:
            self.peak_tuples = self.tuples
        if self.bytes > self.peak_bytes:
            self.peak_bytes = self.bytes


class Reader:
    """One operator's head pointer on a buffer.

    `unseen` is the papers' yield, seen from below: something lies here that its operator has not looked at. `told` is
    the last value that an ETS arc has set here, past the operators in between (the papers' register with its active
    flag). `grain` is what its operator, and whoever reads that one, declares to have a use for.

    absorbs   whether it takes what is put at once, into a queue of its own (queues/reader.py)
    columns   positions of the fields that it reads, if the arc has got more since its operator was made
    schema    of what it takes
    skipped   tuples that it has not taken: those it ignored, and those that passed while it was away
    ignored   tuples that came after it did and are older than `since_us`
    """

    __slots__ = (
        "_offset",
        "_segment",
        "buffer",
        "columns",
        "consumer",
        "grain",
        "home",
        "ignored",
        "passed",
        "peak",
        "punctuations",
        "schema",
        "since_us",
        "skipped",
        "taken",
        "told",
        "unseen",
    )

    absorbs: ClassVar[bool] = False

    def __init__(self, buffer: Buffer, since_us: int | None = None, columns: tuple[int, ...] | None = None) -> None:
        self.home = buffer
        self.buffer = buffer
        self.schema = buffer.schema
        self.columns: tuple[int, ...] | None = None
        if columns is not None:
            self.narrow(columns)
        self.consumer: Operator | None = None
        self.grain = EVERY
        self.passed = self.told = MIN_TIME
        self.peak = 0
        self.skipped = self.ignored = 0
        self.since_us = since_us
        self.jump()

    def narrow(self, columns: tuple[int, ...]) -> None:
        """Read these fields of the arc and no other."""
        fields = self.home.schema.fields
        self.columns = columns
        self.schema = Schema(tuple(fields[at] for at in columns))

    def jump(self) -> None:
        """To the end of the buffer: nothing that is there now will be read, its promise holds."""
        self.taken = self.buffer.end
        self._segment = self.buffer.first + len(self.buffer.segments)
        self._offset = 0
        self.punctuations: deque[tuple[int, int]] = deque()
        self.passed = max(self.passed, self.buffer.promise)
        self.unseen = False

    def leave(self) -> None:
        """Read nothing more until it comes back. Meanwhile it reads a buffer in which nothing ever happens."""
        home = self.home
        home.detach(self)
        self.buffer = Buffer(home.schema, ordered=home.ordered, gauge=home.gauge)
        self._stand_still(self.taken, home.promise)
        self._segment = self._offset = 0
        self.punctuations.clear()
        self.unseen = False

    def absent_since(self, taken: int) -> None:
        """It left when so many tuples had been put: what the arc has received since then counts as missed."""
        self.taken = self.buffer.end = taken

    def come_back(self) -> None:
        """Go on at the end of the arc; what was missed is counted as skipped."""
        self.skipped += self.home.end - self.taken
        self.buffer = self.home
        self.jump()
        self.unseen = True  # its operator has to pass on what was promised meanwhile
        self.home.admit(self)

    @property
    def away(self) -> bool:
        """Whether it has left its arc, to come back."""
        return self.buffer is not self.home

    @property
    def missed(self) -> int:
        """What it has skipped so far, with what goes by while it is away."""
        return self.skipped + self.home.end - self.taken if self.away else self.skipped

    def absorb(self, batch: Batch) -> None:
        """Take what was put, at once (those that absorb do)."""
        raise AssertionError("a head pointer reads what the buffer holds")

    def let_go(self) -> None:
        """Let go of what it alone holds, when it leaves the arc."""

    @property
    def ordered(self) -> bool:
        """Whether what it takes comes in order of time."""
        return self.home.ordered

    @property
    def latent(self) -> bool:
        """Whether its tuples have no time until an operator gives them one."""
        return self.promise == LATENT

    @property
    def drained(self) -> bool:
        """Whether it has nothing more to give before something is put."""
        return self.taken == self.buffer.end

    @property
    def presses(self) -> bool:
        """Whether what waits for it is a reason to slow feeds down."""
        return True

    def _stand_still(self, taken: int, promise: int) -> None:
        self.buffer.end = taken
        self.buffer.promise = promise

    @property
    def waiting(self) -> int:
        """Tuples queued for this reader."""
        return self.buffer.end - self.taken

    @property
    def promise(self) -> int:
        """What holds behind everything that is queued: no later tuple is below it."""
        promise = self.buffer.promise
        return promise if promise > self.told else self.told

    def forget(self) -> None:
        """Nobody has asked what was promised here, and another operator will promise anew."""
        self.passed = self.told = MIN_TIME
        self.punctuations.clear()

    def tell(self, value_us: int) -> bool:
        """Set the register from an ETS arc; say whether that is of any use here.

        Whoever calls it knows that nothing is under way to here.
        """
        of_use = value_us >= self.grain.above(self.promise)
        self.told = value_us
        if of_use:
            self.unseen = True
            assert self.consumer is not None
            self.buffer.ready[self.consumer] = None
        return of_use

    def take(self, limit: int) -> Batch | None:
        """The next tuples, at most `limit`; small batches come out as one."""
        buffer = self.buffer
        count = min(buffer.end - self.taken, limit)
        if count <= 0:
            return None
        segments = buffer.segments
        index = self._segment - buffer.first
        batch = segments[index]
        left = len(batch.ts) - self._offset
        if count == left and not self._offset:
            # One whole batch: the way of nearly every tuple of a stream that is not in a hurry.
            self._segment += 1
            self.taken += count
            if len(buffer.readers) == 1:
                segments.popleft()
                buffer.first += 1
                buffer.gauge.tuples -= count
                buffer.gauge.bytes -= count * buffer.width
            else:
                buffer.release()
            return batch if self.since_us is None and self.columns is None else self._admitted(batch)
        if count < left:
            batch = batch.slice(self._offset, self._offset + count)
            self._offset += count
            self._advance(count)
            return self._admitted(batch)
        pieces = [batch.slice(self._offset, len(batch)) if self._offset else batch]
        self._offset = 0
        missing = count - left
        while True:
            index += 1
            if not missing:
                break
            batch = segments[index]
            if len(batch) > missing:
                pieces.append(batch.slice(0, missing))
                self._offset = missing
                break
            pieces.append(batch)
            missing -= len(batch)
        self._segment = self.buffer.first + index
        self._advance(count)
        return self._admitted(pieces[0] if len(pieces) == 1 else Batch.concat(pieces))

    def _advance(self, count: int) -> None:
        self.taken += count
        self.buffer.release()

    def _admitted(self, batch: Batch) -> Batch:
        """Without the tuples older than the reader's own beginning, and without the fields that it does not know."""
        if self.columns is not None:
            batch = batch.narrowed(self.schema, self.columns)
        if self.since_us is None:
            return batch
        fresh = batch.ts >= self.since_us
        if fresh.all():
            return batch
        kept = batch.take(fresh)
        self.ignored += len(batch) - len(kept)
        self.skipped += len(batch) - len(kept)
        return kept

    def pass_punctuations(self) -> None:
        """Take the punctuation that the head pointer has reached."""
        while self.punctuations and self.punctuations[0][0] <= self.taken:
            self.passed = self.punctuations.popleft()[1]

    def look(self) -> None:
        """Its operator has looked at all that lies here. What it left is unseen again."""
        if self.punctuations:
            self.pass_punctuations()
        self.unseen = self.taken != self.buffer.end or bool(self.punctuations)

    def last_told(self) -> int:
        """The last punctuation that it was given."""
        return self.punctuations[-1][1] if self.punctuations else self.passed

    def older(self, now_us: int, than_us: int) -> list[tuple[tuple[Any, ...], int]]:
        """What has waited for longer, by update key if one is known here: the age of the oldest."""
        if self.buffer.end == self.taken:
            return []
        arrival = self.buffer.segments[self._segment - self.buffer.first].arrival
        age = now_us - int(arrival[self._offset])
        return [((), age)] if age > than_us else []

    def low_water(self) -> int:
        """What holds for every tuple that this reader has not taken."""
        if self.buffer.end == self.taken:
            return self.promise
        if self.buffer.ordered:
            return int(self.buffer.segments[self._segment - self.buffer.first].ts[self._offset])
        return self.passed

    def save(self) -> list[Any]:
        return [
            self.taken,
            self._segment,
            self._offset,
            self.passed,
            [list(item) for item in self.punctuations],
            self.unseen,
            self.since_us,
            self.skipped,
            self.ignored,
            self.peak,
            self.told,
            self.buffer.promise if self.away else None,
        ]

    def restore(self, data: Sequence[Any]) -> None:
        (self.taken, self._segment, self._offset, self.passed, punctuations, self.unseen, *rest) = data
        self.punctuations = deque((position, value) for position, value in punctuations)
        self.since_us, self.skipped, self.ignored, self.peak, self.told, still = rest
        if still is not None:
            self._stand_still(self.taken, still)

    @property
    def segment(self) -> int:
        return self._segment


class Buffer:
    """An append-only arc.

    segments   the batches that some reader still needs, oldest first; `first` is the number of the oldest
    end        how many tuples have ever been put
    promise    no tuple put from now on is below it
    width      bytes of a tuple, without those of its `texts`, if it has any
    wanted     whether any reader has a use for punctuation: if none has, none is put
    grain      for which: no punctuation tells the readers less, or the same again
    floor      a promise that another operator made here before, above this one's own; `left_out` counts what came below
    _due       no promise below this is of use; it may lag behind the least that is
    absorbers  the readers that take at once what is put: nothing is kept for them here
    entries    the operators to mark in `ready` when something is put (their scheduler's business)
    """

    __slots__ = (
        "_due",
        "absorbers",
        "end",
        "entries",
        "first",
        "floor",
        "gauge",
        "grain",
        "left_out",
        "ordered",
        "promise",
        "readers",
        "ready",
        "schema",
        "segments",
        "texts",
        "wanted",
        "width",
    )

    def __init__(self, schema: Schema, *, ordered: bool, gauge: Gauge | None = None) -> None:
        self.schema = schema
        self.ordered = ordered
        self.gauge = gauge if gauge is not None else Gauge()
        self.width = 16 + 8 * len(schema)
        self.texts = has_texts(schema)
        self.readers: list[Reader] = []
        self.absorbers: tuple[Reader, ...] = ()
        self.segments: deque[Batch] = deque()
        self.first = 0
        self.end = 0
        self.promise = MIN_TIME
        self.wanted = False
        self.grain = EVERY
        self._due = MIN_TIME
        self.floor = MIN_TIME
        self.left_out = 0
        self.entries: tuple[Operator, ...] = ()
        self.ready: dict[Operator, None] = {}

    # -- readers -------------------------------------------------------------------------------------------------------

    def attach(self, since_us: int | None = None, columns: tuple[int, ...] | None = None) -> Reader:
        """A new reader, which begins at the end."""
        reader = Reader(self, since_us, columns)
        self.readers.append(reader)
        return reader

    def admit(self, reader: Reader) -> None:
        """Let a reader read that was made for this buffer, or has been away."""
        self.readers.append(reader)
        if reader.absorbs:
            self.absorbers = (*self.absorbers, reader)

    def detach(self, reader: Reader) -> None:
        """Take a reader away; what it alone had still to read is freed."""
        self.part_from(reader)
        reader.let_go()
        self.release()

    def part_from(self, reader: Reader) -> None:
        """The reader goes, with what it holds itself."""
        self.readers.remove(reader)
        if reader.absorbs:
            self.absorbers = tuple(other for other in self.absorbers if other is not reader)

    def succeed(self, old: Buffer, readers: Sequence[Reader]) -> None:
        """Take over readers of another arc: what they have not read there yet they find here, before all else.

        Nothing has been put here so far. Positions are counted on from the old arc's.
        """
        self.segments = deque(old.segments)
        self.first, self.end = old.first, old.end
        self.gauge.add(sum(map(len, self.segments)), self.width)
        for reader in self.readers:
            reader.jump()
        for reader in readers:
            away = reader.buffer is not reader.home
            reader.home = self
            if not away:
                old.part_from(reader)
                reader.buffer = self
                self.admit(reader)
        old.release()
        self.release()

    def widen(self, schema: Schema) -> None:
        """More fields from now on; what lies here gets them too, and they are null."""
        self.segments = deque(batch.widened(schema) for batch in self.segments)
        queued = sum(map(len, self.segments))
        self.gauge.add(-queued, self.width)
        self.schema, self.width, self.texts = schema, 16 + 8 * len(schema), has_texts(schema)
        self.gauge.add(queued, self.width)

    @property
    def latent(self) -> bool:
        """Whether tuples have no time until an operator gives them one."""
        return self.promise == LATENT

    def keep_above(self, floor_us: int) -> None:
        """Keep a promise that was made before: tuples below it are left out and counted. LATENT promises nothing."""
        if floor_us > self.promise and floor_us != LATENT:
            self.promise = self.floor = floor_us

    def disorder(self) -> None:
        """From now on tuples come in any order; none of them is below what is promised."""
        self.ordered = False

    def standing(self) -> tuple[bool, int]:
        """Whether the arc's tuples are in order, and the promise about them."""
        return self.ordered, self.promise

    def inherit_progress(self, ordered: bool, promise: int) -> None:
        """Take over the order and promise of another arc, and none of its tuples."""
        self.ordered, self.promise = ordered, promise

    def _above_floor(self, batch: Batch) -> Batch:
        kept = batch.take(batch.ts >= self.floor)
        self.left_out += len(batch) - len(kept)
        return kept

    # -- putting -------------------------------------------------------------------------------------------------------

    def put(self, batch: Batch) -> None:
        """Append tuples for all readers."""
        if self.floor > MIN_TIME:
            batch = self._above_floor(batch)
        ts = batch.ts
        count = len(ts)
        if not count:
            return
        if self.ordered:
            newest = ts.item(-1)
            if newest > self.promise:
                self.promise = newest
        self.end = end = self.end + count
        readers = self.readers
        if not readers:
            self.first += 1
            return
        if self.absorbers and self._absorbed(batch):
            return
        self.segments.append(batch)
        gauge = self.gauge
        gauge.tuples += count
        gauge.bytes += count * self.width
        if gauge.tuples > gauge.peak_tuples:
            gauge.peak_tuples = gauge.tuples
        if gauge.bytes > gauge.peak_bytes:
            gauge.peak_bytes = gauge.bytes
        for reader in readers:
            reader.unseen = True
            if end - reader.taken > reader.peak:
                reader.peak = end - reader.taken
        for entry in self.entries:
            self.ready[entry] = None

    def _absorbed(self, batch: Batch) -> bool:
        """Give the readers that take at once what is put; say whether that was all of them."""
        for reader in self.absorbers:
            reader.absorb(batch)
        if len(self.absorbers) < len(self.readers):
            return False
        self.first += 1
        for reader in self.readers:
            reader.unseen = True
        for entry in self.entries:
            self.ready[entry] = None
        return True

    def punctuate(self, value_us: int) -> bool:
        """Promise that no later tuple is below this time; say whether the readers are told.

        A promise that says nothing new is not kept, and one that is of no use to any reader is kept and not told.
        """
        before = self.promise
        if value_us <= before:
            return False
        self.promise = value_us
        self.floor = MIN_TIME
        if not self.wanted or value_us < self._due:
            return False
        if self.grain.every:
            self._tell(value_us)
            return True
        self._due = self.grain.above(before)
        if value_us < self._due:
            return False
        self._due = self.grain.above(value_us)
        self._tell(self.grain.rounded(value_us))
        return True

    def _tell(self, value_us: int) -> None:
        for reader in self.readers:
            queue = reader.punctuations
            if queue and queue[-1][0] == self.end:
                queue[-1] = (self.end, value_us)
            else:
                queue.append((self.end, value_us))
            reader.unseen = True
        for entry in self.entries:
            self.ready[entry] = None

    def want(self, grain: PunctuationGrain | None) -> None:
        """Carry what the readers declare from now on, or nothing.

        If that is more than before, they are given the promise in force, of which they may not have been told.
        """
        before, self.wanted = (self.grain if self.wanted else None), grain is not None
        self._due = MIN_TIME
        if grain is None:
            return
        self.grain = grain
        if before != grain and any(self.promise > reader.last_told() for reader in self.readers):
            self._tell(self.promise)

    def release(self) -> None:
        """Free the batches that every reader has passed."""
        segments = self.segments
        if not segments:
            return
        readers = self.readers
        slowest = (
            readers[0].segment
            if len(readers) == 1
            else min((reader.segment for reader in readers), default=self.first + len(segments))
        )
        while self.first < slowest:
            self.gauge.add(-len(segments.popleft()), self.width)
            self.first += 1

    @property
    def queued(self) -> int:
        """Tuples that the slowest reader has not taken."""
        return self.end - min((reader.taken for reader in self.readers), default=self.end)

    @property
    def pressing(self) -> int:
        """The same, without readers whose queues are bounded by themselves."""
        return self.end - min((reader.taken for reader in self.readers if reader.presses), default=self.end)

    def queued_bytes(self, most: int, *, pressing: bool = False) -> int:
        """Bytes of the tuples that the slowest reader has not taken; counted no further than `most`.

        With `pressing`, without readers whose queues are bounded by themselves.
        """
        readers = [reader for reader in self.readers if reader.presses or not pressing]
        if not readers:
            return 0
        if not self.texts:
            return self.width * (self.end - min([reader.taken for reader in readers]))
        found = 0
        for batch in islice(self.segments, min([reader.segment for reader in readers]) - self.first, None):
            found += batch.weight
            if found >= most:
                break
        return found

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self) -> list[Any]:
        wish = [self.wanted, self.grain.save()]
        floor = [self.floor, self.left_out]
        held = [batch.save() for batch in self.segments]
        return [held, self.first, self.end, self.promise, wish, floor, self.ordered]

    def restore(self, data: Sequence[Any]) -> None:
        segments, self.first, self.end, self.promise, (self.wanted, grain), floor, self.ordered = data
        self.floor, self.left_out = floor
        self.grain = PunctuationGrain.restore(grain)
        self._due = MIN_TIME
        self.segments = deque(Batch.restore(batch) for batch in segments)
        self.gauge.add(sum(map(len, self.segments)), self.width)
