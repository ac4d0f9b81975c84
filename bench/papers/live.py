"""UPS, live: the daemon over TCP under five times overload, an append queue against an update queue.

One process feeds and reads: update i has key i modulo the number of keys and is due at i over the rate. The rows that
a subscriber receives, with their times, determine the staleness of each key at any time: the age of its first update
that is newer than the one shown. The server reports superseded and queued updates, so that every update is accounted
for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from bench.papers.claims import Claim, Experiment, ExperimentResult
from bench.papers.slowly import VARIABLE
from bench.papers.ups import UPS, draw_side_by_side
from bench.wire import Daemon, daemon
from millrace.client import AsyncClient
from millrace.values.batch import Int64s

KEYS: Final = 10_000
COST_US: Final = 200
OVERLOAD: Final = 5
SECONDS: Final = 20.0
# Tuples of a step of the engine: sockets are served between steps, so a step may take a twentieth of a second.
BUDGET: Final = 256
BATCH: Final = 50
EVERY_S: Final = 0.02
EDGES: Final = {"append": "", "update queue": "LATEST"}
STREAM: Final = "CREATE STREAM ticks (k BIGINT, n BIGINT) WITH (update_key = 'k');"


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a run over one kind of queue.

    at, mean, worst   the staleness over the keys, in seconds, at times since the first update was due
    sent, delivered, superseded, waiting   numbers of updates after the feed has ended; an update queue is
                    drained before
    served_a_second   results per second while updates arrived
    """

    at: Sequence[float]
    mean: Sequence[float]
    worst: Sequence[float]
    sent: int
    delivered: int
    superseded: int
    waiting: int
    served_a_second: float


def shown_late(
    shown: Sequence[tuple[float, Int64s]], keys: int, rate: float, times: Sequence[float]
) -> tuple[list[float], list[float]]:
    """The mean and the greatest staleness over the keys at these times, from the updates shown."""
    following = np.arange(keys)  # per key its first update that is newer than the one shown
    means, worst = [], []
    left = list(shown)[::-1]
    for now in times:
        while left and left[-1][0] <= now:
            numbers = left.pop()[1]
            np.maximum.at(following, numbers % keys, numbers + keys)
        ages = np.maximum(now - following / rate, 0.0)
        means.append(float(ages.mean()))
        worst.append(float(ages.max()))
    return means, worst


async def _feed(client: AsyncClient, begin: float, keys: int, rate: float, seconds: float) -> int:
    """Send each update when it is due; return their number."""
    sent, total = 0, int(rate * seconds)
    async with await client.open("ticks", held_tuples=2 * total, held_bytes=1 << 30) as feed:
        while sent < total:
            due = min(total, int((time.monotonic() - begin) * rate) + 1)
            if due > sent:
                await feed.send([(number % keys, number) for number in range(sent, due)])
                sent = due
            await asyncio.sleep(EVERY_S)
    return sent


async def _read(subscription: Any, begin: float, shown: list[tuple[float, Int64s]]) -> None:
    async for batch in subscription.batches():
        numbers = np.array([number for _, number in batch.rows], np.int64)
        shown.append((time.monotonic() - begin, numbers))


async def _shown(server: Daemon) -> dict[str, Any]:
    """The server's figures for the query's operator."""
    figures: dict[str, Any] = await asyncio.to_thread(server.get, "/api/v1/operators/board.project1")
    return figures


async def _settled(server: Daemon, edge: str) -> dict[str, Any]:
    """The same figures; for an update queue, once it is empty."""
    while True:
        figures = await _shown(server)
        if not EDGES[edge] or not figures["inputs"][0]["queue_tuples"]:
            return figures
        await asyncio.sleep(EVERY_S)


async def _got(shown: Sequence[tuple[float, Int64s]], count: int) -> int:
    """The number of different updates that the subscriber received, once it has all rows of the query."""
    while True:
        if sum(len(numbers) for _, numbers in shown) >= count:
            return len(np.unique(np.concatenate([numbers for _, numbers in shown])[:count]))
        await asyncio.sleep(EVERY_S)


async def _run(server: Daemon, edge: str, keys: int, rate: float, seconds: float) -> Run:
    query = f"CREATE QUERY board AS SELECT k, slowly(n) AS n FROM ticks {EDGES[edge]};"
    await asyncio.to_thread(server.sql, STREAM + query)
    shown: list[tuple[float, Int64s]] = []
    async with AsyncClient(server.listen) as feeding, AsyncClient(server.listen) as reading:
        subscription = await reading.subscribe("board")
        begin = time.monotonic()
        reader = asyncio.create_task(_read(subscription, begin, shown))
        sent = await _feed(feeding, begin, keys, rate, seconds)
        lasted = time.monotonic() - begin
        figures = await _settled(server, edge)
        delivered = await _got(shown, figures["input_tuples"])
        reader.cancel()
        await asyncio.to_thread(server.sql, "DROP QUERY board; DROP STREAM ticks;")
    times = np.arange(0.0, seconds, seconds / 100).tolist()
    queue = figures["inputs"][0]["queue"]
    return Run(
        times,
        *shown_late(shown, keys, rate, times),
        sent,
        delivered,
        queue["superseded"] if queue else 0,
        figures["inputs"][0]["queue_tuples"],
        sum(len(numbers) for at, numbers in shown if at <= lasted) / lasted,
    )


def overloaded(edge: str, keys: int, cost_us: float, overload: float, seconds: float) -> Run:
    """One run in a separate daemon without other load."""
    environment = {
        VARIABLE: str(cost_us),
        "MILLRACE_ENGINE__BUDGET": str(BUDGET),
        "MILLRACE_ENGINE__STRATEGY": f"dfs({BATCH})",
        "MILLRACE_ENGINE__MOST_QUEUED": str(2**31),
        "MILLRACE_ENGINE__CREDIT": str(2**31),
        "MILLRACE_SERVER__DRAIN_SECONDS": "1",
        "MILLRACE_SERVER__FUNCTIONS": "bench.papers.slowly",
    }
    with daemon(environment) as server:
        return asyncio.run(_run(server, edge, keys, overload * 1e6 / cost_us, seconds))


def live(
    keys: int = KEYS, cost_us: float = COST_US, overload: float = OVERLOAD, seconds: float = SECONDS
) -> ExperimentResult:
    """The same updates through both kinds of queue."""
    runs = {edge: overloaded(edge, keys, cost_us, overload, seconds) for edge in EDGES}
    append, update = runs["append"], runs["update queue"]
    round_s = keys / update.served_a_second
    half = len(append.at) // 2
    slope = (append.mean[-1] - append.mean[half]) / (append.at[-1] - append.at[half])
    unserved = 1 - append.served_a_second / (overload * 1e6 / cost_us)
    worst = max(update.worst)
    claims = [
        Claim(
            "under five times overload an append queue's staleness grows without bound",
            "in the second half at the rate of the unserved share of updates, within 10 %",
            f"{slope:.2f} s a second, {unserved:.2f} expected; {append.mean[-1]:.1f} s after {seconds:.0f} s",
            abs(slope - unserved) <= 0.1 * unserved,
        ),
        Claim(
            "an update queue's stays below about a round over the keys, for the worst key too",
            "at most 1.25 rounds at any time",
            f"worst {worst:.2f} s, mean {max(update.mean):.2f} s at most; a round takes {round_s:.2f} s",
            worst <= 1.25 * round_s,
        ),
        Claim(
            "nothing is lost: every update sent was delivered, superseded by a newer one, or still waits",
            "equal",
            "; ".join(
                f"{edge}: {run.sent:,} sent, {run.delivered:,} delivered, {run.superseded:,} superseded, "
                f"{run.waiting:,} wait"
                for edge, run in runs.items()
            ),
            all(run.sent == run.delivered + run.superseded + run.waiting for run in runs.values()),
        ),
    ]
    lines = {
        f"{edge}, {word}": (run.at, values)
        for edge, run in runs.items()
        for word, values in (("mean", run.mean), ("worst key", run.worst))
    }

    def draw(figure: Figure) -> None:
        draw_side_by_side(figure, [("", lines, "seconds", "staleness in seconds")])
        figure.axes[0].axhline(round_s, color="gray", linestyle=":")

    return ExperimentResult(claims, draw)


EXPERIMENTS: Final = (
    Experiment(
        paper=UPS,
        figure="live",
        title="the server itself, five times overloaded",
        setting=f"A daemon, fed and read over TCP on one machine. {KEYS:,} keys update in turn, "
        f"{OVERLOAD * 1_000_000 // COST_US:,} updates a second for {SECONDS:.0f} s. A query's function takes "
        f"{COST_US} us for each, so it can process at most a fifth of them. Staleness is measured at a subscriber: "
        "per key, the age of its first update that is newer than the one shown, since the time at which it was due. "
        f"Steps of {BUDGET} tuples. The dotted line is the time of a round over the keys. This figure measures the "
        "machine.",
        says="nothing: its figures show one server under a virtual clock. Figure 7 makes the same statement for that "
        "server.",
        remark="",
        run=lambda _: live(),
    ),
)
