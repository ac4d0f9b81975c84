"""Who may send which request, and the answers to those that reach no route or fail there.

Rule: a request is refused before its body is read. Every refusal is a problem (RFC 9457) that has the code.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from millrace.access import callers
from millrace.access.access import AccessDenied
from millrace.access.callers import Caller
from millrace.access.needs import ROUTES, check_route, is_open
from millrace.access.roles import NEEDED, Action
from millrace.http.etags import Changed
from millrace.http.hosts import Hosts
from millrace.http.openapi import PROBLEM, TITLES
from millrace.http.protocol import CERTIFICATE, REFUSED
from millrace.http.standby import ROOT
from millrace.observe import logs
from millrace.protocol import MillraceError, Refuse
from millrace.protocol.words import printable, spelt
from millrace.run.timers import sleep
from millrace.sql.errors import SqlError

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

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
# The routes of logins, which a standby has too.
CONSOLE_API: Final = "/api/v1/console/"
# A browser that has not logged in may ask who it is, because an error here would be one in its console.
WHO: Final = ("GET", "/api/v1/console/session")
# The cookie of a login, with the port after it, and the header of the console's requests: a page of another origin
# cannot send it without asking first, which is never allowed.
COOKIE: Final = "millrace_session"
CONSOLE_HEADER: Final = "x-millrace-console"
READING: Final = ("GET", "OPTIONS")

# Words for errors of pydantic that speak of Python.
WORDS: Final[Mapping[str, str]] = {"unexpected_keyword_argument": "Extra inputs are not permitted"}

# The HTTP status of each code that does not mean a conflict with an existing object.
STATUSES: Final[Mapping[str, int]] = {
    "sql": 400,
    "unknown_strategy": 400,
    "unauthorised": 401,
    "used_link": 401,
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
    "unknown_file": 404,
    "invalid_request": 422,
    "bad_condition": 400,
    "sink_path": 400,
    "bad_span": 400,
    "bad_value": 400,
    "bad_edit": 400,
    "bad_share": 400,
    "trimmed": 410,
}


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


def add_guards(app: FastAPI, daemon: Daemon) -> None:
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
    if is_open(_method(request), request.scope["path"]):
        return _refuse_host(request, daemon.hosts) or _refuse_page(request) or _refuse_body(request)
    who = _identify(request, daemon, app)
    if who.denied is not None and who.denied.guessed and (cut_off := await slow_down(request, daemon)) is not None:
        return cut_off
    refused = None
    if who.by_browser or request.headers.getlist("origin"):
        refused = _refuse_host(request, daemon.hosts)
    refused = refused or _refuse_page(request) or _refuse_body(request)
    if refused is None and who.by_cookie:
        refused = _refuse_other_site(request)
    if refused is not None:
        return refused
    if who.caller is None:
        assert who.denied is not None
        return refuse_token(who.denied)
    callers.current.set(who.caller)
    if who.caller is callers.NOBODY:
        return None
    logs.token.set(who.caller.name)
    return _refuse_role(request, daemon, app, who.caller)


class _Identity(NamedTuple):
    """Who sends a request, or why that is not known. A page of another site knows no token, but its browser may send a
    certificate or a cookie by itself, or need neither (`by_browser`)."""

    caller: Caller | None
    denied: AccessDenied | None = None
    by_browser: bool = True
    by_cookie: bool = False


def _identify(request: Request, daemon: Daemon, app: FastAPI) -> _Identity:
    certificate = request.scope["state"].get(CERTIFICATE, frozenset())
    caller = daemon.access.unnamed("admin", certificate)
    if caller is not None:
        return _Identity(caller)
    cookie = cookie_of(request, daemon)
    if cookie is not None and "authorization" not in request.headers:
        caller = daemon.sessions.find(cookie)
        if caller is not None:
            return _Identity(caller, by_cookie=True)
    if (_method(request), request.scope["path"]) == WHO and "authorization" not in request.headers:
        return _Identity(callers.NOBODY)
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    shown = None if "authorization" not in request.headers else given.strip() if scheme.lower() == "bearer" else ""
    try:
        return _Identity(daemon.access.named("admin", shown, _needed(request, app)), by_browser=False)
    except AccessDenied as error:
        return _Identity(None, error)


def cookie_name(daemon: Daemon) -> str:
    """Browsers send a cookie to all ports of a host, and each server has its own."""
    return f"{COOKIE}_{daemon.admin.port}"


def cookie_of(request: Request, daemon: Daemon) -> str | None:
    """The cookie of a browser that has logged in."""
    return request.cookies.get(cookie_name(daemon))


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
    path = request.scope["path"]
    if daemon.state != "starting" or path in EARLY_PATHS or is_open(_method(request), path):
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
    if reads or path == f"{ROOT}promote" or path.startswith(CONSOLE_API) or refused is None:
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


def _refuse_other_site(request: Request) -> Response | None:
    """Requests with a cookie that a page of another origin may have made the browser send."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none"):
        text = f"a request with the cookie of a login is refused from another site (Sec-Fetch-Site: {spelt(site)})"
        return problem(403, "cross_site", _title(403), text)
    if _method(request) not in READING and request.headers.get(CONSOLE_HEADER) != "1":
        text = f"a request with the cookie of a login that changes something needs the header {CONSOLE_HEADER}: 1"
        return problem(403, "cross_site", _title(403), text)
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


async def slow_down(request: Request, daemon: Daemon) -> Response | None:
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


def refuse_token(denied: AccessDenied) -> Response:
    """The answer to a request without a valid token."""
    answer = problem(401, "unauthorised", _title(401), f"{denied.text}; send Authorization: Bearer ...")
    answer.headers["www-authenticate"] = "Bearer"
    return answer
