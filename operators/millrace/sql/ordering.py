"""Times and their order: where a plan needs them and rows may lack them, an operator is added."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.engine.plan import Node
from millrace.operators.sort.spec import SortSpec
from millrace.operators.union.spec import UnionSpec
from millrace.sql.binder import Relation

if TYPE_CHECKING:
    from millrace.sql.queries import QueryPlanner


def in_event_order(planner: QueryPlanner, relation: Relation) -> Relation:
    """The rows as a query WITH (order = 'event') takes and emits them: sorted, unless they are always in order."""
    if planner.options.order != "event" or (planner.ordered[relation.node] and not relation.edge.updates):
        return relation
    return planner.add(SortSpec(), [relation])


def sort_input(planner: QueryPlanner, node: Node) -> Node:
    """The node over its input in order of time: sorted, unless it is always in order."""
    if all(node.ordered(planner.ordered)):
        return node
    sort = replace(node, name=planner.namer.name(SortSpec.word), spec=SortSpec())
    planner.put(sort)
    (name,) = node.inputs
    planner.schemas[sort.name], planner.lags[sort.name] = planner.schemas[name], planner.lags[name]
    return replace(node, inputs=(sort.name,), edges=())


def stamp_rows(planner: QueryPlanner, relation: Relation) -> Relation:
    """The rows with a time: latent tuples have none until a union in order of time stamps them."""
    if relation.time_known:
        return relation
    stamped = planner.add(UnionSpec(True), [relation])
    return replace(stamped, alias=relation.alias, time_known=True, update_key=relation.update_key)
