"""Update streams, recomputed from all rows after each of them. Simple by design; shares no code with the engine.

A row is a dict with `ts`, `place` (its number in order of arrival), `gone`, and its columns; None is null. The current
row of a key is the newest by time, and of equal times the one that arrived later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
State = dict[tuple[Any, ...], tuple[Any, ...]]


def current(rows: Sequence[Row], key: Sequence[str]) -> list[Row]:
    """The current rows of all keys that have one, in order of arrival."""
    newest: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        at = tuple(row[name] for name in key)
        if at not in newest or row["ts"] >= newest[at]["ts"]:
            newest[at] = row
    return sorted((row for row in newest.values() if not row["gone"]), key=lambda row: row["place"])


def filtered(rows: Sequence[Row], key: Sequence[str], columns: Sequence[str], test: Callable[[Row], bool]) -> State:
    matching = [row for row in current(rows, key) if test(row)]
    return {tuple(row[name] for name in key): tuple(row[name] for name in columns) for row in matching}


def grouped(
    rows: Sequence[Row], keys: Sequence[str], aggregates: Sequence[Callable[[Sequence[Row]], Any]]
) -> dict[tuple[Any, ...], Callable[[], tuple[Any, ...]]]:
    """The groups of these rows, each with a function that computes it and may fail."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in keys), []).append(row)

    def computed(members: list[Row]) -> Callable[[], tuple[Any, ...]]:
        return lambda: tuple(aggregate(members) for aggregate in aggregates)

    return {key: computed(members) for key, members in groups.items()}


def first_of(row: Row, other: Row, order: Sequence[tuple[str, bool, bool]]) -> bool:
    """Whether a row precedes another, by columns (name, descending, nulls first), then by arrival."""
    for name, descending, nulls_first in order:
        value, other_value = row[name], other[name]
        if value == other_value:
            continue
        if value is None or other_value is None:
            return (value is None) == nulls_first
        return bool(value > other_value) if descending else bool(value < other_value)
    return bool(row["place"] < other["place"])


def top(
    rows: Sequence[Row],
    partition: Sequence[str],
    order: Sequence[tuple[str, bool, bool]],
    columns: Sequence[str],
    most: int,
) -> State:
    """Each row's number: one more than the number of preceding rows of its partition."""
    state: State = {}
    for row in rows:
        key = tuple(row[name] for name in partition)
        fellows = [other for other in rows if tuple(other[name] for name in partition) == key]
        number = 1 + sum(first_of(other, row, order) for other in fellows if other is not row)
        if number <= most:
            state[(*key, number)] = tuple(row[name] for name in columns)
    return state


def times(rows: Sequence[Row], held: Callable[[Sequence[Row]], Mapping[Any, Any]]) -> dict[Any, int]:
    """For each key, the newest time of the rows that changed its value.

    `held` computes the values from the rows so far. No row causes an older time than its key had, so a key's time does
    not depend on how the rows are batched.
    """
    newest: dict[Any, int] = {}
    before: Mapping[Any, Any] = {}
    for count, row in enumerate(rows, 1):
        after = held(rows[:count])
        for key in [*before, *after]:
            if (key in before) != (key in after) or before[key] != after[key]:
                newest[key] = max(newest.get(key, row["ts"]), row["ts"])
        before = after
    return newest


def youngest(arms: Sequence[tuple[int, Row]], key: Sequence[str]) -> list[Row]:
    """The delivered rows of several inputs.

    No row is older than the last row of its key, and none from another input has the same time.
    """
    last: dict[tuple[Any, ...], tuple[int, int]] = {}
    delivered = []
    for source, row in arms:
        at = tuple(row[name] for name in key)
        if at in last and (row["ts"] < last[at][0] or (row["ts"] == last[at][0] and last[at][1] != source)):
            continue
        last[at] = row["ts"], source
        delivered.append(row)
    return delivered


def paired(
    lefts: Sequence[Row],
    rights: Sequence[Row],
    keys: Sequence[tuple[str, str]],
    outer: Sequence[int],
    test: Callable[[Row, Row], bool],
) -> dict[tuple[Any, ...], tuple[Row | None, Row | None]]:
    """The current rows of two update streams with equal keys, and those without a match on the sides in `outer`.

    They are keyed by the first side, the second if only that is outer, or both if both are.
    """
    first, second = [left for left, _ in keys], [right for _, right in keys]

    def key_of(row: Row | None, names: Sequence[str]) -> tuple[Any, ...]:
        return tuple(None if row is None else row[name] for name in names)

    pairs: list[tuple[Row | None, Row | None]] = []
    matched: list[int] = []
    for left in current(lefts, first):
        for right in current(rights, second):
            here, there = key_of(left, first), key_of(right, second)
            if None not in here and here == there and test(left, right):
                pairs.append((left, right))
                matched += [id(left), id(right)]
    # Of two rows of the same key, such as two without any, the first side's counts.
    if 1 in outer:
        pairs += [(None, row) for row in current(rights, second) if id(row) not in matched]
    if 0 in outer:
        pairs += [(row, None) for row in current(lefts, first) if id(row) not in matched]
    if tuple(outer) == (1,):
        return {key_of(right, second): (left, right) for left, right in pairs}
    if len(outer) == 2:
        return {(*key_of(left, first), *key_of(right, second)): (left, right) for left, right in pairs}
    return {key_of(left, first): (left, right) for left, right in pairs}
