"""How far apart in time the rows of a join may be: bounds on some pairs of inputs, and what follows for all others.

The bounds are differences (t_b - t_a <= d), so what follows from them are shortest paths: if b is at most 2 s after a,
and c at most 1 s after b, then c is at most 3 s after a.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from millrace.values.definitions import Definition
from millrace.values.eventtime import MAX_TIME, MIN_TIME, UNBOUNDED_US
from millrace.values.lags import Lag


@dataclass(frozen=True, slots=True)
class Band(Definition):
    """How far apart rows of two inputs may be: low_us <= right's time - left's time <= high_us.

    None is no bound. Both ends belong to it: times are whole microseconds, so an open end is the closed one next to it.
    """

    left: int
    right: int
    low_us: int | None = None
    high_us: int | None = None


def close_bands(bands: Sequence[Band], inputs: int) -> list[list[int | None]]:
    """By pairs of inputs: the most by which a row of the second may be later than a matching row of the first.

    None means unbounded. Bounds that contradict each other stay contradictory: nothing matches.
    """
    reach: list[list[int | None]] = [[0 if a == b else None for b in range(inputs)] for a in range(inputs)]
    for band in bands:
        _tighten(reach, band.left, band.right, band.high_us)
        _tighten(reach, band.right, band.left, None if band.low_us is None else -band.low_us)
    for via, a, b in product(range(inputs), repeat=3):
        first, second = reach[a][via], reach[via][b]
        if a != b and first is not None and second is not None:
            _tighten(reach, a, b, first + second)
    return reach


def _tighten(reach: list[list[int | None]], a: int, b: int, bound: int | None) -> None:
    known = reach[a][b]
    if bound is not None and (known is None or bound < known):
        reach[a][b] = bound


def contradict(bands: Sequence[Band], inputs: int) -> bool:
    """Whether the bands contradict each other, so that no rows can match."""
    reach = close_bands(bands, inputs)
    pairs = ((reach[a][b], reach[b][a]) for a in range(inputs) for b in range(a))
    return any(after is not None and before is not None and before + after < 0 for after, before in pairs)


def join_lags(bands: Sequence[Band], inputs: int) -> list[Lag]:
    """How much earlier each input's time may be than the joined row's time, which is the latest of them."""
    lags: list[Lag] = []
    for bounds in close_bands(bands, inputs):
        known = [bound for bound in bounds if bound is not None]
        lags.append((0, max(0, *known) if len(known) == inputs else None))
    return lags


class Bands:
    """`reach[a][b]`: the most by which a row of b may be later than a row of a that it joins, or UNBOUNDED_US."""

    def __init__(self, inputs: int, bands: Sequence[Band]) -> None:
        self.inputs = inputs
        self.reach = [
            [UNBOUNDED_US if most is None else max(-UNBOUNDED_US, min(UNBOUNDED_US, most)) for most in row]
            for row in close_bands(bands, inputs)
        ]
        self._others = [[(b, most) for b, most in enumerate(row) if b != a] for a, row in enumerate(self.reach)]

    def width(self, a: int, b: int) -> int:
        """How long the interval is in which rows of b may match one of a."""
        before, after = self.reach[b][a], self.reach[a][b]
        return UNBOUNDED_US if UNBOUNDED_US in (before, after) else max(0, before + after)

    def floor(self, a: int, lows: Sequence[int]) -> int:
        """Rows of `a` below this can match nothing more, if no row that is still to come is below its input's low."""
        floor = MAX_TIME
        for b, most in self._others[a]:
            low = lows[b]
            if low < MAX_TIME:
                if most == UNBOUNDED_US:
                    return MIN_TIME
                if low - most < floor:
                    floor = low - most
        return floor if floor > MIN_TIME else MIN_TIME

    def expires(self, a: int) -> bool:
        """Whether rows of `a` are of no use any more some time."""
        return all(self.reach[a][b] < UNBOUNDED_US for b in range(self.inputs) if b != a)
