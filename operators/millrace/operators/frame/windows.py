"""Windows as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace.values.definitions import Definition
from millrace.values.intervals import format_interval
from millrace.values.lags import Lag, Lags

# Why no span of time around a row is enough for windows of rows.
COUNTED: Final = "windows of rows count from the first row"


@dataclass(frozen=True, slots=True)
class TimeWindow(Definition):
    """Windows [start, start + size) of time, one every `slide`, aligned to the epoch plus an offset.

    TUMBLE has slide = size. A slide above the size leaves gaps, whose tuples are in no window.
    """

    size_us: int
    slide_us: int
    offset_us: int = 0

    def start(self, time_us: int) -> int:
        """The start of the last window that starts at this time or earlier."""
        return time_us - (time_us - self.offset_us) % self.slide_us

    def first_start(self, time_us: int) -> int:
        """The start of the first window that starts at this time or later."""
        return self.start(time_us + self.slide_us - 1)

    def last_ended(self, time_us: int) -> int:
        """The start of the last window that ends at this time or earlier."""
        return self.start(time_us - self.size_us)


@dataclass(frozen=True, slots=True)
class SessionWindow(Definition):
    """Per key, tuples that follow each other by less than `gap`: [first, last + gap)."""

    gap_us: int


@dataclass(frozen=True, slots=True)
class RowWindow(Definition):
    """Windows of `size` tuples in order of arrival at the source, one every `slide` tuples.

    It counts positions on the arc that it reads. So its operator reads the source itself, and the operators in between
    (selects and maps) is folded into the spec: predicates into `where`, computed columns into the expressions.
    """

    size: int
    slide: int


class OpenWindows(NamedTuple):
    """The windows of an operator that have tuples and have not been emitted: their number, and the first of them as
    [start, end). Those that end at `closed_us` or before have been emitted."""

    window: TimeWindow | SessionWindow
    number: int
    spans: Sequence[tuple[int, int]]
    closed_us: int


def window_words(window: TimeWindow | SessionWindow | RowWindow | None) -> str:
    match window:
        case TimeWindow(size, slide, offset):
            words = f"windows of {format_interval(size)}"
            if slide != size:
                words += f" every {format_interval(slide)}"
            return words + (f" from {format_interval(offset)}" if offset else "")
        case SessionWindow(gap):
            return f"sessions with gaps of {format_interval(gap)}"
        case RowWindow(size, slide):
            return f"windows of {size} rows every {slide}"
    return "all rows so far"


def bound_lags(bounds: Sequence[tuple[str, str]], first: int, start: Lag, end: Lag) -> Lags:
    """The lags of a window's bounds, the columns from `first` on."""
    return {first + at: start if side == "start" else end for at, (_, side) in enumerate(bounds)}
