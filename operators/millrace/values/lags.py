"""Finds progressing columns, and the bounds of their distance from the rows' own time.

A promise about the rows' time is also a promise about every column whose distance from it is known. It lets a join of
windowed sources drop state, and lets a window use the time of one side of a join. A column's lag is that distance, row
time - column, as its minimum and its maximum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from millrace.protocol import Type
from millrace.values import expression as e
from millrace.values.functions.faults import RowFault
from millrace.values.functions.times import DAY, HOUR, MINUTE, SECOND, unit_named

# None means unbounded.
Lag = tuple[int | None, int | None]
# By the position of a column. Columns that are not listed are not progressing.
Lags = Mapping[int, Lag]
EXACT: Final[Lag] = (0, 0)

# The spans of date_trunc with a fixed length: length and offset (a week starts on Monday, 1970 started on a Thursday).
SPANS: Final[Mapping[str, tuple[int, int]]] = {
    "microseconds": (1, 0),
    "milliseconds": (1000, 0),
    "second": (SECOND, 0),
    "minute": (MINUTE, 0),
    "hour": (HOUR, 0),
    "day": (DAY, 0),
    "week": (7 * DAY, 4 * DAY),
}
# The maximum length of the other spans.
_LONGEST: Final[Mapping[str, int]] = {
    "month": 31 * DAY,
    "quarter": 92 * DAY,
    "year": 366 * DAY,
    "decade": 3_653 * DAY,
    "century": 36_525 * DAY,
    "millennium": 365_250 * DAY,
}


def plus(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right


def minus(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left - right


def add(left: Lag, right: Lag) -> Lag:
    return plus(left[0], right[0]), plus(left[1], right[1])


def widest(lags: Sequence[Lag]) -> Lag:
    lows, highs = [low for low, _ in lags if low is not None], [high for _, high in lags if high is not None]
    return (
        min(lows) if len(lows) == len(lags) else None,
        max(highs) if len(highs) == len(lags) else None,
    )


# -- expressions -------------------------------------------------------------------------------------------------------


def name_of(call: e.Call) -> str:
    """A function's name without its types."""
    return call.function.partition("(")[0]


def lag_of(expression: e.Expression, lags: Lags) -> Lag | None:
    """The bounds of the distance between an expression's value and the row's time; None if unknown."""
    if expression.type is not Type.TIMESTAMP:
        return None
    match expression:
        case e.Column():
            return EXACT if expression.position == e.TIME else lags.get(expression.position)
        case e.Call():
            return _call_lag(expression, lags)
    return None


def _call_lag(call: e.Call, lags: Lags) -> Lag | None:
    match name_of(call), call.arguments:
        case "+", (time, e.Constant(type=Type.INTERVAL, value=int(by))):
            return _shift(time, -by, lags)
        case "+", (e.Constant(type=Type.INTERVAL, value=int(by)), time):
            return _shift(time, -by, lags)
        case "-", (time, e.Constant(type=Type.INTERVAL, value=int(by))):
            return _shift(time, by, lags)
        case "date_trunc", (e.Constant(value=str(unit)), time):
            lag = lag_of(time, lags)
            return None if lag is None else add(lag, (0, longest(unit) - 1))
        case "coalesce" | "greatest" | "least" as name, times:
            known = [lag for argument in times if (lag := lag_of(argument, lags)) is not None]
            return _one_of(name, call, known) if len(known) == len(times) else None
    return None


def _shift(time: e.Expression, by: int, lags: Lags) -> Lag | None:
    lag = lag_of(time, lags)
    return None if lag is None else add(lag, (by, by))


def _one_of(name: str, call: e.Call, lags: Sequence[Lag]) -> Lag:
    """The lag of a value that is one of several. The greatest value is the nearest to the row's time."""
    if name == "greatest" and not any(argument.nullable for argument in call.arguments):
        lows, highs = [low for low, _ in lags if low is not None], [high for _, high in lags if high is not None]
        return min(lows) if len(lows) == len(lags) else None, min(highs, default=None)
    return widest(lags)


def longest(unit: str) -> int:
    """The maximum length of a span of date_trunc, whose unit is already checked."""
    try:
        name = unit_named(unit)
    except RowFault:
        return 1
    return SPANS[name][0] if name in SPANS else _LONGEST[name]


def computed(columns: Sequence[e.Expression], lags: Lags) -> Lags:
    known = {at: lag_of(column, lags) for at, column in enumerate(columns)}
    return {at: lag for at, lag in known.items() if lag is not None}
