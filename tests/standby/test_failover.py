"""A primary and its standby keep their promises in thousands of worlds, and each rule is needed."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from millrace.protocol.epochs import EpochMemory
from millrace.standby.lease import PrimaryLease
from tests.depth import DEEP
from tests.standby.world import SECOND, Record, Server, World, play

SEEDS = 3_000 if DEEP else 90
# Seeds that no run before has played.
FRESH = 30
# Seeds in which a broken rule has to be noticed.
MOST = 2_000


@pytest.mark.parametrize("first", range(0, SEEDS, 30))
def test_promises_are_kept(first: int) -> None:
    worlds = [play(seed) for seed in range(first, first + 30)]
    assert sum(world.auditor.highest - 1 for world in worlds) >= 15, "promotions"
    assert sum(world.auditor.emitted for world in worlds) >= 3_000
    assert sum(client.lost_rows for world in worlds for client in world.clients if not world.confirm) > 0


def test_fresh_seeds() -> None:
    first = int.from_bytes(os.urandom(4), "little")
    for seed in range(first, first + FRESH):
        play(seed)


class FromReceipt(World):
    """The primary counts the lease from the moment when the answer arrives."""

    class Lease(PrimaryLease):
        def heard(self, number: int, lsn: int, now_us: int) -> None:
            super().heard(number, lsn, now_us)
            self.until_us = now_us + (self.lease_us or 0)

    lease = Lease


class ByTheClockOnTheWall(World):
    """Leases are counted by a clock that can be set."""

    def jumps(self, server: Server) -> int:
        return server.wall_offset


class ChecksNowAndThen(World):
    """The primary looks at its lease when it sends a ping or hears an answer, not when something leaves."""

    class Lease(PrimaryLease):
        seen = False

        def ping(self, now_us: int) -> int:
            self.seen = super().valid(now_us)
            return super().ping(now_us)

        def heard(self, number: int, lsn: int, now_us: int) -> None:
            super().heard(number, lsn, now_us)
            self.seen = super().valid(now_us)

        def valid(self, now_us: int) -> bool:
            return self.seen

    lease = Lease


class IgnoresOldProcesses(World):
    """Every process numbers its pings from 1, so late answers to an earlier one count."""

    faults = ("kill", "kill", "divide", "promote")
    late = 0.5

    def first_ping(self) -> int:
        return 1


class ForgetsItsStandby(World):
    """A primary that starts again believes that no standby has heard it."""

    faults = ("kill", "kill", "divide", "promote")

    def note_standby(self, server: Server) -> None:
        pass


class PromotesAtOnce(World):
    """The standby does not wait for the lease."""

    def promotable_at(self, server: Server) -> int:
        return server.steady_us()


class TrustsClocks(World):
    """The standby waits for exactly the lease, by a clock that may be fast."""

    def promotable_at(self, server: Server) -> int:
        return server.standby.answered_us + server.standby.lease_us


class ForgetsItsWord(World):
    """The standby starts as if it had never answered."""

    faults = ("kill", "kill", "divide", "promote")

    def stored_lease(self, standby: Server) -> int:
        return 0


class AcknowledgesAlone(World):
    """With `confirm`, the primary does not wait for the standby."""

    def passes(self, server: Server, settled: int) -> int:
        return settled if server.lease.valid(server.steady_us()) else 0


class WelcomesTooEarly(World):
    """With `confirm`, a primary that starts greets clients before the standby has what it recovered."""

    faults = ("kill", "divide", "promote")

    def silences(self, server: Server) -> bool:
        return not server.lease.valid(server.steady_us())


class AnswersTooEarly(World):
    """The standby answers before its records are on its disk."""

    faults = ("kill", "kill", "divide", "promote")

    def when_durable(self, standby: Server, call: Callable[[], None]) -> None:
        synced = standby.disk.synced
        call()
        standby.disk.synced = synced
        standby.soon(2 * SECOND, standby.sync)


class StreamsTooEarly(World):
    """The primary sends records that are not on its own disk."""

    faults = ("kill", "kill", "divide", "promote")
    sync_us = 2 * SECOND

    def streamed(self, server: Server) -> int:
        return len(server.disk.records)


class ForgetfulClients(World):
    """Clients accept every server, and remember nothing."""

    class Memory(EpochMemory):
        def accepts(self, text: str | None) -> bool:
            return True

    def memory(self) -> EpochMemory:
        return self.Memory()


class Stubborn(World):
    """A server that is shown a higher epoch continues."""

    def shows(self, server: Server, proof: str) -> bool:
        return False


class PromotesStrangers(World):
    """An old primary that has not found its new one yet can be promoted with the records that it has."""

    faults = ("divide", "promote", "promote", "operate", "operate")

    def promotes(self, standby: Server) -> bool:
        return True


class Resurrects(World):
    """An old primary follows although it has records that the new one does not have."""

    def diverged(self, own: list[Record], known: int, before: Record | None, records: list[Record]) -> bool:
        return False


BROKEN = [
    FromReceipt,
    ByTheClockOnTheWall,
    ChecksNowAndThen,
    IgnoresOldProcesses,
    ForgetsItsStandby,
    PromotesAtOnce,
    TrustsClocks,
    ForgetsItsWord,
    AcknowledgesAlone,
    WelcomesTooEarly,
    AnswersTooEarly,
    StreamsTooEarly,
    ForgetfulClients,
    Stubborn,
    PromotesStrangers,
    Resurrects,
]


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_rule_is_noticed(kind: type[World]) -> None:
    assert any(fails(seed, kind) for seed in range(MOST)), kind.__doc__


def fails(seed: int, kind: type[World]) -> bool:
    try:
        play(seed, kind)
    except AssertionError:
        return True
    return False
