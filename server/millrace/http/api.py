"""The admin API: HTTP on a separate port, and the only interface of the command line.

Rule: every change of the server goes through the catalog, and so through the engine's door; reads use the engine's
views between two steps. `guard.py` refuses requests, and answers those that fail.
A route waits only for the engine's next steps, and for the disk if it reads history.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Final, Literal

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.responses import PlainTextResponse

from millrace.access import callers
from millrace.access.needs import is_open
from millrace.access.roles import Action
from millrace.engine import views
from millrace.engine.eventtimes import query_time
from millrace.http.answers import answer, listed, listed_aside, shown
from millrace.http.changes import IfMatch, Name, add_changes
from millrace.http.console import add_console
from millrace.http.guard import CONSOLE_API, OPEN_PATHS, add_guards
from millrace.http.live import add_live
from millrace.http.looks import add_looks
from millrace.http.lookup import ResourceLookup
from millrace.http.openapi import ALWAYS, ViewRoute, document, refusals, tagged
from millrace.http.operations import add_operations
from millrace.http.standby import ROOT, add_standby
from millrace.observe.analysis import analyze as analyzed
from millrace.observe.analysis import asked_for
from millrace.observe.graph import draw, render
from millrace.observe.inspection import explained
from millrace.observe.metrics import version
from millrace.observe.trial import Wish
from millrace.protocol import Refuse
from millrace.protocol.admin.bodies import BackfillProgress, BackfillRequest, CompleteRequest, SqlRequest, TrialRequest
from millrace.protocol.admin.changes import CancelReply, CompletionItemView, CompletionView, SqlView, StatementView
from millrace.protocol.admin.operators import (
    ComponentView,
    DrawingView,
    GraphView,
    OperatorView,
    StrategyView,
    TableView,
    TrialView,
)
from millrace.protocol.admin.queries import (
    AnalyzedView,
    BackfillView,
    ExplainView,
    QueryTimeView,
    QueryView,
    SinkView,
    Why,
)
from millrace.protocol.admin.server import CatalogView, ReloadView, ServerView
from millrace.protocol.admin.streams import ArchivedView, LateView, StalenessView, StreamView
from millrace.values.intervals import parse_duration, parse_moment

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"


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
    add_guards(app, daemon)
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
    add_looks(app, daemon)
    add_standby(app, daemon)
    add_console(app, daemon)
    add_live(app, daemon)
    vars(app)["openapi"] = document(app)
    return app


def _at_rest(daemon: Daemon) -> Callable[[Request], Awaitable[None]]:
    """A dependency of every route that reads the engine: FastAPI awaits it right before the route runs. A change may
    wait for the answer of the standby, so that must not wait for the change."""

    async def at_rest(request: Request) -> None:
        path = request.scope["path"]
        if path not in OPEN_PATHS and not path.startswith((ROOT, CONSOLE_API)) and not is_open("GET", path):
            await daemon.runner.at_rest()

    return at_rest


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

    @app.post(
        "/api/v1/sql/complete",
        response_model=CompletionView,
        responses=refusals(400),
        summary="What can stand at a place of a text of SQL",
    )
    async def complete(request: CompleteRequest) -> Response:
        found = await daemon.catalog.complete(request.sql, request.offset, callers.current.get())
        items = [CompletionItemView(text=item.text, kind=item.kind, detail=item.detail) for item in found.items]
        return shown(CompletionView(from_=found.start, items=items))

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
        "/api/v1/queries/{name}/time",
        response_model=QueryTimeView,
        responses=refusals(404),
        summary="A query on the axis of event time: its inputs, and its open windows",
    )
    async def time(name: Name) -> Response:
        await daemon.runner.at_rest()
        look.at("query", name)
        return shown(query_time(daemon.engine, name, daemon.runner.now_us()))

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
