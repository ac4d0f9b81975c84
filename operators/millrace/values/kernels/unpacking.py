"""Reading rows in MessagePack straight into columns.

The kernel takes frames as they come from programs: arrays of rows, each an array of values in their plain types. Where
it meets anything else it stops, and whoever decodes value by value accepts the frame or finds the fault: the kernel
accepts nothing that the other way refuses, and refuses nothing.
"""

import cython

# Kinds of values.
INTEGER: int = 0
DOUBLE: int = 1
BOOLEAN: int = 2
TEXT: int = 3
BYTES: int = 4


def count_rows(
    data: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    counts: cython.longlong[::1],
) -> cython.Py_ssize_t:
    """How many rows the frames announce in all, and in `counts` each of them; -1 where one is not an array.

    Frame f has the bytes from `starts[f]` to `starts[f + 1]`.
    """
    frame: cython.Py_ssize_t
    head: cython.Py_ssize_t
    total: cython.longlong = 0
    for frame in range(counts.shape[0]):
        head = _head_bytes(data, starts[frame], starts[frame + 1])
        if head == 0:
            return -1
        counts[frame] = data[starts[frame]] & 15 if head == 1 else _big_endian(data, starts[frame] + 1, head - 1)
        total += counts[frame]
    return total


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _head_bytes(
    data: cython.const[cython.uchar][::1], start: cython.longlong, stop: cython.longlong
) -> cython.Py_ssize_t:
    """The bytes that announce an array; 0 if there is none."""
    head: cython.Py_ssize_t = 0
    if start < stop:
        if 0x90 <= data[start] <= 0x9F:
            head = 1
        elif data[start] == 0xDC:
            head = 3
        elif data[start] == 0xDD:
            head = 5
    return head if start + head <= stop else 0


def read_frames(
    data: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    counts: cython.const[cython.longlong][::1],
    count: cython.Py_ssize_t,
    kinds: cython.const[cython.longlong][::1],
    nullable: cython.const[cython.longlong][::1],
    values: cython.longlong[::1],
    doubles: cython.double[::1],
    lengths: cython.longlong[::1],
    valid: cython.uchar[::1],
) -> cython.bint:
    """Read the `count` rows of frames that `count_rows` has counted; False where one is not as expected.

    Value j of row i goes to place `j * count + i` of `values`, or of `doubles`; of a text or of bytes it is where they
    start, and `lengths` says how long they are. `values` and `doubles` are the same memory.
    """
    frame: cython.Py_ssize_t
    end: cython.Py_ssize_t
    first: cython.Py_ssize_t = 0
    fits: cython.bint = True
    if not cython.compiled:
        data, kinds, nullable, valid = memoryview(data), memoryview(kinds), memoryview(nullable), memoryview(valid)
        values, doubles, lengths = memoryview(values), memoryview(doubles), memoryview(lengths)
    with cython.nogil:
        for frame in range(counts.shape[0]):
            end = starts[frame] + _head_bytes(data, starts[frame], starts[frame + 1])
            end = _rows(data, end, counts[frame], first, count, kinds, nullable, values, doubles, lengths, valid)
            if end != starts[frame + 1]:
                fits = False
                break
            first += counts[frame]
    return fits


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _rows(
    data: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    kinds: cython.const[cython.longlong][::1],
    nullable: cython.const[cython.longlong][::1],
    values: cython.longlong[::1],
    doubles: cython.double[::1],
    lengths: cython.longlong[::1],
    valid: cython.uchar[::1],
) -> cython.Py_ssize_t:
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    place: cython.Py_ssize_t
    tag: cython.Py_ssize_t
    size: cython.Py_ssize_t
    kind: cython.longlong
    end: cython.Py_ssize_t = data.shape[0]
    width: cython.Py_ssize_t = kinds.shape[0]
    for i in range(first, first + rows):
        if at >= end:
            return -1
        tag = data[at]
        if tag == 0x90 + width and width < 16:
            at += 1
        elif tag == 0xDC and at + 3 <= end and data[at + 1] * 256 + data[at + 2] == width:
            at += 3
        else:
            return -1
        for j in range(width):
            if at >= end:
                return -1
            place = j * count + i
            tag = data[at]
            if tag == 0xC0:
                if not nullable[j]:
                    return -1
                valid[place] = 0
                values[place] = 0
                lengths[place] = 0
                at += 1
                continue
            valid[place] = 1
            kind = kinds[j]
            if kind <= 1:
                if tag == 0xCB:
                    if kind == 0 or end - at < 9:
                        return -1
                    values[place] = _big_endian(data, at + 1, 8)
                    if not -1.7976931348623157e308 <= doubles[place] <= 1.7976931348623157e308:
                        return -1
                    at += 9
                    continue
                size = _integer_size(tag)
                if size < 0 or end - at <= size:
                    return -1
                values[place] = _integer(data, at, tag, size)
                if tag == 0xCF and values[place] < 0:
                    return -1
                if kind == 1:
                    doubles[place] = values[place]
                at += 1 + size
            elif kind == 2:
                if tag != 0xC2 and tag != 0xC3:
                    return -1
                values[place] = tag - 0xC2
                at += 1
            else:
                size = _head(tag, kind)
                if size < 0 or end - at <= size:
                    return -1
                lengths[place] = tag & 31 if size == 0 else _big_endian(data, at + 1, size)
                at += 1 + size
                if end - at < lengths[place]:
                    return -1
                values[place] = at
                at += lengths[place]
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _big_endian(
    data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.longlong:
    """An unsigned number of so many bytes; one of eight has the sign of its highest bit."""
    i: cython.Py_ssize_t
    value: cython.ulonglong = 0
    for i in range(at, at + size):
        value = (value << 8) | data[i]
    if cython.compiled:
        return cython.cast(cython.longlong, value)
    return value - 2**64 if value >= 2**63 else value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _integer_size(tag: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Bytes of an integer behind its tag, or -1 where the tag is none of an integer's."""
    if tag < 0x80 or tag >= 0xE0:
        return 0
    if 0xCC <= tag <= 0xCF:
        return 1 << (tag - 0xCC)
    if 0xD0 <= tag <= 0xD3:
        return 1 << (tag - 0xD0)
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _integer(
    data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, tag: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.longlong:
    value: cython.longlong
    if size == 0:
        return tag if tag < 0x80 else tag - 256
    value = _big_endian(data, at + 1, size)
    if tag >= 0xD0 and size < 8 and data[at + 1] >= 128:
        value -= cython.cast(cython.longlong, 1) << (8 * size) if cython.compiled else 1 << (8 * size)
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _head(tag: cython.Py_ssize_t, kind: cython.longlong) -> cython.Py_ssize_t:
    """Bytes of a length behind the tag of a text, or of bytes; 0 where the tag holds the length, -1 for another tag."""
    if kind == 3:
        if 0xA0 <= tag <= 0xBF:
            return 0
        return 1 << (tag - 0xD9) if 0xD9 <= tag <= 0xDB else -1
    return 1 << (tag - 0xC4) if 0xC4 <= tag <= 0xC6 else -1
