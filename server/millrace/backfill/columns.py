"""Which columns of each stream a flow looks at: only these travel to the tasks.

The others are filled with what stands where a value is null, which nobody sees. An operator that is not named here
is taken to look at everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millrace.backfill.flow import Flow
from millrace.backfill.keys import columns_in
from millrace.engine.plan import Node
from millrace.operators.spec import (
    AggregateSpec,
    JoinSpec,
    MapSpec,
    SelectSpec,
    SequenceSpec,
    SortSpec,
    TimeWindow,
    UnionSpec,
    WindowSpec,
)
from millrace.values import expression as e

Positions = set[int]


def used_columns(flow: Flow) -> Mapping[str, tuple[int, ...]]:
    """By stream, the positions of its columns that matter, in order. Its time is not among them: every row has it."""
    wanted: dict[str, Positions] = {flow.query.output: set(range(len(flow.schemas[flow.query.output])))}
    for node in reversed(list(flow.nodes.values())):
        widths = [len(flow.schemas[name]) for name in node.inputs]
        for name, positions in zip(node.inputs, _used(node, wanted[node.name], widths), strict=True):
            wanted.setdefault(name, set()).update(positions)
    return {
        name: tuple(sorted(at for at in wanted[stream.source] if 0 <= at != stream.time_position))
        for name, stream in flow.streams.items()
    }


def _used(node: Node, wanted: Positions, widths: Sequence[int]) -> list[Positions]:
    """The positions of each input that a node looks at, if these of its own rows are wanted."""
    if any(not edge.plain for edge in node.edges):
        return [set(range(width)) for width in widths]
    match node.spec:
        case SelectSpec(predicate):
            return [wanted | _of([predicate])]
        case SortSpec() | UnionSpec(key=None):
            return [set(wanted) for _ in widths]
        case MapSpec(columns):
            return [_of(columns[at][1] for at in wanted)]
        case WindowSpec(window=TimeWindow(), columns=None, where=None):
            return [{at for at in wanted if at < widths[0]}]
        case AggregateSpec(rows=False, replaces=None) as spec:
            return [_of(_aggregated(spec))]
        case JoinSpec(columns, equal=equal):
            pairs = [(one.left, one.left_key) for one in equal] + [(one.right, one.right_key) for one in equal]
            return _picked(columns, pairs, len(widths))
        case SequenceSpec(columns, keys, tested=tested):
            pairs = [(side, key) for pair in keys for side, key in enumerate(pair)]
            return _picked([*columns, *tested], pairs, len(widths))
    return [set(range(width)) for width in widths]


def _aggregated(spec: AggregateSpec) -> Iterable[e.Expression]:
    yield from (key for _, key in spec.keys)
    for _, call in spec.calls:
        yield from call.arguments
        if call.filter is not None:
            yield call.filter
    if spec.where is not None:
        yield spec.where


def _picked(
    columns: Sequence[tuple[str, int, int]], keys: Sequence[tuple[int, e.Expression]], inputs: int
) -> list[Positions]:
    found: list[Positions] = [set() for _ in range(inputs)]
    for _, side, position in columns:
        found[side].add(position)
    for side, key in keys:
        found[side] |= _of([key])
    return found


def _of(expressions: Iterable[e.Expression]) -> Positions:
    return {column.position for expression in expressions for column in columns_in(expression)}
