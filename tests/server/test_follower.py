"""The follower of a server: who makes checkpoints when it works, ends, lags or differs."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from millrace.journal.follower import Follower
from millrace.journal.replay import Differs
from millrace.run import following
from millrace.run.followerprocess import FollowerGone
from millrace.run.following import WORTH_BYTES, Following
from tests.patience import wait_until
from tests.server.directories import SQL, feed, killed, restarted, state
from tests.server.harness import running, until
from tests.server.test_api import get

MB = 2**20
DIFFERS = "a replay of the journal leads to another state than the server's"


# -- with a process ----------------------------------------------------------------------------------------------------


def test_a_follower_makes_the_checkpoints_and_its_failures_harm_nothing(tmp_path):
    async def play():
        sections = {"server": {"data_dir": str(tmp_path)}, "journal": {"follower": "on"}}
        async with running(SQL, **sections) as daemon:
            durability = daemon.durability
            found = durability.following
            await until(lambda: found.ready)
            await feed(daemon, 0, 30)
            await durability.make()
            assert (durability.followed, durability.made) == (1, 2)
            await durability.recorder.wait_synced(durability.recorder.recorded)
            next_start = Follower(tmp_path)
            assert next_start.lsn == durability.checkpoint
            while next_start.advance().records:
                pass
            assert next_start.engine.save() == daemon.engine.save()

            first = found.process.pid
            os.kill(first, signal.SIGKILL)
            await until(lambda: found.failures == 1)
            await feed(daemon, 30, 5)
            assert durability.view().follower.reason == "the last one failed: it was killed by signal 9"
            await durability.make()
            assert (durability.followed, durability.made) == (1, 3), "made by a fork"
            await until(lambda: found.ready)
            assert found.process.pid != first

            operator = daemon.engine.query("totals").operators[-1]
            operator.counts.output_tuples += 1
            with capture_logs() as logs:
                durability.mark()
                await until(lambda: found.differences)
                await until(lambda: not found.suspicious)
            assert (durability.followed, durability.made) == (1, 4), "the server has made one itself, at once"
            (line,) = [line for line in logs if line["event"] == DIFFERS]
            assert line["operators"] == [f"query totals, operator {operator.name}"]
            assert durability.following.process is None
            text = await get(daemon, "/-/healthy")
            assert text.startswith("degraded\na replay of the journal leads to another state of query totals")
            seen = await get(daemon, "/metrics")
            assert "millrace_journal_follower_differences_total 1.0" in seen
            assert "millrace_journal_follower_running 0.0" in seen
            shown = (await get(daemon, "/api/v1/server"))["journal"]["follower"]
            assert shown["difference"]["operators"] == line["operators"]
            return state(daemon)

    before = asyncio.run(play())
    assert restarted(tmp_path) == before


def test_the_process_ends_with_its_server_and_ignores_signals(tmp_path):
    image = tmp_path / "image"
    killed(tmp_path / "made", image)
    command = [sys.executable, "-P", "-m", "millrace.run.follow", str(image)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert json.loads(process.stdout.readline()) == {"lsn": 0}
        steps = json.loads(process.stdout.readline())["lsn"]
        assert steps > 20
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
        assert process.poll() is None
        process.stdin.close()
        wait_until(lambda: process.poll() is not None)
        assert process.returncode == 0


def test_the_process_says_in_a_line_why_it_cannot_follow(tmp_path):
    command = [sys.executable, "-P", "-m", "millrace.run.follow", str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        text = f"{tmp_path}/checkpoints has no checkpoint: start the server, which makes one"
        assert json.loads(process.stdout.read()) == {"error": text}
        assert process.stderr.read() == ""
        assert process.wait() == 1


# -- without -----------------------------------------------------------------------------------------------------------


class Process:
    """A follower that does what a test says."""

    def __init__(self):
        self.lsn, self.ended, self.difference, self.pid, self.stopped = 0, None, None, 7, False
        self.saved = asyncio.Event()

    async def wait_saved(self, lsn):
        await self.saved.wait()
        if self.ended is not None:
            raise FollowerGone(self.ended)

    async def stop(self, why):
        self.stopped = True
        self.end(self.ended or why)

    def end(self, why):
        self.ended = why
        self.saved.set()


class Play:
    """A server's follower, with processes that a test controls."""

    def __init__(self, mode="on", objection=None):
        self.started, self.sizes = [], []
        self._objection = objection
        self.following = Following(mode, Path("folder"), None, lambda: 5, self._object, start=self._start)

    def _object(self, size):
        self.sizes.append(size)
        return self._objection

    async def _start(self, folder, functions):
        self.started.append(Process())
        return self.started[-1]

    async def look(self, newest=10, size=0):
        await self.following.look(newest, size)
        return len(self.started)


@pytest.mark.parametrize(
    ("mode", "size", "objection", "reason"),
    [
        ("off", 900 * MB, None, "journal.follower is off"),
        ("on", 0, "too little memory", None),
        ("auto", WORTH_BYTES - 1, None, "checkpoints have less than 64 MB"),
        ("auto", WORTH_BYTES, None, None),
        ("auto", WORTH_BYTES, "too little memory", "too little memory"),
    ],
)
def test_when_there_is_a_follower(mode, size, objection, reason):
    async def play():
        made = Play(mode, objection)
        assert await made.look(size=size) == (reason is None)
        assert made.following.view(10).reason == reason
        assert made.following.view(10).running == (reason is None)
        assert made.sizes in ([], [size])

    asyncio.run(play())


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_one_that_nobody_asked_for_ends_when_memory_is_short(mode):
    async def play():
        made = Play(mode)
        await made.look(size=WORTH_BYTES)
        with capture_logs() as logs:
            await made.following.make_room()
            await made.following.make_room()
        assert made.started[0].stopped == (mode == "auto") == (len(logs) == 1)
        assert made.following.failures == 0
        assert await made.look(size=WORTH_BYTES) == 1
        made.following.checkpoint_made()
        assert await made.look(size=WORTH_BYTES) == (2 if mode == "auto" else 1)

    asyncio.run(play())


def test_another_one_starts_from_the_servers_own_checkpoint():
    async def play():
        made = Play()
        assert await made.look() == 1
        made.started[0].end("it was killed by signal 9")
        assert not made.following.ready
        for _ in range(3):
            assert await made.look() == 1
        assert made.started[0].stopped
        assert (made.following.failures, made.following.suspicious) == (1, False)
        made.following.checkpoint_made()
        assert await made.look() == 2
        await made.following.close()
        assert made.started[1].stopped
        assert await made.look() == 2, "the server is ending"

    asyncio.run(play())


def test_one_that_differs_has_its_checkpoints_replaced_before_another_starts():
    async def play():
        made = Play()
        await made.look()
        process = made.started[0]
        process.difference = Differs(9, ["query q, operator q.sum1"])
        process.end("it differs")
        await made.look()
        before = made.following.suspicious
        where = "query q, operator q.sum1 after step 9"
        text = f"a replay of the journal leads to another state of {where}: a restart may emit other rows"
        assert made.following.problems() == [text]
        made.following.checkpoint_made()
        assert (before, made.following.suspicious) == (True, False)
        assert await made.look() == 1
        made.following.checkpoint_made()
        assert await made.look() == 2
        assert made.following.problems(), "until the server restarts"

    asyncio.run(play())


@pytest.mark.parametrize("late", ["far", "long"])
def test_a_checkpoint_is_not_waited_for_without_end(late, monkeypatch):
    async def play():
        monkeypatch.setattr(following, "LOOK_SECONDS", 0.001)
        if late == "long":
            monkeypatch.setattr(following, "PATIENCE_SECONDS", 0)
        made = Play()
        await made.look()
        with pytest.raises(FollowerGone, match="it lacks 10 steps of the checkpoint"):
            await made.following.wait_saved(10, lambda: late == "far")
        assert made.started[0].stopped
        assert made.following.failures == 1
        assert made.following.process is None

    asyncio.run(play())


def test_a_checkpoint_that_it_saves_is_waited_for(monkeypatch):
    async def play():
        monkeypatch.setattr(following, "LOOK_SECONDS", 0.001)
        made = Play()
        await made.look()
        waiting = asyncio.create_task(made.following.wait_saved(10, lambda: False))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        made.started[0].saved.set()
        await waiting
        assert made.following.failures == 0

    asyncio.run(play())


def test_one_that_cannot_be_started_is_tried_again_after_a_checkpoint():
    async def play():
        made = Play()

        async def refuse(folder, functions):
            raise OSError(11, "Resource temporarily unavailable")

        made.following._start = refuse
        await made.look()
        assert made.following.view(10).reason == "it cannot be started: Resource temporarily unavailable"
        made.following._start = made._start
        assert await made.look() == 0
        made.following.checkpoint_made()
        assert await made.look() == 1

    asyncio.run(play())


def test_its_lag_is_in_steps_and_in_seconds(monkeypatch):
    async def play():
        clock = [100.0]
        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        made = Play()
        await made.look(newest=10)
        assert made.following.view(10).lag_steps == 10
        made.started[0].lsn = 10
        assert (made.following.view(10).lag_steps, made.following.view(10).lag_seconds) == (0, 0.0)
        for newest in (10, 15, 20):
            clock[0] += 1
            await made.look(newest=newest)
        clock[0] += 1
        assert (made.following.view(21).lag_steps, made.following.view(21).lag_seconds) == (11, 2.0)
        made.started[0].lsn = 15
        assert (made.following.view(21).lag_steps, made.following.view(21).lag_seconds) == (6, 1.0)

    asyncio.run(play())
