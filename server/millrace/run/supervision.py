"""Notifications to a service manager: the server is ready, is alive, ends.

Rule: the messages are systemd's (`sd_notify(3)`: a datagram to the socket that the environment names). The event loop
itself sends them, so that a hanging loop goes silent. Without a service manager nothing is sent; an unreachable manager
is logged and changes nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

import structlog

log = structlog.get_logger()

# Beats in the time after which the manager loses patience: one may come late.
BEATS: Final = 3
# How often it is looked whether a start has advanced, and for how long the manager is to wait then.
LOOK_SECONDS: Final = 5.0
EXTEND_SECONDS: Final = 60


class Supervisor:
    """The service manager that started the server, if it wants notifications."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        # An abstract socket is written with an at sign, and addressed with a zero byte.
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self._beat_seconds = _watchdog_seconds(environment) / BEATS

    def ready(self, status: str) -> None:
        """State is loaded and both ports are open."""
        self._tell("READY=1", f"STATUS={status}")

    @contextlib.asynccontextmanager
    async def patient(self, progress: Callable[[], tuple[str, int]]) -> AsyncIterator[None]:
        """While the server starts in this block, have the manager wait as long as the start advances."""
        if not self._address:
            yield
            return
        task = asyncio.create_task(self._ask_for_patience(progress), name="patience")
        try:
            yield
        finally:
            task.cancel()

    async def _ask_for_patience(self, progress: Callable[[], tuple[str, int]]) -> None:
        before = None
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if (now := progress()) != before:
                self._tell(f"EXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1_000_000}", f"STATUS={now[0]}")
            before = now

    def stopping(self) -> None:
        """The orderly end has started."""
        self._tell("STOPPING=1", "STATUS=finishing what is queued")

    @contextlib.asynccontextmanager
    async def reassured(self) -> AsyncIterator[None]:
        """Let the manager hear the event loop's heart inside this block, as often as it wants to."""
        if not self._beat_seconds:
            yield
            return
        heart = asyncio.create_task(self._beat(), name="heartbeat")
        try:
            yield
        finally:
            heart.cancel()

    async def _beat(self) -> None:
        while True:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self._beat_seconds)

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as talk:
                # A manager that does not read must not stop the loop.
                talk.setblocking(False)
                talk.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            log.warning("cannot notify the service manager", message=lines[0], reason=error.strerror or str(error))


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """How long the manager waits for a sign of life; 0 if it wants none from this process."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    try:
        return max(int(environment.get("WATCHDOG_USEC", "0")), 0) / 1e6
    except ValueError:
        return 0.0
