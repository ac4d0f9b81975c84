"""Frames over real sockets: accepted frames, refused frames with their errors, and other connections are unaffected."""

import asyncio
import random

import pyarrow as pa
import pytest

from millrace.client.arrow import to_stream
from millrace.net.frames import FrameDialect
from millrace.protocol import Schema, encode
from millrace.protocol.frames import frame
from millrace.protocol.messages import (
    PROTOCOL,
    Ack,
    Close,
    Closed,
    Credit,
    Data,
    DataArrow,
    Error,
    Hello,
    Open,
    Opened,
    Ping,
    Pong,
    Progress,
    Punctuation,
    Result,
    ResultArrow,
    Subscribe,
    Subscribed,
    Welcome,
)
from tests.server.harness import peer, served, until

ROWS = [(1, 1.5, "a"), (-1, 2.5, "dropped"), (2, None, None)]
KEPT = ((1, 1.5, "a"), (2, None, None))


async def rows_of(reader, count):
    """So many rows, with the number of the first."""
    found: list[object] = []
    first = None
    while len(found) < count:
        result = await reader.hear(Result)
        first = result.sequence if first is None else first
        found += result.rows
    return first, found


@served()
async def test_feed_to_query_to_subscriber(daemon):
    async with peer(daemon) as reader, peer(daemon) as feeder:
        said = await reader.subscribe()
        assert said == Subscribed(100, Schema.of(k="bigint", v="double", name="text"), 0)
        opened = await feeder.open()
        assert isinstance(opened, Opened)
        assert opened.next_sequence == 0
        assert opened.credit > 0
        feeder.data(0, ROWS)
        assert await feeder.hear(Ack) == Ack(0, 3)
        assert await rows_of(reader, 2) == (0, list(KEPT))


@served()
async def test_arrow_in_and_out(daemon):
    async with peer(daemon) as reader, peer(daemon) as feeder:
        await reader.subscribe(format="arrow")
        await feeder.open()
        table = pa.table({"k": [5, 6], "v": [0.5, None], "name": ["x", None]})
        feeder.say(DataArrow(0, 0, 2, to_stream(table)))
        assert await feeder.hear(Ack) == Ack(0, 2)
        result = await reader.hear(ResultArrow)
        assert (result.sequence, result.count) == (0, 2)
        assert pa.ipc.open_stream(result.batch).read_all().to_pylist() == table.to_pylist()


@served()
async def test_many_frames_in_one_read_come_out_in_order(daemon):
    async with peer(daemon) as reader, peer(daemon) as feeder:
        await reader.subscribe()
        await feeder.open()
        for number in range(200):
            feeder.data(number * 2, [(number * 2, 0.0, ""), (number * 2 + 1, 0.0, "")])
        first, rows = await rows_of(reader, 400)
        assert first == 0
        assert [row[0] for row in rows] == list(range(400))


BAD_ROWS = [
    ([(1, 1.0, "a"), ("x", 1.0, "a")], "bad_row", 1, "bigint"),
    ([(1.0, 1.0, "a")], "bad_row", 0, "bigint"),
    ([(True, 1.0, "a")], "bad_row", 0, "bigint"),
    ([(1, 1.0, 5)], "bad_row", 0, "text"),
    ([(1, 1.0, b"a")], "bad_row", 0, "text"),
    ([(1, 1.0, "a"), (1, 1.0, "a"), (1, 1.0)], "bad_row", 2, "3 values"),
    ([(1, 1.0, "a", 4)], "bad_row", 0, "3 values"),
    ([(1, float("nan"), "a")], "bad_value", 0, "double"),
    ([(1, float("inf"), "a")], "bad_value", 0, "double"),
    ([(2**63, 1.0, "a")], "bad_value", 0, "bigint"),
]


@pytest.mark.parametrize(("rows", "code", "row", "expected"), BAD_ROWS)
@served()
async def test_a_refused_frame_says_what_is_wrong_and_leaves_the_others_alone(daemon, rows, code, row, expected):
    async with peer(daemon) as reader, peer(daemon) as feeder:
        await reader.subscribe()
        await feeder.open()
        # One write: the server reads good and bad frames together.
        bodies = [Data(0, 0, [(10, 0.0, "")]), Data(0, 1, rows), Data(0, 1 + len(rows), [(11, 0.0, "")])]
        feeder.say_raw(b"".join(frame(encode(body)) for body in bodies))
        feeder.session.channels[0].next_sequence = 2 + len(rows)
        error = await feeder.hear(Error)
        assert (error.code, error.channel, error.sequence, error.row) == (code, 0, 1, row)
        assert expected in error.expected
        assert error.got
        assert (await feeder.hear(Ack)).sequence == 2 + len(rows)
        assert [kept[0] for kept in (await rows_of(reader, 2))[1]] == [10, 11]
        assert daemon.streams()[0].rejected == len(rows)


@served()
async def test_text_that_is_not_utf8(daemon):
    async with peer(daemon) as feeder:
        await feeder.open()
        feeder.say_raw(frame(encode(Data(0, 0, [(1, 1.0, "ab")])).replace(b"\xa2ab", b"\xa2\xff\xfe")))
        error = await feeder.hear(Error)
        assert (error.code, error.row) == ("bad_value", 0)
        assert "UTF-8" in error.expected


@served()
async def test_arrow_that_does_not_fit(daemon):
    async with peer(daemon) as feeder:
        await feeder.open()
        wrong = pa.table({"k": ["x"], "v": [0.5], "name": ["x"]})
        feeder.say(DataArrow(0, 0, 1, to_stream(wrong)))
        assert (await feeder.hear(Error)).code == "schema_mismatch"
        infinite = pa.table({"k": [1, 2], "v": [0.5, float("inf")], "name": ["x", "y"]})
        feeder.say(DataArrow(0, 1, 2, to_stream(infinite)))
        error = await feeder.hear(Error)
        assert (error.code, error.row, error.sequence) == ("bad_value", 1, 1)
        feeder.say(DataArrow(0, 3, 5, to_stream(infinite.slice(0, 1))))
        assert "5 rows" in (await feeder.hear(Error)).text


@served()
async def test_unknown_names_and_a_wrong_fingerprint(daemon):
    async with peer(daemon) as asker:
        asker.say(Open(0, "t", None, "p"))
        error = await asker.hear()
        assert (error.code, error.channel) == ("unknown_stream", 0)
        assert "there is s" in error.text
        asker.say(Subscribe(1, "qq"))
        error = await asker.hear()
        assert (error.code, error.channel) == ("unknown_query", 1)
        assert "did you mean q" in error.text
        asker.say(Open(2, "s", "0" * 16, "p"))
        error = await asker.hear()
        assert (error.code, error.channel) == ("schema_mismatch", 2)
        assert "k bigint" in error.text
        assert isinstance(await asker.open(channel=3), Opened)


@served(engine={"credit": 100})
async def test_credit_is_kept_and_comes_back(daemon):
    async with peer(daemon) as feeder:
        opened = await feeder.open()
        assert opened.credit == 100
        feeder.say_body(Data(0, 0, [(0, 0.0, "")] * 101))
        error = await feeder.hear(Error)
        assert (error.code, error.sequence) == ("no_credit", 0)
        sequence = 0
        for _ in range(10):
            left = feeder.session.channels[0].credit
            if not left:
                left = (await feeder.hear(Credit)).tuples
            feeder.data(sequence, [(0, 0.0, "")] * left)
            sequence += left
        await until(lambda: daemon.streams()[0].tuples == sequence)


@served(engine={"credit": 100})
async def test_the_credit_of_a_refused_frame_comes_back(daemon):
    async with peer(daemon) as feeder:
        await feeder.open()
        for sequence in range(0, 600, 60):
            feeder.data(sequence, [("x", 0.0, "")] * 60)
            assert (await feeder.hear(Error)).sequence == sequence
            assert (await feeder.hear(Credit)).tuples == 60
        assert feeder.session.channels[0].credit == 100


@served()
async def test_resent_rows_are_taken_once(daemon):
    async with peer(daemon) as reader:
        await reader.subscribe()
        async with peer(daemon) as feeder:
            await feeder.open(producer="me", sequence=0)
            feeder.data(0, [(0, 0.0, ""), (1, 0.0, "")])
            await feeder.hear(Ack)
        async with peer(daemon) as feeder:
            opened = await feeder.open(producer="me", sequence=0)
            assert opened.next_sequence == 2
            feeder.say_body(Data(0, 1, [(1, 0.0, ""), (2, 0.0, "")]))
            feeder.session.channels[0].next_sequence = 3
            assert (await feeder.hear(Ack)).sequence == 3
        assert [row[0] for row in (await rows_of(reader, 3))[1]] == [0, 1, 2]


@served()
async def test_a_gap_is_refused_and_uses_nothing_up(daemon):
    async with peer(daemon) as feeder:
        await feeder.open()
        feeder.say_body(Data(0, 5, [(0, 0.0, "")]))
        error = await feeder.hear(Error)
        assert (error.code, error.sequence) == ("out_of_order", 5)
        feeder.data(0, [(0, 0.0, "")])
        assert (await feeder.hear(Ack)).sequence == 1


@served()
async def test_the_newest_owner_of_a_feed_wins(daemon):
    async with peer(daemon) as first, peer(daemon) as second:
        await first.open(producer="me")
        assert isinstance(await second.open(producer="me"), Opened)
        assert (await first.hear(Closed)).code == "taken_over"
        assert daemon.streams()[0].connections == 1


@served()
async def test_close_ends_one_channel(daemon):
    async with peer(daemon) as both:
        await both.open()
        await both.subscribe()
        both.data(0, [(1, 0.0, "")])
        both.say(Close(0))
        assert (await both.hear(Closed)).channel == 0
        await both.hear(Result)
        both.say(Close(100))
        assert (await both.hear(Closed)).channel == 100
        await until(lambda: daemon.streams()[0].connections == 0 and daemon.queries()[0].subscribers == 0)


@served()
async def test_dropping_tells_feeds_and_subscribers(daemon):
    async with peer(daemon) as both:
        await both.open()
        await both.subscribe()
        await daemon.catalog.execute("DROP QUERY q; DROP STREAM s")
        assert [(await both.hear(Closed)).code for _ in range(2)] == ["dropped", "dropped"]


@served(limits={"retained_tuples": 10})
async def test_a_subscriber_may_begin_earlier(daemon):
    async with peer(daemon) as feeder, peer(daemon) as reader:
        await feeder.open()
        for number in range(30):
            feeder.data(number, [(number, 0.0, "")])
            # One batch each: a batch that holds all of them would be kept as a whole.
            await until(lambda rows=number + 1: daemon.queries()[0].rows == rows)
        reader.say(Subscribe(1, "q", 3))
        error = await reader.hear()
        assert error.code == "not_retained"
        oldest = daemon.queries()[0].oldest_sequence
        assert oldest <= 20
        assert await reader.subscribe(from_sequence=25) == Subscribed(
            100, Schema.of(k="bigint", v="double", name="text"), 25
        )
        assert [row[0] for row in (await rows_of(reader, 5))[1]] == [25, 26, 27, 28, 29]


@served()
async def test_a_subscriber_gets_what_its_credit_allows(daemon):
    async with peer(daemon) as feeder, peer(daemon) as reader:
        await feeder.open()
        await reader.subscribe(credit=3)
        feeder.data(0, [(number, 0.0, "") for number in range(10)])
        assert (await rows_of(reader, 3))[1][-1][0] == 2
        await until(lambda: daemon.queries()[0].rows == 10)
        reader.say(Ping(1))
        assert isinstance(await reader.hear(), Pong)
        reader.credit(7)
        assert (await rows_of(reader, 7))[1][-1][0] == 9


@served()
async def test_progress_comes_to_who_asks(daemon):
    await daemon.catalog.execute(
        "CREATE STREAM e (ts TIMESTAMP, k BIGINT) WITH (timestamps = 'external', time = 'ts');"
        "CREATE QUERY p WITH (order = 'event') AS SELECT k FROM e"
    )
    async with peer(daemon) as feeder, peer(daemon) as reader:
        await reader.subscribe("p", progress=True)
        await feeder.open("e")
        feeder.data(0, [(10, 1), (20, 2)])
        feeder.say(Punctuation(0, 50))
        while (await reader.hear(Progress)).value_us < 50:
            pass
        assert [row[0] for result in reader.heard if isinstance(result, Result) for row in result.rows] == [1, 2]


# -- bad input -----------------------------------------------------------------------------------------------------


@served()
async def test_garbage_ends_its_own_connection_alone(daemon):
    async with peer(daemon) as reader, peer(daemon) as feeder:
        await reader.subscribe()
        await feeder.open()
        for raw, code in [
            (b"\x7f\xff\xff\xff", "frame_too_large"),
            (b"\x00\x00\x00\x00", "bad_frame"),
            (b"\x00\x00\x00\x03\xc1\xc1\xc1", "bad_message"),
            (frame(b"\x91" * 900), "bad_message"),
            (frame(encode(Data(0, 0, [(1, 1.0, "")]))), "unexpected_message"),
            (frame(encode(Hello(99, "x"))), "unsupported_protocol"),
        ]:
            async with peer(daemon, greet=False) as stranger:
                stranger.session.stage = type(stranger.session.stage).GREETED
                stranger.say_raw(raw)
                error = await stranger.hear(Error)
                assert (error.code, error.channel) == (code, None)
                assert await stranger.hear() is None
        feeder.data(0, [(1, 1.0, "still here")])
        assert (await rows_of(reader, 1))[1] == [(1, 1.0, "still here")]


@served()
async def test_half_a_frame_and_then_nothing(daemon):
    async with peer(daemon) as stranger:
        await stranger.open()
        stranger.say_raw(frame(encode(Data(0, 0, [(1, 1.0, "")])))[:-3])
        await stranger.close()
    await until(lambda: daemon.streams()[0].connections == 0)
    assert daemon.streams()[0].tuples == 0


def mutated(chance, samples):
    """A frame of any message with some bytes changed, removed or inserted; or plain noise.

    Most are DATA changed after its head, because those leave the connection open for the next frame.
    """
    if chance.randrange(50) == 0:
        return chance.randbytes(chance.randrange(1, 60))
    rows_only = chance.randrange(10) > 0
    body = bytearray(samples[chance.randrange(2)] if rows_only else chance.choice(samples))
    first = 5 if rows_only else 0
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(first, len(body))
        way = chance.randrange(3)
        if way == 0:
            body[at] = chance.randrange(256)
        elif way == 1 and len(body) > first + 8:
            del body[at : at + chance.randrange(1, 4)]
        else:
            body[at:at] = chance.randbytes(chance.randrange(1, 9))
    return frame(bytes(body))


@served(limits={"frame_bytes": 65536})
async def test_a_hundred_thousand_frames_of_nonsense(daemon, monkeypatch):
    """Well-behaved connections at the same time must not notice. A closed connection is opened again.

    The server counts the frames: frames after the one that ended a connection do not count.
    """
    looked_at = 0
    hear = FrameDialect._hear  # frames of a connection that is ending are in no metric

    def counted(self, body):
        nonlocal looked_at
        looked_at += 1
        hear(self, body)

    monkeypatch.setattr(FrameDialect, "_hear", counted)
    chance = random.Random(7)
    rows = [(1, 1.5, "abc"), (2, None, None)]
    arrow = to_stream(pa.table({"k": [1], "v": [1.0], "name": ["a"]}))
    samples = [
        encode(message)
        for message in (
            Data(0, 0, rows), Data(0, 2, rows * 10), Punctuation(0, 5), Open(1, "s", None, "x"), Subscribe(2, "q"),
            Credit(2, 5), Close(0), Ping(3), DataArrow(0, 0, 1, arrow), Hello(PROTOCOL, "x"),
        )
    ]  # fmt: skip
    hello = frame(encode(Hello(PROTOCOL, "stranger")))
    opens = frame(encode(Open(0, "s", None, "stranger")))

    async def torment():
        while looked_at < 100_000:
            reader, writer = await asyncio.open_connection(daemon.listen.host, daemon.listen.port)
            try:
                writer.write(hello + opens)
                writer.write(b"".join(mutated(chance, samples) for _ in range(chance.randrange(1, 80))))
                writer.write_eof()
                while await reader.read(65536):
                    pass
            except ConnectionError:
                pass
            finally:
                writer.close()

    async with peer(daemon) as reader, peer(daemon) as feeder:
        await reader.subscribe()
        await feeder.open(producer="good")
        torments = [asyncio.create_task(torment()) for _ in range(10)]
        sent = 0
        while not all(task.done() for task in torments):
            feeder.data(sent, [(10**9 + sent, 0.0, "good")])
            assert (await feeder.hear(Ack)).sequence == sent + 1
            sent += 1
            found = []
            while 10**9 + sent - 1 not in found:
                result = await reader.hear(Result)
                reader.credit(len(result.rows))
                found = [row[0] for row in result.rows]
        await asyncio.gather(*torments)
        assert sent > 10
    await until(lambda: not daemon.context.connections)


LATE_SQL = (
    "CREATE STREAM e (ts TIMESTAMP, k BIGINT) WITH (timestamps = 'external', time = 'ts');"
    "CREATE QUERY p AS SELECT k FROM e"
)


@served(sql=LATE_SQL)
async def test_a_feed_learns_at_its_end_how_many_tuples_were_late(daemon):
    async with peer(daemon, greet=False) as feeder:
        feeder.say(Hello(PROTOCOL, "x", None, ("late",)))
        await feeder.hear(Welcome)
        for channel, rows, late in ((0, [(10, 1), (20, 2)], 0), (1, [(5, 3), (7, 4), (30, 5), (6, 6)], 3)):
            await feeder.open("e", channel=channel, producer=str(channel))
            feeder.data(0, rows, channel)
            feeder.say(Close(channel))
            assert await feeder.hear(Closed) == Closed(channel, late=late)
        await feeder.open("e", channel=2)
        feeder.data(0, [(1, 1)], 2)
        await feeder.hear(Ack)
        await until(lambda: next(stream for stream in daemon.streams() if stream.name == "e").late == 4)
        await daemon.catalog.execute("DROP QUERY p; DROP STREAM e")
        said = await feeder.hear(Closed)
        assert (said.code, said.late) == ("dropped", 1)


LARGE_SQL = (
    "CREATE STREAM e (ts TIMESTAMP, k BIGINT, n BIGINT) WITH (time = 'ts'); "
    "CREATE QUERY large AS SELECT k, sum(n) AS n FROM e GROUP BY k HAVING sum(n) > 1"
)


@pytest.mark.parametrize(("offered", "name"), [(None, "$gone"), ((), "$gone"), (("deleted",), "$deleted")])
@pytest.mark.parametrize("layout", ["rows", "arrow"])
@served(sql=LARGE_SQL)
async def test_the_mark_of_tombstones_has_the_name_that_the_client_knows(daemon, offered, name, layout):
    async with peer(daemon, greet=False) as client:
        client.say(Hello(PROTOCOL, "x", None, offered))
        await client.hear(Welcome)
        said = await client.subscribe("large", format=layout)
        assert said.schema.names == ("k", "n", name)
        assert said.schema.retracts
        await client.open("e", channel=101)
        client.data(0, [(1, 7, 2)], 101)
        kind = Result if layout == "rows" else ResultArrow
        first = await client.hear(kind)
        client.data(1, [(2, 7, -1)], 101)
        second = await client.hear(kind)
        if layout == "rows":
            assert [*first.rows, *second.rows] == [(7, 2, False), (7, None, True)]
        else:
            table = pa.ipc.open_stream(second.batch).read_all()
            assert table.to_pylist() == [{"k": 7, "n": None, name: True}]


@served(sql=LATE_SQL)
async def test_a_feed_without_the_capability_ends_as_before(daemon):
    async with peer(daemon) as feeder:
        await feeder.open("e")
        feeder.data(0, [(10, 1), (1, 2)])
        feeder.say(Close(0))
        assert await feeder.hear(Closed) == Closed(0)


@served(sql=LATE_SQL)
async def test_a_feed_that_said_close_was_not_lost(daemon):
    """Whether its connection breaks before the answer or not: nothing waits for it."""
    async with peer(daemon, greet=False) as feeder:
        feeder.say(Hello(PROTOCOL, "x", None, ("late",)))
        await feeder.hear(Welcome)
        await feeder.open("e")
        feeder.say(Close(0))
        feeder.writer.transport.abort()
    await until(lambda: not daemon.streams()[0].feeds)


@served()
async def test_an_error_of_a_row_counts_from_1_in_its_text_and_from_0_in_its_field(daemon):
    async with peer(daemon) as feeder:
        await feeder.open()
        feeder.data(0, [(1, 1.5, "a"), ("x", 2.5, "b")])
        error = await feeder.hear(Error)
        assert (error.code, error.sequence, error.row) == ("bad_row", 0, 1)
        assert error.text == "row 2, field k: expected bigint (an integer of 64 bits), got 'x'"
