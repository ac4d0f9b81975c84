"""The server's clock: the time of day at the pace of the monotonic clock.

Rule: it never goes back, and setting the system's clock disturbs nothing that is in progress. A jump forward is adopted
and reported at once, so that the engine does not count it as waiting. After a jump back the clock continues from where
it is, a hundredth slower than time, until the system's clock has caught up. Smaller differences, as a
time service makes them, are followed by the same hundredth.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# A larger difference means that the clock was set; time services slew smaller ones.
STEP_US: Final = 1_000_000
# The clock catches up by one part in this many: fast enough for a second in two minutes, far too slow to disturb waits.
SLEW_SHARE: Final = 100
# Two readings further apart than this were interrupted, and say nothing of each other.
APART_US: Final = 10_000


def wall_clock_us() -> int:
    return time.time_ns() // 1_000


def monotonic_us() -> int:
    return time.monotonic_ns() // 1_000


class Clock:
    """`now_us` reads it, `notice` compares it with the system's clock."""

    def __init__(self, wall: Callable[[], int] = wall_clock_us, monotonic: Callable[[], int] = monotonic_us) -> None:
        self._wall = wall
        self._monotonic = monotonic
        # The clock showed `_from_us` when the monotonic one showed `_since_us`, and has `_behind_us` to catch up with.
        self._since_us = monotonic()
        self._from_us = wall()
        self._behind_us = 0
        self.held_back_us = 0

    def now_us(self) -> int:
        """Microseconds since the epoch, never less than before."""
        return self._at(self._monotonic())

    def notice(self) -> int:
        """Look at the system's clock; by how much this one has jumped forward to follow it, mostly 0.

        `held_back_us` is how far the system's clock was set back, as long as this one is not near it.
        """
        self._since_us, self._from_us, self._behind_us = self._compare()
        self.held_back_us = -self._behind_us if self._behind_us < -STEP_US else 0
        if self._behind_us <= STEP_US:
            return 0
        stepped_us, self._behind_us = self._behind_us, 0
        self._from_us += stepped_us
        return stepped_us

    def _at(self, monotonic_us: int) -> int:
        passed, behind = monotonic_us - self._since_us, self._behind_us
        slewed = passed // SLEW_SHARE
        if behind >= 0:
            return self._from_us + passed + (slewed if slewed < behind else behind)
        return self._from_us + passed - (slewed if slewed < -behind else -behind)

    def _compare(self) -> tuple[int, int, int]:
        """The monotonic clock, the time that this clock shows, and how far that is behind the system's clock."""
        while True:
            before = self._monotonic()
            wall = self._wall()
            after = self._monotonic()
            if after - before <= APART_US:
                shown = self._at(after)
                return after, shown, wall - shown
