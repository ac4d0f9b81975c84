"""Finding the group of each row, and the session of each run of rows.

A group's key is a row of `width` int64 values. Groups are numbered in the order in which they first appear (their
slots) and their keys stand in `stored` by slot; `index` is a hash table with open addressing that holds slot + 1, or
0 where it is empty. Slots depend on the rows alone, never on how they hash.

There are two ways to hash. *Mixing* spreads any keys, and the stored keys tell apart those that meet. *Packing* writes
the low bits of a key's columns next to each other, `bits` of each: keys between `low` and low + 2**bits, such as
consecutive numbers, then have a place each, and no two meet. A column's bits are MIX when mixing. `packing` holds
each column's `low` and `bits`.
"""

import cython

# Among the bits of columns: they are mixed.
MIX = cython.declare(cython.longlong, -1)
# Rows that are looked up together: what they touch stays in the processor's nearer caches.
BLOCK = cython.declare(cython.Py_ssize_t, 1024)

# An odd number with its bits well mixed, as a C variable: a literal of this length would be a Python object.
MULTIPLIER = cython.declare(cython.ulonglong, 0x2545F4914F6CDD1D)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def mix(state: cython.ulonglong, value: cython.longlong) -> cython.ulonglong:
    """Fold a value into a hash: multiply, and let the high bits reach the low ones."""
    if cython.compiled:
        state = (state ^ cython.cast(cython.ulonglong, value)) * MULTIPLIER
    else:
        state = ((state ^ (value & (2**64 - 1))) * MULTIPLIER) & (2**64 - 1)
    return state ^ (state >> 32)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def unsigned(value: cython.longlong) -> cython.ulonglong:
    """A hash as it is computed; arrays hold it as an int64."""
    if cython.compiled:
        return cython.cast(cython.ulonglong, value)
    return value & (2**64 - 1)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def signed(state: cython.ulonglong) -> cython.longlong:
    """A hash as arrays hold it."""
    if cython.compiled:
        return cython.cast(cython.longlong, state)
    return state - (2**64 if state >= 2**63 else 0)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def pack(state: cython.longlong, bits: cython.longlong, value: cython.longlong) -> cython.longlong:
    """Write a value's low bits next to those of the columns before; what leaves 64 bits is lost."""
    if cython.compiled:
        return (state << bits) + value
    return signed(((state << bits) + value) & (2**64 - 1))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def beyond(value: cython.longlong, low: cython.longlong, bits: cython.longlong) -> cython.ulonglong:
    """Not zero if a value lies outside of low and low + 2**bits."""
    return (unsigned(value) - unsigned(low) if cython.compiled else unsigned(value - low)) >> bits


def fold(
    values: cython.const[cython.longlong][::1],
    low: cython.longlong,
    bits: cython.longlong,
    hashes: cython.longlong[::1],
) -> bool:
    """Fold a column into the hashes of its rows; whether a value is out of the range in which it can be packed."""
    i: cython.Py_ssize_t
    outside: cython.ulonglong = 0
    if not cython.compiled:
        values, hashes = memoryview(values), memoryview(hashes)
    with cython.nogil:
        if bits == MIX:
            for i in range(hashes.shape[0]):
                hashes[i] = signed(mix(unsigned(hashes[i]), values[i]))
        else:
            for i in range(hashes.shape[0]):
                hashes[i] = pack(hashes[i], bits, values[i])
                outside |= beyond(values[i], low, bits)
    return outside != 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def hash_of(
    keys: cython.const[cython.longlong][::1],
    base: cython.Py_ssize_t,
    packing: cython.const[cython.longlong][::1],
) -> cython.longlong:
    """The hash of the key that starts at `base`, as `fold` makes it."""
    j: cython.Py_ssize_t
    state: cython.longlong = 0
    for j in range(packing.shape[0] // 2):
        if packing[2 * j + 1] == MIX:
            state = signed(mix(unsigned(state), keys[base + j]))
        else:
            state = pack(state, packing[2 * j + 1], keys[base + j])
    return state


def look_packed(
    hashes: cython.const[cython.longlong][::1],
    index: cython.const[cython.int][::1],
    slots: cython.longlong[::1],
    rest: cython.longlong[::1],
) -> cython.Py_ssize_t:
    """Put the slot of each row into `slots`; rows of new groups go into `rest`. Returns how many those are."""
    i: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    mask: cython.Py_ssize_t = index.shape[0] - 1
    if not cython.compiled:
        hashes, index = memoryview(hashes), memoryview(index)
        slots, rest = memoryview(slots), memoryview(rest)
    with cython.nogil:
        for i in range(slots.shape[0]):
            slots[i] = index[hashes[i] & mask] - 1
            rest[count] = i
            count += slots[i] < 0
    return count


def look(
    keys: cython.const[cython.longlong][::1],
    width: cython.Py_ssize_t,
    hashes: cython.const[cython.longlong][::1],
    index: cython.const[cython.int][::1],
    stored: cython.const[cython.longlong][::1],
    slots: cython.longlong[::1],
    rest: cython.longlong[::1],
) -> cython.Py_ssize_t:
    """Put the slot of each row into `slots` where its group is at home in the index, without a branch per row.

    So the processor fetches the memory of many rows at once. The other rows, new groups among them, go into `rest`;
    returns how many those are. `stored` has room for a group at least.
    """
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    start: cython.Py_ssize_t = 0
    stop: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    same: cython.longlong
    count: cython.Py_ssize_t = 0
    mask: cython.Py_ssize_t = index.shape[0] - 1
    if not cython.compiled:
        keys, hashes, index = memoryview(keys), memoryview(hashes), memoryview(index)
        stored, slots, rest = memoryview(stored), memoryview(slots), memoryview(rest)
    with cython.nogil:
        while start < slots.shape[0]:
            stop = min(start + BLOCK, slots.shape[0])
            for i in range(start, stop):
                slots[i] = index[hashes[i] & mask]
            for i in range(start, stop):
                slot = slots[i] - 1
                same = slot >= 0
                slot *= same  # the first group's key serves rows without a group
                for j in range(width):
                    same &= stored[slot * width + j] == keys[i * width + j]
                slots[i] = slot
                rest[count] = i
                count += 1 - same
            start = stop
    return count


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def place_of(
    keys: cython.const[cython.longlong][::1],
    base: cython.Py_ssize_t,
    packing: cython.const[cython.longlong][::1],
    index: cython.int[::1],
    stored: cython.longlong[::1],
) -> cython.Py_ssize_t:
    """The place in the index of the group whose key starts at `base`, or the empty one where it belongs.

    Or -1 if the key can't be packed like this.
    """
    j: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    at: cython.Py_ssize_t
    width: cython.Py_ssize_t = packing.shape[0] // 2
    mask: cython.Py_ssize_t = index.shape[0] - 1
    for j in range(width):
        if packing[2 * j + 1] != MIX and beyond(keys[base + j], packing[2 * j], packing[2 * j + 1]) != 0:
            return -1
    at = hash_of(keys, base, packing) & mask
    while index[at] != 0:
        slot = index[at] - 1
        j = 0
        while j < width and stored[slot * width + j] == keys[base + j]:
            j += 1
        if j == width:
            break
        at = (at + 1) & mask
    return at


def find_or_add(
    keys: cython.const[cython.longlong][::1],
    packing: cython.const[cython.longlong][::1],
    index: cython.int[::1],
    stored: cython.longlong[::1],
    slots: cython.longlong[::1],
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    room: cython.Py_ssize_t,
) -> tuple[int, int]:
    """Put the slot of each row from `start` on into `slots`; new groups get the next slots.

    Returns the row before which it stopped, and how many groups there are then; `count` is how many there were. It
    stops if there are `room` groups, or at a key that can't be packed like this.
    """
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    at: cython.Py_ssize_t
    width: cython.Py_ssize_t = packing.shape[0] // 2
    if not cython.compiled:
        keys, packing = memoryview(keys), memoryview(packing)
        index, stored, slots = memoryview(index), memoryview(stored), memoryview(slots)
    with cython.nogil:
        i = start
        while i < slots.shape[0]:
            at = place_of(keys, i * width, packing, index, stored)
            if at < 0:
                break
            if index[at] == 0:
                if count == room:
                    break
                for j in range(width):
                    stored[count * width + j] = keys[i * width + j]
                count += 1
                index[at] = count
            slots[i] = index[at] - 1
            i += 1
    return i, count


def find_or_add_one(
    key: cython.longlong[::1],
    packing: cython.const[cython.longlong][::1],
    index: cython.int[::1],
    stored: cython.longlong[::1],
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """The slot of a single key: of `count` groups, or `count` itself if it is new; -1 if it can't be packed like this.

    There is room for one more.
    """
    j: cython.Py_ssize_t
    at: cython.Py_ssize_t
    if not cython.compiled:
        key, packing = memoryview(key), memoryview(packing)
        index, stored = memoryview(index), memoryview(stored)
    at = place_of(key, 0, packing, index, stored)
    if at < 0:
        return -1
    if index[at] == 0:
        for j in range(key.shape[0]):
            stored[count * key.shape[0] + j] = key[j]
        index[at] = count + 1
    return index[at] - 1


def rebuild(
    stored: cython.const[cython.longlong][::1],
    packing: cython.const[cython.longlong][::1],
    count: cython.Py_ssize_t,
    index: cython.int[::1],
) -> None:
    """Fill an empty index with the groups that are stored."""
    slot: cython.Py_ssize_t
    at: cython.Py_ssize_t
    width: cython.Py_ssize_t = packing.shape[0] // 2
    mask: cython.Py_ssize_t = index.shape[0] - 1
    if not cython.compiled:
        stored, packing, index = memoryview(stored), memoryview(packing), memoryview(index)
    for slot in range(count):
        at = hash_of(stored, slot * width, packing) & mask
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
