"""Operators that several queries share: found when a query is created, separated before a change to one of them.

Two queries share an operator if its definition, all upstream of it and their options are equal (law 8), and if the new
query then receives exactly the rows that it would receive alone (law 7). That holds in two cases:

    no tuple has passed   both queries were created in one change, or no tuple has arrived at the streams upstream
    it has no state       a select or a map over a stream whose tuples have a time: a later query reads its output, and
                          refuses rows from before its own start

An operator is named after the first of its queries. Each plan keeps its own names, which find it too
(`Engine.named`). Before a change to one query alone (a pause, its failure, another plan, a strategy, a queue) the query
gets separate operators, with the state of the shared ones and all queued tuples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millrace.engine import events as e
from millrace.engine.faults import ask
from millrace.engine.graph.alike import Member, sharable
from millrace.engine.graph.rewire.rewiring import Rewiring, carry_out
from millrace.engine.plan import Node, QueryPlan
from millrace.engine.queries import Query
from millrace.engine.saving import pack, unpack
from millrace.operators.build import build
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator
from millrace.operators.source.source import Source
from millrace.protocol import Refuse
from millrace.protocol.admin.changes import UnshareReply
from millrace.protocol.admin.queries import SharedView
from millrace.values.eventtime import MIN_TIME

if TYPE_CHECKING:
    from millrace.engine.engine import Engine


@dataclass(slots=True)
class Common:
    """What a new query has in common with the running ones.

    operators   by node
    since       from when on the new query reads the rows of each; None: all from now on
    apart       nodes that are equal to an operator and yet built separately, and why
    """

    operators: dict[str, Operator] = field(default_factory=dict)
    since: dict[str, int | None] = field(default_factory=dict)
    apart: dict[str, str] = field(default_factory=dict)


# -- finding -----------------------------------------------------------------------------------------------------------


def common(engine: Engine, plan: QueryPlan) -> Common:
    """The operators of other queries that a new one can share, from the streams downwards as far as all is equal."""
    common = Common()
    for node in plan.nodes:
        same = _same(engine, plan, node, common.operators)
        if same is None:
            continue
        operator = same.operator
        why = _why_apart(engine, same.query, plan, operator)
        if why is not None:
            common.apart[node.name] = f"equal to {operator.name}, but {why}"
            continue
        common.operators[node.name] = operator
        common.since[node.name] = None if _nothing_went_by(engine, operator) else engine.graph.beginning(operator)
    return common


def known(engine: Engine, operators: Mapping[str, str]) -> Common:
    """The operators that a query shared when it was saved."""
    known = {node: engine.graph.operators[name] for node, name in operators.items()}
    return Common(known, dict.fromkeys(known))


def saved(engine: Engine, query: Query) -> dict[str, str]:
    """By node, the operators that a query shares with older ones."""
    return {
        node.name: operator.name
        for node, operator in zip(query.plan.nodes, query.operators, strict=True)
        if engine.owners(operator)[0] is not query
    }


def _same(engine: Engine, plan: QueryPlan, node: Node, there: Mapping[str, Operator]) -> Member | None:
    """An operator that does the same to the same rows."""
    inside = {one.name for one in plan.nodes}
    if not sharable(node) or not all(
        name in there or (name not in inside and engine.knows(name)) for name in node.inputs
    ):
        return None
    inputs = [there[name] if name in there else engine.named(name) for name in node.inputs]
    used = set(there.values())
    return next((one for one in engine.alike.members(node, inputs) if one.operator not in used), None)


def _why_apart(engine: Engine, query: Query, plan: QueryPlan, operator: Operator) -> str | None:
    """Why an equal operator cannot be shared now; None if it can."""
    if query.plan.options != plan.options:
        return "its query has other options"
    if query.paused is not None:
        return f"query {query.plan.name} is paused"
    if engine.graph.decided(operator):
        return "it has a separate strategy or break point"
    if _nothing_went_by(engine, operator):
        return None
    # What still waits above would be read from the mark on although it came earlier.
    newest = plan.options.start == "newest"
    if newest and not plan.reads_queries and _remembers_nothing(engine, operator):
        return None
    return (
        "its state contains tuples that the new query must not read, or such tuples wait without a time or for "
        "another query"
    )


def _nothing_went_by(engine: Engine, operator: Operator) -> bool:
    """No tuple has arrived upstream, nor has it emitted a row, as an aggregate without groups does."""
    if operator in engine.fresh:
        return True
    return not operator.output.end and all(source.last_us == MIN_TIME for source in engine.graph.sources(operator))


def _remembers_nothing(engine: Engine, operator: Operator) -> bool:
    """Whether it and all above it pass tuples of a stream on at once, each with its time."""
    if isinstance(operator, Source):
        return operator.clocking.timestamps != "latent"
    owners = engine.owners(operator)
    spec = next(
        node.spec for node, other in zip(owners[0].plan.nodes, owners[0].operators, strict=True) if other is operator
    )
    return spec.state().shared == "always" and all(
        _remembers_nothing(engine, engine.graph.producer(reader)) for reader in operator.inputs
    )


# -- taking apart ------------------------------------------------------------------------------------------------------


def concerned(engine: Engine, body: e.CommandBody) -> Query | None:
    """The query that a command is about alone, if it shares operators."""
    match body:
        case e.PauseQuery(name) | e.SetOrder(name):
            query = engine.queries_by_name.get(name)
        case e.ReplaceQuery(plan):
            query = engine.queries_by_name.get(plan.name)
        case e.SetBreak(operator) | e.SetQueue(operator) | e.RemoveOperator(operator) | e.ReplaceOperator(operator):
            query = _of(engine, operator)
        case e.InsertOperator(before):
            query = _of(engine, before)
        case e.SetStrategy(operator=str(operator)):
            query = _of(engine, operator)
        case _:
            query = None
    return query if query is not None and shares(engine, query) else None


def _of(engine: Engine, node: str) -> Query | None:
    """The query whose plan has an operator of this name, which starts with the query's."""
    query = engine.queries_by_name.get(node.partition(".")[0])
    return query if query is not None and any(other.name == node for other in query.plan.nodes) else None


def shares(engine: Engine, query: Query) -> bool:
    return any(len(engine.owners(operator)) > 1 for operator in query.operators)


def part(engine: Engine, command: e.UnshareQuery) -> UnshareReply:
    """Obey UnshareQuery: for all that a query shares, or for some operators and all downstream of them."""
    query = engine.query(command.name)
    own = [node.name for node in query.plan.nodes]
    unknown = [name for name in command.operators if name not in own]
    if unknown:
        raise Refuse(f"query {query.plan.name} has no operator {unknown[0]}", code="unknown_operator")
    before = {entry.node for entry in told(engine, query) if entry.with_}
    if command.lasting:
        query.separate |= dict.fromkeys(_and_readers(query, command.operators or own))
    unshare(engine, query, command.operators or own)
    after = {entry.node for entry in told(engine, query) if entry.with_}
    return UnshareReply(query=query.plan.name, operators=[name for name in own if name in before - after])


def apart(engine: Engine) -> dict[str, list[str]]:
    """By query, the operators that are separate at present although an older query has equal ones: one was changed, or
    started later. Created again, the two would share them. The first of two such operators that a row meets have the
    same inputs, so the index knows their queries."""
    concerned = engine.alike.queries()
    if not concerned:
        return {}
    numbers: dict[Any, int] = {}  # equal definitions over equal inputs have one number
    firsts: dict[int, Operator] = {}
    separate: dict[str, list[str]] = {}
    for query in engine.queries_by_name.values():
        if query not in concerned:
            continue
        own: dict[str, int] = {}
        for node, operator in zip(query.plan.nodes, query.operators, strict=True):
            inputs = tuple(own.get(name, name) for name in node.inputs)
            edges = tuple(node.edge(at) for at in range(len(inputs)))
            definition = node.spec, inputs, edges, query.plan.options
            number = own[node.name] = numbers.setdefault(definition, len(numbers))
            if sharable(node) and firsts.setdefault(number, operator) is not operator:
                separate.setdefault(query.plan.name, []).append(node.name)
    return separate


def unshare(engine: Engine, query: Query, nodes: Sequence[str] | None = None, *, remembering: bool = True) -> None:
    """Build separate operators for a query, with the state of the shared ones and all queued tuples: for all shared
    ones, or for the ones with these names and all that read them.

    No row is lost or repeated: the query's readers find the rows that they have not taken. The other queries keep the
    operators, which are named after the next of them. A query that is about to be dropped needs no state.
    """
    places = {
        operator: node
        for node, operator in zip(query.plan.nodes, query.operators, strict=True)
        if len(engine.owners(operator)) > 1
    }
    if nodes is not None:
        below = _and_readers(query, nodes)
        places = {operator: node for operator, node in places.items() if node.name in below}
    if not places:
        return
    twins = {operator: _twin(engine, node, operator, remembering) for operator, node in places.items()}
    change = Rewiring([(query, query.plan, [twins.get(operator, operator) for operator in query.operators])])
    for operator, node in reversed(places.items()):
        inlets = _inlets(engine, query, node.name, twins)
        change.handed.append((operator.output, twins[operator].output, inlets))
    strategies = {twins[operator]: engine.graph.strategies.get(operator) for operator in places}
    carry_out(engine, change)
    engine.graph.strategies |= {twin: chosen for twin, chosen in strategies.items() if chosen is not None}
    engine.copied |= {twin: operator for operator, twin in twins.items()}
    tighten(engine, [*twins.values(), *places])


def _and_readers(query: Query, nodes: Sequence[str]) -> dict[str, None]:
    """These nodes of a query, and all that read them."""
    below = dict.fromkeys(nodes)
    for node in query.plan.nodes:
        if not below.keys().isdisjoint(node.inputs):
            below[node.name] = None
    return below


def _twin(engine: Engine, node: Node, operator: Operator, remembering: bool) -> Operator:
    """The same operator once more, with an inlet at each place where the first one reads."""
    inlets = [Inlet(inlet.arc, inlet.since_us, inlet.columns, inlet.names) for inlet in operator.inputs]
    for inlet, first in zip(inlets, operator.inputs, strict=True):
        inlet.restore(unpack(pack(first.save())))
    twin = build(node.name, node.spec, inlets, engine.gauge, engine.clock)
    if remembering:
        state = ask(operator, operator.save)
        ask(operator, lambda: twin.restore(unpack(pack(state))))
    twin.output.inherit_progress(*operator.output.progress())
    twin.output.floor = operator.output.floor
    return twin


def tighten(engine: Engine, operators: Sequence[Operator]) -> None:
    """An operator need not take tuples that all its readers refuse as older than their start. Operators are in the
    order of their plan."""
    if not any(engine.graph.has(operator) for operator in operators):
        return
    since = {id(one.output): [inlet.since_us for inlet in one.output.readers] for one in operators}
    for query in engine.queries_by_name.values():
        if query.paused is not None:  # its inlets are away
            for inlet in (inlet for one in (*query.operators, query.sink) for inlet in one.inputs):
                if id(inlet.arc) in since:
                    since[id(inlet.arc)].append(inlet.since_us)
    for operator in reversed(operators):
        times = since[id(operator.output)]
        known = [time for time in times if time is not None]
        if known and len(known) == len(times):
            for inlet in operator.inputs:
                inlet.since_us = max(min(known), min(known) if inlet.since_us is None else inlet.since_us)


def _inlets(engine: Engine, query: Query, name: str, twins: Mapping[Operator, Operator]) -> list[Inlet]:
    """The inlets that read an operator by its name in the query's plan: the query's, and those of its readers."""
    inlets: dict[Inlet, None] = {}
    for other in engine.queries_by_name.values():
        if other is not query and query.plan.name not in other.plan.reads_queries:
            continue
        for node, operator in zip(other.plan.nodes, other.operators, strict=True):
            own = twins.get(operator, operator) if other is query else operator
            inlets |= {own.inputs[at]: None for at, read in enumerate(node.inputs) if read == name}
    if query.plan.output == name:
        inlets[query.sink.inputs[0]] = None
    return list(inlets)


def told(engine: Engine, query: Query) -> list[SharedView]:
    """The operators that a query shares, and those that it could share, for people."""
    entries: list[SharedView] = []
    for node, operator in zip(query.plan.nodes, query.operators, strict=True):
        others = [owner.plan.name for owner in engine.owners(operator) if owner is not query]
        if others:
            entries.append(SharedView(node=node.name, operator=operator.name, with_=others, apart=None))
        elif node.name in query.apart:
            apart = query.apart[node.name]
            entries.append(SharedView(node=node.name, operator=operator.name, with_=[], apart=apart))
    return entries
