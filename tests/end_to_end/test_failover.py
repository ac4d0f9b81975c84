"""A primary with a lease, its standby and a client are processes; the network between them is cut, or the primary is
stopped. The client finds the promoted server, nothing is lost or doubled, and the old primary says no more."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import urllib.request
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from tests.cli.conftest import Server, clean_environment, millrace
from tests.patience import HANG_SECONDS, wait_until

CLIENT = Path(__file__).parent / "failover_client.py"
SQL = "CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s"
LEASED = """[standby]
lease = "1 second"
confirm = true
"""


class Cable:
    """Connects to an address, for those who connect to it. What is said while a direction is cut arrives later, as with
    TCP. `answered` counts the bytes that have arrived here from the address, passed on or not. With `listens`, a
    connection to the address stays open when the one who wanted it has left, so that nothing is missed."""

    def __init__(self, network, target=None, *, listens=False):
        self.target = target  # None: nobody is there yet
        self.answered = 0
        self._listens = listens
        self._there, self._back = asyncio.Event(), asyncio.Event()
        self._network = network
        network.call(self._mend)
        self.address = f"127.0.0.1:{network.wait(self._listen())}"

    async def _listen(self):
        self._network.open.append(server := await asyncio.start_server(self._connected, "127.0.0.1", 0))
        return server.sockets[0].getsockname()[1]

    def cut(self, *, there, back):
        """Cut the direction to the address, or back from it."""
        for event, cuts in ((self._there, there), (self._back, back)):
            if cuts:
                self._network.call(event.clear)

    def mend(self):
        self._network.call(self._mend)

    def _mend(self):
        self._there.set()
        self._back.set()

    async def _connected(self, reader, writer):
        await self._there.wait()
        try:
            host, _, port = (self.target or "127.0.0.1:1").rpartition(":")
            there = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        self._network.open += [writer, there[1]]
        await asyncio.gather(self._ask(reader, there[1]), self._answer(there[0], writer))

    async def _ask(self, reader, writer):
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self._there.wait()
                writer.write(data)
        if not self._listens:
            await self._there.wait()
            writer.close()

    async def _answer(self, reader, writer):
        with suppress(OSError):
            while data := await reader.read(65_536):
                self.answered += len(data)
                await self._back.wait()
                if not writer.is_closing():
                    writer.write(data)
        await self._back.wait()
        writer.close()


class Network:
    """Cables, in a thread."""

    def __init__(self):
        self.open = []  # what has to be closed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, function):
        async def made():
            function()

        self.wait(made())

    def wait(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(HANG_SECONDS)

    def close(self):
        async def cancel():
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for one in self.open:
                one.close()
            await asyncio.sleep(0)

        self.wait(cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Client:
    """The client's process, and all that it has learned."""

    def __init__(self, addresses):
        self.process = subprocess.Popen(
            [sys.executable, str(CLIENT), ",".join(addresses)],
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.acknowledged = self.epoch = 0
        self.rows = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self):
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            self.epoch = said["epoch"]
            self.acknowledged = said.get("acknowledged", self.acknowledged)
            if "rows" in said:
                assert said["first"] == len(self.rows), "a row is missing, or comes twice"
                self.rows += said["rows"]

    def feed(self, below):
        assert self.process.stdin is not None
        self.process.stdin.write(f"{below}\n")
        self.process.stdin.flush()

    def has(self, count):
        assert self.process.poll() is None, "the client has ended"
        return self.acknowledged == count and self.rows == list(range(count))

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self._thread.join(HANG_SECONDS)


def ask(server, path, body=None):
    request = urllib.request.Request(
        f"http://{server.admin}{path}",
        None if body is None else json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=HANG_SECONDS) as answer:
        text = answer.read().decode()
        return json.loads(text) if path.startswith("/api") else text


def has_granted(folder):
    """Whether the standby has answered for the lease."""
    with suppress(OSError, ValueError):
        return json.loads((folder / "standby.json").read_text())["lease_us"] == 1_000_000
    return False


FAULTS = ["cut", "cut to the primary", "cut from the primary", "stopped"]


def test_primaries_that_are_cut_off_or_stopped_are_replaced(tmp_path):
    """Each standby that was promoted is the next one's primary."""
    settings = tmp_path / "millrace.toml"
    settings.write_text(LEASED)
    with ExitStack() as stack:
        network = Network()
        stack.callback(network.close)
        cables = [Cable(network, listens=True) for _ in range(len(FAULTS) + 1)]

        def start(number, *flags):
            server = stack.enter_context(Server(tmp_path / str(number), "--config", str(settings), *flags))
            cables[number].target = server.listen
            return server

        primary = start(0)
        client = None
        for number, fault in enumerate(FAULTS, 1):
            between = Cable(network, primary.admin)
            standby = start(number, "--follow", f"http://{between.address}")
            wait_until(partial(has_granted, tmp_path / str(number)))
            if client is None:
                assert primary.millrace("sql", SQL).returncode == 0
                client = Client([cable.address for cable in cables])
                stack.callback(client.end)
            replace(primary, standby, client, between, cables[number - 1], fault, number)
            primary = standby
        assert primary.end()[0] == 0
    refused = millrace("serve", "--data-dir", str(tmp_path / "0"))
    assert refused.returncode == 1
    assert "superseded by epoch 2" in refused.stderr


def replace(primary, standby, client, between, cable, fault, number):
    """Have the standby take over while something is wrong with the primary."""
    client.feed(30 * number - 20)
    wait_until(lambda: client.has(30 * number - 20))
    if fault == "stopped":
        primary.process.send_signal(signal.SIGSTOP)
    else:
        between.cut(there=fault != "cut from the primary", back=fault != "cut to the primary")
        wait_until(lambda: "nothing leaves the server" in ask(primary, "/-/healthy"))
    client.feed(30 * number - 10)
    done = ask(standby, "/api/v1/standby/promote", {"force": True})
    assert done["epoch"] == number + 1
    said = cable.answered
    wait_until(lambda: client.has(30 * number - 10))
    assert client.epoch == number + 1
    if fault == "stopped":
        primary.process.send_signal(signal.SIGCONT)
    else:
        between.mend()
    _, told = primary.process.communicate(timeout=HANG_SECONDS)
    assert primary.process.returncode == 1
    assert f"epoch {number + 1} has taken over" in told
    assert cable.answered == said, "the old primary has said something after the promotion"
    client.feed(30 * number)
    wait_until(lambda: client.has(30 * number))
