"""What the journal costs: the same work without a data directory, with `journal.sync = 'off'`, and with `'always'`, in
turns in one run. The disk's own `fdatasync` is measured in the same run."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bench.figure import Figure
from bench.race.served import FILTERED, pace
from bench.wire import FILTER, STREAM, Daemon, _settled, daemon, send
from millrace.client import Client

TOTALS: Final = "CREATE QUERY counted AS SELECT src, count(*) AS n, sum(len) AS total FROM packets GROUP BY src;"
SLICE: Final = 50_000
# None: without a data directory.
MODES: Final = (None, "off", "10 ms", "always")


# Rows that are stored twice, and find no partner.
KEPT: Final = """
CREATE STREAM packets (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts');
CREATE QUERY kept WITH (max_state = 1000000000) AS SELECT a.k, a.v FROM packets a JOIN packets b
  ON a.k = b.k + 1000000 AND a.ts BETWEEN b.ts - INTERVAL '1 day' AND b.ts + INTERVAL '1 day';
"""


@contextmanager
def _server(mode: str | None) -> Iterator[tuple[Daemon, Path]]:
    settings = {"MILLRACE_JOURNAL__SYNC": mode} if mode else None
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("MILLRACE_BENCH_DIR")) as folder,
        daemon(settings, folder if mode else None) as server,
    ):
        yield server, Path(folder)


def sync_seconds(count: int = 100, pause: float = 0.0) -> list[float]:
    """What an `fdatasync` after 300 bytes takes on this disk, with pauses: an idle one takes longer to wake up."""
    with tempfile.TemporaryFile(dir=os.environ.get("MILLRACE_BENCH_DIR")) as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        os.fsync(file.fileno())
        taken = []
        for number in range(count):
            time.sleep(pause)
            began = time.perf_counter()
            os.pwrite(file.fileno(), b"x" * 300, number * 300)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return taken


def throughput(kind: str, rows: int, tuples: int, bound: float, rounds: int = 3) -> list[Figure]:
    """Tuples per second into a filtered count, compared with the rate without a journal."""
    frames = max(1, tuples // rows)
    rates: dict[str | None, list[float]] = {mode: [] for mode in MODES}
    spent: dict[str | None, list[float]] = {mode: [] for mode in MODES}
    written = 0.0
    for _ in range(rounds):
        for mode in MODES:
            with _server(mode) as (server, folder):
                server.sql(STREAM + FILTER)
                before = server.processor_seconds()
                rates[mode].append(rows * frames / send(server, kind, rows, frames))
                _settled(server)
                spent[mode].append(server.processor_seconds() - before)
                if mode == "always":
                    written = sum(file.stat().st_size for file in (folder / "journal").glob("*.segment"))
    best = max(rates[None])
    name = f"TCP, {kind} frames of {rows:,}"
    figures = [Figure(f"{name}, no data directory", best / 1e6, "M tuples/s")]
    for mode in MODES[1:]:
        share = max(rates[mode]) / best
        least = bound if mode == "always" else None
        cpu = min(spent[mode]) / max(min(spent[None]), 0.01)  # a tick of the clock
        note = f"{max(rates[mode]) / 1e6:.2f} M tuples/s, {cpu:.2f} times the CPU time"
        figures.append(Figure(f"{name}, sync {mode}: share of it", share * 100, "%", least, most=False, note=note))
    figures.append(Figure(f"{name}: segments on disk", written / 2**20, "MiB"))
    return figures


# The lines of the race: the rate, and how the tuples come.
LINES: Final = ((100, "rows"), (100, "json"), (10_000, "rows"), (10_000, "json"), (50_000, "rows"))


def latency(seconds: float = 3, lines: Sequence[tuple[int, str]] = LINES) -> list[Figure]:
    """From a tuple's send to its row, at the rates of the race. One at a time waits for the disk alone; of more, those
    that come meanwhile wait for the next sync."""
    disk = statistics.median(sync_seconds(pause=0.01)) * 1e3
    figures = [Figure("fdatasync of this disk 100 times a second, median", disk, "ms")]
    for rate, kind in lines:
        base = 0.0
        for mode in (None, "off", "always"):
            with _server(mode) as (server, _):
                server.sql(FILTERED)
                found = pace(server.listen, kind, rate, max(int(rate * seconds), 20), server.pid)
            base = base or found["median"]
            bound = base + 1.5 * disk if (mode, rate, kind) == ("always", 100, "rows") else None
            name = f"{rate:,} tuples/s, {kind}, {_called(mode)}: median latency"
            note = f"p99 {found['p99']:.2f} ms, {found['CPU']:.0f} us of the server per tuple"
            figures.append(Figure(name, found["median"], "ms", bound, note=note))
    return figures


def _called(mode: str | None) -> str:
    return "no data directory" if mode is None else f"sync {mode}"


def recovery(tuples: int) -> list[Figure]:
    """How fast a killed server replays what was sent to it, compared with how fast that came."""
    settings = {"MILLRACE_JOURNAL__CHECKPOINT_SECONDS": "86400", "MILLRACE_JOURNAL__CHECKPOINT_BYTES": str(1 << 40)}
    with tempfile.TemporaryDirectory(dir=os.environ.get("MILLRACE_BENCH_DIR")) as folder:
        with daemon(settings, folder) as server:
            server.sql(STREAM + FILTER)
            sent = send(server, "rows", 100, tuples // 100)
            rows = _settled(server)
            os.kill(server.pid, signal.SIGKILL)
        started = [_start(settings, folder, rows) for _ in range(2)]
    replay = max(started[0] - started[1], 1e-3)
    return [
        Figure("ready again after SIGTERM", started[1], "s"),
        Figure("replay, times as fast as the rows came", sent / replay, "times", 3, most=False),
    ]


def disk(tuples: int) -> list[Figure]:
    """Bytes of records per byte received, and what the data directory takes of the disk, before anything is trimmed."""
    ways: dict[str, Callable[[Daemon], object]] = {
        "row frames of 100": lambda server: send(server, "rows", 100, tuples // 100),
        "Arrow frames of 10,000": lambda server: send(server, "arrow", 10_000, max(1, tuples // 10_000)),
        "single rows": lambda server: send(server, "rows", 1, tuples // 50),
        "single rows, a step each": lambda server: _one_at_a_time(server, tuples // 5_000),
    }
    return [_disk(name, way) for name, way in ways.items()]


def _disk(name: str, way: Callable[[Daemon], object]) -> Figure:
    settings = {"MILLRACE_JOURNAL__CHECKPOINT_SECONDS": "86400", "MILLRACE_JOURNAL__CHECKPOINT_BYTES": str(1 << 40)}
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("MILLRACE_BENCH_DIR")) as folder,
        daemon(settings, folder) as server,
    ):
        server.sql(STREAM + FILTER)
        before = server.counted("millrace_journal_bytes_total")
        way(server)
        _settled(server)
        received = server.counted("millrace_source_bytes_total")
        records = server.counted("millrace_journal_bytes_total") - before
        taken = [_disk_bytes(Path(folder) / part) for part in ("journal", "results")]
    sizes = [f"{size / 2**20:.1f} MiB" for size in (received, *taken)]
    note = f"{sizes[0]} received; on disk: journal {sizes[1]} with its reserve, retained rows {sizes[2]}"
    return Figure(f"TCP, {name}: records per byte received", records / received, "times", 1.2, note=note)


def _one_at_a_time(server: Daemon, tuples: int) -> None:
    with Client(server.listen) as client, client.open("packets") as feed:
        for number in range(tuples):
            feed.send([(number, number % 7, number * 3, number * 0.5)])
            feed.flush()


def _disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def groups(count: int) -> list[Figure]:
    """How long a server with so many groups takes to start from its checkpoint, until it is ready."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("MILLRACE_BENCH_DIR")) as folder:
        with daemon({}, folder) as server:
            server.sql(STREAM + TOTALS)
            with Client(server.listen) as client:
                feed = client.open("packets")
                for first in range(0, count, SLICE):
                    keys = np.arange(first, min(first + SLICE, count))
                    columns = {"src": keys, "dst": keys % 7, "len": keys * 3, "rate": keys * 0.5}
                    feed.send_arrow(pa.record_batch(columns))
                feed.flush()
            rows = _settled(server)
        state = sum(file.stat().st_size for file in (Path(folder) / "checkpoints").iterdir())
        ready = min(_start({}, folder, rows) for _ in range(3))
    return [
        Figure(f"{count:,} groups: checkpoints on disk", state / 2**20, "MiB"),
        Figure(f"{count:,} groups: ready after SIGTERM", ready, "s", 2),
    ]


def following(tuples: int, bound: float, rounds: int = 3) -> list[Figure]:
    """The rate with a follower, compared with the rate without one; the follower takes the same steps meanwhile."""
    rates: dict[str, list[float]] = {"off": [], "on": []}
    behind = 0
    for _ in range(rounds):
        for mode, found in rates.items():
            with _followed(mode) as server:
                server.sql(STREAM + FILTER)
                found.append(tuples / send(server, "rows", 100, tuples // 100))
                behind = server.get("/api/v1/server")["journal"]["follower"]["lag_steps"]
    share = max(rates["on"]) / max(rates["off"]) * 100
    note = f"{behind:,} steps behind at the end"
    return [
        Figure("TCP, rows frames of 100, with a follower: share of the rate", share, "%", bound, most=False, note=note)
    ]


def pauses(tuples: int, most_ms: float | None, modes: Sequence[str] = ("off", "on")) -> list[Figure]:
    """For how long a checkpoint of much state stops the loop: by a fork, and with a follower."""
    figures = []
    for mode in modes:
        with _followed(mode, MILLRACE_JOURNAL__CHECKPOINT_SECONDS="1") as server:
            server.sql(KEPT)
            send(server, "groups", 10_000, tuples // 10_000)
            _wait(server, lambda seen: not seen["follower"]["lag_steps"])
            seen = _next_checkpoint(server)
            name = f"checkpoint by {'a follower' if mode == 'on' else 'a fork'}: pause"
            note = f"{seen['bytes'] / 2**20:,.0f} MiB in {seen['seconds']:.1f} s"
            note += f", {seen['written_bytes'] / 2**20:,.1f} MiB of it written"
            figures.append(Figure(name, seen["pause_seconds"] * 1e3, "ms", most_ms, note=note))
    return figures


def _next_checkpoint(server: Daemon) -> dict[str, Any]:
    """A checkpoint after another row."""
    made = server.get("/api/v1/server")["journal"]["checkpoint"]["made"]
    send(server, "groups", 1, 1)
    return dict(_wait(server, lambda seen: seen["checkpoint"]["made"] > made)["checkpoint"])


@contextmanager
def _followed(mode: str, **more: str) -> Iterator[Daemon]:
    settings = {"MILLRACE_JOURNAL__FOLLOWER": mode, **more}
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("MILLRACE_BENCH_DIR")) as folder,
        daemon(settings, folder) as server,
    ):
        _wait(server, lambda seen: mode == "off" or seen["follower"]["lsn"] is not None)
        yield server


def _wait(server: Daemon, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The server's journal, once this holds of it."""
    while not true(seen := server.get("/api/v1/server")["journal"]):
        time.sleep(0.05)
    return dict(seen)


def _start(settings: Mapping[str, str], folder: str, rows: int) -> float:
    began = time.perf_counter()
    with daemon(settings, folder) as server:
        ready = time.perf_counter() - began
        assert _settled(server) == rows, "rows were lost"
    return ready
