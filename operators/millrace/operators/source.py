"""Source: where a stream enters the graph, and where time is decided.

Once and here: stamps, marks, lateness. A tuple below the stream's mark is late and enters no query; everything behind
the source keeps what its punctuation promised, so results depend only on the set of on-time tuples. A change of these
rules must be carried to `docs/sql.md` and to the archive's late flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from millrace.operators.batch import ANY_TIME, BEGINNING, END_OF_TIME, NO_TIME, Batch, Int64s, constant_int64
from millrace.operators.buffer import Buffer
from millrace.operators.operator import Operator


@dataclass(frozen=True, slots=True)
class Clocking:
    """How a stream's time is decided (a stream's definition, as far as its source needs it)."""

    timestamps: Literal["external", "internal", "latent"]
    disorder_us: int = 0
    by_tuples: bool = True
    on_demand: bool = True


@dataclass(slots=True)
class Feed:
    """One client's part of a stream: how far it has promised, and how much credit it has used since the last
    grant."""

    mark: int
    owed: int = 0
    tuples: int = 0
    late: int = 0


@dataclass(frozen=True, slots=True)
class LateTuples:
    """Tuples below the mark, and the mark that each one met."""

    batch: Batch
    marks: Int64s


class Source(Operator):
    """The source node of a stream.

    Its buffer is filled when tuples arrive, so it is never executed: its row in the state table tells where a cycle
    begins, and backtracking ends here. The output is ordered if the engine stamps the stream itself.

    mark     no later tuple is on time below it; the least over the feeds, and never going back
    newest   the newest time taken in so far
    feeds    by name; a feed that opens begins at the mark
    """

    kind: ClassVar[str] = "source"

    def __init__(self, name: str, stream: str, clocking: Clocking, output: Buffer) -> None:
        super().__init__(name, (), output)
        self.stream = stream
        self.clocking = clocking
        self.mark = BEGINNING
        self.newest = BEGINNING
        self.feeds: dict[str, Feed] = {}
        self.late = 0
        self.punctuations = 0
        if clocking.timestamps == "latent":
            output.promise = ANY_TIME

    def execute(self, limit: int) -> int:
        raise AssertionError(f"{self.name}: a source is filled by arrivals, never executed")

    def fresh(self) -> bool:
        return False

    # -- feeds ---------------------------------------------------------------------------------------------------------

    def open(self, feed: str) -> Feed:
        """The feed of this name; a new one holds the mark where it is."""
        found = self.feeds.get(feed)
        if found is None:
            found = self.feeds[feed] = Feed(self.mark)
        return found

    def close(self, feed: str, *, ended: bool) -> None:
        """Release the feed's hold. When the last one has left, the mark stays, or ends with a stream that is over."""
        self.feeds.pop(feed, None)
        if self.feeds:
            self._raise_mark(min(other.mark for other in self.feeds.values()))
        elif ended:
            self._raise_mark(END_OF_TIME)

    # -- arrivals ------------------------------------------------------------------------------------------------------

    def arrive(self, feed_name: str, batch: Batch, now_us: int) -> LateTuples | None:
        """Take tuples in: stamp them or judge them, queue those on time, and return those that are late."""
        feed = self.feeds.get(feed_name) or self.open(feed_name)
        count = len(batch.ts)
        feed.tuples += count
        feed.owed += count
        self.counts.input_tuples += count
        self.counts.executions += 1
        timestamps = self.clocking.timestamps
        if timestamps == "external":
            return self._judge(feed, batch.arrived(now_us))
        if self.mark == END_OF_TIME:
            return self._after_the_end(feed, batch.arrived(now_us, constant_int64(now_us, count)))
        stamp = NO_TIME if timestamps == "latent" else max(now_us, self.mark)
        self._queue(batch.arrived(now_us, constant_int64(stamp, count)), stamp)
        if timestamps == "internal":
            feed.mark = stamp
            self._raise_mark(stamp)
        return None

    def _after_the_end(self, feed: Feed, batch: Batch) -> LateTuples:
        """The stream is over: no stamp is high enough for what still comes."""
        count = len(batch)
        feed.late += count
        self.late += count
        return LateTuples(batch, constant_int64(END_OF_TIME, count))

    def _judge(self, feed: Feed, batch: Batch) -> LateTuples | None:
        ts = batch.ts
        disorder = self.clocking.disorder_us
        first, last = int(ts[0]), int(ts[-1])
        rising = len(ts) == 1 or not (ts[1:] < ts[:-1]).any()
        late = None
        if rising and first >= self.mark:
            newest = last
        else:
            marks = self._marks_met(feed, ts)
            below = ts < marks
            newest = int(ts.max())
            if below.any():
                late = LateTuples(batch.take(below), marks[below])
                feed.late += len(late.batch)
                self.late += len(late.batch)
                batch = batch.take(~below)
        if len(batch):
            self._queue(batch, newest)
            if self.clocking.by_tuples:
                self.promise(feed, _minus(newest, disorder))
        return late

    def _marks_met(self, feed: Feed, ts: Int64s) -> Int64s:
        """The stream's mark as each tuple met it: the tuples before it in the batch have moved it too."""
        others = min((other.mark for other in self.feeds.values() if other is not feed), default=END_OF_TIME)
        own = np.full(len(ts), feed.mark, np.int64)
        if self.clocking.by_tuples:
            before = np.maximum.accumulate(ts)[:-1]
            disorder = self.clocking.disorder_us
            floor = BEGINNING + disorder
            own[1:] = np.maximum(own[1:], np.where(before < floor, BEGINNING, before - disorder))
        marks: Int64s = np.maximum(np.minimum(own, others), self.mark)
        return marks

    def _queue(self, batch: Batch, newest_us: int) -> None:
        self.counts.output_tuples += len(batch.ts)
        if newest_us > self.newest:
            self.newest = newest_us
        self.output.put(batch)

    # -- promises ------------------------------------------------------------------------------------------------------

    def promise(self, feed: Feed, value_us: int) -> None:
        """The feed will send nothing below this time."""
        if value_us > feed.mark:
            feed.mark = value_us
            self._raise_mark(min(other.mark for other in self.feeds.values()))

    def reach(self, value_us: int) -> bool:
        """Raise the mark of a stream that the engine stamps; say whether that told anything new."""
        if value_us <= self.mark:
            return False
        for feed in self.feeds.values():
            feed.mark = max(feed.mark, value_us)
        self._raise_mark(value_us)
        return True

    def _raise_mark(self, value_us: int) -> None:
        if value_us > self.mark:
            self.mark = value_us
            if self.clocking.timestamps != "latent" or value_us == END_OF_TIME:
                before = self.output.promise
                self.output.punctuate(value_us)
                self.punctuations += self.output.promise != before

    def low_water(self) -> int:
        return self.output.promise

    def save(self) -> list[Any]:
        feeds = [[name, feed.mark, feed.owed, feed.tuples, feed.late] for name, feed in self.feeds.items()]
        return [self.mark, self.newest, feeds, self.late, self.punctuations]

    def restore(self, data: Sequence[Any]) -> None:
        self.mark, self.newest, feeds, self.late, self.punctuations = data
        self.feeds = {name: Feed(*numbers) for name, *numbers in feeds}


def _minus(value_us: int, disorder_us: int) -> int:
    return max(value_us - disorder_us, BEGINNING)
