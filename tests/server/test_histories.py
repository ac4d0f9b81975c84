"""Histories: a row's number means one row, and a client of the previous version notices nothing."""

import asyncio
import json

import msgpack
import pytest

from millrace.changes.pause_query import PauseQuery
from millrace.changes.resume_query import ResumeQuery
from millrace.client import AsyncClient, RowBatch, ServerError
from millrace.protocol import Schema
from millrace.protocol.messages import PROTOCOL, Closed, Error, Hello, Result, Subscribe, Subscribed, Welcome
from tests.protocol.vectors import read
from tests.server.harness import lines, peer, running, served, until

PREVIOUS = read("previous.json")["session"]
FOLDERS = {"on a disk": True, "in memory": False}


async def histories(daemon):
    return {query.name: query.history for query in daemon.queries()}


async def greeted(peer):
    peer.say(Hello(PROTOCOL, "test", None, ("history", "of a later version")))
    return await peer.hear(Welcome)


async def feed(daemon, rows, producer="p"):
    async with AsyncClient(str(daemon.listen)) as client, await client.open("s", producer=producer) as opened:
        await opened.send(rows)


async def read_frame(reader):
    length = await reader.readexactly(4)
    return length + await reader.readexactly(int.from_bytes(length, "big"))


@served()
async def test_a_client_of_the_previous_version_notices_nothing(daemon):
    """Byte for byte, from HELLO to RESULT."""
    async with peer(daemon, greet=False) as client:
        for step in PREVIOUS:
            if "client" in step:
                client.say_raw(bytes.fromhex(step["client"]))
                continue
            frame = await read_frame(client.reader)
            if "server" in step:
                assert frame.hex() == step["server"], step["says"]
            else:
                said = msgpack.unpackb(frame[4:])
                assert (said[0], len(said)) == (step["server_kind"], step["items"]), step["says"]


@served()
async def test_a_server_grants_what_it_knows(daemon):
    async with peer(daemon, greet=False) as client:
        assert (await greeted(client)).capabilities == ("history",)
        said = await client.subscribe()
        assert said == Subscribed(
            100, Schema.of(k="bigint", v="double", name="text"), 0, (await histories(daemon))["q"]
        )


@served()
async def test_a_field_behind_a_capability_needs_it(daemon):
    for capabilities in (None, (), ("of a later version",)):
        async with peer(daemon, greet=False) as client:
            client.say(Hello(PROTOCOL, "test", None, capabilities))
            assert (await client.hear(Welcome)).capabilities == (None if capabilities is None else ())
            client.say_body(Subscribe(1, "q", 0, history="x"))
            error = await client.hear(Error)
            assert (error.code, error.channel) == ("bad_message", None)
            assert "capability 'history'" in error.text


@served()
async def test_a_number_of_a_dropped_query_is_not_one_of_its_successor(daemon):
    await feed(daemon, [(1, 0.0, "a"), (2, 0.0, "b")])
    async with peer(daemon, greet=False) as client:
        await greeted(client)
        before = (await client.subscribe()).history
        await daemon.catalog.execute("DROP QUERY q; CREATE QUERY q AS SELECT k, v, name FROM s")
        await client.hear(Closed)
        await feed(daemon, [(3, 0.0, "c"), (4, 0.0, "d")], "other")
        await until(lambda: daemon.query("q").rows == 2)
        error = await client.subscribe(channel=101, from_sequence=1, history=before)
        assert (error.code, error.channel) == ("not_retained", 101)
        after = (await histories(daemon))["q"]
        assert before != after
        assert f"sequence 1 belongs to history {before} of query q" in error.text
        assert after in error.text
        assert (await client.subscribe(channel=102, history=before)).next_sequence == 2, "no number, no question"
        for channel, history in ((103, after), (104, None)):
            client.say(Subscribe(channel, "q", 1, history=history))
            assert (await client.hear(Subscribed)).next_sequence == 1


@pytest.mark.parametrize("kept", FOLDERS.values(), ids=FOLDERS)
def test_a_restart_begins_a_history_in_memory_alone(kept, tmp_path):
    sections = {"server": {"data_dir": str(tmp_path)}} if kept else {}
    sql = "CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s"

    async def play():
        async with running(sql, **sections) as daemon:
            await feed(daemon, [(1,), (2,)])
            async with AsyncClient(str(daemon.listen)) as client:
                subscription = await client.subscribe("q", from_sequence=0)
                batch = await subscription.next_batch()
                assert batch is not None
                assert len(batch) == 2
                following, history = subscription.next_sequence, subscription.history
        async with running(None if kept else sql, **sections) as daemon:
            await feed(daemon, [(number,) for number in range(7, 12)])
            await until(lambda: daemon.query("q").rows == (7 if kept else 5))
            async with AsyncClient(str(daemon.listen)) as client:
                if kept:
                    subscription = await client.subscribe("q", from_sequence=following, history=history)
                    batch = await subscription.next_batch()
                    assert isinstance(batch, RowBatch)
                    assert [row[0] for row in batch.rows] == list(range(7, 12))
                    return
                with pytest.raises(ServerError, match="started again") as caught:
                    await client.subscribe("q", from_sequence=following, history=history)
                assert caught.value.code == "not_retained"

    asyncio.run(play())


@served()
async def test_a_history_goes_on_where_the_numbers_do(daemon):
    before = await histories(daemon)
    await feed(daemon, [(1, 0.0, "a")])
    for sql in (
        "CREATE OR REPLACE QUERY q AS SELECT k, v, name FROM s WHERE k > 0",
        "CREATE OR REPLACE QUERY q AS SELECT k FROM s",  # other columns: subscribers have to come again
        "ALTER QUERY q RENAME TO r; ALTER QUERY r RENAME TO q",
    ):
        await daemon.catalog.execute(sql)
        assert await histories(daemon) == before, sql
    await daemon.catalog.change(PauseQuery(name="q"))
    await daemon.catalog.change(ResumeQuery(name="q"))
    await feed(daemon, [(2, 0.0, "b")], "other")
    await until(lambda: daemon.query("q").next_sequence == 2)
    assert await histories(daemon) == before


@served(
    sql="CREATE STREAM s (k BIGINT);CREATE QUERY q WITH (max_state = 2) AS SELECT k, count(*) AS n FROM s GROUP BY k"
)
async def test_a_failed_query_that_starts_again_counts_on(daemon):
    before = await histories(daemon)
    await feed(daemon, [(1,)])
    await until(lambda: daemon.query("q").next_sequence == 1)
    await feed(daemon, [(k,) for k in range(5)], "two")
    await until(lambda: daemon.query("q").state == "failed")
    reached = daemon.query("q").next_sequence
    await daemon.catalog.change(ResumeQuery(name="q"))
    await feed(daemon, [(5,)], "three")
    await until(lambda: daemon.query("q").next_sequence == reached + 1)
    assert await histories(daemon) == before


@served(sql="CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (timestamps = 'external', time = 'ts')")
async def test_late_tuples_have_a_history_that_outlasts_a_new_column(daemon):
    before = daemon.runner.outlet("s.late").history
    await daemon.catalog.execute("ALTER STREAM s ADD COLUMN x BIGINT")
    assert daemon.runner.outlet("s.late").history == before
    await daemon.catalog.execute("DROP STREAM s")
    await daemon.catalog.execute("CREATE STREAM s (ts TIMESTAMP) WITH (timestamps = 'external', time = 'ts')")
    assert daemon.runner.outlet("s.late").history != before


@served()
async def test_lines_carry_the_history_and_take_it_back(daemon):
    await feed(daemon, [(1, 0.0, "a"), (2, 0.0, "b")])
    await until(lambda: daemon.query("q").rows == 2)
    async with lines(daemon) as client:
        client.say('{"subscribe": "q", "from": 1}')
        row = await client.hear()
        assert (row["seq"], row["history"]) == (1, (await histories(daemon))["q"])
        client.say('{"unsubscribe": "q"}')
        client.say(json.dumps({"subscribe": "q", "from": 1, "history": row["history"]}))
        assert await client.hear() == row
        client.say('{"unsubscribe": "q"}')
        await daemon.catalog.execute("DROP QUERY q; CREATE QUERY q AS SELECT k, v, name FROM s")
        client.say(json.dumps({"subscribe": "q", "from": 0, "history": row["history"]}))
        error = (await client.hear())["error"]
        assert (error["code"], error["line"]) == ("not_retained", 5)


@served()
async def test_sinks_show_whose_rows_they_write(daemon, tmp_path):
    for ending in ("jsonl", "csv", "parquet", "arrow"):
        path = tmp_path / f"rows.{ending}"
        await daemon.catalog.execute(f"CREATE SINK {ending}_file FROM q WITH (type = 'file', path = '{path}')")
    [history] = (await histories(daemon)).values()
    assert [sink.history for sink in daemon.catalog.sinks()] == [history] * 4


@served()
async def test_a_history_of_any_length_is_refused_briefly(daemon):
    async with peer(daemon, greet=False) as client:
        await greeted(client)
        error = await client.subscribe(from_sequence=0, history="x" * 60_000)
        assert error.code == "not_retained"
        assert len(error.text) < 500


@served()
async def test_what_a_query_retains_is_told_by_its_numbers(daemon):
    async with peer(daemon, greet=False) as client:
        await greeted(client)
        error = await client.subscribe(channel=1, from_sequence=99)
        assert "query q does not have sequence 99. It retains no rows, and the next sequence is 0;" in error.text
        await feed(daemon, [(1, 0.0, "a")])
        await until(lambda: daemon.query("q").rows == 1)
        error = await client.subscribe(channel=2, from_sequence=99)
        assert "does not have sequence 99. It retains sequence 0, and the next sequence is 1;" in error.text
        await feed(daemon, [(1, 0.0, "a")] * 2, "other")
        await until(lambda: daemon.query("q").rows == 3)
        error = await client.subscribe(channel=3, from_sequence=99)
        assert "does not have sequence 99. It retains sequences 0 to 2, and the next sequence is 3;" in error.text
        assert (await client.subscribe(channel=4, from_sequence=3)).next_sequence == 3
        assert (await client.subscribe(channel=5, from_sequence=2)).next_sequence == 2
        assert (await client.hear(Result)).sequence == 2
