"""An input with a separate queue: it takes tuples as soon as they are put, and keeps those that its edge retains.

To its operator it is an inlet like any other, and to the arc a reader that never lags. `position` follows the
queue, so that `waiting` is right; superseded tuples count as taken. Tuples come out as the queue serves them, in any
order of time: the low water is the least of the promise and of the queued times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from millrace.operators.frame.buffer import Buffer
from millrace.operators.frame.clause import Clause
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import StepClock
from millrace.operators.queues.auto import AutoQueue
from millrace.operators.queues.edge import EdgeSpec, build_queue
from millrace.operators.queues.queue import Queue, TupleQueue
from millrace.operators.queues.update import SCHEDULERS, UpdateQueue
from millrace.operators.queues.windows import WindowQueue
from millrace.values.batch import Batch


class QueueInlet(Inlet):
    """One operator's queue on an arc.

    edge      which tuples it retains
    timed     whether a stopwatch reports when results are out; without one they are out at once
    fault     what the queue raised when tuples arrived; the operator that reads it raises it, not the one upstream
    """

    __slots__ = ("_gone_shed", "_gone_superseded", "clock", "edge", "fault", "queue", "seed", "timed")

    absorbs: ClassVar[bool] = True

    def __init__(
        self,
        buffer: Buffer,
        edge: EdgeSpec,
        clock: StepClock,
        since_us: int | None = None,
        *,
        timed: bool = False,
        seed: int = 0,
    ) -> None:
        self.edge = edge
        self.fault: Exception | None = None
        self.clock = clock
        self.timed = timed
        self.seed = seed
        self._gone_superseded = self._gone_shed = 0
        self.queue = self._build(edge, buffer, since_us)
        super().__init__(buffer, since_us, edge.columns, edge.names)

    def _build(self, edge: EdgeSpec, buffer: Buffer, since_us: int | None) -> Queue:
        queue = build_queue(edge, edge.reads(buffer.schema), begin_us=since_us, seed=self.seed)
        if isinstance(queue, AutoQueue | UpdateQueue | WindowQueue):
            queue.timed = self.timed
        return queue

    # -- counts --------------------------------------------------------------------------------------------------------

    @property
    def superseded(self) -> int:
        return self._gone_superseded + self.queue.superseded

    @property
    def shed(self) -> int:
        return self._gone_shed + self.queue.shed

    @property
    def ordered(self) -> bool:
        return self.arc.ordered and not self.edge.updates

    @property
    def drained(self) -> bool:
        return self.away or not self.queue.holds

    @property
    def presses(self) -> bool:
        """A bounded queue is not a reason to slow feeds down."""
        return not self.queue.bounded

    @property
    def segment(self) -> int:
        """It retains no batch of the arc."""
        return self.arc.first + len(self.arc.segments)

    # -- tuples --------------------------------------------------------------------------------------------------------

    def absorb(self, batch: Batch) -> None:
        """Queue tuples that were just put."""
        if self.fault is not None:
            return
        try:
            batch = self._admitted(batch)
            if len(batch.ts):
                self._take_in(batch)
            self.position = self.arc.end - self.queue.waiting
        except Exception as error:
            self.fault = error

    def supersede(self) -> None:
        """Under LATEST USING AUTO, retain only the newest tuple or window of each key from now on."""
        queue = self.queue
        if not isinstance(queue, AutoQueue | WindowQueue) or self.away or self.fault is not None:
            return
        if queue.load is None or queue.load.supersedes:
            return
        try:
            before = queue.waiting
            queue.supersede(self.clock.now_us)
            self._report(queue)
            self._served(before)
        except Exception as error:
            self.fault = error

    def _report(self, queue: Queue) -> None:
        """Have a switch of the queue logged."""
        if queue.load is not None and queue.load.untold is not None:
            self.clock.requeued.append((self, queue.load.untold))
            queue.load.untold = None

    def _take_in(self, batch: Batch) -> None:
        queue, now_us = self.queue, self.clock.now_us
        before = queue.waiting
        if isinstance(queue, WindowQueue) and not self.arc.ordered:
            queue.by_tuples = False  # a queue upstream may have changed the order since
        queue.promised(self.promise, now_us)
        queue.enqueue(batch, now_us)
        self._report(queue)
        waiting = queue.waiting
        self.arc.gauge.add(waiting - before, self.width)
        if waiting > self.peak:
            self.peak = waiting

    def narrow(self, columns: tuple[int, ...] | None, names: tuple[str, ...] | None = None) -> None:
        super().narrow(columns, names)
        self.edge = replace(self.edge, columns=columns, names=names)

    def take(self, limit: int) -> Batch | None:
        self.took = 0
        if self.away:
            return None
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        queue, now_us = self.queue, self.clock.now_us
        before = queue.waiting
        queue.promised(self.promise, now_us)
        batch = queue.dequeue(limit, now_us)
        self._served(before)
        self.took = before - queue.waiting
        return batch

    def refresh(self) -> None:
        """Pass the arc's promise to the queue: it may end windows, whose tuples can be taken then."""
        before = self.queue.waiting
        self.queue.promised(self.promise, self.clock.now_us)
        self._served(before)

    def _served(self, before: int) -> None:
        """Count the tuples that wait now instead of these."""
        self.queue.tighten()
        waiting = self.queue.waiting
        self.arc.gauge.add(waiting - before, self.width)
        self.position = self.arc.end - waiting

    def older(self, now_us: int, than_us: int) -> list[tuple[tuple[Any, ...], int]]:
        return self.queue.older(now_us, than_us)

    def pass_punctuations(self) -> None:
        """Take all times: their position says nothing about tuples that are served in any order. Only a queue of all
        tuples in order passes promises about certain rows."""
        if not self.punctuations:
            return
        self.punctuation_us = self.newest_punctuation()
        queued, self.punctuations = self.punctuations, deque()
        for at, value in queued:
            if isinstance(value, Clause) and not self.drops_clauses:
                if at <= self.position:
                    self.pass_clause(value)
                else:
                    self.punctuations.append((at, value))

    @property
    def drops_clauses(self) -> bool:
        return self.edge.updates or self.edge.shed is not None

    def mark_seen(self) -> None:
        self.pass_punctuations()
        self.unseen = self.queue.pending

    def low_water(self) -> int:
        promise, floor = self.promise, self.queue.floor_us()
        return floor if floor < promise else promise

    # -- coming and going ----------------------------------------------------------------------------------------------

    def move_to_end(self) -> None:
        self.clear()
        super().move_to_end()

    def detach(self) -> None:
        self.skipped += self.queue.waiting
        super().detach()

    def clear(self) -> None:
        """Empty the queue. It still supersedes tuples older than those it had of their key."""
        if isinstance(self.queue, TupleQueue):
            self.arc.gauge.add(-self.queue.waiting, self.width)
            self.queue.drain()
            self.queue.tighten()
        else:
            self._retire()
            self.queue = self._build(self.edge, self.arc, self.since_us)
        self.position = self.arc.end

    def _retire(self) -> None:
        """Add up the counts of a queue that is dropped."""
        self._gone_superseded += self.queue.superseded
        self._gone_shed += self.queue.shed
        self.arc.gauge.add(-self.queue.waiting, self.width)

    # -- exchange ------------------------------------------------------------------------------------------------------

    def exchange(self, edge: EdgeSpec) -> None:
        """Continue with another kind of queue, which takes over the queued tuples in order of service, as far as it
        retains them. Between two update queues every key keeps its place in line."""
        queue = self.queue
        self.edge = edge
        if isinstance(queue, WindowQueue):
            assert edge.kind != "append"
            before = queue.waiting
            queue.reschedule(edge.kind, self.clock.now_us)
            self._served(before)
            return
        if isinstance(queue, UpdateQueue) and edge.kind in SCHEDULERS:
            queue.reschedule(edge.kind)
            return
        assert isinstance(queue, TupleQueue)
        waiting = queue.drain()
        self._gone_superseded += queue.superseded
        self._gone_shed += queue.shed
        self.queue = self._build(edge, self.arc, self.since_us)
        if waiting is not None:
            self.queue.enqueue(waiting, self.clock.now_us)
            self.arc.gauge.add(self.queue.waiting - len(waiting), self.width)
        self.position = self.arc.end - self.queue.waiting

    def change_arc(self, arc: Buffer) -> None:
        """Continue at the end of another arc. Queued tuples stay."""
        self._leave_for_good()
        self.move(arc, self.since_us, None)

    def move(
        self,
        buffer: Buffer,
        since_us: int | None,
        columns: tuple[int, ...] | None,
        names: tuple[str, ...] | None = None,
    ) -> None:
        """Continue at another arc, of which its fields are these columns. Queued tuples stay."""
        self.arc = self.buffer = buffer
        self.since_us = since_us
        if columns is not None:
            self.narrow(columns, names)
        self.punctuations.clear()
        buffer.admit(self)
        self.position = buffer.end - self.queue.waiting

    @classmethod
    def instead_of(cls, reader: Inlet, edge: EdgeSpec, clock: StepClock, *, timed: bool) -> QueueInlet:
        """An input that replaces a plain one, with the tuples that it has not taken yet."""
        arc = reader.arc
        inlet = cls(arc, edge, clock, timed=timed)
        waiting = reader.take(reader.waiting)  # without those older than its start
        inlet.since_us, inlet.skipped, inlet.peak = reader.since_us, reader.skipped, reader.peak
        inlet.ignored = reader.ignored
        inlet.register, inlet.punctuation_us = reader.register, reader.punctuation_us
        inlet.punctuations = reader.punctuations
        inlet.consumer, inlet.unseen = reader.consumer, reader.unseen
        arc.detach(reader)
        arc.admit(inlet)
        if waiting is not None and len(waiting):
            inlet._take_in(waiting)
        inlet.position = arc.end - inlet.queue.waiting
        return inlet

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self) -> list[Any]:
        return [super().save(), self.seed, self._gone_superseded, self._gone_shed, self.queue.save()]

    def restore(self, data: Sequence[Any]) -> None:
        own, self.seed, self._gone_superseded, self._gone_shed, queue = data
        super().restore(own)
        self.queue.restore(queue)
        self.arc.gauge.add(self.queue.waiting, self.width)
