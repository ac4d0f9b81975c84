"""ROWS windows count the tuples of a stream, so they include the selects and maps between it and them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.engine.plan import Namer, Node, word_of
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.frame.spec import Spec
from millrace.operators.project.spec import MapSpec
from millrace.sql import syntax as s
from millrace.sql.binder import MAX_DEPTH, MAX_PARTS, Relation
from millrace.sql.conditions import all_of
from millrace.sql.facts import stream_lags
from millrace.values import expression as e

if TYPE_CHECKING:
    from millrace.sql.queries import QueryPlanner


def unfold_rows(
    planner: QueryPlanner, relation: Relation, place: s.Node
) -> tuple[Relation, Sequence[e.Expression], e.Expression | None]:
    """Remove the selects and maps between a relation and its stream from the plan. Returns the relation that reads
    the stream, each column as an expression over it, and the condition on its rows.
    """
    path: list[Node] = []
    name = relation.node
    for node in reversed(planner.nodes):
        if node.name == name and isinstance(node.spec, MapSpec | SelectSpec):
            path.append(node)
            (name,) = node.inputs
    if not relation.edge.plain or any(node.edges for node in path):
        raise planner.error(place, "ROWS counts every tuple, but this edge drops tuples")
    if name not in (planner.catalog.stream(stream).source for stream in planner.streams):
        raise planner.error(
            place,
            "ROWS counts the tuples of one stream as they arrive: expected a stream, or a query in "
            "parentheses that only selects and computes",
        )
    drawn = [key for node in path for key in planner.library.drawn(node.spec)]
    if drawn:
        raise planner.error(
            place,
            f"ROWS computes the columns of the inner query from the stream itself, and {drawn[0]} is not "
            "deterministic: create the inner query separately",
        )
    nodes = [node for node in planner.nodes if node not in path]
    planner.nodes[:] = nodes
    planner.namer = Namer(planner.name)
    for node in nodes:
        planner.namer.name(word_of(node.name))
    stream = next(stream for stream in map(planner.catalog.stream, planner.streams) if stream.source == name)
    columns: list[e.Expression] = [
        e.Column(field.type, field.nullable, position, field.name) for position, field in enumerate(stream.schema)
    ]
    where: e.Expression | None = None
    sizes: Sequence[e.Extent] = [e.Extent()] * len(columns)
    for node in reversed(path):
        sizes = _substituted_extents(planner, node.spec, sizes, place)
        if isinstance(node.spec, SelectSpec):
            where = all_of([where, e.substitute(node.spec.predicate, columns)])
        elif isinstance(node.spec, MapSpec):
            columns = [e.substitute(column, columns) for _, column in node.spec.columns]
    lags = stream_lags(stream, planner.catalog)
    return replace(relation, node=name, schema=stream.schema, lags=lags), columns, where


def _substituted_extents(
    planner: QueryPlanner, spec: Spec, columns: Sequence[e.Extent], place: s.Node
) -> Sequence[e.Extent]:
    """The size of each column if this operator's expressions are substituted into its readers'."""
    expressions: list[e.Expression] = []
    if isinstance(spec, SelectSpec):
        expressions = [spec.predicate]
    elif isinstance(spec, MapSpec):
        expressions = [column for _, column in spec.columns]
    extents = [e.extent(expression, columns) for expression in expressions]
    if sum(extent.parts for extent in extents) > MAX_PARTS or any(extent.depth > MAX_DEPTH for extent in extents):
        raise planner.error(
            place,
            "ROWS computes the columns of the inner query from the stream itself, which takes more than "
            f"{MAX_PARTS:,} parts or {MAX_DEPTH} levels of nesting here: create the inner query separately",
        )
    return extents if isinstance(spec, MapSpec) else columns
