"""ALTER STREAM ... RENAME COLUMN in a running server: feeds, subscribers, undo, and what a restart finds."""

import asyncio
import json

from millrace.protocol import Schema
from millrace.protocol.messages import Closed, Error, Open
from tests.server.harness import SCHEMA_SQL, lines, peer, running, served, until
from tests.server.test_api import ask

SQL = """CREATE STREAM s (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts');
CREATE QUERY q AS SELECT * FROM s WHERE v > 0; CREATE QUERY total AS SELECT k, sum(v) AS v FROM s GROUP BY k"""
ALTER = "ALTER STREAM s RENAME COLUMN v TO worth"


def tuple_of(**fields):
    return json.dumps({"stream": "s", "tuple": fields})


@served(SQL)
async def test_open_feeds_end_and_readers_continue(daemon):
    async with lines(daemon) as feed, lines(daemon) as reader:
        reader.say('{"subscribe": "q"}')
        await until(lambda: len(daemon.runner.outlets["q"].consumers))
        feed.say(tuple_of(ts=1, k=1, v=5))
        assert (await reader.hear())["row"] == {"ts": "1970-01-01T00:00:00.000001Z", "k": 1, "v": 5}
        await daemon.catalog.execute(ALTER)
        error = (await feed.hear())["error"]
        assert error["code"] == "altered"
        assert error["text"].endswith("its column v is called worth now; open the feed again")
        feed.say(tuple_of(ts=2, k=1, worth=6))
        assert (await reader.hear())["row"] == {"ts": "1970-01-01T00:00:00.000002Z", "k": 1, "v": 6}
        feed.say(tuple_of(ts=3, k=1, v=7))
        assert "worth" in (await feed.hear())["error"]["text"]
        assert daemon.queries()[1].rows == 2


@served(SCHEMA_SQL)
async def test_a_feed_of_frames_ends_and_opens_again_under_the_new_name(daemon):
    async with peer(daemon) as feed:
        await feed.open()
        await daemon.catalog.execute("ALTER STREAM s RENAME COLUMN k TO key")
        closed = await feed.hear(Closed)
        assert closed.code == "altered"
        feed.say(Open(1, "s", Schema.of(k="bigint", v="double", name="text").fingerprint(), "p"))
        assert (await feed.hear(Error)).code == "schema_mismatch"
        await feed.open(channel=2)
        feed.data(0, [(1, 2.0, "x")], channel=2)
        await until(lambda: daemon.queries()[0].rows == 1)


@served(SQL)
async def test_route_undo_and_what_is_shown(daemon):
    async def post(path, body, status=200):
        got, _, answer = await ask(daemon, "POST", f"/api/v1/{path}", body)
        assert got == status, answer
        return answer

    texts = {name: query.sql for name, query in daemon.catalog.known.queries.items()}
    body = {"column": "v", "to": "worth"}
    shown = await post("streams/s/rename-column?dry_run=true", body)
    assert shown["dry_run"] is True
    assert daemon.catalog.known.streams["s"].schema.names == ("ts", "k", "v")
    done = await post("streams/s/rename-column", body)
    assert done == {"stream": "s", "column": "worth", "previous": "v", "rewritten": ["q", "total"]}
    refused = await post("streams/s/rename-column", body, 400)
    assert refused["code"] == "sql"
    assert refused["detail"].startswith("the column v does not exist in s")
    assert (await post("streams/s/rename-column", {**body, "texts": {}}, 422))["code"] == "invalid_request"
    entry = daemon.catalog.ledger.find(None)
    assert entry.text == "renamed column v of stream s to worth"
    await post("changes/undo", {})
    assert {name: query.sql for name, query in daemon.catalog.known.queries.items()} == texts
    assert daemon.engine.query("q").plan.nodes[0].edges == ()


@served(SQL)
async def test_a_file_that_was_applied_differs_in_nothing(daemon):
    file = f"{SQL}; {ALTER}"
    for prune in (False, True):
        body = {"sql": file, "idempotent": True, "prune": prune}
        _, _, told = await ask(daemon, "POST", "/api/v1/sql", {**body, "dry_run": False})
        assert all(one.get("unchanged") for one in told["statements"]) == prune, told
        _, _, again = await ask(daemon, "POST", "/api/v1/sql", {**body, "dry_run": True})
        assert all(one.get("unchanged") for one in again["statements"])


def test_a_restart_finds_the_plans_that_ran(tmp_path):
    async def play():
        async with running(server={"data_dir": tmp_path}) as daemon:
            await daemon.catalog.execute(SQL)
            await daemon.catalog.execute(ALTER)
            plans = {name: query.plan for name, query in daemon.engine.queries_by_name.items()}
            stream = daemon.catalog.known.streams["s"]
        async with running(server={"data_dir": tmp_path}) as daemon:
            assert {name: query.plan for name, query in daemon.engine.queries_by_name.items()} == plans
            assert daemon.catalog.known.streams["s"] == stream
            async with lines(daemon) as feed, lines(daemon) as reader:
                reader.say('{"subscribe": "q"}')
                await until(lambda: len(daemon.runner.outlets["q"].consumers))
                feed.say(tuple_of(ts=1, k=1, worth=5))
                assert (await reader.hear())["row"]["v"] == 5

    asyncio.run(play())
