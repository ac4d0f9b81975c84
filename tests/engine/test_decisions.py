"""What an admin has decided of a fork, an operator or a component goes with it, and never over to a namesake."""

from __future__ import annotations

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    Change,
    DropQuery,
    DropStream,
    Measured,
    PauseQuery,
    RenameQuery,
    ResumeQuery,
    SetStrategy,
    SetWeight,
)
from millrace.engine.plan import StreamDefinition
from tests.engine.graphs import Bench, V, arrive, identity, path, plan, rows


def restored(bench: Bench) -> None:
    saved = bench.engine.save()
    bench.engine = Engine.restore(saved, trace=True)
    assert bench.engine.save() == saved


def test_a_new_fork_does_not_take_the_strategy_of_a_dropped_one() -> None:
    bench = Bench("s")
    bench.query(path("q", 1))
    bench.query(path("p", 1))
    bench.do(SetStrategy("s", "bfs(3)", "s.fork1"))
    assert bench.rule("s.fork1") == "BFS(3)-Fork"
    bench.do(DropQuery("p"))
    bench.query(path("r", 1))
    assert bench.rule("s.fork1") == "DFS-Fork"
    restored(bench)
    assert bench.rule("s.fork1") == "DFS-Fork"


def test_a_new_fork_elsewhere_does_not_take_the_strategy_of_a_dropped_one() -> None:
    bench = Bench("s")
    bench.query(plan("q", ("A", identity(), ["s.source"]), ("B", identity(), ["A"]), ("C", identity(), ["B"])))
    bench.query(plan("p", ("P", identity(), ["q.C"])))
    bench.query(plan("o", ("O", identity(), ["q.C"])))
    bench.do(SetStrategy("s", "rr(2)", "q.fork1"))
    bench.do(DropQuery("o"))
    bench.query(plan("r", ("R", identity(), ["q.C"])))
    assert bench.rule("q.fork1") == "DFS-Fork"


def test_a_fork_keeps_its_strategy_over_a_pause_and_a_restore() -> None:
    bench = Bench("s")
    bench.query(path("q", 1))
    bench.query(path("p", 1))
    bench.do(SetStrategy("s", "bfs(3)", "s.fork1"))
    bench.do(PauseQuery("p"))
    restored(bench)
    bench.run(arrive("s", 1))
    bench.do(ResumeQuery("p"))
    assert bench.rule("s.fork1") == "BFS(3)-Fork"


def test_a_fork_keeps_its_name_while_a_pause_has_emptied_it() -> None:
    bench = Bench("s")
    bench.query(plan("q", ("A", identity(), ["s.source"]), ("B", identity(), ["A"])))
    for name, source in (("p1", "q.B"), ("p2", "q.B")):
        bench.query(plan(name, ("P", identity(), [source])))
    bench.do(SetStrategy("s", "bfs(3)", "q.fork1"))
    bench.do(PauseQuery("p1"))
    bench.do(RenameQuery("q", "w"))
    restored(bench)
    bench.do(ResumeQuery("p1"))
    assert bench.rule("w.fork1") == "BFS(3)-Fork"


def test_a_paused_reader_that_is_dropped_takes_the_fork_with_it() -> None:
    bench = Bench("s")
    bench.query(path("q", 1))
    bench.query(path("p", 1))
    bench.do(SetStrategy("s", "bfs(3)", "s.fork1"))
    bench.do(PauseQuery("p"))
    bench.do(DropQuery("p"))
    bench.query(path("r", 1))
    assert bench.rule("s.fork1") == "DFS-Fork"


def test_a_fork_dropped_and_made_in_one_change_is_a_new_one() -> None:
    bench = Bench("s")
    bench.query(path("q", 1))
    bench.query(path("p", 1))
    bench.do(SetStrategy("s", "bfs(3)", "s.fork1"))
    bench.do(Change((DropQuery("p"), DropQuery("q"), AddQuery(path("q", 1)), AddQuery(path("p", 1)))))
    assert bench.rule("s.fork1") == "DFS-Fork"


def test_a_stream_made_again_in_one_change_gets_no_weight_and_no_strategy_of_the_old_one() -> None:
    bench = Bench("s")
    bench.do(SetWeight("s", 7))
    bench.do(SetStrategy("s", "rr(2)"))
    bench.do(Change((DropStream("s"), AddStream(StreamDefinition("s", V)))))
    (component,) = bench.engine.components()
    assert component.weight == 1
    assert component.strategy == "dfs"


def test_work_measured_of_an_operator_that_is_gone_is_not_its_namesakes() -> None:
    bench = Bench("s")
    bench.query(path("q", 1))
    bench.do(DropQuery("q"))
    bench.run(Measured("q.Q1", 20, 5_000.0))
    assert bench.engine.costs == {}
    bench.query(path("q", 1))
    assert rows(bench.run(arrive("s", 1)), "q") == [(1,)]
    assert bench.engine.costs == {}
