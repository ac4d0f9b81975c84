"""The arithmetic of event time: sums stay within 64 bits, and the special times stay unchanged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.values.eventtime import (
    FIRST_US,
    HORIZON_US,
    LAST_US,
    LAST_WATERMARK,
    LATENT,
    LIFETIME_US,
    MAX_TIME,
    MIN_TIME,
    after,
    before,
    is_time,
    outside,
    saturated,
    stamped,
    untimed,
)

TIMES = st.integers(-HORIZON_US, HORIZON_US)
INTERVALS = st.integers(-LIFETIME_US, LIFETIME_US)


@pytest.mark.parametrize("watermark", [MIN_TIME, LATENT, MAX_TIME])
@pytest.mark.parametrize("by", [0, 1, LIFETIME_US])
def test_a_watermark_that_is_not_a_time_stays_what_it_is(watermark: int, by: int) -> None:
    assert not is_time(watermark)
    assert after(watermark, by) == before(watermark, by) == watermark


@pytest.mark.parametrize("watermark", [MIN_TIME + 1, FIRST_US, 0, LAST_US, LAST_WATERMARK])
def test_every_other_watermark_is_a_time(watermark: int) -> None:
    assert is_time(watermark)


@given(TIMES, INTERVALS)
def test_sums_stop_at_the_horizon(time: int, by: int) -> None:
    assert after(time, by) == before(time, -by) == saturated(time + by)
    assert -HORIZON_US <= after(time, by) <= HORIZON_US
    assert abs(time + by) > HORIZON_US or after(time, by) == time + by


@given(TIMES, TIMES, INTERVALS)
def test_sums_keep_the_order_of_times(earlier: int, later: int, by: int) -> None:
    earlier, later = min(earlier, later), max(earlier, later)
    assert after(earlier, by) <= after(later, by)


@given(st.lists(st.sampled_from([MIN_TIME, FIRST_US, 0, LAST_US]), max_size=5), st.integers(FIRST_US, LAST_US))
def test_only_tuples_without_a_time_are_stamped(times: list[int], stamp: int) -> None:
    ts = np.array(sorted(times), np.int64)
    assert untimed(ts) == times.count(MIN_TIME)
    assert stamped(ts, stamp).tolist() == [stamp if time == MIN_TIME else time for time in ts.tolist()]


@pytest.mark.parametrize(
    ("times", "row"),
    [([], None), ([FIRST_US], None), ([FIRST_US - 1], 0), ([0, LAST_US], None), ([0, LAST_US + 1, MIN_TIME], 1)],
)
def test_the_first_row_outside_the_domain(times: list[int], row: int | None) -> None:
    assert outside(np.array(times, np.int64)) == row
