"""The arithmetic of event time: its domain, the values that stand for no time, and sums that stay within 64 bits.

Rule: a tuple's time lies in [FIRST_US, LAST_US]. Every way in checks it (`server/source.py`, `backfill/layout.py`), and
no interval of a query or an option is longer than LIFETIME_US. Times that operators compute (the end of a window, a
deadline) may leave the domain. They stop at HORIZON_US, so the order of rows and the promises stay true and no window
is lost. Adding an interval, or FAR, to such a time never leaves 64 bits. Code that adds to a time that may be a
sentinel calls `after` and `before`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from millrace.protocol.timestamps import FIRST_US, LAST_US, LIFETIME_US

__all__ = [
    "ANY_TIME",
    "BEGINNING",
    "END_OF_TIME",
    "FAR",
    "FIRST_US",
    "HORIZON_US",
    "LAST_US",
    "LIFETIME_US",
    "NO_TIME",
    "after",
    "before",
    "outside",
    "saturated",
]

Int64s = npt.NDArray[np.int64]

# The time of a tuple that has none yet (latent streams): below every time.
NO_TIME: Final = -(2**63)
# The bounds of promises: no tuple is below the first, and the second is a closed stream's punctuation.
BEGINNING: Final = -(2**63)
END_OF_TIME: Final = 2**63 - 1
# What a latent stream promises until it ends: nobody waits for it, and yet more may come.
ANY_TIME: Final = END_OF_TIME - 1
# The latest time that an operator computes, and less its sign the earliest: seven times as far away as event time ends.
HORIZON_US: Final = 1 << 61
# No bound on how far apart two times are.
FAR: Final = 1 << 62


def outside(ts: Int64s) -> int | None:
    """The first row whose time is not in the domain of event time; None if all are."""
    if len(ts) == 1:
        return None if FIRST_US <= ts.item(0) <= LAST_US else 0
    if not len(ts) or (ts.min() >= FIRST_US and ts.max() <= LAST_US):
        return None
    return int(((ts < FIRST_US) | (ts > LAST_US)).argmax())


def saturated(time_us: int) -> int:
    """A computed time, no further away than the horizon."""
    return max(-HORIZON_US, min(time_us, HORIZON_US))


def after(time_us: int, by_us: int) -> int:
    """A time so much later; a sentinel stays what it is."""
    return time_us if _stands_for_something(time_us) else saturated(time_us + by_us)


def before(time_us: int, by_us: int) -> int:
    """A time so much earlier; a sentinel stays what it is."""
    return time_us if _stands_for_something(time_us) else saturated(time_us - by_us)


def _stands_for_something(time_us: int) -> bool:
    return time_us >= ANY_TIME or time_us == BEGINNING
