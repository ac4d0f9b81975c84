"""The cost of order on the live daemon over TCP: the latency of an ordered union of a busy and a silent stream.

With latent timestamps nothing waits. With internal timestamps the daemon generates the silent input's timestamp on
demand from its clock. With external timestamps it requests one from the silent input's client, in a separate process.
The three kinds are measured in turns within one run, so that other load on the machine affects all alike. A second
benchmark measures the cost of many feeds of one stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from bench.figure import Figure
from bench.wire import Daemon, daemon
from millrace.protocol import FrameReader, decode, encode, frame
from millrace.protocol.messages import (
    PROTOCOL,
    Ack,
    Data,
    Hello,
    Message,
    Open,
    Opened,
    Ping,
    Pong,
    Punctuation,
    Result,
    Subscribe,
    Subscribed,
    Welcome,
)

# Microseconds that order on demand may add to the median latency.
ALLOWED_US: Final = 300.0

KINDS: Final[Mapping[str, str]] = {
    "latent": "WITH (timestamps = 'latent')",
    "internal": "",
    "external": "WITH (time = 'at')",
}


def statements(kind: str) -> str:
    """A busy stream, a silent one, and their union in one order of time."""
    streams = "".join(
        f"CREATE STREAM {kind}_{name} (at TIMESTAMP, k BIGINT) {KINDS[kind]};" for name in ("busy", "silent")
    )
    return (
        f"{streams} CREATE QUERY {kind}_both WITH (order = 'event') AS "
        f"SELECT k FROM {kind}_busy UNION ALL SELECT k FROM {kind}_silent;"
    )


class Peer:
    """A connection that sends one message after another and waits for each reply."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader()
        self._say(Hello(PROTOCOL, "bench"))
        self._hear(Welcome)

    def close(self) -> None:
        self._socket.close()

    def _say(self, *messages: Message) -> None:
        self._socket.sendall(b"".join(frame(encode(message)) for message in messages))

    def _hear(self, kind: type[Any], count: int = 1) -> None:
        """Read until `count` messages of this kind have arrived."""
        while True:
            for body in self._reader.bodies():
                count -= isinstance(decode(bytes(body)), kind)
                if not count:
                    return
            data = self._socket.recv(65_536)
            if not data:
                raise RuntimeError("the daemon has closed the connection")
            self._reader.feed(data)


class Pair(Peer):
    """A feed and a subscription on one connection, one tuple at a time."""

    def __init__(self, address: str, kind: str) -> None:
        super().__init__(address)
        self._sent = 0
        self._say(Subscribe(0, f"{kind}_both", None, 2**31, False, "rows"))
        self._hear(Subscribed)
        self._say(Open(1, f"{kind}_busy", None, "bench"))
        self._hear(Opened)

    def latency_us(self) -> float:
        """From before a tuple is written until its row has been read."""
        body = Data(1, self._sent, [(time.time_ns() // 1_000, self._sent)])
        began = time.perf_counter()
        self._say(body)
        self._hear(Result)
        self._sent += 1
        return (time.perf_counter() - began) * 1e6


class Many(Peer):
    """Many feeds of the stream s on one connection."""

    def __init__(self, address: str, first: int) -> None:
        super().__init__(address)
        self._first = first

    def open(self, count: int) -> None:
        self._say(*(Open(channel, "s", None, f"feed-{self._first + channel}") for channel in range(count)))
        self._hear(Opened, count)

    def feed(self, count: int, time_us: Callable[[int], int]) -> None:
        """A tuple on each, with the time of its feed's number."""
        self._say(*(Data(channel, 0, [(time_us(self._first + channel),)]) for channel in range(count)))
        self._hear(Ack, count)

    def promise(self, count: int, value_us: int) -> None:
        self._say(*(Punctuation(channel, value_us) for channel in range(count)), Ping(0))
        self._hear(Pong)


@contextlib.contextmanager
def answering(server: Daemon) -> Iterator[None]:
    """A silent client in another process that answers with its clock."""
    command = [sys.executable, "-m", "bench.ets", server.listen, "external_silent"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "open\n":
                raise RuntimeError("the answering client did not start")
            yield
        finally:
            process.terminate()


def latencies(rounds: int) -> dict[str, list[float]]:
    """The latencies of `rounds` tuples per kind, measured in turns."""
    with daemon() as server, contextlib.ExitStack() as opened:
        server.sql("".join(map(statements, KINDS)))
        opened.enter_context(answering(server))
        pairs = {kind: opened.enter_context(contextlib.closing(Pair(server.listen, kind))) for kind in KINDS}
        by_kind: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(max(rounds // 10, 1)):
            for pair in pairs.values():
                pair.latency_us()
        for _ in range(rounds):
            for kind, pair in pairs.items():
                by_kind[kind].append(pair.latency_us())
    return by_kind


def order_on_demand(rounds: int) -> list[Figure]:
    """The medians, and the cost of order on demand."""
    medians = {kind: statistics.median(values) for kind, values in latencies(rounds).items()}
    name = "ordered union over TCP, one input silent"
    return [
        Figure(f"{name}: latent", medians["latent"], "us"),
        Figure(f"{name}: internal", medians["internal"], "us"),
        Figure(f"{name}: on demand - latent", medians["internal"] - medians["latent"], "us", ALLOWED_US),
        Figure(f"{name}: client asked", medians["external"], "us"),
    ]


def many_feeds(connections: int, each: int) -> list[Figure]:
    """One stream fed by many feeds, `each` on every connection: the cost of a feed, and progress as their minimum.

    Every feed sends a tuple with a different time, the least time last. Then every feed promises the same time.
    """
    count = connections * each
    with daemon() as server, contextlib.ExitStack() as opened:
        server.sql("CREATE STREAM s (at TIMESTAMP) WITH (time = 'at'); CREATE QUERY q AS SELECT at FROM s;")
        peers = [opened.enter_context(contextlib.closing(Many(server.listen, at * each))) for at in range(connections)]
        # The first feeds use up memory that the daemon has left over from its start.
        first, rest = peers[: len(peers) // 10], peers[len(peers) // 10 :]
        _seconds(first, lambda peer: peer.open(each))
        before = server.resident_bytes()
        took = _seconds(rest, lambda peer: peer.open(each))
        fed = _seconds(rest, lambda peer: peer.feed(each, lambda number: 10_000_000 + count - number))
        size = server.resident_bytes() - before
        fed += _seconds(first, lambda peer: peer.feed(each, lambda number: 10_000_000 + count - number))
        mark = server.get("/api/v1/streams/s")["mark_us"]
        assert mark == 10_000_001, f"the mark is {mark}, expected the least feed's"
        promised = _seconds(peers, lambda peer: peer.promise(each, 20_000_000))
        shown = _seconds(["/api/v1/streams/s"], server.get)
        mark = server.get("/api/v1/streams/s")["mark_us"]
        assert mark == 20_000_000, f"the mark is {mark}, expected the time that all feeds have promised"
    name = f"{count:,} feeds on {connections} connections"
    return [
        Figure(f"{name}: memory of each", size / (len(rest) * each) / 1024, "KiB", 16.0),
        Figure(f"{name}: opening one", took / (len(rest) * each) * 1e6, "us"),
        Figure(f"{name}: a tuple of one", fed / count * 1e6, "us"),
        Figure(f"{name}: a promise of one", promised / count * 1e6, "us"),
        Figure(f"{name}: showing them all", shown * 1e3, "ms"),
    ]


def _seconds(items: Iterable[Any], run: Callable[[Any], object]) -> float:
    """The time to run this for each item."""
    began = time.perf_counter()
    for item in items:
        run(item)
    return time.perf_counter() - began


async def _answer(address: str, stream: str) -> None:
    from millrace.client import AsyncClient

    async with AsyncClient(address) as client:
        await client.open(stream, answer="clock")
        print("open", flush=True)
        await asyncio.Event().wait()


def _run() -> Callable[..., object]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


if __name__ == "__main__":
    _run()(_answer(sys.argv[1], sys.argv[2]))
