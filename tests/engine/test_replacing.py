"""A query under a new plan: equal operators continue with their state, the others start again, and its readers stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddStream,
    Deliver,
    PauseQuery,
    ReplaceQuery,
    ResumeQuery,
    SetBreak,
    SetStrategy,
    WatchProgress,
)
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.join.bands import Band
from millrace.operators.join.spec import JoinSpec
from millrace.operators.sequence.spec import SequenceSpec
from millrace.operators.union.spec import UnionSpec
from millrace.protocol.admin.changes import ResumeReply
from tests.engine.graphs import (
    TV,
    Bench,
    arrive,
    compare,
    external,
    give_tv,
    identity,
    path,
    plan,
    punctuate,
    refusal,
    rows,
    select,
    sort,
)
from tests.engine.test_failures import Fails
from tests.engine.test_windows import counted
from tests.simulation.twins import described

COUNT = counted(TimeWindow(10, 10))


def counting(name="q", *after, stream="s", below=()):
    """Counts per 10 us, of some rows, and a downstream operator."""
    made = plan(name, *below, ("A", COUNT, [below[-1][0] if below else f"{stream}.source"]), *after)
    return replace(made, schema=COUNT.schema([]))


def having(count):
    return ("H", select(compare(">", count)), ["A"])


def restored(bench):
    """The bench continues with a restored engine, whose state is equal to the byte."""
    saved = bench.engine.save()
    bench.engine = Engine.restore(saved, trace=True)
    assert bench.engine.save() == saved


def test_what_is_unchanged_keeps_its_state_and_its_counts():
    bench = Bench(external("s"))
    bench.query(counting("q", having(2)))
    bench.run(give_tv("s", 1, 2))
    counts = bench.engine.graph.operators["q.A"].counts
    answer = bench.do(ReplaceQuery(counting("q", having(1))))
    assert (answer.kept, answer.new, answer.gone) == (["q.A"], ["q.H"], ["q.H"])
    assert bench.engine.graph.operators["q.A"].counts is counts
    restored(bench)
    assert rows(bench.run(give_tv("s", 3, 12)), "q") == [(3, 0)], "the window had begun before"


def test_what_is_below_a_change_begins_like_a_new_query():
    bench = Bench(external("s"))
    bench.query(counting("q", below=[("S", select(compare(">", 0)), ["s.source"])]))
    bench.run(give_tv("s", 1, 2))
    answer = bench.do(ReplaceQuery(counting("q", below=[("S", select(compare(">", 1)), ["s.source"])])))
    assert answer.kept == []
    restored(bench)
    effects = bench.run(give_tv("s", 3, 12, 25))
    assert rows(effects, "q") == [(1, 10)], "the window at 0 began before the operator did"


def test_the_rows_are_numbered_on():
    bench = Bench("s")
    bench.query(path("q", 1))
    bench.run(arrive("s", 1, 2))
    bench.do(ReplaceQuery(path("q", 3)))
    (order,) = (order for order in bench.run(arrive("s", 3)).orders if isinstance(order, Deliver))
    assert order.sequence == 2
    assert order.batch.rows() == [(3,)]


@pytest.mark.parametrize("longer", [1, 2])
def test_an_operator_follows_its_new_name_and_takes_what_was_decided_along(longer):
    bench = Bench(external("s"))
    old = plan("q", ("S1", sort(), ["s.source"]), schema=give_tv("s", 1).batch.schema)
    bench.query(old)
    bench.run(give_tv("s", 5))
    bench.do(SetBreak("q.S1", on=True))
    bench.do(SetStrategy("s", "bfs(3)", "q.S1"))
    new = plan("q", ("S2", sort(), ["s.source"]), ("S1", identity(old.schema), ["S2"]), schema=old.schema)
    bench.do(ReplaceQuery(new))
    restored(bench)
    assert bench.engine.components()[0].breaks == {"q.S2": "user"}
    assert bench.engine.components()[0].strategies["q.S2"] == "bfs(3)"
    assert rows(bench.run(give_tv("s", 9)), "q") == [(9, 9)]


@pytest.mark.parametrize("budget", [1, 5])
def test_who_reads_the_query_reads_on_where_it_was(budget):
    bench = Bench("s")
    bench.query(path("q", 2))
    bench.query(plan("r", ("Q1", identity(), ["q.Q2"])))
    bench.do(SetBreak("q.Q2", on=True))
    effects = bench.step(arrive("s", 1, 2, 3), executions=2)
    assert rows(effects, "q") == [(1,), (2,), (3,)]
    bench.do(ReplaceQuery(path("q", 3)))
    restored(bench)
    effects = bench.run(arrive("s", 4), budget=budget)
    assert rows(effects, "q") == [(4,)]
    assert rows(effects, "r") == [(1,), (2,), (3,), (4,)]
    assert bench.engine.gauge.tuples == 0
    assert rows(bench.run(arrive("s", 5)), "r") == [(5,)]


def test_readers_who_are_away_come_back_to_the_new_output():
    bench = Bench("s")
    bench.query(path("q", 2))
    bench.query(plan("r", ("Q1", identity(), ["q.Q2"])))
    bench.do(PauseQuery("r"))
    bench.run(arrive("s", 1))
    bench.do(ReplaceQuery(path("q", 1)))
    bench.run(arrive("s", 2))
    assert bench.do(ResumeQuery("r")).skipped == 2
    assert rows(bench.run(arrive("s", 3)), "r") == [(3,)]


def test_a_promise_to_readers_is_kept_under_the_new_plan():
    bench = Bench(external("a"), external("b"))
    schema = give_tv("a", 1).batch.schema
    bench.query(plan("q", ("M", identity(schema), ["a.source"]), schema=schema))
    bench.query(plan("r", ("S", sort(), ["q.M"]), schema=schema, ordered=True))
    assert rows(bench.run(give_tv("a", 5, 8)), "r") == [(5, 5), (8, 8)]
    bench.do(ReplaceQuery(plan("q", ("M", identity(schema), ["b.source"]), schema=schema)))
    effects = bench.run(give_tv("b", 3, 7, 9))
    restored(bench)
    assert rows(effects, "r") == rows(effects, "q") == [(9, 9)]
    assert bench.engine.graph.operators["q.M"].output.left_out == 2


def test_readers_of_other_columns_are_refused_and_nothing_has_changed():
    bench = Bench("s")
    bench.query(path("q", 2))
    bench.query(plan("r", ("Q1", identity(), ["q.Q2"])))
    bench.run(arrive("s", 1))
    before = bench.engine.save()
    text = refusal(bench, ReplaceQuery(counting()))
    assert text.startswith("query q is read by r, which cannot continue: they read v bigint, and it would emit")
    keyed = replace(path("q", 2), update_key=("v",))
    assert "its update key would be (v) instead of none" in refusal(bench, ReplaceQuery(keyed))
    assert "would read its own rows" in refusal(bench, ReplaceQuery(plan("q", ("Q", identity(), ["r.Q1"]))))
    assert "query p does not exist" in refusal(bench, ReplaceQuery(path("p", 2)))
    assert bench.engine.save() == before


def test_a_query_may_come_to_read_a_younger_one():
    bench = Bench("s")
    bench.query(path("q", 1))
    bench.query(path("r", 1))
    bench.do(AddStream(replace(external("t"), name="t")))
    bench.do(ReplaceQuery(plan("q", ("Q2", identity(), ["r.Q1"]))))
    restored(bench)
    assert list(bench.engine.graph.operators)[:3] == ["s.source", "r.Q1", "r.sink1"]
    assert rows(bench.run(arrive("s", 1)), "q") == [(1,)]


def test_components_merge_and_split_with_the_plan():
    bench = Bench("a", "b")
    bench.query(path("q", 2, "a"))
    assert len(bench.engine.components()) == 2
    bench.do(ReplaceQuery(path("q", 2, "b")))
    restored(bench)
    assert [found.operators for found in bench.engine.components()] == [
        ["a.source"],
        ["b.source", "q.Q1", "q.Q2", "q.sink1"],
    ]
    assert rows(bench.run(arrive("a", 1), arrive("b", 2)), "q") == [(2,)]


def test_a_paused_query_stays_paused_and_a_failed_one_begins_again():
    bench = Fails("s")
    bench.query(path("q", 2))
    bench.do(PauseQuery("q", "for lunch"))
    bench.do(ReplaceQuery(plan("q", ("Q1", identity(), ["s.source"]), ("N", select(), ["s.source"]))))
    assert bench.state("q")[:2] == ("paused", "for lunch")
    restored(bench)
    assert rows(bench.run(arrive("s", 1)), "q") == []
    bench.do(ResumeQuery("q"))
    assert rows(bench.run(arrive("s", 2)), "q") == [(2,)]
    bench.breaks("q.N")
    bench.run(arrive("s", 3))
    assert bench.state("q")[0] == "failed"
    assert bench.do(ReplaceQuery(path("q", 1))).kept == []
    assert rows(bench.run(arrive("s", 4)), "q") == [(4,)]


def test_what_was_inside_can_become_the_output():
    bench = Bench(external("s"))
    bench.query(counting("q", having(1)))
    bench.do(WatchProgress("q"))
    bench.run(give_tv("s", 1, 2))
    assert bench.do(ReplaceQuery(counting("q"))).kept == ["q.A"]
    restored(bench)
    assert rows(bench.run(give_tv("s", 11, 22)), "q") == [(2, 0), (1, 10)]


def test_what_a_paused_query_skips_is_counted_over_a_replacement():
    bench = Bench(external("s"))
    bench.query(counting("q"))
    bench.run(give_tv("s", 1))
    bench.do(PauseQuery("q"))
    bench.run(give_tv("s", 2, 3))
    bench.do(ReplaceQuery(counting("q", below=[("S", select(compare(">", 0)), ["s.source"])])))
    restored(bench)
    bench.run(give_tv("s", 4))
    assert bench.do(ResumeQuery("q")) == ResumeReply(query="q", skipped=3)


PAIR = (("v", 0, 1), ("w", 1, 1))


@pytest.mark.parametrize(
    "spec",
    [
        JoinSpec(PAIR, (Band(0, 1, -10, 10),)),
        JoinSpec(PAIR, (Band(0, 1, -10, 10),), order="sync"),
        SequenceSpec(PAIR),
        SequenceSpec((("v", 0, 1),), within_us=5, absent=True),
        UnionSpec(ordered=True),
        UnionSpec(ordered=False),
    ],
    ids=["join", "ordered-join", "sequence", "absence", "ordered-union", "union"],
)
def test_a_paused_query_replaced_by_one_that_waits_stands_still_like_a_restored_one(spec):
    bench = Bench(external("s"), external("t"))
    bench.query(path("q", 1))
    bench.query(path("other", 1))
    bench.do(PauseQuery("q"))
    bench.run(give_tv("s", 1, 2), give_tv("t", 1))
    made = plan("q", ("N", spec, ["s.source", "t.source"]))
    bench.do(ReplaceQuery(replace(made, schema=spec.schema([TV, TV]))))
    twin = Bench()
    twin.engine, twin.now_us = Engine.restore(bench.engine.save(), trace=True), bench.now_us
    for engine in (bench, twin):
        effects = engine.run(give_tv("s", 3, 4), give_tv("t", 3))
        assert rows(effects, "other") == [(3,), (4,)]
        assert engine.do(ResumeQuery("q")) == ResumeReply(query="q", skipped=5)
    told = (give_tv("s", 20), give_tv("t", 21), punctuate("s", 40), punctuate("t", 40))
    assert described(bench.run(*told)) == described(twin.run(*told))
    assert bench.engine.save() == twin.engine.save()
