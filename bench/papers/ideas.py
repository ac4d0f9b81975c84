"""One picture per paper that shows its idea: a small run of the product, with the idea and without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import accumulate
from typing import Any, Final

from matplotlib.figure import Figure

from bench.papers import eqg, ets, nile, oop, ups
from bench.papers.claims import Paper
from bench.papers.driver import COST_US, FEED, SECOND_US, Setting, in_bursts, instants, poisson, trial
from millrace.engine.events import Command, Deliver, Effect, Execution, FeedOpened, SetStrategy
from millrace.offline.driver import Driver, Instant, Price
from millrace.offline.script import plan_script

RED, BLUE = "tab:red", "tab:blue"


@dataclass(frozen=True, slots=True)
class Idea:
    """A paper's idea in a sentence, and its picture."""

    paper: Paper
    text: str
    draw: Callable[[Figure], None]


# -- ETS ---------------------------------------------------------------------------------------------------------------


def draw_ets(figure: Figure) -> None:
    """The number of emitted rows over time."""
    seconds = 60.0
    arrivals = {"fast": poisson(20, seconds, seed=[1, 1]), "sparse": poisson(0.1, seconds, seed=[1, 2])}
    axes = figure.subplots()
    for policy, colour, label in (
        ("none", RED, "without: the union waits for the sparse stream"),
        ("on-demand", BLUE, "with a timestamp whenever the union is blocked"),
    ):
        options = f"ets = '{policy}'"
        deliveries = trial(Setting(ets.union_of_two(options, options)), arrivals, seconds).deliveries
        at = [float(time_us) / SECOND_US for time_us, _ in deliveries]
        axes.step([0, *at], [0, *accumulate(rows for _, rows in deliveries)], where="post", color=colour, label=label)
    axes.set(xlabel="seconds", ylabel="rows emitted")
    axes.legend()


# -- EQG ---------------------------------------------------------------------------------------------------------------


class Latencies:
    """Observes a run: the time of each delivery and the mean latency of its rows."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def ordered(self, at_us: Any, order: Effect) -> None:
        if isinstance(order, Deliver):
            waited = float(at_us) - float(order.batch.arrival.mean())
            self.seen.append((float(at_us) / SECOND_US, waited / 1_000))

    def executed(self, step: int, at_us: Any, execution: Execution) -> None:
        """Does nothing: the run is not traced."""

    def stepped(self) -> None:
        """Does nothing."""


def draw_eqg(figure: Figure) -> None:
    """The latency of each row; the strategy is changed between two of them."""
    script = plan_script(ets.union_of_two("timestamps = 'latent'", "timestamps = 'latent'", passing=100))
    latencies = Latencies()
    driver = Driver(latencies, price=Price(Fraction(COST_US)))
    commands = [Command(number, body) for number, body in enumerate(script.commands)]
    driver.run([Instant(0, [*commands, *(FeedOpened(name, FEED) for name in script.streams)])])
    (component,) = (found.name for found in driver.engine.components())
    schemas = {name: stream.schema for name, stream in script.streams.items()}
    for second, strategy in enumerate(("bfs(1)", "dfs(1)")):
        driver.run([Instant(second * SECOND_US, [Command(0, SetStrategy(component, strategy))])])
        bursts = [second * SECOND_US + tenth * 100_000 + 1 for tenth in range(10)]
        driver.run(instants({"fast": in_bursts(bursts, 30)}, schemas, 1))
    axes = figure.subplots()
    for name, colour, shown in (
        ("breadth first", RED, [pair for pair in latencies.seen if pair[0] < 1]),
        ("depth first", BLUE, [pair for pair in latencies.seen if pair[0] >= 1]),
    ):
        axes.plot([at for at, _ in shown], [waited for _, waited in shown], ".", color=colour, label=name)
    axes.axvline(1, color="grey", linestyle=":", label="millrace strategy set")
    axes.set(xlabel="seconds", ylabel="latency of a row (ms)", ylim=(0, None))
    axes.legend()


# -- NILE --------------------------------------------------------------------------------------------------------------


def draw_nile(figure: Figure) -> None:
    """Each tuple of the fast stream from its arrival to its answer."""
    slow, fast = nile.evenly(1, 8, 0), nile.evenly(5, 8, 1)
    axes = figure.subplots()
    for way, colour, height in (("sync", RED, 0.15), ("filter", BLUE, -0.15)):
        answers = nile.answers(way, 30_000, slow, fast, 4)
        shown = [(at, done) for at, done in answers if 5 <= at / SECOND_US < 7]
        axes.hlines(
            [number + height for number in range(len(shown))],
            [at / SECOND_US for at, _ in shown],
            [done / SECOND_US for _, done in shown],
            color=colour,
            linewidth=4,
            label=nile.NAMES[way],
        )
    for at in slow[5:9]:
        axes.axvline(at / SECOND_US, color="grey", linestyle=":")
    axes.set(xlabel="seconds (dotted: tuples of the slow stream)", ylabel="tuples of the fast stream", yticks=[])
    axes.set_xlim(4.9, 7.6)
    axes.legend(loc="lower right")


# -- OOP ---------------------------------------------------------------------------------------------------------------


class Retained(oop.Watch):
    """The retained bytes after each step."""

    def __init__(self, script: Any) -> None:
        super().__init__(script)
        self.seen: list[tuple[float, float]] = []

    def stepped(self) -> None:
        super().stepped()
        engine = self.driver.engine
        held = engine.gauge.bytes + sum(operator.state_bytes for operator in engine.graph.operators.values())
        self.seen.append((engine.clock.now_us / SECOND_US, held / oop.MEGA))


def draw_oop(figure: Figure) -> None:
    """Memory over time, with a stream that is late by 20 seconds."""
    axes = figure.subplots()
    for name, order in oop.ORDERS.items():
        script = plan_script(oop.two_streams(order, 10))
        retained = Retained(script)
        commands = [Command(number, body) for number, body in enumerate(script.commands)]
        retained.driver.run([Instant(0, [*commands, FeedOpened("m1", FEED), FeedOpened("m2", FEED)])])
        sources = (oop.Source("m1", 5_000), oop.Source("m2", 5_000, 20))
        schema = script.streams["m1"].schema
        retained.driver.run(oop.packets(sources, schema, 60, 1_000, 200_000, 1))
        words = {"OOP": "count on arrival", "IOP": "merge in order of time, then count"}[name]
        axes.plot(*zip(*retained.seen, strict=True), color=oop.COLOURS[name], label=words)
    axes.set(xlabel="seconds", ylabel="memory (MB)", ylim=(0, None))
    axes.legend()


# -- UPS ---------------------------------------------------------------------------------------------------------------


def _note(ages: list[tuple[int, int]], at: int, age: int) -> None:
    ages.append((at, age))


def draw_ups(figure: Figure) -> None:
    """The age of the update that is being processed, five times overloaded."""
    keys = ups.uniform(2_000, 10)
    axes = figure.subplots()
    kinds: Mapping[ups.Kind, tuple[str, str]] = {
        "AQ": (RED, "append queue: every row, ever older"),
        "UQ-INPLACE": (BLUE, "update queue: the newest of each key"),
    }
    for kind, (colour, label) in kinds.items():
        ages: list[tuple[int, int]] = []
        ups.serve(ups.queue_of(kind, 10, 1), keys, 5 * ups.TICK, each=partial(_note, ages))
        at, age = ([value / ups.TICK for value in values] for values in zip(*ages, strict=True))
        axes.plot(at, age, color=colour, label=label)
    axes.set(xlabel="time (updates)", ylabel="age of the served row")
    axes.legend()


IDEAS: Final[Sequence[Idea]] = (
    Idea(
        ets.ETS,
        "A union in order of time waits for its slowest input. If it asks for a timestamp exactly when it is blocked, "
        "rows leave as they arrive.",
        draw_ets,
    ),
    Idea(
        eqg.EQG,
        "How operators are scheduled is a table that can be rewritten while tuples flow: here from breadth first to "
        "depth first, between two bursts.",
        draw_eqg,
    ),
    Idea(
        nile.NILE,
        "A join in order of time may wait for order first and join then, or join at once and put its output in order. "
        "The second uses the time of waiting.",
        draw_nile,
    ),
    Idea(
        oop.OOP,
        "An aggregate does not need its input in order of time. Counting on arrival retains groups; merging first "
        "retains packets until the late stream has caught up.",
        draw_oop,
    ),
    Idea(
        ups.UPS,
        "If a row replaces the last one of its key, an overloaded queue need not serve old rows: it stays as fresh as "
        "a round over the keys.",
        draw_ups,
    ),
)
