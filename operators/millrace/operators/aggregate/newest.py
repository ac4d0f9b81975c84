"""Aggregates over the newest window of each key: what reads an update queue of windows (UPS, section 6).

The queue decides which tuple opens a window and which windows are over, and never has two windows of a key in
processing, so a window here is one slot of a table of states. A key's row is the row of its newest whole window, so the
result is an update stream. Windows of different keys end in any order, so the output has no order of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from millrace.operators.aggregate.groups import UNTOUCHED, ComputedRows, Grouping, Table
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.frame.idle_waiting import WindowWaiting
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import Site
from millrace.operators.frame.punctuation_grain import PunctuationGrain, windows_of
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.queues.inlet import QueueInlet
from millrace.operators.queues.queue import Key
from millrace.operators.queues.windows import FinishedWindow, WindowQueue, update_keys
from millrace.values.batch import FILLERS, Batch, Int64s, column_of
from millrace.values.evaluate import errors_of
from millrace.values.eventtime import HORIZON_US, MAX_TIME, saturated
from millrace.values.expression import Column, Expression


class ClosedWindow(NamedTuple):
    """A window that is over: its slot, its key, and its bounds."""

    slot: int
    key: Key
    start_us: int
    end_us: int


class NewestWindowAggregate(WindowWaiting):
    """One group per key, the aggregates of its newest window.

    open   the windows that are being processed: their slot and where they end, by key
    free   slots without a window
    """

    kind: ClassVar[str] = "aggregate"
    layout: ClassVar[Layout] = Layout(1)
    paced = True
    shifts_time: ClassVar[bool] = True

    def __init__(self, site: Site, spec: AggregateSpec) -> None:
        super().__init__(site)
        (reader,) = self.inputs
        assert isinstance(reader, QueueInlet)
        assert isinstance(reader.queue, WindowQueue)
        assert isinstance(spec.window, TimeWindow)
        self.spec = spec
        self.window = spec.window
        self._reader = reader
        self._known = reader.queue
        self._grouping = Grouping(spec)
        self._states = Table(self._grouping, True)
        # Where each column of GROUP BY stands in the queue's key.
        self._key_at = [reader.edge.key.index(_position(key)) for _, key in spec.keys]
        self.open: dict[Key, tuple[int, int]] = {}
        self.free: list[int] = []

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def _queue(self) -> WindowQueue:
        queue = self._reader.queue
        assert isinstance(queue, WindowQueue)
        return queue

    def settle(self) -> None:
        """Pass the promise to the queue. A queue that a pause has emptied continues no open window."""
        self._reader.refresh()
        if self._queue is not self._known:
            self._known = self._queue
            self._release([slot for slot, _ in self.open.values()])
            self.open.clear()

    def need(self) -> int | None:
        queue = self._queue
        return None if queue.pending else queue.next_end()

    @property
    def newest_us(self) -> int:  # type: ignore[override]
        return self._queue.newest_us

    def declares(self) -> PunctuationGrain | None:
        """The ends of windows: between two of them it can neither act nor promise."""
        window = self.window
        return PunctuationGrain(False, (windows_of(window.size_us, window.slide_us, window.offset_us),))

    def demand(self, need_us: int) -> int:
        """The end of the last window that may contain an earlier tuple."""
        window = self.window
        return saturated(window.start(need_us - 1) + window.size_us)

    def low_water(self) -> int:
        low = self._reader.low_water()
        ends = min((end for _, end in self.open.values()), default=MAX_TIME)
        return low if ends == MAX_TIME else min(low, saturated(ends - 1))

    # -- running -------------------------------------------------------------------------------------------------------

    def more(self) -> bool:
        return self._queue.pending

    def fresh(self) -> bool:
        return self._reader.unseen or self.more()

    def run(self, limit: int) -> None:
        self.settle()
        if self._reader.away:
            return
        queue = self._queue
        batch = self.take(self._reader, limit)
        self.taken = 0 if batch is None else len(batch)
        rows = self._process(batch, queue.last.marks, queue.last.finished)
        if rows is not None:
            self.emit(rows)
        self._reader.mark_seen()

    def _process(self, batch: Batch | None, marks: Int64s, finished: Sequence[FinishedWindow]) -> Batch | None:
        """Let tuples count in their windows; the rows of those that are over."""
        ends = iter(finished)
        over: list[ClosedWindow] = []
        ahead = next(ends, None)
        if batch is not None:
            slots = np.empty(len(batch), np.int64)
            for row, (key, mark) in enumerate(
                zip(update_keys(batch, self._reader.edge.key), marks.tolist(), strict=True)
            ):
                while ahead is not None and ahead.rows <= row:
                    self._close(ahead, over)
                    ahead = next(ends, None)
                if key not in self.open:  # the queue ends the window of a key before it opens the next
                    self.open[key] = self._slot(), mark
                slots[row] = self.open[key][0]
            self._count(batch, slots)
        while ahead is not None:
            self._close(ahead, over)
            ahead = next(ends, None)
        rows = self._rows(over) if over else None
        self._release([window.slot for window in over])
        return rows

    def _slot(self) -> int:
        if not self.free:
            count = self._states.count
            self._states.count = max(16, 2 * count)
            self._states.reserve(self._states.count)
            self.free = list(range(self._states.count - 1, count - 1, -1))
        return self.free.pop()

    def _close(self, window: FinishedWindow, over: list[ClosedWindow]) -> None:
        slot, _ = self.open.pop(window.key, (-1, 0))
        if slot >= 0:
            over.append(ClosedWindow(slot, window.key, window.start_us, window.end_us))

    def _count(self, batch: Batch, slots: Int64s) -> None:
        rows, errors = self._grouping.evaluate(batch)
        if errors is not None:
            self.failed(int(errors.rows.sum()), errors.reason)
            alive = np.flatnonzero(~errors.rows)
            rows, slots = rows.take(alive), slots[alive]
        if len(rows.ts):
            self._states.update(slots, ComputedRows(rows.ts, rows.arrival, rows.columns, rows.valid))

    def _rows(self, over: list[ClosedWindow]) -> Batch | None:
        """A row of each window that has any tuple which could be computed."""
        over = [window for window in over if self._states.arrived[window.slot] != UNTOUCHED]
        if not over:
            return None
        slots = np.array([window.slot for window in over], np.int64)
        start = np.array([window.start_us for window in over], np.int64)
        end = np.array([window.end_us for window in over], np.int64)
        columns, valid, faults = self._states.finish(slots)
        keys, masks = self._key_columns(over)
        bounds = [start if which == "start" else end for _, which in self.spec.bounds]
        rows = Batch(
            self.output.schema,
            np.minimum(end - 1, HORIZON_US),
            [*keys, *columns, *bounds],
            [*masks, *valid, *(None for _ in bounds)],
            self._states.arrived[slots],
        )
        return self.without_failed(rows, errors_of(faults))

    def _key_columns(self, over: Sequence[ClosedWindow]) -> tuple[list[Any], list[Any]]:
        columns, masks = [], []
        for (_, key), at in zip(self.spec.keys, self._key_at, strict=True):
            values = [window.key[at] for window in over]
            there = np.array([value is not None for value in values])
            filled = [FILLERS[key.type] if value is None else value for value in values]
            columns.append(column_of(key.type, filled))
            masks.append(None if there.all() else there)
        return columns, masks

    def _release(self, slots: list[int]) -> None:
        if slots:
            self._states.clear(np.array(slots, np.int64))
            self.free.extend(slots)

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def state_tuples(self) -> int:
        return len(self.open)

    @property
    def state_bytes(self) -> int:
        return self._states.nbytes

    def save(self) -> Any:
        windows = [[list(key), slot, end] for key, (slot, end) in self.open.items()]
        return [super().save(), windows, self.free, self._states.save()]

    def restore(self, data: Any) -> None:
        idle, windows, self.free, states = data
        super().restore(idle)
        self.open = {tuple(key): (slot, end) for key, slot, end in windows}
        self._states.restore(states)


def _position(key: Expression) -> int:
    assert isinstance(key, Column), f"windows are of keys as they come, which {key} is not"
    return key.position
