"""Joins as nested loops over all rows at the end. Simple by design; shares no code with the engine.

An input is a list of (time, row) in order of arrival; a row is a tuple of Python values, null is None. A result is
(time, per input its row with its time, or None).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

Timed = tuple[int, tuple[Any, ...]]
Result = tuple[int, tuple[Timed | None, ...]]
# left, right, low, high: low <= right's time - left's time <= high; None means no bound
Band = tuple[int, int, int | None, int | None]
# left input, its column, right input, its column
Equal = tuple[int, int, int, int]


def matches(rows: Sequence[Timed], bands: Sequence[Band], equal: Sequence[Equal]) -> bool:
    for left, right, low, high in bands:
        apart = rows[right][0] - rows[left][0]
        if (low is not None and apart < low) or (high is not None and apart > high):
            return False
    for left, left_column, right, right_column in equal:
        left_value, right_value = rows[left][1][left_column], rows[right][1][right_column]
        if left_value is None or right_value is None or left_value != right_value:
            return False
    return True


def combinations(
    inputs: Sequence[Sequence[Timed]], bands: Sequence[Band], equal: Sequence[Equal], chosen: tuple[int, ...] = ()
) -> Iterator[tuple[int, ...]]:
    """The positions of matching rows, one for each input: each row of the next input with the rows chosen so far."""
    at = len(chosen)
    if at == len(inputs):
        yield chosen
        return
    mine = [band for band in bands if max(band[:2]) == at]
    keys = [condition for condition in equal if max(condition[0], condition[2]) == at]
    before = [inputs[condition][number] for condition, number in enumerate(chosen)]
    for number, row in enumerate(inputs[at]):
        if matches([*before, row], mine, keys):
            yield from combinations(inputs, bands, equal, (*chosen, number))


def join(
    inputs: Sequence[Sequence[Timed]],
    bands: Sequence[Band] = (),
    equal: Sequence[Equal] = (),
    where: Callable[[Sequence[Timed]], bool] = lambda rows: True,
    outer: Sequence[int] = (),
    newest: Sequence[int | None] | None = None,
) -> list[Result]:
    """All results, in no order."""
    results: list[Result] = []
    matched: set[tuple[int, int]] = set()
    allowed = in_windows(inputs, newest) if newest is not None else lambda chosen: True
    for chosen in combinations(inputs, bands, equal):
        rows = [inputs[at][number] for at, number in enumerate(chosen)]
        if allowed(chosen) and where(rows):
            results.append((max(time for time, _ in rows), tuple(rows)))
            matched |= set(enumerate(chosen))
    for at in outer:
        for number, row in enumerate(inputs[at]):
            if (at, number) not in matched:
                results.append((row[0], (None, row) if at else (row, None)))
    return results


def in_windows(inputs: Sequence[Sequence[Timed]], newest: Sequence[int | None]) -> Callable[[tuple[int, ...]], bool]:
    """Whether all rows but the last, in order of time, are among their inputs' newest when the last one arrives."""
    turns = sorted((row[0], at, number) for at, rows in enumerate(inputs) for number, row in enumerate(rows))
    turn_of = {(at, number): turn for turn, (_, at, number) in enumerate(turns)}

    def allowed(chosen: tuple[int, ...]) -> bool:
        last = max(range(len(chosen)), key=lambda at: turn_of[at, chosen[at]])
        moment = turn_of[last, chosen[last]]
        for at, number in enumerate(chosen):
            most = newest[at]
            if at == last or most is None:
                continue
            before = [n for _, a, n in turns[:moment] if a == at]
            if number not in before[max(0, len(before) - most) :]:
                return False
        return True

    return allowed
