#!/opt/millrace/bin/python -I
"""The image's health check: exit 0 if the server in this container answers, otherwise 1 with a message.

The server writes its addresses into its data folder while it listens. The request never leaves the machine, so this
does not check the certificate.
"""

import http.client
import json
import os
import ssl
import sys
from pathlib import Path

SECONDS = 4.0


def admin() -> tuple[str, int]:
    """The address of the server; loopback if it listens on all addresses."""
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
    """The answer of the server, with TLS or without: this program does not read the server's configuration."""
    host, port = admin()
    try:
        return ask(http.client.HTTPConnection(host, port, timeout=SECONDS / 2))
    except (http.client.HTTPException, ConnectionError):
        unchecked = ssl._create_unverified_context()
        return ask(http.client.HTTPSConnection(host, port, timeout=SECONDS / 2, context=unchecked))


def main() -> None:
    try:
        code = status()
    except FileNotFoundError:
        sys.exit("the server does not listen (yet, or any more)")
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        sys.exit(f"the server does not answer: {error}")
    if code != 200:
        sys.exit(f"the server answered with status {code}")


if __name__ == "__main__":
    main()
