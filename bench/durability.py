"""What the journal costs: the same work without a data directory, with `journal.sync = 'off'`, and with `'always'`, in
turns in one run. The disk's own `fdatasync` is measured in the same run."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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


@contextmanager
def _server(mode: str | None) -> Iterator[tuple[Daemon, Path]]:
    settings = {"MILLRACE_JOURNAL__SYNC": mode} if mode else None
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("MILLRACE_BENCH_DIR")) as folder,
        daemon(settings, folder if mode else None) as server,
    ):
        yield server, Path(folder)


def sync_seconds(count: int = 100) -> list[float]:
    """What an `fdatasync` after 300 bytes takes on this disk."""
    with tempfile.TemporaryFile(dir=os.environ.get("MILLRACE_BENCH_DIR")) as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        os.fsync(file.fileno())
        taken = []
        for number in range(count):
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


def latency(count: int = 300) -> list[Figure]:
    """One tuple at a time, 100 a second, from its send to its row."""
    disk = statistics.median(sync_seconds()) * 1e3
    figures = [Figure("fdatasync of this disk, median", disk, "ms")]
    base = 0.0
    for mode in MODES:
        with _server(mode) as (server, _):
            server.sql(FILTERED)
            found = pace(server.listen, "rows", 100, count, server.pid)
        median = found["median"]
        base = base or median
        bound = base + 1.5 * disk if mode == "always" else None
        figures.append(Figure(f"100 single tuples/s, {_called(mode)}: median latency", median, "ms", bound))
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


def _start(settings: Mapping[str, str], folder: str, rows: int) -> float:
    began = time.perf_counter()
    with daemon(settings, folder) as server:
        ready = time.perf_counter() - began
        assert _settled(server) == rows, "rows were lost"
    return ready
