"""The state of a key in a queue of windows: a few small objects, one per question."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Final

from millrace.operators.frame.windows import TimeWindow
from millrace.operators.queues.windows.arrivals import Arrivals, covers
from millrace.operators.queues.windows.buffers import WindowBuffer
from millrace.operators.queues.windows.freshness import KeyFreshness
from millrace.values.eventtime import MIN_TIME

# What the operator does with a tuple (table 1) that opens no window. The mark of one that does is the window's end.
DISALLOW: Final = 0
UPDATE: Final = -1


@dataclass(slots=True)
class Turn:
    """Since when a key has been in line, when its last update arrived, and the mean time between updates."""

    since_us: int = 0
    last_update_us: int | None = None
    gap_us: int | None = None

    def update(self, arrival_us: int) -> None:
        if self.last_update_us is not None:
            gap_us = max(0, arrival_us - self.last_update_us)
            self.gap_us = gap_us if self.gap_us is None else (7 * self.gap_us + gap_us) >> 3
        self.last_update_us = arrival_us

    def rarer(self, than_us: float, share: float) -> bool:
        """Whether it is known that this share of the mean time between two updates is longer."""
        return self.gap_us is not None and than_us > 0 and self.gap_us * share > than_us


@dataclass(slots=True)
class Processing:
    """The window of a key that is being processed.

    start_us   its start; None if the key has none
    idle       it has no tuples to serve and has not fully arrived (IDLE in figure 10)
    newest_us  the newest time of the tuples that were served; MIN_TIME if none was
    """

    window: TimeWindow
    buffer: WindowBuffer
    start_us: int | None = None
    idle: bool = False
    newest_us: int = MIN_TIME

    def open(self, start_us: int, buffer: WindowBuffer) -> None:
        self.start_us, self.buffer, self.newest_us = start_us, buffer, MIN_TIME

    def covers(self, time_us: int) -> bool:
        return covers(self.window, self.start_us, time_us)

    def arrived(self, reach_us: int) -> bool:
        """Whether there is a window and it has fully arrived, given that those that end at `reach_us` have."""
        return self.start_us is not None and self.start_us + self.window.size_us <= reach_us

    def take(self, limit: int, rows: list[int], marks: list[int]) -> None:
        """Append the rows of the next tuples, and their marks."""
        assert self.start_us is not None
        window = self.window
        taken, times = self.buffer.take(limit)
        rows.extend(taken.tolist())
        for time_us in times.tolist():
            if self.newest_us == MIN_TIME:
                marks.append(self.start_us + window.size_us)
            else:
                marks.append(DISALLOW if window.start(time_us) > window.start(self.newest_us) else UPDATE)
            self.newest_us = max(self.newest_us, time_us)

    def save(self) -> list[Any]:
        return [self.start_us, self.newest_us != MIN_TIME, self.newest_us, self.idle]

    def restore(self, data: Sequence[Any]) -> None:
        self.start_us, _, self.newest_us, self.idle = data


@dataclass(slots=True)
class KeyState:
    """A key's tuples and windows.

    arrivals     tuples and windows that are not committed to
    turn         its place in line, where it has one exactly if a window is pending
    processing   the window that is being processed
    freshness    how stale the application's result is
    takeable     how many tuples could be served now
    ends         while all windows count, until which start they had arrived, and when, of those that have not counted
    """

    arrivals: Arrivals
    processing: Processing
    turn: Turn = field(default_factory=Turn)
    freshness: KeyFreshness = field(default_factory=KeyFreshness)
    takeable: int = 0
    ends: deque[tuple[int, int]] = field(default_factory=deque)

    def note_end(self, ended_us: int, arrival_us: int) -> None:
        """Windows that start at `ended_us` or earlier have arrived."""
        if not self.ends or self.ends[-1][0] < ended_us:
            self.ends.append((ended_us, arrival_us))

    def arrival_of(self, start_us: int) -> int:
        """When a window arrived, which is not older than one that was looked up before."""
        while self.ends[0][0] < start_us:
            self.ends.popleft()
        return self.ends[0][1]

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
        ends = [[list(end) for end in self.ends]] if self.ends else []
        return [self.arrivals.buffer.save(), self.processing.buffer.save(), [*numbers, self.takeable], *ends]

    def restore(
        self, arriving: Sequence[Any], processing: Sequence[Any], numbers: Sequence[Any], ends: Sequence[Any] = ()
    ) -> None:
        self.arrivals.buffer.restore(arriving)
        self.processing.buffer.restore(processing)
        self.arrivals.restore(numbers[:7])
        self.turn = Turn(*numbers[7:10])
        self.processing.restore(numbers[10:14])
        self.freshness = KeyFreshness(*numbers[14:18])
        (self.takeable,) = numbers[18:]
        self.ends = deque((ended_us, arrival_us) for ended_us, arrival_us in ends)
