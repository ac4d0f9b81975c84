"""Windows put together from panes (OOP, section 6 and the appendix).

Time (or the count of tuples) is cut into panes of the greatest width of which both slide and size are multiples. A
tuple counts once, in its pane, whatever the order in which tuples come; a window is the merge of its panes, made when
it closes. A pane goes as a whole, keys and all, when no open window needs it. Closing a window is done in pieces, so
that the work of one execution is bounded however many groups there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Sequence
from math import gcd
from typing import Any

import numpy as np

from millrace.operators.batch import BEGINNING, END_OF_TIME, Batch, Int64s, Values, constant_int64
from millrace.operators.functions.faults import REASONS, Fault
from millrace.operators.functions.vectors import Faults
from millrace.operators.grain import EVERY, THE_END, Grain, union_of, windows_of
from millrace.operators.groups import Grouping, Rows, Table
from millrace.operators.spec import AggregateSpec, RowWindow, TimeWindow
from millrace.protocol import Schema


class Windows(ABC):
    """What an aggregate over windows keeps. Ends of windows are on the axis that they are cut from.

    reached   no tuple below this is to come: windows that end here or before may close
    """

    def __init__(self, spec: AggregateSpec, schema: Schema, grouping: Grouping) -> None:
        self.spec = spec
        self.schema = schema
        self.grouping = grouping
        self.reached = BEGINNING
        self.errors: list[tuple[int, str]] = []

    @abstractmethod
    def take(self, rows: Rows, at: Int64s) -> None:
        """Take in rows at these places of the axis."""

    @abstractmethod
    def next_end(self) -> int | None:
        """Where the earliest window that has tuples and is not given yet ends."""

    @abstractmethod
    def flush(self, limit: int) -> tuple[Batch | None, int]:
        """Give rows of windows that may close; handle at most so many groups, and say how many."""

    @abstractmethod
    def low_water(self) -> int:
        """The least time that a row still to be given may have."""

    def grain(self) -> Grain:
        """At which times windows may close, or become urgent."""
        return EVERY

    @abstractmethod
    def need_above(self, low_us: int) -> int:
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
    """A window on its way out: its panes are merged one after the other, then its rows are given."""

    __slots__ = ("given", "merged", "number", "part", "parts", "place")

    def __init__(self, number: int, parts: list[int]) -> None:
        self.number = number
        self.parts = parts
        self.merged: Table | None = None
        self.part = self.place = self.given = 0


class Panes(Windows):
    """Windows of equal size at equal distances.

    panes   tables by number, a pane beginning at number * width on the axis without its offset; `order` is sorted
    opened  the number of the earliest window that has not been given
    """

    def __init__(self, spec: AggregateSpec, schema: Schema, grouping: Grouping, since: int | None) -> None:
        super().__init__(spec, schema, grouping)
        window = spec.window
        if isinstance(window, TimeWindow):
            self.size, self.slide, self.offset = window.size_us, window.slide_us, window.offset_us
        else:
            assert isinstance(window, RowWindow)
            self.size, self.slide, self.offset = window.size, window.slide, 0
        self.by_rows = isinstance(window, RowWindow)
        self.width = gcd(self.size, self.slide)
        self.panes: dict[int, Table] = {}
        self.order: list[int] = []
        self.opened: int | None = None
        if since is not None and spec.partial == "skip":
            self.opened = -((self.offset - since) // self.slide)
        self.closing: Closing | None = None

    # -- taking --------------------------------------------------------------------------------------------------------

    def take(self, rows: Rows, at: Int64s) -> None:
        at = at - self.offset if self.offset else at
        if self.slide > self.size:
            inside = at % self.slide < self.size
            if not inside.all():
                rows, at = rows.take(np.flatnonzero(inside)), at[inside]
        if not len(at):
            return
        first, last = int(at.min()) // self.width, int(at.max()) // self.width
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

    def _take(self, number: int, rows: Rows) -> None:
        if self.opened is not None and self._last_window(number) < self.opened:
            return
        pane = self.panes.get(number)
        if pane is None:
            pane = self.panes[number] = self.grouping.table(self.size == self.slide)
            insort(self.order, number)
        pane.take(rows)

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

    def grain(self) -> Grain:
        if self.by_rows:
            return THE_END
        lates = (0,) if self.spec.flush == "none" else (0, self.spec.max_delay_us)
        return union_of(Grain(False, (windows_of(self.size, self.slide, self.offset + late),)) for late in lates)

    def low_water(self) -> int:
        pending = self.next_end()
        if pending is not None and pending <= self.reached:
            return pending - 1
        if self.reached in (BEGINNING, END_OF_TIME):
            return self.reached
        return min(self._end((self.reached - self.offset - self.size) // self.slide + 1) - 1, END_OF_TIME - 1)

    def need_above(self, low_us: int) -> int:
        return self._end((low_us - self.offset - self.size) // self.slide)

    def newest_floor(self) -> int:
        """Windows of tuples: no row still to be given is below this, as far as tuples that have come decide."""
        return min((pane.newest for pane in self.panes.values()), default=END_OF_TIME)

    # -- giving --------------------------------------------------------------------------------------------------------

    def flush(self, limit: int) -> tuple[Batch | None, int]:
        done = 0
        given: list[Batch] = []
        while done < limit and self.due():
            if self.closing is None:
                self.closing = self._begin()
            closing = self.closing
            if closing.part < len(closing.parts):
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
        beyond = first + self.size // self.width
        parts = []
        for number in self.order:
            if number >= beyond:
                break
            if number >= first:
                parts.append(number)
        closing = Closing(window, parts)
        if len(parts) == 1:
            closing.part = 1
        else:
            closing.merged = self.grouping.table(False)
        return closing

    def _merge(self, closing: Closing, limit: int) -> int:
        pane = self.panes[closing.parts[closing.part]]
        stop = min(pane.count, closing.place + limit)
        assert closing.merged is not None
        closing.merged.merge(pane, closing.place, stop)
        handled = stop - closing.place
        closing.place = stop
        if stop == pane.count:
            closing.part += 1
            closing.place = 0
        return handled

    def _give(self, closing: Closing, limit: int, given: list[Batch]) -> int:
        table = self._table(closing)
        start, stop = closing.given, min(table.count, closing.given + limit)
        count = stop - start
        begin = self.offset + closing.number * self.slide
        end = begin + self.size
        time = table.newest if self.by_rows else min(end - 1, END_OF_TIME - 1)
        times: list[Values] = [constant_int64(value, count) for value in (time, begin, end)]
        batch = self.built(table, np.arange(start, stop), table.keys(start, stop), *times)
        if len(batch):
            given.append(batch)
        closing.given = stop
        if stop == table.count:
            self.closing = None
            self.opened = closing.number + 1
            while self.order and self._last_window(self.order[0]) < self.opened:
                del self.panes[self.order.pop(0)]
        return count

    def _table(self, closing: Closing) -> Table:
        return closing.merged if closing.merged is not None else self.panes[closing.parts[0]]

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def tuples(self) -> int:
        merged = self.closing.merged if self.closing is not None else None
        return sum(pane.count for pane in self.panes.values()) + (merged.count if merged is not None else 0)

    @property
    def nbytes(self) -> int:
        merged = self.closing.merged if self.closing is not None else None
        return sum(pane.nbytes for pane in self.panes.values()) + (merged.nbytes if merged is not None else 0)

    def save(self) -> Any:
        closing = self.closing
        out = None
        if closing is not None:
            merged = None if closing.merged is None else closing.merged.save()
            out = [closing.number, closing.parts, merged, closing.part, closing.place, closing.given]
        panes = [[number, self.panes[number].save()] for number in self.order]
        return [self.reached, panes, self.opened, out]

    def restore(self, data: Any) -> None:
        self.reached, panes, self.opened, out = data
        self.order = [number for number, _ in panes]
        self.panes = {number: self._restored(saved, self.size == self.slide) for number, saved in panes}
        self.closing = None
        if out is not None:
            number, parts, merged, part, place, given = out
            self.closing = closing = Closing(number, parts)
            closing.merged = None if merged is None else self._restored(merged, False)
            closing.part, closing.place, closing.given = part, place, given

    def _restored(self, saved: Any, whole: bool) -> Table:
        table = self.grouping.table(whole)
        table.restore(saved)
        return table
