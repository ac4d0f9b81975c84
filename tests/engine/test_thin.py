"""Thin punctuation: an arc carries what its readers declare, and nothing else changes by that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AlterStream,
    DropQuery,
    FeedHeld,
    Heard,
    PauseQuery,
    ResumeQuery,
    WakeAt,
    WatchProgress,
)
from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.operators.frame.punctuation_grain import EVERY, THE_END, PunctuationGrain, union_of, windows_of
from millrace.operators.frame.spec import Spec
from millrace.operators.frame.windows import RowWindow, SessionWindow, TimeWindow
from millrace.protocol import Schema, Type
from millrace.values.eventtime import MAX_TIME, MIN_TIME
from millrace.values.expression import Column
from tests.engine.graphs import (
    TV,
    Bench,
    arrive,
    external,
    give_tv,
    identity,
    plan,
    punctuate,
    rows,
    select,
    sort,
    union,
)

KEY = (("v", Column(Type.BIGINT, True, 1, "v")),)
COUNT = (("n", AggregateCall(Type.BIGINT, False, "count()")),)
COUNTED = Schema.of(n="bigint")


def counting(window: Any, **options: Any) -> Spec:
    return AggregateSpec(window, (), COUNT, **options)


def counted(name: str, *windows: Any, stream: str = "s") -> QueryPlan:
    """A count per window, downstream of a select."""
    return plan(name, ("keep", select(), [f"{stream}.source"]), ("agg", counting(*windows), ["keep"]), schema=COUNTED)


def tumbling(size: int, offset: int = 0) -> TimeWindow:
    return TimeWindow(size, size, offset)


def told(bench: Bench, stream: str = "s") -> dict[str, int]:
    (found,) = (s.punctuations_by_cause for s in bench.engine.streams() if s.name == stream)
    return {cause: count for cause, count in found.items() if count}


def grain(bench: Bench, operator: str) -> PunctuationGrain | None:
    output = bench.engine.graph.operator(operator).output
    return output.grain if output.punctuates else None


# -- grains ------------------------------------------------------------------------------------------------------------

GRAINS = st.lists(st.tuples(st.integers(1, 30), st.integers(-40, 40)), min_size=1, max_size=4)


@given(GRAINS, st.integers(-200, 200))
def test_boundaries_against_trying_every_time(pairs: list[tuple[int, int]], value: int) -> None:
    found = union_of(PunctuationGrain(False, (pair,)) for pair in pairs)

    def boundary(time: int) -> bool:
        return any((time - offset) % slide == 0 for slide, offset in pairs)

    assert found.above(value) == next(time for time in range(value + 1, value + 40) if boundary(time))
    assert found.rounded(value) == next(time for time in range(value, value - 40, -1) if boundary(time))
    assert len(found.boundaries) <= len(set(pairs))


def test_what_others_imply_is_left_out() -> None:
    assert union_of([PunctuationGrain(False, ((10, 5),)), PunctuationGrain(False, ((5, 0), (20, 15)))]).boundaries == (
        (5, 0),
    )
    assert union_of([THE_END, PunctuationGrain(False, (windows_of(60, 10, 3),))]).boundaries == ((10, 3),)
    assert union_of([THE_END, EVERY]) is EVERY


def test_the_end_is_of_use_to_everybody() -> None:
    for one in (THE_END, EVERY, PunctuationGrain(False, ((7, 0),))):
        assert one.above(MAX_TIME - 1) == MAX_TIME == one.rounded(MAX_TIME)
    assert THE_END.above(MIN_TIME) == MAX_TIME


# -- what an arc carries -----------------------------------------------------------------------------------------------


def test_an_aggregate_is_told_when_windows_end_and_never_in_between() -> None:
    bench = Bench(external("s"))
    bench.query(counted("q", tumbling(100)))
    given_rows = [row for at in range(1, 1001) for row in rows(bench.run(give_tv("s", at)), "q")]
    assert given_rows == [(99,), *[(100,)] * 9]
    # The first promise says that all windows before are over; from there on it is one per window.
    assert told(bench) == {"tuple": 11}


def test_without_readers_there_is_no_punctuation() -> None:
    bench = Bench(external("s"))
    bench.query(plan("p", ("m", identity(TV), ["s.source"]), schema=TV))
    bench.run(give_tv("s", 1, 2), punctuate("s", 50))
    assert told(bench) == {}


def test_grains_are_derived_again_when_queries_come_and_go() -> None:
    bench = Bench(external("s"))
    bench.query(counted("a", tumbling(100)))
    assert grain(bench, "s.source") == grain(bench, "a.keep") == PunctuationGrain(False, ((100, 0),))
    bench.query(counted("b", TimeWindow(60, 30, 7)))
    assert grain(bench, "s.source") == PunctuationGrain(False, ((30, 7), (100, 0)))
    assert grain(bench, "a.keep") == PunctuationGrain(False, ((100, 0),))
    bench.query(plan("c", ("o", sort(), ["s.source"]), schema=TV))
    assert grain(bench, "s.source") == EVERY
    for name in ("c", "b"):
        bench.do(DropQuery(name))
    assert grain(bench, "s.source") == PunctuationGrain(False, ((100, 0),))
    bench.do(PauseQuery("a", "test"))
    assert grain(bench, "s.source") is None
    bench.do(ResumeQuery("a"))
    bench.do(WatchProgress("a"))
    assert grain(bench, "a.agg") == EVERY
    assert grain(bench, "s.source") == PunctuationGrain(False, ((100, 0),))


def test_a_finer_reader_is_told_what_was_of_no_use_before() -> None:
    bench = Bench(external("s", propagation="punctuation"))
    bench.query(plan("a", ("keep", select(), ["s.source"]), ("agg", counting(tumbling(100)), ["keep"]), schema=TV))
    bench.run(give_tv("s", 5))
    bench.run(punctuate("s", 57))
    assert bench.engine.graph.operator("a.keep").output.promise == 5
    bench.query(plan("b", ("agg", counting(tumbling(10)), ["a.keep"]), schema=COUNTED))
    bench.run()
    assert bench.engine.graph.operator("a.keep").output.promise == 57


def test_windows_of_rows_want_the_end_alone_unless_their_readers_want_more() -> None:
    bench = Bench(external("s"))
    bench.query(plan("r", ("agg", counting(RowWindow(2, 2)), ["s.source"]), schema=COUNTED))
    assert grain(bench, "s.source") == THE_END
    bench.query(plan("w", ("agg", counting(tumbling(50)), ["r.agg"]), schema=COUNTED))
    assert grain(bench, "s.source") == PunctuationGrain(False, ((50, 0),))


@pytest.mark.parametrize("spec", [counting(SessionWindow(10)), sort()])
def test_whoever_can_act_at_any_time_is_told_of_every_time(spec: Spec) -> None:
    bench = Bench(external("s"))
    bench.query(plan("q", ("o", spec, ["s.source"]), schema=COUNTED))
    assert grain(bench, "s.source") == EVERY


def test_a_flush_that_is_put_off_is_due_at_a_boundary_of_its_own() -> None:
    bench = Bench(external("s"))
    spec = counting(tumbling(100), flush="slow", max_delay_us=130)
    bench.query(plan("q", ("agg", spec, ["s.source"]), schema=COUNTED))
    assert grain(bench, "s.source") == PunctuationGrain(False, ((100, 0), (100, 30)))


@pytest.mark.parametrize("propagation", ["arcs", "punctuation"])
def test_on_demand_nothing_is_made_that_closes_no_window(propagation: Any) -> None:
    bench = Bench(StreamDefinition("s", Schema.of(v="bigint"), propagation=propagation))
    bench.query(counted("q", tumbling(100)))
    effects = bench.run(arrive("s", 1), at=30)
    assert wake(effects) == 100
    assert rows(bench.run(at=60), "q") == []
    assert rows(bench.run(at=100), "q") == [(1,)]
    assert told(bench) == {"ets": 1}


def wake(effects: Any) -> int | None:
    return next((order.at_us for order in effects.orders if isinstance(order, WakeAt)), None)


# -- lulls -------------------------------------------------------------------------------------------------------------


def test_a_lull_closes_windows_though_nobody_may_be_asked() -> None:
    bench = Bench(external("s", ets="none", lull_us=1_000))
    bench.query(counted("q", tumbling(100)))
    assert wake(bench.run(give_tv("s", 5), at=50)) == 1_100
    assert rows(bench.run(at=1_099), "q") == []
    assert rows(bench.run(at=1_100), "q") == [(1,)]
    assert told(bench) == {"tuple": 1, "lull": 1}
    assert wake(bench.run(at=5_000)) is None, "nobody waits"
    effects = bench.run(give_tv("s", 99, 100), at=5_001)
    assert bench.engine.streams()[0].late == 1
    assert rows(effects, "q") == [(1,)], "100 was on time, and its window is over by the clock"


def test_data_that_keeps_up_makes_no_punctuation_of_the_lull() -> None:
    bench = Bench(external("s", lull_us=1_000))
    bench.query(counted("q", tumbling(100)))
    for at in range(10_000, 11_000, 10):
        bench.run(give_tv("s", at - 500), at=at)
    assert "lull" not in told(bench)


def test_a_lull_frees_an_ordered_union_and_may_be_changed() -> None:
    bench = Bench(external("a"), external("b", ets="none"))
    bench.query(plan("u", ("U", union(ordered=True), ["a.source", "b.source"]), schema=TV, ordered=True))
    effects = bench.run(give_tv("a", 10_000), at=10_000)
    assert wake(effects) is None
    bench.do(AlterStream("b", (("lull_us", 300),)))
    assert wake(bench.run(at=10_001)) == 10_300
    assert rows(bench.run(at=10_300), "u") == [(10_000, 10_000)]
    assert told(bench, "b") == {"lull": 1}
    bench.do(AlterStream("b", (("lull_us", None),)))
    assert wake(bench.run(give_tv("a", 20_000), at=20_000)) is None


def test_what_the_server_has_not_read_is_not_overtaken_by_a_lull() -> None:
    bench = Bench(external("s", ets="none", lull_us=1_000))
    bench.query(counted("q", tumbling(100)))
    bench.run(give_tv("s", 5), at=50)
    bench.run(FeedHeld("s", "main", held=True), at=500)
    assert wake(bench.run(at=1_200)) is None
    assert rows(bench.run(at=5_000), "q") == []
    bench.run(FeedHeld("s", "main", held=False), Heard(600), at=5_001)
    assert told(bench) == {"tuple": 1}
    assert rows(bench.run(at=5_501), "q") == [(1,)]


# -- nothing else changes ----------------------------------------------------------------------------------------------


def both(build: Callable[[Bench], None], *streams: StreamDefinition) -> tuple[Bench, Bench]:
    thin, thick = Bench(*streams), Bench(*streams, thin=False)
    for bench in (thin, thick):
        build(bench)
    return thin, thick


def test_per_thousand_tuples_there_is_hardly_any_left() -> None:
    thin, thick = both(lambda bench: bench.query(counted("q", tumbling(250))), external("s"))
    for at in range(1, 1001):
        assert rows(thin.run(give_tv("s", at)), "q") == rows(thick.run(give_tv("s", at)), "q")
    assert told(thin) == {"tuple": 5}
    assert told(thick) == {"tuple": 1000}
    executions = [{o.name: o.executions for o in bench.engine.operators()} for bench in (thin, thick)]
    assert executions[0]["q.agg"] <= executions[1]["q.agg"]


def test_a_saved_engine_keeps_its_grains_and_the_switch() -> None:
    for thin in (True, False):
        bench = Bench(external("s"), thin=thin)
        bench.query(counted("q", tumbling(100)))
        bench.run(give_tv("s", 5))
        saved = bench.engine.save()
        bench.engine = Engine.restore(saved)
        assert bench.engine.save() == saved
        assert grain(bench, "s.source") == (PunctuationGrain(False, ((100, 0),)) if thin else EVERY)


def test_who_was_away_is_told_whichever_way_promises_go_now() -> None:
    bench = Bench(external("s"))
    bench.query(plan("o", ("o", sort(), ["s.source"]), schema=TV))
    bench.query(counted("q", tumbling(10)))
    bench.run(give_tv("s", 5))
    bench.do(PauseQuery("q", "test"))
    bench.run(punctuate("s", 50))
    bench.do(AlterStream("s", (("propagation", "punctuation"),)))
    bench.do(ResumeQuery("q"))
    assert rows(bench.run(), "q") == [(1,)]
