"""Routes whose answers do not end: lines of JSON about what happens, while the client reads and is permitted to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from millrace.access import callers
from millrace.changes.names import nearest
from millrace.http.changes import Name
from millrace.http.guard import cookie_of
from millrace.http.lookup import ResourceLookup
from millrace.http.openapi import refusals
from millrace.http.protocol import ENDLESS
from millrace.observe.tails import Tail, TailRequest, place_of, place_of_operator
from millrace.protocol import Refuse

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

Limit = Annotated[int, Query(ge=1, le=5_000, description="Rows per line at the most: the newest.")]
Every = Annotated[float, Query(ge=0.05, le=60, description="Seconds between lines.")]
Where = Annotated[
    str | None, Query(max_length=4_000, description="A condition over the columns, as after WHERE: only such rows.")
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

    look = ResourceLookup(daemon)

    @app.get(
        "/api/v1/tail/{name}",
        response_class=StreamingResponse,
        responses={**LINES, **refusals(400, 404)},
        summary="The newest rows of a query, a stream or its late tuples, as lines of JSON",
    )
    async def tail(
        request: Request,
        name: Name,
        from_: Annotated[
            Literal["latest"] | int,
            Query(alias="from", description="The number of the first row, if it is retained; latest: the next one."),
        ] = "latest",
        limit: Limit = 500,
        every: Every = 0.25,
        where: Where = None,
        lines: Lines = None,
    ) -> Response:
        known = daemon.engine.streams_by_name, daemon.runner.outlets, daemon.runner.built_in
        if place_of(daemon, name) is None:
            hint = nearest(name, [one for names in known for one in names])
            raise Refuse(f"stream or query {name} does not exist{hint}", code="unknown_query")
        wanted = TailRequest(limit, every, None if from_ == "latest" else max(from_, 0), where)
        found = Tail(daemon, lambda: place_of(daemon, name), wanted, _holds(request, daemon))
        return LineResponse(_first(lines, found.lines()))

    @app.get(
        "/api/v1/operators/{name}/tap",
        response_class=StreamingResponse,
        responses={**LINES, **refusals(400, 404)},
        summary="The newest rows that an operator emits, as lines of JSON",
    )
    async def tap(
        request: Request,
        name: Name,
        limit: Limit = 500,
        every: Every = 0.25,
        where: Where = None,
        lines: Lines = None,
    ) -> Response:
        look.at("operator", name)
        wanted = TailRequest(limit, every, None, where)
        found = Tail(daemon, lambda: place_of_operator(daemon, name), wanted, _holds(request, daemon))
        return LineResponse(_first(lines, found.lines()))


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
