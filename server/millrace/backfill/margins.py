"""How far from a row's own time the input lies that it depends on: look-back and look-ahead.

Each operator knows its reach into each input (`Spec.reaches`); what a query needs of a stream is the sum along the
longest path. Without a bound, the rows of a slice of time cannot be computed from a bounded neighbourhood of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.backfill.flow import Flow
from millrace.engine.plan import Node
from millrace.values.lags import Lags
from millrace.values.reach import ALL_BEFORE, HERE, Reach, Reaches


@dataclass(frozen=True, slots=True)
class Margins:
    """What a query's rows depend on, by stream, and which operators have no bound, with the reason in words."""

    streams: Mapping[str, Reach]
    unbounded: Mapping[str, str]

    @property
    def widest(self) -> Reach:
        found = HERE
        for reach in self.streams.values():
            found = found.widest(reach)
        return found


def margins_of(flow: Flow) -> Margins:
    """The margins of a flow's streams."""
    needs = {flow.query.output: HERE}
    unbounded = {}
    for node in reversed(list(flow.nodes.values())):
        need = needs[node.name]
        reaches = _reaches(node, [flow.lags[name] for name in node.inputs])
        if reaches.unbounded is not None:
            unbounded[node.name] = reaches.unbounded
        for name, reach in zip(node.inputs, reaches.inputs, strict=True):
            needs[name] = need.then(reach).widest(needs.get(name, HERE))
    return Margins({name: needs[stream.source] for name, stream in flow.streams.items()}, unbounded)


def _reaches(node: Node, lags: Sequence[Lags]) -> Reaches:
    """How far a node reaches into each of its inputs."""
    found = node.spec.reaches(lags)
    updates = [node.edge(at).updates for at in range(len(lags))]
    if not any(updates):
        return found
    inputs = [
        reach.widest(ALL_BEFORE) if newest else reach for reach, newest in zip(found.inputs, updates, strict=True)
    ]
    return Reaches(inputs, "LATEST keeps the newest row of each key, however old")
