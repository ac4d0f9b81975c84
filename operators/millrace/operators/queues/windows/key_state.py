"""What a queue of windows knows of a key: a few small objects, one per question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

from millrace.operators.queues.windows.arrivals import Arrivals, Commit, EagerArrivals, LazyArrivals
from millrace.operators.queues.windows.buffers import Blocks, WindowBuffer
from millrace.operators.queues.windows.freshness import Freshness
from millrace.operators.spec import TimeWindow
from millrace.values.eventtime import MIN_TIME

# What the operator does with a tuple (table 1) that opens no window. The mark of one that does is the window's end.
DISALLOW: Final = 0
UPDATE: Final = -1

# A key with its two empty buffers in CPython, and its place in the table of keys.
KEY_BYTES: Final = 900


@dataclass(slots=True)
class Turn:
    """Since when a key has been in line, when its last update arrived, and the mean time between updates."""

    since_us: int = 0
    last_update_us: int | None = None
    gap_us: int | None = None

    def update(self, arrival_us: int) -> int | None:
        """Count an update; the mean time between updates."""
        if self.last_update_us is not None:
            gap_us = max(0, arrival_us - self.last_update_us)
            self.gap_us = gap_us if self.gap_us is None else (3 * self.gap_us + gap_us) >> 2
        self.last_update_us = arrival_us
        return self.gap_us


class Processing:
    """The window of a key that is being processed.

    start_us   its start; None if the key has none
    idle       it has no tuples to serve and has not fully arrived (IDLE in figure 10)
    """

    __slots__ = ("_last_us", "_opened", "_window", "buffer", "idle", "start_us")

    def __init__(self, window: TimeWindow, blocks: Blocks) -> None:
        self._window = window
        self.buffer = WindowBuffer(blocks)
        self.start_us: int | None = None
        self.idle = False
        self._opened = False
        self._last_us = MIN_TIME

    def open(self, start_us: int, buffer: WindowBuffer) -> None:
        self.start_us, self.buffer = start_us, buffer
        self._opened, self._last_us = False, MIN_TIME

    def covers(self, time_us: int) -> bool:
        start_us = self.start_us
        return start_us is not None and start_us <= time_us < start_us + self._window.size_us

    def arrived(self, reach_us: int) -> bool:
        """Whether there is a window and it has fully arrived, given that those that end at `reach_us` have."""
        return self.start_us is not None and self.start_us + self._window.size_us <= reach_us

    def take(self, limit: int, rows: list[int], marks: list[int]) -> None:
        """Append the rows of the next tuples, and their marks."""
        assert self.start_us is not None
        window = self._window
        taken, times = self.buffer.take(limit)
        rows.extend(taken.tolist())
        for time_us in times.tolist():
            if not self._opened:
                marks.append(self.start_us + window.size_us)
                self._opened = True
            else:
                marks.append(DISALLOW if window.start(time_us) > window.start(self._last_us) else UPDATE)
            self._last_us = max(self._last_us, time_us)

    def finish(self) -> tuple[int, int]:
        """The bounds of the window, which has ended."""
        assert self.start_us is not None
        start_us, self.start_us = self.start_us, None
        return start_us, start_us + self._window.size_us

    def save(self) -> list[Any]:
        return [self.start_us, self._opened, self._last_us, self.idle]

    def restore(self, data: Sequence[Any]) -> None:
        self.start_us, self._opened, self._last_us, self.idle = data


class KeyState:
    """A key's tuples and windows.

    arrivals     tuples and windows that are not committed to
    turn         its place in line, where it has one exactly if a window is pending
    processing   the window that is being processed
    freshness    how stale the application's result is
    takeable     how many tuples could be served now
    """

    __slots__ = ("arrivals", "freshness", "processing", "takeable", "turn")

    def __init__(self, commit: Commit, window: TimeWindow, begin_us: int, blocks: Blocks) -> None:
        policy = LazyArrivals if commit == "lazy" else EagerArrivals
        self.arrivals: Arrivals = policy(window, begin_us, blocks)
        self.turn = Turn()
        self.processing = Processing(window, blocks)
        self.freshness = Freshness()
        self.takeable = 0

    def count(self, reach_us: int) -> int:
        """Set `takeable`, and return by how much it changed.

        It counts the tuples of the window in processing, and of the pending one if that can be committed to next.
        """
        arrivals, processing = self.arrivals, self.processing
        count = processing.buffer.count
        if arrivals.pending_us is not None and (processing.start_us is None or processing.arrived(reach_us)):
            count += arrivals.available
        change, self.takeable = count - self.takeable, count
        return change

    @property
    def blank(self) -> bool:
        """Whether it has no tuples, no window, and no result that the application has not seen."""
        arrivals, processing = self.arrivals, self.processing
        held = arrivals.buffer.count or processing.buffer.count
        windows = arrivals.pending_us is not None or processing.start_us is not None
        return not held and not windows and self.freshness.oldest_us is None

    def save(self) -> list[Any]:
        numbers = [*self.arrivals.save(), *astuple(self.turn), *self.processing.save(), *astuple(self.freshness)]
        return [self.arrivals.buffer.save(), self.processing.buffer.save(), [*numbers, self.takeable]]

    def restore(self, arriving: Sequence[Any], processing: Sequence[Any], numbers: Sequence[Any]) -> None:
        self.arrivals.buffer.restore(arriving)
        self.processing.buffer.restore(processing)
        self.arrivals.restore(numbers[:7])
        self.turn = Turn(*numbers[7:10])
        self.processing.restore(numbers[10:14])
        self.freshness = Freshness(*numbers[14:18])
        (self.takeable,) = numbers[18:]
