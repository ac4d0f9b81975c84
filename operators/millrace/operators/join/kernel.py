"""Finding the stored tuples that match new ones.

A segment of a store keeps its tuples in order of arrival; a tuple's slot is its place there. `table` is a hash over
(key, bucket of time), where the bucket of a time is `time >> shift`: so a probe looks only at the buckets that its
interval touches, however many tuples of its key lie outside it. An entry is 1 + the slot of the newest tuple with that
place, or 0, and `links` leads from each tuple to the next one of its place, from the newest back to the oldest.

That most keys are not there is seen in `sieve`, bytes in which a tuple sets the bit of its hash, in two of them. A
segment has a sieve for itself, with eight hashes to a byte, or a large one together with seven others. There each
segment has one bit of every byte, so that one look into memory answers for all eight. A 64-bit key stands for the whole
key; whether that is exact is the caller's business.
"""

from typing import Any, Optional

import cython

# An odd number with its bits well mixed, as a C variable: a literal of this length would be a Python object.
MULTIPLIER = cython.declare(cython.ulonglong, 0x2545F4914F6CDD1D)

# Instead of a slot: there is none, or the row's interval touches several buckets of time.
NONE = cython.declare(cython.int, -1)
SEVERAL = cython.declare(cython.int, -2)
# Instead of a bit of a sieve's bytes: all of them.
ALL = cython.declare(cython.int, -1)


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
def bit_of(hashed: cython.ulonglong, bit: cython.int) -> cython.int:
    """The bit of a sieve's byte that stands for a hash, if the segment has this one or ALL."""
    return (hashed >> 61) if bit == ALL else bit


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def other(at: cython.Py_ssize_t, hashed: cython.ulonglong) -> cython.Py_ssize_t:
    """The second byte of a hash in a sieve: among the 64 that the processor fetches with the first."""
    return at ^ (((hashed >> 55) & 62) | 1)


def sift(
    keys: cython.const[cython.longlong][:],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    sieve: cython.const[cython.uchar][::1],
    hints: cython.uchar[::1],
) -> None:
    """Put what a sieve of several segments has of the keys from `start` to `stop` into `hints`: a bit per segment."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    hashed: cython.ulonglong
    mask: cython.Py_ssize_t = sieve.shape[0] - 1
    if not cython.compiled:
        keys, sieve, hints = memoryview(keys), memoryview(sieve), memoryview(hints)
    for i in range(start, stop):
        hashed = mix(mix(0, keys[i]), 0)
        at = hashed & mask
        hints[i] = sieve[at] & sieve[other(at, hashed) & mask]


@cython.cclass
class Finder:
    """The index of a segment, with the arrays of keys and times that it is over: whoever replaces one of them makes
    another finder.

    table, links   as above, and `shift` makes buckets of times
    sieve, bit     the sieve, and which bit is the segment's; with ALL it has the sieve for itself. All tuples of
                   segments that share one are in bucket 0
    """

    keys: cython.longlong[:]
    ts: cython.longlong[:]
    table: cython.int[::1]
    sieve: cython.uchar[::1]
    links: cython.int[::1]
    shift: cython.longlong
    bit: cython.int

    def __init__(
        self,
        keys: cython.longlong[:],
        ts: cython.longlong[:],
        table: cython.int[::1],
        sieve: cython.uchar[::1],
        links: cython.int[::1],
        shift: cython.longlong,
        bit: cython.int,
    ) -> None:
        if cython.compiled:
            self.keys, self.ts, self.table, self.sieve, self.links = keys, ts, table, sieve, links
        else:
            self.keys, self.ts, self.table = memoryview(keys), memoryview(ts), memoryview(table)
            self.sieve, self.links = memoryview(sieve), memoryview(links)
        self.shift, self.bit = shift, bit

    # -- storing -------------------------------------------------------------------------------------------------------

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def enter(self, slot: cython.Py_ssize_t) -> cython.void:
        """Put a tuple at the end of the chain of its place: each leads to the next, the newest to the oldest."""
        hashed: cython.ulonglong = mix(mix(0, self.keys[slot]), self.ts[slot] >> self.shift)
        at: cython.Py_ssize_t = hashed & (self.table.shape[0] - 1)
        newest: cython.Py_ssize_t = self.table[at] - 1
        if newest < 0:
            self.links[slot] = slot
        else:
            self.links[slot] = self.links[newest]
            self.links[newest] = slot
        self.table[at] = slot + 1
        at = hashed & (self.sieve.shape[0] - 1)
        self.sieve[at] |= 1 << bit_of(hashed, self.bit)
        at = other(at, hashed) & (self.sieve.shape[0] - 1)
        self.sieve[at] |= 1 << bit_of(hashed, self.bit)

    def put(self, slot: cython.Py_ssize_t, key: cython.longlong, time: cython.longlong) -> None:
        """Keep a tuple's key and time at its slot, and make it findable."""
        self.keys[slot] = key
        self.ts[slot] = time
        self.enter(slot)

    def link(
        self, unlinked: Optional[cython.const[cython.uchar][:]], start: cython.Py_ssize_t, stop: cython.Py_ssize_t
    ) -> None:
        """Make the tuples from slot `start` to `stop` findable, but for those marked in `unlinked` (None: none is)."""
        slot: cython.Py_ssize_t
        for slot in range(start, stop):
            if unlinked is None or not unlinked[slot]:
                self.enter(slot)

    # -- finding -------------------------------------------------------------------------------------------------------

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def may_have(self, hashed: cython.ulonglong) -> cython.int:
        """1 if a tuple may have this hash, else 0."""
        at: cython.Py_ssize_t = hashed & (self.sieve.shape[0] - 1)
        both: cython.int = self.sieve[at] & self.sieve[other(at, hashed) & (self.sieve.shape[0] - 1)]
        return (both >> bit_of(hashed, self.bit)) & 1

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def newest(self, hashed: cython.ulonglong) -> cython.Py_ssize_t:
        """The slot of the newest tuple in the place of a hash, or NONE."""
        return self.table[hashed & (self.table.shape[0] - 1)] - 1

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def chained(
        self,
        newest: cython.Py_ssize_t,
        bucket: cython.longlong,
        key: cython.longlong,
        begin: cython.longlong,
        end: cython.longlong,
        least: cython.Py_ssize_t,
        slots: cython.longlong[:],
        found: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Put the slots of a key's tuples in [begin, end] that are in a bucket into `slots`, from `found` on; how many
        it holds then, or -1 if there is no room for all. The chain ends at `newest`."""
        time: cython.longlong
        slot: cython.Py_ssize_t = self.links[newest]
        while True:
            time = self.ts[slot]
            # Other hashes may have the same place: each tuple is found in its own bucket.
            if self.keys[slot] == key and begin <= time <= end and time >> self.shift == bucket and slot >= least:
                if found == slots.shape[0]:
                    return -1
                slots[found] = slot
                found += 1
            if slot == newest:
                return found
            slot = self.links[slot]

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def in_buckets(
        self,
        key: cython.longlong,
        begin: cython.longlong,
        end: cython.longlong,
        least: cython.Py_ssize_t,
        slots: cython.longlong[:],
        found: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """The same in all buckets that the interval touches."""
        hashed: cython.ulonglong
        newest: cython.Py_ssize_t
        state: cython.ulonglong = mix(0, key)
        bucket: cython.longlong = begin >> self.shift
        while bucket <= end >> self.shift:
            hashed = mix(state, bucket)
            newest = self.newest(hashed) if self.may_have(hashed) else NONE
            if newest != NONE:
                found = self.chained(newest, bucket, key, begin, end, least, slots, found)
                if found < 0:
                    return -1
            bucket += 1
        return found

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
        return self.in_buckets(key, begin, end, 0, slots, found)

    def probe(
        self,
        keys: cython.const[cython.longlong][:],
        low: cython.const[cython.longlong][:],
        high: Optional[cython.const[cython.longlong][:]],
        below: cython.longlong,
        above: cython.longlong,
        start: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        first: cython.longlong,
        last: cython.longlong,
        least: cython.Py_ssize_t,
        hints: cython.const[cython.uchar][::1],
        work: cython.int[:, ::1],
        pairs: cython.longlong[:, :],
        count: cython.Py_ssize_t,
    ) -> tuple[int, int]:
        """Find the pairs of rows `start` to `stop` with tuples of the segment; returns the row before which it stopped
        because no more pairs fit, and how many pairs there are.

        A row matches the tuples of its key in [low - below, high + above]; `high` is None if it is `low`. The segment's
        times lie in [first, last], and slots under `least` do not count. pairs[0] gets rows, pairs[1] slots, from
        `count` on; a row's pairs are there whole or not at all, in order of arrival within a bucket of time. `hints`
        has what `sift` found, if the segment shares its sieve.

        As many rows as `work` has columns take each step together, so that the processor fetches memory for many of
        them at once: the sieve, the newest tuple of the place, the oldest, and its key.
        """
        i: cython.Py_ssize_t
        j: cython.Py_ssize_t
        pair: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        found: cython.Py_ssize_t
        part: cython.Py_ssize_t
        part_stop: cython.Py_ssize_t
        entered: cython.Py_ssize_t
        left: cython.Py_ssize_t
        begin: cython.longlong
        end: cython.longlong
        rows: cython.longlong[:]
        slots: cython.longlong[:]
        looking: cython.int[::1]
        newest: cython.int[::1]
        oldest: cython.int[::1]
        shift: cython.longlong = self.shift
        if not cython.compiled:
            keys, low, hints = memoryview(keys), memoryview(low), memoryview(hints)
        rows, slots = pairs[0], pairs[1]
        looking, newest, oldest = work[0], work[1], work[2]
        for part in range(start, stop, looking.shape[0]):
            part_stop = min(stop, part + looking.shape[0])
            entered = 0
            for i in range(part, part_stop):
                begin = max(low[i] - below, first)
                end = min((low[i] if high is None else high[i]) + above, last)
                looking[entered] = i
                if begin > end:
                    continue
                if self.bit != ALL:
                    entered += (hints[i] >> self.bit) & 1
                elif begin >> shift == end >> shift:
                    entered += self.may_have(mix(mix(0, keys[i]), begin >> shift))
                else:
                    entered += 1
            for j in range(entered):
                i = looking[j]
                begin = max(low[i] - below, first)
                end = min((low[i] if high is None else high[i]) + above, last)
                if begin >> shift == end >> shift:
                    newest[j] = self.newest(mix(mix(0, keys[i]), begin >> shift))
                else:
                    newest[j] = SEVERAL
            for j in range(entered):
                oldest[j] = self.links[newest[j]] if newest[j] >= 0 else newest[j]
            left = 0
            for j in range(entered):
                i, slot = looking[j], newest[j]
                looking[left], newest[left] = i, slot
                if slot < 0:
                    left += slot == SEVERAL
                elif oldest[j] != slot:
                    left += 1
                else:
                    begin = low[i] - below
                    end = (low[i] if high is None else high[i]) + above
                    left += (self.keys[slot] == keys[i]) & (self.ts[slot] >= begin) & (self.ts[slot] <= end)
            for j in range(left):
                i = looking[j]
                begin = max(low[i] - below, first)
                end = min((low[i] if high is None else high[i]) + above, last)
                if newest[j] == SEVERAL:
                    found = self.in_buckets(keys[i], begin, end, least, slots, count)
                else:
                    found = self.chained(newest[j], begin >> shift, keys[i], begin, end, least, slots, count)
                if found < 0:
                    return i, count
                for pair in range(count, found):
                    rows[pair] = i
                count = found
        return stop, count


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
