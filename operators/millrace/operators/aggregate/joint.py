"""Groups by the times of several inputs of a join, each closed as soon as it is complete (OOP, section 7).

A row of the join that is still to come has a new row of some input, which is not below that input's mark. So a group is
complete when every input's mark has passed the latest time that the group's rows can have there. That time is bounded
by the group's own span of it, and by the spans of the other times and the band between the two. The first bounds alone
are the paper's joint punctuation, the others its individual punctuation.

Promises about some groups count for these instead of the inputs' marks: they are the pairs of (key, time).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np

from millrace.operators.aggregate.early import EarlyPanes, Work
from millrace.operators.aggregate.groups import ComputedRows, Grouping, Table
from millrace.operators.aggregate.panes import Column, Panes
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.frame.clause import Clause
from millrace.operators.source.groups import Group, GroupMarks
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

    def add(self, pane: int, slots: Iterable[int], needed: Sequence[Int64s]) -> None:
        """Let groups of a pane wait for these marks, unless they are complete."""
        for slot, of_inputs in zip(slots, zip(*(one.tolist() for one in needed), strict=True), strict=True):
            self._wait((pane, slot, of_inputs), 0)

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
        return sorted(set(found))


class JointPanes(EarlyPanes):
    """Windows of a join's own time, in each of which groups close one by one.

    risen      marks of the inputs that have not been obeyed
    promises   promises about groups that have not been obeyed: keys, their values and a mark per input
    promised   by keys, the groups of which inputs have promised more than their marks
    ready      complete groups that have not been emitted, as panes and slots
    """

    def __init__(self, spec: AggregateSpec, schema: Schema, grouping: Grouping, since: int | None) -> None:
        super().__init__(spec, schema, grouping, since)
        self._columns = [next(e.columns_of(spec.keys[at][1])).position for at, _, _ in spec.joint]
        self.frontier = Frontier(spec)
        self.risen: list[int] | None = None
        self.promises: list[tuple[tuple[int, ...], Group, list[int]]] = []
        self.promised: dict[tuple[int, ...], GroupMarks] = {}
        self.ready: deque[tuple[int, list[int]]] = deque()

    def heed(self, clause: Clause) -> None:
        if [at for at, _ in clause.below] != self._columns:
            super().heed(clause)
            return
        marks = [us for _, us in clause.below]
        if not clause.equal:
            self.risen = marks
        elif (own := clause._replace(below=()).moved(self.heard.places)) is not None:
            keys, group = zip(*own.equal, strict=True)
            self.promises.append((keys, group, marks))

    def due(self) -> bool:
        return bool(self.ready or self.risen or self.promises) or super().due()

    def _take(self, number: int, rows: ComputedRows) -> None:
        known = self._count(number)
        super()._take(number, rows)
        count = self._count(number)
        if count > known:
            self._add(number, np.arange(known, count))

    def _add(self, pane: int, slots: Int64s) -> None:
        """Let groups of a pane wait."""
        keys = self.panes[0, pane].keys_of(slots)
        self.frontier.add(pane, slots.tolist(), self._needed(keys, len(slots)))

    def _needed(self, keys: Sequence[Column], rows: int) -> list[Int64s]:
        """Per input, the marks from which on groups with these keys are complete; none of an input that has promised
        the group as much."""
        needed = self.frontier.needed(keys)
        for at, marks in self.promised.items() if rows else ():
            columns, valid = [keys[one][0] for one in at], [keys[one][1] for one in at]
            promises = marks.promises_of(columns, valid, rows)
            for side, need in enumerate(needed):
                if side in promises:
                    needed[side] = np.where(need <= promises[side], MIN_TIME, need)
        return needed

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
        if self.promises:
            return self._obey_promises()
        if self.risen is None:
            return False
        lows, self.risen = self.risen, None
        before = self.frontier.lows
        found: dict[int, list[int]] = {}
        for pane, slot in self.frontier.rise(lows):
            if (0, pane) in self.panes:
                found.setdefault(pane, []).append(slot)
        if self.promised:
            found = {pane: self._waiting_at(before, pane, slots) for pane, slots in found.items()}
        for keys, marks in list(self.promised.items()):
            marks.forget(min(self.frontier.lows))
            if not marks:
                del self.promised[keys]
        self.ready += found.items()
        return bool(found)

    def _waiting_at(self, lows: Sequence[int], pane: int, slots: Sequence[int]) -> list[int]:
        """Those of a pane's groups that were not complete yet at these marks, and so have not been found before."""
        chosen = np.array(slots, np.int64)
        waited = ~self._complete(self.panes[0, pane].keys_of(chosen), len(chosen), lows)
        found: list[int] = chosen[waited].tolist()
        return found

    def _obey_promises(self) -> bool:
        """Find the groups that are complete by promises about them."""
        promises, self.promises = self.promises, []
        by_keys: dict[tuple[int, ...], list[Group]] = {}
        for keys, group, _ in promises:
            by_keys.setdefault(keys, []).append(group)
        open_groups = []
        for keys, groups in by_keys.items():
            work = Work(self.heard.fields, keys, groups, 0, 0, 0)
            for (_, pane), table in self.panes.items():
                slots = work.slots(table)
                slots = slots[~self._complete(table.keys_of(slots), len(slots), self.frontier.lows)]
                if len(slots):
                    open_groups.append((pane, slots))
        for keys, group, lows in promises:
            marks = self.promised.setdefault(keys, GroupMarks([self.heard.fields[at] for at in keys]))
            for side, low in enumerate(lows):
                marks.promise(side, group, low)
        found: dict[int, set[int]] = {}
        for pane, slots in open_groups:
            over = self._complete(self.panes[0, pane].keys_of(slots), len(slots), self.frontier.lows)
            found.setdefault(pane, set()).update(slots[over].tolist())
            self._add(pane, slots[~over])
        self.ready += [(pane, sorted(slots)) for pane, slots in sorted(found.items()) if slots]
        return True

    def _complete(self, keys: Sequence[Column], rows: int, lows: Sequence[int]) -> Bools:
        """Which of the groups with these keys are complete at these marks, or by promises about them."""
        needed = self._needed(keys, rows)
        found: Bools = np.logical_and.reduce([need <= low for need, low in zip(needed, lows, strict=True)])
        return found

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
        return slots[~self._complete(table.keys_of(slots), len(slots), self.frontier.lows)]

    def _left(self, slots: Int64s, keys: Sequence[Column], end: int) -> Int64s:
        waiting = slots[~self._complete(keys, len(slots), self.frontier.lows)]
        return np.intersect1d(super()._left(slots, keys, end), waiting, assume_unique=True)

    def save(self) -> Any:
        ready = [[number, slots] for number, slots in self.ready]
        promises = [[list(keys), list(group), lows] for keys, group, lows in self.promises]
        promised = [[list(keys), marks.save()] for keys, marks in self.promised.items()]
        return [super().save(), self.frontier.lows, self.risen, ready, promises, promised]

    def restore(self, data: Any) -> None:
        panes, lows, self.risen, ready, promises, promised = data
        super().restore(panes)
        self.promises = [(tuple(keys), tuple(group), marks) for keys, group, marks in promises]
        for at, saved in promised:
            keys = tuple(at)
            self.promised[keys] = GroupMarks([self.heard.fields[one] for one in keys])
            self.promised[keys].restore(saved)
        self.ready = deque((number, slots) for number, slots in ready)
        self.frontier.lows = lows
        self._rebuild()

    def _rebuild(self) -> None:
        """Forget the groups that have left with their windows, without a promise about their times."""
        lows = self.frontier.lows
        self.frontier = Frontier(self.spec)
        self.frontier.lows = lows
        for (_, number), table in self.panes.items():
            self._add(number, np.arange(table.count))
