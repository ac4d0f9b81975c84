"""Choosing who is followed: the loops of the sequence operators (EQG, figures 12 and 13), over both inputs at once.

Rows of A that may still be followed are in cells, in order of time; rows of B are not stored. A key has a slot, -1 is
no key (something in it is null). `head[slot]` is the cell of a key's first row, `tail[slot]` of its last and
`following[cell]` the next cell, -1 where there is none. `alive` says which cells still count.

`within` below zero is no bound. At equal times, A's rows come first.
"""

import cython

MIN_TIME = cython.declare(cython.longlong, -0x8000000000000000)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def oldest(time: cython.longlong, within: cython.longlong) -> cython.longlong:
    """The time below which a row is too old to be followed at `time`."""
    if within < 0 or time < MIN_TIME + within:
        return MIN_TIME
    return time - within


def recent(
    a_ts: cython.const[cython.longlong][:],
    a_slots: cython.const[cython.longlong][:],
    b_ts: cython.const[cython.longlong][:],
    b_slots: cython.const[cython.longlong][:],
    base: cython.longlong,
    within: cython.longlong,
    times: cython.const[cython.longlong][:],
    alive: cython.uchar[:],
    head: cython.longlong[:],
    chosen: cython.longlong[:],
) -> cython.Py_ssize_t:
    """Each row of B with its key's newest row of A, which stays; say how many of A's rows have died.

    The rows of A lie in the cells from `base` on, and all of them have a key.
    """
    i: cython.Py_ssize_t = 0
    j: cython.Py_ssize_t = 0
    died: cython.Py_ssize_t = 0
    cell: cython.longlong
    slot: cython.longlong
    if not cython.compiled:
        a_ts, a_slots, b_ts, b_slots = memoryview(a_ts), memoryview(a_slots), memoryview(b_ts), memoryview(b_slots)
        times, alive, head, chosen = memoryview(times), memoryview(alive), memoryview(head), memoryview(chosen)
    while i < a_ts.shape[0] or j < b_ts.shape[0]:
        if i < a_ts.shape[0] and (j == b_ts.shape[0] or a_ts[i] <= b_ts[j]):
            slot = a_slots[i]
            if head[slot] >= 0:
                alive[head[slot]] = 0
                died += 1
            head[slot] = base + i
            i += 1
            continue
        slot = b_slots[j]
        cell = -1
        if slot >= 0:
            cell = head[slot]
            if cell >= 0 and times[cell] < oldest(b_ts[j], within):
                alive[cell] = 0
                died += 1
                head[slot] = cell = -1
        chosen[j] = cell
        j += 1
    return died


def chronicle(
    a_ts: cython.const[cython.longlong][:],
    a_slots: cython.const[cython.longlong][:],
    b_ts: cython.const[cython.longlong][:],
    b_slots: cython.const[cython.longlong][:],
    base: cython.longlong,
    within: cython.longlong,
    times: cython.const[cython.longlong][:],
    alive: cython.uchar[:],
    head: cython.longlong[:],
    tail: cython.longlong[:],
    following: cython.longlong[:],
    chosen: cython.longlong[:],
) -> cython.Py_ssize_t:
    """Each row of B with its key's oldest row of A, which is used up; say how many of A's rows have died.

    The rows of A lie in the cells from `base` on, and all of them have a key.
    """
    i: cython.Py_ssize_t = 0
    j: cython.Py_ssize_t = 0
    died: cython.Py_ssize_t = 0
    cell: cython.longlong
    slot: cython.longlong
    if not cython.compiled:
        a_ts, a_slots, b_ts, b_slots = memoryview(a_ts), memoryview(a_slots), memoryview(b_ts), memoryview(b_slots)
        times, alive, head, tail = memoryview(times), memoryview(alive), memoryview(head), memoryview(tail)
        following, chosen = memoryview(following), memoryview(chosen)
    while i < a_ts.shape[0] or j < b_ts.shape[0]:
        if i < a_ts.shape[0] and (j == b_ts.shape[0] or a_ts[i] <= b_ts[j]):
            slot = a_slots[i]
            following[base + i] = -1
            if head[slot] < 0:
                head[slot] = base + i
            else:
                following[tail[slot]] = base + i
            tail[slot] = base + i
            i += 1
            continue
        slot = b_slots[j]
        cell = -1
        if slot >= 0:
            cell = head[slot]
            # Too old for this row is too old for all that come. Some may have been found dead before.
            while cell >= 0 and (alive[cell] == 0 or times[cell] < oldest(b_ts[j], within)):
                died += alive[cell]
                alive[cell] = 0
                cell = following[cell]
            if cell >= 0:
                alive[cell] = 0
                died += 1
                head[slot] = following[cell]
            else:
                head[slot] = -1
        chosen[j] = cell
        j += 1
    return died


def link(
    slots: cython.const[cython.longlong][:],
    base: cython.longlong,
    head: cython.longlong[:],
    tail: cython.longlong[:],
    following: cython.longlong[:],
) -> None:
    """Put the rows in the cells from `base` on at the ends of their keys' chains; those without a key go into none."""
    i: cython.Py_ssize_t
    slot: cython.longlong
    if not cython.compiled:
        slots, head, tail, following = memoryview(slots), memoryview(head), memoryview(tail), memoryview(following)
    for i in range(slots.shape[0]):
        slot = slots[i]
        following[base + i] = -1
        if slot < 0:
            continue
        if head[slot] < 0:
            head[slot] = base + i
        else:
            following[tail[slot]] = base + i
        tail[slot] = base + i


def refute(
    b_ts: cython.const[cython.longlong][:],
    b_slots: cython.const[cython.longlong][:],
    within: cython.longlong,
    times: cython.const[cython.longlong][:],
    alive: cython.uchar[:],
    head: cython.longlong[:],
    following: cython.const[cython.longlong][:],
) -> cython.Py_ssize_t:
    """Let die what a row of B follows in time; say how many that are.

    Rows that B comes too late for leave their chains and stay alive: nothing can follow them any more.
    """
    j: cython.Py_ssize_t
    died: cython.Py_ssize_t = 0
    cell: cython.longlong
    if not cython.compiled:
        b_ts, b_slots, times, alive = memoryview(b_ts), memoryview(b_slots), memoryview(times), memoryview(alive)
        head, following = memoryview(head), memoryview(following)
    for j in range(b_ts.shape[0]):
        if b_slots[j] < 0:
            continue
        cell = head[b_slots[j]]
        while cell >= 0 and times[cell] <= b_ts[j]:
            if times[cell] >= oldest(b_ts[j], within):
                died += alive[cell]
                alive[cell] = 0
            cell = following[cell]
        head[b_slots[j]] = cell
    return died


def candidates(
    b_ts: cython.const[cython.longlong][:],
    b_slots: cython.const[cython.longlong][:],
    within: cython.longlong,
    times: cython.const[cython.longlong][:],
    alive: cython.const[cython.uchar][:],
    head: cython.longlong[:],
    following: cython.const[cython.longlong][:],
    place: cython.longlong[:],
    rows: cython.longlong[:],
    cells: cython.longlong[:],
) -> cython.Py_ssize_t:
    """The pairs of a row of B and a living row of A with its key that it is in time for, in order; how many they are.

    It continues at `place` (a row of B, and a cell of its chain or -1 for the start) and says there where it stopped
    because `rows` was full.
    """
    j: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    cell: cython.longlong
    slot: cython.longlong
    if not cython.compiled:
        b_ts, b_slots, times, alive = memoryview(b_ts), memoryview(b_slots), memoryview(times), memoryview(alive)
        head, following, place, rows, cells = (
            memoryview(head),
            memoryview(following),
            memoryview(place),
            memoryview(rows),
            memoryview(cells),
        )
    cell = place[1]
    for j in range(place[0], b_ts.shape[0]):
        slot = b_slots[j]
        if slot >= 0:
            if cell < 0:
                cell = head[slot]
                while cell >= 0 and (alive[cell] == 0 or times[cell] < oldest(b_ts[j], within)):
                    cell = following[cell]
                head[slot] = cell
            while cell >= 0 and times[cell] <= b_ts[j]:
                if alive[cell] != 0 and times[cell] >= oldest(b_ts[j], within):
                    if count == rows.shape[0]:
                        place[0] = j
                        place[1] = cell
                        return count
                    rows[count] = j
                    cells[count] = cell
                    count += 1
                cell = following[cell]
        cell = -1
    place[0] = b_ts.shape[0]
    return count


def first_alive(
    alive: cython.const[cython.uchar][:], start: cython.Py_ssize_t, stop: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The first cell from `start` on that is alive, or `stop`."""
    if not cython.compiled:
        alive = memoryview(alive)
    while start < stop and alive[start] == 0:
        start += 1
    return start
