"""The likely unit of an integer timestamp that is far off in microseconds.

Rule: a time of this century reads as 1970 if it was written in seconds or milliseconds, and as a year beyond 9999 if it
was written in nanoseconds. The four ranges do not overlap, so the value alone determines its likely unit. The caller
decides whether to believe it: the caller knows the stream's other times and the clock.
"""

from __future__ import annotations

from typing import NamedTuple

from millrace.protocol.timestamps import SECOND, format_timestamp

# The times of live data: 2000 to 2099.
CENTURY_US = (946_684_800 * SECOND, 4_102_444_800 * SECOND)


class LikelyUnit(NamedTuple):
    """A unit, what to do with the value, and the time that it is then."""

    name: str
    remedy: str
    time_us: int

    def __str__(self) -> str:
        return (
            f"it looks like {self.name} ({format_timestamp(self.time_us)}): integer timestamps are microseconds, so "
            f"{self.remedy}"
        )


def likely_unit(value: int) -> LikelyUnit | None:
    """The unit in which this integer is a time of this century, if that is not microseconds."""
    for name, remedy, time_us in (
        ("seconds", "multiply by 1000000", value * SECOND),
        ("milliseconds", "multiply by 1000", value * 1_000),
        ("nanoseconds", "divide by 1000", value // 1_000),
    ):
        if in_century(time_us):
            return LikelyUnit(name, remedy, time_us)
    return None


def in_century(time_us: int) -> bool:
    """Whether a time in microseconds belongs to live data, or to the recent past."""
    return CENTURY_US[0] <= time_us < CENTURY_US[1]
