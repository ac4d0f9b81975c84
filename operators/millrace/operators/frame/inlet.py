"""An operator's input: the tuples that an arc holds for it, and the promise about later ones.

Operators read arcs through inlets alone. An edge may have a separate queue: then the inlet owns it (`queues/inlet.py`),
and the operator sees no difference.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from millrace.operators.frame.clause import Clause
from millrace.operators.frame.punctuation_grain import EVERY
from millrace.protocol import Schema
from millrace.values.batch import Batch, tuple_width
from millrace.values.eventtime import LATENT, MIN_TIME

if TYPE_CHECKING:
    from millrace.operators.frame.buffer import Buffer
    from millrace.operators.frame.operator import Operator


def picked(schema: Schema, columns: tuple[int, ...] | None, names: tuple[str, ...] | None) -> Schema:
    """These fields of a schema, under these names; None: all, under their own."""
    if columns is None:
        return schema
    fields = tuple(schema.fields[at] for at in columns)
    if names is not None:
        fields = tuple(replace(field, name=name) for field, name in zip(fields, names, strict=True))
    return Schema(fields)


class Inlet:
    """One operator's head pointer on a buffer.

    arc             the buffer that it reads when it is not away; `buffer` is an empty one meanwhile
    position        how many of the arc's tuples are before its head; `took`: how many the last `take` passed
    unseen          the papers' yield, seen by the successor: its operator has not looked at something here
    register        the last value that an ETS arc has set, past the operators in between (the papers' register)
    punctuations    queued ones, as (position, time or clause); `punctuation_us` is the last time that the head has
                    passed
    grain           the promises that its operator declares a use for, or a reader of that one
    absorbs         whether it takes tuples as soon as they are put, into a separate queue (queues/inlet.py)
    columns         positions of the fields that it reads, if the arc has more since its operator was built
    width           roughly the bytes of a tuple that waits for its operator off the arc
    place           among the readers that take turns at a fork
    skipped         tuples that it has not taken: those it ignored, and those that passed while it was away
    ignored         tuples older than `since_us`
    """

    __slots__ = (
        "_offset",
        "_segment",
        "arc",
        "buffer",
        "columns",
        "consumer",
        "grain",
        "ignored",
        "names",
        "peak",
        "place",
        "position",
        "punctuation_us",
        "punctuations",
        "register",
        "schema",
        "since_us",
        "skipped",
        "took",
        "unseen",
        "width",
    )

    absorbs: ClassVar[bool] = False

    def __init__(
        self,
        buffer: Buffer,
        since_us: int | None = None,
        columns: tuple[int, ...] | None = None,
        names: tuple[str, ...] | None = None,
    ) -> None:
        self.arc = buffer
        self.buffer = buffer
        self.narrow(columns, names)
        self.consumer: Operator | None = None
        self.grain = EVERY
        self.punctuation_us = self.register = MIN_TIME
        self.peak = self.place = self.took = 0
        self.skipped = self.ignored = 0
        self.since_us = since_us
        self.move_to_end()

    def narrow(self, columns: tuple[int, ...] | None, names: tuple[str, ...] | None = None) -> None:
        """Read only these fields of the arc, under these names; None: all, under their own."""
        self.columns, self.names = columns, names
        self.schema = picked(self.arc.schema, columns, names)
        self.width = tuple_width(len(self.schema))

    def move_to_end(self) -> None:
        """Read none of the tuples in the buffer; its promise stays."""
        self.position = self.buffer.end
        self._segment = self.buffer.first + len(self.buffer.segments)
        self._offset = 0
        self.punctuations: deque[tuple[int, int | Clause]] = deque()
        self.punctuation_us = max(self.punctuation_us, self.buffer.promise)
        self.unseen = False

    def detach(self) -> None:
        """Leave the arc until `resume`. The promise at this time stays."""
        arc = self.arc
        arc.detach(self)
        self.buffer = arc.empty()
        self._freeze(self.position, arc.promise)
        self._segment = self._offset = 0
        self.punctuations.clear()
        self.unseen = False

    def remove(self) -> None:
        """Leave the arc forever."""
        if not self.away:
            self.arc.detach(self)

    def discard(self) -> None:
        """Skip all queued tuples."""
        self.move_to_end()
        self.buffer.release()

    def account(self, count: int) -> None:
        """Count so many more (or fewer) tuples as queued: those that the operator has taken and holds in line."""
        self.buffer.gauge.add(count, self.width)

    def absent_since(self, position: int) -> None:
        """Count as missed what the arc has received since this position."""
        self.position = self.buffer.end = position

    def resume(self) -> None:
        """Continue at the end of the arc. The tuples missed count as skipped."""
        self.skipped += self.arc.end - self.position
        self.buffer = self.arc
        self.move_to_end()
        self.wake()  # its operator passes on the promises made meanwhile
        self.arc.admit(self)

    def change_arc(self, arc: Buffer) -> None:
        """Continue at the end of another arc, to which the same tuples will be put. Nothing waits here."""
        self._leave_for_good()
        self.arc = self.buffer = arc
        self.move_to_end()
        arc.admit(self)

    def _leave_for_good(self) -> None:
        """Leave the arc; what it promised still holds."""
        if self.arc.promise != LATENT:
            self.register = self.promise
        self.arc.part_from(self)

    @property
    def away(self) -> bool:
        """Whether it has left its arc until `resume`."""
        return self.buffer is not self.arc

    @property
    def missed(self) -> int:
        """Tuples skipped so far, with those that pass while it is away."""
        return self.skipped + self.arc.end - self.position if self.away else self.skipped

    def absorb(self, batch: Batch) -> None:
        """Queue tuples that were put (only if it `absorbs`)."""
        raise AssertionError("a head pointer has no queue")

    def clear(self) -> None:
        """Empty its own queue, if it has one."""

    @property
    def ordered(self) -> bool:
        """Whether its tuples are in order of time."""
        return self.arc.ordered

    @property
    def latent(self) -> bool:
        """Whether its tuples have no time until an operator stamps them."""
        return self.promise == LATENT

    @property
    def drops_clauses(self) -> bool:
        """Whether promises about certain rows end here."""
        return False

    @property
    def drained(self) -> bool:
        """Whether nothing is queued here, not even tuples that cannot be taken yet."""
        return self.position == self.buffer.end

    @property
    def presses(self) -> bool:
        """Whether its queued tuples are a reason to slow feeds down."""
        return True

    def _freeze(self, end: int, promise: int) -> None:
        self.buffer.end = end
        self.buffer.promise = promise

    @property
    def waiting(self) -> int:
        """Tuples queued for this reader."""
        return self.buffer.end - self.position

    @property
    def promise(self) -> int:
        """No tuple after the queued ones is below this time."""
        promise = self.buffer.promise
        return promise if promise > self.register else self.register

    def reset_promise(self) -> None:
        """Drop promises that nothing depends on: another operator will fill the arc."""
        self.punctuation_us = self.register = MIN_TIME
        self.punctuations.clear()

    def set_register(self, value_us: int) -> bool:
        """Set the register from an ETS arc on which nothing is under way; say whether the operator has a use for it."""
        of_use = value_us >= self.grain.above(self.promise)
        self.register = value_us
        if of_use:
            self.wake()
            assert self.consumer is not None
            self.buffer.ready[self.consumer] = None
        return of_use

    def sleep(self, quiet: Buffer) -> None:
        """Read nothing until `read_on`: the arc has nothing for its operator."""
        self.buffer = quiet
        self.position = self._segment = self._offset = 0

    def read_on(self) -> None:
        """Continue at the end of the arc, having taken all earlier tuples."""
        self.buffer = self.arc
        self.position = self.buffer.end
        self._segment = self.buffer.first + len(self.buffer.segments)
        promise = self.buffer.promise
        if self.punctuation_us < promise < LATENT:
            self.punctuation_us = promise

    def wake(self) -> None:
        """Schedule its operator although nothing was put."""
        self.unseen = True
        self.buffer.let_awake(self)

    def take(self, limit: int) -> Batch | None:
        """The next tuples, at most `limit`; small batches come out as one."""
        buffer = self.buffer
        count = buffer.end - self.position
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
            # One whole batch: nearly every tuple of a slow stream.
            self._segment += 1
            self.position += count
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
            self.position += count
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
        self.position += count
        buffer.passed(start, index)
        return self._admitted(pieces[0] if len(pieces) == 1 else Batch.concat(pieces))

    def _admitted(self, batch: Batch) -> Batch:
        """The tuples from `since_us` on, with the fields that it reads."""
        if self.columns is not None:
            batch = batch.narrowed(self.schema, self.columns)
        if self.since_us is None:
            return batch
        fresh = batch.ts >= self.since_us
        if fresh.all():
            return batch
        admitted = batch.take(fresh)
        ignored = len(batch) - len(admitted)
        self.ignored += ignored
        self.skipped += ignored
        return admitted

    def pass_punctuations(self) -> None:
        """Take the punctuation that the head pointer has reached."""
        while self.punctuations and self.punctuations[0][0] <= self.position:
            value = self.punctuations.popleft()[1]
            if isinstance(value, Clause):
                self.pass_clause(value)
            else:
                self.punctuation_us = value

    def pass_clause(self, clause: Clause) -> None:
        """Hand a promise about certain rows to the operator, in the columns that it reads."""
        own = clause if self.columns is None else clause.moved({at: own for own, at in enumerate(self.columns)})
        if own is not None and self.consumer is not None:
            self.consumer.heed(self, own)

    def mark_seen(self) -> None:
        """Its operator has looked at everything here. What it has not taken is unseen again."""
        self.unseen = self.position != self.buffer.end
        if self.punctuations:
            self.pass_punctuations()
            self.unseen = self.unseen or bool(self.punctuations)

    def newest_punctuation(self) -> int:
        """The last punctuation that was put."""
        times = [value for _, value in self.punctuations if not isinstance(value, Clause)]
        return times[-1] if times else self.punctuation_us

    def older(self, now_us: int, than_us: int) -> list[tuple[tuple[Any, ...], int]]:
        """The age of the oldest queued tuple if it is above this, by update key if there is one."""
        if self.buffer.end == self.position:
            return []
        arrival = self.buffer.segments[self._segment - self.buffer.first].arrival
        age = now_us - int(arrival[self._offset])
        return [((), age)] if age > than_us else []

    def low_water(self) -> int:
        """No tuple that it has not taken is below this time."""
        buffer = self.buffer
        if buffer.end == self.position:
            promise = buffer.promise
            return promise if promise > self.register else self.register
        if buffer.ordered:
            return buffer.segments[self._segment - buffer.first].ts.item(self._offset)
        return self.punctuation_us

    def save(self) -> list[Any]:
        return [
            self.position,
            self._segment,
            self._offset,
            self.punctuation_us,
            [[at, value.save() if isinstance(value, Clause) else value] for at, value in self.punctuations],
            self.unseen,
            self.since_us,
            self.skipped,
            self.ignored,
            self.peak,
            self.register,
            self.buffer.promise if self.away else None,
        ]

    def restore(self, data: Sequence[Any]) -> None:
        (self.position, self._segment, self._offset, self.punctuation_us, punctuations, self.unseen, *rest) = data
        self.punctuations = deque(
            (position, value if isinstance(value, int) else Clause.restore(value)) for position, value in punctuations
        )
        self.since_us, self.skipped, self.ignored, self.peak, self.register, still = rest
        if still is not None:
            self._freeze(self.position, still)

    @property
    def segment(self) -> int:
        return self._segment
