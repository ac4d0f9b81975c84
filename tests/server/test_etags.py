"""Entity tags and If-Match: who has seen an older state changes nothing."""

import asyncio
import json

import pytest

from millrace.http.etags import DECIDED, etag, matches
from tests.server.harness import SCHEMA_SQL, lines, served, until

EVERYTHING = SCHEMA_SQL + "; CREATE SINK f FROM q WITH (type = 'stdout')"
ITEMS = {
    "stream": "streams/s",
    "query": "queries/q",
    "sink": "sinks/f",
    "component": "components/s",
    "operator": "operators/q.filter1",
    "catalog": "catalog",
}
# Every change of something that exists: method, path, body, and whose tag it takes.
CHANGES = [
    ("POST", "sql", {"sql": "CREATE STREAM t (k BIGINT)"}, "catalog"),
    ("POST", "queries/q/pause", None, "query"),
    ("POST", "queries/q/resume", None, "query"),
    ("PUT", "components/s/strategy", {"strategy": "bfs"}, "component"),
    ("PUT", "components/s/weight", {"weight": 3}, "component"),
    ("PUT", "operators/q.filter1/break", None, "operator"),
    ("DELETE", "operators/q.filter1/break", None, "operator"),
    ("POST", "operators/q.filter1/insert", {"where": "k > 0"}, "operator"),
    ("PUT", "operators/q.filter1", {"where": "k > 1"}, "operator"),
    ("DELETE", "sinks/f", None, "sink"),
    ("DELETE", "queries/q", None, "query"),
    ("DELETE", "streams/s", None, "stream"),
]


async def ask(daemon, method, path, body=None, if_match=None):
    """Status, tag and content."""
    reader, writer = await asyncio.open_connection(daemon.admin.host, daemon.admin.port)
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} /api/v1/{path} HTTP/1.1\r\nhost: localhost\r\n"
    head += f"connection: close\r\ncontent-length: {len(content)}\r\n"
    head += "content-type: application/json\r\n" + (f"if-match: {if_match}\r\n" if if_match else "")
    writer.write(head.encode() + b"\r\n" + content)
    top, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    heads = dict(line.split(": ", 1) for line in top.decode().split("\r\n")[1:])
    return int(top.split()[1]), heads.get("etag"), json.loads(rest)


def test_which_headers_match():
    assert matches('"a"', '"a"')
    assert matches('"b", "a"', '"a"')
    assert matches(" * ", '"a"')
    for other in ('"b"', 'W/"a"', "a", '"A"', "", '"*"'):
        assert not matches(other, '"a"')


def test_a_tag_is_of_what_was_decided():
    item = dict.fromkeys(DECIDED["component"], "x")
    assert etag("component", item) == etag("component", {**item, "steps": 5})
    for key in item:
        assert etag("component", item) != etag("component", {**item, key: "y"})


@served(EVERYTHING)
async def test_a_tag_stays_while_tuples_flow(daemon):
    before = {kind: (await ask(daemon, "GET", path))[1] for kind, path in ITEMS.items()}
    assert len(set(before.values())) == len(ITEMS)
    async with lines(daemon) as feeder:
        feeder.say('{"stream": "s", "tuple": {"k": 1}}')
        await until(lambda: daemon.queries()[0].rows == 1)
        assert before == {kind: (await ask(daemon, "GET", path))[1] for kind, path in ITEMS.items()}


@served(EVERYTHING)
async def test_every_change_takes_if_match(daemon):
    """In turn: refused with a wrong tag and nothing changes, made with the right one, and the tag is another then."""
    for method, path, body, kind in CHANGES:
        _, seen, _ = await ask(daemon, "GET", ITEMS[kind])
        held = daemon.catalog.keeper.export()
        status, told, said = await ask(daemon, method, path, body, '"wrong"')
        assert (status, said["code"], said["etag"], told) == (412, "changed", seen, seen), path
        # The answer has the present item, whose tag is the present tag.
        assert etag(kind, said["now"]) == seen
        assert daemon.catalog.keeper.export() == held
        status, after, said = await ask(daemon, method, path, body, f'"other", {seen}')
        assert status == 200, (path, said)
        if method != "DELETE" or kind == "operator":
            assert after == (await ask(daemon, "GET", ITEMS[kind]))[1] != seen
        assert daemon.catalog.keeper.export() != held


@served(EVERYTHING)
async def test_what_is_missing_is_missing_whatever_if_match_says(daemon):
    for method, path in [("DELETE", "streams/x"), ("POST", "queries/x/pause"), ("PUT", "operators/x/break")]:
        assert (await ask(daemon, method, path, None, '"wrong"'))[0] == 404


@served(EVERYTHING)
async def test_of_two_who_saw_the_same_one_wins(daemon):
    _, seen, _ = await ask(daemon, "GET", "components/s")
    wishes = [
        ask(daemon, "PUT", "components/s/strategy", {"strategy": strategy}, seen)
        for strategy in ("bfs", "rr", "dfs(3)")
    ]
    assert sorted(status for status, _, _ in await asyncio.gather(*wishes)) == [200, 412, 412]


@pytest.mark.parametrize("dry", [True, False])
@served(EVERYTHING)
async def test_a_plan_is_applied_as_it_was_planned_or_not_at_all(daemon, dry):
    statement = {"sql": "CREATE STREAM t (k BIGINT)"}
    _, planned, _ = await ask(daemon, "POST", "sql", {**statement, "dry_run": True})
    assert planned == (await ask(daemon, "GET", "catalog"))[1]
    await daemon.catalog.execute("CREATE STREAM other (k BIGINT)")
    assert (await ask(daemon, "POST", "sql", {**statement, "dry_run": dry}, planned))[0] == 412
    assert "t" not in daemon.catalog.known.streams
