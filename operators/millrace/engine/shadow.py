"""What a list of commands would do, found out on an engine that holds the same definitions and decisions and no tuple.

The shadow obeys them as the engine itself would, so a plan is never another opinion: what it refuses, the engine would
refuse, and the engine does the same afterwards. Its operators are copies of the engine's, in the same places.

It is built from a snapshot, which holds what changes between two steps alone: a driver may build it, and plan on it,
while the engine runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from millrace.engine import events as e
from millrace.engine import streams
from millrace.engine.faults import ask_quietly
from millrace.engine.graph.graph import GraphDecisions
from millrace.engine.graph.rewire import adding, pausing, sharing
from millrace.engine.plan import QueryPlan, StreamDefinition, origin_of
from millrace.engine.scheduler.component import Component
from millrace.operators.fork.fork import Fork
from millrace.operators.frame.operator import Operator
from millrace.operators.sink.sink import Sink
from millrace.operators.source.source import Source
from millrace.protocol import Refuse
from millrace.protocol.admin.changes import (
    Fate,
    FateView,
    OperatorFateView,
    PartsView,
    PlannedRowView,
    PlannedTablesView,
    PlanView,
    QueryFateView,
)
from millrace.protocol.admin.operators import RowView
from millrace.protocol.admin.queries import SharedView

if TYPE_CHECKING:
    from millrace.engine.engine import Engine
    from millrace.engine.events import CommandBody
    from millrace.engine.scheduler.table import Row


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a shadow is built of, as it was between two steps. Taking it copies what is there and computes nothing.

    empty      makes an engine of the same settings
    operators  by name, in order of their making. What is decided of each, and what its output promises, is read when a
               shadow is built: meanwhile a promise may rise
    streams    by name, the definitions
    queries    in their order
    states     by operator with a state, the number of tuples in it
    graph      what is decided of the graph
    last_id    of the operators of all queries that have ever been
    """

    empty: Callable[[], Engine]
    operators: Mapping[str, Operator]
    streams: Mapping[str, StreamDefinition]
    queries: Sequence[_Query]
    states: Mapping[str, int]
    graph: GraphDecisions
    last_id: int

    @staticmethod
    def of(engine: Engine) -> Snapshot:
        empty = partial(
            type(engine),
            thin=engine.graph.thin,
            credit=engine.credit,
            most_queued=engine.most_queued,
            share=engine.share,
        )
        return Snapshot(
            empty,
            engine.graph.operators.copy(),
            {name: stream.definition for name, stream in engine.streams_by_name.items()},
            [_Query(one.plan, one.operators, one.sink, one.paused, one.failed)
             for one in engine.queries_by_name.values()],
            {one.name: ask_quietly(partial(getattr, one, "state_tuples"), 0)
             for query in engine.remembering.values() for one in query.operators if _remembers(one)},
            engine.graph.decisions(),
            engine.last_id,
        )  # fmt: skip

    def shadow(self, names: Collection[str] | None = None) -> Engine:
        """An engine with the same streams, queries, strategies, break points, weights and pauses, and no tuple. With
        names: as much of it as changes about the streams and queries of these names may depend on."""
        engine = self.empty()
        queries = self.queries if names is None else self._related(names)
        sinks, shared = {query.sink: query for query in queries}, self._shared(queries)
        streams_read = {stream for query in queries for stream in query.plan.reads_streams}
        read = {*streams_read, *(origin_of(stream) or stream for stream in streams_read), *(names or ())}
        owned = {operator for query in queries for operator in (*query.operators, query.sink)}
        there: list[Operator] = []
        for operator in self.operators.values():
            if isinstance(operator, Source):
                if names is None or operator.stream in read:
                    streams.make(engine, self.streams[operator.stream])
                    there.append(operator)
            elif operator in owned:
                there.append(operator)
                if isinstance(operator, Sink):
                    adding.make(engine, sinks[operator].plan, saved=shared[operator])
        engine.fresh.clear()
        engine.expendable = True
        engine.last_id = self.last_id
        twins = dict(zip(there, engine.graph.operators.values(), strict=True))
        for operator, twin in twins.items():
            if type(operator).decision is not Operator.decision:
                decision = ask_quietly(operator.decision, None)
                if decision is not None:
                    twin.decide(decision)
            if not isinstance(operator, Sink):
                twin.output.inherit_progress(*operator.output.progress())
        for query in queries:
            mine = engine.queries_by_name[query.plan.name]
            if query.paused is not None:
                pausing.leave(engine, mine, query.paused)
            mine.failed = query.failed
        engine.graph.decide(self.graph, twins)
        return engine

    def _related(self, names: Collection[str]) -> list[_Query]:
        """The queries of these names and all that read them, directly or not; all that these read; and the queries that
        share operators with any of them."""
        by_name = {query.plan.name: query for query in self.queries}
        readers: dict[str, list[str]] = {}
        owners: dict[Operator, list[str]] = {}
        for name, query in by_name.items():
            for read in query.plan.reads_queries:
                readers.setdefault(read, []).append(name)
            for operator in query.operators:
                owners.setdefault(operator, []).append(name)
        below = _reachable([name for name in names if name in by_name], lambda name: readers.get(name, ()))
        related = _reachable(
            below,
            lambda name: (
                *by_name[name].plan.reads_queries,
                *(other for operator in by_name[name].operators for other in owners[operator]),
            ),
        )
        return [query for name, query in by_name.items() if name in related]

    def _shared(self, queries: Sequence[_Query]) -> dict[Sink, dict[str, str]]:
        """By query, the operators that it has from others, by node."""
        names = {operator: name for name, operator in self.operators.items()}
        firsts: dict[Operator, Sink] = {}
        for query in queries:
            for operator in query.operators:
                firsts.setdefault(operator, query.sink)
        return {
            query.sink: {
                node.name: names[operator]
                for node, operator in zip(query.plan.nodes, query.operators, strict=True)
                if firsts[operator] is not query.sink
            }
            for query in queries
        }


def _reachable(names: Iterable[str], following: Callable[[str], Iterable[str]]) -> dict[str, None]:
    found = dict.fromkeys(names)
    todo = list(found)
    while todo:
        new = [name for name in following(todo.pop()) if name not in found]
        found |= dict.fromkeys(new)
        todo += new
    return found


class _Query(NamedTuple):
    """A query: its plan and operators, why it is paused, and whether it failed."""

    plan: QueryPlan
    operators: Sequence[Operator]
    sink: Sink
    paused: str | None
    failed: bool


def shadow_of(engine: Engine) -> Engine:
    return Snapshot.of(engine).shadow()


def _remembers(operator: Operator) -> bool:
    return type(operator).state_tuples is not Operator.state_tuples


@contextmanager
def cast(snapshot: Snapshot, names: Collection[str] | None = None) -> Iterator[Engine]:
    """A shadow, taken apart after use. Left to the cyclic collector, it would occupy memory for long, and a collection
    would stop all threads while it examines it."""
    shadow = snapshot.shadow(names)
    try:
        yield shadow
    finally:
        vars(shadow.time).clear()
        shadow.graph.take_apart()


def check(snapshot: Snapshot, commands: Sequence[CommandBody]) -> None:
    """Refuse what cannot be obeyed as a whole."""
    with cast(snapshot, _mentioned(commands)) as shadow:
        for command in commands:
            shadow.carry_out(command)


def _mentioned(commands: Iterable[CommandBody]) -> set[str] | None:
    """The streams and queries that commands are about, or read; None if they may depend on any."""
    names: set[str] = set()
    for command in commands:
        match command:
            case e.AddQuery(plan) | e.ReplaceQuery(plan):
                names |= {plan.name, *plan.reads_streams, *plan.reads_queries}
            case e.DropQuery(name) | e.PauseQuery(name) | e.ResumeQuery(name) | e.UnshareQuery(name):
                names.add(name)
            case e.SetOrder(name):
                names.add(name)
            case e.RenameQuery(name, to):
                names |= {name, to}
            case e.SetQueue(name) | e.RemoveOperator(name) | e.ReplaceOperator(name) | e.InsertOperator(name):
                names.add(name.partition(".")[0])
            case e.AddStream(stream):
                names.add(stream.name)
            case _:
                return None
    return names


def plan(snapshot: Snapshot, commands: Sequence[CommandBody]) -> PlanView:
    """What the commands would do. Raises what the engine would refuse."""
    with cast(snapshot) as shadow:
        before = _Picture.of(shadow)
        for command in commands:
            shadow.carry_out(command)
        return _differences(snapshot, before, _Picture.of(shadow))


def _differences(snapshot: Snapshot, before: _Picture, after: _Picture) -> PlanView:
    return PlanView(
        streams=_fates(before.streams, after.streams),
        queries=_queries(snapshot.states, before, after),
        components=_components(before, after),
        merges=_many(after.components, before.component_of),
        splits=_many(before.components, after.component_of),
        table=_tables(before, after),
    )


# -- what there is -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Picture:
    """The state of an engine between two steps. Operators keep their identity while their names may change.

    streams     by name, the definition
    queries     by name: the plan, whether it is paused, and its operators with the sink
    names       of the operators, in order of their making
    rows        by operator: its row in the state table, and its break point
    components  by name, the operators in it
    shared      by query, what it has in common with others
    copies      operators that stand for shared ones, with their state
    """

    streams: Mapping[str, object]
    queries: Mapping[str, tuple[object, tuple[Operator, ...]]]
    names: Mapping[Operator, str]
    rows: Mapping[Operator, tuple[RowView, str | None]]
    components: Mapping[str, tuple[Operator, ...]]
    component_of: Mapping[Operator, str]
    decided: Mapping[str, object]
    shared: Mapping[str, list[SharedView]]
    copies: Mapping[Operator, Operator]

    @staticmethod
    def of(engine: Engine) -> _Picture:
        graph = engine.graph
        operators = list(graph.operators.values())
        members: dict[str, list[Operator]] = {component.name: [] for component in graph.components}
        for one in operators:
            members[graph.component_of(one).name].append(one)
        components = {name: tuple(found) for name, found in members.items()}
        return _Picture(
            {name: stream.definition for name, stream in engine.streams_by_name.items()},
            {
                name: ((query.plan, query.paused, query.failed), (*query.operators, query.sink))
                for name, query in engine.queries_by_name.items()
            },
            {operator: operator.name for operator in operators},
            {row.operator: _row(engine, row) for found in graph.components for row in found.table.values()},
            components,
            {one: name for name, members in components.items() for one in members},
            {component.name: _decided(component) for component in graph.components},
            {name: sharing.told(engine, query) for name, query in engine.queries_by_name.items()},
            dict(engine.copied),
        )


def _row(engine: Engine, row: Row) -> tuple[RowView, str | None]:
    return row.view(), None if isinstance(row.operator, Fork) else engine.graph.broken(row.operator)


def _decided(component: Component) -> object:
    return str(component.strategy), component.weight


# -- what becomes of it ------------------------------------------------------------------------------------------------


def _fates(before: Mapping[str, object], after: Mapping[str, object]) -> list[FateView]:
    return [FateView(name=name, change=_fate(name, before, after)) for name in {**before, **after}]


def _fate(name: str, before: Mapping[str, object], after: Mapping[str, object]) -> Fate:
    if name not in after:
        return "goes"
    if name not in before:
        return "appears"
    return "stays" if before[name] == after[name] else "changes"


def _queries(states: Mapping[str, int], before: _Picture, after: _Picture) -> list[QueryFateView]:
    entries = []
    for old, name in _pairs(before, after):
        was, now = before.queries.get(old or ""), after.queries.get(name or "")
        operators = [*(() if was is None else was[1]), *(() if now is None else now[1])]
        parts = [_operator(states, operator, before, after) for operator in dict.fromkeys(operators)]
        fate: Fate = "goes" if now is None else "appears" if was is None else "stays"
        if was is not None and now is not None and (was[0] != now[0] or any(p.change != "stays" for p in parts)):
            fate = "changes"
        entries.append(
            QueryFateView(
                name=name or old or "",
                was=old if name is not None and old != name else None,
                change=fate,
                operators=parts,
                shared=after.shared.get(name or "", []),
            )
        )
    return entries


def _pairs(before: _Picture, after: _Picture) -> Iterator[tuple[str | None, str | None]]:
    """Each query's name before and after; a query keeps its sink."""
    names = {operators[-1]: name for name, (_, operators) in after.queries.items()}
    outputs = {operators[-1]: name for name, (_, operators) in before.queries.items()}
    for sink, name in outputs.items():
        yield name, names.get(sink)
    for sink, name in names.items():
        if sink not in outputs:
            yield None, name


def _operator(states: Mapping[str, int], operator: Operator, before: _Picture, after: _Picture) -> OperatorFateView:
    was, now = before.names.get(operator), after.names.get(operator)
    fate: Fate = "goes" if now is None else "appears" if was is None else "stays"
    if fate == "stays" and (was != now or before.rows.get(operator) != after.rows.get(operator)):
        fate = "changes"
    origin = operator
    while origin in after.copies:  # it continues with the state of another
        origin = after.copies[origin]
    remembered = before.names.get(origin)
    held = 0 if remembered is None else states.get(remembered, 0)
    state = None
    if _remembers(operator):
        state = "begins empty" if remembered is None else "forgotten" if now is None else "kept"
    return OperatorFateView(
        operator=now or was or "",
        was=was if was != now else None,
        kind=operator.kind,
        change=fate,
        state=state,
        state_tuples=held,
    )


def _components(before: _Picture, after: _Picture) -> list[FateView]:
    was = {name: (before.decided[name], _named(before, members)) for name, members in before.components.items()}
    now = {name: (after.decided[name], _named(after, members)) for name, members in after.components.items()}
    return _fates(was, now)


def _named(picture: _Picture, members: Iterable[Operator]) -> list[str]:
    return [picture.names[member] for member in members]


def _many(whole: Mapping[str, tuple[Operator, ...]], part_of: Mapping[Operator, str]) -> list[PartsView]:
    """The components whose operators are in several on the other side."""
    entries = []
    for name, members in whole.items():
        parts = list(dict.fromkeys(part_of[member] for member in members if member in part_of))
        if len(parts) > 1:
            entries.append(PartsView(component=name, parts=parts))
    return entries


def _tables(before: _Picture, after: _Picture) -> PlannedTablesView:
    """The rows of the state tables that are not the same on both sides."""
    was, now = _rows(before), _rows(after)
    return PlannedTablesView(
        before=[row for name, row in was.items() if now.get(name) != row],
        after=[row for name, row in now.items() if was.get(name) != row],
    )


def _rows(picture: _Picture) -> dict[str, PlannedRowView]:
    return {
        row.state: PlannedRowView(
            component=picture.component_of.get(operator),
            state=row.state,
            pred=row.pred,
            succ=row.succ,
            transition=row.transition,
            chain=row.chain,
            break_=broken,
        )
        for operator, (row, broken) in picture.rows.items()
    }


def disagree(raised: Exception) -> Refuse:
    """The engine refused what its shadow had obeyed, and has been brought back."""
    return Refuse(
        f"the engine refused a change whose trial had succeeded: {raised}. Everything is as it was before the change. "
        "This is a fault of Millrace: please report it",
        code="rolled_back",
    )
