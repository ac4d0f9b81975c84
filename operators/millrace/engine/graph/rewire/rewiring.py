"""How the graph changes, whatever the reason: a change is described first, and then carried out here, as a whole.

Describing may refuse, and touches nothing: new operators are built on inlets that no arc knows yet. Carrying out
refuses nothing. It connects the new operators, hands inlets over from one arc to another, takes out the operators
that no plan has any more, and names each operator as its first query does. An operator's decisions and costs go
with it, or to the one that takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.engine.graph.graph import Exchanged, hand_over
from millrace.engine.plan import QueryPlan
from millrace.operators.frame.buffer import Buffer
from millrace.operators.frame.idle_waiting import IdleWaiting
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator
from millrace.operators.sink.sink import Sink
from millrace.operators.source.source import Source

if TYPE_CHECKING:
    from millrace.engine.engine import Engine
    from millrace.engine.queries import Query


@dataclass(slots=True)
class Rewiring:
    """A change of the graph, described.

    after    the queries that differ after it: their plans, and their operators in plan order
    gone     the queries that leave, and `sources` those of streams that leave
    handed   (from, to, inlets): inlets that continue at another arc, with all that they have not taken
    joined   (from, to): arcs whose readers, which have taken all, continue at the end of another one
    instead  by operator: the one that takes its place on the same arcs
    """

    after: list[tuple[Query, QueryPlan, list[Operator]]] = field(default_factory=list)
    gone: Sequence[Query] = ()
    sources: Sequence[Source] = ()
    handed: list[tuple[Buffer, Buffer, Sequence[Inlet]]] = field(default_factory=list)
    joined: Sequence[tuple[Buffer, Buffer]] = ()
    instead: Mapping[Operator, Operator] = field(default_factory=dict)


def carry_out(engine: Engine, change: Rewiring) -> None:
    """Make the graph what the description says."""
    graph = engine.graph
    former = {query: (query.plan, query.operators) for query, _, _ in change.after}
    readers = [one for query, _, operators in change.after for one in (*operators, query.sink)]
    firsts = _first_owners(engine, [*change.gone, *former], readers)
    arcs = [arc for old, new, _ in change.handed for arc in (old, new)]
    arcs += [arc for both in change.joined for arc in both]
    inlets = [inlet for _, _, handed in change.handed for inlet in handed]
    inlets += [inlet for old, _ in change.joined for inlet in old.readers]
    new = list(dict.fromkeys(one for one in readers if graph.operators.get(one.name) is not one))
    instead = dict.fromkeys(change.instead.values())
    connect(one for one in new if one not in instead)
    for old, after, handed in change.handed:
        after.succeed(old, handed)
    for old, after in change.joined:
        for inlet in list(old.readers):
            inlet.change_arc(after)
    for query, plan, operators in change.after:
        query.become(plan, operators)
        query.sink.output = query.sink.inputs[0].arc
    kept = [query for query in engine.queries_by_name.values() if query not in change.gone]
    engine.queries_by_name = {query.plan.name: query for query in kept}
    engine.queries_left(change.gone)
    engine.queries_exchanged(former)
    sinks = [query.sink for query in change.gone]
    left = dict.fromkeys([*change.sources, *(one for one in firsts if not engine.owners(one)), *sinks])
    moved = [one for one, first in firsts.items() if one not in left and engine.owners(one)[0] is not first]
    others = [query for query, (_, operators) in former.items() if query.operators != operators]
    others += [engine.owners(one)[0] for one in moved]
    placed = _in_place(engine, dict.fromkeys(others), left)
    in_place = placed is not None
    if placed is None:
        engine.queries_changed()
        placed = _arranged(engine)
    gone = [one for one in left if one not in change.instead]
    _leave(gone)
    names = _names(engine, dict.fromkeys([*former, *others]) if in_place else kept)
    _hand_costs(engine, change.instead, gone)
    readers += [*moved, *(inlet.consumer for inlet in inlets if inlet.consumer is not None)]
    exchanged = Exchanged(new, gone, change.instead, readers, arcs, moved, in_place=in_place)
    graph.become(placed, names, exchanged)
    if in_place:
        reading = [query for inlet in inlets for query in _owners(engine, inlet.consumer)]
        engine.list_alike(dict.fromkeys([*former, *reading, *_readers_of(engine, change)]))
    else:
        place = {operator: position for position, operator in enumerate(placed)}
        kept.sort(key=lambda query: place[query.sink])
        engine.queries_by_name = {query.plan.name: query for query in kept}
        engine.queries_changed()
    assert _is_whole(engine, list(former))


def _first_owners(engine: Engine, queries: Iterable[Query], after: Iterable[Operator]) -> dict[Operator, Query | None]:
    """The operators that queries have or will have, and the first query that has each now."""
    operators = dict.fromkeys([*(one for query in queries for one in query.operators), *after])
    return {one: next(iter(engine.owners(one)), None) for one in operators if not isinstance(one, Sink)}


def _owners(engine: Engine, operator: Operator | None) -> Sequence[Query]:
    return () if operator is None else engine.owners(operator)


def _readers_of(engine: Engine, change: Rewiring) -> Sequence[Query]:
    """The queries that read an operator which stands in the place of another."""
    names = {query.plan.name for query, _, _ in change.after} if change.instead else set()
    if not names:
        return ()
    return [query for query in engine.queries_by_name.values() if not names.isdisjoint(query.plan.reads_queries)]


def _in_place(engine: Engine, queries: Iterable[Query], left: Mapping[Operator, None]) -> list[Operator] | None:
    """The same as `_arranged`, where only these queries have other operators than before, and all stay in their places.
    None if one would come before what it reads."""
    blocks = {query.sink: [one for one in query.operators if engine.owners(one)[0] is query] for query in queries}
    own = dict.fromkeys(one for block in blocks.values() for one in block)
    away = {**left, **own}
    placed = [one for one in engine.graph.operators.values() if one not in away]
    for sink, block in blocks.items():
        at = placed.index(sink)
        placed[at:at] = block
    place = dict(zip(placed, range(len(placed)), strict=True)) if own else {}
    makers = {id(one.output): one for one in own}
    for operator in own:
        read = (makers.get(id(inlet.arc)) or engine.graph.producer(inlet) for inlet in operator.inputs)
        readers = (reader.consumer for reader in operator.output.readers)
        if any(place[one] > place[operator] for one in read) or any(
            place.get(one, place[operator]) < place[operator] for one in readers if one is not None
        ):
            return None
    return placed


def connect(operators: Iterable[Operator]) -> None:
    """Let new operators read."""
    for operator in operators:
        for inlet in operator.inputs:
            inlet.arc.admit(inlet)


def _leave(gone: Sequence[Operator]) -> None:
    for operator in gone:
        if isinstance(operator, IdleWaiting):
            operator.clear()
        for inlet in operator.inputs:
            inlet.remove()


def _hand_costs(engine: Engine, instead: Mapping[Operator, Operator], gone: Sequence[Operator]) -> None:
    """Costs belong to operators, and go with them; one that stands in for another continues with its costs."""
    for old, one in instead.items():
        hand_over(engine.costs, old, one)
        hand_over(engine.chains.estimates, old, one)
    for one in gone:
        engine.costs.pop(one, None)
        engine.chains.estimates.pop(one, None)


def _names(engine: Engine, queries: Iterable[Query]) -> dict[Operator, str]:
    """The operators whose first query, one of these, has another name for them than before."""
    return {
        operator: name
        for query in queries
        for name, operator in zip(
            (*(node.name for node in query.plan.nodes), query.plan.sink), (*query.operators, query.sink), strict=True
        )
        if operator.name != name and engine.owners(operator)[0] is query
    }


def _arranged(engine: Engine) -> list[Operator]:
    """All operators in order of their making: a query's own, and those that it shares with younger ones, together.

    Streams and queries stay where they are, but a query comes after what it reads, and those that read it after it.
    """
    blocks: dict[Operator, list[Operator]] = {}
    queries = {query.sink: query for query in engine.queries_by_name.values()}
    for operator in engine.graph.operators.values():
        if isinstance(operator, Source) and operator.stream in engine.streams_by_name:
            blocks[operator] = [operator]
        elif operator in queries:
            query = queries[operator]
            blocks[operator] = [*(one for one in query.operators if engine.owners(one)[0] is query), operator]
    makers = {id(one.output): key for key, made in blocks.items() for one in made if not isinstance(one, Sink)}
    arranged: list[Operator] = []
    there: set[Operator] = set()
    while blocks:
        ready = next(
            key
            for key, made in blocks.items()
            if all(makers[id(inlet.arc)] in there | {key} for one in made for inlet in one.inputs)
        )
        there.add(ready)
        arranged += blocks.pop(ready)
    return arranged


def _is_whole(engine: Engine, queries: Sequence[Query]) -> bool:
    """Whether operators and arcs of these queries know each other, and are called as their plans say."""
    operators = engine.graph.operators
    for query in queries:
        assert engine.queries_by_name[query.plan.name] is query
        for node, operator in zip(query.plan.nodes, query.operators, strict=True):
            assert operators[operator.name] is operator is engine.named(node.name), node.name
            assert all(_known(operators, reader.consumer) for reader in operator.output.readers), node.name
        for operator in (*query.operators, query.sink):
            for inlet in operator.inputs:
                assert inlet.consumer is operator, operator.name
                assert engine.graph.producer(inlet).name in operators, operator.name
                assert inlet.away == (inlet not in inlet.arc.readers), operator.name
    return True


def _known(operators: Mapping[str, Operator], operator: Operator | None) -> bool:
    return operator is not None and operators.get(operator.name) is operator
