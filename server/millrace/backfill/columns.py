"""Which columns of each stream a flow reads: only these travel to the tasks.

The others are filled with the value that stands for a null, which no operator reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millrace.backfill.flow import Flow
from millrace.engine.plan import Node
from millrace.operators.frame.spec import Positions, all_columns


def used_columns(flow: Flow) -> Mapping[str, tuple[int, ...]]:
    """By stream, the positions of its columns that matter, in order. Its time is not among them: every row has it."""
    wanted: dict[str, Positions] = {name: set(range(len(flow.schemas[name]))) for name in flow.outputs}
    for node in reversed(list(flow.nodes.values())):
        widths = [len(flow.schemas[name]) for name in node.inputs]
        for name, positions in zip(node.inputs, _used(node, wanted[node.name], widths), strict=True):
            wanted.setdefault(name, set()).update(positions)
    return {
        name: tuple(sorted(at for at in wanted[stream.source] if 0 <= at != stream.time_position))
        for name, stream in flow.streams.items()
    }


def _used(node: Node, wanted: Positions, widths: Sequence[int]) -> list[Positions]:
    """The positions of each input that a node reads, if these of its own rows are wanted."""
    if any(not edge.plain for edge in node.edges):
        return all_columns(widths)
    return node.spec.used_columns(wanted, widths)
