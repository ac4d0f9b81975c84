"""Routes for a person who looks at the server: what it advises, its trials, and whether statements are right.

Rule: they answer where others refuse. A browser reports each refusal in its console, and nothing is wrong with a
statement that is not finished, or with a component that has had no trial.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Response

from millrace.access import callers
from millrace.access.access import AccessDenied
from millrace.http.answers import listed, shown
from millrace.http.lookup import ResourceLookup
from millrace.http.openapi import refusals, tagged
from millrace.http.redaction import redacted
from millrace.observe.advice import Snapshot, advise
from millrace.observe.analysis import asked_for
from millrace.observe.broadcast import in_pieces
from millrace.observe.preview import previewed
from millrace.protocol import Refuse
from millrace.protocol.admin.bodies import CheckRequest, PreviewRequest
from millrace.protocol.admin.changes import CheckView, FaultView, PreviewView
from millrace.protocol.admin.operators import TrialView
from millrace.protocol.admin.queries import Why
from millrace.protocol.admin.server import Advice
from millrace.sql.errors import SqlError

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon


def add_looks(app: FastAPI, daemon: Daemon) -> None:
    look = ResourceLookup(daemon)

    @app.get("/api/v1/advice", response_model=list[Advice], summary="What to improve, each with a command")
    async def advice() -> Response:
        return listed(advise(await _snapshot(daemon)))

    @app.get("/api/v1/trials", response_model=list[TrialView], summary="The running or last trial of each component")
    async def trials() -> Response:
        return listed(daemon.trials.looks())

    @app.post(
        "/api/v1/sql/check",
        response_model=CheckView,
        responses=tagged(400),
        summary="What statements would do, or what is wrong with them",
    )
    async def check(request: CheckRequest) -> Response:
        callers.current.get().must_see_all()  # a plan shows the graph
        return shown(await _checked(daemon, look, request.sql), etag=await look.catalog_tag())

    @app.post(
        "/api/v1/sql/preview",
        response_model=PreviewView,
        responses=refusals(400),
        summary="The rows of the last query of a text over the newest tuples of its streams",
    )
    async def preview(request: PreviewRequest) -> Response:
        return shown(await _previewed(daemon, request))


async def _checked(daemon: Daemon, look: ResourceLookup, sql: str) -> CheckView:
    if asked_for(sql) is not None:
        return CheckView(problem=None, statements=[], plan=None)  # it measures for seconds, and plans nothing
    terms = daemon.catalog.terms(idempotent=True, temporary=True, prune=False)
    caller = callers.current.get()
    try:
        statements, plan = await daemon.catalog.plan(sql, look.unless_changed("catalog", "", None), terms, caller)
    except AccessDenied:
        raise
    except Refuse as error:
        return CheckView(problem=_fault(error, caller.told(error)), statements=[], plan=None)
    return CheckView(problem=None, statements=statements, plan=plan)


async def _previewed(daemon: Daemon, request: PreviewRequest) -> PreviewView:
    try:
        name, known = await daemon.catalog.last_query(request.sql)
        return await daemon.previews.make(previewed(name, known), request.rows, request.wait)
    except Refuse as error:
        return PreviewView(problem=_fault(error, callers.current.get().told(error)))


def _fault(error: Refuse, text: str) -> FaultView:
    place = (error.line, error.column) if isinstance(error, SqlError) else (None, None)
    return FaultView(code=error.code, detail=text, line=place[0], column=place[1])


async def _snapshot(daemon: Daemon) -> Snapshot:
    """What the advice is about. A server with a thousand queries works for a sixth of a second on it, so other work of
    the loop gets its turn after each piece."""
    found: dict[str, list[Any]] = defaultdict(list)
    why: dict[str, Why] = {}
    pieces = in_pieces(daemon)
    while True:
        await daemon.runner.at_rest()
        section, piece = next(pieces, (None, ()))
        if section is None:
            break
        found[section] += piece
        if section == "queries":
            why |= {query.name: daemon.why(query.name) for query in piece}
        await asyncio.sleep(0)
    return Snapshot(
        daemon.describe(),
        redacted(daemon.settings),
        found["streams"],
        found["queries"],
        found["sinks"],
        found["operators"],
        why,
    )
