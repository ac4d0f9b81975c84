"""When two results are the same, by class: the helpers that every driver's tests share.

rows    the same multiset, doubles to 1e-9 relative
event   the same multiset, and the same order of time: only rows of equal time may have changed places
final   the same last row for each key
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

RELATIVE = 1e-9

AnyRow = Sequence[Any] | Mapping[str, Any]


def same_rows(one: Iterable[AnyRow], other: Iterable[AnyRow]) -> str | None:
    """None if both are the same multiset, else a sentence about the first difference."""
    left, right = sorted(map(_values, one), key=_order), sorted(map(_values, other), key=_order)
    if len(left) != len(right):
        extra, side = (left, "first") if len(left) > len(right) else (right, "second")
        less = right if extra is left else left
        odd = next((row for row in extra if _count(row, extra) != _count(row, less)), extra[-1])
        return f"{len(left)} rows against {len(right)}; only the {side} has (as often) {odd}"
    for a, b in zip(left, right, strict=True):
        if not equal_rows(a, b):
            return f"{a} against {b}"
    return None


def same_event_order(one: Sequence[AnyRow], other: Sequence[AnyRow], time: Callable[[Any], Any]) -> str | None:
    """None if both have the same rows and times never fall in either."""
    for name, rows in (("first", one), ("second", other)):
        times = [time(row) for row in rows]
        for position in range(1, len(times)):
            if times[position] < times[position - 1]:
                return f"the {name} falls back in time at row {position}: {rows[position]}"
    return same_rows(one, other)


def same_final(one: Iterable[AnyRow], other: Iterable[AnyRow], key: Callable[[Any], Hashable]) -> str | None:
    """None if the last row of each key is the same in both."""
    left, right = ({key(row): row for row in rows} for rows in (one, other))
    if left.keys() != right.keys():
        return f"only one has the keys {sorted(map(str, left.keys() ^ right.keys()))}"
    for found, row in left.items():
        if not equal_rows(_values(row), _values(right[found])):
            return f"key {found}: {row} against {right[found]}"
    return None


def equal_rows(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(equal_values, one, other))


def equal_values(one: Any, other: Any) -> bool:
    """Equal and of one kind; a double may differ in its last digits."""
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, float) or isinstance(other, float):
        numbers = isinstance(one, int | float) and isinstance(other, int | float)
        return numbers and math.isclose(one, other, rel_tol=RELATIVE, abs_tol=0.0)
    return type(one) is type(other) and bool(one == other)


def _values(row: AnyRow) -> tuple[Any, ...]:
    return tuple(row.values()) if isinstance(row, Mapping) else tuple(row)


def _order(row: Sequence[Any]) -> list[tuple[str, Any]]:
    """A total order over rows of mixed values, in which doubles that count as equal are neighbours."""
    return [_rank(value) for value in row]


def _rank(value: Any) -> tuple[str, Any]:
    if value is None:
        return ("", 0)
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, int | float):
        return ("number", float(f"{value:.8g}") if isinstance(value, float) else value)
    return (type(value).__name__, value)


def _count(row: Sequence[Any], rows: Iterable[Sequence[Any]]) -> int:
    return sum(1 for other in rows if equal_rows(row, other))
