"""Event time: its domain, the values around it that are not times, and arithmetic that stays within 64 bits.

Rule: the time of a tuple lies in [FIRST_US, LAST_US]. Every way in checks it (`formats/decoder.py` and
`backfill/layout.py`), and no interval of a query or an option is longer than LIFETIME_US. Times that operators compute
(the end of a window, a deadline) may leave the domain; `after`, `before` and `saturated` stop them at HORIZON_US, so
the order of rows and the watermarks stay true and no window is lost. Such a time plus any interval fits 64 bits.

Watermarks have three more values. MIN_TIME: nothing is known yet. LATENT: the tuples have no time yet, and the operator
that needs one assigns it. MAX_TIME: the stream has ended. The time of a tuple without one is MIN_TIME too.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from millrace.protocol.timestamps import FIRST_US, LAST_US, LIFETIME_US

__all__ = [
    "FIRST_US",
    "HORIZON_US",
    "LAST_US",
    "LAST_WATERMARK",
    "LATENT",
    "LIFETIME_US",
    "MAX_TIME",
    "MIN_TIME",
    "UNBOUNDED_US",
    "after",
    "before",
    "is_time",
    "outside",
    "saturated",
    "stamped",
    "untimed",
]

Int64s = npt.NDArray[np.int64]

MIN_TIME: Final = -(2**63)
MAX_TIME: Final = 2**63 - 1
LATENT: Final = MAX_TIME - 1
# The greatest watermark of a stream that has not ended.
LAST_WATERMARK: Final = LATENT - 1
# The latest time that an operator computes, and less its sign the earliest: seven times as far away as event time ends.
HORIZON_US: Final = 1 << 61
# An interval without a bound: longer than any two times are apart.
UNBOUNDED_US: Final = 1 << 62


def outside(ts: Int64s) -> int | None:
    """The first row whose time is not in the domain of event time; None if all are."""
    if len(ts) == 1:
        return None if FIRST_US <= ts.item(0) <= LAST_US else 0
    if not len(ts) or (ts.min() >= FIRST_US and ts.max() <= LAST_US):
        return None
    return int(((ts < FIRST_US) | (ts > LAST_US)).argmax())


def is_time(watermark_us: int) -> bool:
    """Whether a watermark is a time, and not one of the values around it."""
    return MIN_TIME < watermark_us < LATENT


def saturated(time_us: int) -> int:
    """A computed time, no further away than the horizon."""
    return max(-HORIZON_US, min(time_us, HORIZON_US))


def after(watermark_us: int, by_us: int) -> int:
    """A watermark shifted later by `by_us`; one that is not a time stays the same."""
    return saturated(watermark_us + by_us) if is_time(watermark_us) else watermark_us


def before(watermark_us: int, by_us: int) -> int:
    """A watermark shifted earlier by `by_us`; one that is not a time stays the same."""
    return after(watermark_us, -by_us)


def untimed(ts: Int64s) -> int:
    """The number of tuples without a time. `ts` is in order, so they are first."""
    return int(np.searchsorted(ts, MIN_TIME, "right"))


def stamped(ts: Int64s, stamp_us: int) -> Int64s:
    """The times of tuples, with this stamp for those that have none."""
    blank = ts == MIN_TIME
    return np.where(blank, stamp_us, ts) if blank.any() else ts
