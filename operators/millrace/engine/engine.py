"""The engine: a deterministic function of its events, with one door.

`step` takes the clock and what happened, and returns what is to be done. It reads no clock, does no I/O and never
waits; the same events in the same steps give the same effects. Commands come through the same door as tuples, before
the execution of that step, so that a change of the graph never meets an operator at work. A refused command has
changed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from millrace.engine import saving, shadow, views, withholding
from millrace.engine.events import (
    AddQuery,
    AddStream,
    AdoptBootstrap,
    AlterStream,
    Answer,
    Answered,
    Archived,
    Arrived,
    Change,
    ClockStepped,
    Command,
    CommandBody,
    DropQuery,
    DropStream,
    Effects,
    Event,
    FeedClosed,
    FeedHeld,
    FeedOpened,
    Grant,
    Heard,
    HistoryHeld,
    HoldQuery,
    InsertOperator,
    JoinTurned,
    Late,
    Measured,
    PauseQuery,
    Punctuated,
    Rejected,
    RemoveOperator,
    RenameQuery,
    ReplaceOperator,
    ReplaceQuery,
    ResumeQuery,
    SetBreak,
    SetOrder,
    SetQueue,
    SetStrategy,
    SetWeight,
    TooFar,
    UnshareQuery,
    WakeAt,
    WatchProgress,
    WithholdCredit,
)
from millrace.engine.graph import edges, editing, failures, renaming, replacing, seam, sharing, widening
from millrace.engine.graph.graph import Graph
from millrace.engine.plan import POLICIES, Node, QueryPlan, StreamDefinition, names
from millrace.engine.scheduler.chain import Chains
from millrace.engine.scheduler.component import Component, OperatorError, Stopwatch
from millrace.engine.scheduler.table import Strategy
from millrace.engine.time.watermarks import WatermarkCoordinator
from millrace.engine.why import why
from millrace.operators.build import build
from millrace.operators.frame.buffer import Buffer, Gauge
from millrace.operators.frame.idle_waiting import IdleWaiting
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator, StepClock
from millrace.operators.join.join import Join, Order
from millrace.operators.sink.sink import Sink
from millrace.operators.source.source import Clocking, Source
from millrace.protocol import Refuse
from millrace.values.eventtime import MIN_TIME

# Tuples that a step takes at the most before it returns to its driver: a few milliseconds of work.
BUDGET: Final = 65_536
# Tuples that a component of weight 1 may take before its neighbours have their turn: one long execution.
QUANTUM: Final = 16_384
# Tuples that a feed may send ahead of their being taken: 16 frames of the largest number of rows that a frame may
# have in bulk, so that a sender on a fast network never runs dry within a turn of the event loop.
CREDIT: Final = 262_144
# Tuples queued in a component above which its feeds get no new credit.
MOST_QUEUED: Final = 1_048_576
# The same two limits in bytes: a feed gets credit again in any case when it has used a quarter of these.
CREDIT_BYTES: Final = 64 * 2**20
MOST_QUEUED_BYTES: Final = 256 * 2**20
MANY: Final = 1 << 62


@dataclass(slots=True)
class Stream:
    definition: StreamDefinition
    source: Source


@dataclass(slots=True)
class Query:
    """A running query: its plan, its operators in plan order, and the readers by which it takes from outside itself.

    `paused` says why it takes nothing at present, `failed` that it is because it could not go on, and `lost` how many
    tuples it held whenever that happened. `apart` says which operators it could have shared, and why it does not.
    `remembers` says whether any of its operators has a state that can grow.
    """

    plan: QueryPlan
    operators: list[Operator]
    sink: Sink
    entries: list[Inlet] = field(default_factory=list)
    paused: str | None = None
    failed: bool = False
    lost: int = 0
    apart: dict[str, str] = field(default_factory=dict)
    remembers: bool = field(init=False)

    def __post_init__(self) -> None:
        self.become(self.plan, self.operators, self.entries)

    def become(self, plan: QueryPlan, operators: list[Operator], entries: list[Inlet]) -> None:
        self.plan, self.operators, self.entries = plan, operators, entries
        self.remembers = any(type(one).state_tuples is not Operator.state_tuples for one in self.operators)


def clocking_of(definition: StreamDefinition) -> Clocking:
    """What of a stream's definition its source needs to know."""
    by_tuples = definition.progress == "tuples"
    return Clocking(definition.timestamps, definition.disorder_us, by_tuples, definition.ahead_us, definition.history)


class Engine:
    """Streams, queries and the components that run them."""

    def __init__(
        self,
        *,
        stopwatch: Stopwatch | None = None,
        trace: bool = False,
        credit: int = CREDIT,
        most_queued: int = MOST_QUEUED,
        credit_bytes: int = CREDIT_BYTES,
        most_queued_bytes: int = MOST_QUEUED_BYTES,
        thin: bool = True,
        share: bool = False,
    ) -> None:
        self.stopwatch = stopwatch
        self.trace = trace
        self.credit = credit
        self.most_queued = most_queued
        self.credit_bytes = credit_bytes
        self.most_queued_bytes = most_queued_bytes
        self.clock = StepClock()
        self.gauge = Gauge()
        self.streams_by_name: dict[str, Stream] = {}
        self.queries_by_name: dict[str, Query] = {}
        self.graph = Graph(thin=thin)
        self.costs: dict[str, tuple[int, float]] = {}
        self.last_id = 0  # of the operators of all queries that have ever been
        self._turn = 0
        self.time = WatermarkCoordinator(self)
        self._owing: dict[str, None] = {}
        self._history_held: dict[str, None] = {}
        # Queries, and streams of late tuples, with a reader that is slow; true: no operator's wait is an exception.
        self.slow: dict[str, bool] = {}
        self.chains = Chains()
        self.remembering: dict[str, Query] = {}
        self._owners: dict[Operator, list[Query]] | None = None
        self._nodes: dict[str, Operator] = {}
        # By what an operator does to what, roughly: the queries that have it.
        self._alike: dict[object, list[Query]] | None = None
        self.share = share
        # Of the change in progress: operators that are new, those that stand for shared ones, and whether all of it has
        # been tried on a shadow.
        self.fresh: dict[Operator, None] = {}
        self.copied: dict[Operator, Operator] = {}
        self.tried = False

    # -- the one door --------------------------------------------------------------------------------------------------

    def step(
        self, now_us: int, events: Sequence[Event] = (), *, budget: int = BUDGET, executions: int = MANY
    ) -> Effects:
        """Take what happened, work within the budget (in tuples, and in executions), and say what is to be done."""
        self.clock.now_us = self.time.heard_us = max(now_us, self.clock.now_us)
        effects = Effects()
        for event in events:
            try:
                self._take(event, effects)
            except Refuse as refused:
                if isinstance(event, Command):
                    effects.orders.append(Answer(event.id, refused=refused))
                else:
                    effects.orders.append(Rejected(event, refused))
        self.time.ring(effects)
        if self.graph.chained:
            self.chains.decide(self, effects)
        self._work(effects, budget, executions)
        if self._owing:
            self._grant(effects)
        wake_us = self.time.timers.first()
        if wake_us is not None:
            effects.orders.append(WakeAt(wake_us))
        for component in self.graph.components:
            if component.busy():
                effects.more = True
                break
        return effects

    def _take(self, event: Event, effects: Effects) -> None:
        match event:
            case Arrived():
                self._arrive(event, effects)
            case Punctuated():
                source = self.source(event.stream)
                source.promise(source.open(event.feed), event.value_us, "client")
                self.graph.component_of(source).has_work = True
            case Measured():
                measured = self.graph.operators.get(event.operator)
                if measured is not None:
                    tuples, us = self.costs.get(event.operator, (0, 0.0))
                    self.costs[event.operator] = (tuples + event.tuples, us + event.us)
                    edges.measured(self, event)
                    measured.measured(event.tuples, event.us)
                    self.graph.component_of(measured).worked_us += event.us
            case FeedOpened():
                self._open_feed(event, effects)
            case FeedClosed():
                self._close_feed(event, effects)
            case FeedHeld():
                feed = self.source(event.stream).feeds.get(event.feed)
                if feed is not None:
                    (feed.hold if event.held else feed.release)(self.time.heard_us)
                self.graph.component_of(self.source(event.stream)).has_work = True
            case Heard():
                self.time.heard_us = min(event.until_us, self.clock.now_us)
            case ClockStepped():
                self.time.step_clock(event.by_us)
            case Answered():
                self.time.answered(event, effects)
                self.graph.component_of(self.source(event.stream)).has_work = True
            case HistoryHeld(name, held):
                if held:
                    self._stream(name)
                    self._history_held[name] = None
                else:
                    self._history_held.pop(name, None)
            case Command():
                effects.orders.append(Answer(event.id, value=self.obey(event.body)))
                self.time.keep_beating()

    def _arrive(self, event: Arrived, effects: Effects) -> None:
        stream = self.streams_by_name.get(event.stream) or self._stream(event.stream)
        batch = event.batch
        if not len(batch.ts):
            return
        if len(batch.columns) < len(stream.definition.schema):
            batch = batch.widened(stream.definition.schema)  # its feed was opened before the stream had all its fields
        now_us = self.clock.now_us
        source = stream.source
        late, far = source.arrive(event.feed, batch, now_us, self.time.heard_us)
        feed = source.feeds.by_name[event.feed]
        if feed.owed * 4 >= self.credit or feed.owed_bytes * 4 >= self.credit_bytes:
            self._owing[event.stream] = None
            if feed.owed >= self.credit:
                # The client may say nothing until it gets credit: its silence means nothing.
                feed.hold(self.time.heard_us)
        self.graph.component_of(source).has_work = True
        if source.judged is not None:
            effects.orders.append(Archived(event.stream, event.feed, source.judged, source.mark))
            source.judged = None
        if far is not None:
            effects.orders.append(TooFar(event.stream, event.feed, far.batch, int(far.marks[0])))
        if late is not None:
            order = Late(event.stream, event.feed, now_us, late.batch, late.marks, late.broken)
            effects.orders.append(order)
            self._put_aside(order)

    def _put_aside(self, late: Late) -> None:
        """Late tuples go to the stream's side stream, if any query reads it."""
        aside = self.streams_by_name.get(f"{late.stream}.late")
        if aside is None:
            return
        now_us = self.clock.now_us
        told = late.told(aside.definition.schema, max(now_us, aside.source.mark))
        aside.source.arrive("late", told, now_us, now_us)
        self.graph.component_of(aside.source).has_work = True

    def _open_feed(self, event: FeedOpened, effects: Effects) -> None:
        source = self.source(event.stream)
        known = source.feeds.get(event.feed)
        feed = source.open(event.feed)
        feed.can_answer = event.can_answer
        self.time.timers.unset("leave", event.stream, event.feed)
        if known is not None:
            # Another connection has it now: that one has not been asked, nothing of it lies unread, and what was sent
            # before has used up credit that it does not know of.
            self.time.forget_request(source, feed, effects)
            feed.release(self.time.heard_us)
            feed.owed = feed.owed_bytes = 0
        if event.stream in self._history_held or (self.slow and source in withholding.sources(self)):
            # It may send nothing yet: what it would be given now it gets with the others.
            feed.owed = self.credit
            feed.hold(self.time.heard_us)
            self._owing[event.stream] = None
        effects.orders.append(Grant(event.stream, event.feed, self.credit - feed.owed))

    def _close_feed(self, event: FeedClosed, effects: Effects) -> None:
        stream = self._stream(event.stream)
        feed = stream.source.feeds.get(event.feed)
        if feed is not None:
            self.time.forget_request(stream.source, feed, effects)
            if event.lost and stream.definition.grace_us:
                feed.leaves_us = self.clock.now_us + stream.definition.grace_us
                self.time.timers.set(feed.leaves_us, "leave", event.stream, event.feed)
                return
        stream.source.close(event.feed, ended=event.ended)
        self.graph.component_of(stream.source).has_work = True

    # -- working -------------------------------------------------------------------------------------------------------

    def _work(self, effects: Effects, budget: int, executions: int) -> None:
        """Give the components their turns, by weighted deficit, until the budget is used or nothing is left to do."""
        components = self.graph.components
        worked = [component for component in components if component.busy()]
        while worked and budget > 0 and executions > 0:
            component = worked[0] if len(worked) == 1 else self._next_component(components)
            if component is None:
                break
            if component.deficit <= 0:
                component.deficit += QUANTUM * component.weight
            used, done = component.run(
                min(component.deficit, budget),
                executions,
                effects,
                self.time.demand,
                self.time.propagate_demand,
                self.stopwatch,
                self.trace,
            )
            if component.failed is not None:
                failures.broken(self, component, effects)
            left = component.busy()
            component.deficit = component.deficit - used if left else 0
            if component.deficit <= 0:
                self._turn += 1
            if not left and len(worked) == 1:
                break  # no other has had anything to do, and none gets it from this one
            budget -= used
            executions -= done
            if budget <= 0:
                component.rotate()
        if self.remembering:
            failures.check_states(self, worked, effects)
            self._tell_turns(worked, effects)
        for component in worked:
            if component.busy():
                self._demand_nevertheless(component, effects)
            for waiter in component.waiters:
                try:
                    waiter.clock_idle(self.clock.now_us)
                except Exception as error:
                    component.fail(waiter, error)
                    failures.broken(self, component, effects)

    def _demand_nevertheless(self, component: Component, effects: Effects) -> None:
        """Ask clients although work is left: under load it always is, and they would be asked too late, or never."""
        try:
            self.time.demand(component, effects, busy=True)
        except OperatorError as raised:
            component.fail(raised.operator, raised.error)
            failures.broken(self, component, effects)

    def _tell_turns(self, worked: Sequence[Component], effects: Effects) -> None:
        for component in worked:
            for join in component.joins:
                if join.pacing.untold:
                    for switch in join.pacing.tell():
                        effects.orders.append(JoinTurned(join.name, switch._asdict()))

    def _next_component(self, components: Sequence[Component]) -> Component | None:
        """Whose turn it is among those with work."""
        for step in range(len(components)):
            turn = (self._turn + step) % len(components)
            if components[turn].busy():
                self._turn = turn
                return components[turn]
        return None

    def _grant(self, effects: Effects) -> None:
        """Give credit back for what feeds have sent, unless their component holds too much already.

        A stream that a blocked operator waits for gets credit all the same: what it brings is what frees the rest.
        """
        kept: dict[str, None] = {}
        withheld = failures.withheld(self) if self.remembering else {}
        slow = withholding.sources(self) if self.slow else {}
        for name in self._owing:
            stream = self.streams_by_name.get(name)
            if stream is None:
                continue
            component = self.graph.component_of(stream.source)
            full = stream.source in withheld or self._full(component)
            if (
                name in self._history_held
                or (full and not self._awaited(component, stream.source))
                or (stream.source in slow and withholding.withholds(self, stream.source, slow))
            ):
                kept[name] = None
                continue
            for feed in stream.source.feeds:
                if feed.owed * 4 >= self.credit or feed.owed_bytes * 4 >= self.credit_bytes:
                    effects.orders.append(Grant(name, feed.name, feed.owed))
                    feed.owed = feed.owed_bytes = 0
                    component.has_work |= feed.held_since is not None  # its silence means something again
                    feed.release(self.time.heard_us)
        self._owing = kept

    def _full(self, component: Component) -> bool:
        """Whether a component holds too much already."""
        most = self.most_queued_bytes
        return component.pressing() >= self.most_queued or component.queued_bytes(most, pressing=True) >= most

    def _awaited(self, component: Component, source: Source) -> bool:
        return any(
            source in self.time.holders(waiter, need)
            for waiter in component.waiters
            if (need := waiter.need()) is not None
        )

    # -- commands ------------------------------------------------------------------------------------------------------

    def obey(self, body: CommandBody) -> Any:
        """Carry out a command, or refuse it with nothing changed; the answer."""
        try:
            return self._told(body, self.carry_out(body))
        finally:
            self.graph.derive()
            self.fresh.clear()
            self.copied.clear()

    def _told(self, body: CommandBody, answer: Any) -> Any:
        """An answer with the components that queries have come into, which are found when all is done."""
        match body:
            case Change(commands):
                return [self._told(command, part) for command, part in zip(commands, answer, strict=True)]
            case AddQuery(plan) | ReplaceQuery(plan) if plan.name in self.queries_by_name:
                sink = self.queries_by_name[plan.name].sink
                return {**answer, "component": self.graph.component_of(sink).name}
            case _:
                return answer

    def carry_out(self, body: CommandBody) -> Any:
        """The same, and what follows from it for the graph is left for later: other commands may come first."""
        self._part(body)
        match body:
            case Change(commands):
                return self._change(commands)
            case AddStream(definition, strategy):
                return self._add_stream(definition, strategy)
            case AlterStream():
                return self._alter_stream(body)
            case DropStream(name):
                return self.drop_stream(name)
            case AddQuery(plan, strategy):
                added = self._add_query(plan, strategy)
                if seam.is_gated(plan):
                    self._pause(plan.name, seam.CATCHING_UP)
                return added
            case HoldQuery(name, keep):
                return seam.hold(self, name) if keep else seam.let_go(self, name)
            case AdoptBootstrap(name, past):
                return seam.adopt(self, name, past)
            case ReplaceQuery(plan):
                seam.refuse_catching_up(self.query(plan.name))
                return replacing.replace_query(self, plan)
            case RenameQuery(name, to, texts):
                seam.refuse_catching_up(self.query(name))
                return renaming.rename_query(self, name, to, dict(texts))
            case DropQuery(name):
                return self._drop_query(name)
            case UnshareQuery(name, operators):
                return sharing.part(self, self.query(name), operators)
            case PauseQuery(name, reason):
                seam.refuse_catching_up(self.query(name))
                return self._pause(name, reason)
            case ResumeQuery(name):
                seam.refuse_catching_up(self.query(name))
                return self._resume(name)
            case WithholdCredit(name, withheld, strict):
                return withholding.withhold(self, name, withheld, strict)
            case WatchProgress(name, wanted):
                self.query(name).sink.watched = wanted
                self.graph.rewire()
                return {"query": name, "watched": wanted}
            case SetStrategy(component, strategy, operator):
                return self._set_strategy(component, strategy, operator)
            case SetBreak(operator, on):
                self.graph.set_break(operator, on)
                return {"operator": operator, "break": on}
            case SetQueue(operator, kind, position):
                return edges.exchange(self, operator, position, kind)
            case SetWeight(name, weight):
                return self._set_weight(name, weight)
            case SetOrder(query, order, alpha):
                return self._set_order(query, order, alpha)
            case InsertOperator():
                return editing.insert(self, body)
            case RemoveOperator():
                return editing.remove(self, body)
            case ReplaceOperator():
                return editing.exchange(self, body)

    def _part(self, body: CommandBody) -> None:
        """A command about one query alone gives it operators of its own first; if it is to be refused, nothing."""
        query = sharing.concerned(self, body)
        if query is not None:
            if not self.tried and not isinstance(body, PauseQuery | DropQuery):
                shadow.check(self, (body,))
            sharing.unshare(self, query, remembering=not isinstance(body, DropQuery))

    def _change(self, commands: Sequence[CommandBody]) -> list[Any]:
        """Several commands as one: all of them are obeyed, or none is.

        One alone is obeyed as a whole anyway; several are tried on the shadow first.
        """
        before = self.tried
        if len(commands) > 1 and not before:
            shadow.check(self, commands)
        obeyed: list[Any] = []
        try:
            self.tried = before or len(commands) > 1
            for command in commands:
                obeyed.append(self.carry_out(command))  # noqa: PERF401 - what is obeyed before a refusal counts
        except Refuse as refused:
            if obeyed:
                raise shadow.disagree(refused) from refused
            raise
        finally:
            self.tried = before
        return obeyed

    def plan(self, commands: Sequence[CommandBody]) -> dict[str, Any]:
        """What the commands would do if they were given now, or their refusal."""
        return shadow.plan(shadow.Snapshot.of(self), commands)

    def _add_stream(self, definition: StreamDefinition, strategy: str | None = None) -> dict[str, Any]:
        self.refuse_taken(definition.name)
        self.make_stream(definition, None if strategy is None else Strategy.parse(strategy))
        return {"stream": definition.name}

    def make_stream(self, definition: StreamDefinition, chosen: Strategy | None = None) -> None:
        """A stream that nobody has looked at yet."""
        output = Buffer(definition.schema, ordered=definition.always_ordered, gauge=self.gauge)
        source = Source(definition.source, definition.name, clocking_of(definition), output)
        self.streams_by_name[definition.name] = Stream(definition, source)
        if definition.propagation == "punctuation":
            self.graph.punctuating[source] = None
        self.graph.add([source], chosen)

    def _alter_stream(self, body: AlterStream) -> dict[str, Any]:
        name, changes = body.name, dict(body.changes)
        stream = self._stream(name)
        unknown = [option for option in changes if option not in POLICIES]
        if unknown:
            raise Refuse(f"stream {name}: {names(unknown)} cannot be changed while it runs", code="not_a_policy")
        widening.check(stream.definition, body.fields)
        kept = stream.definition.sql if body.sql is None else body.sql
        if body.fields:
            widening.widen(self, stream, body.fields, dict(body.texts))
            self.queries_changed()
        before_us = stream.definition.disorder_us
        stream.definition = definition = replace(stream.definition, **changes, sql=kept)
        if definition.disorder_us != before_us:
            # How late tuples were under another disorder does not tell which one they need now.
            stream.source.late_by_max_us = 0
        stream.source.clocking = clocking_of(definition)
        self.graph.punctuating.pop(stream.source, None)
        if definition.propagation == "punctuation":
            self.graph.punctuating[stream.source] = None
        self.time.timers.unset("beat", name)
        self.graph.rewire()
        return {"stream": name, "changed": sorted(changes), "added": [field.name for field in body.fields]}

    def drop_stream(self, name: str) -> dict[str, Any]:
        self._stream(name)
        both = (name, f"{name}.late")
        readers = [
            query.plan.name
            for query in self.queries_by_name.values()
            if any(one in query.plan.reads_streams for one in both)
        ]
        if readers:
            raise Refuse(f"stream {name} is read by {names(readers)}: drop them first", code="in_use")
        for one in both:
            gone = self.streams_by_name.pop(one, None)
            self.slow.pop(one, None)
            if gone is not None:
                self._history_held.pop(one, None)
                self.time.timers.forget(one)
                self.graph.remove([gone.source])
        return {"stream": name}

    def _add_query(self, plan: QueryPlan, strategy: str | None) -> dict[str, Any]:
        self.refuse_taken(plan.name)
        chosen = None if strategy is None else Strategy.parse(strategy)
        added = self.add_late_streams(plan)
        try:
            self.make_query(plan, chosen)
        except Refuse:
            for name in added:
                self.drop_stream(name)
            raise
        return {"query": plan.name}

    def add_late_streams(self, plan: QueryPlan) -> list[str]:
        """A side stream of late tuples exists from the first query that reads it on."""
        added = []
        for name in plan.reads_streams:
            origin = self.streams_by_name.get(name.removesuffix(".late"))
            if name not in self.streams_by_name and name.endswith(".late") and origin is not None:
                self._add_stream(origin.definition.late)
                added.append(name)
        return added

    def make_query(
        self, plan: QueryPlan, chosen: Strategy | None = None, saved: Mapping[str, str] | None = None
    ) -> Query:
        """A query over what is there, with operators of others where it can have them, or has `saved` that it had."""
        found = sharing.Common()
        if saved is not None:
            found = sharing.known(self, saved)
        elif self.share and chosen is None:
            found = sharing.common(self, plan)
        made = dict(found.operators)
        entries: list[Inlet] = []
        self.build_nodes(plan, made, entries, found.since)
        output = plan.output
        sink = Sink(plan.sink, plan.name, made[output].output.attach(found.since.get(output)))
        if output in found.operators:
            entries.append(sink.inputs[0])
        query = Query(self.number(plan), list(made.values()), sink, entries, apart=found.apart)
        self.queries_by_name[plan.name] = query
        self._queries_grew(query)
        own = [operator for name, operator in made.items() if name not in found.operators]
        self.fresh |= dict.fromkeys(own)
        self.graph.add([*own, sink], chosen)
        for other in {
            one.plan.name: one for operator in found.operators.values() for one in self.owners(operator)
        }.values():
            other.entries = sharing.entries(self, other)
        return query

    def number(self, plan: QueryPlan) -> QueryPlan:
        """The plan with an id for each operator that has none: no other operator has had it."""
        self.last_id = max(self.last_id, *plan.ids.values(), 0)
        new = [node.name for node in plan.nodes if not node.id]
        ids = {name: self.last_id + position for position, name in enumerate(new, 1)}
        self.last_id += len(new)
        return plan.numbered(ids)

    def build_nodes(
        self,
        plan: QueryPlan,
        made: dict[str, Operator],
        entries: list[Inlet],
        shared: Mapping[str, int | None] | None = None,
    ) -> None:
        """Build the operators of a plan that are not made yet, in plan order; who reads from outside is an entry.

        What is made already goes on, or is `shared` with other queries: then it is read from that time on.
        """
        edges.check(self, plan)
        shared = {} if shared is None else shared
        inside = {node.name for node in plan.nodes}
        kept = dict(made)
        made.clear()
        attached: list[Inlet] = []
        since: dict[str, int | None] = {}
        try:
            for node in plan.nodes:
                if node.name in kept:
                    made[node.name] = kept[node.name]
                    since[node.name] = self.beginning(kept[node.name])
                    continue
                inputs = []
                for position, name in enumerate(node.inputs):
                    if name in inside:
                        inputs.append(edges.attach(self, node, position, made[name].output, shared.get(name)))
                        if name in shared:
                            entries.append(inputs[-1])
                    else:
                        inputs.append(self._enter(name, node, position, plan.options.start))
                        entries.append(inputs[-1])
                        since[name] = self.beginning(self.named(name))
                    attached.append(inputs[-1])
                known = [since_us for name in node.inputs if (since_us := since[name]) is not None]
                since[node.name] = None if node.spec.state().start == "beginning" else max(known, default=None)
                made[node.name] = build(node.name, node.spec, inputs, self.gauge, self.clock, since[node.name])
        except Refuse:
            for reader in attached:
                reader.remove()
            made.clear()
            raise

    def became(self, query: Query, plan: QueryPlan, operators: list[Operator], entries: list[Inlet]) -> None:
        """A query has another plan and other operators, which stand in the graph already; queries stand in the order of
        their operators, as they will in a restored engine."""
        query.become(plan, operators, entries)
        query.apart = {}
        age = {operator: position for position, operator in enumerate(self.graph.operators.values())}
        self.queries_by_name = dict(sorted(self.queries_by_name.items(), key=lambda item: age[item[1].sink]))
        self.queries_changed()

    def queries_changed(self) -> None:
        """Queries or their operators are others than before: what is looked up of them is found anew."""
        self.remembering = {name: query for name, query in self.queries_by_name.items() if query.remembers}
        self._owners = self._alike = None

    def _queries_grew(self, query: Query) -> None:
        """A query has come behind all others: what is looked up of them still holds."""
        if query.remembers:
            self.remembering[query.plan.name] = query
        if self._owners is not None:
            self._note_owner(self._owners, query)
        if self._alike is not None:
            self._note_likenesses(self._alike, query)

    def owners(self, operator: Operator) -> list[Query]:
        """The queries that an operator belongs to, in the order of their making; a source belongs to nobody."""
        return self._owned().get(operator, [])

    def _owned(self) -> dict[Operator, list[Query]]:
        if self._owners is None:
            self._owners, self._nodes = {}, {}
            for query in self.queries_by_name.values():
                self._note_owner(self._owners, query)
        return self._owners

    def _note_owner(self, owners: dict[Operator, list[Query]], query: Query) -> None:
        self._nodes.update(zip((node.name for node in query.plan.nodes), query.operators, strict=True))
        for member in (*query.operators, query.sink):
            owners.setdefault(member, []).append(query)

    def alike(self, key: object) -> Sequence[Query]:
        """The queries that may have an operator that does this, in the order of their making."""
        if self._alike is None:
            self._alike = {}
            for query in self.queries_by_name.values():
                self._note_likenesses(self._alike, query)
        return self._alike.get(key, ())

    def _note_likenesses(self, alike: dict[object, list[Query]], query: Query) -> None:
        for key in sharing.likenesses(query):
            alike.setdefault(key, []).append(query)

    def named(self, name: str) -> Operator:
        """The operator that a plan calls so; a shared one has a name in the plan of each of its queries."""
        self._owned()
        found = self._nodes.get(name)
        return self.graph.operators[name] if found is None else found

    def knows(self, name: str) -> bool:
        """Whether there is an operator of this name."""
        self._owned()
        return name in self._nodes or name in self.graph.operators

    def sources(self, *operators: Operator) -> list[Source]:
        """The sources above operators, each once."""
        found: dict[Source, None] = {}
        todo, seen = [*operators], set[Operator]()
        while todo:
            one = todo.pop()
            if one in seen:
                continue
            seen.add(one)
            if isinstance(one, Source):
                found[one] = None
            todo.extend(self.graph.producer(reader) for reader in one.inputs)
        return list(found)

    def called(self, names_after: Mapping[Operator, str]) -> None:
        """Operators and forks have other names; what they have cost, and what was decided of them, follows."""
        moved = {operator.name: after for operator, after in names_after.items()}
        self.chains.rename(moved)
        self.costs = {moved.get(operator, operator): cost for operator, cost in self.costs.items()}
        self.graph.rename(names_after)

    def costs_move(self, names_after: Mapping[str, str | None]) -> None:
        """What operators have cost goes with their names; None are gone."""
        self.chains.move(names_after)
        costs = {name: self.costs.pop(name) for name in names_after if name in self.costs}
        self.costs |= {after: costs[name] for name, after in names_after.items() if after and name in costs}

    def _enter(self, name: str, node: Node, position: int, start: Literal["newest", "watermark"] = "newest") -> Inlet:
        """A new query's reader. It reads a stream from one microsecond above the newest time taken in so far, or from
        the stream's mark; it reads a query's rows, of operators shared with an older query none older than its start.
        """
        producer, own = self.named(name), node.spec.state().start
        if isinstance(producer, Source):
            since_us = producer.first_read("newest" if own == "newest" else start)
        else:
            below = [query for query in self.queries_by_name.values() if query.plan.output == name]
            since_us = below[0].sink.inputs[0].since_us if below else None
        if own == "beginning":
            since_us = None
        return edges.attach(self, node, position, producer.output, since_us)

    def beginning(self, operator: Operator) -> int | None:
        """From when on a new reader of the operator reads: above all that its streams had taken in before, if any."""
        return max((one.newest + 1 for one in self.sources(operator) if one.newest > MIN_TIME), default=None)

    def _drop_query(self, name: str) -> dict[str, Any]:
        query = self.query(name)
        readers = [other.plan.name for other in self.queries_by_name.values() if name in other.plan.reads_queries]
        if readers:
            raise Refuse(f"query {name} is read by {names(readers)}: drop them first", code="in_use")
        del self.queries_by_name[name]
        self.slow.pop(name, None)
        self.queries_changed()
        if query.paused is None:
            for reader in query.entries:
                reader.remove()
        for operator in query.operators:
            for reader in list(operator.output.readers):
                operator.output.detach(reader)
            if isinstance(operator, IdleWaiting):
                operator.clear()
        self.costs_move({operator.name: None for operator in query.operators})
        self.graph.remove([*query.operators, query.sink])
        return {"query": name}

    def _pause(self, name: str, reason: str) -> dict[str, Any]:
        query = self.query(name)
        if query.failed:
            raise Refuse(f"query {name} has already failed: {query.paused}", code="already_paused")
        if query.paused is not None:
            raise Refuse(f"query {name} is already paused: {query.paused}", code="already_paused")
        for reader in query.entries:
            reader.detach()
        query.paused = reason
        self.graph.rewire()
        return {"query": name, "paused": reason}

    def _resume(self, name: str) -> dict[str, Any]:
        query = self.query(name)
        if query.paused is None:
            raise Refuse(f"query {name} is not paused", code="not_paused")
        if query.failed:
            failures.begin_again(self, query)
        before = sum(reader.skipped for reader in query.entries)
        for reader in query.entries:
            reader.resume()
        query.paused = None
        self.graph.rewire()
        return {"query": name, "skipped": sum(reader.skipped for reader in query.entries) - before}

    def _set_strategy(self, component: str, strategy: str, operator: str | None) -> dict[str, Any]:
        self.graph.set_strategy(component, Strategy.parse(strategy), operator)
        return {"component": component, "strategy": str(Strategy.parse(strategy)), "operator": operator}

    def _set_order(self, name: str, order: Order | None, alpha: float | None) -> dict[str, Any]:
        joins = [operator for operator in self.query(name).operators if isinstance(operator, Join)]
        if not joins:
            raise Refuse(f"query {name} has no join whose order could be changed", code="no_join")
        for join in joins:
            join.check_order(order, alpha)
        for join in joins:
            join.set_order(order, alpha)
            component = self.graph.component_of(join)
            component.ready.add(join)
            component.has_work = True
        return {"query": name, "orders": {join.name: join.order for join in joins}, "alpha": joins[0].pacing.alpha}

    def _set_weight(self, name: str, weight: int) -> dict[str, Any]:
        if weight < 1:
            raise Refuse(f"component {name}: expected a weight (a whole number of at least 1), got {weight}")
        self.graph.set_weight(name, weight)
        return {"component": name, "weight": weight}

    # -- looking up ----------------------------------------------------------------------------------------------------

    def refuse_taken(self, name: str) -> None:
        if name in self.streams_by_name:
            raise Refuse(f"stream {name} already exists", code="exists")
        if name in self.queries_by_name:
            raise Refuse(f"query {name} already exists", code="exists")

    def _stream(self, name: str) -> Stream:
        found = self.streams_by_name.get(name)
        if found is None:
            raise Refuse(f"stream {name} does not exist", code="unknown_stream")
        return found

    def source(self, name: str) -> Source:
        return self._stream(name).source

    def query(self, name: str) -> Query:
        found = self.queries_by_name.get(name)
        if found is None:
            raise Refuse(f"query {name} does not exist", code="unknown_query")
        return found

    # -- views, between steps ------------------------------------------------------------------------------------------

    def streams(self) -> list[dict[str, Any]]:
        return [views.stream(self, stream) for stream in self.streams_by_name.values()]

    def punctuations(self) -> dict[str, dict[str, int]]:
        """By stream and cause, the promises that told anything new."""
        return {
            name: {str(cause): count for cause, count in stream.source.punctuations.items()}
            for name, stream in self.streams_by_name.items()
        }

    def queries(self) -> list[dict[str, Any]]:
        return [views.query(self, query) for query in self.queries_by_name.values()]

    def components(self) -> list[dict[str, Any]]:
        return [views.component(self, component) for component in self.graph.components]

    def operators(self) -> list[dict[str, Any]]:
        return views.operators(self)

    def withheld(self) -> dict[str, list[str]]:
        """By stream that gets no credit, the queries (or streams of late tuples) whose readers are slow."""
        return withholding.by_stream(self)

    def why(self, query: str, now_us: int | None = None) -> dict[str, Any]:
        """What keeps a query from giving rows, in a sentence and as data; the clock may have gone on meanwhile."""
        return why(self, query, now_us)

    def staleness(self, operator: str, position: int = 0, worst: int = 10) -> dict[str, Any]:
        """How far behind the results of an operator's update queue are, with the keys that wait longest."""
        return edges.staleness(self, operator, position, worst)

    def stale(self, stream: str, worst: int = 10) -> list[dict[str, Any]]:
        """The same of every update queue that a stream's tuples go through."""
        return edges.stale(self, stream, worst)

    def older(self, query: str, now_us: int, than_us: int) -> list[tuple[tuple[tuple[str, Any], ...], int]]:
        """What has waited in a query for longer: update keys, where an edge knows them, and the age of the oldest."""
        return edges.older(self, query, now_us, than_us)

    def table(self, component: str) -> dict[str, Any]:
        rows = self.graph.component(component).table.values()
        rules = {row.transition: [move.__name__ for move in row.moves] for row in rows}
        return {"rows": [row.describe() for row in rows], "rules": rules}

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self) -> bytes:
        """The whole state, between two steps."""
        return saving.save(self)

    @staticmethod
    def restore(data: bytes, *, stopwatch: Stopwatch | None = None, trace: bool = False) -> Engine:
        """An engine that goes on exactly where the saved one was."""
        return saving.restore(data, stopwatch=stopwatch, trace=trace)
