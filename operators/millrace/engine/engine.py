"""The engine: a deterministic function of its events, with one door.

`step` takes the clock and events, and returns effects. It reads no clock, does no I/O and never waits; the same events
in the same steps have the same effects. Commands come through the same door as tuples, before
the execution of that step, so that a change of the graph never meets an operator at work. A refused command has
changed nothing. What an event or a command does is in the file that `EVENTS` (streams.py) or `COMMANDS` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from millrace.engine import credit, events, reads, saving, seam, shadow, streams, views
from millrace.engine.events import Answer, Change, Command, CommandBody, Effects, Event, Rejected, WakeAt
from millrace.engine.faults import OperatorError
from millrace.engine.graph import edges
from millrace.engine.graph.alike import Alike
from millrace.engine.graph.graph import Graph
from millrace.engine.graph.rewire import (
    adding,
    editing,
    failing,
    merging,
    pausing,
    queues,
    renaming,
    replacing,
    sharing,
)
from millrace.engine.plan import QueryPlan
from millrace.engine.producers import PRODUCERS_KEPT, PRODUCERS_KEPT_US
from millrace.engine.queries import Query
from millrace.engine.rollback import Before
from millrace.engine.saving import SavedState
from millrace.engine.scheduler import deciding, turns
from millrace.engine.scheduler.chain import Chains
from millrace.engine.scheduler.component import Stopwatch
from millrace.engine.streams import EVENTS, Stream
from millrace.engine.time.watermarks import WatermarkCoordinator
from millrace.engine.why import why
from millrace.operators.frame.buffer import Gauge
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator, StepClock
from millrace.operators.queues.reads import Reads
from millrace.operators.sink.sink import Sink
from millrace.operators.source.source import Source
from millrace.protocol import Refuse
from millrace.protocol.admin.changes import PlanView
from millrace.protocol.admin.operators import ComponentView, OperatorView, TableView
from millrace.protocol.admin.queries import QueryView, Why
from millrace.protocol.admin.streams import LateView, StalenessView, StreamView
from millrace.values.functions import LIBRARY
from millrace.values.functions.tape import Results, Tape, played, playing

# Tuples that a step takes at the most before it returns to its driver: a few milliseconds of work.
BUDGET: Final = 65_536
# Tuples that a feed may send ahead of their being taken: 16 frames of the largest number of rows that a frame may
# have in bulk, so that a sender on a fast network never runs dry within a turn of the event loop.
CREDIT: Final = 262_144
# Tuples queued in a component above which its feeds get no new credit.
MOST_QUEUED: Final = 1_048_576
# The same two limits in bytes: a feed gets credit again in any case when it has used a quarter of these.
CREDIT_BYTES: Final = 64 * 2**20
MOST_QUEUED_BYTES: Final = 256 * 2**20
MANY: Final = 1 << 62

# By query, its plan and operators before a change.
Former = dict[Query, tuple[QueryPlan, list[Operator]]]


class Engine:
    """Streams, queries and the components that run them.

    costs         by operator, the tuples and microseconds of its measured executions
    owing         streams with a feed that has used so much credit that it is owed more
    history_held  streams whose history lags too far
    memory_held   whether no feed gets credit, because the server's memory is nearly used up
    slow          queries, and streams of late tuples, with a slow reader; true: no operator's wait is an exception
    reads         by query and reader, how often the reader looks at the query's rows
    remembering   the queries with a state that can grow
    alike         by definition and inputs: the operators that have them
    merge_wait    steps with events until equal operators are compared again; None if there are none to merge
    fresh, copied of the change in progress: operators that are new, and those that stand for shared ones
    expendable    whether a refusal may leave a part of it: a shadow is thrown away, and an engine is brought back
    """

    def __init__(
        self,
        *,
        stopwatch: Stopwatch | None = None,
        trace: bool = False,
        credit: int = CREDIT,
        most_queued: int = MOST_QUEUED,
        credit_bytes: int = CREDIT_BYTES,
        most_queued_bytes: int = MOST_QUEUED_BYTES,
        producers_kept: int = PRODUCERS_KEPT,
        producers_kept_us: int = PRODUCERS_KEPT_US,
        thin: bool = True,
        index: bool = True,
        share: bool = False,
    ) -> None:
        self.stopwatch = stopwatch
        self.trace = trace
        self.credit = credit
        self.most_queued = most_queued
        self.credit_bytes = credit_bytes
        self.most_queued_bytes = most_queued_bytes
        self.producers_kept = producers_kept
        self.producers_kept_us = producers_kept_us
        self.clock = StepClock()
        self.gauge = Gauge()
        self.streams_by_name: dict[str, Stream] = {}
        self.queries_by_name: dict[str, Query] = {}
        self.graph = Graph(thin=thin, index=index)
        self.costs: dict[Operator, tuple[int, float]] = {}
        self.last_id = 0  # of the operators of all queries that have ever been
        self.turn = 0
        self.time = WatermarkCoordinator(self)
        self.owing: dict[str, None] = {}
        self.history_held: dict[str, None] = {}
        self.memory_held = False
        self.slow: dict[Sink | Source, bool] = {}
        self.chains = Chains()
        self.reads: dict[Sink, dict[str, Reads]] = {}
        self.remembering: dict[str, Query] = {}
        self._owners: dict[Operator, list[Query]] | None = None
        self._nodes: dict[str, Operator] = {}
        self._alike: Alike | None = None
        self.merge_wait: int | None = None
        self.share = share
        self.fresh: dict[Operator, None] = {}
        self.copied: dict[Operator, Operator] = {}
        self.expendable = False

    # -- the one door --------------------------------------------------------------------------------------------------

    def step(
        self,
        now_us: int,
        events: Sequence[Event] = (),
        *,
        budget: int = BUDGET,
        executions: int = MANY,
        results: Results | None = None,
    ) -> Effects:
        """Take what happened, work within the budget (in tuples, and in executions), and say what is to be done.

        A replay passes the `results` of nondeterministic functions that the step had, or none at all ({}).
        """
        if (results is not None or LIBRARY.draws) and playing() is None:  # an engine within a step has that step's tape
            with played(Tape(results)) as tape:
                effects = self.step(now_us, events, budget=budget, executions=executions)
            tape.check()
            effects.results = tape.made or None
            return effects
        self.clock.now_us = self.time.heard_us = max(now_us, self.clock.now_us)
        effects = Effects()
        can_merge = self.share and bool(events)
        for event in events:
            try:
                if isinstance(event, Command):
                    can_merge = False  # until the next step all is as a plan of the command has shown
                    effects.orders.append(Answer(event.id, value=self.obey(event.body)))
                    if event.row is not None:
                        streams.put_change(self, event.row)
                    self.time.keep_beating()
                else:
                    EVENTS[type(event)](self, event, effects)
            except OperatorError as raised:
                failing.stop(self, raised.operator, raised.error, effects)
                if isinstance(event, Command):
                    reason = failing.reason_of(raised.operator, raised.error)
                    effects.orders.append(Answer(event.id, refused=Refuse(reason, code="query_failed")))
            except Refuse as refused:
                if isinstance(event, Command):
                    effects.orders.append(Answer(event.id, refused=refused))
                else:
                    effects.orders.append(Rejected(event, refused))
        if self.time.timers.at:
            self.time.ring(effects)
        if self.graph.chained:
            self.chains.decide(self, effects)
        if self.graph.faults:
            failing.stop_faulty(self, effects)
        turns.work(self, effects, budget, executions)
        if can_merge and self.merge_wait is not None:
            failing.contain(self, effects, partial(merging.look, self))
            if self.reads:
                reads.settle(self)
        if self.owing:
            failing.contain(self, effects, partial(credit.grant, self, effects))
        if self.time.timers.at and (wake_us := self.time.timers.first()) is not None:
            effects.orders.append(WakeAt(wake_us))
        for component in self.graph.components:
            if component.busy():
                effects.more = True
                break
        return effects

    # -- commands ------------------------------------------------------------------------------------------------------

    def obey(self, body: CommandBody) -> Any:
        """Carry out a command, or refuse it with nothing changed; the answer."""
        self.graph.settle()
        had_reads = bool(self.reads)
        try:
            return self._placed(body, self.carry_out(body))
        finally:
            self.graph.derive()
            if had_reads or self.reads:
                reads.settle(self)
            self.fresh.clear()
            self.copied.clear()

    def _placed(self, body: CommandBody, answer: Any) -> Any:
        """An answer with the components that queries have come into, which are found when all is done."""
        match body:
            case Change(commands):
                return [self._placed(command, part) for command, part in zip(commands, answer, strict=True)]
            case events.AddQuery(plan) | events.ReplaceQuery(plan) if plan.name in self.queries_by_name:
                sink = self.queries_by_name[plan.name].sink
                return replace(answer, component=self.graph.component_of(sink).name)
            case _:
                return answer

    def carry_out(self, body: CommandBody) -> Any:
        """The same without deriving the graph, because other commands may follow.

        A command about one query alone separates its operators first; if it is refused, they are shared again.
        """
        query = sharing.concerned(self, body)
        if query is None:
            return COMMANDS[type(body)](self, body)
        if isinstance(body, events.PauseQuery):
            pausing.refuse_pause(query)  # the only reasons against it
            sharing.unshare(self, query)
            return COMMANDS[type(body)](self, body)
        with self._whole((body,)):
            sharing.unshare(self, query)
            return COMMANDS[type(body)](self, body)

    def change(self, command: Change) -> list[Any]:
        """Several commands as one: all of them are obeyed, or none is. One alone is obeyed as a whole anyway."""
        if len(command.commands) < 2:
            return [self.carry_out(body) for body in command.commands]
        with self._whole(command.commands):
            return [self.carry_out(body) for body in command.commands]

    def takes_back(self, commands: Sequence[CommandBody]) -> bool:
        """Whether a refusal may come after a part of them has been obeyed."""
        return len(commands) > 1 or any(
            sharing.concerned(self, body) is not None for body in commands if not isinstance(body, events.PauseQuery)
        )

    @contextmanager
    def _whole(self, commands: Sequence[CommandBody]) -> Iterator[None]:
        """Obey commands. If one is refused, everything becomes what it was before the first; a shadow shows whether
        that is an ordinary refusal."""
        if self.expendable:
            yield
            return
        before = Before(self, commands)
        self.expendable = True
        try:
            yield
        except (Refuse, OperatorError) as raised:
            before.bring_back(self)
            shadow.check(shadow.Snapshot.of(self), commands)
            raise shadow.disagree(raised) from raised
        finally:
            self.expendable = False

    def plan(self, commands: Sequence[CommandBody]) -> PlanView:
        """What the commands would do now, or their refusal."""
        return shadow.plan(shadow.Snapshot.of(self), commands)

    # -- looking up ----------------------------------------------------------------------------------------------------

    def refuse_taken(self, name: str) -> None:
        if name in self.streams_by_name:
            raise Refuse(f"stream {name} already exists", code="exists")
        if name in self.queries_by_name:
            raise Refuse(f"query {name} already exists", code="exists")

    def stream(self, name: str) -> Stream:
        stream = self.streams_by_name.get(name)
        if stream is None:
            raise Refuse(f"stream {name} does not exist", code="unknown_stream")
        return stream

    def source(self, name: str) -> Source:
        return self.stream(name).source

    def query(self, name: str) -> Query:
        query = self.queries_by_name.get(name)
        if query is None:
            raise Refuse(f"query {name} does not exist", code="unknown_query")
        return query

    def queries_changed(self) -> None:
        """Queries or their operators have changed: indexes of them are built again."""
        self.remembering = {name: query for name, query in self.queries_by_name.items() if query.remembers}
        self._owners = self._alike = None
        self.merge_wait = 0

    def query_added(self, query: Query) -> None:
        """A query is new, and younger than all others: indexes are extended."""
        if query.remembers:
            self.remembering[query.plan.name] = query
        if self._owners is not None:
            self._note_owner(self._owners, query)
        if self._alike is not None:
            self._alike.add(self, query)
        self.merge_wait = 0

    def queries_left(self, queries: Sequence[Query]) -> None:
        """These have gone."""
        for query in queries:
            self.remembering.pop(query.plan.name, None)
            if self._owners is not None:
                for node in query.plan.nodes:
                    self._nodes.pop(node.name, None)
                for operator in (*query.operators, query.sink):
                    self._disown(self._owners, operator, query)
            if self._alike is not None:
                self._alike.remove(query)
        self.merge_wait = 0

    def queries_exchanged(self, former: Former) -> None:
        """Queries have another plan than their former one, with other names, edges or operators."""
        if not former:
            return
        self.remembering = {name: query for name, query in self.queries_by_name.items() if query.remembers}
        self.merge_wait = 0
        if self._owners is None:
            return
        for query, (plan, operators) in former.items():
            for operator in operators:
                if operator not in query.operators:
                    self._disown(self._owners, operator, query)
            for operator in query.operators:
                if operator not in operators:
                    self._own(self._owners, operator, query)
            for node in plan.nodes:
                self._nodes.pop(node.name, None)
        for query in former:
            self._nodes.update(zip((node.name for node in query.plan.nodes), query.operators, strict=True))

    def _disown(self, owners: dict[Operator, list[Query]], operator: Operator, query: Query) -> None:
        others = owners[operator] = [owner for owner in owners[operator] if owner is not query]
        if not others:
            del owners[operator]

    def _own(self, owners: dict[Operator, list[Query]], operator: Operator, query: Query) -> None:
        known = owners.setdefault(operator, [])
        known.append(query)
        if len(known) > 1:
            place = {query: at for at, query in enumerate(self.queries_by_name.values())}
            known.sort(key=place.__getitem__)

    def list_alike(self, queries: Iterable[Query]) -> None:
        """The same for the index of equal operators, once the graph is what the plans say."""
        if self._alike is not None:
            self._alike.exchange(self, queries)

    def owners(self, operator: Operator) -> list[Query]:
        """The queries that an operator belongs to, in the order of their creation; a source has none."""
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

    @property
    def alike(self) -> Alike:
        if self._alike is None:
            self._alike = Alike()
            for query in self.queries_by_name.values():
                self._alike.add(self, query)
        return self._alike

    def named(self, name: str) -> Operator:
        """The operator that a plan calls so; a shared one has a name in the plan of each of its queries."""
        self._owned()
        operator = self._nodes.get(name)
        return self.graph.operators[name] if operator is None else operator

    def knows(self, name: str) -> bool:
        """Whether there is an operator of this name."""
        self._owned()
        return name in self._nodes or name in self.graph.operators

    def number(self, plan: QueryPlan) -> QueryPlan:
        """The plan with an id for each operator that has none: no other operator has had it."""
        self.last_id = max(self.last_id, *plan.ids.values(), 0)
        new = [node.name for node in plan.nodes if not node.id]
        ids = {name: self.last_id + position for position, name in enumerate(new, 1)}
        self.last_id += len(new)
        return plan.numbered(ids)

    def entries(self, query: Query) -> list[Inlet]:
        """The inlets by which a query takes from outside, or from what it shares."""
        own = [operator for operator in query.operators if len(self.owners(operator)) == 1]
        outputs = {id(operator.output) for operator in own}
        return [inlet for one in (*own, query.sink) for inlet in one.inputs if id(inlet.arc) not in outputs]

    # -- views, between steps ------------------------------------------------------------------------------------------

    def streams(self) -> list[StreamView]:
        return [views.stream(self, stream) for stream in self.streams_by_name.values()]

    def late(self, stream: str) -> LateView:
        """Which disorder would have kept how many of a stream's tuples."""
        self.graph.settle()
        return views.late(self, self.stream(stream), self.clock.now_us)

    def punctuations(self) -> dict[str, dict[str, int]]:
        """By stream and cause, the promises that told anything new."""
        return {
            name: {str(cause): count for cause, count in stream.source.punctuations.items()}
            for name, stream in self.streams_by_name.items()
        }

    def queries(self) -> list[QueryView]:
        self.graph.settle()
        return [views.query(self, query) for query in self.queries_by_name.values()]

    def query_states(self) -> dict[str, str]:
        """By query: running, paused, failed or catching up."""
        return {name: views.state(query) for name, query in self.queries_by_name.items()}

    def components(self) -> list[ComponentView]:
        return [views.component(self, component) for component in self.graph.components]

    def operators(self) -> list[OperatorView]:
        return views.operators(self)

    def withheld(self) -> dict[str, list[str]]:
        """By stream that gets no credit, the queries (or streams of late tuples) whose readers are slow."""
        return credit.by_stream(self)

    def why(self, query: str, now_us: int | None = None) -> Why:
        """Why a query emits no rows, in a sentence and as data; the clock may be later than the last step."""
        self.graph.settle()
        return why(self, query, now_us)

    def staleness(self, operator: str, position: int = 0, worst: int = 10) -> StalenessView:
        """How stale the results of an operator's update queue are, with the keys that wait longest."""
        return edges.staleness(self, operator, position, worst)

    def stale(self, stream: str, worst: int = 10) -> list[StalenessView]:
        """The same of every update queue that a stream's tuples go through."""
        return edges.stale(self, stream, worst)

    def older(self, query: str, now_us: int, than_us: int) -> list[tuple[tuple[tuple[str, Any], ...], int]]:
        """What has waited in a query for longer: update keys, where an edge knows them, and the age of the oldest."""
        return edges.older(self, query, now_us, than_us)

    def table(self, component: str) -> TableView:
        rows = self.graph.component(component).table.values()
        rules = {row.transition: [move.__name__ for move in row.moves] for row in rows}
        return TableView(rows=[row.view() for row in rows], rules=rules)

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self) -> bytes:
        """The whole state, between two steps."""
        self.graph.settle()
        return saving.save(self)

    def save_apart(self, put: saving.Put) -> bytes:
        """The same without its large arrays, which go to `put` one after the other."""
        self.graph.settle()
        return saving.save_apart(self, put)

    @staticmethod
    def restore(data: bytes | SavedState, *, stopwatch: Stopwatch | None = None, trace: bool = False) -> Engine:
        """An engine that continues exactly where the saved one was."""
        return saving.restore(data, stopwatch=stopwatch, trace=trace)

    def become(self, data: bytes | SavedState) -> None:
        """Continue exactly where the saved engine was, whatever this one was before."""
        saving.restore(data, stopwatch=self.stopwatch, trace=self.trace, into=self)


# What obeys each command.
COMMANDS: Final[Mapping[type[CommandBody], Callable[[Engine, Any], Any]]] = {
    Change: Engine.change,
    events.AddStream: streams.add,
    events.AlterStream: streams.alter,
    events.DropStream: streams.drop,
    events.AddQuery: adding.add,
    events.DropQuery: adding.drop,
    events.PauseQuery: pausing.pause,
    events.ResumeQuery: pausing.resume,
    events.ReplaceQuery: replacing.replace_query,
    events.RenameQuery: renaming.rename_query,
    events.UnshareQuery: sharing.part,
    events.InsertOperator: editing.insert,
    events.RemoveOperator: editing.remove,
    events.ReplaceOperator: editing.exchange,
    events.SetQueue: queues.exchange,
    events.HoldQuery: seam.hold,
    events.AdoptBootstrap: seam.adopt,
    events.SetStrategy: deciding.set_strategy,
    events.SetBreak: deciding.set_break,
    events.SetWeight: deciding.set_weight,
    events.SetOrder: deciding.set_order,
    events.WatchProgress: deciding.watch,
    events.SetReads: reads.state,
    events.WithholdCredit: credit.withhold,
}
