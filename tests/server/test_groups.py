"""Promises about groups at every way in: frames, lines and both clients; and their errors."""

import asyncio
import datetime
import json
import threading

import pytest
import uvloop

from millrace.client import AsyncClient, Client, ServerError
from millrace.protocol.messages import PROTOCOL, Error, Ets, EtsRequest, Hello, Punctuation, Result, Welcome
from tests.client.fake_server import FakeServer
from tests.patience import HANG_SECONDS
from tests.server.harness import lines, peer, served, until

SQL = """
CREATE STREAM s (ts TIMESTAMP, k BIGINT, at TIMESTAMP, v BIGINT) WITH (time = 'ts', punctuation_key = 'k, at');
CREATE STREAM plain (ts TIMESTAMP) WITH (time = 'ts');
CREATE QUERY q AS SELECT k, at, sum(v) AS v, window_end FROM TUMBLE(s, ts, '10 us') GROUP BY k, at;
"""
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
NOON_US = 1_767_268_800_000_000
ROWS = [(1, 7, NOON_US, 5), (2, 8, NOON_US, 6)]
CLOSED = (7, NOON_US, 5, 10)


def ahead(daemon):
    (found,) = [stream for stream in daemon.streams() if stream.name == "s"]
    return [(one.group, one.mark_us) for one in found.groups]


@served(sql=SQL)
async def test_frames_name_a_group(daemon):
    async with peer(daemon) as reader, peer(daemon, greet=False) as feeder:
        await reader.subscribe()
        feeder.say(Hello(PROTOCOL, "x", None, ("groups",)))
        assert (await feeder.hear(Welcome)).capabilities == ("groups",)
        await feeder.open("s")
        feeder.data(0, ROWS)
        feeder.say(Punctuation(0, 10, (("at", "2026-01-01T12:00:00Z"), ("k", 7))))
        assert (await reader.hear(Result)).rows == [CLOSED]
        assert ahead(daemon) == [({"k": 7, "at": NOON_US}, 10)]
        for where, text in (
            ((("k", "x"), ("at", 0)), "where, field k: expected bigint"),
            ((("k", 7),), "where: expected a value for each of k, at"),
        ):
            feeder.say(Punctuation(0, 20, where))
            error = await feeder.hear(Error)
            assert (error.channel, error.code) == (0, "bad_value")
            assert text in error.text
        assert ahead(daemon) == [({"k": 7, "at": NOON_US}, 10)]


@served(sql=SQL)
async def test_a_connection_without_the_capability_names_no_group(daemon):
    async with peer(daemon) as feeder:
        await feeder.open("s")
        feeder.say_body(Punctuation(0, 10, (("k", 7), ("at", 0))))
        error = await feeder.hear(Error)
        assert error.code == "bad_message"
        assert "capability 'groups'" in error.text


@served(sql=SQL)
async def test_lines_name_a_group(daemon):
    async with peer(daemon) as reader, lines(daemon) as feeder:
        await reader.subscribe()
        for ts, k, at, v in ROWS:
            feeder.say(json.dumps({"stream": "s", "tuple": {"ts": ts, "k": k, "at": at, "v": v}}))
        feeder.say(json.dumps({"stream": "s", "punctuation": 10, "where": {"k": 7, "at": NOON_US}}))
        assert (await reader.hear(Result)).rows == [CLOSED]
        for line, text in (
            ({"where": 7}, '"where": expected an object of fields by name, got 7'),
            ({"where": {"k": 7}}, "where: expected a value for each of k, at"),
            ({"where": {"k": 7, "at": True}}, "where, field at: expected timestamp"),
            ({"stream": "plain", "where": {"ts": 7}}, "stream plain has no punctuation key"),
        ):
            feeder.say(json.dumps({"stream": "s", "punctuation": 20, **line}))
            assert text in (await feeder.hear())["error"]["text"]
        assert ahead(daemon) == [({"k": 7, "at": NOON_US}, 10)]


@served(sql=SQL)
async def test_the_client_names_a_group(daemon):
    async with peer(daemon) as reader:
        await reader.subscribe()
        async with AsyncClient(str(daemon.listen)) as client, await client.open("s") as feed:
            await feed.send(ROWS)
            await feed.punctuate(10, where={"k": 7, "at": NOON})
            await feed.punctuate(9)
            assert (await reader.hear(Result)).rows == [CLOSED]
            await until(lambda: ahead(daemon) == [({"k": 7, "at": NOON_US}, 10)])
            with pytest.raises(TypeError, match="expected None, bool, int"):
                await feed.punctuate(10, where={"k": object()})
            await feed.punctuate(10, where={"k": 7})
            await feed.send([(30, 9, NOON, 1)])
            with pytest.raises(ServerError, match="where: expected a value for each of k, at"):
                await feed.flush()


def test_an_older_server_is_named():
    async def play():
        async with (
            FakeServer(old=True) as server,
            AsyncClient(server.address) as client,
            await client.open("s") as feed,
        ):
            await feed.punctuate(5)
            with pytest.raises(ServerError, match="the server does not know punctuation with where: upgrade it"):
                await feed.punctuate(5, where={"k": 7})

    uvloop.run(play())


# -- requests for timestamps that name a group -------------------------------------------------------------------------

SILENT = SQL.replace("punctuation_key = 'k, at'", "punctuation_key = 'k, at', disorder = '1 h', ets_retry = '1 h'")
# The window that ends at 10 us waits: of the groups in it that of the first row has waited the longest.
BLOCKED = [*ROWS, (3, 7, NOON_US, 1), (11, 9, NOON_US, 1)]
OLDEST, NEXT = (("k", 7), ("at", NOON_US)), (("k", 8), ("at", NOON_US))


@served(sql=SILENT)
async def test_a_request_by_frames_names_the_oldest_group(daemon):
    async with peer(daemon) as reader, peer(daemon, greet=False) as feeder:
        await reader.subscribe()
        feeder.say(Hello(PROTOCOL, "x", None, ("groups",)))
        await feeder.hear(Welcome)
        await feeder.open("s", answers=True)
        feeder.data(0, BLOCKED)
        request = await feeder.hear(EtsRequest)
        assert (request.need_us, request.where) == (10, OLDEST)
        assert daemon.runner.engine.why("q").group == {"k": 7, "at": NOON_US}
        feeder.say(Ets(0, request.request, 10, OLDEST))
        assert (await reader.hear(Result)).rows == [(7, NOON_US, 6, 10)]
        request = await feeder.hear(EtsRequest)
        assert (request.need_us, request.where) == (10, NEXT)
        feeder.say(Ets(0, request.request, 10, (("k", 8),)))
        assert "where: expected a value for each of k, at" in (await feeder.hear(Error)).text
        feeder.say(Ets(0, request.request, 10))
        assert (await reader.hear(Result)).rows == [(8, NOON_US, 6, 10)]


@served(sql=SILENT)
async def test_a_feed_without_the_capability_gets_a_request_for_all_its_tuples(daemon):
    async with peer(daemon) as reader, peer(daemon) as feeder:
        await reader.subscribe()
        await feeder.open("s", answers=True)
        feeder.data(0, BLOCKED)
        request = await feeder.hear(EtsRequest)
        assert (request.need_us, request.where) == (10, None)
        feeder.say(Ets(0, request.request, 10))
        assert sorted((await reader.hear(Result)).rows) == [(7, NOON_US, 6, 10), (8, NOON_US, 6, 10)]


@served(sql=SILENT)
async def test_a_request_by_lines_names_the_oldest_group(daemon):
    async with peer(daemon) as reader, lines(daemon) as feeder:
        await reader.subscribe()

        def say(**line):
            feeder.say(json.dumps({"stream": "s", "feed": "f", **line}))

        say(answers=True)
        for ts, k, at, v in BLOCKED:
            say(tuple={"ts": ts, "k": k, "at": at, "v": v})
        request = (await feeder.hear())["request"]
        where = {"k": 7, "at": "2026-01-01T12:00:00Z"}
        need = "1970-01-01T00:00:00.000010Z"
        assert request == {"stream": "s", "feed": "f", "number": 1, "need": need, "where": where}
        say(answer=1, punctuation=need, where=where)
        assert (await reader.hear(Result)).rows == [(7, NOON_US, 6, 10)]
        request = (await feeder.hear())["request"]
        assert request["where"] == {**where, "k": 8}
        for line, text in (
            ({"answers": True}, "this connection already feeds s as f: send answers as the feed's first line"),
            ({"answers": 1}, '"answers": expected true'),
            ({"answer": True, "punctuation": 1}, '"answer": expected the number of a request'),
            ({"answer": 1}, '"punctuation": expected a timestamp or null'),
            ({"answer": 1, "punctuation": "noon"}, '"punctuation": '),
            ({"answer": 1, "punctuation": 1, "feed": "g"}, "this connection does not feed s as g with answers"),
        ):
            say(**line)
            assert text in (await feeder.hear())["error"]["text"]
        say(answer=2, punctuation=None)
        say(answer=2, punctuation=10)
        assert (await reader.hear(Result)).rows == [(8, NOON_US, 6, 10)]


@served(sql=SILENT)
async def test_the_client_answers_for_the_group_or_for_all_rows(daemon):
    asked = []

    def of_group(need, group):
        asked.append((need, group))
        return need if group["k"] == 7 else None

    async with peer(daemon) as reader, AsyncClient(str(daemon.listen)) as client:
        await reader.subscribe()
        async with await client.open("s", answer=lambda need: need, answer_group=of_group) as feed:
            await feed.send(BLOCKED)
            assert (await reader.hear(Result)).rows == [(7, NOON_US, 6, 10)]
            assert (await reader.hear(Result)).rows == [(8, NOON_US, 6, 10)]
            assert asked[:2] == [(10, dict(OLDEST)), (10, dict(NEXT))]
            last = {"k": 9, "at": NOON_US}  # once the server's clock is 9 us further
            await until(lambda: daemon.streams()[0].feeds[0].requested_group == last)


@served(sql=SILENT)
async def test_the_blocking_client_answers_for_the_group(daemon):
    def feed():
        with Client(str(daemon.listen)) as client, client.open("s", answer_group=lambda need, group: need) as feed:
            feed.send(BLOCKED)
            feed.flush()
            done.wait(HANG_SECONDS)

    done = threading.Event()
    async with peer(daemon) as reader:
        await reader.subscribe()
        feeding = asyncio.create_task(asyncio.to_thread(feed))
        assert (await reader.hear(Result)).rows == [(7, NOON_US, 6, 10)]
        assert (await reader.hear(Result)).rows == [(8, NOON_US, 6, 10)]
        done.set()
        await feeding
