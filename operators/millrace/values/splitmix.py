"""SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits whose values for 0, 1, 2, ... look random."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

_STEP: Final = 0x9E3779B97F4A7C15
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


def state_after(state: int, count: int) -> int:
    """The generator's state, a signed 64-bit number, after `count` draws."""
    return (state + count * _STEP + 2**63) % 2**64 - 2**63


def draws(state: int, count: int) -> npt.NDArray[np.uint64]:
    """The next `count` numbers of a generator in this state."""
    steps: npt.NDArray[Any] = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_STEP)
    drawn = steps + np.uint64(state % 2**64)
    drawn = (drawn ^ (drawn >> np.uint64(30))) * _FIRST
    drawn = (drawn ^ (drawn >> np.uint64(27))) * _SECOND
    return drawn ^ (drawn >> np.uint64(31))
