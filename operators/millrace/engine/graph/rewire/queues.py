"""Another kind of queue for an operator's input, which keeps those queued tuples that the new kind keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.engine.events import SetQueue
from millrace.engine.graph.edges import find
from millrace.engine.graph.rewire.rewiring import Rewiring, carry_out
from millrace.engine.plan import names
from millrace.engine.queries import refuse_catching_up
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator
from millrace.operators.queues.inlet import QueueInlet
from millrace.operators.source.source import Source
from millrace.protocol import Refuse
from millrace.protocol.admin.changes import QueueReply

if TYPE_CHECKING:
    from millrace.engine.engine import Engine


def exchange(engine: Engine, command: SetQueue) -> QueueReply:
    """Set the kind of queue of an operator's input."""
    name, position, kind = command.operator, command.input, command.kind
    operator, node, query = find(engine, name, position)
    refuse_catching_up(query)
    if query.paused is not None:
        raise Refuse(f"query {query.plan.name} is paused: resume it before you change its queue", code="paused")
    before = node.edge(position)
    keyed = before.updates or before.keyed
    edge = replace(before, kind=kind, shed=None, queued=True, keyed=keyed)
    reader = operator.inputs[position]
    if edge.updates and not keyed:
        edge = replace(edge, key=_update_key(engine, operator, position))
    edge.check(reader.schema, f"operator {name}, input {position}")
    disordered = _disordered(engine, operator) if edge.updates else []
    _refuse_disorder(engine, disordered)
    superseded, shed = _losses(reader)
    if isinstance(reader, QueueInlet):
        reader.exchange(edge)
    else:
        made = QueueInlet.instead_of(reader, edge, engine.clock, timed=engine.stopwatch is not None)
        operator.inputs[position] = made
    for other in disordered:
        other.output.disorder()
    nodes = tuple(one.with_edge(position, edge) if one is node else one for one in query.plan.nodes)
    carry_out(engine, Rewiring([(query, replace(query.plan, nodes=nodes), query.operators)]))
    engine.graph.touch([operator, *disordered], [operator, *disordered])
    now_superseded, now_shed = _losses(operator.inputs[position])
    return QueueReply(
        operator=name,
        input=position,
        kind=kind,
        superseded=now_superseded - superseded,
        shed=now_shed - shed,
    )


def _losses(reader: Inlet) -> tuple[int, int]:
    return (reader.superseded, reader.shed) if isinstance(reader, QueueInlet) else (0, 0)


def _update_key(engine: Engine, operator: Operator, position: int) -> tuple[int, ...]:
    """The update key of an input's stream or query."""
    producer = engine.graph.producer(operator.inputs[position])
    while _passes(engine, producer) and not _is_output(engine, producer):
        producer = engine.graph.producer(producer.inputs[0])
    key: tuple[str, ...] | None = None
    if isinstance(producer, Source):
        key = engine.streams_by_name[producer.stream].definition.update_key or None
    else:
        for query in engine.queries_by_name.values():
            if producer in query.operators and engine.named(query.plan.output) is producer:
                key = query.plan.update_key
    if key is None:
        raise Refuse(
            f"operator {operator.name}, input {position}: {producer.name} emits no update stream, so no row "
            "replaces another; create its stream with an update_key",
            code="no_update_key",
        )
    at = [producer.output.schema.index(column) for column in key]
    if None in at:
        raise Refuse(f"operator {operator.name}, input {position}: {producer.name} lacks {names(key)}")
    return tuple(one for one in at if one is not None)


def _passes(engine: Engine, operator: Operator) -> bool:
    """Whether an operator passes rows of an update stream unchanged."""
    for query in engine.owners(operator):
        for node, other in zip(query.plan.nodes, query.operators, strict=True):
            if other is operator:
                return node.spec.derivation() == "passed" and node.spec.updates().emits == "input"
    return False


def _is_output(engine: Engine, operator: Operator) -> bool:
    return any(engine.named(query.plan.output) is operator for query in engine.owners(operator))


def _disordered(engine: Engine, changed: Operator) -> list[Operator]:
    """The operators whose output is in order of time, and no more when this one's input is not."""
    disordered: list[Operator] = []
    for query in engine.queries_by_name.values():
        for node, operator in zip(query.plan.nodes, query.operators, strict=True):
            if not operator.output.ordered:
                continue
            inputs = [
                reader.ordered and operator is not changed and engine.graph.producer(reader) not in disordered
                for reader in operator.inputs
            ]
            if not node.spec.gives_order(inputs):
                disordered.append(operator)
    return disordered


def _refuse_disorder(engine: Engine, disordered: list[Operator]) -> None:
    for query in engine.queries_by_name.values():
        output = engine.named(query.plan.output)
        if query.plan.options.order == "event" and output in disordered:
            raise Refuse(
                f"query {query.plan.name} emits its rows in order of time, which an update queue does not preserve; "
                "create it with order = 'arrival'",
                code="in_order",
            )
