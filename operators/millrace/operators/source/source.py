"""Source: where a stream enters the graph, and where time is decided.

Only here: stamps, marks, lateness. A tuple below the stream's mark is late and enters no query. Downstream no tuple is
below a promise, so results depend only on the set of on-time tuples. A change of these rules also changes
`docs/sql/time.md` and the archive's late flag.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from millrace.operators.frame.buffer import Buffer
from millrace.operators.frame.clause import Clause, Equal
from millrace.operators.frame.ets_arcs import Arc, announce
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import Operator
from millrace.operators.source.feeds import Feed, Feeds
from millrace.operators.source.groups import Group, GroupMarks
from millrace.operators.source.lateness import LateLedger, Lateness
from millrace.values.batch import Batch, Bools, Int64s, constant_int64
from millrace.values.eventtime import LATENT, MAX_TIME, MIN_TIME
from millrace.values.expression import TIME

Cause = Literal["tuple", "client", "ets", "heartbeat", "close", "lull"]
CAUSES: tuple[Cause, ...] = ("tuple", "client", "ets", "heartbeat", "close", "lull")


@dataclass(frozen=True, slots=True)
class Clocking:
    """How a stream's time is decided (a stream's definition, as far as its source needs it).

    key   the columns whose values name a group; none: nothing is promised about groups
    """

    timestamps: Literal["external", "internal", "latent"]
    disorder_us: int = 0
    by_tuples: bool = True
    ahead_us: int | None = None
    history: bool = False
    key: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """Tuples that entered nothing: which they are, what each one met, and how many broke their client's own word."""

    batch: Batch
    marks: Int64s
    broken: int = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """Tuples as history keeps them: all that were taken in, in the order of their arrival, with the times that they
    have (when they came, if the stream has none), which of them were late (None: none), and the mark that each
    one met."""

    batch: Batch
    late: Bools | None
    marks: Int64s


def _without_groups(_: Operator, state: Any) -> Any:
    """A state of version 1, when nothing was promised about groups."""
    *before, (opened, feeds), counts, tuple_bytes = state
    return [*before, [opened, [[*feed, []] for feed in feeds]], counts, tuple_bytes, None]


class Source(Operator):
    """The source node of a stream.

    Its buffer is filled when tuples arrive, so it is never executed: a cycle starts at its row in the state table, and
    backtracking ends there. The output is ordered if the engine stamps the stream.

    mark     no later tuple is on time below it; the least over the feeds, and never going back
    newest   the newest time taken in so far; `last_us` is when the last tuple came
    late_by_max_us   how far below the mark the latest of the late tuples was
    arcs     where a promise that comes without tuples goes, past the operators that do not need it
    tuple_bytes   what a tuple took of late, rather too much than too little
    judged   what the last arrival came to, for the history of streams that have one
    groups   of which groups more is promised than of the stream
    ledger   which disorder would have kept its tuples, if they can be late
    """

    kind: ClassVar[str] = "source"
    layout: ClassVar[Layout] = Layout(2, _without_groups)

    def __init__(self, name: str, stream: str, clocking: Clocking, output: Buffer, since_us: int = MIN_TIME) -> None:
        super().__init__(name, (), output)
        self.stream = stream
        self.clocking = clocking
        self.mark = MIN_TIME
        self.newest = MIN_TIME
        self.last_us = MIN_TIME
        self.feeds = Feeds()
        self.ets_arcs: tuple[Arc, ...] = ()
        self.judged: Judged | None = None
        self.tuple_bytes = output.width
        self.late = self.broken = self.far = self.late_by_max_us = 0
        self.punctuations = dict.fromkeys(CAUSES, 0)
        self.groups = GroupMarks([output.schema.fields[at] for at in clocking.key])
        self.ledger: LateLedger | None = None
        if clocking.timestamps == "external":
            self.ledger = LateLedger(since_us, 0, clocking.disorder_us)
        if clocking.timestamps == "latent":
            output.promise = LATENT

    def decision(self) -> int:
        return self.last_us

    def decide(self, decision: int) -> None:
        self.last_us = decision

    def fresh(self) -> bool:
        return False

    # -- feeds ---------------------------------------------------------------------------------------------------------

    def open(self, feed: str) -> Feed:
        """The feed of this name. A new one holds the mark; one that left with grace continues."""
        known = self.feeds.get(feed)
        if known is None:
            if self.ledger is None:
                return self.feeds.open(feed, self.mark)
            self.ledger.settle(self.feeds, self.clocking.by_tuples)
            known = self.feeds.open(feed, self.mark)
            known.passed = self.ledger.floor
            return known
        known.leaves_us = None
        return known

    def close(self, feed: str, *, ended: bool) -> None:
        """Release the feed's hold. When the last one has left, the mark stays, or ends with a stream that is over."""
        if self.ledger is not None and len(self.feeds) == 1:
            self.ledger.settle(self.feeds, self.clocking.by_tuples)
        self.feeds.close(feed)
        self.groups.leave(feed)
        if len(self.feeds):
            self._raise_mark(self.feeds.least(), "close")
            self._raise_groups("close")
        elif ended:
            if self.ledger is not None:
                self.ledger.reach(MAX_TIME)
            self._raise_mark(MAX_TIME, "close")

    # -- arrivals ------------------------------------------------------------------------------------------------------

    def arrive(
        self,
        feed_name: str,
        batch: Batch,
        now_us: int,
        heard_us: int,
        at_us: Int64s | None = None,
        before_us: Int64s | None = None,
    ) -> tuple[Refused | None, Refused | None]:
        """Take tuples in: stamp them or judge them, and queue those on time. `at_us`, `before_us`: as in the event.

        Returns those that were late, and those too far in the future to be believed.
        """
        feed = self.feeds.by_name.get(feed_name) or self.open(feed_name)
        count = len(batch.ts)
        self.last_us = now_us
        feed.tuples += count
        feed.owed += count
        feed.owed_bytes += self._weigh(batch, count) if self.output.texts else count * self.output.width
        self.counts.input_tuples += count
        self.counts.executions += 1
        timestamps = self.clocking.timestamps
        if timestamps == "external":
            arrived = batch.arrived(now_us) if at_us is None else batch.arrived_at(at_us)
            return self._judge(feed, arrived, now_us, heard_us, before_us)
        if self.mark == MAX_TIME:
            return self._after_the_end(feed, batch.stamped(now_us, now_us)), None
        stamp = MIN_TIME if timestamps == "latent" else max(now_us, self.mark)
        if self.clocking.history:
            judged = batch.stamped(now_us if timestamps == "latent" else stamp, now_us)
            self.judged = Judged(judged, None, constant_int64(self.mark, count))
        self._queue(batch.stamped(stamp, now_us), stamp)
        if timestamps == "internal":
            self._raise_mark(stamp, "tuple")
        return None, None

    def _weigh(self, batch: Batch, count: int) -> int:
        """The bytes of a batch. The estimate per tuple rises at once and falls slowly."""
        weight = batch.weight
        self.tuple_bytes = max(weight // count, self.tuple_bytes - (self.tuple_bytes >> 6))
        return weight

    def _after_the_end(self, feed: Feed, batch: Batch) -> Refused:
        """The stream is over: no stamp is high enough for later tuples."""
        count = len(batch)
        feed.late += count
        self.late += count
        marks = constant_int64(MAX_TIME, count)
        if self.clocking.history:
            self.judged = Judged(batch, np.ones(count, np.bool_), marks)
        return Refused(batch, marks)

    def _judge(
        self, feed: Feed, batch: Batch, now_us: int, heard_us: int, before: Int64s | None
    ) -> tuple[Refused | None, Refused | None]:
        far = late = None
        ts = batch.ts
        newest: int = ts.item(-1)
        first, rising = newest, True
        if len(ts) > 1:
            first, rising = ts.item(0), not (ts[1:] < ts[:-1]).any()
            if not rising:
                newest = int(ts.max())
        if self.clocking.ahead_us is not None and newest > now_us + self.clocking.ahead_us:
            near: Bools = ts <= now_us + self.clocking.ahead_us
            far, batch = self._too_far(batch, near, now_us + self.clocking.ahead_us)
            ts, before = batch.ts, None if before is None else before[near]
            if not len(ts):
                return None, far
            first, newest = ts.item(0), int(ts.max())
        doubtful = not (rising and first >= self.mark) or self.groups.ahead > 0
        if before is not None and not doubtful:
            doubtful = bool((ts < before).any())
        if doubtful or self.clocking.history:
            marks, of_stream, promised = self._marks_met(feed, batch, before)
            below: Bools = ts < marks
            if self.clocking.history:
                self.judged = Judged(batch, below, marks)
            if doubtful:
                self._note(feed, ts, None if of_stream is marks else below & (ts >= of_stream))
                if below.any():
                    late, batch = self._late(feed, batch, marks, below, promised)
        if not doubtful and first < feed.passed:
            self._note(feed, ts)
        if len(batch.ts):
            self._queue(batch, newest if late is None else int(batch.ts.max()))
        # A tuple that is late for its group still shows how far its feed is.
        if len(batch.ts) or self.groups.ahead:
            self._come_to(feed, newest, heard_us)
        return late, far

    def passed(self, feed: Feed, newest: int, heard_us: int) -> None:
        """Tuples of the feed up to this time are with other engines."""
        self.newest = max(self.newest, newest)
        self._come_to(feed, newest, heard_us)

    def _come_to(self, feed: Feed, newest: int, heard_us: int) -> None:
        """The feed has come to this time."""
        if newest > feed.newest:
            feed.newest = newest
            if newest > feed.passed:
                feed.passed = newest
            feed.heard_us = heard_us
            if feed.held_since is not None:
                feed.held_since = heard_us
        if self.clocking.by_tuples:
            bound = max(newest - self.clocking.disorder_us, MIN_TIME)
            if bound > feed.mark:
                self.promise(feed, bound, "tuple")

    def _late(
        self, feed: Feed, batch: Batch, marks: Int64s, below: Bools, promised: Int64s | int
    ) -> tuple[Refused, Batch]:
        """Those below the marks that they met, and the others. `promised`: the feed's own word about each."""
        broken = int((batch.ts < promised).sum())
        late = Refused(batch.take(below), marks[below], broken)
        feed.late += len(late.batch)
        feed.broken += broken
        self.late += len(late.batch)
        self.late_by_max_us = max(self.late_by_max_us, int((late.marks - late.batch.ts).max()))
        self.broken += broken
        return late, batch.take(~below)

    def _too_far(self, batch: Batch, near: Bools, bound_us: int) -> tuple[Refused, Batch]:
        far = batch.take(~near)
        self.far += len(far)
        return Refused(far, constant_int64(bound_us, len(far))), batch.take(near)

    def _marks_met(self, feed: Feed, batch: Batch, before: Int64s | None) -> tuple[Int64s, Int64s, Int64s | int]:
        """The mark of the stream and of its group as each tuple met it: the tuples before it in the batch have moved it
        too, or those `before` it that are elsewhere. Then the stream's mark alone, and the feed's own
        promise."""
        ts = batch.ts
        others = self.feeds.min_excluding(feed)
        own = np.full(len(ts), feed.mark, np.int64)
        if self.clocking.by_tuples:
            if before is None:
                before = np.maximum.accumulate(np.concatenate(([MIN_TIME], ts[:-1])))
            disorder = self.clocking.disorder_us
            floor = MIN_TIME + disorder
            own = np.maximum(own, np.where(before < floor, MIN_TIME, before - disorder))
        marks: Int64s = np.maximum(np.minimum(own, others), self.mark)
        if not self.groups:
            return marks, marks, feed.promised
        key = self.clocking.key
        columns, valid = [batch.columns[at] for at in key], [batch.valid[at] for at in key]
        of_groups, promised = self.groups.met(feed.name, columns, valid, own, partial(self._sides, but=feed.name))
        return np.maximum(marks, of_groups), marks, np.maximum(promised, feed.promised)

    def _queue(self, batch: Batch, newest_us: int) -> None:
        self.counts.output_tuples += len(batch.ts)
        if newest_us > self.newest:
            self.newest = newest_us
        self.output.put(batch)

    # -- promises ------------------------------------------------------------------------------------------------------

    def promise(self, feed: Feed, value_us: int, cause: Cause) -> bool:
        """The feed will send nothing below this time; say whether that told anything new downstream."""
        if cause != "tuple":
            feed.assured = max(feed.assured, value_us)
            feed.passed = max(feed.passed, value_us)
            if cause == "client":
                feed.promised = max(feed.promised, value_us)
        if value_us <= feed.mark:
            return False
        before = feed.mark
        feed.mark = value_us
        useful = before <= self.mark and self._raise_mark(self.feeds.least(), cause)
        if self.groups.ahead:
            useful |= self._raise_groups(cause)
        return useful

    def promise_group(self, feed: Feed, group: Group, value_us: int, cause: Cause) -> bool:
        """The feed will send nothing of a group below this time; say whether that told anything new downstream.

        A promise below the feed's own mark, or its last one for the group, has no effect.
        """
        return value_us > feed.mark and self.groups.promise(feed.name, group, value_us) and self._raise_groups(cause)

    def group_of(self, columns: Equal) -> Group:
        """The group that these columns and their values name; () if it is none, or no promise about it is taken."""
        values = dict(columns)
        key = self.clocking.key
        return tuple(values[at] for at in key) if values.keys() >= set(key) and not self.groups.full else ()

    def holding(self, need_us: int, group: Group) -> list[Feed]:
        """The feeds that have promised less, of the group if one is named."""
        feeds = self.feeds.below(need_us)
        return [feed for feed in feeds if self.groups.promised(feed.name, group) < need_us] if group else feeds

    def _raise_groups(self, cause: Cause) -> bool:
        """Put promises about the groups whose marks have risen, if they reach a time of use."""
        useful = False
        if self.groups:
            above = self.output.grain.above
            for group, before, mark in self.groups.rise(self._sides):
                if mark >= above(before):
                    equal = tuple(zip(self.clocking.key, group, strict=True))
                    useful |= self.output.put_clause(Clause(equal, ((TIME, mark),)))
            self.punctuations[cause] += useful
        return useful

    def _sides(self, names: Collection[Hashable], but: Hashable = None) -> tuple[Mapping[Hashable, int], int]:
        """The marks of these feeds, and the least mark of the others `but` one."""
        marks = {feed.name: max(feed.mark, self.mark) for feed in self.feeds if feed.name != but}
        own: dict[Hashable, int] = {name: mark for name, mark in marks.items() if name in names}
        return own, min((mark for name, mark in marks.items() if name not in names), default=MAX_TIME)

    def reach(self, value_us: int, cause: Cause) -> bool:
        """Raise the mark without any feed's word: the engine stamps the stream, or its user has promised that much.

        Says whether that told anything of use downstream.
        """
        if self.ledger is not None:
            self.ledger.reach(value_us)
        if self._raise_mark(value_us, cause):
            return True
        # An operator that was added later may not have got the promise in force, by arc or as punctuation.
        return announce(self.mark, self.output, self.ets_arcs) if self.ets_arcs else self.output.punctuate(self.mark)

    def _raise_mark(self, value_us: int, cause: Cause) -> bool:
        if value_us <= self.mark:
            return False
        self.mark = value_us
        if self.clocking.timestamps == "latent" and value_us != MAX_TIME:
            return False
        if self.ets_arcs and cause != "tuple":
            useful = announce(value_us, self.output, self.ets_arcs)
        else:
            useful = self.output.punctuate(value_us)
        self.punctuations[cause] += useful
        return useful

    # -- the late ledger -----------------------------------------------------------------------------------------------

    def _note(self, feed: Feed, ts: Int64s, barred: Bools | None = None) -> None:
        """Tuples that some disorder may be too small for: their feed or the mark has passed the first of them."""
        if self.ledger is not None:
            self.ledger.note(self.feeds, feed, ts, self.clocking.by_tuples, barred)

    @property
    def _judged(self) -> int:
        """The tuples that were taken in or found late."""
        return self.counts.input_tuples - self.far

    def lateness(self) -> Lateness | None:
        """Which disorder would have kept how many tuples; None if the stream's tuples are stamped."""
        return None if self.ledger is None else self.ledger.summary(self._judged)

    def reopen_ledger(self, now_us: int) -> None:
        """Count later tuples alone: the disorder is another one."""
        if self.ledger is not None:
            self.ledger = self.ledger.reopened(now_us, self._judged, self.clocking.disorder_us)

    def save_ledger(self) -> list[Any] | None:
        return None if self.ledger is None else self.ledger.save(self.feeds)

    def restore_ledger(self, data: Sequence[Any] | None, now_us: int) -> None:
        """The saved ledger; a state that has none is continued with an empty one."""
        if data is not None:
            self.ledger = LateLedger.restore(data, self.feeds)
        elif self.clocking.timestamps == "external":
            for feed in self.feeds:
                feed.assured = feed.promised
            self.ledger = LateLedger(now_us, self._judged, self.clocking.disorder_us)
            self.ledger.reach(self.mark)
        if self.ledger is not None:
            for feed in self.feeds:
                feed.passed = max(feed.newest, feed.assured, self.ledger.floor)

    # ------------------------------------------------------------------------------------------------------------------

    def low_water(self) -> int:
        return self.output.promise

    def first_read(self, start: Literal["newest", "watermark"]) -> int | None:
        """From which time on a new query reads, if any tuple has come: above the newest, or from the mark on."""
        if self.newest == MIN_TIME:
            return None
        return self.newest + 1 if start == "newest" else min(self.mark, self.newest + 1)

    def save(self) -> list[Any]:
        counts = [self.late, self.broken, self.far, self.late_by_max_us, list(self.punctuations.values())]
        clocking = list(astuple(self.clocking))
        groups = self.groups.save() if self.clocking.key else None
        return [clocking, self.mark, self.newest, self.last_us, self.feeds.save(), counts, self.tuple_bytes, groups]

    def restore(self, data: Sequence[Any]) -> None:
        clocking, self.mark, self.newest, self.last_us, feeds, counts, self.tuple_bytes, groups = data
        self.clocking = Clocking(*clocking)
        self.late, self.broken, self.far, self.late_by_max_us, punctuations = counts
        self.feeds.restore(feeds)
        if groups is not None:
            self.groups.restore(groups)
        self.punctuations = dict(zip(CAUSES, punctuations, strict=True))
