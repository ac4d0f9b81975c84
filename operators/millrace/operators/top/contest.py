"""Who has which place of each partition while rows come and go, one after the other.

A batch's rows take effect in the order of their arrival, whatever else is in the batch: so the rows, their times and,
with `emit = 'every'`, all changes equal the changes of the same rows in any other batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from millrace.operators.top import kernel as ranking
from millrace.values.batch import Int64s
from millrace.values.eventtime import MIN_TIME

_NONE: Final[Int64s] = np.zeros(0, np.int64)


class Changes(NamedTuple):
    """Places that have another member, or none (-1): where they are, since when, and which event did it.

    A place is a number: partition * width + at.
    """

    places: Int64s
    members: Int64s
    ts: Int64s
    events: Int64s


class Contest:
    """Members of partitions in order, and the events of a batch.

    Members are numbers: first those that are there already (`kept` many), then one for each event. At an event
    `leaves` is the member that goes, and `enters` the one that comes, or -1.

    ranked   the members that have a partition, in order, partition by partition
    owner    of each of them, its partition
    most     how many places a partition has
    """

    def __init__(
        self, ranked: Int64s, owner: Int64s, partitions: int, kept: int, leaves: Int64s, enters: Int64s, most: int
    ) -> None:
        self._members, self._owner, self._most = ranked, owner, most
        # The last one is the cell of no member, which is -1.
        self._cells = np.full(kept + len(leaves) + 1, -1, np.int64)
        self._cells[ranked] = np.arange(len(ranked))
        self._leaves, self._enters = self._cells[leaves], self._cells[enters]
        self._begins = np.searchsorted(owner, np.arange(partitions))
        self._sizes = np.bincount(owner[self._cells[:kept]], minlength=partitions)
        self._present = np.zeros(len(ranked), np.uint8)
        self._present[self._cells[:kept]] = 1
        self._largest = self._sizes.copy()

    def survey(self, full: Int64s, last: Int64s) -> Int64s:
        """The partitions of which too few members are here at any time, of those that have other rows too.

        No other row of a `full` partition stands before the member that has its `last` place. So the members suffice
        as long as `most` of them stand there or before it.
        """
        partitions = len(self._sizes)
        bounds = np.full(partitions, -1, np.int64)
        bounds[full] = self._cells[last]
        short = np.zeros(partitions, np.uint8)
        ranking.survey(
            self._leaves,
            self._enters,
            self._owner,
            bounds,
            self._most,
            self._sizes.copy(),
            self._largest,
            np.full(partitions, self._most),
            short,
        )
        return np.flatnonzero(short)

    @property
    def width(self) -> int:
        """How many places of a partition are used at most."""
        return min(self._most, int(self._largest.max()))

    def play(self, before: Int64s, times: Int64s, width: int, ts: Int64s, *, every: bool) -> tuple[Changes, Int64s]:
        """The changes that events at these times make, and who has the places then.

        `before` says who has them now, and `times` when each changed last, which is raised. Without `every`, a place
        that changed is named once, in the order of the last changes, unless it was empty and is empty again.
        """
        places = np.where(before >= 0, self._cells[before], -1)
        causes = np.full(len(places), -1, np.int64)
        changes = self._run(places, times, causes, width, ts, every)
        after = np.where(places >= 0, self._members[places], -1)
        if not every:
            changed = np.flatnonzero((causes >= 0) & ((before >= 0) | (after >= 0)))
            changed = changed[np.argsort(causes[changed], kind="stable")]
            changes = Changes(changed, after[changed], times[changed], causes[changed] // 2)
        return changes, after

    def _run(self, places: Int64s, times: Int64s, causes: Int64s, width: int, ts: Int64s, every: bool) -> Changes:
        used = np.count_nonzero(places.reshape(-1, width) >= 0, axis=1)
        room = len(ts) + 2 * width if every else 0
        suffix_times = np.full(len(places), MIN_TIME)
        suffix_causes = np.full(len(places), -1, np.int64)
        count = np.zeros(1, np.int64)
        parts: list[Sequence[Int64s]] = []
        at = 0
        while at < len(ts):
            where, cells, when, by = noted = [np.empty(room, np.int64) for _ in range(4)]
            at = ranking.give_places(
                at,
                self._leaves,
                self._enters,
                ts,
                self._owner,
                self._begins,
                self._most,
                width,
                every,
                self._present,
                self._sizes,
                used,
                places,
                times,
                causes,
                suffix_times,
                suffix_causes,
                where,
                cells,
                when,
                by,
                count,
            )
            parts.append([column[: count[0]] for column in noted])
        if not every:
            ranking.spread(width, suffix_times, suffix_causes, times, causes)
            return Changes(_NONE, _NONE, _NONE, _NONE)
        where, cells, when, by = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return Changes(where, np.where(cells >= 0, self._members[cells], -1), when, by // 2)
