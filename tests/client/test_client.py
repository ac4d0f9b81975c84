"""AsyncClient and Client against a small server that speaks the protocol."""

import asyncio
import random
import ssl
import threading
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import uvloop

from millrace.client import AsyncClient, Backoff, Client, ConnectionLost, Ended, Feed, ProgressTo, RowBatch, ServerError
from millrace.client.address import parse_address
from millrace.protocol import Field, MillraceError, PeerError, Refuse, Schema, Type, encode, frame
from millrace.protocol.messages import Bye, Closed, Credit, Error, EtsRequest, Limits, Progress
from tests.client.fake_server import SCHEMA, FakeServer
from tests.patience import HANG_SECONDS

CERTIFICATE = Path(__file__).parent / "certificate.pem"  # self-signed, with its key, for 127.0.0.1
QUICK = Backoff(first=0.001, most=0.01, attempts=200)


def rows_of(count, start=0):
    return [(i, i * 10, f"n{i}") for i in range(start, start + count)]


def run(coroutine, new_loop=asyncio.new_event_loop):
    async def bounded():
        async with asyncio.timeout(HANG_SECONDS):
            return await coroutine

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(bounded())


async def until(true):
    """Run the loop until the condition holds. Real sockets offer no event to wait for."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.0005)


async def end_of(feed):
    """Wait for the end of a feed, and raise its error."""
    await feed._waiting.until(lambda: False)  # a public wait also ends without an error


def sent(server):
    """How many rows the server has sent to the subscription `q`."""
    return next(channel.next_sequence for channel in server.last.session.channels.values() if channel.name == "q")


async def send_until_it_fails(feed):
    while True:
        await feed.send(rows_of(1))
        await feed.flush()


async def read_all(subscription):
    return [row async for row in subscription]


def scenario(**options):
    """Run a test with a server and a connected client, on the loops of asyncio and uvloop."""

    def decorate(test):
        def wrapped(new_loop):
            async def play():
                async with (
                    FakeServer(**options) as server,
                    AsyncClient(server.address, reconnect=QUICK) as client,
                ):
                    await test(server, client)

            run(play(), new_loop)

        wrapped.__name__ = test.__name__
        wrapped.__doc__ = test.__doc__
        return pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])(wrapped)

    return decorate


@scenario()
async def test_rows_arrive_in_order_and_are_acknowledged(server, client):
    async with await client.open("s") as feed:
        assert feed.schema == SCHEMA
        await feed.send(rows_of(10))
        await feed.send([{"ts": 10, "name": "x"}, {"k": 1, "ts": 11}])
        await feed.send({"ts": 12})
        await feed.flush()
        assert feed.acknowledged == feed.next_sequence == 13
        assert feed.held == 0
    assert server.feed().rows == [*rows_of(10), (10, None, "x"), (11, 1, None), (12, None, None)]


@scenario()
async def test_small_sends_share_a_frame(server, client):
    feed = await client.open("s")
    for row in rows_of(50):
        await feed.send([row])
    await feed.flush()
    assert server.feed().frames == [50]


@scenario(credit=64, limits=Limits(frame_bytes=2_000))
async def test_a_large_send_is_split_by_credit_and_frame_limit(server, client):
    feed = await client.open("s")
    await feed.send([(i, i, "x" * 90) for i in range(1_000)])
    await feed.flush()
    assert [row[0] for row in server.feed().rows] == list(range(1_000))
    assert max(server.feed().frames) <= 20
    with pytest.raises(ValueError, match="does not fit a frame"):
        await feed.send([(1, 1, "x" * 3_000)])


@scenario(credit=100, give_back=False)
async def test_send_waits_while_too_much_is_held_and_resumes_with_credit(server, client):
    feed = await client.open("s", held_tuples=300)
    sending = asyncio.ensure_future(send_many(feed, 1_000))
    await until(lambda: server.feeds and len(server.feed().rows) == 100)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not sending.done()
    assert feed.held <= 310
    assert len(server.feed().rows) == 100
    server.give_back = True
    server.last.say(Credit(0, 100))
    await sending
    await feed.flush()
    assert server.feed().rows == rows_of(1_000)


async def send_many(feed, count):
    for start in range(0, count, 10):
        await feed.send(rows_of(10, start))


@scenario(credit=100, give_back=False)
async def test_a_frame_above_a_small_grant_is_split(server, client):
    feed = await client.open("s")
    await feed.send(rows_of(150))
    await until(lambda: len(server.feed().rows) == 100)
    for _ in range(25):
        server.last.say(Credit(0, 2))
    await feed.flush()
    assert server.feed().rows == rows_of(150)


@scenario(credit=300)
async def test_arrow_batches(server, client):
    feed = await client.open("s")
    table = pyarrow.table({"ts": list(range(1_000)), "k": list(range(1_000)), "name": ["x"] * 1_000})
    await feed.send_arrow(table)
    await feed.send_arrow(table.slice(0, 3).to_batches()[0])
    await feed.send(rows_of(2))
    await feed.flush()
    assert [row[0] for row in server.feed().rows] == [*range(1_000), 0, 1, 2, 0, 1]


@scenario(credit=100, give_back=False)
async def test_an_arrow_batch_above_a_small_grant_is_split(server, client):
    feed = await client.open("s")
    await feed.send(rows_of(60))
    await feed.send_arrow(pyarrow.table({"ts": list(range(60)), "k": [1] * 60, "name": ["x"] * 60}))
    await until(lambda: len(server.feed().rows) == 100)
    server.last.say(Credit(0, 20))
    await feed.flush()
    assert [row[0] for row in server.feed().rows] == [*range(60), *range(60)]


@scenario()
async def test_punctuation_keeps_its_place(server, client):
    feed = await client.open("s")
    await feed.send(rows_of(2))
    await feed.punctuate(5)
    await feed.send(rows_of(1, 7))
    await feed.punctuate(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    await feed.punctuate("1970-01-01T00:00:02Z")
    await feed.flush()
    assert server.feed().log == [*rows_of(2), 5, *rows_of(1, 7), 2_000_000]


@scenario()
async def test_datetimes_become_microseconds(server, client):
    feed = await client.open("s")
    await feed.send([(datetime(2026, 1, 1, tzinfo=UTC), 1, "x")])
    await feed.flush()
    assert server.feed().rows == [(1_767_225_600_000_000, 1, "x")]


@scenario()
async def test_times_of_numpy_become_microseconds_whatever_their_unit(server, client):
    feed = await client.open("s")
    await feed.send([(np.datetime64("2026-01-01", unit), 1, "x") for unit in ("s", "ms", "us", "ns")])
    await feed.flush()
    assert server.feed().rows == [(1_767_225_600_000_000, 1, "x")] * 4


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"ts": 1, "kk": 2}], "^row 1: unknown field 'kk': expected the fields"),
        ([(1, 2**64, "x")], "^row 1: expected integers of 64 bits, got 18446744073709551616$"),
        ([(1, object(), "x")], "^row 1: expected None, .*, got object$"),
        ([{"ts": 1}, (1, 2, "x")], "^row 3: expected rows that are all mappings or all sequences, got both$"),
        ([(1, 1, "x"), (1, "\ud800", "x")], "^row 3: "),
        ([*[(1, 1, "x")] * 20_000, (1, object(), "x")], "^row 20002: expected None, "),
    ],
    ids=["a name", "a large integer", "an object", "both forms", "half a surrogate pair", "a later frame"],
)
def test_rows_that_cannot_be_packed_are_refused_whole(rows, words):
    """The text has the place of the row in the call, from 1."""

    @scenario()
    async def play(server, client):
        feed = await client.open("s")
        with pytest.raises((ValueError, TypeError), match=words):
            await feed.send([*([rows[0]] if len(rows) > 1 else []), *rows])
        await feed.send(rows_of(1))
        await feed.flush()
        assert server.feed().rows == rows_of(1)

    play(asyncio.new_event_loop)


@scenario(refuse=lambda rows: ("bad_row", 1, "an integer", "text") if rows[0][0] < 0 else None)
async def test_refused_rows_raise_and_other_frames_are_not_affected(server, client):
    feed = await client.open("s", frame_rows=2)
    await feed.send([*rows_of(2), (-1, 1, "x"), (-1, 2, "x"), *rows_of(2, 2), (-1, 3, "x"), (-1, 4, "x")])
    with pytest.raises(ServerError) as caught:
        await feed.flush()
    error = caught.value
    assert (error.code, error.sequence, error.row) == ("bad_row", 2, 1)
    assert (error.expected, error.got) == ("an integer", "text")
    assert [other.sequence for other in error.others] == [6]
    await feed.flush()
    assert server.feed().rows == rows_of(4)


@scenario()
async def test_a_feed_that_counts_differently_ends(server, client):
    feed = await client.open("s")
    server.last.say(Error("out_of_order", "expected 7", 0, 0))
    with pytest.raises(ServerError, match="expected 7"):
        await end_of(feed)


@scenario()
async def test_open_raises_refusals(server, client):
    with pytest.raises(ServerError) as caught:
        await client.open("unknown")
    assert caught.value.code == "unknown_stream"
    await client.open("s", producer="p")
    with pytest.raises(Refuse) as second:
        await client.open("s", producer="p")
    assert second.value.code == "already_open"
    with pytest.raises(ServerError) as caught:
        await client.subscribe("unknown")
    assert caught.value.code == "unknown_query"
    schema = Schema.of(a="bigint")
    await client.open("s2", schema=schema)
    assert server.opens[-1].fingerprint == schema.fingerprint()


@scenario()
async def test_a_known_producer_resumes(server, client):
    async with await client.open("s", producer="p") as feed:
        await feed.send(rows_of(5))
    async with await client.open("s", producer="p") as feed:
        assert feed.next_sequence == 5
        await feed.send(rows_of(5, 5))
    assert server.feed().rows == rows_of(10)


# Broken connections.


@pytest.mark.parametrize("acknowledge", [True, False])
def test_a_broken_connection_loses_and_repeats_no_row(acknowledge):
    @scenario(credit=100, acknowledge=acknowledge)
    async def play(server, client):
        feed = await client.open("s", frame_rows=10)
        for start in range(0, 400, 20):
            await feed.send(rows_of(20, start))
            await feed.punctuate(start + 20)
            if start % 80 == 60:
                await asyncio.sleep(0.002)
                server.last.cut()
                await reconnected(server)
        server.acknowledge = True
        server.last.cut()
        await feed.flush()
        assert server.feed().rows == rows_of(400)
        assert server.connected > 5
        grammatical(server.feed().log)

    play(asyncio.new_event_loop)


async def reconnected(server):
    seen = server.connected
    await until(lambda: server.connected > seen)


def grammatical(log):
    """No row is below an earlier punctuation."""
    mark = -1
    for item in log:
        if isinstance(item, int):
            mark = max(mark, item)
        else:
            assert item[0] >= mark
    assert mark == 400


@scenario()
async def test_a_punctuation_with_nothing_after_it_survives_a_reconnect(server, client):
    feed = await client.open("s")
    await feed.send(rows_of(1))
    await feed.punctuate(77)
    await feed.flush()
    server.last.cut()
    await reconnected(server)
    await feed.send(rows_of(1, 80))
    await feed.flush()
    assert server.feed().log == [*rows_of(1), 77, 77, *rows_of(1, 80)]


def test_all_calls_raise_connection_lost_after_the_last_attempt():
    async def play():
        async with FakeServer() as server:
            client = await AsyncClient.connect(server.address, reconnect=Backoff(first=0.001, attempts=2))
            server.results["q"] = rows_of(3)
            subscription = await client.subscribe("q")
            feed = await client.open("s")
            await feed.send(rows_of(1))
            await feed.flush()
            await server.stop_listening()
            with pytest.raises(ConnectionLost, match="could not be restored"):
                await send_until_it_fails(feed)
            with pytest.raises(ConnectionLost):
                await client.open("s")
            with pytest.raises(ConnectionLost):
                await read_all(subscription)
            with pytest.raises(ConnectionLost):
                await feed.close()
            with pytest.raises(ConnectionLost):
                await client.close()
            await client.close()

    run(play())


def test_no_server_and_no_reconnect():
    async def play():
        async with FakeServer() as server:
            address = server.address
            client = await AsyncClient.connect(address, reconnect=None)
            feed = await client.open("s")
            server.last.cut()
            with pytest.raises(ConnectionLost):
                await end_of(feed)
            with pytest.raises(ConnectionLost):
                await client.close()
        with pytest.raises(ConnectionLost, match="is the server running"):
            await AsyncClient.connect(address)

    run(play())


def test_a_wrong_token_raises_without_another_attempt():
    async def play():
        async with FakeServer(token="secret") as server:
            for token in (None, "wrong"):
                with pytest.raises(ServerError) as caught:
                    await AsyncClient.connect(server.address, token=token)
                assert caught.value.code == "unauthorised"
            async with AsyncClient(server.address, token="secret") as client:
                assert client.server == "fake"
            assert server.connected == 3

    run(play())


def test_tls():
    async def play():
        here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        here.load_cert_chain(CERTIFICATE)
        there = ssl.create_default_context(cafile=CERTIFICATE)
        async with FakeServer(tls=here) as server:
            async with AsyncClient(server.address, tls=there) as client:
                feed = await client.open("s")
                await feed.send(rows_of(1_000))
                await feed.flush()
                assert server.feed().rows == rows_of(1_000)
            with pytest.raises(ConnectionLost, match="certificate"):
                await AsyncClient.connect(server.address, tls=True)

    run(play())


def test_invalid_bytes_from_the_server_end_the_client():
    @scenario()
    async def play(server, client):
        feed = await client.open("s")
        await feed.send(rows_of(1))
        await feed.flush()
        server.last.transport.write(b"\x00\x00\x00\x03\xc1\xc1\xc1")
        with pytest.raises(PeerError):
            await end_of(feed)
        with pytest.raises(PeerError):
            await client.open("s")
        assert server.connected == 1
        assert server.complaints == ["bad_message"]

    with pytest.raises(PeerError):
        play(asyncio.new_event_loop)


def test_a_silent_server_is_disconnected():
    async def play():
        async with FakeServer() as server:
            server.silent = True
            with pytest.raises(ConnectionLost, match="HELLO"):
                await AsyncClient.connect(server.address, heartbeat=0.01)
            server.silent = False
            async with AsyncClient(server.address, heartbeat=0.25, reconnect=QUICK) as client:
                feed = await client.open("s")
                server.silent = True
                await reconnected(server)
                server.silent = False
                await feed.send(rows_of(3))
                await feed.flush()
                assert server.feed().rows == rows_of(3)

    run(play())


def test_pings_keep_idle_connections_open():
    async def play():
        async with FakeServer() as server, AsyncClient(server.address, heartbeat=0.25) as client:
            await until(lambda: server.pings >= 2)
            assert server.connected == 1
            assert client.writable

    run(play())


@scenario()
async def test_the_server_ends_a_feed(server, client):
    feed = await client.open("s")
    server.last.say(Closed(0, "dropped", "stream s was dropped"))
    with pytest.raises(ServerError, match="was dropped") as caught:
        await end_of(feed)
    assert caught.value.code == "dropped"
    with pytest.raises(ServerError):
        await feed.send(rows_of(1))


@scenario()
async def test_a_closed_feed_refuses_rows(server, client):
    feed = await client.open("s")
    await feed.close()
    await feed.close()
    with pytest.raises(Ended):
        await feed.send(rows_of(1))
    with pytest.raises(Ended):
        await feed.punctuate(1)


@scenario(give_back=False, acknowledge=False, credit=1)
async def test_leaving_by_an_exception_does_not_wait(server, client):
    async def leave():
        async with await client.open("s") as feed:
            await feed.send(rows_of(100))
            raise KeyError

    with pytest.raises(KeyError):
        await leave()


# Timestamps on demand.


async def answered(server, count):
    await until(lambda: len(server.answers) == count)
    return server.answers[-1].value_us


@scenario(credit=10, give_back=False)
async def test_an_answer_never_exceeds_the_oldest_unsent_row(server, client):
    feed = await client.open("s", answer=lambda need: need + 1_000)
    server.last.say(EtsRequest(0, 0, 50))
    assert await answered(server, 1) == 1_050
    await feed.send([(2_000 + i, 1, "x") for i in range(15)])
    await until(lambda: len(server.feed().rows) == 10)
    server.last.say(EtsRequest(0, 1, 5_000))
    assert await answered(server, 2) == 2_010
    await feed.send_arrow(pyarrow.table({"ts": [1_500], "k": [1], "name": ["x"]}))
    server.last.say(EtsRequest(0, 2, 5_000))
    assert await answered(server, 3) == 1_500
    server.last.say(Credit(0, 100))
    await feed.flush()
    server.last.say(EtsRequest(0, 3, 5_000))
    assert await answered(server, 4) == 6_000


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 1_000), ("ns", 10**9)])
def test_an_answer_is_compared_with_unsent_rows_of_any_unit(unit, per_second):
    async def play():
        async with (
            FakeServer(unit=unit, credit=1, give_back=False) as server,
            AsyncClient(server.address) as client,
        ):
            feed = await client.open("s", answer=lambda need: need + 10)
            await feed.send([(5 * per_second, 1, "x")])
            await until(lambda: len(server.feed().rows) == 1)
            await feed.send([(7 * per_second, 1, "x"), (datetime(1970, 1, 1, 0, 0, 6, tzinfo=UTC), 1, "x")])
            server.last.say(EtsRequest(0, 0, 100_000_000))
            assert await answered(server, 1) == 6_000_000
            await feed.send_arrow(pyarrow.table({"ts": [4 * per_second], "k": [1], "name": ["x"]}))
            server.last.say(EtsRequest(0, 1, 100_000_000))
            assert await answered(server, 2) == 4_000_000
            server.last.say(Credit(0, 100))
            await feed.flush()

    run(play())


def test_a_feed_ends_if_the_unit_changed_while_it_was_not_connected():
    """Rows that it holds were packed for the other unit."""

    async def play():
        async with FakeServer(unit="ms") as server, AsyncClient(server.address, reconnect=QUICK) as client:
            feed = await client.open("s")
            await feed.send([(datetime(2026, 1, 1, tzinfo=UTC), 1, "x")])
            await feed.flush()
            assert server.feed().rows == [("2026-01-01T00:00:00Z", 1, "x")]
            server.last.cut()
            await reconnected(server)
            await feed.send([(1, 1, "x")])
            await feed.flush()
            server.unit = "s"
            server.last.cut()
            with pytest.raises(ServerError, match="its time_unit was 'ms' and is 's' now; open the feed again"):
                await end_of(feed)

    run(play())


@scenario()
async def test_clock_none_and_no_answer(server, client):
    clock = await client.open("s", answer="clock")
    await client.open("s2", answer=lambda need: None)
    await client.open("s3")
    assert [opened.answers for opened in server.opens] == [True, True, False]
    server.last.say(EtsRequest(0, 0, 50))
    assert abs(await answered(server, 1) - datetime.now(UTC).timestamp() * 1e6) < 60e6
    server.last.say(EtsRequest(1, 0, 50))
    assert await answered(server, 2) is None
    await clock.close()


@scenario()
async def test_an_answer_function_that_raises_ends_the_feed_with_its_exception(server, client):
    def answer(need):
        raise KeyError("mine")

    feed = await client.open("s", answer=answer)
    server.last.say(EtsRequest(0, 0, 50))
    with pytest.raises(KeyError):
        await end_of(feed)


# Subscriptions.


@scenario()
async def test_a_subscription_returns_dicts_and_batches(server, client):
    server.results["q"] = rows_of(20)
    async with await client.subscribe("q", from_sequence=5) as subscription:
        got = []
        async for row in subscription:
            got.append(row)
            if len(got) == 9:
                break
    assert got == [dict(zip(SCHEMA.names, row, strict=True)) for row in rows_of(9, 5)]
    subscription = await client.subscribe("q")
    batch = await subscription.next_batch()
    assert (batch.sequence, list(batch.rows), batch.schema) == (0, rows_of(7), SCHEMA)
    await subscription.close()
    assert [row async for row in subscription] == batches_left(rows_of(13, 7))


def batches_left(rows):
    return [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]


@scenario()
async def test_a_slow_reader_queues_at_most_a_window(server, client):
    server.results["q"] = rows_of(1_000)
    subscription = await client.subscribe("q", window=20)
    for _ in range(50):
        await asyncio.sleep(0)
    assert sent(server) == 20
    got = []
    async for batch in subscription.batches():
        got.extend(batch.rows)
        assert sent(server) <= len(got) + 20
        if len(got) == 1_000:
            break
    assert got == rows_of(1_000)


@scenario()
async def test_a_subscription_resumes_after_a_reconnect(server, client):
    server.results["q"] = rows_of(500)
    subscription = await client.subscribe("q", window=30)
    got = []
    cuts = [70, 210, 350]
    async for batch in subscription.batches():
        got.extend(batch.rows)
        if cuts and len(got) >= cuts[0] and server.connections:
            server.last.cut()
            del cuts[0]
        if len(got) == 500:
            break
    assert got == rows_of(500)
    assert server.connected == 4


@scenario()
async def test_rows_unread_at_a_reconnect_count_against_the_window(server, client):
    server.results["q"] = rows_of(100)
    subscription = await client.subscribe("q", window=20)
    await client.open("s")  # its answer arrives after the rows
    assert sent(server) == 20
    server.last.cut()
    await until(lambda: len(server.subscribes) == 2)
    assert (server.subscribes[1].from_sequence, server.subscribes[1].credit) == (20, 0)
    batches = subscription.batches()
    got: list[tuple] = []
    while len(got) < 100:
        got.extend((await anext(batches)).rows)
        assert sent(server) <= len(got) + 20
    assert got == rows_of(100)


@scenario()
async def test_progress_keeps_its_place(server, client):
    server.results["q"] = rows_of(2)
    subscription = await client.subscribe("q", progress=True)
    assert server.subscribes[0].progress
    server.last.say(Progress(0, 10))
    server.last.say(Progress(0, 20))
    server.results["q"] += rows_of(1, 2)
    server.last.deliver(0)
    server.last.say(Closed(0, "dropped", "gone"))
    seen = [(len(await subscription.next_batch()), subscription.progress_us) for _ in range(2)]
    with pytest.raises(ServerError, match="gone"):
        await subscription.next_batch()
    assert seen == [(2, None), (1, 20)]


@scenario()
async def test_updates_are_batches_and_progress_in_order(server, client):
    server.results["q"] = rows_of(2)
    subscription = await client.subscribe("q", progress=True)
    server.last.say(Progress(0, 10))
    server.last.say(Progress(0, 20))
    server.results["q"] += rows_of(1, 2)
    server.last.deliver(0)
    server.last.say(Progress(0, 30))
    seen = []
    async for update in subscription.updates():
        seen.append(update.below_us if isinstance(update, ProgressTo) else len(update))
        if seen[-1] == 30:
            break
    assert seen == [2, 20, 1, 30]
    assert subscription.progress_us == 30


@scenario()
async def test_rows_lost_at_a_reconnect_end_a_subscription_or_count_as_a_gap(server, client):
    server.results["q"] = rows_of(3)
    strict = await client.subscribe("q")
    lenient = await client.subscribe("q", on_gap="continue")
    assert [len(await subscription.next_batch()) for subscription in (strict, lenient)] == [3, 3]
    server.results["q"] = rows_of(2, 70)
    server.last.cut()
    with pytest.raises(ServerError) as caught:
        await strict.wait()
    assert caught.value.code == "not_retained"
    batch = await lenient.next_batch()
    assert (batch.sequence, list(batch.rows), lenient.gaps) == (0, rows_of(2, 70), 1)
    with pytest.raises(ServerError):
        await client.subscribe("q", from_sequence=9, on_gap="continue")


@scenario(histories={"q": "first"})
async def test_a_sequence_of_another_history_is_refused(server, client):
    server.results["q"] = rows_of(3)
    strict = await client.subscribe("q")
    lenient = await client.subscribe("q", on_gap="continue")
    for subscription in (strict, lenient):
        batch = await subscription.next_batch()
        assert (len(batch), batch.history, subscription.history) == (3, "first", "first")
    server.results["q"], server.histories["q"] = rows_of(5, 70), "second"
    server.last.cut()
    with pytest.raises(ServerError, match="another history"):
        await strict.wait()
    batch = await lenient.next_batch()
    assert (batch.sequence, list(batch.rows), batch.history) == (0, rows_of(5, 70), "second")
    assert (lenient.gaps, lenient.history, lenient.next_sequence) == (1, "second", 5)
    with pytest.raises(ServerError, match="another history"):
        await client.subscribe("q", from_sequence=3, history="first")
    for history in ("second", None):  # without an id, the current history
        again = await client.subscribe("q", from_sequence=3, history=history)
        assert (await again.next_batch()).sequence == 3


@scenario(histories={"q": "first"})
async def test_the_same_history_continues_after_a_reconnect(server, client):
    server.results["q"] = rows_of(3)
    subscription = await client.subscribe("q")
    assert len(await subscription.next_batch()) == 3
    server.results["q"] = rows_of(5)
    server.last.cut()
    assert list((await subscription.next_batch()).rows) == rows_of(2, 3)
    assert server.subscribes[-1].history == "first"


@pytest.mark.parametrize("options", [{"old": True}, {}], ids=["refuses the field", "grants nothing"])
def test_a_server_without_capabilities(options):
    async def play():
        async with FakeServer(**options) as server, AsyncClient(server.address, reconnect=QUICK) as client:
            feed = await client.open("s")
            await feed.send(rows_of(3))
            await feed.flush()
            server.results["q"] = rows_of(3)
            subscription = await client.subscribe("q", from_sequence=1, history="of another server")
            batch = await subscription.next_batch()
            assert batch is not None
            assert len(batch) == 2
            assert (subscription.history, server.subscribes[-1].history) == (None, None)
            connected = server.connected
            server.last.cut()
            server.results["q"] = rows_of(5)
            batch = await subscription.next_batch()
            assert isinstance(batch, RowBatch)
            assert list(batch.rows) == rows_of(2, 3)
            await feed.send(rows_of(1, 3))
            await feed.flush()
            assert server.feed().rows == rows_of(4)
            assert (connected, server.connected) == ((2, 4) if server.old else (1, 2))

    run(play())


def test_a_server_without_capabilities_needs_no_second_attempt():
    """The connection without capabilities is part of the first attempt, even with `reconnect=None`."""

    async def play():
        async with FakeServer(old=True, token="right") as server:
            async with AsyncClient(server.address, reconnect=None, token="right") as client:
                assert client.server == "fake"
            with pytest.raises(ServerError) as caught:
                await AsyncClient.connect(server.address, token="wrong")
            assert caught.value.code == "unauthorised"

    run(play())


def test_on_lost_is_called_when_the_connection_breaks():
    async def play():
        lost: list[BaseException | None] = []
        async with FakeServer() as server, AsyncClient(server.address, reconnect=QUICK, on_lost=lost.append) as client:
            server.results["q"] = rows_of(3)
            subscription = await client.subscribe("q")
            await subscription.next_batch()
            server.results["q"] = rows_of(5)
            server.last.cut()
            await subscription.next_batch()
            assert len(lost) == 1

    run(play())


@scenario()
async def test_a_busy_feed_survives_a_server_shutdown(server, client):
    """Unwritten rows wait for the next connection: the channels of the old one are closed."""
    feed = await client.open("s")
    await feed.send(rows_of(3))
    client._wire.data_received(frame(encode(Bye("the server is ending"))))
    assert client._wire.session.channels == {}
    feed.pump()
    client.writable_again()
    await feed.punctuate(2)
    await feed.send(rows_of(2, 3))
    await feed.flush()
    assert server.feed().rows == rows_of(5)
    assert server.connected == 2


@scenario(refuse=lambda rows: ("bad_row", 0, "bigint", "text") if rows[0][0] == 0 else None)
async def test_a_feed_counts_refused_tuples(server, client):
    feed = await client.open("s")
    await feed.send(rows_of(3))
    with pytest.raises(ServerError):
        await feed.flush()
    await feed.send(rows_of(2, 3))
    await feed.flush()
    assert (feed.acknowledged, feed.refused, feed.late) == (5, 3, None)


@scenario()
async def test_a_query_dropped_during_a_reconnect_raises(server, client):
    server.results["q"] = rows_of(3)
    subscription = await client.subscribe("q")
    del server.results["q"]
    server.last.cut()
    with pytest.raises(ServerError) as caught:
        await read_all(subscription)
    assert caught.value.code == "unknown_query"


@scenario()
async def test_an_error_without_a_channel_ends_the_client(server, client):
    feed = await client.open("s")
    server.last.say(Error("unexpected_message", "no"))
    with pytest.raises(ServerError):
        await end_of(feed)
    with pytest.raises(ServerError):
        await client.close()


# For programs without an event loop.


@pytest.fixture
def threaded_server():
    """A fake server whose loop runs in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = FakeServer()
    server.loop = loop
    asyncio.run_coroutine_threadsafe(server.listen(), loop).result(HANG_SECONDS)
    yield server
    asyncio.run_coroutine_threadsafe(server.stop_listening(), loop).result(HANG_SECONDS)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_the_synchronous_client_feeds_and_reads(threaded_server):
    server = threaded_server
    server.results["q"] = rows_of(12)
    with Client(server.address, reconnect=QUICK) as client:
        with client.open("s") as feed:
            for start in range(0, 100, 10):
                feed.send(rows_of(10, start))
            feed.punctuate(100)
            feed.flush(timeout=HANG_SECONDS)
            assert feed.acknowledged == 100
        with client.subscribe("q") as subscription:
            batches = subscription.batches(timeout=HANG_SECONDS)
            assert sum(len(next(batches)) for _ in range(2)) == 12
            with pytest.raises(TimeoutError):
                next(subscription.batches(timeout=0.01))
            server.results["q"] += rows_of(1, 12)
    assert server.feed().log == [*rows_of(100), 100]
    client.close()
    with pytest.raises(MillraceError):
        client.open("s")


def test_the_synchronous_client_reports_why_it_cannot_connect(threaded_server):
    threaded_server.token = "x"
    before = threading.active_count()
    with pytest.raises(ServerError):
        Client(threaded_server.address)
    assert threading.active_count() == before


def test_the_synchronous_client_does_not_hide_exceptions_of_the_program(threaded_server):
    def leave():
        with Client(threaded_server.address) as client:
            client.open("s")
            raise KeyError

    with pytest.raises(KeyError):
        leave()


def test_an_answer_function_that_uses_the_client_raises(threaded_server):
    server = threaded_server
    with Client(server.address) as client:
        opened: list[Feed] = []
        feed = client.open("s", answer=lambda need: opened[0].flush())
        opened.append(feed)
        server.loop.call_soon_threadsafe(server.last.say, EtsRequest(0, 0, 5))
        with pytest.raises(RuntimeError, match="client's thread"):
            client.run(end_of(feed._feed), 10)


# Helpers.


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("127.0.0.1", ("127.0.0.1", 7420)),
        ("host.example:80", ("host.example", 80)),
        (" millrace://h:1 ", ("h", 1)),
        ("[::1]:7", ("::1", 7)),
        ("[::1]", ("::1", 7420)),
        ("::1", ("::1", 7420)),
    ],
)
def test_addresses(address, place):
    assert parse_address(address) == place


@pytest.mark.parametrize("address", ["", ":80", "h:", "h:0", "h:65536", "h:x", "h:-1"])
def test_invalid_addresses(address):
    with pytest.raises(ValueError, match="expected an address"):
        parse_address(address)


def test_pauses_grow_to_a_maximum_and_end():
    backoff = Backoff(first=1, factor=2, most=5, attempts=6)
    pauses = list(backoff.pauses(random.Random(1)))
    lengths = [1, 2, 4, 5, 5, 5]
    assert all(length / 2 <= pause <= length for pause, length in zip(pauses, lengths, strict=True))
    assert pauses != list(backoff.pauses(random.Random(2)))


@pytest.mark.parametrize("name", ["$gone", "$deleted"])
def test_rows_of_an_update_stream_have_both_marks(name):
    """Whichever name the server writes: `$gone` is read until 0.3."""
    schema = Schema((Field("k", Type.BIGINT), Field("n", Type.BIGINT), Field(name, Type.BOOLEAN, False)))
    batch = RowBatch(0, schema, [(1, 5, False), (1, None, True)])
    assert batch.dicts() == [
        {"k": 1, "n": 5, "$gone": False, "$deleted": False},
        {"k": 1, "n": None, "$gone": True, "$deleted": True},
    ]
