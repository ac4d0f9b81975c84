"""How far apart in time the rows of a join may be: bounds on some pairs of inputs, and what follows for all others.

The bounds are differences (t_b - t_a <= d), so what follows from them are shortest paths: if b is at most 2 s after a,
and c at most 1 s after b, then c is at most 3 s after a.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.operators.spec import Band
from millrace.values.eventtime import MAX_TIME, MIN_TIME, UNBOUNDED_US


class Bands:
    """`reach[a][b]`: the most by which a row of b may be later than a row of a that it joins, or UNBOUNDED_US."""

    def __init__(self, inputs: int, bands: Sequence[Band]) -> None:
        self.inputs = inputs
        self.reach = [[0 if a == b else UNBOUNDED_US for b in range(inputs)] for a in range(inputs)]
        for band in bands:
            if band.high_us is not None:
                self._bound(band.left, band.right, band.high_us)
            if band.low_us is not None:
                self._bound(band.right, band.left, -band.low_us)
        self._close()

    def _bound(self, a: int, b: int, most: int) -> None:
        self.reach[a][b] = min(self.reach[a][b], most)

    def _close(self) -> None:
        """Shortest paths. Bounds that contradict each other stay contradictory on every pair: nothing matches."""
        reach = self.reach
        for via in range(self.inputs):
            for a in range(self.inputs):
                for b in range(self.inputs):
                    if a != b and reach[a][via] < UNBOUNDED_US and reach[via][b] < UNBOUNDED_US:
                        reach[a][b] = min(reach[a][b], reach[a][via] + reach[via][b])
        for row in reach:
            row[:] = [max(-UNBOUNDED_US, min(UNBOUNDED_US, most)) for most in row]
        self._others = [[(b, most) for b, most in enumerate(row) if b != a] for a, row in enumerate(reach)]

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
