"""The feeds of one stream: how far each has promised, and which of them holds the stream back.

Progress is the least promise over all open feeds. A stream may have ten thousand of them, so the least is the top of
a heap in which each feed is once, with a mark that may lag; it is corrected only at the top.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any, Final

from millrace.operators.source.groups import Group
from millrace.values.eventtime import MAX_TIME, MIN_TIME


class Feed:
    """One client's part of a stream.

    mark       no later tuple of the feed is on time below it
    promised   what the client itself has promised, by punctuation or answer: below it, it breaks its word
    assured    what was promised of it otherwise than by its tuples: by the client, or by the clock for it
    newest     the newest time it sent, and `heard_us` when; MIN_TIME and 0 before the first tuple
    passed     from there on its next tuple is on time with any disorder: `newest`, `assured`, or the mark that it met
    owed       tuples taken since credit was last granted, and `owed_bytes` their bytes in memory
    request    the number of the request for a timestamp that is under way, or None; `silent` if it left the one
               before it without an answer
    requests   by group (none: the whole feed), the need and the time of the requests within the stream's `ets_retry`
    leaves_us  when it will be gone, if it disconnected and has some grace
    """

    __slots__ = (
        "answered_us",
        "asked_need",
        "asked_us",
        "assured",
        "broken",
        "can_answer",
        "heard_us",
        "held_since",
        "late",
        "leaves_us",
        "mark",
        "name",
        "newest",
        "number",
        "owed",
        "owed_bytes",
        "passed",
        "promised",
        "request",
        "requests",
        "silent",
        "tuples",
    )

    def __init__(self, name: str, number: int, mark: int) -> None:
        self.name = name
        self.number = number
        self.mark = mark
        self.promised = MIN_TIME
        self.assured = MIN_TIME
        self.passed = MIN_TIME
        self.newest = MIN_TIME
        self.heard_us = 0
        self.held_since: int | None = None
        self.owed = self.owed_bytes = self.tuples = self.late = self.broken = 0
        self.can_answer = self.silent = False
        self.request: int | None = None
        self.asked_us: int | None = None
        self.asked_need: int | None = None
        self.answered_us: int | None = None
        self.leaves_us: int | None = None
        self.requests: dict[Group, tuple[int, int]] = {}

    def clock(self, now_us: int) -> int | None:
        """An estimate of the feed's clock: its newest time and the time since then (t + tau)."""
        if self.newest == MIN_TIME:
            return None
        until = now_us if self.held_since is None else self.held_since
        return self.newest + max(until - self.heard_us, 0)

    def hold(self, now_us: int) -> None:
        """Stop counting what passes: something of the feed's may lie unread, and nothing from before its last tuple."""
        if self.held_since is None:
            self.held_since = max(now_us, self.heard_us)

    def release(self, now_us: int) -> None:
        """Continue counting."""
        if self.held_since is not None:
            self.heard_us += max(now_us - self.held_since, 0)
            self.held_since = None

    def asked(self, group: Group, need_us: int, now_us: int, retry_us: int) -> None:
        """Note a request, and forget those that may be repeated."""
        self.asked_us, self.asked_need, self.answered_us = now_us, need_us, None
        self.requests.pop(group, None)
        self.requests[group] = need_us, now_us
        while self.requests:
            oldest = next(iter(self.requests))
            if self.requests[oldest][1] + retry_us > now_us:
                break
            del self.requests[oldest]

    @property
    def asked_group(self) -> Group:
        """The group that the last request named."""
        return next(reversed(self.requests), ())

    def save(self) -> list[Any]:
        requests = [[list(group), *request] for group, request in self.requests.items()]
        return [*(getattr(self, name) for name in _PLAIN), requests]

    @classmethod
    def restore(cls, data: Sequence[Any]) -> Feed:
        feed = cls("", 0, MIN_TIME)
        *values, requests = data
        for name, value in zip(_PLAIN, values, strict=True):
            setattr(feed, name, value)
        feed.requests = {tuple(group): (need_us, at_us) for group, need_us, at_us in requests}
        return feed


# `assured` is saved with the late ledger, which alone uses it; `passed` follows from others.
_PLAIN: Final = tuple(name for name in Feed.__slots__ if name not in ("requests", "assured", "passed"))
# The feeds that `staircase` looks at: with more that have promised and lag, what it says is too late rather than too
# early.
_LOOKS: Final = 64


class Feeds:
    """The open feeds by name, in order of their opening."""

    def __init__(self) -> None:
        self.by_name: dict[str, Feed] = {}
        self._heap: list[tuple[int, int, Feed]] = []
        self._by_newest: list[tuple[int, int, Feed]] = []
        self._opened = 0

    def __iter__(self) -> Iterator[Feed]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def get(self, name: str) -> Feed | None:
        return self.by_name.get(name)

    def open(self, name: str, mark: int) -> Feed:
        """A new feed, which holds the stream where it is."""
        feed = self.by_name[name] = Feed(name, self._opened, mark)
        self._opened += 1
        heapq.heappush(self._heap, (mark, feed.number, feed))
        heapq.heappush(self._by_newest, (MIN_TIME, feed.number, feed))
        return feed

    def close(self, name: str) -> Feed | None:
        return self.by_name.pop(name, None)

    def least(self) -> int:
        """The least mark; the end of time if there is no feed."""
        if len(self.by_name) == 1:
            # Its entry in the heap may lag.
            (only,) = self.by_name.values()
            return only.mark
        top = self._top()
        return MAX_TIME if top is None else top.mark

    def min_excluding(self, feed: Feed) -> int:
        """The least mark of the others."""
        if self._top() is not feed:
            return self.least()
        entry = heapq.heappop(self._heap)
        top = self._top()
        heapq.heappush(self._heap, entry)
        return MAX_TIME if top is None else top.mark

    def below(self, time_us: int) -> list[Feed]:
        """The feeds that have promised less, in order of their opening."""
        feeds: list[Feed] = []
        todo = [0] if self._heap else []
        while todo:
            at = todo.pop()
            mark, _, feed = self._heap[at]
            # A heap's entry is never above those below it, and never above its feed's own mark.
            if mark >= time_us:
                continue
            if feed.mark < time_us and self.by_name.get(feed.name) is feed:
                feeds.append(feed)
            todo.extend(child for child in (2 * at + 1, 2 * at + 2) if child < len(self._heap))
        return sorted(feeds, key=lambda feed: feed.number)

    def _top(self) -> Feed | None:
        """The feed with the least mark; entries that lag or are gone are put right on the way."""
        heap = self._heap
        while heap:
            mark, number, feed = heap[0]
            if self.by_name.get(feed.name) is not feed:
                heapq.heappop(heap)
            elif mark < feed.mark:
                heapq.heapreplace(heap, (feed.mark, number, feed))
            else:
                return feed
        return None

    def staircase(self, enough_us: int, but: Feed | None = None) -> list[tuple[int, int]]:
        """What the feeds have been assured to be past, and their newest times: ascending by the newest, each with less
        assured than those before it, up to the first that was assured no more than enough. All other feeds are above
        one of these, whatever the disorder.
        """
        steps: list[tuple[int, int]] = []
        heap = self._by_newest
        aside: list[tuple[int, int, Feed]] = []
        while heap and len(aside) < _LOOKS:
            newest, number, feed = heap[0]
            if self.by_name.get(feed.name) is not feed:
                heapq.heappop(heap)
            elif newest < feed.newest:
                heapq.heapreplace(heap, (feed.newest, number, feed))
            else:
                aside.append(heapq.heappop(heap))
                if feed is not but and (not steps or feed.assured < steps[-1][0]):
                    steps.append((feed.assured, newest))
                    if feed.assured <= enough_us:
                        break
        for entry in aside:
            heapq.heappush(heap, entry)
        return steps

    def save(self) -> list[Any]:
        return [self._opened, [feed.save() for feed in self]]

    def restore(self, data: Sequence[Any]) -> None:
        self._opened, feeds = data
        made = [Feed.restore(feed) for feed in feeds]
        self.by_name = {feed.name: feed for feed in made}
        self._heap = [(feed.mark, feed.number, feed) for feed in made]
        heapq.heapify(self._heap)
        self._by_newest = [(feed.newest, feed.number, feed) for feed in made]
        heapq.heapify(self._by_newest)
