"""Thin punctuation: the promises that the readers of an arc have a use for (OOP, appendix A.1.1).

An aggregate over windows can act only at the ends of its windows, so it has no use for other promises. Every reader
declares its use. An arc carries the promises that any of its readers declares, rounded down to them, and none twice.
Every reader has a use for the end of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.values.eventtime import MAX_TIME, is_time


@dataclass(frozen=True, slots=True)
class PunctuationGrain:
    """Every promise, or those that reach a new boundary: one of the times offset + n * slide of any pair.

    `clauses`: also promises about groups or several times (clause.py).
    """

    every: bool = True
    boundaries: tuple[tuple[int, int], ...] = ()
    clauses: bool = False

    def above(self, value_us: int) -> int:
        """The least promise above this one that is of use."""
        if self.every:
            return value_us + 1
        least = MAX_TIME
        for slide, offset in self.boundaries:
            boundary = offset + ((value_us - offset) // slide + 1) * slide
            if boundary < least:
                least = boundary
        return least

    def rounded(self, value_us: int) -> int:
        """The greatest promise of use that this one implies, or itself if it implies none."""
        if self.every or not is_time(value_us) or not self.boundaries:
            return value_us
        return max(offset + (value_us - offset) // slide * slide for slide, offset in self.boundaries)

    def save(self) -> list[Any]:
        return [self.every, [list(pair) for pair in self.boundaries], self.clauses]

    @staticmethod
    def restore(data: Sequence[Any]) -> PunctuationGrain:
        every, boundaries, *clauses = data  # older states have no clauses
        return PunctuationGrain(every, tuple((slide, offset) for slide, offset in boundaries), *clauses)


EVERY = PunctuationGrain()
EVERYTHING = PunctuationGrain(clauses=True)
# What a reader declares that has a use for nothing but the end.
THE_END = PunctuationGrain(every=False)


def windows_of(size_us: int, slide_us: int, offset_us: int) -> tuple[int, int]:
    """The boundaries at which windows end."""
    return slide_us, (offset_us + size_us) % slide_us


def union_of(grains: Iterable[PunctuationGrain]) -> PunctuationGrain:
    """What carries enough for all of these: boundaries that others imply are left out."""
    pairs: list[tuple[int, int]] = []
    every = clauses = False
    for grain in grains:
        every |= grain.every
        clauses |= grain.clauses
        pairs += grain.boundaries
    if every:
        return EVERYTHING if clauses else EVERY
    boundaries: list[tuple[int, int]] = []
    for slide, offset in sorted(set(pairs)):
        if not any(slide % finer == 0 and (offset - start) % finer == 0 for finer, start in boundaries):
            boundaries.append((slide, offset))
    return PunctuationGrain(False, tuple(boundaries), clauses)
