"""Top n per partition: ROW_NUMBER() over an order, up to n.

Over an append stream only the rows that have a place are kept, because no place is ever vacated. Over an update stream
every current row is kept: one may move down or go, and another takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from millrace.operators.frame.idle_waiting import WindowWaiting
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import Operator, Site
from millrace.operators.top.contest import Changes, Contest
from millrace.operators.top.spec import Rank, TopSpec
from millrace.operators.updates.key_index import Column, KeyIndex
from millrace.operators.updates.updates import (
    ColumnStore,
    KeyVersions,
    Members,
    Stateful,
    UpdateState,
    gone_of,
    last_of_each,
)
from millrace.values.aggregates.accumulator import OBJECTS, ordinals
from millrace.values.arrays import grown
from millrace.values.batch import FILLERS, Batch, Bools, Int64s, interleaved, spread
from millrace.values.evaluate import compile_columns, without
from millrace.values.eventtime import MIN_TIME

_NONE: Final[Int64s] = np.zeros(0, np.int64)


class RankedRows(NamedTuple):
    """Rows on their way into the state, each with the columns that order it. `dead` ones have no place anywhere."""

    batch: Batch
    order: Sequence[Column]
    dead: Bools

    def take(self, rows: Int64s) -> RankedRows:
        order = [(values[rows], None if mask is None else mask[rows]) for values, mask in self.order]
        return RankedRows(self.batch.take(rows), order, self.dead[rows])


class RowOrder:
    """How rows are put in order: arrays of integers, least significant first, for numpy's lexsort."""

    def __init__(self, order: Sequence[Rank]) -> None:
        self._order = order
        self.types = [rank.by.type for rank in order]
        self.columns = compile_columns([rank.by for rank in order])

    def keys(self, columns: Sequence[Column]) -> list[Int64s]:
        """The sort keys of rows with these columns."""
        sort_keys: list[Int64s] = []
        for rank, (values, mask) in zip(reversed(self._order), reversed(columns), strict=True):
            by = (
                np.unique(values, return_inverse=True)[1] if rank.by.type in OBJECTS else ordinals(values, rank.by.type)
            )
            if rank.descending:
                by = ~by
            sort_keys.append(by if mask is None else np.where(mask, by, 0))
            if mask is not None:
                sort_keys.append((mask if rank.nulls_first else ~mask).astype(np.int64))
        return sort_keys


class Top(Stateful):
    """Places as rows arrive. The output is in order if the input is; else each place's own rows are."""

    kind: ClassVar[str] = "top"
    layout: ClassVar[Layout] = Layout(1)

    def __init__(self, site: Site, spec: TopSpec) -> None:
        super().__init__(site)
        self.state = PlacedRows(spec, self)


class Pool(NamedTuple):
    """Rows that may get a place: stored rows by slot, then those of a batch."""

    slots: Int64s
    rows: RankedRows | None


class PlacedRows(UpdateState):
    """The rows, by slot; the partitions, by number; and who has which place.

    `_places[partition * width + at]` is the slot of the row with the number at + 1, or -1, and `_changed_us` there
    is the newest time of all rows that have changed that place. The width is how many places any partition has used,
    at most the spec's.
    """

    def __init__(self, spec: TopSpec, operator: Operator) -> None:
        schema = operator.inputs[0].schema
        self._spec = spec
        self._operator = operator
        self._width = len(schema.data_fields)
        self._ranking = RowOrder(spec.order)
        self._newest = None if spec.replaces is None else KeyVersions(schema, spec.replaces)
        self._rows = ColumnStore([*(field.type for field in schema.data_fields), *self._ranking.types])
        self._order = np.zeros(0, np.int64)
        self._taken = 0
        self._arrived = MIN_TIME  # of the newest row
        self._count = 0  # slots that have been used, of an append stream
        self._free: Int64s = _NONE
        self._partitions = KeyIndex([schema.fields[at] for at in spec.partition_at])
        self._members = Members()
        self._across = 1
        self._places = np.zeros(0, np.int64)
        self._changed_us = np.zeros(0, np.int64)

    # -- taking --------------------------------------------------------------------------------------------------------

    def consume(self, batch: Batch) -> Batch | None:
        current, slots = self._slots(batch)
        if not len(current):
            return None
        rows = self._computed(batch if len(current) == len(batch) else batch.take(current))
        if self._newest is None and rows.dead.any():
            alive = np.flatnonzero(~rows.dead)
            if not len(alive):
                return None
            rows = rows.take(alive)
        self._arrived = max(self._arrived, int(batch.arrival.max()))
        return self._change(rows, slots)

    def _slots(self, batch: Batch) -> tuple[Int64s, Int64s]:
        """The rows that count, and of an update stream where they are kept."""
        if self._newest is None:
            return np.arange(len(batch)), _NONE
        current, slots = self._newest.newest_rows(batch)
        return current, slots

    def _computed(self, batch: Batch) -> RankedRows:
        gone = gone_of(batch)
        columns, valid, errors = self._ranking.columns(batch)
        if errors is not None and gone is not None:
            errors = without(errors, gone)
        dead = np.zeros(len(batch), np.bool_) if gone is None else gone
        if errors is not None:
            self._operator.failed(int(errors.rows.sum()), errors.reason)
            dead = dead | errors.rows
        return RankedRows(batch, list(zip(columns, valid, strict=True)), dead)

    def _change(self, rows: RankedRows, slots: Int64s) -> Batch | None:
        """Take rows in, one after the other, and say which places that changes."""
        owners = self._owners(rows)
        self._reserve()
        both = owners if self._newest is None else np.concatenate([self._members.owner[slots], owners])
        touched = np.unique(both[both >= 0])
        if not len(touched):
            return None
        before = self._places.reshape(-1, self._across)[touched]
        pool, contest = self._contest(rows, slots, owners, touched, before)
        self._widen(contest.width)
        before = self._widened(before)
        # From slots to members of the pool.
        had = np.where(before >= 0, np.searchsorted(pool.slots, before), -1).reshape(-1)
        times = self._changed_us.reshape(-1, self._across)[touched].reshape(-1)
        ts = np.ascontiguousarray(rows.batch.ts)
        changes, after = contest.play(had, times, self._across, ts, every=self._spec.emit == "every")
        self._changed_us.reshape(-1, self._across)[touched] = times.reshape(-1, self._across)
        changed_rows = self._given_rows(pool, changes, touched) if len(changes.places) else None
        self._keep(pool, rows, slots, owners, touched, after)
        return changed_rows

    def _given_rows(self, pool: Pool, changes: Changes, touched: Int64s) -> Batch:
        assert pool.rows is not None
        partitions, at = touched[changes.places // self._across], changes.places % self._across
        return self._batch(
            pool, changes.members, partitions, at + 1, changes.ts, pool.rows.batch.arrival[changes.events]
        )

    def _keep(
        self, pool: Pool, rows: RankedRows, slots: Int64s, owners: Int64s, touched: Int64s, after: Int64s
    ) -> None:
        """Keep the rows that are needed, of an append stream those that have a place, and who has the places."""
        taken = self._taken
        self._taken += len(owners)
        if self._newest is None:
            came = after[after >= len(pool.slots)] - len(pool.slots)
            if not len(came):
                return
            stays = np.zeros(len(pool.slots), np.bool_)
            stays[after[(after >= 0) & (after < len(pool.slots))]] = True
            self._release(pool.slots[~stays])
            slots = np.full(len(owners), -1, np.int64)
            slots[came] = self._allocate(len(came))
            self._reserve()
        else:
            came = last_of_each(slots)
        self._put(rows.take(came), slots[came], owners[came], taken + came)
        who = np.concatenate([pool.slots, slots, [-1]])[after]
        self._places.reshape(-1, self._across)[touched] = who.reshape(-1, self._across)

    def _allocate(self, count: int) -> Int64s:
        """Slots for new rows, of those that were released first."""
        reused, self._free = self._free[:count], self._free[count:]
        more = count - len(reused)
        self._count += more
        return np.concatenate([reused, np.arange(self._count - more, self._count)])

    def _release(self, slots: Int64s) -> None:
        self._members.move(slots, np.full(len(slots), -1, np.int64))
        self._rows.clear(slots)
        self._free = np.concatenate([self._free, slots])

    def _owners(self, rows: RankedRows) -> Int64s:
        owners = np.full(len(rows.dead), -1, np.int64)
        alive = np.flatnonzero(~rows.dead)
        batch = rows.batch if len(alive) == len(owners) else rows.batch.take(alive)
        at = self._spec.partition_at
        columns = [batch.columns[k] for k in at]
        owners[alive] = self._partitions.find(columns, [batch.valid[k] for k in at], len(alive))
        return owners

    def _reserve(self) -> None:
        slots = self._count if self._newest is None else self._newest.count
        partitions = self._partitions.count
        self._rows.reserve(slots)
        self._order = grown(self._order, slots, 0)
        self._members.reserve(slots, partitions)
        self._places = grown(self._places, partitions, -1, self._across)
        self._changed_us = grown(self._changed_us, partitions, MIN_TIME, self._across)

    def _put(self, rows: RankedRows, slots: Int64s, owners: Int64s, order: Int64s) -> None:
        """Keep rows, each in another slot; those without an owner only leave theirs."""
        came = np.flatnonzero(owners >= 0)
        self._members.move(slots, owners)
        ordered = [*zip(rows.batch.columns[: self._width], rows.batch.valid, strict=False), *rows.order]
        columns = [values[came] for values, _ in ordered]
        self._rows.put(slots[came], columns, [None if mask is None else mask[came] for _, mask in ordered])
        self._order[slots] = order

    # -- ranking -------------------------------------------------------------------------------------------------------

    def _contest(
        self, rows: RankedRows, slots: Int64s, owners: Int64s, touched: Int64s, before: Int64s
    ) -> tuple[Pool, Contest]:
        """Rows that may get a place: those that have one and those that come, as long as enough of them stand at what
        was the last place or before it. Of partitions in which at any time too few do, all rows.
        """
        had = np.sort(before[before >= 0])
        pool, contest = self._ranked(had, rows, slots, owners, touched)
        full = np.flatnonzero(self._members.sizes[touched] > self._spec.most)
        last = np.searchsorted(had, before[full, self._spec.most - 1]) if len(full) else _NONE
        short = contest.survey(full, last)
        if len(short):
            everyone = np.unique(np.concatenate([had, self._members.of(touched[short])]))
            pool, contest = self._ranked(everyone, rows, slots, owners, touched)
            contest.survey(_NONE, _NONE)
        return pool, contest

    def _ranked(
        self, places: Int64s, rows: RankedRows, slots: Int64s, owners: Int64s, touched: Int64s
    ) -> tuple[Pool, Contest]:
        """Stored rows and those of a batch, in order."""
        pool, count = Pool(places, rows), len(places)
        members = np.concatenate([np.arange(count), count + np.flatnonzero(owners >= 0)])
        local = np.searchsorted(touched, np.concatenate([self._members.owner[places], owners])[members])
        arrival = np.concatenate([self._order[places], self._taken + np.arange(len(owners))])[members]
        columns = [self._column(pool, self._width + at, members) for at in range(len(self._spec.order))]
        place = np.lexsort([arrival, *self._ranking.keys(columns), local])
        leaves, enters = self._events(places, slots, owners)
        return pool, Contest(members[place], local[place], len(touched), count, leaves, enters, self._spec.most)

    def _events(self, places: Int64s, slots: Int64s, owners: Int64s) -> tuple[Int64s, Int64s]:
        """Which member of the pool each row sends away, and which it is itself, if it is alive.

        A row replaces its key's: the previous one in the batch, or the stored one.
        """
        count = len(places)
        enters = np.where(owners >= 0, count + np.arange(len(owners)), -1)
        leaves = np.full(len(owners), -1, np.int64)
        if self._newest is None:
            return leaves, enters
        order = np.argsort(slots, kind="stable")
        again = slots[order[1:]] == slots[order[:-1]]
        leaves[order[1:][again]] = enters[order[:-1][again]]
        if count:
            first = order[np.concatenate([[True], ~again])]
            at = np.minimum(np.searchsorted(places, slots[first]), count - 1)
            leaves[first] = np.where(places[at] == slots[first], at, -1)
        return leaves, enters

    def _column(self, pool: Pool, at: int, members: Int64s) -> Column:
        """A column of members of a pool; the ordering columns follow the rows' columns."""
        count = len(pool.slots)
        new = members >= count
        if pool.rows is None or not new.any():
            return self._rows.column(at, pool.slots[members])
        if at < self._width:
            values, mask = pool.rows.batch.columns[at], pool.rows.batch.valid[at]
        else:
            values, mask = pool.rows.order[at - self._width]
        came = members[new] - count
        if new.all():
            return values[came], None if mask is None else mask[came]
        old_values, old_mask = self._rows.column(at, pool.slots[members[~new]])
        both = interleaved(new, values[came], old_values)
        if mask is None and old_mask is None:
            return both, None
        there = np.ones(len(members), np.bool_)
        if mask is not None:
            there[new] = mask[came]
        if old_mask is not None:
            there[~new] = old_mask
        return both, there

    def _widen(self, across: int) -> None:
        """Have so many places for each partition."""
        if across <= self._across:
            return
        across = min(self._spec.most, max(across, 2 * self._across))
        for name, filler in (("_places", -1), ("_changed_us", MIN_TIME)):
            old = getattr(self, name).reshape(-1, self._across)
            new = np.full((len(old), across), filler, np.int64)
            new[:, : self._across] = old
            setattr(self, name, new.reshape(-1))
        self._across = across

    def _widened(self, before: Int64s) -> Int64s:
        if before.shape[1] == self._across:
            return before
        wide = np.full((len(before), self._across), -1, np.int64)
        wide[:, : before.shape[1]] = before
        return wide

    # -- giving --------------------------------------------------------------------------------------------------------

    def _batch(
        self, pool: Pool, members: Int64s, partitions: Int64s, numbers: Int64s, ts: Int64s, arrived: Int64s
    ) -> Batch:
        """Rows of a pool, and where the member is -1 tombstones of their place."""
        schema = self._operator.output.schema
        there = members >= 0
        if there.all():
            columns = [self._column(pool, at, members) for at in range(self._width)]
        else:
            columns = [self._with_nulls(pool, at, members, there) for at in range(self._width)]
            for at, column in zip(self._spec.partition_at, self._partitions.columns(partitions), strict=True):
                columns[at] = column
        columns.append((numbers, None))
        if schema.retracts:
            columns.append((~there, None))
        return Batch(schema, ts, [values for values, _ in columns], [mask for _, mask in columns], arrived)

    def _with_nulls(self, pool: Pool, at: int, members: Int64s, there: Bools) -> Column:
        values, mask = self._column(pool, at, members[there])
        valid = there.copy()
        if mask is not None:
            valid[there] = mask
        return spread(values, there, FILLERS[self._operator.output.schema.fields[at].type]), valid

    def everything(self, ts: int) -> Batch:
        """All places that have a row, partition by partition, as rows of this time."""
        partitions, at = np.nonzero(self._places.reshape(-1, self._across)[: self._partitions.count] >= 0)
        slots = self._places.reshape(-1, self._across)[partitions, at]
        count = len(slots)
        return self._batch(
            Pool(slots, None), np.arange(count), partitions, at + 1, np.full(count, ts), np.full(count, self._arrived)
        )

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def tuples(self) -> int:
        rows = self._count - len(self._free) if self._newest is None else self._newest.count
        return rows + self._partitions.count

    @property
    def nbytes(self) -> int:
        newest = 0 if self._newest is None else self._newest.nbytes
        arrays = (self._order, self._free, self._places, self._changed_us)
        parts = self._rows.nbytes + self._partitions.nbytes + self._members.nbytes
        return newest + parts + sum(int(array.nbytes) for array in arrays)

    def save(self) -> Any:
        slots = self._count if self._newest is None else self._newest.count
        partitions = self._partitions.count
        return [
            None if self._newest is None else self._newest.save(),
            self._rows.save(slots),
            [self._order[:slots].copy(), self._taken, self._arrived, self._count, self._free.copy()],
            [self._partitions.save(), partitions],
            self._members.save(slots),
            [self._across, self._places[: partitions * self._across].copy()],
            self._changed_us[: partitions * self._across].copy(),
        ]

    def restore(self, data: Any) -> None:
        newest, rows, taken, (numbers, partitions), members, (self._across, places), times = data
        order, self._taken, self._arrived, self._count, free = taken
        if self._newest is not None:
            self._newest.restore(newest)
        self._rows.restore(rows)
        self._order, self._free = order.copy(), free.copy()
        self._partitions.restore(numbers)
        self._members.restore(members, partitions)
        self._places, self._changed_us = places.copy(), times.copy()
        self._reserve()


# -- windows -----------------------------------------------------------------------------------------------------------


class FinalTop(WindowWaiting):
    """Places of the rows of windows, emitted when their window is over. The output is in order of time.

    Each window has separate places, which are dropped with it.
    """

    kind: ClassVar[str] = "top"
    layout: ClassVar[Layout] = Layout(1)
    paced = True

    def __init__(self, site: Site, spec: TopSpec) -> None:
        super().__init__(site)
        self._spec = spec
        self._windows: dict[int, PlacedRows] = {}

    # -- time ----------------------------------------------------------------------------------------------------------

    def _least(self) -> int | None:
        """When the first window closes: its rows are below this time."""
        return min(self._windows) + 1 if self._windows else None

    def need(self) -> int | None:
        reader = self.inputs[0]
        least = self._least()
        if reader.waiting or least is None or least <= reader.promise:
            return None
        return least

    def low_water(self) -> int:
        least = self._least()
        low = self.inputs[0].low_water()
        return low if least is None else min(low, least - 1)

    def _due(self) -> bool:
        least = self._least()
        return least is not None and least <= self.inputs[0].low_water()

    # -- running -------------------------------------------------------------------------------------------------------

    def more(self) -> bool:
        return self.inputs[0].waiting > 0 or self._due()

    def fresh(self) -> bool:
        return self.inputs[0].unseen or self._due()

    def run(self, limit: int) -> None:
        batch = self.take(self.inputs[0], limit)
        if batch is not None:
            self.newest_us = max(self.newest_us, int(batch.ts.max()))
            self._put(batch)
        self.inputs[0].mark_seen()
        self._flush(limit)
        self.state_scanned = self.emitted

    def _put(self, batch: Batch) -> None:
        """Each row to the places of its window. A row whose bound is null is in no window."""
        assert self._spec.closes_at is not None
        mask = batch.valid[self._spec.closes_at]
        if mask is not None:
            batch = batch.take(mask)
        closes = batch.columns[self._spec.closes_at] + self._spec.closes_us
        for close in np.unique(closes).tolist():
            window = self._windows.get(close)
            if window is None:
                window = self._windows[close] = PlacedRows(self._spec, self)
            window.consume(batch.take(np.flatnonzero(closes == close)))

    def _flush(self, limit: int) -> None:
        """Emit the rows of windows that are over, the earliest first."""
        low = self.inputs[0].low_water()
        while self._windows and self.emitted < limit:
            close = min(self._windows)
            if close >= low:
                break
            window = self._windows.pop(close)
            rows = window.everything(close)
            self.emit(rows)

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def state_tuples(self) -> int:
        return sum(window.tuples for window in self._windows.values())

    @property
    def state_bytes(self) -> int:
        return sum(window.nbytes for window in self._windows.values())

    def save(self) -> Any:
        windows = [[close, window.save()] for close, window in self._windows.items()]
        return [super().save(), self.newest_us, windows]

    def restore(self, data: Any) -> None:
        idle, self.newest_us, windows = data
        super().restore(idle)
        for close, saved in windows:
            window = self._windows[close] = PlacedRows(self._spec, self)
            window.restore(saved)
