"""The strategy `chain`: the segment that removes most tuples from the queues per unit of work runs first (CHAIN).

A path is a sequence of operators without forks or joins. Its progress chart starts with one tuple. Over the time that
the operators work, it falls to the share of the tuple that each one emits, and to zero where rows leave the graph. The
lower envelope of that chart divides the path into segments, each less steep than the one before. A segment runs depth
first, a break point ends it, and each cycle starts at the steepest segment that has work.

Selectivities follow from the operators' counts and costs from `Measured` events alone, so a replay decides the same. A
component decides again after a period of measured work. Only a clear difference is a new decision: two segments are
divided, or merged, when their slopes differ by more than a band.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Final

from millrace.engine.events import ChainDecided, Effects
from millrace.engine.graph.graph import Graph
from millrace.engine.scheduler.component import Component
from millrace.engine.scheduler.table import Link, StrategyKind
from millrace.operators.fork.fork import Fork
from millrace.operators.frame.operator import Operator
from millrace.operators.source.source import Source

if TYPE_CHECKING:
    from millrace.engine.engine import Engine

# Measured work of a component between two decisions: at most two hundred a second on a busy core, each about a
# microsecond per operator.
PERIOD_US: Final = 5_000.0
# The factor by which a slope must differ from another, or from its earlier value: measured costs vary by a tenth.
BAND: Final = 1.25
# An operator's selectivity and cost are updated after so many tuples.
FEWEST: Final = 16
# Less than any operator's cost; without it a slope could be infinite.
LEAST_US: Final = 1e-3


@dataclass(slots=True)
class Estimate:
    """The cost of a tuple in an operator and the rows that follow from it, and the counts up to which that is known."""

    selectivity: float = 1.0
    cost_us: float = 0.0
    taken: int = 0
    given: int = 0
    measured: int = 0
    spent_us: float = 0.0

    def look(self, taken: int, given: int, measured: int, spent_us: float) -> None:
        """Update from the counts since the last look, with a weight of a half; the first time with all of it."""
        tuples, first = taken - self.taken, not self.measured
        if tuples < FEWEST or measured - self.measured < FEWEST:
            return
        selectivity = (given - self.given) / tuples
        cost_us = max((spent_us - self.spent_us) / (measured - self.measured), LEAST_US)
        share = 1.0 if first else 0.5
        self.selectivity += share * (selectivity - self.selectivity)
        self.cost_us += share * (cost_us - self.cost_us)
        self.taken, self.given, self.measured, self.spent_us = taken, given, measured, spent_us


@dataclass(frozen=True, slots=True)
class PathSegment:
    """Consecutive operators of a path, the share of a tuple that they emit, and the work on it."""

    operators: tuple[Operator, ...]
    left: float
    cost_us: float

    @property
    def slope(self) -> float:
        """Tuples that leave the queues per microsecond."""
        return (1.0 - self.left) / self.cost_us

    def and_then(self, other: PathSegment) -> PathSegment:
        both = self.operators + other.operators
        return PathSegment(both, self.left * other.left, self.cost_us + self.left * other.cost_us)


class Chains:
    """The measurements of the operators under `chain`. The graph has the decisions, and derives tables from them."""

    def __init__(self) -> None:
        self.estimates: dict[Operator, Estimate] = {}

    def decide(self, engine: Engine, effects: Effects) -> None:
        """Let every component that has worked long enough decide again, and report changed decisions."""
        graph = engine.graph
        for component in list(graph.components):
            if component.worked_us < PERIOD_US:
                continue
            component.worked_us = 0.0
            links = self._links(engine, component)
            if not _moved(graph, links):
                continue
            component.decisions += 1
            graph.decide_chain(links)
            shown = {operator.name: link.view() for operator, link in links.items()}
            effects.orders.append(ChainDecided(component.name, component.decisions, shown))

    def _links(self, engine: Engine, component: Component) -> dict[Operator, Link]:
        """The envelopes of a component's paths, by operator."""
        links: dict[Operator, Link] = {}
        for path, leaves in paths(engine.graph, component):
            for operator in path:
                self._look(engine, operator)
            for segment in envelope([self._alone(operator) for operator in path], leaves, engine.graph.links):
                inside = segment.operators[-1] is not path[-1]
                for operator in segment.operators:
                    estimate = self.estimates[operator]
                    links[operator] = Link(
                        slope=segment.slope,
                        selectivity=estimate.selectivity,
                        cost_us=estimate.cost_us,
                        segment=segment.operators[0],
                        cut=inside and operator is segment.operators[-1],
                    )
        return links

    def _look(self, engine: Engine, operator: Operator) -> None:
        estimate = self.estimates.setdefault(operator, Estimate())
        measured, spent_us = engine.costs.get(operator, (0, 0.0))
        estimate.look(operator.counts.input_tuples, operator.counts.output_tuples, measured, spent_us)

    def _alone(self, operator: Operator) -> PathSegment:
        estimate = self.estimates[operator]
        return PathSegment((operator,), estimate.selectivity, max(estimate.cost_us, LEAST_US))

    def save(self) -> list[Any]:
        return [[operator.name, *astuple(estimate)] for operator, estimate in self.estimates.items()]

    def restore(self, data: Sequence[Any], known: Mapping[str, Operator]) -> None:
        self.estimates = {known[name]: Estimate(*numbers) for name, *numbers in data}


def paths(graph: Graph, component: Component) -> Iterator[tuple[list[Operator], bool]]:
    """A component's paths under `chain`, and of each whether its rows leave the graph.

    A path ends before a fork and before an operator with several inputs, where another path starts.
    """
    chained = {
        operator: row
        for operator, row in component.table.items()
        if row.strategy.kind is StrategyKind.CHAIN and not isinstance(operator, Source | Fork)
    }
    following: dict[Operator, Operator] = {}
    for operator in chained:
        readers = graph.scheduled(operator)
        if len(readers) == 1 and readers[0] in chained and len(readers[0].inputs) == 1:
            following[operator] = readers[0]
    inner = set(following.values())
    for operator in chained:
        if operator in inner:
            continue
        path = [operator]
        while path[-1] in following:
            path.append(following[path[-1]])
        yield path, not graph.scheduled(path[-1])


def envelope(path: Sequence[PathSegment], leaves: bool, before: dict[Operator, Link]) -> list[PathSegment]:
    """The segments of a path's lower envelope, each steeper than the next.

    Neighbours are merged while the first is not the steeper one. Where the present decision divides them, a smaller
    difference keeps them divided, so that values that vary around the border change nothing.
    """
    segments: list[PathSegment] = []
    for position, segment in enumerate(path):
        if leaves and position == len(path) - 1:
            segment = PathSegment(segment.operators, 0.0, segment.cost_us)
        while segments and not _steeper(segments[-1], segment, before):
            segment = segments.pop().and_then(segment)
        segments.append(segment)
    return segments


def _steeper(first: PathSegment, second: PathSegment, before: dict[Operator, Link]) -> bool:
    link = before.get(first.operators[-1])
    divided = link is not None and link.cut
    return first.slope > second.slope * (1 / BAND if divided else BAND)


def _moved(graph: Graph, links: dict[Operator, Link]) -> bool:
    """Whether a decision differs from the present one: in its segments, or by slopes outside the band."""
    for operator, link in links.items():
        before = graph.links.get(operator)
        if before is None or before.cut != link.cut or before.segment is not link.segment:
            return True
        low, high = sorted((abs(before.slope), abs(link.slope)))
        if high > low * BAND or (before.slope < 0) != (link.slope < 0):
            return True
    return False
