"""Joins of update streams: the current rows of one key, put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from millrace.operators.current_join.spec import CurrentJoinSpec
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.picked import Picked, picked_schema
from millrace.operators.frame.reorder import least_of_each
from millrace.operators.frame.waiting import TimeOrdered
from millrace.operators.updates import kernel as replacing
from millrace.operators.updates.key_index import Column, KeyIndex
from millrace.operators.updates.updates import ColumnStore, before_each, blanked, gone_of, last_of_each
from millrace.protocol import Field, Schema
from millrace.values.arrays import grown
from millrace.values.batch import FILLERS, Batch, Bools, Int64s
from millrace.values.evaluate import compile_predicate
from millrace.values.eventtime import MIN_TIME
from millrace.values.expression import TIME

# The forms in which a key's rows are emitted: alone (of input 0 or of input 1), and together. A full join has a row for
# each, since their keys differ.
ALONE: Final = (1, 2)
TOGETHER: Final = 4
FORMS: Final = (*ALONE, TOGETHER)


class Changes(NamedTuple):
    """Rows and tombstones in the order of their causes, and the line of each: the row that it replaces for readers."""

    batch: Batch
    lines: Int64s
    gone: Bools


class CurrentRows:
    """One side: by key, its current row if it has one, and its newest time."""

    def __init__(self, schema: Schema, positions: Sequence[int]) -> None:
        self._positions = positions
        self._store = ColumnStore([schema.fields[at].type for at in positions])
        self.newest = np.zeros(0, np.int64)
        self.ts, self.arrival = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.there = np.zeros(0, np.bool_)

    def reserve(self, count: int) -> None:
        self._store.reserve(count)
        self.newest = grown(self.newest, count, MIN_TIME)
        self.ts, self.arrival = grown(self.ts, count, 0), grown(self.arrival, count, 0)
        self.there = grown(self.there, count, False)

    def put(self, slots: Int64s, batch: Batch, alive: Bools) -> None:
        """Replace the rows of these keys, each once; they have no row where `alive` is false."""
        self.there[slots] = alive
        self._store.clear(slots[~alive])
        slots, batch = slots[alive], batch if alive.all() else batch.take(alive)
        self.ts[slots], self.arrival[slots] = batch.ts, batch.arrival
        found = [batch.columns[at] for at in self._positions], [batch.valid[at] for at in self._positions]
        self._store.put(slots, *found)

    def column(self, position: int, slots: Int64s) -> Column:
        return (
            (self.ts[slots], None) if position == TIME else self._store.column(self._positions.index(position), slots)
        )

    @property
    def nbytes(self) -> int:
        arrays = (self.newest, self.ts, self.arrival, self.there)
        return self._store.nbytes + sum(int(array.nbytes) for array in arrays)

    def save(self, count: int) -> Any:
        arrays = (self.newest, self.ts, self.arrival, self.there)
        return [self._store.save(count), *(array[:count].copy() for array in arrays)]

    def restore(self, data: Any) -> None:
        store, *arrays = data
        self._store.restore(store)
        self.newest, self.ts, self.arrival, self.there = (array.copy() for array in arrays)


class CurrentPairs:
    """The current rows of both sides by key, and what has been emitted of each key.

    _form     the forms that follow from the current rows
    _given    the newest time that it was emitted with
    _visible  by line, whether its last emitted row is not a tombstone
    """

    def __init__(self, spec: CurrentJoinSpec, operator: Operator) -> None:
        self._spec, self._operator = spec, operator
        schemas = [reader.schema for reader in operator.inputs]
        taken = [*spec.columns, *spec.tested]
        self._sides = [
            CurrentRows(schema, sorted({position for _, of, position in taken if of == at and position != TIME}))
            for at, schema in enumerate(schemas)
        ]
        self._key_at = [[pair[at].position for pair in spec.keys] for at in (0, 1)]
        self._index = KeyIndex([Field(left.name, left.type) for left, _ in spec.keys])
        self._key_part = {
            at: part
            for at, (_, of, position) in enumerate(spec.columns)
            for part, pair in enumerate(spec.keys)
            if at in spec.key and pair[of].position == position
        }
        self._where = None if spec.where is None else compile_predicate(spec.where)
        self._tested_schema = picked_schema(spec.tested, schemas, set())
        self._lines = len(FORMS) if spec.full else 1
        self._form, self._given = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._visible = np.zeros(0, np.bool_)
        self.superseded = 0

    # -- taking --------------------------------------------------------------------------------------------------------

    def consume(self, side: int, batch: Batch) -> Changes | None:
        """Let rows replace the current ones of their keys; the changes that follow."""
        key_at = self._key_at[side]
        valid = [batch.valid[at] for at in key_at]
        slots = self._index.find([batch.columns[at] for at in key_at], valid, len(batch))
        self._reserve()
        own, other = self._sides[side], self._sides[1 - side]
        current = np.zeros(len(slots), np.uint8)
        replacing.newest(slots, batch.ts, own.newest, current)
        if not current.all():
            kept = np.flatnonzero(current)
            self.superseded += len(slots) - len(kept)
            batch, slots = batch.take(kept), slots[kept]
        if not len(slots):
            return None
        gone = gone_of(batch)
        alive = np.ones(len(slots), np.bool_) if gone is None else ~gone
        there = other.there[slots]
        masks = [mask for at in key_at if (mask := batch.valid[at]) is not None]
        known = np.logical_and.reduce(masks) if masks else True
        together = self._matching(side, batch, slots, alive & there & known)
        forms = self._forms((alive, there) if side == 0 else (there, alive), together)
        if len(masks) == len(key_at):
            # Two rows without any key would replace each other.
            keyless = ~np.logical_or.reduce(masks) if masks else True
            forms[(forms == sum(ALONE)) & keyless] = ALONE[0]
        before = before_each(slots, forms, self._form)
        last = last_of_each(slots)
        self._form[slots[last]] = forms[last]
        own.put(slots[last], batch.take(last) if len(last) < len(slots) else batch, alive[last])
        return self._changes(side, batch, slots, forms, before)

    def _matching(self, side: int, batch: Batch, slots: Int64s, pairs: Bools) -> Bools:
        """Which of these pairs match. One that cannot be tested does not, and is counted."""
        rows = np.flatnonzero(pairs)
        if self._where is None or not len(rows):
            return pairs
        columns = [self._column(side, picked, batch, rows, slots[rows]) for picked in self._spec.tested]
        tested = Batch(self._tested_schema, batch.ts[rows], [v for v, _ in columns], [m for _, m in columns])
        passing, errors = self._where(tested)
        if passing is not None:
            pairs[rows[~passing]] = False
        if errors is not None:
            self._operator.failed(int(errors.rows.sum()), errors.reason)
        return pairs

    def _forms(self, alive: tuple[Bools, Bools], together: Bools) -> Int64s:
        forms = np.where(together, TOGETHER, 0)
        for at in self._spec.outer:
            forms[alive[at] & ~together] |= ALONE[at]
        return forms

    def _column(self, side: int, picked: Picked, batch: Batch, rows: Int64s, slots: Int64s) -> Column:
        """A column of the pairs of these rows of a side and the other side's rows of their keys."""
        _, at, position = picked
        if at != side:
            return self._sides[at].column(position, slots)
        if position == TIME:
            return batch.ts[rows], None
        mask = batch.valid[position]
        return batch.columns[position][rows], None if mask is None else mask[rows]

    # -- emitting ------------------------------------------------------------------------------------------------------

    def _changes(self, side: int, batch: Batch, slots: Int64s, forms: Int64s, before: Int64s) -> Changes | None:
        """By row, what it changes for readers: rows that it is a part of, and lines that take another form or end."""
        found: list[tuple[int, bool, Int64s, Int64s]] = []
        for line, mask in enumerate(FORMS if self._spec.full else (sum(FORMS),)):
            now, then = forms & mask, before & mask
            ends = np.flatnonzero((now == 0) & (then != 0))
            starts = np.flatnonzero((now != 0) & ((now != then) | (now & (ALONE[side] | TOGETHER) != 0)))
            found += [(line, True, ends, then[ends]), (line, False, starts, now[starts])]
        rows = np.concatenate([at for _, _, at, _ in found])
        if not len(rows):
            return None
        times = self._times(side, batch, slots, forms, rows)
        counts = [len(at) for _, _, at, _ in found]
        gone = np.repeat([ends for _, ends, _, _ in found], counts)
        lines = slots[rows] * self._lines + np.repeat([line for line, *_ in found], counts)
        contents = np.concatenate([content for *_, content in found])
        # A line ends before another one of its key starts.
        order = np.lexsort([~gone, rows])
        if self._spec.emit == "latest":
            order = order[last_of_each(lines[order])]
        rows, lines, gone, contents = rows[order], lines[order], gone[order], contents[order]
        return Changes(self._built(side, batch, slots, rows, contents, gone, times[rows]), lines, gone)

    def _times(self, side: int, batch: Batch, slots: Int64s, forms: Int64s, rows: Int64s) -> Int64s:
        """By row, the time of what it changes: its own, the other row's, or the last one emitted for its key."""
        times = np.where(forms & TOGETHER, np.maximum(batch.ts, self._sides[1 - side].ts[slots]), batch.ts)
        causes = np.unique(rows)
        risen = times[causes]
        replacing.rise(slots[causes], risen, self._given)
        times[causes] = risen
        return times

    def _built(
        self, side: int, batch: Batch, slots: Int64s, rows: Int64s, contents: Int64s, gone: Bools, ts: Int64s
    ) -> Batch:
        schema = self._operator.output.schema
        slots = slots[rows]
        shown = [(contents & (ALONE[at] | TOGETHER)) != 0 for at in (0, 1)]
        columns: list[Column] = []
        for at, (picked, field) in enumerate(zip(self._spec.columns, schema.fields, strict=False)):
            part = self._key_part.get(at)
            there = shown[picked[1]]
            if part is not None:
                # Every row with the key has its values, on either side.
                picked = (field.name, side, self._key_at[side][part])
            elif schema.retracts:
                there = there & ~gone
            values, mask = self._column(side, picked, batch, rows, slots)
            columns.append((values, mask) if there.all() else blanked(values, mask, ~there, FILLERS[field.type]))
        if schema.retracts:
            columns.append((gone, None))
        arrival = np.maximum(
            batch.arrival[rows], np.where(shown[1 - side], self._sides[1 - side].arrival[slots], MIN_TIME)
        )
        return Batch(schema, ts, [v for v, _ in columns], [m for _, m in columns], arrival)

    def report(self, changes: Sequence[Changes]) -> Batch | None:
        """The rows to emit after an execution."""
        if not changes:
            return None
        batch, lines, gone = changes[0]
        if len(changes) > 1:
            batch = Batch.concat([one.batch for one in changes])
            lines = np.concatenate([one.lines for one in changes])
            gone = np.concatenate([one.gone for one in changes])
        if self._spec.emit == "latest":
            kept = last_of_each(lines) if len(changes) > 1 else np.arange(len(lines))
            # A row that was taken back in the same execution was never visible.
            kept = kept[~gone[kept] | self._visible[lines[kept]]]
            self._visible[lines] = False
            self._visible[lines[kept]] = ~gone[kept]
            batch = batch if len(kept) == len(lines) else batch.take(kept)
        return batch if len(batch) else None

    # -- state ---------------------------------------------------------------------------------------------------------

    def _reserve(self) -> None:
        count = self._index.count
        for side in self._sides:
            side.reserve(count)
        self._form = grown(self._form, count, 0)
        self._given = grown(self._given, count, MIN_TIME)
        self._visible = grown(self._visible, count * self._lines, False)

    @property
    def tuples(self) -> int:
        return sum(int(np.count_nonzero(side.there)) for side in self._sides)

    @property
    def nbytes(self) -> int:
        arrays = (self._form, self._given, self._visible)
        sides = sum(side.nbytes for side in self._sides)
        return self._index.nbytes + sides + sum(int(array.nbytes) for array in arrays)

    def save(self) -> Any:
        count = self._index.count
        emitted = [self._form[:count].copy(), self._given[:count].copy(), self._visible[: count * self._lines].copy()]
        return [self._index.save(), [side.save(count) for side in self._sides], emitted, self.superseded]

    def restore(self, data: Any) -> None:
        index, sides, emitted, self.superseded = data
        self._index.restore(index)
        for side, saved in zip(self._sides, sides, strict=True):
            side.restore(saved)
        self._form, self._given, self._visible = (array.copy() for array in emitted)


class CurrentJoin(Operator):
    """The current rows of two update streams, paired by their keys as rows arrive (UPS, section 3.2).

    A row replaces its key's previous one on its side; the most recent match of a key is its row. The time is the latest
    of the rows in it, of its cause, and of what was emitted for the key before. The inputs take turns. Promises no
    order; each key's own rows are.
    """

    kind: ClassVar[str] = "join"
    layout: ClassVar[Layout] = Layout(1)

    def __init__(self, site: Site, spec: CurrentJoinSpec) -> None:
        super().__init__(site.name, site.inputs, site.output)
        self.pairs = CurrentPairs(spec, self)
        self._turn = 0

    def run(self, limit: int) -> None:
        changes: list[Changes] = []
        for _ in self.inputs:
            turn = self._turn
            batch = self.take(self.inputs[turn], limit - self.taken)
            if batch is not None and (found := self.pairs.consume(turn, batch)) is not None:
                changes.append(found)
            self._turn = 1 - turn
            if self.taken >= limit:
                break
        rows = self.pairs.report(changes)
        if rows is not None:
            self.emit(rows)

    @property
    def superseded(self) -> int:
        return self.pairs.superseded

    @property
    def state_tuples(self) -> int:
        return self.pairs.tuples

    @property
    def state_bytes(self) -> int:
        return self.pairs.nbytes

    def save(self) -> Any:
        return [self._turn, self.pairs.save()]

    def restore(self, data: Any) -> None:
        self._turn, pairs = data
        self.pairs.restore(pairs)


class OrderedCurrentJoin(TimeOrdered):
    """The same in order of time: a row is taken when no input can bring an earlier one. Ties: input order, then
    arrival. The output is in order, and a pair is of rows that were current at one time.
    """

    kind: ClassVar[str] = "join"
    layout: ClassVar[Layout] = Layout(1)

    def __init__(self, site: Site, spec: CurrentJoinSpec) -> None:
        super().__init__(site)
        self.pairs = CurrentPairs(spec, self)

    def advance(self, limit: int) -> Batch | None:
        horizon = self.horizon()
        batches = least_of_each(self.waiting, [horizon, horizon], limit)
        for position, batch in enumerate(batches):
            if batch is not None:
                self.left_line(position, len(batch))
        found = (self.pairs.consume(side, part) for side, part in _in_order(batches))
        return self.pairs.report([changes for changes in found if changes is not None])

    @property
    def superseded(self) -> int:
        return self.pairs.superseded

    @property
    def state_tuples(self) -> int:
        return self.pairs.tuples

    @property
    def state_bytes(self) -> int:
        return self.pairs.nbytes

    def save(self) -> Any:
        return [super().save(), self.pairs.save()]

    def restore(self, data: Any) -> None:
        lines, pairs = data
        super().restore(lines)
        self.pairs.restore(pairs)


def _in_order(batches: Sequence[Batch | None]) -> list[tuple[int, Batch]]:
    """Tuples of two inputs, each in order of time, as one sequence of parts."""
    present = [(side, batch) for side, batch in enumerate(batches) if batch is not None]
    if len(present) < 2:
        return present
    (_, first), (_, second) = present
    # Where the second's tuples would stand among the first's, which precede at equal times.
    before = np.searchsorted(first.ts, second.ts, "right")
    cuts = np.flatnonzero(np.diff(before, prepend=-1))
    ends = [*cuts[1:].tolist(), len(second)]
    parts: list[tuple[int, Batch]] = []
    done = 0
    for start, end in zip(cuts.tolist(), ends, strict=True):
        upto = int(before[start])
        if upto > done:
            parts.append((0, first.slice(done, upto)))
        parts.append((1, second.slice(start, end)))
        done = upto
    if done < len(first):
        parts.append((0, first.slice(done, len(first))))
    return parts
