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
from millrace.operators.spec import (
    AggregateSpec,
    FilterSpec,
    GateSpec,
    JoinSpec,
    MapSpec,
    Picked,
    RetimeSpec,
    RowWindow,
    SampleSpec,
    SelectSpec,
    SequenceSpec,
    SortSpec,
    TopSpec,
    UnionSpec,
    WindowSpec,
    undecided,
)
from millrace.protocol import Schema
from millrace.sql.explain import show
from millrace.values import expression as e

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
        origins = [origin for at, keys in wanted for origin in _shared(node, at, keys, flow)]
        streams = set(flow.streams_above(node.name))
        origins = [origin for origin in origins if origin.keys() == streams]
        if not origins:
            return Keys({}, (node.name, _no_key_because(node)))
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


def _no_key_because(node: Node) -> str:
    match node.spec:
        case AggregateSpec(window=RowWindow()) | WindowSpec():
            return "it counts all rows"
        case JoinSpec() as spec if spec.counts_rows:
            return "it counts all rows of an input"
        case AggregateSpec(keys=()):
            return "it has no GROUP BY"
        case TopSpec(partition=()):
            return "it ranks all rows together"
        case JoinSpec(equal=()) | SequenceSpec(keys=()):
            return "it has no equality condition"
    return "its key is not a column of the streams"


# -- what the rows of one state share ----------------------------------------------------------------------------------

# Expressions over inputs: pairs of (input, expression), one pair per input that must agree.
Shared = Sequence[tuple[int, e.Expression]]


def _state_keys(node: Node, flow: Flow) -> list[tuple[int, Shared]] | None:
    """Per component of the key, what it is in each input; None if the operator keeps no rows together."""
    schemas = [flow.schemas[name] for name in node.inputs]
    found = _spec_keys(node, schemas)
    for at in range(len(node.inputs)):
        if node.edge(at).updates:
            edge: list[Shared] = [[(at, _column(schemas[at], position))] for position in node.edge(at).key]
            found = edge if found is None else [one for one in found if one in edge]
    return None if found is None else list(enumerate(found))


def _spec_keys(node: Node, schemas: Sequence[Schema]) -> list[Shared] | None:
    match node.spec:
        case AggregateSpec(window=RowWindow()) | WindowSpec(window=RowWindow()):
            return []
        case AggregateSpec(keys=keys, replaces=replaces):
            return [[(0, key)] for _, key in keys if replaces is None or _is_one_of(key, replaces)]
        case TopSpec(partition=partition, replaces=replaces):
            return [[(0, column)] for column in partition if replaces is None or column.position in replaces]
        case FilterSpec(key=key):
            return [[(0, _column(schemas[0], at))] for at in key]
        case UnionSpec(key=tuple(key)):
            return [[(at, _column(schema, position)) for at, schema in enumerate(schemas)] for position in key]
        case JoinSpec() as spec:
            return [] if spec.counts_rows else _equalities(spec, len(schemas))
        case SequenceSpec(keys=pairs):
            return [[(0, left), (1, right)] for left, right in pairs if left.type == right.type]
        case SelectSpec() | GateSpec() | SampleSpec() | MapSpec() | SortSpec() | UnionSpec():
            return None
        case WindowSpec() | RetimeSpec():
            return None
    raise undecided("which rows it keeps together", node.spec)


def _is_one_of(key: e.Expression, positions: Sequence[int]) -> bool:
    return isinstance(key, e.Column) and key.position in positions


def _column(schema: Schema, position: int) -> e.Column:
    field = schema.fields[position]
    return e.Column(field.type, field.nullable, position, field.name)


def _equalities(spec: JoinSpec, count: int) -> list[Shared]:
    """The equalities of a join that tie all of its inputs: chains of equal expressions."""
    chains: list[dict[int, e.Expression]] = []
    for one in spec.equal:
        if one.left_key.type != one.right_key.type:
            continue
        pair = {one.left: _plain(one.left_key), one.right: _plain(one.right_key)}
        for chain in [chain for chain in chains if any(chain.get(at) == key for at, key in pair.items())]:
            chains.remove(chain)
            pair = {**pair, **chain}
        chains.append(pair)
    return [sorted(chain.items()) for chain in chains if len(chain) == count]


def _shared(node: Node, number: int, shared: Shared, flow: Flow) -> list[Origin]:
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
    if _has_time(key) or isinstance(key, e.Constant):
        return None
    if name in flow.sources:
        stream = flow.sources[name]
        return {stream: _plain(key, flow.streams[stream].schema)}
    node = flow.nodes[name]
    merged: dict[str, e.Expression] = {}
    for at, above in _above(node, key, flow):
        origin = None if above is None else origin_of(node.inputs[at], above, flow)
        if origin is None or not _merge(merged, origin):
            return None
    return merged or None


def _above(node: Node, key: e.Expression, flow: Flow) -> list[tuple[int, e.Expression | None]]:
    """The expression in each input of a node; None where it is not known."""
    width = len(flow.schemas[node.inputs[0]])
    match node.spec:
        case SelectSpec() | FilterSpec() | SortSpec() | RetimeSpec():
            return [(0, _within(key, width))]
        case MapSpec(columns) | WindowSpec(columns=tuple(columns)):
            return [(0, _substituted(key, [column for _, column in columns]))]
        case WindowSpec() | TopSpec():
            return [(0, _within(key, width))]
        case UnionSpec():
            return [(at, key) for at in range(len(node.inputs))]
        case AggregateSpec(rows=True):
            return [(0, _within(key, width))]
        case AggregateSpec(keys=keys):
            return [(0, _substituted(key, [column for _, column in keys]))]
        case JoinSpec() as spec:
            pairs = [(one.left, one.left_key, one.right, one.right_key) for one in spec.equal]
            return _across(key, spec.columns, pairs, flow, node, {1 - at for at in spec.outer})
        case SequenceSpec(columns, keys) as spec:
            pairs = [(0, left, 1, right) for left, right in keys]
            return _across(key, columns, pairs, flow, node, {0} if spec.outer else set())
    return [(0, None)]


def _across(
    key: e.Expression,
    columns: Sequence[Picked],
    pairs: Sequence[tuple[int, e.Expression, int, e.Expression]],
    flow: Flow,
    node: Node,
    missing: set[int],
) -> list[tuple[int, e.Expression | None]]:
    """An expression over joined rows in every input: it is of one input, and equal to something of the others."""
    sides = {columns[at][1] for at in _positions(key)}
    if len(sides) != 1 or sides & missing:
        return [(0, None)]
    (side,) = sides
    schema = flow.schemas[node.inputs[side]]
    picked = [_column(schema, at) if of == side and at >= 0 else None for _, of, at in columns]
    above = _substituted(key, picked)
    known: dict[int, e.Expression | None] = {side: None if above is None else _plain(above)}
    for _ in node.inputs:
        for left, left_key, right, right_key in pairs:
            if left_key.type != right_key.type:
                continue
            if known.get(left) == _plain(left_key):
                known.setdefault(right, _plain(right_key))
            elif known.get(right) == _plain(right_key):
                known.setdefault(left, _plain(left_key))
    return [(at, known.get(at)) for at in range(len(node.inputs))]


def _within(key: e.Expression, width: int) -> e.Expression | None:
    return key if all(at < width for at in _positions(key)) else None


def _substituted(key: e.Expression, columns: Sequence[e.Expression | None]) -> e.Expression | None:
    if any(at >= len(columns) or columns[at] is None for at in _positions(key)):
        return None
    return e.rewrite(key, lambda part: columns[part.position] if isinstance(part, e.Column) else None)


def _positions(key: e.Expression) -> list[int]:
    return [column.position for column in columns_in(key)]


def columns_in(expression: e.Expression) -> list[e.Column]:
    """The columns of an expression, the row's own time too."""
    found: list[e.Column] = []

    def look(part: e.Expression) -> e.Expression | None:
        if isinstance(part, e.Column):
            found.append(part)
        return None

    e.rewrite(expression, look)
    return found


def _has_time(key: e.Expression) -> bool:
    return any(at < 0 for at in _positions(key))


def _plain(key: e.Expression, schema: Schema | None = None) -> e.Expression:
    """The expression without what does not change its value: nullability, and names other than the schema's own."""

    def plain(part: e.Expression) -> e.Expression | None:
        if not isinstance(part, e.Column):
            return None
        return e.Column(part.type, True, part.position, "" if schema is None else schema.names[part.position])

    return e.rewrite(key, plain)
