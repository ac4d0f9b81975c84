"""Clients try several addresses, follow a promotion, refuse what it has replaced, and report what it has lost."""

import asyncio

import pytest

from millrace.client import AsyncClient, Backoff, Client, ConnectionLost, ServerError
from millrace.client.address import parse_addresses
from tests.client.fake_server import FakeServer
from tests.client.test_client import QUICK, rows_of, run, until

FIRST, SECOND = "1-0123456789abcdef", "2-fedcba9876543210"


def pair(test):
    """A test with a primary, its standby and a client that knows both."""

    def play():
        async def scene():
            async with (
                FakeServer(epoch=FIRST) as primary,
                FakeServer(epoch=SECOND, standby=True) as standby,
                AsyncClient(f"{primary.address},{standby.address}", reconnect=QUICK) as client,
            ):
                await test(primary, standby, client)

        run(scene())

    play.__name__, play.__doc__ = test.__name__, test.__doc__
    return play


async def promote(primary, standby):
    """The primary's machine is lost, and its standby takes over."""
    await primary.stop_listening()
    standby.standby = False


def test_addresses():
    two = [("a", 7420), ("b", 7)]
    assert parse_addresses("a,b:7") == parse_addresses(["a", "b:7"]) == parse_addresses("millrace://a:7420,b:7") == two
    assert parse_addresses("a, b:7 ,a") == two
    assert parse_addresses("[::1]:7") == [("::1", 7)]
    invalid: list[str | list[str]] = ["", "a,", "a,b:x", []]
    for nonsense in invalid:
        with pytest.raises(ValueError, match="expected "):
            parse_addresses(nonsense)


@pair
async def test_a_client_follows_a_promotion(primary, standby, client):
    feed = await client.open("s", producer="p")
    await feed.send(rows_of(10))
    await feed.flush()
    assert client.epoch == 1
    standby.feeds = dict(primary.feeds)
    await promote(primary, standby)
    await feed.send(rows_of(5, 10))
    await feed.flush()
    assert client.epoch == 2
    assert standby.feed().rows == rows_of(15)
    assert standby.hellos[-1].epoch == FIRST
    assert standby.opens[-1].epoch == 1
    assert f"{client.host}:{client.port}" == standby.address


def test_the_first_connection_skips_a_standby():
    async def scene():
        async with FakeServer(epoch=FIRST) as primary, FakeServer(standby=True) as standby:
            async with AsyncClient([standby.address, primary.address]) as client:
                assert f"{client.host}:{client.port}" == primary.address
            with pytest.raises(ServerError, match="follows another one") as refused:
                await AsyncClient(standby.address).start()
            assert refused.value.code == "standby"

    run(scene())


def test_a_client_of_one_address_waits_for_its_promotion():
    async def scene():
        async with FakeServer(epoch=FIRST) as server, AsyncClient(server.address, reconnect=QUICK) as client:
            feed = await client.open("s")
            server.standby = True
            server.last.cut()
            await until(lambda: len(server.hellos) > 1)
            server.standby = False
            await feed.send(rows_of(3))
            await feed.flush()

    run(scene())


@pair
async def test_a_client_does_not_switch_back(primary, standby, client):
    feed = await client.open("s", producer="p")
    standby.feeds = dict(primary.feeds)
    standby.standby = False
    primary.last.cut()
    primary.standby = True
    await feed.send(rows_of(3))
    await feed.flush()
    assert client.epoch == 2
    primary.standby = False  # the old primary is back, and knows nothing
    await standby.stop_listening()
    await until(lambda: primary.hellos[-1].epoch == SECOND)
    await feed.send(rows_of(3, 3))
    flush = asyncio.ensure_future(feed.flush())
    await until(lambda: len(primary.hellos) > 4)
    assert not flush.done()
    assert len(primary.opens) == 1, "it has heard of nothing more"
    await standby.listen(standby.port)
    await flush
    assert standby.feed().rows == rows_of(6)


def test_a_replaced_server_is_named_when_nothing_else_answers():
    async def scene():
        once = Backoff(0.001, 1.0, 0.001, attempts=1)
        async with FakeServer(epoch=SECOND) as server:
            client = await AsyncClient.connect(server.address, reconnect=once)
            feed = await client.open("s")
            server.epoch = FIRST
            server.last.cut()
            with pytest.raises(ConnectionLost, match="has epoch 1, and epoch 2 has replaced it"):
                await feed._waiting.until(lambda: False)
            with pytest.raises(ConnectionLost):
                await client.close()

    run(scene())


@pair
async def test_a_server_of_an_earlier_version_in_the_list(primary, standby, client):
    """It refuses a HELLO with an epoch, and then has the first epoch."""
    feed = await client.open("s", producer="p")
    standby.feeds = dict(primary.feeds)
    standby.old = True
    await promote(primary, standby)
    await feed.send(rows_of(3))
    await feed.flush()
    assert [hello.epoch for hello in standby.hellos] == [None]
    assert client.epoch == 1


@pair
async def test_a_feed_reports_acknowledged_tuples_that_were_lost(primary, standby, client):
    feed = await client.open("s", producer="p")
    await feed.send(rows_of(10))
    await feed.flush()
    await promote(primary, standby)
    with pytest.raises(ServerError, match="tuples were lost") as lost:
        await feed._waiting.until(lambda: False)
    assert (lost.value.code, lost.value.sequence) == ("lost", 0)
    again = await client.open("s", producer="p")
    assert again.next_sequence == 0


@pair
async def test_a_subscription_reports_rows_that_were_lost(primary, standby, client):
    primary.results["q"], standby.results["q"] = rows_of(10), rows_of(8)
    standby.lost_from = 6
    subscription = await client.subscribe("q", from_sequence=0)
    assert sum([len(await subscription.next_batch()) for _ in range(2)]) == 10
    assert (subscription.next_sequence, subscription.epoch) == (10, 1)
    await promote(primary, standby)
    with pytest.raises(ServerError, match="rows were lost") as lost:
        await subscription.next_batch()
    assert (lost.value.code, lost.value.sequence) == ("lost", 6)


@pair
async def test_a_subscription_continues_at_the_first_lost_row(primary, standby, client):
    primary.results["q"], standby.results["q"] = rows_of(10), rows_of(8)
    standby.lost_from = 6
    subscription = await client.subscribe("q", from_sequence=0, on_gap="continue")
    assert sum([len(await subscription.next_batch()) for _ in range(2)]) == 10
    await promote(primary, standby)
    batch = await subscription.next_batch()
    assert (batch.sequence, len(batch), subscription.gaps, subscription.epoch) == (6, 2, 1, 2)


@pair
async def test_a_program_that_resumes_says_its_epoch(primary, standby, client):
    primary.results["q"] = rows_of(10)
    await client.subscribe("q", from_sequence=5, epoch=1)
    assert primary.subscribes[-1].epoch == 1


def test_the_client_without_a_loop_follows_too():
    async def servers(ready, done):
        async with FakeServer(epoch=FIRST) as primary, FakeServer(epoch=SECOND, standby=True) as standby:
            ready.set_result((primary, standby))
            await done.wait()

    async def scene():
        loop = asyncio.get_running_loop()
        ready, done = loop.create_future(), asyncio.Event()
        serving = asyncio.ensure_future(servers(ready, done))
        primary, standby = await ready
        addresses = [primary.address, standby.address]
        client = await loop.run_in_executor(None, lambda: Client(addresses, reconnect=QUICK))
        assert client.epoch == 1
        await promote(primary, standby)
        await until(lambda: client.epoch == 2)
        await loop.run_in_executor(None, client.close)
        done.set()
        await serving

    run(scene())
