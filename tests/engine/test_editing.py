"""Operators are inserted, removed and replaced in a running query: no tuple is lost, and retained state stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.engine import shadow
from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddStream,
    Change,
    CommandBody,
    InsertOperator,
    PauseQuery,
    RemoveOperator,
    ReplaceOperator,
    ReplaceQuery,
    SetQueue,
    SetStrategy,
)
from millrace.engine.plan import StreamDefinition
from millrace.operators.filter.spec import FilterSpec, SelectSpec
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.join.bands import Band
from millrace.operators.queues.edge import EdgeSpec
from millrace.operators.sample.spec import SampleSpec
from millrace.protocol import Type
from millrace.protocol.admin.changes import InsertReply, RemoveReply
from millrace.protocol.admin.operators import OperatorView
from millrace.values.expression import Column, Constant
from tests.engine.graphs import (
    TV,
    Bench,
    V,
    arrive,
    compare,
    external,
    figure_4,
    give_tv,
    identity,
    path,
    plan,
    refusal,
    rows,
    select,
    sort,
    union,
)
from tests.engine.test_edges import TICKS, tick, ticks, with_edges
from tests.engine.test_joins import joined, pairs
from tests.engine.test_replacing import COUNT, counting, having

BELOW_5 = SelectSpec(compare("<", 5))
TV_V = Column(Type.BIGINT, True, 1, "v")
TICKS_V = Column(Type.BIGINT, True, 2, "v")
ALL = SelectSpec(Constant(Type.BOOLEAN, False, True))


def same(bench: Bench) -> None:
    """A restored engine is the engine, and so is a shadow."""
    restored = Engine.restore(bench.engine.save(), trace=True)
    assert restored.save() == bench.engine.save()
    assert restored.operators() == bench.engine.operators()
    assert [query.operators for query in shadow.shadow_of(bench.engine).queries()] == [
        query.operators for query in bench.engine.queries()
    ]
    bench.engine = restored


def operators(bench: Bench, query: str) -> list[str]:
    (found,) = (one for one in bench.engine.queries() if one.name == query)
    return [name.partition(".")[2] for name in found.operators]


def seen(bench: Bench, name: str) -> OperatorView:
    (found,) = (one for one in bench.engine.operators() if one.name == name)
    return found


def test_an_operator_goes_in_front_of_an_input_and_out_again() -> None:
    bench = Bench("s")
    bench.query(path("q", 2))
    answer = bench.do(InsertOperator("q.Q2", BELOW_5, where="v < 5"))
    assert answer == InsertReply(operator="q.filter1", before="q.Q2", input=0)
    assert operators(bench, "q") == ["Q1", "filter1", "Q2"]
    assert [row.state for row in bench.engine.table("s").rows] == ["s.source", "q.Q1", "q.filter1", "q.Q2"]
    shown = seen(bench, "q.filter1")
    assert (shown.inserted, shown.where, shown.sample) == (True, "v < 5", None)
    same(bench)
    assert rows(bench.run(arrive("s", 1, 7, 4, 9)), "q") == [(1,), (4,)]
    bench.do(ReplaceOperator("q.filter1", SelectSpec(compare(">", 5)), "v > 5"))
    assert seen(bench, "q.filter1").where == "v > 5"
    assert rows(bench.run(arrive("s", 1, 7)), "q") == [(7,)]
    assert bench.do(RemoveOperator("q.filter1")) == RemoveReply(operator="q.filter1", removed=True)
    assert operators(bench, "q") == ["Q1", "Q2"]
    assert bench.engine.queries_by_name["q"].plan.edits == ()
    assert rows(bench.run(arrive("s", 1, 7)), "q") == [(1,), (7,)]
    same(bench)


def test_a_plan_is_the_same_whether_tuples_wait_or_not_when_an_operator_is_removed() -> None:
    """A shadow has no tuples, and its plan is the engine's."""
    plans = []
    for waiting in (arrive("s"), arrive("s", 1)):
        bench = Bench("s")
        bench.query(path("q", 2))
        bench.do(InsertOperator("q.Q1", BELOW_5))
        bench.step(waiting, executions=0)
        bench.do(RemoveOperator("q.filter1"))
        plans.append(bench.engine.queries_by_name["q"].plan)
    assert plans[0] == plans[1]
    assert [plan.nodes[0].edge(0).queued for plan in plans] == [False, True]


@pytest.mark.parametrize("position", ["q.Q1", "q.Q2"])
def test_what_waits_stays_and_is_not_looked_at_again(position: str) -> None:
    """Inserted: what waits before the input passes. Removed: what waits before either passes, in its order."""
    bench = Bench("s")
    bench.query(path("q", 2), "bfs")
    bench.step(arrive("s", 8, 9), executions=1 if position == "q.Q2" else 0)
    bench.do(InsertOperator(position, BELOW_5))
    bench.step(arrive("s", 1, 7, 2), executions=0)
    same(bench)
    assert rows(bench.run(), "q") == [(8,), (9,), (1,), (2,)]
    bench.do(SetStrategy("s", "bfs"))
    bench.step(arrive("s", 3, 6), executions=2)
    bench.step(arrive("s", 9, 8), executions=0)
    bench.do(RemoveOperator("q.filter1"))
    same(bench)
    given = rows(bench.run(), "q") + rows(bench.run(arrive("s", 5)), "q")
    assert given[:1] == [(3,)]
    assert given[-3:] == [(9,), (8,), (5,)]
    same(bench)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("give"), st.lists(st.integers(0, 9), max_size=4)),
            st.tuples(st.just("work"), st.integers(1, 3)),
            st.tuples(st.just("in"), st.sampled_from(["q.A", "q.B", "q.U"])),
            st.tuples(st.just("out"), st.integers(0, 5)),
            st.tuples(st.just("queue"), st.sampled_from(["q.A", "q.B", "q.U"])),
            st.tuples(st.just("save"), st.none()),
        ),
        max_size=30,
    )
)
def test_what_passes_everything_changes_nothing(actions: list[tuple[str, Any]]) -> None:
    """After random inserts and removals in the middle of the work, the rows are the same as without them."""
    made = plan("q", ("A", select(), ["s.source"]), ("B", identity(), ["s.source"]), ("U", union(), ["A", "B"]))
    bench, alone = Bench(StreamDefinition("s", V, update_key=("v",))), Bench(StreamDefinition("s", V))
    bench.query(made)
    alone.query(made)
    got, wanted = [], []
    for action, value in actions:
        match action:
            case "give":
                got += rows(bench.step(arrive("s", *value), executions=0), "q")
                wanted += rows(alone.step(arrive("s", *value), executions=0), "q")
            case "work":
                got += rows(bench.step(executions=value), "q")
            case "in":
                bench.do(InsertOperator(value, ALL, value == "q.U"))
            case "out":
                there = [one.name for one in bench.engine.operators() if one.inserted]
                if value < len(there):
                    bench.do(RemoveOperator(there[value]))
            case "queue":
                bench.do(SetQueue(value, "append"))
            case "save":
                same(bench)
    assert sorted(got + rows(bench.run(), "q")) == sorted(wanted + rows(alone.run(), "q"))


def test_a_join_keeps_what_it_remembers() -> None:
    bench = Bench(external("a"), external("b"))
    bench.query(joined(pairs(Band(0, 1, -100, 100))))
    bench.run(give_tv("a", 100, 101))
    bench.do(InsertOperator("q.J", SelectSpec(compare("<", 150, TV_V)), 1))
    assert seen(bench, "q.J").state_tuples == 2
    assert sorted(rows(bench.run(give_tv("b", 110, 160)), "q")) == [(100, 110), (101, 110)]
    same(bench)
    bench.do(RemoveOperator("q.filter1"))
    assert sorted(rows(bench.run(give_tv("b", 170)), "q")) == [(100, 170), (101, 170)]


def test_a_sample_keeps_a_share_by_its_seed_and_counts_the_rest() -> None:
    def sampled(seed: int, *sizes: int) -> list[int]:
        bench = Bench("s")
        bench.query(path("q", 2))
        bench.do(InsertOperator("q.Q2", SampleSpec(0.25, seed)))
        kept: list[int] = []
        first = 0
        for size in sizes:
            kept += [row[0] for row in rows(bench.run(arrive("s", *range(first, first + size))), "q")]
            first += size
            same(bench)
        assert seen(bench, "q.filter1").shed == first - len(kept)
        assert seen(bench, "q.filter1").sample == 0.25
        return kept

    assert sampled(7, 4_000) == sampled(7, 1, 1_500, 2_499)
    assert sampled(7, 4_000) != sampled(8, 4_000)
    assert abs(len(sampled(7, 4_000)) - 1_000) < 100


@pytest.mark.parametrize("kind", ["inplace", "append"])
def test_a_queue_stays_with_its_input(kind: Any) -> None:
    bench = Bench(ticks())
    bench.query(with_edges(plan("q", ("A", identity(TICKS), ["s.source"]), schema=TICKS), [EdgeSpec("inplace", (1,))]))
    bench.do(SetQueue("q.A", kind))
    bench.step(tick(("a", 1, 1), ("b", 2, 2)), executions=0)
    bench.do(InsertOperator("q.A", SelectSpec(compare("<", 4, TICKS_V))))
    assert (seen(bench, "q.A").queues, seen(bench, "q.filter1").queues) == ([kind], ["append"])
    bench.step(tick(("a", 3, 3), ("b", 4, 4)), executions=0)
    same(bench)
    # The queue is the input's own: what the select passes supersedes what waits there.
    found = rows(bench.run(), "q")
    assert [row[2] for row in found] == ([3, 2] if kind == "inplace" else [1, 2, 3])
    # The update key is looked up through the select.
    bench.do(SetQueue("q.A", "append"))
    bench.do(SetQueue("q.A", "linecutting"))
    bench.step(tick(("a", 5, 3), ("a", 6, 2)), budget=0)
    bench.do(RemoveOperator("q.filter1"))
    same(bench)
    assert [row[2] for row in rows(bench.run(tick(("b", 7, 9))), "q")] in ([2, 9], [9, 2], [3, 2, 9], [2, 3, 9])


def test_what_cannot_be_changed_is_refused_and_changes_nothing() -> None:
    bench = Bench("a", "b", external("x"))
    bench.query(figure_4("u", ordered=True))
    bench.query(path("p", 2, "a"))
    bench.query(counting("g", having(1), stream="x"))
    bench.query(path("z", 1, "a"))
    bench.do(PauseQuery("z"))
    before = bench.engine.save()
    for command, text in (
        (InsertOperator("nobody", ALL), "operator nobody does not exist"),
        (InsertOperator("a.source", ALL), "is a source"),
        (InsertOperator("p.sink1", ALL), "is a sink"),
        (InsertOperator("a.fork1", ALL), "is a fork"),
        (InsertOperator("u.U", ALL, 2), "from 0 to 1, got 2"),
        (InsertOperator("u.U", sort()), "a sort cannot be inserted"),
        (InsertOperator("u.U", SampleSpec(1.5, 0)), "between 0 and 1, got 1.5"),
        (InsertOperator("z.Q1", ALL), "is paused"),
        (InsertOperator("u.U", ALL, name="p.Q1"), "operator p.Q1 already exists"),
        (InsertOperator("u.U", ALL, name="p.filter1"), "is called u.filter"),
        (InsertOperator("u.U", ALL, name="u.fork1"), "is called u.filter"),
        (InsertOperator("u.U", ALL, name="u."), "is called u.filter"),
        (RemoveOperator("u.A"), None),
        (RemoveOperator("u.U"), "is a union that creates rows"),
        (RemoveOperator("p.Q1"), "is a map"),
        (RemoveOperator("g.H"), "are the result of query g"),
        (ReplaceOperator("p.Q1", ALL), "not one that filters rows"),
    ):
        if text is not None:
            assert text in refusal(bench, command)
            assert bench.engine.save() == before
    bench.do(RemoveOperator("u.A"))
    assert rows(bench.run(arrive("a", 4), arrive("b", 5)), "u") == [(4,), (5,)]
    (edit,) = bench.engine.queries_by_name["u"].plan.edits
    assert (edit.change, edit.operator) == ("remove", "u.A")
    same(bench)


def test_names_never_collide_and_a_replaced_query_forgets_what_was_put_in() -> None:
    bench = Bench("s")
    made = plan("q", ("filter1", select(), ["s.source"]), ("B", identity(), ["filter1"]))
    bench.query(made)
    names = [bench.do(InsertOperator("q.B", ALL)).operator for _ in range(3)]
    assert names == ["q.filter2", "q.filter3", "q.filter4"]
    bench.do(RemoveOperator("q.filter3"))
    bench.do(RemoveOperator("q.filter1"))
    assert bench.do(InsertOperator("q.B", ALL)).operator == "q.filter5"
    bench.do(ReplaceQuery(made))
    assert operators(bench, "q") == ["filter1", "B"]
    assert bench.engine.queries_by_name["q"].plan.edits == ()
    same(bench)


def test_it_is_planned_and_whole_like_every_change() -> None:
    bench = Bench("s")
    bench.query(path("q", 2))
    before = bench.engine.save()
    shown = bench.engine.plan([InsertOperator("q.Q2", BELOW_5)])
    assert [row.state for row in shown.table.after] == ["q.Q1", "q.filter1", "q.Q2"]
    wrong: tuple[CommandBody, ...] = (InsertOperator("q.Q2", BELOW_5), RemoveOperator("q.filter2"))
    assert "operator q.filter2 does not exist" in refusal(bench, Change(wrong))
    assert bench.engine.save() == before
    bench.do(Change((InsertOperator("q.Q2", BELOW_5), AddStream(StreamDefinition("t", V)))))
    assert operators(bench, "q") == ["Q1", "filter1", "Q2"]


def test_the_state_of_what_is_exchanged_is_forgotten_and_said() -> None:
    bench = Bench(external("s"))
    bench.query(counting("q", having(0)))
    bench.run(give_tv("s", 1, 2))
    assert bench.do(ReplaceOperator("q.H", SelectSpec(compare(">", 1)))).forgotten == 0
    assert seen(bench, "q.A").state_tuples == 1
    assert seen(bench, "q.H").inserted is False


@pytest.mark.parametrize("update_key", [(), ("k",)])
@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_what_waited_when_an_operator_went_does_not_say_what_is_newer(
    update_key: tuple[str, ...], waiting: bool, at_once: bool
) -> None:
    """Only an update key does, whether anything waited or not: one is looked up, or the queue is refused."""
    bench = Bench(replace(ticks(), update_key=update_key))
    bench.query(plan("q", ("Q", identity(TICKS), ["s.source"]), schema=TICKS))
    bench.do(InsertOperator("q.Q", SelectSpec(Constant(Type.BOOLEAN, False, True))))
    if waiting:
        bench.step(tick(("a", 1, 1), ("b", 2, 2), ("a", 3, 3)), executions=0)
    commands: list[CommandBody] = [RemoveOperator("q.filter1"), SetQueue("q.Q", "append"), SetQueue("q.Q", "inplace")]
    bodies = [Change(tuple(commands))] if at_once else commands
    if not update_key:
        for body in bodies[:-1]:
            bench.do(body)
        before = bench.engine.save()
        assert "emits no update stream" in refusal(bench, bodies[-1])
        assert bench.engine.save() == before
        return
    planned = shadow.shadow_of(bench.engine)
    for command in commands:
        planned.carry_out(command)
    for body in bodies:
        bench.do(body)
    assert bench.engine.query("q").plan == planned.query("q").plan
    assert bench.engine.query("q").plan.nodes[0].edge(0).key == (TICKS.index("k"),)
    same(bench)
    assert sorted(rows(bench.run(), "q")) == ([(2, "b", 2), (3, "a", 3)] if waiting else [])


def test_rows_that_replace_each_other_are_all_let_through() -> None:
    """A select in front of them would leave standing what the row that it keeps out replaces."""
    bench = Bench(external("x"), ticks())
    total = replace(COUNT, window=None, keys=(("v", TV_V),), bounds=())
    schema = total.schema([TV])
    made = plan("g", ("C", total, ["x.source"]), ("H", FilterSpec(compare(">", 1), (0,)), ["C"]), schema=schema)
    bench.query(made)
    bench.query(with_edges(plan("l", ("A", identity(TICKS), ["s.source"]), schema=TICKS), [EdgeSpec("inplace", (1,))]))
    in_order = ("C", total, ["x.source"]), ("O", sort(), ["C"]), ("M", identity(schema), ["O"])
    bench.query(plan("o", *in_order, schema=schema))
    newest = replace(COUNT, newest=True, keys=(("v", TV_V),))
    assert isinstance(newest.window, TimeWindow)
    shown = newest.schema([TV])
    windows = plan("n", ("C", newest, ["x.source"]), ("M", identity(shown), ["C"]), schema=shown)
    bench.query(with_edges(windows, [EdgeSpec("inplace", (1,), TimeWindow(10, 10), "lazy")]))
    before = bench.engine.save()
    commands = [InsertOperator(before, ALL) for before in ("g.H", "o.M", "n.M")]
    for command in (*commands, InsertOperator("l.A", SampleSpec(0.5, 1))):
        assert "its rows replace each other" in refusal(bench, command)
        assert bench.engine.save() == before
    bench.do(InsertOperator("g.C", ALL))
    bench.do(InsertOperator("l.A", SelectSpec(compare("<", 4, TICKS_V))))
