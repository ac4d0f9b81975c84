"""The console's page and files, and the logins of browsers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.access.callers import ANYONE, Caller
from millrace.access.roles import parse_grant
from millrace.access.sessions import LINK_US, SESSION_US, Sessions
from millrace.access.tokens import create, revoke
from millrace.http import console
from millrace.http.api import build
from millrace.observe.recent import recent
from tests.depth import examples
from tests.server.harness import SCHEMA_SQL, played, request, running, served

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
MINE = {"x-millrace-console": "1"}


async def ask(app, method, path, body: Any = None, **headers: Any) -> Any:
    """Status, headers, and the content as data if it is JSON."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    content = b"" if body is None else json.dumps(body).encode()
    status, head, said = await request(app, method, path, content, **headers)
    return status, head, json.loads(said) if "json" in head.get("content-type", "") else said


def cookie_of(head):
    """The cookie that an answer sets, as a browser sends it back."""
    return head["set-cookie"].partition(";")[0]


# -- the page and its files --------------------------------------------------------------------------------------------


@served()
async def test_the_page_and_its_files(daemon):
    app = build(daemon)
    for path in ("/", "/console/", *(f"/console/{name}" for name in console._files())):
        status, head, content = await ask(app, "GET", path)
        assert status == 200, path
        assert head["content-security-policy"] == CSP
        assert (head["x-content-type-options"], head["x-frame-options"]) == ("nosniff", "DENY")
        assert (head["referrer-policy"], head["cache-control"]) == ("no-referrer", "no-cache")
        assert head["content-type"] == console.TYPES[Path(path).suffix or ".html"]
        again = await ask(app, "GET", path, if_none_match=head["etag"])
        assert (again[0], again[2], again[1]["etag"]) == (304, b"", head["etag"])
        assert (await ask(app, "GET", path, if_none_match='"other"'))[::2] == (200, content)
    page = (await ask(app, "GET", "/"))[2].decode()
    assert not re.search(r"<style|<script>|\sstyle=|\son\w+=|https?://", page), "the policy forbids these"


@pytest.mark.parametrize(
    "name", ["none.js", "../http/console.py", "..%2fhttp/api.py", "/etc/passwd", "vendor.py", "a\0b.js", "x" * 5_000]
)
@served()
async def test_no_other_file_is_served(daemon, name):
    status, _, said = await ask(build(daemon), "GET", f"/console/{name}")
    assert (status, said["code"]) == (404, "unknown_file")
    assert len(said["detail"]) < 300


# Who a browser is that has not logged in.
STRANGER: dict[str, Any] = {"auth": "token", "name": None, "roles": []}

# -- logins ------------------------------------------------------------------------------------------------------------


@played
async def test_a_link_logs_one_browser_in(tmp_path):
    path = tmp_path / "tokens.json"
    create(path, "root", [parse_grant("admin")], 1)
    token = create(path, "ann", [parse_grant("operate")], 1).token
    async with running(SCHEMA_SQL, server={"tokens_file": path}) as daemon:
        app = build(daemon)
        assert (await ask(app, "POST", "/api/v1/console/link"))[0] == 401
        bearer = {"authorization": f"Bearer {token}"}
        _, _, link = await ask(app, "POST", "/api/v1/console/link", host="streams.example.org", **bearer)
        where, code = link["url"].split("/console/login?code=")
        assert where == "http://streams.example.org"
        _, _, other = await ask(app, "POST", "/api/v1/console/link", host="no host", **bearer)
        assert other["url"].startswith(f"{daemon.admin_url}/console/login?code=")
        status, head, _ = await ask(app, "GET", f"/console/login?code={code}")
        assert (status, head["location"], head["cache-control"]) == (303, "/", "no-store")
        name, *rules = head["set-cookie"].lower().split("; ")
        assert name.startswith(f"millrace_session_{daemon.admin.port}=")
        assert set(rules) == {"httponly", "samesite=strict", "path=/", f"max-age={12 * 3600}"}
        cookie = cookie_of(head)

        status, _, who = await ask(app, "GET", "/api/v1/console/session", cookie=cookie)
        assert (status, who) == (200, {"auth": "token", "name": "ann", "roles": ["operate"]})
        assert (await ask(app, "GET", "/api/v1/streams", cookie=cookie))[0] == 200
        assert (await ask(app, "DELETE", "/api/v1/queries/q", cookie=cookie, **MINE))[2]["code"] == "not_permitted"

        # A second browser is refused, the first one is where it wants to be.
        status, head, said = await ask(app, "GET", f"/console/login?code={code}")
        assert (status, said["code"], "set-cookie" in head) == (401, "used_link", False)
        assert "`millrace console`" in said["detail"]
        assert (await ask(app, "GET", f"/console/login?code={code}", cookie=cookie))[0] == 303

        status, head, _ = await ask(app, "POST", "/api/v1/console/logout", cookie=cookie, **MINE)
        assert (status, "max-age=0" in head["set-cookie"].lower()) == (204, True)
        assert (await ask(app, "GET", "/api/v1/console/session", cookie=cookie))[::2] == (200, STRANGER)


@played
async def test_a_login_with_a_token(tmp_path):
    path = tmp_path / "tokens.json"
    token = create(path, "root", [parse_grant("admin")], 1).token
    async with running(SCHEMA_SQL, server={"tokens_file": path}) as daemon:
        app = build(daemon)
        status, head, said = await ask(app, "POST", "/api/v1/console/login", {"token": "wrong"})
        assert (status, said["code"], "set-cookie" in head) == (401, "unauthorised", False)
        assert daemon.access.failures["admin", "wrong"] == 1
        assert daemon.guesses.counts["admin", "answered"] == 1
        assert (await ask(app, "POST", "/api/v1/console/login", {"tok": token}))[0] == 422
        status, head, _ = await ask(app, "POST", "/api/v1/console/login", {"token": token})
        assert status == 204
        cookie = cookie_of(head)
        assert (await ask(app, "GET", "/api/v1/console/session", cookie=cookie))[2]["roles"] == ["admin"]
        create(path, "root", [], 2)
        revoke(path, "root", older=True)
        daemon.hang_up()
        assert (await ask(app, "GET", "/api/v1/console/session", cookie=cookie))[::2] == (200, STRANGER)
        assert (await ask(app, "GET", "/api/v1/streams", cookie=cookie))[0] == 401


@played
async def test_a_browser_that_has_not_logged_in_is_nobody(tmp_path):
    """It gets an answer, which is no failure and shows nothing; a wrong token is still one."""
    path = tmp_path / "tokens.json"
    create(path, "root", [parse_grant("admin")], 1)
    async with running(SCHEMA_SQL, server={"tokens_file": path}) as daemon:
        app = build(daemon)
        assert (await ask(app, "GET", "/api/v1/console/session"))[::2] == (200, STRANGER)
        assert sum(daemon.access.failures.values()) == 0
        status, _, said = await ask(app, "GET", "/api/v1/console/session", host="foreign.example.org")
        assert (status, said["code"]) == (403, "foreign_host")
        status, _, said = await ask(app, "GET", "/api/v1/console/session", authorization="Bearer wrong")
        assert (status, said["code"]) == (401, "unauthorised")
        assert (await ask(app, "POST", "/api/v1/console/link", **MINE))[0] == 401


@served()
async def test_a_server_without_tokens_needs_no_login(daemon):
    app = build(daemon)
    _, _, who = await ask(app, "GET", "/api/v1/console/session")
    assert who == {"auth": "off", "name": None, "roles": ["admin"]}
    status, head, _ = await ask(app, "POST", "/api/v1/console/login", {"token": "any"})
    assert (status, "set-cookie" in head) == (204, False)
    _, _, link = await ask(app, "POST", "/api/v1/console/link")
    assert (await ask(app, "GET", link["url"].removeprefix("http://localhost")))[0] == 303


@played
async def test_a_cookie_is_no_use_to_other_pages(tmp_path):
    path = tmp_path / "tokens.json"
    token = create(path, "root", [parse_grant("admin")], 1).token
    async with running(SCHEMA_SQL, server={"tokens_file": path}) as daemon:
        app = build(daemon)
        _, head, _ = await ask(app, "POST", "/api/v1/console/login", {"token": token})
        cookie: Any = {"cookie": cookie_of(head)}

        async def drop(headers: Any) -> Any:
            return await ask(app, "DELETE", "/api/v1/queries/q", None, **{**cookie, **headers})

        for headers, status, code in (
            ({}, 403, "cross_site"),
            ({"x-millrace-console": "0"}, 403, "cross_site"),
            ({**MINE, "origin": "http://localhost:8000"}, 403, "forbidden"),
            ({**MINE, "sec-fetch-site": "same-site"}, 403, "cross_site"),
            ({**MINE, "host": "evil.example.org"}, 403, "foreign_host"),
            ({**MINE, "authorization": "Bearer wrong"}, 401, "unauthorised"),
        ):
            found, _, said = await drop(headers)
            assert (found, said["code"]) == (status, code), headers
        for headers, status in (({"sec-fetch-site": "cross-site"}, 403), ({"sec-fetch-site": "same-origin"}, 200)):
            assert (await ask(app, "GET", "/api/v1/queries", **cookie, **headers))[0] == status
        assert (await drop({**MINE, "origin": "http://localhost"}))[0] == 200
        # Another page cannot log a browser in, or reach the page under another name.
        for headers in ({"origin": "http://evil.example.org"}, {"host": "evil.example.org"}):
            assert (await ask(app, "POST", "/api/v1/console/login", {"token": token}, **headers))[0] == 403
        assert (await ask(app, "GET", "/", host="evil.example.org"))[0] == 403


# -- sessions against a model ------------------------------------------------------------------------------------------


class Tokens:
    """Which clients are still known."""

    def __init__(self):
        self.gone = set()

    def holds(self, port, caller):
        assert port == "admin"
        return caller.name not in self.gone


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["link", "follow", "open", "close", "revoke", "wait"]), st.integers(0, 5), st.integers(0, 3)
    ),
    max_size=30,
)


@settings(max_examples=examples(200), deadline=None)
@given(STEPS)
def test_sessions_agree_with_a_model(steps):
    now, tokens = 0, Tokens()
    sessions = Sessions(tokens, lambda: now)  # type: ignore[arg-type]
    links: Any = []  # each with its client and its end
    cookies: Any = []
    for step, number, who in steps:
        caller = Caller(f"c{who}", ())
        match step:
            case "link":
                code, expires_us = sessions.make_link(caller)
                assert expires_us == now + LINK_US
                links.append([code, caller, expires_us])
            case "open":
                cookies.append([sessions.open(caller), caller, now + SESSION_US])
            case "revoke":
                tokens.gone.add(caller.name)
            case "wait":
                now += (LINK_US // 2, LINK_US, SESSION_US // 2, SESSION_US)[who]
            case "follow" if links:
                entry = links[number % len(links)]
                cookie = sessions.follow(entry[0])
                assert (cookie is not None) == (now < entry[2] and entry[1].name not in tokens.gone)
                entry[2] = -1
                if cookie is not None:
                    cookies.append([cookie, entry[1], now + SESSION_US])
            case "close" if cookies:
                entry = cookies[number % len(cookies)]
                sessions.close(entry[0])
                entry[2] = -1
        for cookie, client, ends in cookies:
            found = sessions.find(cookie)
            assert found == (client if now < ends and client.name not in tokens.gone else None)
    assert sessions.find("") is None


def test_sessions_and_links_are_bounded(monkeypatch):
    monkeypatch.setattr("millrace.access.sessions.MOST", 3)
    sessions = Sessions(Tokens(), lambda: 0)  # type: ignore[arg-type]
    cookies = [sessions.open(ANYONE) for _ in range(5)]
    assert [sessions.find(cookie) is not None for cookie in cookies] == [False, False, True, True, True]
    codes = [sessions.make_link(ANYONE)[0] for _ in range(4)]
    assert sessions.follow(codes[0]) is None


# -- what screens ask for ----------------------------------------------------------------------------------------------


@played
async def test_completion_offers_what_a_client_may_see(tmp_path):
    path = tmp_path / "tokens.json"
    root = create(path, "root", [parse_grant("admin")], 1).token
    ann = create(path, "ann", [parse_grant("read:q,s")], 1).token
    async with running(f"{SCHEMA_SQL}; CREATE STREAM secret (k BIGINT)", server={"tokens_file": path}) as daemon:
        app = build(daemon)
        for token, names in ((root, ["s", "secret", "q"]), (ann, ["s", "q"])):
            body = {"sql": "SELECT k FROM ", "offset": 14}
            status, _, said = await ask(app, "POST", "/api/v1/sql/complete", body, authorization=f"Bearer {token}")
            assert (status, said["from"], [item["text"] for item in said["items"]]) == (200, 14, names)
        for wrong in ({"sql": "x", "offset": -1}, {"sql": "x"}, {"sql": "x" * 100_001, "offset": 0}):
            said = await ask(app, "POST", "/api/v1/sql/complete", wrong, authorization=f"Bearer {root}")
            assert (said[0], said[2]["code"]) == (422, "invalid_request")


@served()
async def test_lines_and_changes_about_an_object(daemon):
    app = build(daemon)
    await daemon.catalog.execute("CREATE QUERY q2 AS SELECT k FROM s")
    await daemon.catalog.execute("DROP QUERY q")
    _, _, changes = await ask(app, "GET", "/api/v1/changes?about=q2")
    assert [one["number"] for one in changes] == [2]
    _, _, changes = await ask(app, "GET", "/api/v1/changes?about=s&last=1")
    assert [one["number"] for one in changes] == [2], "whose text reads it"
    for name in ("q2", "q2.filter1", "q22", "a-q2", "nothing"):
        recent(None, "info", {"event": "noted for the test", "operator": name, "rows": 1})
    _, _, lines = await ask(app, "GET", "/api/v1/log?about=q2")
    assert [line["operator"] for line in lines if line["event"] == "noted for the test"] == ["q2", "q2.filter1"]
