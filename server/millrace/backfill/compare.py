"""Whether two results are equal, by class of equality, and their differences in readable form.

rows    the same multiset; doubles to 1e-9 relative
final   the same last row of each key; a key whose last row says that it is gone has none
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.protocol import GONE

RELATIVE: Final = 1e-9
# With more pairs of rows of one time their similarity is not compared.
MOST_LIKENESSES: Final = 10_000
Row = Mapping[str, Any]


@dataclass
class Differences:
    """The rows that only one of two results has.

    missing   rows of the recomputed result that the other lacks
    extra     rows that only the other has
    changed   rows of one key in both, which are not the same: (recomputed, other)
    """

    compared: int = 0
    missing: list[Row] = field(default_factory=list)
    extra: list[Row] = field(default_factory=list)
    changed: list[tuple[Row, Row]] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.missing) + len(self.extra) + len(self.changed)


def compare_rows(recomputed: Iterable[Row], written: Iterable[Row]) -> Differences:
    """Two multisets. Rows that are equal to the last digit cancel first; the others are matched with tolerance."""
    left = list(recomputed)
    only_left, only_right = without_twins(left, list(written), _exactly)
    found = Differences(len(left))
    near: dict[Hashable, list[Row]] = {}
    for row in only_right:
        near.setdefault(_roughly(row), []).append(row)
    for row in only_left:
        candidates = near.get(_roughly(row), [])
        place = next((at for at, other in enumerate(candidates) if equal_rows(row, other)), None)
        if place is None:
            found.missing.append(row)
        else:
            del candidates[place]
    found.extra = [row for rows in near.values() for row in rows]
    return found


def without_twins(
    left: Sequence[Any], right: Sequence[Any], exactly: Callable[[Any], Hashable]
) -> tuple[list[Any], list[Any]]:
    """The rows of both without pairs of exactly equal rows; of equal ones the first are removed."""
    counts = Counter(map(exactly, right))
    only_left = []
    for row in left:
        key = exactly(row)
        if counts[key]:
            counts[key] -= 1
        else:
            only_left.append(row)
    only_right = []
    for row in reversed(right):
        key = exactly(row)
        if counts[key]:
            counts[key] -= 1
            only_right.append(row)
    return only_left, only_right[::-1]


def compare_final(recomputed: Iterable[Row], written: Iterable[Row], key: Sequence[str]) -> Differences:
    """The last rows of the keys of two update streams."""
    left, right = last_rows(recomputed, key), last_rows(written, key)
    found = Differences(len(left))
    for at, row in left.items():
        other = right.get(at)
        if other is None:
            found.missing.append(row)
        elif not equal_rows(row, other):
            found.changed.append((row, other))
    found.extra = [row for at, row in right.items() if at not in left]
    return found


def side_by_side(found: Differences, time: str | None) -> Iterator[tuple[Row | None, Row | None]]:
    """All differences as (recomputed, written) in one order by time, rows without one first.

    A row of only one side stands next to the most similar row of only the other side, for it may be the same row.
    """
    groups: dict[int | None, Differences] = {}

    def group(row: Row) -> Differences:
        return groups.setdefault(None if time is None else row.get(time), Differences())

    for row in found.missing:
        group(row).missing.append(row)
    for row in found.extra:
        group(row).extra.append(row)
    for pair in found.changed:
        group(pair[0]).changed.append(pair)
    for at in sorted(groups, key=lambda at: (at is not None, at or 0)):
        yield from groups[at].changed
        yield from _halves(groups[at].missing, groups[at].extra)


def _halves(missing: Sequence[Row], extra: Sequence[Row]) -> Iterator[tuple[Row | None, Row | None]]:
    """Rows of one time that only one side has, each followed by the most similar one of the other side."""
    near: dict[int, int] = {}
    if len(missing) * len(extra) <= MOST_LIKENESSES:
        likeness = {(one, at): _alike(row, other) for one, row in enumerate(missing) for at, other in enumerate(extra)}
        taken: set[int] = set()
        for one, at in sorted(likeness, key=lambda pair: -likeness[pair]):
            if one not in near and at not in taken:
                near[one] = at
                taken.add(at)
    for one, row in enumerate(missing):
        yield row, None
        if one in near:
            yield None, extra[near[one]]
    left = set(range(len(extra))) - set(near.values())
    yield from ((None, extra[at]) for at in sorted(left))


def _alike(one: Row, other: Row) -> int:
    """How many columns have the same value."""
    return sum(equal_values(value, other.get(name)) for name, value in one.items())


def last_rows(rows: Iterable[Row], key: Sequence[str]) -> dict[Hashable, Row]:
    """The current row of each key, after all of these."""
    last = {tuple(row[name] for name in key): row for row in rows}
    return {
        at: {name: value for name, value in row.items() if name != GONE}
        for at, row in last.items()
        if not row.get(GONE)
    }


def equal_rows(one: Row, other: Row) -> bool:
    return one.keys() == other.keys() and all(equal_values(value, other[name]) for name, value in one.items())


def equal_values(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or math.isclose(one, other, rel_tol=RELATIVE, abs_tol=0.0)
    return type(one) is type(other) and bool(one == other)


def _exactly(row: Row) -> Hashable:
    return tuple((name, type(value), value) for name, value in row.items())


def _roughly(row: Row) -> Hashable:
    """All but the doubles."""
    return tuple((name, None if isinstance(value, float) else value) for name, value in row.items())
