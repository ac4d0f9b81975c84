"""Edges with a separate queue: how they are built, measured and shown."""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.engine.events import Measured
from millrace.engine.faults import ask_quietly
from millrace.engine.plan import Node, QueryPlan
from millrace.engine.queries import Query
from millrace.operators.frame.buffer import Buffer
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator
from millrace.operators.queues.edge import QueueKind
from millrace.operators.queues.inlet import QueueInlet
from millrace.operators.queues.load import QueueSwitch
from millrace.protocol import Refuse, Schema
from millrace.protocol.admin.operators import PagesView, QueueView
from millrace.protocol.admin.streams import AutoView, BucketView, StaleKeyView, StalenessView
from millrace.protocol.words import article

if TYPE_CHECKING:
    from millrace.engine.engine import Engine


# -- making ------------------------------------------------------------------------------------------------------------


def check(engine: Engine, plan: QueryPlan) -> None:
    """Refuse edges that make no sense, before anything is changed."""
    schemas: dict[str, Schema] = {}
    for node in plan.nodes:
        inputs = [node.edge(at).reads(_schema(engine, schemas, name, plan)) for at, name in enumerate(node.inputs)]
        if len(node.edges) > len(node.inputs):
            raise Refuse(f"operator {node.name}: it has {len(node.inputs)} inputs, but edges for {len(node.edges)}")
        for position, schema in enumerate(inputs):
            node.edge(position).check(schema, f"operator {node.name}, input {position}")
        schemas[node.name] = node.spec.schema(inputs)


def _schema(engine: Engine, schemas: dict[str, Schema], name: str, plan: QueryPlan) -> Schema:
    if name in schemas:
        return schemas[name]
    if not engine.knows(name):
        raise Refuse(f"query {plan.name} reads operator {name}, which does not exist", code="unknown_operator")
    return engine.named(name).output.schema


def inlet(engine: Engine, node: Node, position: int, output: Buffer, since_us: int | None) -> Inlet:
    """The inlet of a new operator, which its arc does not know yet."""
    edge = node.edge(position)
    if edge.plain:
        return Inlet(output, since_us, edge.columns, edge.names)
    # Two edges must not draw the same lots; the same edge draws the same ones in every run.
    seed = zlib.crc32(f"{node.name}:{position}".encode())
    return QueueInlet(output, edge, engine.clock, since_us, timed=engine.stopwatch is not None, seed=seed)


def supersede(engine: Engine) -> None:
    """Let the queues that supersede only under overload do so now, until their load shows that they need not."""
    for operator in engine.graph.operators.values():
        for reader in operator.inputs:
            if isinstance(reader, QueueInlet):
                reader.supersede()


# -- measuring ---------------------------------------------------------------------------------------------------------


def measured(engine: Engine, event: Measured) -> None:
    """An execution has cost so much: its results are out, and LINECUTTING knows c.

    The cost of a tuple of an edge is the cost of all operators of its query, per tuple that the edge's operator took.
    """
    operator = engine.graph.operators.get(event.operator)
    if operator is None or not any(reader.absorbs for reader in operator.inputs):
        return
    queries = engine.owners(operator)
    taken, _ = engine.costs[operator]
    us = sum(engine.costs.get(other, (0, 0.0))[1] for query in queries for other in query.operators)
    for reader in operator.inputs:
        if isinstance(reader, QueueInlet):
            reader.queue.measured(event.us, engine.clock.now_us)
            if taken:
                reader.queue.costs(us / taken)


# -- showing -----------------------------------------------------------------------------------------------------------


def queue_of(reader: Inlet, now_us: int) -> QueueView | None:
    """The view of an input's queue, or None if it has no separate one."""
    if not isinstance(reader, QueueInlet):
        return None
    queue, edge = reader.queue, reader.edge
    paging, stale = queue.paging, queue.staleness(now_us)
    return QueueView(
        kind=edge.kind,
        key=[reader.schema.fields[at].name for at in edge.key],
        commit=edge.commit,
        shed_above=edge.shed,
        waiting=queue.waiting,
        superseded=reader.superseded,
        shed=reader.shed,
        keys=stale.keys,
        pages=PagesView(taken=paging.taken, free=paging.free, returned=paging.returned, bytes=paging.nbytes),
        oldest_us=stale.oldest_us,
        queue_staleness_us=stale.queue_mean_us,
        application_staleness_us=stale.application_mean_us,
        auto=auto_of(reader),
    )


def auto_of(reader: Inlet) -> AutoView | None:
    """Whether a queue that chooses appends or supersedes at present, and the load that decided it; None for others."""
    load = reader.queue.load if isinstance(reader, QueueInlet) else None
    if load is None:
        return None
    last = QueueSwitch(load.mode, 0.0, 0.0, 0.0) if load.last is None else load.last
    return AutoView(**last._asdict(), switches=load.switches)


def kinds(plan: QueryPlan) -> dict[tuple[str, int], QueueKind]:
    """The kind of queue of every input of a plan."""
    return {(node.name, at): node.edge(at).kind for node in plan.nodes for at in range(len(node.inputs))}


def find(engine: Engine, name: str, position: int) -> tuple[Operator, Node, Query]:
    operator = engine.named(name) if engine.knows(name) else engine.graph.operator(name)
    query, node = _place_of(engine, operator, name)
    if not 0 <= position < len(node.inputs):
        raise Refuse(f"operator {name}: expected an input from 0 to {len(node.inputs) - 1}, got {position}")
    return operator, node, query


def _place_of(engine: Engine, operator: Operator, name: str) -> tuple[Query, Node]:
    """The query that calls an operator so, and where in its plan it stands."""
    for query in engine.owners(operator):
        for node in query.plan.nodes:
            if node.name == name:
                return query, node
    raise Refuse(
        f"{operator.name} is {article(operator.kind)}: only operators of queries have queues that can be changed"
    )


def stale(engine: Engine, stream: str, worst: int) -> list[StalenessView]:
    """The staleness of every update queue that a stream's tuples go through, directly or through other operators.

    Upward from each operator, because a paused query's readers are away from what they read.
    """
    operators = list(engine.graph.operators.values())
    reached: set[Operator] = {engine.graph.operator(f"{stream}.source")}

    def reads(operator: Operator) -> bool:
        return any(engine.graph.producer(reader) in reached for reader in operator.inputs)

    while more := [operator for operator in operators if operator not in reached and reads(operator)]:
        reached.update(more)
    return [
        staleness(engine, operator.name, at, worst)
        for operator in operators
        for at, reader in enumerate(operator.inputs)
        if isinstance(reader, QueueInlet) and reader.edge.updates and engine.graph.producer(reader) in reached
    ]


def staleness(engine: Engine, name: str, position: int, worst: int) -> StalenessView:
    """The staleness of an input's update queue, with histograms and the keys that have waited longest."""
    operator, _, _ = find(engine, name, position)
    reader = operator.inputs[position]
    if not isinstance(reader, QueueInlet) or not reader.edge.updates:
        raise Refuse(f"operator {name}, input {position}: it is not an update queue", code="no_update_queue")
    staleness = reader.queue.staleness(engine.clock.now_us, worst)
    fields = [reader.schema.fields[at].name for at in reader.edge.key]
    return StalenessView(
        operator=name,
        input=position,
        kind=reader.edge.kind,
        auto=auto_of(reader),
        waiting=reader.queue.waiting,
        superseded=reader.superseded,
        paused=reader.away,
        skipped=reader.missed,
        keys=staleness.keys,
        queue_mean_us=staleness.queue_mean_us,
        application_mean_us=staleness.application_mean_us,
        queue_histogram=_buckets(staleness.queue_histogram),
        application_histogram=_buckets(staleness.application_histogram),
        oldest_us=staleness.oldest_us,
        worst=[StaleKeyView(key=dict(zip(fields, key, strict=True)), stale_us=age) for key, age in staleness.worst],
    )


def older(engine: Engine, query: str, now_us: int, than_us: int) -> list[tuple[tuple[tuple[str, Any], ...], int]]:
    """What has waited in a query for longer, by update key where an edge knows it: the age of the oldest."""
    running = engine.queries_by_name.get(query)
    rows = []
    for operator in () if running is None else running.operators:
        for reader in operator.inputs:
            edge = reader.edge if isinstance(reader, QueueInlet) else None
            names = [reader.schema.fields[at].name for at in edge.key] if edge is not None else []
            for key, age in ask_quietly(partial(reader.older, now_us, than_us), list[tuple[tuple[Any, ...], int]]()):
                rows.append((tuple(zip(names, key, strict=False)), age))
    return rows


def _buckets(counts: Any) -> list[BucketView]:
    """A histogram by its upper bounds: so many updates waited less than that, and not less than the bound before."""
    return [BucketView(below_us=1 << digits, updates=count) for digits, count in enumerate(counts) if count]
