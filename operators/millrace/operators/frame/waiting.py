"""The frame of idle-waiting-prone operators: registers, horizon, low water, need.

Such an operator may act on a tuple only when no input can bring an earlier one. Per input it holds the queued tuples
in order of time, and two values follow from them and from the arcs:

    horizon     least over the inputs of the promise after its queued tuples; no tuple above it may be taken
    low water   least over the inputs of the lower of its head and its promise; no row below it will be emitted

At one tuple per execution this is the papers' relaxed `more`: a tuple is ready if its time is the least register,
where a register holds the head's time, or the last known time if no tuple waits (ETS figure 5, EQG figure 8). Using
the promise after the whole queue instead of the head lets one execution take many tuples and never releases a tuple
earlier.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from millrace.operators.frame.clause import Clause
from millrace.operators.frame.group_passing import NOTHING, GroupPassing, Held
from millrace.operators.frame.idle_waiting import IdleWaiting
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.punctuation_grain import EVERY, PunctuationGrain, union_of
from millrace.operators.frame.reorder import Reorder, merge_by_time
from millrace.values.batch import Batch
from millrace.values.eventtime import MAX_TIME


class LinedInputs(IdleWaiting):
    """An operator whose tuples may have to wait: one line per input, in order of time."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.waiting = [Reorder() for _ in self.inputs]

    def _heads(self) -> list[int]:
        return [head for reorder in self.waiting if (head := reorder.head_us()) is not None]

    def settle(self) -> None:
        """Put arrived tuples into the lines."""
        for position, reader in enumerate(self.inputs):
            queued = reader.waiting
            if not queued:
                continue
            batch = reader.take(queued)
            if batch is not None and len(batch):
                waiting = self.waiting[position]
                waiting.put(self.stamped(position, batch))
                # They are still queued before this input, with those that waited already.
                reader.peak = max(reader.peak, waiting.count)
                reader.account(len(batch))

    def left_line(self, position: int, count: int) -> None:
        """Tuples of an input have been taken from its line."""
        self.taken += count
        self.counts.input_tuples += count
        self.inputs[position].account(-count)

    def stamped(self, position: int, batch: Batch) -> Batch:
        """Tuples of an input as they enter its line."""
        return batch

    def held_tuples(self) -> int:
        return sum(reorder.count for reorder in self.waiting)

    def queue_tuples(self, position: int) -> int:
        return self.inputs[position].waiting + self.waiting[position].count

    def save(self) -> Any:
        return [super().save(), [reorder.save() for reorder in self.waiting]]

    def restore(self, data: Any) -> None:
        idle, waiting = data
        super().restore(idle)
        for reorder, saved, reader in zip(self.waiting, waiting, self.inputs, strict=True):
            reorder.restore(saved)
            reader.account(reorder.count)

    def clear(self) -> None:
        for reorder, reader in zip(self.waiting, self.inputs, strict=True):
            reader.account(-reorder.count)
        self.waiting = [Reorder() for _ in self.inputs]


class TimeOrdered(LinedInputs):
    """An operator that holds tuples in order of time until its inputs' promises let it take them."""

    @abstractmethod
    def advance(self, limit: int) -> Batch | None:
        """Take at most `limit` of the tuples that may be taken: the rows that follow from them."""

    # -- time ----------------------------------------------------------------------------------------------------------

    def low_water(self) -> int:
        return min(min(self._heads(), default=MAX_TIME), self.horizon())

    def registers(self) -> list[int]:
        return [
            reader.promise if (head := reorder.head_us()) is None else head
            for reader, reorder in zip(self.inputs, self.waiting, strict=True)
        ]

    def need(self) -> int | None:
        heads = self._heads()
        if not heads:
            return None
        least = min(heads)
        return least if least > self.horizon() else None

    # -- running -------------------------------------------------------------------------------------------------------

    def more(self) -> bool:
        heads = self._heads()
        return bool(heads) and min(heads) <= self.horizon()

    def fresh(self) -> bool:
        return any(reader.unseen for reader in self.inputs) or self.more()

    def run(self, limit: int) -> None:
        self.settle()
        rows = self.advance(limit)
        if rows is not None:
            self.emit(rows)


def without_groups(_: Operator, lines: Any) -> Any:
    """The lines of a `Merging` operator from before promises about groups passed it, in today's layout."""
    return [lines, NOTHING]


class Merging(TimeOrdered):
    """An operator that takes the tuples of all its inputs, which have one schema, as one line in order of time."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.groups = GroupPassing(self)

    @abstractmethod
    def consume(self, batch: Batch) -> Batch | None:
        """The rows that follow from these, which come in order of time."""

    def advance(self, limit: int) -> Batch | None:
        batch = merge_by_time(self.waiting, self.horizon(), limit)
        if batch is None:
            return None
        self.left_line(0, len(batch))
        return self.consume(batch)

    def declares(self) -> PunctuationGrain | None:
        return union_of((EVERY, self.output.grain)) if self.output.punctuates else EVERY

    def heed(self, reader: Inlet, clause: Clause) -> None:
        self.groups.heed(reader, clause)

    def copied_from(self, position: int, side: int = 0) -> int | None:
        return position

    def announce(self, low_us: int | None = None) -> bool:
        useful = super().announce(low_us)
        if self.groups:
            self.groups.pass_on(self._held, min(self._heads(), default=MAX_TIME))
        return useful

    def _held(self, keys: Sequence[int]) -> Iterator[Held]:
        for line in self.waiting:
            for batch in line.batches():
                yield Held(batch.ts, [(batch.columns[at], batch.valid[at]) for at in keys])

    def save(self) -> Any:
        return [super().save(), self.groups.save()]

    def restore(self, data: Any) -> None:
        lines, groups = data
        super().restore(lines)
        self.groups.restore(groups)
