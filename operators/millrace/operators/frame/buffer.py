"""The arcs of the graph: tuples that an operator has emitted and its readers have not taken.

A buffer stores batches once, however many operators read it. Each reader has a head pointer (the papers' dummy
buffers), and a tuple is freed when the slowest reader has passed it. Punctuation is not a row: every reader has a
queue of `(position, value)`, where a position counts the tuples put before it. A punctuation that directly follows
another replaces it, so at most one is between any two tuples. If no reader has a use for a promise (`grain`), it holds
like any other, but no operator is scheduled for it.

If an arc is `ordered`, its tuples are in order of time: each promises as much as a punctuation of its time, and
`promise` follows the newest tuple.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

from millrace.operators.frame.clause import Clause
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.punctuation_grain import EVERY, PunctuationGrain
from millrace.protocol import Schema, Type
from millrace.values.batch import Batch, tuple_width
from millrace.values.eventtime import LATENT, MIN_TIME

if TYPE_CHECKING:
    from millrace.operators.filter.routing import Routing
    from millrace.operators.frame.operator import Operator
    from millrace.operators.frame.tap import Tap


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


class Buffer:
    """An append-only arc.

    segments   the batches that some reader still needs, oldest first; `first` is the number of the oldest
    behind     by segment, how many readers have not passed it: it never falls from one segment to the next. One reader
               alone is not counted
    awake      by `place`, 1 for each scheduled reader that may have something unseen: no other has
    branches   the scheduled readers, if there are several
    turn       the place of the one whose turn it is
    routing    lets filters among the readers sleep until there is a row for them (filter/routing.py)
    end        how many tuples have ever been put
    promise    no tuple put from now on is below it
    width      bytes of a tuple, without its `texts`, if it has any
    punctuates whether any reader has a use for punctuation: if none has, none is put
    grain      for which punctuation: none is put that repeats a promise or rounds to an earlier one
    held       how many tuples the operator that fills it holds in line (only a sort sets it)
    floor      a promise of an operator that filled it before, above the present one's; `left_out` counts tuples below
    _due       no promise below this is of use; it may lag
    absorbers  the readers with a queue: no tuples are stored for them here
    tap        shows the newest tuples to those who look at this arc; mostly None
    entries    the operators to mark in `ready` when something is put; their scheduler sets both
    """

    __slots__ = (
        "_due",
        "absorbers",
        "awake",
        "behind",
        "branches",
        "end",
        "entries",
        "first",
        "floor",
        "gauge",
        "grain",
        "held",
        "left_out",
        "ordered",
        "promise",
        "punctuates",
        "readers",
        "ready",
        "routing",
        "schema",
        "segments",
        "tap",
        "texts",
        "turn",
        "width",
    )

    def __init__(self, schema: Schema, *, ordered: bool, gauge: Gauge | None = None) -> None:
        self.schema = schema
        self.ordered = ordered
        self.gauge = gauge if gauge is not None else Gauge()
        self.width = tuple_width(len(schema))
        self.texts = has_texts(schema)
        self.readers: list[Inlet] = []
        self.absorbers: tuple[Inlet, ...] = ()
        self.segments: deque[Batch] = deque()
        self.behind: deque[int] = deque()
        self.awake = bytearray()
        self.turn = 0
        self.branches: tuple[Inlet, ...] = ()
        self.routing: Routing | None = None
        self.first = 0
        self.end = 0
        self.promise = MIN_TIME
        self.punctuates = False
        self.grain = EVERY
        self._due = MIN_TIME
        self.held = 0
        self.floor = MIN_TIME
        self.left_out = 0
        self.tap: Tap | None = None
        self.entries: tuple[Operator, ...] = ()
        self.ready: dict[Operator, None] = {}

    # -- readers -------------------------------------------------------------------------------------------------------

    def attach(
        self,
        since_us: int | None = None,
        columns: tuple[int, ...] | None = None,
        names: tuple[str, ...] | None = None,
    ) -> Inlet:
        """A new reader, at the end."""
        reader = Inlet(self, since_us, columns, names)
        self.admit(reader)
        return reader

    def empty(self) -> Buffer:
        """An arc like this one that stays empty."""
        return Buffer(self.schema, ordered=self.ordered, gauge=self.gauge)

    def admit(self, reader: Inlet) -> None:
        """Add a reader that was built for this buffer, or has been away."""
        self.readers.append(reader)
        if reader.absorbs:
            self.absorbers = (*self.absorbers, reader)
        self._count()

    def detach(self, reader: Inlet) -> None:
        """Remove a reader, and free the tuples that only it had not read."""
        self.part_from(reader)
        reader.clear()
        self.release()

    def part_from(self, reader: Inlet) -> None:
        """Remove a reader, which keeps its own queue."""
        self.readers.remove(reader)
        if reader.absorbs:
            self.absorbers = tuple(other for other in self.absorbers if other is not reader)
        self._count()

    def succeed(self, old: Buffer, readers: Sequence[Inlet]) -> None:
        """Take over readers of another arc, with the tuples that they have not read there, and its positions. This arc
        is empty so far."""
        self.segments = deque(old.segments)
        self.first, self.end = old.first, old.end
        self.gauge.add(sum(map(len, self.segments)), self.width)
        for reader in self.readers:
            reader.move_to_end()
        for reader in readers:
            away = reader.buffer is not reader.arc
            reader.arc = self
            if not away:
                old.part_from(reader)
                reader.buffer = self
                self.admit(reader)
        old.release()
        self.release()

    def widen(self, schema: Schema) -> None:
        """Add fields, which are null in the queued tuples, or give the fields other names."""
        renamed = len(schema) == len(self.schema)
        self.segments = deque(batch.renamed(schema) if renamed else batch.widened(schema) for batch in self.segments)
        queued = sum(map(len, self.segments))
        self.gauge.add(-queued, self.width)
        self.schema, self.width, self.texts = schema, tuple_width(len(schema)), has_texts(schema)
        self.gauge.add(queued, self.width)

    @property
    def latent(self) -> bool:
        """Whether tuples have no time until an operator stamps them."""
        return self.promise == LATENT

    def keep_above(self, floor_us: int) -> None:
        """Honour an earlier promise: tuples below it are left out and counted. LATENT promises nothing."""
        if floor_us > self.promise and floor_us != LATENT:
            self.promise = self.floor = floor_us

    def disorder(self) -> None:
        """Accept tuples in any order from now on, none below the promise."""
        self.ordered = False

    def progress(self) -> tuple[bool, int]:
        """Whether the arc's tuples are in order, and the promise."""
        return self.ordered, self.promise

    def inherit_progress(self, ordered: bool, promise: int) -> None:
        """Take over the `progress` of another arc."""
        self.ordered, self.promise = ordered, promise

    def _above_floor(self, batch: Batch) -> Batch:
        rows = batch.take(batch.ts >= self.floor)
        self.left_out += len(batch) - len(rows)
        return rows

    # -- putting -------------------------------------------------------------------------------------------------------

    def put(self, batch: Batch) -> None:
        """Append tuples for all readers."""
        if self.floor > MIN_TIME:
            batch = self._above_floor(batch)
        ts = batch.ts
        count = len(ts)
        if not count:
            return
        readers: Sequence[Inlet] = self.readers
        if len(readers) > 1:
            # A round of turns starts if no reader has anything to see.
            if self.turn and self.next_awake(0) < 0:
                self.turn = 0
            if self.routing is not None:
                readers = self._listeners(self.routing, batch)
        if self.ordered:
            newest = ts.item(-1)
            if newest > self.promise:
                self.promise = newest
        self.end = end = self.end + count
        tap = self.tap
        if tap is not None:
            tap.add(end, batch)
        if not readers:
            self.first += 1
            return
        if self.absorbers and self._absorbed(batch, readers):
            return
        self.segments.append(batch)
        gauge = self.gauge
        gauge.tuples += count
        gauge.bytes += count * self.width
        if gauge.tuples > gauge.peak_tuples:
            gauge.peak_tuples = gauge.tuples
        if gauge.bytes > gauge.peak_bytes:
            gauge.peak_bytes = gauge.bytes
        if len(self.readers) > 1:
            self.behind.append(len(readers) - len(self.absorbers))
            self._let_awake(readers)
        for reader in readers:
            reader.unseen = True
            if end - reader.position > reader.peak:
                reader.peak = end - reader.position
        for entry in self.entries:
            self.ready[entry] = None

    def _listeners(self, routing: Routing, batch: Batch) -> Sequence[Inlet]:
        """The readers of the next batch, where filters may sleep."""
        if routing.made():
            return routing.put(batch)
        self.routing = None
        return self.readers

    def _let_awake(self, readers: Sequence[Inlet]) -> None:
        if len(readers) == len(self.readers):
            self._let_all_awake()
        else:
            for reader in readers:
                self.let_awake(reader)

    def _let_all_awake(self) -> None:
        self.awake = bytearray(b"\1" * len(self.branches))

    def let_awake(self, reader: Inlet) -> None:
        """Let `next_awake` look at a reader, if it takes turns: one that was away may have a place of another time."""
        if reader.place < len(self.awake):
            self.awake[reader.place] = 1

    def turn_to(self, branches: tuple[Inlet, ...]) -> None:
        """Let these readers take turns."""
        self.settle()
        self.routing = None
        self.branches = branches
        self._let_all_awake()

    def settle(self) -> None:
        """Count the tuples that filters have slept through."""
        if self.routing is not None:
            self.routing.settle()

    def _absorbed(self, batch: Batch, readers: Sequence[Inlet]) -> bool:
        """Pass tuples to the readers with a queue; say whether that is all readers."""
        for reader in self.absorbers:
            reader.absorb(batch)
        if len(self.absorbers) < len(readers):
            return False
        self.first += 1
        self._let_all_awake()
        for reader in self.readers:
            reader.unseen = True
        for entry in self.entries:
            self.ready[entry] = None
        return True

    def punctuate(self, value_us: int) -> bool:
        """Promise that no later tuple is below this time; say whether the readers get a punctuation."""
        before = self.promise
        if value_us <= before:
            return False
        self.promise = value_us
        if self.routing is not None:
            self.routing.promised(value_us)
        self.floor = MIN_TIME
        if not self.punctuates or value_us < self._due:
            return False
        if self.grain.every:
            self._queue_punctuation(value_us)
            return True
        self._due = self.grain.above(before)
        if value_us < self._due:
            return False
        self._due = self.grain.above(value_us)
        self._queue_punctuation(self.grain.rounded(value_us))
        return True

    def _queue_punctuation(self, value_us: int) -> None:
        readers = self.readers if self.routing is None else self.routing.told(self.promise)
        self._let_awake(readers)
        for reader in readers:
            queue = reader.punctuations
            if queue and queue[-1][0] == self.end and not isinstance(queue[-1][1], Clause):
                queue[-1] = (self.end, value_us)
            else:
                queue.append((self.end, value_us))
            reader.unseen = True
        for entry in self.entries:
            self.ready[entry] = None

    def put_clause(self, clause: Clause) -> bool:
        """Promise that no later tuple satisfies the clause; say whether a reader has a use for it."""
        if not self.grain.clauses or not self.punctuates:
            return False
        readers = [reader for reader in self.readers if reader.grain.clauses]
        if self.routing is not None:
            self.routing.rouse(readers)
        self._let_awake(readers)
        for reader in readers:
            reader.punctuations.append((self.end, clause))
            reader.unseen = True
        for entry in self.entries if readers else ():
            self.ready[entry] = None
        return bool(readers)

    def carry(self, grain: PunctuationGrain | None) -> None:
        """Carry the punctuation that readers declare, or none. If that is more than before, they get the promise in
        force, for which they may have got none."""
        before, self.punctuates = (self.grain if self.punctuates else None), grain is not None
        self._due = MIN_TIME
        if grain is None:
            return
        self.grain = grain
        if before != grain and any(self.promise > reader.newest_punctuation() for reader in self.readers):
            self._queue_punctuation(self.promise)

    def passed(self, start: int, stop: int) -> None:
        """A reader has passed these segments, counted from the oldest: free those that every reader has passed."""
        behind = self.behind
        if behind:
            for index in range(start, stop):
                behind[index] -= 1
            if not start:
                self._free()
        else:
            for _ in range(start, stop):
                self._pop()

    def release(self) -> None:
        """Readers have left, or moved: free what every other one has passed."""
        self.settle()
        slowest = min((reader.segment for reader in self.readers), default=self.first + len(self.segments))
        while self.first < slowest and self.segments:
            self._pop()
        self._count()

    def _count(self) -> None:
        self.settle()
        self.behind.clear()
        if self.segments and len(self.readers) > 1:
            stops = [0] * (len(self.segments) + 1)
            for reader in self.readers:
                stops[reader.segment - self.first] += 1
            self.behind.extend(accumulate(stops[:-1]))

    def _free(self) -> None:
        behind = self.behind
        while behind and not behind[0]:
            behind.popleft()
            self._pop()

    def _pop(self) -> None:
        self.gauge.add(-len(self.segments.popleft()), self.width)
        self.first += 1

    def next_awake(self, turn: int) -> int:
        """The place of the first scheduled reader with something unseen, from a turn on and around; -1 if none has."""
        awake = self.awake
        place = awake.find(1, turn)
        if place < 0:
            place = awake.find(1)
        while place >= 0:
            reader = self.branches[place]
            if reader.unseen:
                break
            awake[place] = 0
            place = awake.find(1, place)
            if place < 0:
                place = awake.find(1)
        return place

    @property
    def queued(self) -> int:
        """Tuples that the slowest reader has not taken."""
        if not self.segments and not self.absorbers:
            return 0
        self.settle()
        return self.end - min((reader.position for reader in self.readers), default=self.end)

    @property
    def pressing(self) -> int:
        """The same, without readers whose queues are bounded by themselves."""
        if not self.segments and not self.absorbers:
            return 0
        self.settle()
        return self.end - min((reader.position for reader in self.readers if reader.presses), default=self.end)

    def queued_bytes(self, most: int, *, pressing: bool = False) -> int:
        """Bytes of the tuples that the slowest reader has not taken; counted no further than `most`.

        With `pressing`, without readers whose queues are bounded by themselves.
        """
        if not self.segments and not self.absorbers:
            return 0
        self.settle()
        readers = [reader for reader in self.readers if reader.presses or not pressing]
        if not readers:
            return 0
        if not self.texts:
            return self.width * (self.end - min([reader.position for reader in readers]))
        queued = 0
        for batch in islice(self.segments, min([reader.segment for reader in readers]) - self.first, None):
            queued += batch.weight
            if queued >= most:
                break
        return queued

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self) -> list[Any]:
        punctuation = [self.punctuates, self.grain.save()]
        floor = [self.floor, self.left_out]
        segments = [batch.save() for batch in self.segments]
        return [segments, self.first, self.end, self.promise, punctuation, floor, self.ordered]

    def restore(self, data: Sequence[Any]) -> None:
        segments, self.first, self.end, self.promise, (self.punctuates, grain), floor, self.ordered = data
        self.floor, self.left_out = floor
        self.grain = PunctuationGrain.restore(grain)
        self._due = MIN_TIME
        self.segments = deque(Batch.restore(batch) for batch in segments)
        self.gauge.add(sum(map(len, self.segments)), self.width)
