"""How long starting takes, in CPU time: commands, the server's two ports, and the imports that cost most."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from bench import wire
from bench.figure import Figure

MILLRACE = [sys.executable, "-m", "millrace.cli.main"]
SLOWEST_IMPORTS = 12


def start_up(repeats: int = 5) -> list[Figure]:
    """CPU seconds of the quickest of several starts."""
    figures = [
        Figure("millrace --help, CPU", _cpu(["--help"], repeats), "s", 0.1),
        Figure("millrace --version, CPU", _cpu(["--version"], repeats), "s", 0.1),
    ]
    with wire.daemon() as server:
        admin = {"MILLRACE_ADMIN": server.admin}
        server.sql("CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s")
        figures += [
            Figure("millrace why, CPU", _cpu(["why", "q"], repeats, admin), "s", 0.15),
            Figure("millrace top --once, CPU", _cpu(["top", "--once"], repeats, admin), "s", 0.15),
        ]
    starts = [_serve() for _ in range(repeats)]
    figures += [
        Figure("serve: feeds accepted, CPU", min(feeds for feeds, _ in starts), "s", 0.6),
        Figure("serve: HTTP API answers, CPU", min(admin for _, admin in starts), "s", 1.0),
    ]
    return figures + imports("millrace.run.daemon")


def imports(module: str, most: int = SLOWEST_IMPORTS) -> list[Figure]:
    """The modules that take longest to import, without what they import in turn."""
    command = [sys.executable, "-X", "importtime", "-c", f"import {module}"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stderr.splitlines()
    rows = [match.groups() for line in lines if (match := re.match(r"import time:\s+(\d+) \|\s+\d+ \| +(\S+)", line))]
    slowest = sorted(((int(us), name) for us, name in rows), reverse=True)[:most]
    return [Figure(f"import of {name} itself", us / 1000, "ms") for us, name in slowest]


def _cpu(arguments: Sequence[str], repeats: int, variables: dict[str, str] | None = None) -> float:
    best = float("inf")
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [*MILLRACE, *arguments], check=True, capture_output=True, env={**os.environ, **(variables or {})}
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


def _serve() -> tuple[float, float]:
    """CPU seconds until a feed can connect, and until the HTTP API answers."""
    feeds, admin = _free_port(), _free_port()
    command = [*MILLRACE, "serve", "--listen", f"127.0.0.1:{feeds}", "--admin", f"127.0.0.1:{admin}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            while not _accepts(feeds):
                time.sleep(0.005)
            until_feeds = _used(process.pid)
            while not _answers(admin):
                time.sleep(0.005)
            return until_feeds, _used(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready"):
        return True
    return False


def _used(process: int) -> float:
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
