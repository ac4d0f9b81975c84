"""The engine: a deterministic function of its events, with one door.

`step` takes the clock and what happened, and returns what is to be done. It reads no clock, does no I/O and never
waits; the same events in the same steps give the same effects. Commands come through the same door as tuples, before
the execution of that step, so that a change of the graph never meets an operator at work. A refused command has
changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.engine import saving, views
from millrace.engine.component import Component, Stopwatch
from millrace.engine.events import (
    AddQuery,
    AddStream,
    Answer,
    Answered,
    Arrived,
    Command,
    CommandBody,
    DropQuery,
    DropStream,
    Effects,
    Event,
    FeedClosed,
    FeedOpened,
    Grant,
    Late,
    Measured,
    PauseQuery,
    Punctuated,
    Rejected,
    ResumeQuery,
    SetBreak,
    SetStrategy,
    SetWeight,
    WakeAt,
    WatchProgress,
)
from millrace.engine.graph import Graph
from millrace.engine.plan import QueryPlan, StreamDefinition, names
from millrace.engine.table import Strategy
from millrace.operators.batch import BEGINNING
from millrace.operators.buffer import Buffer, Gauge, Reader
from millrace.operators.build import build
from millrace.operators.operator import Moment, Operator
from millrace.operators.sink import Sink
from millrace.operators.source import Clocking, Source
from millrace.operators.waiting import Waiting
from millrace.protocol import Refuse

# Tuples that a step takes at the most before it returns to its driver: a few milliseconds of work.
BUDGET: Final = 65_536
# Tuples that a component of weight 1 may take before its neighbours have their turn: one long execution.
QUANTUM: Final = 16_384
# Tuples that a feed may send ahead of their being taken: 16 frames of the largest number of rows that a frame may
# have in bulk, so that a sender on a fast network never runs dry within a turn of the event loop.
CREDIT: Final = 262_144
# Tuples queued in a component above which its feeds get no new credit.
MOST_QUEUED: Final = 1_048_576
MANY: Final = 1 << 62


@dataclass(slots=True)
class Stream:
    definition: StreamDefinition
    source: Source


@dataclass(slots=True)
class Query:
    """A running query: its plan, its operators in plan order, and the readers by which it takes from outside
    itself."""

    plan: QueryPlan
    operators: list[Operator]
    sink: Sink
    entries: list[Reader] = field(default_factory=list)
    paused: str | None = None


class Engine:
    """Streams, queries and the components that run them."""

    def __init__(
        self,
        *,
        stopwatch: Stopwatch | None = None,
        trace: bool = False,
        credit: int = CREDIT,
        most_queued: int = MOST_QUEUED,
    ) -> None:
        self.stopwatch = stopwatch
        self.trace = trace
        self.credit = credit
        self.most_queued = most_queued
        self.moment = Moment()
        self.gauge = Gauge()
        self.streams_by_name: dict[str, Stream] = {}
        self.queries_by_name: dict[str, Query] = {}
        self.graph = Graph()
        self.costs: dict[str, tuple[int, float]] = {}
        self._turn = 0
        self._wake: int | None = None
        self._owing: dict[str, None] = {}

    # -- the one door --------------------------------------------------------------------------------------------------

    def step(
        self, now_us: int, events: Sequence[Event] = (), *, budget: int = BUDGET, executions: int = MANY
    ) -> Effects:
        """Take what happened, work within the budget (in tuples, and in executions), and say what is to be done."""
        self.moment.now_us = max(now_us, self.moment.now_us)
        effects = Effects()
        for event in events:
            try:
                self._take(event, effects)
            except Refuse as refused:
                if isinstance(event, Command):
                    effects.orders.append(Answer(event.id, refused=refused))
                else:
                    effects.orders.append(Rejected(event, refused))
        if self._wake is not None and self.moment.now_us >= self._wake:
            self._wake = None
            for component in self.graph.components:
                component.stirred = True
        self._work(effects, budget, executions)
        if self._owing:
            self._grant(effects)
        if self._wake is not None:
            effects.orders.append(WakeAt(self._wake))
        effects.more = any(component.busy() for component in self.graph.components)
        return effects

    def _take(self, event: Event, effects: Effects) -> None:
        match event:
            case Arrived():
                self._arrive(event, effects)
            case Punctuated():
                source = self._source(event.stream)
                source.promise(source.open(event.feed), event.value_us)
                self.graph.component_of(source).stirred = True
            case Measured():
                tuples, us = self.costs.get(event.operator, (0, 0.0))
                self.costs[event.operator] = (tuples + event.tuples, us + event.us)
            case FeedOpened():
                source = self._source(event.stream)
                if event.feed not in source.feeds:
                    source.open(event.feed)
                    effects.orders.append(Grant(event.stream, event.feed, self.credit))
            case FeedClosed():
                source = self._source(event.stream)
                source.close(event.feed, ended=event.ended)
                self.graph.component_of(source).stirred = True
            case Answered():
                source = self._source(event.stream)
                source.promise(source.open(event.feed), event.value_us)
            case Command():
                effects.orders.append(Answer(event.id, value=self._obey(event.body)))

    def _arrive(self, event: Arrived, effects: Effects) -> None:
        stream = self._stream(event.stream)
        batch = event.batch
        if not len(batch):
            return
        now_us = self.moment.now_us
        late = stream.source.arrive(event.feed, batch, now_us)
        if stream.source.feeds[event.feed].owed * 4 >= self.credit:
            self._owing[event.stream] = None
        self.graph.component_of(stream.source).stirred = True
        if late is not None:
            effects.orders.append(Late(event.stream, event.feed, now_us, late.batch, late.marks))

    # -- working -------------------------------------------------------------------------------------------------------

    def _work(self, effects: Effects, budget: int, executions: int) -> None:
        """Give the components their turns, by weighted deficit, until the budget is used or nothing is left to do."""
        components = self.graph.components
        worked = [component for component in components if component.busy()]
        while budget > 0 and executions > 0:
            component = self._next_component(components)
            if component is None:
                break
            if component.deficit <= 0:
                component.deficit += QUANTUM * component.weight
            used, done = component.run(
                min(component.deficit, budget), executions, effects, self._demand, self.stopwatch, self.trace
            )
            component.deficit = component.deficit - used if component.busy() else 0
            if component.deficit <= 0:
                self._turn += 1
            budget -= used
            executions -= done
        for component in worked:
            for waiter in component.waiters:
                waiter.clock_idle(self.moment.now_us)

    def _next_component(self, components: Sequence[Component]) -> Component | None:
        """Whose turn it is among those with work."""
        for step in range(len(components)):
            turn = (self._turn + step) % len(components)
            if components[turn].busy():
                self._turn = turn
                return components[turn]
        return None

    def _demand(self, component: Component) -> bool:
        """Carry the needs of blocked operators to the sources that hold them back; say whether any of them could
        help.

        A source that the engine stamps answers with the clock: what arrives later is stamped at or above it.
        """
        helped = False
        for waiter in component.waiters:
            need = waiter.need()
            if need is None:
                continue
            for holder in self._holders(waiter, need):
                helped |= self._ask(holder, need)
        return helped

    def _holders(self, waiter: Waiting, need_us: int) -> list[Source | Waiting]:
        """What holds an operator back, above its inputs, each once, in order.

        It is a source, or an operator that stamps latent tuples: it promises no more than the clock.
        """
        found: dict[Source | Waiting, None] = {}
        todo: list[Operator] = [self.graph.producer(waiter.inputs[position]) for position in waiter.holding()]
        while todo:
            operator = todo.pop(0)
            if isinstance(operator, Source):
                found[operator] = None
                continue
            above = [self.graph.producer(reader) for reader in operator.inputs if reader.promise < need_us]
            if not above and isinstance(operator, Waiting):
                found[operator] = None
            todo.extend(above)
        return list(found)

    def _ask(self, holder: Source | Waiting, need_us: int) -> bool:
        if isinstance(holder, Source) and (not holder.clocking.on_demand or holder.clocking.timestamps != "internal"):
            return False
        now_us = self.moment.now_us
        if now_us < need_us:
            self._wake = need_us if self._wake is None else min(self._wake, need_us)
            return False
        if not holder.reach(now_us):
            return False
        self.graph.component_of(holder).ready[holder] = None
        return True

    def _grant(self, effects: Effects) -> None:
        """Give credit back for what feeds have sent, unless their component holds too much already.

        A stream that a blocked operator waits for gets credit all the same: what it brings is what frees the rest.
        """
        kept: dict[str, None] = {}
        for name in self._owing:
            stream = self.streams_by_name.get(name)
            if stream is None:
                continue
            component = self.graph.component_of(stream.source)
            if component.queued() >= self.most_queued and not self._awaited(component, stream.source):
                kept[name] = None
                continue
            for name_of_feed, feed in stream.source.feeds.items():
                if feed.owed * 4 >= self.credit:
                    effects.orders.append(Grant(name, name_of_feed, feed.owed))
                    feed.owed = 0
        self._owing = kept

    def _awaited(self, component: Component, source: Source) -> bool:
        return any(
            source in self._holders(waiter, need) for waiter in component.waiters if (need := waiter.need()) is not None
        )

    # -- commands ------------------------------------------------------------------------------------------------------

    def _obey(self, body: CommandBody) -> Any:
        match body:
            case AddStream(definition):
                return self._add_stream(definition)
            case DropStream(name):
                return self._drop_stream(name)
            case AddQuery(plan, strategy):
                return self._add_query(plan, strategy)
            case DropQuery(name):
                return self._drop_query(name)
            case PauseQuery(name, reason):
                return self._pause(name, reason)
            case ResumeQuery(name):
                return self._resume(name)
            case WatchProgress(name, wanted):
                self._query(name).sink.watched = wanted
                self.graph.rewire()
                return {"query": name, "watched": wanted}
            case SetStrategy(component, strategy, operator):
                return self._set_strategy(component, strategy, operator)
            case SetBreak(operator, on):
                self.graph.set_break(operator, on)
                return {"operator": operator, "break": on}
            case SetWeight(name, weight):
                return self._set_weight(name, weight)

    def _add_stream(self, definition: StreamDefinition) -> dict[str, Any]:
        self._refuse_taken(definition.name)
        clocking = Clocking(
            definition.timestamps,
            definition.disorder_us,
            definition.progress == "tuples",
            definition.ets == "on-demand",
        )
        output = Buffer(definition.schema, ordered=definition.always_ordered, gauge=self.gauge)
        source = Source(definition.source, definition.name, clocking, output)
        self.streams_by_name[definition.name] = Stream(definition, source)
        self.graph.add([source])
        return {"stream": definition.name}

    def _drop_stream(self, name: str) -> dict[str, Any]:
        stream = self._stream(name)
        readers = [query.plan.name for query in self.queries_by_name.values() if name in query.plan.reads_streams]
        if readers:
            raise Refuse(f"stream {name} is read by {names(readers)}: drop them first", code="in_use")
        del self.streams_by_name[name]
        self.graph.remove([stream.source])
        return {"stream": name}

    def _add_query(self, plan: QueryPlan, strategy: str | None) -> dict[str, Any]:
        self._refuse_taken(plan.name)
        chosen = None if strategy is None else Strategy.parse(strategy)
        for node in plan.nodes:
            for name in node.inputs:
                if name not in self.graph.operators and all(name != other.name for other in plan.nodes):
                    raise Refuse(f"query {plan.name}: there is no operator {name} to read", code="unknown_operator")
        made: dict[str, Operator] = {}
        entries: list[Reader] = []
        for node in plan.nodes:
            inputs = []
            for name in node.inputs:
                if name in made:
                    inputs.append(made[name].output.attach())
                else:
                    reader = self._enter(self.graph.operators[name])
                    entries.append(reader)
                    inputs.append(reader)
            made[node.name] = build(node.name, node.spec, inputs, self.gauge, self.moment)
        sink = Sink(plan.sink, plan.name, made[plan.output].output.attach())
        self.queries_by_name[plan.name] = Query(plan, list(made.values()), sink, entries)
        self.graph.add([*made.values(), sink], chosen)
        return {"query": plan.name, "component": self.graph.component_of(made[plan.output]).name}

    def _enter(self, producer: Operator) -> Reader:
        """A new query's reader. On a stream it reads from one microsecond above the newest time taken in so far."""
        if isinstance(producer, Source) and producer.newest > BEGINNING:
            return producer.output.attach(producer.newest + 1)
        return producer.output.attach()

    def _drop_query(self, name: str) -> dict[str, Any]:
        query = self._query(name)
        readers = [other.plan.name for other in self.queries_by_name.values() if name in other.plan.reads_queries]
        if readers:
            raise Refuse(f"query {name} is read by {names(readers)}: drop them first", code="in_use")
        del self.queries_by_name[name]
        if query.paused is None:
            for reader in query.entries:
                reader.buffer.detach(reader)
        for operator in query.operators:
            for reader in list(operator.output.readers):
                operator.output.detach(reader)
            self.costs.pop(operator.name, None)
            if isinstance(operator, Waiting):
                operator.clear()
        self.graph.remove([*query.operators, query.sink])
        return {"query": name}

    def _pause(self, name: str, reason: str) -> dict[str, Any]:
        query = self._query(name)
        if query.paused is not None:
            raise Refuse(f"query {name} is paused already: {query.paused}", code="already_paused")
        for reader in query.entries:
            reader.leave()
        query.paused = reason
        self.graph.rewire()
        return {"query": name, "paused": reason}

    def _resume(self, name: str) -> dict[str, Any]:
        query = self._query(name)
        if query.paused is None:
            raise Refuse(f"query {name} is not paused", code="not_paused")
        before = sum(reader.skipped for reader in query.entries)
        for reader in query.entries:
            reader.come_back()
        query.paused = None
        self.graph.rewire()
        return {"query": name, "skipped": sum(reader.skipped for reader in query.entries) - before}

    def _set_strategy(self, component: str, strategy: str, operator: str | None) -> dict[str, Any]:
        self.graph.set_strategy(component, Strategy.parse(strategy), operator)
        return {"component": component, "strategy": str(Strategy.parse(strategy)), "operator": operator}

    def _set_weight(self, name: str, weight: int) -> dict[str, Any]:
        if weight < 1:
            raise Refuse(f"component {name}: a weight is a whole number from 1, got {weight}")
        self.graph.component(name).weight = weight
        return {"component": name, "weight": weight}

    # -- looking up ----------------------------------------------------------------------------------------------------

    def _refuse_taken(self, name: str) -> None:
        if name in self.streams_by_name:
            raise Refuse(f"there is a stream {name} already", code="exists")
        if name in self.queries_by_name:
            raise Refuse(f"there is a query {name} already", code="exists")

    def _stream(self, name: str) -> Stream:
        found = self.streams_by_name.get(name)
        if found is None:
            raise Refuse(f"there is no stream {name}", code="unknown_stream")
        return found

    def _source(self, name: str) -> Source:
        return self._stream(name).source

    def _query(self, name: str) -> Query:
        found = self.queries_by_name.get(name)
        if found is None:
            raise Refuse(f"there is no query {name}", code="unknown_query")
        return found

    # -- views, between steps ------------------------------------------------------------------------------------------

    def streams(self) -> list[dict[str, Any]]:
        return [views.stream(self, stream) for stream in self.streams_by_name.values()]

    def queries(self) -> list[dict[str, Any]]:
        return [views.query(self, query) for query in self.queries_by_name.values()]

    def components(self) -> list[dict[str, Any]]:
        return [views.component(self, component) for component in self.graph.components]

    def operators(self) -> list[dict[str, Any]]:
        return [views.operator(self, operator) for operator in self.graph.all_operators()]

    def table(self, component: str) -> dict[str, Any]:
        return {"rows": [row.describe() for row in self.graph.component(component).table.values()]}

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self) -> bytes:
        """The whole state, between two steps."""
        return saving.save(self)

    @staticmethod
    def restore(data: bytes, *, stopwatch: Stopwatch | None = None, trace: bool = False) -> Engine:
        """An engine that goes on exactly where the saved one was."""
        return saving.restore(data, stopwatch=stopwatch, trace=trace)
