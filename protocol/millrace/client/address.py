"""The address of a server: `host`, `host:port`, `[::1]:port`."""

from __future__ import annotations

PORT = 7420


def parse_address(address: str) -> tuple[str, int]:
    """The host and the port, by default 7420. ValueError shows the expected form."""
    host, colon, port = address.strip().removeprefix("millrace://").rpartition(":")
    if not colon or port.endswith("]") or (":" in host and not host.endswith("]")):
        host, port = address.strip().removeprefix("millrace://"), str(PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"expected an address such as 127.0.0.1:{PORT} or [::1]:{PORT}, got {address!r}")
    return host, int(port)
