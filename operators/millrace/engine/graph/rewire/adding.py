"""Queries that come and go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from millrace.engine import seam, streams
from millrace.engine.events import AddQuery, AddStream, DropQuery, DropStream
from millrace.engine.graph import edges
from millrace.engine.graph.rewire import pausing, sharing
from millrace.engine.graph.rewire.rewiring import Rewiring, carry_out, connect
from millrace.engine.plan import CHANGE_STREAM, Node, QueryPlan, StreamDefinition, names, origin_of
from millrace.engine.queries import Query
from millrace.engine.scheduler.table import Strategy
from millrace.operators.build import build
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator
from millrace.operators.sink.sink import Sink
from millrace.operators.source.source import Source
from millrace.protocol import Refuse
from millrace.protocol.admin.changes import NewQueryReply, QueryDropReply

if TYPE_CHECKING:
    from millrace.engine.engine import Engine


def add(engine: Engine, command: AddQuery) -> NewQueryReply:
    plan = command.plan
    engine.refuse_taken(plan.name)
    with side_streams(engine, plan):
        query = make(engine, plan, None if command.strategy is None else Strategy.parse(command.strategy))
    if seam.is_gated(plan):
        pausing.leave(engine, query, seam.CATCHING_UP)
    return NewQueryReply(query=plan.name)


@contextmanager
def side_streams(engine: Engine, plan: QueryPlan) -> Iterator[None]:
    """A stream of late tuples or of changes exists from the first query that reads it on; if that is refused, it does
    not."""
    added = []
    for name in plan.reads_streams:
        definition = None if name in engine.streams_by_name else _side_stream(engine, name)
        if definition is not None:
            streams.add(engine, AddStream(definition))
            added.append(name)
    try:
        yield
    except Refuse:
        for name in added:
            streams.drop(engine, DropStream(name))
        raise


def _side_stream(engine: Engine, name: str) -> StreamDefinition | None:
    if name == CHANGE_STREAM.name:
        return CHANGE_STREAM
    origin = engine.streams_by_name.get(origin_of(name) or "")
    return None if origin is None else origin.definition.late


def make(
    engine: Engine, plan: QueryPlan, chosen: Strategy | None = None, saved: Mapping[str, str] | None = None
) -> Query:
    """A query over what is there, with operators of others where it can have them, or has `saved` that it had."""
    common = sharing.Common()
    if saved is not None:
        common = sharing.known(engine, saved)
    elif engine.share and chosen is None:
        common = sharing.common(engine, plan)
    operators = build_nodes(engine, plan, common.operators, common.since)
    result = Inlet(operators[plan.output].output, common.since.get(plan.output))
    query = Query(engine.number(plan), list(operators.values()), Sink(plan.sink, plan.name, result), apart=common.apart)
    own = [operator for name, operator in operators.items() if name not in common.operators]
    connect([*own, query.sink])
    engine.queries_by_name[plan.name] = query
    engine.fresh |= dict.fromkeys(own)
    engine.graph.add([*own, query.sink], chosen)
    engine.query_added(query)
    return query


def build_nodes(
    engine: Engine, plan: QueryPlan, continued: Mapping[str, Operator], shared: Mapping[str, int | None] | None = None
) -> dict[str, Operator]:
    """The operators of a plan, in its order: those that are kept, and new ones, which no arc knows yet.

    Kept ones may be `shared` with other queries: then they are read from that time on.
    """
    edges.check(engine, plan)
    shared = {} if shared is None else shared
    operators: dict[str, Operator] = {}
    since: dict[str, int | None] = {}
    for node in plan.nodes:
        if node.name in continued:
            operators[node.name] = continued[node.name]
            since[node.name] = engine.graph.beginning(continued[node.name])
            continue
        inlets = []
        for position, name in enumerate(node.inputs):
            if name in operators:
                inlets.append(edges.inlet(engine, node, position, operators[name].output, shared.get(name)))
            else:
                inlets.append(_entry(engine, name, node, position, plan.options.start))
                since[name] = engine.graph.beginning(engine.named(name))
        known = [since_us for name in node.inputs if (since_us := since[name]) is not None]
        since[node.name] = None if node.spec.state().start == "beginning" else max(known, default=None)
        operators[node.name] = build(node.name, node.spec, inlets, engine.gauge, engine.clock, since[node.name])
    return operators


def _entry(engine: Engine, name: str, node: Node, position: int, start: Literal["newest", "watermark"]) -> Inlet:
    """A new query's inlet. It reads a stream from one microsecond above the newest time taken in so far, or from the
    stream's mark; it reads a query's rows, of operators shared with an older query none older than its start.
    """
    producer, own = engine.named(name), node.spec.state().start
    if isinstance(producer, Source):
        since_us = producer.first_read("newest" if own == "newest" else start)
    else:
        below = [query for query in engine.queries_by_name.values() if query.plan.output == name]
        since_us = below[0].sink.inputs[0].since_us if below else None
    if own == "beginning":
        since_us = None
    return edges.inlet(engine, node, position, producer.output, since_us)


def drop(engine: Engine, command: DropQuery) -> QueryDropReply:
    query = engine.query(command.name)
    readers = [other.plan.name for other in engine.queries_by_name.values() if command.name in other.plan.reads_queries]
    if readers:
        raise Refuse(f"query {command.name} is read by {names(readers)}: drop them first", code="in_use")
    engine.slow.pop(query.sink, None)
    engine.reads.pop(query.sink, None)
    carry_out(engine, Rewiring(gone=[query]))
    sharing.tighten(engine, query.operators)
    return QueryDropReply(query=command.name, dropped=True)
