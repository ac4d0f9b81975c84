"""Groups by the times of several inputs of a join, each closed as soon as it is complete (OOP, section 7).

A row of the join that is still to come has a new row of some input, which is not below that input's mark. So a group is
complete when every input's mark has passed the latest time that the group's rows can have there. That time is bounded
by the group's own span of it, and by the spans of the other times and the band between the two. The first bounds alone
are the paper's joint punctuation, the others its individual punctuation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np

from millrace.operators.aggregate.early import EarlyPanes
from millrace.operators.aggregate.groups import ComputedRows, Grouping, Table
from millrace.operators.aggregate.panes import Column, Panes
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.frame.clause import Clause
from millrace.protocol import Schema
from millrace.values import expression as e
from millrace.values.batch import Batch, Bools, Int64s
from millrace.values.eventtime import MIN_TIME, UNBOUNDED_US

# So many groups may wait in vain, so that they are not looked for with each window.
FEW: Final = 1024

# A group's pane, its slot there, and per input the mark from which on no row of the input can be in the group.
Entry = tuple[int, int, tuple[int, ...]]


class Frontier:
    """The marks of all inputs together, and the groups that wait for them.

    A group waits for one input at a time, the first whose mark has not passed it: it is moved at most once per input.

    lows      per input, its mark
    waiting   how many groups wait, with those of panes that are gone by now
    """

    def __init__(self, spec: AggregateSpec) -> None:
        self._times = spec.joint
        self.lows = [MIN_TIME] * len(spec.joint)
        self.waiting = 0
        self._waiting: list[dict[int, list[Entry]]] = [{} for _ in spec.joint]
        self._bounds: list[list[int]] = [[] for _ in spec.joint]

    def needed(self, keys: Sequence[Column]) -> list[Int64s]:
        """Per input, the marks from which on groups with these keys are complete."""
        ends = []
        for at, size, _ in self._times:
            values, mask = keys[at]
            end = values + size
            ends.append(end if mask is None else np.where(mask, end, UNBOUNDED_US))
        needed = []
        for own in range(len(ends)):
            bounds = [
                end + later[own] for end, (_, _, later) in zip(ends, self._times, strict=True) if later[own] is not None
            ]
            needed.append(np.minimum.reduce(bounds))
        return needed

    def complete(self, keys: Sequence[Column]) -> Bools:
        """Which of the groups with these keys are complete."""
        found: Bools = np.logical_and.reduce(
            [need <= low for need, low in zip(self.needed(keys), self.lows, strict=True)]
        )
        return found

    def add(self, pane: int, start: int, keys: Sequence[Column]) -> None:
        """Let the groups of a pane from this slot on wait, unless they are complete."""
        for slot, needed in enumerate(zip(*(one.tolist() for one in self.needed(keys)), strict=True), start):
            self._wait((pane, slot, needed), 0)

    def _wait(self, entry: Entry, start: int) -> bool:
        """Put a group that has passed the first inputs where it waits next; say whether it waits."""
        for at in range(start, len(self.lows)):
            bound = entry[2][at]
            if bound > self.lows[at]:
                waiting = self._waiting[at].setdefault(bound, [])
                if not waiting:
                    heappush(self._bounds[at], bound)
                waiting.append(entry)
                self.waiting += 1
                return True
        return False

    def rise(self, lows: Sequence[int]) -> list[tuple[int, int]]:
        """The marks have risen: the groups that are complete now, as panes and slots in order."""
        self.lows = list(map(max, self.lows, lows))
        found = []
        for at, low in enumerate(self.lows):
            bounds = self._bounds[at]
            while bounds and bounds[0] <= low:
                entries = self._waiting[at].pop(heappop(bounds))
                self.waiting -= len(entries)
                found += [entry[:2] for entry in entries if not self._wait(entry, at + 1)]
        return sorted(found)


class JointPanes(EarlyPanes):
    """Windows of a join's own time, in each of which groups close one by one.

    risen   marks of the inputs that have not been obeyed
    ready   complete groups that have not been emitted, as panes and slots
    """

    def __init__(self, spec: AggregateSpec, schema: Schema, grouping: Grouping, since: int | None) -> None:
        super().__init__(spec, schema, grouping, since)
        self._columns = [next(e.columns_of(spec.keys[at][1])).position for at, _, _ in spec.joint]
        self.frontier = Frontier(spec)
        self.risen: list[int] | None = None
        self.ready: deque[tuple[int, list[int]]] = deque()

    def heed(self, clause: Clause) -> None:
        if clause.equal or [at for at, _ in clause.below] != self._columns:
            super().heed(clause)
        else:
            self.risen = [us for _, us in clause.below]

    def due(self) -> bool:
        return bool(self.ready or self.risen) or super().due()

    def _take(self, number: int, rows: ComputedRows) -> None:
        known = self._count(number)
        super()._take(number, rows)
        count = self._count(number)
        if count > known:
            self.frontier.add(number, known, self.panes[0, number].keys(known, count))

    def _count(self, number: int) -> int:
        table = self.panes.get((0, number))
        return 0 if table is None else table.count

    def flush(self, limit: int) -> tuple[Batch | None, int]:
        done = 0
        given: list[Batch] = []
        while done < limit:
            if self.ready:
                done += self._give_ready(limit - done, given)
                continue
            rows, handled = super().flush(limit - done)
            done += handled
            given += [] if rows is None else [rows]
            if done < limit and not self._find_complete():
                break
        if self.frontier.waiting > 2 * self.tuples + FEW:
            self._rebuild()
        return (Batch.concat(given) if given else None), done

    def _find_complete(self) -> bool:
        """Obey the marks once no window is due; whether groups are ready."""
        if self.risen is None:
            return False
        lows, self.risen = self.risen, None
        found: dict[int, list[int]] = {}
        for pane, slot in self.frontier.rise(lows):
            if (0, pane) in self.panes:
                found.setdefault(pane, []).append(slot)
        self.ready += found.items()
        return bool(found)

    def _give_ready(self, limit: int, given: list[Batch]) -> int:
        number, slots = self.ready.popleft()
        if len(slots) > limit:
            self.ready.appendleft((number, slots[limit:]))
            slots = slots[:limit]
        table = self.panes[0, number]
        chosen = np.array(slots, np.int64)
        chosen = super()._left(chosen, table.keys_of(chosen), self._end(number))
        Panes._build_window(self, number, table, chosen, table.keys_of(chosen), given)
        return len(slots)

    def _waiting(self, table: Table, slots: Int64s) -> Int64s:
        return slots[~self.frontier.complete(table.keys_of(slots))]

    def _left(self, slots: Int64s, keys: Sequence[Column], end: int) -> Int64s:
        waiting = slots[~self.frontier.complete(keys)]
        return np.intersect1d(super()._left(slots, keys, end), waiting, assume_unique=True)

    def save(self) -> Any:
        ready = [[number, slots] for number, slots in self.ready]
        return [super().save(), self.frontier.lows, self.risen, ready]

    def restore(self, data: Any) -> None:
        panes, lows, self.risen, ready = data
        super().restore(panes)
        self.ready = deque((number, slots) for number, slots in ready)
        self.frontier.lows = lows
        self._rebuild()

    def _rebuild(self) -> None:
        """Forget the groups that have left with their windows, without a promise about their times."""
        lows = self.frontier.lows
        self.frontier = Frontier(self.spec)
        self.frontier.lows = lows
        for (_, number), table in self.panes.items():
            self.frontier.add(number, 0, table.keys(0, table.count))
