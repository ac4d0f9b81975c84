"""An operator's id stays while it lives: under other names, other plans, insertions and in a restored engine."""

from __future__ import annotations

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    DropQuery,
    InsertOperator,
    RemoveOperator,
    RenameQuery,
    ReplaceOperator,
    ReplaceQuery,
    UnshareQuery,
)
from millrace.engine.plan import QueryPlan
from tests.engine.graphs import Bench, compare, path, plan, refusal, select


def ids(bench: Bench, query: str) -> dict[str, int]:
    return {name.partition(".")[2]: number for name, number in bench.engine.queries_by_name[query].plan.ids.items()}


def filters(name: str, *limits: int) -> QueryPlan:
    """Filters in a row."""
    nodes = [(f"F{at}", select(compare(">", limit)), [f"F{at - 1}" if at else "s.source"])
             for at, limit in enumerate(limits)]  # fmt: skip
    return plan(name, *nodes)


def test_ids_are_counted_and_never_used_twice() -> None:
    bench = Bench("s")
    bench.query(path("p", 2))
    bench.query(path("q", 1))
    assert (ids(bench, "p"), ids(bench, "q")) == ({"Q1": 1, "Q2": 2}, {"Q1": 3})
    bench.do(DropQuery("q"))
    bench.query(path("r", 1))
    assert ids(bench, "r") == {"Q1": 4}


def test_a_query_whose_operators_have_ids_keeps_them() -> None:
    bench = Bench("s")
    bench.query(path("p", 2).numbered({"p.Q1": 7, "p.Q2": 5}))
    bench.query(path("q", 1))
    assert (ids(bench, "p"), ids(bench, "q")) == ({"Q1": 7, "Q2": 5}, {"Q1": 8})


def test_an_insertion_and_a_removal_renumber_nothing() -> None:
    bench = Bench("s")
    bench.query(path("q", 2))
    bench.do(InsertOperator("q.Q2", select(compare("<", 5)), where="v < 5"))
    assert ids(bench, "q") == {"Q1": 1, "filter1": 3, "Q2": 2}
    bench.do(ReplaceOperator("q.filter1", select(compare("<", 4)), where="v < 4"))
    assert ids(bench, "q") == {"Q1": 1, "filter1": 3, "Q2": 2}
    bench.do(RemoveOperator("q.filter1"))
    bench.do(InsertOperator("q.Q1", select(compare("<", 5)), where="v < 5"))
    assert ids(bench, "q") == {"filter1": 4, "Q1": 1, "Q2": 2}


def test_another_name_and_another_plan_keep_the_ids_of_what_goes_on() -> None:
    bench = Bench("s")
    bench.query(filters("q", 1, 2, 3))
    bench.do(RenameQuery("q", "r"))
    assert ids(bench, "r") == {"F0": 1, "F1": 2, "F2": 3}
    bench.do(ReplaceQuery(filters("r", 1, 2, 9)))
    assert ids(bench, "r") == {"F0": 1, "F1": 2, "F2": 4}
    renamed = plan("r", ("G", select(compare(">", 1)), ["s.source"]), ("H", select(compare(">", 2)), ["G"]))
    bench.do(ReplaceQuery(renamed))
    assert ids(bench, "r") == {"G": 1, "H": 2}


def test_queries_that_share_operators_have_their_own_ids() -> None:
    bench = Bench("s", share=True)
    bench.query(filters("p", 1))
    bench.query(filters("q", 1))
    assert (ids(bench, "p"), ids(bench, "q")) == ({"F0": 1}, {"F0": 2})
    bench.do(UnshareQuery("p", ()))
    assert (ids(bench, "p"), ids(bench, "q")) == ({"F0": 1}, {"F0": 2})


def test_a_restored_engine_goes_on_counting() -> None:
    bench = Bench("s")
    bench.query(path("p", 3))
    bench.query(path("q", 1))
    bench.do(DropQuery("q"))
    bench.engine = Engine.restore(bench.engine.save(), trace=True)
    assert ids(bench, "p") == {"Q1": 1, "Q2": 2, "Q3": 3}
    bench.query(path("r", 1))
    assert ids(bench, "r") == {"Q1": 5}


def test_a_refused_query_uses_no_id() -> None:
    bench = Bench("s")
    bench.query(path("p", 1))
    saved = bench.engine.save()
    assert "does not exist" in refusal(bench, AddQuery(path("q", 2, stream="nowhere")))
    assert bench.engine.save() == saved
