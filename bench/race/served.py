"""Lines about a server: tuples over TCP, subscribers, connections, and the cores that it uses.

The server runs in a separate process without a data directory. Senders replay prepared files with sendfile, or
prepared frames as far as credit allows. CPU time is that of the server's process.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import wire
from bench.race.inmemory import check
from bench.race.lines import MILLRACE, Contender, Line, Metric, Scale
from bench.race.peers import PROGRAMS, read_rows, write_columns
from bench.race.workloads import WORKLOADS, InDuckDB, Stream, Workload, digest
from millrace.client import Client, Feed, RowBatch
from millrace.protocol.frames import frame
from millrace.protocol.messages import PROTOCOL, Hello, encode

SPEED: Final = {
    "speed": Metric("M tuples per CPU second", more=True),
    "cores": Metric("cores used while tuples arrive", more=True),
}
# All rows of a workload are read and compared after its time is taken.
RETAINED: Final = {"MILLRACE_LIMITS__RETAINED_TUPLES": "2000000", "MILLRACE_LIMITS__RETAINED_BYTES": str(1 << 30)}
# Tuples of a workload over TCP are a multiple of this, so that every frame is full.
WHOLE: Final = 20_000
END: Final = b'{"stream":"%s","punctuation":"9999-12-31T00:00:00Z"}\n'
END_US: Final = 253_402_214_400_000_000


def server() -> contextlib.AbstractContextManager[wire.Daemon]:
    """A server without a data directory on free ports of this machine."""
    return wire.daemon(RETAINED)


def connected(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=60)


def cpu_of(process: int) -> float:
    """The CPU time of all threads of a process, to the nanosecond where the kernel counts so."""
    times = []
    for path in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            times.append(int(path.read_text().split()[0]))
    return sum(times) / 1e9


# -- JSON lines --------------------------------------------------------------------------------------------------------


def line_files(streams: Mapping[str, Stream], folder: Path) -> dict[str, Path]:
    """Each stream as a file of JSON lines for the server, the end of its time behind them."""
    paths = {}
    for name, stream in streams.items():
        path = folder / f"{name}.lines"
        if not path.exists():
            form = ",".join(f'"{field}":%d' for field in stream.schema.names)
            line = f'{{"stream":"{name}","tuple":{{{form}}}}}\n'
            with path.with_suffix(".new").open("wb") as file:
                for start in range(0, len(stream), 65_536):
                    rows = zip(*(column.tolist() for column in stream.part(start, start + 65_536).columns), strict=True)
                    file.write("".join([line % row for row in rows]).encode())
                file.write(END.replace(b"%s", name.encode()))
            path.with_suffix(".new").rename(path)
        paths[name] = path
    return paths


def replay(address: str, paths: Sequence[Path]) -> None:
    """Send each file on its own connection, and wait until the other side has read them."""

    def send(path: Path) -> None:
        with connected(address) as connection, path.open("rb") as file:
            connection.settimeout(300)
            connection.sendfile(file)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass

    threads = [threading.Thread(target=send, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workload's tuples and rows, and its files."""

    workload: Workload
    streams: Mapping[str, Stream]
    folder: Path
    count: int
    rows: int
    digest: str


def prepared(name: str, scale: Scale, share: int) -> Prepared:
    workload = WORKLOADS[name]
    streams = workload.streams(max(scale.tuples // share // WHOLE, 1) * WHOLE)
    expected = InDuckDB(workload, streams).run()
    count = sum(map(len, streams.values()))
    folder = write_columns(streams, scale.folder / f"{name}-{count}-tcp")
    return Prepared(workload, streams, folder, count, len(expected[0]), digest(expected))


def json_lines(name: str, scale: Scale) -> Iterator[Contender]:
    work = prepared(name, scale, 5)
    paths = list(line_files(work.streams, work.folder).values())
    yield Contender(MILLRACE, partial(_served, work, lambda address: replay(address, paths)))
    if scale.peers is not None:
        for peer, program in (("bytewax", "tcp_bytewax"), ("csp", "tcp_csp")):
            if peer in scale.peers.pythons:
                yield Contender(peer, partial(_peer, work, paths, scale.peers.pythons[peer], peer, program))


def _served(work: Prepared, send: Any, *, arrow: bool = False) -> Mapping[str, float]:
    """The server's CPU time from the first tuple to the last row, which are then read and compared."""
    with server() as one:
        one.sql(work.workload.sql)
        if arrow:
            _import_arrow(one)
        cpu, wall = cpu_of(one.pid), time.perf_counter()
        send(one.listen)
        sent = time.perf_counter() - wall
        used_while_sending = cpu_of(one.pid) - cpu
        await_rows(one, "q", work.rows)
        seconds = cpu_of(one.pid) - cpu
        check(MILLRACE, digest(rows_of(one, work)), work.digest)
    return {"speed": work.count / seconds / 1e6, "cores": used_while_sending / sent}


def _import_arrow(one: wire.Daemon) -> None:
    """Feed a row by Arrow: the first one takes the server half a second of imports."""
    import pyarrow as pa

    one.sql("CREATE STREAM other (k BIGINT);")
    with Client(one.listen) as client, client.open("other") as feed:
        feed.send_arrow(pa.record_batch({"k": pa.array([1])}))
        feed.flush()


def await_rows(one: wire.Daemon, query: str, rows: int) -> None:
    """Until a query has emitted so many rows."""
    for _ in range(3_000):
        found = int(one.get(f"/api/v1/queries/{query}")["rows"])
        if found >= rows:
            return
        time.sleep(0.1)
    raise AssertionError(f"{query} has emitted {found} rows, expected {rows}")


def rows_of(one: wire.Daemon, work: Prepared) -> list[Any]:
    """The columns of the rows that the query retains."""
    found: list[Any] = []
    with Client(one.listen) as client, client.subscribe("q", from_sequence=0) as subscription:
        for batch in subscription.batches(timeout=60):
            assert isinstance(batch, RowBatch)
            found += batch.rows
            if len(found) >= work.rows:
                break
        names = [field.name for field in subscription.schema]
    columns = dict(zip(names, zip(*found, strict=True), strict=True))
    return [np.array(columns[name]) for name in work.workload.columns]


def _peer(work: Prepared, paths: Sequence[Path], python: Path, peer: str, program: str) -> Mapping[str, float]:
    """A peer's program that listens on a port, reads until all connections have ended, and prints its seconds."""
    (port,) = wire.free_ports(1)
    arguments = [work.workload.name, str(work.folder), str(port), str(len(paths))]
    with peer_program(python, program, *arguments) as process:
        wall = time.perf_counter()
        replay(f"127.0.0.1:{port}", paths)
        out, _ = process.communicate(timeout=600)
        wall = time.perf_counter() - wall
    seconds = json.loads(out.splitlines()[-1])["seconds"]
    check(peer, digest(read_rows(work.folder)), work.digest)
    return {"speed": work.count / seconds / 1e6, "cores": seconds / wall}


@contextlib.contextmanager
def peer_program(python: Path, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A running program of a peer, once it listens."""
    command = [str(python), str(PROGRAMS / f"{program}.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "listening":
                _, error = process.communicate(timeout=30)
                raise RuntimeError(f"{program} failed:\n{error[-1500:]}")
            yield process
        finally:
            if process.poll() is None:
                process.kill()


# -- frames ------------------------------------------------------------------------------------------------------------


def frames(kind: str, rows: int, scale: Scale) -> Iterator[Contender]:
    work = prepared("w2", scale, 2 if kind == "arrow" else 5)

    def send(address: str) -> None:
        command = [sys.executable, "-m", "bench.race.replay", address, "s", kind, str(rows), str(work.folder)]
        subprocess.run(command, check=True, capture_output=True, timeout=300)

    # The sender's own start takes no time of the server, but the cores that it uses meanwhile are not known.
    yield Contender(MILLRACE, lambda: {"speed": _served(work, send, arrow=kind == "arrow")["speed"]})


# -- subscribers -------------------------------------------------------------------------------------------------------

DELIVERY: Final = {"time": Metric("ns per row delivered", more=False)}
SUBSCRIBED: Final = "CREATE STREAM s (k BIGINT, v BIGINT); CREATE QUERY q AS SELECT k, v FROM s WHERE k >= 0;"


# Rows of a frame, and of those that each subscriber has received before the time counts.
FRAME_ROWS: Final = 100
FIRST_ROWS: Final = 1_000


def subscribers(kind: str, scale: Scale) -> Iterator[Contender]:
    """Twenty million rows delivered at the full size: a second or two of the server."""
    for count in (10, 100, 1_000):
        if count * FRAME_ROWS <= scale.tuples:
            yield Contender(MILLRACE, partial(_subscribed, kind, count, max(4 * scale.tuples // count, 1_000)), count)


def _subscribed(kind: str, count: int, rows: int) -> Mapping[str, float]:
    """The server's CPU time while rows flow to `count` subscribers, in a process that counts them. Connecting,
    subscribing and leaving are not in it; receiving the rows and the query are."""
    with server() as one:
        one.sql(SUBSCRIBED)
        numbers = (count, FIRST_ROWS, FIRST_ROWS + rows)
        command = [sys.executable, "-m", "bench.race.reader", one.listen, kind, *map(str, numbers)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline().strip() == "subscribed"
            with Client(one.listen) as client, client.open("s") as feed:
                _feed(feed, FIRST_ROWS)
                check_rows(reader.stdout.readline(), count * FIRST_ROWS)
                before = cpu_of(one.pid)
                _feed(feed, rows)
                check_rows(reader.stdout.readline(), count * (FIRST_ROWS + rows))
                seconds = cpu_of(one.pid) - before
            reader.communicate(timeout=300)
    return {"time": seconds / (count * rows) * 1e9}


def _feed(feed: Feed, rows: int) -> None:
    for at in range(0, rows, FRAME_ROWS):
        feed.send([(number, number) for number in range(at, min(at + FRAME_ROWS, rows))])
    feed.flush()


def check_rows(line: str, rows: int) -> None:
    assert int(line) == rows, f"{line.strip()} rows received, {rows} expected"


# -- latency -----------------------------------------------------------------------------------------------------------

LATENCY: Final = {
    "median": Metric("ms", more=False),
    "p90": Metric("ms", more=False),
    "p99": Metric("ms", more=False),
    "p99.9": Metric("ms", more=False),
    "CPU": Metric("us of the server per tuple", more=False),
}
FILTERED: Final = "CREATE STREAM s (id BIGINT, v BIGINT); CREATE QUERY q AS SELECT id, v FROM s WHERE v >= 0;"


def latency(rate: int, scale: Scale) -> Iterator[Contender]:
    """Rows at a rate through one filter, each from its own send to its receipt, over one connection or two."""
    seconds = 3 if scale.tuples >= 1_000_000 else 0.3
    count = max(int(rate * seconds), 30)
    for kind, name in (("json", MILLRACE), ("rows", f"{MILLRACE}, row frames")):
        yield Contender(name, partial(_paced, kind, rate, count))
    if scale.peers is not None:
        for peer, program in (("bytewax", "echo_bytewax"), ("csp", "echo_csp")):
            if peer in scale.peers.pythons:
                yield Contender(peer, partial(_paced_peer, scale.peers.pythons[peer], program, rate, count))


def _paced(kind: str, rate: int, count: int) -> Mapping[str, float]:
    with server() as one:
        one.sql(FILTERED)
        return pace(one.listen, kind, rate, count, one.pid)


def _paced_peer(python: Path, program: str, rate: int, count: int) -> Mapping[str, float]:
    (port,) = wire.free_ports(1)
    with peer_program(python, program, str(port)) as process:
        return pace(f"127.0.0.1:{port}", "echo", rate, count, process.pid)


def pace(address: str, kind: str, rate: int, count: int, process: int) -> Mapping[str, float]:
    """Percentiles in milliseconds, as the process that sends and receives measures them."""
    command = [sys.executable, "-m", "bench.race.pacer", address, kind, str(rate), str(count), str(process)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(done.stderr[-1_500:])
    found: dict[str, float] = json.loads(done.stdout)
    return found


# -- connections -------------------------------------------------------------------------------------------------------


def connections(scale: Scale) -> Iterator[Contender]:
    for count in (100, 1_000, 5_000):
        if count <= scale.tuples // 100:
            yield Contender(MILLRACE, partial(_idle, count), count)


def _idle(count: int) -> Mapping[str, float]:
    """The server's memory for each connection after its greeting."""
    with server() as one, contextlib.ExitStack() as sockets:

        def connect() -> None:
            connection = sockets.enter_context(connected(one.listen))
            connection.sendall(frame(encode(Hello(PROTOCOL, "idle"))))
            connection.recv(65_536)

        for _ in range(20):
            connect()
        before = one.resident_bytes()
        for _ in range(count):
            connect()
        return {"memory": max(one.resident_bytes() - before, 1) / count / 1024, "idle": before / 2**20}


def _allowed_files() -> None:
    """5,000 connections need as many files."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard < 65_536 else max(soft, 65_536), hard))


with contextlib.suppress(ValueError, OSError):
    _allowed_files()

ORJSON: Final = (
    "The peers parse with orjson and check no types, and emit rows at the end alone: in their favour. They serve one "
    "purpose, and have neither subscribers nor an admin API."
)
MEMORY: Final = {
    "memory": Metric("KiB per connection", more=False),
    "idle": Metric("MiB of an idle server", more=False),
}
SPEED_ALONE: Final = {"speed": SPEED["speed"]}
PACED: Final = (
    "The sender and the receiver are one process in Python, which costs all programs the same; at 50,000/s it sends "
    "several rows at once. The peers answer on the sender's connection, Millrace on another: in the peers' favour."
)
LINES: Final = [
    Line("tcp-json-w1", "JSON lines over TCP: W1", SPEED, partial(json_lines, "w1"), "twice bytewax", ORJSON),
    Line("tcp-json-w2", "JSON lines over TCP: W2", SPEED, partial(json_lines, "w2"), "at least 1.2 M/s", ORJSON),
    Line("tcp-rows-w2", "row frames of 100: W2", SPEED_ALONE, partial(frames, "rows", 100), "at least 3.5 M/s"),
    Line(
        "tcp-arrow-w2", "Arrow frames of 10,000: W2", SPEED_ALONE, partial(frames, "arrow", 10_000), "at least 12 M/s"
    ),
    *(
        Line(f"latency-{rate}", f"latency at {rate:,}/s, one filter", LATENCY, partial(latency, rate), goal, PACED)
        for rate, goal in (
            (100, "better than both; 120 us of CPU"),
            (10_000, "0.1 / 0.3 ms; 25 us of CPU"),
            (50_000, "0.1 / 0.3 ms, and JSON keeps up"),
        )
    ),
    *(
        Line(
            f"subscribers-{kind}",
            f"subscribers of one query, {name}",
            DELIVERY,
            partial(subscribers, kind),
            "1,000: at most 60 ns",
            "",
            "subscribers",
        )
        for kind, name in (("rows", "row frames"), ("json", "JSON lines"))
    ),
    Line("connections", "idle connections", MEMORY, connections, "at most 4 KiB, 80 MiB idle", "", "connections"),
]
