"""Arrivals of a key: the tuples of windows that are not committed to yet, and which of these windows is its update.

LAZY and EAGER differ here: an update is a window that has fully arrived, or one that has started.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from millrace.operators.frame.windows import TimeWindow
from millrace.operators.queues.windows.buffers import WindowBuffer
from millrace.values.eventtime import MIN_TIME

Commit = Literal["lazy", "eager"]


def covers(window: TimeWindow, start_us: int | None, time_us: int) -> bool:
    """Whether there is a window with this start, and it has this time."""
    return start_us is not None and start_us <= time_us < start_us + window.size_us


@dataclass(slots=True)
class KeyArrivals:
    """The buffer of one key, and the progress of its windows.

    pending_us   start of the window that waits for the queue to commit to it; None if no window does
    closed_us    start of the newest window that has fully arrived; None if no window has
    reached_us   the newest time of the key's tuples
    newest_us    the newest time of those that are in a window
    prior_us     EAGER: the second newest time of those
    started_us   EAGER: start of the newest window, pending or not, that has started; None if no window has
    counted      LAZY: tuples of the pending window
    """

    window: TimeWindow
    begin_us: int
    buffer: WindowBuffer
    pending_us: int | None = None
    closed_us: int | None = None
    reached_us: int = MIN_TIME
    newest_us: int = MIN_TIME
    prior_us: int = MIN_TIME
    started_us: int | None = None
    counted: int = 0

    def _lowest(self) -> int:
        """Windows that start earlier have arrived, or do not count."""
        begin_us, closed_us = self.begin_us, self.closed_us
        return begin_us if closed_us is None else max(begin_us, closed_us + self.window.slide_us)

    def save(self) -> list[Any]:
        times = [self.reached_us, self.newest_us, self.prior_us]
        return [self.counted, *times, self.closed_us, self.started_us, self.pending_us]

    def restore(self, data: Sequence[Any]) -> None:
        self.counted, self.reached_us, self.newest_us, self.prior_us, *starts = data
        self.closed_us, self.started_us, self.pending_us = starts


@dataclass(slots=True)
class LazyArrivals(KeyArrivals):
    """LAZY: the update of a key is the newest window that has fully arrived.

    `_times` has the times of the buffer's tuples in order, and may have earlier ones: it counts windows without a scan.
    """

    _times: array[int] = field(default_factory=lambda: array("q"))

    @property
    def available(self) -> int:
        return self.counted

    def keeps(self, time_us: int) -> bool:
        """Whether the pending window or a later one may need the tuple."""
        lowest_us = self.closed_us
        if lowest_us is None:
            return True
        return time_us >= (lowest_us if self.pending_us is not None else lowest_us + self.window.slide_us)

    def store(self, time_us: int) -> int | None:
        """The row for a tuple that is in a window; None if no window needs it."""
        if time_us > self.newest_us:
            self.newest_us = time_us
        if not self.keeps(time_us):
            return None
        insort(self._times, time_us)
        self.counted += covers(self.window, self.pending_us, time_us)
        return self.buffer.append(time_us)

    def close(self, ended_us: int, _in_order: bool) -> int:
        """Count the windows with tuples that have newly arrived: none starts later than `ended_us`."""
        count = 0
        for first_us, last_us in self._closing(ended_us):
            count += (last_us - first_us) // self.window.slide_us + 1
            newest_us = last_us
        if count:
            self._wait(newest_us)
        return count

    def close_next(self, ended_us: int) -> bool:
        """Count only the oldest of these windows, if there is one. The others arrive when this is called again."""
        for first_us, _ in self._closing(ended_us):
            self._wait(first_us)
            return True
        return False

    def _wait(self, start_us: int) -> None:
        """The window that starts so is the key's update."""
        self.closed_us = self.pending_us = start_us
        self.drop_below(start_us)
        first = bisect_left(self._times, start_us)
        self.counted = bisect_left(self._times, start_us + self.window.size_us, first) - first

    def _closing(self, ended_us: int) -> Iterator[tuple[int, int]]:
        """The first and the last start of the windows with tuples that have newly arrived, run by run."""
        window, times = self.window, self._times
        start_us = window.first_start(self._lowest())
        # All windows from a tuple's first to its last have it; the next tuple says which windows are empty.
        while (at := bisect_left(times, start_us)) < len(times):
            start_us = max(start_us, window.first_start(times[at] - window.size_us + 1))
            last_us = min(ended_us, window.start(times[at]))
            if last_us < start_us:
                return
            yield start_us, last_us
            start_us = last_us + window.slide_us

    def drop_below(self, time_us: int) -> None:
        """Drop tuples that no later window needs."""
        self.buffer.drop_below(time_us)
        gone = bisect_left(self._times, time_us)
        if gone * 2 >= len(self._times):  # the times that leave pay for moving those that stay
            del self._times[:gone]

    def commit(self, processing: WindowBuffer) -> WindowBuffer:
        """Copy the window's tuples: later windows may need them too."""
        start_us, times = self.pending_us, self.buffer.times()
        assert start_us is not None
        processing.fill(self.buffer.rows()[(times >= start_us) & (times < start_us + self.window.size_us)])
        self.drop_below(start_us + self.window.slide_us)
        self.pending_us, self.counted = None, 0
        return processing

    def restore(self, data: Sequence[Any]) -> None:
        KeyArrivals.restore(self, data)
        self.prior_us = MIN_TIME  # an earlier version saved it for LAZY too
        self._times = array("q", sorted(self.buffer.times().tolist()))


@dataclass(slots=True)
class EagerArrivals(KeyArrivals):
    """EAGER: the update of a key is the newest window that has started. The buffer has no tuples of other windows."""

    @property
    def available(self) -> int:
        return self.buffer.count

    def start(self, start_us: int, time_us: int) -> int | None:
        """Drop the pending window as a whole if the tuple starts a newer one; None if it does not.

        The result counts the older windows that the tuple starts too: they are superseded.
        """
        started_us, window = self.started_us, self.window
        if started_us is not None and start_us <= started_us:
            return None
        lowest_us = max(self.begin_us, window.last_ended(time_us) + window.slide_us)
        if started_us is not None:
            lowest_us = max(lowest_us, started_us + window.slide_us)
        self.started_us = self.pending_us = start_us
        self.buffer.drop(self.buffer.count)
        return (start_us - window.first_start(lowest_us)) // window.slide_us

    def store(self, time_us: int) -> int | None:
        if time_us > self.newest_us:
            self.prior_us, self.newest_us = self.newest_us, time_us
        return self.buffer.append(time_us) if covers(self.window, self.pending_us, time_us) else None

    def close(self, ended_us: int, in_order: bool) -> int:
        """Count 1 if a window has newly arrived: where a promise ends many at once, the last of them stands for all.

        `in_order` says that the key's tuples arrive in order.
        """
        below_us = ended_us + self.window.size_us
        for time_us in (self.newest_us, self.prior_us):
            if MIN_TIME < time_us < below_us:
                ended_us = min(ended_us, self.window.start(time_us))
                break
        else:
            if in_order or self.newest_us == MIN_TIME:
                return 0  # its tuples are in windows that had arrived before, or have not arrived yet
        if ended_us < self._lowest():
            return 0
        self.closed_us = ended_us
        return 1

    def commit(self, processing: WindowBuffer) -> WindowBuffer:
        """Swap the buffers."""
        window, self.buffer, self.pending_us = self.buffer, processing, None
        return window


Arrivals = LazyArrivals | EagerArrivals
