"""Which columns are progressing, and how far they may lie from the rows' own time.

A promise about the rows' time is a promise about every column whose distance from it is known: that is what lets a
join of windowed sources forget, and what lets a window read a join by one side's time. A column's lag is that distance,
row time - column, as the least and the greatest that it can be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final

from millrace.operators import expression as e
from millrace.operators.functions.faults import RowFault
from millrace.operators.functions.times import DAY, HOUR, MINUTE, SECOND, unit_named
from millrace.operators.spec import (
    AggregateSpec,
    Band,
    FilterSpec,
    JoinSpec,
    MapSpec,
    Picked,
    RetimeSpec,
    RowWindow,
    SelectSpec,
    SequenceSpec,
    SessionWindow,
    SortSpec,
    Spec,
    TimeWindow,
    TopSpec,
    UnionSpec,
    WindowSpec,
)
from millrace.protocol import Schema, Type

# None is no bound.
Lag = tuple[int | None, int | None]
# By the position of a column. What is not named is no progressing column.
Lags = Mapping[int, Lag]
EXACT: Final[Lag] = (0, 0)

# How long the spans of date_trunc are: all the same, aligned to an offset (a week begins on Monday, 1970 on a Thursday)
SPANS: Final[Mapping[str, tuple[int, int]]] = {
    "microseconds": (1, 0),
    "milliseconds": (1000, 0),
    "second": (SECOND, 0),
    "minute": (MINUTE, 0),
    "hour": (HOUR, 0),
    "day": (DAY, 0),
    "week": (7 * DAY, 4 * DAY),
}
# or at most so long.
_LONGEST: Final[Mapping[str, int]] = {
    "month": 31 * DAY,
    "quarter": 92 * DAY,
    "year": 366 * DAY,
    "decade": 3_653 * DAY,
    "century": 36_525 * DAY,
    "millennium": 365_250 * DAY,
}


def plus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def minus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one - other


def _added(one: Lag, other: Lag) -> Lag:
    return plus(one[0], other[0]), plus(one[1], other[1])


def _widest(lags: Sequence[Lag]) -> Lag:
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
    """How far the value of an expression may lie from the row's time; None if nothing is known."""
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
            return _moved(time, -by, lags)
        case "+", (e.Constant(type=Type.INTERVAL, value=int(by)), time):
            return _moved(time, -by, lags)
        case "-", (time, e.Constant(type=Type.INTERVAL, value=int(by))):
            return _moved(time, by, lags)
        case "date_trunc", (e.Constant(value=str(unit)), time):
            lag = lag_of(time, lags)
            return None if lag is None else _added(lag, (0, longest(unit) - 1))
        case "coalesce" | "greatest" | "least" as name, times:
            known = [lag for one in times if (lag := lag_of(one, lags)) is not None]
            return _one_of(name, call, known) if len(known) == len(times) else None
    return None


def _moved(time: e.Expression, by: int, lags: Lags) -> Lag | None:
    lag = lag_of(time, lags)
    return None if lag is None else _added(lag, (by, by))


def _one_of(name: str, call: e.Call, lags: Sequence[Lag]) -> Lag:
    """The lag of a value that is one of several; the greatest of them lies nearest to the row's time."""
    if name == "greatest" and not any(argument.nullable for argument in call.arguments):
        lows, highs = [low for low, _ in lags if low is not None], [high for _, high in lags if high is not None]
        return min(lows) if len(lows) == len(lags) else None, min(highs, default=None)
    return _widest(lags)


def longest(unit: str) -> int:
    """How long a span of date_trunc can be, and its unit has been checked."""
    try:
        name = unit_named(unit)
    except RowFault:
        return 1
    return SPANS[name][0] if name in SPANS else _LONGEST[name]


# -- operators ---------------------------------------------------------------------------------------------------------


def lags_of(spec: Spec, inputs: Sequence[Lags], schemas: Sequence[Schema]) -> Lags:
    """The progressing columns of an operator's rows, from those of its inputs."""
    match spec:
        case SelectSpec() | FilterSpec() | SortSpec():
            return inputs[0]
        case MapSpec(columns):
            return _computed([column for _, column in columns], inputs[0])
        case UnionSpec():
            shared = [at for at in inputs[0] if all(at in other for other in inputs)]
            return {at: _widest([lags[at] for lags in inputs]) for at in shared}
        case WindowSpec():
            return _window_rows(spec, inputs[0], len(schemas[0]))
        case AggregateSpec():
            return _window_ends(spec, inputs[0], len(schemas[0]))
        case TopSpec(closes_at=int(at), closes_us=by):
            return {at: (by, by)}
        case RetimeSpec(position):
            return _retimed(inputs[0], position)
        case JoinSpec():
            return _picked(spec.columns, inputs, join_lags(spec.bands, len(inputs)))
        case SequenceSpec(within_us=within, absent=absent):
            first = (within if absent else 0, within)
            return _picked(spec.columns, inputs, [first, EXACT])
    return {}


def _computed(columns: Sequence[e.Expression], lags: Lags) -> Lags:
    known = {at: lag_of(column, lags) for at, column in enumerate(columns)}
    return {at: lag for at, lag in known.items() if lag is not None}


def _window_rows(spec: WindowSpec, lags: Lags, width: int) -> Lags:
    """Rows with the bounds of a window that they are in: start <= time < end. Those of rows are no times."""
    if isinstance(spec.window, RowWindow):
        return lags if spec.columns is None else _computed([column for _, column in spec.columns], lags)
    size = spec.window.size_us
    return {**lags, **_bounds(spec.bounds, width, (0, size - 1), (-size, -1))}


def _window_ends(spec: AggregateSpec, lags: Lags, width: int) -> Lags:
    """The bounds of windows, whose rows lie at their last microsecond, and of sessions the columns of their rows."""
    match spec.window:
        case TimeWindow(size):
            return _bounds(spec.bounds, len(spec.keys) + len(spec.calls), (size - 1, size - 1), (-1, -1))
        case SessionWindow(gap):
            before: Lag = (gap - 1, None)
            if not spec.rows:
                return _bounds(spec.bounds, len(spec.keys) + len(spec.calls), before, (-1, -1))
            own = {at: _added(lag, before) for at, lag in lags.items()}
            return {**own, **_bounds(spec.bounds, width, before, (-1, -1))}
    return {}


def _bounds(bounds: Sequence[tuple[str, str]], first: int, start: Lag, end: Lag) -> Lags:
    return {first + at: start if side == "start" else end for at, (_, side) in enumerate(bounds)}


def _retimed(lags: Lags, position: int) -> Lags:
    low, high = lags.get(position, (None, None))
    return {at: EXACT if at == position else (minus(lag[0], high), minus(lag[1], low)) for at, lag in lags.items()}


def _picked(columns: Sequence[Picked], inputs: Sequence[Lags], of_inputs: Sequence[Lag]) -> Lags:
    """Columns taken from inputs whose own times lie so far from the row's."""
    found = {}
    for at, (_, source, position) in enumerate(columns):
        lag = EXACT if position == e.TIME else inputs[source].get(position)
        if lag is not None:
            found[at] = _added(lag, of_inputs[source])
    return found


# -- joins -------------------------------------------------------------------------------------------------------------


def ahead(bands: Sequence[Band], count: int) -> list[list[int | None]]:
    """By two inputs: how much later than the first the second's row can be, with what follows from all bands."""
    most: list[list[int | None]] = [[0 if one == other else None for other in range(count)] for one in range(count)]
    for band in bands:
        low = None if band.low_us is None else -band.low_us
        _tighten(most, band.left, band.right, band.high_us)
        _tighten(most, band.right, band.left, low)
    for middle, one, other in product(range(count), repeat=3):
        if one != other:
            _tighten(most, one, other, plus(most[one][middle], most[middle][other]))
    return most


def contradict(bands: Sequence[Band], count: int) -> bool:
    """Whether no rows can be so far apart as all of the bands say."""
    most = ahead(bands, count)
    return any((plus(most[one][other], most[other][one]) or 0) < 0 for one in range(count) for other in range(one))


def _tighten(most: list[list[int | None]], one: int, other: int, bound: int | None) -> None:
    known = most[one][other]
    if bound is not None and (known is None or bound < known):
        most[one][other] = bound


def join_lags(bands: Sequence[Band], count: int) -> list[Lag]:
    """How far each input's time may lie below the joined row's, which is the latest of them."""
    lags: list[Lag] = []
    for bounds in ahead(bands, count):
        known = [bound for bound in bounds if bound is not None]
        lags.append((0, max(0, *known) if len(known) == count else None))
    return lags
