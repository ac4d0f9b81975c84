"""One trial: a graph, arrivals and a price per execution, with its measurements.

The clock works as in `millrace run --cost`. There is one execution per step, and work moves the clock. Tuples that
have arrived by then enter at their own time before the next execution, and timers of the engine fire on time. In
addition, a trial may charge executions that take no tuple, such as those that pass a punctuation on.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from millrace.engine.events import (
    AlterStream,
    Arrived,
    Command,
    CommandBody,
    Deliver,
    Effect,
    Event,
    Execution,
    FeedOpened,
    SetStrategy,
)
from millrace.offline.driver import Driver, Instant, Price
from millrace.offline.report import Measures
from millrace.offline.script import plan_script
from millrace.operators.frame.inlet import Inlet
from millrace.protocol import Schema
from millrace.values.batch import Batch

SECOND_US: Final = 1_000_000
# Cost of one tuple per operator when tuples arrive one by one, rounded (`make bench`, engine-single).
COST_US: Final = 5
PRICES: Final = (
    f"Every execution of an operator costs {COST_US} us of virtual time per tuple that it takes, which is about "
    "Millrace's own cost for a single tuple. An execution without a tuple costs as much: it passes a punctuation on "
    "or finds nothing. Sources, forks and sinks cost nothing."
)
FEED: Final = "main"


class PriceOfExecutions(Price):
    """A price that also covers executions without a tuple: they pass a punctuation on, or find nothing."""

    def __init__(self, us_per_tuple: Fraction, us_without: Fraction) -> None:
        super().__init__(us_per_tuple)
        self._us_without = us_without
        self._without = False

    def stop(self, operator: str, tuples: int) -> None:
        super().stop(operator, tuples)
        self._without = not tuples

    def take(self) -> tuple[Fraction, list[Event]]:
        cost, readings = super().take()
        without, self._without = self._without, False
        return (self._us_without if without else cost), readings


@dataclass(frozen=True, slots=True)
class Setting:
    """The configuration of a trial.

    cost_us      microseconds per tuple and execution of an operator; sources, forks and sinks are free
    without      the cost of an execution without tuples, as a share of that
    propagation  how a timestamp made on demand travels: by `arcs`, or by `punctuation` through the operators
    """

    sql: str
    cost_us: int = COST_US
    strategy: str = "dfs(1)"
    propagation: str = "punctuation"
    without: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The measurements of a trial.

    latency_us   mean over the rows delivered, exact; a row's latency is its delivery minus its tuple's arrival
    idle_shares  per idle-waiting-prone operator, the share of the time in which it was held back
    peak_tuples  most tuples queued on all arcs together
    peak_queue   most tuples and punctuations queued together, each punctuation counted as one
    executions   executions of all operators
    deliveries   when rows were delivered, in microseconds, and how many at once
    """

    rows: int
    latency_us: Fraction
    idle_shares: Mapping[str, float]
    peak_tuples: int
    peak_queue: int
    executions: int
    deliveries: Sequence[tuple[Fraction | int, int]]

    @property
    def latency_ms(self) -> float:
        return float(self.latency_us) / 1_000


class Tally:
    """Observes a trial's driver. `Measures` of the report clocks the idle-waiting; this class counts the rest."""

    def __init__(self, measures: Measures) -> None:
        self.measures = measures
        self.driver: Driver | None = None
        self.readers: Sequence[Inlet] = ()
        self.rows = 0
        self.waited_us = Fraction(0)
        self.peak_queue = 0
        self.deliveries: list[tuple[Fraction | int, int]] = []

    def ordered(self, at_us: Fraction | int, order: Effect) -> None:
        if isinstance(order, Deliver):
            self.rows += len(order.batch)
            self.deliveries.append((at_us, len(order.batch)))
            self.waited_us += at_us * len(order.batch) - int(order.batch.arrival.sum())

    def executed(self, step: int, at_us: Fraction | int, execution: Execution) -> None:
        """Does nothing: a trial is not traced."""

    def stepped(self) -> None:
        assert self.driver is not None
        engine = self.driver.engine
        self.measures.stepped(engine.clock.now_us)
        queued = engine.gauge.tuples + sum(len(reader.punctuations) for reader in self.readers)
        self.peak_queue = max(self.peak_queue, queued)


def trial(setting: Setting, arrivals: Mapping[str, Sequence[int]], seconds: float, *, seed: int = 1) -> Outcome:
    """Run the graph over the arrivals (per stream, their times in microseconds) for `seconds`.

    Every row has one column, a number below 100 drawn at random, so that `v < 95` passes 95 % of them. Rows that are
    still held back at the end have no latency.
    """
    script = plan_script(setting.sql)
    tally = Tally(Measures(script.queries))
    price = PriceOfExecutions(Fraction(setting.cost_us), setting.cost_us * setting.without)
    driver = tally.driver = Driver(tally, price=price)
    _command(driver, script.commands)
    _command(driver, [AlterStream(name, (("propagation", setting.propagation),)) for name in script.streams])
    components = [component.name for component in driver.engine.components()]
    _command(driver, [SetStrategy(name, setting.strategy) for name in components])
    driver.run([Instant(0, [FeedOpened(name, FEED) for name in script.streams])])
    operators = list(driver.engine.graph.operators.values())
    tally.measures.watch(operators)
    tally.readers = [reader for operator in operators for reader in operator.inputs]
    schemas = {name: stream.schema for name, stream in script.streams.items()}
    driver.run(instants(arrivals, schemas, seed))
    driver.run([Instant(int(seconds * SECOND_US), [])])
    return _outcome(driver, tally)


def _command(driver: Driver, bodies: Sequence[CommandBody]) -> None:
    driver.run([Instant(0, [Command(number, body) for number, body in enumerate(bodies)])])


def _outcome(driver: Driver, tally: Tally) -> Outcome:
    lasted_us = int(driver.clock_us)
    tally.measures.stepped(lasted_us)
    engine = driver.engine
    return Outcome(
        rows=tally.rows,
        latency_us=tally.waited_us / tally.rows if tally.rows else Fraction(0),
        idle_shares={
            operator.name: tally.measures.idle_us.get(operator.name, 0) / lasted_us
            for operator in engine.graph.operators.values()
            if operator.waits
        },
        peak_tuples=engine.gauge.peak_tuples,
        peak_queue=max(tally.peak_queue, engine.gauge.peak_tuples),
        executions=sum(component.steps for component in engine.components()),
        deliveries=tally.deliveries,
    )


# -- arrivals ----------------------------------------------------------------------------------------------------------


def poisson(rate: float, seconds: float, *, seed: int | Sequence[int]) -> list[int]:
    """Arrival times of a Poisson process in microseconds: `rate` a second on average, for `seconds`."""
    rng = np.random.default_rng(seed)
    expected = rate * seconds
    gaps = rng.exponential(SECOND_US / rate, int(expected + 10 * expected**0.5 + 20))
    times = np.cumsum(gaps).astype(np.int64)
    arrivals: list[int] = times[times < seconds * SECOND_US].tolist()
    return arrivals


def in_bursts(times: Sequence[int], size: int) -> list[int]:
    """Every time repeated `size` times. Dividing the rate by `size` keeps the average rate."""
    return [at for at in times for _ in range(size)]


def instants(arrivals: Mapping[str, Sequence[int]], schemas: Mapping[str, Schema], seed: int) -> Iterator[Instant]:
    """Events in order of time; simultaneous tuples of one stream form one event."""
    for_stream = [
        _grouped(name, times, schemas[name], [seed, number]) for number, (name, times) in enumerate(arrivals.items())
    ]
    for at_us, event in heapq.merge(*for_stream, key=lambda pair: pair[0]):
        yield Instant(at_us, [event])


def _grouped(stream: str, times: Sequence[int], schema: Schema, seed: Sequence[int]) -> Iterator[tuple[int, Event]]:
    rng = np.random.default_rng(seed)
    instants, counts = np.unique(np.asarray(times, np.int64), return_counts=True)
    for at_us, count in zip(instants.tolist(), counts.tolist(), strict=True):
        values = rng.integers(0, 100, count)
        yield at_us, Arrived(stream, FEED, Batch(schema, np.zeros(count, np.int64), [values]))
