"""The papers' experiments at small sizes. Claims that hold at any size are tested here.

The full sizes are run by `make figures`; their claims are in docs/figures/claims.csv.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from bench.aggregate import Load
from bench.papers import eqg, ets, held, live, nile, oop, oop_joins, promises, slides, upcoming, ups
from bench.papers.__main__ import FIGURES, main
from bench.papers.claims import Claim, Experiment, ExperimentResult, Paper, falling, page, read_rows, rows_of
from bench.papers.driver import Setting, in_bursts, instants, poisson, trial
from bench.papers.experiments import EXPERIMENTS, NOT_TRIED
from bench.papers.ideas import IDEAS, Idea
from bench.papers.spread import draw_with_spread
from millrace.engine.events import Arrived
from millrace.offline.run import Options, Run
from millrace.offline.script import plan_script
from millrace.operators.queues.update import SCHEDULERS, UpdateQueue
from millrace.protocol import Schema
from millrace.values.batch import Batch

HEARTBEATS = (1.0, 100.0)
ON_DEMAND = ets.union_of_two("ets = 'on-demand'", "ets = 'on-demand'")


@cache
def made(make: Callable[..., ExperimentResult], *sizes: Any) -> ExperimentResult:
    """An experiment's result, which several tests look at."""
    return make(*sizes)


def verdicts(result: ExperimentResult) -> dict[str, bool]:
    return {claim.claim: claim.holds for claim in result.claims}


# -- the driver --------------------------------------------------------------------------------------------------------


def test_arrivals_come_at_their_rate_and_from_their_seed() -> None:
    times = poisson(100, 50, seed=3)
    assert times == poisson(100, 50, seed=3) != poisson(100, 50, seed=4)
    assert times == sorted(times)
    assert 4_600 < len(times) < 5_400
    assert times[-1] < 50_000_000
    assert in_bursts([1, 7], 3) == [1, 1, 1, 7, 7, 7]


@pytest.mark.parametrize("policy", ["ets = 'on-demand'", "ets = 'none'", "timestamps = 'latent'"])
@pytest.mark.parametrize("cost", [5, 700])
def test_a_trial_is_a_run_with_a_cost(policy: str, cost: int, tmp_path: Path) -> None:
    """If executions that take no tuple are free, a trial measures what `millrace run --cost` reports."""
    sql = ets.union_of_two(policy, policy)
    arrivals = {"fast": poisson(400, 1, seed=1), "sparse": poisson(4, 1, seed=2)}
    tried = trial(Setting(sql, cost, "dfs(1)", "arcs", Fraction(0)), arrivals, 1.0)

    script = plan_script(sql)
    schemas = {name: stream.schema for name, stream in script.streams.items()}
    events = tmp_path / "events.jsonl"
    with events.open("w") as file:
        for instant in instants(arrivals, schemas, 1):
            for event in instant.events:
                assert isinstance(event, Arrived)
                for (value,) in event.batch.rows():
                    file.write(json.dumps({"at": instant.at_us, "stream": event.stream, "tuple": {"v": value}}) + "\n")
        file.write(json.dumps({"at": 1_000_000, "tick": True}) + "\n")
    report = tmp_path / "report.json"
    outputs = [("merged", str(tmp_path / "rows.jsonl"))]
    options = Options(
        events=str(events), outputs=outputs, strategy="dfs(1)", close=False, report=str(report), cost=Fraction(cost)
    )
    Run(script, options, io.BytesIO()).run()
    measured = json.loads(report.read_text())
    assert tried.rows == measured["queries"]["merged"]["rows"] > 0
    assert float(tried.latency_us) == pytest.approx(measured["queries"]["merged"]["latency_us"]["mean"])
    assert tried.peak_tuples == measured["totals"]["peak_queue_tuples"]
    assert tried.executions == sum(component["steps"] for component in measured["components"].values())


def test_an_execution_without_a_tuple_has_a_cost() -> None:
    """A single tuple on demand: selection, union without result, the selection passes the punctuation, union."""
    prices = (Fraction(0), Fraction(1, 2), Fraction(1))
    waited = [trial(Setting(ON_DEMAND, 10, without=price), {"fast": [100]}, 1.0).latency_us for price in prices]
    assert waited == [20, 30, 40]
    by_arc = [trial(Setting(ON_DEMAND, 10, "dfs(1)", "arcs", price), {"fast": [100]}, 1.0) for price in prices]
    assert [outcome.latency_us for outcome in by_arc] == [20, 25, 30]


# -- ETS ---------------------------------------------------------------------------------------------------------------


def test_ets_figures_at_a_small_size() -> None:
    outcomes = ets.policies(60, HEARTBEATS)
    idle = outcomes.idle()
    assert idle[0] >= 0.95
    assert falling(idle)
    assert idle[-1] < 0.001
    latencies = [
        outcome.latency_us
        for outcome in (outcomes.none, *outcomes.periodic.values(), outcomes.on_demand, outcomes.latent)
    ]
    assert all(before > after for before, after in pairwise(latencies))
    assert outcomes.on_demand.peak_queue * 100 <= outcomes.none.peak_queue
    claims = {**verdicts(made(ets.latency, 60, HEARTBEATS)), **verdicts(made(ets.queues, 60, HEARTBEATS))}
    assert len(claims) == 13


# -- EQG ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost_us", [1, 7])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 21])
def test_a_burst_takes_exactly_the_time_in_the_paper(size: int, cost_us: int) -> None:
    assert eqg.one_burst(size, "dfs(1)", cost_us) == (size + 1) * cost_us
    assert eqg.one_burst(size, "bfs(1)", cost_us) == Fraction(3 * size + 1, 2) * cost_us


def test_eqg_figure_14_at_a_small_size() -> None:
    strategies = verdicts(made(eqg.strategies, 4))
    assert len(strategies) == 4
    assert all(strategies.values()), strategies
    bursts = verdicts(made(eqg.bursts, 1, (1, 10, 30), 4))
    assert len(bursts) == 6
    assert all(bursts.values()), bursts


def test_eqg_figure_15_at_a_small_size() -> None:
    none = eqg.nested(0.3, 1_000, 2, "arcs", ets="none")
    by_arcs = eqg.nested(0.3, 1_000, 2, "arcs")
    through = eqg.nested(0.3, 1_000, 2, "punctuation")
    assert by_arcs.rows == through.rows > none.rows
    assert by_arcs.executions < through.executions
    two = eqg.overhead(0.3, 1_000, 2)
    assert 0 < two == pytest.approx(float(through.latency_us / by_arcs.latency_us - 1))
    assert eqg.overhead(0.3, 1_000, 1) < two < eqg.overhead(0.3, 1_000, 3)
    assert eqg.overhead(0.3, 1_000, 2, Fraction(1, 10)) < two


def test_a_lone_tuple_takes_nine_executions_by_arcs_and_fifteen_by_punctuation() -> None:
    """A tuple itself takes four executions: two on its path and the two unions.

    Three more executions of a union have no result, and punctuation adds two on each path. The first tuple needs one
    execution less, and not the way to it, because the first union has nothing to pass on.
    """
    spaced = [1_000, 2_000, 3_000]

    def total(way: str) -> Fraction:
        outcome = trial(Setting(eqg.nested_unions(2, "on-demand"), 1, propagation=way), {"s1": spaced}, 1.0)
        return outcome.latency_us * outcome.rows

    assert total("arcs") == 8 + 9 + 9
    assert total("punctuation") == 12 + 15 + 15


def test_eqg_figure_16_at_a_small_size() -> None:
    holds = verdicts(made(slides.slides, 5, (1, 5)))
    assert len(holds) == 4
    assert holds["SLIDE by time: on-demand ETS eliminates the burstiness"]


def test_burstiness_is_the_spread_of_counts_over_their_mean() -> None:
    deliveries = [(0.0, 5), (10_000.0, 1), (19_999.0, 1), (25_000.0, 4), (60_000.0, 9)]
    assert slides.burstiness(deliveries, 10_000, 70_000) == (9 - 0) / 5


# -- NILE --------------------------------------------------------------------------------------------------------------


def one_by_one(way: str, cost_us: int, slow: Sequence[int], fast: Sequence[int], window_us: int) -> list[int]:
    """Response times of the answered tuples, for a processor that takes them one after the other in order of time.

    A tuple is answered when it is processed and the other stream has a tuple that is not earlier. Sync-Filter starts
    only then; Filter-Order emits when the execution that runs at that time ends.
    """
    tuples = sorted([(at, 0) for at in slow] + [(at, 1) for at in fast])
    busy: list[tuple[int, int]] = []
    pairs = []
    clock = 0
    for at, side in tuples:
        other = (fast, slow)[side]
        covered = min((arrival for arrival in other if arrival >= at), default=None)
        if covered is None and way == "sync":
            continue
        start = max(clock, at, covered or 0) if way == "sync" else max(clock, at)
        clock = start + cost_us * sum(at - window_us <= arrival < at for arrival in other)
        busy.append((start, clock))
        if covered is not None:
            pairs.append((at, clock, covered))
    if way == "sync":
        return [done - at for at, done, _ in pairs]
    ends = [max([covered, *(end for start, end in busy if start < covered < end)]) for _, _, covered in pairs]
    return [max(done, end) - at for (at, done, _), end in zip(pairs, ends, strict=True)]


@pytest.mark.parametrize("cost_us", [0, 1_000, 9_000, 30_000])
@pytest.mark.parametrize("way", ["sync", "filter"])
def test_response_times_match_one_tuple_at_a_time(way: str, cost_us: int) -> None:
    """At 30 ms the processor is overloaded."""
    slow, fast = poisson(1, 25, seed=5), poisson(8, 25, seed=6)
    measured = nile.respond_to(way, cost_us, slow, fast, 4)
    expected = one_by_one(way, cost_us, slow, fast, 4_000_000)
    assert measured.answered == len(expected)
    assert measured.response_s * 1e6 == pytest.approx(sum(expected) / len(expected))


def test_evenly_spaced_tuples_agree_with_equations_3_and_5() -> None:
    """Ten fast tuples follow each slow one, and a full window has four slow tuples. Only fast tuples are compared."""
    slow = [second * 1_000_000 for second in range(40)]
    fast = [at + tenth * 100_000 + 1 for at in slow for tenth in range(10)]
    cost_us = 2_000
    predicted = nile.predict(cost_us, 4, 1, 10)
    for way, mean in (("sync", predicted.sync_s), ("filter", predicted.filter_s)):
        responses = one_by_one(way, cost_us, slow, fast, 4_000_000)
        settled = [response for at, response in enumerate(responses[11 * 10 : 11 * 30]) if at % 11]
        measured = nile.respond_to(way, cost_us, slow, fast, 4)
        assert measured.response_s * 1e6 == pytest.approx(sum(responses) / len(responses))
        assert sum(settled) / len(settled) == pytest.approx(mean * 1e6, rel=1e-4)


def test_adaptive_changes_its_way_by_the_price() -> None:
    cheap = nile.respond("adaptive", 100, 2, 10, 4, 30)
    assert (cheap.switches, cheap.in_filter, cheap.first) == (0, 0, None)
    assert cheap.response_s == nile.respond("sync", 100, 2, 10, 4, 30).response_s
    dear = nile.respond("adaptive", 5_500, 2, 10, 4, 30)
    assert dear.switches
    assert 0 < dear.in_filter < 1
    assert dear.first is not None
    assert dear.first["value"] >= nile.ALPHA


def test_nile_figures_5_and_6() -> None:
    """The equations count the comparisons of the fast stream's tuples alone."""
    for result in (made(nile.example_1), made(nile.example_2)):
        claims = verdicts(result)
        assert len(claims) == 5
        missed = [claim for claim, holds in claims.items() if not holds]
        assert missed == ["runs with evenly spaced arrivals agree with equations 3 and 5 (priced: all tuples)"]


@pytest.mark.parametrize("priced", nile.PRICED.values())
def test_nile_figures_7_to_10_at_a_small_size(priced: str) -> None:
    costs, rates = (10, 500, 750), (0.1, 1.0)
    by_cost = {**verdicts(made(nile.response_by_cost, 80, costs)), **verdicts(made(nile.relative_by_cost, 80, costs))}
    by_rate = {**verdicts(made(nile.response_by_rate, 80, rates)), **verdicts(made(nile.relative_by_rate, 80, rates))}
    for claims, claim in (
        (by_cost, "Sync-Filter has the worst response time at every c"),
        (by_cost, "Adaptive is Sync-Filter at the first measurements, where c |w| l1 l2 < alpha"),
        (by_cost, "the difference is small at small c and grows with it"),
        (by_rate, "it falls as the rate rises"),
        (by_rate, "Sync-Filter is above Filter-Order at every rate"),
        (by_rate, "and grows with the rate of the slow stream"),
    ):
        assert claims[f"{claim} (priced: {priced})"]


def test_nile_section_5_2_at_a_small_size() -> None:
    holds = verdicts(held.hold_buffer(60, (0.1, 10)))
    assert len(holds) == 3
    assert all(holds.values()), holds


def test_the_tuples_of_a_join_wait_in_sync_filter_alone() -> None:
    """The slow stream has no tuple: all others wait for order, or have no partner."""
    waiting = {way: held.watch(way, (1e-6, 1.0), 1, 50, 1).waiting for way in ("sync", "filter")}
    assert waiting == {"sync": len(poisson(1.0, 50, seed=[1, 1])), "filter": 0}


# -- OOP ---------------------------------------------------------------------------------------------------------------


def test_oop_figure_1_at_a_small_size() -> None:
    """All allocations except those at the start of the process: at this size that is the engine."""
    holds = verdicts(oop.skew(2_000, 100, {1: (0, 1, 4)}))
    assert len(holds) == 6
    del holds["the same holds for the memory that the process allocates"]
    assert all(holds.values()), holds


def test_oop_figure_9_at_a_small_size() -> None:
    """Rates depend on the machine: the test only checks that there are any."""
    result = oop.throughput(20_000, (100, 1_000), 1, 5_000, 5_000)
    assert len(result.claims) == 13
    load = Load(60_000, 100)
    assert 0 < (oop.busy_share(load, oop.counting("IOP", 20_000), 1_000.0) or 1) < 1
    assert oop.busy_share(Load(600_000, 100), oop.counting("IOP", 20_000), 1e12) is None


def test_oop_figure_13_at_a_small_size() -> None:
    holds = verdicts(oop.late(2_000, (0, 5, 60), 2))
    assert len(holds) == 4
    assert all(holds.values()), holds


def test_oop_figure_10_at_a_small_size() -> None:
    holds = verdicts(oop_joins.structures(300, (0, 3), 1))
    assert len(holds) == 4
    assert holds["both emit the same rows"]


def test_oop_figure_11_at_a_small_size() -> None:
    """Times depend on the machine: the test only checks that there are any."""
    holds = verdicts(oop_joins.bands(300, (1, 3), 2, 32, (6,)))
    assert len(holds) == 9
    assert holds["both emit the same rows"]
    assert holds["OOP outperforms IOP significantly in retained tuples"]
    assert holds["IOP's additional memory grows with the band"]


def test_oop_figure_12_at_a_small_size() -> None:
    holds = verdicts(oop_joins.late_answers(1_000, (0, 5, 10)))
    assert len(holds) == 5
    assert all(holds.values()), holds


def test_rows_are_equal_whatever_their_order() -> None:
    def rows(*batches: Sequence[tuple[int, int]]) -> oop.Rows:
        collected = oop.Rows()
        for batch in batches:
            columns = [np.array(column, np.int64) for column in zip(*batch, strict=True)]
            collected.add(Batch(Schema.of(a="bigint", b="bigint"), columns[0], columns))
        return collected

    assert rows([(1, 2), (3, 4)], [(1, 2)]) == rows([(1, 2)], [(1, 2), (3, 4)])
    assert rows([(1, 2), (3, 4)]) != rows([(1, 2), (3, 4), (3, 4)])
    assert rows([(1, 2), (3, 4)]) != rows([(1, 4), (3, 2)])
    assert rows([(1, 2)]) != rows([(2, 1)])


def test_the_cost_of_punctuation_at_a_small_size() -> None:
    """Times depend on the machine: the test only checks that there are any."""
    (claim,) = promises.overhead(200, (1, 50)).claims
    assert claim.measured.endswith("at 50")


def test_an_answer_is_its_question_turned_round() -> None:
    numbers = np.arange(0, 1 << 20, 4_097)
    questions, answered = (oop_joins.conversation(numbers, answers=answers) for answers in (False, True))
    assert [column.tolist() for column in questions] == [answered[at].tolist() for at in (1, 0, 3, 2)]
    assert len(set(zip(*(column.tolist() for column in questions), strict=True))) == len(numbers)


def test_packets_are_evenly_spaced_and_each_arrives_once() -> None:
    ticks = [oop.between(30, at, at + 70_000).tolist() for at in range(-140_000, 1_050_000, 70_000)]
    assert [at for tick in ticks for at in tick][:31] == [number * 1_000_000 // 30 for number in range(31)]
    assert ticks[0] == ticks[1] == []


# -- UPS ---------------------------------------------------------------------------------------------------------------


def test_the_staleness_of_a_queue_agrees_with_its_deliveries() -> None:
    """Two measurements agree: the queue's own, and the area under the deliveries that the driver saw."""
    for scheduler in SCHEDULERS:
        keys = ups.uniform(300, 4)
        queue = UpdateQueue(ups.SCHEMA, (0,), scheduler)
        outcome = ups.serve(queue, keys, 3 * ups.TICK)
        own = queue.staleness(300 * ups.TICK)
        keys_for = sum(300 - keys.index(key) for key in range(4)) * ups.TICK  # how long each has been known
        assert own.queue_mean_us * keys_for == pytest.approx(outcome.queue * 4 * 300 * ups.TICK**2)
        assert own.application_mean_us * keys_for == pytest.approx(outcome.application * 4 * 300 * ups.TICK**2)


def test_ups_figures_5_and_7_at_a_small_size() -> None:
    claims = {**verdicts(ups.staleness(2_000, (1, 2, 6))), **verdicts(ups.append_or_update(2_000, (1, 2, 6)))}
    assert len(claims) == 8
    assert all(claims.values()), claims


def test_ups_section_8_at_a_small_size() -> None:
    less, _, nearest, together = verdicts(upcoming.access(5_000, (5,))).values()
    assert less
    assert nearest
    assert together
    assert all(verdicts(upcoming.turning(10_000)).values())


def test_the_staleness_that_readers_see() -> None:
    """A result per three ticks; a reader of the only key looks at ticks 2 and 5."""
    seen = upcoming.play(UpdateQueue(ups.SCHEMA, (0,), "inplace"), [0] * 6, lambda tick, served: 3, {0: (3, 2)})
    # The update of tick 0 is shown at 3, that of tick 3 at 6. So tick 2 lacks the updates from 0 on, tick 5 from 1 on.
    assert (seen.reads, seen.mean) == (2, (2 + 4) / 2)


def test_ups_figure_9_at_a_small_size() -> None:
    gains = {slow: ups.gain(6_000, 5, 50, slow) for slow in (0, 4, 8)}
    assert gains[0] == pytest.approx(1, abs=0.03)
    assert gains[8] > gains[4] > 1


def test_ups_figures_13_and_14_at_a_small_size() -> None:
    claims = verdicts(ups.windows(400, (2, 5, 8)))
    assert len(claims) == 8
    assert [claim for claim, holds in claims.items() if not holds] == [
        "LAZY: a key's buffer has at most the size and the slide, less one (section 7.2)"
    ]
    *_, in_turn = verdicts(ups.patterns(600, (2, 5))).values()
    assert in_turn


def test_staleness_as_a_subscriber_sees_it() -> None:
    """Compares with a check of each update at each time: was a newer one of its key shown?"""
    keys, rate = 3, 10.0
    shown = [(0.35, np.array([0, 2])), (0.9, np.array([7])), (1.0, np.array([3, 5]))]
    times = [0.0, 0.3, 0.35, 0.5, 0.9, 0.95, 1.0, 2.0]
    means, worst = live.shown_late(shown, keys, rate, times)
    for now, mean, most in zip(times, means, worst, strict=True):
        ages = []
        for key in range(keys):
            newest = max((n for at, numbers in shown if at <= now for n in numbers if n % keys == key), default=-1)
            pending = [n / rate for n in range(key, 30, keys) if n > newest and n / rate <= now]
            ages.append(now - min(pending) if pending else 0.0)
        assert mean == pytest.approx(sum(ages) / keys)
        assert most == pytest.approx(max(ages))


def test_the_live_figure_at_a_small_size() -> None:
    """Staleness depends on the machine: the test only checks that nothing is lost."""
    *others, nothing_lost = live.live(keys=100, cost_us=200, seconds=0.6).claims
    assert len(others) == 2
    assert nothing_lost.holds, nothing_lost


def test_ups_figures_16_and_17_at_a_small_size() -> None:
    rates = (2_000, 10_000)
    claims = {**verdicts(ups.skews(4_000, (0.0, 0.9), rates)), **verdicts(ups.memory_by_load(4_000, (0.0,), rates))}
    assert len(claims) == 5  # both figures have three of them
    del claims["on-demand paging uses nearly all that it allocates"]  # not of few keys, at small loads
    assert all(claims.values()), claims


def test_every_result_can_be_drawn() -> None:
    for result in (
        made(slides.slides, 5, (1, 5)),
        oop.skew(500, 20, {1: (0, 1)}),
        oop.throughput(20_000, (50, 100), 1, 5_000, 5_000),
        oop.late(500, (0, 5), 1),
        oop_joins.structures(300, (0, 3), 1),
        oop_joins.bands(300, (1, 3), 2, 32, (6,)),
        oop_joins.late_answers(1_000, (0, 5, 10)),
        held.hold_buffer(30, (0.1, 10)),
        made(nile.example_1),
        made(nile.example_2),
        made(nile.response_by_cost, 80, (10, 500, 750)),
        made(nile.relative_by_cost, 80, (10, 500, 750)),
        made(nile.response_by_rate, 80, (0.1, 1.0)),
        made(nile.relative_by_rate, 80, (0.1, 1.0)),
        made(ets.latency, 60, HEARTBEATS),
        made(ets.queues, 60, HEARTBEATS),
        made(eqg.strategies, 4),
        made(eqg.bursts, 1, (1, 10, 30), 4),
        eqg.arcs(50, (1_000.0,), (1, 2), at_least=0.5),
    ):
        figure = Figure()
        result.draw(figure)
        assert figure.axes
        assert all(axes.lines or axes.patches for axes in figure.axes)


@pytest.mark.parametrize("idea", IDEAS, ids=[idea.paper.short for idea in IDEAS])
def test_every_idea_can_be_drawn(idea: Idea) -> None:
    figure = Figure()
    idea.draw(figure)
    (axes,) = figure.axes
    assert axes.get_legend() is not None
    assert len(axes.lines) + len(axes.collections) >= 2


# -- claims and the page -----------------------------------------------------------------------------------------------


PAPER = Paper("abc", "On Things", "A. B. and C.")


def experiment(figure: str, measured: str, *, holds: bool = True) -> Experiment:
    result = ExperimentResult([Claim("grows | rises", "2", measured, holds)], lambda drawn: None)
    return Experiment(PAPER, figure, f"title {figure}", "a setting", "a thing", "", lambda _: result)


def test_a_claim_holds_if_it_holds_for_every_seed() -> None:
    def run(seed: int) -> ExperimentResult:
        claims = [
            Claim("always", "yes", f"value {seed}", holds=True),
            Claim("mostly", "yes", f"value {seed}", holds=seed != 7),
            Claim("first not", "yes", f"value {seed}", holds=seed != 5),
        ]
        return ExperimentResult(claims, lambda drawn: None)

    seeded = Experiment(PAPER, "1", "", "", "", "", run, seeds=(5, 6, 7))
    rows = rows_of(seeded, {seed: run(seed) for seed in seeded.seeds})
    assert [(row.claim, row.measured, row.holds, row.seeds) for row in rows] == [
        ("always", "value 5", "yes", "3 of 3"),
        ("mostly", "seed 7: value 7", "no", "2 of 3"),
        ("first not", "value 5", "no", "2 of 3"),
    ]


def test_the_spread_of_lines_and_bars_is_drawn() -> None:
    def drawing(height: float) -> Callable[[Figure], None]:
        def draw(figure: Figure) -> None:
            lines, bars = figure.subplots(1, 2)
            lines.plot([1, 2], [1.0, height])
            lines.axhline(height)
            lines.plot([1, height], [2.0, 2.0])  # its points differ by seed
            lines.plot([1, 2], [3.0, 3.0])  # equal for every seed
            bars.bar(["a", "b"], [1.0, height])
            bars.set_ylim(0, 2)

        return draw

    figure = Figure()
    draw_with_spread(figure, [drawing(2.0), drawing(5.0), drawing(1.5)])
    lines, bars = figure.axes
    band, level = (np.asarray(collection.get_paths()[0].vertices).tolist() for collection in lines.collections)
    assert {(x, y) for x, y in band} == {(1, 1), (2, 1.5), (2, 5)}
    assert {y for _, y in level} == {1.5, 5}
    assert len(lines.lines) == 4 + 2  # the other seeds of the third
    (whiskers,) = (container for container in bars.containers if isinstance(container, ErrorbarContainer))
    (low_a, high_a), (low_b, high_b) = ([y for _, y in segment] for segment in whiskers[2][0].get_segments())
    assert (low_a, high_a, low_b, high_b) == (1, 1, 1.5, 5)
    assert bars.get_ylim()[1] >= 5


def test_a_part_of_the_figures_keeps_the_others_rows(tmp_path: Path) -> None:
    both = [experiment("1", "one"), experiment("2", "two", holds=False)]
    assert main([], tmp_path, both, ()) == 0
    assert main(["abc-1"], tmp_path, [experiment("1", "another"), both[1]], ()) == 0
    rows = read_rows(tmp_path / "claims.csv")
    assert [(row.figure, row.measured, row.holds) for row in rows] == [("1", "another", "yes"), ("2", "two", "no")]
    text = (tmp_path / "README.md").read_text()
    assert f"Of {2 + len(NOT_TRIED)} claims 1 hold, 1 do not hold, and {len(NOT_TRIED)} were not tried." in text
    assert "- ABC, figure 2: grows | rises" in text
    assert "grows \\| rises | 2 | another | yes | 5 of 5 |" in text
    assert "grows \\| rises | 2 | two | **no** | 0 of 5 |" in text
    assert text.count("## ABC: On Things") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "abc-1.png", "abc-2.png", "claims.csv"]


def test_an_unknown_figure_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["ets", "nothing"], tmp_path) == 2
    assert "no name starts with nothing; names: ets-7, ets-8, eqg-14a" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_committed_page_is_made_of_the_committed_claims() -> None:
    rows = read_rows(FIGURES / "claims.csv")
    assert {f"{row.paper}-{row.figure}" for row in rows} == {drawn.name for drawn in EXPERIMENTS}
    assert {row.holds for row in rows} <= {"yes", "no"}
    assert (FIGURES / "README.md").read_text() == page(
        EXPERIMENTS, rows, [(idea.paper, idea.text) for idea in IDEAS], NOT_TRIED
    )
    assert all((FIGURES / f"idea-{idea.paper.short}.png").is_file() for idea in IDEAS)
    assert all((FIGURES / f"{drawn.name}.png").is_file() for drawn in EXPERIMENTS)


def test_a_false_claim_has_a_remark() -> None:
    missed = {row.name for row in read_rows(FIGURES / "claims.csv") if row.holds == "no"}
    assert all(experiment.remark for experiment in EXPERIMENTS if experiment.name in missed)
