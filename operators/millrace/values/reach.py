"""How far from a row's own time the input lies that it depends on: look-back and look-ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from millrace.values.lags import plus


class Reach(NamedTuple):
    """A row at t depends on input from t - back to t + ahead, both included; None means unbounded."""

    back: int | None
    ahead: int | None

    def then(self, other: Reach) -> Reach:
        """One operator's reach on top of another's."""
        return Reach(plus(self.back, other.back), plus(self.ahead, other.ahead))

    def widest(self, other: Reach) -> Reach:
        return Reach(_most(self.back, other.back), _most(self.ahead, other.ahead))

    @property
    def bounded(self) -> bool:
        return self.back is not None and self.ahead is not None


HERE: Final = Reach(0, 0)
# Every earlier row may matter.
ALL_BEFORE: Final = Reach(None, 0)


class Reaches(NamedTuple):
    """The reach of an operator into each input, and why no span of time around a row contains all that it depends on;
    None if one does."""

    inputs: Sequence[Reach]
    unbounded: str | None = None


def unbounded(reason: str, inputs: int) -> Reaches:
    """The reach of an operator that depends on all earlier rows."""
    return Reaches([ALL_BEFORE] * inputs, reason)


def _most(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)
