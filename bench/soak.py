"""A server with more load than it can carry, and with clients that misbehave: `make soak MINUTES=10`.

Each attack takes turns of a few seconds with the same server without it, so that other programs on the machine slow
both. The goodput is the number of tuples that the server has acknowledged to well-behaved feeds. Probes ask for
`/-/healthy` four times a second, and for a look of `millrace top` every second. In the end every acknowledged tuple
must have been counted by a query once. All clients are on this machine, and each ends by itself.

    overload   four feeds, each as fast as its credit allows, against one such feed
    sink       a sink whose disk is full, so that it retries and holds rows
    idle       1,000 idle and 50 busy connections
    trickle    a subscriber that reads one byte a second
    stranger   a program that opens connections as fast as it can
    memory     another server, with a data directory and a budget of 300 MB, in a cgroup of 512 MiB if this user may
               make one: a join without a bound that is resumed whenever it has failed, a subscriber that reads
               hardly anything, 1,000 connections
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from bench.sender import Sender
from bench.wire import Daemon, daemon
from millrace.protocol import decode, encode, frame
from millrace.protocol.messages import PROTOCOL, Ack, Credit, Error, Hello, Message, Open, Opened, Subscribe

STREAM: Final = "(src BIGINT, dst BIGINT, len BIGINT, rate DOUBLE)"
SQL: Final = f"""
CREATE STREAM packets {STREAM};
CREATE QUERY totals AS SELECT dst, count(*) AS n FROM packets GROUP BY dst;
CREATE QUERY some AS SELECT src, len, rate * 2 AS twice FROM packets WHERE src = 3;
CREATE STREAM other {STREAM};
CREATE QUERY all_rows AS SELECT src, dst, len, rate FROM other;
"""
ROWS: Final = 256
HEALTHY_SECONDS: Final = 0.25
# `millrace top` looks every two seconds.
TOP_SECONDS: Final = 1.0
# Between two looks at the server's memory.
LOOK_SECONDS: Final = 0.05
# One turn with an attack, and one without.
TURN_SECONDS: Final = 3.0
# The start of a turn, in which its clients connect.
SETTLE_SECONDS: Final = 0.5
# What a feed sends per second beside attacks that are not about feeds: well below what a core can take.
PACED: Final = 100_000
IDLE: Final = 1_000
BUSY: Final = 50
# Connections that a stranger has open at once.
OPEN: Final = 500
# No client lives longer, even if nothing ends it.
MOST_SECONDS: Final = 3_600.0
# What the clients show to a server that requires a token.
TOKEN: Final = os.environ.get("MILLRACE_TOKEN")


# -- clients, each in a process ----------------------------------------------------------------------------------------


class Feed(Sender):
    """A feed of so many tuples a second, or as fast as its credit allows (0)."""

    def __init__(self, stream: str, name: str, rate: float) -> None:
        super().__init__(stream, "rows", ROWS, 2**40)
        self.name, self.rate, self.acknowledged = name, rate, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.say(Hello(PROTOCOL, self.name, TOKEN))
        self.say(Open(0, self.stream, None, self.name))

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)
        for body in self.reader.bodies():
            message: Message = decode(bytes(body))
            match message:
                case Opened():
                    self.credit += message.credit
                    self.began = time.perf_counter()
                case Credit():
                    self.credit += message.tuples
                case Ack():
                    self.acknowledged = message.sequence
                case Error():
                    raise RuntimeError(message.text)
                case _:
                    pass
        if self.began:
            self.pump()

    def pump(self) -> None:
        if not self.began:
            return
        if self.rate:
            self.total = int((time.perf_counter() - self.began) * self.rate)
        super().pump()


class Reader(asyncio.Protocol):
    """A subscriber with endless credit, which counts bytes."""

    def __init__(self, query: str) -> None:
        self.query = query
        self.bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        write = cast(asyncio.Transport, transport).write
        write(frame(encode(Hello(PROTOCOL, "reader", TOKEN))))
        write(frame(encode(Subscribe(0, self.query, credit=2**31))))

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)


async def feeding(host: str, port: int, stream: str, feeds: int, rate: float, name: str) -> None:
    """Feeds that print how much was acknowledged, ten times a second, until the input ends."""
    loop = asyncio.get_running_loop()
    peers = []
    for number in range(feeds):
        made = Feed(stream, f"{name}{number}", rate)
        await loop.create_connection(lambda made=made: made, host, port)  # type: ignore[misc]
        peers.append(made)
    ended = asyncio.Event()
    loop.add_reader(0, ended.set)
    until = loop.time() + MOST_SECONDS
    while not ended.is_set() and loop.time() < until:
        await asyncio.sleep(0.02 if rate else 0.1)
        for peer in peers:
            peer.pump()
        print(sum(peer.acknowledged for peer in peers), flush=True)
    for peer in peers:  # what is under way is acknowledged soon
        peer.total, peer.rate = 0, 0.0
    while loop.time() < until and any(peer.acknowledged < peer.sent for peer in peers):  # noqa: ASYNC110 - a client
        await asyncio.sleep(0.05)
    print(sum(peer.acknowledged for peer in peers), flush=True)


async def reading(host: str, port: int, query: str) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: Reader(query), host, port)
    await _input_ends()


async def idling(host: str, port: int) -> None:
    """Connections that introduce themselves and say no more."""
    loop = asyncio.get_running_loop()

    class Idle(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            cast(asyncio.Transport, transport).write(frame(encode(Hello(PROTOCOL, "idle", TOKEN))))

    for _ in range(IDLE):
        await loop.create_connection(Idle, host, port)
    await _input_ends()


async def _input_ends() -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, ended.set)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(MOST_SECONDS):
            await ended.wait()


def trickling(host: str, port: int, query: str) -> None:
    """Read one byte a second."""
    with socket.create_connection((host, port)) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        peer.sendall(frame(encode(Hello(PROTOCOL, "trickle", TOKEN))))
        peer.sendall(frame(encode(Subscribe(0, query, credit=2**31))))
        until = time.monotonic() + MOST_SECONDS
        while time.monotonic() < until and peer.recv(1):
            if _input_has_ended(1.0):
                return


def intruding(host: str, port: int) -> None:
    """Open connections as fast as possible; the oldest are closed."""
    held: list[socket.socket] = []
    opened, until = 0, time.monotonic() + MOST_SECONDS
    while time.monotonic() < until and not _input_has_ended(0.0):
        for _ in range(50):
            with contextlib.suppress(OSError):
                peer = socket.create_connection((host, port), timeout=1.0)
                held.append(peer)
                opened += 1
        while len(held) > OPEN:
            held.pop(0).close()
        print(opened, flush=True)


def _input_has_ended(seconds: float) -> bool:
    import select

    return bool(select.select([0], [], [], seconds)[0])


def client(arguments: Sequence[str]) -> None:
    """A client in a separate process: its kind, the address, and further arguments."""
    kind, address, *more = arguments
    host, _, port = address.rpartition(":")
    match kind, more:
        case "feed", [stream, feeds, rate, name]:
            asyncio.run(feeding(host, int(port), stream, int(feeds), float(rate), name))
        case "read", [query]:
            asyncio.run(reading(host, int(port), query))
        case "idle", []:
            asyncio.run(idling(host, int(port)))
        case "trickle", [query]:
            trickling(host, int(port), query)
        case "stranger", []:
            intruding(host, int(port))


class Client:
    """A running client of a program, and the last line that it has printed."""

    def __init__(self, *arguments: str, program: str = "bench.soak", token: str | None = None) -> None:
        command = [sys.executable, "-m", program, "--client", *arguments]
        self.said = "0"
        environment = {**os.environ, **({} if token is None else {"MILLRACE_TOKEN": token})}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said = line.strip()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    @property
    def number(self) -> int:
        return int(self.said)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._thread.join(MOST_SECONDS)
        self._process.wait(MOST_SECONDS)


# -- measuring ---------------------------------------------------------------------------------------------------------


class Probes:
    """How long the server takes for `/-/healthy`, and for a look of `millrace top`; and the most memory it has."""

    def __init__(self, server: Daemon) -> None:
        self.healthy: list[float] = []
        self.top: list[float] = []
        self.modes: set[str] = set()
        self.resident_bytes = 0
        self._server = server
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=one, daemon=True) for one in (self._ask_healthy, self._ask_top, self._look)
        ]
        for one in self._threads:
            one.start()

    def _get(self, path: str) -> bytes:
        return self._server.ask(path, timeout=60)

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self.resident_bytes = max(self.resident_bytes, self._server.resident_bytes())

    def _ask_healthy(self) -> None:
        while not self._ended.wait(HEALTHY_SECONDS):
            began = time.perf_counter()
            self._get("/-/healthy")
            self.healthy.append(time.perf_counter() - began)

    def _ask_top(self) -> None:
        while not self._ended.wait(TOP_SECONDS):
            began = time.perf_counter()
            self._get("/api/v1/components")
            self._get("/api/v1/operators")
            server = json.loads(self._get("/api/v1/server"))
            self.top.append(time.perf_counter() - began)
            if server.get("overload"):
                self.modes.add(server["overload"]["mode"])

    def end(self) -> None:
        self._ended.set()
        for one in self._threads:
            one.join()


@dataclass(slots=True)
class Outcome:
    """Of one attack: acknowledged tuples per second, and per second of the server's processor, without it and with it;
    the answers to the probes during the attack; by how many bytes it made the server grow; what its client said."""

    name: str
    without: list[tuple[float, float]] = field(default_factory=list)
    during: list[tuple[float, float]] = field(default_factory=list)
    healthy: list[float] = field(default_factory=list)
    top: list[float] = field(default_factory=list)
    modes: set[str] = field(default_factory=set)
    grown: int = 0
    said: str = ""

    @property
    def share(self) -> float:
        """The goodput during the attack, as a share of that without it."""
        return statistics.median(rate for rate, _ in self.during) / statistics.median(rate for rate, _ in self.without)

    @property
    def share_of_processor(self) -> float:
        """The same per second of the server's processor."""
        return statistics.median(each for _, each in self.during) / statistics.median(each for _, each in self.without)

    def line(self) -> str:
        rate = statistics.median(rate for rate, _ in self.during)
        return (
            f"{self.name:<10} {rate:>12,.0f} tuples/s {self.share:>8.1%} of the goodput without it "
            f"({self.share_of_processor:>7.1%} per second of processor)   healthy {_milliseconds(self.healthy)}   "
            f"top {_milliseconds(self.top)}   {', '.join(sorted(self.modes - {'none'})) or '-'}"
        )


def _milliseconds(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    ordered = sorted(seconds)
    p99 = ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]
    return f"p50 {statistics.median(ordered) * 1e3:.0f} p99 {p99 * 1e3:.0f} max {ordered[-1] * 1e3:.0f} ms"


class Soak:
    """One server and its attackers."""

    def __init__(self, server: Daemon, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.acknowledged = 0
        self.said = ""
        server.sql(SQL)

    def client(self, kind: str, *arguments: str) -> Client:
        return Client(kind, self.server.listen, *arguments, token=self.server.token)

    def attack(self, name: str, seconds: float) -> Outcome:
        """Turns with and without the attack, for so long."""
        outcome = Outcome(name)
        rate = 0.0 if name == "overload" else float(PACED)
        feed = self.client("feed", "packets", "1", str(rate), f"{name}-")
        reader = self.client("read", "some")
        while not feed.number:  # a busy machine takes seconds to start it
            time.sleep(0.1)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            outcome.without.append(self._turn([feed]))
            before = self.server.resident_bytes()
            probes = Probes(self.server)
            with self.attackers(name) as attackers:
                helpers = attackers if name == "overload" else []
                outcome.during.append(self._turn([feed, *helpers]))
            probes.end()
            outcome.grown = max(outcome.grown, probes.resident_bytes - before)
            outcome.said = self.said
            outcome.healthy += probes.healthy
            outcome.top += probes.top
            outcome.modes |= probes.modes
        reader.end()
        feed.end()
        self.acknowledged += feed.number
        return outcome

    def _turn(self, feeds: Sequence[Client]) -> tuple[float, float]:
        """Tuples that these feeds have got through, per second and per second of processor."""
        time.sleep(SETTLE_SECONDS)
        began, done = time.monotonic(), sum(feed.number for feed in feeds)
        used = self.server.processor_seconds()
        time.sleep(TURN_SECONDS)
        took, tuples = time.monotonic() - began, sum(feed.number for feed in feeds) - done
        return tuples / took, tuples / max(self.server.processor_seconds() - used, 1e-9)

    @contextlib.contextmanager
    def attackers(self, name: str) -> Iterator[list[Client]]:
        """The clients of an attack: those that feed the same stream."""
        client = self.client
        feeds: list[Client] = []
        others: list[Client] = []
        match name:
            case "overload":
                feeds = [client("feed", "packets", "3", "0", f"more{time.monotonic_ns()}-")]
            case "idle":
                others = [client("idle")]
                feeds = [client("feed", "packets", str(BUSY), "500", f"busy{time.monotonic_ns()}-")]
            case "trickle":
                others = [client("feed", "other", "1", "20000", f"t{time.monotonic_ns()}-")]
                others += [client("trickle", "all_rows")]
            case "stranger":
                others = [client("stranger")]
            case "sink":
                others = [client("feed", "other", "1", "20000", f"s{time.monotonic_ns()}-")]
                path = self.folder / "full" / "rows.jsonl"
                self.server.sql(
                    f"CREATE SINK full FROM all_rows WITH (type = 'file', path = '{path}', on_slow = 'drop_oldest');"
                )
        try:
            yield feeds
        finally:
            for one in [*feeds, *others]:
                one.end()
            self.acknowledged += sum(feed.number for feed in feeds)
            if name == "sink":
                self.server.sql("DROP SINK full;")
                (self.folder / "full" / "rows.jsonl").unlink()

    def lost(self) -> int:
        """Acknowledged tuples that the server has not counted, or has counted twice."""
        while self.server.get("/api/v1/components") and any(
            one["queued"] for one in self.server.get("/api/v1/components")
        ):
            time.sleep(0.1)
        counted = next(one for one in self.server.get("/api/v1/streams") if one["name"] == "packets")["tuples"]
        return self.acknowledged - int(counted)


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[bool]:
    """A file system of 64 KiB; whether this user may mount one."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(folder)], check=False)


class Cgroup:
    """A memory cgroup of version 1 or 2 for a process, if this user may make one."""

    def __init__(self, pid: int, size: int) -> None:
        self.folder: Path | None = None
        for top, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            folder = Path(top) / f"millrace-soak-{pid}"
            try:
                folder.mkdir()
                (folder / name).write_text(str(size))
                (folder / "cgroup.procs").write_text(str(pid))
            except OSError:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            else:
                self.folder = folder
                break

    @property
    def kills(self) -> str:
        """How often the system has killed a process in it."""
        if self.folder is None:
            return "no cgroup"
        for name in ("memory.oom_control", "memory.events"):
            if (self.folder / name).exists():
                words = (self.folder / name).read_text().split()
                return f"{words[words.index('oom_kill') + 1]} OOM kills"
        return "?"

    def remove(self) -> None:
        if self.folder is not None:
            self.folder.rmdir()


GROWING: Final = f"""
CREATE STREAM grow {STREAM};
CREATE QUERY shifted AS SELECT src + 1000 AS src, len FROM other;
CREATE QUERY pairs AS SELECT g.src, o.len FROM grow g JOIN shifted o ON g.src = o.src;
"""


def grow(seconds: float, rate: float) -> bool:
    """A query that takes all memory again and again, of feeds with this rate each, or as fast as their credit allows;
    whether the server and the rows of others outlived it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        daemon({"MILLRACE_SERVER__MEMORY": "300 MB"}, folder) as server,
    ):
        cgroup = Cgroup(server.pid, 512 * 2**20)
        server.sql(SQL + GROWING)
        steady = Client("feed", server.listen, "packets", "1", str(PACED), "steady-")
        others = [Client("idle", server.listen), Client("trickle", server.listen, "all_rows")]
        others += [Client("feed", server.listen, stream, "1", str(rate), "grow-") for stream in ("grow", "other")]
        peak, used, failed, began = 0, 0, set(), time.monotonic()
        while time.monotonic() - began < seconds and not failed:
            time.sleep(0.5)
            used = server.resident_bytes()
            peak = max(peak, used)
            states = {one["name"]: one["state"] for one in server.get("/api/v1/queries")}
            if states.pop("pairs") == "failed":
                server.post("/api/v1/queries/pairs/resume")
            failed = {name for name, state in states.items() if state != "running"}
        memory = server.get("/api/v1/server")["memory"]
        for one in [*others, steady]:
            one.end()
        counted = next(one for one in server.get("/api/v1/streams") if one["name"] == "packets")["tuples"]
        rate = steady.number / (time.monotonic() - began)
        print(
            f"memory     {rate:>12,.0f} tuples/s beside {len(memory['failed'])} failures of the query that grows; at "
            f"most {peak / 2**20:,.0f} of {memory['budget_bytes'] / 2**20:,.0f} MiB used, {used / 2**20:,.0f} in the "
            f"end; {cgroup.kills}; {steady.number - int(counted)} lost or doubled; {memory['shed_rows']} rows dropped"
            + (f"; OTHERS FAILED: {', '.join(sorted(failed))}" if failed else "")
        )
    cgroup.remove()
    return peak <= memory["budget_bytes"] * 1.1 and steady.number == counted and not failed


ATTACKS: Final = ("overload", "sink", "idle", "trickle", "stranger", "memory")
# What must stay of the goodput.
LEAST: Final = {"overload": 0.90}
LEAST_BESIDE: Final = 0.95


def soak(seconds: float, attacks: Sequence[str] = ATTACKS, rate: float = 0.0) -> bool:
    """All attacks, each for its share of the time; whether everything held that can be judged on a busy machine."""
    with (
        tempfile.TemporaryDirectory() as text,
        full_disk(Path(text) / "full") as has_disk,
        daemon({"MILLRACE_SERVER__ALLOW_PATHS": text}) as server,
    ):
        world = Soak(server, Path(text))
        holds = True
        for name in attacks:
            if name == "memory":
                holds &= grow(seconds / len(attacks), rate)
                continue
            if name == "sink" and not has_disk:
                print("sink       left out: this user may not mount a small file system")
                continue
            outcome = world.attack(name, seconds / len(attacks))
            print(outcome.line(), flush=True)
            holds &= outcome.share >= LEAST.get(name, LEAST_BESIDE)
        lost = world.lost()
        print(f"{world.acknowledged:,} tuples acknowledged, {lost} lost or doubled")
        return holds and lost == 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--attack", action="append", choices=ATTACKS)
    parser.add_argument("--rate", type=float, default=0.0, help="tuples a second of each feed of the attack memory")
    chosen = parser.parse_args(arguments)
    return 0 if soak(chosen.minutes * 60, chosen.attack or ATTACKS, chosen.rate) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client(sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))
