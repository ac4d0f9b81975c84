"""Rows as `decode` reads them, and the values that the wire allows.

Rule: a row is an array of nil, booleans, integers of 64 bits, finite floats, text and bytes. All rows of a frame have
the same length. The server's schema-typed decoder checks whether rows fit a schema; it does not use this module.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from itertools import islice
from math import isfinite
from typing import Any

import msgpack

from millrace.protocol.errors import PeerError, row_place
from millrace.protocol.fields import MAX_COLUMNS, UnfitError, read_array
from millrace.protocol.frames import Body
from millrace.protocol.types import MAX_INT64

MAX_ARRAY = 65_536  # rows of a frame, and any other array

# Rows as the decoder returns them: tuples of None, bool, int, float, str, bytes.
Rows = Sequence[Sequence[object]]


def _refuse_map(_: object) -> object:
    raise ValueError("a map")  # read_rows reports it, like errors of msgpack


def read_rows(body: Body, at: int) -> tuple[list[tuple[object, ...]], int]:
    """Rows as tuples, at the end of a body. Values are not arrays, maps or extensions; floats are finite, integers have
    64 bits, signed."""
    rows, end = read_keys(body, at)
    if end != len(body):
        raise UnfitError("more bytes", "bad_frame")
    return rows, end


def read_keys(body: Body, at: int) -> tuple[list[tuple[object, ...]], int]:
    """The same where a field may follow."""
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
        rows = list(islice(unpacker, count))
    except ValueError as error:
        raise UnfitError(f"broken or forbidden msgpack ({str(error) or type(error).__name__})", "bad_frame") from None
    if len(rows) != count:
        raise UnfitError(f"{len(rows)} complete items", "bad_frame")
    check_rows(rows)
    return rows, at + unpacker.tell()


MAX_PAIRS = 64  # as many columns as a key may have


def read_pairs(body: Body, at: int) -> tuple[tuple[tuple[str, object], ...], int]:
    """Values by name, at the end of a body: arrays of a name and a value as in rows, each name once."""
    rows, end = read_rows(body, at)
    if len(rows) > MAX_PAIRS:
        raise UnfitError(f"{len(rows)} items")
    pairs = {row[0]: row[1] for row in rows if len(row) == 2 and isinstance(row[0], str)}
    if len(pairs) < len(rows):
        raise UnfitError("items that are not each another name and its value")
    return tuple(pairs.items()), end


_PLAIN = frozenset({type(None), bool, str, bytes})
_VALUES = _PLAIN | {int, float}


def check_rows(rows: Sequence[Any]) -> None:
    """Check that rows are tuples of one length with allowed values. PeerError names the first row that is not."""
    if rows and not _fit(rows):
        row, expected, code = next((row, *fault) for row, fault in enumerate(map(_fault(rows[0]), rows)) if fault)
        raise PeerError.at(row_place(row), expected=expected, got=reprlib.repr(rows[row]), code=code, row=row)


def _fit(rows: Sequence[Any]) -> bool:
    """The fast path, a column at a time, for valid frames."""
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
    """The slow path, for one row: the expected form and the code, or None if the row is valid."""
    width = len(first) if isinstance(first, tuple) else 0

    def fault(row: object) -> tuple[str, str] | None:
        if not isinstance(row, tuple):
            return "an array of values", "bad_row"
        if len(row) != width:
            return f"{width} values, as in the first row", "bad_row"
        if not set(map(type, row)) <= _VALUES:
            return "only nil, booleans, integers, floats, text and bytes", "bad_row"
        return None if all(map(_allowed, row)) else ("finite floats and integers of 64 bits, signed", "bad_value")

    return fault
