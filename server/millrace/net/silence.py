"""Holds back all output of the server while another server may have taken over.

Rule: the lease is checked at the moment when bytes leave, not by a timer: a process that was stopped, and continues
after its lease has expired, sends nothing that it had prepared. Only a machine that stops between this check and the
write can send more; clients and sinks refuse that by its epoch. A server that follows another one refuses its clients,
and writes only into its own data directory: what is elsewhere, the other one may write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from millrace.standby.lease import PrimaryLease, steady_us


class Held(Protocol):
    """A connection or a sink with something to say."""

    def speak(self) -> None:
        """The silence is over."""


class Silence:
    """Whether the server must say nothing now, and who waits until it may.

    follows   whether the server only takes the steps of another one
    """

    def __init__(self, lease: PrimaryLease, clock: Callable[[], int] = steady_us) -> None:
        self._lease = lease
        self._clock = clock
        self._held: dict[Held, None] = {}
        self.follows = False

    def lasts(self) -> bool:
        """For clients."""
        return self._lease.matters and not self.follows and self._lease.silences(self._clock())

    def rests(self, *, private: bool) -> bool:
        """For a sink, which writes to a `private` place or to one that another server may have, too."""
        return not private if self.follows else self.lasts()

    def hold(self, held: Held) -> None:
        """Let it speak when the silence is over."""
        self._held[held] = None

    def forget(self, held: Held) -> None:
        self._held.pop(held, None)

    def look(self) -> None:
        """The lease has changed, or the server was promoted."""
        if self._held and not self.follows and not self.lasts():
            held, self._held = self._held, {}
            for one in held:
                one.speak()


# Of a server without a standby.
SPEAKS: Final = Silence(PrimaryLease())
