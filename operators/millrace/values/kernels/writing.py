"""Writing rows as text: JSON lines and comma-separated values, from columns straight to bytes.

Between the values of a row stand `literals`: braces, keys, commas, the line end. Integers, times and booleans are
spelt here. The values of other columns are spelt already, a comma between them; a text in quotation marks may have
commas of its own.
"""

import cython

# Kinds of values.
INTEGER: int = 0
TIME: int = 1
BOOLEAN: int = 2
SPELT: int = 3

# Bytes that a value of each kind takes at most; `SPELT` has no bound.
LONGEST: tuple[int, ...] = (20, 29, 5)

DAY_US = cython.declare(cython.longlong, 86_400_000_000)
# Microseconds from the year 1, and days from 1 March of the year 0, to 1970.
YEAR_1_US = cython.declare(cython.longlong, 62_135_596_800_000_000)
MARCH_DAYS = cython.declare(cython.longlong, 306)
LEAST = cython.declare(cython.longlong, -9_223_372_036_854_775_808)
LEAST_TEXT: bytes = b"-9223372036854775808"


def write_rows(
    kinds: cython.const[cython.longlong][:],
    values: cython.const[cython.longlong][:],
    valid: cython.const[cython.uchar][:],
    spelt: cython.const[cython.uchar][:],
    places: cython.longlong[:],
    literals: cython.const[cython.uchar][:],
    bounds: cython.const[cython.longlong][:],
    null: cython.const[cython.uchar][:],
    quoted: cython.bint,
    out: cython.uchar[:],
) -> int:
    """The bytes written; times are in quotation marks if `quoted`. Column c of `values` and `valid` starts at c times
    the number of rows; `places` are where the values of a `SPELT` column start, and move on."""
    width: cython.Py_ssize_t = kinds.shape[0]
    count: cython.Py_ssize_t = valid.shape[0] // width
    row: cython.Py_ssize_t
    column: cython.Py_ssize_t
    place: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    if not cython.compiled:
        kinds, values, valid, spelt = memoryview(kinds), memoryview(values), memoryview(valid), memoryview(spelt)
        literals, bounds, null, out = memoryview(literals), memoryview(bounds), memoryview(null), memoryview(out)
        places = memoryview(places)
    for row in range(count):
        for column in range(width):
            at = _copy(literals, bounds[column], bounds[column + 1], out, at)
            place = column * count + row
            if kinds[column] == SPELT_:
                stop = _stop(spelt, places[column])
                at = _copy(spelt, places[column], stop, out, at)
                places[column] = stop + 1
            elif not valid[place]:
                at = _copy(null, 0, null.shape[0], out, at)
            elif kinds[column] == INTEGER_:
                at = _integer(values[place], out, at)
            elif kinds[column] == TIME_:
                at = _time(values[place], quoted, out, at)
            else:
                at = _boolean(values[place] != 0, out, at)
        at = _copy(literals, bounds[width], bounds[width + 1], out, at)
    return at


INTEGER_ = cython.declare(cython.longlong, 0)
TIME_ = cython.declare(cython.longlong, 1)
SPELT_ = cython.declare(cython.longlong, 3)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _copy(
    data: cython.const[cython.uchar][:],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    out: cython.uchar[:],
    at: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Copy bytes; where the next one goes."""
    i: cython.Py_ssize_t
    for i in range(start, stop):
        out[at] = data[i]
        at += 1
    return at


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _stop(spelt: cython.const[cython.uchar][:], at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Where the value ends that starts here: in front of a comma outside quotation marks, or at the end."""
    end: cython.Py_ssize_t = spelt.shape[0]
    if at < end and spelt[at] == 34:
        at += 1
        while spelt[at] != 34:
            at += 2 if spelt[at] == 92 else 1
        return at + 1
    while at < end and spelt[at] != 44:
        at += 1
    return at


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _integer(value: cython.longlong, out: cython.uchar[:], at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    length: cython.Py_ssize_t = 1
    rest: cython.longlong
    i: cython.Py_ssize_t
    if value == LEAST:
        for i in range(20):
            out[at + i] = LEAST_TEXT[i]
        return at + 20
    if value < 0:
        out[at] = 45
        at += 1
        value = -value
    rest = value
    while rest >= 10:
        rest = rest // 10
        length += 1
    return _digits(value, length, out, at)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _digits(
    value: cython.longlong, length: cython.Py_ssize_t, out: cython.uchar[:], at: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """A number with so many digits, zeros in front."""
    i: cython.Py_ssize_t
    for i in range(at + length - 1, at - 1, -1):
        out[i] = 48 + value % 10
        value = value // 10
    return at + length


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _time(
    value: cython.longlong, quoted: cython.bint, out: cython.uchar[:], at: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """ISO 8601 as `format_timestamp`. The calendar counts years from March on, as leap days then
    are at their ends."""
    since: cython.longlong = value + YEAR_1_US
    days: cython.longlong = since // DAY_US + MARCH_DAYS
    rest: cython.longlong = since % DAY_US
    era: cython.longlong = days // 146_097
    of_era: cython.longlong = days - era * 146_097
    year: cython.longlong = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year: cython.longlong = of_era - (365 * year + year // 4 - year // 100)
    month: cython.longlong = (5 * of_year + 2) // 153
    day: cython.longlong = of_year - (153 * month + 2) // 5 + 1
    year += era * 400
    month += 3
    if month > 12:
        month -= 12
        year += 1
    if quoted:
        out[at] = 34
        at += 1
    at = _digits(year, 4, out, at)
    out[at] = 45
    at = _digits(month, 2, out, at + 1)
    out[at] = 45
    at = _digits(day, 2, out, at + 1)
    out[at] = 84
    at = _digits(rest // 3_600_000_000, 2, out, at + 1)
    out[at] = 58
    at = _digits(rest // 60_000_000 % 60, 2, out, at + 1)
    out[at] = 58
    at = _digits(rest // 1_000_000 % 60, 2, out, at + 1)
    if rest % 1_000_000:
        out[at] = 46
        at = _digits(rest % 1_000_000, 6, out, at + 1)
    out[at] = 90
    if quoted:
        out[at + 1] = 34
        at += 1
    return at + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _boolean(value: cython.bint, out: cython.uchar[:], at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    text: bytes = b"true" if value else b"false"
    i: cython.Py_ssize_t
    for i in range(4 if value else 5):
        out[at + i] = text[i]
    return at + (4 if value else 5)
