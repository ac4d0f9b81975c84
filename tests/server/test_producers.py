"""Producers of JSON lines: each numbered tuple is taken once, whichever connection carries it."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.client import AsyncClient, ServerError
from millrace.protocol.messages import PRODUCER_CHARACTERS, Ack, Error, Hello, Open, Opened
from tests.depth import examples
from tests.patience import HANG_SECONDS
from tests.server.harness import SCHEMA_SQL, lines, peer, running, served, until

TIMED = (
    "CREATE STREAM e (ts TIMESTAMP, k BIGINT) WITH (timestamps = 'external', time = 'ts', grace = '1 hour');"
    "CREATE QUERY q WITH (order = 'event') AS SELECT count(*) AS n FROM TUMBLE(e, ts, '1 second') GROUP BY window_end"
)


def numbered(sequence, producer="p", stream="s", **values):
    return json.dumps({"stream": stream, "producer": producer, "seq": sequence, "tuple": values or {"k": sequence}})


def opened(sequence=None, producer="p", stream="s"):
    line = {"stream": stream, "producer": producer, "open": True}
    return json.dumps(line if sequence is None else {**line, "seq": sequence})


def ack(following, durable=None, producer="p", stream="s"):
    return {"ack": {"stream": stream, "producer": producer, "next": following, "durable": durable}}


async def hear_ack(nc, following):
    """Read up to the acknowledgement of all tuples below this number; the errors before it."""
    errors = []
    while True:
        said = await nc.hear()
        assert said is not None, f"the server has closed the connection before it acknowledged {following}"
        if "error" in said:
            errors.append(said["error"])
        elif said["ack"]["next"] == following:
            return errors


def emitted(daemon):
    """How many rows the query has emitted."""
    return daemon.runner.outlets["q"].next_sequence


@served()
async def test_numbered_lines_are_taken_once(daemon):
    async with lines(daemon) as nc:
        nc.say(opened())
        assert await nc.hear() == ack(0)
        nc.say("\n".join(map(numbered, range(3))))
        assert await nc.hear() == ack(3)
        nc.say("\n".join(map(numbered, range(1, 5))))
        assert await nc.hear() == ack(5)
    async with lines(daemon) as nc:
        nc.say('{"subscribe": "q", "from": 0}')
        assert [(await nc.hear())["row"]["k"] for _ in range(5)] == [0, 1, 2, 3, 4]
        nc.say(opened())
        assert await nc.hear() == ack(5), "the position outlives its connection"
    assert daemon.feeds.received()["s"].repeated == 2


@served()
async def test_a_gap_is_refused_and_uses_no_number(daemon):
    async with lines(daemon) as nc:
        nc.say("\n".join(map(numbered, (0, 2, 3, 1))))
        first, second = [(await nc.hear())["error"] for _ in range(2)]
        assert first == {
            "code": "out_of_order",
            "text": "producer p of stream s: expected tuple 1, got 2; send the tuples from 1 on",
            "line": 2,
            "seq": 2,
        }
        assert (second["line"], second["seq"]) == (3, 3)
        assert await nc.hear() == ack(2)


@served()
async def test_a_refused_line_uses_its_number(daemon):
    """Whatever is wrong with it, as long as the line says which tuple it is. It is not refused twice."""
    bad = [
        numbered(1, k="x"),
        numbered(2, z=1),
        '{"stream": "s", "producer": "p", "seq": 3, "tuple": {"k": NaN}}',
        '{"stream": "s", "producer": "p", "seq": 4, "tuple": {"k": 9223372036854775808}}',
        '{"stream": "s", "producer": "p", "seq": 5, "tuple": [1]}',
        '{"stream": "s", "producer": "p", "seq": 6, "tuple": {"k": 1}, "tupel": 1}',
    ]
    async with lines(daemon) as nc:
        nc.say("\n".join([numbered(0), *bad, numbered(7)]))
        errors = [(await nc.hear())["error"] for _ in bad]
        assert [(error["line"], error["seq"]) for error in errors] == [(at + 1, at) for at in range(1, 7)]
        assert await nc.hear() == ack(8)
        nc.say("\n".join(bad))
        assert await nc.hear() == ack(8)
    assert daemon.runner.outlets["q"].next_sequence == 2


@served()
async def test_a_line_that_says_no_number_leaves_a_gap(daemon):
    async with lines(daemon) as nc:
        for line, code in (
            ('{"stream": "s", "producer": "p", "seq": 0, "tuple": {"k": 1}', "bad_message"),
            ('{"stream": "s", "producer": "p", "seq": 0, "seq": 1, "tuple": {"k": 1}}', "bad_message"),
            ('{"stream": "s", "producer": "p", "tuple": {"k": 1}}', "bad_message"),
            ('{"stream": "s", "producer": "p", "seq": -1, "tuple": {"k": 1}}', "bad_message"),
            ('{"stream": "s", "producer": "p", "feed": "f", "seq": 0, "tuple": {"k": 1}}', "bad_message"),
            ('{"stream": "s", "seq": 0, "tuple": {"k": 1}}', "bad_message"),
            ('{"stream": "t", "producer": "p", "seq": 0, "tuple": {"k": 1}}', "unknown_stream"),
        ):
            nc.say(line)
            assert (await nc.hear())["error"]["code"] == code, line
        nc.say(numbered(1))
        assert (await nc.hear())["error"]["code"] == "out_of_order"


@served()
async def test_a_newer_connection_takes_over(daemon):
    async with lines(daemon) as old, lines(daemon) as new:
        old.say(numbered(0))
        assert await old.hear() == ack(1)
        new.say(opened())
        assert await new.hear() == ack(1)
        assert (await old.hear())["error"]["code"] == "taken_over"
        old.say(numbered(1))
        error = (await old.hear())["error"]
        assert error["code"] == "taken_over"
        assert '{"stream": "s", "producer": "p", "open": true}' in error["text"]
        new.say(numbered(1))
        assert await new.hear() == ack(2)
        old.say(opened())
        assert await old.hear() == ack(2)
        assert (await new.hear())["error"]["code"] == "taken_over"
        assert daemon.streams()[0].connections == 1


@served()
async def test_lines_and_frames_continue_each_other(daemon):
    async with peer(daemon) as frames, lines(daemon) as nc:
        await frames.open(producer="p")
        frames.data(0, [(0, None, None), (1, None, None)])
        await frames.hear(Ack)
        nc.say(opened())
        assert await nc.hear() == ack(2)
        nc.say(numbered(2))
        assert await nc.hear() == ack(3)
    async with peer(daemon) as frames:
        assert (await frames.open(producer="p")).next_sequence == 3


@served()
async def test_a_server_that_does_not_know_a_producer_continues_at_its_number(daemon):
    async with lines(daemon) as nc:
        nc.say(opened(500))
        assert await nc.hear() == ack(500)
        nc.say(numbered(500))
        assert await nc.hear() == ack(501)
        nc.say(opened(7))
        assert await nc.hear() == ack(501)


@served()
async def test_the_end_of_input_is_acknowledged(daemon):
    async with lines(daemon) as nc:
        nc.say(numbered(0))
        nc.writer.write_eof()
        assert await nc.hear() == ack(1)
        assert await nc.hear() is None


@served(TIMED)
async def test_punctuation_answers_and_close_of_a_producer(daemon):
    feed = '"stream": "e", "producer": "p"'
    async with lines(daemon) as nc:
        nc.say(f'{{{feed}, "open": true, "answers": true}}')
        assert await nc.hear() == ack(0, stream="e")
        nc.say(numbered(0, stream="e", ts="2026-01-01T00:00:00.5Z", k=1))
        nc.say(f'{{{feed}, "punctuation": "2026-01-01T00:00:02Z"}}')
        await until(lambda: emitted(daemon) == 1)
        nc.say(numbered(1, stream="e", ts="2026-01-01T00:00:01Z", k=1))
        said = [await nc.hear() for _ in range(3)]
        (late,) = [one["late"] for one in said if "late" in one]
        assert late["producer"] == "p"
        assert "feed" not in late
        nc.say(f'{{{feed}, "answers": true}}')
        assert (await nc.hear())["error"]["code"] == "already_open"
        nc.say(f'{{{feed}, "answer": 0, "punctuation": null}}')
        nc.say(f'{{{feed}, "close": true}}')
        nc.say(f'{{{feed}, "close": true}}')
        assert (await nc.hear())["error"]["code"] == "not_open"
        assert not daemon.engine.source("e").feeds.by_name


@served(TIMED)
async def test_a_promise_behind_a_gap_is_refused(daemon):
    """It would make the missing tuples late."""
    promise = '{"stream": "e", "producer": "p", "punctuation": "2026-01-01T00:00:02Z"}'
    rows = [numbered(at, stream="e", ts="2026-01-01T00:00:01Z", k=1) for at in range(2)]
    async with lines(daemon) as nc:
        nc.say("\n".join([rows[1], promise, *rows, promise]))
        assert [(await nc.hear())["error"]["line"] for _ in range(2)] == [1, 2]
        assert await nc.hear() == ack(2, stream="e")
        await until(lambda: emitted(daemon) == 1)


@served(TIMED)
async def test_a_lost_connection_keeps_the_time_for_the_grace(daemon):
    async with lines(daemon) as nc:
        nc.say(numbered(0, stream="e", ts="2026-01-01T00:00:01Z", k=1))
        assert await nc.hear() == ack(1, stream="e")
    await until(lambda: daemon.streams()[0].connections == 0)
    await daemon.runner.wait_drained()
    assert list(daemon.engine.source("e").feeds.by_name) == ["p"]


@pytest.mark.parametrize("chunk", [1, 7, 100_000])
def test_many_lines_of_several_producers_in_any_chunks(chunk):
    """Also those that a thread reads, between lines without a number."""

    async def play():
        async with asyncio.timeout(HANG_SECONDS), running(SCHEMA_SQL) as daemon, lines(daemon) as nc:
            rows = 3_000 if chunk > 1_000 else 40
            said = []
            for at in range(rows):
                said += [numbered(at, "p"), numbered(at, "r"), '{"stream": "s", "tuple": {"k": 1}}']
            data = "".join(f"{line}\n" for line in said).encode()
            for at in range(0, len(data), chunk):
                nc.writer.write(data[at : at + chunk])
                await nc.writer.drain()
            following = {"p": 0, "r": 0}
            while set(following.values()) != {rows}:
                acknowledged = (await nc.hear())["ack"]
                assert following[acknowledged["producer"]] <= acknowledged["next"]
                following[acknowledged["producer"]] = acknowledged["next"]
            await until(lambda: emitted(daemon) == 3 * rows)

    uvloop.run(play())


# -- the journal -------------------------------------------------------------------------------------------------------


def made(folder):
    folder.mkdir(exist_ok=True)
    return str(folder)


def test_an_acknowledgement_says_what_survives(tmp_path):
    """By the mode: `always` has one, which is durable; `10 ms` two; `off` one."""

    async def play(sync, folder):
        async with (
            asyncio.timeout(HANG_SECONDS),
            running(SCHEMA_SQL, server={"data_dir": made(tmp_path / folder)}, journal={"sync": sync}) as daemon,
            lines(daemon) as nc,
        ):
            nc.say(opened())
            while (said := await nc.hear())["ack"]["durable"] not in (0, None):
                pass
            nc.say(numbered(0))
            found: list[dict[str, Any]] = []
            while not found or (sync == "10 ms" and found[-1]["ack"]["durable"] != 1):
                said = await nc.hear()
                found += [said] if said["ack"]["next"] == 1 else []
            return found

    assert uvloop.run(play("always", "a")) == [ack(1, 1)]
    assert uvloop.run(play("10 ms", "b")) == [ack(1, 0), ack(1, 1)]
    assert uvloop.run(play("off", "c")) == [ack(1, None)]


def test_frames_say_what_survives(tmp_path):
    async def play(sync, capabilities):
        section = {"server": {"data_dir": made(tmp_path / f"{sync}{capabilities}")}} if sync else {}
        async with (
            asyncio.timeout(HANG_SECONDS),
            running(SCHEMA_SQL, **section, journal={"sync": sync or "always"}) as daemon,
            peer(daemon, greet=False) as client,
        ):
            client.say(Hello(1, "test", None, capabilities))
            granted = (await client.hear()).capabilities
            await client.open(producer=f"p{capabilities}")
            client.data(0, [(1, None, None)])
            found = [await client.hear(Ack)]
            if sync == "10 ms" and granted:
                found.append(await client.hear(Ack))
            client.say_body(Hello(1, "again"))  # refused at once, so nothing else was on its way
            assert await client.hear(Ack) is None
            return granted, [one.meaning for one in found]

    def found(sync, capabilities=("durable",)):
        return uvloop.run(play(sync, capabilities))

    assert found("always") == (("durable",), ["durable"])
    assert found("10 ms") == (("durable",), ["accepted", "durable"])
    assert found("off") == ((), ["accepted"])
    assert found(None) == ((), ["accepted"])
    assert found("always", None) == (None, ["accepted"])
    assert found("10 ms", None) == (None, ["accepted"])


def test_a_feed_opened_again_hears_what_is_durable(tmp_path):
    async def play():
        async with (
            asyncio.timeout(HANG_SECONDS),
            running(SCHEMA_SQL, server={"data_dir": str(tmp_path)}, journal={"sync": "10 ms"}) as daemon,
        ):
            for at in range(2):
                async with peer(daemon, greet=False) as client:
                    client.say(Hello(1, "test", None, ("durable",)))
                    await client.hear()
                    said = await client.open()
                    assert (type(said), said.next_sequence) == (Opened, at)
                    if not at:
                        client.data(0, [(1, None, None)])
                    while (await client.hear(Ack)).meaning != "durable":
                        pass

    uvloop.run(play())


@pytest.mark.parametrize("sync", ["always", "10 ms", "off"])
def test_the_client_waits_for_the_disk(tmp_path, sync):
    async def play():
        sections = {"server": {"data_dir": str(tmp_path)}, "journal": {"sync": sync}}
        async with asyncio.timeout(HANG_SECONDS), running(SCHEMA_SQL, **sections) as daemon:
            for at in range(2):
                async with AsyncClient(str(daemon.listen)) as client:
                    feed = await client.open("s", producer="p")
                    await feed.send([(at, None, None)])
                    await feed.flush()
                    assert feed.acknowledged == at + 1
                    if sync == "off":
                        assert feed.durable == 0
                        with pytest.raises(ServerError, match="what is on its disk"):
                            await feed.flush(durable=True)
                    else:
                        await feed.flush(durable=True)
                        assert feed.durable == at + 1
                    await feed.close()

    uvloop.run(play())


# -- kills, simulated by new connections -------------------------------------------------------------------------------

scripts = st.lists(
    st.tuples(
        st.integers(1, 30),  # rows that the producer sends
        st.integers(1, 400),  # in chunks of so many bytes
        st.integers(0, 3_000),  # of which only so many arrive before its connection is lost
        st.sampled_from(["ack", "start", "oldest"]),  # where it continues: as the server says, or what it has itself
    ),
    min_size=1,
    max_size=6,
)


@settings(suppress_health_check=list(HealthCheck), max_examples=examples(40), deadline=None)
@given(scripts, st.sets(st.integers(0, 120), max_size=5))
def test_no_row_is_lost_or_taken_twice(script, refused):
    """The oracle: the rows in the order of their numbers, each once, without those that do not fit."""

    async def play():
        async with asyncio.timeout(HANG_SECONDS), running(SCHEMA_SQL) as daemon:
            total, acknowledged = 0, 0
            for count, chunk, arriving, where in script:
                total += count
                async with lines(daemon) as nc:
                    nc.say(opened(acknowledged))
                    following = (await nc.hear())["ack"]["next"]
                    assert acknowledged <= following <= total
                    start = {"ack": following, "start": 0, "oldest": acknowledged}[where]
                    rows = [numbered(at, k="x" if at in refused else at) for at in range(start, total)]
                    data = "".join(f"{row}\n" for row in rows).encode()[:arriving]
                    for at in range(0, len(data), chunk):
                        nc.writer.write(data[at : at + chunk])
                        await nc.writer.drain()
                    if count % 2 and b"\n" in data:
                        following = max(start + data.count(b"\n"), following)
                        await hear_ack(nc, following)
                        acknowledged = following
            async with lines(daemon) as nc, lines(daemon) as reader:
                nc.say(opened())
                following = (await nc.hear())["ack"]["next"]
                for at in range(following, total):
                    nc.say(numbered(at, k="x" if at in refused else at))
                if following < total:
                    await hear_ack(nc, total)
                expected = [at for at in range(total) if at not in refused]
                await until(lambda: emitted(daemon) >= len(expected))
                reader.say('{"subscribe": "q", "from": 0}')
                assert [(await reader.hear())["row"]["k"] for _ in expected] == expected
                assert emitted(daemon) == len(expected)

    uvloop.run(play())


# -- producers that are forgotten --------------------------------------------------------------------------------------


@served(limits={"producers_kept": 3})
async def test_producers_beyond_the_limit_are_forgotten(daemon):
    async with AsyncExitStack() as stack:
        connected = await stack.enter_async_context(lines(daemon))
        connected.say(numbered(0, "connected"))
        await hear_ack(connected, 1)
        for at in range(6):
            async with lines(daemon) as nc:
                nc.say(numbered(0, f"p{at}"))
                await hear_ack(nc, 1)
            await until(lambda: daemon.streams()[0].connections == 1)
            await daemon.runner.wait_drained()
        known = {}
        async with lines(daemon) as nc:
            for name in ("connected", *(f"p{at}" for at in range(6))):
                nc.say(opened(producer=name))
                known[name] = (await nc.hear())["ack"]["next"]
    assert [name for name in known if known[name]] == ["connected", "p4", "p5"]
    assert daemon.feeds.received()["s"].forgotten == 4


@served()
async def test_a_long_name_is_refused(daemon):
    """The server keeps it for a month."""
    async with peer(daemon) as client:
        client.say(Open(0, "s", None, "p" * (PRODUCER_CHARACTERS + 1)))
        error = await client.hear(Error)
        assert (error.code, error.channel) == ("bad_value", 0)
        await client.open(channel=1, producer="p" * PRODUCER_CHARACTERS)
