"""Finding the stored tuples that match new ones.

A segment of a store keeps its tuples in order of arrival; a tuple's slot is its place there. `table` is a hash over
(key, bucket of time), where the bucket of a time is `time >> shift`: so a probe looks only at the buckets that its
interval touches, however many tuples of its key lie outside it. An entry is 1 + the slot of the newest tuple with that
place, or 0, and `links` leads from each tuple to the next one of its place, from the newest back to the oldest. Each
place has a byte in `sieve` too, with a bit for the hash of each of its tuples: that most keys are not there is seen in
the bytes, which stay in the processor's caches. A 64-bit key stands for the whole key; whether that is exact is the
caller's business.
"""

from typing import Any, Optional

import cython

# An odd number with its bits well mixed, as a C variable: a literal of this length would be a Python object.
MULTIPLIER = cython.declare(cython.ulonglong, 0x2545F4914F6CDD1D)

# What a row of a probe knows of a segment: it has nothing for the row, or it may have.
NOTHING = cython.declare(cython.uchar, 0)
SOMETHING = cython.declare(cython.uchar, 1)


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
    table: cython.int[::1],
    sieve: cython.uchar[::1],
    links: cython.int[::1],
) -> cython.void:
    """Put a tuple at the end of the chain of its place: each leads to the next, the newest to the oldest."""
    hashed: cython.ulonglong = mix(state, bucket)
    at: cython.Py_ssize_t = hashed & (table.shape[0] - 1)
    newest: cython.Py_ssize_t = table[at] - 1
    if newest < 0:
        links[slot] = slot
    else:
        links[slot] = links[newest]
        links[newest] = slot
    table[at] = slot + 1
    sieve[at] |= 1 << (hashed >> 61)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def may_have(hashed: cython.ulonglong, sieve: cython.const[cython.uchar][::1]) -> cython.uchar:
    """SOMETHING if a tuple may have this hash, else NOTHING."""
    return (sieve[hashed & (sieve.shape[0] - 1)] >> (hashed >> 61)) & 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def chained(
    newest: cython.Py_ssize_t,
    bucket: cython.longlong,
    key: cython.longlong,
    begin: cython.longlong,
    end: cython.longlong,
    stored: cython.const[cython.longlong][::1],
    ts: cython.const[cython.longlong][::1],
    least: cython.Py_ssize_t,
    shift: cython.longlong,
    links: cython.const[cython.int][::1],
    slots: cython.longlong[:],
    found: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Put the slots of a key's tuples in [begin, end] that are in a bucket into `slots`, from `found` on; how many it
    holds then, or -1 if there is no room for all. The chain ends at `newest`."""
    time: cython.longlong
    slot: cython.Py_ssize_t = links[newest]
    room: cython.Py_ssize_t = slots.shape[0]
    while True:
        time = ts[slot]
        # Other hashes may have the same place: each tuple is found in its own bucket.
        if stored[slot] == key and begin <= time and time <= end and time >> shift == bucket and slot >= least:
            if found == room:
                return -1
            slots[found] = slot
            found += 1
        if slot == newest:
            return found
        slot = links[slot]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def in_buckets(
    key: cython.longlong,
    begin: cython.longlong,
    end: cython.longlong,
    stored: cython.const[cython.longlong][::1],
    ts: cython.const[cython.longlong][::1],
    least: cython.Py_ssize_t,
    shift: cython.longlong,
    table: cython.const[cython.int][::1],
    sieve: cython.const[cython.uchar][::1],
    links: cython.const[cython.int][::1],
    slots: cython.longlong[:],
    found: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """The same in all buckets that the interval touches."""
    hashed: cython.ulonglong
    newest: cython.Py_ssize_t
    state: cython.ulonglong = mix(0, key)
    bucket: cython.longlong = begin >> shift
    while bucket <= end >> shift:
        hashed = mix(state, bucket)
        if may_have(hashed, sieve) != NOTHING:
            newest = table[hashed & (table.shape[0] - 1)] - 1
            found = chained(newest, bucket, key, begin, end, stored, ts, least, shift, links, slots, found)
            if found < 0:
                return -1
        bucket += 1
    return found


def link(
    keys: cython.const[cython.longlong][:],
    ts: cython.const[cython.longlong][:],
    unlinked: Optional[cython.const[cython.uchar][:]],
    shift: cython.longlong,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    table: cython.int[::1],
    sieve: cython.uchar[::1],
    links: cython.int[::1],
) -> None:
    """Make the tuples from slot `start` to `stop` findable, but for those marked in `unlinked` (None: none is)."""
    slot: cython.Py_ssize_t
    if not cython.compiled:
        keys, ts = memoryview(keys), memoryview(ts)
        table, sieve, links = memoryview(table), memoryview(sieve), memoryview(links)
    for slot in range(start, stop):
        if unlinked is not None and unlinked[slot]:
            continue
        enter(mix(0, keys[slot]), ts[slot] >> shift, slot, table, sieve, links)


def probe(
    keys: cython.const[cython.longlong][:],
    low: cython.const[cython.longlong][:],
    high: Optional[cython.const[cython.longlong][:]],
    below: cython.longlong,
    above: cython.longlong,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    stored: cython.const[cython.longlong][::1],
    ts: cython.const[cython.longlong][::1],
    first: cython.longlong,
    last: cython.longlong,
    least: cython.Py_ssize_t,
    shift: cython.longlong,
    table: cython.const[cython.int][::1],
    sieve: cython.const[cython.uchar][::1],
    links: cython.const[cython.int][::1],
    hints: cython.uchar[::1],
    pairs: cython.longlong[:, :],
    count: cython.Py_ssize_t,
) -> tuple[int, int]:
    """Find the pairs of rows `start` to `stop` with tuples of a segment; returns the row before which it stopped
    because no more pairs fit, and how many pairs there are.

    A row matches the tuples of its key in [low - below, high + above]; `high` is None if it is `low`. The segment's
    times lie in [first, last], and slots under `least` do not count. pairs[0] gets rows, pairs[1] slots, from `count`
    on; a row's pairs are there whole or not at all, in order of arrival within a bucket of time. As many rows as
    `hints` has room for look into the sieve first, so that the processor fetches memory for many of them at once.
    """
    i: cython.Py_ssize_t
    pair: cython.Py_ssize_t
    found: cython.Py_ssize_t
    part: cython.Py_ssize_t
    part_stop: cython.Py_ssize_t
    begin: cython.longlong
    end: cython.longlong
    rows: cython.longlong[:]
    slots: cython.longlong[:]
    if not cython.compiled:
        keys, low = memoryview(keys), memoryview(low)
        stored, ts = memoryview(stored), memoryview(ts)
        table, sieve = memoryview(table), memoryview(sieve)
        links, hints = memoryview(links), memoryview(hints)
    rows = pairs[0]
    slots = pairs[1]
    for part in range(start, stop, hints.shape[0]):
        part_stop = min(stop, part + hints.shape[0])
        for i in range(part, part_stop):
            begin = max(low[i] - below, first)
            end = min((low[i] if high is None else high[i]) + above, last)
            if begin > end:
                hints[i - part] = NOTHING
            elif begin >> shift == end >> shift:
                hints[i - part] = may_have(mix(mix(0, keys[i]), begin >> shift), sieve)
            else:
                hints[i - part] = SOMETHING
        for i in range(part, part_stop):
            if hints[i - part] == NOTHING:
                continue
            begin = max(low[i] - below, first)
            end = min((low[i] if high is None else high[i]) + above, last)
            found = in_buckets(keys[i], begin, end, stored, ts, least, shift, table, sieve, links, slots, count)
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

    keys: cython.longlong[::1]
    ts: cython.longlong[::1]
    table: cython.int[::1]
    sieve: cython.uchar[::1]
    links: cython.int[::1]
    shift: cython.longlong

    def __init__(
        self,
        keys: cython.longlong[::1],
        ts: cython.longlong[::1],
        table: cython.int[::1],
        sieve: cython.uchar[::1],
        links: cython.int[::1],
        shift: cython.longlong,
    ) -> None:
        self.keys, self.ts, self.table, self.sieve, self.links = keys, ts, table, sieve, links
        self.shift = shift

    def put(self, slot: cython.Py_ssize_t, key: cython.longlong, time: cython.longlong) -> None:
        """Keep a tuple's key and time at its slot, and make it findable."""
        self.keys[slot] = key
        self.ts[slot] = time
        enter(mix(0, key), time >> self.shift, slot, self.table, self.sieve, self.links)

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
        return in_buckets(
            key, begin, end, self.keys, self.ts, 0, self.shift, self.table, self.sieve, self.links, slots, found
        )


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
