"""Who has the places of partitions, found anew after every event. Dull on purpose; shares no code with the engine.

Cells are numbers in the order that counts. An event is a cell that goes and one that comes (-1: none).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Event = tuple[int, int]


class Change(NamedTuple):
    """A place of a partition has another cell, or none (-1), since a time; the event, and whether its row came."""

    partition: int
    at: int
    cell: int
    ts: int
    cause: tuple[int, bool]


def holders(present: Sequence[int], owner: Sequence[int], most: int) -> dict[tuple[int, int], int]:
    """By partition and place, the cell that has it."""
    found: dict[tuple[int, int], int] = {}
    for cell in sorted(present):
        before = sum(1 for other in present if owner[other] == owner[cell] and other < cell)
        if before < most:
            found[owner[cell], before] = cell
    return found


def played(
    present: Sequence[int], owner: Sequence[int], events: Sequence[Event], ts: Sequence[int], most: int
) -> list[Change]:
    """All changes, one event after the other."""
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
        for partition, came in parties:
            for at in range(most):
                place = partition, at
                if before.get(place) != after.get(place):
                    times[place] = max(times.get(place, ts[number]), ts[number])
                    changes.append(Change(partition, at, after.get(place, -1), times[place], (number, came)))
    return changes


def sizes(
    present: Sequence[int], owner: Sequence[int], events: Sequence[Event], bound: int, partition: int
) -> list[int]:
    """How many cells of a partition are there up to a bound, at first and after each event."""
    there = set(present)
    found = []
    for leaves, enters in [(-1, -1), *events]:
        there = (there - {leaves}) | ({enters} - {-1})
        found.append(sum(1 for cell in there if owner[cell] == partition and cell <= bound))
    return found
