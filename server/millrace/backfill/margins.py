"""How far from a row's own time the input lies that it was made of: look-back and look-ahead.

Each operator says how far it reaches from one of its rows to the rows of each input; what a query needs of a stream
is the sum along the longest path. None is no bound: then the rows of a slice of time cannot be made from a bounded
neighbourhood of it. An operator that comes new must say its reach here, or it has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace.backfill.flow import Flow
from millrace.engine.plan import Node
from millrace.operators.join.bands import close_bands
from millrace.operators.spec import (
    AggregateSpec,
    FilterSpec,
    GateSpec,
    JoinSpec,
    MapSpec,
    RetimeSpec,
    RowWindow,
    SampleSpec,
    SelectSpec,
    SequenceSpec,
    SessionWindow,
    SortSpec,
    TimeWindow,
    TopSpec,
    UnionSpec,
    WindowSpec,
    undecided,
)
from millrace.sql.progress import Lags, join_lags, plus


class Reach(NamedTuple):
    """A row at t depends on input from t - back to t + ahead, both included; None is no bound."""

    back: int | None
    ahead: int | None

    def then(self, other: Reach) -> Reach:
        """One operator's reach on top of another's."""
        return Reach(plus(self.back, other.back), plus(self.ahead, other.ahead))

    def widest(self, other: Reach) -> Reach:
        return Reach(_most(self.back, other.back), _most(self.ahead, other.ahead))

    @property
    def bounded(self) -> bool:
        return self.back is not None and self.ahead is not None


HERE: Final = Reach(0, 0)
# Whatever came before may matter.
ALL_BEFORE: Final = Reach(None, 0)


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
        reason = unbounded_because(node)
        if reason is not None:
            unbounded[node.name] = reason
        for name, reach in zip(node.inputs, reaches(node, [flow.lags[name] for name in node.inputs]), strict=True):
            needs[name] = need.then(reach).widest(needs.get(name, HERE))
    return Margins({name: needs[stream.source] for name, stream in flow.streams.items()}, unbounded)


def reaches(node: Node, lags: Sequence[Lags]) -> list[Reach]:
    """How far a node reaches into each of its inputs."""
    found = _reaches(node, lags)
    return [ALL_BEFORE.widest(one) if node.edge(at).updates else one for at, one in enumerate(found)]


def _reaches(node: Node, lags: Sequence[Lags]) -> list[Reach]:
    match node.spec:
        case SelectSpec() | MapSpec() | SortSpec() | UnionSpec(key=None) | WindowSpec(window=TimeWindow()):
            return [HERE] * len(node.inputs)
        case AggregateSpec(window=TimeWindow(size), newest=False, replaces=None):
            return [Reach(size - 1, 0)]
        case TopSpec(closes_at=int(at), closes_us=by):
            low, _ = lags[0].get(at, (None, None))
            return [ALL_BEFORE if low is None else Reach(max(by - low, 0), 0)]
        case RetimeSpec(position, lag_us):
            low, _ = lags[0].get(position, (None, None))
            return [Reach(None if low is None else max(-low, 0), max(lag_us, 0))]
        case JoinSpec() as spec if not spec.counts_rows:
            return _join_reaches(spec, len(node.inputs))
        case SequenceSpec(within_us=int(within)) as spec if spec.absent:
            return [Reach(within, 0), Reach(within, 0)]
        case SequenceSpec(within_us=int(within), mode="recent"):
            return [Reach(within, 0), HERE]
    return [ALL_BEFORE] * len(node.inputs)


def _join_reaches(spec: JoinSpec, count: int) -> list[Reach]:
    backs = [high for _, high in join_lags(spec.bands, count)]
    if not spec.outer:
        return [Reach(back, 0) for back in backs]
    # A row that is given alone stands at its own time, and all of the other input that could match it must be there.
    most = close_bands(spec.bands, count)
    found = [Reach(back, 0) for back in backs]
    for at in spec.outer:
        before, after = most[1 - at][at], most[at][1 - at]
        other = Reach(None if before is None else max(before, 0), None if after is None else max(after, 0))
        found[1 - at] = found[1 - at].widest(other)
    return found


def unbounded_because(node: Node) -> str | None:
    """Why no span of time around a row holds all that it was made of; None if one does."""
    if any(edge.updates for edge in node.edges):
        return "LATEST keeps the newest row of each key, however old"
    match node.spec:
        case AggregateSpec(window=SessionWindow()):
            return "a session can be of any length"
        case AggregateSpec(window=RowWindow()) | WindowSpec(window=RowWindow()):
            return "windows of rows count from the first row"
        case AggregateSpec(replaces=tuple()) | AggregateSpec(newest=True) | FilterSpec() | UnionSpec(key=tuple()):
            return "the current row of a key can be of any age"
        case AggregateSpec(window=None):
            return "a running total has no window"
        case TopSpec(closes_at=None):
            return "a row can keep its rank for any time"
        case JoinSpec() as spec if spec.counts_rows:
            return "the newest rows of a join's input can be of any age"
        case JoinSpec() as spec:
            bounded = all(reach.bounded for reach in _join_reaches(spec, len(node.inputs)))
            return None if bounded else "one input of the join has no time bound"
        case SequenceSpec(absent=True):
            return None
        case SequenceSpec(mode="chronicle"):
            return "CHRONICLE consumes rows, so each match depends on all earlier ones"
        case SequenceSpec(within_us=None):
            return "FOLLOWED BY without WITHIN has no time bound"
        case SequenceSpec() | AggregateSpec() | TopSpec() | WindowSpec() | RetimeSpec():
            return None
        case SelectSpec() | GateSpec() | SampleSpec() | MapSpec() | SortSpec() | UnionSpec():
            return None
    raise undecided("how far back it reaches", node.spec)


def _most(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)
