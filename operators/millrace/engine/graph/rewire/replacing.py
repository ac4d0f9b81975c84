"""A query under a new plan, with the state of all that is the same in both (law 7).

An operator continues if its definition is unchanged, and everything upstream of it: with its state, its counts and its
readers. The others are removed with their queued tuples. New operators start like those of a new query: later than all
tuples of the streams so far, and downstream of a continued operator at the end of its output. The rows' numbers
continue. Promises to the readers of the result hold under the new plan too: rows earlier than that are filtered and
counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.engine.events import ReplaceQuery
from millrace.engine.graph.rewire.adding import build_nodes, side_streams
from millrace.engine.graph.rewire.rewiring import Rewiring, carry_out
from millrace.engine.plan import Node, QueryPlan, names
from millrace.engine.queries import Query, refuse_catching_up
from millrace.operators.frame.buffer import Buffer
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator
from millrace.operators.frame.spec import Spec
from millrace.operators.queues.edge import EdgeSpec
from millrace.protocol import Refuse
from millrace.protocol.admin.changes import ReplaceReply
from millrace.values.eventtime import MIN_TIME

if TYPE_CHECKING:
    from millrace.engine.engine import Engine


def unchanged(before: QueryPlan, after: QueryPlan, *, read: bool) -> dict[str, str]:
    """The operators that are the same in both plans, with all upstream of them: their names after, and before.

    Of several that could continue as one operator, the one of the same name does. If other queries read the result, an
    inner operator does not become the output: they still have to read what is queued on their arc.
    """
    names: dict[str, str] = {}
    used: set[str] = set()
    inside = {node.name for node in after.nodes}
    for node in after.nodes:
        inputs = tuple(names.get(name, "") if name in inside else name for name in node.inputs)
        renamed = replace(node, inputs=inputs)
        same = [
            candidate.name
            for candidate in before.nodes
            if candidate.name not in used
            and _alike(candidate, renamed, _reading(before, candidate), _reading(after, node))
            and not (read and node.name == after.output and candidate.name != before.output)
        ]
        if same:
            names[node.name] = node.name if node.name in same else same[0]
            used.add(names[node.name])
    return names


def _reading(plan: QueryPlan, node: Node) -> list[Spec]:
    """The operators of a plan that read one."""
    return [other.spec for other in plan.nodes if node.name in other.inputs]


def _alike(first: Node, other: Node, readers: list[Spec], other_readers: list[Spec]) -> bool:
    """Whether two nodes are the same operator. Fields that were added to a stream since do not matter to operators that
    make separate columns, nor to one that passes rows to such operators alone."""
    indifferent = first.spec.derivation() == "made"
    if first.spec.derivation() == "passed":
        indifferent = readers == other_readers != [] and all(reader.derivation() == "made" for reader in readers)
    return _definition(first, indifferent) == _definition(other, indifferent)


def _definition(node: Node, indifferent: bool) -> Node:
    edges = tuple(_keeps(node.edge(at)) if indifferent else node.edge(at) for at in range(len(node.inputs)))
    return replace(node, name="", edges=edges)


def _keeps(edge: EdgeSpec) -> EdgeSpec:
    """An edge without the number of its fields, if it reads the first ones."""
    first = edge.columns is not None and edge.columns == tuple(range(len(edge.columns)))
    return edge.unnarrowed if first else edge


def _continued(plan: QueryPlan, before: QueryPlan, same: Mapping[str, str]) -> QueryPlan:
    """The new plan, in which continued operators keep their ids and queues."""
    old = {node.name: node for node in before.nodes}
    continued = {name: old[was] for name, was in same.items()}
    nodes = tuple(
        replace(node, id=continued[node.name].id, edges=continued[node.name].edges) if node.name in continued else node
        for node in plan.nodes
    )
    return replace(plan, nodes=nodes)


def replace_query(engine: Engine, command: ReplaceQuery) -> ReplaceReply:
    """Exchange a query's plan; refused, nothing has changed."""
    plan = command.plan
    query = engine.query(plan.name)
    refuse_catching_up(query)
    _check_circle(engine, plan)
    inlets = _inlets(engine, query)
    # A failed query has no state: it starts again as a whole.
    same = {} if query.failed else unchanged(query.plan, plan, read=bool(inlets))
    plan = _continued(plan, query.plan, same)
    old = dict(zip((node.name for node in query.plan.nodes), query.operators, strict=True))
    continued = {name: old[before] for name, before in same.items()}
    with side_streams(engine, plan):
        operators = build_nodes(engine, plan, continued)
        if inlets:
            _check_readers(query, plan, old[query.plan.output], operators[plan.output], inlets)
    _exchange(engine, query, engine.number(plan), continued, operators, list(inlets))
    return ReplaceReply(
        query=plan.name,
        kept=list(continued),
        new=[name for name in operators if name not in continued],
        gone=[name for name in old if name not in same.values()],
    )


# -- checks ------------------------------------------------------------------------------------------------------------


def _check_circle(engine: Engine, plan: QueryPlan) -> None:
    todo, seen = list(plan.reads_queries), set[str]()
    while todo:
        name = todo.pop()
        if name == plan.name:
            raise Refuse(f"query {plan.name} would read its own rows", code="circle")
        if name not in seen:
            seen.add(name)
            todo += engine.query(name).plan.reads_queries


def _inlets(engine: Engine, query: Query) -> dict[Inlet, Query]:
    """The inlets by which other queries read this one, also those that are away."""
    output = engine.named(query.plan.output).output
    return {
        reader: other
        for other in engine.queries_by_name.values()
        if query.plan.name in other.plan.reads_queries
        for operator in other.operators
        for reader in operator.inputs
        if reader.arc is output
    }


def _check_readers(
    query: Query, plan: QueryPlan, before: Operator, after: Operator, inlets: Mapping[Inlet, Query]
) -> None:
    """Who reads the query has been built for its rows as they are."""
    reason = None
    old, new = before.output, after.output
    if query.plan.schema != plan.schema or old.schema != new.schema:
        reason = f"they read {_columns(old)}, and it would emit {_columns(new)}"
    elif query.plan.update_key != plan.update_key:
        reason = f"its update key would be {_key(plan)} instead of {_key(query.plan)}"
    elif old.ordered != new.ordered:
        reason = f"its rows would {'not ' if old.ordered else ''}be in order of time"
    elif old.latent != new.latent:
        reason = "its rows would gain or lose a time"
    if reason is not None:
        others = dict.fromkeys(other.plan.name for other in inlets.values())
        raise Refuse(
            f"query {plan.name} is read by {names(others)}, which cannot continue: {reason}; drop them first",
            code="in_use",
        )


def _columns(buffer: Buffer) -> str:
    return names(f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in buffer.schema)


def _key(plan: QueryPlan) -> str:
    return "none" if plan.update_key is None else f"({names(plan.update_key)})"


# -- the exchange ------------------------------------------------------------------------------------------------------


def _exchange(
    engine: Engine,
    query: Query,
    plan: QueryPlan,
    continued: Mapping[str, Operator],
    operators: Mapping[str, Operator],
    inlets: list[Inlet],
) -> None:
    left_at = [(entry.arc, entry.position) for entry in engine.entries(query)]
    before, after = engine.named(query.plan.output), operators[plan.output]
    change = Rewiring([(query, plan, list(operators.values()))])
    for other in engine.queries_by_name.values():
        if plan.name in other.plan.reads_queries:
            change.after.append((other, other.plan.reading(query.plan.output, plan.output), other.operators))
    if before is not after:
        _hand_over(query, plan, before, after, inlets, change, fresh=after not in continued.values())
    engine.graph.forget_links(query.operators)
    carry_out(engine, change)
    query.apart, query.separate = {}, {}
    if query.failed:
        query.failed, query.paused = False, None
    elif query.paused is not None:
        for inlet in engine.entries(query):
            if not inlet.away:
                inlet.detach()
                # Tuples since the pause are skipped nevertheless.
                inlet.absent_since(min((at for arc, at in left_at if arc is inlet.arc), default=inlet.position))


def _hand_over(
    query: Query,
    plan: QueryPlan,
    before: Operator,
    after: Operator,
    inlets: list[Inlet],
    change: Rewiring,
    *,
    fresh: bool,
) -> None:
    """The sink and the other queries read another operator from now on; what lies unread they read first."""
    old, new, sink = before.output, after.output, query.sink
    ordered = query.plan.options.order == plan.options.order == "event" and not old.latent
    floor = max(
        sink.inputs[0].promise if sink.watched and not old.latent else sink.progress_us,
        old.promise if ordered else MIN_TIME,
        *(inlet.promise for inlet in inlets),
        MIN_TIME,
    )
    if not sink.watched:
        sink.inputs[0].reset_promise()
    if fresh:
        change.handed.append((old, new, [*sink.inputs, *inlets]))
    else:
        assert not inlets, "what has been inside does not become the output of a query that others read"
        old.detach(sink.inputs[0])
        sink.inputs = [new.attach()]
        sink.inputs[0].consumer = sink
    if not new.latent:
        new.keep_above(floor)
