"""Finding the group of each row, and the session of each run of rows.

A group's key is a row of `width` int64 values. Groups are numbered in the order in which they first appear (their
slots) and their keys stand in `stored` by slot; `index` is a hash table with open addressing that holds slot + 1, or
0 where it is empty. Slots depend on the rows alone, never on how they hash.
"""

from typing import Any

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


def find_or_add(
    keys: cython.const[cython.longlong][:],
    width: cython.Py_ssize_t,
    index: cython.int[:],
    stored: cython.longlong[:],
    slots: cython.longlong[:],
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    room: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Put the slot of each row from `start` on into `slots`; new groups get the next slots.

    Returns the row before which it stopped because `room` groups are there. `count` groups are there at first;
    afterwards as many as the greatest slot says.
    """
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    at: cython.Py_ssize_t
    base: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    mask: cython.Py_ssize_t = index.shape[0] - 1
    state: cython.ulonglong
    if not cython.compiled:
        keys, index, stored, slots = memoryview(keys), memoryview(index), memoryview(stored), memoryview(slots)
    for i in range(start, slots.shape[0]):
        base = i * width
        state = 0
        for j in range(width):
            state = mix(state, keys[base + j])
        at = state & mask
        while True:
            slot = index[at] - 1
            if slot < 0:
                if count == room:
                    return i
                slot = count
                count += 1
                index[at] = slot + 1
                for j in range(width):
                    stored[slot * width + j] = keys[base + j]
                break
            j = 0
            while j < width and stored[slot * width + j] == keys[base + j]:
                j += 1
            if j == width:
                break
            at = (at + 1) & mask
        slots[i] = slot
    return slots.shape[0]


def rebuild(
    stored: cython.const[cython.longlong][:], width: cython.Py_ssize_t, count: cython.Py_ssize_t, index: cython.int[:]
) -> None:
    """Fill an empty index with the groups that are stored."""
    slot: cython.Py_ssize_t
    j: cython.Py_ssize_t
    at: cython.Py_ssize_t
    mask: cython.Py_ssize_t = index.shape[0] - 1
    state: cython.ulonglong
    if not cython.compiled:
        stored, index = memoryview(stored), memoryview(index)
    for slot in range(count):
        state = 0
        for j in range(width):
            state = mix(state, stored[slot * width + j])
        at = state & mask
        while index[at] != 0:
            at = (at + 1) & mask
        index[at] = slot + 1


def clusters(
    keys: cython.const[cython.longlong][:],
    first: cython.const[cython.longlong][:],
    last: cython.const[cython.longlong][:],
    gap: cython.longlong,
    cluster: cython.longlong[:],
) -> cython.Py_ssize_t:
    """Number the sessions of intervals, which are sorted by key and start; return their number.

    Two intervals of a key are one session if less than `gap` lies between them; exactly `gap` is too much.
    """
    i: cython.Py_ssize_t
    number: cython.longlong = -1
    key: cython.longlong = 0
    reach: cython.longlong = 0
    if not cython.compiled:
        keys, first, last, cluster = memoryview(keys), memoryview(first), memoryview(last), memoryview(cluster)
    for i in range(keys.shape[0]):
        if number < 0 or keys[i] != key or (first[i] >= reach and first[i] - reach >= gap):
            number += 1
            key = keys[i]
            reach = last[i]
        elif last[i] > reach:
            reach = last[i]
        cluster[i] = number
    return number + 1


def chained(
    keys: cython.const[cython.longlong][:],
    head: cython.const[cython.longlong][:],
    following: cython.const[cython.longlong][:],
    found: cython.longlong[:],
) -> cython.Py_ssize_t:
    """Put the members of the chains of these keys into `found`; say how many there are (they may not all have fitted).

    A chain starts at head[key] and continues at following[member]; -1 ends it.
    """
    i: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    member: cython.longlong
    if not cython.compiled:
        keys, head, following, found = memoryview(keys), memoryview(head), memoryview(following), memoryview(found)
    for i in range(keys.shape[0]):
        member = head[keys[i]]
        while member >= 0:
            if count < found.shape[0]:
                found[count] = member
            count += 1
            member = following[member]
    return count


def link(
    members: cython.const[cython.longlong][:],
    keys: cython.const[cython.longlong][:],
    head: cython.longlong[:],
    following: cython.longlong[:],
) -> None:
    """Put each member at the start of its key's chain."""
    i: cython.Py_ssize_t
    if not cython.compiled:
        members, keys, head, following = memoryview(members), memoryview(keys), memoryview(head), memoryview(following)
    for i in range(members.shape[0]):
        following[members[i]] = head[keys[i]]
        head[keys[i]] = members[i]


def unlink(
    members: cython.const[cython.longlong][:],
    keys: cython.const[cython.longlong][:],
    head: cython.longlong[:],
    following: cython.longlong[:],
) -> None:
    """Take each member out of its key's chain."""
    i: cython.Py_ssize_t
    at: cython.longlong
    member: cython.longlong
    if not cython.compiled:
        members, keys, head, following = memoryview(members), memoryview(keys), memoryview(head), memoryview(following)
    for i in range(members.shape[0]):
        member = members[i]
        at = head[keys[i]]
        if at == member:
            head[keys[i]] = following[member]
            continue
        while following[at] != member:
            at = following[at]
        following[at] = following[member]


def encode(values: list[object], codes: Any, numbers: cython.longlong[:]) -> None:
    """The number of each value in `codes`, a dict that numbers values in the order in which they first come."""
    i: cython.Py_ssize_t
    if cython.compiled:
        known: dict[object, int] = cython.cast(dict, codes)  # it is a subclass: what that adds is done here
        for i in range(len(values)):
            found = known.get(values[i])
            if found is None:
                found = known[values[i]] = len(known)
            numbers[i] = found
        return
    for i, value in enumerate(values):
        numbers[i] = codes[value]
