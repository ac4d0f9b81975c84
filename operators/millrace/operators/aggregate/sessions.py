"""Sessions: per key, tuples that follow each other by less than the gap.

A batch is first cut into sessions alone (sorted by key and time). Then these are sorted together with the open
sessions, and those that touch become one: a disordered tuple can extend a session, merge two, or start an earlier one.
Sessions of a key are linked to a chain by arrays. Keys without sessions are dropped once they are the majority.
Sessions with equal bounds are emitted in the order of their first rows' arrival, whatever their slots.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from millrace.operators.aggregate.groups import ComputedRows, Grouping, Keys, Table, listed
from millrace.operators.aggregate.panes import Windows
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.frame.windows import OpenWindows, SessionWindow
from millrace.protocol import Schema
from millrace.values.batch import Batch, Int64s
from millrace.values.eventtime import HORIZON_US, MAX_TIME, MIN_TIME, after, before, saturated
from millrace.values.kernels import grouping as kernel

# With fewer keys than this, none is dropped.
MANY_KEYS: Final = 1_024


class Sessions(Windows):
    """Open sessions, each with a slot in one table of states.

    key, first, last   by slot; key is -1 where the slot is free
    number             by slot, how many rows had arrived before the session's first one; saved as a rank
    head, following    by key the first session of its chain, by slot the next one; -1 ends it
    pending            slots of closed sessions that have not been emitted, in order
    """

    def __init__(self, spec: AggregateSpec, schema: Schema, grouping: Grouping, since: int | None) -> None:
        super().__init__(spec, schema, grouping)
        assert isinstance(spec.window, SessionWindow)
        self.gap = spec.window.gap_us
        # A session that starts within a gap of the last tuple before the query may have started with that tuple.
        self.since = None if since is None or spec.partial == "emit" else since - 1 + self.gap
        self.states = Table(grouping, False)
        self.key = np.empty(0, np.int64)
        self.first = np.empty(0, np.int64)
        self.last = np.empty(0, np.int64)
        self.number = np.empty(0, np.int64)
        self.following = np.empty(0, np.int64)
        self.arrived = 0
        self.free: list[int] = []
        self.pending: list[int] = []
        self._forget_keys()
        self._least: int | None = None

    def _forget_keys(self) -> None:
        self.keys = Keys(self.grouping.key_types, self.grouping.null_bits)
        self.head = np.empty(0, np.int64)

    # -- taking --------------------------------------------------------------------------------------------------------

    def take(self, rows: ComputedRows, at: Int64s) -> None:
        self.place(rows)

    def place(self, rows: ComputedRows) -> Int64s:
        """Let rows count in their sessions, and say in which."""
        keys = self._numbered(rows)
        order = np.lexsort((rows.ts, keys))
        by_key, by_time = keys[order], rows.ts[order]
        run_of = np.empty(len(order), np.int64)
        runs = kernel.clusters(by_key, by_time, by_time, self.gap, run_of)
        edges = np.flatnonzero(np.diff(run_of, prepend=-1))
        run_key, run_first = by_key[edges], by_time[edges]
        run_last = by_time[np.append(edges[1:], len(order)) - 1]
        # Rows count in order of arrival, so that sorting does not change ties.
        slots = np.empty(len(order), np.int64)
        slots[order] = run_of
        partial = self.grouping.table(False)
        partial.reserve(runs)
        partial.count = runs
        partial.update(slots, rows)
        run_number = self.arrived + np.minimum.reduceat(order, edges)
        self.arrived += len(order)
        target = self._join(run_key, run_first, run_last, run_number, partial)
        self._least = None
        return target[slots]

    def _numbered(self, rows: ComputedRows) -> Int64s:
        """The number of each row's key."""
        if self.grouping.width:
            at = self.grouping.key_columns
            keys = self.keys.find([rows.columns[p] for p in at], [rows.valid[p] for p in at])
            count = self.keys.count
        else:
            keys, count = np.zeros(len(rows.ts), np.int64), 1
        if len(self.head) < count:
            self.head = np.append(self.head, np.full(2 * count - len(self.head), -1, np.int64))
        return keys

    def _join(self, run_key: Int64s, run_first: Int64s, run_last: Int64s, run_number: Int64s, partial: Table) -> Int64s:
        """Merge the runs of a batch with the open sessions; each run's session."""
        there = self._of_keys(run_key)
        there = there[np.argsort(self.number[there])]
        key = np.concatenate((self.key[there], run_key))
        first = np.concatenate((self.first[there], run_first))
        last = np.concatenate((self.last[there], run_last))
        order = np.lexsort((first, key))
        cluster_of = np.empty(len(order), np.int64)
        count = kernel.clusters(key[order], first[order], last[order], self.gap, cluster_of)
        cluster = np.empty(len(order), np.int64)
        cluster[order] = cluster_of
        olds, news = cluster[: len(there)], cluster[len(there) :]
        # The first of the open sessions keeps its slot; a cluster without any gets a new one.
        target = np.full(count, -1, np.int64)
        target[olds[::-1]] = there[::-1]
        fresh = np.flatnonzero(target < 0)
        target[fresh] = self._slots(len(fresh))
        self._merge_old(there, target[olds])
        self.states.merge_into(partial, target[news], slice(0, partial.count))
        begins = np.full(count, MAX_TIME, np.int64)
        ends = np.full(count, MIN_TIME, np.int64)
        np.minimum.at(begins, cluster, first)
        np.maximum.at(ends, cluster, last)
        numbers = np.full(count, MAX_TIME, np.int64)
        np.minimum.at(numbers, cluster, np.concatenate((self.number[there], run_number)))
        self.first[target], self.last[target], self.number[target] = begins, ends, numbers
        edges = np.flatnonzero(np.diff(cluster_of, prepend=-1))
        keys = key[order][edges]
        self.key[target] = keys
        kernel.link(target[fresh], keys[fresh], self.head, self.following)
        return target[news]

    def _of_keys(self, run_key: Int64s) -> Int64s:
        """The sessions of these keys."""
        keys = np.unique(run_key)
        sessions = np.empty(len(keys) + 8, np.int64)
        count = kernel.chained(keys, self.head, self.following, sessions)
        if count > len(sessions):
            sessions = np.empty(count, np.int64)
            kernel.chained(keys, self.head, self.following, sessions)
        return sessions[:count]

    def _merge_old(self, there: Int64s, target: Int64s) -> None:
        """Merge sessions that have become one into the slot that stays."""
        for old, new in zip(there[there != target].tolist(), target[there != target].tolist(), strict=True):
            self.states.merge_into(self.states, np.array([new]), slice(old, old + 1))
            self._free(np.array([old]))

    def _slots(self, count: int) -> Int64s:
        """Free slots, as many as needed."""
        while len(self.free) < count:
            size = max(16, 2 * len(self.key))
            more = np.arange(len(self.key), size)
            self.states.reserve(size)
            self.states.count = size
            self.key = np.append(self.key, np.full(len(more), -1, np.int64))
            self.first, self.last, self.number, self.following = (
                np.append(array, np.zeros(len(more), np.int64))
                for array in (self.first, self.last, self.number, self.following)
            )
            self.free[:0] = more[::-1].tolist()
        taken = self.free[len(self.free) - count :][::-1]
        del self.free[len(self.free) - count :]
        return np.array(taken, np.int64)

    def _free(self, slots: Int64s) -> None:
        kernel.unlink(slots, self.key[slots], self.head, self.following)
        self.key[slots] = -1
        self.states.clear(slots)
        self.free.extend(slots[::-1].tolist())

    # -- windows -------------------------------------------------------------------------------------------------------

    def next_end(self) -> int | None:
        if self.pending:
            return int(self.last[self.pending[0]]) + self.gap
        if self._least is None:
            live = self.last[self.key >= 0]
            self._least = int(live.min()) + self.gap if len(live) else MAX_TIME + 1
        return None if self._least > MAX_TIME else self._least

    def low_water(self) -> int:
        end = self.next_end()
        if self.reached == MAX_TIME and end is None:
            return MAX_TIME
        # A later tuple may start a session, which ends a gap later; an open session may already be complete.
        latest = after(self.reached, self.gap - 1)
        return latest if end is None else min(latest, saturated(end - 1))

    def demand(self, low_us: int) -> int:
        ends = self.last[self.key >= 0] + self.gap
        ends = ends[ends <= low_us]
        return max(before(low_us, self.gap - 1), int(ends.max()) if len(ends) else MIN_TIME)

    def flush(self, limit: int) -> tuple[Batch | None, int]:
        if limit <= 0 or not Windows.due(self):
            return None, 0
        self._close()
        slots = np.array(self.pending[:limit], np.int64)
        del self.pending[: len(slots)]
        return self._give(slots), len(slots)

    def _give(self, slots: Int64s) -> Batch | None:
        """The rows of closed sessions, which are dropped."""
        shown = slots if self.since is None else slots[self.first[slots] >= self.since]
        rows = None
        if len(shown):
            end = self.last[shown] + self.gap
            keys = self.keys.decode_at(self.key[shown]) if self.grouping.width else []
            rows = self.built(self.states, shown, keys, np.minimum(end - 1, HORIZON_US), self.first[shown], end)
        self._free(slots)
        self._least = None
        self._tidy()
        return rows if rows is not None and len(rows) else None

    def _close(self) -> None:
        """Find the sessions that are over, if none is pending."""
        if not self.pending:
            closed = np.flatnonzero((self.key >= 0) & (self.last <= self.reached - self.gap))
            self.pending = closed[np.lexsort((self.number[closed], self.first[closed], self.last[closed]))].tolist()

    def _tidy(self) -> None:
        """Drop keys without sessions once they are the majority, and all keys if no session is left."""
        live = len(self.key) - len(self.free)
        if not self.grouping.width or self.keys.count < MANY_KEYS or 2 * live > self.keys.count:
            return
        slots = np.flatnonzero(self.key >= 0)
        columns = self.keys.decode_at(self.key[slots])
        self._forget_keys()
        if not len(slots):
            return
        self.key[slots] = self.keys.find([values for values, _ in columns], [mask for _, mask in columns])
        self.head = np.full(2 * self.keys.count, -1, np.int64)
        kernel.link(slots, self.key[slots], self.head, self.following)

    def open_windows(self, most: int) -> OpenWindows:
        slots = np.flatnonzero((self.key >= 0) & (self.last > self.reached - self.gap))
        first = slots[np.lexsort((self.first[slots], self.last[slots]))[:most]]
        spans = zip(self.first[first].tolist(), (self.last[first] + self.gap).tolist(), strict=True)
        end = self.next_end()
        assert isinstance(self.spec.window, SessionWindow)
        closed_us = self.reached if end is None else min(self.reached, end - 1)
        return OpenWindows(self.spec.window, len(slots), list(spans), closed_us)

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def tuples(self) -> int:
        return len(self.key) - len(self.free)

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.states.nbytes + 5 * self.key.nbytes + self.head.nbytes)

    def save(self) -> Any:
        number = np.zeros(len(self.key), np.int64)
        number[self._slots_by_arrival()] = np.arange(len(self.key) - len(self.free))
        arrays = [array.copy() for array in (self.key, self.first, self.last, number, self.following, self.head)]
        return [self.reached, self.since, arrays, self.free, self.pending, self.keys.save(), self.states.save()]

    def essence(self) -> Any:
        """The sessions by the arrival of their first rows, with their keys' values."""
        slots = self._slots_by_arrival()
        keys = listed(self.keys.decode_at(self.key[slots])) if self.grouping.width else []
        since = self.since
        if since is not None and self.reached >= since and (self.first[slots] >= since).all():
            since = None  # no session is left out any more
        pending = self.number[np.array(self.pending, np.int64)]
        ranks = np.searchsorted(self.number[slots], pending)
        bounds = [self.first[slots], self.last[slots]]
        return [self.reached, since, keys, bounds, ranks, self.states.essence(slots)]

    def _slots_by_arrival(self) -> Int64s:
        slots = np.flatnonzero(self.key >= 0)
        return slots[np.argsort(self.number[slots])]

    def restore(self, data: Any) -> None:
        self.reached, self.since, arrays, self.free, self.pending, keys, states = data
        self.key, self.first, self.last, self.number, self.following, self.head = (array.copy() for array in arrays)
        self.arrived = len(self.key) - len(self.free)
        self.keys.restore(keys)
        self.states.restore(states)
        self._least = None


def numbered(state: list[Any]) -> list[Any]:
    """The state of sessions of version 1, which emitted sessions with equal bounds in the order of their slots."""
    reached, since, (key, *bounds, following, head), *rest = state
    number = np.where(key >= 0, np.cumsum(key >= 0) - 1, 0)
    return [reached, since, [key, *bounds, number, following, head], *rest]
