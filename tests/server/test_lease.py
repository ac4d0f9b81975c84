"""A server whose lease has expired says nothing to anyone, and continues where it was once the standby answers."""

import asyncio
import json

import msgpack
import pytest
from structlog.testing import capture_logs

from millrace.net.silence import Silence
from millrace.protocol import Refuse
from millrace.protocol.messages import Ack, Ping, Pong, Result, Subscribed, Welcome
from millrace.run.config import ConfigError, load
from millrace.run.daemon import Daemon
from millrace.run.recovery import RecoveryStopped
from millrace.run.standbys import Known
from millrace.standby.alone import ALONE
from millrace.standby.lease import PrimaryLease
from tests.server.harness import SCHEMA_SQL, lines, peer, played, running, settings, settle, until

HOUR = {"lease": "1 hour"}
ROWS = [[1, 1.5, "a"], [2, 2.5, "b"]]


def hear(daemon, lsn=None):
    """The standby answers, and has everything that is synced, or the records up to `lsn`."""
    recorder = daemon.durability.recorder
    daemon.durability.heard(recorder.ping(), recorder.settled if lsn is None else lsn)


async def while_heard(daemon, work):
    """Something that takes as long as the standby answers."""
    running = asyncio.ensure_future(work)
    while not running.done():
        if daemon.durability.recorder is not None:
            hear(daemon)
        await asyncio.sleep(0.001)
    return await running


def expire(daemon):
    daemon.lease.until_us = 0


def with_lease(folder, **standby):
    return running(server={"data_dir": folder, "drain_seconds": 0}, standby=standby or HOUR)


def made(folder, standby):
    """A daemon that is not started."""
    return Daemon(settings(server={"data_dir": folder, "drain_seconds": 0}, standby=standby))


async def created(daemon):
    hear(daemon)
    await daemon.catalog.execute(SCHEMA_SQL)


@played
async def test_a_new_server_has_no_standby_to_wait_for(tmp_path):
    async with with_lease(tmp_path) as daemon:
        async with peer(daemon) as one:
            assert isinstance(one.heard[0], Welcome)
        await daemon.catalog.execute(SCHEMA_SQL)
        daemon.durability.recorder.ping()  # from now on a standby may answer
        assert not daemon.silence.lasts(), "what it answers cannot be earlier than the ping"
        expire(daemon)
        async with peer(daemon, greet=False) as one:
            greeting = asyncio.ensure_future(one.greet())
            await settle()
            assert not greeting.done()
            hear(daemon)
            await greeting


@played
async def test_rows_acknowledgements_and_pongs_wait_in_order(tmp_path):
    async with with_lease(tmp_path) as daemon:
        await created(daemon)
        async with peer(daemon) as feeder, peer(daemon) as reader:
            await feeder.open()
            assert isinstance(await reader.subscribe(), Subscribed)
            feeder.data(0, ROWS)
            assert (await reader.hear(Result)).sequence == 0
            await feeder.hear(Ack)
            expire(daemon)
            feeder.data(2, ROWS)
            feeder.say(Ping(7))
            reader.say(Ping(8))
            waiting = [asyncio.ensure_future(feeder.hear()), asyncio.ensure_future(reader.hear())]
            await settle()
            assert not any(one.done() for one in waiting)
            assert "nothing leaves the server" in daemon.problems()[0]
            assert "Nothing leaves the server" in daemon.why("q").text
            hear(daemon)
            assert await waiting[0] == Pong(7), "it was said before the rows were durable"
            assert (await feeder.hear(Ack)).sequence == 4
            assert await waiting[1] == Pong(8)
            assert (await reader.hear(Result)).sequence == 2
            assert daemon.problems() == []


@played
async def test_retained_rows_wait_although_they_were_ready(tmp_path):
    """A subscriber returns credit to a process that wakes after its lease has expired."""
    async with with_lease(tmp_path) as daemon:
        await created(daemon)
        async with peer(daemon) as feeder, peer(daemon) as reader:
            await feeder.open()
            await reader.subscribe(credit=0)
            feeder.data(0, ROWS)
            await feeder.hear(Ack)
            expire(daemon)
            reader.credit(10)
            waiting = asyncio.ensure_future(reader.hear(Result))
            await settle()
            assert not waiting.done()
            hear(daemon)
            assert len((await waiting).rows) == 2


@played
async def test_lines_wait(tmp_path):
    async with with_lease(tmp_path) as daemon:
        await created(daemon)
        async with lines(daemon) as someone:
            expire(daemon)
            someone.say(json.dumps({"subscribe": "q", "from": 0}))
            someone.say(json.dumps({"stream": "s", "tuple": {"k": 1, "v": 2.0, "name": "a"}}))
            waiting = asyncio.ensure_future(someone.hear())
            await settle()
            assert not waiting.done()
            hear(daemon)
            assert (await waiting)["row"]["k"] == 1


@played
async def test_a_sink_writes_nothing_meanwhile(tmp_path):
    async with with_lease(tmp_path) as daemon:
        await created(daemon)
        await daemon.catalog.execute("CREATE SINK f FROM q WITH (type = 'file', path = 'rows.jsonl', format = 'jsonl')")
        sink = daemon.catalog.writers._sinks["f"].consumer
        async with peer(daemon) as feeder:
            await feeder.open()
            feeder.data(0, ROWS)
            await feeder.hear(Ack)
            await until(lambda: not sink.held)
            expire(daemon)
            daemon.runner.outlets["q"].deliver(2, _batch(daemon))  # as if it had passed just before
            await settle()
            file = tmp_path / "sinks" / "rows.jsonl"
            assert sink.held == 2
            assert len(file.read_text().splitlines()) == 2
            hear(daemon)
            await until(lambda: not sink.held)
            assert len(file.read_text().splitlines()) == 4


def _batch(daemon):
    return daemon.feeds.source("s").decode(msgpack.packb(ROWS))


@played
async def test_changes_are_refused(tmp_path):
    async with with_lease(tmp_path) as daemon:
        await created(daemon)
        expire(daemon)
        with pytest.raises(Refuse, match=r"nothing is changed: the standby has not answered for .* s;") as refused:
            await daemon.catalog.execute("CREATE QUERY r AS SELECT k FROM s")
        assert refused.value.code == "standby_silent"
        hear(daemon)
        await daemon.catalog.execute("CREATE QUERY r AS SELECT k FROM s")


@played
async def test_confirm_waits_for_the_disk_of_the_standby(tmp_path):
    async with with_lease(tmp_path, confirm=True) as daemon:
        create = asyncio.ensure_future(created(daemon))
        await until(lambda: daemon.durability.recorder.settled > 1)
        await settle()
        assert not create.done()
        await while_heard(daemon, create)
        async with peer(daemon) as feeder:
            await while_heard(daemon, feeder.open())
            before = daemon.durability.recorder.settled
            feeder.data(0, ROWS)
            await until(lambda: daemon.durability.recorder.settled > before)
            waiting = asyncio.ensure_future(feeder.hear(Ack))
            hear(daemon, before)
            await settle()
            assert not waiting.done()
            hear(daemon)
            assert (await waiting).sequence == 2


@pytest.mark.parametrize("standby", [{"confirm": True}, HOUR], ids=["confirm", "lease"])
@played
async def test_a_start_waits_for_the_standby(tmp_path, standby):
    async with running(SCHEMA_SQL, server={"data_dir": tmp_path}) as daemon, peer(daemon) as feeder:
        await feeder.open()
        feeder.data(0, ROWS)
        await feeder.hear(Ack)
    daemon = made(tmp_path, standby)
    start = asyncio.ensure_future(daemon.start())
    await until(lambda: daemon.durability.recorder is not None)
    await settle()
    assert not start.done()
    assert daemon.problems()
    if "confirm" in standby:
        hear(daemon, daemon.lease.recovered - 1)
        await settle()
        assert not start.done(), "the standby lacks a step that the server has recovered"
    await while_heard(daemon, start)
    async with peer(daemon) as feeder:
        assert (await while_heard(daemon, feeder.open())).next_sequence == 2
    daemon.stop()
    await daemon.wait_ended()


@played
async def test_a_server_that_no_standby_has_heard_starts_again_alone(tmp_path):
    for _ in range(3):
        async with with_lease(tmp_path) as daemon:
            assert daemon.progress[0] == "ready, without a standby until one follows"
            assert not daemon.silence.lasts()
    async with with_lease(tmp_path) as daemon:
        await daemon.durability.end_alone()
        assert not (tmp_path / ALONE).exists()
    daemon = made(tmp_path, HOUR)
    start = asyncio.ensure_future(daemon.start())
    await until(lambda: daemon.progress[0].startswith("waiting for the standby: the standby has not answered"))
    assert "`millrace promote --alone`" in daemon.progress[0]
    await settle()
    assert not start.done()
    daemon.stop()
    with pytest.raises(RecoveryStopped):
        await start


@pytest.mark.parametrize("standby", [{"confirm": True}, HOUR], ids=["confirm", "lease"])
@played
async def test_an_operator_says_that_there_is_no_standby(tmp_path, standby):
    async with running(SCHEMA_SQL, server={"data_dir": tmp_path}) as daemon:
        with pytest.raises(Refuse, match="nothing waits for a standby"):
            daemon.standbys.go_alone()
    daemon = made(tmp_path, standby)
    start = asyncio.ensure_future(daemon.start())
    await until(lambda: daemon.durability.recorder is not None)
    await settle()
    assert not start.done()
    with capture_logs() as logs:
        daemon.standbys.go_alone()
    assert logs[-1]["event"] == "this server works without a standby from now on, until one follows"
    assert logs[-1]["reason"] == "the standby has not answered since the server started"
    await start
    for again in (False, True):
        if again:
            daemon = made(tmp_path, standby)
            await daemon.start()
        async with peer(daemon) as feeder:
            opened = await feeder.open()
            feeder.data(opened.next_sequence, ROWS)
            await feeder.hear(Ack)
        assert daemon.problems() == []
        daemon.stop()
        await daemon.wait_ended()


@played
async def test_a_connected_standby_is_not_left_out(tmp_path):
    async with with_lease(tmp_path) as daemon:
        await created(daemon)
        expire(daemon)
        daemon.standbys.known["one"] = Known("10.0.0.2", 0, 0, streams=1)
        with pytest.raises(Refuse, match=r"a standby is connected, from 10\.0\.0\.2: stop it first"):
            daemon.standbys.go_alone()
        daemon.standbys.known["one"].streams = 0
        daemon.standbys.go_alone()
        assert not daemon.silence.lasts()


@played
async def test_a_start_that_waits_can_be_stopped(tmp_path):
    async with running(server={"data_dir": tmp_path}):
        pass
    daemon = made(tmp_path, HOUR)
    start = asyncio.ensure_future(daemon.start())
    await until(lambda: daemon.durability.recorder is not None)
    await settle()
    daemon.stop()
    with pytest.raises(RecoveryStopped, match="waited for the standby"):
        await start


@played
async def test_steps_that_wait_fill_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.run.recorder.WAITING_BYTES", 1_000)
    async with with_lease(tmp_path) as daemon:
        await created(daemon)
        async with peer(daemon) as feeder:
            await feeder.open()
            expire(daemon)
            for at in range(30):
                feeder.data(2 * at, ROWS)
            await until(lambda: daemon.durability.recorder.stalled)
            hear(daemon)
            assert (await feeder.hear(Ack)).sequence <= 60
            await until(lambda: not daemon.durability.recorder.stalled)


def test_a_silence_ends_for_all_that_were_held():
    spoke, now = [], [0]

    class One:
        def speak(self):
            spoke.append(self)

    lease = PrimaryLease(10)
    silence, one = Silence(lease, lambda: now[0]), One()
    assert silence.lasts()
    silence.hold(one)
    silence.look()
    assert not spoke
    lease.heard(lease.ping(5), 0, 6)
    silence.look()
    assert spoke == [one]
    silence.look()
    assert spoke == [one]
    now[0] = 15
    assert silence.lasts(), "by the clock alone, without a call"
    lease.heard(lease.ping(15), 0, 15)
    assert not silence.lasts()
    lease.revoke()
    assert silence.lasts()


@pytest.mark.parametrize(
    ("standby", "problem"),
    [
        ({"lease": "5 seconds"}, "standby.lease: a standby needs the journal of a data directory; set server.data_dir"),
        ({"confirm": True}, "standby.confirm: a standby needs the journal of a data directory; set server.data_dir"),
        ({"lease": "500 ms"}, "standby.lease: expected at least 1 second, got '500 ms'"),
        ({"lease": "soon"}, "standby.lease: "),
    ],
)
def test_nonsense_in_the_configuration(standby, problem):
    with pytest.raises(ConfigError) as refused:
        load(None, {"standby": standby})
    assert refused.value.problems[0].startswith(problem)
    assert len(refused.value.problems) == 1
