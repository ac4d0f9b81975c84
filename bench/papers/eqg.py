"""EQG, figures 14 and 15: depth first against breadth first, and ETS arcs against punctuation.

Figure 14 runs on the graph of figure 1, the union of two filtered streams. Figure 15 runs on nested unions of three
streams, in the manner of figure 10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.papers.claims import Claim, Found
from bench.papers.driver import Outcome, Setting, in_bursts, poisson, trial
from bench.papers.ets import COST_US, falling, milliseconds, percent, union_of_two

FAST, SPARSE = 1000.0, 0.5
STRATEGIES: Final = {"DFS": "dfs(1)", "BFS": "bfs(1)"}
COLOURS: Final = {"DFS": "tab:blue", "BFS": "tab:orange"}


# -- figure 14(a) ------------------------------------------------------------------------------------------------------


def strategies(seconds: float) -> Found:
    """Figure 14(a): both strategies, without ETS and on demand."""
    arrivals = {"fast": poisson(FAST, seconds, seed=1), "sparse": poisson(SPARSE, seconds, seed=2)}
    found = {
        (strategy, ets): trial(
            Setting(union_of_two(f"ets = '{ets}'", f"ets = '{ets}'"), COST_US, text, "arcs"), arrivals, seconds
        ).latency_ms
        for strategy, text in STRATEGIES.items()
        for ets in ("none", "on-demand")
    }
    claims = [
        Claim(
            f"DFS and BFS have similar latencies {words}",
            "within 10 %",
            f"{milliseconds(found['DFS', ets])} and {milliseconds(found['BFS', ets])}",
            abs(found["DFS", ets] / found["BFS", ets] - 1) <= 0.1,
        )
        for ets, words in (("none", "without ETS"), ("on-demand", "with on-demand ETS"))
    ]
    claims += [
        Claim(
            f"on-demand ETS lowers the latency of {strategy} dramatically",
            ">= 100 times (the paper's axis is logarithmic)",
            f"{found[strategy, 'none'] / found[strategy, 'on-demand']:,.0f} times",
            found[strategy, "none"] >= 100 * found[strategy, "on-demand"],
        )
        for strategy in STRATEGIES
    ]
    return Found(claims, lambda figure: _draw_strategies(figure, found))


def _draw_strategies(figure: Figure, found: Mapping[tuple[str, str], float]) -> None:
    axes = figure.subplots()
    for shift, strategy in ((-0.2, "DFS"), (0.2, "BFS")):
        values = [found[strategy, ets] for ets in ("none", "on-demand")]
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


def bursts(seconds: float, sizes: Sequence[int], exact_to: int) -> Found:
    """Figure 14(b): bursts of growing size at the same average rate, and the formulas for single bursts."""
    single = {
        strategy: [one_burst(size, text) for size in range(1, exact_to + 1)] for strategy, text in STRATEGIES.items()
    }
    found = {
        (strategy, kind): [_in_bursts(seconds, size, text, option) for size in sizes]
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
        dfs, bfs = found["DFS", kind], found["BFS", kind]
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
    return Found(claims, lambda figure: _draw_bursts(figure, sizes, found))


def _in_bursts(seconds: float, size: int, strategy: str, option: str) -> float:
    arrivals = {
        "fast": in_bursts(poisson(FAST / size, seconds, seed=1), size),
        "sparse": poisson(SPARSE, seconds, seed=2),
    }
    return trial(Setting(union_of_two(option, option), COST_US, strategy, "arcs"), arrivals, seconds).latency_ms


def _differences(measured: Sequence[Fraction], strategy: str) -> str:
    wrong = [size for size, value in enumerate(measured, 1) if value != derived(size, strategy)]
    return f"differs at n = {', '.join(map(str, wrong))}" if wrong else f"equal for all {len(measured)} sizes"


def _draw_bursts(figure: Figure, sizes: Sequence[int], found: Mapping[tuple[str, str], Sequence[float]]) -> None:
    axes = figure.subplots()
    for (strategy, kind), values in found.items():
        style = "-" if kind == "on-demand ETS" else "--"
        axes.plot(sizes, values, style, marker="o", color=COLOURS[strategy], label=f"{strategy}, {kind}")
    axes.set(xlabel="burst size (tuples)", ylabel="mean output latency (ms)")
    axes.grid(True, alpha=0.3)
    axes.legend()


# -- figure 15 ---------------------------------------------------------------------------------------------------------

RATES: Final = (100.0, 300.0, 1000.0, 3000.0)
DEPTHS: Final = (1, 2, 3, 4)
# What an execution that passes a punctuation costs, as a share of one that takes a tuple.
SHARES: Final = (Fraction(1), Fraction(1, 2), Fraction(1, 4), Fraction(1, 10))


def nested_unions(depth: int, ets: str) -> str:
    """Three streams, two unions, and so many selections and maps in turn on every path to a union."""
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


@dataclass(frozen=True, slots=True)
class Propagation:
    """What figure 15 compares, at one rate and depth."""

    none: Outcome
    punctuation: Outcome
    arcs: Outcome

    @property
    def overhead(self) -> float:
        """By how much punctuation through the operators lengthens the latency."""
        return float(self.punctuation.latency_us / self.arcs.latency_us) - 1


def propagation(tuples: int, rate: float, depth: int, without: Fraction = Fraction(1)) -> Propagation:
    """One fast stream and two slow ones, through nested unions."""
    seconds = tuples / rate
    arrivals = {
        "s1": poisson(rate, seconds, seed=1),
        "s2": poisson(SPARSE, seconds, seed=2),
        "s3": poisson(SPARSE, seconds, seed=3),
    }

    def run(ets: str, way: str) -> Outcome:
        setting = Setting(nested_unions(depth, ets), COST_US, propagation=way, without=without)
        return trial(setting, arrivals, seconds)

    return Propagation(run("none", "arcs"), run("on-demand", "punctuation"), run("on-demand", "arcs"))


def arcs(tuples: int, rates: Sequence[float] = RATES, depths: Sequence[int] = DEPTHS) -> Found:
    """Figure 15: what ETS arcs save."""
    by_rate = {rate: propagation(tuples, rate, 2) for rate in rates}
    by_depth = {share: [propagation(tuples, rates[-1], depth, share) for depth in depths] for share in SHARES}
    claims = [
        Claim(
            f"{words} resolves idle-waiting",
            "latency <= 1/100 of no ETS at every rate",
            ", ".join(
                f"{milliseconds(found.none.latency_ms)} to {milliseconds(_of(found, way).latency_ms)} at {rate:g}/s"
                for rate, found in by_rate.items()
            ),
            all(_of(found, way).latency_us * 100 <= found.none.latency_us for found in by_rate.values()),
        )
        for way, words in (("arcs", "ETS by arcs"), ("punctuation", "ETS as punctuation through the operators"))
    ]
    overheads = [found.overhead for found in by_rate.values()]
    deeper = [found.overhead for found in by_depth[SHARES[0]]]
    cheap = [found.overhead for found in by_depth[SHARES[-1]]]
    at_two = depths.index(2)
    dear = deeper[at_two]
    claims += [
        Claim(
            "punctuation through the operators has the higher latency",
            "more than arcs at every rate",
            ", ".join(f"{percent(value)} at {rate:g}/s" for rate, value in zip(by_rate, overheads, strict=True)),
            all(value > 0 for value in overheads),
        ),
        Claim(
            "it is higher by about 14 %",
            "10 to 20 %, where passing a punctuation costs as much as a tuple",
            f"{percent(dear)}; {percent(cheap[at_two])} at {SHARES[-1]} of that price",
            0.10 <= dear <= 0.20,
        ),
        Claim(
            "the overhead grows with the share of operators that a timestamp need not pass",
            f"strictly rising from {depths[0]} to {depths[-1]} on every path",
            ", ".join(percent(value) for value in deeper) + "; with cheap punctuation " + ", ".join(
                percent(value) for value in cheap
            ),
            falling(deeper[::-1]) and falling(cheap[::-1]),
        ),
    ]  # fmt: skip
    return Found(claims, lambda figure: _draw_arcs(figure, by_rate, depths, by_depth))


def _of(found: Propagation, way: str) -> Outcome:
    return found.arcs if way == "arcs" else found.punctuation


def _draw_arcs(
    figure: Figure,
    by_rate: Mapping[float, Propagation],
    depths: Sequence[int],
    by_depth: Mapping[Fraction, Sequence[Propagation]],
) -> None:
    whole, near, deep = figure.subplots(1, 3)
    _lines(whole, by_rate, ("none", "punctuation", "arcs"))
    whole.set(yscale="log", title="(a)")
    _lines(near, by_rate, ("punctuation", "arcs"))
    near.set(title="(b)", ylim=(0, None))
    for share, found in by_depth.items():
        deep.plot(depths, [one.overhead * 100 for one in found], marker="o", label=f"{share} of a tuple's price")
    deep.axhline(14, color="grey", linestyle=":", label="paper: 14 %")
    deep.set(xlabel="operators on a path", ylabel="punctuation above arcs (%)", title="more operators")
    deep.set_xticks(depths)
    deep.grid(True, alpha=0.3)
    deep.legend(fontsize="small")


def _lines(axes: Axes, by_rate: Mapping[float, Propagation], ways: Sequence[str]) -> None:
    labels = {"none": "no ETS", "punctuation": "punctuation", "arcs": "ETS arcs"}
    colours = {"none": "tab:red", "punctuation": "tab:orange", "arcs": "tab:blue"}
    for way in ways:
        values = [getattr(found, way).latency_ms for found in by_rate.values()]
        axes.plot(list(by_rate), values, marker="o", color=colours[way], label=labels[way])
    axes.set(xscale="log", xlabel="tuples per second (s1)", ylabel="mean output latency (ms)")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize="small")
