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
    at: cython.Py_ssize_t
    newest: cython.int
    mask: cython.Py_ssize_t = table.shape[0] - 1
    if not cython.compiled:
        keys, ts = memoryview(keys), memoryview(ts)
        table, links = memoryview(table), memoryview(links)
    for slot in range(start, stop):
        if unlinked is not None and unlinked[slot]:
            continue
        at = mix(mix(0, keys[slot]), ts[slot] >> shift) & mask
        newest = table[at] - 1
        if newest < 0:
            links[slot] = slot
        else:
            links[slot] = links[newest]
            links[newest] = slot
        table[at] = slot + 1


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
    slot: cython.Py_ssize_t
    newest: cython.Py_ssize_t
    found: cython.Py_ssize_t
    mask: cython.Py_ssize_t = table.shape[0] - 1
    room: cython.Py_ssize_t = pairs.shape[1]
    key: cython.longlong
    begin: cython.longlong
    end: cython.longlong
    bucket: cython.longlong
    final: cython.longlong
    time: cython.longlong
    state: cython.ulonglong
    if not cython.compiled:
        keys, low = memoryview(keys), memoryview(low)
        stored, ts, pairs = memoryview(stored), memoryview(ts), memoryview(pairs)
        table, links = memoryview(table), memoryview(links)
    for i in range(start, stop):
        begin = low[i] - below
        end = (low[i] if high is None else high[i]) + above
        if begin < first:
            begin = first
        if end > last:
            end = last
        if begin > end:
            continue
        key = keys[i]
        state = mix(0, key)
        found = count
        bucket = begin >> shift
        final = end >> shift
        while bucket <= final:
            newest = table[mix(state, bucket) & mask] - 1
            if newest >= 0:
                slot = links[newest]
                while True:
                    time = ts[slot]
                    # Other buckets may have the same hash: each tuple is found in its own.
                    if (
                        stored[slot] == key
                        and begin <= time
                        and time <= end
                        and time >> shift == bucket
                        and slot >= least
                    ):
                        if found == room:
                            return i, count
                        pairs[0, found] = i
                        pairs[1, found] = slot
                        found += 1
                    if slot == newest:
                        break
                    slot = links[slot]
            bucket += 1
        count = found
    return stop, count
