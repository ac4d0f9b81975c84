"""How long the connections that feed may keep the event loop in one of its turns.

Rule: a poll finds every socket with bytes, and acting on all of them could take a second where many feeds send all they
can. So connections that feed take turns: when they have used `TURN_SECONDS` since the last poll, the others keep their
bytes and are not read until it is their turn, the one that has waited longest first. All else is served in between:
readers, answers, the HTTP port, and the steps of the engine.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

# Half of the longest step of the engine. A piece of a socket takes one to three milliseconds.
TURN_SECONDS: Final = 0.005
# While an admin waits for an answer, which takes several turns of the loop.
HURRIED_SECONDS: Final = 0.001
# What a piece of few bytes counts: measuring it would take longer than a tenth of it.
FEW_BYTES: Final = 1_024
FEW_SECONDS: Final = 0.000_03


class Taker(Protocol):
    """A connection whose turn comes."""

    def take_turn(self) -> None:
        """Act on the bytes that were kept, and read on."""


class Turns:
    """Of all connections.

    waiting   the connections that have kept bytes, the one that has waited longest first
    hurries   whether turns are short, because an admin waits for an answer
    """

    def __init__(self) -> None:
        self.waiting: deque[Taker] = deque()
        self.hurries = False
        self._spent = 0.0
        self._scheduled = False

    def is_over(self) -> bool:
        """Whether connections that feed have used their time in this turn of the loop."""
        return self._spent >= (HURRIED_SECONDS if self.hurries else TURN_SECONDS)

    def spend(self, seconds: float) -> None:
        """A connection has used so much. Small amounts of several turns may count as one turn's."""
        self._spent += seconds
        if self._spent >= HURRIED_SECONDS:
            self._schedule()

    def wait(self, taker: Taker) -> None:
        """It has kept bytes."""
        self.waiting.append(taker)
        self._schedule()

    def forget(self, taker: Taker) -> None:
        """It has gone, or does not wait any more."""
        self.waiting.remove(taker)

    def _schedule(self) -> None:
        """Start a turn when the loop has been through all that is ready now."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        self._spent = 0.0
        while self.waiting:
            self.waiting.popleft().take_turn()
            if self.is_over():
                break
        if self.waiting:
            self._schedule()
