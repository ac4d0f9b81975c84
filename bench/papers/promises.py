"""OOP, appendix A.1.2.2: what punctuation costs, tuple by tuple as in the paper's systems.

A tumbling count reads one stream whose progress is punctuation alone. Tuples arrive one at a time; after each
hundredth of them, or more often, a punctuation follows. All of it is a step of the engine per event.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from bench.papers.claims import Claim, Experiment, ExperimentResult, percent
from bench.papers.driver import FEED
from bench.papers.oop import OOP
from millrace.engine.engine import Engine
from millrace.engine.events import Arrived, Command, FeedOpened, Punctuated
from millrace.offline.script import plan_script
from millrace.values.batch import Batch

SQL: Final = """
CREATE STREAM s (ts TIMESTAMP NOT NULL, k BIGINT NOT NULL) WITH (time = 'ts', ets = 'none', progress = 'punctuation');
CREATE QUERY q AS SELECT k, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 second') GROUP BY k;
"""
TUPLES: Final = 20_000
APART_US: Final = 1_000
GROUPS: Final = 100
# Punctuations per hundred tuples; the first closes windows and is what the others are compared with.
SHARES: Final = (1, 5, 10, 15)
TURNS: Final = 3


def processor_time(tuples: int, share: int, seed: int) -> float:
    """Of a run, in seconds."""
    script = plan_script(SQL)
    engine = Engine()
    commands = [Command(number, body) for number, body in enumerate(script.commands)]
    engine.step(0, [*commands, FeedOpened("s", FEED)])
    schema = script.streams["s"].schema
    keys = np.random.default_rng(seed).integers(0, GROUPS, tuples)
    times = np.arange(tuples) * APART_US
    rows = [Batch(schema, times[at : at + 1], [times[at : at + 1], keys[at : at + 1]]) for at in range(tuples)]
    due = 0
    began = time.thread_time()
    for at, row in enumerate(rows):
        engine.step(at, [Arrived("s", FEED, row)])
        due += share
        if due >= 100:
            due -= 100
            engine.step(at, [Punctuated("s", FEED, at * APART_US)])
    return time.thread_time() - began


def overhead(tuples: int = TUPLES, shares: Sequence[int] = SHARES, *, seed: int = 1) -> ExperimentResult:
    """The best of some turns, which alternate."""
    turns = [{share: processor_time(tuples, share, seed) for share in shares} for _ in range(TURNS)]
    best = {share: min(turn[share] for turn in turns) for share in shares}
    more = {share: best[share] / best[shares[0]] - 1 for share in shares}
    claims = [
        Claim(
            f"punctuation costs little even at {shares[-1]} per 100 tuples",
            "at most 14 % more processor time",
            ", ".join(f"{percent(value)} at {share}" for share, value in more.items() if share != shares[0]),
            more[shares[-1]] <= 0.14,
        )
    ]
    return ExperimentResult(claims, lambda figure: _draw(figure, more))


def _draw(figure: Figure, more: Mapping[int, float]) -> None:
    axes = figure.subplots()
    axes.plot(list(more), [100 * value for value in more.values()], marker="o")
    axes.set(xlabel="punctuations per 100 tuples", ylabel="more processor time (%)", ylim=(0, None))
    axes.grid(True, alpha=0.3)


EXPERIMENTS: Final = (
    Experiment(
        paper=OOP,
        figure="A.1.2.2",
        title="the cost of punctuation",
        setting=f"A count per second of {GROUPS} groups over a stream of {TUPLES:,} tuples, a millisecond apart, that "
        "arrive one at a time. The stream's progress is punctuation alone: one per hundred tuples, or up to 15. This "
        "figure measures the machine.",
        says="even with up to 15 punctuations per 100 tuples the overhead is very limited.",
        remark="A punctuation that arrives by itself is a step of the engine, as a tuple is. Thinning saves what "
        "follows: the aggregate receives a promise only where a window ends.",
        run=lambda seed: overhead(seed=seed),
    ),
)
