"""The late ledger of a stream: how many of its tuples would have been on time with which `disorder`.

Rule: everything but the disorder stays as it was: the tuples and their order, the promises (punctuation, answers,
guesses by the clock, lulls), and when feeds came and went. A feed's mark is then max(assured, newest - disorder), the
stream's is the least of its feeds', and neither goes back. So a tuple at t is on time exactly if the stream was not
held above t before, and one open feed at least, its own or another, had assured and sent nothing that puts its mark
above t. The least such disorder is counted in one of a few buckets.

Tuples in the order of their feed, which nothing had passed, are on time with any disorder. They cost a comparison and
are not counted here: they are all others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from millrace.operators.source.feeds import Feed, Feeds
from millrace.values.batch import Bools, Int64s
from millrace.values.eventtime import MAX_TIME, MIN_TIME

_MS, _S, _MIN, _H, _DAY = 1_000, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000
# The disorders that people write, close enough that the next one never keeps many more tuples at twice the price.
DISORDERS: Final = (
    *(0, 1, 10, 100),
    *(unit * part for unit in (_MS, 10 * _MS, 100 * _MS) for part in (1, 2, 3, 5)),
    *(_S * part // 2 for part in (2, 3, 4, 6, 8, 10, 14, 20, 30, 40, 60, 90)),
    *(_MIN * part // 2 for part in (2, 3, 4, 6, 10, 14, 20, 30, 40, 60, 90)),
    *(_H * part for part in (1, 2, 3, 4, 6, 9, 12, 18)),
    *(_DAY * part for part in (1, 2, 3, 7)),
)
# More than any disorder: a promise was above the tuple.
NEVER: Final = MAX_TIME


class Lateness(NamedTuple):
    """What the ledger says of a span: of `tuples`, how many need at least this disorder to be on time, by disorder.

    Those that are in no entry are late with any disorder of the ledger.
    """

    since_us: int
    tuples: int
    needed: Mapping[int, int]

    def less(self, before: Lateness) -> Lateness:
        """The span between two moments of one ledger."""
        needed = {disorder: count - before.needed.get(disorder, 0) for disorder, count in self.needed.items()}
        return Lateness(before.since_us, self.tuples - before.tuples, needed)


def _first_below(marks: Int64s, ts: Int64s | int) -> Any:
    """Of marks that fall, the place of the first that is not above a time."""
    return len(marks) - np.searchsorted(marks[::-1], ts, "right")


class LateLedger:
    """The ledger of a stream with external timestamps.

    since_us    when it was opened: with the stream, or when its disorder was changed
    taken       the tuples of the stream when it was opened
    disorders   the buckets, ascending: DISORDERS, and the stream's own
    needed      by bucket, how many tuples need as much and no less; at the end those that no disorder keeps. Tuples
                that need none are not counted.
    held        by bucket, where the stream's mark is at least, whatever the feeds that are open now say
    floor       the first of these: no tuple from there on is below any mark that is held
    """

    def __init__(self, since_us: int, taken: int, disorder_us: int) -> None:
        self.since_us = since_us
        self.taken = taken
        self.disorders = sorted({*DISORDERS, disorder_us})
        self._edges = np.array(self.disorders, np.int64)
        self.needed = [0] * (len(self.disorders) + 1)
        self.held: Int64s = np.full(len(self.disorders), MIN_TIME, np.int64)
        self.floor = MIN_TIME

    def reopened(self, since_us: int, taken: int, disorder_us: int) -> LateLedger:
        """A ledger of later tuples alone. For a bucket that is new, the mark of the one before holds."""
        ledger = LateLedger(since_us, taken, disorder_us)
        places = np.searchsorted(self._edges, ledger._edges, "right") - 1
        ledger._hold(self.held[places])
        return ledger

    def summary(self, taken: int) -> Lateness:
        """What it says now, the stream having taken so many tuples in all."""
        tuples = taken - self.taken
        counts = [tuples - sum(self.needed), *self.needed[1:-1]]
        return Lateness(self.since_us, tuples, dict(zip(self.disorders, counts, strict=True)))

    # -- marks ---------------------------------------------------------------------------------------------------------

    def settle(self, feeds: Feeds, by_tuples: bool) -> None:
        """Before a feed opens, which holds the mark where it is, or the last one leaves it there."""
        reached = None
        for assured, newest in feeds.staircase(MIN_TIME):
            sent = newest - self._edges if by_tuples and newest > MIN_TIME else MIN_TIME
            marks = np.maximum(assured, sent)
            reached = marks if reached is None else np.minimum(reached, marks)
        if reached is not None:
            self._hold(reached)

    def reach(self, value_us: int) -> None:
        """The mark is this at least, without any feed's word."""
        self._hold(value_us)

    def _hold(self, marks: Int64s | int) -> None:
        self.held = np.maximum(self.held, marks)
        self.floor = int(self.held[0])

    # -- tuples --------------------------------------------------------------------------------------------------------

    def note(self, feeds: Feeds, feed: Feed, ts: Int64s, by_tuples: bool, barred: Bools | None = None) -> None:
        """Tuples of a feed, before they move it. `barred` ones are below a promise about their group."""
        if len(ts) == 1 and barred is None:
            self._note_one(feeds, feed, ts.item(0), by_tuples)
            return
        need = np.where(ts < feed.assured, NEVER, 0)
        if by_tuples:
            before = np.maximum.accumulate(ts)
            if feed.newest > MIN_TIME:
                before = np.maximum(before, feed.newest)
            need = np.maximum(need, before - ts)
        rows = (need > 0) | (ts < self.floor)
        if barred is not None:
            rows |= barred
        if not rows.any():
            return
        ts, need = ts[rows], need[rows]
        if len(feeds) > 1:
            steps = feeds.staircase(int(ts.min()), but=feed)
            below = _first_below(np.array([assured for assured, _ in steps], np.int64), ts)
            sent = np.array([*(newest if by_tuples else MIN_TIME for _, newest in steps), MIN_TIME], np.int64)[below]
            need = np.where(below < len(steps), np.minimum(need, np.maximum(sent, ts) - ts), need)
        places = np.maximum(np.searchsorted(self._edges, need), _first_below(self.held, ts))
        if barred is not None:
            places[barred[rows]] = len(self.disorders)
        for place, count in enumerate(np.bincount(places).tolist()):
            if place:
                self.needed[place] += count

    def _note_one(self, feeds: Feeds, feed: Feed, time_us: int, by_tuples: bool) -> None:
        """The same for one tuple, which costs a tenth."""
        need = NEVER if time_us < feed.assured else max(feed.newest - time_us, 0) if by_tuples else 0
        if need and len(feeds) > 1:
            for assured, newest in feeds.staircase(time_us, but=feed):
                if assured <= time_us:
                    need = min(need, max(newest - time_us, 0) if by_tuples else 0)
        place = bisect_left(self.disorders, need)
        if time_us < self.floor:
            place = max(place, int(_first_below(self.held, time_us)))
        if place:
            self.needed[place] += 1

    # -- state ---------------------------------------------------------------------------------------------------------

    def save(self, feeds: Feeds) -> list[Any]:
        assured = {feed.name: feed.assured for feed in feeds if feed.assured != MIN_TIME}
        return [self.since_us, self.taken, self.disorders, self.needed, self.held.tolist(), assured]

    @classmethod
    def restore(cls, data: Sequence[Any], feeds: Feeds) -> LateLedger:
        since_us, taken, disorders, needed, held, assured = data
        ledger = cls(since_us, taken, 0)
        ledger.disorders, ledger.needed = disorders, needed
        ledger._edges = np.array(disorders, np.int64)
        ledger.held = np.array(held, np.int64)
        ledger.floor = int(ledger.held[0])
        for name, value_us in assured.items():
            feeds.by_name[name].assured = value_us
        return ledger
