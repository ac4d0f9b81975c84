"""Functions of timestamps and intervals. Everything is UTC; the calendar is the proleptic Gregorian one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from millrace.protocol import MAX_INT64, MIN_INT64, Refuse, Type
from millrace.values.batch import Values
from millrace.values.functions.faults import Fault, RowFault
from millrace.values.functions.library import Function, each_row, strict
from millrace.values.functions.vectors import Faults, Operand, Run, faults_where

_TEXT, _BIGINT, _DOUBLE = Type.TEXT, Type.BIGINT, Type.DOUBLE
_TIMESTAMP, _INTERVAL = Type.TIMESTAMP, Type.INTERVAL

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
# 1970-01-01 was a Thursday: its week starts three days earlier.
_MONDAY: Final = 3

# -- the calendar ------------------------------------------------------------------------------------------------------


def days_of(us: Values) -> Values:
    """Days since the epoch, rounded down."""
    return us // DAY


def _months(us: Values) -> Values:
    """Months since January 1970."""
    return days_of(us).astype("M8[D]").astype("M8[M]").astype(np.int64)


def _first_day(months: Values) -> Values:
    """Days since the epoch of the first of a month."""
    return months.astype("M8[M]").astype("M8[D]").astype(np.int64)


def year_of(us: Values) -> Values:
    return _months(us) // 12 + 1970


def _day_of_year(us: Values) -> Values:
    return days_of(us) - _first_day(_months(us) // 12 * 12) + 1


def _iso_week(us: Values) -> tuple[Values, Values]:
    """Year and number: a week belongs to the year of its Thursday."""
    thursday = (days_of(us) + _MONDAY) // 7 * 7
    january = _first_day(thursday.astype("M8[D]").astype("M8[M]").astype(np.int64) // 12 * 12)
    return january.astype("M8[D]").astype("M8[Y]").astype(np.int64) + 1970, (thursday - january) // 7 + 1


# -- date_trunc --------------------------------------------------------------------------------------------------------


def _step(size: int) -> Callable[[Values], Values]:
    return lambda us: us - us % size


def _week_start(us: Values) -> Values:
    return ((days_of(us) + _MONDAY) // 7 * 7 - _MONDAY) * DAY


def _month_step(months: int) -> Callable[[Values], Values]:
    return lambda us: _first_day(_months(us) // months * months) * DAY


def _year_step(years: int, first: int) -> Callable[[Values], Values]:
    """Spans of years that start at `first` plus a multiple of `years`: centuries at 1, decades at 0."""

    def truncate(us: Values) -> Values:
        begin = (year_of(us) - first) // years * years + first
        return _first_day((begin - 1970) * 12) * DAY

    return truncate


UNITS: Final[dict[str, Callable[[Values], Values]]] = {
    "microseconds": lambda us: us + 0,
    "milliseconds": _step(1000),
    "second": _step(SECOND),
    "minute": _step(MINUTE),
    "hour": _step(HOUR),
    "day": _step(DAY),
    "week": _week_start,
    "month": _month_step(1),
    "quarter": _month_step(3),
    "year": _month_step(12),
    "decade": _year_step(10, 0),
    "century": _year_step(100, 1),
    "millennium": _year_step(1000, 1),
}
_PLURALS: Final = {"centuries": "century", "millennia": "millennium", "microsecond": "microseconds"}


def unit_named(name: str) -> str:
    """A unit in the form of the table: `HOURS` is `hour`."""
    word = name.strip().lower()
    for known in (word, _PLURALS.get(word, ""), word.removesuffix("s"), word + "s"):
        if known in UNITS:
            return known
    raise RowFault(Fault.BAD_ARGUMENT)


def _truncated(unit: str) -> Callable[[Values], tuple[Values, Faults | None]]:
    truncate = UNITS[unit]

    def compute(us: Values) -> tuple[Values, Faults | None]:
        begin = truncate(us)
        # Times before the least timestamp have wrapped around to the far future.
        return begin, faults_where(begin > us, Fault.TIMESTAMP_RANGE)

    return compute


def date_trunc(operands: Sequence[Operand]) -> Run:
    unit, time = operands
    if not unit.known:
        return each_row(_TIMESTAMP, _truncate_row)(operands)
    try:
        name = unit_named(unit.value)
    except RowFault:
        raise Refuse(f"date_trunc: expected a unit ({', '.join(UNITS)}), got {unit.value!r:.40}") from None
    return strict(_TIMESTAMP, _truncated(name))([time])


def _truncate_row(unit: str, us: int) -> int:
    values, faults = _truncated(unit_named(unit))(np.array([us]))
    if faults is not None:
        raise RowFault(Fault(int(faults[0])))
    return int(values[0])


# -- extract -----------------------------------------------------------------------------------------------------------

FIELDS: Final[dict[str, Callable[[Values], Values]]] = {
    "year": year_of,
    "quarter": lambda us: _months(us) % 12 // 3 + 1,
    "month": lambda us: _months(us) % 12 + 1,
    "week": lambda us: _iso_week(us)[1],
    "isoyear": lambda us: _iso_week(us)[0],
    "day": lambda us: days_of(us) - _first_day(_months(us)) + 1,
    "doy": _day_of_year,
    "dow": lambda us: (days_of(us) + 4) % 7,
    "isodow": lambda us: (days_of(us) + _MONDAY) % 7 + 1,
    "hour": lambda us: us % DAY // HOUR,
    "minute": lambda us: us % HOUR // MINUTE,
    "microseconds": lambda us: us % MINUTE,
    "decade": lambda us: year_of(us) // 10,
    "century": lambda us: -(-year_of(us) // 100),
    "millennium": lambda us: -(-year_of(us) // 1000),
}
# Fields with a fraction are doubles.
FRACTIONS: Final[dict[str, Callable[[Values], Values]]] = {
    "second": lambda us: us % MINUTE / 1e6,
    "milliseconds": lambda us: us % MINUTE / 1e3,
    "epoch": lambda us: us / 1e6,
}


def _towards_zero(us: Values, size: int) -> Values:
    return np.asarray(np.sign(us) * (np.abs(us) // size))


INTERVAL_FIELDS: Final[dict[str, Callable[[Values], Values]]] = {
    "day": lambda us: _towards_zero(us, DAY),
    "hour": lambda us: _towards_zero(np.fmod(us, DAY), HOUR),
    "minute": lambda us: _towards_zero(np.fmod(us, HOUR), MINUTE),
    "microseconds": lambda us: np.fmod(us, MINUTE),
}
INTERVAL_FRACTIONS: Final[dict[str, Callable[[Values], Values]]] = {
    "second": lambda us: np.fmod(us, MINUTE) / 1e6,
    "milliseconds": lambda us: np.fmod(us, MINUTE) / 1e3,
    "epoch": lambda us: us / 1e6,
}


def _extracts(argument: Type, result: Type, fields: dict[str, Callable[[Values], Values]]) -> Sequence[Function]:
    return [
        Function(f"extract {name}", (argument,), result, strict(result, _computed(compute)))
        for name, compute in fields.items()
    ]


def _computed(compute: Callable[[Values], Values]) -> Callable[[Values], tuple[Values, None]]:
    return lambda us: (np.asarray(compute(us)), None)


# -- to_char -----------------------------------------------------------------------------------------------------------

_MONTHS: Final = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_DAYS: Final = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
# The widest name: PostgreSQL pads to it unless FM says not to.
_WIDEST: Final = 9


def _hour12(us: int) -> int:
    return (us % DAY // HOUR + 11) % 12 + 1


def _half(us: int) -> str:
    return "AM" if us % DAY < DAY // 2 else "PM"


def _field(name: str) -> Callable[[int], int]:
    compute = FIELDS[name]
    return lambda us: int(compute(np.array([us]))[0])


def _cased(sample: str, word: str) -> str:
    """The word in the case of the pattern: MONTH, Month or month."""
    return word.upper() if sample.isupper() else word.lower() if sample.islower() else word


def _number(digits: int, value: Callable[[int], int]) -> Callable[[str, bool], Callable[[int], str]]:
    def make(sample: str, fill: bool) -> Callable[[int], str]:
        return lambda us: f"{value(us):0{digits}d}" if fill else str(value(us))

    return make


def _word(value: Callable[[int], str], width: int = 0) -> Callable[[str, bool], Callable[[int], str]]:
    def make(sample: str, fill: bool) -> Callable[[int], str]:
        return lambda us: _cased(sample, value(us)).ljust(width if fill else 0)

    return make


_month, _weekday = _field("month"), _field("isodow")
PATTERNS: Final[dict[str, Callable[[str, bool], Callable[[int], str]]]] = {
    "yyyy": _number(4, _field("year")),
    "yy": _number(2, lambda us: _field("year")(us) % 100),
    "iyyy": _number(4, _field("isoyear")),
    "month": _word(lambda us: _MONTHS[_month(us) - 1], _WIDEST),
    "mon": _word(lambda us: _MONTHS[_month(us) - 1][:3]),
    "mm": _number(2, _month),
    "day": _word(lambda us: _DAYS[_weekday(us) - 1], _WIDEST),
    "dy": _word(lambda us: _DAYS[_weekday(us) - 1][:3]),
    "ddd": _number(3, _field("doy")),
    "dd": _number(2, _field("day")),
    "id": _number(1, _weekday),
    "d": _number(1, lambda us: _weekday(us) % 7 + 1),
    "iw": _number(2, _field("week")),
    "q": _number(1, _field("quarter")),
    "hh24": _number(2, lambda us: us % DAY // HOUR),
    "hh12": _number(2, _hour12),
    "hh": _number(2, _hour12),
    "mi": _number(2, lambda us: us % HOUR // MINUTE),
    "ssss": _number(1, lambda us: us % DAY // SECOND),
    "ss": _number(2, lambda us: us % MINUTE // SECOND),
    "ms": _number(3, lambda us: us % SECOND // 1000),
    "us": _number(6, lambda us: us % SECOND),
    "am": _word(_half),
    "pm": _word(_half),
    "a.m.": _word(lambda us: ".".join(_half(us)) + "."),
    "p.m.": _word(lambda us: ".".join(_half(us)) + "."),
    "tz": _word(lambda us: "UTC"),
}
_TOKEN: Final = re.compile(
    r'(?P<quoted>"(?:[^"\\]|\\.)*"?)|(?P<fill>FM)?(?P<name>'
    + "|".join(re.escape(name) for name in sorted(PATTERNS, key=len, reverse=True))
    + r")|(?P<other>.)",
    re.IGNORECASE | re.DOTALL,
)


def formatter(pattern: str) -> Callable[[int], str]:
    """The function that writes a timestamp by a pattern of to_char. Other characters stand for themselves."""
    parts: list[Callable[[int], str]] = []
    for match in _TOKEN.finditer(pattern):
        if match["name"]:
            parts.append(PATTERNS[match["name"].lower()](match["name"], match["fill"] is None))
        else:
            parts.append(_literal(match["other"] or _unquoted(match["quoted"])))
    return lambda us: "".join([part(us) for part in parts])


def _literal(text: str) -> Callable[[int], str]:
    return lambda us: text


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:].removesuffix('"'))


_formatter = lru_cache(256)(formatter)


def _to_char(operands: Sequence[Operand]) -> Run:
    time, pattern = operands
    if pattern.known:
        return each_row(_TEXT, formatter(pattern.value))([time])
    return each_row(_TEXT, lambda us, text: _formatter(text)(us))(operands)


# -- to_timestamp ------------------------------------------------------------------------------------------------------


def _from_seconds(values: Values) -> tuple[Values, Faults | None]:
    with np.errstate(all="ignore"):
        us = np.rint(values * 1e6)
    fits = (us >= float(MIN_INT64)) & (us < float(MAX_INT64))
    return np.where(fits, us, 0.0).astype(np.int64), faults_where(~fits, Fault.TIMESTAMP_RANGE)


FUNCTIONS: Sequence[Function] = (
    Function("date_trunc", (_TEXT, _TIMESTAMP), _TIMESTAMP, date_trunc),
    *_extracts(_TIMESTAMP, _BIGINT, FIELDS),
    *_extracts(_TIMESTAMP, _DOUBLE, FRACTIONS),
    *_extracts(_INTERVAL, _BIGINT, INTERVAL_FIELDS),
    *_extracts(_INTERVAL, _DOUBLE, INTERVAL_FRACTIONS),
    Function("to_char", (_TIMESTAMP, _TEXT), _TEXT, _to_char),
    Function("to_timestamp", (_DOUBLE,), _TIMESTAMP, strict(_TIMESTAMP, _from_seconds)),
)
