"""Which aggregates may close the windows of single groups: those that group by a stream's punctuation key.

The key may be renamed on the way. Each operator decides at run time whether it can pass a promise about a group on;
here it is only excluded that no promise can arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from millrace.values import expression as e

if TYPE_CHECKING:
    from millrace.sql.queries import QueryPlanner


def punctuated_groups(planner: QueryPlanner, node: str, keys: Sequence[e.Expression]) -> bool:
    """Whether groups by these expressions over a node include all columns of a stream's punctuation key."""
    columns = {origin for key in keys if isinstance(key, e.Column) for origin in _origins(planner, node, key)}
    for stream in map(planner.catalog.stream, planner.streams):
        key = {(stream.source, stream.schema.names.index(name)) for name in stream.punctuation_key}
        if key and key <= columns:
            return True
    return False


def _origins(planner: QueryPlanner, name: str, key: e.Expression) -> Iterator[tuple[str, int]]:
    """The columns outside of the plan that a column of a node is copied from."""
    node = next((node for node in planner.nodes if node.name == name), None)
    if node is None:
        if isinstance(key, e.Column):
            yield name, key.position
        return
    if len(node.inputs) > 1:
        return  # joins and unions do not pass such promises on
    ((_, origin),) = node.spec.origins(key, [planner.schemas[one] for one in node.inputs])
    if isinstance(origin, e.Column):
        yield from _origins(planner, node.inputs[0], origin)
