"""Progress: subscribers receive the time up to which a query is complete, over real sockets."""

import asyncio

from millrace.client import AsyncClient, ProgressTo, RowBatch
from millrace.protocol import parse_timestamp
from millrace.protocol.messages import Closed, Progress, Punctuation, Result
from tests.server.harness import lines, peer, served, until

WIDTH = 100_000
WINDOWS = """
CREATE STREAM s (k BIGINT);
CREATE QUERY w AS SELECT count(*) AS n, window_end FROM TUMBLE(s, ts, INTERVAL '100 ms');
"""
BY_HAND = """
CREATE STREAM e (at TIMESTAMP, k BIGINT) WITH (time = 'at');
CREATE QUERY per AS SELECT count(*) AS n, window_end FROM TUMBLE(e, at, INTERVAL '10 seconds');
CREATE QUERY all_of_it AS SELECT at, k FROM e;
"""


def query(daemon, name):
    return next(found for found in daemon.queries() if found.name == name)


@served(WINDOWS)
async def test_a_window_of_a_silent_stream_ends_by_the_clock_with_its_rows_and_progress_at_once(daemon):
    async with peer(daemon) as feeder, peer(daemon) as reader:
        await reader.subscribe("w", progress=True)
        await feeder.open("s")
        feeder.data(0, [(1,)])
        result = await reader.hear(Result)
        (count, window_end) = result.rows[0]
        told = await reader.hear()  # directly after the row, without further input
        assert isinstance(told, Progress)
        assert told.value_us == window_end + WIDTH - 1
        assert count == 1


@served(WINDOWS)
async def test_json_lines_and_the_client_tell_it_too(daemon):
    host, port = daemon.listen.host, daemon.listen.port
    async with lines(daemon) as nc, AsyncClient(f"{host}:{port}") as client:
        nc.say('{"subscribe": "w", "progress": true}')
        subscription = await client.subscribe("w", progress=True)
        await until(lambda: len(daemon.runner.outlets["w"].consumers) == 2)
        feed = await client.open("s")
        await feed.send([{"k": 1}])
        while "row" not in (row := await nc.hear()):
            pass  # the first tuple has raised the query's time to the start of its window
        told = await nc.hear()
        ends = parse_timestamp(row["row"]["window_end"])
        assert parse_timestamp(told["progress"]) == ends + WIDTH - 1
        while not isinstance(batch := await subscription.next_update(), RowBatch):
            assert batch == ProgressTo(ends - 1)
        progress = await subscription.next_update()
        assert [tuple(row) for row in batch.rows] == [(1, ends)]
        assert progress == ProgressTo(ends + WIDTH - 1)
        assert subscription.progress_us == ends + WIDTH - 1


@served(BY_HAND)
async def test_whoever_comes_later_is_told_what_holds_already(daemon):
    async with peer(daemon) as feeder, peer(daemon) as first, peer(daemon) as second:
        await first.subscribe("per", progress=True)
        await feeder.open("e")
        feeder.data(0, [(1_000_000, 1), (12_000_000, 2)])
        assert (await first.hear(Progress)).value_us == 20_000_000 - 1
        await second.subscribe("per", progress=True)
        assert (await second.hear(Progress)).value_us == 20_000_000 - 1


@served(BY_HAND)
async def test_between_the_ends_of_windows_nothing_is_told_and_nobody_is_told_unasked(daemon):
    async with peer(daemon) as feeder, peer(daemon) as asks, peer(daemon) as reads:
        await asks.subscribe("per", progress=True)
        await reads.subscribe("per")
        await feeder.open("e")
        for number, second in enumerate((1, 3, 5, 12, 13, 14, 31)):
            feeder.data(number, [(second * 1_000_000, second)])
            await until(lambda want=number + 1: daemon.streams()[0].tuples == want)
        while (told := await asks.hear(Progress)).value_us < 40_000_000 - 1:
            pass
        told = [message.value_us for message in asks.heard if isinstance(message, Progress)]
        assert told == [9_999_999, 19_999_999, 39_999_999]
        while sum(isinstance(message, Result) for message in reads.heard) < 2:
            await reads.hear()
        assert not any(isinstance(message, Progress) for message in reads.heard)
        assert query(daemon, "per").progress_us == 39_999_999


@served(BY_HAND)
async def test_when_the_last_one_who_asked_has_left_there_is_no_punctuation_any_more(daemon):
    def punctuations():
        return next(found for found in daemon.streams() if found.name == "e").punctuations

    async with peer(daemon) as feeder:
        await feeder.open("e")
        async with peer(daemon) as reader:
            await reader.subscribe("all_of_it", progress=True)
            feeder.data(0, [(1, 1)])
            feeder.say(Punctuation(0, 7))
            while (await reader.hear(Progress)).value_us < 7:
                pass
            await daemon.catalog.execute("DROP QUERY per")
        await until(lambda: not daemon.runner.outlets["all_of_it"].consumers)
        await daemon.runner.wait_drained()
        before = punctuations()
        feeder.data(1, [(50, 2)])
        await until(lambda: query(daemon, "all_of_it").rows == 2)
        await asyncio.sleep(0)
        assert punctuations() == before


@served(BY_HAND)
async def test_a_query_that_was_dropped_and_made_again_tells_its_progress_again(daemon):
    async with peer(daemon) as feeder, peer(daemon) as before, peer(daemon) as after:
        await feeder.open("e")
        await before.subscribe("all_of_it", progress=True)
        await daemon.catalog.execute("DROP QUERY all_of_it")
        assert (await before.hear(Closed)).code == "dropped"
        await daemon.catalog.execute("CREATE QUERY all_of_it AS SELECT at, k FROM e")
        await after.subscribe("all_of_it", progress=True)
        feeder.say(Punctuation(0, 7))
        assert (await after.hear(Progress)).value_us == 7


@served(BY_HAND)
async def test_a_query_with_other_columns_is_watched_only_if_somebody_asks_again(daemon):
    def watched():
        return daemon.engine.query("all_of_it").sink.watched

    async with peer(daemon) as feeder, peer(daemon) as before, peer(daemon) as after:
        await feeder.open("e")
        await before.subscribe("all_of_it", progress=True)
        await until(watched)
        await daemon.catalog.execute("CREATE OR REPLACE QUERY all_of_it AS SELECT at, k, k + 1 AS more FROM e")
        told = await before.hear(Closed)
        assert (told.code, told.text) == ("dropped", "query all_of_it has other columns now: subscribe again")
        await until(lambda: not watched())
        await after.subscribe("all_of_it", progress=True)
        feeder.say(Punctuation(0, 7))
        assert (await after.hear(Progress)).value_us == 7
