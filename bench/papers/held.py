"""NILE, sections 5.2 and 7.2.3: what waits for order in each way, and joins of three streams.

Tuples of a slow stream and of faster ones arrive at random, and nothing is known of a stream except its arrived
tuples. In Sync-Filter tuples wait in the join's input queues, in Filter-Order rows wait in its hold buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from bench.papers.claims import Claim, Experiment, ExperimentResult
from bench.papers.driver import FEED, poisson
from bench.papers.nile import COLOURS, NAMES, NILE, WAYS
from millrace.engine.events import Arrived, Command, Deliver, Effect, Execution, FeedOpened
from millrace.offline.driver import Driver, Instant
from millrace.offline.script import plan_script
from millrace.operators.join.join import Join
from millrace.values.batch import Batch

RATES: Final = (1.0, 10.0)
THREE: Final = (1.0, 5.0, 10.0)
WINDOW_S: Final = 10
SECONDS: Final = 200.0
# A tuple of the fast stream finds this many partners on average, when it arrives.
PARTNERS: Final = (0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass
class Watch:
    """Counts what waits for order, and collects the rows.

    waiting  the most tuples in queues and in the hold buffer, after any step
    """

    rows: list[tuple[int, ...]] = field(default_factory=list)
    waiting: int = 0

    def __post_init__(self) -> None:
        self.driver = Driver(self)
        self.join: Join | None = None

    def ordered(self, at_us: Any, order: Effect) -> None:
        if isinstance(order, Deliver):
            self.rows += zip(order.batch.ts.tolist(), *(column.tolist() for column in order.batch.columns), strict=True)

    def executed(self, step: int, at_us: Any, execution: Execution) -> None:
        """Does nothing: the run is not traced."""

    def stepped(self) -> None:
        if self.join is not None:
            self.waiting = max(self.waiting, self.driver.engine.gauge.tuples + self.join.hold.count)


def statements(way: str, streams: int) -> str:
    """An equality join of that many streams over symmetric windows; `v` is a tuple's number, `k` its key."""
    names = [f"s{number}" for number in range(streams)]
    definitions = "".join(f"CREATE STREAM {name} (k BIGINT, v BIGINT) WITH (ets = 'none');\n" for name in names)
    first, *others = (f"{name} [RANGE '{WINDOW_S} s']" for name in names)
    joined = "".join(f" JOIN {other} ON s0.k = s{number}.k" for number, other in enumerate(others, 1))
    listed = ", ".join(f"{name}.v AS {name}_v" for name in names)
    return (
        f"{definitions}CREATE QUERY q WITH (order = 'event', join = '{way}') AS SELECT {listed} FROM {first}{joined};"
    )


def watch(way: str, rates: Sequence[float], keys: int, seconds: float, seed: int) -> Watch:
    """Join Poisson streams of these rates, whose tuples have one of so many keys."""
    script = plan_script(statements(way, len(rates)))
    watch = Watch()
    commands = [Command(number, body) for number, body in enumerate(script.commands)]
    watch.driver.run([Instant(0, [*commands, *(FeedOpened(name, FEED) for name in script.streams)])])
    (watch.join,) = (one for one in watch.driver.engine.graph.operators.values() if isinstance(one, Join))
    arrivals = []
    for number, (rate, (name, stream)) in enumerate(zip(rates, script.streams.items(), strict=True)):
        rng = np.random.default_rng([seed, number, 1])
        for place, at_us in enumerate(poisson(rate, seconds, seed=[seed, number])):
            columns = [rng.integers(0, keys, 1), np.array([place])]
            arrivals.append((at_us, Arrived(name, FEED, Batch(stream.schema, np.zeros(1, np.int64), columns))))
    watch.driver.run([Instant(at_us, [event]) for at_us, event in sorted(arrivals, key=lambda pair: pair[0])])
    return watch


def keys_for(partners: float) -> int:
    """How many keys leave a tuple of the fast stream so many partners in the slow one's window."""
    return max(1, round(WINDOW_S * RATES[0] / partners))


def hold_buffer(
    seconds: float = SECONDS, partners: Sequence[float] = PARTNERS, *, keys: int = 30, seed: int = 1
) -> ExperimentResult:
    """The most that waits for order, by the number of partners of a tuple; and a join of three streams."""
    waiting = {
        way: {many: watch(way, RATES, keys_for(many), seconds, seed).waiting for many in partners} for way in WAYS[:2]
    }
    sync, at_once = (list(waiting[way].values()) for way in WAYS[:2])
    of_three = {way: watch(way, THREE, keys, seconds, seed) for way in WAYS}
    claims = [
        Claim(
            f"section 5.2: a selective join holds less than Sync-Filter's queues, at {partners[0]:g} partners a tuple",
            "fewer tuples at most",
            f"{at_once[0]} against {sync[0]}",
            at_once[0] < sync[0],
        ),
        Claim(
            f"section 5.2: with a low selectivity the hold buffer is larger than the queues, at {partners[-1]:g}",
            "more tuples at most",
            f"{at_once[-1]} against {sync[-1]}",
            at_once[-1] > sync[-1],
        ),
        Claim(
            "section 7.2.3: the approaches extend to more than two streams: the same rows in order of time",
            "three streams, all three ways, compared row by row",
            f"{len(of_three['sync'].rows):,} rows",
            _same_in_order([watched.rows for watched in of_three.values()]),
        ),
    ]
    return ExperimentResult(claims, lambda figure: _draw(figure, waiting))


def _same_in_order(found: Sequence[Sequence[tuple[int, ...]]]) -> bool:
    """Whether all have the same rows, and each has them in order of time. Rows of one time are in any order."""
    first = sorted(found[0])
    return bool(first) and all(
        sorted(rows) == first and [row[0] for row in rows] == [row[0] for row in first] for rows in found
    )


def _draw(figure: Figure, waiting: Mapping[str, Mapping[float, int]]) -> None:
    axes = figure.subplots()
    for way, by_partners in waiting.items():
        axes.plot(list(by_partners), list(by_partners.values()), "o-", color=COLOURS[way], label=NAMES[way])
    axes.set(xlabel="partners of a tuple of the fast stream", ylabel="most tuples that wait for order")
    axes.set(xscale="log", ylim=(0, None))
    axes.grid(True, alpha=0.3)
    axes.legend()


EXPERIMENTS: Final = (
    Experiment(
        paper=NILE,
        figure="5.2",
        title="what waits for order, by selectivity",
        setting=f"An equality join of two Poisson streams with 1 and 10 tuples a second, windows of {WINDOW_S} s, "
        f"{SECONDS:.0f} s. Fewer keys make the join less selective. Sync-Filter's tuples wait in its input queues, "
        "Filter-Order's rows in its hold buffer. The join of three streams has 1, 5 and 10 tuples a second, and 30 "
        "keys.",
        says="(without a figure) a selective Filter-Order needs less memory than Sync-Filter; if a tuple joins with "
        "more than one other, the hold buffer may store more. The approaches extend to more than two streams.",
        remark="Sync-Filter's queues hold the fast stream's tuples since the slow one's last, whatever they match. "
        "Filter-Order holds their rows. The two are equal where a tuple finds between one and three partners.",
        run=lambda seed: hold_buffer(seed=seed),
    ),
)
