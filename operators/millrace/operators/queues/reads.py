"""When the keys of an update queue are read next: the access frequencies of UPS, section 8.

A reader states how often it looks, at all keys or at some. It looks at the time when it said so, and then after every
interval. A key's next read is the nearest one of all its readers, at which a result could be out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.values.batch import Int64s

Key = tuple[Any, ...]
Floats = npt.NDArray[np.float64]
# A reader may list so many keys.
MOST_KEYS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Reads:
    """How often a reader looks, since when, and at which keys; None means all."""

    interval_us: int
    since_us: int
    keys: tuple[Key, ...] | None = None


class NextReads:
    """The next read of every group of keys: those that the same readers have listed. Group 0 has all other keys."""

    def __init__(self, reads: Sequence[Reads]) -> None:
        self._intervals = np.array([read.interval_us for read in reads], np.int64)
        self._since = np.array([read.since_us for read in reads], np.int64)
        everywhere = [at for at, read in enumerate(reads) if read.keys is None]
        listed: dict[Key, list[int]] = {}
        for at, read in enumerate(reads):
            for key in read.keys or ():
                listed.setdefault(key, []).append(at)
        numbers: dict[tuple[int, ...], int] = {tuple(everywhere): 0}
        self._groups = {
            key: numbers.setdefault(tuple(dict.fromkeys((*everywhere, *readers))), len(numbers))
            for key, readers in listed.items()
        }
        self._readers = [np.array(readers, np.int64) for readers in numbers]

    def groups(self, keys: Sequence[Key]) -> Int64s:
        """The group of each key."""
        return np.array([self._groups.get(key, 0) for key in keys], np.int64)

    def urgency(self, groups: Int64s, since: Int64s, now_us: int, cost_us: float) -> Floats:
        """How urgent keys are, of which groups and since when they wait: their age / the time until their next read.

        Serving a key lowers the staleness at that read by its age now, unless it is served again before: so the sooner
        the read, the more of that remains.
        """
        left = self.after(now_us + round(cost_us))[groups] - now_us
        urgency: Floats = (np.maximum(now_us - since, 0) + 1) / left
        return urgency

    def after(self, now_us: int) -> Int64s:
        """By group, the first read later than this. Where nobody looks, as if after the longest interval."""
        passed = np.maximum(now_us - self._since, -1)
        following = self._since + (passed // self._intervals + 1) * self._intervals
        longest = now_us + int(self._intervals.max())
        return np.array([following[one].min() if len(one) else longest for one in self._readers], np.int64)
