"""The figures of a benchmark, and their bounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `bound` is in the same unit; `most`: whether the bound is an upper one."""

    name: str
    value: float
    unit: str
    bound: float | None = None
    most: bool = True
    note: str = ""

    @property
    def holds(self) -> bool | None:
        if self.bound is None:
            return None
        return self.value <= self.bound if self.most else self.value >= self.bound

    def line(self) -> str:
        verdict = {None: "", True: "holds", False: "FALLS SHORT"}[self.holds]
        bound = "" if self.bound is None else f"{'at most' if self.most else 'at least'} {self.bound:,g}"
        return f"{self.name:<58} {self.value:>14,.2f} {self.unit:<12} {bound:<20} {verdict:<12} {self.note}".rstrip()


def best_of(repeats: int, run: Callable[[], object]) -> float:
    """The least time of several runs, in seconds: the cost of the work without interference."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best


def median_of(repeats: int, run: Callable[[], object]) -> float:
    """The median time of many runs, in seconds."""
    durations = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        durations.append(time.perf_counter() - begin)
    return sorted(durations)[len(durations) // 2]
