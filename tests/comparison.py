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


def same_rows(one: Iterable[AnyRow], other: Iterable[AnyRow]) -> str | None:
    """None if both are the same multiset, else a sentence about the first difference."""
    left, right = list(map(_values, one)), list(map(_values, other))
    only_left, only_right = without_twins(left, right, _exactly)
    for row in only_left:
        near = next((place for place, found in enumerate(only_right) if equal_rows(row, found)), None)
        if near is None:
            return f"{len(left)} rows against {len(right)}; only the first has (as often) {row}"
        del only_right[near]
    return (
        f"{len(left)} rows against {len(right)}; only the second has (as often) {only_right[0]}" if only_right else None
    )


def _exactly(row: Values) -> Hashable:
    return tuple((type(value), value) for value in row)


def same_event_order(one: Sequence[AnyRow], other: Sequence[AnyRow], time: Callable[[Any], Any]) -> str | None:
    """None if both have the same rows and times never fall in either."""
    for name, rows in (("first", one), ("second", other)):
        times = [time(row) for row in rows]
        for position in range(1, len(times)):
            if times[position] < times[position - 1]:
                return f"the {name} falls back in time at row {position}: {rows[position]}"
    return same_rows(one, other)


def same_final(one: Iterable[AnyRow], other: Iterable[AnyRow], key: Callable[[Any], Hashable]) -> str | None:
    """None if the last row of each key is the same in both. A key whose last row is a deletion has none."""
    left, right = ({key(row): row for row in rows} for rows in (one, other))
    for state in (left, right):
        for gone in [at for at, row in state.items() if isinstance(row, Mapping) and row.get("$gone")]:
            del state[gone]
    if left.keys() != right.keys():
        return f"only one has the keys {sorted(map(str, left.keys() ^ right.keys()))}"
    for found, row in left.items():
        if not equal_rows(_values(row), _values(right[found])):
            return f"key {found}: {row} against {right[found]}"
    return None


def equal_rows(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(equal_values, one, other))


def equal_values(one: Any, other: Any) -> bool:
    """Equal and of the same type; a double may differ in its last digits."""
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, float) or isinstance(other, float):
        numbers = isinstance(one, int | float) and isinstance(other, int | float)
        return numbers and math.isclose(one, other, rel_tol=RELATIVE, abs_tol=0.0)
    return type(one) is type(other) and bool(one == other)


def _values(row: AnyRow) -> Values:
    return tuple(row.values()) if isinstance(row, Mapping) else tuple(row)
