"""Update queues as the paper's words define them: a list of keys in line, a dict of the newest tuples, and staleness
added up tick by tick. Slow, and shares nothing with the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

Key = Any


@dataclass
class Pending:
    """What waits for a key: when its first update since it was last served came, and its newest."""

    since: int
    newest: Any


@dataclass
class QueueOracle:
    """The line of keys under one policy; an update is `(key, event time, value)`."""

    policy: str
    cost: float = 0.0
    line: list[Key] = field(default_factory=list)
    pending: dict[Key, Pending] = field(default_factory=dict)
    newest_time: dict[Key, int] = field(default_factory=dict)
    last_arrival: dict[Key, int] = field(default_factory=dict)
    mean_gap: dict[Key, int] = field(default_factory=dict)
    superseded: int = 0

    def enqueue(self, key: Key, time: int, value: Any, now: int) -> None:
        if key in self.newest_time and time < self.newest_time[key]:
            self.superseded += 1
            return
        self.newest_time[key] = time
        residents = len(self.line)
        if key in self.last_arrival:
            gap = max(0, now - self.last_arrival[key])
            known = self.mean_gap.get(key)
            # A moving mean in whole microseconds: a quarter of it is the newest gap.
            self.mean_gap[key] = gap if known is None else (3 * known + gap) // 4
        self.last_arrival[key] = now
        cuts = (
            self.policy == "linecutting" and self.cost > 0 and self.mean_gap.get(key, -1) > self.cost * residents
        )  # its rate, 1 / gap, is below 1 / (c * n)
        if key in self.pending:
            self.superseded += 1
            self.pending[key].newest = (key, time, value)
            if self.policy == "fifo":
                self.line.remove(key)
                self.line.append(key)
            elif cuts:
                self.line.remove(key)
                self.line.insert(0, key)
            return
        self.pending[key] = Pending(now, (key, time, value))
        self.line.insert(0 if cuts else len(self.line), key)

    def dequeue(self) -> Any:
        key = self.line.pop(0)
        return self.pending.pop(key).newest


# -- staleness, tick by tick -------------------------------------------------------------------------------------------


@dataclass
class Simulated:
    """What a run of one server over a queue came to: order of service, staleness per key summed over the ticks."""

    served: list[tuple[int, Any]]
    queue: dict[Key, float]
    application: dict[Key, float]


def simulate(policy: str, arrivals: Sequence[tuple[int, Key]], cost: int, horizon: int) -> Simulated:
    """One server that takes `cost` ticks per update; an update that comes at the instant of a choice counts.

    A tick contributes its middle: staleness grows linearly between the instants at which anything happens.
    """
    queue = QueueOracle(policy, cost)
    keys = sorted({key for _, key in arrivals})
    left = list(arrivals)
    unseen: dict[Key, list[int]] = {key: [] for key in keys}  # arrivals whose result is not out
    waiting: dict[Key, list[int]] = {key: [] for key in keys}  # arrivals not served
    found = Simulated([], dict.fromkeys(keys, 0.0), dict.fromkeys(keys, 0.0))
    serving: tuple[int, Key, list[int]] | None = None
    for tick in range(horizon):
        while left and left[0][0] <= tick:
            at, key = left.pop(0)
            queue.enqueue(key, at, len(left), at)
            unseen[key].append(at)
            waiting[key].append(at)
        if serving is not None and serving[0] == tick:
            _, key, shown = serving
            for at in shown:
                unseen[key].remove(at)
            serving = None
        if serving is None and queue.line:
            update = queue.dequeue()
            key = update[0]
            serving = (tick + cost, key, waiting[key])
            waiting[key] = []
            found.served.append((tick, update))
        for key in keys:
            if waiting[key]:
                found.queue[key] += tick + 0.5 - min(waiting[key])
            if unseen[key]:
                found.application[key] += tick + 0.5 - min(unseen[key])
    return found


# -- the best that any order of service could do -----------------------------------------------------------------------

# Per key, for how long it has been pending; None if it is not. Keys that update alike differ in nothing else.
Ages = tuple[int | None, ...]


def least_expected_staleness(keys: int, cost: int, horizon: int, *, free: bool) -> Fraction:
    """The expected total queue staleness when each tick brings an update of any key, all equally likely (section 5.2).

    With `free` choice the least over all ways to choose the next key, whatever they know of the past; without it the
    key that has been pending longest is served.
    """

    def later(ages: Ages, ticks: int) -> Iterator[tuple[Fraction, Ages, Fraction]]:
        """Every way that so many ticks can go: how likely, what is pending then, the staleness that they add."""
        if not ticks:
            yield Fraction(1), ages, Fraction(0)
            return
        for key in range(keys):
            met = tuple(0 if at == key and age is None else age for at, age in enumerate(ages))
            grown = sum(Fraction(2 * age + 1, 2) for age in met if age is not None)
            following = tuple(None if age is None else age + 1 for age in met)
            for chance, then, more in later(following, ticks - 1):
                yield chance / keys, then, grown + more

    @cache
    def value(ages: Ages, left: int) -> Fraction:
        if left <= 0:
            return Fraction(0)
        pending = [at for at, age in enumerate(ages) if age is not None]
        if not pending:
            return mean(ages, 1, left)
        oldest = max(pending, key=lambda at: ages[at] or 0)
        choices = pending if free else [oldest]
        return min(mean(served(ages, at), min(cost, left), left) for at in choices)

    def served(ages: Ages, key: int) -> Ages:
        return tuple(None if at == key else age for at, age in enumerate(ages))

    def mean(ages: Ages, ticks: int, left: int) -> Fraction:
        return sum(
            (chance * (grown + value(alike(then), left - ticks)) for chance, then, grown in later(ages, ticks)),
            start=Fraction(0),
        )

    def alike(ages: Ages) -> Ages:
        """Which key is which does not matter."""
        return tuple(sorted(ages, key=lambda age: -1 if age is None else age))

    return value((None,) * keys, horizon)
