"""Arrivals of a key: the tuples of windows that are not committed to yet, and which of these windows is its update.

LAZY and EAGER differ here: an update is a window that has fully arrived, or one that has started.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from millrace.operators.queues.windows.buffers import Blocks, SortedTimes, WindowBuffer
from millrace.operators.spec import TimeWindow
from millrace.values.eventtime import MIN_TIME

Commit = Literal["lazy", "eager"]


class Progress:
    """The buffer of one key, and the progress of its windows; LAZY and EAGER add the rest.

    pending_us   start of the window that waits for the queue to commit to it; None if no window does
    closed_us    start of the newest window that has fully arrived; None if no window has
    reached_us   the newest time of the key's tuples
    newest_us    the newest time of those that are in a window
    """

    __slots__ = ("_begin_us", "_window", "buffer", "closed_us", "newest_us", "pending_us", "reached_us")

    def __init__(self, window: TimeWindow, begin_us: int, blocks: Blocks) -> None:
        self._window = window
        self._begin_us = begin_us
        self.buffer = WindowBuffer(blocks)
        self.pending_us: int | None = None
        self.closed_us: int | None = None
        self.reached_us = self.newest_us = MIN_TIME

    def _pending_covers(self, time_us: int) -> bool:
        start_us = self.pending_us
        return start_us is not None and start_us <= time_us < start_us + self._window.size_us

    def _lowest(self) -> int:
        """Windows that start earlier have arrived, or do not count."""
        begin_us, closed_us = self._begin_us, self.closed_us
        return begin_us if closed_us is None else max(begin_us, closed_us + self._window.slide_us)


class LazyArrivals(Progress):
    """LAZY: the update of a key is the newest window that has fully arrived."""

    __slots__ = ("_times", "available")

    def __init__(self, window: TimeWindow, begin_us: int, blocks: Blocks) -> None:
        super().__init__(window, begin_us, blocks)
        self._times = SortedTimes()
        self.available = 0

    def keeps(self, time_us: int) -> bool:
        """Whether the pending window or a later one may need the tuple."""
        lowest_us = self.closed_us
        if lowest_us is None:
            return True
        return time_us >= (lowest_us if self.pending_us is not None else lowest_us + self._window.slide_us)

    def store(self, time_us: int) -> int | None:
        """The row for a tuple that is in a window; None if no window needs it."""
        if time_us > self.newest_us:
            self.newest_us = time_us
        if not self.keeps(time_us):
            return None
        self._times.add(time_us)
        self.available += self._pending_covers(time_us)
        return self.buffer.append(time_us)

    def close(self, ended_us: int, _in_order: bool) -> int:
        """Count the windows with tuples that have newly arrived: none starts later than `ended_us`."""
        count, newest_us = self._closing(ended_us)
        if count:
            self.closed_us = self.pending_us = newest_us
            self.drop_below(newest_us)
            self.available = self._times.count(newest_us, newest_us + self._window.size_us)
        return count

    def _closing(self, ended_us: int) -> tuple[int, int]:
        """How many windows with tuples have newly arrived, and the start of the newest."""
        window, count, newest_us = self._window, 0, 0
        start_us = window.first_start(self._lowest())
        # All windows from a tuple's first to its last have it; the next tuple says which windows are empty.
        while (time_us := self._times.first(start_us)) is not None:
            start_us = max(start_us, window.first_start(time_us - window.size_us + 1))
            last_us = min(ended_us, window.start(time_us))
            if last_us < start_us:
                break
            count += (last_us - start_us) // window.slide_us + 1
            newest_us = last_us
            start_us = last_us + window.slide_us
        return count, newest_us

    def drop_below(self, time_us: int) -> None:
        """Drop tuples that no later window needs."""
        self.buffer.drop_below(time_us)
        self._times.drop_below(time_us)

    def commit(self, processing: WindowBuffer) -> WindowBuffer:
        """Copy the window's tuples: later windows may need them too."""
        start_us = self.pending_us
        assert start_us is not None
        times = self.buffer.times()
        processing.copy(self.buffer.rows()[(times >= start_us) & (times < start_us + self._window.size_us)])
        self.drop_below(start_us + self._window.slide_us)
        self.pending_us, self.available = None, 0
        return processing

    def save(self) -> list[Any]:
        """The numbers of both policies, with blanks for those that only EAGER has."""
        reached_us, newest_us, closed_us = self.reached_us, self.newest_us, self.closed_us
        return [self.available, reached_us, newest_us, MIN_TIME, closed_us, None, self.pending_us]

    def restore(self, data: Sequence[Any]) -> None:
        self.available, self.reached_us, self.newest_us, _, self.closed_us, _, self.pending_us = data
        self._times = SortedTimes(self.buffer.times().tolist())


class EagerArrivals(Progress):
    """EAGER: the update of a key is the newest window that has started. The buffer has no tuples of other windows.

    started_us   start of that window, pending or not; None if no window has started
    prior_us     the second newest time of tuples that are in a window
    """

    __slots__ = ("_prior_us", "_started_us")

    def __init__(self, window: TimeWindow, begin_us: int, blocks: Blocks) -> None:
        super().__init__(window, begin_us, blocks)
        self._started_us: int | None = None
        self._prior_us = MIN_TIME

    @property
    def available(self) -> int:
        return self.buffer.count

    def start(self, start_us: int, time_us: int) -> int | None:
        """Drop the pending window as a whole if the tuple starts a newer one; None if it does not.

        The result counts the older windows that the tuple starts too: they are superseded.
        """
        started_us = self._started_us
        if started_us is not None and start_us <= started_us:
            return None
        window = self._window
        lowest_us = max(self._begin_us, window.last_ended(time_us) + window.slide_us)
        if started_us is not None:
            lowest_us = max(lowest_us, started_us + window.slide_us)
        self._started_us = self.pending_us = start_us
        self.buffer.drop(self.buffer.count)
        return (start_us - window.first_start(lowest_us)) // window.slide_us

    def store(self, time_us: int) -> int | None:
        if time_us > self.newest_us:
            self._prior_us, self.newest_us = self.newest_us, time_us
        return self.buffer.append(time_us) if self._pending_covers(time_us) else None

    def close(self, ended_us: int, in_order: bool) -> int:
        """Count 1 if a window has newly arrived: where a promise ends many at once, the last of them stands for all.

        `in_order` says that the key's tuples arrive in order.
        """
        below_us = ended_us + self._window.size_us
        for time_us in (self.newest_us, self._prior_us):
            if MIN_TIME < time_us < below_us:
                ended_us = min(ended_us, self._window.start(time_us))
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
        window, self.buffer = self.buffer, processing
        self.pending_us = None
        return window

    def save(self) -> list[Any]:
        reached_us, newest_us, closed_us = self.reached_us, self.newest_us, self.closed_us
        return [0, reached_us, newest_us, self._prior_us, closed_us, self._started_us, self.pending_us]

    def restore(self, data: Sequence[Any]) -> None:
        _, self.reached_us, self.newest_us, self._prior_us, self.closed_us, self._started_us, self.pending_us = data


Arrivals = LazyArrivals | EagerArrivals
