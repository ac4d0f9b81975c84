"""A plan shows what would happen, the shadow is the engine without its tuples, and several commands are one."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine import shadow
from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    Change,
    CommandBody,
    DropQuery,
    DropStream,
    InsertOperator,
    PauseQuery,
    ReplaceQuery,
    ResumeQuery,
    SetBreak,
    SetStrategy,
    SetWeight,
)
from millrace.engine.plan import StreamDefinition
from millrace.protocol import Refuse
from millrace.protocol.admin.changes import FateView, PartsView
from millrace.protocol.admin.operators import RowView
from tests.depth import examples
from tests.engine.graphs import Bench, V, compare, external, figure_4, give_tv, path, plan, refusal, select, union
from tests.engine.test_growing import CHOICES, World
from tests.engine.test_replacing import counting, having
from tests.engine.test_saving import busy_bench


def described(engine: Engine) -> object:
    """Everything that a plan is about."""
    components = [
        {key: getattr(found, key) for key in ("name", "strategy", "strategies", "weight", "operators", "breaks")}
        for found in engine.components()
    ]
    queries = [(query.name, query.state, query.reason) for query in engine.queries()]
    return components, [engine.table(str(found["name"])) for found in components], queries


def table(bench: Bench) -> dict[str, RowView]:
    names = [found.name for found in bench.engine.components()]
    return {row.state: row for name in names for row in bench.engine.table(name).rows}


def test_a_shadow_is_the_engine_without_its_tuples() -> None:
    bench = busy_bench()
    bench.do(SetWeight("a", 3))
    before = bench.engine.save()
    made = shadow.shadow_of(bench.engine)
    assert described(made) == described(bench.engine)
    assert made.gauge.tuples == 0
    assert bench.engine.save() == before


def test_a_shadow_numbers_new_operators_as_the_engine_does() -> None:
    bench = Bench("s")
    bench.query(path("q", 1))
    bench.query(path("p", 1))
    bench.do(DropQuery("p"))
    made = shadow.shadow_of(bench.engine)
    for edited in (made.carry_out, bench.do):
        edited(InsertOperator("q.Q1", select()))
    assert made.query("q").plan == bench.engine.query("q").plan


@pytest.mark.parametrize("seed", range(4))
def test_what_is_shown_is_what_happens(seed: int) -> None:
    bench = busy_bench()
    commands = [
        [ReplaceQuery(path("p", 4, "a")), SetStrategy("a", "rr(1)")],
        [DropQuery("u"), AddStream(StreamDefinition("c", V)), AddQuery(path("z", 2, "c")), SetBreak("z.Q1", on=True)],
        [ResumeQuery("q"), AddQuery(plan("m", ("U", union(), ["a.source", "x.source"])))],
        [SetWeight("x", 4), PauseQuery("p"), DropQuery("w"), ReplaceQuery(path("q", 3, "b"))],
    ][seed]
    before = bench.engine.save()
    shown = bench.engine.plan(commands)  # type: ignore[arg-type]
    assert bench.engine.save() == before
    rows = table(bench)
    bench.do(Change(tuple(commands)))  # type: ignore[arg-type]
    for row in shown.table.before:
        rows.pop(row.state)
    for row in shown.table.after:
        rows[row.state] = RowView(state=row.state, pred=row.pred, succ=row.succ, transition=row.transition)
    assert rows == table(bench)


def test_a_plan_says_what_becomes_of_each_operator_and_its_state() -> None:
    bench = Bench(external("s"), external("t"))
    bench.query(counting("q", having(2)))
    bench.query(counting("r", stream="t"))
    bench.run(give_tv("s", 1, 2))
    shown = bench.engine.plan([ReplaceQuery(counting("q", having(1))), DropQuery("r")])
    q, r = shown.queries
    assert q.change == "changes"
    assert [(one.operator, one.change, one.state, one.state_tuples) for one in q.operators] == [
        ("q.A", "stays", "kept", 1),
        ("q.H", "goes", None, 0),
        ("q.sink1", "stays", None, 0),
        ("q.H", "appears", None, 0),
    ]
    assert r.change == "goes"
    assert r.operators[0].state == "forgotten"
    again = bench.engine.plan([ReplaceQuery(counting("q", below=[("S", select(compare(">", 0)), ["s.source"])]))])
    states = {(one.change, one.state) for one in again.queries[0].operators if one.kind == "aggregate"}
    assert states == {("goes", "forgotten"), ("appears", "begins empty")}


def test_a_plan_says_which_components_merge_and_split() -> None:
    bench = Bench("a", "b")
    bench.query(path("p", 1, "a"))
    merging = bench.engine.plan([AddQuery(figure_4(ordered=True))])
    assert merging.merges == [PartsView(component="a", parts=["a", "b"])]
    assert {found.name: found.change for found in merging.components} == {"a": "changes", "b": "goes"}
    bench.query(figure_4(ordered=True))
    splitting = bench.engine.plan([DropQuery("u")])
    assert splitting.splits == [PartsView(component="a", parts=["a", "b"])]
    assert bench.engine.plan([]).components == [FateView(name="a", change="stays")]


def test_several_commands_are_obeyed_together_or_not_at_all() -> None:
    bench = Bench("a")
    bench.query(path("q", 2, "a"))
    before = bench.engine.save()
    wrong = Change((AddStream(StreamDefinition("b", V)), DropQuery("q"), AddQuery(path("z", 1, "b")), DropStream("c")))
    assert refusal(bench, wrong) == "stream c does not exist"
    assert bench.engine.save() == before
    bench.do(Change(wrong.commands[:-1]))
    assert list(bench.engine.queries_by_name) == ["z"]


def test_a_shadow_that_has_served_leaves_nothing_to_the_cyclic_collector() -> None:
    """With a thousand queries a shadow would have 100,000 objects, and inspecting them would block all clients."""
    bench = Bench(external("s"))
    for number in range(20):
        bench.do(AddQuery(counting(f"q{number}", having(number))))
    commands = [AddQuery(counting("r", having(5)))]
    bench.engine.plan(commands)
    gc.collect()
    gc.disable()
    try:
        bench.engine.plan(commands)
        with pytest.raises(Refuse):
            bench.engine.plan(commands * 2)
        assert gc.collect() < 100  # a shadow has thousands
    finally:
        gc.enable()


def test_a_plan_on_a_snapshot_is_of_its_moment() -> None:
    """A driver plans while the engine continues and changes."""
    bench = Bench(external("s"))
    bench.do(AddQuery(counting("q", having(1))))
    commands = [AddQuery(counting("r", having(2)))]
    expected = bench.engine.plan(commands)
    snapshot = shadow.Snapshot.of(bench.engine)
    bench.do(*commands)
    bench.do(DropQuery("q"))
    assert shadow.plan(snapshot, commands) == expected
    assert shadow.plan(snapshot, commands) == expected


def outcome(engine: Engine, commands: Sequence[CommandBody]) -> str | None:
    """The first refusal of commands on a shadow."""
    try:
        for command in commands:
            engine.carry_out(command)
    except Refuse as refused:
        return f"{refused.code}: {refused.text}"
    return None


SOME = st.lists(CHOICES.filter(lambda choice: choice[0] != "several"), min_size=1, max_size=3)


@settings(max_examples=examples(200))
@given(st.booleans(), st.lists(CHOICES, min_size=3, max_size=10), SOME)
def test_a_part_of_a_shadow_refuses_what_all_of_it_does(share: bool, choices: list[Any], group: list[Any]) -> None:
    world = World(share=share)
    for choice in choices:
        world.choose(*choice)
    commands = [body for choice in group if (body := world.command(*choice)) is not None]
    snapshot = shadow.Snapshot.of(world.engine)
    part = snapshot.shadow(vars(shadow)["_mentioned"](commands))
    assert outcome(part, commands) == outcome(snapshot.shadow(), commands)


def test_a_shadow_for_one_query_has_what_it_shares_and_reads_and_what_reads_it() -> None:
    world = World(share=True)
    for name, read in (("p", "s1"), ("q", "s1"), ("below", "q"), ("other", "s2"), ("beside", "s2"), ("low", "below")):
        world.obey(world.planned(f"CREATE QUERY {name} AS SELECT a FROM {read} WHERE a = {3 if name < 'r' else 4}"))
    part = shadow.Snapshot.of(world.engine).shadow({"q"})
    assert [*part.queries_by_name] == ["p", "q", "below", "low"]
    assert [*part.streams_by_name] == ["s1"]
