"""Staleness of windows (UPS, sections 3.3 and 5.1): per key the oldest unseen update, and sums over all keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.operators.queues.queue import Key, Staleness
from millrace.operators.queues.update import BUCKETS


@dataclass(slots=True)
class KeyFreshness:
    """How stale the application's result of a key is. An update is a window's end.

    showing_us   start of the window that is being processed, or whose result is due; None if there is none
    oldest_us    arrival of the first update that the application has not seen; None if it has seen all
    next_us      arrival of the first update newer than `showing_us`
    shown_us     when the last result was out
    """

    showing_us: int | None = None
    oldest_us: int | None = None
    next_us: int | None = None
    shown_us: int = 0

    def update(self, start_us: int, arrival_us: int) -> None:
        if self.oldest_us is None:
            self.oldest_us = arrival_us
        if self.showing_us is not None and start_us > self.showing_us and self.next_us is None:
            self.next_us = arrival_us

    def show(self, now_us: int) -> None:
        self.shown_us = now_us
        self.oldest_us, self.next_us, self.showing_us = self.next_us, None, None

    def area(self, now_us: int) -> float:
        """The area under the staleness since the last result was out, or since the result is stale if that is later."""
        if self.oldest_us is None:
            return 0.0
        waited, hidden = max(0, now_us - self.oldest_us), max(0, self.shown_us - self.oldest_us)
        return 0.5 * waited * waited - 0.5 * hidden * hidden


@dataclass(slots=True)
class StalenessLedger:
    """Areas under the staleness of all keys so far, and how long updates waited: of the queue, and of the application.

    key_time    microseconds that keys have existed, in sum, until `known_us`; None if the queue has had no tuples
    served_us   when tuples were last served
    due         keys whose window has ended and whose result is not out
    """

    _areas: list[float] = field(default_factory=lambda: [0.0, 0.0])
    _histograms: list[list[int]] = field(default_factory=lambda: [[0] * BUCKETS, [0] * BUCKETS])
    _key_time: int = 0
    _known_us: int | None = None
    served_us: int = 0
    due: dict[Key, KeyFreshness] = field(default_factory=dict)

    def pass_time(self, keys: int, now_us: int) -> None:
        """There were so many keys until now."""
        if self._known_us is None:
            self._known_us = now_us
        elif now_us > self._known_us:
            self._key_time += keys * (now_us - self._known_us)
            self._known_us = now_us

    def commit(self, key: Key, freshness: KeyFreshness, start_us: int, since_us: int, now_us: int) -> None:
        """Count the wait of an update that leaves the line. The key's last result is out by then."""
        if self.due.pop(key, None) is not None:
            self._show(freshness, now_us)
        waited = max(0, now_us - since_us)
        self._count(0, waited, 0.5 * waited * waited)
        freshness.showing_us, freshness.next_us = start_us, None

    def show(self, now_us: int) -> None:
        """The application has seen the results that were due."""
        for freshness in self.due.values():
            self._show(freshness, now_us)
        self.due.clear()

    def _show(self, freshness: KeyFreshness, now_us: int) -> None:
        if freshness.oldest_us is not None:
            self._count(1, max(0, now_us - freshness.oldest_us), freshness.area(now_us))
        freshness.show(now_us)

    def _count(self, which: int, waited_us: int, area: float) -> None:
        self._areas[which] += area
        self._histograms[which][waited_us.bit_length()] += 1

    def report(
        self, now_us: int, worst: int, ages: Sequence[tuple[Key, int]], keys: Collection[KeyFreshness]
    ) -> Staleness:
        """Staleness until now, from the wait of each pending update and the freshness of all keys."""
        queue, application = self._areas
        queue = sum((0.5 * age * age for _, age in ages), queue)
        application = sum((freshness.area(now_us) for freshness in keys), application)
        lasted = self._key_time
        if self._known_us is not None:
            lasted += len(keys) * max(0, now_us - self._known_us)
        oldest = sorted(ages, key=lambda entry: -entry[1])
        return Staleness(
            len(keys),
            queue / lasted if lasted else 0.0,
            application / lasted if lasted else 0.0,
            self._histograms[0],
            self._histograms[1],
            oldest[0][1] if oldest else 0,
            oldest[:worst],
        )

    def save(self) -> tuple[list[Any], list[Any]]:
        """Times and sums."""
        return [self.served_us, self._known_us, self._key_time], [self._areas, self._histograms]

    def restore(self, times: Sequence[Any], sums: Sequence[Any]) -> None:
        self.served_us, self._known_us, self._key_time = times
        self._areas, self._histograms = sums
