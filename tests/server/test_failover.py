"""Two servers over real sockets: a lease silences the primary, a promotion waits for it, an epoch stops the old one."""

import asyncio
import functools
import json
from contextlib import suppress
from typing import Any

import pyarrow.parquet as pq
import pytest
import uvloop

from millrace.client import AsyncClient, Backoff
from millrace.run.config import parse_where
from millrace.run.daemon import Daemon
from millrace.run.standby import read_role
from millrace.standby.lease import steady_us
from millrace.standby.superseded import SUPERSEDED, Superseded
from tests.patience import HANG_SECONDS
from tests.server.directories import feed
from tests.server.harness import peer, settings, settle, until

SQL = "CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s"
QUICK = Backoff(0.001, 1.5, 0.05, attempts=10_000)


class Machines:
    """Servers that have ended when the test has, however it ends."""

    def __init__(self):
        self._running = []

    async def start(self, folder, follow=None, **standby):
        folder.mkdir(exist_ok=True)
        more = {} if follow is None else {"follow": f"http://{follow.admin}"}
        daemon = Daemon(settings(server={"data_dir": folder, "drain_seconds": 0}, standby={**standby, **more}))
        await daemon.start()
        self._running.append(daemon)
        return daemon

    async def primary(self, folder, **standby):
        daemon = await self.start(folder, **standby)
        await daemon.catalog.execute(SQL)
        return daemon

    async def end(self, daemon):
        self._running.remove(daemon)
        daemon.stop()
        await daemon.wait_ended()

    async def wait_superseded(self, daemon):
        self._running.remove(daemon)
        with pytest.raises(Superseded):
            await daemon.wait_ended()

    async def end_all(self):
        for daemon in self._running[::-1]:  # standbys first
            daemon.stop()
            with suppress(Superseded):
                await daemon.wait_ended()


def played(test):
    """A test with machines, in an event loop that ends."""

    @functools.wraps(test)
    def play(tmp_path):
        async def limited():
            machines = Machines()
            async with asyncio.timeout(HANG_SECONDS):
                try:
                    await test(tmp_path, machines)
                finally:
                    await machines.end_all()

        uvloop.run(limited())

    del play.__wrapped__  # pytest would take `machines` for a fixture
    return play


async def level(primary, standby):
    await until(lambda: standby.durability.recovery.lsn == primary.durability.recorder.recorded)


def granted(folder):
    """The lease that a standby has granted."""
    role: Any = read_role(folder)
    return role.lease_us


async def next_rows(subscription):
    return (await subscription.next_batch()).rows


@played
async def test_a_primary_is_silent_while_its_standby_is_away(tmp_path, machines):
    primary = await machines.primary(tmp_path / "one", lease="1 second")  # no standby has followed it yet
    standby = await machines.start(tmp_path / "two", primary)
    await until(lambda: not primary.lease.alone)
    async with AsyncClient(str(primary.listen)) as client:
        feed = await client.open("s")
        await feed.send([(1,)])
        await feed.flush()
        await machines.end(standby)
        await until(primary.silence.lasts)
        await feed.send([(2,)])
        flush = asyncio.ensure_future(feed.flush())
        await until(lambda: primary.durability.recorder.settled > primary.durability.recorder.passed)
        assert not flush.done()
        assert any("nothing leaves the server" in problem for problem in primary.problems())
        standby = await machines.start(tmp_path / "two", primary)
        await flush


@played
async def test_a_promotion_waits_until_the_primary_is_silent_and_stops_it(tmp_path, machines):
    primary = await machines.primary(tmp_path / "one", lease="1 second")
    standby = await machines.start(tmp_path / "two", primary)
    await until(lambda: granted(tmp_path / "two") == 1_000_000)
    async with AsyncClient([str(primary.listen), str(standby.listen)], reconnect=QUICK) as client:
        feed = await client.open("s", producer="p")
        await feed.send([(1,), (2,)])
        await feed.flush()
        subscription = await client.subscribe("q", from_sequence=0)
        rows = [await next_rows(subscription)]
        await level(primary, standby)
        done = await standby.promote(force=True)
        assert done.epoch == standby.epoch == 2
        assert primary.lease.until_us <= steady_us() or primary.lease.revoked
        await machines.wait_superseded(primary)
        await feed.send([(3,)])
        await feed.flush()
        while sum(map(len, rows)) < 3:
            rows.append(await next_rows(subscription))
        assert [k for part in rows for (k,) in part] == [1, 2, 3]
        assert client.epoch == 2
    assert (tmp_path / "one" / SUPERSEDED).exists()
    await machines.end(standby)
    again = await machines.start(tmp_path / "two")
    assert again.epoch == 2


@played
async def test_with_confirm_a_promotion_loses_nothing(tmp_path, machines):
    primary = await machines.primary(tmp_path / "one", confirm=True)
    standby = await machines.start(tmp_path / "two", primary)
    await until(lambda: not primary.lease.alone)
    async with AsyncClient([str(primary.listen), str(standby.listen)], reconnect=QUICK) as client:
        feed = await client.open("s", producer="p")
        for k in range(20):
            await feed.send([(k,)])
            await feed.flush()
            assert standby.durability.recorder.settled >= primary.durability.recorder.lease.confirmed > 0
        acknowledged = feed.acknowledged
        await standby.promote(force=True)
        assert standby.feeds.taken("s", "p") >= acknowledged
        await feed.send([(20,)])
        await feed.flush()
        await machines.wait_superseded(primary)


@played
async def test_a_change_waits_for_the_standby_and_not_the_reverse(tmp_path, machines):
    """The standby's answer is a request like those that wait for the change."""
    primary = await machines.primary(tmp_path / "one", confirm=True, lease="1 hour")
    standby = await machines.start(tmp_path / "two", primary)
    await until(lambda: not primary.lease.alone)
    for name in ("r", "t", "u"):
        await primary.catalog.execute(f"CREATE QUERY {name} AS SELECT k FROM s")
        assert standby.durability.recorder.settled >= primary.durability.recorder.passed


@played
async def test_without_either_the_client_learns_what_was_lost(tmp_path, machines):
    primary = await machines.primary(tmp_path / "one")
    standby = await machines.start(tmp_path / "two", primary)
    await level(primary, standby)
    await standby.standby._end_receiving()  # the cable is cut
    async with AsyncClient([str(primary.listen), str(standby.listen)], reconnect=QUICK) as client:
        feed = await client.open("s", producer="p")
        await feed.send([(1,), (2,)])
        await feed.flush()
        subscription = await client.subscribe("q", from_sequence=0)
        assert len(await next_rows(subscription)) == 2
        await standby.promote(force=True)
        await machines.wait_superseded(primary)
        with pytest.raises(Exception, match="tuples 0 to 1 of producer p, acknowledged in epoch 1, were lost"):
            await feed._waiting.until(lambda: False)
        with pytest.raises(Exception, match="rows 0 to 1 of query q, read in epoch 1, were lost"):
            await subscription.next_batch()


@played
async def test_only_one_standby_may_answer_for_a_lease(tmp_path, machines):
    primary = await machines.primary(tmp_path / "one", lease="1 hour")
    await machines.start(tmp_path / "two", primary)
    await until(lambda: primary.standbys.known)
    second = await machines.start(tmp_path / "three", primary)
    await until(lambda: second.standby.error is not None)
    assert "depends on another standby" in second.standby.error


@played
async def test_a_standby_remembers_the_lease_that_it_has_granted(tmp_path, machines):
    primary = await machines.primary(tmp_path / "one", lease="1 hour")
    standby = await machines.start(tmp_path / "two", primary)
    await until(lambda: granted(tmp_path / "two") == 3_600_000_000)
    await machines.end(standby)
    standby = await machines.start(tmp_path / "two", primary)
    assert standby.standby._lease.promotable_at_us - steady_us() > 3_600_000_000 * 0.99
    promoting = asyncio.ensure_future(standby.promote(force=True))
    await until(lambda: standby.state == "promoting")
    async with peer(standby) as refused:
        assert refused.heard[0].code == "standby"
    assert not promoting.done()
    await machines.end(standby)
    with pytest.raises(Exception, match="ending"):
        await promoting


@played
async def test_a_replaced_server_writes_no_sink_on_shared_storage(tmp_path, machines):
    """It wakes up where another server has taken over, and nothing but the sinks' places tells it. One process shares
    the locks of its files, so these hinder neither server."""
    shared = tmp_path / "shared"
    shared.mkdir()
    primary = await machines.primary(tmp_path / "one")
    for kind, more in (("jsonl", ""), ("parquet", ", rotate_rows = 2")):
        options = f"type = 'file', path = '{shared}/{kind}', format = '{kind}'{more}"
        await primary.catalog.execute(f"CREATE SINK {kind} FROM q WITH ({options})")
    standby = await machines.start(tmp_path / "two", primary)
    await feed(primary, 0, 5)
    await until(lambda: lines(shared) == [*range(5)])
    await level(primary, standby)
    await settle()
    assert all(sink.delivered == 0 for sink in standby.catalog.sinks()), "only the primary writes there"
    await standby.standby._end_receiving()  # the cable is cut
    standby.standby.where = parse_where("http://127.0.0.1:1")
    await standby.promote(force=True)
    await feed(standby, 5, 5)
    await until(lambda: lines(shared) == [*range(10)] and files(shared) == [*range(10)])
    feeding = asyncio.ensure_future(feed(primary, 5, 3))
    await primary.wait_stopping()
    feeding.cancel()
    await asyncio.wait([feeding])
    await machines.wait_superseded(primary)
    states = {sink.name: (sink.state, sink.reason) for sink in primary.catalog.sinks()}
    assert lines(shared) == files(shared) == [*range(10)], states
    assert (tmp_path / "one" / SUPERSEDED).exists()
    with pytest.raises(Superseded):
        await machines.start(tmp_path / "one")


def lines(folder):
    return [json.loads(line)["k"] for line in (folder / "jsonl").read_text().splitlines()]


def files(folder):
    return [k for path in sorted((folder / "parquet").glob("*.parquet")) for k in pq.read_table(path)["k"].to_pylist()]
