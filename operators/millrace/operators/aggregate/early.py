"""Windows of single groups that close before the windows of the others (OOP, section 7 and appendix A.1.1).

A promise about groups closes all windows of these groups up to its time. The tables stay as they are: a pane may be
part of later windows, and other groups are in it. So a window of these groups is put together from the panes at hand,
and left out when the whole window closes. Only groups that are ahead of the input's promise are stored for that.

Promises wait until no window is due, and are obeyed before another one closes: of each window a group is either given
early or with the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from millrace.operators.aggregate.groups import Grouping, Table, listed
from millrace.operators.aggregate.panes import Block, Column, Panes, Windows
from millrace.operators.aggregate.sessions import Sessions
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.frame.clause import Clause
from millrace.operators.frame.punctuation_grain import PunctuationGrain
from millrace.operators.source.groups import Group, GroupMarks
from millrace.operators.updates.key_index import KeyIndex
from millrace.protocol import Field, Schema
from millrace.values.batch import Batch, Int64s
from millrace.values.eventtime import MAX_TIME, saturated
from millrace.values.expression import TIME
from millrace.values.expression import Column as ColumnOf

# The one side of an aggregate.
INPUT = 0


class Heard:
    """Promises about groups of an aggregate, in its GROUP BY columns, until they are obeyed.

    passed   promises about the aggregate's rows that follow from them
    """

    def __init__(self, spec: AggregateSpec) -> None:
        self.places = {key.position: at for at, (_, key) in enumerate(spec.keys) if isinstance(key, ColumnOf)}
        self.fields = [Field(name, key.type, key.nullable) for name, key in spec.keys]
        self.clauses: list[Clause] = []
        self.passed: list[Clause] = []

    def heed(self, clause: Clause) -> None:
        own = clause.moved(self.places)
        if own is not None and own.equal and [at for at, _ in own.below] == [TIME]:
            self.clauses.append(own)

    def take(self) -> Iterator[tuple[tuple[int, ...], Group, int]]:
        """The promises, each as columns, their values and the time."""
        clauses, self.clauses = self.clauses, []
        for clause in clauses:
            keys, group = zip(*clause.equal, strict=True)
            yield keys, group, clause.below[0][1]

    def pass_on(self, keys: Sequence[int], groups: Sequence[Group], low_us: int) -> None:
        """No later row of these groups is below this time."""
        for group in groups:
            self.passed.append(Clause(tuple(zip(keys, group, strict=True)), ((TIME, low_us),)))

    def save(self) -> Any:
        return [clause.save() for clause in self.clauses]

    def restore(self, data: Any) -> None:
        self.clauses = [Clause.restore(clause) for clause in data]


class Work:
    """Windows to close for some groups: from one number to another. `low_us`: no later row of the groups is below."""

    __slots__ = ("first", "groups", "index", "keys", "last", "low_us")

    def __init__(self, fields: Sequence[Field], keys: Sequence[int], groups: Sequence[Group], *span: int) -> None:
        self.keys = keys
        self.groups = groups
        self.first, self.last, self.low_us = span
        chosen = [fields[at] for at in keys]
        self.index = KeyIndex(chosen)
        batch = Batch.from_rows(Schema(tuple(chosen)), groups, [0] * len(groups))
        self.index.find(batch.columns, batch.valid, len(groups))

    def slots(self, table: Table) -> Int64s:
        """The groups of a table that are among these."""
        columns = table.keys(0, table.count)
        found = self.index.find([columns[at][0] for at in self.keys], [columns[at][1] for at in self.keys], table.count)
        slots = np.flatnonzero(found < len(self.groups))
        if self.index.count > 2 * len(self.groups) + table.count:
            self.index.keep(np.arange(len(self.groups)))
        return slots

    def save(self) -> Any:
        return [list(self.keys), [list(group) for group in self.groups], self.first, self.last, self.low_us]

    @classmethod
    def restore(cls, fields: Sequence[Field], data: Any) -> Work:
        keys, groups, *span = data
        return cls(fields, tuple(keys), [tuple(group) for group in groups], *span)


class EarlyPanes(Panes):
    """Windows of equal size, each closed for some groups before the others.

    work    what is to be closed early, in order
    marks   by columns, up to which time the windows of groups have been closed or are in `work`
    """

    def __init__(self, spec: AggregateSpec, schema: Schema, grouping: Grouping, since: int | None) -> None:
        super().__init__(spec, schema, grouping, since)
        self.heard = Heard(spec)
        self.work: deque[Work] = deque()
        self.marks: dict[tuple[int, ...], GroupMarks] = {}

    def heed(self, clause: Clause) -> None:
        self.heard.heed(clause)

    def grain(self) -> PunctuationGrain:
        grain = super().grain()
        return PunctuationGrain(grain.every, grain.boundaries, clauses=True)

    def due(self) -> bool:
        return bool(self.work or self.heard.clauses) or super().due()

    def low_water(self) -> int:
        low = super().low_water()
        return min([low, *(saturated(self._end(work.first) - 1) for work in self.work)])

    def flush(self, limit: int) -> tuple[Batch | None, int]:
        done = 0
        given: list[Batch] = []
        while done < limit:
            if self.work:
                done += self._give_early(self.work[0], given)
            elif Windows.due(self):
                rows, handled = super().flush(limit - done)
                done += handled
                given += [] if rows is None else [rows]
            elif self.heard.clauses:
                self._plan_work()
            else:
                break
        for marks in self.marks.values():
            if marks and not Windows.due(self):
                marks.forget(self.reached)
        return (Batch.concat(given) if given else None), done

    def blocked(self) -> tuple[int, Group] | None:
        """The end of the earliest window that a group waits for, and the first such group in it."""
        number = self._next()
        while number is not None and (number := self._with_tuples(number)) is not None:
            end = self._end(number)
            first = number * self.slide // self.width
            for block in self._pieces(self._cover(first, first + self.size // self.width)):
                table = self.panes[block]
                slots = self._left(np.arange(table.count), table.keys(0, table.count), end)
                if len(slots):
                    return end, listed(table.keys_of(slots[:1]))[0]
            number += 1
        return None

    def _left(self, slots: Int64s, keys: Sequence[Column], end: int) -> Int64s:
        """Those of the slots, which have these keys, whose groups have not been given a window with this end early."""
        left = np.ones(len(slots), np.bool_)
        for at, marks in self.marks.items():
            if marks and len(slots):
                left &= marks.of([keys[one][0] for one in at], [keys[one][1] for one in at], len(slots)) < end
        return slots[left]

    def _plan_work(self) -> None:
        for keys, group, value_us in self.heard.take():
            if keys not in self.marks:
                self.marks[keys] = GroupMarks([self.heard.fields[at] for at in keys])
            self.marks[keys].promise(INPUT, group, value_us)
        for keys, marks in self.marks.items():
            spans: dict[tuple[int, int], list[Group]] = {}
            for group, before, now in marks.rise(self._sides):
                spans.setdefault((before, now), []).append(group)
            for (before, now), groups in spans.items():
                first, last = self._last_ended(before) + 1, self._last_ended(now)
                low_us = saturated(self._end(last + 1) - 1)
                self.work.append(Work(self.heard.fields, keys, groups, first, last, low_us))

    def _sides(self, sides: Collection[Hashable]) -> tuple[dict[Hashable, int], int]:
        return dict.fromkeys(sides, self.reached), MAX_TIME

    def _last_ended(self, time_us: int) -> int:
        """The number of the last window that ends at this time or earlier."""
        return (time_us - self.offset - self.size) // self.slide

    def _give_early(self, work: Work, given: list[Batch]) -> int:
        """Close the next window of the groups; how many tables that took."""
        number = self._with_tuples(work.first)
        if number is None or number > work.last:
            self.work.popleft()
            self.heard.pass_on(work.keys, work.groups, work.low_us)
            return 1
        work.first = number + 1
        first = number * self.slide // self.width
        tables = [self.panes[block] for block in self._pieces(self._cover(first, first + self.size // self.width))]
        found = [(table, slots) for table in tables if len(slots := self._waiting(table, work.slots(table)))]
        if len(found) == 1:
            ((table, slots),) = found
            super()._build_window(number, table, slots, table.keys_of(slots), given)
        elif found:
            merged = self.grouping.table(False)
            for table, slots in found:
                for start, stop in _runs(slots):
                    merged.merge(table, start, stop)
            slots = np.arange(merged.count)
            super()._build_window(number, merged, slots, merged.keys_of(slots), given)
        return 1 + len(tables)

    def _waiting(self, table: Table, slots: Int64s) -> Int64s:
        """Those of some groups that have not been emitted for another reason than a promise about groups."""
        return slots

    def _with_tuples(self, number: int) -> int | None:
        """The first window from this one on that has tuples."""
        if self.opened is not None:
            number = max(number, self.opened)
        at = bisect_left(self.order, number * self.slide // self.width)
        return max(number, self._first_window(self.order[at])) if at < len(self.order) else None

    def _pieces(self, blocks: Sequence[Block]) -> Iterator[Block]:
        """The blocks at hand that these are made of: most of later windows are not made yet."""
        for level, index in blocks:
            if (level, index) in self.panes:
                yield level, index
            elif level:
                halves = ((level - 1, 2 * index), (level - 1, 2 * index + 1))
                yield from self._pieces([half for half in halves if self._holds(half)])

    def _build_window(
        self, number: int, table: Table, slots: Int64s, keys: Sequence[Column], given: list[Batch]
    ) -> None:
        """Leave out the groups that were given early."""
        left = self._left(slots, keys, self._end(number))
        if len(left) < len(slots):
            slots, keys = left, table.keys_of(left)
        super()._build_window(number, table, slots, keys, given)

    def save(self) -> Any:
        marks = [[list(keys), marks.save()] for keys, marks in self.marks.items()]
        return [super().save(), self.heard.save(), [work.save() for work in self.work], marks]

    def restore(self, data: Any) -> None:
        panes, heard, work, marks = data
        super().restore(panes)
        self.heard.restore(heard)
        self.work = deque(Work.restore(self.heard.fields, one) for one in work)
        for at, saved in marks:
            keys = tuple(at)
            self.marks[keys] = GroupMarks([self.heard.fields[one] for one in keys])
            self.marks[keys].restore(saved)


def _runs(slots: Int64s) -> Iterator[tuple[int, int]]:
    """Rising numbers as spans without gaps."""
    cuts = np.flatnonzero(np.diff(slots) > 1) + 1
    starts = [0, *cuts.tolist()]
    for start, stop in zip(starts, [*starts[1:], len(slots)], strict=True):
        yield int(slots[start]), int(slots[stop - 1]) + 1


class EarlySessions(Sessions):
    """Sessions, each closed as soon as its key's promise has reached its end.

    ahead   slots of sessions that close early
    """

    def __init__(self, spec: AggregateSpec, schema: Schema, grouping: Grouping, since: int | None) -> None:
        super().__init__(spec, schema, grouping, since)
        self.heard = Heard(spec)
        self.ahead: list[int] = []

    def heed(self, clause: Clause) -> None:
        self.heard.heed(clause)

    def grain(self) -> PunctuationGrain:
        return PunctuationGrain(clauses=True)

    def due(self) -> bool:
        return bool(self.ahead or self.heard.clauses) or super().due()

    def flush(self, limit: int) -> tuple[Batch | None, int]:
        if limit > 0 and not Windows.due(self):
            self._choose()
        if not self.ahead:
            return super().flush(limit)
        slots = np.array(self.ahead[: max(limit, 0)], np.int64)
        del self.ahead[: len(slots)]
        return self._give(slots), len(slots)

    def blocked(self) -> tuple[int, Group] | None:
        """The end of the earliest session, and its group; of several the one whose first row arrived first."""
        live = np.flatnonzero(self.key >= 0)
        if not len(live):
            return None
        slot = live[np.lexsort((self.number[live], self.last[live]))[:1]]
        group = listed(self.keys.decode_at(self.key[slot]))[0] if self.grouping.width else ()
        return int(self.last[slot[0]]) + self.gap, group

    def _choose(self) -> None:
        """Find the sessions that are over by their keys' promises."""
        for keys, group, value_us in self.heard.take():
            columns = self.keys.decode(0, self.keys.count)
            index = KeyIndex([self.heard.fields[at] for at in keys])
            batch = Batch.from_rows(Schema(tuple(self.heard.fields[at] for at in keys)), [group], [0])
            index.find(batch.columns, batch.valid, 1)
            found = index.find([columns[at][0] for at in keys], [columns[at][1] for at in keys], self.keys.count)
            mine = np.append(found == 0, False)[self.key]
            over = np.flatnonzero(mine & (self.key >= 0) & (self.last <= value_us - self.gap))
            over = over[np.lexsort((self.first[over], self.last[over]))]
            self.ahead += [slot for slot in over.tolist() if slot not in self.ahead]
            least = int(self.last[over[0]]) + self.gap - 1 if len(over) else value_us
            self.heard.pass_on(keys, [group], least)

    def save(self) -> Any:
        return [super().save(), self.heard.save(), self.ahead]

    def restore(self, data: Any) -> None:
        sessions, heard, self.ahead = data
        super().restore(sessions)
        self.heard.restore(heard)
