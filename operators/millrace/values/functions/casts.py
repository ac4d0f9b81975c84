"""CAST between all types that have a sensible meaning: one row of a table per pair.

Text forms are PostgreSQL's where it has one: `true`, `1e+20`, `2026-01-01 00:00:00.5`, `\\x00ff`. A bigint as a
timestamp or interval is a number of microseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from millrace.protocol import MAX_INT64, MIN_INT64, MillraceError, Type
from millrace.protocol.timestamps import format_timestamp, parse_timestamp
from millrace.values.batch import Values
from millrace.values.functions.faults import Fault, RowFault
from millrace.values.functions.library import Make, each_row, no_faults, strict
from millrace.values.functions.vectors import Faults, Operand, Run, faults_where
from millrace.values.intervals import format_interval, parse_interval

_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_DOUBLE = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_TRUE = frozenset(("true", "t", "yes", "y", "on", "1"))
_FALSE = frozenset(("false", "f", "no", "n", "off", "0"))


def text_to_boolean(text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise RowFault(Fault.NOT_BOOLEAN)


def text_to_bigint(text: str) -> int:
    # Nineteen digits and a sign reach the bounds; int() of a megabyte of digits would take seconds.
    text = text.strip()
    if len(text) > 40 or not _INTEGER.fullmatch(text):
        raise RowFault(Fault.NOT_BIGINT)
    value = int(text)
    if not MIN_INT64 <= value <= MAX_INT64:
        raise RowFault(Fault.BIGINT_RANGE)
    return value


def text_to_double(text: str) -> float:
    text = text.strip()
    if not _DOUBLE.fullmatch(text):
        raise RowFault(Fault.NOT_DOUBLE)
    value = float(text)
    if not math.isfinite(value):
        raise RowFault(Fault.DOUBLE_RANGE)
    return value


def text_to_timestamp(text: str) -> int:
    try:
        return parse_timestamp(text)
    except MillraceError:
        raise RowFault(Fault.NOT_TIMESTAMP) from None


def text_to_interval(text: str) -> int:
    try:
        return parse_interval(text)
    except MillraceError:
        raise RowFault(Fault.NOT_INTERVAL) from None


def text_to_bytes(text: str) -> bytes:
    """The text's UTF-8, or what `\\x` and hexadecimal digits say."""
    if not text.startswith("\\x"):
        return text.encode("utf-8", "surrogatepass")
    try:
        return bytes.fromhex(text[2:])
    except ValueError:
        raise RowFault(Fault.NOT_BYTES) from None


def bytes_to_text(value: bytes) -> str:
    return "\\x" + value.hex()


def boolean_to_text(value: bool) -> str:
    return "true" if value else "false"


def double_to_text(value: float) -> str:
    """The shortest digits that read back as the same double, with an exponent from 1e+15 on."""
    text = repr(value)
    if "e" in text:
        return text
    if abs(value) >= 1e15:
        sign, digits = ("-", text[1:-2]) if value < 0 else ("", text[:-2])
        tail = digits[1:].rstrip("0")
        return f"{sign}{digits[0]}{'.' + tail if tail else ''}e+{len(digits) - 1}"
    return text.removesuffix(".0")


def timestamp_to_text(us: int) -> str:
    date, _, clock = format_timestamp(us).removesuffix("Z").partition("T")
    whole, dot, fraction = clock.partition(".")
    return f"{date} {whole}{(dot + fraction).rstrip('0')}"


def double_to_bigint(values: Values) -> tuple[Values, Faults | None]:
    """The nearest whole number, the even one of two."""
    rounded = np.rint(values)
    fits = (rounded >= -(2.0**63)) & (rounded < 2.0**63)
    if fits.all():
        return rounded.astype(np.int64), None
    return np.where(fits, rounded, 0.0).astype(np.int64), faults_where(~fits, Fault.BIGINT_RANGE)


def same(operands: Sequence[Operand]) -> Run:
    """A cast that changes the type alone."""
    return operands[0].run


def _array(result: Type, compute: Callable[[Values], Values]) -> Make:
    return strict(result, no_faults(compute))


_BOOLEAN, _BIGINT, _DOUBLE_, _TEXT = Type.BOOLEAN, Type.BIGINT, Type.DOUBLE, Type.TEXT
_BYTES, _TIMESTAMP, _INTERVAL = Type.BYTES, Type.TIMESTAMP, Type.INTERVAL

CASTS: dict[tuple[Type, Type], Make] = {
    **{(type, type): same for type in Type},
    (_TEXT, _BOOLEAN): each_row(_BOOLEAN, text_to_boolean),
    (_TEXT, _BIGINT): each_row(_BIGINT, text_to_bigint),
    (_TEXT, _DOUBLE_): each_row(_DOUBLE_, text_to_double),
    (_TEXT, _TIMESTAMP): each_row(_TIMESTAMP, text_to_timestamp),
    (_TEXT, _INTERVAL): each_row(_INTERVAL, text_to_interval),
    (_TEXT, _BYTES): each_row(_BYTES, text_to_bytes),
    (_BOOLEAN, _TEXT): each_row(_TEXT, boolean_to_text),
    (_BIGINT, _TEXT): each_row(_TEXT, str),
    (_DOUBLE_, _TEXT): each_row(_TEXT, double_to_text),
    (_TIMESTAMP, _TEXT): each_row(_TEXT, timestamp_to_text),
    (_INTERVAL, _TEXT): each_row(_TEXT, format_interval),
    (_BYTES, _TEXT): each_row(_TEXT, bytes_to_text),
    (_BOOLEAN, _BIGINT): _array(_BIGINT, lambda values: values.astype(np.int64)),
    (_BIGINT, _BOOLEAN): _array(_BOOLEAN, lambda values: values != 0),
    (_BIGINT, _DOUBLE_): _array(_DOUBLE_, lambda values: values.astype(np.float64)),
    (_DOUBLE_, _BIGINT): strict(_BIGINT, double_to_bigint),
    (_BIGINT, _TIMESTAMP): same,
    (_TIMESTAMP, _BIGINT): same,
    (_BIGINT, _INTERVAL): same,
    (_INTERVAL, _BIGINT): same,
}
