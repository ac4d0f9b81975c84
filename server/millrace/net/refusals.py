"""Connections that the server ended because of their peer's behaviour, counted by port and reason."""

from __future__ import annotations

from typing import Final, Literal

Port = Literal["listen", "admin"]
Reason = Literal[
    "too_many_connections", "silent", "too_slow", "too_large", "malformed", "not_read", "evicted", "memory"
]

PORTS: Final[tuple[Port, ...]] = ("listen", "admin")
REASONS: Final[tuple[Reason, ...]] = (
    "too_many_connections",
    "silent",
    "too_slow",
    "too_large",
    "malformed",
    "not_read",
    "evicted",
    "memory",
)


class Refusals:
    """How many connections each port has ended, and why."""

    def __init__(self) -> None:
        self.counts: dict[tuple[Port, Reason], int] = {(port, reason): 0 for port in PORTS for reason in REASONS}

    def count(self, port: Port, reason: Reason) -> None:
        self.counts[port, reason] += 1
