"""Rates: the difference between two looks at the operators' counters.

Rule: one look a second is kept for a few seconds. A rate compares the present counters with the oldest look that has
the operator, so it covers the last seconds only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from millrace.engine import views
from millrace.engine.engine import Engine
from millrace.protocol.admin.operators import RateView

LOOK_SECONDS: Final = 1.0
# Long enough that a stream of a tuple a second shows a rate, short enough that a change is seen while one waits.
LOOKS: Final = 5

Counters = tuple[int, int, int, float, tuple[int, ...]]


class Rates:
    """The last seconds of an engine."""

    def __init__(self, engine: Engine, now_us: Callable[[], int]) -> None:
        self._engine = engine
        self._now_us = now_us
        self._looks: deque[tuple[int, dict[str, Counters]]] = deque(maxlen=LOOKS)

    def look(self) -> None:
        """Record the present counters."""
        now_us = self._now_us()
        self._looks.append((now_us, views.counters(self._engine, now_us)))

    def now(self) -> dict[str, RateView]:
        """By operator; one that is too new to have a rate is missing."""
        now_us = self._now_us()
        found = {}
        for name, counters in views.counters(self._engine, now_us).items():
            for then_us, look in self._looks:
                before = look.get(name)
                if before is not None and then_us < now_us and goes_on(before, counters):
                    found[name] = between(before, counters, now_us - then_us)
                    break
        return found


def goes_on(before: Counters, after: Counters) -> bool:
    """Whether both were counted by one operator: another one of the same name started at zero."""
    return before[0] <= after[0] and before[2] <= after[2] and len(before[4]) == len(after[4])


def between(before: Counters, after: Counters, us: int) -> RateView:
    """The difference between two looks."""
    seconds = us / 1e6
    taken, given, executed = (late - early for early, late in zip(before[:3], after[:3], strict=True))
    busy_us = after[3] - before[3]
    return RateView(
        seconds=seconds,
        input=taken / seconds,
        output=given / seconds,
        executions=executed / seconds,
        selectivity=given / taken if taken else None,
        cost_us=busy_us / taken if taken else None,
        busy=busy_us / us,
        idle=tuple(_share(late - early, us) for early, late in zip(before[4], after[4], strict=True)),
    )


def _share(part_us: int, us: int) -> float:
    return min(max(part_us / us, 0.0), 1.0)
