"""Routes for standbys: a copy of the data directory, the journal as it grows, and the promotion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import StreamingResponse

from millrace.http.answers import answer, shown
from millrace.http.openapi import refusals
from millrace.protocol import Refuse
from millrace.protocol.admin.bodies import HeardRequest, PromotionRequest
from millrace.protocol.admin.server import PromotionView

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon
    from millrace.run.standbys import Standbys

# Messages of msgpack, one after another.
MESSAGES: Final = "application/vnd.millrace.messages"
STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Messages of MessagePack", "content": {MESSAGES: {"schema": {"type": "string"}}}}
}
ROOT: Final = "/api/v1/standby/"

Standby = Annotated[
    str, Query(min_length=1, max_length=64, description="The name that the standby has invented for itself.")
]


def add_standby(app: FastAPI, daemon: Daemon) -> None:
    @app.get(
        f"{ROOT}copy",
        response_class=StreamingResponse,
        responses={**STREAM, **refusals(409)},
        summary="A consistent copy of the data directory, for a standby",
    )
    async def copy(request: Request, standby: Standby) -> Response:
        standbys = _standbys(daemon)
        standbys.check_data_dir()
        return StreamingResponse(standbys.copy(standby, _peer(request)), media_type=MESSAGES)

    @app.get(
        f"{ROOT}journal",
        response_class=StreamingResponse,
        responses={**STREAM, **refusals(409, 410)},
        summary="The journal after a record, without an end, for a standby",
    )
    async def journal(
        request: Request,
        standby: Standby,
        after: Annotated[int, Query(ge=0, le=2**63 - 1, description="The newest record that the standby has.")],
        server: Annotated[str, Query(max_length=64, description="Identifies the server that it was copied from.")],
        digest: Annotated[str, Query(max_length=64, description="Identifies that record.")] = "",
    ) -> Response:
        standbys = _standbys(daemon)
        await standbys.admit(standby, after, digest, server)
        return StreamingResponse(standbys.stream(standby, _peer(request), after), media_type=MESSAGES)

    @app.post(f"{ROOT}heard", responses=refusals(400, 409), summary="A standby's answer to a ping")
    async def heard(request: HeardRequest) -> Response:
        _standbys(daemon).heard(request.standby, request.ping, request.lsn, request.epoch)
        return answer({})

    @app.post(
        f"{ROOT}promote",
        response_model=PromotionView,
        responses=refusals(400, 409),
        summary="Make this standby the primary",
    )
    async def promote(request: PromotionRequest) -> Response:
        return shown(await daemon.promote(force=request.force))

    @app.post(
        f"{ROOT}alone",
        responses=refusals(409),
        summary="Let this primary, which waits for its standby, work without one until one follows",
    )
    async def alone() -> Response:
        if daemon.follows:
            raise Refuse("this server is a standby: promote it instead", code="standby")
        _standbys(daemon).go_alone()
        return answer({})


def _standbys(daemon: Daemon) -> Standbys:
    if daemon.standbys is None:
        raise Refuse(
            "this server has no data directory (server.data_dir): there is nothing to follow", code="no_data_dir"
        )
    return daemon.standbys


def _peer(request: Request) -> str:
    return request.client.host if request.client else "?"
