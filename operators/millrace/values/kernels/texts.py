"""Loops over columns of texts: bytes one after another, and where each text ends.

Text i of a column is `data[offsets[i]:offsets[i + 1]]`. Bytes compare as unsigned numbers, so texts in UTF-8 compare by
code point. The slow loops of an uncompiled kernel use Python's own slices.
"""

import cython

# An odd number with its bits well mixed, as a C variable: a literal of this length would be a Python object.
MULTIPLIER = cython.declare(cython.ulonglong, 0x2545F4914F6CDD1D)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def word(data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t) -> cython.ulonglong:
    """Eight bytes as a number: the C compiler makes one load of it."""
    if not cython.compiled:
        return int.from_bytes(data[at : at + 8], "little")
    return (
        cython.cast(cython.ulonglong, data[at])
        | cython.cast(cython.ulonglong, data[at + 1]) << 8
        | cython.cast(cython.ulonglong, data[at + 2]) << 16
        | cython.cast(cython.ulonglong, data[at + 3]) << 24
        | cython.cast(cython.ulonglong, data[at + 4]) << 32
        | cython.cast(cython.ulonglong, data[at + 5]) << 40
        | cython.cast(cython.ulonglong, data[at + 6]) << 48
        | cython.cast(cython.ulonglong, data[at + 7]) << 56
    )


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def copy(
    data: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    out: cython.uchar[::1],
    to: cython.Py_ssize_t,
) -> cython.void:
    """Copy the bytes from `at` to `end`, eight at a time."""
    value: cython.ulonglong
    if not cython.compiled:
        out[to : to + end - at] = data[at:end]
        return
    while end - at >= 8:
        value = word(data, at)
        out[to] = value & 255
        out[to + 1] = (value >> 8) & 255
        out[to + 2] = (value >> 16) & 255
        out[to + 3] = (value >> 24) & 255
        out[to + 4] = (value >> 32) & 255
        out[to + 5] = (value >> 40) & 255
        out[to + 6] = (value >> 48) & 255
        out[to + 7] = (value >> 56) & 255
        at += 8
        to += 8
    while at < end:
        out[to] = data[at]
        at += 1
        to += 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def equal(
    data: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    other: cython.const[cython.uchar][::1],
    there: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
) -> cython.bint:
    """Whether as many bytes of each are the same."""
    end: cython.Py_ssize_t = at + length
    if not cython.compiled:
        return data[at:end] == other[there : there + length]
    while end - at >= 8:
        if word(data, at) != word(other, there):
            return False
        at += 8
        there += 8
    while at < end:
        if data[at] != other[there]:
            return False
        at += 1
        there += 1
    return True


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def mixed(state: cython.ulonglong, value: cython.ulonglong) -> cython.ulonglong:
    """Fold a value into a hash: multiply, and let the high bits reach the low ones."""
    state = (state ^ value) * MULTIPLIER
    if not cython.compiled:
        state &= 2**64 - 1
    return state ^ (state >> 32)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def hashed(data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.ulonglong:
    """The hash of these bytes, the same on every machine and in every run."""
    value: cython.ulonglong = 0
    shift: cython.int = 0
    state: cython.ulonglong = end - at
    while end - at >= 8:
        state = mixed(state, word(data, at))
        at += 8
    while at < end:
        value |= cython.cast(cython.ulonglong, data[at]) << shift if cython.compiled else data[at] << shift
        shift += 8
        at += 1
    return mixed(state, value)


def hashes(
    data: cython.const[cython.uchar][::1], offsets: cython.const[cython.longlong][::1], found: cython.longlong[::1]
) -> None:
    """The hash of each text."""
    i: cython.Py_ssize_t
    if not cython.compiled:
        data, offsets = memoryview(data), memoryview(offsets)
        for i in range(found.shape[0]):
            state = hashed(data, offsets[i], offsets[i + 1])
            found[i] = state - 2**64 if state >= 2**63 else state
        return
    for i in range(found.shape[0]):
        found[i] = hashed(data, offsets[i], offsets[i + 1])


def number(
    data: cython.const[cython.uchar][::1],
    offsets: cython.const[cython.longlong][::1],
    numbers: cython.longlong[::1],
    start: cython.Py_ssize_t,
    tags: cython.uchar[::1],
    index: cython.int[::1],
    ends: cython.longlong[::1],
    arena: cython.uchar[::1],
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Replace the hash of each text from `start` on by the text's number; new texts get the next numbers.

    Text n is `arena[ends[n]:ends[n + 1]]`. `tags` and `index` are a hash table with open addressing: eight bits of the
    hash, and the number + 1, or 0 where it is empty. Returns the row before which it stopped because a new text finds
    no room. `count` texts are there at first; afterwards as many as the greatest number says.
    """
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    length: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    tag: cython.uchar
    mask: cython.Py_ssize_t = index.shape[0] - 1
    room: cython.Py_ssize_t = ends.shape[0] - 1
    rows: cython.Py_ssize_t = numbers.shape[0]
    touched: cython.Py_ssize_t = 0
    if not cython.compiled:
        data, offsets, numbers, tags = memoryview(data), memoryview(offsets), memoryview(numbers), memoryview(tags)
        index, ends, arena = memoryview(index), memoryview(ends), memoryview(arena)
    for i in range(start, rows):
        if cython.compiled and i + 12 < rows:
            # The table is larger than the processor's caches: load what a later row needs while this one is compared.
            touched += index[numbers[i + 12] & mask] + tags[numbers[i + 12] & mask]
        at = numbers[i] & mask
        tag = ((numbers[i] >> 56) & 255) | 1
        begin = offsets[i]
        length = offsets[i + 1] - begin
        while True:
            if tags[at] == 0:
                if count == room or arena.shape[0] - ends[count] < length:
                    return i
                slot = count
                count += 1
                tags[at] = tag
                index[at] = slot + 1
                copy(data, begin, begin + length, arena, ends[slot])
                ends[slot + 1] = ends[slot] + length
                break
            if tags[at] == tag:
                slot = index[at] - 1
                if ends[slot + 1] - ends[slot] == length and equal(data, begin, arena, ends[slot], length):
                    break
            at = (at + 1) & mask
        numbers[i] = slot
    return rows if touched >= 0 else -1


def look_up(
    data: cython.const[cython.uchar][::1],
    offsets: cython.const[cython.longlong][::1],
    numbers: cython.longlong[::1],
    tags: cython.const[cython.uchar][::1],
    index: cython.const[cython.int][::1],
    ends: cython.const[cython.longlong][::1],
    arena: cython.const[cython.uchar][::1],
) -> None:
    """Replace the hash of each text by the text's number, or by -1 where the table does not have it."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    length: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    length_there: cython.Py_ssize_t
    tag: cython.uchar
    mask: cython.Py_ssize_t = index.shape[0] - 1
    if not cython.compiled:
        data, offsets, numbers, tags = memoryview(data), memoryview(offsets), memoryview(numbers), memoryview(tags)
        index, ends, arena = memoryview(index), memoryview(ends), memoryview(arena)
    for i in range(numbers.shape[0]):
        at = numbers[i] & mask
        tag = ((numbers[i] >> 56) & 255) | 1
        begin = offsets[i]
        length = offsets[i + 1] - begin
        numbers[i] = -1
        while tags[at] != 0:
            slot = index[at] - 1
            length_there = ends[slot + 1] - ends[slot]
            if tags[at] == tag and length_there == length and equal(data, begin, arena, ends[slot], length):
                numbers[i] = slot
                break
            at = (at + 1) & mask


def reindex(
    arena: cython.const[cython.uchar][::1],
    ends: cython.const[cython.longlong][::1],
    count: cython.Py_ssize_t,
    absent: cython.Py_ssize_t,
    tags: cython.uchar[::1],
    index: cython.int[::1],
) -> None:
    """Fill an empty hash table with the texts of an arena; number `absent` stands for null and is not a text."""
    slot: cython.Py_ssize_t
    at: cython.Py_ssize_t
    state: cython.ulonglong
    mask: cython.Py_ssize_t = index.shape[0] - 1
    if not cython.compiled:
        arena, ends, tags, index = memoryview(arena), memoryview(ends), memoryview(tags), memoryview(index)
    for slot in range(count):
        if slot == absent:
            continue
        state = hashed(arena, ends[slot], ends[slot + 1])
        at = state & mask
        while tags[at] != 0:
            at = (at + 1) & mask
        tags[at] = (state >> 56) | 1
        index[at] = slot + 1


def measure(
    offsets: cython.const[cython.longlong][::1],
    rows: cython.const[cython.longlong][::1],
    made: cython.longlong[::1],
) -> cython.Py_ssize_t:
    """The offsets of a column of these texts; negative rows count from the end. Returns the first row that is none, or
    their number."""
    i: cython.Py_ssize_t
    row: cython.Py_ssize_t
    count: cython.Py_ssize_t = offsets.shape[0] - 1
    total: cython.longlong = 0
    if not cython.compiled:
        offsets, rows, made = memoryview(offsets), memoryview(rows), memoryview(made)
    made[0] = 0
    for i in range(rows.shape[0]):
        row = rows[i]
        if row < 0:
            row += count
        if row < 0 or row >= count:
            return i
        total += offsets[row + 1] - offsets[row]
        made[i + 1] = total
    return rows.shape[0]


def gather(
    data: cython.const[cython.uchar][::1],
    offsets: cython.const[cython.longlong][::1],
    rows: cython.const[cython.longlong][::1],
    made: cython.const[cython.longlong][::1],
    out: cython.uchar[::1],
) -> None:
    """Copy these texts to where `measure` says."""
    i: cython.Py_ssize_t
    row: cython.Py_ssize_t
    count: cython.Py_ssize_t = offsets.shape[0] - 1
    if not cython.compiled:
        data, offsets, rows = memoryview(data), memoryview(offsets), memoryview(rows)
        made, out = memoryview(made), memoryview(out)
    for i in range(rows.shape[0]):
        row = rows[i]
        if row < 0:
            row += count
        copy(data, offsets[row], offsets[row + 1], out, made[i])


def collect(
    data: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    made: cython.const[cython.longlong][::1],
    out: cython.uchar[::1],
) -> None:
    """Copy texts that start at these places of `data`, each to its place in `out`."""
    i: cython.Py_ssize_t
    if not cython.compiled:
        data, starts, made = memoryview(data), memoryview(starts), memoryview(made)
        out = memoryview(out)
    for i in range(starts.shape[0]):
        copy(data, starts[i], starts[i] + made[i + 1] - made[i], out, made[i])


def select(
    chosen: cython.const[cython.uchar][::1],
    data: cython.const[cython.uchar][::1],
    offsets: cython.const[cython.longlong][::1],
    other: cython.const[cython.uchar][::1],
    other_offsets: cython.const[cython.longlong][::1],
    other_step: cython.Py_ssize_t,
    made: cython.longlong[::1],
    out: cython.uchar[::1],
) -> None:
    """Row by row the first column's text where `chosen`, else the other's; one text for all rows has the step 0."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    if not cython.compiled:
        chosen, data, offsets = memoryview(chosen), memoryview(data), memoryview(offsets)
        made, out = memoryview(made), memoryview(out)
        other, other_offsets = memoryview(other), memoryview(other_offsets)
    made[0] = 0
    for i in range(chosen.shape[0]):
        if chosen[i]:
            copy(data, offsets[i], offsets[i + 1], out, made[i])
            made[i + 1] = made[i] + offsets[i + 1] - offsets[i]
        else:
            at = i * other_step
            copy(other, other_offsets[at], other_offsets[at + 1], out, made[i])
            made[i + 1] = made[i] + other_offsets[at + 1] - other_offsets[at]


def same(
    data: cython.const[cython.uchar][::1],
    offsets: cython.const[cython.longlong][::1],
    other: cython.const[cython.uchar][::1],
    other_offsets: cython.const[cython.longlong][::1],
    other_step: cython.Py_ssize_t,
    found: cython.uchar[::1],
) -> None:
    """Whether the texts of each row are equal; one text for all rows has the step 0."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    length: cython.longlong
    if not cython.compiled:
        data, offsets, other = memoryview(data), memoryview(offsets), memoryview(other)
        other_offsets = memoryview(other_offsets)
    for i in range(found.shape[0]):
        at = i * other_step
        length = offsets[i + 1] - offsets[i]
        found[i] = length == other_offsets[at + 1] - other_offsets[at] and equal(
            data, offsets[i], other, other_offsets[at], length
        )


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def order(
    data: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    other: cython.const[cython.uchar][::1],
    there: cython.Py_ssize_t,
    other_end: cython.Py_ssize_t,
) -> cython.int:
    """-1, 0 or 1: some bytes compared with others."""
    shorter: cython.Py_ssize_t = end - at if end - at < other_end - there else other_end - there
    stop: cython.Py_ssize_t = at + shorter
    while at < stop and data[at] == other[there]:
        at += 1
        there += 1
    if at < stop:
        return 1 if data[at] > other[there] else -1
    return (end > at) - (other_end > there)


def compare(
    data: cython.const[cython.uchar][::1],
    offsets: cython.const[cython.longlong][::1],
    other: cython.const[cython.uchar][::1],
    other_offsets: cython.const[cython.longlong][::1],
    other_step: cython.Py_ssize_t,
    found: cython.schar[::1],
) -> None:
    """-1, 0 or 1 per row: the text compared with the other column's."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    if not cython.compiled:
        data, offsets = memoryview(data), memoryview(offsets)
        other, other_offsets = memoryview(other), memoryview(other_offsets)
    for i in range(found.shape[0]):
        at = i * other_step
        found[i] = order(data, offsets[i], offsets[i + 1], other, other_offsets[at], other_offsets[at + 1])


def best(
    data: cython.const[cython.uchar][::1],
    offsets: cython.const[cython.longlong][::1],
    slots: cython.const[cython.longlong][::1],
    times: cython.const[cython.longlong][::1],
    greatest: cython.bint,
    rows: cython.int[::1],
    found: cython.longlong[::1],
) -> cython.Py_ssize_t:
    """The row of each slot with the least or the greatest text, of equal ones the earliest; return how many slots.

    `rows` is zero by slot, and is again afterwards.
    """
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    way: cython.int
    count: cython.Py_ssize_t = 0
    if not cython.compiled:
        data, offsets, slots, times = memoryview(data), memoryview(offsets), memoryview(slots), memoryview(times)
        rows, found = memoryview(rows), memoryview(found)
    for i in range(slots.shape[0]):
        j = rows[slots[i]] - 1
        if j >= 0:
            way = order(data, offsets[i], offsets[i + 1], data, offsets[j], offsets[j + 1])
            if not greatest:
                way = -way
            if way < 0 or (way == 0 and times[i] >= times[j]):
                continue
        rows[slots[i]] = i + 1
    for i in range(slots.shape[0]):
        if rows[slots[i]] == i + 1:
            rows[slots[i]] = 0
            found[count] = i
            count += 1
    return count


def characters(
    data: cython.const[cython.uchar][::1], offsets: cython.const[cython.longlong][::1], found: cython.longlong[::1]
) -> None:
    """The number of characters of each text: the bytes that do not continue one."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    count: cython.longlong
    if not cython.compiled:
        data, offsets = memoryview(data), memoryview(offsets)
    for i in range(found.shape[0]):
        count = 0
        for at in range(offsets[i], offsets[i + 1]):
            count += (data[at] & 0xC0) != 0x80
        found[i] = count


def folded(
    data: cython.const[cython.uchar][::1],
    first: cython.uchar,
    last: cython.uchar,
    out: cython.uchar[::1],
) -> None:
    """The bytes with those from `first` to `last` in the other case: ASCII's letters alone."""
    i: cython.Py_ssize_t
    if not cython.compiled:
        data = memoryview(data)
    for i in range(data.shape[0]):
        out[i] = data[i] ^ 32 if first <= data[i] <= last else data[i]


def has_part(
    data: cython.const[cython.uchar][::1],
    offsets: cython.const[cython.longlong][::1],
    part: cython.const[cython.uchar][::1],
    place: cython.int,
    found: cython.uchar[::1],
) -> None:
    """Whether each text starts with the part (place 0), ends with it (1), has it anywhere (2), or is the part (3)."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    last: cython.Py_ssize_t
    length: cython.Py_ssize_t = part.shape[0]
    if not cython.compiled:
        data, offsets, part = memoryview(data), memoryview(offsets), memoryview(part)
    for i in range(found.shape[0]):
        at = offsets[i]
        last = offsets[i + 1] - length
        if place == 0 and last > at:
            last = at
        elif place == 1 and last > at:
            at = last
        elif place == 3 and last > at:
            last = at - 1
        found[i] = False
        while at <= last:
            if equal(data, at, part, 0, length):
                found[i] = True
                break
            at += 1


def joined(
    data: cython.const[cython.uchar][::1],
    offsets: cython.const[cython.longlong][::1],
    step: cython.Py_ssize_t,
    other: cython.const[cython.uchar][::1],
    other_offsets: cython.const[cython.longlong][::1],
    other_step: cython.Py_ssize_t,
    made: cython.longlong[::1],
    out: cython.uchar[::1],
) -> None:
    """The first text of each row followed by the other; one text for all rows has the step 0."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    there: cython.Py_ssize_t
    middle: cython.longlong
    if not cython.compiled:
        data, offsets, made = memoryview(data), memoryview(offsets), memoryview(made)
        out = memoryview(out)
        other, other_offsets = memoryview(other), memoryview(other_offsets)
    made[0] = 0
    for i in range(made.shape[0] - 1):
        at = i * step
        there = i * other_step
        middle = made[i] + offsets[at + 1] - offsets[at]
        copy(data, offsets[at], offsets[at + 1], out, made[i])
        copy(other, other_offsets[there], other_offsets[there + 1], out, middle)
        made[i + 1] = middle + other_offsets[there + 1] - other_offsets[there]


def decoded(
    data: cython.const[cython.uchar][::1],
    offsets: cython.const[cython.longlong][::1],
    binary: cython.bint,
    found: list[object],
) -> None:
    """Fill a list with the texts as Python strings, or with bytes."""
    i: cython.Py_ssize_t
    begin: cython.p_char
    if cython.compiled:
        if data.shape[0] == 0:
            for i in range(len(found)):
                found[i] = b"" if binary else ""
            return
        begin = cython.cast(cython.p_char, cython.address(data[0]))
        for i in range(len(found)):
            if binary:
                found[i] = begin[offsets[i] : offsets[i + 1]]
            else:
                found[i] = begin[offsets[i] : offsets[i + 1]].decode("utf-8", "surrogatepass")
        return
    whole, places = bytes(data), memoryview(offsets)
    for i in range(len(found)):
        value = whole[places[i] : places[i + 1]]
        found[i] = value if binary else value.decode("utf-8", "surrogatepass")
