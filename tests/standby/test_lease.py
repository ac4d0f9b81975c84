"""The two sides of a lease, and epochs as text, by example and for generated messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.protocol.epochs import EpochMemory, epoch_number
from millrace.standby.epoch import Epoch, Fence
from millrace.standby.lease import SPARE_US, PrimaryLease, StandbyLease, steady_us

ID, OTHER = b"0123456789abcdef", b"fedcba9876543210"


def test_a_lease_counts_from_the_sending_of_the_ping() -> None:
    lease = PrimaryLease(5_000_000)
    assert not lease.valid(0), "a start has no lease"
    number = lease.ping(1_000)
    assert not lease.valid(1_000)
    lease.heard(number, 0, 4_000_000)
    assert lease.until_us == 5_001_000
    assert lease.valid(5_000_999)
    assert not lease.valid(5_001_000)


def test_late_answers_do_not_shorten_a_lease() -> None:
    lease = PrimaryLease(5_000_000)
    first, second = lease.ping(0), lease.ping(1_000_000)
    lease.heard(second, 0, 1_100_000)
    lease.heard(first, 0, 1_200_000)
    lease.heard(second, 0, 1_300_000)
    assert lease.until_us == 6_000_000


def test_an_answer_to_an_unknown_ping_extends_nothing() -> None:
    lease = PrimaryLease(5_000_000, first=100)
    lease.ping(0)
    for number in (-1, 0, 99, 101):
        lease.heard(number, 0, 1)
    assert not lease.valid(1)


def test_pings_without_answers_are_forgotten() -> None:
    lease = PrimaryLease(5_000_000)
    for second in range(1_000):
        lease.ping(second * 1_000_000)
    assert len(lease._sent) <= 6


def test_a_server_alone_waits_for_nobody_before_its_first_ping() -> None:
    lease = PrimaryLease(5_000_000, confirm=True, recovered=3)
    lease.alone = True
    assert lease.passes(7, 0) == 7
    assert not lease.silences(0)
    assert not lease.hinders(0)
    lease.ping(10)
    assert lease.until_us == 5_000_010
    assert lease.passes(7, 10) == 0, "the standby lacks them"
    assert lease.silences(10)


def test_without_a_lease_every_moment_is_fine() -> None:
    lease = PrimaryLease()
    assert lease.valid(0)
    assert lease.passes(17, 0) == 17
    assert not lease.silences(0)


def test_confirm_holds_steps_that_the_standby_lacks() -> None:
    lease = PrimaryLease(confirm=True, recovered=3)
    assert lease.silences(0)
    assert lease.passes(5, 0) == 0
    lease.heard(lease.ping(0), 3, 0)
    assert not lease.silences(0)
    assert lease.passes(5, 0) == 3
    lease.heard(lease.ping(0), 9, 0)
    assert lease.passes(5, 0) == 5


def test_a_standby_waits_for_the_lease_that_it_granted() -> None:
    standby = StandbyLease(0, 0)
    assert standby.promotable_at_us == 0
    assert standby.answer(7, 5_000_000, 1_000) == 7
    assert standby.promotable_at_us >= 1_000 + 5_000_000 * 1.01 / 0.99 + SPARE_US
    at_us = standby.promote()
    assert standby.answer(8, 5_000_000, 2_000) is None
    assert standby.promotable_at_us == at_us
    standby.resume()
    assert standby.answer(9, 5_000_000, 3_000) == 9


def test_a_standby_that_starts_waits_for_the_stored_lease() -> None:
    assert StandbyLease(5_000_000, 7_000).promotable_at_us > 5_007_000


@given(
    st.integers(1, 10**9),
    st.floats(0.99, 1.01),
    st.floats(0.99, 1.01),
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), max_size=10),
)
def test_leases_end_before_the_standby_is_promotable(
    lease_us: int, fast: float, slow: float, messages: list[tuple[int, int]]
) -> None:
    """Each message: when the ping is sent, and how long it travels. Clocks show time times their rate."""
    primary, standby = PrimaryLease(lease_us), StandbyLease(0, 0)
    for sent, travels in sorted(messages):
        number = primary.ping(int(sent * fast))
        answered = standby.answer(number, lease_us, int((sent + travels) * slow))
        assert answered == number
        primary.heard(number, 0, int((sent + 2 * travels) * fast))
    assert primary.until_us / fast <= standby.promotable_at_us / slow + 1


def test_the_clock_of_leases_runs() -> None:
    assert 0 < steady_us() <= steady_us()


@given(st.integers(1, 10**18 - 1))
def test_an_epoch_survives_the_way_over_the_wire(number: int) -> None:
    proof = Epoch(number).proof(ID)
    assert epoch_number(proof) == number
    assert Epoch.parse(proof, ID) == Epoch(number)
    assert Epoch.parse(proof, OTHER) is None


@given(st.text() | st.from_regex(r"[0-9]{1,20}-[0-9a-f]{1,17}"))
def test_invented_epochs_prove_nothing(text: str) -> None:
    assert Epoch.parse(text, ID) is None
    fence = Fence(ID, Epoch(1))
    assert not fence.show(text)


def test_a_server_stops_for_a_higher_epoch_alone() -> None:
    fence = Fence(ID, Epoch(3))
    assert not fence.show(Epoch(2).proof(ID))
    assert not fence.show(Epoch(3).proof(ID))
    assert not fence.show(Epoch(4).proof(OTHER))
    assert fence.superseded is None
    assert fence.show(Epoch(4).proof(ID))
    assert fence.superseded == Epoch(4)


def test_a_client_remembers_the_highest_epoch() -> None:
    memory = EpochMemory()
    assert memory.accepts(None), "a server without a data directory"
    assert memory.accepts(Epoch(1).proof(ID))
    assert memory.accepts(None), "it was restarted without one"
    assert memory.accepts(Epoch(3).proof(ID))
    assert not memory.accepts(Epoch(2).proof(ID))
    assert not memory.accepts(None)
    assert memory.text == Epoch(3).proof(ID)
