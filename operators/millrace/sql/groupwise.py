"""Which aggregates may close the windows of single groups: those that group by a stream's punctuation key.

The key may be renamed on the way, and the way may lead through other queries. Each operator decides at run time whether
it can pass a promise about a group on; here it is only excluded that no promise can arrive.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from millrace.engine.plan import Node
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.join.spec import JoinSpec
from millrace.operators.union.spec import UnionSpec
from millrace.protocol import Schema
from millrace.sql.planned import Catalog, schemas_of
from millrace.values import expression as e

if TYPE_CHECKING:
    from millrace.sql.queries import QueryPlanner


def punctuated_groups(planner: QueryPlanner, node: str, keys: Sequence[e.Expression]) -> bool:
    """Whether groups by these expressions over a node include all columns of a stream's punctuation key."""
    columns = {key.position for key in keys if isinstance(key, e.Column)}
    nodes = {node.name: node for node in planner.nodes}
    return bool(_promised(planner.catalog, nodes, planner.schemas, node, columns))


def _promised(
    catalog: Catalog, nodes: Mapping[str, Node], schemas: Mapping[str, Schema], name: str, columns: Collection[int]
) -> set[frozenset[int]]:
    """The sets of these columns of an operator's rows by whose values it may promise groups."""
    if name not in nodes:
        for stream in catalog.streams.values():
            if stream.source == name:
                key = frozenset(stream.schema.names.index(column) for column in stream.punctuation_key)
                return {key} if key and key <= set(columns) else set()
        query = next((query for query in catalog.queries.values() if query.output == name), None)
        if query is None:
            return set()
        nodes, schemas = {node.name: node for node in query.nodes}, schemas_of(query, catalog)
    node = nodes[name]
    stops = len(node.inputs) > 1 and not isinstance(node.spec, UnionSpec | JoinSpec)
    if stops or (isinstance(node.spec, AggregateSpec) and not node.spec.early):
        return set()
    inputs = [schemas[one] for one in node.inputs]
    made = {at: node.spec.origins(e.Column(schemas[name].fields[at].type, True, at, ""), inputs) for at in columns}
    sides = []
    for side, producer in enumerate(node.inputs):
        above = {
            origin.position: at
            for at, origins in made.items()
            for place, origin in origins
            if place == side and isinstance(origin, e.Column) and node.edge(side).plain
        }
        found = _promised(catalog, nodes, schemas, producer, above)
        sides.append({frozenset(above[at] for at in key) for key in found})
    # A join's other inputs promise a group by their own times.
    return set.union(*sides) if isinstance(node.spec, JoinSpec) else set.intersection(*sides)
