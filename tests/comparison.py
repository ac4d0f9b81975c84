"""Comparison of two results by class of equality: helpers that the tests of all drivers share.

rows    the same multiset, doubles to 1e-9 relative
event   the same multiset, and the same order of time: only rows of equal time may change places
final   the same last row for each key that is not deleted
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from millrace.backfill.compare import without_twins

RELATIVE = 1e-9

AnyRow = Sequence[Any] | Mapping[str, Any]
Values = tuple[Any, ...]


def same_rows(first: Iterable[AnyRow], second: Iterable[AnyRow]) -> str | None:
    """None if both are the same multiset, else a sentence about the first difference."""
    left, right = list(map(_values, first)), list(map(_values, second))
    only_left, only_right = without_twins(left, right, _exactly)
    for row in only_left:
        near = next((place for place, candidate in enumerate(only_right) if equal_rows(row, candidate)), None)
        if near is None:
            return f"{len(left)} rows against {len(right)}; only the first has (as often) {row}"
        del only_right[near]
    return (
        f"{len(left)} rows against {len(right)}; only the second has (as often) {only_right[0]}" if only_right else None
    )


def _exactly(row: Values) -> Hashable:
    return tuple((type(value), value) for value in row)


def same_event_order(first: Sequence[AnyRow], second: Sequence[AnyRow], time: Callable[[Any], Any]) -> str | None:
    """None if both have the same rows and times never fall in either."""
    for name, rows in (("first", first), ("second", second)):
        times = [time(row) for row in rows]
        for position in range(1, len(times)):
            if times[position] < times[position - 1]:
                return f"the {name} falls back in time at row {position}: {rows[position]}"
    return same_rows(first, second)


def same_final(first: Iterable[AnyRow], second: Iterable[AnyRow], key: Callable[[Any], Hashable]) -> str | None:
    """None if the last row of each key is the same in both. A key whose last row is a deletion has none."""
    left, right = ({key(row): row for row in rows} for rows in (first, second))
    for state in (left, right):
        for deleted in [at for at, row in state.items() if isinstance(row, Mapping) and row.get("$gone")]:
            del state[deleted]
    if left.keys() != right.keys():
        return f"only one has the keys {sorted(map(str, left.keys() ^ right.keys()))}"
    for name, row in left.items():
        if not equal_rows(_values(row), _values(right[name])):
            return f"key {name}: {row} against {right[name]}"
    return None


def equal_rows(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(map(equal_values, first, second))


def equal_values(first: Any, second: Any) -> bool:
    """Equal and of the same type; a double may differ in its last digits."""
    if isinstance(first, bool) or isinstance(second, bool) or first is None or second is None:
        return first is second
    if isinstance(first, float) or isinstance(second, float):
        numbers = isinstance(first, int | float) and isinstance(second, int | float)
        return numbers and math.isclose(first, second, rel_tol=RELATIVE, abs_tol=0.0)
    return type(first) is type(second) and bool(first == second)


def _values(row: AnyRow) -> Values:
    return tuple(row.values()) if isinstance(row, Mapping) else tuple(row)
