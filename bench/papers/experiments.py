"""All figures, in the papers' order, with what a reader must know of each."""

from __future__ import annotations

from typing import Final

from bench.papers import eqg, ets
from bench.papers.claims import Experiment

COSTS: Final = (
    f"Every execution of an operator costs {ets.COST_US} us of virtual time per tuple it takes (what Millrace takes "
    "for one tuple at a time on an ordinary machine), and as much when it takes none because it passes a punctuation "
    "or looks in vain; sources, forks and sinks cost nothing. Strategy `dfs(1)` unless said otherwise."
)
UNION_OF_TWO: Final = "Two streams, a selection that passes 95 % behind each, an ordered union"

EXPERIMENTS: Final = (
    Experiment(
        paper="ets",
        figure="7",
        title="average output latency",
        setting=f"{UNION_OF_TWO}; Poisson arrivals at 50 and 0.05 tuples a second for 1,000 s. Internal timestamps: A "
        "without ETS, B with heartbeats on the sparse stream, C on demand (as punctuation); D latent timestamps. "
        f"{COSTS}",
        says="periodic ETS lowers the latency as heartbeats become more frequent but never reaches on-demand ETS, "
        "which lies within about 0.1 ms of latent timestamps; the union idle-waits 99 %, 15 % and less than 0.1 % of "
        "the time.",
        remark="The idle share of periodic ETS is what waiting alone gives (a tuple waits for the next beat); it does "
        "not depend on the cost of an execution. The share on demand does: two executions per tuple, so it stays below "
        "0.1 % while an execution costs less than about 10 us at this rate. The latency without ETS is the time to the "
        "next tuple of the sparse stream, 20 s in the long run.",
        run=lambda: ets.latency(1_000),
        wide=True,
    ),
    Experiment(
        paper="ets",
        figure="8",
        title="peak total queue size",
        setting="The runs of figure 7. Counted are the tuples and the punctuations that wait on any arc, each "
        "punctuation as one.",
        says="without ETS thousands of tuples wait at the peak, on demand less than a hundredth of that; periodic ETS "
        "lowers the peak at first, but at high rates punctuation itself fills the buffers.",
        remark="The last claim does not hold here, by design: a punctuation directly behind another makes the first "
        "void, so an arc never holds more than one between two tuples, and beats that fall due while the processor is "
        "busy are not made up for. What frequent heartbeats cost in Millrace is work, not memory.",
        run=lambda: ets.queues(1_000),
    ),
    Experiment(
        paper="eqg",
        figure="14a",
        title="latency of DFS and BFS, without ETS and on demand",
        setting=f"{UNION_OF_TWO}; Poisson arrivals at 1,000 and 0.5 tuples a second for 60 s; `dfs(1)` and `bfs(1)`, "
        f"ETS by arcs. {COSTS}",
        says="DFS and BFS have similar latencies without ETS, and both fall dramatically with on-demand ETS.",
        remark="The latency without ETS is the time to the next tuple of the sparse stream. At this rate tuples hardly "
        "ever wait for the processor, so the order in which operators run makes no difference.",
        run=lambda: eqg.strategies(60),
    ),
    Experiment(
        paper="eqg",
        figure="14b",
        title="latency of DFS and BFS as bursts grow",
        setting="The graph of figure 14a. The fast stream comes in bursts of simultaneous tuples at the same average "
        "rate of 1,000 a second for 20 s. For the formulas: one burst of n, latent timestamps, selections that pass "
        "everything.",
        says="latency grows with the size of bursts, more steeply under BFS; with latent timestamps it is (n+1)c for "
        "DFS and (1.5n+0.5)c for BFS, c being the cost of a tuple in an operator.",
        remark="One timestamp frees a whole burst: the blocked union asks for it as soon as its first tuple waits, not "
        "when the burst is used up, so on demand costs both strategies little more than latent timestamps.",
        run=lambda: eqg.bursts(20, (1, 5, 10, 20, 30, 40, 50), 50),
    ),
    Experiment(
        paper="eqg",
        figure="15",
        title="ETS by arcs against punctuation through the operators",
        setting="Nested unions of three streams in the manner of figure 10, with a selection and a map on every path "
        "to a union, between the unions too; the paper's graph has sliding aggregates besides, so this is not its "
        "graph. One stream at 100 to 3,000 tuples a second, two at 0.5. "
        f"{COSTS}",
        says="both ways resolve idle-waiting; punctuation has a latency 14 % higher, and the more so the more "
        "operators there are that a timestamp need not pass.",
        remark="The size of the difference does not agree: with every execution charged alike, as in (a) and (b), two "
        "operators on each path more than double the executions between a tuple's arrival at a union and its timestamp, "
        "while everything else on its way is short. On the right, passing a punctuation is cheaper, down to a tenth of "
        "a tuple's price; the paper's 14 % lies in between.",
        run=lambda: eqg.arcs(4_000),
        wide=True,
    ),
)
