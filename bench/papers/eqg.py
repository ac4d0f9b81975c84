"""EQG, figures 14 and 15: depth first against breadth first, and ETS arcs against punctuation.

Figure 14 runs on the graph of figure 1, the union of two filtered streams. Figure 15 runs on nested unions of three
streams, in the manner of figure 10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.papers.claims import Claim, Experiment, ExperimentResult, Paper, falling, milliseconds, percent
from bench.papers.driver import COST_US, Outcome, Setting, in_bursts, poisson, trial
from bench.papers.ets import GRAPH, union_of_two

EQG: Final = Paper(
    "eqg",
    "A Flexible Query Graph Based Model for the Efficient Execution of Continuous Queries",
    "Bai, Thakkar, Wang and Zaniolo",
)
FAST, SPARSE = 1000.0, 0.5
SECONDS: Final = 20
SIZES: Final = (1, 5, 10, 20, 30, 40, 50)
STRATEGIES: Final = {"DFS": "dfs(1)", "BFS": "bfs(1)"}
COLOURS: Final = {"DFS": "tab:blue", "BFS": "tab:orange"}


# -- figure 14(a) ------------------------------------------------------------------------------------------------------


def strategies(seconds: float, *, seed: int = 1) -> ExperimentResult:
    """Figure 14(a): both strategies, without ETS and on demand."""
    arrivals = {"fast": poisson(FAST, seconds, seed=[seed, 1]), "sparse": poisson(SPARSE, seconds, seed=[seed, 2])}
    latencies = {
        (strategy, ets): trial(
            Setting(union_of_two(f"ets = '{ets}'", f"ets = '{ets}'"), strategy=text, propagation="arcs"),
            arrivals,
            seconds,
            seed=seed,
        ).latency_ms
        for strategy, text in STRATEGIES.items()
        for ets in ("none", "on-demand")
    }
    claims = [
        Claim(
            f"DFS and BFS have similar latencies {words}",
            "within 10 %",
            f"{milliseconds(latencies['DFS', ets])} and {milliseconds(latencies['BFS', ets])}",
            abs(latencies["DFS", ets] / latencies["BFS", ets] - 1) <= 0.1,
        )
        for ets, words in (("none", "without ETS"), ("on-demand", "with on-demand ETS"))
    ]
    claims += [
        Claim(
            f"on-demand ETS lowers the latency of {strategy} dramatically",
            ">= 100 times (the paper's axis is logarithmic)",
            f"{latencies[strategy, 'none'] / latencies[strategy, 'on-demand']:,.0f} times",
            latencies[strategy, "none"] >= 100 * latencies[strategy, "on-demand"],
        )
        for strategy in STRATEGIES
    ]
    return ExperimentResult(claims, lambda figure: _draw_strategies(figure, latencies))


def _draw_strategies(figure: Figure, latencies: Mapping[tuple[str, str], float]) -> None:
    axes = figure.subplots()
    for shift, strategy in ((-0.2, "DFS"), (0.2, "BFS")):
        values = [latencies[strategy, ets] for ets in ("none", "on-demand")]
        bars = axes.bar([shift, 1 + shift], values, width=0.38, color=COLOURS[strategy], label=strategy)
        axes.bar_label(bars, [milliseconds(value) for value in values])
    axes.set(yscale="log", ylabel="mean output latency (ms)")
    axes.set_xticks([0, 1], ["no ETS", "on-demand ETS"])
    axes.margins(y=0.15)
    axes.legend()


# -- figure 14(b) ------------------------------------------------------------------------------------------------------


def one_burst(size: int, strategy: str, cost_us: int = COST_US) -> Fraction:
    """The mean latency of a single burst, in microseconds: latent timestamps, selections that pass everything."""
    latent = "timestamps = 'latent'"
    setting = Setting(union_of_two(latent, latent, passing=100), cost_us, strategy)
    return trial(setting, {"fast": [1_000] * size}, 1.0).latency_us


def derived(size: int, strategy: str, cost_us: int = COST_US) -> Fraction:
    """The paper's formulas: (n+1)c for depth first, (1.5n+0.5)c for breadth first."""
    return Fraction(size + 1) * cost_us if strategy == "dfs(1)" else Fraction(3 * size + 1, 2) * cost_us


def bursts(seconds: float, sizes: Sequence[int], exact_to: int, *, seed: int = 1) -> ExperimentResult:
    """Figure 14(b): bursts of growing size at the same average rate, and the formulas for single bursts."""
    single = {
        strategy: [one_burst(size, text) for size in range(1, exact_to + 1)] for strategy, text in STRATEGIES.items()
    }
    latencies = {
        (strategy, kind): [_in_bursts(seconds, size, text, option, seed) for size in sizes]
        for strategy, text in STRATEGIES.items()
        for kind, option in (("on-demand ETS", "ets = 'on-demand'"), ("latent", "timestamps = 'latent'"))
    }
    claims = [
        Claim(
            f"{strategy}, latent: the mean latency of a burst of n is {formula}",
            f"exactly, for n = 1 to {exact_to}",
            _differences(single[strategy], STRATEGIES[strategy]),
            single[strategy] == [derived(size, STRATEGIES[strategy]) for size in range(1, exact_to + 1)],
        )
        for strategy, formula in (("DFS", "(n+1)c"), ("BFS", "(1.5n+0.5)c"))
    ]
    for kind in ("on-demand ETS", "latent"):
        dfs, bfs = latencies["DFS", kind], latencies["BFS", kind]
        claims += [
            Claim(
                f"{kind}: latency grows with the size of bursts under both",
                "strictly rising",
                f"DFS {milliseconds(dfs[0])} to {milliseconds(dfs[-1])}, BFS {milliseconds(bfs[0])} to "
                f"{milliseconds(bfs[-1])}",
                falling(dfs[::-1]) and falling(bfs[::-1]),
            ),
            Claim(
                f"{kind}: BFS is affected more severely than DFS",
                "BFS above DFS at every size but 1",
                f"at bursts of {sizes[-1]} BFS takes {bfs[-1] / dfs[-1]:.2f} times as long",
                all(wide > deep for deep, wide, size in zip(dfs, bfs, sizes, strict=True) if size > 1),
            ),
        ]
    return ExperimentResult(claims, lambda figure: _draw_bursts(figure, sizes, latencies))


def _in_bursts(seconds: float, size: int, strategy: str, option: str, seed: int) -> float:
    arrivals = {
        "fast": in_bursts(poisson(FAST / size, seconds, seed=[seed, 1]), size),
        "sparse": poisson(SPARSE, seconds, seed=[seed, 2]),
    }
    setting = Setting(union_of_two(option, option), strategy=strategy, propagation="arcs")
    return trial(setting, arrivals, seconds, seed=seed).latency_ms


def _differences(measured: Sequence[Fraction], strategy: str) -> str:
    wrong = [size for size, value in enumerate(measured, 1) if value != derived(size, strategy)]
    return f"differs at n = {', '.join(map(str, wrong))}" if wrong else f"equal for all {len(measured)} sizes"


def _draw_bursts(figure: Figure, sizes: Sequence[int], latencies: Mapping[tuple[str, str], Sequence[float]]) -> None:
    axes = figure.subplots()
    for (strategy, kind), values in latencies.items():
        style = "-" if kind == "on-demand ETS" else "--"
        axes.plot(sizes, values, style, marker="o", color=COLOURS[strategy], label=f"{strategy}, {kind}")
    axes.set(xlabel="burst size (tuples)", ylabel="mean output latency (ms)")
    axes.grid(True, alpha=0.3)
    axes.legend()


# -- figure 15 ---------------------------------------------------------------------------------------------------------

RATES: Final = (100.0, 300.0, 1000.0, 3000.0)
DEPTHS: Final = (1, 2, 3, 4)
DEPTH: Final = 2
# The cost of an execution that passes a punctuation on, as a share of one that takes a tuple.
SHARES: Final = (Fraction(1), Fraction(1, 2), Fraction(1, 4), Fraction(1, 10))
PAPERS_OVERHEAD: Final = 0.14
WAYS: Final = {"arcs": "ETS by arcs", "punctuation": "ETS as punctuation through the operators"}


def nested_unions(depth: int, ets: str) -> str:
    """Three streams, two unions, and a number of alternating selections and maps on every path to a union."""
    inner = f"(SELECT v FROM {_path('s1', depth)} UNION ALL SELECT v FROM {_path('s2', depth)})"
    streams = "\n".join(f"CREATE STREAM s{number} (v BIGINT) WITH (ets = '{ets}');" for number in (1, 2, 3))
    return f"""{streams}
CREATE QUERY merged WITH (order = 'event', fuse = 'off') AS
  SELECT v FROM {_path(inner, depth)} UNION ALL SELECT v FROM {_path("s3", depth)};
"""


def _path(source: str, depth: int) -> str:
    """Selections and maps in turn. A stream's first selection passes 95 %, the others everything."""
    text = source
    for position in range(depth):
        passing = 95 if position == 0 and not source.startswith("(") else 1_000
        text = f"(SELECT v + 1 AS v FROM {text})" if position % 2 else f"(SELECT v FROM {text} WHERE v < {passing})"
    return text


def nested(
    seconds: float,
    rate: float,
    depth: int,
    way: str,
    *,
    ets: str = "on-demand",
    without: Fraction = Fraction(1),
    seed: int = 1,
) -> Outcome:
    """One fast stream and two slow ones through nested unions; `way` is how timestamps made on demand travel."""
    arrivals = {
        "s1": poisson(rate, seconds, seed=[seed, 1]),
        "s2": poisson(SPARSE, seconds, seed=[seed, 2]),
        "s3": poisson(SPARSE, seconds, seed=[seed, 3]),
    }
    return trial(Setting(nested_unions(depth, ets), propagation=way, without=without), arrivals, seconds, seed=seed)


def overhead(seconds: float, rate: float, depth: int, without: Fraction = Fraction(1), *, seed: int = 1) -> float:
    """The additional latency of punctuation through the operators, as a share of the latency of arcs."""
    through = nested(seconds, rate, depth, "punctuation", without=without, seed=seed)
    past = nested(seconds, rate, depth, "arcs", without=without, seed=seed)
    return float(through.latency_us / past.latency_us) - 1


def arcs(
    tuples: int, rates: Sequence[float] = RATES, depths: Sequence[int] = DEPTHS, *, at_least: float = 10, seed: int = 1
) -> ExperimentResult:
    """Figure 15: the savings of ETS arcs, with `tuples` tuples at every rate. Runs without ETS wait for the slow
    streams, so they last `at_least` seconds.
    """
    lasting = {rate: tuples / rate for rate in rates}
    without_ets = [
        nested(max(at_least, lasting[rate]), rate, DEPTH, "arcs", ets="none", seed=seed).latency_ms for rate in rates
    ]
    by_rate = {way: [nested(lasting[rate], rate, DEPTH, way, seed=seed).latency_ms for rate in rates] for way in WAYS}
    middle = 1_000.0
    by_depth = {
        share: [overhead(tuples / middle, middle, depth, share, seed=seed) for depth in depths] for share in SHARES
    }
    claims = [_resolves(way, rates, without_ets, by_rate[way]) for way in WAYS]
    claims += _overheads(rates, by_rate, depths, by_depth)
    return ExperimentResult(
        claims, lambda figure: _draw_arcs(figure, rates, {"none": without_ets, **by_rate}, depths, by_depth)
    )


def _resolves(way: str, rates: Sequence[float], none: Sequence[float], latencies: Sequence[float]) -> Claim:
    return Claim(
        f"{WAYS[way]} resolves idle-waiting",
        "latency <= 1/100 of no ETS at every rate",
        ", ".join(
            f"{milliseconds(before)} to {milliseconds(after)} at {rate:g}/s"
            for rate, before, after in zip(rates, none, latencies, strict=True)
        ),
        all(after * 100 <= before for before, after in zip(none, latencies, strict=True)),
    )


def _overheads(
    rates: Sequence[float],
    by_rate: Mapping[str, Sequence[float]],
    depths: Sequence[int],
    by_depth: Mapping[Fraction, Sequence[float]],
) -> list[Claim]:
    above = [through / past - 1 for through, past in zip(by_rate["punctuation"], by_rate["arcs"], strict=True)]
    dear, cheap = by_depth[SHARES[0]], by_depth[SHARES[-1]]
    at_two = depths.index(DEPTH)
    return [
        Claim(
            "punctuation through the operators has the higher latency",
            "more than arcs at every rate",
            ", ".join(f"{percent(value)} at {rate:g}/s" for rate, value in zip(rates, above, strict=True)),
            all(value > 0 for value in above),
        ),
        Claim(
            "that latency is higher by about 14 %",
            "10 to 20 %, if every execution has the same price",
            f"{percent(dear[at_two])}; 14 % if passing a punctuation on costs {break_even(by_depth, at_two):.2f} of a "
            "tuple's price",
            0.10 <= dear[at_two] <= 0.20,
        ),
        Claim(
            "the difference grows with the number of operators that a timestamp can skip",
            f"strictly rising from {depths[0]} to {depths[-1]} on every path",
            f"{_listed(dear)}; at {SHARES[-1]} of the price {_listed(cheap)}",
            falling(dear[::-1]) and falling(cheap[::-1]),
        ),
    ]


def break_even(by_depth: Mapping[Fraction, Sequence[float]], at: int) -> float:
    """The price of passing a punctuation on, as a share of a tuple's, at which the paper's 14 % are measured."""
    prices = sorted(by_depth)
    return float(np.interp(PAPERS_OVERHEAD, [by_depth[price][at] for price in prices], [float(p) for p in prices]))


def _listed(shares: Sequence[float]) -> str:
    return ", ".join(percent(share) for share in shares)


def _draw_arcs(
    figure: Figure,
    rates: Sequence[float],
    latencies: Mapping[str, Sequence[float]],
    depths: Sequence[int],
    by_depth: Mapping[Fraction, Sequence[float]],
) -> None:
    whole, near, deep = figure.subplots(1, 3)
    _lines(whole, rates, latencies, ("none", "punctuation", "arcs"))
    whole.set(yscale="log", title="(a)")
    _lines(near, rates, latencies, ("punctuation", "arcs"))
    near.set(title="(b)", ylim=(0, None))
    for share, overheads in by_depth.items():
        label = "a tuple's price" if share == 1 else f"{share} of it"
        deep.plot(depths, [value * 100 for value in overheads], marker="o", label=label)
    deep.axhline(100 * PAPERS_OVERHEAD, color="grey", linestyle=":", label="the paper's 14 %")
    reached = break_even(by_depth, depths.index(DEPTH))
    deep.plot([DEPTH], [100 * PAPERS_OVERHEAD], "k*", markersize=10, label=f"reached at {reached:.2f} of it")
    deep.set(xlabel="operators on every path", ylabel="punctuation above arcs (%)", title="(b) by size and price")
    deep.set(ylim=(0, max(map(max, by_depth.values())) * 170), xticks=depths)
    deep.grid(True, alpha=0.3)
    deep.legend(fontsize="small", loc="upper left", title="passing a punctuation on costs", title_fontsize="small")


def _lines(axes: Axes, rates: Sequence[float], latencies: Mapping[str, Sequence[float]], ways: Sequence[str]) -> None:
    labels = {"none": "no ETS", "punctuation": "punctuation", "arcs": "ETS arcs"}
    colours = {"none": "tab:red", "punctuation": "tab:orange", "arcs": "tab:blue"}
    for way in ways:
        axes.plot(rates, latencies[way], marker="o", color=colours[way], label=labels[way])
    axes.set(xscale="log", xlabel="tuples per second (s1)", ylabel="mean output latency (ms)")
    axes.set_xticks(rates, [f"{rate:,.0f}" for rate in rates])
    axes.minorticks_off()
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize="small")


# -- experiments -------------------------------------------------------------------------------------------------------

EXPERIMENTS: Final = (
    Experiment(
        paper=EQG,
        figure="14a",
        title="latency of DFS and BFS, without ETS and on demand",
        setting=f"{GRAPH}; strategies `dfs(1)` and `bfs(1)`. Poisson arrivals at {FAST:,.0f} and {SPARSE:g} tuples a "
        f"second for {SECONDS} s; ETS by arcs. An execution costs the same as in ETS, figure 7.",
        says="DFS and BFS have similar latencies without ETS, and both fall dramatically with on-demand ETS.",
        remark="The latency without ETS is the time to the next tuple of the sparse stream. At this rate tuples "
        "hardly ever wait for the processor, so the order in which operators run makes no difference.",
        run=lambda seed: strategies(SECONDS, seed=seed),
    ),
    Experiment(
        paper=EQG,
        figure="14b",
        title="latency of DFS and BFS as bursts grow",
        setting="The graph of figure 14a. The fast stream arrives in bursts of simultaneous tuples at the same "
        f"average rate for {SECONDS // 2} s. For the formulas: one burst of n tuples, latent timestamps, selections "
        "that pass everything.",
        says="latency grows with the size of bursts, more steeply under BFS. With latent timestamps it is (n+1)c for "
        "DFS and (1.5n+0.5)c for BFS, where c is the cost of a tuple in an operator.",
        remark="One timestamp releases a whole burst: the blocked union requests it as soon as its first tuple "
        "waits, not when the burst is used up. So on-demand ETS costs both strategies little more than latent "
        "timestamps.",
        run=lambda seed: bursts(SECONDS // 2, SIZES, SIZES[-1], seed=seed),
    ),
    Experiment(
        paper=EQG,
        figure="15",
        title="ETS by arcs against punctuation through the operators",
        setting="Nested unions of three streams, as in figure 10, with a selection and a map on every path to a "
        "union and between the unions. One stream has 100 to 3,000 tuples a second (1,000 on the right), two have "
        "0.5. The strategy is `dfs(1)`. (a) and (b) have one price for every execution, with or without a tuple, as "
        "in ETS, figure 7. On the right, an execution without a tuple has a share of that price. The star is the "
        "break-even: the share at which punctuation takes 14 % longer.",
        says="both ways resolve idle-waiting. Punctuation has a latency that is 14 % higher. The difference grows "
        "with the number of operators that a timestamp can skip.",
        remark="The size of the difference does not agree at one price for all executions. By arcs a tuple leaves "
        "after nine executions: six of its path, and three in which the unions request and receive a timestamp. "
        "Punctuation adds six, two on each path. The paper does not state what its system takes to pass a punctuation "
        "on; its 14 % are what Millrace measures at the break-even.",
        run=lambda seed: arcs(1_000, seed=seed),
        wide=True,
    ),
)
