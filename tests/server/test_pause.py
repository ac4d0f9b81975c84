"""Pauses of the server caused by changes: the measurements, whose changes count, and a slow disk blocks no client."""

import asyncio
import itertools
import threading

import pytest

from millrace.changes.pause_query import PauseQuery
from millrace.run.pause import Pause
from millrace.store.catalog import CatalogFile
from tests.patience import HANG_SECONDS
from tests.server.harness import peer, running, served, until
from tests.server.test_api import ask, get


def test_what_counts_is_the_work_between_waits(monkeypatch):
    """Each look at the clock is a second later: every stretch of work takes one, and the work itself looks once."""
    seconds = itertools.count()
    monkeypatch.setattr("millrace.run.pause.time.perf_counter", lambda: next(seconds))

    async def work():
        for _ in range(3):
            await asyncio.sleep(0)
        next(seconds)
        return "done"

    async def play():
        pause = Pause()
        assert await pause.of(work()) == "done"
        return pause.seconds

    assert asyncio.run(play()) == 5


def test_a_cancellation_and_a_failure_are_the_works_own():
    async def play():
        pause, heard = Pause(), []

        async def work():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                heard.append("cancelled")
            raise ValueError("the work's")

        task = asyncio.ensure_future(asyncio.wait_for(pause.of(work()), None))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(ValueError, match="the work's"):
            await task
        assert heard == ["cancelled"]

    asyncio.run(play())


def measured(daemon):
    (line,) = (
        line
        for line in daemon.metrics.text().decode().splitlines()
        if line.startswith("millrace_reconfiguration_pause_seconds_count")
    )
    return float(line.split()[1])


@served(limits={"on_slow": "wait", "slow_limit": 50})
async def test_only_what_admins_ask_for_is_measured_and_each_change_once(daemon):
    before = measured(daemon)
    async with peer(daemon) as feeder, peer(daemon) as slow:
        await feeder.open()
        await slow.subscribe("q", credit=0, progress=True)
        feeder.data(0, [(1, 0.0, "")] * 60)
        await until(daemon.engine.withheld)
        slow.credit(1_000)
        await until(lambda: not daemon.engine.withheld())
        await ask(daemon, "POST", "/api/v1/streams/s/archive")
        await daemon.catalog.plan("CREATE STREAM t (k BIGINT)")
    await daemon.runner.wait_drained()
    assert measured(daemon) == before
    await daemon.catalog.execute(
        "CREATE STREAM t (k BIGINT); CREATE QUERY r AS SELECT k FROM t; EXPLAIN SELECT k FROM t"
    )
    await daemon.catalog.change(PauseQuery(name="r"))
    assert (await ask(daemon, "POST", "/api/v1/queries/nobody/pause"))[0] == 404
    assert measured(daemon) == before + 3


def test_a_change_is_answered_when_it_is_on_the_disk_and_the_disk_keeps_nobody(tmp_path, monkeypatch):
    began, goes_on, write = threading.Event(), threading.Event(), CatalogFile.write

    def slow_write(self, *what):
        began.set()
        assert goes_on.wait(HANG_SECONDS)
        write(self, *what)

    async def play():
        async with asyncio.timeout(HANG_SECONDS):
            async with running("CREATE STREAM s (k BIGINT)", server={"data_dir": tmp_path}) as daemon:
                monkeypatch.setattr(CatalogFile, "write", slow_write)
                change = asyncio.ensure_future(daemon.catalog.execute("CREATE STREAM t (k BIGINT)"))
                await until(began.is_set)
                assert [stream["name"] for stream in await get(daemon, "/api/v1/streams")] == ["s", "t"]
                assert not change.done()
                goes_on.set()
                await change
            async with running(server={"data_dir": tmp_path}) as again:
                return list(again.catalog.known.streams)

    assert asyncio.run(play()) == ["s", "t"]
