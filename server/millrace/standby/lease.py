"""The lease: for how long a primary may have effects without hearing its standby, and when the standby may take over.

Rule: time is an argument, in microseconds of a clock that cannot be set (`steady_us`). The primary counts a lease from
the moment when it sent a ping, the standby from the moment when it answered, which is later. So the primary's lease has
expired when the standby becomes promotable, as long as the two clocks run at nearly the same rate. How long messages
travel, and how often, does not matter.
"""

from __future__ import annotations

import time
from typing import Final

# Each clock may be one hundredth off: the standby waits 1.01 / 0.99 times the lease, and a little more.
DRIFT_SHARE: Final = 33
SPARE_US: Final = 100_000
# With `confirm` alone, a standby that has not answered for so long counts as gone.
GONE_US: Final = 5_000_000


def steady_us() -> int:
    """A clock that cannot be set. It counts while the machine sleeps, too, where the system has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000


class PrimaryLease:
    """The primary's side: which of its steps may have effects.

    lease_us   for how long an answer of the standby counts; None: the primary does not depend on answers
    confirm    whether a step has effects only when the standby has it on its disk, too
    recovered  the newest step of the primary's start: with `confirm`, nothing leaves before the standby has that
    confirmed  the newest step that the standby has on its disk
    until_us   when the lease expires
    alone      whether no standby can take over yet: a server that was just promoted, or has just started, has none
               until it has sent the first ping
    matters    whether effects may have to wait at all
    revoked    whether another server has taken over, so that nothing may ever leave again
    first      the number of the first ping: random, so that answers to an earlier process of this server count nothing
    """

    def __init__(
        self, lease_us: int | None = None, *, confirm: bool = False, recovered: int = 0, first: int = 1
    ) -> None:
        self.lease_us = lease_us
        self.confirm = confirm
        self.recovered = recovered
        self.confirmed = 0
        self.until_us = 0
        self.heard_us: int | None = None
        self.alone = False
        self.revoked = False
        self.matters = lease_us is not None or confirm
        self._next = first
        self._sent: dict[int, int] = {}

    def ping(self, now_us: int) -> int:
        """The number of a ping that is being sent."""
        for number in [number for number, at in self._sent.items() if at + (self.lease_us or 0) < now_us]:
            del self._sent[number]  # its answer would no longer extend anything
        if self.alone:  # as if the standby had answered: it cannot grant anything earlier than now
            self.alone, self.heard_us, self.until_us = False, now_us, now_us + (self.lease_us or 0)
        number, self._next = self._next, self._next + 1
        self._sent[number] = now_us
        return number

    def heard(self, number: int, lsn: int, now_us: int) -> None:
        """The standby has answered a ping, and has the steps up to `lsn` on its disk."""
        self.heard_us = now_us
        self.confirmed = max(self.confirmed, lsn)
        sent_us = self._sent.get(number)
        if self.lease_us is not None and sent_us is not None:
            self.until_us = max(self.until_us, sent_us + self.lease_us)

    def valid(self, now_us: int) -> bool:
        """Whether the server may have effects now."""
        return not self.revoked and (self.lease_us is None or now_us < self.until_us or self.alone)

    def hinders(self, now_us: int) -> bool:
        """Whether nothing will leave before the standby answers again."""
        gone = self.heard_us is None or now_us - self.heard_us > GONE_US
        return self.silences(now_us) or (self.confirm and gone and not self.alone)

    def revoke(self) -> None:
        """Another server has taken over: nothing may leave any more."""
        self.revoked = self.matters = True

    def passes(self, settled: int, now_us: int) -> int:
        """The newest step that may have effects now, of the steps up to `settled`, which are durable here."""
        if not self.valid(now_us):
            return 0
        return min(settled, self.confirmed) if self.confirm and not self.alone else settled

    def silences(self, now_us: int) -> bool:
        """Whether the server must say nothing at all to its clients now."""
        return not self.valid(now_us) or (self.confirm and self.confirmed < self.recovered and not self.alone)


class StandbyLease:
    """The standby's side: when it may take over.

    `lease_us` is what the primary announced last, 0 for none. The standby stores a new one before it sends its answer,
    and starts with the stored one: it may have answered just before its process ended. `answered_us`: when it answered
    last.
    """

    def __init__(self, lease_us: int, now_us: int) -> None:
        self.lease_us = lease_us
        self.answered_us = now_us
        self.promotable_at_us = _expired(lease_us, now_us)
        self._promotes = False

    def answer(self, ping: int, lease_us: int | None, now_us: int) -> int | None:
        """The ping that is to be answered; None: a standby that is being promoted does not answer."""
        if self._promotes:
            return None
        self.lease_us, self.answered_us = lease_us or 0, now_us
        self.promotable_at_us = max(self.promotable_at_us, _expired(self.lease_us, now_us))
        return ping

    def promote(self) -> int:
        """Answer no more pings. Returns when the standby may take over."""
        self._promotes = True
        return self.promotable_at_us

    def resume(self) -> None:
        """The promotion was given up before anything changed."""
        self._promotes = False


def _expired(lease_us: int, now_us: int) -> int:
    """When a lease that was granted until now has expired on any clock."""
    return now_us + lease_us + lease_us // DRIFT_SHARE + SPARE_US if lease_us else now_us
