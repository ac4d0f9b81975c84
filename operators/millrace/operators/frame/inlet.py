"""An operator's input: what an arc holds for it and it has not taken, and what is promised about the rest.

Operators read arcs through inlets alone. Where an edge has a queue of its own, the inlet holds it (`queues/inlet.py`),
and the operator sees no difference.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from millrace.operators.frame.punctuation_grain import EVERY
from millrace.protocol import Schema
from millrace.values.batch import Batch
from millrace.values.eventtime import LATENT, MIN_TIME

if TYPE_CHECKING:
    from millrace.operators.frame.buffer import Buffer
    from millrace.operators.frame.operator import Operator


class Inlet:
    """One operator's head pointer on a buffer.

    `unseen` is the papers' yield, seen from below: something lies here that its operator has not looked at. `told` is
    the last value that an ETS arc has set here, past the operators in between (the papers' register with its active
    flag). `grain` is what its operator, and whoever reads that one, declares to have a use for.

    absorbs   whether it takes what is put at once, into a queue of its own (queues/inlet.py)
    columns   positions of the fields that it reads, if the arc has got more since its operator was made
    schema    of what it takes
    place     among the readers that take turns at a fork
    took      how many tuples of the arc the last `take` passed, those that it ignored too
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
        "place",
        "punctuations",
        "schema",
        "since_us",
        "skipped",
        "taken",
        "told",
        "took",
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
        self.peak = self.place = self.took = 0
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

    def detach(self) -> None:
        """Read nothing more until it comes back. Meanwhile it reads a buffer in which nothing ever happens."""
        home = self.home
        home.detach(self)
        self.buffer = home.empty()
        self._stand_still(self.taken, home.promise)
        self._segment = self._offset = 0
        self.punctuations.clear()
        self.unseen = False

    def remove(self) -> None:
        """Leave the arc for good; what it alone had still to read is freed."""
        if not self.away:
            self.home.detach(self)

    def skip(self) -> None:
        """Take nothing of what is queued."""
        self.jump()
        self.buffer.release()

    def account(self, count: int) -> None:
        """So many more (or fewer) taken tuples wait in line at the operator: they count as queued here."""
        self.buffer.gauge.add(count, self.buffer.width)

    @property
    def arc(self) -> Buffer:
        """The arc that it reads, also while it is away."""
        return self.home

    @property
    def position(self) -> int:
        """How many of the arc's tuples are before its head."""
        return self.taken

    def absent_since(self, taken: int) -> None:
        """It left when so many tuples had been put: what the arc has received since then counts as missed."""
        self.taken = self.buffer.end = taken

    def resume(self) -> None:
        """Go on at the end of the arc; what was missed is counted as skipped."""
        self.skipped += self.home.end - self.taken
        self.buffer = self.home
        self.jump()
        self.wake()  # its operator has to pass on what was promised meanwhile
        self.home.admit(self)

    def change_arc(self, arc: Buffer) -> None:
        """Continue at the end of another arc, to which the same tuples will be put. Nothing waits here."""
        self._leave_for_good()
        self.home = self.buffer = arc
        self.jump()
        arc.admit(self)

    def _leave_for_good(self) -> None:
        """Leave the arc; what it promised still holds."""
        if self.home.promise != LATENT:
            self.told = self.promise
        self.home.part_from(self)

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
        """Whether nothing is queued here, not even tuples that cannot be taken yet."""
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
            self.wake()
            assert self.consumer is not None
            self.buffer.ready[self.consumer] = None
        return of_use

    def wake(self) -> None:
        """Let its operator have a turn, although nothing was put."""
        self.unseen = True
        self.buffer.awake |= 1 << self.place

    def take(self, limit: int) -> Batch | None:
        """The next tuples, at most `limit`; small batches come out as one."""
        buffer = self.buffer
        count = buffer.end - self.taken
        if count > limit:
            count = limit
        self.took = count
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
                buffer.passed(index, index + 1)
            return batch if self.since_us is None and self.columns is None else self._admitted(batch)
        if count < left:
            batch = batch.slice(self._offset, self._offset + count)
            self._offset += count
            self.taken += count
            return self._admitted(batch)
        pieces = [batch.slice(self._offset, len(batch)) if self._offset else batch]
        self._offset = 0
        missing, start = count - left, index
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
        self._segment = buffer.first + index
        self.taken += count
        buffer.passed(start, index)
        return self._admitted(pieces[0] if len(pieces) == 1 else Batch.concat(pieces))

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
        self.unseen = self.taken != self.buffer.end
        if self.punctuations:
            self.pass_punctuations()
            self.unseen = self.unseen or bool(self.punctuations)

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
        buffer = self.buffer
        if buffer.end == self.taken:
            promise = buffer.promise
            return promise if promise > self.told else self.told
        if buffer.ordered:
            return buffer.segments[self._segment - buffer.first].ts.item(self._offset)
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
