"""Update streams in plans: conditions that retract rows, and conversion to append streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.engine.plan import Node, QueryPlan
from millrace.operators.filter.spec import FilterSpec, SelectSpec
from millrace.operators.project.spec import MapSpec
from millrace.protocol import GONE, Type
from millrace.sql.binder import Relation
from millrace.sql.facts import facts_of
from millrace.sql.ordering import sort_input, stamp_rows
from millrace.sql.planned import Catalog
from millrace.values import expression as e

if TYPE_CHECKING:
    from millrace.sql.queries import QueryPlanner


def filter_rows(planner: QueryPlanner, predicate: e.Expression, relation: Relation) -> Relation:
    """The rows that pass a condition. When a key's row no longer passes, a tombstone retracts it."""
    key = relation.key_at
    if relation.update_key is None or all(column.position in key for column in e.columns_of(predicate)):
        return planner.add(SelectSpec(predicate), [relation])
    relation = stamp_rows(planner, relation)
    filtered = planner.add(FilterSpec(predicate, key, planner.options.emit), [relation])
    return replace(filtered, time_known=True)


def map_rows(planner: QueryPlanner, columns: Iterable[tuple[str, e.Expression]], relation: Relation) -> Relation:
    """Computed columns, with the field that marks tombstones."""
    spec = MapSpec(tuple(columns))
    if relation.retracts:
        fields = relation.schema.fields
        mark = e.Column(Type.BOOLEAN, False, len(fields) - 1, GONE)

        def as_it_is(part: e.Expression) -> e.Expression | None:
            plain = isinstance(part, e.Column) and part.position >= 0
            return replace(part, nullable=fields[part.position].nullable) if plain else None  # type: ignore[attr-defined]

        spec = MapSpec((*((name, e.rewrite(column, as_it_is)) for name, column in spec.columns), (GONE, mark)))
    return planner.add(spec, [relation])


def append_rows(planner: QueryPlanner, relation: Relation) -> Relation:
    """All rows of an update stream as an append stream, without tombstones."""
    if relation.update_key is None:
        return relation
    read_every(planner, relation)
    plain = replace(relation, update_key=None)
    if not relation.retracts:
        return plain
    gone = e.Column(Type.BOOLEAN, False, len(relation.schema) - 1, GONE)
    there = e.Call(Type.BOOLEAN, False, planner.library.named("not")[0].key, (gone,))
    passing = planner.add(SelectSpec(there), [plain])
    columns = [
        (field.name, e.Column(field.type, field.nullable, at, field.name))
        for at, field in enumerate(relation.schema.data_fields)
    ]
    appended = planner.add(MapSpec(tuple(columns)), [passing])
    return replace(appended, alias=relation.alias, time_name=relation.time_name)


def read_every(planner: QueryPlanner, relation: Relation) -> None:
    """Make upstream operators emit every row in order of time, so that the rows do not depend on the engine's steps."""
    above = {relation.node}
    for node in reversed(planner.nodes):
        if node.name in above:
            above |= set(node.inputs)
    nodes = list(planner.nodes)
    planner.nodes.clear()
    for node in nodes:
        planner.put(_every(planner, node) if node.name in above else node)
    for query in planner.queries:
        other = planner.catalog.queries[query]
        orders = facts_of(other, planner.catalog).orders
        if other.output in above and any(_drops(node, orders) for node in other.nodes):
            planner.warnings.append(
                f"{query} emits only the last row of each key and step, so which row is current at a time "
                "depends on how busy the engine is: create it WITH (emit = 'every', order = 'event')"
            )


def _every(planner: QueryPlanner, node: Node) -> Node:
    node = sort_input(planner, node) if node.spec.updates().by_order else node
    return replace(node, spec=node.spec.every())


def _drops(node: Node, orders: Mapping[str, bool]) -> bool:
    """Whether which rows of a key an operator emits depends on how its input is batched or ordered."""
    updates = node.spec.updates()
    return updates.depends_on_steps or (updates.by_order and not all(node.ordered(orders)))


def _chooses(node: Node, orders: Mapping[str, bool]) -> bool:
    """Whether the rows that an operator emits for a key depend on how busy the engine is."""
    return _drops(node, orders) or any(edge.updates for edge in node.edges)


def depends_on_steps(plan: QueryPlan, catalog: Catalog) -> bool:
    """Whether a query reads all rows of an update stream that emits only some of them."""
    nodes = {node.name: node for node in plan.nodes}
    readers = [node for node in plan.nodes if node.spec.updates().reads_all]
    read = {name for node in readers for name in _path(node.inputs[0], nodes)}
    other = any(
        query.output in read and _any_chooses(query.nodes, query, catalog)
        for query in map(catalog.queries.__getitem__, plan.reads_queries)
    )
    own = any(edge.updates for node in readers for edge in node.edges)
    return own or other or _any_chooses([node for node in plan.nodes if node.name in read], plan, catalog)


def _any_chooses(nodes: Iterable[Node], plan: QueryPlan, catalog: Catalog) -> bool:
    orders = facts_of(plan, catalog).orders
    return any(_chooses(node, orders) for node in nodes)


def sheds(plan: QueryPlan) -> bool:
    """Whether a query sheds tuples at random."""
    return any(edge.shed is not None for node in plan.nodes for edge in node.edges)


def read_of(name: str, nodes: Sequence[Node]) -> str:
    """The source upstream of operators that process each row alone."""
    *_, last = _path(name, {node.name: node for node in nodes})
    return last


def _path(name: str, nodes: dict[str, Node]) -> Iterator[str]:
    """The source upstream of operators that process each row alone, and those operators."""
    while name in nodes and nodes[name].spec.updates().emits == "input":
        yield name
        (name,) = nodes[name].inputs
    yield name
