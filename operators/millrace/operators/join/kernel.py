"""Finding the stored tuples that match new ones.

A segment of a store keeps its tuples in order of arrival; a tuple's slot is its place there. `table` is a hash over
(key, bucket of time), where the bucket of a time is `time >> shift`: so a probe looks only at the buckets that its
interval touches, however many tuples of its key lie outside it. An entry is 1 + the slot of the newest tuple with that
hash, or 0, and `links` leads from each tuple to the next one of its hash, from the newest back to the oldest. A 64-bit
key stands for the whole key; whether that is exact is the caller's business.
"""

from typing import Any, Optional

import cython

# An odd number with its bits well mixed, as a C variable: a literal of this length would be a Python object.
MULTIPLIER = cython.declare(cython.ulonglong, 0x2545F4914F6CDD1D)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def mix(state: cython.ulonglong, value: cython.longlong) -> cython.ulonglong:
    """Fold a value into a hash: multiply, and let the high bits reach the low ones."""
    if cython.compiled:
        state = (state ^ cython.cast(cython.ulonglong, value)) * MULTIPLIER
    else:
        state = ((state ^ (value & (2**64 - 1))) * MULTIPLIER) & (2**64 - 1)
    return state ^ (state >> 32)


def fold(states: cython.longlong[:], columns: list[Any]) -> None:
    """Fold columns of int64 into the hashes of their rows."""
    i: cython.Py_ssize_t
    state: cython.ulonglong
    values: cython.const[cython.longlong][:]
    if not cython.compiled:
        states = memoryview(states)
    for column in columns:
        values = column if cython.compiled else memoryview(column)
        for i in range(states.shape[0]):
            if cython.compiled:
                state = cython.cast(cython.ulonglong, states[i])
                states[i] = cython.cast(cython.longlong, mix(state, values[i]))
            else:
                state = mix(states[i] & (2**64 - 1), values[i])
                states[i] = state - (2**64 if state >= 2**63 else 0)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def enter(
    state: cython.ulonglong,
    bucket: cython.longlong,
    slot: cython.Py_ssize_t,
    table: cython.int[:],
    links: cython.int[:],
) -> cython.void:
    """Put a tuple at the end of the chain of its hash: each leads to the next, the newest to the oldest."""
    at: cython.Py_ssize_t = mix(state, bucket) & (table.shape[0] - 1)
    newest: cython.Py_ssize_t = table[at] - 1
    if newest < 0:
        links[slot] = slot
    else:
        links[slot] = links[newest]
        links[newest] = slot
    table[at] = slot + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def chained(
    key: cython.longlong,
    begin: cython.longlong,
    end: cython.longlong,
    stored: cython.const[cython.longlong][:],
    ts: cython.const[cython.longlong][:],
    least: cython.Py_ssize_t,
    shift: cython.longlong,
    table: cython.const[cython.int][:],
    links: cython.const[cython.int][:],
    slots: cython.longlong[:],
    found: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Put the slots of a key's tuples in [begin, end] into `slots`, from `found` on; how many it holds then, or -1 if
    there is no room for all."""
    slot: cython.Py_ssize_t
    newest: cython.Py_ssize_t
    time: cython.longlong
    mask: cython.Py_ssize_t = table.shape[0] - 1
    room: cython.Py_ssize_t = slots.shape[0]
    state: cython.ulonglong = mix(0, key)
    bucket: cython.longlong = begin >> shift
    final: cython.longlong = end >> shift
    while bucket <= final:
        newest = table[mix(state, bucket) & mask] - 1
        if newest >= 0:
            slot = links[newest]
            while True:
                time = ts[slot]
                # Other buckets may have the same hash: each tuple is found in its own.
                if stored[slot] == key and begin <= time and time <= end and time >> shift == bucket and slot >= least:
                    if found == room:
                        return -1
                    slots[found] = slot
                    found += 1
                if slot == newest:
                    break
                slot = links[slot]
        bucket += 1
    return found


def link(
    keys: cython.const[cython.longlong][:],
    ts: cython.const[cython.longlong][:],
    unlinked: Optional[cython.const[cython.uchar][:]],
    shift: cython.longlong,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    table: cython.int[:],
    links: cython.int[:],
) -> None:
    """Make the tuples from slot `start` to `stop` findable, but for those marked in `unlinked` (None: none is)."""
    slot: cython.Py_ssize_t
    if not cython.compiled:
        keys, ts = memoryview(keys), memoryview(ts)
        table, links = memoryview(table), memoryview(links)
    for slot in range(start, stop):
        if unlinked is not None and unlinked[slot]:
            continue
        enter(mix(0, keys[slot]), ts[slot] >> shift, slot, table, links)


def probe(
    keys: cython.const[cython.longlong][:],
    low: cython.const[cython.longlong][:],
    high: Optional[cython.const[cython.longlong][:]],
    below: cython.longlong,
    above: cython.longlong,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    stored: cython.const[cython.longlong][:],
    ts: cython.const[cython.longlong][:],
    first: cython.longlong,
    last: cython.longlong,
    least: cython.Py_ssize_t,
    shift: cython.longlong,
    table: cython.const[cython.int][:],
    links: cython.const[cython.int][:],
    pairs: cython.longlong[:, :],
    count: cython.Py_ssize_t,
) -> tuple[int, int]:
    """Find the pairs of rows `start` to `stop` with tuples of a segment; returns the row before which it stopped
    because no more pairs fit, and how many pairs there are.

    A row matches the tuples of its key in [low - below, high + above]; `high` is None if it is `low`. The segment's
    times lie in [first, last], and slots under `least` do not count. pairs[0] gets rows, pairs[1] slots, from `count`
    on; a row's pairs are there whole or not at all, in order of arrival within a bucket of time.
    """
    i: cython.Py_ssize_t
    pair: cython.Py_ssize_t
    found: cython.Py_ssize_t
    begin: cython.longlong
    end: cython.longlong
    rows: cython.longlong[:]
    slots: cython.longlong[:]
    if not cython.compiled:
        keys, low = memoryview(keys), memoryview(low)
        stored, ts = memoryview(stored), memoryview(ts)
        table, links = memoryview(table), memoryview(links)
    rows = pairs[0]
    slots = pairs[1]
    for i in range(start, stop):
        begin = low[i] - below
        end = (low[i] if high is None else high[i]) + above
        if begin < first:
            begin = first
        if end > last:
            end = last
        if begin > end:
            continue
        found = chained(keys[i], begin, end, stored, ts, least, shift, table, links, slots, count)
        if found < 0:
            return i, count
        for pair in range(count, found):
            rows[pair] = i
        count = found
    return stop, count


@cython.cclass
class Finder:
    """The same for one row at a time: it has the arrays of a segment and its index at hand.

    They are the ones that `link` and `probe` are given; whoever replaces them makes another finder.
    """

    keys: cython.longlong[:]
    ts: cython.longlong[:]
    table: cython.int[:]
    links: cython.int[:]
    shift: cython.longlong

    def __init__(
        self,
        keys: cython.longlong[:],
        ts: cython.longlong[:],
        table: cython.int[:],
        links: cython.int[:],
        shift: cython.longlong,
    ) -> None:
        self.keys, self.ts, self.table, self.links = keys, ts, table, links
        self.shift = shift

    def put(self, slot: cython.Py_ssize_t, key: cython.longlong, time: cython.longlong) -> None:
        """Keep a tuple's key and time at its slot, and make it findable."""
        self.keys[slot] = key
        self.ts[slot] = time
        enter(mix(0, key), time >> self.shift, slot, self.table, self.links)

    def find(
        self,
        key: cython.longlong,
        begin: cython.longlong,
        end: cython.longlong,
        first: cython.longlong,
        last: cython.longlong,
        slots: cython.longlong[:],
        found: cython.Py_ssize_t,
    ) -> int:
        """Put the slots of a key's tuples in [begin, end] into `slots`, from `found` on; how many it holds then, or -1
        if there is no room for all. The segment's times lie in [first, last]."""
        if begin < first:
            begin = first
        if end > last:
            end = last
        if begin > end:
            return found
        return chained(key, begin, end, self.keys, self.ts, 0, self.shift, self.table, self.links, slots, found)


def fold_row(columns: tuple[Any, ...], key: tuple[int, ...]) -> int:
    """Fold the first row of some of these columns, which are int64, into its hash, as `fold` does."""
    state: cython.ulonglong = 0
    values: cython.const[cython.longlong][:]
    for at in key:
        values = columns[at] if cython.compiled else memoryview(columns[at])
        state = mix(state, values[0])
    if cython.compiled:
        return cython.cast(cython.longlong, state)
    return state - (2**64 if state >= 2**63 else 0)
