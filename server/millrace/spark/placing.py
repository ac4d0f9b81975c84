"""Which task gets which buckets: the longest first, each to the task that has least to do."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Final

from millrace.spark.records import Unit

# Buckets stay where they are unless moving them makes the slowest task faster by more than this share: Spark compiles a
# plan again if the placement in it changes.
WORTH: Final = 0.2


def place(
    units: Sequence[Unit], tasks: int, seconds: Mapping[Unit, float], before: Sequence[Sequence[Unit]] = ()
) -> list[list[Unit]]:
    """The buckets of each task, by the seconds that they took in the last epoch.

    before  the last placement, which stays if it is almost as good
    """
    best = _spread(units, tasks, seconds)
    same = len(before) == tasks and sorted(unit for own in before for unit in own) == sorted(units)
    if same and _slowest(before, seconds) <= (1 + WORTH) * _slowest(best, seconds):
        return [list(own) for own in before]
    return best


def _spread(units: Sequence[Unit], tasks: int, seconds: Mapping[Unit, float]) -> list[list[Unit]]:
    placed: list[list[Unit]] = [[] for _ in range(tasks)]
    # Without measurements all are equal, and go round.
    loads = [(0.0, 0, task) for task in range(tasks)]
    for unit in sorted(units, key=lambda one: (-seconds.get(one, 0.0), one)):
        load, count, task = heapq.heappop(loads)
        placed[task].append(unit)
        heapq.heappush(loads, (load + seconds.get(unit, 0.0), count + 1, task))
    return [sorted(own) for own in placed]


def _slowest(placed: Sequence[Sequence[Unit]], seconds: Mapping[Unit, float]) -> float:
    return max((sum(seconds.get(unit, 0.0) for unit in own) for own in placed), default=0.0)
