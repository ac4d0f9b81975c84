"""The tuples that a stream accepts and those that are late, decided tuple by tuple. Shares no code with the engine.

A feed's mark (watermark) is the newest time it sent less the disorder (unless only punctuation counts), or its own
punctuation if that is higher. The stream's mark is the least mark of its feeds, and never decreases. A tuple below it
is late; a tuple at it is on time. A new feed starts at the stream's mark. When the last feed of an ended stream has
left, the mark is the end of time. A tuple too far ahead of the clock is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

NEVER = -(2**63)
END = 2**63 - 1


@dataclass(frozen=True)
class AcceptedTuple:
    """A tuple on time: its position in the log, and its time (None if the stream has none)."""

    position: int
    ts: int | None
    id: int
    v: int | None


@dataclass
class StreamOracle:
    kind: Literal["external", "internal", "latent"]
    disorder: int = 0
    by_tuples: bool = True
    on_demand: bool = True
    ahead: int | None = None
    mark: int = NEVER
    newest: int | None = None
    feeds: dict[str, int] = field(default_factory=dict)
    accepted: list[AcceptedTuple] = field(default_factory=list)
    late: list[tuple[int, int]] = field(default_factory=list)  # a tuple's id, and the mark at its arrival
    far: list[int] = field(default_factory=list)  # ids

    def opened(self, feed: str) -> None:
        self.feeds.setdefault(feed, self.mark)

    def closed(self, feed: str, ended: bool) -> None:
        self.feeds.pop(feed, None)
        if self.feeds:
            self.mark = max(self.mark, min(self.feeds.values()))
        elif ended:
            self.mark = END

    def punctuated(self, feed: str, value: int) -> None:
        self.opened(feed)
        self.feeds[feed] = max(self.feeds[feed], value)
        self.mark = max(self.mark, min(self.feeds.values()))

    def arrived(self, feed: str, position: int, now: int, ts: int | None, number: int, v: int | None) -> None:
        self.opened(feed)
        if self.kind == "latent":
            self.accepted.append(AcceptedTuple(position, None, number, v))
        elif self.kind == "internal":
            stamp = max(now, self.mark)
            self.feeds[feed] = self.mark = stamp
            self._take(AcceptedTuple(position, stamp, number, v))
        elif ts is not None and self.ahead is not None and ts > now + self.ahead:
            self.far.append(number)
        elif ts is not None and ts < self.mark:
            self.late.append((number, self.mark))
        else:
            assert ts is not None
            self._take(AcceptedTuple(position, ts, number, v))
            if self.by_tuples:
                self.punctuated(feed, ts - self.disorder)

    def _take(self, item: AcceptedTuple) -> None:
        self.accepted.append(item)
        assert item.ts is not None
        self.newest = item.ts if self.newest is None else max(self.newest, item.ts)

    def promised(self, now: int) -> int:
        """The bound for all later tuples, after an operator has requested the time."""
        if self.kind == "latent":
            return END
        return max(self.mark, now) if self.kind == "internal" and self.on_demand else self.mark
