"""The loops of the aggregates: each row's value goes into the state of the row's group.

`slots` says the group of each row. Nulls and filtered rows have been taken out before. Several rows may be of one
group, and take effect in their order; so the same loops merge one set of groups into another.
"""

import cython


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def wrap(value: cython.longlong) -> cython.longlong:
    """The int64 to which C's arithmetic wraps `value`; Python's integers do not wrap."""
    if cython.compiled:
        return value
    return ((value + 2**63) & (2**64 - 1)) - 2**63


def add_one(slots: cython.const[cython.longlong][:], counts: cython.longlong[:]) -> None:
    """counts[slot] += 1"""
    i: cython.Py_ssize_t
    if not cython.compiled:
        slots, counts = memoryview(slots), memoryview(counts)
    with cython.nogil:
        for i in range(slots.shape[0]):
            counts[slots[i]] += 1


def add(
    slots: cython.const[cython.longlong][:], values: cython.const[cython.longlong][:], totals: cython.longlong[:]
) -> None:
    """totals[slot] += value, for values that cannot overflow: counts."""
    i: cython.Py_ssize_t
    if not cython.compiled:
        slots, values, totals = memoryview(slots), memoryview(values), memoryview(totals)
    with cython.nogil:
        for i in range(slots.shape[0]):
            totals[slots[i]] += values[i]


def raise_to(
    slots: cython.const[cython.longlong][:], values: cython.const[cython.longlong][:], highest: cython.longlong[:]
) -> None:
    """highest[slot] = max(highest[slot], value)"""
    i: cython.Py_ssize_t
    if not cython.compiled:
        slots, values, highest = memoryview(slots), memoryview(values), memoryview(highest)
    with cython.nogil:
        for i in range(slots.shape[0]):
            if values[i] > highest[slots[i]]:
                highest[slots[i]] = values[i]


def add_wide(
    slots: cython.const[cython.longlong][:],
    values: cython.const[cython.longlong][:],
    low: cython.longlong[:],
    high: cython.longlong[:],
) -> None:
    """Exact sums: low + high * 2**64. `low` wraps, and `high` counts how often, upwards and downwards.

    So a sum that leaves 64 bits and comes back is right, whatever the order of the values.
    """
    i: cython.Py_ssize_t
    slot: cython.longlong
    x: cython.longlong
    y: cython.longlong
    total: cython.longlong
    if not cython.compiled:
        slots, values, low, high = memoryview(slots), memoryview(values), memoryview(low), memoryview(high)
    with cython.nogil:
        for i in range(slots.shape[0]):
            slot = slots[i]
            x = low[slot]
            y = values[i]
            total = wrap(x + y)
            low[slot] = total
            if ((x ^ total) & (y ^ total)) < 0:
                high[slot] += 1 if y > 0 else -1


def count_and_add(
    slots: cython.const[cython.longlong][:],
    values: cython.const[cython.longlong][:],
    low: cython.longlong[:],
    high: cython.longlong[:],
    counts: cython.longlong[:],
) -> None:
    """`add_wide` and `add_one`, which together look at a group once."""
    i: cython.Py_ssize_t
    slot: cython.longlong
    x: cython.longlong
    y: cython.longlong
    total: cython.longlong
    if not cython.compiled:
        slots, values, low = memoryview(slots), memoryview(values), memoryview(low)
        high, counts = memoryview(high), memoryview(counts)
    for i in range(slots.shape[0]):
        slot = slots[i]
        x = low[slot]
        y = values[i]
        total = wrap(x + y)
        low[slot] = total
        counts[slot] += 1
        if ((x ^ total) & (y ^ total)) < 0:
            high[slot] += 1 if y > 0 else -1


def add_precise(
    slots: cython.const[cython.longlong][:], values: cython.const[cython.double][:], sums: cython.double[:]
) -> None:
    """Sums of doubles, each with its rounding error (Neumaier): sums[2 * slot] and sums[2 * slot + 1].

    Disorder then changes hardly more than the last digit, and a cancellation does not uncover the rounding.
    """
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    x: cython.double
    y: cython.double
    total: cython.double
    if not cython.compiled:
        slots, values, sums = memoryview(slots), memoryview(values), memoryview(sums)
    with cython.nogil:
        for i in range(slots.shape[0]):
            at = 2 * slots[i]
            x = sums[at]
            y = values[i]
            total = x + y
            if abs(x) >= abs(y):
                sums[at + 1] += (x - total) + y
            else:
                sums[at + 1] += (y - total) + x
            sums[at] = total


def add_moments(
    slots: cython.const[cython.longlong][:], values: cython.const[cython.double][:], moments: cython.double[:]
) -> None:
    """Count, mean and sum of squared distances from the mean (Welford), three numbers for each group."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    delta: cython.double
    if not cython.compiled:
        slots, values, moments = memoryview(slots), memoryview(values), memoryview(moments)
    with cython.nogil:
        for i in range(slots.shape[0]):
            at = 3 * slots[i]
            moments[at] += 1
            delta = values[i] - moments[at + 1]
            moments[at + 1] += delta / moments[at]
            moments[at + 2] += delta * (values[i] - moments[at + 1])


def merge_moments(
    slots: cython.const[cython.longlong][:], others: cython.const[cython.double][:], moments: cython.double[:]
) -> None:
    """Merge groups' moments (Chan): others[3 * i] and the next two go into the group slots[i]."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    count: cython.double
    delta: cython.double
    if not cython.compiled:
        slots, others, moments = memoryview(slots), memoryview(others), memoryview(moments)
    for i in range(slots.shape[0]):
        if others[3 * i] == 0:
            continue
        at = 3 * slots[i]
        count = moments[at] + others[3 * i]
        delta = others[3 * i + 1] - moments[at + 1]
        moments[at + 2] += others[3 * i + 2] + delta * delta * (moments[at] * others[3 * i] / count)
        moments[at + 1] += delta * (others[3 * i] / count)
        moments[at] = count


def least(
    slots: cython.const[cython.longlong][:],
    values: cython.const[cython.longlong][:],
    best: cython.longlong[:],
    seen: cython.uchar[:],
) -> None:
    """best[slot] = min(best[slot], value); the greatest is the least of the values with all bits turned over."""
    i: cython.Py_ssize_t
    slot: cython.longlong
    if not cython.compiled:
        slots, values, best, seen = memoryview(slots), memoryview(values), memoryview(best), memoryview(seen)
    with cython.nogil:
        for i in range(slots.shape[0]):
            slot = slots[i]
            if not seen[slot]:
                seen[slot] = 1
                best[slot] = values[i]
            elif values[i] < best[slot]:
                best[slot] = values[i]


def choose(
    slots: cython.const[cython.longlong][:],
    ranks: cython.const[cython.longlong][:],
    times: cython.const[cython.longlong][:],
    newer: cython.bint,
    best_rank: cython.longlong[:],
    best_time: cython.longlong[:],
    seen: cython.uchar[:],
    won: cython.uchar[:],
) -> None:
    """Keep the row with the least rank, then the least time; of equal ones the older, or the newer.

    won[i] says whether row i was the best of its group so far: the last one of a group that won is the one to keep.
    """
    i: cython.Py_ssize_t
    slot: cython.longlong
    tie: cython.bint
    if not cython.compiled:
        slots, ranks, times = memoryview(slots), memoryview(ranks), memoryview(times)
        best_rank, best_time = memoryview(best_rank), memoryview(best_time)
        seen, won = memoryview(seen), memoryview(won)
    for i in range(slots.shape[0]):
        slot = slots[i]
        if seen[slot]:
            if ranks[i] > best_rank[slot]:
                continue
            tie = ranks[i] == best_rank[slot]
            if tie and (times[i] > best_time[slot] or (times[i] == best_time[slot] and not newer)):
                continue
        seen[slot] = 1
        best_rank[slot] = ranks[i]
        best_time[slot] = times[i]
        won[i] = 1
