"""What admins have decided beyond SQL: strategies, weights, break points, paused queries, orders of joins, queues.

Rule: a document of these is enough to decide everything again in a server that has the same streams and queries;
components and forks, whose names depend on the order of making, are found by the operators that they belong to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote

from pydantic import BaseModel, ConfigDict

from millrace.engine import edges, sharing, views
from millrace.engine.engine import Engine
from millrace.engine.events import (
    CommandBody,
    PauseQuery,
    SetBreak,
    SetOrder,
    SetQueue,
    SetStrategy,
    SetWeight,
    UnshareQuery,
)
from millrace.engine.plan import QueryPlan
from millrace.operators.join import Order as JoinOrder
from millrace.operators.queues.edge import QueueKind


class Part(BaseModel):
    """A part of the document."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OperatorStrategy(Part):
    """An operator that does not run its component's strategy; `fork_of` names the operator before a fork."""

    operator: str
    fork_of: str | None
    strategy: str


class ComponentDecisions(Part):
    """How one component is scheduled; `first` is its oldest operator."""

    component: str
    first: str
    strategy: str
    weight: int
    operators: tuple[OperatorStrategy, ...]
    breaks: tuple[str, ...]

    def strategies(self, names: Mapping[str, str], forks: Mapping[str, str]) -> Iterator[SetStrategy]:
        """The commands that set the strategies; `names` has each operator's component, `forks` the forks' names."""
        component = names.get(self.first, self.component)
        yield SetStrategy(component, self.strategy)
        for own in self.operators:
            operator = own.operator if own.fork_of is None else forks.get(own.fork_of, own.operator)
            yield SetStrategy(names.get(operator, component), own.strategy, operator)


class PausedQuery(Part):
    """A query that takes nothing until it is resumed, and why."""

    query: str
    reason: str


class JoinDecision(Part):
    """A query whose joins go by another order, or alpha, than its statement says."""

    query: str
    order: JoinOrder
    alpha: float


class QueueDecision(Part):
    """An operator's input that has another queue than its query's statement says."""

    operator: str
    input: int
    kind: QueueKind


class ApartDecision(Part):
    """Operators that a query has for itself although an older one has equal ones."""

    query: str
    operators: tuple[str, ...]


class Decisions(Part):
    """Everything that was decided."""

    apart: tuple[ApartDecision, ...] = ()

    components: tuple[ComponentDecisions, ...] = ()
    paused: tuple[PausedQuery, ...] = ()
    joins: tuple[JoinDecision, ...] = ()
    queues: tuple[QueueDecision, ...] = ()

    def parting(self) -> list[CommandBody]:
        """What takes operators apart that were apart: before all else, because forks follow from it."""
        return [UnshareQuery(found.query, found.operators) for found in self.apart]

    def commands(self, engine: Engine) -> list[CommandBody]:
        """What makes the rest so again in this engine, which has the same streams and queries."""
        names, forks = component_names(engine), views.forks(engine)
        made: list[CommandBody] = []
        for component in self.components:
            made += component.strategies(names, forks)
            made.append(SetWeight(names.get(component.first, component.component), component.weight))
            made += [SetBreak(operator, True) for operator in component.breaks]
        made += [SetOrder(join.query, join.order, join.alpha) for join in self.joins]
        made += [SetQueue(queue.operator, queue.kind, queue.input) for queue in self.queues]
        return made + [PauseQuery(paused.query, paused.reason) for paused in self.paused]

    def shell(self) -> list[str]:
        """The same for a person: commands to type."""
        made = [
            f"millrace query unshare {quote(found.query)} {' '.join(map(quote, found.operators))}"
            for found in self.apart
        ]
        for component in self.components:
            name = quote(component.component)
            made.append(f"millrace strategy set {name} {quote(component.strategy)}")
            made += [
                f"millrace strategy set {name} {quote(own.strategy)} --operator {quote(own.operator)}"
                for own in component.operators
            ]
            if component.weight != 1:
                made.append(f"millrace component weight {name} {component.weight}")
            made += [f"millrace break set {quote(operator)}" for operator in component.breaks]
        made += [f"millrace query order {quote(join.query)} {join.order} --alpha {join.alpha}" for join in self.joins]
        made += [
            f"millrace operator queue {quote(queue.operator)} {queue.kind} --input {queue.input}"
            for queue in self.queues
        ]
        return made + [
            f"millrace query pause {quote(paused.query)} --reason {quote(_one_line(paused.reason))}"
            for paused in self.paused
        ]


def decided(engine: Engine) -> tuple[ComponentDecisions, ...]:
    """What holds in this engine now."""
    return tuple(ComponentDecisions.model_validate(found) for found in views.decisions(engine))


def apart(engine: Engine) -> tuple[ApartDecision, ...]:
    """What is not shared and would be in a server that begins with the same statements."""
    return tuple(
        ApartDecision(query=name, operators=tuple(operators)) for name, operators in sharing.apart(engine).items()
    )


def exchanged(engine: Engine, planned: Mapping[str, QueryPlan]) -> tuple[QueueDecision, ...]:
    """The queues that are not what the statements say any more."""
    return tuple(
        QueueDecision(operator=operator, input=position, kind=kind)
        for name, query in sorted(engine.queries_by_name.items())
        if name in planned
        for (operator, position), kind in edges.kinds(query.plan).items()
        if edges.kinds(planned[name]).get((operator, position), kind) != kind
    )


def component_names(engine: Engine) -> dict[str, str]:
    """By operator, the name of its component."""
    return {operator: found["name"] for found in engine.components() for operator in found["operators"]}


def _one_line(text: str) -> str:
    return " ".join(text.split())
