"""A query under another name: operators, decisions, readers and row numbers go along, and nothing else changes."""

from __future__ import annotations

import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import (
    Deliver,
    DropQuery,
    Measured,
    PauseQuery,
    RenameQuery,
    ResumeQuery,
    SetBreak,
    SetStrategy,
    WatchProgress,
)
from millrace.protocol.admin.changes import RenameReply
from tests.engine.graphs import Bench, arrive, external, give_tv, identity, path, plan, refusal, rows
from tests.engine.test_replacing import counting, restored


def forked():
    """A query with a fork, a reader, and a decision about each of them."""
    bench = Bench("s")
    bench.query(path("q", 2))
    bench.query(plan("r", ("Q1", identity(), ["q.Q2"])))
    bench.query(plan("t", ("Q1", identity(), ["q.Q2"])))
    bench.do(SetStrategy("s", "bfs(3)", "q.fork1"))
    bench.do(SetStrategy("s", "dfs(2)", "q.Q1"))
    bench.do(SetBreak("q.Q2", on=True))
    bench.do(WatchProgress("q"))
    bench.run(arrive("s", 1, 2), Measured("q.Q1", 2, 5.0))
    return bench


def test_rows_are_numbered_on_under_the_new_name():
    bench = forked()
    assert bench.do(RenameQuery("q", "z")) == RenameReply(query="z", was="q")
    effects = bench.run(arrive("s", 3))
    (order,) = (one for one in effects.orders if isinstance(one, Deliver) and one.query == "z")
    assert order.sequence == 2
    assert rows(effects, "r") == rows(effects, "t") == [(3,)]


def test_names_follow_and_so_does_what_was_decided():
    bench = forked()
    engine = bench.engine
    bench.do(RenameQuery("q", "z", (("z", "CREATE QUERY z"), ("r", "reads z"))))
    restored(bench)
    assert engine.components()[0].breaks == {"z.Q2": "user"}
    strategies = engine.components()[0].strategies
    assert (strategies["z.fork1"], strategies["z.Q1"]) == ("bfs(3)", "dfs(2)")
    assert engine.costs[engine.graph.operators["z.Q1"]] == (2, 5.0)
    assert [operator.name for operator in engine.operators() if operator.name.startswith("q.")] == []
    told = {query.name: (query.sql, query.reads_queries) for query in engine.queries()}
    assert told == {"z": ("CREATE QUERY z", []), "r": ("reads z", ["z"]), "t": ("", ["z"])}
    bench.query(path("q", 2))
    assert rows(bench.run(arrive("s", 4)), "q") == [(4,)], "the old name is free"
    assert refusal(bench, DropQuery("z")) == "query z is read by r, t: drop them first"


@pytest.mark.parametrize("paused", [False, True])
def test_there_and_back_leaves_nothing_changed(paused):
    bench = forked()
    if paused:
        bench.do(PauseQuery("q"))
    bench.step(arrive("s", 5, 6, 7), executions=2)
    before = bench.engine.save()
    bench.do(RenameQuery("q", "z"))
    assert bench.engine.save() != before
    bench.do(RenameQuery("z", "q"))
    assert bench.engine.save() == before


def test_state_goes_on():
    bench = Bench(external("s"))
    bench.query(counting("q"))
    bench.run(give_tv("s", 1, 2))
    bench.do(RenameQuery("q", "z"))
    restored(bench)
    assert rows(bench.run(give_tv("s", 3, 12)), "z") == [(3, 0)]


def test_a_paused_query_stays_paused():
    bench = Bench("s")
    bench.query(path("q", 1))
    bench.do(PauseQuery("q"))
    bench.do(RenameQuery("q", "z"))
    assert rows(bench.run(arrive("s", 1)), "z") == []
    assert bench.do(ResumeQuery("z")).skipped == 1


def test_what_cannot_be_changes_nothing():
    bench = forked()
    before = bench.engine.save()
    assert refusal(bench, RenameQuery("q", "r")) == "query r already exists"
    assert refusal(bench, RenameQuery("q", "s")) == "stream s already exists"
    assert refusal(bench, RenameQuery("nobody", "z")) == "query nobody does not exist"
    assert bench.engine.save() == before


def test_a_plan_shows_the_new_names_and_touches_nothing():
    bench = forked()
    before = bench.engine.save()
    shown = bench.engine.plan([RenameQuery("q", "z")])
    assert bench.engine.save() == before
    query = next(query for query in shown.queries if query.name == "z")
    assert (query.was, query.change) == ("q", "changes")
    assert ("z.Q1", "q.Q1") in [(one.operator, one.was) for one in query.operators]
    assert Engine.restore(before).save() == before
