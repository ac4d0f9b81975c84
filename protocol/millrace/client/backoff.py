"""The pauses before attempts to reconnect."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow by `factor` from `first` to `most` seconds, for at most `attempts` attempts.

    Each pause is drawn between half and all of its length, so that the clients of a restarted server do not all
    reconnect at once. The defaults stop after about two minutes.
    """

    first: float = 0.1
    factor: float = 2.0
    most: float = 10.0
    attempts: int = 18

    def pauses(self, draw: random.Random | None = None) -> Iterator[float]:
        """The seconds to wait before each attempt."""
        chance = draw or random.Random()
        length = self.first
        for _ in range(self.attempts):
            yield chance.uniform(length / 2, length)
            length = min(length * self.factor, self.most)
