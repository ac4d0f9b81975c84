"""UPS, section 8: what the paper leaves for later. Readers that look at keys at different intervals, and an edge that
turns from append to update queue and back.

One server over the queue itself, as in `ups.py`: an update per tick, a virtual clock, a fixed price per tuple. Here
staleness is that which readers see: the age of the oldest update of a key that is not in the results when a reader
looks at it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heapreplace
from typing import Final, Literal

import numpy as np

from bench.papers.claims import Claim, Experiment, ExperimentResult
from bench.papers.ups import SCHEMA, SERVER, TICK, UPS, draw_side_by_side, series, uniform
from millrace.operators.queues import kernel as updating
from millrace.operators.queues.appending import AppendQueue
from millrace.operators.queues.auto import AutoQueue
from millrace.operators.queues.load import SPAN_US
from millrace.operators.queues.queue import Queue
from millrace.operators.queues.reads import NextReads, Reads
from millrace.operators.queues.update import CELL, SINCE, UpdateQueue
from millrace.values.batch import Batch

UPDATES: Final = 20_000
KEYS: Final = 100
LOADS: Final = (2, 5, 10, 20)
# Every key has a reader; the intervals take turns.
INTERVALS: Final = (60, 600, 3600)
Policy = Literal["fifo", "inplace", "linecutting", "deadline", "nearest read"]
POLICIES: Final[tuple[Policy, ...]] = ("fifo", "inplace", "linecutting", "deadline", "nearest read")
KNOWN: Final[tuple[Policy, ...]] = ("fifo", "inplace", "linecutting")


class NearestRead(UpdateQueue):
    """Serves the stale key that is read next, however long it has been stale."""

    def _choose(self, reads: NextReads, count: int, now_us: int) -> None:
        slots = self._in_line()
        groups = reads.groups(self._keys.rows(slots))
        left = reads.after(now_us + round(self.cost_us))[groups]
        since = self._cells.reshape(-1, CELL)[slots, SINCE]
        updating.bring_forward(slots[np.lexsort((since, left))[:count]], self._cells, self._line)


@dataclass(frozen=True, slots=True)
class Seen:
    """What readers saw: per key, the mean staleness of its reads in ticks; superseded tuples; the mode over time."""

    by_key: Mapping[int, float]
    reads: int
    mean: float
    superseded: int
    at: Sequence[tuple[int, float]] = ()


def play(
    queue: Queue, keys: Sequence[int], cost: Callable[[int, int], int], reads: Mapping[int, tuple[int, int]]
) -> Seen:
    """One update per tick. A reader of a key looks at its first time and then after every interval, in ticks; `cost` is
    the price of a tuple that is served at a tick, by the number of tuples served before; some may be free."""
    looks = [(first, key) for key, (_, first) in reads.items()]
    heapify(looks)
    unseen: dict[int, list[int]] = {key: [] for key in reads}  # arrivals that are not in the results, the oldest first
    serving: tuple[int, int, int] | None = None  # until when, the key, and the arrivals that its result covers
    sums, counts = dict.fromkeys(reads, 0), dict.fromkeys(reads, 0)
    at: list[tuple[int, float]] = []
    served = 0
    for tick, key in enumerate(keys):
        now = tick * TICK
        if serving is not None and serving[0] <= tick:
            _, shown, last = serving
            unseen[shown] = [arrival for arrival in unseen[shown] if arrival > last]
            serving = None
        time = np.array([now])
        queue.enqueue(Batch(SCHEMA, time, [np.array([key]), np.array([tick])], None, time), now)
        unseen[key].append(tick)
        while serving is None and (batch := queue.dequeue(1, now)) is not None:
            taken, last, price = int(batch.columns[0][0]), int(batch.columns[1][0]), cost(tick, served)
            served += 1
            if price:
                serving = (tick + price, taken, last)
            else:
                unseen[taken] = [arrival for arrival in unseen[taken] if arrival > last]
        while looks[0][0] <= tick:
            look, read = looks[0]
            stale = tick - unseen[read][0] if unseen[read] else 0
            sums[read] += stale
            counts[read] += 1
            at.append((tick, stale))
            heapreplace(looks, (look + reads[read][0], read))
    by_key = {key: sums[key] / counts[key] for key in reads if counts[key]}
    return Seen(by_key, len(at), sum(sums.values()) / len(at), queue.superseded, at)


# -- readers with intervals --------------------------------------------------------------------------------------------


@cache
def seen(policy: Policy, load: int, updates: int, seed: int, together: bool = False) -> Seen:
    """What readers of all keys see; `together` they look at the same ticks."""
    rng = np.random.default_rng((seed, 1))
    every = [INTERVALS[1] if together else INTERVALS[key % len(INTERVALS)] for key in range(KEYS)]
    reads = {key: (every[key], every[key] if together else int(rng.integers(1, every[key] + 1))) for key in range(KEYS)}
    queue = NearestRead(SCHEMA, (0,), "deadline") if policy == "nearest read" else UpdateQueue(SCHEMA, (0,), policy)
    queue.costs(load * TICK)
    queue.read_at([Reads(us * TICK, first * TICK, ((key,),)) for key, (us, first) in reads.items()])
    return play(queue, uniform(updates, KEYS, seed=seed), lambda tick, served: load, reads)


def access(updates: int = UPDATES, loads: Sequence[int] = LOADS, *, seed: int = 1) -> ExperimentResult:
    """Section 8: the staleness that readers see, by the order of service."""
    means = {policy: [seen(policy, load, updates, seed).mean for load in loads] for policy in POLICIES}
    worst = {policy: [max(seen(policy, load, updates, seed).by_key.values()) for load in loads] for policy in POLICIES}
    best = [min(means[policy][at] for policy in KNOWN) for at in range(len(loads))]
    gains = [ours / known for ours, known in zip(means["deadline"], best, strict=True)]
    starves = [worst["nearest read"][at] / worst["inplace"][at] for at in range(len(loads))]
    spared = [worst["deadline"][at] / worst["inplace"][at] for at in range(len(loads))]
    same = [
        seen("deadline", load, updates, seed, True).mean / seen("inplace", load, updates, seed, True).mean
        for load in loads
    ]
    claims = [
        Claim(
            "readers see less staleness with DEADLINE than with the best of FIFO, IN-PLACE and LINECUTTING",
            "below it at every load",
            series(gains),
            max(gains) < 1,
        ),
        Claim(
            "the key whose readers see the most staleness is not sacrificed",
            "at most that of IN-PLACE at every load",
            series(spared),
            max(spared) <= 1,
        ),
        Claim(
            "the nearest read alone would sacrifice keys",
            "the worst key above 5 times that of IN-PLACE at loads from 5 on",
            series(starves),
            min(ratio for ratio, load in zip(starves, loads, strict=True) if load >= 5) > 5,
        ),
        Claim(
            "where all keys are read at the same times, DEADLINE is IN-PLACE",
            "within 1 % at every load",
            series(same),
            all(0.99 <= ratio <= 1.01 for ratio in same),
        ),
    ]
    parts = [
        (title, {str(name): (list(loads), values[name]) for name in POLICIES}, "load factor", "staleness at reads")
        for title, values in (("mean over reads", means), ("mean of the worst key", worst))
    ]
    return ExperimentResult(claims, lambda figure: draw_side_by_side(figure, parts, logarithmic=True))


# -- an edge that turns ------------------------------------------------------------------------------------------------

CALM_TICKS: Final = 20_000
LOW, HIGH = 0.5, 5.0


def turning(calm: int = CALM_TICKS, *, seed: int = 1) -> ExperimentResult:
    """Section 8: a load of a half, then of five, then of a half again."""
    updates, busy = 3 * calm, range(calm, 2 * calm)
    keys = uniform(updates, 10, seed=seed)

    def cost(tick: int, served: int) -> int:
        return int(HIGH) if tick in busy else served % 2  # every other tuple is free: a half in the mean

    reads = {key: (50, key + 1) for key in range(10)}
    queues: Mapping[str, Queue] = {
        "append": AppendQueue(),
        "AUTO": AutoQueue(SCHEMA, (0,)),
        "IN-PLACE": UpdateQueue(SCHEMA, (0,), "inplace"),
    }
    result = {name: play(queue, keys, cost, reads) for name, queue in queues.items()}

    def mean(name: str, ticks: range) -> float:
        return float(np.mean([stale for tick, stale in result[name].at if tick in ticks]))

    span = SPAN_US // TICK
    settled, after = range(calm + 4 * span, 2 * calm), range(2 * calm + 8 * span, updates)
    auto = queues["AUTO"]
    assert isinstance(auto, AutoQueue)
    before = play(AutoQueue(SCHEMA, (0,)), keys[:calm], cost, reads).superseded
    claims = [
        Claim(
            "while the reader keeps up, AUTO supersedes nothing",
            "0 before the overload; appending again at the end",
            f"{before} superseded; {auto.load.mode} at the end, {auto.load.switches} switches",
            before == 0 and auto.load.mode == "append",
        ),
        Claim(
            "under overload readers see about the staleness of an update queue",
            "at most 2.5 times IN-PLACE, in the mean after four seconds",
            f"{mean('AUTO', settled):.3g} against {mean('IN-PLACE', settled):.3g} ticks; append "
            f"{mean('append', settled):,.0f}",
            mean("AUTO", settled) <= 2.5 * mean("IN-PLACE", settled),
        ),
        Claim(
            "eight seconds after the overload its rows are as fresh as those of an append queue that saw none",
            "at most 1 tick",
            f"{mean('AUTO', after):.3g} ticks; append, which still works its queue off, {mean('append', after):,.0f}",
            mean("AUTO", after) <= 1,
        ),
    ]
    lines = {}
    for name, played in result.items():
        x = [at * span for at in range(updates // span)]
        lines[name] = (
            [tick / span for tick in x],
            [0.1 + mean(name, range(tick, tick + span)) for tick in x],
        )
        assert played.reads
    parts = [("load 0.5, 5 and 0.5", lines, "seconds", "staleness at reads, in updates")]
    return ExperimentResult(claims, lambda figure: draw_side_by_side(figure, parts, logarithmic=True))


EXPERIMENTS: Final = (
    Experiment(
        paper=UPS,
        figure="8-access",
        title="staleness that readers see, by the order of service",
        setting=f"{SERVER}: {UPDATES:,} updates of {KEYS} keys, all equally likely. Each key has a reader, which looks "
        f"every {INTERVALS[0]}, {INTERVALS[1]} or {INTERVALS[2]:,} ticks from a random tick on. A read's staleness "
        "is the age of the key's oldest update that is not in the results.",
        says="as future work (section 8): applications read keys at different rates (GOOG every minute, GM every "
        "hour), and these belong into the quality of service.",
        remark="DEADLINE serves the key with the greatest age / time until its next read. The nearest read alone "
        "serves a busy key over and over before its read.",
        run=lambda seed: access(seed=seed),
        wide=True,
    ),
    Experiment(
        paper=UPS,
        figure="8-auto",
        title="an edge that turns with the load, ten keys",
        setting=f"{SERVER}: {CALM_TICKS * 3:,} updates of ten keys, a thousand a second. The load is {LOW:g} for "
        f"{CALM_TICKS * TICK // SPAN_US} seconds, then {HIGH:g}, then {LOW:g} again. Every key is read every 50 ticks.",
        says="as future work (section 8): adaptive schemes could switch between the two modes of a queue by the load.",
        remark="The thresholds and spans are the product's. Under a lasting overload AUTO appends for a span now and "
        "then, to measure what could be served.",
        run=lambda seed: turning(seed=seed),
    ),
)
