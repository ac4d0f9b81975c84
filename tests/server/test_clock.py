"""The server's clock, whatever is done to the system's."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.run.clock import SLEW_SHARE, STEP_US, Clock

SECOND = 1_000_000
DAY = 86_400 * SECOND
NOON = 1_767_268_800 * SECOND


class System:
    """Two clocks, one of which can be set."""

    def __init__(self):
        self.up_us = 5 * SECOND
        self.off_us = NOON
        self.clock = Clock(self.wall, self.monotonic)

    def wall(self):
        return self.up_us + self.off_us

    def monotonic(self):
        return self.up_us

    def lag(self):
        return self.wall() - self.clock.now_us()


changes = st.lists(st.tuples(st.integers(0, 100 * SECOND), st.integers(-2 * DAY, 2 * DAY), st.booleans()), max_size=20)


@given(changes)
def test_it_never_goes_back_and_jumps_only_when_it_says_so(changes):
    system = System()
    before = system.clock.now_us()
    for passes, set_by, looked in changes:
        system.up_us += passes
        system.off_us += set_by
        stepped = system.clock.notice() if looked else 0
        now = system.clock.now_us()
        assert stepped == 0 or stepped > STEP_US
        share = passes // SLEW_SHARE + 1
        assert passes - share <= now - before - stepped <= passes + share
        assert now >= before
        before = now


def test_a_day_forward_is_adopted_at_once_and_told_once():
    system = System()
    system.off_us += DAY
    assert system.clock.notice() == DAY
    assert system.lag() == 0
    assert system.clock.notice() == 0


def test_a_day_back_is_held_and_caught_up_with_slowly():
    system = System()
    system.off_us -= DAY
    before = system.clock.now_us()
    assert system.clock.notice() == 0
    assert system.clock.now_us() == before
    assert system.clock.held_back_us == DAY
    system.up_us += 100 * SECOND
    assert system.clock.now_us() == before + 99 * SECOND
    for _ in range(200):
        system.up_us += DAY
        system.clock.notice()
    assert system.lag() == 0
    assert system.clock.held_back_us == 0


def test_small_differences_are_slewed_both_ways():
    for off in (700_000, -700_000):
        system = System()
        system.off_us += off
        assert system.clock.notice() == 0
        system.up_us += SECOND
        assert abs(system.lag()) == 690_000
        system.up_us += 1_000 * SECOND
        assert system.lag() == 0, "and it does not overshoot, however seldom anybody looks"


def test_a_reading_that_was_interrupted_is_taken_again():
    system = System()
    pauses = [30 * SECOND]

    def wall():
        found = system.up_us + system.off_us
        if pauses:
            system.up_us += pauses.pop()
        return found

    clock = Clock(wall, system.monotonic)
    pauses.append(30 * SECOND)
    assert clock.notice() == 0
    assert clock.held_back_us == 0
    assert clock.now_us() == system.wall()
