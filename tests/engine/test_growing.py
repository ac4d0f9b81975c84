"""Changes: what is derived for the changed operators alone is what the whole graph's derivation would have been.

A restored engine derives everything. Restored from each state, it must have the same tables, arcs and forks.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    Answer,
    Change,
    Command,
    CommandBody,
    DropQuery,
    DropStream,
    InsertOperator,
    PauseQuery,
    RemoveOperator,
    RenameQuery,
    ReplaceOperator,
    ReplaceQuery,
    ResumeQuery,
    SetBreak,
    SetQueue,
    SetStrategy,
    SetWeight,
    UnshareQuery,
    WatchProgress,
)
from millrace.engine.graph.graph import Graph
from millrace.engine.graph.rewire import rewiring
from millrace.engine.scheduler.table import Role, Row
from millrace.operators.frame.idle_waiting import IdleWaiting
from millrace.operators.frame.inlet import Inlet
from millrace.operators.sample.spec import SampleSpec
from millrace.operators.source.source import Source
from millrace.sql import Catalog, CreateQuery, CreateStream, parse, plan
from tests.depth import examples

QUERIES = [
    "SELECT a, b FROM {one} WHERE a = 3",
    "SELECT a + b AS a, b FROM {one}",
    "SELECT * FROM {one} UNION ALL SELECT * FROM {other}",
    "SELECT a, b FROM (SELECT a, b FROM {one} WHERE a > 1 UNION ALL SELECT a, b FROM {one} WHERE b > 2) WHERE a < 9",
    "SELECT x.a, y.b FROM {one} [RANGE '1 second'] x JOIN {other} [RANGE '1 second'] y ON x.a = y.a",
    "SELECT a, count(*) AS b FROM {one} [RANGE '10 seconds' SLIDE '10 seconds'] GROUP BY a",
]
KINDS = [
    *("stream", "drop stream", "query", "drop", "rename", "replace", "pause", "resume", "break", "strategy", "weight"),
    *("watch", "insert", "remove", "exchange", "unshare", "queue", "several"),
]
CHOICES = st.tuples(
    st.sampled_from([*KINDS, *["query"] * 6, "drop", "pause"]),
    st.integers(0, len(QUERIES) - 1),
    st.integers(0, 20),
    st.integers(0, 20),
    st.sampled_from(["arrival", "event"]),
    st.sampled_from(["dfs", "bfs(2)", "rr", "chain"]),
)


class World:
    """An engine, and commands for it."""

    def __init__(self, *, share: bool) -> None:
        self.engine = Engine(share=share)
        self.made = 0
        for _ in range(2):
            self.obey(self.stream())

    def stream(self) -> CommandBody:
        self.made += 1
        return self.planned(f"CREATE STREAM s{self.made} (a BIGINT, b BIGINT) WITH (update_key = 'a')")

    def query(self, which: int, one: int, other: int, order: str) -> CommandBody:
        self.made += 1
        names = [*self.engine.streams_by_name, *self.engine.queries_by_name]
        select = QUERIES[which].format(one=names[one % len(names)], other=names[other % len(names)])
        return self.planned(f"CREATE QUERY q{self.made} WITH (order = '{order}') AS {select}")

    def replacement(self, name: str, which: int, one: int, order: str) -> CommandBody:
        """Another plan for a query, over streams alone."""
        streams = [*self.engine.streams_by_name]
        select = QUERIES[which].format(one=streams[one % len(streams)], other=streams[0])
        body = self.planned(f"CREATE QUERY new WITH (order = '{order}') AS {select}")
        assert isinstance(body, AddQuery)
        return ReplaceQuery(body.plan.renamed("new", name))

    def planned(self, sql: str) -> CommandBody:
        engine = self.engine
        streams = {name: stream.definition for name, stream in engine.streams_by_name.items()}
        queries = {name: query.plan for name, query in engine.queries_by_name.items()}
        planned = plan(parse(sql)[0], Catalog(streams, queries))
        assert isinstance(planned, CreateStream | CreateQuery)
        return AddStream(planned.stream) if isinstance(planned, CreateStream) else AddQuery(planned.plan)

    def obey(self, *commands: CommandBody) -> None:
        body = commands[0] if len(commands) == 1 else Change(commands)
        (answer,) = [one for one in self.engine.step(0, [Command(1, body)]).orders if isinstance(one, Answer)]
        assert answer.refused is None or not isinstance(body, AddStream | AddQuery), answer.refused

    def choose(self, what: str, which: int, one: int, other: int, order: str, strategy: str) -> None:
        body = self.command(what, which, one, other, order, strategy)
        if what == "several":
            kinds = [KINDS[number % len(KINDS)] for number in (one, other, one + other, which + other)]
            bodies = [self.command(kind, which, other, one, order, strategy) for kind in kinds if kind != "several"]
            self.obey(*(body for body in bodies if body is not None))
        elif body is not None:
            self.obey(body)

    def command(self, what: str, which: int, one: int, other: int, order: str, strategy: str) -> CommandBody | None:
        engine = self.engine
        streams, queries, operators = [*engine.streams_by_name], [*engine.queries_by_name], [*engine.graph.operators]
        operator = operators[one % len(operators)]
        name = queries[one % len(queries)] if queries else ""
        component = engine.graph.component_of(engine.graph.operators[operator]).name
        match what:
            case "stream":
                return self.stream()
            case "drop stream":
                return DropStream(streams[one % len(streams)]) if len(streams) > 1 else None
            case "query":
                return self.query(which, one, other, order)
            case "break":
                return SetBreak(operator, not engine.graph.has_break(operator))
            case "strategy":
                forks = [fork.name for fork in engine.graph.forks.values()]
                chosen = forks[other % len(forks)] if forks and other % 3 == 0 else operator
                home = engine.graph.component_of(engine.graph.operator(chosen)).name
                return SetStrategy(home, strategy, chosen if which else None)
            case "weight":
                return SetWeight(component, other + 1)
            case "insert":
                return InsertOperator(operator, SampleSpec(0.5, 7), 0, None, None, 0)
            case "remove":
                return RemoveOperator(operator)
            case "exchange":
                return ReplaceOperator(operator, SampleSpec(0.25, other))
            case "queue":
                return SetQueue(operator, "append" if other % 3 == 0 else "fifo", 0)
            case _ if not queries:
                return None
            case "rename":
                self.made += 1
                return RenameQuery(name, f"q{self.made}")
            case "replace":
                return self.replacement(name, which, other, order)
            case "watch":
                return WatchProgress(name, not engine.queries_by_name[name].sink.watched)
            case "unshare":
                return UnshareQuery(name, ())
            case "drop" | "pause" | "resume":
                return {"drop": DropQuery, "pause": PauseQuery, "resume": ResumeQuery}[what](name)
        return None


def picture(engine: Engine) -> Any:
    """All that is derived of an engine's queries and its graph."""
    graph = engine.graph
    components = [
        (
            component.name,
            [_row(row) for row in component.table.values()],
            [[one.name for one in group] for group in (component.sources, component.waiters, component.switching)],
            [sink.name for sink in component.sinks],
            {one.name: slope for one, slope in component.ready.slopes.items()},
            all(one.output.ready is component.ready.queue for one in component.table),
        )
        for component in graph.components
    ]
    arcs = {one.name: _arc(one) for one in graph.operators.values()}
    return components, arcs, _decisions(engine), _queries(engine)


def _decisions(engine: Engine) -> Any:
    """What is decided of the graph, in order."""
    forks, resting, components, strategies, breaks, links = engine.graph.decisions()
    return (
        {one.name: name for one, (_, name) in forks.items()},
        {one.name: (name, turn) for one, (_, name, turn) in resting.items()},
        {one.name: decided for one, decided in components.items()},
        {one.name: strategy for one, strategy in strategies.items()},
        [one.name for one in breaks],
        {one.name: link.view() for one, link in links.items()},
    )


def _queries(engine: Engine) -> Any:
    """Which operators queries have, by what names, and which of them have equal definitions."""
    operators, alike = engine.graph.operators.values(), engine.alike
    owners = {one.name: [query.plan.name for query in engine.owners(one)] for one in operators}
    nodes = {
        node.name: engine.named(node.name).name
        for query in engine.queries_by_name.values()
        for node in query.plan.nodes
    }
    members = {
        one.name: [
            (member.query.plan.name, member.node, member.operator.name)
            for query in engine.owners(one)
            for node in query.plan.nodes
            if engine.named(node.name) is one
            for member in alike.members(node, [engine.graph.producer(inlet) for inlet in one.inputs])
        ]
        for one in operators
    }
    groups = [[(member.query.plan.name, member.operator.name) for member in group] for group in alike.groups(engine)]
    return owners, nodes, members, groups, alike.unique, list(engine.remembering)


def _row(row: Row) -> Any:
    moves = [None if move is None else (move.operator.name, move.execute) for move in (row.ahead, *row.back)]
    branches = [(move.operator.name, move.execute) for move in row.branches]
    leaps = [(_inlet(register), leap.operator.name) for register, leap in row.ets_arcs]
    readers, sinks = [_inlet(reader) for reader in row.readers], [sink.name for sink in row.sinks]
    if row.role is Role.FORK:
        assert [reader.place for reader in row.readers] == list(range(len(readers)))
        assert len(row.operator.output.awake) == len(readers)
    place = row.moves, row.leaves, row.limit, row.operator.output.routing is not None
    return row.view(), moves, branches, leaps, readers, sinks, row.role, place


def _arc(operator: Any) -> Any:
    output = operator.output
    arcs = operator.ets_arcs if isinstance(operator, Source | IdleWaiting) else ()
    return (
        [(_inlet(reader), reader.consumer.declares() and reader.grain) for reader in output.readers],
        [entry.name for entry in output.entries],
        (output.punctuates, output.grain if output.punctuates else None),
        [(_inlet(arc.register), arc.target.name, [_inlet(one) for one in arc.between]) for arc in arcs],
    )


def _inlet(reader: Inlet) -> Any:
    assert reader.consumer is not None
    return reader.consumer.name, reader.consumer.inputs.index(reader)


@settings(max_examples=examples(300))
@given(st.booleans(), st.lists(CHOICES, min_size=1, max_size=14))
def test_what_is_derived_for_changed_operators_alone_is_what_follows_from_all_of_them(
    share: bool, choices: list[tuple[str, int, int, int, str, str]]
) -> None:
    world = World(share=share)
    for choice in choices:
        world.choose(*choice)
        saved = world.engine.save()
        restored = Engine.restore(saved)
        assert picture(restored) == picture(world.engine)
        assert restored.save() == saved


def test_a_paused_query_is_below_the_fork_that_appears_meanwhile():
    world = World(share=False)
    world.obey(world.planned("CREATE QUERY early AS SELECT a FROM s1 WHERE a = 1"))
    world.obey(PauseQuery("early"))
    for number in (2, 3):
        world.obey(world.planned(f"CREATE QUERY later{number} AS SELECT a FROM s1 WHERE a = {number}"))
    assert picture(world.engine) == picture(Engine.restore(world.engine.save()))


def test_an_operator_whose_input_drops_tuples_is_not_shared():
    world = World(share=True)
    world.obey(world.planned("CREATE QUERY first AS SELECT a, b FROM s1 WHERE a = 3"))
    world.obey(world.planned("CREATE QUERY other AS SELECT a, b FROM s2 WHERE a = 3"))
    world.obey(SetQueue("first.filter1", "fifo", 0))
    world.obey(world.planned("CREATE QUERY second AS SELECT a, b FROM s1 WHERE a = 3"))
    assert "second.filter1" in world.engine.graph.operators
    assert picture(world.engine) == picture(Engine.restore(world.engine.save()))


def test_a_replaced_query_that_reads_a_younger_one_comes_after_it():
    world = World(share=False)
    for number in (1, 2):
        world.obey(world.planned(f"CREATE QUERY p{number} AS SELECT a FROM s1 WHERE a = {number}"))
    body = world.planned("CREATE QUERY new AS SELECT a FROM p2 WHERE a > 0")
    assert isinstance(body, AddQuery)
    world.obey(ReplaceQuery(body.plan.renamed("new", "p1")))
    assert [*world.engine.queries_by_name] == ["p2", "p1"]
    assert picture(world.engine) == picture(Engine.restore(world.engine.save()))


def test_a_query_reads_an_operator_in_the_place_of_another():
    world = World(share=True)
    world.obey(world.planned("CREATE QUERY below AS SELECT a, b FROM s1 WHERE a = 3"))
    world.obey(world.planned("CREATE QUERY above AS SELECT a + b AS a FROM below"))
    world.obey(PauseQuery("above"))
    assert world.engine.alike.unique
    world.obey(ReplaceOperator("below.filter1", SampleSpec(0.25, 7)))
    assert picture(world.engine) == picture(Engine.restore(world.engine.save()))


def test_a_small_change_leaves_the_rest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the order of all operators nor all that follows from them is found again."""
    world = World(share=True)
    for number in range(30):
        world.obey(world.planned(f"CREATE QUERY p{number} AS SELECT a FROM s1 WHERE a = {number}"))

    def all_of_it(*_: object) -> None:
        raise AssertionError("it looks at all operators")

    monkeypatch.setattr(Graph, "_derive_all", all_of_it)
    monkeypatch.setattr(rewiring, "_arranged", all_of_it)
    twin = world.planned("CREATE QUERY twin AS SELECT a FROM s1 WHERE a = 3")
    extra = world.planned("CREATE QUERY extra AS SELECT b FROM s1 WHERE a = -1")
    for commands in (
        (twin,),
        (UnshareQuery("twin"),),
        (DropQuery("twin"),),
        (twin,),
        (UnshareQuery("p3"),),
        (DropQuery("twin"),),
        (twin,),
        (DropQuery("p3"),),
        (extra, PauseQuery("p4")),
        (ResumeQuery("p4"), DropQuery("extra")),
        (extra, PauseQuery("extra"), SetStrategy("s1", "bfs", "p5.filter1")),
        (RenameQuery("extra", "other"), DropQuery("other")),
    ):
        world.obey(*commands)
    monkeypatch.undo()
    assert picture(world.engine) == picture(Engine.restore(world.engine.save()))


def test_an_operator_goes_to_the_next_of_its_queries() -> None:
    world = World(share=True)
    for name in ("first", "below", "second"):
        read = "first" if name == "below" else "s1"
        world.obey(world.planned(f"CREATE QUERY {name} AS SELECT a, b FROM {read} WHERE a = 3"))
    assert world.engine.named("first.filter1") is world.engine.named("second.filter1")
    world.obey(UnshareQuery("first"))
    names = [*world.engine.graph.operators]
    assert names[2:] == [
        "first.filter1",
        "first.sink1",
        "below.filter1",
        "below.sink1",
        "second.filter1",
        "second.sink1",
    ]
    assert picture(world.engine) == picture(Engine.restore(world.engine.save()))
