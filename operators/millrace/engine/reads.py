"""How often subscribers look at a query's rows (UPS, section 8), and the queues that serve keys for them.

A read of a query is also one of the queries that it reads, directly or not. A reader's keys are those of the rows that
it gets. They count at an edge whose update key is traced to these keys; reads of all keys count at every DEADLINE edge
on the way. Queues get their readers again after each change of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millrace.engine.events import SetReads
from millrace.engine.plan import Node
from millrace.engine.queries import Query
from millrace.operators.frame.operator import Operator
from millrace.operators.queues.inlet import QueueInlet
from millrace.operators.queues.reads import Reads
from millrace.operators.queues.update import UpdateQueue
from millrace.operators.queues.windows import WindowQueue
from millrace.protocol import Refuse
from millrace.protocol.admin.queries import ReaderView
from millrace.values import expression as e

if TYPE_CHECKING:
    from millrace.engine.engine import Engine

# An input of an operator in a plan: the node's name and the position.
Place = tuple[str, int]
ReadQueue = UpdateQueue | WindowQueue
# By their name in plans.
Nodes = Mapping[str, tuple[Node, Operator]]
# By input, columns of it by position.
Traced = dict[Place, dict[int, int]]


def state(engine: Engine, command: SetReads) -> dict[str, Any]:
    """A reader states how often it looks, or looks no more."""
    query = engine.query(command.name)
    readers = engine.reads.get(query.sink, {})
    if command.interval_us is None:
        readers.pop(command.reader, None)
        if not readers:
            engine.reads.pop(query.sink, None)
        return {"query": command.name, "readers": len(readers)}
    path = _path(engine, query)
    places = [place for place, _ in _deadlines(path)]
    if not places:
        also = f", nor has any query that {command.name} reads" if query.plan.reads_queries else ""
        raise Refuse(
            f"query {command.name} has no edge LATEST USING DEADLINE{also}, so a refresh interval would change "
            "nothing: subscribe without it, or replace the query",
            code="no_deadline",
        )
    if command.keys is not None:
        traced = _traced(query, path)
        if all(_key_columns(path, place, traced) is None for place in places):
            raise Refuse(
                f"query {command.name}: its key is not the update key of an edge LATEST USING DEADLINE, so queues "
                "cannot serve single keys: state the refresh interval without keys",
                code="no_deadline",
            )
    readers[command.reader] = Reads(command.interval_us, engine.clock.now_us, command.keys)
    engine.reads[query.sink] = readers
    return {"query": command.name, "readers": len(readers)}


def settle(engine: Engine) -> None:
    """Let every DEADLINE queue know its readers: those of all queries that its operator belongs to or is read by."""
    of_queues: dict[ReadQueue, dict[Reads, None]] = {}
    for query in engine.queries_by_name.values():
        if query.requeued:
            of_queues |= {queue: {} for _, queue in _deadlines(_nodes(query))}
    for query in engine.queries_by_name.values():
        readers = engine.reads.get(query.sink)
        if readers is None:
            continue
        path = _path(engine, query)
        traced = _traced(query, path)
        for place, queue in _deadlines(path):
            columns = _key_columns(path, place, traced)
            for read in readers.values():
                if read.keys is None:
                    of_queues.setdefault(queue, {})[read] = None
                elif columns is not None:
                    keys = tuple(tuple(key[at] for at in columns) for key in read.keys)
                    of_queues.setdefault(queue, {})[replace(read, keys=keys)] = None
    for queue, reads in of_queues.items():
        queue.read_at(list(reads))


def shown(engine: Engine, query: Query) -> list[ReaderView]:
    return [
        ReaderView(reader=reader, refresh_us=read.interval_us, keys=None if read.keys is None else len(read.keys))
        for reader, read in engine.reads.get(query.sink, {}).items()
    ]


def _nodes(query: Query) -> Nodes:
    return {node.name: (node, operator) for node, operator in zip(query.plan.nodes, query.operators, strict=True)}


def _path(engine: Engine, query: Query) -> Nodes:
    """The operators of a query and of all queries that it reads, directly or not."""
    names = [query.plan.name]
    for name in names:  # which grows
        names += [other for other in engine.query(name).plan.reads_queries if other not in names]
    return {name: found for other in names for name, found in _nodes(engine.query(other)).items()}


def _deadlines(nodes: Nodes) -> Iterator[tuple[Place, ReadQueue]]:
    for name, (_, operator) in nodes.items():
        for at, reader in enumerate(operator.inputs):
            queue = reader.queue if isinstance(reader, QueueInlet) else None
            if isinstance(queue, UpdateQueue | WindowQueue) and queue.scheduler == "deadline":
                yield (name, at), queue


def _key_columns(nodes: Nodes, place: Place, traced: Traced) -> list[int] | None:
    """Which column of the read query's key each column of an edge's update key is; None if one is none of them."""
    _, operator = nodes[place[0]]
    reader = operator.inputs[place[1]]
    assert isinstance(reader, QueueInlet)
    columns = traced.get(place, {})
    places = [columns.get(at) for at in reader.edge.key]
    return None if None in places else [at for at in places if at is not None]


def _traced(query: Query, nodes: Nodes) -> Traced:
    """By input, the columns that are a column of the query's update key, and which one."""
    traced: Traced = {}
    schema = query.plan.schema
    for number, name in enumerate(query.plan.update_key or ()):
        at = schema.names.index(name)
        column = e.Column(schema.fields[at].type, schema.fields[at].nullable, at, name)
        for place, position in _origins(nodes, query.plan.output, column):
            traced.setdefault(place, {})[position] = number
    return traced


def _origins(nodes: Nodes, name: str, key: e.Expression) -> Iterator[tuple[Place, int]]:
    """The column of each input upstream that a column of an operator's rows is, as far as queries go. Only streams get
    fields while they run, so columns of a query's rows have one position for all its readers."""
    if name not in nodes:
        return  # a stream
    node, operator = nodes[name]
    for at, origin in node.spec.origins(key, [reader.schema for reader in operator.inputs]):
        if isinstance(origin, e.Column):
            yield (name, at), origin.position
            yield from _origins(nodes, node.inputs[at], origin)
