"""Sample: keep a share of the rows, drawn at random, so that what follows has less to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from millrace.operators.frame.buffer import Buffer
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import RowWise
from millrace.operators.spec import SampleSpec
from millrace.values.batch import Batch

# The constants of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits whose values for 0, 1, 2, ... pass for
# random. An edge that sheds draws by the same function, one number at a time: `draw` in kernels/updating.py.
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


class Sample(RowWise):
    """Each row with the same chance; the others are shed and counted. Keeps the input's order; punctuation passes.

    The lot of a row depends on the seed and on how many came before it, not on how they are cut into executions.
    """

    kind: ClassVar[str] = "select"

    def __init__(self, name: str, spec: SampleSpec, inputs: Sequence[Inlet], output: Buffer) -> None:
        super().__init__(name, inputs, output)
        # 2 ** 64 is no 64-bit number: a share of all keeps what is at most the greatest.
        self._below = np.uint64(min(int(spec.share * 2.0**64), 2**64 - 1))
        self._seed = np.uint64(spec.seed)
        self._drawn = self._shed = 0

    def compute(self, batch: Batch) -> Batch:
        count = len(batch)
        kept = batch.take(lots(self._seed, self._drawn, count) <= self._below)
        self._drawn += count
        self._shed += count - len(kept)
        return kept

    @property
    def shed(self) -> int:
        return self._shed

    def save(self) -> Any:
        return [self._drawn, self._shed]

    def restore(self, data: Sequence[Any]) -> None:
        self._drawn, self._shed = data


def lots(seed: np.uint64, first: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """So many numbers of the seed's sequence, from the one at `first`."""
    with np.errstate(over="ignore"):
        drawn = seed + (np.arange(first + 1, first + count + 1, dtype=np.uint64)) * _STEP
        drawn = (drawn ^ (drawn >> np.uint64(30))) * _FIRST
        drawn = (drawn ^ (drawn >> np.uint64(27))) * _SECOND
        return drawn ^ (drawn >> np.uint64(31))
