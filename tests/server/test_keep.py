"""`[journal] keep` in a server: what stays on the disk, what views say, and that a full disk takes the past first."""

import asyncio
import os

import pytest

from millrace.journal.checkpoints import Checkpoints
from millrace.journal.past import Past
from tests.server.directories import SQL, feed
from tests.server.harness import running
from tests.server.test_api import get


def kept(folder, keep, play, sql=SQL):
    """Run a server with this option."""

    async def live():
        async with running(sql, server={"data_dir": str(folder)}, journal={"keep": keep}) as daemon:
            await play(daemon)

    asyncio.run(live())


async def checkpoints(daemon, count=4):
    for _ in range(count):
        await feed(daemon, 0, 2)
        await daemon.durability.make()


@pytest.mark.parametrize(("keep", "stay"), [("none", 2), ("1 us", 2), ("1 hour", 5), ("1 hour | 1 GB", 5), ("1 B", 2)])
def test_so_many_checkpoints_stay(tmp_path, keep, stay):
    async def play(daemon):
        await checkpoints(daemon)
        assert len(Checkpoints(tmp_path).complete()) == stay
        view = daemon.durability.view().past
        assert view.keep == keep
        assert view.checkpoints == stay
        assert (view.bytes > 0) == (stay > 2)
        span = Past(tmp_path).span()
        assert view.from_us == span.from_us
        metrics = await get(daemon, "/metrics")
        (seconds,) = (line for line in metrics.splitlines() if line.startswith("millrace_journal_past_seconds"))
        assert float(seconds.split()[1]) > 0

    kept(tmp_path, keep, play)


def test_a_restart_knows_the_past_and_another_option_applies_to_it(tmp_path):
    kept(tmp_path, "1 hour", checkpoints)
    before = Checkpoints(tmp_path).complete()
    from_us = Past(tmp_path).span().from_us

    async def play(daemon):
        view = daemon.durability.view().past
        assert (view.from_us, view.checkpoints) == (from_us, len(before))
        await daemon.durability.make()

    kept(tmp_path, "1 hour", play, sql=None)
    assert Past(tmp_path).span().from_us == from_us
    kept(tmp_path, "none", checkpoints, sql=None)
    assert len(Checkpoints(tmp_path).complete()) == 2


def test_a_disk_that_fills_takes_the_oldest_of_the_past(tmp_path, monkeypatch):
    full = False

    class Room:
        f_frsize = 1

        @property
        def f_bavail(self):
            return 0 if full else 10**12

    async def play(daemon):
        nonlocal full
        await checkpoints(daemon)
        monkeypatch.setattr(os, "statvfs", lambda _: Room())
        full = True
        for left in (4, 3, 2, 2):
            await daemon.durability._tidy()
            assert len(Checkpoints(tmp_path).complete()) == left
        dropped = daemon.durability.view().past.dropped_bytes
        assert dropped > 0
        assert f"millrace_journal_past_dropped_bytes_total {float(dropped)}" in await get(daemon, "/metrics")
        assert daemon.problems() == []

    kept(tmp_path, "1 hour", play)
    assert Past(tmp_path).span().from_us > 0


def test_the_configuration_refuses_nonsense(tmp_path):
    from millrace.run.config import ConfigError, load

    path = tmp_path / "millrace.toml"
    path.write_text("[journal]\nkeep = '1 hour | 2 hours'\n")
    with pytest.raises(ConfigError, match=r"journal.keep.*expected one time and one size, got '1 hour \| 2 hours'"):
        load(path, {})
