"""The admin API: HTTP on a separate port, and the only interface of the command line.

Rule: every change of the server goes through the catalog, and so through the engine's door; reads use the engine's
views between two steps. Every refusal is answered with a problem (RFC 9457) that has the code.
A route waits only for the engine's next steps, and for the disk if it reads history.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from millrace.access import callers
from millrace.access.access import AccessDenied
from millrace.access.callers import ANYONE, Caller
from millrace.access.needs import ROUTES, check_route
from millrace.access.roles import NEEDED, Action
from millrace.engine import views
from millrace.http.answers import answer, listed, listed_aside, shown
from millrace.http.changes import IfMatch, Name, add_changes
from millrace.http.console import HEADERS, page
from millrace.http.etags import Changed
from millrace.http.hosts import Hosts
from millrace.http.lookup import ResourceLookup
from millrace.http.openapi import ALWAYS, PROBLEM, TITLES, ViewRoute, document, refusals, tagged
from millrace.http.operations import add_operations
from millrace.http.protocol import CERTIFICATE, REFUSED
from millrace.http.standby import ROOT, add_standby
from millrace.observe import logs
from millrace.observe.analysis import analyze as analyzed
from millrace.observe.analysis import asked_for
from millrace.observe.graph import draw, render
from millrace.observe.inspection import explained
from millrace.observe.metrics import version
from millrace.observe.trial import Wish
from millrace.protocol import MillraceError, Refuse
from millrace.protocol.admin.bodies import BackfillProgress, BackfillRequest, SqlRequest, TrialRequest
from millrace.protocol.admin.changes import CancelReply, SqlView, StatementView
from millrace.protocol.admin.operators import (
    ComponentView,
    DrawingView,
    GraphView,
    OperatorView,
    StrategyView,
    TableView,
    TrialView,
)
from millrace.protocol.admin.queries import AnalyzedView, BackfillView, ExplainView, QueryView, SinkView, Why
from millrace.protocol.admin.server import CatalogView, ReloadView, ServerView
from millrace.protocol.admin.streams import ArchivedView, LateView, StalenessView, StreamView
from millrace.protocol.words import printable, spelt
from millrace.run.timers import sleep
from millrace.sql.errors import SqlError
from millrace.values.intervals import parse_duration, parse_moment

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
# A million characters of SQL, each at its longest in JSON: twelve bytes, an escaped pair of surrogates.
BODY_BYTES: Final = 16 * 2**20
# When to send again what found too many others being planned: each of them takes a second at the most.
RETRY_SECONDS: Final = 1
# The most characters of a client's name in the log: a browser's names fill lines.
AGENT_CHARACTERS: Final = 100
# The paths that a load balancer may read without a token.
OPEN_PATHS: Final = ("/-/healthy", "/-/ready")
# The paths that also answer while the server recovers.
EARLY_PATHS: Final = (*OPEN_PATHS, "/metrics")

# Words for errors of pydantic that speak of Python.
WORDS: Final[Mapping[str, str]] = {"unexpected_keyword_argument": "Extra inputs are not permitted"}

# The HTTP status of each code that does not mean a conflict with an existing object.
STATUSES: Final[Mapping[str, int]] = {
    "sql": 400,
    "unknown_strategy": 400,
    "unauthorised": 401,
    "not_permitted": 403,
    "shutting_down": 503,
    "busy": 503,
    "changed": 412,
    "catalog": 500,
    "history_failed": 500,
    "past": 500,
    "rolled_back": 500,
    "unknown_stream": 404,
    "unknown_query": 404,
    "unknown_sink": 404,
    "unknown_component": 404,
    "unknown_operator": 404,
    "unknown_trial": 404,
    "unknown_backfill": 404,
    "unknown_change": 404,
    "invalid_request": 422,
    "bad_condition": 400,
    "sink_path": 400,
    "bad_span": 400,
    "bad_value": 400,
    "bad_edit": 400,
    "bad_share": 400,
    "trimmed": 410,
}


def _wish(component: str, request: TrialRequest) -> Wish:
    for_us = _span_us("for", request.for_)
    before_us = for_us if request.before is None else _span_us("before", request.before)
    return Wish(
        component, request.strategy, request.operator, for_us, before_us, request.revert_if, revert=request.revert
    )


def _span_us(name: str, text: str) -> int:
    try:
        return parse_duration(text)
    except Refuse as error:
        raise Refuse(f"{name}: {error.text}", code="bad_span") from None


Analyze = Annotated[bool, Query(description="Also measured rates, selectivity and cost per operator.")]
At = Annotated[
    str | None,
    Query(
        max_length=100,
        description="A moment of the recorded past: ISO 8601, integer microseconds, or a time ago such as -10 minutes.",
    ),
]
_SPAN: Final = "ISO 8601, integer microseconds, or a time ago such as -10 minutes."
From = Annotated[
    str | None,
    Query(alias="from", max_length=100, description=f"The beginning of a span of the recorded past: {_SPAN}"),
]
To = Annotated[str | None, Query(max_length=100, description=f"Its end, by default now: {_SPAN}")]
Form = Annotated[
    Literal["json", "mermaid", "dot", "table", "text"],
    Query(alias="format", description="json for data; any other format answers with a drawing in `text`."),
]


def build(daemon: Daemon) -> FastAPI:
    """The application over one daemon."""
    app = FastAPI(
        title="Millrace",
        version=version(),
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses=refusals(*ALWAYS),
        dependencies=[Depends(_at_rest(daemon))],
    )
    app.router.route_class = ViewRoute
    _add_guards(app, daemon)
    _add_pages(app, daemon)
    _add_sql(app, daemon)
    _add_streams(app, daemon)
    _add_queries(app, daemon)
    _add_backfills(app, daemon)
    _add_sinks(app, daemon)
    _add_components(app, daemon)
    _add_operators(app, daemon)
    add_changes(app, daemon, ResourceLookup(daemon))
    add_operations(app, daemon)
    add_standby(app, daemon)
    vars(app)["openapi"] = document(app)
    return app


def _at_rest(daemon: Daemon) -> Callable[[Request], Awaitable[None]]:
    """A dependency of every route that reads the engine: FastAPI awaits it right before the route runs. A change may
    wait for the answer of the standby, so that must not wait for the change."""

    async def at_rest(request: Request) -> None:
        path = request.scope["path"]
        if path not in OPEN_PATHS and not path.startswith(ROOT):
            await daemon.runner.at_rest()

    return at_rest


# -- problems and tokens -----------------------------------------------------------------------------------------------


def problem(status: int, code: str, title: str, detail: str, **more: Any) -> JSONResponse:
    """An RFC 9457 problem; `code` is the word that programs look at."""
    body = {"type": f"urn:millrace:{code}", "title": title, "status": status, "detail": detail, "code": code, **more}
    return JSONResponse(body, status, media_type=PROBLEM)


def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, MillraceError)
    status = STATUSES.get(error.code, 409 if isinstance(error, Refuse) else 400)
    answer = problem(status, error.code, _title(status), callers.current.get().told(error), **_more(error))
    if isinstance(error, Changed):
        answer.headers["etag"] = error.etag
    if error.code == "busy":
        answer.headers["retry-after"] = str(RETRY_SECONDS)
    return answer


def _more(error: MillraceError) -> dict[str, Any]:
    """The machine-readable parts of an error in addition to its code."""
    match error:
        case SqlError():
            return {"line": error.line, "column": error.column}
        case Changed():
            return {"etag": error.etag, "now": error.now}
        case _:
            return {}


def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    # Without "body" or "path": the user of a command sees neither.
    where = ".".join(str(part) for part in first["loc"][1:]) or "the request"
    text = WORDS.get(first["type"]) or first["msg"].replace("Input should be", "expected", 1)
    value = first.get("input")
    got = f", got {spelt(value)}" if isinstance(value, str | int | float | bool) else ""
    return problem(422, "invalid_request", _title(422), f"{where}: {text}{got}")


def _mistake(_: Request, error: Exception) -> JSONResponse:
    return problem(
        500, "internal", _title(500), f"internal error ({type(error).__name__}); the server's log has the details"
    )


def _no_route(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    answer = problem(error.status_code, "http", _title(error.status_code), str(error.detail))
    answer.headers.update(error.headers or {})
    return answer


def _title(status: int) -> str:
    return TITLES.get(status, "The request failed")


def _add_guards(app: FastAPI, daemon: Daemon) -> None:
    app.add_exception_handler(MillraceError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(Exception, _mistake)

    @app.middleware("http")
    async def guard(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        logs.client.set(_client_of(request))
        logs.request.set(f"{request.method} {request.scope['path']}")
        refused = await _refuse(request, daemon, app) or _refuse_early(request, daemon)
        if refused is not None and REFUSED not in request.scope:
            host = request.client.host if request.client else ""
            logs.sparing.warning("refused an admin request", host, status=refused.status_code)
        return refused or await proceed(request)


def _client_of(request: Request) -> str:
    """The client of a request in the log and in the ledger: its address, and the name that it sends."""
    address = f"admin {request.client.host}:{request.client.port}" if request.client else "admin"
    agent = printable(request.headers.get("user-agent", "").strip())[:AGENT_CHARACTERS]
    return f"{address} ({agent})" if agent else address


async def _refuse(request: Request, daemon: Daemon, app: FastAPI) -> Response | None:
    """The answer to a request that reaches no route."""
    if request.scope["path"] in OPEN_PATHS:
        return _refuse_page(request) or _refuse_body(request)
    caller, denied = _identify(request, daemon, app)
    if denied is not None and denied.guessed and (cut_off := await _slow_down(request, daemon)) is not None:
        return cut_off
    # A page of another site knows no token; its browser may send a certificate by itself.
    shows_token = caller is not None and isinstance(caller.proof, bytes) and caller is not ANYONE
    refused = None
    if not shows_token or request.headers.getlist("origin"):
        refused = _refuse_host(request, daemon.hosts)
    refused = refused or _refuse_page(request) or _refuse_body(request)
    if refused is not None:
        return refused
    if caller is None:
        assert denied is not None
        return _refuse_token(denied)
    callers.current.set(caller)
    logs.token.set(caller.name)
    return _refuse_role(request, daemon, app, caller)


def _identify(request: Request, daemon: Daemon, app: FastAPI) -> tuple[Caller | None, AccessDenied | None]:
    """Who sends a request, or why that is not known."""
    certificate = request.scope["state"].get(CERTIFICATE, frozenset())
    caller = daemon.access.unnamed("admin", certificate)
    if caller is not None:
        return caller, None
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    shown = None if "authorization" not in request.headers else given.strip() if scheme.lower() == "bearer" else ""
    try:
        return daemon.access.named("admin", shown, _needed(request, app)), None
    except AccessDenied as error:
        return None, error


def _needed(request: Request, app: FastAPI) -> str:
    """The role that a request needs, in words."""
    path, _ = _route_of(request, app)
    need = ROUTES.get((_method(request), path))
    return NEEDED[Action.MEET if need is None else need.action]


def _method(request: Request) -> str:
    return "GET" if request.method == "HEAD" else request.method


def _route_of(request: Request, app: FastAPI) -> tuple[str, str | None]:
    """The path of the route that a request will reach, and the name in the request's path; no path if there is none."""
    for route in app.router.routes:
        match, more = route.matches(request.scope)
        if match is Match.FULL:
            return getattr(route, "path", ""), more["path_params"].get("name")
    return "", None


def _refuse_role(request: Request, daemon: Daemon, app: FastAPI, caller: Caller) -> Response | None:
    """The answer to a known client that may not do this. A path without a route is answered like any other."""
    if caller.unlimited:
        return None
    path, name = _route_of(request, app)
    if not path:
        return None
    try:
        check_route(caller, _method(request), path, name, daemon.catalog.known)
    except Refuse as error:
        daemon.access.lacks_role("admin")
        return problem(403, error.code, _title(403), error.text)
    return None


def _refuse_early(request: Request, daemon: Daemon) -> Response | None:
    """Requests that arrive before the server has its state."""
    if request.scope["path"].startswith(ROOT) and daemon.leads:
        return None  # a server that depends on its standby waits for it at its start
    if daemon.follows:
        return _refuse_at_standby(request, daemon)
    if daemon.state != "starting" or request.scope["path"] in EARLY_PATHS:
        return None
    text = f"the server is starting ({daemon.progress[0]}): try again when /-/ready answers with 200"
    answer = problem(503, "starting", _title(503), text)
    answer.headers["retry-after"] = str(RETRY_SECONDS)
    return answer


def _refuse_at_standby(request: Request, daemon: Daemon) -> Response | None:
    """A server that follows another one shows its state, and changes only by its promotion."""
    path = request.scope["path"]
    reads = request.method in ("GET", "HEAD") and not path.startswith(ROOT)
    refused = daemon.refused()
    if reads or path == f"{ROOT}promote" or refused is None:
        return None
    return problem(503, refused.code, _title(503), refused.text)


def _refuse_host(request: Request, hosts: Hosts) -> Response | None:
    """Names that are not this server's: an attacker may have made them resolve to it."""
    named = request.headers.getlist("host")
    at = request.scope["server"]
    if hosts.accept(named, request.scope["raw_path"].decode("ascii"), at[0] if at else None):
        return None
    got = f"got {spelt(', '.join(named))}" if named else "got none"
    text = (
        "a request without the token must have a Host header that names this server: localhost, the address of the "
        f"connection, or a name in server.hosts; {got}. Add the name to server.hosts, or send the token without an "
        "Origin"
    )
    return problem(403, "foreign_host", _title(403), text)


def _refuse_page(request: Request) -> Response | None:
    """Requests that a page of another site makes a browser send."""
    host = request.headers.get("host", "")
    for origin in request.headers.getlist("origin"):
        if origin.partition("://")[2].lower() != host.lower():
            return problem(403, "forbidden", _title(403), f"requests from web pages of {spelt(origin)} are refused")
    return None


def _refuse_body(request: Request) -> Response | None:
    """Refuse an unexpected body."""
    length = request.headers.get("content-length", "0")
    if (
        not (length.isascii() and length.isdecimal())
        or int(length) > BODY_BYTES
        or "transfer-encoding" in request.headers
    ):
        text = f"the body of a request needs a Content-Length of at most {BODY_BYTES} bytes"
        return problem(413, "too_large", _title(413), text)
    return None


async def _slow_down(request: Request, daemon: Daemon) -> Response | None:
    """Let a request that has guessed at a token wait, whatever its answer is; the answer if it must not wait."""
    delay = daemon.guesses.wrong("admin", request.client.host if request.client else "")
    if delay is None:
        text = (
            "too many requests with wrong tokens from this address are waiting; a request with the right token is "
            "always accepted"
        )
        answer = problem(429, "too_many_guesses", _title(429), text)
        answer.headers.update({"retry-after": "1", "connection": "close"})
        return answer
    await sleep(daemon.timers, delay)
    return None


def _refuse_token(denied: AccessDenied) -> Response:
    """The answer to a request without a valid token."""
    answer = problem(401, "unauthorised", _title(401), f"{denied.text}; send Authorization: Bearer ...")
    answer.headers["www-authenticate"] = "Bearer"
    return answer


# -- routes ------------------------------------------------------------------------------------------------------------


def _add_pages(app: FastAPI, daemon: Daemon) -> None:
    @app.get("/-/healthy", response_class=PlainTextResponse, summary="Whether the process answers")
    async def healthy() -> str:
        problems = daemon.problems()
        return "".join(f"{line}\n" for line in ("degraded" if problems else "healthy", *problems))

    @app.get(
        "/-/ready",
        responses={503: {"description": "The server is starting or stopping"}},
        response_class=PlainTextResponse,
        summary="Whether the server is ready for feeds and queries",
    )
    async def ready() -> Response:
        return PlainTextResponse(f"{daemon.progress[0]}\n", 200 if daemon.state == "ready" else 503)

    @app.get("/metrics", response_class=PlainTextResponse, summary="Metrics for Prometheus")
    async def metrics() -> Response:
        operators = None if daemon.state == "starting" else daemon.operators_in_pieces()
        return Response(await daemon.metrics.scrape(operators), media_type=METRICS)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def console() -> HTMLResponse:
        return HTMLResponse(page(daemon), headers=HEADERS)

    @app.get("/api/v1/server", response_model=ServerView, summary="The server: version, addresses, clock")
    async def server() -> Response:
        return shown(daemon.describe() if callers.current.get().sees_all else daemon.introduce())

    @app.post(
        "/api/v1/reload",
        response_model=ReloadView,
        responses=refusals(409),
        summary="Read the files of tokens and certificates again",
    )
    async def reload() -> Response:
        return shown(daemon.reload())


def _add_sql(app: FastAPI, daemon: Daemon) -> None:
    look = ResourceLookup(daemon)

    @app.post(
        "/api/v1/sql",
        response_model=SqlView,
        responses=tagged(400, 404, 409, 412),
        summary="Plan statements and apply them as a whole",
    )
    async def sql(request: SqlRequest, if_match: IfMatch = None) -> Response:
        caller = callers.current.get()
        name = asked_for(request.sql)
        if name is not None:
            caller.must(Action.READ, name)
            told = explained(StatementView(kind="explain", name=name), await analyzed(daemon, name))
            return shown(SqlView(dry_run=request.dry_run, statements=[told]))
        if if_match is not None or request.dry_run:
            caller.must_see_all()  # a refusal has the catalog, and a plan the graph
        check = look.unless_changed("catalog", "", if_match)
        terms = daemon.catalog.terms(idempotent=request.idempotent, temporary=request.temporary, prune=request.prune)
        if request.dry_run:
            statements, plan = await daemon.catalog.plan(request.sql, check, terms, caller)
        else:
            statements = await daemon.catalog.execute(request.sql, check=check, terms=terms, caller=caller)
            plan = None
        answer = SqlView(dry_run=request.dry_run, statements=statements, plan=plan)
        return shown(answer, etag=await look.catalog_tag())

    @app.get(
        "/api/v1/catalog",
        response_model=CatalogView,
        responses=tagged(),
        summary="The catalog: all definitions and decisions, as SQL and as data",
    )
    async def catalog(
        plans: Annotated[bool, Query(description="Also the lowered plan of each query, by its statement.")] = False,
    ) -> Response:
        found, tag = await look.now("catalog", "")
        return answer({**found, "plans": await daemon.catalog.keeper.plans()} if plans else found, etag=tag)


def _add_streams(app: FastAPI, daemon: Daemon) -> None:
    look = ResourceLookup(daemon)

    @app.get("/api/v1/streams", response_model=list[StreamView], summary="All streams")
    async def streams() -> Response:
        return listed(callers.current.get().visible(Action.LOOK, daemon.streams(), attrgetter("name")))

    @app.get("/api/v1/streams/{name}", response_model=StreamView, responses=tagged(404), summary="One stream")
    async def stream(name: Name) -> Response:
        return await look.shown("stream", name)

    @app.get(
        "/api/v1/streams/{name}/stale",
        response_model=list[StalenessView],
        responses=refusals(404),
        summary="Staleness of the update queues that read a stream, with their worst keys",
    )
    async def stale(name: Name, worst: Annotated[int, Query(ge=0, le=1_000)] = 10) -> Response:
        return listed(daemon.stale(name, worst))

    @app.get(
        "/api/v1/streams/{name}/late",
        response_model=LateView,
        responses=refusals(400, 404, 409),
        summary="How many of a stream's tuples would have been on time with which disorder, now or in a past span",
    )
    async def late(name: Name, from_: From = None, to: To = None) -> Response:
        if from_ is None and to is None:
            return shown(daemon.engine.late(name))
        now_us = daemon.runner.now_us()
        from_us, to_us = (None if text is None else parse_moment(text, now_us) for text in (from_, to))
        return answer(await daemon.moments.late(name, from_us, to_us, now_us))

    @app.post(
        "/api/v1/streams/{name}/archive",
        response_model=ArchivedView,
        responses=refusals(404, 409),
        summary="Write all rows so far into complete files of the stream's history",
    )
    async def archive(name: Name) -> Response:
        return shown(await daemon.archive_now(name))


def _add_queries(app: FastAPI, daemon: Daemon) -> None:
    look = ResourceLookup(daemon)

    @app.get("/api/v1/queries", response_model=list[QueryView], summary="All queries")
    async def queries() -> Response:
        return await listed_aside(callers.current.get().visible(Action.READ, daemon.queries(), attrgetter("name")))

    @app.get("/api/v1/queries/{name}", response_model=QueryView, responses=tagged(404), summary="One query")
    async def query(name: Name) -> Response:
        return await look.shown("query", name)

    @app.get(
        "/api/v1/queries/{name}/explain",
        response_model=ExplainView | AnalyzedView,
        responses=refusals(404),
        summary="The plan of a query, and measurements of its operators",
    )
    async def explain(name: Name, analyze: Analyze = False) -> Response:
        return shown(await analyzed(daemon, name) if analyze else await daemon.catalog.explain(name))

    @app.get(
        "/api/v1/queries/{name}/why",
        response_model=Why,
        responses=refusals(400, 404, 409),
        summary="Why a query emits no rows, now or at a moment of the recorded past",
    )
    async def why(name: Name, at: At = None) -> Response:
        if at is not None:
            now_us = daemon.runner.now_us()
            return answer(await daemon.moments.why(name, parse_moment(at, now_us), now_us))
        look.at("query", name)
        return shown(daemon.why(name))


def _add_backfills(app: FastAPI, daemon: Daemon) -> None:
    @app.post(
        "/api/v1/backfills",
        response_model=BackfillView,
        responses=refusals(400, 404, 409, 500),
        status_code=202,
        summary="Create a query that starts with the history of its streams",
    )
    async def begin(request: BackfillRequest) -> Response:
        return shown(await daemon.seams.begin(request.sql, request.margin_us, request.out), 202)

    @app.get(
        "/api/v1/backfills/{name}",
        response_model=BackfillView,
        responses=refusals(404),
        summary="Progress of such a query",
    )
    async def look(name: Name) -> Response:
        return shown(daemon.seams.look(name))

    @app.put(
        "/api/v1/backfills/{name}",
        response_model=BackfillView,
        responses=refusals(400, 404, 409),
        summary="Report how far the rows before its seam have been computed",
    )
    async def tell(name: Name, request: BackfillProgress) -> Response:
        return shown(await daemon.seams.tell(name, request.history_us, request.done, request.out))

    @app.delete(
        "/api/v1/backfills/{name}",
        response_model=CancelReply,
        responses=refusals(404),
        summary="Cancel it: drop the query and its sinks; a live query stays",
    )
    async def cancel(name: Name) -> Response:
        return shown(await daemon.seams.cancel(name))


def _add_sinks(app: FastAPI, daemon: Daemon) -> None:
    look = ResourceLookup(daemon)

    @app.get("/api/v1/sinks", response_model=list[SinkView], summary="All sinks")
    async def sinks() -> Response:
        return listed(callers.current.get().visible(Action.READ, daemon.catalog.sinks(), attrgetter("query")))

    @app.get("/api/v1/sinks/{name}", response_model=SinkView, responses=tagged(404), summary="One sink")
    async def sink(name: Name) -> Response:
        return await look.shown("sink", name)


def _add_components(app: FastAPI, daemon: Daemon) -> None:
    look = ResourceLookup(daemon)

    @app.get("/api/v1/components", response_model=list[ComponentView], summary="All components")
    async def components() -> Response:
        return listed(daemon.components())

    @app.get("/api/v1/components/{name}", response_model=ComponentView, responses=tagged(404), summary="One component")
    async def component(name: Name) -> Response:
        return await look.shown("component", name)

    @app.get(
        "/api/v1/components/{name}/table",
        response_model=TableView,
        responses=refusals(404),
        summary="The state table of a component's scheduler",
    )
    async def table(name: Name) -> Response:
        look.at("component", name)
        return shown(daemon.engine.table(name))

    @app.get(
        "/api/v1/components/{name}/graph",
        response_model=GraphView | DrawingView,
        responses=refusals(404),
        summary="Operators, arcs, queues, rates, strategies and break points",
    )
    async def graph(name: Name, form: Form = "json") -> Response:
        component = look.at("component", name)
        assert isinstance(component, ComponentView)
        drawn = draw(views.forks(daemon.engine), daemon.operators(), component, daemon.rates.now())
        return shown(drawn if form == "json" else DrawingView(component=name, format=form, text=render(drawn, form)))

    @app.get(
        "/api/v1/components/{name}/strategy",
        response_model=StrategyView,
        responses=tagged(404),
        summary="The strategy of a component and of its operators",
    )
    async def strategy(name: Name) -> Response:
        found, tag = await look.now("component", name)
        said = StrategyView(component=name, strategy=found["strategy"], operators=found["strategies"])
        return shown(said, etag=tag)

    @app.post(
        "/api/v1/components/{name}/trial",
        response_model=TrialView,
        responses=refusals(400, 404, 409, 412),
        status_code=202,
        summary="Try a strategy with measurements, then keep or revert it",
    )
    async def try_strategy(name: Name, request: TrialRequest, if_match: IfMatch = None) -> Response:
        look.at("component", name)
        check = look.unless_changed("component", name, if_match)
        return shown(await daemon.trials.begin(_wish(name, request), check), 202)

    @app.get(
        "/api/v1/components/{name}/trial",
        response_model=TrialView,
        responses=refusals(404),
        summary="The running trial, or the last one",
    )
    async def trial(name: Name) -> Response:
        return shown(daemon.trials.look(name))

    @app.delete(
        "/api/v1/components/{name}/trial",
        response_model=TrialView,
        responses=refusals(404),
        summary="End the running trial, and revert",
    )
    async def end_trial(name: Name) -> Response:
        return shown(await daemon.trials.cancel(name))


def _add_operators(app: FastAPI, daemon: Daemon) -> None:
    look = ResourceLookup(daemon)

    @app.get("/api/v1/operators", response_model=list[OperatorView], summary="All operators with their counters")
    async def operators() -> Response:
        return await listed_aside([operator async for piece in daemon.operators_in_pieces() for operator in piece])

    @app.get("/api/v1/operators/{name}", response_model=OperatorView, responses=tagged(404), summary="One operator")
    async def operator(name: Name) -> Response:
        return await look.shown("operator", name)
