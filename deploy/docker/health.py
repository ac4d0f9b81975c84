#!/opt/millrace/bin/python -I
"""Exit 0 if the server in this container answers, 1 with a line if not: the image's health check.

The server writes its addresses into its data folder while it listens. Whose certificate it has does not matter to a
question that never leaves the machine, so it is not checked.
"""

import http.client
import json
import os
import ssl
import sys
from pathlib import Path

SECONDS = 4.0


def admin() -> tuple[str, int]:
    """Where the server listens; an address for everyone is reached through loopback."""
    folder = Path(os.environ.get("MILLRACE_SERVER__DATA_DIR", "/data"))
    address: str = json.loads((folder / "addresses.json").read_text(encoding="utf-8"))["admin"]
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), int(port)


def ask(connection: http.client.HTTPConnection) -> int:
    try:
        connection.request("GET", "/-/healthy")
        return connection.getresponse().status
    finally:
        connection.close()


def status() -> int:
    """What the server says, by TLS or without: this program does not read the server's configuration."""
    host, port = admin()
    try:
        return ask(http.client.HTTPConnection(host, port, timeout=SECONDS / 2))
    except (http.client.HTTPException, ConnectionError):
        unchecked = ssl._create_unverified_context()
        return ask(http.client.HTTPSConnection(host, port, timeout=SECONDS / 2, context=unchecked))


def main() -> None:
    try:
        said = status()
    except FileNotFoundError:
        sys.exit("the server does not listen (yet, or any more)")
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        sys.exit(f"the server does not answer: {error}")
    if said != 200:
        sys.exit(f"the server answered with status {said}")


if __name__ == "__main__":
    main()
