"""The routes of changes, made from the table of changes; and the ledger of those that were applied."""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Body, FastAPI, Header, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from millrace.access.callers import current
from millrace.access.needs import check_changes
from millrace.changes.change import INTERNAL, Change, Route
from millrace.changes.table import CHANGES, read
from millrace.http.answers import About, answer, mentions, shown
from millrace.http.openapi import refusals, tagged
from millrace.protocol import Refuse
from millrace.protocol.admin.bodies import DRY_RUN, MOST_CHANGES, ChangesRequest, UndoRequest
from millrace.protocol.admin.changes import ChangesView, LedgerEntryView, PlannedView, UndoView
from millrace.protocol.admin.data import to_data

if TYPE_CHECKING:
    from millrace.http.lookup import ResourceLookup
    from millrace.run.daemon import Daemon

Name = Annotated[str, Path(max_length=1_000)]
DryRun = Annotated[bool, Query(description=DRY_RUN)]
IfMatch = Annotated[
    str | None,
    Header(
        description="Apply the change only if the item still has this ETag; otherwise the answer is 412 with the "
        "present item."
    ),
]


def add_changes(app: FastAPI, daemon: Daemon, look: ResourceLookup) -> None:
    for change in CHANGES:
        for route in change.routes:
            _add_route(app, daemon, look, change, route)
    _add_ledger(app, daemon)


def _add_route(app: FastAPI, daemon: Daemon, look: ResourceLookup, change: type[Change], route: Route) -> None:
    """A route: its path has the object's name, its body the other fields."""
    fields = change.body(route)
    optional = all(not info.is_required() for info in fields.values())
    goes = route.method == "DELETE" and not route.fixed
    kind = change.about
    assert kind is not None
    assert change.answers is not None

    async def handle(name: str, request: BaseModel | None = None, *, dry_run: bool, if_match: str | None) -> Response:
        given = {} if request is None else request.model_dump(exclude_unset=True)
        dry_run = bool(given.pop("dry_run", False)) or dry_run
        wanted = change.model_validate({change.target: name, **route.fixed, **given})
        check = look.unless_changed(kind, name, if_match)
        if dry_run:
            current.get().must_see_all()
            return shown(PlannedView(dry_run=True, plan=await daemon.catalog.foresee([wanted], check)))
        reply = to_data(await daemon.catalog.change(wanted, check))
        tag = None
        if not goes:
            tag = await look.tag(kind, name if route.after is None else getattr(wanted, route.after))
        return answer({"dry_run": False, **reply} if change.previews else reply, etag=tag)

    name = _parameter("name", Name)
    parameters = [name]
    if fields:
        body = _body(change, fields)
        parameters.append(
            _parameter("request", body | None, None) if optional else _parameter("request", Annotated[body, Body()])
        )
    parameters += [_parameter("dry_run", DryRun, False), _parameter("if_match", IfMatch, None)]
    vars(handle)["__signature__"] = Signature(
        [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    handle.__name__ = f"{change.action}_{route.method.lower()}" if len(change.routes) > 1 else change.action
    app.add_api_route(
        f"/api/v1/{route.path}",
        handle,
        methods=[route.method],
        responses=refusals(*route.statuses) if goes else tagged(*route.statuses),
        summary=route.summary,
        response_model=change.answers | PlannedView,
    )


def _parameter(name: str, annotation: Any, default: Any = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _body(change: type[Change], fields: dict[str, FieldInfo]) -> type[BaseModel]:
    """The model of a body: the change's fields that the path does not have, and `dry_run`."""
    dry_run = Field(default=False, description=DRY_RUN)
    made: type[BaseModel] = create_model(
        f"{change.__name__}Request",
        __config__=ConfigDict(extra="forbid", strict=True),
        __doc__=change.__doc__,
        **{name: (info.annotation, info) for name, info in fields.items()},  # type: ignore[call-overload]
        dry_run=(bool, dry_run),
    )
    return made


def _add_ledger(app: FastAPI, daemon: Daemon) -> None:
    catalog = daemon.catalog

    @app.get("/api/v1/changes", response_model=list[LedgerEntryView], summary="The applied changes, oldest first")
    async def changes(
        last: Annotated[int, Query(ge=1, le=MOST_CHANGES, description="At most so many, the newest.")] = 100,
        about: About = None,
    ) -> Response:
        entries = [
            entry for entry in catalog.ledger.entries() if about is None or mentions([entry.text, entry.changes], about)
        ]
        return answer([entry.model_dump(mode="json") for entry in entries[-last:]])

    @app.post(
        "/api/v1/changes",
        response_model=ChangesView | PlannedView,
        responses=refusals(400, 404, 409, 412),
        summary="Apply several changes as one",
    )
    async def change(request: ChangesRequest) -> Response:
        for record in request.changes:
            for name in INTERNAL.intersection(record):
                raise Refuse(f"{name}: the server sets it, so a request cannot", code="invalid_request")
        wanted = [read(record) for record in request.changes]
        check_changes(current.get(), wanted)
        if request.dry_run:
            return shown(PlannedView(dry_run=True, plan=await catalog.foresee(wanted)))
        replies = [{} if reply is None else to_data(reply) for reply in await catalog.change_all(wanted)]
        outcomes = [{"change": one.action, **reply} for one, reply in zip(wanted, replies, strict=True)]
        return shown(ChangesView(dry_run=False, number=catalog.ledger.newest(), outcomes=outcomes))

    @app.post(
        "/api/v1/changes/undo",
        response_model=UndoView,
        responses=refusals(400, 404, 409, 412),
        summary="Undo an applied change, with a new one",
    )
    async def undo(request: UndoRequest | None = None) -> Response:
        request = request or UndoRequest()
        entry = catalog.ledger.find(request.number)
        check_changes(current.get(), catalog.ledger.inverse(entry))
        if request.dry_run:
            wanted, plan = await catalog.foresee_undo(entry)
            changes, number = [change.record() for change in wanted], None
        else:
            done = await catalog.undo(entry.number)
            changes, plan, number = done.changes, None, done.number
        return shown(
            UndoView(
                dry_run=request.dry_run,
                undoes=entry.number,
                text=entry.text,
                lost=entry.lost,
                changes=changes,
                plan=plan,
                number=number,
            )
        )
