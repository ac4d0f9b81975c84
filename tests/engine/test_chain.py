"""Chain: envelopes of progress charts, what is decided from which numbers, and that it is worth something."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.events import (
    ChainDecided,
    Measured,
    RemoveOperator,
    RenameQuery,
    ReplaceOperator,
    ReplaceQuery,
    ResumeQuery,
    SetBreak,
    SetStrategy,
)
from millrace.engine.plan import QueryPlan
from millrace.engine.scheduler.chain import BAND, PathSegment, envelope
from millrace.engine.scheduler.table import Link
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.frame.operator import Operator
from millrace.protocol.admin.operators import ChainedView
from tests.engine.graphs import Bench, arrive, compare, identity, path, plan, rows, select
from tests.engine.test_failures import Fails
from tests.engine.test_replacing import restored

# (selectivity, cost) of the operators of a path.
CHARTS = st.lists(st.tuples(st.floats(0, 3), st.floats(0.01, 100)), min_size=1, max_size=6)


def segments(chart: list[tuple[float, float]], before: dict[Operator, Link] | None = None) -> list[PathSegment]:
    made = Bench("s")
    made.query(path("p", len(chart)))
    operators = made.engine.queries_by_name["p"].operators
    alone = [PathSegment((one,), left, cost) for one, (left, cost) in zip(operators, chart, strict=True)]
    return envelope(alone, True, before or {})


def steepest(chart: list[tuple[float, float]]) -> list[int]:
    """The papers' envelope by looking at all points: from each to the steepest descent, the last of equals."""
    ends, start = [], 0
    while start < len(chart):
        left, work, best, end = 1.0, 0.0, -float("inf"), start
        for at in range(start, len(chart)):
            work += left * chart[at][1]
            left = 0.0 if at == len(chart) - 1 else left * chart[at][0]
            if (1 - left) / work >= best:
                best, end = (1 - left) / work, at
        ends.append(end + 1)
        start = end + 1
    return ends


@given(CHARTS)
def test_segments_are_ever_less_steep_and_cover_the_path(chart: list[tuple[float, float]]) -> None:
    found = segments(chart)
    assert all(one.slope > other.slope * BAND for one, other in pairwise(found) if other.slope > 0)
    assert sum(len(one.operators) for one in found) == len(chart)
    assert found[-1].left == 0


def test_the_envelope_is_that_of_looking_at_all_points() -> None:
    """With clear numbers the band plays no part."""
    for chart in (
        [(0.2, 1.0), (1.0, 10.0)],
        [(1.0, 1.0), (0.1, 1.0), (1.0, 30.0)],
        [(0.9, 10.0), (0.1, 1.0), (0.5, 20.0), (0.1, 100.0)],
        [(2.0, 1.0), (0.01, 1.0), (1.0, 50.0)],
        [(0.5, 1.0), (0.5, 4.0), (0.5, 16.0), (0.5, 64.0)],
    ):
        ends, done = [], 0
        for segment in segments(chart):
            done += len(segment.operators)
            ends.append(done)
        assert ends == steepest(chart), chart


def chained(bench: Bench) -> Sequence[ChainedView]:
    found = bench.engine.components()[0].chain
    return () if found is None else found.operators


def selective() -> QueryPlan:
    """An expensive operator, then one that leaves a tuple in ten, then more expensive ones."""
    digit = compare("<", 4)
    return plan(
        "q",
        ("A", identity(), ["s.source"]),
        ("B", select(digit), ["A"]),
        ("C", identity(), ["B"]),
        ("D", identity(), ["C"]),
    )


COSTS = {"q.A": 20.0, "q.B": 1.0, "q.C": 60.0, "q.D": 60.0}


def measured(bench: Bench, costs: dict[str, float] = COSTS, tuples: int = 100) -> list[Any]:
    """Work on tuples of which four in forty pass, and say what that has cost."""
    bench.run(arrive("s", *(number % 40 for number in range(tuples))))
    effects = bench.run(*(Measured(name, tuples, cost * tuples) for name, cost in costs.items()))
    return [order for order in effects.orders if isinstance(order, ChainDecided)]


def test_segments_follow_what_is_measured_and_show_their_numbers() -> None:
    bench = Bench("s")
    bench.query(selective(), "chain(1)")
    assert not chained(bench)
    (decided,) = measured(bench, tuples=400)
    assert decided.decisions == 1
    shown = {one.operator: one for one in chained(bench)}
    assert [(name, one.segment, one.break_) for name, one in shown.items()] == [
        ("q.A", "q.A", False),
        ("q.B", "q.A", True),
        ("q.C", "q.C", False),
        ("q.D", "q.C", False),
    ]
    assert shown["q.B"].selectivity == pytest.approx(0.1)
    assert shown["q.A"].cost_us == 20
    assert shown["q.A"].slope == shown["q.B"].slope == pytest.approx((1 - 0.1) / 21)
    assert shown["q.C"].slope == 1 / (60 + 60)
    (row,) = [row for row in bench.engine.table("s").rows if row.state == "q.B"]
    assert row.transition == "CHAIN(1)-Sink"
    assert row.chain is not None
    assert row.chain.break_
    assert bench.engine.components()[0].breaks == {"q.B": "chain"}


def test_it_follows_a_drift_and_does_not_flap() -> None:
    bench = Bench("s")
    bench.query(selective(), "chain")
    assert len(measured(bench, tuples=400)) == 1
    for wavering in (0.9, 1.1, 0.95, 1.05, 1.0) * 3:
        assert measured(bench, {name: cost * wavering for name, cost in COSTS.items()}, 400) == []
    later = [len(measured(bench, {**COSTS, "q.C": 1.0, "q.D": 0.1}, 400)) for _ in range(12)]
    assert 1 <= sum(later) <= 8
    assert later[-3:] == [0, 0, 0]
    assert {one.segment for one in chained(bench)} == {"q.A"}
    assert bench.engine.components()[0].breaks == {}


def test_the_steepest_segment_goes_first() -> None:
    bench = Bench("s")
    bench.query(selective(), "chain(1)")
    measured(bench, tuples=400)
    (component,) = bench.engine.graph.components
    component.ready.preferred = 0  # every 65th cycle starts where work has waited longest
    turns = bench.visits(arrive("s", 1, 2, 3))
    assert turns == "A B A B A B C D C D C D"


def test_what_was_decided_is_saved_and_goes_with_its_paths() -> None:
    bench = Bench("s")
    bench.query(selective(), "chain(2)")
    measured(bench, tuples=400)
    restored = Engine.restore(bench.engine.save(), trace=True)
    assert restored.save() == bench.engine.save()
    assert restored.components() == bench.engine.components()
    assert bench.engine.step(9_999, [arrive("s", 1, 2)]) == restored.step(9_999, [arrive("s", 1, 2)])
    before = chained(bench)
    bench.do(SetStrategy("s", "dfs"))
    assert bench.engine.components()[0].chain is None
    assert bench.engine.components()[0].breaks == {}
    bench.do(SetStrategy("s", "chain"))
    assert chained(bench) == before
    bench.do(ReplaceQuery(path("q", 2)))
    assert chained(bench) == []


def test_branches_of_a_fork_go_by_their_own_slopes() -> None:
    bench = Bench("s")
    bench.query(plan("p", ("A", identity(), ["s.source"])))
    bench.query(plan("q", ("B", identity(), ["s.source"])))
    bench.do(SetStrategy("s", "chain(1)"))
    bench.run(arrive("s", *range(50)))
    bench.run(Measured("p.A", 50, 6_000.0), Measured("q.B", 50, 600.0))
    assert bench.visits(arrive("s", 1, 2, 3)) == "B B B A A A"
    assert rows(bench.run(arrive("s", 4)), "p") == [(4,)]


def decided(bench: Bench) -> tuple[object, ...]:
    """The decisions about operators, and what is measured of them, as they are shown."""
    (component,) = bench.engine.components()
    costs = [(one.name, one.busy_us) for one in bench.engine.operators()]
    return chained(bench), component.breaks, component.strategies, costs


def with_decisions() -> Fails:
    bench = Fails("s")
    bench.query(selective(), "chain(1)")
    measured(bench, tuples=400)
    bench.do(SetStrategy("s", "rr(2)", "q.D"))
    for name in ("q.A", "q.B"):
        bench.do(SetBreak(name, on=True))
    return bench


@pytest.mark.parametrize("fails", ["q.A", "q.B", None])
def test_an_operator_that_takes_anothers_place_has_its_decisions_and_costs(fails: str | None) -> None:
    bench = with_decisions()
    before = decided(bench)
    if fails is None:
        bench.do(ReplaceOperator("q.B", SelectSpec(compare("<", 3)), "v < 3"))
    else:
        bench.breaks(fails)
        bench.run(arrive("s", 1))
        assert bench.state("q")[0] == "failed"
        bench.do(ResumeQuery("q"))
    assert decided(bench) == before


def test_a_renamed_query_keeps_its_segments_under_its_new_name() -> None:
    bench = with_decisions()
    before, saved = decided(bench), bench.engine.save()
    bench.do(RenameQuery("q", "z"))
    assert repr(decided(bench)) == repr(before).replace("q.", "z.")
    shown = decided(bench)
    restored(bench)
    assert decided(bench) == shown
    bench.do(RenameQuery("z", "q"))
    assert bench.engine.save() == saved


def test_a_segment_whose_first_operator_is_removed_can_be_saved() -> None:
    bench = Bench("s")
    bench.query(
        plan("q", ("A", select(compare("<", 50)), ["s.source"]), ("B", select(compare("<", 4)), ["A"])), "chain"
    )
    measured(bench, {"q.A": 20.0, "q.B": 1.0}, 400)
    assert {one.segment for one in chained(bench)} == {"q.A"}
    bench.do(RemoveOperator("q.A"))
    assert {one.segment for one in chained(bench)} == {"q.B"}
    shown = decided(bench)
    restored(bench)
    assert decided(bench) == shown
