"""Sequences: rows of one stream FOLLOWED BY rows of another, and rows that nothing follows (EQG, section 5).

Both inputs are taken in order of time, whatever their order of arrival, and at equal times the first input's (A) before
the second's (B). So each input has a horizon: an A at t is taken when both inputs promise t; a B at t when B's input
promises t and A's promises t + 1, because until then an A at t may arrive, which the B would follow. Simultaneous rows
do not wait for each other forever: A's next promise releases both.

A pair is chosen by time and keys. `where` tests the chosen pair.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import Site
from millrace.operators.frame.picked import Picked, picked_schema
from millrace.operators.frame.reorder import least_of_each
from millrace.operators.frame.waiting import TimeOrdered
from millrace.operators.sequence import kernel
from millrace.operators.sequence.spec import SequenceSpec
from millrace.operators.sequence.store import SequenceStore
from millrace.values.batch import FILLERS, Batch, Bools, Int64s, Values
from millrace.values.evaluate import Errors, compile_columns, compile_predicate
from millrace.values.eventtime import HORIZON_US, MAX_TIME, MIN_TIME, after, before, untimed
from millrace.values.expression import TIME

# So many pairs of an absence are tested at once.
PAIRS: Final = 4096

_NONE: Final[Int64s] = np.zeros(0, np.int64)


class FollowedBy(TimeOrdered):
    """The common part of sequences: two inputs in order of time, the rows of A that may be followed, and `where`."""

    kind: ClassVar[str] = "sequence"
    layout: ClassVar[Layout] = Layout(1)

    def __init__(self, site: Site, spec: SequenceSpec) -> None:
        super().__init__(site)
        self._spec = spec
        self.last_us = MIN_TIME  # the newest time taken
        schemas = [reader.schema for reader in self.inputs]
        assert all(left.type is right.type for left, right in spec.keys), f"{self.name}: keys of different types"
        self._keys = [compile_columns([pair[side] for pair in spec.keys]) for side in (0, 1)]
        self._tested = spec.tested or spec.columns
        self._tested_schema = picked_schema(self._tested, schemas, set())
        self._where = None if spec.where is None else compile_predicate(spec.where)
        picked = (*spec.columns, *(self._tested if spec.where is not None else ()))
        taken = {position for _, at, position in picked if at == 0 and position != TIME}
        # Of an update stream, whether the row is a tombstone: then its key has no row to follow.
        self._gone = len(schemas[0]) - 1 if schemas[0].retracts else None
        positions = sorted(taken if self._gone is None else {*taken, self._gone})
        self._store = SequenceStore(schemas[0], positions, [key.type for key, _ in spec.keys])

    # -- time ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def through(self) -> tuple[int, int]:
        """Per input, the time above which none of its tuples may be taken."""

    @abstractmethod
    def awaited_promises(self) -> list[tuple[int, int]]:
        """Pairs of promises of A and B that would let it act; none if it can."""

    def bounds(self) -> tuple[int, int]:
        """The times through which A's and B's tuples have their place in the order of both."""
        first, second = self.inputs[0].promise, self.inputs[1].promise
        if first > second or first == MAX_TIME:
            return second, second
        return first, first if first == MIN_TIME else first - 1

    def ready(self) -> bool:
        """Whether a tuple may be taken."""
        first, second = self.waiting[0].head_us(), self.waiting[1].head_us()
        if first is None and second is None:
            return False
        first_through, second_through = self.through()
        return (first is not None and first <= first_through) or (second is not None and second <= second_through)

    def more(self) -> bool:
        return self.ready()

    def _lack(self) -> tuple[int, list[int]] | None:
        """The least promise that would let it act, and the inputs that fall short of it."""
        least: tuple[int, list[int]] | None = None
        for first, second in self.awaited_promises():
            lack = self._short(first, second)
            if lack is not None and (least is None or lack[0] < least[0]):
                least = lack
        return least

    def _short(self, first: int, second: int) -> tuple[int, list[int]] | None:
        """The inputs that do not promise this, and the least promise that they owe."""
        if self.inputs[0].promise < first:
            return (max(first, second), [0, 1]) if self.inputs[1].promise < second else (first, [0])
        return (second, [1]) if self.inputs[1].promise < second else None

    def need(self) -> int | None:
        lack = self._lack()
        return None if lack is None else lack[0]

    def holding(self) -> list[int]:
        lack = self._lack()
        return [] if lack is None else lack[1]

    def past_its_tuples(self) -> bool:
        return self.waiting[1].count > 0

    # -- running -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def follow(self, first: Batch | None, second: Batch | None, limit: int) -> Batch | None:
        """The rows that follow from these, which come in order of time."""

    def advance(self, limit: int) -> Batch | None:
        batches = []
        for position, batch in enumerate(least_of_each(self.waiting, self.through(), limit)):
            if batch is not None:
                self.left_line(position, len(batch))
                self.last_us = max(self.last_us, int(batch.ts[-1]))
                batch = self._timed(batch)
            batches.append(batch)
        rows = self.follow(batches[0], batches[1], limit)
        self._store.tidy()
        return rows

    def _timed(self, batch: Batch) -> Batch | None:
        """The tuples that have a time. The others, which are first, cannot be in a sequence."""
        count = untimed(batch.ts)
        if not count:
            return batch
        self.failed(count, "a row without a time is in no sequence")
        return batch.slice(count, len(batch)) if count < len(batch) else None

    def keyed(self, side: int, batch: Batch | None) -> tuple[Batch | None, Int64s]:
        """An input's tuples and the slots of their keys; those whose key cannot be computed are left out."""
        if batch is None:
            return None, _NONE
        columns, valid, errors = self._keys[side](batch)
        if errors is not None:
            self._fail(errors)
            keyed = ~errors.rows
            batch = batch.take(keyed)
            columns = [column[keyed] for column in columns]
            valid = [None if mask is None else mask[keyed] for mask in valid]
        return batch, self._store.find(columns, valid, len(batch))

    def passing(self, second: Batch, rows: Int64s, cells: Int64s) -> tuple[Bools | None, Errors | None]:
        """For which of these pairs `where` holds (None: all), and which could not be computed."""
        if self._where is None or not len(rows):
            return None, None
        second = second.take(rows)
        columns, valid = self.picked(self._tested, second, cells)
        return self._where(Batch(self._tested_schema, second.ts, columns, valid))

    def picked(
        self, columns: Sequence[Picked], second: Batch, cells: Int64s
    ) -> tuple[list[Values], list[Bools | None]]:
        """Columns of pairs: the rows of B, and for each the cell of a row of A (-1: there is none)."""
        missing = cells < 0 if self._spec.outer and (cells < 0).any() else None
        columns_of: list[Values] = []
        masks: list[Bools | None] = []
        for _, at, position in columns:
            if at == 0:
                values, mask = self._store.column(position, cells)
                if missing is not None:
                    values = np.where(missing, self._filler(position), values)
                    mask = ~missing if mask is None else mask & ~missing
            elif position == TIME:
                values, mask = second.ts, None
            else:
                values, mask = second.columns[position], second.valid[position]
            columns_of.append(values)
            masks.append(mask)
        return columns_of, masks

    def _filler(self, position: int) -> Any:
        return 0 if position == TIME else FILLERS[self.inputs[0].schema.fields[position].type]

    def _fail(self, errors: Errors) -> None:
        self.failed(int(errors.rows.sum()), errors.reason)

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def state_tuples(self) -> int:
        return self._store.live

    @property
    def state_bytes(self) -> int:
        return self._store.nbytes

    def clear(self) -> None:
        super().clear()
        self._store.clear()

    def save(self) -> Any:
        return [super().save(), self._store.save(), self.last_us]

    def restore(self, data: Any) -> None:
        saved, store, self.last_us = data
        super().restore(saved)
        self._store.restore(store)


class Following(FollowedBy):
    """Each row of B with a row of A before it or at its time: the newest of its keys (RECENT, EQG figure 12), or the
    oldest that has not been used (CHRONICLE, figure 13), at B's time.

    A row of B without one is dropped. The output is in order of time; at equal times in B's order of arrival.
    """

    def through(self) -> tuple[int, int]:
        return self.bounds()

    def awaited_promises(self) -> list[tuple[int, int]]:
        """The promises for the least head: no other can be ready before it."""
        first, second = self.waiting[0].head_us(), self.waiting[1].head_us()
        if second is not None and (first is None or second < first):
            return [(second + 1, second)]
        return [] if first is None else [(first, first)]

    def low_water(self) -> int:
        """Every row has the time of one of B, so A's promises do not hold them back."""
        head = self.waiting[1].head_us()
        promise = self.inputs[1].promise
        return promise if head is None else min(head, promise)

    def lacking(self, need_us: int) -> list[Inlet]:
        first, second = self.inputs
        head = self.waiting[1].head_us()
        inlets = []
        if head is not None and head < need_us and first.promise <= head:
            inlets.append(first)
        if second.promise < need_us:
            inlets.append(second)
        return inlets

    def follow(self, first: Batch | None, second: Batch | None, limit: int) -> Batch | None:
        first, a_slots = self.keyed(0, first)
        second, b_slots = self.keyed(1, second)
        if first is not None and (a_slots < 0).any():
            # NULL equals nothing: none of these can ever be followed.
            first, a_slots = first.take(a_slots >= 0), a_slots[a_slots >= 0]
        cells = self._choose(first, a_slots, second, b_slots)
        if self._gone is not None:
            gone, _ = self._store.column(self._gone, cells)
            cells[gone & (cells >= 0)] = -1
        rows = None if second is None else self._paired(second, cells)
        self._expire()
        return rows

    def _choose(self, first: Batch | None, a_slots: Int64s, second: Batch | None, b_slots: Int64s) -> Int64s:
        """The cell of the row of A that each row of B follows, or -1."""
        store = self._store
        base = store.used if first is None else store.append(first, a_slots)
        a_ts = _NONE if first is None else first.ts
        b_ts = _NONE if second is None else second.ts
        within = -1 if self._spec.within_us is None else self._spec.within_us
        chosen = np.empty(len(b_ts), np.int64)
        rows = (a_ts, a_slots, b_ts, b_slots, base, within, store.times, store.alive, store.head)
        if self._spec.mode == "recent":
            died = kernel.recent(*rows, chosen)
        else:
            died = kernel.chronicle(*rows, store.tail, store.following, chosen)
        store.live -= died
        return chosen

    def _paired(self, second: Batch, cells: Int64s) -> Batch | None:
        rows = np.flatnonzero(cells >= 0)
        passing, errors = self.passing(second, rows, cells[rows])
        if passing is not None:
            cells[rows[~passing]] = -1
        outer = self._spec.outer
        paired = np.ones(len(second), np.bool_) if outer else cells >= 0
        if errors is not None:
            self._fail(errors)
            paired[rows[errors.rows]] = False
        if not paired.any():
            return None
        if not paired.all():
            second, cells = second.take(paired), cells[paired]
        columns, valid = self.picked(self._spec.columns, second, cells)
        return Batch(self.output.schema, second.ts, columns, valid, second.arrival)

    def _expire(self) -> None:
        """Drop the rows of A that are too old for any row of B to come."""
        within_us = self._spec.within_us
        if within_us is None:
            return
        cells = self._store.remove_below(before(self.low_water(), within_us), len(self._store.times))
        if len(cells) and self._spec.mode == "recent":
            self._store.head[self._store.slots[cells]] = -1


class Absence(FollowedBy):
    """A row of A at its time + within, if no row of B with its keys for which `where` holds has a time from its own
    until then.

    A's rows are taken as soon as their input is in order up to them. The end of the oldest wait is a need: B's promise
    past it. Until a row at or past that end has arrived, the operator is not idle-waiting. The output is in order of
    time; at equal times in A's order of arrival.
    """

    paced = True

    def __init__(self, site: Site, spec: SequenceSpec) -> None:
        super().__init__(site, spec)
        assert spec.within_us is not None, f"{self.name}: an absence needs within_us"
        assert not spec.outer, f"{self.name}: an absence has no rows of input 1"
        self._within_us: int = spec.within_us

    # -- time ----------------------------------------------------------------------------------------------------------

    def through(self) -> tuple[int, int]:
        return self.inputs[0].promise, self.bounds()[1]

    def awaited_promises(self) -> list[tuple[int, int]]:
        if self.more():
            return []
        first, second = (reorder.head_us() for reorder in self.waiting)
        open_us = self._store.next_time()
        promises = []
        if first is not None:
            promises.append((first, MIN_TIME))
        if second is not None:
            promises.append((second + 1, second))
        if open_us is not None:
            promises.append((MIN_TIME, self._end(open_us) + 1))
        return promises

    def _end(self, time_us: int) -> int:
        """The end of the wait that starts at a time."""
        return after(time_us, self._within_us)

    def _over(self) -> int:
        """Waits that started below this time are over: no row of B up to their ends is to come."""
        head = self.waiting[1].head_us()
        promise = self.inputs[1].promise
        bound = promise if head is None else min(head, promise)
        return before(bound, self._within_us)

    def due(self) -> bool:
        """Whether a row may be emitted."""
        open_us = self._store.next_time()
        return open_us is not None and open_us < self._over()

    def more(self) -> bool:
        return self.ready() or self.due()

    def fresh(self) -> bool:
        return any(reader.unseen for reader in self.inputs) or self.more()

    def blocked(self) -> bool:
        need = self.need()
        return need is not None and (self.held_tuples() > 0 or self.last_us >= need)

    def idle(self) -> list[int]:
        return self.holding() if self.blocked() else []

    def low_water(self) -> int:
        begun = [self.waiting[0].head_us(), self._store.next_time(), self.inputs[0].promise]
        least = min(time for time in begun if time is not None)
        return self._end(least)

    def lacking(self, need_us: int) -> list[Inlet]:
        inlets = []
        first, second = self.inputs
        open_us = self._store.next_time()
        if self._end(first.promise) < need_us:
            inlets.append(first)
        if open_us is not None and self._end(open_us) < need_us:
            head = self.waiting[1].head_us()
            if head is not None and first.promise <= head and first not in inlets:
                inlets.append(first)
            if second.promise <= self._end(open_us):
                inlets.append(second)
        return inlets

    # -- running -------------------------------------------------------------------------------------------------------

    def follow(self, first: Batch | None, second: Batch | None, limit: int) -> Batch | None:
        first, a_slots = self.keyed(0, first)
        second, b_slots = self.keyed(1, second)
        store = self._store
        if first is not None and len(first):
            base = store.append(first, a_slots)
            kernel.link(a_slots, base, store.head, store.tail, store.following)
        if second is not None and len(second):
            if self._where is None:
                rows = (second.ts, b_slots, self._within_us)
                store.live -= kernel.refute(*rows, store.times, store.alive, store.head, store.following)
            else:
                self._refute(second, b_slots)
        return self._absent_rows(limit)

    def _refute(self, second: Batch, b_slots: Int64s) -> None:
        """Pair by pair: a wait is over if one of its pairs holds."""
        store = self._store
        place = np.array([0, -1])
        rows, cells = np.empty(PAIRS, np.int64), np.empty(PAIRS, np.int64)
        while place[0] < len(second):
            count = kernel.candidates(
                second.ts,
                b_slots,
                self._within_us,
                store.times,
                store.alive,
                store.head,
                store.following,
                place,
                rows,
                cells,
            )
            self.state_scanned += count
            passing, errors = self.passing(second, rows[:count], cells[:count])
            if errors is not None:
                self._fail_open(errors, passing, cells[:count])
            store.remove(cells[:count] if passing is None else cells[:count][passing])

    def _fail_open(self, errors: Errors, passing: Bools | None, cells: Int64s) -> None:
        """Count the pairs that could not be computed, but not those whose wait an earlier row of B had ended."""
        ended: set[int] = set()
        count = 0
        passed = errors.rows | True if passing is None else passing
        for cell, failed, holds in zip(cells.tolist(), errors.rows.tolist(), passed.tolist(), strict=True):
            count += failed and cell not in ended
            if holds:
                ended.add(cell)
        if count:
            self.failed(count, errors.reason)

    def _absent_rows(self, limit: int) -> Batch | None:
        """The rows whose wait is over, at most `limit`."""
        store = self._store
        cells = store.remove_below(self._over(), limit)
        self.state_scanned += len(cells)
        if not len(cells):
            return None
        picked = [store.column(position, cells) for _, _, position in self._spec.columns]
        ts = np.minimum(store.times[cells], HORIZON_US - self._within_us) + self._within_us
        columns = [values for values, _ in picked]
        return Batch(self.output.schema, ts, columns, [mask for _, mask in picked], store.arrivals[cells])
