"""The API's view of the server itself: its process, its configuration without secrets, its newest log lines."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import resource
from typing import TYPE_CHECKING, Any, Final

from millrace.http.answers import About, mentions
from millrace.http.redaction import redacted
from millrace.observe.recent import recent
from millrace.protocol.admin.server import GuardView, ProcessView
from millrace.values.kernels import compiled, outdated

if TYPE_CHECKING:
    from fastapi import FastAPI

    from millrace.run.config import Address, Security
    from millrace.run.daemon import Daemon

# The libraries whose version decides how the server behaves.
LIBRARIES: Final = ("fastapi", "msgpack", "msgspec", "numpy", "pyarrow", "pydantic", "structlog", "uvicorn", "uvloop")


def add_operations(app: FastAPI, daemon: Daemon) -> None:
    @app.get("/api/v1/configuration", summary="The effective configuration, without secrets")
    async def configuration() -> dict[str, Any]:
        return redacted(daemon.settings)

    @app.get("/api/v1/log", summary="The newest log lines, oldest first")
    async def log(about: About = None) -> list[dict[str, Any]]:
        return [line for line in recent.lines() if about is None or mentions(line, about)]


def process() -> ProcessView:
    """The process and its limits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory, _ = resource.getrlimit(resource.RLIMIT_AS)
    return ProcessView(
        pid=os.getpid(),
        python=platform.python_version(),
        platform=platform.platform(),
        processors=os.cpu_count(),
        open_files=_open_files(),
        open_files_limit=None if soft == resource.RLIM_INFINITY else soft,
        open_files_hard_limit=None if hard == resource.RLIM_INFINITY else hard,
        memory_limit_bytes=None if memory == resource.RLIM_INFINITY else memory,
        libraries={name: _version(name) for name in LIBRARIES},
    )


def cores() -> int:
    """The cores that the process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def kernels() -> str:
    """How kernels and scheduler run: compiled, as Python, or compiled from an older source."""
    if outdated():
        return "outdated"
    return "compiled" if compiled() else "python"


def guard_of(address: Address, security: Security, *, token: bool) -> GuardView:
    """Who can reach a port, and whether it requires a token of them."""
    return GuardView(loopback=address.is_loopback, tls=security.certificate is not None, token=token)


def _open_files() -> int | None:
    """Open files and sockets; None if the system does not report them."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return None


@functools.cache
def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
