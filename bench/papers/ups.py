"""UPS, figures 5, 7, 9, 13, 14, 16 and 17: the freshness that update queues achieve, and their cost.

Every trial runs the queue itself under a virtual clock: a server takes a fixed number of ticks per tuple. A tuple that
arrives at the instant of a choice takes part in it. A tick is 1,000 microseconds. One update arrives per tick, so the
load factor is the price of a tuple in ticks. Staleness is measured in ticks: in updates, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Final, Literal

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bench.papers.claims import Claim, Experiment, ExperimentResult, Paper
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.queues.appending import AppendQueue, SheddingQueue
from millrace.operators.queues.pages import SLOTS
from millrace.operators.queues.queue import Queue
from millrace.operators.queues.update import Scheduler, UpdateQueue
from millrace.operators.queues.windows import Commit, WindowQueue
from millrace.protocol import Schema
from millrace.values.batch import Batch, Int64s

UPS: Final = Paper(
    "ups", "Storage-centric Load Management for Data Streams with Update Semantics", "Moga, Botan and Tatbul"
)
TICK: Final = 1_000
SCHEMA: Final = Schema.of(k="bigint", v="bigint")
UPDATES: Final = 20_000
LOADS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
Kind = Literal["AQ", "AQ-RLS", "UQ-FIFO", "UQ-INPLACE"]
KINDS: Final[tuple[Kind, ...]] = ("AQ", "AQ-RLS", "UQ-FIFO", "UQ-INPLACE")


# -- one server --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """Staleness in ticks, over time and keys; the number of delivered results; the mean time that their keys waited."""

    queue: float
    application: float
    served: int
    wait: float


class Staleness:
    """The area under one key's staleness, from the times at which each update, or a newer one, is shown. It does not
    depend on how a queue chooses, so it measures all kinds alike."""

    def __init__(self, arrivals: Sequence[int]) -> None:
        self._arrivals = arrivals
        self._next = 0
        self._last = 0
        self.area = 0.0

    def shown(self, arrival: int, at: int) -> None:
        """The result of the update that arrived then is out."""
        self._until(at)
        while self._next < len(self._arrivals) and self._arrivals[self._next] <= arrival:
            self._next += 1

    def _until(self, at: int) -> None:
        if self._next < len(self._arrivals):
            since = self._arrivals[self._next]
            self.area += 0.5 * (max(0, at - since) ** 2 - max(0, self._last - since) ** 2)
        self._last = at

    def total(self, horizon: int) -> float:
        self._until(horizon)
        return self.area


def serve(
    queue: Queue, keys: Sequence[int], cost: int, *, each: Callable[[int, int], None] = lambda at, age: None
) -> Outcome:
    """One update per tick, with these keys in turn; a server that takes `cost` microseconds for each.

    `each` receives the time of a service and the age of the update.
    """
    if isinstance(queue, UpdateQueue):
        queue.timed = True
    queue.costs(cost)
    known = sorted(set(keys))
    arrivals: dict[int, list[int]] = {key: [] for key in known}
    for at, key in enumerate(keys):
        arrivals[key].append(at * TICK)
    waiting = {key: Staleness(times) for key, times in arrivals.items()}
    unseen = {key: Staleness(times) for key, times in arrivals.items()}
    horizon = len(keys) * TICK
    pending: dict[int, int] = {}
    served = put = waited = free = 0
    out: tuple[int, int] | None = None
    while True:
        while put < len(keys) and put * TICK <= free:
            now = np.array([put * TICK])
            queue.enqueue(Batch(SCHEMA, now, [np.array([keys[put]]), np.array([put])], None, now), put * TICK)
            pending.setdefault(keys[put], put * TICK)
            put += 1
        if out is not None:
            unseen[out[0]].shown(out[1], min(free, horizon))
        if free >= horizon:
            break
        batch = queue.dequeue(1, free)
        out = None
        if batch is None:
            free = put * TICK
            continue
        queue.measured(cost, free)
        key, arrival = int(batch.columns[0][0]), int(batch.arrival[0])
        waiting[key].shown(arrival, free)
        out = (key, arrival)
        served += 1
        waited += free - pending.pop(key, arrival)
        each(free, free - arrival)
        free += cost
    size = horizon * len(known) * TICK
    return Outcome(
        sum(stale.total(horizon) for stale in waiting.values()) / size,
        sum(stale.total(horizon) for stale in unseen.values()) / size,
        served,
        waited / served / TICK if served else 0.0,
    )


def queue_of(kind: Kind, keys: int, seed: int) -> Queue:
    """A queue of this kind. A shedding queue has room for as many tuples as there are keys, like the others."""
    match kind:
        case "AQ":
            return AppendQueue()
        case "AQ-RLS":
            return SheddingQueue(SCHEMA, keys, seed=seed)
        case "UQ-FIFO":
            return UpdateQueue(SCHEMA, (0,), "fifo")
        case "UQ-INPLACE":
            return UpdateQueue(SCHEMA, (0,), "inplace")


def uniform(updates: int, keys: int, *, seed: int = 1) -> list[int]:
    """Keys drawn at random, all equally likely."""
    drawn: list[int] = np.random.default_rng(seed).integers(0, keys, updates).tolist()
    return drawn


def by_weight(updates: int, weights: Sequence[float], *, seed: int = 1) -> list[int]:
    """Keys drawn at random in proportion to their weights."""
    share = np.array(weights, np.float64) / sum(weights)
    drawn: list[int] = np.random.default_rng(seed).choice(len(weights), updates, p=share).tolist()
    return drawn


def zipf(keys: int, theta: float) -> list[float]:
    return [1.0 / (rank + 1) ** theta for rank in range(keys)]


@cache
def under_load(kind: Kind, keys: int, load: int, updates: int, seed: int) -> Outcome:
    return serve(queue_of(kind, keys, seed), uniform(updates, keys, seed=seed), load * TICK)


# -- numbers and lines of claims -------------------------------------------------------------------------------------


def ticks(value: float) -> str:
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def series(values: Sequence[float]) -> str:
    return ", ".join(ticks(value) for value in values)


Lines = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def draw_side_by_side(
    figure: Figure, parts: Sequence[tuple[str, Lines, str, str]], *, logarithmic: bool = False
) -> None:
    """Diagrams of lines: per diagram a title, its lines by name, and the labels of its axes."""
    for axes, (title, lines, across, up) in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
        for name, (x, y) in lines.items():
            axes.plot(x, y, marker="o", markersize=3, label=name)
        if logarithmic:
            axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(title=title, xlabel=across, ylabel=up)
        axes.legend()


# -- figure 5 ----------------------------------------------------------------------------------------------------------


def staleness(updates: int = UPDATES, loads: Sequence[int] = LOADS, *, seed: int = 1) -> ExperimentResult:
    """Figure 5: queue staleness against the application's, for one key and for ten."""
    single = [under_load("UQ-INPLACE", 1, load, updates, seed) for load in loads]
    ten = [under_load("UQ-INPLACE", 10, load, updates, seed) for load in loads]
    apart = [[outcome.application - outcome.queue for outcome in outcomes] for outcomes in (single, ten)]
    high = [at for at, load in enumerate(loads) if load >= 5]
    times = [ten[at].queue / single[at].queue for at in high]
    differences = [apart[1][at] / apart[0][at] for at in high]
    bounded = [
        [_within(outcome, load, updates, keys) for outcome, load in zip(outcomes, loads, strict=True)]
        for keys, outcomes in ((1, single), (10, ten))
    ]
    claims = [
        Claim(
            "queue staleness and application staleness both grow with the load",
            "rising at every step",
            f"queue {series([f.queue for f in ten])}; application {series([f.application for f in ten])} (ten keys)",
            all(
                a.queue < b.queue and a.application < b.application
                for outcomes in (single, ten)
                for a, b in pairwise(outcomes)
            ),
        ),
        Claim(
            "ten keys multiply queue staleness by about ten",
            "8 to 12 times at loads from 5 on",
            series(times),
            all(8 <= value <= 12 for value in times),
        ),
        Claim(
            "the number of keys does not affect the difference between application and queue staleness",
            "within 20 % at loads from 5 on",
            "ten keys / one key: " + series(differences),
            all(0.8 <= value <= 1.2 for value in differences),
        ),
        Claim(
            "the area between the two is between wait * cost and wait * cost + cost^2 / 2 per result",
            "at every load, with the measured wait, one key and ten",
            f"{sum(bounded[0])} and {sum(bounded[1])} of {len(loads)} loads; waits with ten keys "
            f"{series([outcome.wait for outcome in ten])}",
            all(map(all, bounded)),
        ),
    ]
    x = list(loads)
    parts = [
        (
            title,
            {
                "application": (x, [outcome.application for outcome in outcomes]),
                "queue": (x, [outcome.queue for outcome in outcomes]),
            },
            "load factor",
            "staleness in updates",
        )
        for title, outcomes in (("one key", single), ("ten keys", ten))
    ]
    return ExperimentResult(claims, lambda figure: draw_side_by_side(figure, parts))


def _within(outcome: Outcome, load: int, updates: int, keys: int) -> bool:
    """The bounds of section 5.1 for the mean area of a result. The run's end cuts off at most one result per key."""
    area = (outcome.application - outcome.queue) * updates * keys / outcome.served
    least, most = outcome.wait * load, outcome.wait * load + load * load / 2
    slack = (most + load) * keys / outcome.served
    return least - slack <= area <= most + slack


# -- figure 7 ----------------------------------------------------------------------------------------------------------


def append_or_update(updates: int = UPDATES, loads: Sequence[int] = LOADS, *, seed: int = 1) -> ExperimentResult:
    """Figure 7: append queue, random load shedding, FIFO and IN-PLACE."""
    by_keys: dict[int, dict[str, list[float]]] = {
        keys: {kind: [under_load(kind, keys, load, updates, seed).application for load in loads] for kind in KINDS}
        for keys in (1, 10)
    }
    over = [at for at, load in enumerate(loads) if load >= 2]
    ten, single = by_keys[10], by_keys[1]
    worst = max(single["UQ-INPLACE"][at] / single["AQ-RLS"][at] for at in over)
    far = min(ten["AQ"][at] / ten["UQ-INPLACE"][at] for at in over)
    random = [ten["AQ-RLS"][at] / ten["UQ-INPLACE"][at] for at in over]
    claims = [
        Claim(
            "under any overload an append queue's staleness is far above an update queue's",
            ">= 20 times at every load from 2 on, ten keys",
            f"at least {far:,.0f} times",
            far >= 20,
        ),
        Claim(
            "random shedding stays above update queues, with as much room",
            "> 1 at every load from 2 on, one key and ten",
            f"ten keys: {series(random)}; one key: at least {1 / worst:.3g}",
            worst < 1 and min(random) > 1,
        ),
        Claim(
            "IN-PLACE is at or below FIFO at every load",
            "<= 1.02 of FIFO",
            series([a / b for a, b in zip(ten["UQ-INPLACE"], ten["UQ-FIFO"], strict=True)]),
            all(a <= 1.02 * b for a, b in zip(ten["UQ-INPLACE"], ten["UQ-FIFO"], strict=True)),
        ),
        Claim(
            "with a single key FIFO and IN-PLACE are the same",
            "equal",
            f"{series(single['UQ-FIFO'])} and {series(single['UQ-INPLACE'])}",
            single["UQ-FIFO"] == single["UQ-INPLACE"],
        ),
    ]
    parts = [
        (
            "one key" if keys == 1 else f"{keys} keys",
            {kind: (list(loads), values) for kind, values in by_kind.items()},
            "load factor",
            "application staleness in updates",
        )
        for keys, by_kind in by_keys.items()
    ]
    return ExperimentResult(claims, lambda figure: draw_side_by_side(figure, parts, logarithmic=True))


# -- figure 9 ----------------------------------------------------------------------------------------------------------


def linecutting(
    updates: int = UPDATES * 3,
    load: int = 5,
    speeds: Sequence[int] = (50, 10),
    others: Sequence[int] = (2, 3, 8),
    *,
    seed: int = 1,
) -> ExperimentResult:
    """Figure 9: IN-PLACE's queue staleness over LINECUTTING's, by the number of slow keys among ten."""
    slow = range(11)
    ratios = {speed: [gain(updates, load, speed, count, seed) for count in slow] for speed in speeds}
    first = ratios[speeds[0]]
    best = first.index(max(first))
    at_loads = {other: [gain(updates, other, speeds[0], count, seed) for count in slow] for other in others}
    loads = {other: values[best] for other, values in at_loads.items()}
    least = {load: min(map(min, ratios.values())), **{other: min(values) for other, values in at_loads.items()}}
    met = {speed: [slow_condition(updates // 3, load, speed, count, seed) for count in slow[1:10]] for speed in speeds}
    claims = [
        Claim(
            "with no slow keys, or slow keys only, both schedulers are the same",
            "within 2 % of 1",
            f"{first[0]:.3f} and {first[10]:.3f}",
            abs(first[0] - 1) <= 0.02 and abs(first[10] - 1) <= 0.02,
        ),
        Claim(
            "the benefit of LINECUTTING grows with the number of slow keys, and is greatest at about 8 of 10",
            "greatest at 7 to 9 of 10, and up to there nowhere more than 1 % below the one before",
            f"at {best}: {first[best]:.3f} ({series(first)})",
            7 <= best <= 9 and first[best] > 1.1 and all(b >= 0.99 * a for a, b in pairwise(first[: best + 1])),
        ),
        Claim(
            "then it drops",
            "at 10 below the greatest",
            f"{first[10]:.3f} against {first[best]:.3f}",
            first[10] < first[best],
        ),
        Claim(
            "the gain is similar at other loads",
            f"above 1.05, and within 10 % of that at {load}, with as many slow keys",
            ", ".join(f"{ratio:.3f} at {other}" for other, ratio in {**loads, load: first[best]}.items()),
            all(ratio > 1.05 and abs(ratio / first[best] - 1) <= 0.1 for ratio in loads.values()),
        ),
        Claim(
            "LINECUTTING never falls behind IN-PLACE, because keys that cut leave room for the others",
            ">= 0.99 at every number of slow keys and every load",
            "at least " + ", ".join(f"{ratio:.3f} at {at}" for at, ratio in sorted(least.items())),
            min(least.values()) >= 0.99,
        ),
    ]
    claims.append(
        Claim(
            "the slow condition (section 5.3): between two updates of a slow key, all that waited are served",
            f"after at least 75 % of the updates, with keys {speeds[0]} times slower",
            ", ".join(
                f"{100 * min(shares):.0f} to {100 * max(shares):.0f} % with keys {speed} times slower"
                for speed, shares in met.items()
            ),
            min(met[speeds[0]]) >= 0.75,
        )
    )
    if len(speeds) > 1:
        low = max(ratios[speeds[1]])
        claims.append(
            Claim(
                f"keys that are only {speeds[1]} times slower gain hardly anything",
                "less than a third of that",
                f"at most {low:.3f}",
                low - 1 < (first[best] - 1) / 3,
            )
        )
    lines = {f"{speed} times slower": (list(slow), values) for speed, values in ratios.items()}
    parts = [("", lines, "slow keys of ten", "IN-PLACE / LINECUTTING")]
    return ExperimentResult(claims, lambda figure: draw_side_by_side(figure, parts))


def slow_and_fast(updates: int, speed: int, slow: int, seed: int) -> list[int]:
    """The first keys of ten update so many times less often than the others."""
    return by_weight(updates, [1.0] * slow + [float(speed)] * (10 - slow), seed=seed)


class ServedBetween(UpdateQueue):
    """Counts the updates of slow keys before whose next one all keys that waited were served."""

    def __init__(self, slow: int) -> None:
        super().__init__(SCHEMA, (0,), "linecutting")
        self._slow = range(slow)
        self._waiting: set[int] = set()
        self._left: dict[int, set[int]] = {}
        self.updates = self.met = 0

    def enqueue(self, batch: Batch, now_us: int) -> None:
        key = int(batch.columns[0][0])
        if key in self._slow:
            if key in self._left:
                self.updates += 1
                self.met += not self._left[key]
            self._left[key] = self._waiting - {key}
        self._waiting.add(key)
        super().enqueue(batch, now_us)

    def dequeue(self, limit: int, now_us: int) -> Batch | None:
        batch = super().dequeue(limit, now_us)
        if batch is not None:
            served = set(batch.columns[0].tolist())
            self._waiting -= served
            for left in self._left.values():
                left -= served
        return batch


def slow_condition(updates: int, load: int, speed: int, slow: int, seed: int) -> float:
    """The share of the updates of slow keys that meet it."""
    queue = ServedBetween(slow)
    serve(queue, slow_and_fast(updates, speed, slow, seed), load * TICK)
    return queue.met / queue.updates


def gain(updates: int, load: int, speed: int, slow: int, seed: int = 1) -> float:
    keys = slow_and_fast(updates, speed, slow, seed)
    values = []
    for scheduler in ("inplace", "linecutting"):
        queue = UpdateQueue(SCHEMA, (0,), scheduler)
        values.append(serve(queue, keys, load * TICK).queue)
    return values[0] / values[1]


# -- figures 13 and 14 -------------------------------------------------------------------------------------------------

SIZES: Final = (2, 5, 10, 15, 20, 25, 30)
COMMITS: Final[tuple[Commit, ...]] = ("lazy", "eager")
ROOMS: Final = {1: "room for one", 10: "room for ten"}
PATTERNS: Final = ("zipf 0", "zipf 0.5", "zipf 0.9", "in turn")


@dataclass(frozen=True, slots=True)
class Windowed:
    """Application staleness of windows in ticks, over time and keys; the most tuples that waited; the tuples served per
    window."""

    staleness: float
    buffered: int
    per_window: float


def windowed(
    commit: Commit, size: int, slide: int, keys: Sequence[int], *, scheduler: Scheduler = "inplace", cost: int = 1
) -> Windowed:
    """One tuple per tick, `cost` ticks per tuple.

    Each key's source has a separate clock that counts its tuples: a window of size n contains n of them.
    """
    queue = WindowQueue(SCHEMA, (0,), TimeWindow(size, slide), commit, scheduler, begin_us=0, block=1)
    queue.timed = True
    queue.costs(cost)
    put = free = tuples = windows = buffered = 0
    horizon = len(keys)
    own = dict.fromkeys(keys, 0)
    while free < horizon:
        while put < horizon and put <= free:
            key, at = keys[put], np.array([put])
            queue.enqueue(Batch(SCHEMA, np.array([own[key]]), [np.array([key]), at], None, at), put)
            own[key] += 1
            put += 1
            buffered = max(buffered, queue.paging.in_use)
        served = queue.serve(1, free)
        windows += len(served.finished)
        if served.batch is None:
            free = max(free + 1, put)
            continue
        queue.measured(cost, free)
        tuples += len(served.batch)
        free += cost
    return Windowed(queue.staleness(horizon).application_mean_us, buffered, tuples / max(1, windows))


def windows_appended(size: int, tuples: int, limit: int | None, seed: int) -> float:
    """Application staleness when all windows are processed in turn, or those left by random shedding. One window starts
    per tick, takes one tick per tuple and enters when it closes."""
    queue: Queue = AppendQueue() if limit is None else SheddingQueue(SCHEMA, limit, seed=seed)
    closings = list(range(size - 1, tuples))
    stale = Staleness(closings)
    put = free = 0
    while free < tuples:
        while put < len(closings) and closings[put] <= free:
            at = np.array([closings[put]])
            queue.enqueue(Batch(SCHEMA, at, [at, at], None, at), closings[put])
            put += 1
        batch = queue.dequeue(1, free)
        if batch is None:
            if put == len(closings):
                break
            free = closings[put]
            continue
        free += size
        stale.shown(int(batch.arrival[0]), min(free, tuples))
    return stale.total(tuples) / tuples


def windows(tuples: int = 6_000, sizes: Sequence[int] = SIZES, *, seed: int = 1) -> ExperimentResult:
    """Figure 13: LAZY and EAGER, one key, tumbling windows and windows that start at every tick."""
    keys = [0] * tuples
    tumbling_runs = {commit: [windowed(commit, size, size, keys) for size in sizes] for commit in COMMITS}
    sliding_runs = {commit: [windowed(commit, size, 1, keys) for size in sizes] for commit in COMMITS}
    tumbling = {commit: [run.staleness for run in runs] for commit, runs in tumbling_runs.items()}
    sliding = {commit: [run.staleness for run in runs] for commit, runs in sliding_runs.items()}
    appended = [windows_appended(size, tuples, None, seed) for size in sizes]
    random = {room: [windows_appended(size, tuples, room, seed) for size in sizes] for room in (1, 10)}
    lazy, eager = tumbling["lazy"], tumbling["eager"]
    slope = (lazy[-1] - lazy[0]) / (sizes[-1] - sizes[0])
    straight = max(abs(lazy[0] + slope * (size - sizes[0]) - value) for size, value in zip(sizes, lazy, strict=True))
    claims = [
        Claim(
            "tumbling: LAZY's staleness grows linearly with the window",
            "rising, within 5 % of a line",
            series(lazy),
            all(a < b for a, b in pairwise(lazy)) and straight <= 0.05 * lazy[-1],
        ),
        Claim(
            "tumbling: EAGER's does not grow; its mean falls as windows grow",
            "falling",
            series(eager),
            all(a > b for a, b in pairwise(eager)),
        ),
        *(
            Claim(
                "sliding: EAGER and LAZY are below random shedding of windows, which is below processing all"
                f" ({words})",
                "in this order at every size from 5 on",
                f"EAGER {series(sliding['eager'])}; LAZY {series(sliding['lazy'])}; random {series(random[room])}; "
                f"all {series(appended)}",
                all(
                    max(e, z) < r < a
                    for size, e, z, r, a in zip(
                        sizes, sliding["eager"], sliding["lazy"], random[room], appended, strict=True
                    )
                    if size >= 5
                ),
            )
            for room, words in ROOMS.items()
        ),
        Claim(
            "sliding: EAGER is fresher than LAZY with one key",
            "below at every size",
            series([e / z for e, z in zip(sliding["eager"], sliding["lazy"], strict=True)]),
            all(e < z for e, z in zip(sliding["eager"], sliding["lazy"], strict=True)),
        ),
        *(
            Claim(
                f"{commit.upper()}: a key's buffer has at most the size and the slide, less one (section 7.2)",
                "at every size, tumbling and sliding, at loads of 1 and 3",
                _over(buffered := _buffered(commit, sizes, keys)),
                all(most <= bound for most, bound in buffered.values()),
            )
            for commit in COMMITS
        ),
        Claim(
            "a window costs its tuples, each once: the lower bound of section 6.1.2",
            "tuples served per window within 5 % of its size, tumbling and sliding",
            f"sliding: LAZY {series([run.per_window for run in sliding_runs['lazy']])}; "
            f"EAGER {series([run.per_window for run in sliding_runs['eager']])}",
            all(
                abs(run.per_window / size - 1) <= 0.05
                for by_commit in (tumbling_runs, sliding_runs)
                for runs in by_commit.values()
                for size, run in zip(sizes, runs, strict=True)
            ),
        ),
    ]
    x = list(sizes)
    first = {"LAZY": (x, lazy), "EAGER": (x, eager)}
    second = {
        "append": (x, appended),
        **{f"random shedding, {words}": (x, random[room]) for room, words in ROOMS.items()},
        "LAZY": (x, sliding["lazy"]),
        "EAGER": (x, sliding["eager"]),
    }
    up = "application staleness in ticks"
    parts = [("tumbling", first, "window size", up), ("sliding by 1", second, "window size", up)]

    def draw(figure: Figure) -> None:
        draw_side_by_side(figure, parts)
        figure.axes[1].set_yscale("log")

    return ExperimentResult(claims, draw)


def _buffered(commit: Commit, sizes: Sequence[int], keys: Sequence[int]) -> dict[tuple[int, int, int], tuple[int, int]]:
    """By size, slide and cost of a tuple: the most tuples of a key's buffer, and the paper's bound."""
    settings = [(size, slide, cost) for size in sizes for slide in (1, size // 2, size) for cost in (1, 3)]
    return {
        (size, slide, cost): (windowed(commit, size, slide, keys, cost=cost).buffered, size + slide - 1)
        for size, slide, cost in settings
    }


def _over(buffered: Mapping[tuple[int, int, int], tuple[int, int]]) -> str:
    most, bound = max(buffered.values(), key=lambda pair: pair[0] / pair[1])
    return f"at most {most / bound:.2f} times that: {most} tuples against {bound}"


def pattern(name: str, tuples: int, keys: int, seed: int) -> list[int]:
    if name == "in turn":
        return [at % keys for at in range(tuples)]
    return by_weight(tuples, zipf(keys, float(name.split()[1])), seed=seed)


def patterns(tuples: int = 10_000, sizes: Sequence[int] = SIZES, keys: int = 10, *, seed: int = 1) -> ExperimentResult:
    """Figure 14: EAGER over LAZY with ten keys, by arrival pattern."""
    ratios = {
        name: [
            windowed("eager", size, 1, pattern(name, tuples, keys, seed)).staleness
            / windowed("lazy", size, 1, pattern(name, tuples, keys, seed)).staleness
            for size in sizes
        ]
        for name in PATTERNS
    }
    drawn = {name: values for name, values in ratios.items() if name != "in turn"}
    measured = "; ".join(f"{name}: {series(values)}" for name, values in drawn.items())
    claims = [
        Claim(
            "with keys at random, gaps make EAGER worse than LAZY",
            "ratio above 1 at every size for each Zipf distribution",
            measured,
            all(min(values) > 1 for values in drawn.values()),
        ),
        Claim(
            "this holds for small windows, where the difference is greatest, and more so with more skew",
            "above 1 at the smallest, from size to size falling or at most 1 % above the one before; rising with theta",
            measured,
            all(values[0] > 1 and all(b <= 1.01 * a for a, b in pairwise(values)) for values in drawn.values())
            and all(values[-1] < values[0] for values in drawn.values())
            and all(a[0] < b[0] for a, b in pairwise(list(drawn.values()))),
        ),
        Claim(
            "with keys in turn, EAGER is better",
            "ratio below 1 at every size",
            series(ratios["in turn"]),
            all(value < 1 for value in ratios["in turn"]),
        ),
    ]
    lines = {name: (list(sizes), values) for name, values in ratios.items()}
    parts = [("", lines, "window size", "EAGER / LAZY")]
    return ExperimentResult(claims, lambda figure: draw_side_by_side(figure, parts))


# -- figures 16 and 17 -------------------------------------------------------------------------------------------------

THETAS: Final = (0.0, 0.3, 0.6, 0.9)
RATES: Final = (2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
# The paper's loads at a hundred times its rates, for a hundred times its keys, in the product's pages.
SERVED_A_SECOND: Final = 1_000
KEYS: Final = 10_000
PAGE: Final = SLOTS
RESULTS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Usage:
    """The mean number of allocated slots, and the share of them in use."""

    slots: float
    effective: float


@cache
def usage(theta: float, rate: int, results: int, seed: int, keys: int = KEYS) -> tuple[Usage, Usage]:
    """On-demand paging and the naive manager (a permanent slot per key), measured at every delivered result."""
    queue = UpdateQueue(SCHEMA, (0,), "inplace")
    drawn = by_weight(results * rate // SERVED_A_SECOND + keys, zipf(keys, theta), seed=seed)
    allocated: list[int] = []
    used: list[int] = []
    at = 0
    for result in range(results):
        stop = (result + 1) * rate // SERVED_A_SECOND
        ts: Int64s = np.arange(at, stop)
        queue.enqueue(Batch(SCHEMA, ts, [np.array(drawn[at:stop]), ts], None, ts), stop)
        at = stop
        queue.dequeue(1, stop)
        paging = queue.paging
        allocated.append(paging.taken * PAGE)
        used.append(paging.in_use)
    paged = Usage(float(np.mean(allocated)), sum(used) / sum(allocated) if sum(allocated) else 1.0)
    return paged, Usage(keys, sum(used) / (keys * results))


def _means(settings: Iterator[tuple[float, int]], results: int, seed: int) -> tuple[Usage, Usage]:
    usages = [usage(theta, rate, results, seed) for theta, rate in settings]
    return tuple(  # type: ignore[return-value]
        Usage(
            float(np.mean([pair[at].slots for pair in usages])), float(np.mean([pair[at].effective for pair in usages]))
        )
        for at in (0, 1)
    )


def skews(
    results: int = RESULTS, thetas: Sequence[float] = THETAS, rates: Sequence[int] = RATES, *, seed: int = 1
) -> ExperimentResult:
    """Figure 16: memory by the skew of the keys' rates, over all loads."""
    usages = [_means(((theta, rate) for rate in rates), results, seed) for theta in thetas]
    return ExperimentResult(_memory_claims(usages, rising=False), _memory_lines(usages, thetas, "theta"))


def memory_by_load(
    results: int = RESULTS, thetas: Sequence[float] = THETAS, rates: Sequence[int] = RATES, *, seed: int = 1
) -> ExperimentResult:
    """Figure 17: memory by the load, over all distributions."""
    usages = [_means(((theta, rate) for theta in thetas), results, seed) for rate in rates]
    return ExperimentResult(
        _memory_claims(usages, rising=True), _memory_lines(usages, [r / SERVED_A_SECOND for r in rates], "load factor")
    )


def _memory_claims(usages: Sequence[tuple[Usage, Usage]], *, rising: bool) -> list[Claim]:
    paged, naive = [pair[0] for pair in usages], [pair[1] for pair in usages]
    effective = [memory.effective for memory in naive]
    grows = all((a < b) if rising else (a > b) for a, b in pairwise(effective))
    return [
        Claim(
            "on-demand paging uses nearly all that it allocates",
            "effective usage >= 0.95 (paper: 1)",
            series([memory.effective for memory in paged]),
            all(memory.effective >= 0.95 for memory in paged),
        ),
        Claim(
            "its effective usage is higher than the naive manager's",
            "above at every point",
            series([a.effective - b.effective for a, b in usages]),
            all(a.effective > b.effective for a, b in usages),
        ),
        Claim(
            "the naive manager's effective usage is low and improves with the load"
            if rising
            else "the naive manager's effective usage falls as the distribution gets more skewed",
            "rising" if rising else "falling",
            series(effective),
            grows,
        ),
        Claim(
            "on-demand paging takes less memory than a slot per key",
            "below, or within a page above where all keys wait",
            f"{series([memory.slots for memory in paged])} against {series([memory.slots for memory in naive])} slots",
            all(a.slots < b.slots or (b.effective > 0.97 and a.slots <= b.slots + PAGE) for a, b in usages),
        ),
    ]


def _memory_lines(
    usages: Sequence[tuple[Usage, Usage]], across: Sequence[float], word: str
) -> Callable[[Figure], None]:
    parts: list[tuple[str, Lines, str, str]] = []
    for title, pick in (("effective usage", "effective"), ("slots allocated", "slots")):
        lines = {
            name: (list(across), [getattr(pair[at], pick) for pair in usages])
            for at, name in enumerate(("on-demand paging", "naive"))
        }
        parts.append((title, lines, word, title))

    def draw(figure: Figure) -> None:
        draw_side_by_side(figure, parts)
        for axes in figure.axes:
            axes.set_ylim(bottom=0)

    return draw


# -- experiments -------------------------------------------------------------------------------------------------------

SERVER: Final = "One server over the queue itself, under a virtual clock"

EXPERIMENTS: Final = (
    Experiment(
        paper=UPS,
        figure="5",
        title="application staleness against queue staleness",
        setting=f"{SERVER}: {UPDATES:,} updates, one per tick, with keys drawn at random; IN-PLACE. The load factor "
        "is the time to serve an update, in ticks.",
        says="queue and application staleness grow alike with the load. Ten keys inflate queue staleness about "
        "tenfold, and the difference between the two depends on the load alone.",
        remark="The factor of ten holds from loads of about 5 on; at 2 the queue is not always full.",
        run=lambda seed: staleness(seed=seed),
        wide=True,
    ),
    Experiment(
        paper=UPS,
        figure="7",
        title="append queue, random shedding and update queues",
        setting=f"{SERVER}: the updates of figure 5 through three kinds of queue. These are an append queue (AQ), one "
        "that sheds at random above as many tuples as there are keys (AQ-RLS), and update queues under FIFO and "
        "IN-PLACE.",
        says="under overload the staleness of update queues is far lower than with an append queue or random "
        "shedding. IN-PLACE improves on FIFO when there are several keys.",
        remark="With a single key, random shedding with room for one tuple comes close: every other time it drops "
        "the newer of two tuples.",
        run=lambda seed: append_or_update(seed=seed),
        wide=True,
    ),
    Experiment(
        paper=UPS,
        figure="9",
        title="IN-PLACE over LINECUTTING, queue staleness",
        setting=f"{SERVER}: {UPDATES * 3:,} updates of ten keys, some of which update 50 (or 10) times less often "
        "than the others. The load factor is 5, and for two claims 2, 3 and 8. The queue measures the rates, and the "
        "cost is the server's time per update.",
        says="the gain of LINECUTTING grows with the number of slow keys up to 8 of 10, and then shrinks. With no "
        "slow keys, or slow keys only, it equals IN-PLACE.",
        remark="With keys 10 times slower than others (the paper's example) the gain is hardly visible, because they "
        "often update again before the others are served. The paper's "
        "condition alone lets such keys cut until they take the whole server: with 8 of 10 staleness nearly doubles "
        "(0.57). Here a key cuts only within the share of the server that others who cut leave, so it is nowhere "
        "more than 0.4 % worse. The gain depends on the load, because it is the waiting time that slow keys save. With "
        "8 of 10 slow, a round over the waiting keys takes W = load * (2 + 8 W / (W + 108)) ticks: about 5, 8, 15 and "
        "30 at loads of 2, 3, 5 and 8. All updates of slow keys together take 15, 22, 37 and 59 % of the server. So at "
        "2 there is little to save, and at 8 the fast keys wait longer, because the slow ones take most of the server.",
        run=lambda seed: linecutting(seed=seed),
    ),
    Experiment(
        paper=UPS,
        figure="13",
        title="LAZY and EAGER windows, one key",
        setting=f"{SERVER}: one key, one tuple per tick, one tick per tuple. (a) has tumbling windows. (b) has "
        "windows that start at every tick. It also shows all windows in turn, and the windows left by random "
        "shedding, with room for one window (as many as an update queue has per key) and for ten, at the price of "
        "their tuples.",
        says="tumbling: LAZY's staleness grows with the window, EAGER's does not. Sliding: both are far below "
        "processing all windows and below shedding windows at random.",
        remark="LAZY exceeds the bound of the buffer. In addition to the window that is being processed, it stores the "
        "newest complete one and the tuples that have arrived since. So it can start with a complete window at once. "
        "The paper's bound describes one window and the slide that follows it, as EAGER stores them.",
        run=lambda seed: windows(seed=seed),
        wide=True,
    ),
    Experiment(
        paper=UPS,
        figure="14",
        title="EAGER over LAZY by arrival pattern, ten keys",
        setting=f"{SERVER}: ten keys, one tuple per tick and one tick per tuple. A window starts with every tuple of "
        "a key. Keys are drawn by Zipf distributions, or in turn. IN-PLACE.",
        says="with keys at random EAGER is worse than LAZY because of the gaps in its windows, more so with small "
        "windows. With keys in turn it is better.",
        remark="With little skew the ratio falls below 1 as windows grow: while a key has a gap another key is "
        "processed. So no time is lost, and EAGER starts before LAZY can. Here each source counts time in its own "
        "tuples. With a common clock, windows of all keys would be sparse, and EAGER worse than LAZY in turn too.",
        run=lambda seed: patterns(seed=seed),
    ),
    Experiment(
        paper=UPS,
        figure="16",
        title="memory by the skew of update rates",
        setting=f"{SERVER}: {KEYS:,} keys by Zipf distributions, {RATES[0]:,} to {RATES[-1]:,} updates a second, "
        f"{SERVED_A_SECOND:,} results a second, {RESULTS:,} results. These are the paper's loads with a hundred times "
        f"its keys and rates. Pages of {PAGE} slots, as in the product. Means over the rates.",
        says="on-demand paging keeps the effective usage near 1 for every distribution. The naive manager has a slot "
        "per key and uses a smaller share of them as the rates become more skewed.",
        remark="Effective usage is the share of allocated slots that hold an update. The unused slots are in pages "
        "that are not full: the first page while hardly any key waits, and the pages that freed slots have opened.",
        run=lambda seed: skews(seed=seed),
        wide=True,
    ),
    Experiment(
        paper=UPS,
        figure="17",
        title="memory by load",
        setting="The runs of figure 16. Means over the distributions.",
        says="the naive manager's effective usage is low at small loads and improves with them. On-demand paging "
        "returns freed slots and takes less.",
        remark="At the smallest load few keys wait, and a larger share of the slots is in pages that are not full.",
        run=lambda seed: memory_by_load(seed=seed),
        wide=True,
    ),
)
