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
    from millrace.engine.engine import Engine, Former
    from millrace.engine.queries import Query


@dataclass(slots=True)
class Rewiring:
    """A change of the graph, described.

    after    the queries that differ after it: their plans, and their operators in plan order
    gone     the queries that leave, and `sources` those of streams that leave
    handed   (from, to, inlets): inlets that continue at another arc, with all that they have not taken
    joined   (from, to): arcs whose readers, which have taken all, continue at the end of another one
    instead  by operator: the one that takes its place on the same arcs
    forks    other names for forks
    """

    after: list[tuple[Query, QueryPlan, list[Operator]]] = field(default_factory=list)
    gone: Sequence[Query] = ()
    sources: Sequence[Source] = ()
    handed: list[tuple[Buffer, Buffer, Sequence[Inlet]]] = field(default_factory=list)
    joined: Sequence[tuple[Buffer, Buffer]] = ()
    instead: Mapping[Operator, Operator] = field(default_factory=dict)
    forks: Mapping[Operator, str] = field(default_factory=dict)


def carry_out(engine: Engine, change: Rewiring) -> None:
    """Make the graph what the description says."""
    graph = engine.graph
    former = {query: (query.plan, query.operators) for query, _, _ in change.after}
    alone = _concerns_them_alone(engine, change)
    readers = [one for query, _, operators in change.after for one in (*operators, query.sink)]
    arcs = [arc for old, new, _ in change.handed for arc in (old, new)]
    arcs += [arc for both in change.joined for arc in both]
    new = list(dict.fromkeys(one for one in readers if graph.operators.get(one.name) is not one))
    instead = dict.fromkeys(change.instead.values())
    connect(one for one in new if one not in instead)
    for old, after, inlets in change.handed:
        after.succeed(old, inlets)
    for old, after in change.joined:
        for inlet in list(old.readers):
            inlet.change_arc(after)
    for query, plan, operators in change.after:
        query.become(plan, operators)
        query.sink.output = query.sink.inputs[0].arc
    kept = [query for query in engine.queries_by_name.values() if query not in change.gone]
    engine.queries_by_name = {query.plan.name: query for query in kept}
    left = _left(change, former)
    placed = _in_place(engine, change, former, left) if alone else None
    in_place = placed is not None
    if placed is None:
        engine.queries_changed()
        placed = _arranged(engine)
        stays = dict.fromkeys(placed)
        left = {one: None for one in graph.operators.values() if one not in stays}
    else:
        engine.queries_left(change.gone)
        engine.queries_exchanged(former)
    gone = [one for one in left if one not in change.instead]
    _leave(gone)
    names = _names(engine, list(former) if in_place else kept)
    _hand_costs(engine, change.instead, gone)
    exchanged = Exchanged(new, gone, change.instead, readers, arcs, in_place=in_place)
    graph.become(placed, {**names, **change.forks}, exchanged)
    if in_place:
        engine.list_alike(former | _readers_of(engine, change))
    else:
        place = {operator: position for position, operator in enumerate(placed)}
        kept.sort(key=lambda query: place[query.sink])
        engine.queries_by_name = {query.plan.name: query for query in kept}
        engine.queries_changed()
    assert _is_whole(engine, list(former))


def _concerns_them_alone(engine: Engine, change: Rewiring) -> bool:
    """Whether no other query has an operator that goes, and these queries get only new ones."""
    if not (change.gone or change.after or change.sources) or change.joined:
        return False
    different = [(query, operators) for query, _, operators in change.after if operators != query.operators]
    former = [*change.gone, *(query for query, _ in different)]
    return all(len(engine.owners(one)) == 1 for query in former for one in query.operators) and all(
        one in query.operators or not engine.owners(one) for query, operators in different for one in operators
    )


def _readers_of(engine: Engine, change: Rewiring) -> Former:
    """The queries that read an operator which stands in the place of another: as they are."""
    names = {query.plan.name for query, _, _ in change.after} if change.instead else set()
    return {
        query: (query.plan, query.operators)
        for query in engine.queries_by_name.values()
        if names and not names.isdisjoint(query.plan.reads_queries)
    }


def _left(change: Rewiring, former: Former) -> dict[Operator, None]:
    """The operators that no plan has any more, if no query shares any of them."""
    stays = {one for query in former for one in query.operators}
    left: list[Operator] = [*change.sources]
    left += [one for query in change.gone for one in (*query.operators, query.sink)]
    left += [one for _, operators in former.values() for one in operators if one not in stays]
    return dict.fromkeys(left)


def _in_place(engine: Engine, change: Rewiring, former: Former, left: dict[Operator, None]) -> list[Operator] | None:
    """The same as `_arranged`, for queries that stay in their places; None if one reads what comes after it."""
    different = [query for query in former if query.operators != former[query][1]]
    away = left | dict.fromkeys(one for query in different for one in query.operators)
    after = [one for one in engine.graph.operators.values() if one not in away]
    for query in different:
        place = after.index(query.sink)
        own = {id(one.output) for one in query.operators}
        read = {engine.graph.producer(inlet): None
                for one in query.operators for inlet in one.inputs if id(inlet.arc) not in own}  # fmt: skip
        if any(one not in after[:place] for one in read):
            return None
        after[place:place] = query.operators
    return after


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
