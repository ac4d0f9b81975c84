"""UNION ALL: sides with equal columns as one operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.operators.project.spec import MapSpec
from millrace.operators.union.spec import UnionSpec
from millrace.protocol import GONE, Type
from millrace.sql import syntax as s
from millrace.sql.binder import Relation
from millrace.sql.ordering import stamp_rows
from millrace.sql.updates import map_rows
from millrace.values import expression as e

if TYPE_CHECKING:
    from millrace.sql.queries import QueryPlanner


def union_rows(planner: QueryPlanner, branches: Sequence[tuple[s.Node, Relation]]) -> Relation:
    first = branches[0][1]
    width = len(first.schema.data_fields)
    for place, relation in branches:
        planner.check_bounded(relation)
        _check_arm(planner, place, relation, first)
        if len(relation.schema.data_fields) != width:
            raise planner.error(
                place,
                f"UNION ALL matches columns by position: expected {width} column{'s' * (width != 1)}, got "
                f"{len(relation.schema.data_fields)}",
            )
    types = [_union_type(planner, position, branches) for position in range(width)]
    inputs = [_as_types(planner, relation, types) for _, relation in branches]
    if first.update_key is not None:
        return _newest_union(planner, inputs)
    spec = UnionSpec(planner.options.order == "event")
    return replace(planner.add(spec, inputs), alias=None)


def _check_arm(planner: QueryPlanner, place: s.Node, relation: Relation, first: Relation) -> None:
    """Require append streams, or update streams of one key. Otherwise it is undefined which row replaces which."""
    if relation.update_key is None and first.update_key is None:
        return
    if relation.update_key is None or first.update_key is None or relation.key_at != first.key_at:
        kinds = [_kind(arm) for arm in (first, relation)]
        raise planner.error(
            place,
            f"the first side of this UNION ALL is {kinds[0]}, this one {kinds[1]}: it is undefined which "
            "row a new row replaces. Use update streams with the same key at the same positions, or "
            "aggregates per window, FROM TUMBLE(...), on all sides; or aggregate the union",
        )


def _newest_union(planner: QueryPlanner, inputs: Sequence[Relation]) -> Relation:
    """A union of update streams of one key: it emits the newest row of each key and drops older ones."""
    inputs = [stamp_rows(planner, relation) for relation in inputs]
    if any(relation.retracts for relation in inputs):
        inputs = [relation if relation.retracts else _add_tombstone_field(planner, relation) for relation in inputs]
    union = planner.add(UnionSpec(False, inputs[0].key_at), inputs)
    return replace(union, alias=None, update_key=inputs[0].update_key)


def _add_tombstone_field(planner: QueryPlanner, relation: Relation) -> Relation:
    columns: list[tuple[str, e.Expression]] = [
        (field.name, e.Column(field.type, field.nullable, position, field.name))
        for position, field in enumerate(relation.schema)
    ]
    columns.append((GONE, e.Constant(Type.BOOLEAN, False, False)))
    rows = planner.add(MapSpec(tuple(columns)), [relation])
    return replace(rows, update_key=relation.update_key)


def _union_type(planner: QueryPlanner, position: int, branches: Sequence[tuple[s.Node, Relation]]) -> Type:
    types = {relation.schema.fields[position].type: None for _, relation in branches}
    if set(types) == {Type.BIGINT, Type.DOUBLE}:
        return Type.DOUBLE
    expected = next(iter(types))
    for place, relation in branches:
        field = relation.schema.fields[position]
        if field.type is not expected:
            raise planner.error(
                place, f"column {position + 1} of UNION ALL: expected {expected}, got {field.type} ({field.name})"
            )
    return expected


def _as_types(planner: QueryPlanner, relation: Relation, types: Sequence[Type]) -> Relation:
    """The relation with its columns converted to these types, if any differs."""
    if [field.type for field in relation.schema.data_fields] == list(types):
        return relation
    if relation.update_key is not None:
        return _as_types_by_key(planner, relation, types)
    for at, node in enumerate(planner.nodes):
        if node.name == relation.node and isinstance(node.spec, MapSpec):
            # The branch computes its columns anyway, so it can convert them too.
            planner.nodes[at] = replace(node, spec=_convert_columns(node.spec.columns, types))
            return replace(relation, schema=planner.nodes[at].spec.schema([]))
    columns = [
        (field.name, e.Column(field.type, field.nullable, position, field.name))
        for position, field in enumerate(relation.schema)
    ]
    return planner.add(_convert_columns(columns, types), [relation])


def _as_types_by_key(planner: QueryPlanner, relation: Relation, types: Sequence[Type]) -> Relation:
    """The same for an update stream, whose key keeps its position."""
    columns = [
        e.Column(field.type, field.nullable, at, field.name) for at, field in enumerate(relation.schema.data_fields)
    ]
    converted = map_rows(
        planner, _convert_columns([(column.name, column) for column in columns], types).columns, relation
    )
    return replace(converted, update_key=relation.update_key)


def _kind(relation: Relation) -> str:
    """The kind of a union's side in words."""
    if relation.update_key is None:
        return "an append stream"
    if not relation.update_key:
        return "an update stream of one row"
    named = zip(relation.update_key, relation.key_at, strict=True)
    return f"keyed by {', '.join(f'{name} (column {at + 1})' for name, at in named)}"


def _convert_columns(columns: Sequence[tuple[str, e.Expression]], types: Sequence[Type]) -> MapSpec:
    """The columns with a cast where the type is another."""
    return MapSpec(
        tuple(
            (name, column if column.type is type else e.Cast(type, column.nullable, column))
            for (name, column), type in zip(columns, types, strict=True)
        )
    )
