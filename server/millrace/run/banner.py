"""What `millrace serve` prints on a terminal once it is ready. Without a terminal the log says the same."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from millrace.protocol.words import counted, printable

if TYPE_CHECKING:
    from millrace.access.first import FirstTokens
    from millrace.run.config import Settings
    from millrace.run.daemon import Daemon

MEMORY_ONLY = "NONE: IN MEMORY ONLY. Everything is lost when the server stops; use --data-dir DIR to keep it."


def print_banner(daemon: Daemon, first: FirstTokens | None = None) -> None:
    if wants_banner(daemon.settings):
        sys.stderr.write(banner(daemon))
    if first is not None:
        uses = "".join(f"  {line}\n" for line in first.uses(daemon.listen, daemon.admin_url))
        sys.stderr.write(f"This server requires a token. Its clients use it like this:\n{uses}\n")
    sys.stderr.flush()


def wants_banner(settings: Settings) -> bool:
    """Whether a person watches the server start."""
    return sys.stderr.isatty() and settings.log.format == "console"


def banner(daemon: Daemon) -> str:
    facts = daemon.describe()
    rows = [
        ("data directory", facts.data_dir or MEMORY_ONLY),
        ("feeds and readers", facts.listen + (" (TLS)" if facts.listen_tls else "")),
        ("HTTP API and web page", f"{daemon.admin_url}/"),
    ]
    if facts.data_dir is not None:
        rows.append(("restored", _restored(daemon)))
    rows.append(("stop", "Ctrl-C; the server finishes its queued work first"))
    width = max(len(label) for label, _ in rows)
    body = "".join(f"  {label.ljust(width)}  {printable(value)}\n" for label, value in rows)
    return f"\nMillrace {facts.version} is ready.\n{body}\n"


def _restored(daemon: Daemon) -> str:
    known = daemon.catalog.known
    streams, queries, sinks = len(known.streams), len(known.queries), len(known.sinks)
    if not streams + queries + sinks:
        return "nothing: the data directory is new"
    words = [counted(streams, "stream"), f"{queries} {'query' if queries == 1 else 'queries'}", counted(sinks, "sink")]
    return ", ".join(words)
