"""Reading tuples in lines of JSON straight into columns.

The kernel reads a line of JSON that carries a tuple of a known feed if the values have the types of their fields, in
their plain spelling. It says of any other line that it has not read it, and whoever reads it by the book accepts it
or finds the fault. So it accepts nothing that the book refuses, and it refuses nothing.

A line ends with a newline, which neither a text nor a number nor a blank contains: nothing is read beyond it.
"""

import cython

# Kinds of values. The last two are times in another unit than microseconds, without and with fractions.
INTEGER: int = 0
DOUBLE: int = 1
BOOLEAN: int = 2
TEXT: int = 3
TIME: int = 4
COUNT: int = 5
FRACTION: int = 6

# In the place of the length of a time that counts in another unit: how it was written.
WHOLE: int = 0
FRACTIONAL: int = 1
ISO: int = 2

# Whose tuple a line has, if nobody's: it was not read, or it is empty.
UNREAD: int = -1
EMPTY: int = -2

# In the place of a feed's own name: any will do, and that of the main feed.
ANY = cython.declare(cython.Py_ssize_t, -1)
MAIN = cython.declare(cython.Py_ssize_t, -2)

# A number with another digit still fits 64 bits.
MOST = cython.declare(cython.longlong, 10**17)


def read_tuples(
    data: cython.const[cython.uchar][:],
    text: cython.uchar[:],
    at: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    names: cython.const[cython.uchar][:],
    table: cython.const[cython.longlong][:],
    bare: cython.bint,
    ascii_only: cython.bint,
    numbers: cython.longlong[:],
    doubles: cython.double[:],
    valid: cython.uchar[:],
) -> cython.bint:
    """Read so many lines of `data` from this byte on; whether all of them are one feed's tuples.

    `table` has the number of feeds, six numbers for each (where its stream's and its own name are in `names`, the place
    of its first field in `table`, and how many there are), how many fields a feed has at most, and four numbers for
    each field: where its name is, its kind, and whether it may be null. A `bare` line is the object of the only feed.

    `numbers` has where each line starts and the last one ends, the feed that each line belongs to, how long it is
    without its end, then the values and then the lengths of texts: value j of line i in place `j * count + i`.
    `doubles` is the same memory. A text is where it starts in `text`, a copy of `data` in which escapes are replaced.
    `ascii_only`: lines with other texts are not read.
    """
    i: cython.Py_ssize_t
    start: cython.Py_ssize_t
    end: cython.Py_ssize_t
    feed: cython.Py_ssize_t = 0
    found: cython.Py_ssize_t
    first: cython.Py_ssize_t = -1
    alone: cython.bint = True
    owners: cython.Py_ssize_t = count + 1
    sizes: cython.Py_ssize_t = owners + count
    values: cython.Py_ssize_t = sizes + count
    if not cython.compiled:
        data, text, names, table = memoryview(data), memoryview(text), memoryview(names), memoryview(table)
        numbers, doubles, valid = memoryview(numbers), memoryview(doubles), memoryview(valid)
    with cython.nogil:
        for i in range(count):
            start = at
            numbers[i] = start
            if bare:
                found = 0
                at = _object(text, start, i, count, names, table, 0, ascii_only, numbers, doubles, valid, values)
                if at >= 0:
                    at = _blank(text, at)
                    if text[at] != 10:
                        at = -1
            else:
                found = _line(text, start, i, count, names, table, feed, ascii_only, numbers, doubles, valid, values)
                at = numbers[i + 1] if found >= 0 else -1
            if at < 0:
                at = start
                while data[at] != 10:
                    at += 1
                found = -1
            end = at
            at += 1
            while end > start and data[end - 1] == 13:
                end -= 1
            if end == start:
                found = -2
            numbers[owners + i] = found
            numbers[sizes + i] = end - start
            if found >= 0:
                feed = found
            if i == 0:
                first = found
            alone = alone and found >= 0 and found == first
        numbers[count] = at
    return alone


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _line(
    text: cython.uchar[:],
    at: cython.Py_ssize_t,
    i: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    names: cython.const[cython.uchar][:],
    table: cython.const[cython.longlong][:],
    guess: cython.Py_ssize_t,
    ascii_only: cython.bint,
    numbers: cython.longlong[:],
    doubles: cython.double[:],
    valid: cython.uchar[:],
    values: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Read a line; the feed whose tuple it has, and where it ends in the place of the next line's start, or -1."""
    key: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    stream: cython.Py_ssize_t = -1
    stream_end: cython.Py_ssize_t = -1
    own: cython.Py_ssize_t = -1
    own_end: cython.Py_ssize_t = -1
    rows: cython.Py_ssize_t = -1
    rows_end: cython.Py_ssize_t = -1
    known: cython.Py_ssize_t = -1
    at = _blank(text, at)
    if text[at] != 123:
        return -1
    at += 1
    while True:
        at = _blank(text, at)
        if text[at] != 34:
            return -1
        key = _key(text, at + 1)
        if key == 0:
            return -1
        at = _blank(text, at + key + 2)
        if text[at] != 58:
            return -1
        at = _blank(text, at + 1)
        if key == 5:
            if rows >= 0:
                return -1
            rows = at
            if known < 0:  # its stream is not known yet
                at = rows_end = _skipped(text, at)
            else:
                at = _object(text, at, i, count, names, table, known, ascii_only, numbers, doubles, valid, values)
            if at < 0:
                return -1
        else:
            if text[at] != 34:
                return -1
            begin = at + 1
            at = _plain(text, begin)
            if at < 0:
                return -1
            if key == 6:
                if stream >= 0:
                    return -1
                stream = begin
                stream_end = at
                known = _feed_of(text, stream, stream_end, ANY, ANY, names, table, guess)
                if known < 0:
                    return -1
            else:
                if own >= 0:
                    return -1
                own = begin
                own_end = at
            at += 1
        at = _blank(text, at)
        if text[at] == 44:
            at += 1
        elif text[at] == 125:
            break
        else:
            return -1
    if known < 0 or rows < 0:
        return -1
    at = _blank(text, at + 1)
    if text[at] != 10:
        return -1
    numbers[i + 1] = at
    if rows_end >= 0 and rows_end != _object(
        text, rows, i, count, names, table, known, ascii_only, numbers, doubles, valid, values
    ):
        return -1
    if own >= 0:
        return _feed_of(text, stream, stream_end, own, own_end, names, table, guess)
    return _feed_of(text, stream, stream_end, MAIN, MAIN, names, table, guess)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _key(text: cython.uchar[:], at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The length of the key of a line that starts here: 6 for stream, 5 for tuple, 4 for feed, or 0."""
    if text[at] == 115 and text[at + 1] == 116 and text[at + 2] == 114 and text[at + 3] == 101:
        return 6 if text[at + 4] == 97 and text[at + 5] == 109 and text[at + 6] == 34 else 0
    if text[at] == 116 and text[at + 1] == 117 and text[at + 2] == 112 and text[at + 3] == 108:
        return 5 if text[at + 4] == 101 and text[at + 5] == 34 else 0
    if text[at] == 102 and text[at + 1] == 101 and text[at + 2] == 101 and text[at + 3] == 100:
        return 4 if text[at + 4] == 34 else 0
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _feed_of(
    text: cython.uchar[:],
    stream: cython.Py_ssize_t,
    stream_end: cython.Py_ssize_t,
    own: cython.Py_ssize_t,
    own_end: cython.Py_ssize_t,
    names: cython.const[cython.uchar][:],
    table: cython.const[cython.longlong][:],
    guess: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """The feed with these names, or -1. A line without a feed's name is of the main one, whose name is at 0."""
    tried: cython.Py_ssize_t
    place: cython.Py_ssize_t
    feeds: cython.Py_ssize_t = table[0]
    for tried in range(feeds):  # noqa: B007
        place = 1 + 6 * guess
        if _same(text, stream, stream_end, names, table[place], table[place + 1]) and (
            own == ANY
            or (own == MAIN and table[place + 2] == 0)
            or (own >= 0 and _same(text, own, own_end, names, table[place + 2], table[place + 3]))
        ):
            return guess
        guess = guess + 1 if guess + 1 < feeds else 0
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _object(
    text: cython.uchar[:],
    at: cython.Py_ssize_t,
    i: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    names: cython.const[cython.uchar][:],
    table: cython.const[cython.longlong][:],
    feed: cython.Py_ssize_t,
    ascii_only: cython.bint,
    numbers: cython.longlong[:],
    doubles: cython.double[:],
    valid: cython.uchar[:],
    values: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Read an object with a tuple of this feed; where it ends, or -1."""
    j: cython.Py_ssize_t
    tried: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    place: cython.Py_ssize_t
    size: cython.Py_ssize_t
    kind: cython.longlong
    fields: cython.Py_ssize_t = table[5 + 6 * feed]
    width: cython.Py_ssize_t = table[6 + 6 * feed]
    lengths: cython.Py_ssize_t = table[1 + 6 * table[0]] * count  # as many values as the widest feed has
    left: cython.Py_ssize_t = width
    if text[at] != 123:
        return -1
    for j in range(width):
        valid[j * count + i] = 2  # not seen
    j = 0
    at = _blank(text, at + 1)
    if text[at] == 125 and width > 0:
        at += 1
    else:
        while True:
            if text[at] != 34 or left == 0:
                return -1
            at += 1
            tried = 0
            size = -1
            while tried < width:  # the field behind the last one is tried first
                begin = fields + 4 * j
                size = table[begin + 1] - table[begin]
                if _starts(text, at, names, table[begin], size):
                    break
                j = j + 1 if j + 1 < width else 0
                tried += 1
            place = j * count + i
            if tried == width or valid[place] != 2:
                return -1
            left -= 1
            at = _blank(text, at + size)
            if text[at] != 58:
                return -1
            at = _blank(text, at + 1)
            kind = table[begin + 2]
            valid[place] = 1
            place += values
            if text[at] == 110:
                if table[begin + 3] == 0 or text[at + 1] != 117 or text[at + 2] != 108 or text[at + 3] != 108:
                    return -1
                valid[place - values] = 0
                numbers[place] = 0
                numbers[place + lengths] = 0
                at += 4
            elif kind == 0:
                at = _integer(text, at, numbers, place)
            elif kind == 1:
                at = _double(text, at, doubles, place)
            elif kind == 2:
                at = _boolean(text, at, numbers, place)
            elif kind == 3:
                at = _text(text, at, ascii_only, numbers, place, lengths)
            elif text[at] == 34:
                at = _time(text, at, numbers, place)
                numbers[place + lengths] = 2
            else:
                begin = at
                at = _integer(text, begin, numbers, place)
                numbers[place + lengths] = 0
                if kind == 6 and (at < 0 or text[at] == 46 or text[at] == 101 or text[at] == 69):
                    at = _double(text, begin, doubles, place)
                    numbers[place + lengths] = 1
            if at < 0:
                return -1
            j = j + 1 if j + 1 < width else 0
            at = _blank(text, at)
            if text[at] == 44:
                at = _blank(text, at + 1)
            elif text[at] == 125:
                at += 1
                break
            else:
                return -1
    if left:
        for j in range(width):
            place = j * count + i
            if valid[place] == 2:
                if table[fields + 4 * j + 3] == 0:
                    return -1
                valid[place] = 0
                numbers[values + place] = 0
                numbers[values + place + lengths] = 0
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _skipped(text: cython.uchar[:], at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Where an object ends that has only plain values, or -1; whether it is right is not looked at."""
    if text[at] != 123:
        return -1
    at += 1
    while text[at] != 125:
        if text[at] == 10:
            return -1
        if text[at] == 34:
            at += 1
            while text[at] != 34:
                if text[at] == 10 or text[at + 1] == 10:
                    return -1
                at += 2 if text[at] == 92 else 1
        at += 1
    return at + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _blank(text: cython.uchar[:], at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The first byte from here on that is not blank."""
    while text[at] == 32 or text[at] == 9 or text[at] == 13:
        at += 1
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _plain(text: cython.uchar[:], at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Where a text ends in which every byte stands for itself, or -1."""
    while text[at] != 34:
        if text[at] == 92 or text[at] < 32:
            return -1
        at += 1
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _same(
    text: cython.uchar[:],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    names: cython.const[cython.uchar][:],
    begin: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
) -> cython.bint:
    """Whether this part of the text is the name."""
    return end - at == stop - begin and _starts(text, at, names, begin, stop - begin)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _starts(
    text: cython.uchar[:],
    at: cython.Py_ssize_t,
    names: cython.const[cython.uchar][:],
    begin: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.bint:
    """Whether the name stands here."""
    i: cython.Py_ssize_t
    for i in range(size):  # noqa: SIM110 (a generator would not be C)
        if text[at + i] != names[begin + i]:
            return False
    return True


# Each of the following reads one value, puts it into its place, and returns where it ends, or -1.


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _integer(
    text: cython.uchar[:],
    at: cython.Py_ssize_t,
    numbers: cython.longlong[:],
    place: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """An integer of at most 18 digits, which fits whatever they are."""
    first: cython.Py_ssize_t
    value: cython.longlong = 0
    negative: cython.bint = text[at] == 45
    if negative:
        at += 1
    first = at
    while 48 <= text[at] <= 57:
        value = value * 10 + (text[at] - 48)
        at += 1
        if at - first > 18:
            return -1
    if at == first or (text[first] == 48 and at - first > 1):
        return -1
    numbers[place] = -value if negative else value
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _double(
    text: cython.uchar[:],
    at: cython.Py_ssize_t,
    doubles: cython.double[:],
    place: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """A number of at most 18 digits between 1e-22 and 1e22 times its digits, rounded as by the book."""
    first: cython.Py_ssize_t
    digits: cython.longlong = 0
    exponent: cython.Py_ssize_t = 0
    power: cython.Py_ssize_t = 0
    below: cython.bint
    negative: cython.bint = text[at] == 45
    value: cython.double
    if negative:
        at += 1
    first = at
    while 48 <= text[at] <= 57:
        if digits >= MOST:
            return -1
        digits = digits * 10 + (text[at] - 48)
        at += 1
    if at == first or (text[first] == 48 and at - first > 1):
        return -1
    if text[at] == 46:
        at += 1
        while 48 <= text[at] <= 57:
            if digits >= MOST:
                return -1
            digits = digits * 10 + (text[at] - 48)
            exponent -= 1
            at += 1
        if exponent == 0:
            return -1
    if text[at] == 101 or text[at] == 69:
        at += 1
        below = text[at] == 45
        if text[at] == 45 or text[at] == 43:
            at += 1
        first = at
        while 48 <= text[at] <= 57 and at - first < 4:
            power = power * 10 + (text[at] - 48)
            at += 1
        if at == first or at - first == 4:
            return -1
        exponent += -power if below else power
    if exponent < -22 or exponent > 22:
        return -1
    value = _rounded(digits, exponent)
    if value < 0:
        return -1
    doubles[place] = -value if negative else value
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _rounded(digits: cython.longlong, exponent: cython.Py_ssize_t) -> cython.double:
    """The double nearest to `digits * 10 ** exponent`, or -1 where 100 bits do not decide which one that is.

    Digits and power are exact as one or two doubles; so is the remainder of their quotient, or the error of their
    product. The rest, far below the last bit, is known well enough if neither a little more nor a little less of it
    changes the sum.
    """
    high: cython.double = float(digits)
    low: cython.double = (
        float(digits - cython.cast(cython.longlong, high)) if cython.compiled else float(digits - int(high))
    )
    power: cython.double = _power(-exponent if exponent < 0 else exponent)
    result: cython.double
    error: cython.double
    slack: cython.double
    more: cython.double
    less: cython.double
    if exponent == 0:
        return high  # the conversion has rounded
    if digits == 0:
        return 0.0
    if exponent < 0:
        result = high / power
        error = (_error_of_difference(high, result, power) + low) / power
    else:
        result = high * power
        error = -_error_of_difference(result, high, power) + low * power
    slack = result * 1e-30
    more = result + (error + slack)
    less = result + (error - slack)
    return more if more == less else -1.0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _power(exponent: cython.Py_ssize_t) -> cython.double:
    """A power of ten that a double holds exactly, as it does all its factors."""
    power: cython.double = 10.0 if exponent & 1 else 1.0
    if exponent & 2:
        power *= 1e2
    if exponent & 4:
        power *= 1e4
    if exponent & 8:
        power *= 1e8
    return power * 1e16 if exponent & 16 else power


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _error_of_difference(whole: cython.double, one: cython.double, other: cython.double) -> cython.double:
    """`whole - one * other`, exactly, where the product is nearly the whole (Dekker's product)."""
    split: cython.double = 134217729.0 * one
    one_high: cython.double = split - (split - one)
    one_low: cython.double = one - one_high
    other_high: cython.double
    other_low: cython.double
    product: cython.double = one * other
    split = 134217729.0 * other
    other_high = split - (split - other)
    other_low = other - other_high
    return (whole - product) - (
        ((one_high * other_high - product) + one_high * other_low + one_low * other_high) + one_low * other_low
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _boolean(
    text: cython.uchar[:],
    at: cython.Py_ssize_t,
    numbers: cython.longlong[:],
    place: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    if text[at] == 116 and text[at + 1] == 114 and text[at + 2] == 117 and text[at + 3] == 101:
        numbers[place] = 1
        return at + 4
    if text[at] == 102 and text[at + 1] == 97 and text[at + 2] == 108 and text[at + 3] == 115 and text[at + 4] == 101:
        numbers[place] = 0
        return at + 5
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _text(
    text: cython.uchar[:],
    at: cython.Py_ssize_t,
    ascii_only: cython.bint,
    numbers: cython.longlong[:],
    place: cython.Py_ssize_t,
    lengths: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """A text. It is put together where it stands, as its escapes take more bytes than what they say."""
    point: cython.longlong
    to: cython.Py_ssize_t
    if text[at] != 34:
        return -1
    at += 1
    numbers[place] = at
    while text[at] != 34 and text[at] != 92:
        if text[at] < 32 or (ascii_only and text[at] > 127):
            return -1
        at += 1
    to = at
    while text[at] != 34:
        if text[at] < 32 or (ascii_only and text[at] > 127):
            return -1
        if text[at] != 92:
            text[to] = text[at]
            to += 1
            at += 1
            continue
        point = _escaped(text, at + 1)
        if point < 0:
            return -1
        if text[at + 1] != 117:
            at += 2
        else:
            at += 6 if point < 0x10000 else 12
        to = _encoded(text, to, point)
    numbers[place + lengths] = to - numbers[place]
    return at + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _escaped(text: cython.uchar[:], at: cython.Py_ssize_t) -> cython.longlong:
    """The code point of an escape, whose backslash stands before this byte, or -1."""
    high: cython.longlong
    low: cython.longlong
    if text[at] == 34 or text[at] == 92 or text[at] == 47:
        return text[at]
    if text[at] == 110:
        return 10
    if text[at] == 116:
        return 9
    if text[at] == 114:
        return 13
    if text[at] == 98:
        return 8
    if text[at] == 102:
        return 12
    if text[at] != 117:
        return -1
    high = _hexadecimal(text, at + 1)
    if high < 0xD800 or high > 0xDFFF:
        return high
    if high > 0xDBFF or text[at + 5] != 92 or text[at + 6] != 117:
        return -1
    low = _hexadecimal(text, at + 7)
    if low < 0xDC00 or low > 0xDFFF:
        return -1
    return 0x10000 + (high - 0xD800) * 1024 + low - 0xDC00


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _hexadecimal(text: cython.uchar[:], at: cython.Py_ssize_t) -> cython.longlong:
    """The number of four hexadecimal digits, or -1."""
    i: cython.Py_ssize_t
    value: cython.longlong = 0
    for i in range(at, at + 4):
        if 48 <= text[i] <= 57:
            value = value * 16 + (text[i] - 48)
        elif 65 <= text[i] <= 70:
            value = value * 16 + (text[i] - 55)
        elif 97 <= text[i] <= 102:
            value = value * 16 + (text[i] - 87)
        else:
            return -1
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _encoded(text: cython.uchar[:], to: cython.Py_ssize_t, point: cython.longlong) -> cython.Py_ssize_t:
    """Write a code point in UTF-8; where it ends."""
    if point < 0x80:
        text[to] = point
        return to + 1
    if point < 0x800:
        text[to] = 0xC0 | (point >> 6)
        text[to + 1] = 0x80 | (point & 63)
        return to + 2
    if point < 0x10000:
        text[to] = 0xE0 | (point >> 12)
        text[to + 1] = 0x80 | ((point >> 6) & 63)
        text[to + 2] = 0x80 | (point & 63)
        return to + 3
    text[to] = 0xF0 | (point >> 18)
    text[to + 1] = 0x80 | ((point >> 12) & 63)
    text[to + 2] = 0x80 | ((point >> 6) & 63)
    text[to + 3] = 0x80 | (point & 63)
    return to + 4


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _pair(text: cython.uchar[:], at: cython.Py_ssize_t) -> cython.longlong:
    """Two digits, or a number below -999."""
    if 48 <= text[at] <= 57 and 48 <= text[at + 1] <= 57:
        return (text[at] - 48) * 10 + (text[at + 1] - 48)
    return -100_000


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _time(
    text: cython.uchar[:],
    at: cython.Py_ssize_t,
    numbers: cython.longlong[:],
    place: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """A time as `"2026-01-01T00:00:00Z"`, with at most six digits of fraction, and `Z`, an offset or no zone."""
    year: cython.longlong
    month: cython.longlong
    day: cython.longlong
    hour: cython.longlong
    minute: cython.longlong
    second: cython.longlong
    fraction: cython.longlong = 0
    scale: cython.longlong = 1_000_000
    east: cython.longlong = 0
    offset: cython.longlong
    days: cython.longlong
    if text.shape[0] - at < 22:
        return -1
    at += 1
    if text[at + 4] != 45 or text[at + 7] != 45 or text[at + 13] != 58 or text[at + 16] != 58:
        return -1
    if text[at + 10] != 84 and text[at + 10] != 32:
        return -1
    year = _pair(text, at) * 100 + _pair(text, at + 2)
    month = _pair(text, at + 5)
    day = _pair(text, at + 8)
    hour = _pair(text, at + 11)
    minute = _pair(text, at + 14)
    second = _pair(text, at + 17)
    if year < 1 or month < 1 or month > 12 or day < 1 or day > 28 + _beyond_28(year, month):
        return -1
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return -1
    at += 19
    if text[at] == 46:
        at += 1
        while 48 <= text[at] <= 57:
            scale //= 10
            if scale == 0:
                return -1
            fraction += (text[at] - 48) * scale
            at += 1
        if scale == 1_000_000:
            return -1
    if text[at] == 90:
        at += 1
    elif (text[at] == 43 or text[at] == 45) and text[at + 1] != 34 and text[at + 2] != 34 and text[at + 3] == 58:
        east = _pair(text, at + 1) * 60
        offset = _pair(text, at + 4) if text[at + 4] != 34 else -1
        if east < 0 or east >= 1440 or offset < 0 or offset > 59:
            return -1
        east = east + offset if text[at] == 43 else -east - offset
        at += 6
    if text[at] != 34:
        return -1
    # Years begin in March: the leap day is then the last of its year.
    if month <= 2:
        year -= 1
        month += 12
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719_469
    numbers[place] = (((days * 24 + hour) * 60 + minute - east) * 60 + second) * 1_000_000 + fraction
    return at + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _beyond_28(year: cython.longlong, month: cython.longlong) -> cython.longlong:
    """Days of a month beyond the 28th."""
    if month == 2:
        return 1 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 0
    return 2 if month == 4 or month == 6 or month == 9 or month == 11 else 3
