"""The queue of windows between an arc and one reader."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from millrace.operators.frame.windows import TimeWindow
from millrace.operators.queues.load import Load
from millrace.operators.queues.pages import Pages
from millrace.operators.queues.queue import Floor, Key, Paging, Queue, Staleness
from millrace.operators.queues.reads import NextReads, Reads
from millrace.operators.queues.update import REMEMBERED, WHOLE, Scheduler
from millrace.operators.queues.windows.arrivals import Arrivals, Commit, EagerArrivals, LazyArrivals
from millrace.operators.queues.windows.buffers import Blocks, WindowBuffer
from millrace.operators.queues.windows.freshness import StalenessLedger
from millrace.operators.queues.windows.key_state import KeyState, Processing
from millrace.protocol import Schema
from millrace.values.batch import Batch, Int64s, listed
from millrace.values.eventtime import MAX_TIME, MIN_TIME

# Tuples of a block, and blocks of a page.
BLOCK: Final = 8
BLOCKS: Final = 32
# A key with its two empty buffers in CPython, and its place in the table of keys.
KEY_BYTES: Final = 900
# From how many windows the mean number of tuples of one is.
MEAN_OF: Final = 256


class FinishedWindow(NamedTuple):
    """A window that has ended: the number of rows of the batch before its end, the key, and the window's bounds."""

    rows: int
    key: Key
    start_us: int
    end_us: int


class ServedTuples(NamedTuple):
    """Tuples of committed windows with their marks: the end of the window that a tuple opens, or what else to do."""

    batch: Batch | None
    marks: Int64s
    finished: Sequence[FinishedWindow]


class WindowQueue(Queue):
    """Per key the newest window, tuples and marks.

    A window has fully arrived when the arc promises so. Where tuples of a key arrive in order (`by_tuples`), it also
    has when one at its last microsecond or later has arrived. Windows that start before `begin_us` do not count. Under
    AUTO all windows of a key count, one after the other, while the load is low.

    `_line` has the keys whose update waits, in order: FIFO sends an updated key to the end, IN-PLACE keeps its place,
    LINECUTTING puts keys that rarely change first. DEADLINE serves the key first whose age is the greatest multiple of
    the time until it is read next. Of `_servable` of them no earlier window is being processed.
    """

    def __init__(
        self,
        schema: Schema,
        key: Sequence[int],
        window: TimeWindow,
        commit: Commit,
        scheduler: Scheduler | Literal["auto"],
        *,
        by_tuples: bool = True,
        begin_us: int = MIN_TIME,
        block: int = BLOCK,
        blocks: int = BLOCKS,
    ) -> None:
        self.window = window
        self.begin_us = begin_us
        self.by_tuples = by_tuples
        self.timed = False
        self.superseded = 0
        self.last = ServedTuples(None, np.empty(0, np.int64), ())
        self.newest_us = MIN_TIME
        self._key = tuple(key)
        self._lazy = commit == "lazy"
        self._pages = Pages(schema, blocks, block)
        self.floor = Floor()
        self._blocks = Blocks(self._pages, self.floor)
        self._states: dict[Key, KeyState] = {}
        self.load = Load() if scheduler == "auto" else None
        self._scheduler: Scheduler = "inplace" if scheduler == "auto" else scheduler
        self._reads: NextReads | None = None
        self.cost_us = 0.0
        self._taken = self._ended = 0  # the tuples of the last windows, and how many windows
        self._arrived = 0  # windows of this span
        self._line: OrderedDict[Key, KeyState] = OrderedDict()
        self._cut_share = 0  # the share of recent services that went to keys that cut the line, of WHOLE
        self._servable = 0
        self._ready: deque[Key] = deque()
        # Keys whose windows a later promise may end: their newest tuple is in a window that has not ended.
        self._open: dict[Key, KeyState] = {}
        self._takeable = 0
        self._committed = 0
        self._promise = MIN_TIME
        self._staleness = StalenessLedger()
        self._forget_at = REMEMBERED

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        return not self._appends

    @property
    def _appends(self) -> bool:
        return self.load is not None and not self.load.supersedes

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    def costs(self, us_per_tuple: float) -> None:
        self.cost_us = us_per_tuple
        if self.load is not None:
            self.load.cost_us = us_per_tuple

    @property
    def _window_us(self) -> float:
        """What processing a window costs (section 6.1.2): its tuples, as many as the last windows had."""
        return self.cost_us * self._taken / self._ended if self._ended else self.cost_us

    def reschedule(self, scheduler: Scheduler | Literal["auto"], now_us: int) -> None:
        """Schedule by another policy from now on; keys in line keep their places."""
        appended = self._appends
        self._reads = None
        if scheduler != "auto":
            self.load, self._scheduler = None, scheduler
        elif self.load is None:
            self.load, self._scheduler = Load(), "inplace"
            self._arrived = 0
        if appended and not self._appends:
            self._supersede(now_us)

    def read_at(self, reads: Sequence[Reads]) -> None:
        """From now on, serve keys for these readers, if the policy is DEADLINE."""
        self._reads = NextReads(reads) if reads and self._scheduler == "deadline" else None

    # -- in ------------------------------------------------------------------------------------------------------------

    def enqueue(self, batch: Batch, now_us: int) -> None:
        if self.load is not None:
            self._measure(self.load, len(batch), now_us)
        self._staleness.pass_time(len(self._states), now_us)
        self.newest_us = max(self.newest_us, int(batch.ts.max()))
        sources: list[int] = []
        targets: list[int] = []
        times, arrivals = batch.ts.tolist(), batch.arrival.tolist()
        keys = update_keys(batch, self._key)
        for row, (key, time_us, arrival_us) in enumerate(zip(keys, times, arrivals, strict=True)):
            for target in self._arrive(key, self._state(key), time_us, arrival_us):
                sources.append(row)
                targets.append(target)
        if targets:
            self._pages.write(np.array(targets, np.int64), batch.take(np.array(sources, np.int64)))
        # Not before the batch is written: a block that returns may take its page along.
        self._blocks.give_back()
        if len(self._states) > self._forget_at:
            self._forget()

    def _measure(self, load: Load, tuples: int, now_us: int) -> None:
        """Count arriving tuples, each once per window that it is in. After a span, follow the load."""
        if load.span_over(now_us):
            if load.turns(now_us, self.superseded, self._arrived) and load.supersedes:
                self._supersede(now_us)
            load.start_span(now_us, self.superseded, empty=not self.pending)
            self._arrived = 0
        load.arrived += tuples * self.window.size_us / self.window.slide_us

    def supersede(self, now_us: int) -> None:
        """Memory is short: supersede, whatever the load is, until a load shows that this is not needed."""
        assert self.load is not None
        self.load.supersede(now_us)
        self._supersede(now_us)

    def _supersede(self, now_us: int) -> None:
        """From now on only the newest window of each key counts."""
        for key, state in self._states.items():
            state.ends.clear()
            self._close(key, state, self._reach(state), now_us)
            self._settle(key, state, self._reach(state))
        self._blocks.give_back()

    def _state(self, key: Key) -> KeyState:
        state = self._states.get(key)
        if state is None:
            policy: type[Arrivals] = LazyArrivals if self._lazy else EagerArrivals
            arrivals = policy(self.window, self.begin_us, WindowBuffer(self._blocks))
            processing = Processing(self.window, WindowBuffer(self._blocks))
            state = self._states[key] = KeyState(arrivals, processing)
        return state

    def _arrive(self, key: Key, state: KeyState, time_us: int, arrival_us: int) -> list[int]:
        """Let a tuple count; the rows of the pages for it."""
        window, arrivals, processing = self.window, state.arrivals, state.processing
        start_us = window.start(time_us)
        rows: list[int] = []
        inside = self.begin_us <= start_us and time_us < start_us + window.size_us
        if inside:
            self._open[key] = state
            if isinstance(arrivals, EagerArrivals):
                older = arrivals.start(start_us, time_us)
                if older is not None:
                    self._update(key, state, older, arrival_us)
            # The window in processing and those that arrive each have a copy (section 6.2.2).
            if processing.covers(time_us):
                rows.append(processing.buffer.append(time_us))
            row = arrivals.store(time_us)
            if row is not None:
                rows.append(row)
        if time_us > arrivals.reached_us:
            arrivals.reached_us = time_us
        reach_us = self._reach(state)
        if self.by_tuples or (inside and self._lazy):
            # Where tuples close no windows, a window that the promise has closed has arrived with its first tuple.
            self._close(key, state, reach_us, arrival_us)
        self._settle(key, state, reach_us)
        return rows

    def _reach(self, state: KeyState) -> int:
        """Windows of the key that end here or earlier have fully arrived."""
        return max(self._promise, state.arrivals.reached_us + 1) if self.by_tuples else self._promise

    def _close(self, key: Key, state: KeyState, reach_us: int, arrival_us: int) -> None:
        """Let the windows of the key that have fully arrived count: the application lacks them."""
        arrivals = state.arrivals
        ended_us = self.window.last_ended(reach_us)
        if arrivals.closed_us is not None and ended_us <= arrivals.closed_us:
            return
        if self._appends:
            self._close_next(key, state, ended_us, arrival_us)
            return
        count = arrivals.close(ended_us, self.by_tuples)
        self._arrived += count
        if count:
            assert arrivals.closed_us is not None
            state.freshness.update(arrivals.closed_us, arrival_us)
            if self._lazy:
                self._update(key, state, count - 1, arrival_us)

    def _close_next(self, key: Key, state: KeyState, ended_us: int, arrival_us: int) -> None:
        """While all windows count, let the next one of the key count, unless one waits already."""
        state.note_end(ended_us, arrival_us)
        arrivals = state.arrivals
        assert isinstance(arrivals, LazyArrivals)
        if arrivals.pending_us is None and arrivals.close_next(ended_us):
            assert arrivals.closed_us is not None
            since_us = state.arrival_of(arrivals.closed_us)
            state.freshness.update(arrivals.closed_us, since_us)
            self._update(key, state, 0, since_us)

    def _update(self, key: Key, state: KeyState, older: int, arrival_us: int) -> None:
        """Place a key that has a new update. It supersedes the one in line and the older ones that came with it."""
        line, turn = self._line, state.turn
        turn.update(arrival_us)
        # As in queues/kernel.py: keys that cut the line may take what the others leave.
        left = WHOLE - self._cut_share
        cuts = self._scheduler == "linecutting" and turn.rarer(2.5 * self._window_us * (len(line) + 1), left / WHOLE)
        in_line = key in line
        self.superseded += older + in_line
        if not in_line:
            turn.since_us = arrival_us
            line[key] = state
            self._servable += state.processing.start_us is None
        if cuts:
            self._cut_share += WHOLE // (64 + len(line))
            line.move_to_end(key, last=False)
        elif in_line and self._scheduler == "fifo":
            line.move_to_end(key)

    def _settle(self, key: Key, state: KeyState, reach_us: int) -> None:
        """Count the key's tuples; an IDLE key whose window has a tuple or has fully arrived is READY (figure 10)."""
        processing = state.processing
        if processing.idle and (processing.buffer.count or processing.arrived(reach_us)):
            processing.idle = False
            self._ready.append(key)
        self._takeable += state.count(reach_us)

    def promised(self, value_us: int, now_us: int) -> None:
        before, self._promise = self._promise, max(value_us, self._promise)
        window = self.window
        if before != MIN_TIME and window.last_ended(before) == window.last_ended(self._promise):
            return
        for key, state in list(self._open.items()):
            reach_us = self._reach(state)
            self._close(key, state, reach_us, now_us)
            self._settle(key, state, reach_us)
            if window.start(state.arrivals.newest_us) + window.size_us <= self._promise:
                del self._open[key]
        self._blocks.give_back()

    # -- out -----------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return self._takeable

    @property
    def holds(self) -> bool:
        return bool(self._ready or self._line or self._blocks.count or self._committed)

    @property
    def pending(self) -> bool:
        """Whether the queue can serve a tuple or the end of a window."""
        return bool(self._ready or self._servable)

    def next_end(self) -> int | None:
        """The end of the next window that a tuple here is or may be in; None if no tuple waits for a window's end."""
        if not self.holds:
            return None
        window = self.window
        known = self._promise if self._promise != MIN_TIME else self.newest_us - window.size_us
        floor = self.floor_us()
        start = window.last_ended(known if floor == MAX_TIME else max(known, floor)) + window.slide_us
        return start + window.size_us if start <= self.newest_us else None

    def dequeue(self, limit: int, now_us: int) -> Batch | None:
        """The next tuples; `last` has their marks and the windows that end with them."""
        self.last = self.serve(limit if self.load is None else self.load.most(limit), now_us)
        return self.last.batch

    def serve(self, limit: int, now_us: int) -> ServedTuples:
        """Process committed windows, and commit to others when these have no tuples left: at most `limit` tuples, and
        the windows that end."""
        self._staleness.show(now_us)
        rows: list[int] = []
        marks: list[int] = []
        finished: list[FinishedWindow] = []
        while True:
            if not self._ready:
                # A commitment takes no tuple, but a window that arrives before it is needed may be newer.
                if len(rows) == limit or not self._commit(now_us):
                    break
                continue
            key = self._ready[0]
            state = self._states[key]
            processing = state.processing
            if len(rows) == limit and processing.buffer.count:
                break
            processing.take(limit - len(rows), rows, marks)
            if not processing.buffer.count:
                self._ready.popleft()
                if processing.arrived(self._reach(state)):
                    finished.append(self._finish(key, state, len(rows)))
                    if not rows:
                        self._staleness.show(now_us)  # the queue served no tuple for it
                else:
                    processing.idle = True
            self._takeable += state.count(self._reach(state))
        self._taken += len(rows)
        if self.load is not None:
            self.load.served += len(rows)
            self.load.emptied |= not self.pending
        batch = self._pages.read(np.array(rows, np.int64)) if rows else None
        self._blocks.give_back()
        self.floor.gone += len(rows)
        self._staleness.served_us = now_us
        if not self.timed:
            self._staleness.show(now_us)
        return ServedTuples(batch, np.array(marks, np.int64), finished)

    def _commit(self, now_us: int) -> bool:
        """Commit to the window of the first key in line that has none in processing."""
        if not self._servable:
            return False
        key = self._next_key(now_us)
        self._cut_share -= self._cut_share // (64 + len(self._line))
        state = self._line.pop(key)
        self._servable -= 1
        arrivals, processing, start_us = state.arrivals, state.processing, state.arrivals.pending_us
        assert start_us is not None
        self._staleness.commit(key, state.freshness, start_us, state.turn.since_us, now_us)
        processing.open(start_us, arrivals.commit(processing.buffer))
        self._committed += 1
        self._ready.append(key)
        if self._appends:
            self._close(key, state, self._reach(state), now_us)
        self._takeable += state.count(self._reach(state))
        return True

    def _next_key(self, now_us: int) -> Key:
        """The key in line that is served next, of those that have no window in processing."""
        servable = (key for key, state in self._line.items() if state.processing.start_us is None)
        if self._reads is None:
            return next(servable)
        keys = list(servable)
        since = np.array([self._line[key].turn.since_us for key in keys], np.int64)
        urgency = self._reads.urgency(self._reads.groups(keys), since, now_us, self._window_us)
        return keys[int(np.argmax(urgency))]

    def _finish(self, key: Key, state: KeyState, rows: int) -> FinishedWindow:
        start_us, state.processing.start_us = state.processing.start_us, None
        assert start_us is not None
        self._committed -= 1
        self._ended += 1
        if self._ended == MEAN_OF:
            self._taken, self._ended = self._taken // 2, self._ended // 2
        self._servable += state.arrivals.pending_us is not None
        self._staleness.due[key] = state.freshness
        return FinishedWindow(rows, key, start_us, start_us + self.window.size_us)

    @property
    def held(self) -> int:
        return self._blocks.count

    def _least(self) -> int:
        buffers = [b for s in self._states.values() for b in (s.arrivals.buffer, s.processing.buffer) if b.count]
        return int(self._pages.ts[np.concatenate([buffer.rows() for buffer in buffers])].min())

    def _forget(self) -> None:
        """Drop blank keys whose windows have all ended."""
        for key, state in list(self._states.items()):
            if state.blank and self._promise >= state.arrivals.newest_us + self.window.size_us:
                del self._states[key]
                self._open.pop(key, None)
        self._forget_at = max(REMEMBERED, 2 * len(self._states))

    # -- staleness -----------------------------------------------------------------------------------------------------

    def measured(self, us: float, now_us: int) -> None:
        self._staleness.show(self._staleness.served_us + round(us))

    def stale_us(self, key: Key, now_us: int) -> int:
        """For how long the application's result of a key has been out of date."""
        oldest = self._states[key].freshness.oldest_us
        return 0 if oldest is None else now_us - oldest

    def staleness(self, now_us: int, worst: int = 0) -> Staleness:
        states = self._states.items()
        ages = [(k, max(0, now_us - s.turn.since_us)) for k, s in states if s.arrivals.pending_us is not None]
        return self._staleness.report(now_us, worst, ages, [state.freshness for _, state in states])

    def older(self, now_us: int, than_us: int) -> list[tuple[Key, int]]:
        """Keys whose results lack a window that has arrived, and for how long."""
        ages = [(key, self.stale_us(key, now_us)) for key in self._states]
        return [(key, age) for key, age in ages if age > than_us]

    @property
    def paging(self) -> Paging:
        pages, blocks = self._pages, self._pages.in_use()
        times = sum(state.arrivals.buffer.count for state in self._states.values()) if self._lazy else 0
        books = KEY_BYTES * len(self._states) + 8 * (blocks + times)
        return Paging(pages.taken, pages.free, pages.returned, blocks, pages.nbytes + books)

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self) -> Any:
        times, sums = self._staleness.save()
        load = [] if self.load is None else [*self.load.save(), self._arrived]
        return [
            [[list(key), *state.save()] for key, state in self._states.items()],
            [list(key) for key in self._line],
            [list(key) for key in self._ready],
            [list(key) for key in self._staleness.due],
            [list(key) for key in self._open],
            [
                *(self._scheduler, self.superseded, self._takeable, self._promise, self.newest_us),
                *(self._cut_share, self._taken, self._ended, *load),
            ],
            [*times, self.cost_us, self._forget_at],
            [*sums, self.floor.save()],
            [self.begin_us, self.by_tuples],
            self._pages.save(),
        ]

    def restore(self, data: Any) -> None:
        states, line, ready, due, open_, own, times, sums, bounds, pages = data
        self._scheduler, self.superseded, self._takeable, self._promise, self.newest_us, *more = own
        self._cut_share, self._taken, self._ended = (*more[:3], 0, 0, 0)[:3]  # older states have one or none of them
        if self.load is not None:
            *load, self._arrived = more[3:]
            self.load.restore(*load)
        *times, self.cost_us, self._forget_at = times
        *sums, floor = sums
        self.begin_us, self.by_tuples = bounds
        self._pages.restore(pages)
        self._blocks.count = 0
        self.floor.restore(floor)
        self._states.clear()
        for key, *state in states:
            self._state(tuple(key)).restore(*state)
        self._line = OrderedDict((key, self._states[key]) for key in map(tuple, line))
        self._servable = sum(state.processing.start_us is None for state in self._line.values())
        self._ready = deque(map(tuple, ready))
        self._open = {key: self._states[key] for key in map(tuple, open_)}
        self._staleness.restore(times, sums)
        self._staleness.due = {key: self._states[key].freshness for key in map(tuple, due)}
        self._committed = sum(state.processing.start_us is not None for state in self._states.values())


def update_keys(batch: Batch, key: Sequence[int]) -> Iterable[Key]:
    """The update key of each row as Python values; without key columns all rows have one key."""
    columns = [listed(batch.columns[at], batch.valid[at]) for at in key]
    return zip(*columns, strict=True) if columns else [()] * len(batch)
