"""What a stream takes in and what is late, decided tuple by tuple from the rules in words. Shares no code with the
engine.

A feed's mark is the newest time it sent less the disorder (unless only punctuation counts), or its own punctuation if
that is higher. The stream's mark is the least of its feeds', and never goes back. Below it is late; at it is on time. A
feed that comes begins at the stream's mark. When the last feed of an ended stream has gone, the mark is the end of
time. A tuple too far above the clock is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

NEVER = -(2**63)
END = 2**63 - 1


@dataclass(frozen=True)
class Taken:
    """A tuple on time: where in the log it came, and its time (None if the stream has none)."""

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
    taken: list[Taken] = field(default_factory=list)
    late: list[tuple[int, int]] = field(default_factory=list)  # a tuple's id, and the mark that it met
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
            self.taken.append(Taken(position, None, number, v))
        elif self.kind == "internal":
            stamp = max(now, self.mark)
            self.feeds[feed] = self.mark = stamp
            self._take(Taken(position, stamp, number, v))
        elif ts is not None and self.ahead is not None and ts > now + self.ahead:
            self.far.append(number)
        elif ts is not None and ts < self.mark:
            self.late.append((number, self.mark))
        else:
            assert ts is not None
            self._take(Taken(position, ts, number, v))
            if self.by_tuples:
                self.punctuated(feed, ts - self.disorder)

    def _take(self, taken: Taken) -> None:
        self.taken.append(taken)
        assert taken.ts is not None
        self.newest = taken.ts if self.newest is None else max(self.newest, taken.ts)

    def promised(self, now: int) -> int:
        """What is known of every tuple to come, once whoever needs to know has asked."""
        if self.kind == "latent":
            return END
        return max(self.mark, now) if self.kind == "internal" and self.on_demand else self.mark
