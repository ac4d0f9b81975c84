"""The console: its page and files, and the logins of browsers.

Rule: the page and its files hold nothing of the server, so they need no token. A browser runs only the scripts of this
folder, loads nothing from elsewhere, and shows the page in no frame; `HEADERS` say so.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import RedirectResponse

from millrace.access import callers
from millrace.access.access import AccessDenied
from millrace.access.roles import NEEDED, Action
from millrace.access.sessions import SESSION_US
from millrace.http.answers import shown
from millrace.http.etags import matches
from millrace.http.guard import cookie_name, cookie_of, refuse_token, slow_down
from millrace.http.hosts import host_of
from millrace.http.openapi import refusals
from millrace.protocol import Refuse
from millrace.protocol.admin.bodies import LoginRequest
from millrace.protocol.admin.server import LinkView, SessionView
from millrace.protocol.words import spelt

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

FOLDER: Final = Path(__file__).parent.parent / "console"
PAGE: Final = "index.html"
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
# The files of the folder that are served. The console is written for browsers that know these types.
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}


def add_console(app: FastAPI, daemon: Daemon) -> None:
    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return _file(request, PAGE)

    @app.get("/console/login", include_in_schema=False)
    async def follow(request: Request, code: str = Query(max_length=100)) -> Response:
        cookie = daemon.sessions.follow(code)
        if cookie is None and daemon.sessions.find(cookie_of(request, daemon) or "") is None:
            text = "this link was used, or is older than five minutes: `millrace console` prints a new one"
            raise Refuse(text, code="used_link")
        answer = RedirectResponse("/", 303, {**HEADERS, "cache-control": "no-store"})
        if cookie is not None:
            _set_cookie(answer, request, daemon, cookie)
        return answer

    @app.get("/console/{file:path}", include_in_schema=False)
    async def file(request: Request, file: str) -> Response:
        return _file(request, file or PAGE)

    _add_logins(app, daemon)


def _add_logins(app: FastAPI, daemon: Daemon) -> None:
    @app.post(
        "/api/v1/console/link",
        response_model=LinkView,
        summary="A link that logs a browser in, once, with the roles of this token",
    )
    async def link(request: Request) -> Response:
        code, expires_us = daemon.sessions.make_link(callers.current.get())
        named = request.headers.get("host", "")
        where = f"{request.url.scheme}://{named}" if host_of(named) else daemon.admin_url
        return shown(LinkView(url=f"{where}/console/login?code={code}", expires_us=expires_us))

    @app.post(
        "/api/v1/console/login",
        responses=refusals(400),
        status_code=204,
        summary="Log a browser in with a token: sets its cookie",
    )
    async def login(request: Request, body: LoginRequest) -> Response:
        answer = Response(status_code=204)
        if daemon.access.required("admin"):
            try:
                caller = daemon.access.named("admin", body.token, NEEDED[Action.MEET])
            except AccessDenied as denied:
                return await slow_down(request, daemon) or refuse_token(denied)
            _set_cookie(answer, request, daemon, daemon.sessions.open(caller))
        return answer

    @app.post("/api/v1/console/logout", status_code=204, summary="End the login of this browser")
    async def logout(request: Request) -> Response:
        answer = Response(status_code=204)
        if (cookie := cookie_of(request, daemon)) is not None:
            daemon.sessions.close(cookie)
            answer.delete_cookie(cookie_name(daemon), path="/", httponly=True, samesite="strict")
        return answer

    @app.get("/api/v1/console/session", response_model=SessionView, summary="Who this client is, and its roles")
    async def session() -> Response:
        caller = callers.current.get()
        auth = "token" if daemon.access.required("admin") else "off"
        return shown(SessionView(auth=auth, name=caller.name, roles=[str(grant) for grant in caller.grants]))


def _set_cookie(answer: Response, request: Request, daemon: Daemon, cookie: str) -> None:
    answer.set_cookie(
        cookie_name(daemon),
        cookie,
        max_age=SESSION_US // 1_000_000,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def _file(request: Request, name: str) -> Response:
    """A file of the folder, or nothing new if the browser has it."""
    path = _files().get(name)
    if path is None:
        raise Refuse(f"the console has no file {spelt(name)}", code="unknown_file")
    content = path.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**HEADERS, "etag": tag}
    known = request.headers.get("if-none-match")
    if known is not None and matches(known, tag):
        return Response(None, 304, headers)
    return Response(content, headers=headers, media_type=TYPES[path.suffix])


def _files() -> dict[str, Path]:
    """The files by their names below the folder: no path of a request is ever opened."""
    return {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.suffix in TYPES}
