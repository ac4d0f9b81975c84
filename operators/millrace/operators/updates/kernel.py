"""What a row of an update stream does to its key: is it the newest, does the key show or vanish, whose member is it.

Keys, rows and groups are numbered (slots). A member belongs to one owner at a time, or to none (-1), and an owner's
members are a chain: head[owner], then following[member], back by before[member]; -1 ends it either way.
"""

import cython


def newest(
    slots: cython.const[cython.longlong][:],
    times: cython.const[cython.longlong][:],
    last: cython.longlong[:],
    kept: cython.uchar[:],
) -> None:
    """kept[i] says whether no row before i of its key is newer; last[slot] is the newest time then."""
    i: cython.Py_ssize_t
    slot: cython.longlong
    if not cython.compiled:
        slots, times, last, kept = memoryview(slots), memoryview(times), memoryview(last), memoryview(kept)
    for i in range(slots.shape[0]):
        slot = slots[i]
        if times[i] >= last[slot]:
            last[slot] = times[i]
            kept[i] = 1


def youngest(
    slots: cython.const[cython.longlong][:],
    times: cython.const[cython.longlong][:],
    source: cython.longlong,
    last: cython.longlong[:],
    sources: cython.longlong[:],
    kept: cython.uchar[:],
) -> None:
    """The same for rows of one of several inputs: at one time, the input that came first has the word."""
    i: cython.Py_ssize_t
    slot: cython.longlong
    if not cython.compiled:
        slots, times, last = memoryview(slots), memoryview(times), memoryview(last)
        sources, kept = memoryview(sources), memoryview(kept)
    for i in range(slots.shape[0]):
        slot = slots[i]
        if times[i] > last[slot] or (times[i] == last[slot] and sources[slot] == source):
            last[slot] = times[i]
            sources[slot] = source
            kept[i] = 1


def rise(slots: cython.const[cython.longlong][:], times: cython.longlong[:], last: cython.longlong[:]) -> None:
    """Raise each time to the latest one of its slot so far, which is last[slot] before and after."""
    i: cython.Py_ssize_t
    slot: cython.longlong
    if not cython.compiled:
        slots, times, last = memoryview(slots), memoryview(times), memoryview(last)
    for i in range(slots.shape[0]):
        slot = slots[i]
        if times[i] < last[slot]:
            times[i] = last[slot]
        else:
            last[slot] = times[i]


def show(
    slots: cython.const[cython.longlong][:],
    passing: cython.const[cython.uchar][:],
    shown: cython.uchar[:],
    given: cython.uchar[:],
) -> None:
    """given[i] is 1 where the row is emitted, 2 where its key vanishes, 0 where nothing is emitted."""
    i: cython.Py_ssize_t
    slot: cython.longlong
    if not cython.compiled:
        slots, passing = memoryview(slots), memoryview(passing)
        shown, given = memoryview(shown), memoryview(given)
    for i in range(slots.shape[0]):
        slot = slots[i]
        if passing[i]:
            given[i] = 1
            shown[slot] = 1
        elif shown[slot]:
            given[i] = 2
            shown[slot] = 0


def move(
    members: cython.const[cython.longlong][:],
    owners: cython.const[cython.longlong][:],
    owner: cython.longlong[:],
    head: cython.longlong[:],
    following: cython.longlong[:],
    before: cython.longlong[:],
) -> None:
    """Take members out of the chains that they are in, and put them at the start of their new owners'."""
    i: cython.Py_ssize_t
    member: cython.longlong
    old: cython.longlong
    new: cython.longlong
    back: cython.longlong
    ahead: cython.longlong
    if not cython.compiled:
        members, owners, owner = memoryview(members), memoryview(owners), memoryview(owner)
        head, following, before = memoryview(head), memoryview(following), memoryview(before)
    for i in range(members.shape[0]):
        member = members[i]
        old = owner[member]
        new = owners[i]
        if old == new:
            continue
        if old >= 0:
            back = before[member]
            ahead = following[member]
            if back >= 0:
                following[back] = ahead
            else:
                head[old] = ahead
            if ahead >= 0:
                before[ahead] = back
        owner[member] = new
        before[member] = -1
        following[member] = -1
        if new >= 0:
            ahead = head[new]
            following[member] = ahead
            if ahead >= 0:
                before[ahead] = member
            head[new] = member
