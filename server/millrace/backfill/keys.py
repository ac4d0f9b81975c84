"""Which key all stateful operators of a flow have in common, told in each stream's own columns.

Rows that meet in some operator's state must come to one task. So for each stateful operator the expressions are
collected that all rows of one of its states share, each followed up to the streams: through projections, unions, and
across joins by their equalities. What is left when all operators have been asked is the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.backfill.flow import Flow
from millrace.engine.plan import Node
from millrace.operators.frame.spec import Shared, column_at
from millrace.values import expression as e
from millrace.values.written import show

# By stream, the expression over its columns whose value a state's rows share.
Origin = Mapping[str, e.Expression]


@dataclass(frozen=True, slots=True)
class Keys:
    """The key of each stream that some state depends on, or the operator that has none with the others, and why."""

    streams: Mapping[str, tuple[e.Expression, ...]]
    refused: tuple[str, str] | None = None

    def words(self) -> str:
        told = [f"{stream} by {', '.join(map(show, key))}" for stream, key in self.streams.items()]
        return " and ".join(told)


def keys_of(flow: Flow) -> Keys:
    """The common key of a flow. A flow without any state has one of no columns."""
    groups: list[tuple[set[str], list[Origin]]] = []
    for node in flow.nodes.values():
        wanted = _state_keys(node, flow)
        if wanted is None:
            continue
        if isinstance(wanted, str):
            return Keys({}, (node.name, wanted))
        origins = [origin for shared in wanted for origin in _shared(node, shared, flow)]
        streams = set(flow.streams_above(node.name))
        origins = [origin for origin in origins if origin.keys() == streams]
        if not origins:
            return Keys({}, (node.name, "its key is not a column of the streams"))
        for group in [group for group in groups if group[0] & streams]:
            groups.remove(group)
            origins = _agreeing(group[1], origins)
            streams |= group[0]
        if not origins:
            return Keys({}, (node.name, "it has no key in common with the other stateful operators"))
        groups.append((streams, origins))
    found: dict[str, tuple[e.Expression, ...]] = {}
    for streams, origins in groups:
        for stream in sorted(streams):
            found[stream] = tuple(origin[stream] for origin in origins)
    return Keys({stream: found[stream] for stream in flow.streams if stream in found})


def _agreeing(one: Sequence[Origin], other: Sequence[Origin]) -> list[Origin]:
    """What both have in common: origins that say the same of the streams that both know."""
    made: list[Origin] = []
    for left in one:
        for right in other:
            if all(left[stream] == right[stream] for stream in left.keys() & right.keys()):
                both = {**left, **right}
                if both not in made:
                    made.append(both)
                break
    return made


# -- what the rows of one state share ----------------------------------------------------------------------------------


def _state_keys(node: Node, flow: Flow) -> Sequence[Shared] | str | None:
    """Per component of the key, what it is in each input; None if the operator keeps no rows together."""
    schemas = [flow.schemas[name] for name in node.inputs]
    found = node.spec.state_keys(schemas)
    for at in range(len(node.inputs)):
        if node.edge(at).updates and not isinstance(found, str):
            edge: list[Shared] = [[(at, column_at(schemas[at], position))] for position in node.edge(at).key]
            found = edge if found is None else [one for one in found if one in edge]
    return found


def _shared(node: Node, shared: Shared, flow: Flow) -> list[Origin]:
    """One component of a key, in the columns of the streams; nothing if it cannot be followed."""
    merged: dict[str, e.Expression] = {}
    for at, key in shared:
        origin = origin_of(node.inputs[at], key, flow)
        if origin is None or not _merge(merged, origin):
            return []
    return [merged]


def _merge(into: dict[str, e.Expression], origin: Origin) -> bool:
    """Whether two origins say the same of the streams that both know; then they are put together."""
    if any(stream in into and into[stream] != key for stream, key in origin.items()):
        return False
    into.update(origin)
    return True


# -- following an expression up ----------------------------------------------------------------------------------------


def origin_of(name: str, key: e.Expression, flow: Flow) -> Origin | None:
    """What an expression over an operator's rows is in the columns of each stream above it; None if it is not the same
    for all rows that went into one."""
    if any(column.position < 0 for column in e.columns_of(key)) or isinstance(key, e.Constant):
        return None
    if name in flow.sources:
        stream = flow.sources[name]
        return {stream: e.anonymous(key, flow.streams[stream].schema.names)}
    node = flow.nodes[name]
    merged: dict[str, e.Expression] = {}
    for at, above in node.spec.origins(key, [flow.schemas[name] for name in node.inputs]):
        origin = None if above is None else origin_of(node.inputs[at], above, flow)
        if origin is None or not _merge(merged, origin):
            return None
    return merged or None
