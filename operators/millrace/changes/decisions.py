"""The admins' decisions beyond SQL: strategies, weights, break points, paused queries, orders of joins, queues, and
operators inserted into or removed from queries.

Rule: a document of these is enough to decide everything again in a server that has the same streams and queries;
components and forks, whose names depend on the order of making, are found by the operators that they belong to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from shlex import quote
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from millrace.changes.edits import row_spec
from millrace.engine import views
from millrace.engine.engine import Engine
from millrace.engine.events import (
    CommandBody,
    InsertOperator,
    PauseQuery,
    RemoveOperator,
    ReplaceOperator,
    SetBreak,
    SetOrder,
    SetQueue,
    SetStrategy,
    SetWeight,
    UnshareQuery,
)
from millrace.engine.graph import edges
from millrace.engine.graph.rewire import editing, sharing
from millrace.engine.plan import Edit, QueryPlan, current_name
from millrace.operators.frame.spec import Spec
from millrace.operators.join.join import Order as JoinOrder
from millrace.operators.queues.edge import QueueKind
from millrace.operators.sample.spec import SampleSpec
from millrace.protocol import Schema
from millrace.sql import condition
from millrace.sql.limits import KNOWN
from millrace.values.expression import Expression


class DecisionModel(BaseModel):
    """A part of the document."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OperatorStrategy(DecisionModel):
    """An operator that does not run its component's strategy; `fork_of` names the operator before a fork."""

    operator: str
    fork_of: str | None
    strategy: str


class ComponentDecisions(DecisionModel):
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


class PausedQuery(DecisionModel):
    """A query that takes nothing until it is resumed, and why."""

    query: str
    reason: str


class JoinDecision(DecisionModel):
    """A query whose joins go by another order, or alpha, than its statement says."""

    query: str
    order: JoinOrder
    alpha: float


class QueueDecision(DecisionModel):
    """An operator's input that has another queue than its query's statement says."""

    operator: str
    input: int
    kind: QueueKind


class ApartDecision(DecisionModel):
    """Operators that a query does not share although an older one has equal ones."""

    query: str
    operators: tuple[str, ...]


class OperatorEdit(DecisionModel):
    """An operator inserted into, removed from or exchanged in a query, in addition to its statement.

    It keeps the rows for which `where` is true, or a `sample` of them by `seed`. `before` and `input` say where it goes
    in; without a name it gets the next one of its query, and so with its id.
    """

    change: Literal["insert", "remove", "replace"]
    operator: str | None
    where: str | None = None
    sample: float | None = None
    seed: int | None = None
    before: str | None = None
    input: int = 0
    id: int = 0

    @property
    def query(self) -> str:
        return (self.operator or self.before or "").partition(".")[0]

    def columns(self, engine: Engine) -> Schema | None:
        """The columns that its condition reads; None if it has no condition, or its place does not exist."""
        at = self.before if self.change == "insert" else self.operator
        if self.where is None or self.sample is not None or self.change == "remove" or at is None:
            return None
        return self._columns(engine, at)

    def _columns(self, engine: Engine, at: str) -> Schema:
        return editing.arc_of(engine, at, self.input) if self.change == "insert" else editing.rows_of(engine, at)

    def command(self, engine: Engine, predicate: Expression | None = None) -> CommandBody:
        """The command of the edit in this engine, whose columns the condition reads; `predicate` is the planned
        condition, if there is one. Refuse has the reason why it does not apply."""
        if self.change == "remove":
            assert self.operator is not None
            return RemoveOperator(self.operator)
        at = self.before if self.change == "insert" else self.operator
        assert at is not None
        spec = self._spec(engine, at, predicate)
        if self.change == "insert":
            return InsertOperator(at, spec, self.input, self.where, self.operator, self.id)
        return ReplaceOperator(at, spec, self.where)

    def _spec(self, engine: Engine, at: str, predicate: Expression | None) -> Spec:
        schema = self._columns(engine, at)
        place = f"{at}:{self.input}"

        def bind(where: str) -> Expression:
            return condition(where, schema, KNOWN) if predicate is None else predicate

        return row_spec(self.where, self.sample, self.seed, place, bind)

    def shell(self) -> str:
        if self.change == "remove":
            return f"millrace operator remove {quote(self.operator or '')}"
        if self.where is not None:
            rows = f"--where {quote(self.where)}"
        else:
            rows = f"--sample {self.sample} --seed {self.seed}"
        if self.change == "replace":
            return f"millrace operator replace {quote(self.operator or '')} {rows}"
        place = f"{quote(self.before or '')} --input {self.input}"
        return f"millrace operator insert {place} {rows} --name {quote(self.operator or '')}"


class KeptPlace(DecisionModel):
    """Where a sink writes that was created when relative paths were resolved against the working directory."""

    sink: str
    path: str


class Decisions(DecisionModel):
    """Everything that was decided. `places` is None in a catalog from before sinks had a folder.

    apart     operators that are separate at present: they are merged once their states are equal
    separate  operators that an admin has separated
    """

    apart: tuple[ApartDecision, ...] = ()
    separate: tuple[ApartDecision, ...] = ()
    components: tuple[ComponentDecisions, ...] = ()
    paused: tuple[PausedQuery, ...] = ()
    joins: tuple[JoinDecision, ...] = ()
    queues: tuple[QueueDecision, ...] = ()
    operators: tuple[OperatorEdit, ...] = ()
    places: tuple[KeptPlace, ...] | None = None

    def parting(self) -> list[CommandBody]:
        """Commands that separate operators again. They follow the edits, which separate operators themselves and may
        have inserted them, and precede everything else, because forks depend on them."""
        apart = [UnshareQuery(one.query, one.operators, lasting=False) for one in self.apart]
        return [*apart, *(UnshareQuery(one.query, one.operators) for one in self.separate)]

    def commands(self, engine: Engine) -> list[CommandBody]:
        """What makes it so again in this engine, which has the same streams and queries, and whose operators have been
        edited: those edits come first, one by one."""
        names = component_names(engine)
        forks = {operator.name: fork.name for operator, fork in engine.graph.all_forks().items()}
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
        made = [edit.shell() for edit in self.operators]
        made += [
            f"millrace query unshare {quote(found.query)} {' '.join(map(quote, found.operators))}"
            for found in self.separate
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


# The fields of the document whose texts refer to operators.
_REFERENCES: Final = frozenset({"operator", "operators", "before", "first", "fork_of", "breaks"})


def written(decisions: Decisions, running: Mapping[str, QueryPlan]) -> str:
    """The document for the disk, which refers to the operators of running queries by their ids.

    An operator that is put in keeps its name there: the edit says both.
    """

    def reference(name: str) -> str:
        plan = running.get(name.partition(".")[0])
        number = None if plan is None else plan.ids.get(name)
        return name if number is None else f"#{number}"

    document = _referring(decisions.model_dump(mode="json"), reference)
    for edit, data in zip(decisions.operators, document["operators"], strict=True):
        if edit.change == "insert":
            data["operator"] = edit.operator
    return json.dumps(document)


def named(decisions: Decisions, queries: Mapping[str, QueryPlan], version: int) -> Decisions:
    """The document from the disk, which refers to operators by their names. Until format 3 it did so there, too, by
    names that were made of kinds."""
    names = {f"#{number}": name for plan in queries.values() for name, number in plan.ids.items()}
    names |= {f"#{edit.id}": edit.operator for edit in decisions.operators if edit.operator is not None}

    def name(reference: str) -> str:
        if version > 2:
            return names.get(reference, reference)
        plan = queries.get(reference.partition(".")[0])
        return reference if plan is None else current_name(plan, reference)

    return Decisions.model_validate(_referring(decisions.model_dump(), name))


def _referring(document: Any, name: Callable[[str], str]) -> Any:
    """The document with other references to operators."""
    if isinstance(document, list | tuple):
        return [_referring(one, name) for one in document]
    if not isinstance(document, dict):
        return document
    return {key: _renamed(value, name) if key in _REFERENCES else _referring(value, name)
            for key, value in document.items()}  # fmt: skip


def _renamed(value: Any, name: Callable[[str], str]) -> Any:
    if isinstance(value, list | tuple):
        return [_renamed(one, name) for one in value]
    return name(value) if isinstance(value, str) else _referring(value, name)


def decided(engine: Engine) -> tuple[ComponentDecisions, ...]:
    """The present decisions about all components of this engine."""
    return tuple(map(ComponentDecisions.model_validate, views.decisions(engine, engine.graph.components)))


def decided_of(engine: Engine, component: str) -> ComponentDecisions | None:
    """The same about the component of this name; None if there is none."""
    found = [one for one in engine.graph.components if one.name == component]
    return ComponentDecisions.model_validate(views.decisions(engine, found)[0]) if found else None


def apart(engine: Engine) -> tuple[ApartDecision, ...]:
    """The operators that are not shared although a server started with the same statements would share them."""
    return tuple(
        ApartDecision(query=name, operators=tuple(operators)) for name, operators in sharing.apart(engine).items()
    )


class QueryDecisions(NamedTuple):
    """The decisions about queries.

    separate   operators that an admin has separated
    paused     the paused and failed queries, except those that still lack their past. A failed query starts again on
               command, not with the server
    joins      orders that differ from the statements, and `queues` the queues that do
    operators  those put in, taken out or exchanged, query by query, in the order in which that was
    """

    separate: tuple[ApartDecision, ...]
    paused: tuple[PausedQuery, ...]
    joins: tuple[JoinDecision, ...]
    queues: tuple[QueueDecision, ...]
    operators: tuple[OperatorEdit, ...]


def about_queries(engine: Engine, planned: Mapping[str, QueryPlan]) -> QueryDecisions:
    """The present decisions about these queries. Most queries have none, and a server may have thousands."""
    differing = [
        (name, query) for name, query in engine.queries_by_name.items() if query.may_differ and name in planned
    ]
    decided = sorted(differing, key=itemgetter(0))
    return QueryDecisions(
        tuple(
            ApartDecision(query=name, operators=tuple(query.separate)) for name, query in differing if query.separate
        ),
        tuple(
            PausedQuery(
                query=name,
                reason=f"failed before the server was started again: {query.paused}" if query.failed else query.paused,
            )
            for name, query in decided
            if query.paused is not None and not query.catching_up
        ),
        tuple(
            JoinDecision(query=name, order=join.order, alpha=join.pacing.alpha)
            for name, query in decided
            if (join := query.switches) is not None and not join.as_planned
        ),
        tuple(
            QueueDecision(operator=operator, input=position, kind=kind)
            for name, query in decided
            if query.requeued
            for (operator, position), kind in edges.kinds(query.plan).items()
            if edges.kinds(planned[name]).get((operator, position), "append") != kind
        ),
        tuple(_edit(edit) for _, query in decided for edit in query.plan.edits),
    )


def _edit(edit: Edit) -> OperatorEdit:
    sample = edit.spec if isinstance(edit.spec, SampleSpec) else None
    return OperatorEdit(
        change=edit.change,
        operator=edit.operator,
        where=edit.where,
        sample=None if sample is None else sample.share,
        seed=None if sample is None else sample.seed,
        before=edit.before,
        input=edit.input,
        id=edit.id,
    )


def component_names(engine: Engine) -> dict[str, str]:
    """By operator, the name of its component."""
    return {operator: found.name for found in engine.components() for operator in found.operators}


def _one_line(text: str) -> str:
    return " ".join(text.split())
