"""Which names of this server an HTTP request may use in its Host header.

Rule: a page whose host name an attacker resolves to this server (DNS rebinding) sends that name, so a request without
the token must use a name that is surely this server's: a loopback name, the address at which its connection arrived,
or one of `server.hosts`. A page cannot know the token, so a request that shows it may use any name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

# A name or an IPv4 address, or an IPv6 address in brackets, then perhaps a port. Nothing else is a host: no user, path,
# list or blank.
_HOST: Final = re.compile(r"(?:\[(?P<inside>[0-9A-Fa-f:.]+(?:%[\w.~-]+)?)\]|(?P<name>[\w.~-]+))(?::\d{0,5})?", re.ASCII)
# The authority of an absolute request target, such as `GET http://name/path`.
_ABSOLUTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?P<authority>[^/?#]*)")


def host_of(text: str) -> str | None:
    """The host of a Host header as the rule compares it: without its port, brackets, case, zone and final dot.

    None if the text is not a host and a port.
    """
    match = _HOST.fullmatch(text)
    if match is None:
        return None
    name: str = match["inside"] or match["name"]
    return _canonical(name.partition("%")[0].lower().removesuffix("."))


def authority_of(target: str) -> str | None:
    """The host and port that a request target names itself; None for the usual form, which is a path."""
    match = _ABSOLUTE.match(target)
    return None if match is None else match["authority"]


def _canonical(name: str) -> str | None:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name or None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Hosts:
    """The names that requests without a token may use."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(filter(None, map(host_of, names)))

    def accept(self, headers: Iterable[str], target: str, arrived_at: str | None) -> bool:
        """Whether the Host headers of a request, and its target if that names a host, all name this server."""
        named = list(headers)
        authority = authority_of(target)
        if authority is not None:
            named.append(authority)
        return bool(named) and all(self._knows(text, arrived_at) for text in named)

    def _knows(self, text: str, arrived_at: str | None) -> bool:
        host = host_of(text)
        if host is None:
            return False
        here = None if arrived_at is None else _canonical(arrived_at.partition("%")[0].lower())
        return host == here or host in self._names or _is_loopback(host)
