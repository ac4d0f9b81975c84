"""Sequences found by inspecting all pairs. Simple by design; shares no code with the engine.

A row is `(time, values)`, a list of rows is in order of arrival; `keys` are the columns that must be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Row = tuple[int, tuple[Any, ...]]
Pair = tuple[Row | None, Row]


class Impossible(Exception):  # noqa: N818 - an outcome of a pair
    """It is impossible to decide whether the pair matches."""


Test = Callable[[Row, Row], bool]


def in_time(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row[0])


def same_key(a: Row, b: Row, keys: Sequence[int]) -> bool:
    return all(a[1][at] is not None and a[1][at] == b[1][at] for at in keys)


def fits(a: Row, b: Row, keys: Sequence[int], within: int | None) -> bool:
    return a[0] <= b[0] and (within is None or b[0] - a[0] <= within) and same_key(a, b, keys)


def following(
    firsts: Sequence[Row],
    seconds: Sequence[Row],
    keys: Sequence[int],
    mode: str,
    within: int | None,
    test: Test,
    outer: bool,
) -> tuple[list[Pair], int]:
    """The pairs in order of time, and the number of pairs that could not be tested."""
    unused = in_time(firsts)
    pairs: list[Pair] = []
    impossible = 0
    for b in in_time(seconds):
        candidates = [at for at, a in enumerate(unused) if fits(a, b, keys, within)]
        chosen = None
        if candidates and mode == "recent":
            chosen = unused[candidates[-1]]
        elif candidates:
            chosen = unused.pop(candidates[0])
        try:
            if chosen is not None and not test(chosen, b):
                chosen = None
        except Impossible:
            impossible += 1
            continue
        if chosen is not None or outer:
            pairs.append((chosen, b))
    return pairs, impossible


def absent(
    firsts: Sequence[Row], seconds: Sequence[Row], keys: Sequence[int], within: int, test: Test
) -> tuple[list[Row], int]:
    """The rows without a following row, in order of time, and the number of pairs that could not be tested."""
    alone = []
    impossible = 0
    for a in in_time(firsts):
        for b in in_time(seconds):
            if fits(a, b, keys, within):
                try:
                    if test(a, b):
                        break
                except Impossible:
                    impossible += 1
        else:
            alone.append(a)
    return alone, impossible
