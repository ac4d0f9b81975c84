"""What a service manager hears, from a supervisor alone and from a real server."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

from millrace.run.supervision import Supervisor
from tests.patience import HANG_SECONDS, wait_until


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    """A service manager's socket, and the name that the server receives for it."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@millrace-{os.getpid()}-{id(request)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        ear.settimeout(HANG_SECONDS)
        yield ear, name


def heard(ear):
    return ear.recv(4096).decode().split("\n")


def test_ready_and_stopping_are_told(manager):
    ear, name = manager
    supervisor = Supervisor({"NOTIFY_SOCKET": name})
    supervisor.ready("listening")
    supervisor.stopping()
    assert heard(ear) == ["READY=1", "STATUS=listening"]
    assert heard(ear)[0] == "STOPPING=1"


@pytest.mark.parametrize(
    ("environment", "beats"),
    [
        ({"WATCHDOG_USEC": "3000000"}, True),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, True),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
        ({"WATCHDOG_USEC": "0"}, False),
        ({}, False),
    ],
)
def test_the_heart_beats_if_the_manager_wants_to_hear_it(tmp_path, environment, beats):
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(name)
        ear.setblocking(False)

        async def live():
            async with Supervisor({"NOTIFY_SOCKET": name, **environment}).reassured():
                for _ in range(3):
                    await asyncio.sleep(0)

        asyncio.run(live())
        try:
            said = ear.recv(4096)
        except BlockingIOError:
            said = None
        assert said == (b"WATCHDOG=1" if beats else None)


def test_a_loop_that_hangs_is_silent(tmp_path):
    """The heart is the loop's own: while a task holds the loop, nothing is said."""
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(name)
        ear.setblocking(False)

        async def hang():
            async with Supervisor({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000"}).reassured():
                await asyncio.sleep(0)
                ear.recv(4096)
                with suppress(BlockingIOError):  # on a busy machine it may have beaten again by now
                    while ear.recv(4096):
                        pass
                ear.settimeout(0.05)  # many beats' time, spent inside the loop
                with pytest.raises(TimeoutError):
                    ear.recv(4096)

        asyncio.run(hang())


def test_a_manager_that_is_not_there_or_does_not_read_disturbs_nothing(tmp_path):
    Supervisor({}).ready("nobody asked")
    Supervisor({"NOTIFY_SOCKET": str(tmp_path / "nowhere")}).ready("nobody listens")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        supervisor = Supervisor({"NOTIFY_SOCKET": str(tmp_path / "deaf")})
        for _ in range(2_000):  # more than a socket holds
            supervisor.ready("x" * 1_000)


def test_a_server_is_ready_when_its_statements_are_restored_and_says_that_it_ends(manager, tmp_path):
    ear, name = manager
    command = [sys.executable, "-m", "millrace.cli.main", "serve", "--data-dir", str(tmp_path / "data")]
    command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    server = subprocess.Popen(
        command,
        env={**os.environ, "NOTIFY_SOCKET": name, "WATCHDOG_USEC": "60000000", "MILLRACE_LOG__LEVEL": "error"},
    )
    try:
        ear.setblocking(False)
        said = []

        def has_said_both():
            with suppress(BlockingIOError):
                said.append(heard(ear))
            assert server.poll() is None, "the server has ended"
            return len(said) == 2

        wait_until(has_said_both)
        ear.settimeout(HANG_SECONDS)
        assert ["WATCHDOG=1"] in said
        ready = next(lines for lines in said if lines[0] == "READY=1")
        assert ready[1].startswith("STATUS=listening on 127.0.0.1:")
        assert (tmp_path / "data" / "addresses.json").is_file()
        server.send_signal(signal.SIGTERM)
        assert heard(ear)[0] == "STOPPING=1"
        assert server.wait(timeout=HANG_SECONDS) == 0
    finally:
        server.kill()
        server.wait()
