"""A reader with a queue of its own: it takes what an arc is given at once, and keeps what its edge is to keep.

To its operator it is a reader like any other, and to the arc one that is never behind: a fork's other readers lose
nothing by it, and nobody waits for it. `taken` is kept so that `buffer.end - taken` tuples can be taken, which is how
operators look at readers; superseded tuples count as taken.

Tuples come out as the queue serves them, so they are not in order of time. `promise` is what holds behind everything
that is queued, as for any reader; `low_water` is the lower of that and of what is queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from millrace.operators.frame.buffer import Buffer
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import StepClock
from millrace.operators.queues.edge import EdgeSpec, build_queue
from millrace.operators.queues.queue import Queue, TupleQueue
from millrace.operators.queues.update import UpdateQueue
from millrace.operators.queues.windows import WindowQueue
from millrace.values.batch import Batch


class QueueInlet(Inlet):
    """One operator's queue on an arc.

    edge      what it keeps
    timed     whether readings of a stopwatch say when results are out; without one they are out at once
    """

    __slots__ = ("_gone_shed", "_gone_superseded", "clock", "edge", "queue", "seed", "timed")

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
        self.clock = clock
        self.timed = timed
        self.seed = seed
        self._gone_superseded = self._gone_shed = 0
        self.queue = self._made(edge, buffer, since_us)
        super().__init__(buffer, since_us, edge.columns)

    def _made(self, edge: EdgeSpec, buffer: Buffer, since_us: int | None) -> Queue:
        queue = build_queue(edge, edge.reads(buffer.schema), begin_us=since_us, seed=self.seed)
        if isinstance(queue, UpdateQueue | WindowQueue):
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
        return self.home.ordered and not self.edge.updates

    @property
    def drained(self) -> bool:
        return self.away or not self.queue.holds

    @property
    def presses(self) -> bool:
        """Whether its feeds have to be slowed down when much waits here: what is bounded by itself does not grow."""
        return not self.queue.bounded

    @property
    def segment(self) -> int:
        """It holds no batch of the arc back."""
        return self.home.first + len(self.home.segments)

    # -- tuples --------------------------------------------------------------------------------------------------------

    def absorb(self, batch: Batch) -> None:
        """Take in what the arc has just been given."""
        batch = self._admitted(batch)
        if len(batch.ts):
            self._take_in(batch)
        self.taken = self.home.end - self.queue.waiting

    def _take_in(self, batch: Batch) -> None:
        queue, now_us = self.queue, self.clock.now_us
        before = queue.waiting
        if isinstance(queue, WindowQueue) and not self.home.ordered:
            queue.by_tuples = False  # a queue above may have taken the order since
        queue.promised(self.promise, now_us)
        queue.enqueue(batch, now_us)
        waiting = queue.waiting
        self.home.gauge.add(waiting - before, self.home.width)
        if waiting > self.peak:
            self.peak = waiting

    def narrow(self, columns: tuple[int, ...]) -> None:
        super().narrow(columns)
        self.edge = replace(self.edge, columns=columns)

    def take(self, limit: int) -> Batch | None:
        self.took = 0
        if self.away:
            return None
        queue, now_us = self.queue, self.clock.now_us
        before = queue.waiting
        queue.promised(self.promise, now_us)
        batch = queue.dequeue(limit, now_us)
        self._served(before)
        self.took = before - queue.waiting
        return batch

    def refresh(self) -> None:
        """Let the queue know what the arc promises: windows may be over by it, and their tuples ready to be taken."""
        before = self.queue.waiting
        self.queue.promised(self.promise, self.clock.now_us)
        self._served(before)

    def _served(self, before: int) -> None:
        """Count what waits now, and waited before."""
        self.queue.tighten()
        waiting = self.queue.waiting
        self.home.gauge.add(waiting - before, self.home.width)
        self.taken = self.home.end - waiting

    def older(self, now_us: int, than_us: int) -> list[tuple[tuple[Any, ...], int]]:
        return self.queue.older(now_us, than_us)

    def pass_punctuations(self) -> None:
        """Take all punctuation: where it stood between the tuples says nothing when those are served in any order."""
        if self.punctuations:
            self.passed = self.punctuations[-1][1]
            self.punctuations.clear()

    def look(self) -> None:
        self.pass_punctuations()
        self.unseen = self.queue.pending

    def low_water(self) -> int:
        promise, floor = self.promise, self.queue.floor_us()
        return floor if floor < promise else promise

    # -- coming and going ----------------------------------------------------------------------------------------------

    def jump(self) -> None:
        self.let_go()
        super().jump()

    def detach(self) -> None:
        self.skipped += self.queue.waiting
        super().detach()

    def let_go(self) -> None:
        """Empty the queue. What it knows of keys stays: what is older than they had is still superseded at once."""
        if isinstance(self.queue, TupleQueue):
            self.home.gauge.add(-self.queue.waiting, self.home.width)
            self.queue.drain()
            self.queue.tighten()
        else:
            self._retire()
            self.queue = self._made(self.edge, self.home, self.since_us)
        self.taken = self.home.end

    def _retire(self) -> None:
        """Keep the counts of a queue that goes."""
        self._gone_superseded += self.queue.superseded
        self._gone_shed += self.queue.shed
        self.home.gauge.add(-self.queue.waiting, self.home.width)

    # -- exchange ------------------------------------------------------------------------------------------------------

    def exchange(self, edge: EdgeSpec) -> None:
        """Go on with another kind of queue: what waits goes over, in order of service, as far as the new kind keeps it.

        Between two schedulers everybody keeps the place in line.
        """
        queue = self.queue
        self.edge = edge
        if isinstance(queue, UpdateQueue | WindowQueue) and edge.updates:
            assert edge.kind != "append"
            queue.reschedule(edge.kind)
            return
        assert isinstance(queue, TupleQueue)
        waiting = queue.drain()
        self._gone_superseded += queue.superseded
        self._gone_shed += queue.shed
        self.queue = self._made(edge, self.home, self.since_us)
        if waiting is not None:
            self.queue.enqueue(waiting, self.clock.now_us)
            self.home.gauge.add(self.queue.waiting - len(waiting), self.home.width)
        self.taken = self.home.end - self.queue.waiting

    def change_arc(self, arc: Buffer) -> None:
        """Continue at the end of another arc, with what waits in the queue."""
        self._leave_for_good()
        self.move(arc, self.since_us, None)

    def move(self, buffer: Buffer, since_us: int | None, columns: tuple[int, ...] | None) -> None:
        """Go on at another arc, with what waits here: its fields are these of the other's."""
        self.home = self.buffer = buffer
        self.since_us = since_us
        if columns is not None:
            self.narrow(columns)
        self.punctuations.clear()
        buffer.admit(self)
        self.taken = buffer.end - self.queue.waiting

    @classmethod
    def instead_of(cls, reader: Inlet, edge: EdgeSpec, clock: StepClock, *, timed: bool) -> QueueInlet:
        """A reader that goes on where a plain one stands, with what that one has not taken yet."""
        home = reader.home
        made = cls(home, edge, clock, timed=timed)
        waiting = reader.take(reader.waiting)  # as it would have been taken: without what is older than its beginning
        made.since_us, made.skipped, made.peak = reader.since_us, reader.skipped, reader.peak
        made.ignored = reader.ignored
        made.told, made.passed, made.punctuations = reader.told, reader.passed, reader.punctuations
        made.consumer, made.unseen = reader.consumer, reader.unseen
        home.detach(reader)
        home.admit(made)
        if waiting is not None and len(waiting):
            made._take_in(waiting)
        made.taken = home.end - made.queue.waiting
        return made

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self) -> list[Any]:
        return [super().save(), self.seed, self._gone_superseded, self._gone_shed, self.queue.save()]

    def restore(self, data: Sequence[Any]) -> None:
        own, self.seed, self._gone_superseded, self._gone_shed, queue = data
        super().restore(own)
        self.queue.restore(queue)
        self.home.gauge.add(self.queue.waiting, self.home.width)
