"""Which Host a request may name: a page whose name resolves to this server must not reach it."""

import asyncio
import itertools
import json

import pytest

from millrace.http.hosts import Hosts, host_of
from tests.patience import HANG_SECONDS
from tests.server.harness import SCHEMA_SQL, running, served

FOREIGN = [
    "evil.example",
    "evil.example:7421",
    "x",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "localhost@evil.example",
    "evil.example@localhost",
    "user:password@127.0.0.1",
    "localhost, evil.example",
    "localhost evil.example",
    "[::2]",
    "[::1",
    "::1",
    "10.0.0.1",
    "0.0.0.0",
    "localhost:port",
    "localhost:123456",
    "localhost/..",
    "localhost..",
    "",
]
OURS = ["localhost", "LOCALHOST", "localhost.", "localhost:1", "localhost:", "127.0.0.1", "127.9.9.9:80", "[::1]",
        "[::1]:7421", "[::ffff:127.0.0.1]"]  # fmt: skip
# Known and unknown routes, documents and pages, all methods.
ROUTES = [
    ("GET", "/"),
    ("GET", "/metrics"),
    ("GET", "/api/v1/server"),
    ("GET", "/api/v1/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/nowhere"),
    ("HEAD", "/api/v1/streams"),
    ("OPTIONS", "/api/v1/sql"),
    ("DELETE", "/api/v1/queries/q"),
    ("POST", "/api/v1/sql"),
    ("PUT", "/-/healthy/"),
    ("GET", "//-/healthy"),
    ("GET", "/-/healthy/../../metrics"),
]


async def say(address, text):
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(text.encode())
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def ask(daemon, method, target, host, *lines, version="1.1"):
    body = '{"sql": "DROP QUERY q"}' if method == "POST" else ""
    head = [f"{method} {target} HTTP/{version}", *([] if host is None else [f"host: {host}"]), *lines]
    head += ["connection: close", "content-type: application/json", f"content-length: {len(body)}", "", body]
    return await say(daemon.admin, "\r\n".join(head))


@pytest.mark.parametrize("host", FOREIGN)
@served()
async def test_a_foreign_host_reaches_nothing(daemon, host):
    for method, target in ROUTES:
        status, body = await ask(daemon, method, target, host)
        assert status in (403, 400), (method, target)
        if status == 403 and method != "HEAD":
            assert json.loads(body)["code"] == "foreign_host"
    for probe in ("/-/healthy", "/-/ready"):
        assert (await ask(daemon, "GET", probe, host))[0] in (200, 400)
    assert "q" in daemon.engine.queries_by_name


@pytest.mark.parametrize("host", OURS)
@served()
async def test_loopback_names_reach_everything(daemon, host):
    for target in ("/", "/metrics", "/api/v1/server", "/-/healthy"):
        assert (await ask(daemon, "GET", target, host))[0] == 200
    assert (await ask(daemon, "GET", "/nowhere", host))[0] == 404
    assert (await ask(daemon, "POST", "/api/v1/sql", host))[0] == 200


@served()
async def test_a_request_has_one_host_or_names_none_but_ours(daemon):
    assert (await ask(daemon, "GET", "/metrics", None, version="1.0"))[0] == 403
    assert (await ask(daemon, "GET", "/-/healthy", None, version="1.0"))[0] == 200
    assert (await ask(daemon, "GET", "/metrics", "localhost", version="1.0"))[0] == 200
    assert (await ask(daemon, "GET", "/metrics", None))[0] == 400
    for one, other in itertools.permutations(("localhost", "evil.example")):
        assert (await ask(daemon, "GET", "/metrics", one, f"host: {other}"))[0] == 400
        assert (await ask(daemon, "GET", f"http://{one}/metrics", other))[0] == 403
    assert (await ask(daemon, "GET", "http://user@localhost/metrics", "localhost"))[0] == 403
    # An absolute target is not a known path here, but it is not refused for its name.
    assert (await ask(daemon, "GET", "http://localhost/metrics", "localhost"))[0] == 404
    assert (await ask(daemon, "GET", "/metrics", "evil.example", "x-forwarded-host: localhost"))[0] == 403
    assert (await ask(daemon, "GET", "/metrics", "evil.example", "forwarded: host=localhost"))[0] == 403


@served(server={"hosts": ["millrace", "Monitor.Example.org", "fd00::7"]})
async def test_names_of_the_configuration_are_known(daemon):
    for host in ("millrace", "MILLRACE:7421", "millrace.", "monitor.example.org", "[fd00:0::7]:1"):
        assert (await ask(daemon, "GET", "/metrics", host))[0] == 200
    for host in ("millrace.example", "example.org", "x.monitor.example.org", "[fd00::8]"):
        assert (await ask(daemon, "GET", "/metrics", host))[0] == 403


def test_the_token_counts_more_than_the_name(tmp_path):
    (tmp_path / "token").write_text("a-long-token")
    right, wrong = "authorization: Bearer a-long-token", "authorization: Bearer another"

    async def play():
        async with (
            asyncio.timeout(HANG_SECONDS),
            running(SCHEMA_SQL, server={"token_file": tmp_path / "token"}) as daemon,
        ):
            for host in ("evil.example", "localhost"):
                assert (await ask(daemon, "GET", "/api/v1/server", host, right))[0] == 200
            assert (await ask(daemon, "GET", "/metrics", None, right, version="1.0"))[0] == 200
            # A page's browser sends an Origin, and may send a token that the page has; it cannot omit the Origin.
            assert (await ask(daemon, "POST", "/api/v1/sql", "evil.example", right, "origin: http://evil.example"))[
                0
            ] == 403
            assert (await ask(daemon, "GET", "/metrics", "evil.example", wrong))[0] == 403
            assert daemon.guesses.counts["admin", "answered"] == 1  # its answer has waited, whatever it was
            assert (await ask(daemon, "GET", "/metrics", "evil.example"))[0] == 403
            assert (await ask(daemon, "GET", "/metrics", "localhost"))[0] == 401
            assert (await ask(daemon, "GET", "/-/ready", "evil.example"))[0] == 200
            assert (await ask(daemon, "POST", "/api/v1/sql", "localhost", right, "origin: http://localhost"))[0] == 200

    asyncio.run(play())


@served()
async def test_pages_of_other_sites_change_nothing(daemon):
    for origin in ("http://evil.example", "null", "http://localhost:1", "http://localhost.evil.example"):
        for method, target in (
            ("POST", "/api/v1/sql"),
            ("DELETE", "/api/v1/queries/q"),
            ("PUT", "/api/v1/queries/q/order"),
        ):
            assert (await ask(daemon, method, target, "localhost", f"origin: {origin}"))[0] == 403
    two = ("origin: http://localhost", "origin: http://evil.example")
    assert (await ask(daemon, "POST", "/api/v1/sql", "localhost", *two))[0] == 403
    assert "q" in daemon.engine.queries_by_name


def test_the_address_of_the_connection_is_known():
    hosts = Hosts()
    assert hosts.accept(["10.1.2.3:7421"], "/", "10.1.2.3")
    assert hosts.accept(["10.1.2.3"], "/", "::ffff:10.1.2.3")
    assert hosts.accept(["[FE80::1%eth0]"], "/", "fe80::1%eth0")
    assert not hosts.accept(["10.1.2.4"], "/", "10.1.2.3")
    assert not hosts.accept(["10.1.2.3"], "/", None)
    assert not hosts.accept([], "/", "10.1.2.3")


def test_a_host_is_compared_without_what_does_not_name_it():
    assert host_of("A.Example.:80") == "a.example"
    assert host_of("[::FFFF:1.2.3.4]:1") == "1.2.3.4"
    assert [host_of(text) for text in ("a@b", "a b", "a/b", "[::1]x", "a:b", "", ".", "a,b", "[x]")] == [None] * 9
