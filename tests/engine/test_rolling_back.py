"""A change that the engine refuses although its trial succeeded: the engine is what it was, and tuples flow on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from millrace.engine import saving
from millrace.engine.engine import COMMANDS, Engine
from millrace.engine.events import (
    AddQuery,
    Answer,
    Arrived,
    Change,
    Command,
    CommandBody,
    Deliver,
    Effects,
    FeedOpened,
    InsertOperator,
    PauseQuery,
    RemoveOperator,
    SetBreak,
    SetQueue,
    SetStrategy,
)
from millrace.operators.frame.operator import Operator
from millrace.operators.sample.spec import SampleSpec
from millrace.protocol import Refuse
from millrace.values.batch import Batch
from tests.depth import examples
from tests.engine.test_growing import CHOICES, KINDS, World, picture

GROUPS = st.lists(CHOICES.filter(lambda choice: choice[0] != "several"), min_size=1, max_size=4)


@contextmanager
def refusing(engine: Engine, at: int) -> Iterator[None]:
    """Let this engine, unlike its shadows, refuse the command with this number."""
    obeyed = 0

    def wrapped(obey: Any) -> Any:
        def one(concerned: Engine, body: CommandBody) -> Any:
            nonlocal obeyed
            if concerned is engine:
                obeyed += 1
                if obeyed == at:
                    raise Refuse("it disagrees with its shadow")
            return obey(concerned, body)

        return one

    with patch.dict(COMMANDS, {kind: wrapped(obey) for kind, obey in COMMANDS.items() if kind is not Change}):
        yield


class Flow:
    """Tuples for all streams of an engine."""

    def __init__(self) -> None:
        self.now = 0

    def step(self, engine: Engine, rows: int) -> list[Effects]:
        """The effects of so many tuples in each stream, until nothing is left to do."""
        self.now += 1_000_000
        events: list[Any] = []
        for name, stream in engine.streams_by_name.items():
            values = np.arange(rows, dtype=np.int64)
            schema = stream.definition.schema
            events += [FeedOpened(name, f"{name}{self.now}")]
            events += [Arrived(name, f"{name}{self.now}", Batch(schema, values, [values, values]))]
        effects = [engine.step(self.now, events)]
        while effects[-1].more:
            effects.append(engine.step(self.now))
        return effects


def answer(engine: Engine, body: CommandBody) -> Refuse | None:
    (found,) = [one for one in engine.step(0, [Command(1, body)], budget=0).orders if isinstance(one, Answer)]
    return found.refused


def delivered(effects: list[Effects]) -> list[Any]:
    orders = [order for one in effects for order in one.orders if isinstance(order, Deliver)]
    return [(order.query, order.sequence, list(order.batch.rows())) for order in orders]


@settings(max_examples=examples(200))
@given(st.booleans(), st.lists(CHOICES, min_size=3, max_size=8), GROUPS, st.integers(1, 4))
def test_after_a_disagreement_all_is_as_before(share: bool, choices: list[Any], group: list[Any], at: int) -> None:
    world, flow = World(share=share), Flow()
    for choice in choices:
        world.choose(*choice)
        flow.step(world.engine, 3)
    engine = world.engine
    bodies = [body for choice in group if (body := world.command(*choice)) is not None]
    assume(len(bodies) > 1 and at <= len(bodies))
    try:
        engine.plan(bodies)
    except Refuse:
        assume(False)
    engine.step(flow.now, budget=0)
    saved, looks = engine.save(), picture(engine)
    twin, other = Engine.restore(saved), Flow()
    other.now = flow.now
    with refusing(engine, at):
        refused = answer(engine, Change(tuple(bodies)))
    assert refused is not None
    assert refused.code == "rolled_back"
    assert "it disagrees with its shadow" in refused.text
    assert engine.save() == saved
    assert picture(engine) == looks
    assert delivered(flow.step(engine, 5)) == delivered(other.step(twin, 5))
    assert answer(engine, Change(tuple(bodies))) is None


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("several", "drop stream")])
@pytest.mark.parametrize("last", [False, True])
def test_every_kind_of_change_is_rolled_back(kind: str, last: bool) -> None:
    world, flow = World(share=True), Flow()
    for text in ("SELECT a, b FROM s1 WHERE a = 3", "SELECT a, b FROM s1 UNION ALL SELECT a, b FROM s2"):
        for _ in range(2):
            world.made += 1
            world.obey(world.planned(f"CREATE QUERY q{world.made} AS {text}"))
    flow.step(world.engine, 4)
    paused = next(iter(world.engine.queries_by_name))
    if kind == "resume":
        world.obey(PauseQuery(paused))
    first = next(place for place, name in enumerate(world.engine.graph.operators) if name.startswith(f"{paused}."))
    one = 0 if kind in ("drop", "rename", "replace", "pause", "resume", "watch", "unshare") else first
    body = world.command(kind, 1, one, 1, "arrival", "bfs(2)")
    if kind == "queue":
        body = SetQueue([*world.engine.graph.operators][first], "append", 0)
    if kind == "remove":
        world.obey(InsertOperator([*world.engine.graph.operators][first], SampleSpec(0.5, 7)))
        body = RemoveOperator([*world.engine.graph.operators][first])
    assert body is not None
    engine = world.engine
    engine.step(flow.now, budget=0)
    saved, looks = engine.save(), picture(engine)
    addition = world.planned("CREATE QUERY extra AS SELECT a FROM s1 WHERE a = 5")
    bodies = (addition, body) if last else (body, addition)
    with refusing(engine, 2):
        refused = answer(engine, Change(bodies))
    assert refused is not None
    assert refused.code == "rolled_back", refused.text
    assert (engine.save(), picture(engine)) == (saved, looks)
    assert answer(engine, Change(bodies)) is None
    assert isinstance(addition, AddQuery)


@pytest.mark.parametrize("decided", ["break", "strategy"])
def test_operators_that_were_separated_for_a_refused_change_are_shared_again(decided: str) -> None:
    world = World(share=True)
    world.obey(
        world.planned("CREATE QUERY p AS SELECT a FROM s1 WHERE a = 3"),
        world.planned("CREATE QUERY q AS SELECT a FROM s1 WHERE a = 3"),
    )
    engine = world.engine
    node = engine.query("q").plan.nodes[0].name
    body = SetBreak(node, on=True) if decided == "break" else SetStrategy("s1", "bfs", node)
    engine.step(0, budget=0)
    saved = engine.save()
    with refusing(engine, 1):
        refused = answer(engine, body)
    assert refused is not None
    assert refused.code == "rolled_back"
    assert engine.save() == saved


def test_only_what_a_change_is_about_is_saved_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world, saved = World(share=True), []
    for number in range(30):
        world.obey(world.planned(f"CREATE QUERY q{number} AS SELECT a FROM s1 WHERE a = {number}"))
    save_operator = saving.save_operator

    def noted(operator: Operator) -> list[Any]:
        saved.append(operator.name)
        return save_operator(operator)

    monkeypatch.setattr(saving, "save_operator", noted)
    addition = world.planned("CREATE QUERY extra AS SELECT a FROM s1 WHERE a = 50")
    assert answer(world.engine, Change((addition, PauseQuery("q7")))) is None
    assert sorted(saved) == ["q7.filter1", "q7.project1", "q7.sink1", "s1.source"]


def test_what_a_shadow_refuses_too_is_an_ordinary_refusal() -> None:
    world = World(share=True)
    world.obey(*(world.planned(f"CREATE QUERY {name} AS SELECT a FROM s1 WHERE a = 3") for name in ("p", "q")))
    world.engine.step(0, budget=0)
    saved = world.engine.save()
    for body in (Change((PauseQuery("p"), PauseQuery("nothing"))), RemoveOperator("q.project1")):
        refused = answer(world.engine, body)
        assert refused is not None
        assert refused.code in ("unknown_query", "not_removable")
        assert world.engine.save() == saved
