"""Operators inserted into, removed from and replaced in a running query, in addition to its statement.

A select or a sample is inserted in front of an input. It reads the input's arc, and its output takes over the input's
reader with all queued tuples. So these are not lost and not filtered, and the operator downstream keeps its state.
When an operator is removed, its queued tuples pass unchanged, after those that its readers have not taken; then they
read its arc. The plan of the query changes with its operators, and `edits` has the changes until another plan replaces
it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.engine.events import InsertOperator, RemoveOperator, ReplaceOperator
from millrace.engine.graph.rewire.rewiring import Rewiring, carry_out
from millrace.engine.plan import Edit, Node, QueryPlan
from millrace.engine.queries import Query, refuse_catching_up
from millrace.operators.build import build
from millrace.operators.frame.idle_waiting import IdleWaiting
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator
from millrace.operators.frame.spec import Spec
from millrace.operators.queues.edge import APPEND, EdgeSpec
from millrace.operators.queues.inlet import QueueInlet
from millrace.operators.sink.sink import Sink
from millrace.protocol import Refuse, Schema
from millrace.protocol.admin.changes import ExchangeReply, InsertReply, RemoveReply
from millrace.protocol.words import article
from millrace.values.batch import Batch
from millrace.values.eventtime import LATENT

if TYPE_CHECKING:
    from millrace.engine.engine import Engine

# -- looking -----------------------------------------------------------------------------------------------------------


def arc_of(engine: Engine, name: str, position: int) -> Schema:
    """The columns of the arc at an operator's input: an operator inserted there reads them."""
    operator, _, node = _find(engine, name, looking=True)
    return operator.inputs[_checked(node, position)].arc.schema


def rows_of(engine: Engine, name: str) -> Schema:
    """The columns that an operator reads."""
    operator, _, _ = _find(engine, name, looking=True)
    return operator.inputs[0].schema


def _find(engine: Engine, name: str, *, looking: bool = False) -> tuple[Operator, Query, Node]:
    """The operator of this name in a query's plan. A change needs one that is not shared; a look does not."""
    operator = engine.named(name) if looking and engine.knows(name) else engine.graph.operator(name)
    owners = [query for query in engine.owners(operator) if any(node.name == name for node in query.plan.nodes)]
    if not owners or isinstance(operator, Sink):
        raise Refuse(
            f"{name} is {article(operator.kind)}: name an operator of a query that has inputs", code="no_operator"
        )
    assert looking or len(engine.owners(operator)) == 1, f"{name} was to be its query's own before it is changed"
    query = owners[0]
    if not looking:
        refuse_catching_up(query)
    if query.paused is not None:
        raise Refuse(f"query {query.plan.name} is paused: resume it before you change its operators", code="paused")
    return operator, query, next(node for node in query.plan.nodes if node.name == name)


def _checked(node: Node, position: int) -> int:
    if not 0 <= position < len(node.inputs):
        raise Refuse(f"operator {node.name}: expected an input from 0 to {len(node.inputs) - 1}, got {position}")
    return position


def _refuse_spec(spec: Spec) -> None:
    edits = spec.edits()
    if not edits.filters:
        raise Refuse(f"{article(spec.kind or type(spec).__name__)} cannot be inserted: use a condition or a sample")
    if edits.share is not None and not 0 < edits.share < 1:
        raise Refuse(f"a sample is a share of the rows between 0 and 1, got {edits.share:g}", code="bad_share")


def _free_name(engine: Engine, query: Query, word: str, chosen: str | None) -> str:
    """`<query>.filter<n>`: with the chosen number, or above all that the query has used."""
    name = query.plan.name
    prefix = f"{name}.{word}"
    if chosen is not None:
        if chosen in engine.graph.operators:
            raise Refuse(f"operator {chosen} already exists", code="exists")
        if re.fullmatch(rf"{re.escape(prefix)}[0-9]+", chosen) is None:
            raise Refuse(f"an operator of query {name} is called {prefix}1 or another number, not {chosen}")
        return chosen
    used = [node.name for node in query.plan.nodes] + [edit.operator for edit in query.plan.edits]
    numbers = [int(operator.removeprefix(prefix)) for operator in used if operator.removeprefix(prefix).isdecimal()]
    return f"{prefix}{max(numbers, default=0) + 1}"


# -- inserting ---------------------------------------------------------------------------------------------------------


def insert(engine: Engine, command: InsertOperator) -> InsertReply:
    """Put an operator in front of an input."""
    _refuse_spec(command.spec)
    behind, query, node = _find(engine, command.before)
    position = _checked(node, command.input)
    reader = behind.inputs[position]
    home = reader.arc
    if _is_sample_of_newest(command.spec, node, position) or takes_updates(engine, query.plan, node, position):
        raise _replacing(command.before, position)
    name = _free_name(engine, query, command.spec.word, command.name)
    operator = build(name, command.spec, [Inlet(home, reader.since_us)], engine.gauge, engine.clock)
    operator.output.keep_above(reader.promise)
    number = command.id or engine.last_id + 1
    engine.last_id = max(engine.last_id, number)
    inserted = Node(name, command.spec, (node.inputs[position],), id=number)
    behind_it = replace(node, inputs=_with(node.inputs, position, name))
    edit = Edit("insert", name, command.spec, command.where, command.before, position, number)
    at = query.operators.index(behind)
    nodes = [behind_it if other is node else other for other in query.plan.nodes]
    nodes.insert(at, inserted)
    operators = [*query.operators[:at], operator, *query.operators[at:]]
    change = _edited(query, nodes, operators, edit)
    change.handed.append((home, operator.output, [reader]))
    carry_out(engine, change)
    return InsertReply(operator=name, before=command.before, input=position)


def _replacing(name: str, position: int) -> Refuse:
    return Refuse(
        f"operator {name}, input {position}: its rows replace each other; dropping one would keep the row that it "
        "replaces forever",
        code="update_stream",
    )


def _is_sample_of_newest(spec: Spec, node: Node, position: int) -> bool:
    return spec.edits().share is not None and node.edge(position).updates


def takes_updates(engine: Engine, plan: QueryPlan, node: Node, position: int) -> bool:
    """Whether an input carries rows that replace each other."""
    return node.spec.updates().takes or _replace_each_other(engine, plan, node.inputs[position])


def _replace_each_other(engine: Engine, plan: QueryPlan, name: str) -> bool:
    """Whether a plan's input is an update stream. A stream with an update key is one only with LATEST."""
    node = next((candidate for candidate in plan.nodes if candidate.name == name), None)
    if node is None:
        other = next(
            (candidate.plan for candidate in engine.queries_by_name.values() if candidate.plan.output == name), None
        )
        return other is not None and other.update_key is not None
    emits = node.spec.updates().emits
    if emits == "input":
        return node.edge(0).updates or _replace_each_other(engine, plan, node.inputs[0])
    return emits == "updates"


def _with(inputs: Sequence[str], position: int, name: str) -> tuple[str, ...]:
    return tuple(name if at == position else before for at, before in enumerate(inputs))


def _edited(query: Query, nodes: Sequence[Node], operators: list[Operator], edit: Edit) -> Rewiring:
    query.apart = {}
    plan = replace(query.plan, nodes=tuple(nodes), edits=_logged(query.plan.edits, edit))
    return Rewiring([(query, plan, operators)])


def _logged(edits: tuple[Edit, ...], edit: Edit) -> tuple[Edit, ...]:
    """The edits with one more; what they make of the plan takes no more of them than it must."""
    mine = next((other for other in edits if other.operator == edit.operator and other.change == "insert"), None)
    if edit.change == "replace" and mine is not None:
        return tuple(replace(other, spec=edit.spec, where=edit.where) if other is mine else other for other in edits)
    others = tuple(other for other in edits if other.operator != edit.operator or other.change == "insert")
    if edit.change == "remove" and mine is not None and all(other.before != edit.operator for other in edits):
        return tuple(other for other in others if other is not mine)
    return (*others, edit)


# -- removing ----------------------------------------------------------------------------------------------------------


def remove(engine: Engine, command: RemoveOperator) -> RemoveReply:
    """Take an operator out that only leaves rows out."""
    name = command.operator
    operator, query, node = _find(engine, name)
    if not node.spec.edits().filters:
        raise Refuse(
            f"{name} is {article(node.spec.kind)} that creates rows, which other operators expect: only an "
            "operator that passes rows unchanged can be removed; replace the query instead",
            code="not_removable",
        )
    if query.plan.output == name:
        raise Refuse(
            f"the rows of {name} are the result of query {query.plan.name}: replace the query, or let the operator "
            'pass everything: --where "true"',
            code="not_removable",
        )
    own = operator.inputs[0]
    if node.edge(0).unnarrowed != APPEND:
        raise Refuse(
            f"the input of {name} drops tuples ({_edge(node)}), and removing the operator would end that; change "
            f"the queue first: millrace operator queue {name} append",
            code="not_removable",
        )
    waiting = own.take(own.waiting)
    edges = {reader: _move(engine, reader, own, waiting) for reader in list(operator.output.readers)}
    for other in query.operators:
        other.inputs = [edges.get(reader, reader) for reader in other.inputs]
    nodes = [
        _reading(reading, name, node.inputs[0], other)
        for reading, other in zip(query.plan.nodes, query.operators, strict=True)
        if reading is not node
    ]
    operators = [other for other in query.operators if other is not operator]
    carry_out(engine, _edited(query, nodes, operators, Edit("remove", name)))
    return RemoveReply(operator=name, removed=True)


def _reading(node: Node, gone: str, instead: str, operator: Operator) -> Node:
    """A node that may have read the one that is gone; it reads what the other has read."""
    for position, name in enumerate(node.inputs):
        if name == gone:
            node = replace(node, inputs=_with(node.inputs, position, instead))
            reader = operator.inputs[position]
            edge = reader.edge if isinstance(reader, QueueInlet) else _plain(reader)
            node = node.with_edge(position, edge)
    return node


def _plain(reader: Inlet) -> EdgeSpec:
    """The edge of a reader that keeps everything."""
    return EdgeSpec(columns=reader.columns, names=reader.names)


def _edge(node: Node) -> str:
    edge = node.edge(0)
    return f"at most {edge.shed} tuples" if edge.shed is not None else f"an update queue, {edge.kind}"


def _move(engine: Engine, reader: Inlet, own: Inlet, waiting: Batch | None) -> Inlet:
    """A reader of an operator's output continues where the operator has read, after the tuples queued for both."""
    before, after, promise = reader.arc, own.arc, reader.promise
    columns = _through(own.columns, reader.columns)
    names = tuple(reader.schema.names) if own.names or reader.names else None
    if not reader.waiting and waiting is None and not isinstance(reader, QueueInlet):
        before.detach(reader)
        moved = after.attach(own.since_us, columns, names)
        moved.consumer, moved.peak, moved.skipped = reader.consumer, reader.peak, reader.skipped + own.skipped
        moved.ignored = reader.ignored + own.ignored
    else:
        if isinstance(reader, QueueInlet):
            moved = reader
        else:
            edge = replace(_plain(reader), queued=True)
            moved = QueueInlet.instead_of(reader, edge, engine.clock, timed=engine.stopwatch is not None)
        if waiting is not None:
            moved.absorb(waiting)
        before.part_from(moved)
        moved.move(after, own.since_us, columns, names)
        moved.skipped += own.skipped
        moved.ignored += own.ignored
    if promise != LATENT:
        moved.register = max(moved.register, promise)
    moved.wake()
    return moved


def _through(first: tuple[int, ...] | None, then: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The fields that two readers in a row leave; None are all."""
    if first is None or then is None:
        return first if then is None else then
    return tuple(first[at] for at in then)


# -- replacing ---------------------------------------------------------------------------------------------------------


def exchange(engine: Engine, command: ReplaceOperator) -> ExchangeReply:
    """Replace the predicate of a select, or the select by a sample."""
    _refuse_spec(command.spec)
    operator, query, node = _find(engine, command.operator)
    spec = node.spec.edits().instead(command.spec)
    if spec is None:
        raise Refuse(
            f"{node.name} is {article(node.spec.kind)}, not one that filters rows: replace the query instead",
            code="not_replaceable",
        )
    if _is_sample_of_newest(spec, node, 0):
        raise _replacing(node.name, 0)
    forgotten = operator.state_tuples
    after = build(node.name, spec, operator.inputs, engine.gauge, engine.clock, engine.graph.beginning(operator))
    after.output, after.counts = operator.output, operator.counts
    if isinstance(operator, IdleWaiting):
        operator.clear()
    nodes = [replace(other, spec=spec) if other is node else other for other in query.plan.nodes]
    operators = [after if other is operator else other for other in query.operators]
    change = _edited(query, nodes, operators, Edit("replace", node.name, command.spec, command.where))
    change.instead = {operator: after}
    carry_out(engine, change)
    return ExchangeReply(operator=node.name, forgotten=forgotten)


def edited(plan: QueryPlan, name: str) -> Edit | None:
    """The last edit that made an operator of a plan what it is."""
    return next((edit for edit in reversed(plan.edits) if edit.operator == name and edit.change != "remove"), None)
