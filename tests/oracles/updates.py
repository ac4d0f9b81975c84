"""Update streams, recomputed from all rows after each of them. Dull on purpose; shares no code with the engine.

A row is a dict with `ts`, `place` (its number as it came), `gone`, and its columns; None is null. The current row of a
key is the newest by time, of equal times the one that came later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
State = dict[tuple[Any, ...], tuple[Any, ...]]


def current(rows: Sequence[Row], key: Sequence[str]) -> list[Row]:
    """The current rows of all keys that have one, as they came."""
    newest: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        at = tuple(row[name] for name in key)
        if at not in newest or row["ts"] >= newest[at]["ts"]:
            newest[at] = row
    return sorted((row for row in newest.values() if not row["gone"]), key=lambda row: row["place"])


def filtered(rows: Sequence[Row], key: Sequence[str], columns: Sequence[str], test: Callable[[Row], bool]) -> State:
    kept = [row for row in current(rows, key) if test(row)]
    return {tuple(row[name] for name in key): tuple(row[name] for name in columns) for row in kept}


def grouped(
    rows: Sequence[Row], keys: Sequence[str], aggregates: Sequence[Callable[[Sequence[Row]], Any]]
) -> dict[tuple[Any, ...], Callable[[], tuple[Any, ...]]]:
    """The groups of these rows, each with a way to compute it, which may fail."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in keys), []).append(row)

    def computed(members: list[Row]) -> Callable[[], tuple[Any, ...]]:
        return lambda: tuple(aggregate(members) for aggregate in aggregates)

    return {key: computed(members) for key, members in groups.items()}


def first_of(one: Row, other: Row, order: Sequence[tuple[str, bool, bool]]) -> bool:
    """Whether a row stands before another, by columns (name, descending, nulls first), then as they came."""
    for name, descending, nulls_first in order:
        mine, theirs = one[name], other[name]
        if mine == theirs:
            continue
        if mine is None or theirs is None:
            return (mine is None) == nulls_first
        return bool(mine > theirs) if descending else bool(mine < theirs)
    return bool(one["place"] < other["place"])


def top(
    rows: Sequence[Row],
    partition: Sequence[str],
    order: Sequence[tuple[str, bool, bool]],
    columns: Sequence[str],
    most: int,
) -> State:
    """Each row's number is how many of its partition stand before it, and one."""
    found: State = {}
    for row in rows:
        mine = tuple(row[name] for name in partition)
        fellows = [other for other in rows if tuple(other[name] for name in partition) == mine]
        number = 1 + sum(first_of(other, row, order) for other in fellows if other is not row)
        if number <= most:
            found[(*mine, number)] = tuple(row[name] for name in columns)
    return found


def times(rows: Sequence[Row], held: Callable[[Sequence[Row]], Mapping[Any, Any]]) -> dict[Any, int]:
    """By key, the newest time of the rows that changed what it holds; `held` computes that from the rows so far.

    No row causes an older time than its key had, so a key's time does not depend on how the rows were cut.
    """
    found: dict[Any, int] = {}
    before: Mapping[Any, Any] = {}
    for count, row in enumerate(rows, 1):
        after = held(rows[:count])
        for key in [*before, *after]:
            if (key in before) != (key in after) or before[key] != after[key]:
                found[key] = max(found.get(key, row["ts"]), row["ts"])
        before = after
    return found


def youngest(arms: Sequence[tuple[int, Row]], key: Sequence[str]) -> list[Row]:
    """The rows of several inputs that are delivered: none older than the last of its key, none of another input at the
    same time.
    """
    last: dict[tuple[Any, ...], tuple[int, int]] = {}
    given = []
    for source, row in arms:
        at = tuple(row[name] for name in key)
        if at in last and (row["ts"] < last[at][0] or (row["ts"] == last[at][0] and last[at][1] != source)):
            continue
        last[at] = row["ts"], source
        given.append(row)
    return given
