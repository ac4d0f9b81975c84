"""The facts of rows: whether they are in order of time, whether all have one, and how far columns lie from it."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.operators.queues.edge import EdgeSpec
from millrace.protocol import Schema
from millrace.sql.planned import Catalog, Facts
from millrace.values.lags import EXACT, Lags


def facts_of(query: QueryPlan, catalog: Catalog) -> Facts:
    """The facts that readers of a query rely on. Its inputs are in the catalog; the query itself need not be yet."""
    known = catalog.facts
    waiting = [query]
    while waiting:
        plan = waiting[-1]
        more = [inner for name in plan.reads_queries if not _is_known(inner := catalog.queries[name], known)]
        if more:
            waiting += more
            continue
        facts = _facts(waiting.pop(), catalog)
        if catalog.queries.get(plan.name) is plan:
            known[plan.name] = plan, facts
    return facts


def _is_known(plan: QueryPlan, known: Mapping[str, tuple[QueryPlan, Facts]]) -> bool:
    return plan.name in known and known[plan.name][0] is plan


def _facts(plan: QueryPlan, catalog: Catalog) -> Facts:
    """The same, if the facts of all its inputs are known."""
    streams = [catalog.stream(name) for name in plan.reads_streams]
    queries = [catalog.queries[name] for name in plan.reads_queries]
    orders = {stream.source: stream_order(stream) for stream in streams}
    columns = {stream.source: (stream_lags(stream, catalog), stream.schema) for stream in streams}
    for query in queries:
        facts = catalog.facts[query.name][1]
        orders[query.output] = facts.orders[query.output]
        columns[query.output] = facts.lags, query.schema
    for node in plan.nodes:
        inputs = [_read(node.edge(at), *columns[name]) for at, name in enumerate(node.inputs)]
        schemas = [schema for _, schema in inputs]
        lags = node.spec.lags([lags for lags, _ in inputs], schemas)
        orders[node.name] = node.spec.gives_order(node.ordered(orders))
        columns[node.name] = lags, node.spec.schema(schemas)
    timed = all(stream.timestamps != "latent" for stream in streams) and all(
        catalog.facts[query.name][1].timed for query in queries
    )
    return Facts(orders, timed, columns[plan.output][0])


def stream_order(stream: StreamDefinition) -> bool:
    """Whether rows of a stream need no sorting: the engine's stamps are in order, and no operator waits for latent
    tuples."""
    return stream.always_ordered or stream.timestamps == "latent"


def stream_lags(stream: StreamDefinition, catalog: Catalog) -> Lags:
    """The columns of a stream that carry its rows' own time. The last column of late tuples is their arrival time."""
    if stream.name not in catalog.streams:
        return {len(stream.schema) - 1: EXACT}
    return {} if stream.time_position is None else {stream.time_position: EXACT}


def _read(edge: EdgeSpec, lags: Lags, schema: Schema) -> tuple[Lags, Schema]:
    """The rows that an operator reads from an edge."""
    if edge.columns is None:
        return lags, schema
    return {at: lags[position] for at, position in enumerate(edge.columns) if position in lags}, edge.reads(schema)
