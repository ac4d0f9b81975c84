"""Update queues of windows: per key the newest window, whole or not at all (UPS, sections 6 and 7.2).

An update is a window here. LAZY commits to the newest window that has fully arrived, EAGER to the newest that has
begun, and takes its tuples as they come. What a key has goes through the states of figure 10:

    WAIT    it has an update that nobody has committed to; it stands in line as the key scheduler says
    READY   its window is being processed and has tuples to give (or only its end)
    IDLE    its window is being processed and has not fully arrived: there is nothing to give at present

A key may wait while an earlier window of its own is being processed, and then it is not served before that one is
done: a window is processed whole or dropped whole. Tuples lie in blocks of pages, in two buffers per key (figure 11):
what arrives, and what is being processed. The newest window is decided when it is committed to; all older ones are
superseded.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from millrace.operators.batch import Batch, Int64s
from millrace.operators.eventtime import MAX_TIME, MIN_TIME
from millrace.operators.queues.pages import Pages
from millrace.operators.queues.queue import Floor, Paging, Queue, Staleness
from millrace.operators.queues.update import BUCKETS, REMEMBERED, Scheduler
from millrace.operators.spec import TimeWindow
from millrace.protocol import Schema

Commit = Literal["lazy", "eager"]
Key = tuple[Any, ...]

# Tuples of a block, and blocks of a page.
BLOCK: Final = 8
BLOCKS: Final = 32

# What the operator is to do with a tuple (table 1), where it is not the end of a window to open.
DISALLOW: Final = 0
UPDATE: Final = -1


class Done(NamedTuple):
    """A window that is over: after so many rows of the batch, the key, and the window's bounds."""

    rows: int
    key: Key
    start_us: int
    end_us: int


class Served(NamedTuple):
    """Tuples of committed windows with their marks: the end of the window that a tuple opens, or what else to do."""

    batch: Batch | None
    marks: Int64s
    done: Sequence[Done]


class Buffered:
    """A window buffer: tuples in the order in which they came, in blocks that follow each other.

    Tuples go in at the one end and out at the other (the paper's FixedLengthContiguousZone is a block with its two
    offsets; only the first block has an offset to dequeue from, and only the last one to enqueue at). A block from
    which everything was taken is given back.
    """

    __slots__ = ("_begin", "_pages", "count", "locations")

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self.locations = array("q")
        self._begin = 0
        self.count = 0

    def append(self) -> int:
        """The row of the pages where the next tuple belongs."""
        width = self._pages.width
        block, offset = divmod(self._begin + self.count, width)
        if block == len(self.locations):
            self.locations.append(self._pages.allocate_one())
        self.count += 1
        return self.locations[block] * width + offset

    def rows(self) -> Int64s:
        """Where its tuples lie, in order."""
        return self._rows(self._begin, self.count)

    def _rows(self, begin: int, count: int) -> Int64s:
        width = self._pages.width
        first, last = begin // width, -(-(begin + count) // width)
        blocks = np.array(self.locations[first:last], np.int64)[:, None] * width + np.arange(width)
        begin -= first * width
        rows: Int64s = blocks.ravel()[begin : begin + count]
        return rows

    def take(self, limit: int) -> Int64s:
        """The rows of the first tuples, which it lets go of; their blocks have to be kept until they are read."""
        count = min(limit, self.count)
        found = self._rows(self._begin, count)
        self._begin += count
        self.count -= count
        return found

    def trim(self, freed: list[int], *, whole: bool = False) -> None:
        """Give up the blocks from which everything was taken, or the whole buffer."""
        if whole:
            self.count = 0
        if not self.count:
            freed.extend(self.locations)
            del self.locations[:]
            self._begin = 0
        elif self._begin >= self._pages.width:
            blocks, self._begin = divmod(self._begin, self._pages.width)
            freed.extend(self.locations[:blocks])
            del self.locations[:blocks]

    def drop_below(self, time_us: int, freed: list[int]) -> int:
        """Let go of the first tuples that are below a time; how many."""
        width, ts = self._pages.width, self._pages.ts
        dropped = 0
        while self.count:
            row = self.locations[self._begin // width] * width + self._begin % width
            if ts.item(row) >= time_us:
                break
            self._begin += 1
            self.count -= 1
            dropped += 1
        self.trim(freed)
        return dropped

    def save(self) -> list[Any]:
        return [list(self.locations), self._begin, self.count]

    def restore(self, data: Sequence[Any]) -> None:
        locations, self._begin, self.count = data
        self.locations = array("q", locations)


class Times:
    """The times of the tuples that arrive for a key, in order, so that those of a window are found and counted
    without a look at each. Eight bytes a tuple; where tuples come in order of time it takes them at its end."""

    __slots__ = ("_begin", "_sorted")

    def __init__(self, times: Iterable[int] = ()) -> None:
        self._sorted = array("q", sorted(times))
        self._begin = 0

    def add(self, time_us: int) -> None:
        if self._sorted and time_us < self._sorted[-1]:
            insort(self._sorted, time_us, self._begin)
        else:
            self._sorted.append(time_us)

    def first(self, from_us: int) -> int | None:
        """The least time that is not below."""
        at = bisect_left(self._sorted, from_us, self._begin)
        return self._sorted[at] if at < len(self._sorted) else None

    def count(self, from_us: int, below_us: int) -> int:
        at = bisect_left(self._sorted, from_us, self._begin)
        return bisect_left(self._sorted, below_us, at) - at

    def drop_below(self, time_us: int) -> None:
        self._begin = bisect_left(self._sorted, time_us, self._begin)
        if self._begin * 2 >= len(self._sorted):  # moving what stays is paid for by what goes
            del self._sorted[: self._begin]
            self._begin = 0


@dataclass(slots=True)
class KeyCell:
    """What is known of a key.

    arriving, processing   its two window buffers
    times         of what arrives, as far as a window may still need it (LAZY)
    inside        how many of them are in the window that waits (LAZY)
    reached       the newest time of its tuples; newest and prior are the two newest of those that are in a window
    closed, begun the start of the newest window that has fully arrived, and of the newest that has begun
    waits         the start of the window that waits to be committed to, and since when the key has waited
    committed     the start of the window that is being processed; `opened` once its first tuple was given, `last` the
                  time of the last one given
    oldest        arrival of the first update that the application has not seen (an update is a window's end), and
                  `after` of the first that is newer than the window being processed or shown, `shows`
    """

    arriving: Buffered
    processing: Buffered
    times: Times
    inside: int = 0
    reached: int = MIN_TIME
    newest: int = MIN_TIME
    prior: int = MIN_TIME
    closed: int | None = None
    begun: int | None = None
    waits: int | None = None
    since: int = 0
    last_update: int | None = None
    gap: int | None = None
    committed: int | None = None
    opened: bool = False
    last: int = MIN_TIME
    idle: bool = False
    shows: int | None = None
    oldest: int | None = None
    after: int | None = None
    shown: int = 0
    takeable: int = 0


# What of a cell is plain data.
PLAIN: Final = tuple(field.name for field in fields(KeyCell) if field.name not in ("arriving", "processing", "times"))

# A cell with its two buffers and times in CPython, when they are empty, and its place in the table of cells.
CELL_BYTES: Final = 900


class WindowQueue(Queue):
    """Per key the newest window, tuples and marks.

    A window has fully arrived when the arc promises so, or where tuples of a key come in order (`by_tuples`) when one
    at its last microsecond or above has come. Windows that begin before `begin_us` are no windows of this queue.
    """

    def __init__(
        self,
        schema: Schema,
        key: Sequence[int],
        window: TimeWindow,
        commit: Commit,
        scheduler: Scheduler,
        *,
        by_tuples: bool = True,
        begin_us: int = MIN_TIME,
        block: int = BLOCK,
        blocks: int = BLOCKS,
    ) -> None:
        self.window = window
        self.commit = commit
        self.scheduler = scheduler
        self.by_tuples = by_tuples
        self.begin_us = begin_us
        self.cost_us = 0.0
        self.timed = False
        self.superseded = 0
        self.last = Served(None, np.empty(0, np.int64), ())
        self._key = tuple(key)
        self._pages = Pages(schema, blocks, block)
        self._cells: dict[Key, KeyCell] = {}
        # Keys that wait, first to be served first; `_servable` counts those that nothing keeps from being committed to.
        self._line: OrderedDict[Key, None] = OrderedDict()
        self._servable = 0
        self._ready: deque[Key] = deque()
        # Keys that a promise may still mean something to: their newest tuple is in a window that it has not ended.
        self._open: dict[Key, None] = {}
        self._takeable = 0
        self._arriving = self._processing = 0
        self._committed = 0
        self._floor = Floor()
        self._promise = MIN_TIME
        self.newest_us = MIN_TIME
        self._showing: dict[Key, None] = {}
        self._served_us = 0
        self._areas = [0.0, 0.0]
        self._histograms = [[0] * BUCKETS, [0] * BUCKETS]
        self._known_us: int | None = None
        self._key_time = 0
        self._forget_at = REMEMBERED

    def reschedule(self, scheduler: Scheduler) -> None:
        """Schedule by another policy from now on; who is in line stays where it is."""
        self.scheduler = scheduler

    # -- windows -------------------------------------------------------------------------------------------------------

    def _start(self, time_us: int) -> int:
        """The start of the last window that begins at this time or before."""
        return time_us - (time_us - self.window.offset_us) % self.window.slide_us

    def _end(self, start_us: int) -> int:
        return start_us + self.window.size_us

    def _passed(self, reach_us: int) -> int:
        """The start of the newest window that ends at this time or before."""
        return self._start(reach_us - self.window.size_us)

    def _reach(self, cell: KeyCell) -> int:
        """Windows of this key that end here or before have fully arrived."""
        return max(self._promise, cell.reached + 1) if self.by_tuples else self._promise

    # -- in ------------------------------------------------------------------------------------------------------------

    def enqueue(self, batch: Batch, now_us: int) -> None:
        self._pass_time(now_us)
        self.newest_us = max(self.newest_us, int(batch.ts.max()))
        freed: list[int] = []
        sources: list[int] = []
        targets: list[int] = []
        times, arrivals = batch.ts.tolist(), batch.arrival.tolist()
        for row, (key, time_us, arrival) in enumerate(zip(keys_of(batch, self._key), times, arrivals, strict=True)):
            for target in self._arrive(key, self._cell(key), time_us, arrival, freed):
                sources.append(row)
                targets.append(target)
        if targets:
            self._pages.write(np.array(targets, np.int64), batch.take(np.array(sources, np.int64)))
        # Not before the batch is written: a block that is given back may go with its page.
        self._give_back(freed)
        if len(self._cells) > self._forget_at:
            self._forget()

    def _cell(self, key: Key) -> KeyCell:
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = KeyCell(Buffered(self._pages), Buffered(self._pages), Times())
        return cell

    def _arrive(self, key: Key, cell: KeyCell, time_us: int, arrival: int, freed: list[int]) -> list[int]:
        """Let a tuple count; the rows where it belongs."""
        start = self._start(time_us)
        targets = []
        inside = time_us < self._end(start) and start >= self.begin_us
        if inside:
            self._open[key] = None
            if self.commit == "eager" and (cell.begun is None or start > cell.begun):
                self._begins(key, cell, start, time_us, arrival, freed)
            # In the scope of what is being processed, and of what arrives: each has a copy (section 6.2.2).
            if cell.committed is not None and cell.committed <= time_us < self._end(cell.committed):
                targets.append(self._store(cell.processing, time_us))
                self._processing += 1
            if self._keeps(cell, time_us):
                targets.append(self._store(cell.arriving, time_us))
                self._arriving += 1
                if self.commit == "lazy":
                    cell.times.add(time_us)
                    cell.inside += cell.waits is not None and cell.waits <= time_us < self._end(cell.waits)
            if time_us > cell.newest:
                cell.prior, cell.newest = cell.newest, time_us
        cell.reached = max(cell.reached, time_us)
        if self.by_tuples or (inside and self.commit == "lazy"):
            # Where tuples close no windows, one that the promise has closed is there with its first tuple.
            self._closes(key, cell, arrival, freed)
        self._promote(key, cell)
        self._count(key, cell)
        return targets

    def _keeps(self, cell: KeyCell, time_us: int) -> bool:
        """Whether a window that arrives may still need this tuple."""
        if self.commit == "eager":
            return cell.waits is not None and cell.waits <= time_us < self._end(cell.waits)
        floor = cell.closed if cell.waits is not None or cell.closed is None else cell.closed + self.window.slide_us
        return floor is None or time_us >= floor

    def _store(self, buffer: Buffered, time_us: int) -> int:
        row = buffer.append()
        self._pages.ts[row] = time_us
        self._floor.met(time_us)
        return row

    def _begins(self, key: Key, cell: KeyCell, start: int, time_us: int, arrival: int, freed: list[int]) -> None:
        """A window starter (EAGER): the window that has waited until now is dropped whole."""
        lowest = max(self.begin_us, self._passed(time_us) + self.window.slide_us)
        if cell.begun is not None:
            lowest = max(lowest, cell.begun + self.window.slide_us)
        lowest = self._aligned(lowest)
        self.superseded += (start - lowest) // self.window.slide_us  # begun by the same tuple, and older
        cell.begun = start
        self._arriving -= cell.arriving.count
        cell.arriving.trim(freed, whole=True)
        self._update(key, cell, start, arrival)

    def _aligned(self, time_us: int) -> int:
        """The first start of a window at this time or later."""
        return self._start(time_us + self.window.slide_us - 1) if time_us != MIN_TIME else time_us

    def _closes(self, key: Key, cell: KeyCell, arrival: int, freed: list[int]) -> None:
        """Windows of the key that have fully arrived now: the newest of them is an update (LAZY), and the application
        is behind by it."""
        passed = self._passed(self._reach(cell))
        if cell.closed is not None and passed <= cell.closed:
            return
        closing, newest = self._closing(cell, passed)
        if not closing:
            return
        cell.closed = newest
        if cell.oldest is None:
            cell.oldest = arrival
        if cell.shows is not None and newest > cell.shows and cell.after is None:
            cell.after = arrival
        if self.commit == "lazy":
            self.superseded += closing - 1
            self._drop_below(cell, newest, freed)
            self._update(key, cell, newest, arrival)
            cell.inside = cell.times.count(newest, self._end(newest))

    def _drop_below(self, cell: KeyCell, time_us: int, freed: list[int]) -> None:
        """No window that is still to come needs what is below."""
        self._arriving -= cell.arriving.drop_below(time_us, freed)
        cell.times.drop_below(time_us)

    def _closing(self, cell: KeyCell, passed: int) -> tuple[int, int]:
        """How many windows with tuples have newly arrived, and the newest; for EAGER, to whom only that one matters,
        it alone."""
        slide, size = self.window.slide_us, self.window.size_us
        lowest = self.begin_us if cell.closed is None else max(self.begin_us, cell.closed + slide)
        if self.commit == "eager":
            inside = [time_us for time_us in (cell.newest, cell.prior) if MIN_TIME < time_us < passed + size]
            if not inside and (self.by_tuples or cell.newest == MIN_TIME):
                return 0, 0  # its tuples are in windows that had arrived before, or have not yet
            # Where a promise ends many windows at once, the last of them stands for all: they are one update.
            newest = min(passed, self._start(inside[0])) if inside else passed
            return (1, newest) if newest >= lowest else (0, 0)
        count = newest = 0
        start = self._aligned(lowest)
        # From a window on, the next tuple says which are empty; all from its first to its last have it.
        while (time_us := cell.times.first(start)) is not None:
            start = max(start, self._aligned(time_us - size + 1))
            last = min(passed, self._start(time_us))
            if last < start:
                break
            count += (last - start) // slide + 1
            newest = last
            start = last + slide
        return count, newest

    def _update(self, key: Key, cell: KeyCell, start: int, arrival: int) -> None:
        """The key has a new update: it gets in line, or moves in it as the scheduler says."""
        residents = len(self._line)
        if cell.last_update is not None:
            gap = max(0, arrival - cell.last_update)
            cell.gap = gap if cell.gap is None else (3 * cell.gap + gap) >> 2
        cell.last_update = arrival
        cuts = (
            self.scheduler == "linecutting"
            and self.cost_us > 0
            and cell.gap is not None
            and cell.gap > self.cost_us * residents
        )
        stood = cell.waits is not None
        cell.waits = start
        if stood:
            self.superseded += 1
            if self.scheduler != "fifo" and not cuts:
                return
        else:
            cell.since = arrival
            self._line[key] = None
            self._servable += cell.committed is None
        self._line.move_to_end(key, last=not cuts)

    def _promote(self, key: Key, cell: KeyCell) -> None:
        """An IDLE key is READY again when its window has got a tuple, or its end (figure 10)."""
        if cell.idle and (cell.processing.count or self._arrived(cell)):
            cell.idle = False
            self._ready.append(key)

    def _arrived(self, cell: KeyCell) -> bool:
        """Whether the window that is being processed has fully arrived."""
        return cell.committed is not None and self._end(cell.committed) <= self._reach(cell)

    def promised(self, value_us: int, now_us: int) -> None:
        before, self._promise = self._promise, max(value_us, self._promise)
        if before != MIN_TIME and self._passed(before) == self._passed(self._promise):
            return
        freed: list[int] = []
        for key in list(self._open):
            cell = self._cells[key]
            self._closes(key, cell, now_us, freed)
            self._promote(key, cell)
            self._count(key, cell)
            if self._end(self._start(cell.newest)) <= self._promise:
                del self._open[key]
        self._give_back(freed)

    # -- out -----------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return self._takeable

    @property
    def holds(self) -> bool:
        return bool(self._ready or self._line or self._arriving or self._committed)

    @property
    def pending(self) -> bool:
        """Whether serving would give a tuple or the end of a window."""
        return bool(self._ready or self._servable)

    def next_end(self) -> int | None:
        """Where the next window ends that a tuple here is or may be in; None if nothing waits for its end."""
        if not self.holds:
            return None
        known = self._promise if self._promise != MIN_TIME else self.newest_us - self.window.size_us
        floor = self.floor_us()
        start = self._passed(known if floor == MAX_TIME else max(known, floor)) + self.window.slide_us
        return self._end(start) if start <= self.newest_us else None

    def _count(self, key: Key, cell: KeyCell) -> None:
        """How many of the key's tuples could be taken now: those of its window in processing, and of the one that
        waits if nothing keeps it from being committed to."""
        count = cell.processing.count
        if cell.waits is not None and (cell.committed is None or self._arrived(cell)):
            count += cell.arriving.count if self.commit == "eager" else cell.inside
        self._takeable += count - cell.takeable
        cell.takeable = count

    def dequeue(self, limit: int, now_us: int) -> Batch | None:
        """The next tuples; `last` has their marks and the windows that are over with them."""
        self.last = self.serve(limit, now_us)
        return self.last.batch

    def serve(self, limit: int, now_us: int) -> Served:
        """Process committed windows, committing to others when there is nothing more to do for those: at most `limit`
        tuples, and the windows that are over."""
        self._show(now_us)
        rows: list[int] = []
        marks: list[int] = []
        done: list[Done] = []
        freed: list[int] = []
        while True:
            if not self._ready:
                # To commit takes no tuple, but what is committed to is what arrives last before it is needed.
                if len(rows) == limit or not self._commit(now_us, freed):
                    break
                continue
            key = self._ready[0]
            cell = self._cells[key]
            if len(rows) == limit and cell.processing.count:
                break
            self._process(key, cell, limit - len(rows), rows, marks)
            cell.processing.trim(freed)
            if cell.processing.count:
                break
            self._ready.popleft()
            if self._arrived(cell):
                done.append(self._finish(key, cell, len(rows), freed))
                if not rows:
                    self._show(now_us)  # nothing had to be processed for it
            else:
                cell.idle = True
            self._count(key, cell)
        batch = self._pages.read(np.array(rows, np.int64)) if rows else None
        self._give_back(freed)
        self._floor.gone += len(rows)
        self._served_us = now_us
        if not self.timed:
            self._show(now_us)
        return Served(batch, np.array(marks, np.int64), done)

    def _process(self, key: Key, cell: KeyCell, limit: int, rows: list[int], marks: list[int]) -> None:
        assert cell.committed is not None
        taken = cell.processing.take(limit)
        self._processing -= len(taken)
        for time_us in self._pages.ts[taken].tolist():
            if not cell.opened:
                marks.append(self._end(cell.committed))
                cell.opened = True
            else:
                marks.append(DISALLOW if self._start(time_us) > self._start(cell.last) else UPDATE)
            cell.last = max(cell.last, time_us)
        rows.extend(taken.tolist())
        self._count(key, cell)

    def _commit(self, now_us: int, freed: list[int]) -> bool:
        """Commit to the window of the first key in line that has none in processing."""
        if not self._servable:
            return False
        key = next(key for key in self._line if self._cells[key].committed is None)
        del self._line[key]
        self._servable -= 1
        cell = self._cells[key]
        assert cell.waits is not None
        if key in self._showing:
            self._show_one(cell, now_us)  # its last result is out no later than the next is begun
            del self._showing[key]
        waited = max(0, now_us - cell.since)
        self._areas[0] += 0.5 * waited * waited
        self._histograms[0][waited.bit_length()] += 1
        cell.committed, cell.waits = cell.waits, None
        self._committed += 1
        cell.shows, cell.after = cell.committed, None
        cell.opened, cell.last = False, MIN_TIME
        if self.commit == "eager":
            # The buffer of what arrives holds nothing but this window.
            cell.arriving, cell.processing = cell.processing, cell.arriving
            self._arriving -= cell.processing.count
            self._processing += cell.processing.count
        else:
            self._copy(cell, freed)
        self._ready.append(key)
        self._count(key, cell)
        return True

    def _copy(self, cell: KeyCell, freed: list[int]) -> None:
        """What has arrived of the window goes to the other buffer; younger windows may need it too."""
        assert cell.committed is not None
        pages, rows = self._pages, cell.arriving.rows()
        times = pages.ts[rows]
        rows = rows[(times >= cell.committed) & (times < self._end(cell.committed))]
        targets = np.array([cell.processing.append() for _ in range(len(rows))], np.int64)
        pages.write(targets, pages.read(rows))
        self._processing += len(rows)
        self._drop_below(cell, cell.committed + self.window.slide_us, freed)
        cell.inside = 0

    def _finish(self, key: Key, cell: KeyCell, rows: int, freed: list[int]) -> Done:
        assert cell.committed is not None
        self._processing -= cell.processing.count
        cell.processing.trim(freed, whole=True)
        start, cell.committed = cell.committed, None
        self._committed -= 1
        self._servable += cell.waits is not None
        self._showing[key] = None
        return Done(rows, key, start, self._end(start))

    def _give_back(self, freed: list[int]) -> None:
        if freed:
            self._pages.release(np.array(freed, np.int64))
            freed.clear()

    def floor_us(self) -> int:
        return self._floor.value(self._arriving + self._processing, self._least)

    def _least(self) -> int:
        buffers = [b for cell in self._cells.values() for b in (cell.arriving, cell.processing) if b.count]
        return int(self._pages.ts[np.concatenate([buffer.rows() for buffer in buffers])].min())

    def _forget(self) -> None:
        """Let go of keys that have nothing here, whose windows are all over and whose results are all shown."""
        for key, cell in list(self._cells.items()):
            held = cell.arriving.count or cell.processing.count or cell.waits is not None or cell.committed is not None
            if not held and cell.oldest is None and self._promise >= cell.newest + self.window.size_us:
                del self._cells[key]
                self._open.pop(key, None)
        self._forget_at = max(REMEMBERED, 2 * len(self._cells))

    # -- staleness -----------------------------------------------------------------------------------------------------

    def _pass_time(self, now_us: int) -> None:
        if self._known_us is None:
            self._known_us = now_us
        elif now_us > self._known_us:
            self._key_time += len(self._cells) * (now_us - self._known_us)
            self._known_us = now_us

    def measured(self, us: float, now_us: int) -> None:
        self._show(self._served_us + round(us))

    def costs(self, us_per_tuple: float) -> None:
        self.cost_us = us_per_tuple

    def _show(self, at_us: int) -> None:
        """The application has got the results of windows that are over."""
        for key in self._showing:
            self._show_one(self._cells[key], at_us)
        self._showing.clear()

    def _show_one(self, cell: KeyCell, at_us: int) -> None:
        if cell.oldest is not None:
            waited = max(0, at_us - cell.oldest)
            self._areas[1] += _area(at_us, cell)
            self._histograms[1][waited.bit_length()] += 1
        cell.shown = at_us
        cell.oldest, cell.after, cell.shows = cell.after, None, None

    def stale_us(self, key: Key, now_us: int) -> int:
        """For how long the application's result of a key has been out of date."""
        oldest = self._cells[key].oldest
        return 0 if oldest is None else now_us - oldest

    def staleness(self, now_us: int, worst: int = 0) -> Staleness:
        queue, application = self._areas
        ages = []
        for key, cell in self._cells.items():
            if cell.waits is not None:
                age = max(0, now_us - cell.since)
                queue += 0.5 * age * age
                ages.append((age, key))
            if cell.oldest is not None:
                application += _area(now_us, cell)
        lasted = self._key_time
        if self._known_us is not None:
            lasted += len(self._cells) * max(0, now_us - self._known_us)
        ages.sort(key=lambda one: -one[0])
        return Staleness(
            len(self._cells),
            queue / lasted if lasted else 0.0,
            application / lasted if lasted else 0.0,
            self._histograms[0],
            self._histograms[1],
            ages[0][0] if ages else 0,
            [(key, age) for age, key in ages[:worst]],
        )

    def older(self, now_us: int, than_us: int) -> list[tuple[tuple[Any, ...], int]]:
        """By what is not in the results: windows that have arrived and were not processed."""
        ages = [(key, now_us - cell.oldest) for key, cell in self._cells.items() if cell.oldest is not None]
        return [(key, age) for key, age in ages if age > than_us]

    @property
    def paging(self) -> Paging:
        pages, blocks = self._pages, self._pages.in_use()
        times = self._arriving if self.commit == "lazy" else 0
        beside = CELL_BYTES * len(self._cells) + 8 * (blocks + times)
        return Paging(pages.taken, pages.free, pages.returned, blocks, pages.nbytes + beside)

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self) -> Any:
        cells = [
            [list(key), cell.arriving.save(), cell.processing.save(), [getattr(cell, name) for name in PLAIN]]
            for key, cell in self._cells.items()
        ]
        return [
            cells,
            [list(key) for key in self._line],
            [list(key) for key in self._ready],
            [list(key) for key in self._showing],
            [list(key) for key in self._open],
            [self.scheduler, self.superseded, self._takeable, self._promise, self.newest_us],
            [self._served_us, self._known_us, self._key_time, self.cost_us, self._forget_at],
            [self._areas, self._histograms, self._floor.save()],
            [self.begin_us, self.by_tuples],
            self._pages.save(),
        ]

    def restore(self, data: Any) -> None:
        cells, line, ready, showing, open_, own, told, measured, bounds, pages = data
        self.scheduler, self.superseded, self._takeable, self._promise, self.newest_us = own
        self._served_us, self._known_us, self._key_time, self.cost_us, self._forget_at = told
        self._areas, self._histograms, floor = measured
        self._floor.restore(floor)
        self.begin_us, self.by_tuples = bounds
        self._pages.restore(pages)
        self._cells.clear()
        for key, arriving, processing, plain in cells:
            cell = self._cell(tuple(key))
            cell.arriving.restore(arriving)
            cell.processing.restore(processing)
            for name, value in zip(PLAIN, plain, strict=True):
                setattr(cell, name, value)
            if self.commit == "lazy":
                cell.times = Times(self._pages.ts[cell.arriving.rows()].tolist())
        self._line = OrderedDict((tuple(key), None) for key in line)
        self._ready = deque(tuple(key) for key in ready)
        self._showing = dict.fromkeys(tuple(key) for key in showing)
        self._open = dict.fromkeys(tuple(key) for key in open_)
        self._recount()

    def _recount(self) -> None:
        cells = self._cells.values()
        self._arriving = sum(cell.arriving.count for cell in cells)
        self._processing = sum(cell.processing.count for cell in cells)
        self._committed = sum(cell.committed is not None for cell in cells)
        self._servable = sum(self._cells[key].committed is None for key in self._line)


def _area(now_us: int, cell: KeyCell) -> float:
    """The area under the application's staleness since it was last shown something, or went out of date."""
    assert cell.oldest is not None
    waited, hidden = max(0, now_us - cell.oldest), max(0, cell.shown - cell.oldest)
    return 0.5 * waited * waited - 0.5 * hidden * hidden


def keys_of(batch: Batch, key: Sequence[int]) -> Iterable[Key]:
    """The key of each row as Python values; without key columns all rows have one key."""
    columns: list[list[Any]] = []
    for at in key:
        values, mask = batch.columns[at].tolist(), batch.valid[at]
        if mask is not None:
            values = [value if there else None for value, there in zip(values, mask.tolist(), strict=True)]
        columns.append(values)
    return zip(*columns, strict=True) if columns else [()] * len(batch)
