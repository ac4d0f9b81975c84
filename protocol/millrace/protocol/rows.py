"""Rows as `decode` reads them, and what the wire allows in them.

Rule: a row is an array of nil, booleans, integers of 64 bits, finite floats, text and bytes; all rows of a frame are of
one length. Whether they fit a schema is the server's to say, whose decoder is typed by it and does not come here.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import msgpack

from millrace.protocol.errors import PeerError, row_place
from millrace.protocol.fields import MAX_COLUMNS, UnfitError, read_array
from millrace.protocol.frames import Body
from millrace.protocol.types import MAX_INT64

MAX_ARRAY = 65_536  # rows of a frame, and any other array

# Rows as the decoder gives them: tuples of None, bool, int, float, str, bytes.
Rows = Sequence[Sequence[object]]


def _refuse_map(_: object) -> object:
    raise ValueError("a map")  # turned into words by read_rows, as msgpack's own errors are


def read_rows(body: Body, at: int) -> tuple[list[tuple[object, ...]], int]:
    """Rows as tuples: each value none of array, map, extension; finite; integers within 64 bits signed."""
    count, at = read_array(body, at)
    if count > MAX_ARRAY:
        raise UnfitError(f"{count} rows")
    size = len(body) - at
    unpacker = msgpack.Unpacker(
        use_list=False, max_array_len=MAX_COLUMNS, max_map_len=MAX_COLUMNS, max_ext_len=0, object_hook=_refuse_map,
        max_buffer_size=max(size, 1), max_str_len=size, max_bin_len=size,
    )  # fmt: skip
    unpacker.feed(body[at:])
    try:
        rows = list(unpacker)
    except ValueError as error:
        raise UnfitError(f"broken or forbidden msgpack ({str(error) or type(error).__name__})", "bad_frame") from None
    if unpacker.tell() != size or len(rows) != count:
        raise UnfitError(f"{len(rows)} whole items", "bad_frame")
    check_rows(rows)
    return rows, len(body)


_PLAIN = frozenset({type(None), bool, str, bytes})
_VALUES = _PLAIN | {int, float}


def check_rows(rows: Sequence[Any]) -> None:
    """Rows are tuples of one length, of values that the wire allows; PeerError says which row is not."""
    if rows and not _fit(rows):
        row, expected, code = next((row, *fault) for row, fault in enumerate(map(_fault(rows[0]), rows)) if fault)
        raise PeerError.at(row_place(row), expected=expected, got=reprlib.repr(rows[row]), code=code, row=row)


def _fit(rows: Sequence[Any]) -> bool:
    """The fast way, a column at a time, for the frames that are right."""
    if set(map(type, rows)) != {tuple} or len(set(map(len, rows))) > 1:
        return False
    return all(_column_fits(column, set(map(type, column))) for column in zip(*rows, strict=True))


def _column_fits(column: Sequence[Any], types: set[type]) -> bool:
    if types <= _PLAIN:
        return True
    if types == {float}:
        return all(map(isfinite, column))
    if types == {int}:
        return bool(max(column) <= MAX_INT64)
    return types <= _VALUES and all(_allowed(value) for value in column)


def _allowed(value: object) -> bool:
    return isfinite(value) if isinstance(value, float) else not isinstance(value, int) or value <= MAX_INT64


def _fault(first: object) -> Callable[[object], tuple[str, str] | None]:
    """The slow way, for one row: what was expected of it and the code, or None if it is right."""
    width = len(first) if isinstance(first, tuple) else 0

    def fault(row: object) -> tuple[str, str] | None:
        if not isinstance(row, tuple):
            return "an array of values", "bad_row"
        if len(row) != width:
            return f"{width} values, as in the first row", "bad_row"
        if not set(map(type, row)) <= _VALUES:
            return "nil, booleans, integers, floats, text and bytes only", "bad_row"
        return None if all(map(_allowed, row)) else ("finite floats and integers of 64 bits, signed", "bad_value")

    return fault
