"""Rows of a program, packed for the wire. Sans-I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgpack

from millrace.protocol import MillraceError, Schema, parse_timestamp
from millrace.protocol.errors import row_place
from millrace.protocol.timestamps import format_timestamp
from millrace.protocol.units import MICROSECONDS, TimeUnit

Row = Mapping[str, object] | Sequence[object]


class RowPacker:
    """Packs rows of one schema. Tuples and lists are packed as they are, mappings in the order of the schema.

    A datetime becomes microseconds, or text if numbers in the stream's time field are in another unit.
    """

    def __init__(self, schema: Schema, unit: TimeUnit = MICROSECONDS) -> None:
        self._names = schema.names
        self._known = frozenset(schema.names)
        self._packer = msgpack.Packer(
            default=_plain if unit is MICROSECONDS else _in_text, autoreset=True, use_bin_type=True
        )

    def pack(self, rows: Sequence[Row], first: int = 0) -> bytes:
        """The rows concatenated, without the head of an array. ValueError or TypeError: nothing was packed.

        `first` is the index of the first row in the program's call, for the text of an error.
        """
        by_name = isinstance(rows[0], Mapping)
        try:
            packed = self._pack(rows, by_name)
        except (ValueError, TypeError):
            self._raise_located(rows, by_name, first)
            raise
        return packed[_array_head_size(len(rows)) :]

    def _pack(self, rows: Sequence[Row], by_name: bool) -> bytes:
        ordered = [self._in_order(row) for row in rows] if by_name else rows
        try:
            packed: bytes = self._packer.pack(ordered)
        except BaseException:
            self._packer.reset()
            raise
        return packed

    def _raise_located(self, rows: Sequence[Row], by_name: bool, first: int) -> None:
        """Raise the error of the first row that cannot be packed, with its place."""
        for index, row in enumerate(rows, first):
            try:
                self._pack([row], by_name)
            except (ValueError, TypeError) as error:
                kind = ValueError if isinstance(error, ValueError) else TypeError
                raise kind(f"{row_place(index)}: {error}") from None

    def _in_order(self, row: Row) -> Sequence[object]:
        if not isinstance(row, Mapping):
            raise TypeError("expected rows that are all mappings or all sequences, got both")
        if not row.keys() <= self._known:
            unknown = ", ".join(sorted(map(repr, row.keys() - self._known)))
            raise ValueError(f"unknown field {unknown}: expected the fields {', '.join(self._names)}")
        return [row.get(name) for name in self._names]


def pairs_of(where: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    """Values by name for the wire; ValueError or TypeError if one of them cannot be packed."""
    packed = msgpack.packb([(str(name), value) for name, value in where.items()], default=_plain)
    return tuple((name, value) for name, value in msgpack.unpackb(packed))


def _array_head_size(items: int) -> int:
    return 1 if items < 16 else 3 if items < 65_536 else 5


def _plain(value: object) -> object:
    """A value that msgpack cannot pack: datetimes as microseconds, numpy scalars as Python values."""
    if isinstance(value, int):
        raise ValueError(f"expected integers of 64 bits, got {value!r:.60}")
    if _is_time(value):
        return _micros(value)
    item: Any = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        return item()
    raise TypeError(f"expected None, bool, int, float, str, bytes or datetime, got {type(value).__name__}")


def _in_text(value: object) -> object:
    """The same, with datetimes as text, which means the same in every unit."""
    return format_timestamp(_micros(value)) if _is_time(value) else _plain(value)


def _is_time(value: object) -> bool:
    """Whether the value is a datetime, or numpy's form of one."""
    return isinstance(value, datetime) or type(value).__name__ == "datetime64"


def _micros(value: Any) -> int:
    return parse_timestamp(
        value if isinstance(value, datetime) else int(value.astype("datetime64[us]").astype("int64"))
    )


def least_time(rows: Sequence[Row], schema: Schema, time: str, unit: TimeUnit = MICROSECONDS) -> int | None:
    """The least timestamp in the time field of the rows. Rows without a valid timestamp are skipped."""
    at = schema.index(time)
    least: int | None = None
    for row in rows:
        try:
            value = unit.parse(row.get(time) if isinstance(row, Mapping) else row[at or 0])
        except (MillraceError, LookupError):
            continue
        least = value if least is None else min(least, value)
    return least


def unpack_rows(packed: bytes) -> list[Sequence[object]]:
    """The rows that `RowPacker.pack` packed."""
    unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=max(len(packed), 1))
    unpacker.feed(packed)
    return list(unpacker)
