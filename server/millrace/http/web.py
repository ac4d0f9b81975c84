"""The HTTP port's server: uvicorn in the daemon's event loop.

Rule: the daemon imports this module after the port for feeds is open, because FastAPI and uvicorn take a third of all
imports.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import uvicorn

from millrace.http.api import build
from millrace.http.protocol import HANDSHAKE_SECONDS, http_protocol

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

# Connections that wait to be accepted: the default of Linux.
BACKLOG = 4096
DATE_SECONDS = 1.0


def make_http(daemon: Daemon) -> HttpServer:
    """The server of a daemon's API."""
    most = daemon.settings.limits.admin_connections
    refusals = daemon.metrics.refusals
    protocol = http_protocol(lambda: str(daemon.listen), daemon.timers, most, refusals, daemon.hurry)
    return HttpServer(build(daemon), daemon.certificates.context("admin"), protocol)


class HttpServer(uvicorn.Server):
    """uvicorn on sockets that are bound already. The daemon handles signals, and ends it with `stop`."""

    def __init__(self, app: Any, tls: ssl.SSLContext | None, protocol: type[asyncio.Protocol]) -> None:
        self._tls = tls
        self._stopped = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="none",
                proxy_headers=False,  # any client can set them
                server_header=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=2,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Like uvicorn's, with the server's TLS context and a time limit for handshakes."""
        config, loop = self.config, asyncio.get_running_loop()

        def make() -> asyncio.Protocol:
            protocol: Any = config.http_protocol_class
            connection: asyncio.Protocol = protocol(
                config=config, server_state=self.server_state, app_state={}, _loop=loop
            )
            return connection

        seconds = None if self._tls is None else HANDSHAKE_SECONDS  # without TLS asyncio refuses a number
        self.servers = [
            await loop.create_server(make, sock=bound, ssl=self._tls, backlog=BACKLOG, ssl_handshake_timeout=seconds)
            for bound in sockets or ()
        ]
        self.started = True

    def stop(self) -> None:
        self.should_exit = True
        self._stopped.set()

    async def main_loop(self) -> None:
        """Like uvicorn's, which checks ten times a second whether to end: this one is notified."""
        while not await self.on_tick(0):  # renews the date of answers
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_SECONDS):
                    await self._stopped.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Like uvicorn's, which waits a moment even without connections."""
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for server in self.servers:
            server.close()
            await server.wait_closed()
        for bound in sockets or ():
            bound.close()
