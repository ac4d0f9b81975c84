"""Clients as a server meets them, each with a clock of its own, a channel that keeps order and takes time, a temper.

Every client here is honest: its rows carry its own clock less the disorder that its stream allows, what it promises (by
punctuation or answer) is never above its oldest unsent row, and between the making of a row and its coming pass at most
`transit_us`. So whatever happens, an ETS must not make a row of its late.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from tests.simulation.odds import draw

# Whether a client that says it can answer does: at once, after the server has given up, with less than it could say,
# or never.
Temper = Literal["prompt", "slow", "low", "deaf"]
RowOf = tuple[int, int, int | None]  # the time, the id, v


@dataclass(frozen=True)
class Message:
    """What a client sends: rows, a punctuation or an answer; `epoch` counts its connections."""

    kind: Literal["rows", "punctuation", "answer"]
    epoch: int
    rows: tuple[RowOf, ...] = ()
    value: int = 0
    request: int = 0


@dataclass
class Client:
    """One feed of one stream.

    offset     how far its clock is from the world's
    hold_us    how long it keeps a row before it sends it, at the most
    travel_us  how long a message is under way, at the most
    """

    stream: str
    feed: str
    rng: random.Random
    disorder: int
    transit_us: int
    can_answer: bool
    temper: Temper
    offset: int
    connected: bool = False
    epoch: int = 0
    unsent: list[RowOf] = field(default_factory=list)
    last_arrival: int = 0

    @property
    def hold_us(self) -> int:
        return self.transit_us // 2

    @property
    def travel_us(self) -> int:
        return self.transit_us - self.hold_us

    def clock(self, at: int) -> int:
        return at + self.offset

    def make(self, at: int, number: int, v: int | None) -> bool:
        """A new row, which waits to be sent; whether it is the first that does."""
        self.unsent.append((self.clock(at) - self.rng.randint(0, self.disorder), number, v))
        return len(self.unsent) == 1

    def bound(self, at: int) -> int:
        """The most that it can promise: it makes no row below its clock less the disorder, and has not sent all."""
        return min([self.clock(at) - self.disorder, *(ts for ts, _, _ in self.unsent)])

    def flush(self) -> Message | None:
        rows, self.unsent = tuple(self.unsent), []
        return Message("rows", self.epoch, rows) if rows else None

    def punctuation(self, at: int) -> Message:
        return Message("punctuation", self.epoch, value=self.bound(at) - draw(self.rng, "clocks.punctuation back"))

    def answer(self, at: int, request: int) -> Message:
        less = draw(self.rng, "clocks.low answer") if self.temper == "low" else 0
        return Message("answer", self.epoch, value=self.bound(at) - less, request=request)

    def arrival(self, at: int) -> int:
        """When a message that is sent now comes: behind all that were sent before."""
        self.last_arrival = max(self.last_arrival, at + self.rng.randint(0, self.travel_us))
        return self.last_arrival

    def lose(self) -> None:
        """The connection breaks, and with it goes what was not sent or is under way."""
        self.connected = False
        self.epoch += 1
        self.unsent.clear()
