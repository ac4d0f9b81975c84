"""EQG, figure 16: how a SLIDE makes the output bursty, and how on-demand timestamps remove the bursts.

A union reads a fast stream and a sliding aggregate of a slow one. The aggregate emits a row per slide. A union that
waits for this row holds back the fast stream's tuples for a slide, and then emits them all at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.papers.claims import Claim, Experiment, ExperimentResult
from bench.papers.driver import PRICES, SECOND_US, Setting, poisson, trial
from bench.papers.eqg import EQG

FAST, SLOW = 300.0, 10.0
SECONDS: Final = 12
# In tuples and in tenths of a second, which is the same number on average.
SLIDES: Final = (1, 2, 5, 10, 20)
BUCKET_US: Final = 20_000
POLICIES: Final = {"A": "none", "B": "on-demand"}
LATENT: Final = "latent"
NAMES: Final = {"A": "A  no ETS", "B": "B  on-demand ETS"}
COLOURS: Final = {"A": "tab:red", "B": "tab:blue"}
WINDOWS: Final = {"tuples": "ROWS {0} SLIDE {0}", "time": "RANGE '{0}00 milliseconds' SLIDE '{0}00 milliseconds'"}


def graph(window: str, ets: str) -> str:
    """A selection on the fast stream, a sliding aggregate on the slow one, their union."""
    options = "timestamps = 'latent'" if ets == LATENT else f"ets = '{ets}'"
    return f"""
CREATE STREAM fast (v BIGINT) WITH ({options});
CREATE STREAM slow (v BIGINT) WITH ({options});
CREATE QUERY merged WITH (order = 'event', fuse = 'off') AS
  SELECT v FROM fast WHERE v < 95 UNION ALL SELECT count(*) AS v FROM slow [{window}];
"""


def burstiness(deliveries: Sequence[tuple[float, int]], first_us: int, last_us: int) -> float:
    """The most rows in 0.02 s less the fewest, as a multiple of the mean (the paper's definition)."""
    counts = np.zeros((last_us - first_us) // BUCKET_US)
    for at_us, rows in deliveries:
        bucket = int(at_us - first_us) // BUCKET_US
        if 0 <= bucket < len(counts):
            counts[bucket] += rows
    return float((counts.max() - counts.min()) / counts.mean())


def bursts_of(window: str, ets: str, seconds: float, seed: int = 1) -> float:
    """The burstiness of one trial, without its first two seconds."""
    arrivals = {"fast": poisson(FAST, seconds, seed=[seed, 1]), "slow": poisson(SLOW, seconds, seed=[seed, 2])}
    outcome = trial(Setting(graph(window, ets), propagation="arcs"), arrivals, seconds, seed=seed)
    deliveries = [(float(at_us), rows) for at_us, rows in outcome.deliveries]
    return burstiness(deliveries, 2 * SECOND_US, int(seconds * SECOND_US))


def slides(seconds: float = SECONDS, sizes: Sequence[int] = SLIDES, *, seed: int = 1) -> ExperimentResult:
    """Figure 16: burstiness against SLIDE."""
    burstiness = {
        (kind, line): [bursts_of(window.format(size), ets, seconds, seed) for size in sizes]
        for kind, window in WINDOWS.items()
        for line, ets in POLICIES.items()
    }
    alone = bursts_of(WINDOWS["tuples"].format(1), LATENT, seconds, seed)
    claims = []
    for kind in WINDOWS:
        without, demanded = burstiness[kind, "A"], burstiness[kind, "B"]
        claims += [
            Claim(
                f"SLIDE by {kind}: without ETS burstiness increases significantly with the slide",
                f"at least twofold from {sizes[0]} to {sizes[-1]}",
                _values(without),
                without[-1] >= 2 * without[0],
            ),
            Claim(
                f"SLIDE by {kind}: on-demand ETS eliminates the burstiness",
                "at most 1.25 times the arrivals' burstiness at every slide",
                f"{_values(demanded)}; the arrivals {alone:.3g}",
                max(demanded) <= 1.25 * alone,
            ),
        ]
    return ExperimentResult(claims, lambda figure: _draw(figure, sizes, burstiness, alone))


def _values(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def _draw(
    figure: Figure, sizes: Sequence[int], burstiness: Mapping[tuple[str, str], Sequence[float]], alone: float
) -> None:
    by_tuples, by_time = figure.subplots(1, 2, sharey=True)
    _lines(by_tuples, sizes, {line: burstiness["tuples", line] for line in POLICIES})
    by_tuples.set(xlabel="SLIDE (tuples of the slow stream)", ylabel="burstiness of the output", title="by tuples")
    _lines(by_time, [size / 10 for size in sizes], {line: burstiness["time", line] for line in POLICIES})
    by_time.set(xlabel="SLIDE (seconds)", title="by time")
    for axes in (by_tuples, by_time):
        axes.axhline(alone, color="grey", linestyle=":", label="the arrivals themselves")
        axes.set_ylim(0, None)
        axes.legend()


def _lines(axes: Axes, at: Sequence[float], lines: Mapping[str, Sequence[float]]) -> None:
    for line, values in lines.items():
        axes.plot(at, values, marker="o", color=COLOURS[line], label=NAMES[line])
    axes.grid(True, alpha=0.3)


EXPERIMENTS: Final = (
    Experiment(
        paper=EQG,
        figure="16",
        title="burstiness of the output against SLIDE",
        setting=f"A selection on a stream of {FAST:g} tuples a second and a sliding aggregate on one of {SLOW:g}, in "
        f"an ordered union; Poisson arrivals for {SECONDS} s. Burstiness: the rows are counted in steps of 0.02 s; it "
        "is the highest count less the lowest, divided by the mean. The dotted line is the burstiness of the same "
        "arrivals with latent timestamps, where nothing waits. The slide is a number of tuples of the slow stream on "
        f"the left, and a number of seconds on the right. {PRICES}",
        says="a SLIDE makes the output bursty, and a larger one makes it burstier (A). On-demand ETS eliminates the "
        "bursts (B).",
        remark="Millrace's aggregate promises more than the paper's. A window of time promises that no row is "
        "earlier than its end. A window of rows promises everything that its input promises. So the union waits for "
        "the slow stream's next tuple, not for the next slide, and A does not rise. With slides of time it falls, "
        "because the promise reaches as far as the slide.",
        run=lambda seed: slides(seed=seed),
        wide=True,
    ),
)
