"""How long rows took, over a span."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

# Latencies that are kept exactly; beyond that every second one, then every fourth, and so on: 8 MB at the most.
SAMPLES: Final = 1_000_000


class Latencies:
    """How long rows took. Mean and most are of all of them, the quantiles of those that are kept."""

    def __init__(self) -> None:
        self.rows = 0
        self.most_us = 0
        self._total_us = 0
        self._kept: list[np.ndarray[Any, Any]] = []
        self._count = 0
        self._stride = 1

    def add(self, waited: np.ndarray[Any, Any]) -> None:
        """Of every `stride` rows the first is kept, counted over all of them."""
        self._kept.append(waited[(-self.rows) % self._stride :: self._stride])
        self._count += len(self._kept[-1])
        self.rows += len(waited)
        self._total_us += int(waited.sum())
        self.most_us = max(self.most_us, int(waited.max()))
        while self._count > SAMPLES:
            self._kept = [np.concatenate(self._kept)[::2]]
            self._count = len(self._kept[0])
            self._stride *= 2

    def mean_us(self) -> float | None:
        return self._total_us / self.rows if self.rows else None

    def quantiles_us(self, *percents: int) -> list[float | None]:
        """For each percentage, the least latency that this share of rows does not exceed."""
        if not self.rows:
            return [None] * len(percents)
        found: list[float | None] = np.percentile(np.concatenate(self._kept), percents, method="inverted_cdf").tolist()
        return found
