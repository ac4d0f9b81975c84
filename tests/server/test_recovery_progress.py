"""What a server answers while it recovers, and that it can be stopped meanwhile."""

import asyncio
import socket
from contextlib import suppress

import pytest

from millrace.run import recovery, supervision
from millrace.run.daemon import Daemon
from millrace.run.recovery import Recovery, RecoveryStopped
from millrace.run.supervision import Supervisor
from tests.patience import HANG_SECONDS
from tests.server.directories import SQL, contents, killed, restarted, state
from tests.server.harness import settings, until
from tests.server.test_api import ask


class HeldRecovery:
    """A recovery that stops after each step until the test lets it take more."""

    def __init__(self, monkeypatch):
        self.allowed = 0
        self._turn = asyncio.Event()
        monkeypatch.setattr(recovery, "STEPS", 1)
        follow = Recovery._follow

        async def slow(one, step, effects):
            while one.replayed > self.allowed:
                self._turn.clear()
                await self._turn.wait()
            await follow(one, step, effects)

        monkeypatch.setattr(Recovery, "_follow", slow)

    def allow(self, steps):
        self.allowed = steps
        self._turn.set()


@pytest.fixture
def image(tmp_path):
    made = tmp_path / "image"
    return made, killed(tmp_path / "made", made)


def starting(folder, **sections):
    return Daemon(settings(server={"data_dir": str(folder), **sections}))


def test_every_route_says_how_far_the_recovery_is(image, monkeypatch):
    folder, before = image

    async def play():
        held = HeldRecovery(monkeypatch)
        daemon = starting(folder)
        start = asyncio.create_task(daemon.start())
        await until(lambda: daemon.durability.recovery is not None and daemon.durability.recovery.replayed)
        steps = daemon.durability.recovery.steps
        for allowed in (1, steps // 2, steps - 2):
            held.allow(allowed)
            await until(lambda allowed=allowed: daemon.durability.recovery.replayed == allowed + 1)
            percent = 100 * (allowed + 1) // steps
            assert await ask(daemon, "GET", "/-/ready") == (
                503,
                "text/plain; charset=utf-8",
                f"replaying {percent} %\n",
            )
            assert (await ask(daemon, "GET", "/-/healthy"))[::2] == (200, "healthy\n")
            assert (await ask(daemon, "GET", "/"))[0] == 200
            status, _, metrics = await ask(daemon, "GET", "/metrics")
            assert status == 200
            assert f"millrace_journal_recovery_replayed_steps {allowed + 1}.0" in metrics
            assert f"millrace_journal_recovery_steps {steps}.0" in metrics
            assert "millrace_steps_total" not in metrics, "the engine is in the hands of the recovery"
            for method, path in (("GET", "/api/v1/server"), ("POST", "/api/v1/sql"), ("GET", "/none")):
                status, kind, problem = await ask(daemon, method, path, body={"sql": "DROP QUERY q"})
                assert (status, kind, problem["code"]) == (503, "application/problem+json", "starting")
                assert problem["detail"] == (
                    f"the server is starting (replaying {percent} %): try again when /-/ready answers with 200"
                )
        assert not start.done()
        held.allow(steps)
        await start
        assert (await ask(daemon, "GET", "/-/ready"))[::2] == (200, "ready\n")
        assert state(daemon) == before
        metrics = (await ask(daemon, "GET", "/metrics"))[2]
        assert f"millrace_journal_recovery_replayed_steps {steps}.0" in metrics
        assert "millrace_steps_total" in metrics
        daemon.stop()
        await daemon.wait_ended()

    asyncio.run(asyncio.wait_for(play(), HANG_SECONDS))


def test_a_token_is_needed_meanwhile_too(image, tmp_path, monkeypatch):
    folder, _ = image
    token = tmp_path / "token"
    token.write_text("s3cret-s3cret-s3cret")
    token.chmod(0o600)

    async def play():
        held = HeldRecovery(monkeypatch)
        daemon = starting(folder, token_file=str(token))
        start = asyncio.create_task(daemon.start())
        await until(lambda: daemon.durability.recovery is not None)
        assert (await ask(daemon, "GET", "/-/ready"))[0] == 503
        for path in ("/metrics", "/api/v1/server"):
            assert (await ask(daemon, "GET", path))[0] == 401
        assert (await ask(daemon, "GET", "/metrics", token="s3cret-s3cret-s3cret"))[0] == 200
        held.allow(1_000)
        await start
        daemon.stop()
        await daemon.wait_ended()

    asyncio.run(asyncio.wait_for(play(), HANG_SECONDS))


def test_a_server_that_is_stopped_while_it_recovers_leaves_the_same_work(image, monkeypatch):
    folder, before = image
    journal = {name: data for name, data in contents(folder).items() if name.startswith(("journal", "checkpoints"))}

    async def play(held):
        daemon = starting(folder)
        start = asyncio.create_task(daemon.start())
        await until(lambda: daemon.durability.recovery is not None and daemon.durability.recovery.replayed)
        daemon.stop()
        held.allow(5)
        with pytest.raises(RecoveryStopped, match=r"of .* steps were replayed"):
            await start

    with monkeypatch.context() as patches:
        asyncio.run(asyncio.wait_for(play(HeldRecovery(patches)), HANG_SECONDS))
    after = contents(folder)
    assert {name: after.get(name) for name in journal} == journal
    assert restarted(folder) == before


def test_the_service_manager_waits_as_long_as_a_start_advances(tmp_path, monkeypatch):
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(name)
        ear.setblocking(False)
        monkeypatch.setattr(supervision, "LOOK_SECONDS", 0.0)
        said, at = [], ("replaying 0 %", 0)

        def listen():
            with suppress(BlockingIOError):
                while True:
                    said.append(ear.recv(4096).decode().split("\n"))
            return len(said)

        async def play():
            nonlocal at
            async with Supervisor({"NOTIFY_SOCKET": name}).patient(lambda: at):
                await until(listen)
                for _ in range(10):
                    await asyncio.sleep(0)
                assert listen() == 1, "a start that does not advance gets no more time"
                at = ("replaying 0 %", 7)
                await until(lambda: listen() == 2)
                at = ("replaying 40 %", 900)
                await until(lambda: listen() == 3)
            for _ in range(3):
                await asyncio.sleep(0)
            assert listen() == 3

        asyncio.run(asyncio.wait_for(play(), HANG_SECONDS))
        assert said == [["EXTEND_TIMEOUT_USEC=60000000", f"STATUS=replaying {percent} %"] for percent in (0, 0, 40)]


def test_changes_after_a_recovery_are_in_the_ledger_and_the_catalog(tmp_path):
    """The catalog is derived from the journal, and stays current for earlier versions."""
    image = tmp_path / "image"
    killed(tmp_path / "made", image)

    async def change(daemon):
        await daemon.catalog.execute("CREATE QUERY more AS SELECT k FROM s")
        assert len(list(daemon.catalog.ledger.entries())) == 2

    restarted(image, change)
    for part in ("journal", "checkpoints"):
        (image / part).rename(tmp_path / part)

    async def look(daemon):
        assert {query.name for query in daemon.queries()} == {"q", "totals", "more"}
        assert len(list(daemon.catalog.ledger.entries())) == 2

    restarted(image, look)
    assert SQL.count("CREATE QUERY") == 2
