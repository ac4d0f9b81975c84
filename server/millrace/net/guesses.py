"""The price of wrong tokens for the address that sent them.

Rule: the right token is never delayed, even if others share its address (NAT): a lock-out would itself be an attack.
The answer to a wrong token is delayed, and only a few answers are under way for an address: further wrong tokens are
cut off without one. An answer under way counts for its whole time, also when its connection has gone.
"""

from __future__ import annotations

import ipaddress
from typing import Final, Literal

from millrace.net.refusals import PORTS, Port
from millrace.observe.logs import sparing
from millrace.run.timers import Timers

# How long the answer to a wrong token takes.
DELAY_SECONDS: Final = 1.0
# Answers under way for one address, so guesses per second.
UNDER_WAY: Final = 8
# Addresses with an answer under way: a megabyte. Beyond that, every other address is cut off too.
ADDRESSES: Final = 10_000
# An IPv6 client has 2^64 addresses.
IPV6_PREFIX: Final = 64

Outcome = Literal["answered", "cut_off"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("answered", "cut_off")


class Guesses:
    """Wrong tokens, by address and in all."""

    def __init__(self, timers: Timers) -> None:
        self.counts: dict[tuple[Port, Outcome], int] = {(port, outcome): 0 for port in PORTS for outcome in OUTCOMES}
        self._timers = timers
        self._under_way: dict[str, int] = {}

    def wrong(self, port: Port, host: str) -> float | None:
        """Count a wrong token; how many seconds its answer has to wait, or None if it gets none."""
        address = address_of(host)
        under_way = self._under_way.get(address, 0)
        answered = under_way < UNDER_WAY and (under_way > 0 or len(self._under_way) < ADDRESSES)
        self.counts[port, "answered" if answered else "cut_off"] += 1
        # One line for all addresses: a crowd of them must not fill the log.
        sparing.warning("a client sent a wrong token", "", port=port, address=address)
        if not answered:
            return None
        self._under_way[address] = under_way + 1
        self._timers.call_later(DELAY_SECONDS, self._over, address)
        return DELAY_SECONDS

    def _over(self, address: str) -> None:
        self._under_way[address] -= 1
        if not self._under_way[address]:
            del self._under_way[address]


def address_of(host: str) -> str:
    """The address that pays for a guess: an IPv4 address, or the network of an IPv6 client."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, IPV6_PREFIX), strict=False))
