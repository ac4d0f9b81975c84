"""Reading lines of JSON that are alike straight into columns.

Lines of one writer differ in their values alone: what stands between the values (`literals`: braces, keys, commas,
blanks) is the same bytes each time. A line that has these bytes, and between them values of the expected kinds in
their plain spelling, is read; of any other the kernel says only that it has not read it, and whoever reads it by the
book accepts it or finds the fault. The kernel therefore accepts nothing that the book refuses, and refuses nothing.
"""

import cython

# Kinds of values.
INTEGER: int = 0
DOUBLE: int = 1
BOOLEAN: int = 2
TEXT: int = 3
TIME: int = 4

# A number with another digit still fits 64 bits.
MOST = cython.declare(cython.longlong, 10**17)

# Powers of ten that a double holds exactly, as `read_lines` takes them.
POWERS: tuple[float, ...] = tuple(float(10**exponent) for exponent in range(23))


def find_lines(text: cython.const[cython.uchar][:], starts: cython.longlong[:], ends: cython.longlong[:]) -> int:
    """Where each line of a text that ends with a newline starts and ends, without its line end; how many there are."""
    i: cython.Py_ssize_t
    begin: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    if not cython.compiled:
        text, starts, ends = memoryview(text), memoryview(starts), memoryview(ends)
    for i in range(text.shape[0]):
        if text[i] == 10:
            starts[count] = begin
            ends[count] = i
            while ends[count] > begin and text[ends[count] - 1] == 13:
                ends[count] -= 1
            count += 1
            begin = i + 1
    return count


def find_heads(
    text: cython.const[cython.uchar][:],
    starts: cython.const[cython.longlong][:],
    ends: cython.const[cython.longlong][:],
    heads: cython.const[cython.uchar][:],
    bounds: cython.const[cython.longlong][:],
    found: cython.longlong[:],
) -> None:
    """Which of the heads each line begins with, or -1. The one of the line before is tried first, then the next."""
    i: cython.Py_ssize_t
    tried: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = bounds.shape[0] - 1
    if not cython.compiled:
        text, starts, ends = memoryview(text), memoryview(starts), memoryview(ends)
        heads, bounds, found = memoryview(heads), memoryview(bounds), memoryview(found)
    for i in range(found.shape[0]):
        found[i] = -1
        tried = 0
        while tried < count and not _same(text, starts[i], ends[i], heads, bounds[at], bounds[at + 1]):
            at = at + 1 if at + 1 < count else 0
            tried += 1
        if tried < count:
            found[i] = at


def read_lines(
    text: cython.const[cython.uchar][:],
    starts: cython.const[cython.longlong][:],
    ends: cython.const[cython.longlong][:],
    literals: cython.const[cython.uchar][:],
    bounds: cython.const[cython.longlong][:],
    kinds: cython.const[cython.longlong][:],
    nullable: cython.const[cython.longlong][:],
    powers: cython.const[cython.double][:],
    values: cython.longlong[:],
    doubles: cython.double[:],
    lengths: cython.longlong[:],
    valid: cython.uchar[:],
) -> cython.Py_ssize_t:
    """Read lines up to the first that is not alike; return how many were read.

    Literal number j stands before value j, and the last one behind all values. Value j of line i goes to place
    `j * count + i` of `values`, or of `doubles`; of a text it is where it starts, and `lengths` says how long it is.
    """
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    place: cython.Py_ssize_t
    kind: cython.longlong
    count: cython.Py_ssize_t = starts.shape[0]
    width: cython.Py_ssize_t = kinds.shape[0]
    if not cython.compiled:
        text, starts, ends = memoryview(text), memoryview(starts), memoryview(ends)
        literals, bounds, powers = memoryview(literals), memoryview(bounds), memoryview(powers)
        kinds, nullable, valid = memoryview(kinds), memoryview(nullable), memoryview(valid)
        values, doubles, lengths = memoryview(values), memoryview(doubles), memoryview(lengths)
    for i in range(count):
        at = starts[i]
        end = ends[i]
        for j in range(width):
            if not _same(text, at, end, literals, bounds[j], bounds[j + 1]):
                return i
            at += bounds[j + 1] - bounds[j]
            place = j * count + i
            if at >= end:
                return i
            if text[at] == 110:  # null
                if not nullable[j] or not _is_null(text, at, end):
                    return i
                valid[place] = 0
                values[place] = 0
                lengths[place] = 0
                at += 4
                continue
            valid[place] = 1
            kind = kinds[j]
            if kind == 0:
                at = _integer(text, at, end, values, place)
            elif kind == 1:
                at = _double(text, at, end, powers, doubles, place)
            elif kind == 2:
                at = _boolean(text, at, end, values, place)
            elif kind == 3:
                at = _text(text, at, end, values, lengths, place)
            elif text[at] == 34:
                at = _time(text, at, end, values, place)
            else:
                at = _integer(text, at, end, values, place)
            if at < 0:
                return i
        if end - at != bounds[width + 1] - bounds[width]:
            return i
        if not _same(text, at, end, literals, bounds[width], bounds[width + 1]):
            return i
    return count


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _same(
    text: cython.const[cython.uchar][:],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    literals: cython.const[cython.uchar][:],
    begin: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
) -> cython.bint:
    """Whether the literal stands here."""
    i: cython.Py_ssize_t
    if end - at < stop - begin:
        return False
    for i in range(stop - begin):  # noqa: SIM110 (a generator would not be C)
        if text[at + i] != literals[begin + i]:
            return False
    return True


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_null(text: cython.const[cython.uchar][:], at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    return end - at >= 4 and text[at + 1] == 117 and text[at + 2] == 108 and text[at + 3] == 108


# Each of the following reads one value, puts it into its place, and returns where it ends, or -1.


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _integer(
    text: cython.const[cython.uchar][:],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    values: cython.longlong[:],
    place: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """An integer of at most 18 digits, which fits whatever they are."""
    first: cython.Py_ssize_t
    value: cython.longlong = 0
    negative: cython.bint = text[at] == 45
    if negative:
        at += 1
    first = at
    while at < end and 48 <= text[at] <= 57:
        value = value * 10 + (text[at] - 48)
        at += 1
        if at - first > 18:
            return -1
    if at == first or (text[first] == 48 and at - first > 1):
        return -1
    values[place] = -value if negative else value
    return at


@cython.cfunc
@cython.exceptval(check=False)
def _double(
    text: cython.const[cython.uchar][:],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    powers: cython.const[cython.double][:],
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
    while at < end and 48 <= text[at] <= 57:
        if digits >= MOST:
            return -1
        digits = digits * 10 + (text[at] - 48)
        at += 1
    if at == first or (text[first] == 48 and at - first > 1):
        return -1
    if at < end and text[at] == 46:
        at += 1
        while at < end and 48 <= text[at] <= 57:
            if digits >= MOST:
                return -1
            digits = digits * 10 + (text[at] - 48)
            exponent -= 1
            at += 1
        if exponent == 0:
            return -1
    if at < end and (text[at] == 101 or text[at] == 69):
        at += 1
        below = at < end and text[at] == 45
        if at < end and (text[at] == 45 or text[at] == 43):
            at += 1
        first = at
        while at < end and 48 <= text[at] <= 57 and at - first < 4:
            power = power * 10 + (text[at] - 48)
            at += 1
        if at == first or at - first == 4:
            return -1
        exponent += -power if below else power
    if exponent < -22 or exponent > 22:
        return -1
    value = _rounded(digits, exponent, powers)
    if value < 0:
        return -1
    doubles[place] = -value if negative else value
    return at


@cython.cfunc
@cython.exceptval(check=False)
def _rounded(
    digits: cython.longlong, exponent: cython.Py_ssize_t, powers: cython.const[cython.double][:]
) -> cython.double:
    """The double nearest to `digits * 10 ** exponent`, or -1 where 100 bits do not decide which one that is.

    Digits and power are exact as one or two doubles; so is the remainder of their quotient, or the error of their
    product. The rest, far below the last bit, is known well enough if neither a little more nor a little less of it
    changes the sum.
    """
    high: cython.double = digits
    low: cython.double = digits - cython.cast(cython.longlong, high) if cython.compiled else float(digits - int(high))
    power: cython.double
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
        power = powers[-exponent]
        result = high / power
        error = (_error_of_difference(high, result, power) + low) / power
    else:
        power = powers[exponent]
        result = high * power
        error = -_error_of_difference(result, high, power) + low * power
    slack = result * 1e-30
    more = result + (error + slack)
    less = result + (error - slack)
    return more if more == less else -1.0


@cython.cfunc
@cython.inline
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
@cython.exceptval(check=False)
def _boolean(
    text: cython.const[cython.uchar][:],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    values: cython.longlong[:],
    place: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    if end - at >= 4 and text[at] == 116 and text[at + 1] == 114 and text[at + 2] == 117 and text[at + 3] == 101:
        values[place] = 1
        return at + 4
    if (
        end - at >= 5
        and text[at] == 102
        and text[at + 1] == 97
        and text[at + 2] == 108
        and text[at + 3] == 115
        and text[at + 4] == 101
    ):
        values[place] = 0
        return at + 5
    return -1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _text(
    text: cython.const[cython.uchar][:],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    values: cython.longlong[:],
    lengths: cython.longlong[:],
    place: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """A text without escapes and control characters."""
    first: cython.Py_ssize_t
    if text[at] != 34:
        return -1
    at += 1
    first = at
    while at < end and text[at] != 34:
        if text[at] == 92 or text[at] < 32:
            return -1
        at += 1
    if at >= end:
        return -1
    values[place] = first
    lengths[place] = at - first
    return at + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _pair(text: cython.const[cython.uchar][:], at: cython.Py_ssize_t) -> cython.longlong:
    """Two digits, or a number below -999."""
    if 48 <= text[at] <= 57 and 48 <= text[at + 1] <= 57:
        return (text[at] - 48) * 10 + (text[at + 1] - 48)
    return -100_000


@cython.cfunc
@cython.exceptval(check=False)
def _time(
    text: cython.const[cython.uchar][:],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    values: cython.longlong[:],
    place: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """A time as `"2026-01-01T00:00:00Z"`, with or without its `Z` and at most six digits of fraction."""
    year: cython.longlong
    month: cython.longlong
    day: cython.longlong
    hour: cython.longlong
    minute: cython.longlong
    second: cython.longlong
    fraction: cython.longlong = 0
    scale: cython.longlong = 1_000_000
    days: cython.longlong
    if end - at < 21:
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
        while at < end and 48 <= text[at] <= 57:
            scale //= 10
            if scale == 0:
                return -1
            fraction += (text[at] - 48) * scale
            at += 1
        if scale == 1_000_000:
            return -1
    if at < end and text[at] == 90:
        at += 1
    if at >= end or text[at] != 34:
        return -1
    # Years begin in March: the leap day is then the last of its year.
    if month <= 2:
        year -= 1
        month += 12
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719_469
    values[place] = (((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000 + fraction
    return at + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _beyond_28(year: cython.longlong, month: cython.longlong) -> cython.longlong:
    """Days of a month beyond the 28th."""
    if month == 2:
        return 1 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 0
    return 2 if month == 4 or month == 6 or month == 9 or month == 11 else 3
