"""Subscribers that say how often they look: by lines, by frames and with both clients, until they leave."""

import asyncio

import pytest

from millrace.client import AsyncClient, Client, ServerError
from tests.server.harness import lines, served, until
from tests.server.test_latest import cli

SQL = """
CREATE STREAM s (k TEXT, n BIGINT, v BIGINT) WITH (timestamps = 'internal', update_key = 'k, n');
CREATE QUERY board AS SELECT k, n, v FROM s LATEST USING DEADLINE;
CREATE QUERY plain AS SELECT k, n, v FROM s LATEST;
CREATE QUERY audit AS SELECT v FROM s
"""


def reads(daemon, query="board"):
    found = next(one for one in daemon.queries() if one.name == query).reads
    return [(one.refresh_us, one.keys) for one in found]


def keys(daemon):
    return [read.keys for read in daemon.engine.reads[daemon.engine.query("board").sink].values()]


@served(SQL)
async def test_by_lines(daemon):
    async with lines(daemon) as nc:
        nc.say('{"subscribe": "board", "refresh": "1 minute", "keys": [["GOOG", 1], ["GM", 2]]}')
        await until(lambda: reads(daemon) == [(60_000_000, 2)])
        assert keys(daemon) == [(("GOOG", 1), ("GM", 2))]
        async with lines(daemon) as other:
            other.say('{"subscribe": "board", "refresh": 500}')
            await until(lambda: reads(daemon) == [(60_000_000, 2), (500, None)])
            other.say('{"unsubscribe": "board"}')
            await until(lambda: reads(daemon) == [(60_000_000, 2)])
        nc.say('{"unsubscribe": "board"}')
        await until(lambda: reads(daemon) == [])


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('"board", "refresh": "soon"', "refresh: expected an interval"),
        ('"board", "refresh": 0', "refresh: expected an interval above 0, got 0 us"),
        ('"board", "keys": ["GOOG"]', "keys: expected a refresh interval with them, got none"),
        ('"board", "refresh": 1, "keys": []', "keys: expected 1 to 10,000 keys, got 0"),
        ('"board", "refresh": 1, "keys": ["GOOG"]', "keys: expected a value for each of k, n per key, got 1"),
        ('"board", "refresh": 1, "keys": [["a", 1], ["b", "x"]]', "keys, item 1"),
        ('"audit", "refresh": 1, "keys": [1]', "query audit emits no update stream"),
        ('"plain", "refresh": 1', "query plain has no edge LATEST USING DEADLINE"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(line, text):
    @served(SQL)
    async def refused(daemon):
        async with lines(daemon) as nc:
            nc.say(f'{{"subscribe": {line}}}')
            assert text in str(await nc.hear())
        assert daemon.engine.reads == {}

    refused()


@served(SQL)
async def test_by_frames_and_with_both_clients(daemon):
    async with AsyncClient(str(daemon.listen)) as client:
        subscription = await client.subscribe("board", refresh_us=7, keys=[("GOOG", 1)])
        await until(lambda: reads(daemon) == [(7, 1)])
        assert keys(daemon) == [(("GOOG", 1),)]
        await subscription.close()
        await until(lambda: reads(daemon) == [])
        with pytest.raises(ServerError, match="no edge LATEST USING DEADLINE") as refused:
            async for _ in await client.subscribe("plain", refresh_us=7):
                pass
        assert refused.value.code == "no_deadline"
        with pytest.raises(ServerError, match="per key, got 1"):
            await client.subscribe("board", refresh_us=7, keys=["GOOG"])

    def blocking():
        with Client(str(daemon.listen)) as client, client.subscribe("board", refresh_us=9):
            asyncio.run_coroutine_threadsafe(until(lambda: reads(daemon) == [(9, None)]), loop).result()

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(blocking)
    await until(lambda: reads(daemon) == [])


@served(SQL)
async def test_tail_says_how_often_its_user_looks(daemon):
    words = ("tail", "board", "--refresh", "1 s", "--key", '["GOOG", 1]', "--limit", "1")
    tailing = asyncio.create_task(cli(daemon, *words))
    await until(lambda: reads(daemon) == [(1_000_000, 1)])
    async with lines(daemon) as feeder:
        feeder.say('{"stream": "s", "tuple": {"k": "GOOG", "n": 1, "v": 5}}')
        code, text = await tailing
    assert code == 0, text
    assert '"v":5' in text
    async with lines(daemon) as nc:
        nc.say('{"subscribe": "board", "refresh": "1 minute"}')
        await until(lambda: reads(daemon) == [(60_000_000, None)])
        code, text = await cli(daemon, "query", "show", "board")
        assert "every 1 min" in text, text
    for more, expected in (
        (("--key", "GOOG"), "expected --refresh with it"),
        (("--refresh", "often"), "expected an interval"),
        (("--refresh", "0 s"), "expected an interval above 0"),
    ):
        code, text = await cli(daemon, "tail", "board", *more)
        assert code == 2, text
        assert expected in " ".join(text.replace("│", " ").split())
