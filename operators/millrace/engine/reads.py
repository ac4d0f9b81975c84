"""How often subscribers look at a query's rows (UPS, section 8), and the queues that serve keys for them.

A reader's keys are those of the query's rows. They count at an edge whose update key the query's key is made of; reads
of all keys count at every DEADLINE edge of the query. Queues get their readers again after each change of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from millrace.engine.events import SetReads
from millrace.engine.queries import Query
from millrace.operators.queues.inlet import QueueInlet
from millrace.operators.queues.reads import Reads
from millrace.operators.queues.update import UpdateQueue
from millrace.protocol import Refuse
from millrace.protocol.admin.queries import ReaderView
from millrace.values import expression as e

if TYPE_CHECKING:
    from millrace.engine.engine import Engine

# An input of an operator in a plan: the node's name and the position.
Place = tuple[str, int]


def state(engine: Engine, command: SetReads) -> dict[str, Any]:
    """A reader states how often it looks, or looks no more."""
    query = engine.query(command.name)
    readers = engine.reads.get(command.name, {})
    if command.interval_us is None:
        readers.pop(command.reader, None)
        if not readers:
            engine.reads.pop(command.name, None)
        return {"query": command.name, "readers": len(readers)}
    places = [place for place, _ in _deadlines(query)]
    if not places:
        raise Refuse(
            f"query {command.name} has no edge LATEST USING DEADLINE, so a refresh interval would change nothing: "
            "subscribe without it, or replace the query",
            code="no_deadline",
        )
    if command.keys is not None and not any(_key_columns(query, place) for place in places):
        raise Refuse(
            f"query {command.name}: its key is not the update key of an edge LATEST USING DEADLINE, so its queues "
            "cannot serve single keys: state the refresh interval without keys",
            code="no_deadline",
        )
    readers[command.reader] = Reads(command.interval_us, engine.clock.now_us, command.keys)
    engine.reads[command.name] = readers
    return {"query": command.name, "readers": len(readers)}


def settle(engine: Engine) -> None:
    """Let every DEADLINE queue know its readers, which are those of all queries that its operator belongs to."""
    of_queues: dict[UpdateQueue, list[Reads]] = {}
    for query in engine.queries_by_name.values():
        if not query.requeued:
            continue
        readers = engine.reads.get(query.plan.name, {}).values()
        for place, queue in _deadlines(query):
            columns = _key_columns(query, place)
            found = of_queues.setdefault(queue, [])
            for read in readers:
                if read.keys is None:
                    found.append(read)
                elif columns is not None:
                    keys = tuple(tuple(key[at] for at in columns) for key in read.keys)
                    found.append(Reads(read.interval_us, read.since_us, keys))
    for queue, reads in of_queues.items():
        queue.read_at(reads)


def shown(engine: Engine, query: str) -> list[ReaderView]:
    return [
        ReaderView(reader=reader, refresh_us=read.interval_us, keys=None if read.keys is None else len(read.keys))
        for reader, read in engine.reads.get(query, {}).items()
    ]


def _deadlines(query: Query) -> Iterator[tuple[Place, UpdateQueue]]:
    for node, operator in zip(query.plan.nodes, query.operators, strict=True):
        for at, reader in enumerate(operator.inputs):
            queue = reader.queue if isinstance(reader, QueueInlet) else None
            if isinstance(queue, UpdateQueue) and queue.scheduler == "deadline":
                yield (node.name, at), queue


def _key_columns(query: Query, place: Place) -> list[int] | None:
    """Which column of the query's update key each column of an edge's update key is; None if one is none of them."""
    plan = query.plan
    operators = dict(zip((node.name for node in plan.nodes), query.operators, strict=True))
    reader = operators[place[0]].inputs[place[1]]
    assert isinstance(reader, QueueInlet)
    columns: dict[int, int] = {}
    for number, name in enumerate(plan.update_key or ()):
        at = plan.schema.names.index(name)
        field = plan.schema.fields[at]
        for found, key in _inputs(query, plan.output, e.Column(field.type, field.nullable, at, field.name)):
            if found == place and isinstance(key, e.Column):
                columns[key.position] = number
    places = [columns.get(at) for at in reader.edge.key]
    return None if None in places else [at for at in places if at is not None]


def _inputs(query: Query, name: str, key: e.Expression) -> Iterator[tuple[Place, e.Expression]]:
    """What an expression over an operator's rows is in each input upstream, as far as the query's plan goes."""
    for node, operator in zip(query.plan.nodes, query.operators, strict=True):
        if node.name == name:
            origins = node.spec.origins(key, [reader.schema for reader in operator.inputs])
            for at, above in origins:
                if above is not None:
                    yield (name, at), above
                    yield from _inputs(query, node.inputs[at], above)
