"""The address of a server: `host`, `host:port`, `[::1]:port`; several, for a server and its standby, with commas."""

from __future__ import annotations

from collections.abc import Sequence

PORT = 7420


def parse_addresses(addresses: str | Sequence[str]) -> list[tuple[str, int]]:
    """The hosts and ports of one address, of several with commas between, or of a list."""
    texts = addresses.strip().removeprefix("millrace://").split(",") if isinstance(addresses, str) else addresses
    if not texts:
        raise ValueError("expected the address of a server, got an empty list")
    return list(dict.fromkeys(map(parse_address, texts)))


def parse_address(address: str) -> tuple[str, int]:
    """The host and the port, by default 7420. ValueError shows the expected form."""
    host, colon, port = address.strip().removeprefix("millrace://").rpartition(":")
    if not colon or port.endswith("]") or (":" in host and not host.endswith("]")):
        host, port = address.strip().removeprefix("millrace://"), str(PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"expected an address such as 127.0.0.1:{PORT} or [::1]:{PORT}, got {address!r}")
    return host, int(port)
