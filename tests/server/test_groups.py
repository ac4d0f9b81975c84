"""Promises about groups at every way in: frames, lines and both clients; and their errors."""

import datetime
import json

import pytest
import uvloop

from millrace.client import AsyncClient, ServerError
from millrace.protocol.messages import PROTOCOL, Error, Hello, Punctuation, Result, Welcome
from tests.client.fake_server import FakeServer
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
    (found,) = [stream for stream in daemon.streams() if stream["name"] == "s"]
    return [(one["group"], one["mark_us"]) for one in found["groups"]]


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
