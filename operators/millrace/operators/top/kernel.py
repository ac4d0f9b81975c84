"""The places of rows in their order, event by event: which place each row changes, and when.

Cells number the rows of a batch and those before it in their order, partition by partition; `owner[cell]` is the
partition. At event i the row in the cell leaves[i] goes and the row in the cell enters[i] comes (-1: none does). Of a
partition the first `most` cells that are `present` have the places, least first: places[partition * width + at] is a
cell or -1, where `width` is at most `most`, and `used[partition]` counts them.
"""

import cython


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def lower_bound(
    places: cython.longlong[:], base: cython.Py_ssize_t, used: cython.Py_ssize_t, cell: cython.longlong
) -> cython.Py_ssize_t:
    """How many places have rows before this cell."""
    low: cython.Py_ssize_t = 0
    high: cython.Py_ssize_t = used
    middle: cython.Py_ssize_t
    while low < high:
        middle = (low + high) >> 1
        if places[base + middle] < cell:
            low = middle + 1
        else:
            high = middle
    return low


def survey(
    leaves: cython.const[cython.longlong][:],
    enters: cython.const[cython.longlong][:],
    owner: cython.const[cython.longlong][:],
    bounds: cython.const[cython.longlong][:],
    most: cython.longlong,
    sizes: cython.longlong[:],
    largest: cython.longlong[:],
    reach: cython.longlong[:],
    short: cython.uchar[:],
) -> None:
    """How many rows of each partition are present at most; whether fewer than `most` ever reach its bound.

    `bounds` holds the last cell that has a place, of a partition with rows that are in no cell; -1 if all its rows are
    in cells. `sizes` counts the rows present, `reach` those that stand at the bound or before it.
    """
    i: cython.Py_ssize_t
    left: cython.longlong
    joined: cython.longlong
    if not cython.compiled:
        leaves, enters, owner, bounds = memoryview(leaves), memoryview(enters), memoryview(owner), memoryview(bounds)
        sizes, largest = memoryview(sizes), memoryview(largest)
        reach, short = memoryview(reach), memoryview(short)
    for i in range(leaves.shape[0]):
        left = -1
        if leaves[i] >= 0:
            left = owner[leaves[i]]
            sizes[left] -= 1
            if leaves[i] <= bounds[left]:
                reach[left] -= 1
        if enters[i] >= 0:
            joined = owner[enters[i]]
            sizes[joined] += 1
            if sizes[joined] > largest[joined]:
                largest[joined] = sizes[joined]
            if enters[i] <= bounds[joined]:
                reach[joined] += 1
        if left >= 0 and bounds[left] >= 0 and reach[left] < most:
            short[left] = 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def note(
    first: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    base: cython.Py_ssize_t,
    ts: cython.longlong,
    cause: cython.longlong,
    every: cython.bint,
    places: cython.const[cython.longlong][:],
    times: cython.longlong[:],
    causes: cython.longlong[:],
    changed: cython.longlong[:],
    cells: cython.longlong[:],
    changed_at: cython.longlong[:],
    changed_by: cython.longlong[:],
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Raise the times of places from `first` to `stop`, and list all changes if `every`; how many are listed."""
    at: cython.Py_ssize_t
    for at in range(base + first, base + stop):
        if ts > times[at]:
            times[at] = ts
        causes[at] = cause
        if every:
            changed[count] = at
            cells[count] = places[at]
            changed_at[count] = times[at]
            changed_by[count] = cause
            count += 1
    return count


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def take_out(
    cell: cython.longlong, base: cython.Py_ssize_t, used: cython.Py_ssize_t, places: cython.longlong[:]
) -> cython.Py_ssize_t:
    """Close the gap that a row leaves among the places; which place it had, or `used` if none."""
    at: cython.Py_ssize_t = lower_bound(places, base, used, cell)
    j: cython.Py_ssize_t
    if at == used or places[base + at] != cell:
        return used
    for j in range(base + at, base + used - 1):
        places[j] = places[j + 1]
    places[base + used - 1] = -1
    return at


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_in(
    cell: cython.longlong,
    base: cython.Py_ssize_t,
    used: cython.Py_ssize_t,
    most: cython.Py_ssize_t,
    places: cython.longlong[:],
) -> cython.Py_ssize_t:
    """Insert a row at its place, and shift the following ones; its place, or `most` if none. Of `most` rows the last
    loses its place."""
    at: cython.Py_ssize_t = lower_bound(places, base, used, cell)
    j: cython.Py_ssize_t
    if at == most:
        return most
    j = used if used < most else most - 1
    while j > at:
        places[base + j] = places[base + j - 1]
        j -= 1
    places[base + at] = cell
    return at


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def next_present(
    base: cython.Py_ssize_t,
    used: cython.Py_ssize_t,
    first: cython.longlong,
    places: cython.const[cython.longlong][:],
    present: cython.const[cython.uchar][:],
) -> cython.longlong:
    """The first row after the placed ones; there is one."""
    cell: cython.longlong = first if used == 0 else places[base + used - 1] + 1
    while not present[cell]:
        cell += 1
    return cell


def give_places(
    begin: cython.Py_ssize_t,
    leaves: cython.const[cython.longlong][:],
    enters: cython.const[cython.longlong][:],
    ts: cython.const[cython.longlong][:],
    owner: cython.const[cython.longlong][:],
    begins: cython.const[cython.longlong][:],
    most: cython.Py_ssize_t,
    width: cython.Py_ssize_t,
    every: cython.bint,
    present: cython.uchar[:],
    sizes: cython.longlong[:],
    used: cython.longlong[:],
    places: cython.longlong[:],
    times: cython.longlong[:],
    causes: cython.longlong[:],
    suffix_times: cython.longlong[:],
    suffix_causes: cython.longlong[:],
    changed: cython.longlong[:],
    cells: cython.longlong[:],
    changed_at: cython.longlong[:],
    changed_by: cython.longlong[:],
    told: cython.longlong[:],
) -> cython.Py_ssize_t:
    """Let the events from `begin` on take place; the first that was not reached, since there was no room to list it.

    By place, `times` has when its row changed last (the newest time of all events that changed it) and `causes` which
    event did: 2 * i where its row left the partition at event i, 2 * i + 1 where it came. With `every`, all changes are
    listed in their order: the place, the cell that has it then (-1: none), its time and its cause; told[0] says how
    many. Otherwise a change of all places from one to the last is only noted at the first of them, in the arrays
    of suffixes, and `spread` applies it.
    """
    i: cython.Py_ssize_t = begin
    count: cython.Py_ssize_t = 0
    left: cython.longlong
    joined: cython.longlong
    base: cython.Py_ssize_t
    had: cython.Py_ssize_t
    has: cython.Py_ssize_t
    before: cython.Py_ssize_t
    after: cython.Py_ssize_t
    first: cython.Py_ssize_t
    last: cython.Py_ssize_t
    if not cython.compiled:
        leaves, enters, ts, owner = memoryview(leaves), memoryview(enters), memoryview(ts), memoryview(owner)
        begins, present, sizes, used = memoryview(begins), memoryview(present), memoryview(sizes), memoryview(used)
        places, times, causes = memoryview(places), memoryview(times), memoryview(causes)
        suffix_times, suffix_causes = memoryview(suffix_times), memoryview(suffix_causes)
        changed, cells, told = memoryview(changed), memoryview(cells), memoryview(told)
        changed_at, changed_by = memoryview(changed_at), memoryview(changed_by)
    while i < leaves.shape[0]:
        if every and changed.shape[0] - count < 2 * width:
            break
        left = joined = -1
        had = most
        if leaves[i] >= 0:
            left = owner[leaves[i]]
            base = left * width
            before = used[left]
            present[leaves[i]] = 0
            sizes[left] -= 1
            had = take_out(leaves[i], base, before, places)
            if had == before:
                had = most
            else:
                used[left] -= 1
        if enters[i] >= 0:
            joined = owner[enters[i]]
            present[enters[i]] = 1
            sizes[joined] += 1
        if left >= 0 and left != joined and had < most:
            if sizes[left] > used[left]:
                places[base + used[left]] = next_present(base, used[left], begins[left], places, present)
                used[left] += 1
            count = note(
                had, before, base, ts[i], 2 * i, every, places, times, causes,
                changed, cells, changed_at, changed_by, count,
            )  # fmt: skip
        if joined >= 0:
            base = joined * width
            after = used[joined]
            if joined == left and had < most and lower_bound(places, base, after, enters[i]) == after:
                # The row that fell, or one that had no place, comes last.
                places[base + after] = next_present(base, after, begins[joined], places, present)
                has = after
            else:
                has = put_in(enters[i], base, after, most, places)
            if has < most and after < most:
                used[joined] = after + 1
            first = has
            last = used[joined]
            if joined == left and had < most:
                if had < has:
                    first = had
                    last = has + 1
                else:
                    last = had + 1
            if first < most:
                if last == most and not every:
                    base += first
                    if ts[i] > suffix_times[base]:
                        suffix_times[base] = ts[i]
                    suffix_causes[base] = 2 * i + 1
                else:
                    count = note(
                        first, last, base, ts[i], 2 * i + 1, every, places, times, causes,
                        changed, cells, changed_at, changed_by, count,
                    )  # fmt: skip
        i += 1
    told[0] = count
    return i


def spread(
    width: cython.Py_ssize_t,
    suffix_times: cython.const[cython.longlong][:],
    suffix_causes: cython.const[cython.longlong][:],
    times: cython.longlong[:],
    causes: cython.longlong[:],
) -> None:
    """Apply the changes of all places from one to the last, partition by partition."""
    at: cython.Py_ssize_t
    ts: cython.longlong = 0
    cause: cython.longlong = -1
    if not cython.compiled:
        suffix_times, suffix_causes = memoryview(suffix_times), memoryview(suffix_causes)
        times, causes = memoryview(times), memoryview(causes)
    for at in range(times.shape[0]):
        if at % width == 0:
            cause = -1
        if suffix_causes[at] >= 0:
            if cause < 0 or suffix_times[at] > ts:
                ts = suffix_times[at]
            if suffix_causes[at] > cause:
                cause = suffix_causes[at]
        if cause >= 0:
            if ts > times[at]:
                times[at] = ts
            if cause > causes[at]:
                causes[at] = cause
