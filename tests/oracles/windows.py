"""Windows and aggregates, recomputed from all rows at the end. Simple by design; shares no code with the engine.

A row is a dict with `ts`, `place` (its number at the source) and its columns; None is null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

Row = Mapping[str, Any]
MAX = 2**63 - 1


class Failed(Exception):  # noqa: N818 - an outcome of a group
    """The group's row cannot be computed."""


def values(rows: Sequence[Row], column: str, distinct: bool) -> list[Any]:
    present = [row[column] for row in rows if row[column] is not None]
    if not distinct:
        return present
    unique: list[Any] = []
    for value in present:
        if value not in unique:
            unique.append(value)
    return unique


def count(rows: Sequence[Row], column: str | None, distinct: bool) -> int:
    return len(rows) if column is None else len(values(rows, column, distinct))


def total(rows: Sequence[Row], column: str, distinct: bool) -> Any:
    summands = values(rows, column, distinct)
    if not summands:
        return None
    if isinstance(summands[0], float):
        return math.fsum(summands)
    exact = sum(summands)
    if not -MAX - 1 <= exact <= MAX:
        raise Failed
    return exact


def mean(rows: Sequence[Row], column: str, distinct: bool) -> float | None:
    fractions = [Fraction(value) for value in values(rows, column, distinct)]
    return float(sum(fractions) / len(fractions)) if fractions else None


def deviation(rows: Sequence[Row], column: str, distinct: bool) -> float | None:
    fractions = [Fraction(value) for value in values(rows, column, distinct)]
    if len(fractions) < 2:
        return None
    middle = sum(fractions) / len(fractions)
    return math.sqrt(sum((value - middle) ** 2 for value in fractions) / (len(fractions) - 1))


def least(rows: Sequence[Row], column: str, distinct: bool) -> Any:
    return min(values(rows, column, False), default=None)


def greatest(rows: Sequence[Row], column: str, distinct: bool) -> Any:
    return max(values(rows, column, False), default=None)


def by_time(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["ts"], row["place"]))


def first(rows: Sequence[Row], column: str, distinct: bool) -> Any:
    present = [row[column] for row in by_time(rows) if row[column] is not None]
    return present[0] if present else None


def last(rows: Sequence[Row], column: str, distinct: bool) -> Any:
    present = [row[column] for row in by_time(rows) if row[column] is not None]
    return present[-1] if present else None


def arg_min(rows: Sequence[Row], column: str, by: str) -> Any:
    candidates = [row for row in by_time(rows) if row[column] is not None and row[by] is not None]
    return min(candidates, key=lambda row: row[by])[column] if candidates else None


def arg_max(rows: Sequence[Row], column: str, by: str) -> Any:
    candidates = [row for row in by_time(rows) if row[column] is not None and row[by] is not None]
    return max(candidates, key=lambda row: row[by])[column] if candidates else None


Aggregate = Callable[[Sequence[Row]], Any]
Result = tuple[tuple[Any, ...], int]  # the row (keys, aggregates, start, end), its time


def groups(rows: Sequence[Row], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    members: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        members.setdefault(tuple(row[key] for key in keys), []).append(row)
    return members


def result(
    key: tuple[Any, ...], rows: Sequence[Row], aggregates: Sequence[Aggregate], start: int, end: int, time: int
) -> list[Result]:
    try:
        return [((*key, *(aggregate(rows) for aggregate in aggregates), start, end), time)]
    except Failed:
        return []


def time_windows(
    rows: Sequence[Row],
    keys: Sequence[str],
    aggregates: Sequence[Aggregate],
    size: int,
    slide: int,
    offset: int = 0,
    since: int | None = None,
    axis: str = "ts",
    everything: Sequence[tuple[int, int]] = (),
    promised: int | None = None,
) -> list[Result]:
    """Every window with any row, found by trying all of them.

    On an axis of places the rows of a window have the newest time of `everything` at its places, whether it counts or
    not. If a window is incomplete at the end, its rows are no older than the bound `promised` at that moment.
    """
    starts = {
        offset + number * slide
        for place in {row[axis] for row in rows}
        for number in range((place - size - offset) // slide + 1, (place - offset) // slide + 1)
    }
    results = []
    for start in sorted(starts):
        inside = [row for row in rows if start <= row[axis] < start + size]
        if since is None or start >= since:
            time = start + size - 1
            if axis == "place":
                time = max((ts for place, ts in everything if start <= place < start + size), default=0)
                if promised is not None and start + size > len(everything):
                    time = max(time, promised)
            for key, members in groups(inside, keys).items():
                results += result(key, members, aggregates, start, start + size, time)
    return results


Part = tuple[tuple[Any, ...], list[Row]]


def cut_into_sessions(rows: Sequence[Row], keys: Sequence[str], gap: int, since: int | None = None) -> list[Part]:
    """The rows of each session, in order of time, with its key."""
    cut: list[Part] = []
    for key, members in groups(rows, keys).items():
        current: list[Row] = []
        parts = []
        for row in by_time(members):
            if current and row["ts"] - current[-1]["ts"] >= gap:
                parts.append(current)
                current = []
            current.append(row)
        parts.append(current)
        cut += [(key, part) for part in parts if since is None or part[0]["ts"] >= since - 1 + gap]
    return cut


def sessions(
    rows: Sequence[Row], keys: Sequence[str], aggregates: Sequence[Aggregate], gap: int, since: int | None = None
) -> list[Result]:
    results = []
    for key, part in cut_into_sessions(rows, keys, gap, since):
        start, end = part[0]["ts"], part[-1]["ts"] + gap
        results += result(key, part, aggregates, start, end, end - 1)
    return results


# -- rows without aggregates: the row as it is, the bounds, its time ---------------------------------------------------


def rows_of_sessions(
    rows: Sequence[Row], keys: Sequence[str], columns: Sequence[str], gap: int, since: int | None = None
) -> list[Result]:
    """In order of emission: by the end of the session, by time, by arrival."""
    emitted = []
    for _, part in cut_into_sessions(rows, keys, gap, since):
        start, end = part[0]["ts"], part[-1]["ts"] + gap
        emitted += [(end, row["ts"], row["place"], start, row) for row in part]
    emitted.sort(key=lambda item: item[:3])
    return [((*(row[name] for name in columns), start, end), end - 1) for end, _, _, start, row in emitted]


def rows_of_windows(
    rows: Sequence[Row],
    columns: Sequence[str],
    size: int,
    slide: int,
    offset: int = 0,
    since: int | None = None,
    axis: str = "ts",
) -> list[Result]:
    """Row by row in order of arrival, the earliest window first."""
    results = []
    for row in rows:
        start = offset + ((row[axis] - size - offset) // slide) * slide
        while start <= row[axis]:
            if start <= row[axis] < start + size and (since is None or start >= since):
                results.append(((*(row[name] for name in columns), start, start + size), row["ts"]))
            start += slide
    return results
