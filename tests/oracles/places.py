"""The cell at each place of a partition, recomputed after every event.

Simple by design; shares no code with the engine. Cells are numbers in the order of the ranking. An event is a cell that
leaves and one that enters (-1: none).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Event = tuple[int, int]


class Change(NamedTuple):
    """A place of a partition has another cell, or none (-1), since a time; the event, and whether its cell entered."""

    partition: int
    at: int
    cell: int
    ts: int
    cause: tuple[int, bool]


def holders(present: Sequence[int], owner: Sequence[int], most: int) -> dict[tuple[int, int], int]:
    """The cell at each partition and place."""
    cells: dict[tuple[int, int], int] = {}
    for cell in sorted(present):
        before = sum(1 for other in present if owner[other] == owner[cell] and other < cell)
        if before < most:
            cells[owner[cell], before] = cell
    return cells


def played(
    present: Sequence[int], owner: Sequence[int], events: Sequence[Event], ts: Sequence[int], most: int
) -> list[Change]:
    """All changes, event by event."""
    there = list(present)
    times: dict[tuple[int, int], int] = {}
    changes: list[Change] = []
    for number, (leaves, enters) in enumerate(events):
        before = holders(there, owner, most)
        there = [cell for cell in there if cell != leaves] + ([enters] if enters >= 0 else [])
        after = holders(there, owner, most)
        parties = [(owner[leaves], False)] if leaves >= 0 else []
        if enters >= 0:
            parties = [party for party in parties if party[0] != owner[enters]] + [(owner[enters], True)]
        for partition, entered in parties:
            for at in range(most):
                place = partition, at
                if before.get(place) != after.get(place):
                    times[place] = max(times.get(place, ts[number]), ts[number])
                    changes.append(Change(partition, at, after.get(place, -1), times[place], (number, entered)))
    return changes


def sizes(
    present: Sequence[int], owner: Sequence[int], events: Sequence[Event], bound: int, partition: int
) -> list[int]:
    """The number of cells of a partition up to a bound, at first and after each event."""
    there = set(present)
    counts = []
    for leaves, enters in [(-1, -1), *events]:
        there = (there - {leaves}) | ({enters} - {-1})
        counts.append(sum(1 for cell in there if owner[cell] == partition and cell <= bound))
    return counts
