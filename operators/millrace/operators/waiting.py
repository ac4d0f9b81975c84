"""The frame of idle-waiting-prone operators: registers, horizon, low water, need.

An operator of this kind may act on a tuple only when no input can still undercut it. Per input it keeps the waiting
tuples (least first, whatever the arc's order), and two values follow from them and from the arcs:

    horizon     least over the inputs of what each promises behind its waiting tuples; nothing above it may be taken
    low water   least over the inputs of the lower of its head and its promise; nothing below it will be given

At one tuple per execution this is the papers' relaxed `more`: a tuple is ready if its time is the least register,
where a register holds the head's time, or the last time known when nothing waits (ETS figure 5, EQG figure 8). Taking
the promise behind the whole queue instead of the head lets one execution take many tuples and never frees a tuple
earlier.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from millrace.operators.arcs import Arc, announce
from millrace.operators.batch import BEGINNING, END_OF_TIME, Batch
from millrace.operators.buffer import Buffer, Reader
from millrace.operators.operator import Moment, Operator
from millrace.operators.reorder import Reorder, merge_by_time


class Waiting(Operator):
    """An operator that waits until its inputs' promises let it act."""

    waits: ClassVar[bool] = True
    wants: ClassVar[bool] = True

    def __init__(self, name: str, inputs: Sequence[Reader], output: Buffer, moment: Moment) -> None:
        super().__init__(name, inputs, output)
        self.moment = moment
        self.waiting = [Reorder() for _ in inputs]
        self.arcs: tuple[Arc, ...] = ()
        self.last_us = BEGINNING
        self.idle_since: list[int | None] = [None] * len(self.inputs)
        self.idle_us = [0] * len(self.inputs)

    @abstractmethod
    def consume(self, batch: Batch) -> Batch | None:
        """The rows that follow from these, which come in order of time."""

    # -- time ----------------------------------------------------------------------------------------------------------

    def horizon(self) -> int:
        return min(reader.promise for reader in self.inputs)

    def low_water(self) -> int:
        return min(min(self._heads(), default=END_OF_TIME), self.horizon())

    def registers(self) -> list[int]:
        """The papers' registers: per input the time of its head, else the last time known."""
        self.absorb()
        return [
            reader.promise if (head := reorder.head_us()) is None else head
            for reader, reorder in zip(self.inputs, self.waiting, strict=True)
        ]

    def need(self) -> int | None:
        """The least promise that would let it act, or None if it does not wait."""
        self.absorb()
        heads = self._heads()
        if not heads:
            return None
        least = min(heads)
        return least if least > self.horizon() else None

    def blocked(self) -> bool:
        """Whether tuples wait here and none may be taken: idle-waiting."""
        return self.need() is not None

    def holding(self) -> list[int]:
        """The inputs that hold it back: those that promise less than it needs."""
        need = self.need()
        return [] if need is None else [p for p, reader in enumerate(self.inputs) if reader.promise < need]

    def _heads(self) -> list[int]:
        return [head for reorder in self.waiting if (head := reorder.head_us()) is not None]

    # -- running -------------------------------------------------------------------------------------------------------

    def more(self) -> bool:
        self.absorb()
        heads = self._heads()
        return bool(heads) and min(heads) <= self.horizon()

    def fresh(self) -> bool:
        return any(reader.unseen for reader in self.inputs) or self.more()

    def absorb(self) -> None:
        """Bring what has come on the arcs into order."""
        for position, reader in enumerate(self.inputs):
            if reader.taken == reader.buffer.end:
                continue
            batch = reader.take(reader.waiting)
            if batch is not None and len(batch):
                waiting = self.waiting[position]
                waiting.put(batch)
                # They are still queued before this input, with those that waited already.
                reader.peak = max(reader.peak, waiting.count)
                reader.buffer.gauge.add(len(batch), reader.buffer.width)

    def execute(self, limit: int) -> int:
        self.counts.executions += 1
        self.absorb()
        batch = merge_by_time(self.waiting, self.horizon(), limit)
        taken = 0
        given = None
        if batch is not None:
            taken = len(batch)
            self.counts.input_tuples += taken
            self.inputs[0].buffer.gauge.add(-taken, self.inputs[0].buffer.width)
            given = self.consume(batch)
            if given is not None:
                self.counts.output_tuples += len(given)
                self.output.put(given)
        for reader in self.inputs:
            if reader.punctuations:
                reader.pass_punctuations()
            reader.unseen = False
        if self.output.wanted:
            if given is None and self.arcs:
                announce(self.low_water(), self.output, self.arcs)
            else:
                self.output.punctuate(self.low_water())
        return taken

    def reach(self, now_us: int) -> bool:
        """Promise what the clock allows; say whether that told anything new."""
        low_us = self.low_water()
        if self.arcs:
            return announce(low_us, self.output, self.arcs)
        before = self.output.promise
        self.output.punctuate(low_us)
        return self.output.promise != before

    def empty_input(self) -> int:
        """The input whose promise is least: it is the one that holds the others back."""
        promises = [reader.promise for reader in self.inputs]
        return promises.index(min(promises))

    def queue_tuples(self, position: int) -> int:
        return self.inputs[position].waiting + self.waiting[position].count

    # -- idle-waiting, measured ----------------------------------------------------------------------------------------

    def clock_idle(self, now_us: int) -> None:
        """Account for idle-waiting at the boundary of a step: per input, the time in which it held tuples back."""
        holding = self.holding()
        if not holding and all(since is None for since in self.idle_since):
            return
        for position, since in enumerate(self.idle_since):
            if since is not None:
                self.idle_us[position] += now_us - since
            self.idle_since[position] = now_us if position in holding else None

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self) -> Any:
        return [[reorder.save() for reorder in self.waiting], self.last_us, self.idle_since, self.idle_us]

    def restore(self, data: Any) -> None:
        waiting, self.last_us, self.idle_since, self.idle_us = data
        for reorder, saved, reader in zip(self.waiting, waiting, self.inputs, strict=True):
            reorder.restore(saved)
            reader.buffer.gauge.add(reorder.count, reader.buffer.width)

    def clear(self) -> None:
        """Let go of what waits, when the operator leaves the graph."""
        for reorder, reader in zip(self.waiting, self.inputs, strict=True):
            reader.buffer.gauge.add(-reorder.count, reader.buffer.width)
        self.waiting = [Reorder() for _ in self.inputs]
