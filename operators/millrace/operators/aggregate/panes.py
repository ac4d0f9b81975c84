"""Windows put together from panes (OOP, section 6 and the appendix).

Time (or the count of tuples) is cut into panes of the greatest width of which both slide and size are multiples. A
tuple counts once, in its pane, whatever the order in which tuples come; a window is the merge of its panes, made when
it closes. A pane goes as a whole, keys and all, when no open window needs it. Closing a window is done in pieces, so
that the work of one execution is bounded however many groups there are.

A window of many panes would cost a merge of each at every slide. So finished panes are merged into blocks of two, four
and so on, once each, and a window is put together from the few largest blocks that it covers. A block takes the place
of its left half, which no later window needs without the right one: blocks hold no more tables than there are panes.
Which blocks a window is made of depends on its bounds alone, never on when it was made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any, Final

import numpy as np

from millrace.operators.aggregate.choosing import Choice
from millrace.operators.aggregate.groups import ComputedRows, Grouping, Table
from millrace.operators.aggregate.lowlevel import BufferedRows, KeyColumns, LowTable
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.frame.punctuation_grain import EVERY, THE_END, PunctuationGrain, union_of, windows_of
from millrace.operators.frame.windows import OpenWindows, RowWindow, TimeWindow
from millrace.protocol import Schema
from millrace.values.batch import Batch, Bools, Int64s, Values, constant_int64
from millrace.values.eventtime import MIN_TIME, is_time, saturated
from millrace.values.functions.faults import REASONS, Fault
from millrace.values.functions.vectors import Faults

# Windows of so many panes are put together from blocks. Per slide, n panes are n merges; as blocks they are at most
# 2 log2(n), and one more on the average to make the blocks.
MANY: Final = 16

# The values of a column, and which of them are not null.
Column = tuple[Values, Bools | None]
# A level and an index: the panes from index * 2**level up to the next block's first. A pane is a block of level 0.
Block = tuple[int, int]


class Windows(ABC):
    """What an aggregate over windows keeps. Ends of windows are on the axis that they are cut from.

    reached   no tuple below this is to come: windows that end here or before may close
    """

    def __init__(self, spec: AggregateSpec, schema: Schema, grouping: Grouping) -> None:
        self.spec = spec
        self.schema = schema
        self.grouping = grouping
        self.reached = MIN_TIME
        self.errors: list[tuple[int, str]] = []

    @abstractmethod
    def take(self, rows: ComputedRows, at: Int64s) -> None:
        """Take in rows at these places of the axis."""

    @abstractmethod
    def next_end(self) -> int | None:
        """The end of the earliest window that has tuples and has not been emitted."""

    @abstractmethod
    def flush(self, limit: int) -> tuple[Batch | None, int]:
        """Emit rows of windows that may close; handle at most so many groups, and say how many."""

    @abstractmethod
    def low_water(self) -> int:
        """The least time of rows that have not been emitted."""

    def grain(self) -> PunctuationGrain:
        """At which times windows may close, or become urgent."""
        return EVERY

    @abstractmethod
    def demand(self, low_us: int) -> int:
        """The least that must be reached for the low water to be at this time."""

    def due(self) -> bool:
        """Whether a window may close."""
        end = self.next_end()
        return end is not None and end <= self.reached

    def built(self, table: Table, slots: Int64s, keys: Sequence[Any], ts: Int64s, start: Int64s, end: Int64s) -> Batch:
        """The rows of these groups; those that cannot be computed are left out and counted."""
        columns, valid, faults = table.finish(slots)
        bounds = [start if which == "start" else end for _, which in self.spec.bounds]
        batch = Batch(
            self.schema,
            ts,
            [*(values for values, _ in keys), *columns, *bounds],
            [*(mask for _, mask in keys), *valid, *(None for _ in bounds)],
            table.arrived[slots],
        )
        return batch if faults is None else self.without(batch, faults)

    def without(self, batch: Batch, faults: Faults) -> Batch:
        """The rows that could be computed; the others are noted as errors."""
        failed = faults != 0
        self.errors.append((int(failed.sum()), REASONS[Fault(int(faults[failed][0]))]))
        return batch.take(~failed)

    def essence(self) -> Any:
        """The part that later rows depend on."""
        return self.save()

    @abstractmethod
    def open_windows(self, most: int) -> OpenWindows | None:
        """As the operator's."""

    @property
    @abstractmethod
    def tuples(self) -> int:
        """Groups that it holds."""

    @property
    @abstractmethod
    def nbytes(self) -> int: ...

    @abstractmethod
    def save(self) -> Any: ...

    @abstractmethod
    def restore(self, data: Any) -> None: ...


class Closing:
    """A window on its way out: merges are done one after the other, then its rows are emitted.

    merges   what goes into which block, or, where that is None, into the window; a half without tuples is None
    alone    the one block that is the whole window, if it is one: then there is nothing `merged`
    """

    __slots__ = ("alone", "given", "merged", "merges", "number", "part", "place")

    def __init__(self, number: int, merges: list[tuple[Block | None, Block | None]], alone: Block | None) -> None:
        self.number = number
        self.merges = merges
        self.alone = alone
        self.merged: Table | None = None
        self.part = self.place = self.given = 0


class Account:
    """Groups and bytes of all tables together. It is read after every step of a run, where most of thousands of tables
    are as they were: only those that were `changed` are looked at again."""

    def __init__(self, tables: Mapping[Block, Table]) -> None:
        self._tables = tables
        self._known: dict[Block, tuple[int, int]] = {}
        self._groups = self._bytes = 0
        self.changed: dict[Block, None] = dict.fromkeys(tables)

    def sums(self) -> tuple[int, int]:
        for block in self.changed:
            groups, nbytes = self._known.pop(block, (0, 0))
            self._groups -= groups
            self._bytes -= nbytes
            table = self._tables.get(block)
            if table is not None:
                groups, nbytes = self._known[block] = table.count, table.nbytes
                self._groups += groups
                self._bytes += nbytes
        self.changed.clear()
        return self._groups, self._bytes


class Ages:
    """The times of windows of rows: the newest time among all tuples at a window's positions, counted or not.

    The tuple that completes a window is not older than its stream had promised, although a WHERE may leave it out.
    So a complete window is never older than a promise made before it was complete.

    line      of the windows that are not complete yet: panes and the newest time in each, only those that no later pane
              outdoes, so the first that is in a window has its newest
    times     of complete windows that have not been emitted
    next      the number of the first window that is not complete
    promised  what has been promised of the windows to come
    """

    def __init__(self, size: int, slide: int) -> None:
        self._size, self._slide, self._width = size, slide, gcd(size, slide)
        self.line: deque[tuple[int, int]] = deque()
        self.times: dict[int, int] = {}
        self.next = MIN_TIME
        self.promised = MIN_TIME

    def note(self, place: int, ts: Int64s) -> None:
        """Tuples have come, the first of them at this position."""
        width = self._width
        first, last = place // width, (place + len(ts) - 1) // width
        begins = np.maximum(np.arange(first, last + 1) * width - place, 0)
        for pane, newest in zip(range(first, last + 1), np.maximum.reduceat(ts, begins).tolist(), strict=True):
            self._complete(pane * width)
            while self.line and self.line[-1][1] <= newest:
                self.line.pop()
            self.line.append((pane, newest))
        self._complete(place + len(ts))

    def _complete(self, place: int) -> None:
        """Windows that end up to this position are complete."""
        while self.line:
            pane, newest = self.line[0]
            window = max(self.next, (pane * self._width - self._size) // self._slide + 1)
            if pane * self._width < window * self._slide:
                self.line.popleft()
                continue
            if window * self._slide + self._size > place:
                return
            self.times[window] = newest
            self.next = window + 1

    def of(self, window: int) -> int:
        """The time of the rows of a window that is emitted now."""
        time = self.times.get(window)
        if time is None:  # the stream has ended inside it, or a pause has passed its end
            start = window * self._slide
            time = next(newest for pane, newest in self.line if pane * self._width >= start)
        return time if time == MIN_TIME else max(time, self.promised)

    def floor(self) -> int:
        """No row of the windows that may be emitted now is earlier."""
        return min(self.times.values(), default=self.promised)

    def drop(self, window: int | None) -> None:
        """Earlier windows have been emitted, or have no rows; if it is None, all that are complete."""
        if window is None:
            self.times.clear()
            return
        while self.times and (first := next(iter(self.times))) < window:
            del self.times[first]

    def save(self) -> Any:
        line, times = [list(entry) for entry in self.line], [list(item) for item in self.times.items()]
        return [line, times, self.next, self.promised]

    def restore(self, data: Any) -> None:
        line, times, self.next, self.promised = data
        self.line = deque((pane, newest) for pane, newest in line)
        self.times = dict(times)


class Panes(Windows):
    """Windows of equal size at equal distances.

    panes   tables of blocks, a pane starts at number * width on the axis without its offset
    order   the numbers of the panes that have tuples, sorted, also of those that are part of a block by now
    levels  how many levels of blocks there may be
    opened  the number of the earliest window that has not been emitted

    Before they count in their pane's table, rows may be in the low-level table (`low`), or wait as they are
    (`buffered`, by pane) where `choice` says so. When a window is due, those of its panes go into their tables.
    """

    def __init__(self, spec: AggregateSpec, schema: Schema, grouping: Grouping, since: int | None) -> None:
        super().__init__(spec, schema, grouping)
        window = spec.window
        if isinstance(window, TimeWindow):
            self.size, self.slide, self.offset = window.size_us, window.slide_us, window.offset_us
        else:
            assert isinstance(window, RowWindow)
            self.size, self.slide, self.offset = window.size, window.slide, 0
        self.ages = Ages(self.size, self.slide) if isinstance(window, RowWindow) else None
        self.width = gcd(self.size, self.slide)
        self.levels = (self.size // self.width).bit_length() if self.size // self.width >= MANY else 1
        self.choice = Choice(spec)
        self._whole = self.size == self.slide and spec.keeps != "bounded"
        self.panes: dict[Block, Table] = {}
        self._account = Account(self.panes)
        self.order: list[int] = []
        self.opened: int | None = None
        if since is not None and spec.partial == "skip":
            self.opened = -((self.offset - since) // self.slide)
        self.closing: Closing | None = None
        self.low = self._low_table()
        self.buffered: dict[int, BufferedRows] = {}

    def _low_table(self) -> LowTable | None:
        return LowTable(self.grouping, self.spec.slots, self._receive) if self.spec.keeps == "bounded" else None

    # -- taking --------------------------------------------------------------------------------------------------------

    def take(self, rows: ComputedRows, at: Int64s) -> None:
        at = at - self.offset if self.offset else at
        if self.slide > self.size:
            inside = at % self.slide < self.size
            if not inside.all():
                rows, at = rows.take(np.flatnonzero(inside)), at[inside]
        if not len(at):
            return
        first, last = int(at.min()) // self.width, int(at.max()) // self.width
        if self.low is not None:
            self._take_low(self.low, rows, np.full(1, first) if first == last else at // self.width)
            return
        if first == last:
            self._take(first, rows)
            return
        numbers = at // self.width - first
        if last - first < 1 << 16:
            numbers = numbers.astype(np.uint16)  # few enough to be sorted by their digits
        if (numbers[1:] < numbers[:-1]).any():
            order = np.argsort(numbers, kind="stable")
            rows, numbers = rows.take(order), numbers[order]
        ends = [*(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        start = 0
        for end in ends:
            self._take(first + int(numbers[start]), rows.slice(start, end))
            start = end

    def _take(self, number: int, rows: ComputedRows) -> None:
        if self.opened is not None and self._last_window(number) < self.opened:
            return
        choice = self.choice
        if choice.adaptive:
            choice.took(number, rows)
        if number in self.buffered or (choice.mode == "buffered" and (0, number) not in self.panes):
            self._buffer(number).take(rows)
        else:
            self._pane(number).take(rows)

    def _buffer(self, number: int) -> BufferedRows:
        """The rows of a pane that waits."""
        rows = self.buffered.get(number)
        if rows is None:
            rows = self.buffered[number] = BufferedRows(self.grouping, self._whole)
            insort(self.order, number)
        return rows

    def _take_low(self, low: LowTable, rows: ComputedRows, numbers: Int64s) -> None:
        """Take rows in through the low-level table: rows of one pane, or each one's pane."""
        if self.opened is not None:
            there = numbers * self.width // self.slide >= self.opened
            if not there.all():
                chosen = np.flatnonzero(there)
                rows, numbers = rows.take(chosen), numbers[chosen]
        for number in np.unique(numbers).tolist():
            self._pane(number)
        if len(numbers):
            low.take(np.broadcast_to(numbers, len(rows.ts)), rows)

    def _pane(self, number: int) -> Table:
        """A pane's table, about to change."""
        pane = self.panes.get((0, number))
        if pane is None:
            pane = self.panes[0, number] = self.grouping.table(self._whole)
            insort(self.order, number)
        self._account.changed[0, number] = None
        return pane

    def _receive(self, number: int, low: Table, keys: KeyColumns, rows: Int64s) -> None:
        """Groups of a pane leave the low-level table."""
        pane = self._pane(number)
        slots = pane.find([values for values, _ in keys], [mask for _, mask in keys], len(rows))
        pane.merge_into(low, slots, rows)

    def _settle(self, limit: int) -> int:
        """Let what the panes of the next window have elsewhere count in their tables, at most so many rows and groups;
        how many. Nothing is left if that is 0."""
        if self.low is None and not self.buffered:
            return 0
        beyond = self._beyond()
        done = 0 if self.low is None else self.low.leave(beyond, limit)
        for number in [number for number in self.buffered if number < beyond]:
            rows = self.buffered[number]
            done += rows.settle(limit - done)
            if rows.count:
                break
            self.panes[0, number] = self.buffered.pop(number).table
            self._account.changed[0, number] = None
            done = max(done, 1)
            if done >= limit:
                break
        return done

    def _beyond(self) -> int:
        """The number of the first pane behind the next window."""
        window = self._next()
        assert window is not None
        return (window * self.slide + self.size) // self.width

    # -- windows -------------------------------------------------------------------------------------------------------

    def _first_window(self, pane: int) -> int:
        return (pane * self.width - self.size) // self.slide + 1

    def _last_window(self, pane: int) -> int:
        return pane * self.width // self.slide

    def _end(self, window: int) -> int:
        return self.offset + window * self.slide + self.size

    def _next(self) -> int | None:
        if self.closing is not None:
            return self.closing.number
        if not self.order:
            return None
        first = self._first_window(self.order[0])
        return first if self.opened is None else max(first, self.opened)

    def next_end(self) -> int | None:
        window = self._next()
        return None if window is None else self._end(window)

    def grain(self) -> PunctuationGrain:
        if self.ages is not None:
            return THE_END
        lates = (0,) if self.spec.flush == "none" else (0, self.spec.max_delay_us)
        return union_of(
            PunctuationGrain(False, (windows_of(self.size, self.slide, self.offset + late),)) for late in lates
        )

    def low_water(self) -> int:
        pending = self.next_end()
        if pending is not None and pending <= self.reached:
            return saturated(pending - 1)
        if not is_time(self.reached):
            return self.reached
        return saturated(self._end((self.reached - self.offset - self.size) // self.slide + 1) - 1)

    def demand(self, low_us: int) -> int:
        return self._end((low_us - self.offset - self.size) // self.slide)

    def open_windows(self, most: int) -> OpenWindows | None:
        window = self.spec.window
        if not isinstance(window, TimeWindow):
            return None
        count, spans = 0, list[tuple[int, int]]()
        least = self.opened if self.closing is None else self.closing.number + 1
        for pane in self.order:
            first, last = self._first_window(pane), self._last_window(pane)
            if least is not None and first < least:
                first = least
            if first <= last:
                count += last - first + 1
                ends = map(self._end, range(first, min(last + 1, first + most - len(spans))))
                spans += [(end - self.size, end) for end in ends]
                least = last + 1
        low = self.low_water()
        return OpenWindows(window, count, spans, low + 1 - self.slide if is_time(low) else low)

    def note(self, place: int, ts: Int64s) -> None:
        """Tuples at these positions have come, of which those that count have been taken."""
        assert self.ages is not None
        self.ages.note(place, ts)
        self.ages.drop(self._next())

    # -- giving --------------------------------------------------------------------------------------------------------

    def flush(self, limit: int) -> tuple[Batch | None, int]:
        done = 0
        given: list[Batch] = []
        while done < limit and Windows.due(self):
            if self.closing is None:
                settled = self._settle(limit - done)
                if settled:
                    done += settled
                    continue
                self.choice.complete(self._beyond(), self.panes)
                if self.low is not None:
                    self.low.rewind()
                self.closing = self._begin()
            closing = self.closing
            if closing.part < len(closing.merges):
                done += self._merge(closing, limit - done)
            else:
                done += self._give(closing, limit - done, given)
        if not given:
            return None, done
        return Batch.concat(given), done

    def _begin(self) -> Closing:
        window = self._next()
        assert window is not None
        first = window * self.slide // self.width
        cover = self._cover(first, first + self.size // self.width)
        merges: list[tuple[Block | None, Block | None]] = []
        for block in cover:
            self._plan(block, merges)
        if len(cover) == 1:
            return Closing(window, merges, cover[0])
        merges += [(None, block) for block in cover]
        closing = Closing(window, merges, None)
        closing.merged = self.grouping.table(False)
        return closing

    def _cover(self, first: int, beyond: int) -> list[Block]:
        """The largest blocks with tuples that together are these panes, in order of time."""
        if self.levels == 1:
            start, stop = bisect_left(self.order, first), bisect_left(self.order, beyond)
            return [(0, number) for number in self.order[start:stop]]
        blocks = []
        while first < beyond:
            level = (beyond - first).bit_length() - 1
            if first:
                level = min(level, (first & -first).bit_length() - 1)
            blocks.append((level, first >> level))
            first += 1 << level
        return [block for block in blocks if self._holds(block)]

    def _holds(self, block: Block) -> bool:
        """Whether there are tuples in a block."""
        level, index = block
        at = bisect_left(self.order, index << level)
        return at < len(self.order) and self.order[at] < (index + 1) << level

    def _plan(self, block: Block, merges: list[tuple[Block | None, Block | None]]) -> None:
        """Add the merges that it takes until this block is there."""
        level, index = block
        if not level or block in self.panes:
            return
        left, right = (level - 1, 2 * index), (level - 1, 2 * index + 1)
        halves = [half for half in (left, right) if self._holds(half)]
        for half in halves:
            self._plan(half, merges)
        merges.append((block, right if right in halves else None))

    def _merge(self, closing: Closing, limit: int) -> int:
        into, what = closing.merges[closing.part]
        table = closing.merged if into is None else self._block(into)
        assert table is not None
        pane = None if what is None else self.panes[what]
        stop = 0
        handled = 0
        if pane is not None:
            stop = min(pane.count, closing.place + limit)
            table.merge(pane, closing.place, stop)
            handled = stop - closing.place
        closing.place = stop
        if pane is None or stop == pane.count:
            closing.part += 1
            closing.place = 0
        return handled

    def _block(self, block: Block) -> Table:
        """The table of a block that is being made: at first it is its left half."""
        table = self.panes.get(block)
        if table is None:
            level, index = block
            left = (level - 1, 2 * index)
            table = self.panes.pop(left, None)
            if table is None:
                table = self.grouping.table(False)
            self.panes[block] = table
            self._account.changed[left] = None
        self._account.changed[block] = None
        return table

    def _give(self, closing: Closing, limit: int, batches: list[Batch]) -> int:
        table = self._table(closing)
        start, stop = closing.given, min(table.count, closing.given + limit)
        self._build_window(closing.number, table, np.arange(start, stop), table.keys(start, stop), batches)
        closing.given = stop
        if stop == table.count:
            self.closing = None
            self.opened = closing.number + 1
            while self.order and self._last_window(self.order[0]) < self.opened:
                self._forget(self.order.pop(0))
            if self.ages is not None:
                self.ages.drop(self._next())
        return stop - start

    def _build_window(
        self, number: int, table: Table, slots: Int64s, keys: Sequence[Column], given: list[Batch]
    ) -> None:
        """Add the rows of these groups of a window."""
        begin = self.offset + number * self.slide
        end = begin + self.size
        time = saturated(end - 1) if self.ages is None else self.ages.of(number)
        times: list[Values] = [constant_int64(value, len(slots)) for value in (time, begin, end)]
        batch = self.built(table, slots, keys, *times)
        if len(batch):
            given.append(batch)

    def _forget(self, pane: int) -> None:
        """Drop a pane and the blocks that it is part of: no window starts before its end."""
        for level in range(self.levels):
            if self.panes.pop((level, pane >> level), None) is not None:
                self._account.changed[level, pane >> level] = None

    def _table(self, closing: Closing) -> Table:
        if closing.alone is not None:
            return self.panes[closing.alone]
        assert closing.merged is not None
        return closing.merged

    def numbers(self) -> dict[str, Any]:
        """For reports: what it keeps, the counts of the low-level table, and those that the choice goes by."""
        numbers = self.choice.numbers()
        if self.low is not None:
            numbers |= self.low.numbers()
        if self.choice.adaptive or self.choice.mode == "buffered":
            numbers["buffered_tuples"] = sum(rows.count for rows in self.buffered.values())
        return numbers

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def tuples(self) -> int:
        merged = self.closing.merged if self.closing is not None else None
        elsewhere = sum(rows.count + rows.table.count for rows in self.buffered.values())
        elsewhere += 0 if self.low is None else self.low.count
        return self._account.sums()[0] + elsewhere + (merged.count if merged is not None else 0)

    @property
    def nbytes(self) -> int:
        merged = self.closing.merged if self.closing is not None else None
        elsewhere = sum(rows.nbytes for rows in self.buffered.values())
        elsewhere += 0 if self.low is None else self.low.nbytes
        return self._account.sums()[1] + elsewhere + (merged.nbytes if merged is not None else 0)

    def save(self) -> Any:
        closing = self.closing
        out = None
        if closing is not None:
            merged = None if closing.merged is None else closing.merged.save()
            merges = [list(merge) for merge in closing.merges]
            out = [closing.number, merges, closing.alone, merged, closing.part, closing.place, closing.given]
        panes = [[*block, table.save()] for block, table in self.panes.items()]
        ages = None if self.ages is None else self.ages.save()
        low = None if self.low is None else self.low.save()
        buffered = [[number, rows.save()] for number, rows in self.buffered.items()]
        before = [self.choice.save(), low, buffered]
        return [self.reached, panes, list(self.order), self.opened, out, ages, before]

    def restore(self, data: Any) -> None:
        self.reached, panes, self.order, self.opened, out, ages, (choice, low, buffered) = data
        self.choice.restore(choice)
        self.low = self._low_table()
        if self.low is not None:
            self.low.restore(low)
        self.buffered = {}
        for number, saved in buffered:
            self.buffered[number] = BufferedRows(self.grouping, self._whole)
            self.buffered[number].restore(saved)
        if self.ages is not None:
            self.ages.restore(ages)
        self.panes = {(level, index): self._restored(saved, self._whole) for level, index, saved in panes}
        self._account = Account(self.panes)
        self.closing = None
        if out is not None:
            number, merges, alone, merged, part, place, given = out
            planned = [(_block_of(into), _block_of(what)) for into, what in merges]
            self.closing = closing = Closing(number, planned, _block_of(alone))
            closing.merged = None if merged is None else self._restored(merged, False)
            closing.part, closing.place, closing.given = part, place, given

    def _restored(self, saved: Any, whole: bool) -> Table:
        table = self.grouping.table(whole)
        table.restore(saved)
        return table


def _block_of(saved: Sequence[int] | None) -> Block | None:
    return None if saved is None else (saved[0], saved[1])
