"""From a socket to a filtered count: the daemon in one process, the sender in another, one feed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bench.figure import Figure, best_of
from bench.sender import GROUPS, Grouped, Repeated
from millrace.formats.decoder import StreamDecoder
from millrace.protocol.frames import frame
from millrace.protocol.messages import PROTOCOL, Hello, encode
from millrace.sql import Catalog, CreateStream, parse, plan

STREAM = "CREATE STREAM packets (src BIGINT, dst BIGINT, len BIGINT, rate DOUBLE);"
FILTER = "CREATE QUERY counted AS SELECT src, len FROM packets WHERE dst = 3;"
GROUPED = """
CREATE STREAM packets (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts');
CREATE QUERY counted AS SELECT k, count(*) AS n, sum(v) AS total, window_start
  FROM TUMBLE(packets, ts, INTERVAL '{window_us} microseconds') GROUP BY k, window_start;
"""
# Every tuple goes to both sides: it is stored twice and probes twice.
JOINED = """
CREATE STREAM packets (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts');
CREATE QUERY counted AS SELECT a.k, a.v, b.v AS w FROM packets a JOIN packets b
  ON a.k = b.k AND a.ts BETWEEN b.ts - INTERVAL '{band_us} microseconds' AND b.ts + INTERVAL '{band_us} microseconds';
"""


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running daemon: its process, its two addresses, and the token that it requires."""

    pid: int
    listen: str
    admin: str
    token: str | None = None

    def ask(self, path: str, body: bytes | None = None, timeout: float = 30) -> bytes:
        """The answer to GET, or with a body to POST of JSON."""
        headers = {"Content-Type": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(f"{self.admin}{path}", body, headers)
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return cast(bytes, answer.read())

    def get(self, path: str) -> Any:
        return json.loads(self.ask(path))

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.admin}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def post(self, path: str) -> Any:
        return json.loads(self.ask(path, b"", timeout=120))

    def sql(self, text: str) -> None:
        self.ask("/api/v1/sql", json.dumps({"sql": text}).encode())

    def counted(self, metric: str) -> float:
        """The sum of a metric over its labels."""
        lines = self.ask("/metrics").decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if line.partition(" ")[0].partition("{")[0] == metric
        )

    def processor_seconds(self) -> float:
        """The processor time that the process has used."""
        user, system = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def daemon(
    environment: Mapping[str, str] | None = None,
    folder: str | None = None,
    *,
    token: str | None = None,
    python: str = sys.executable,
) -> Iterator[Daemon]:
    """A separate daemon on free loopback ports with settings from `environment`, stopped with SIGTERM. It has a data
    directory if there is a `folder`. The settings name a file with the `token`, if it requires one."""
    listen, admin = (f"127.0.0.1:{port}" for port in free_ports(2))
    command = [python, "-c", "from millrace.cli.main import main; main()", "serve"]
    command += ["--listen", listen, "--admin", admin, *(["--data-dir", folder, "--no-token"] if folder else [])]
    variables = {**os.environ, **(environment or {})}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=variables) as process:
        try:
            found = Daemon(process.pid, listen, f"http://{admin}", token)
            while not found.is_ready():
                if process.poll() is not None:
                    raise RuntimeError(f"the daemon ended at once with {process.returncode}")
                time.sleep(0.02)
            yield found
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def send(server: Daemon, kind: str, rows: int, frames: int) -> float:
    """Seconds from the first byte to the last acknowledgement, as the sender's own process measures them."""
    command = [sys.executable, "-m", "bench.sender", server.listen, "packets", kind, str(rows), str(frames)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return float(done.stdout)


def decoding(kind: str, rows: int) -> float:
    """Seconds that the source wrapper takes to decode one frame."""
    planned = plan(parse(STREAM)[0], Catalog())
    assert isinstance(planned, CreateStream)
    source = StreamDecoder(planned.stream)
    payload = _payload(kind, rows)
    decode = source.decode if kind == "rows" else source.from_arrow
    count = max(1, 100_000 // rows)

    def run() -> None:
        for _ in range(count):
            decode(payload)

    return best_of(5, run) / count


def _payload(kind: str, rows: int) -> bytes:
    import msgpack

    rest = Repeated(kind, rows).tail(0)
    if kind == "rows":
        return rest
    unpacker = msgpack.Unpacker(raw=False)
    unpacker.feed(rest)
    next(unpacker)
    return bytes(next(unpacker))


def throughput(kind: str, rows: int, tuples: int, bound: float) -> list[Figure]:
    """Tuples per second through TCP, decoding, the engine and a filter that counts."""
    frames = max(1, tuples // rows)
    with daemon() as server:
        server.sql(STREAM + FILTER)
        seconds = send(server, kind, rows, frames)
        counted = _settled(server)
    total = rows * frames
    expected = sum(1 for number in range(rows) if number % 7 == 3) * frames
    assert counted == expected, f"counted {counted} rows, expected {expected}"
    share = decoding(kind, rows) * frames / seconds
    name = f"TCP, {kind} frames of {rows:,}"
    return [
        Figure(f"{name}: to a filtered count", total / seconds / 1e6, "M tuples/s", bound / 1e6, most=False),
        Figure(f"{name}: share of time in decoding", share * 100, "%"),
    ]


def history(kind: str, rows: int, tuples: int, most: float) -> list[Figure]:
    """The cost of archiving the stream: the daemon's processor time with and without.

    A separate thread writes the files, so a throughput would depend on the number of processors.
    """
    frames = max(1, tuples // rows)
    total = rows * frames
    rate = 0.0
    spent = {False: 0.0, True: 0.0}
    for archived in (False, True):
        with tempfile.TemporaryDirectory() as folder, daemon({"MILLRACE_SERVER__HISTORY_DIR": folder}) as server:
            server.sql(STREAM.replace(");", f") WITH (history = '{str(archived).lower()}');") + FILTER)
            before = server.processor_seconds()
            rate = total / send(server, kind, rows, frames)
            _settled(server)
            if archived:
                archive = server.post("/api/v1/streams/packets/archive")["archive"]
                assert archive["rows"] == total, f"{archive['rows']} rows archived, {total} sent"
            spent[archived] = server.processor_seconds() - before
    share = (spent[True] - spent[False]) / total * 1e6
    name = f"TCP, {kind} frames of {rows:,}: to a filtered count and history"
    return [
        Figure(name, rate / 1e6, "M tuples/s"),
        Figure(f"{name}: of a core at 1 M tuples/s", share * 100, "%", most, note=f"{spent[False]:.2f} s without"),
    ]


def aggregate(rows: int, tuples: int, bound: float, *, window_us: int = 10_000_000) -> list[Figure]:
    """Tuples per second through TCP, decoding and the engine into windows of many groups."""
    frames = max(1, tuples // rows)
    with daemon() as server:
        server.sql(GROUPED.format(window_us=window_us))
        seconds = send(server, "groups", rows, frames)
        rows_out = _settled(server)
    total = rows * frames
    expected = Grouped(rows).groups(frames, window_us)
    assert rows_out == expected, f"{rows_out} rows of windows, expected {expected}"
    name = f"TCP, Arrow frames of {rows:,}: tumbling count + sum"
    return [
        Figure(f"{name}, {GROUPS:,} groups", total / seconds / 1e6, "M tuples/s", bound / 1e6, most=False),
    ]


def join(rows: int, tuples: int, bound: float, *, band_us: int = 1_000) -> list[Figure]:
    """Tuples per second through TCP, decoding and the engine into a band join of a stream with itself."""
    frames = max(1, tuples // rows)
    with daemon() as server:
        server.sql(JOINED.format(band_us=band_us))
        seconds = send(server, "groups", rows, frames)
        rows_out = _settled(server)
    expected = Grouped(rows).pairs(frames, band_us)
    assert rows_out == expected, f"{rows_out} pairs, expected {expected}"
    name = f"TCP, Arrow frames of {rows:,}: band join of the stream with itself"
    return [Figure(name, rows * frames / seconds / 1e6, "M tuples/s", bound / 1e6, most=False)]


def _settled(server: Daemon) -> int:
    """The number of the query's rows, once the daemon is idle."""
    last = -1
    while True:
        count = int(server.get("/api/v1/queries/counted")["rows"])
        if count == last:
            return count
        last = count
        time.sleep(0.1)


def idle_connections(count: int) -> list[Figure]:
    """The daemon's memory per idle connection, after its greeting."""
    with daemon() as server, contextlib.ExitStack() as sockets:
        host, port = server.listen.rsplit(":", 1)

        def connect() -> None:
            connection = sockets.enter_context(socket.create_connection((host, int(port)), timeout=30))
            connection.sendall(frame(encode(Hello(PROTOCOL, "idle"))))
            connection.recv(65_536)

        for _ in range(20):
            connect()
        before = server.resident_bytes()
        for _ in range(count):
            connect()
        each = (server.resident_bytes() - before) / count
    return [Figure(f"{count:,} idle connections: each", each / 1024, "KiB", 64.0)]
