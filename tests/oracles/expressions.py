"""The value of an expression, one row and one Python value at a time.

A slow twin of `evaluate.py` without shared code: exact integers, Python's floats, datetime's calendar. None is null,
and FAILED is a row that cannot be computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from millrace.protocol import Type
from millrace.values.expression import TIME, Call, Case, Cast, Column, Constant, Expression


class Failed(Exception):  # noqa: N818 - it marks a row
    """The row cannot be computed."""


FAILED = object()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_US = 86_400_000_000


def value_of(expression: Expression, row: Sequence[Any], ts: int = 0) -> Any:
    """The expression's value in a row: a Python value, None, or FAILED."""
    try:
        return _value(expression, row, ts)
    except Failed:
        return FAILED


def _value(expression: Expression, row: Sequence[Any], ts: int) -> Any:
    match expression:
        case Constant():
            return expression.value
        case Column():
            return ts if expression.position == TIME else row[expression.position]
        case Cast():
            value = _value(expression.argument, row, ts)
            return None if value is None else _cast(value, expression.argument.type, expression.type)
        case Case():
            for test, result in expression.branches:
                if _value(test, row, ts) is True:
                    return _value(result, row, ts)
            return _value(expression.otherwise, row, ts)
        case Call():
            name = expression.function.partition("(")[0]
            lazy = LAZY.get(name)
            thunks = [lambda argument=argument: _value(argument, row, ts) for argument in expression.arguments]
            if lazy is not None:
                return lazy(thunks)
            # Every argument is computed: a failing argument fails the call even if another argument is null.
            values = _all(thunks)
            if any(value is None for value in values):
                return None
            if name.startswith("extract ") and expression.arguments[0].type is Type.INTERVAL:
                return _interval_part(name.removeprefix("extract "))(*values, result=expression.type)
            return _checked(STRICT[name](*values, result=expression.type), expression.type)
    raise AssertionError(expression)


def _all(thunks: Sequence[Callable[[], Any]]) -> list[Any]:
    values, failed = [], False
    for thunk in thunks:
        try:
            values.append(thunk())
        except Failed:
            failed = True
    if failed:
        raise Failed
    return values


def _checked(value: Any, type: Type) -> Any:
    whole = type in (Type.BIGINT, Type.TIMESTAMP, Type.INTERVAL)
    if whole and value is not None and not -(2**63) <= value < 2**63:
        raise Failed
    if type is Type.DOUBLE and value is not None and not math.isfinite(value):
        raise Failed
    return value


# -- functions that look at their arguments one by one -----------------------------------------------------------------


def _outcome(thunk: Callable[[], Any]) -> Any:
    try:
        return thunk()
    except Failed:
        return FAILED


def _and(thunks: Sequence[Callable[[], Any]]) -> Any:
    return _logic(thunks, decisive=False)


def _or(thunks: Sequence[Callable[[], Any]]) -> Any:
    return _logic(thunks, decisive=True)


def _logic(thunks: Sequence[Callable[[], Any]], decisive: bool) -> Any:
    outcomes = [_outcome(thunk) for thunk in thunks]
    if any(outcome is decisive for outcome in outcomes):
        return decisive
    if FAILED in outcomes:
        raise Failed
    return None if None in outcomes else not decisive


def _coalesce(thunks: Sequence[Callable[[], Any]]) -> Any:
    for thunk in thunks:
        value = thunk()
        if value is not None:
            return value
    return None


def _nullif(thunks: Sequence[Callable[[], Any]]) -> Any:
    first, second = _all(thunks)
    return None if first is not None and first == second else first


def _extreme(choose: Callable[..., Any]) -> Callable[..., Any]:
    def chosen(thunks: Sequence[Callable[[], Any]]) -> Any:
        values = [value for value in _all(thunks) if value is not None]
        return choose(values) if values else None

    return chosen


def _in(thunks: Sequence[Callable[[], Any]]) -> Any:
    value, *members = _all(thunks)
    if value is None:
        return None
    if any(member is not None and member == value for member in members):
        return True
    return None if None in members else False


def _distinct(thunks: Sequence[Callable[[], Any]]) -> bool:
    first, second = _all(thunks)
    if first is None or second is None:
        return (first is None) != (second is None)
    return bool(first != second)


def _is(test: Callable[[Any], bool]) -> Callable[..., bool]:
    return lambda thunks: test(thunks[0]())


LAZY: dict[str, Callable[[Sequence[Callable[[], Any]]], Any]] = {
    "and": _and,
    "or": _or,
    "coalesce": _coalesce,
    "nullif": _nullif,
    "greatest": _extreme(max),
    "least": _extreme(min),
    "in": _in,
    "is distinct from": _distinct,
    "is not distinct from": lambda thunks: not _distinct(thunks),
    "is null": _is(lambda value: value is None),
    "is not null": _is(lambda value: value is not None),
    "is true": _is(lambda value: value is True),
    "is not true": _is(lambda value: value is not True),
    "is false": _is(lambda value: value is False),
    "is not false": _is(lambda value: value is not False),
    "concat": lambda thunks: "".join(value or "" for value in _all(thunks)),
}


# -- functions of values -----------------------------------------------------------------------------------------------


def _divide(a: Any, b: Any, result: Type) -> Any:
    if b == 0:
        raise Failed
    if result is Type.DOUBLE:
        return _float(lambda: a / b)
    if isinstance(b, float):
        return _rounded(lambda: a / b)
    return int(Fraction(a, b))


def _remainder(a: Any, b: Any, result: Type) -> Any:
    if b == 0:
        raise Failed
    return math.fmod(a, b) if result is Type.DOUBLE else a - int(Fraction(a, b)) * b


def _multiply(a: Any, b: Any, result: Type) -> Any:
    if result is Type.INTERVAL and (isinstance(a, float) or isinstance(b, float)):
        return _rounded(lambda: float(a) * float(b))
    return _float(lambda: a * b)


def _float(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except OverflowError:
        raise Failed from None


def _rounded(compute: Callable[[], float]) -> int:
    value = _float(compute)
    if not math.isfinite(value):
        raise Failed
    return round(value)


def _minus(a: Any, b: Any = None, *, result: Type) -> Any:
    return -a if b is None else a - b


def _length(value: Any, result: Type) -> int:
    return sum(1 for _ in value)


def _substring(text: str, start: int, count: int | None = None, *, result: Type) -> str:
    if count is not None and count < 0:
        raise Failed
    last = math.inf if count is None else start + count - 1
    return "".join(letter for at, letter in enumerate(text, 1) if start <= at <= last)


def _position(part: str, text: str, result: Type) -> int:
    return next((at for at in range(1, len(text) + 2) if text[at - 1 :].startswith(part)), 0)


def _round(value: float, digits: int = 0, *, result: Type) -> float:
    """Computed with exact fractions; digits beyond the precision of a double change nothing."""
    if digits > 1100:
        return value
    scale = Fraction(10) ** max(digits, -400)
    return _float(lambda: float(round(Fraction(value) * scale) / scale))


def _btrim(text: str, characters: str = " ", *, result: Type) -> str:
    while text and text[0] in characters:
        text = text[1:]
    while text and text[-1] in characters:
        text = text[:-1]
    return text


def _interval_part(field: str) -> Callable[..., Any]:
    """The parts of an interval as it is written: days, then a clock, all with its sign."""

    def extracted(us: int, result: Type) -> Any:
        sign = -1 if us < 0 else 1
        days, rest = divmod(abs(us), DAY_US)
        hours, rest = divmod(rest, 3_600_000_000)
        minutes, rest = divmod(rest, 60_000_000)
        return {
            "day": sign * days,
            "hour": sign * hours,
            "minute": sign * minutes,
            "microseconds": sign * rest,
            "second": sign * rest / 1e6,
            "epoch": us / 1e6,
        }[field]

    return extracted


def _split_part(text: str, delimiter: str, number: int, result: Type) -> str:
    if number == 0:
        raise Failed
    parts = [text] if not delimiter else text.split(delimiter)
    if number < 0:
        parts.reverse()
    return parts[abs(number) - 1] if abs(number) <= len(parts) else ""


def _like(text: str, pattern: str, escape: str = "\\", *, result: Type) -> bool:
    """Tries every way to split the text, without a regular expression."""
    if len(escape) > 1 or (escape and re.sub(re.escape(escape) + r"(?s:.)", "", pattern).endswith(escape)):
        raise Failed
    if not pattern:
        return not text
    head, rest = pattern[0], pattern[1:]
    if head == escape:
        return bool(text) and text[0] == rest[0] and _like(text[1:], rest[1:], escape, result=result)
    if head == "%":
        return any(_like(text[at:], rest, escape, result=result) for at in range(len(text) + 1))
    return bool(text) and head in ("_", text[0]) and _like(text[1:], rest, escape, result=result)


def _domain(compute: Callable[..., float]) -> Callable[..., float]:
    def computed(*values: float, result: Type) -> float:
        try:
            return compute(*values)
        except (ValueError, OverflowError):
            raise Failed from None

    return computed


def _datetime(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def _date(year: int, month: int, day: int) -> datetime:
    return datetime(year, month, day, tzinfo=UTC)


def _us(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def _date_trunc(unit: str, us: int, result: Type) -> int:
    moment = _datetime(us)
    cuts: dict[str, Callable[[], datetime]] = {
        "second": lambda: moment.replace(microsecond=0),
        "minute": lambda: moment.replace(second=0, microsecond=0),
        "hour": lambda: moment.replace(minute=0, second=0, microsecond=0),
        "day": lambda: _date(moment.year, moment.month, moment.day),
        "week": lambda: _date(moment.year, moment.month, moment.day) - timedelta(days=moment.weekday()),
        "month": lambda: _date(moment.year, moment.month, 1),
        "quarter": lambda: _date(moment.year, (moment.month - 1) // 3 * 3 + 1, 1),
        "year": lambda: _date(moment.year, 1, 1),
    }
    return _us(cuts[unit]())


def _extract(field: str) -> Callable[..., Any]:
    def extracted(us: int, result: Type) -> Any:
        moment = _datetime(us)
        return {
            "year": moment.year,
            "quarter": (moment.month + 2) // 3,
            "month": moment.month,
            "day": moment.day,
            "hour": moment.hour,
            "minute": moment.minute,
            "week": moment.isocalendar()[1],
            "isoyear": moment.isocalendar()[0],
            "isodow": moment.isoweekday(),
            "dow": moment.isoweekday() % 7,
            "doy": moment.timetuple().tm_yday,
            "microseconds": moment.second * 1_000_000 + moment.microsecond,
            "second": (moment.second * 1_000_000 + moment.microsecond) / 1e6,
            "epoch": us / 1e6,
        }[field]

    return extracted


FIELDS = [
    "year",
    "quarter",
    "month",
    "day",
    "hour",
    "minute",
    "week",
    "isoyear",
    "isodow",
    "dow",
    "doy",
    "microseconds",
    "second",
    "epoch",
]
STRICT: dict[str, Callable[..., Any]] = {
    "+": lambda a, b, result: _float(lambda: a + b),
    "-": _minus,
    "*": _multiply,
    "/": _divide,
    "%": _remainder,
    "=": lambda a, b, result: a == b,
    "<>": lambda a, b, result: a != b,
    "<": lambda a, b, result: a < b,
    "<=": lambda a, b, result: a <= b,
    ">": lambda a, b, result: a > b,
    ">=": lambda a, b, result: a >= b,
    "not": lambda a, result: not a,
    "||": lambda a, b, result: a + b,
    "abs": lambda a, result: -a if a < 0 else a,
    "sign": lambda a, result: type(a)((a > 0) - (a < 0)),
    "floor": lambda a, result: float(math.floor(a)),
    "ceil": lambda a, result: float(math.ceil(a)),
    "round": _round,
    "trunc": lambda a, result: float(math.trunc(a)),
    "sqrt": _domain(math.sqrt),
    "ln": _domain(math.log),
    "exp": _domain(math.exp),
    "power": _domain(math.pow),
    "length": _length,
    "upper": lambda a, result: a.upper(),
    "lower": lambda a, result: a.lower(),
    "replace": lambda a, b, c, result: c.join(a.split(b)) if b else a,
    "substring": _substring,
    "position": _position,
    "split_part": _split_part,
    "starts_with": lambda a, b, result: a[: len(b)] == b,
    "left": lambda a, n, result: a[:n] if n >= 0 else a[: max(len(a) + n, 0)],
    "right": lambda a, n, result: a[max(len(a) - n, 0) :] if n >= 0 else a[min(-n, len(a)) :],
    "btrim": _btrim,
    "like": _like,
    "date_trunc": _date_trunc,
    **{f"extract {field}": _extract(field) for field in FIELDS},
}


def _cast(value: Any, source: Type, target: Type) -> Any:
    match source, target:
        case (Type.BIGINT, Type.DOUBLE):
            return float(value)
        case (Type.BIGINT, Type.BOOLEAN):
            return value != 0
        case (Type.BOOLEAN, Type.BIGINT):
            return 1 if value else 0
        case (Type.DOUBLE, Type.BIGINT):
            return _checked(round(value), Type.BIGINT)
        case (Type.BOOLEAN, Type.TEXT):
            return "true" if value else "false"
        case (Type.BIGINT, Type.TEXT):
            return f"{value:d}"
        case (Type.TEXT, Type.BIGINT):
            if not re.fullmatch(r"\s*[+-]?[0-9]{1,39}\s*", value):
                raise Failed
            return _checked(int(value), Type.BIGINT)
        case (Type.TIMESTAMP, Type.TEXT):
            moment = _datetime(value)
            fraction = f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else ""
            return moment.strftime("%Y-%m-%d %H:%M:%S") + fraction
        case (Type.TIMESTAMP | Type.INTERVAL, Type.BIGINT) | (Type.BIGINT, Type.TIMESTAMP | Type.INTERVAL):
            return value
    raise AssertionError((source, target))


CASTS_KNOWN = [
    (Type.BIGINT, Type.DOUBLE),
    (Type.BIGINT, Type.BOOLEAN),
    (Type.BOOLEAN, Type.BIGINT),
    (Type.DOUBLE, Type.BIGINT),
    (Type.BOOLEAN, Type.TEXT),
    (Type.BIGINT, Type.TEXT),
    (Type.TEXT, Type.BIGINT),
    (Type.TIMESTAMP, Type.TEXT),
    (Type.TIMESTAMP, Type.BIGINT),
    (Type.BIGINT, Type.INTERVAL),
]
