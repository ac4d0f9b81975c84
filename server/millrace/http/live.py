"""Routes whose answers do not end: lines of JSON about what happens, while the client reads and is permitted to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from millrace.access import callers
from millrace.http.guard import cookie_of
from millrace.http.protocol import ENDLESS

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

NDJSON: Final = "application/x-ndjson"
LINES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "A JSON object per line", "content": {NDJSON: {"schema": {"type": "string"}}}}
}
MOST_LINES: Final = 1_000_000
Lines = Annotated[
    int | None, Query(ge=1, le=MOST_LINES, description="End after so many lines. Default: the answer does not end.")
]


class LineResponse(StreamingResponse):
    """An answer of lines. It closes their source however it ends, and does not count as a request in progress."""

    media_type = NDJSON

    def __init__(self, lines: AsyncGenerator[bytes]) -> None:
        super().__init__(lines, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"].get(ENDLESS, _ignore)()
        async with aclosing(self._lines):
            await super().__call__(scope, receive, send)


def add_live(app: FastAPI, daemon: Daemon) -> None:
    @app.get(
        "/api/v1/events",
        response_class=StreamingResponse,
        responses=LINES,
        summary="The state of everything, then what changes of it, as lines of JSON",
    )
    async def events(
        request: Request,
        interval: Annotated[float, Query(ge=0.2, le=60, description="Seconds between looks at the numbers.")] = 1.0,
        lines: Lines = None,
    ) -> Response:
        caller = callers.current.get()
        return LineResponse(_first(lines, daemon.broadcasts.lines(caller, _holds(request, daemon), interval)))


def _holds(request: Request, daemon: Daemon) -> Callable[[], bool]:
    """Whether the client of a request is still permitted what it was when the request started."""
    caller, cookie = callers.current.get(), cookie_of(request, daemon)

    def session_holds() -> bool:
        return daemon.sessions.find(cookie or "") is caller

    return session_holds if session_holds() else lambda: daemon.access.holds("admin", caller)


async def _first(most: int | None, lines: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The first lines, or all."""
    async with aclosing(lines):
        number = 0
        async for line in lines:
            yield line
            number += 1
            if number == most:
                return


def _ignore() -> None: ...
