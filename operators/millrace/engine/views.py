"""What an admin sees of the engine: structs of `protocol/admin`, read between two steps, the same for the API, the
command line and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from millrace.engine import reads
from millrace.engine.faults import ask_quietly
from millrace.engine.graph.edges import auto_of, queue_of
from millrace.engine.graph.rewire import editing, sharing
from millrace.engine.graph.rewire.failing import state_tuples
from millrace.engine.queries import Query
from millrace.operators.fork.fork import Fork
from millrace.operators.frame.idle_waiting import IdleWaiting
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator
from millrace.operators.frame.order_switching import OrderSwitching
from millrace.operators.queues.inlet import QueueInlet
from millrace.operators.sink.sink import Sink
from millrace.operators.source.feeds import Feed
from millrace.operators.source.lateness import Lateness
from millrace.operators.source.source import Source
from millrace.protocol import Refuse
from millrace.protocol.admin.operators import (
    AggregateView,
    ChainedView,
    ChainView,
    ComponentView,
    InputView,
    JoinView,
    OperatorView,
    SwitchView,
)
from millrace.protocol.admin.queries import JoinOrderView, QueryView
from millrace.protocol.admin.streams import DisorderView, FeedView, GroupView, LateView, StreamView
from millrace.protocol.words import counted
from millrace.values.eventtime import MAX_TIME, is_time

if TYPE_CHECKING:
    from millrace.engine.engine import Engine
    from millrace.engine.scheduler.component import Component
    from millrace.engine.streams import Stream


# Bytes of queued tuples are counted up to here: four times `most_queued_bytes`, which bounds the time of one look.
SHOWN_BYTES: Final = 2**30
# The tuples and microseconds of an operator that has not been measured.
NO_COST: Final = (0, 0.0)
# Groups of a stream that are listed.
SHOWN_GROUPS: Final = 100


def time_or_none(value_us: int) -> int | None:
    """A time, or None where it stands for no time known or for the end."""
    return value_us if is_time(value_us) else None


def stream(engine: Engine, entry: Stream) -> StreamView:
    source, definition = entry.source, entry.definition
    return StreamView(
        name=definition.name,
        fields=definition.schema.to_data(),
        fingerprint=definition.schema.fingerprint(),
        timestamps=definition.timestamps,
        time=definition.time,
        time_unit=definition.time_unit if definition.time else None,
        update_key=list(definition.update_key),
        punctuation_key=list(definition.punctuation_key),
        disorder_us=definition.disorder_us,
        max_skew_us=definition.max_skew_us,
        progress=definition.progress,
        ets=definition.ets,
        ets_interval_us=definition.ets_interval_us,
        ets_retry_us=definition.ets_retry_us,
        grace_us=definition.grace_us,
        ahead_us=definition.ahead_us,
        propagation=definition.propagation,
        lull_us=definition.lull_us,
        history=definition.history,
        component=engine.graph.component_of(source).name,
        tuples=source.counts.input_tuples,
        late=source.late,
        late_by_max_us=source.late_by_max_us,
        broke_promise=source.broken,
        too_far_ahead=source.far,
        punctuations=sum(source.punctuations.values()),
        punctuations_by_cause={str(cause): count for cause, count in source.punctuations.items()},
        mark_us=time_or_none(source.mark),
        ended=source.mark == MAX_TIME,
        newest_us=time_or_none(source.newest),
        groups_ahead=source.groups.ahead,
        groups=groups(entry),
        group_promises_ignored=source.groups.ignored,
        feeds=[_feed(feed, definition.punctuation_key) for feed in source.feeds],
        sql=definition.sql,
    )


def _feed(feed: Feed, key: Sequence[str]) -> FeedView:
    return FeedView(
        feed=feed.name,
        mark_us=time_or_none(feed.mark),
        tuples=feed.tuples,
        late=feed.late,
        broke_promise=feed.broken,
        credit_used=feed.owed,
        credit_used_bytes=feed.owed_bytes,
        can_answer=feed.can_answer,
        requested_at_us=feed.asked_us,
        requested_us=feed.asked_need,
        requested_group=dict(zip(key, feed.asked_group, strict=False)) or None,
        answered_us=feed.answered_us,
        leaves_at_us=feed.leaves_us,
    )


def late(engine: Engine, found: Stream, until_us: int, before: tuple[int, Lateness] | None = None) -> LateView:
    """Which disorder would have kept how many of a stream's tuples, and the queries whose rows it delays. `before`: the
    time when a span begins, and what the ledger said then; the span begins with the ledger if that is younger."""
    name, definition = found.definition.name, found.definition
    lateness = found.source.lateness()
    if lateness is None:
        raise Refuse(
            f"stream {name} has {definition.timestamps} timestamps: none of its tuples is late", code="never_late"
        )
    since_us = lateness.since_us
    if before is not None and before[1].since_us == since_us:
        since_us, lateness = before[0], lateness.less(before[1])
    late, disorders = lateness.tuples, []
    for disorder_us, kept in lateness.needed.items():
        late -= kept
        disorders.append(DisorderView(disorder_us=disorder_us, late=late))
    return LateView(
        stream=name,
        since_us=time_or_none(since_us),
        until_us=until_us,
        disorder_us=definition.disorder_us,
        progress=definition.progress,
        tuples=lateness.tuples,
        disorders=disorders,
        queries=delayed(engine, found),
    )


def delayed(engine: Engine, found: Stream) -> list[str]:
    """The queries with an operator that waits for the stream's mark (watermark) before it emits rows."""
    reads, waits = {found.source.name}, set[str]()
    names = []
    for query in engine.queries_by_name.values():
        for node, operator in zip(query.plan.nodes, query.operators, strict=True):
            if reads.isdisjoint(node.inputs):
                continue
            reads.add(node.name)
            leaving = node.spec.leaving(["at once"] * len(node.inputs))
            own = operator.waits if leaving == "unknown" else leaving != "at once"
            if own or not waits.isdisjoint(node.inputs):
                waits.add(node.name)
        if query.plan.output in waits:
            names.append(query.plan.name)
    return names


def groups(found: Stream) -> list[GroupView]:
    """The first groups that are ahead of the stream: their marks, and the promises of feeds that they follow from."""
    key = found.definition.punctuation_key
    return [
        GroupView(
            group=dict(zip(key, group, strict=True)),
            mark_us=time_or_none(max(mark, found.source.mark)),
            feeds={str(feed): value_us for feed, value_us in by.items()},
        )
        for group, mark, by in islice(found.source.groups, SHOWN_GROUPS)
    ]


def query(engine: Engine, query: Query, **served: Any) -> QueryView:
    """A query; `served` has the fields that a server knows of it. The caller has settled the graph."""
    plan, entries = query.plan, engine.entries(query)
    return QueryView(
        name=plan.name,
        fields=plan.schema.to_data(),
        component=engine.graph.component_of(query.operators[0]).name,
        operators=[operator.name for operator in query.operators],
        shared=sharing.told(engine, query),
        order=plan.options.order,
        joins={} if query.switches is None else _joins(query),
        update_key=None if plan.update_key is None else list(plan.update_key),
        auto=_auto(query) if query.requeued else {},
        reads=reads.shown(engine, query),
        state=state(query),
        reason=query.paused,
        rows=query.sink.sequence,
        skipped=sum([reader.missed for reader in entries]),
        start=plan.options.start,
        ignored=ignored(engine, entries),
        lost=query.lost,
        state_tuples=ask_quietly(partial(state_tuples, query), 0) if query.remembers else 0,
        max_state=plan.options.max_state,
        progress_us=time_or_none(query.sink.progress_us),
        reads_streams=list(plan.reads_streams),
        reads_queries=list(plan.reads_queries),
        sql=plan.sql,
        **served,
    )


def _joins(query: Query) -> dict[str, JoinOrderView]:
    """By join, how it takes and emits rows."""
    return {
        operator.name: JoinOrderView(order=operator.order, alpha=operator.pacing.alpha)
        for operator in query.operators
        if isinstance(operator, OrderSwitching)
    }


def _auto(query: Query) -> dict[str, str]:
    """By operator with a queue that chooses, what it does at present."""
    return {
        operator.name: auto.mode
        for operator in query.operators
        for reader in operator.inputs
        if (auto := auto_of(reader)) is not None
    }


def indexed(engine: Engine, query: Query) -> list[str]:
    """The filters of a query that are looked up together with filters of others."""
    lines = []
    for reader in engine.entries(query):
        routing = reader.arc.routing
        if routing is not None and reader.consumer is not None and (sizes := routing.describe(reader)) is not None:
            lines.append(
                f"{reader.consumer.name} is one of {sizes[0]:,} filters in the predicate index of "
                f"{engine.graph.producer(reader).name}, which computes {counted(sizes[1], 'expression')} per batch"
            )
    return lines


def ignored(engine: Engine, entries: Iterable[Inlet]) -> dict[str, int]:
    """By stream, the tuples that have come since a query was made and are older than where its inlets start to read."""
    counts: dict[str, int] = {}
    for reader in entries:
        if reader.ignored:
            for source in engine.graph.sources(engine.graph.producer(reader)):
                counts[source.stream] = max(counts.get(source.stream, 0), reader.ignored)
    return counts


def state(query: Query) -> str:
    if query.catching_up:
        return "catching up"
    return "failed" if query.failed else "running" if query.paused is None else "paused"


def component(engine: Engine, component: Component) -> ComponentView:
    return ComponentView(
        name=component.name,
        strategy=str(component.strategy),
        strategies={row.operator.name: str(row.strategy) for row in component.table.values()},
        weight=component.weight,
        steps=component.steps,
        queued=ask_quietly(component.queued, 0),
        queued_bytes=ask_quietly(partial(component.queued_bytes, SHOWN_BYTES), 0),
        ready=component.busy(),
        chain=_chain(component),
        operators=[operator.name for operator in component.table] + [sink.name for sink in component.sinks],
        breaks={
            operator.name: why
            for operator in component.table
            if not isinstance(operator, Fork) and (why := engine.graph.broken(operator))
        },
    )


def _chain(component: Component) -> ChainView | None:
    """What `chain` has decided of a component's operators, the steepest first, and from which numbers."""
    if not component.ready.slopes:
        return None
    links = [(row.operator.name, row.link) for row in component.table.values() if row.link is not None]
    links.sort(key=lambda item: -item[1].slope)
    operators = [
        ChainedView(
            operator=name,
            slope=link.slope,
            selectivity=link.selectivity,
            cost_us=link.cost_us,
            segment=link.segment.name,
            break_=link.cut,
        )
        for name, link in links
    ]
    return ChainView(decisions=component.decisions, operators=operators)


def decisions(engine: Engine, components: Iterable[Component]) -> list[dict[str, Any]]:
    """What an admin has decided of the scheduling of components, in terms that outlive the process.

    Components and forks have names that depend on the order in which things were made, so each is also named by an
    operator: `first`, the component's oldest, and `fork_of`, the one whose output a fork shares.
    """
    graph = engine.graph
    origins: dict[Operator, str] = {fork: operator.name for operator, fork in graph.all_forks().items()}
    return [
        {
            "component": component.name,
            "first": next(operator.name for operator in component.table),
            "strategy": str(component.strategy),
            "weight": component.weight,
            "operators": [
                {
                    "operator": row.operator.name,
                    "fork_of": origins.get(row.operator),
                    "strategy": str(row.strategy),
                }
                for row in component.table.values()
                if row.strategy is not component.strategy and row.strategy != component.strategy
            ]
            + [
                {"operator": fork.name, "fork_of": operator.name, "strategy": str(graph.strategies[fork])}
                for operator, fork in graph.resting.items()
                if graph.component_of(operator) is component
                and graph.strategies.get(fork, component.strategy) != component.strategy
            ],
            "breaks": [operator.name for operator in component.table if operator in graph.breaks],
        }
        for component in components
    ]


def forks(engine: Engine) -> dict[str, str]:
    """By operator whose output several share, the fork's name."""
    return {operator.name: fork.name for operator, fork in engine.graph.forks.items()}


def operators(engine: Engine, now_us: int | None = None) -> list[OperatorView]:
    """All operators. Whom each works for is looked up once for all of them.

    Waiting continues between two steps, so the clock is an argument wherever operators are shown."""
    return [view for piece in operators_in_pieces(engine, len(engine.graph.operators) + 1, now_us) for view in piece]


def operators_in_pieces(engine: Engine, size: int, now_us: int | None = None) -> Iterator[list[OperatorView]]:
    """The same in lists of this size. Those that leave between two pieces are left out."""
    readers = _readers_by_source(engine)
    everything = engine.graph.all_operators()
    for start in range(0, len(everything), size):
        engine.graph.settle()
        clock_us = max(now_us or 0, engine.clock.now_us)
        homes = engine.graph.homes()
        yield [
            operator(engine, listed, homes[listed], readers.get(listed), clock_us)
            for listed in everything[start : start + size]
            if listed in homes
        ]


def operator_named(engine: Engine, name: str, now_us: int | None = None) -> OperatorView:
    """One operator, or a fork, without a look at all the others; a shared one by any of its names."""
    named = engine.named(name) if engine.knows(name) else engine.graph.operator(name)
    readers = _readers_by_source(engine).get(named) if isinstance(named, Source) else None
    engine.graph.settle()
    home = engine.graph.component_of(named)
    return operator(engine, named, home, readers, max(now_us or 0, engine.clock.now_us))


class _Unknown:
    """Answers in the place of an operator that raises when it is queried."""

    superseded = shed = state_tuples = state_bytes = 0

    def queue_tuples(self, position: int) -> int:
        return 0

    def registers(self) -> None:
        return None

    def blocked(self) -> bool:
        return False

    def numbers(self) -> None:
        return None

    def kept(self) -> None:
        return None


def operator(
    engine: Engine, subject: Operator, home: Component, queries: list[str] | None, now_us: int
) -> OperatorView:
    """An operator of a component, and of these queries or of its owners. The caller has settled the graph."""
    try:
        return _operator(engine, subject, home, queries, now_us, subject)
    except Exception:  # an operator that raises
        return _operator(engine, subject, home, queries, now_us, _Unknown())


def _operator(
    engine: Engine, operator: Operator, home: Component, queries: list[str] | None, now_us: int, answers: Any
) -> OperatorView:
    graph, counts, output = engine.graph, operator.counts, operator.output
    waiting = isinstance(operator, IdleWaiting)
    registers = answers.registers() if waiting else None
    owners = engine.owners(operator)
    edit = next(
        (edit for query in owners if query.plan.edits and (edit := editing.edited(query.plan, operator.name))), None
    )
    row = home.table.get(operator)
    reads: list[str] = []
    queues: list[str] = []
    inputs: list[InputView] = []
    for position, reader in enumerate(operator.inputs):
        name = graph.producer(reader).name
        reads.append(name)
        queues.append(reader.edge.kind if isinstance(reader, QueueInlet) else "append")
        inputs.append(
            InputView(
                from_=name,
                queue_tuples=answers.queue_tuples(position),
                peak_queue_tuples=reader.peak,
                skipped=reader.missed,
                idle_wait_us=idle_us(operator, position, now_us) if waiting else 0,
                register_us=None if registers is None else time_or_none(registers[position]),
                queue=queue_of(reader, engine.clock.now_us) if answers is operator else None,
            )
        )
    return OperatorView(
        name=operator.name,
        kind=operator.kind,
        queries=queries or [query.plan.name for query in owners],
        component=home.name,
        strategy=None if row is None else str(row.strategy),
        break_=None if isinstance(operator, Fork | Sink) else graph.broken(operator),
        chain=None if row is None or row.link is None else row.link.view(),
        reads=reads,
        queues=queues,
        input_tuples=counts.input_tuples,
        output_tuples=counts.output_tuples,
        executions=counts.executions,
        superseded=answers.superseded,
        shed=answers.shed,
        inserted=edit is not None and edit.change == "insert",
        where=None if edit is None else edit.where,
        sample=None if edit is None or edit.spec is None else edit.spec.edits().share,
        filtered=0 if isinstance(operator, Sink) else output.left_out,
        errors=counts.errors,
        last_error=counts.last_error,
        busy_us=engine.costs.get(operator, NO_COST)[1],
        inputs=inputs,
        waits=waiting,
        blocked=waiting and answers.blocked(),
        state_tuples=answers.state_tuples,
        state_bytes=answers.state_bytes,
        join=_join(answers.numbers()) if isinstance(operator, OrderSwitching) else None,
        aggregate=None if (kept := answers.kept()) is None else AggregateView(**kept),
        low_water_us=time_or_none(output.promise),
    )


def _join(numbers: Mapping[str, Any] | None) -> JoinView | None:
    if numbers is None:
        return None
    switches = [SwitchView(**switch) for switch in numbers["last_switches"]]
    return JoinView(**{**numbers, "last_switches": switches})


def counters(engine: Engine, now_us: int) -> dict[str, tuple[int, int, int, float, tuple[int, ...]]]:
    """By operator, what only grows: tuples in and out, executions, microseconds busy, and idle-waiting per input.

    Cheap enough to be looked at every second. Waiting continues between two steps, so the clock is an argument.
    """
    engine.graph.settle()
    now_us = max(now_us, engine.clock.now_us)
    return {
        operator.name: (
            operator.counts.input_tuples,
            operator.counts.output_tuples,
            operator.counts.executions,
            engine.costs.get(operator, (0, 0.0))[1],
            tuple(idle_us(operator, at, now_us) for at in range(len(operator.inputs)))
            if isinstance(operator, IdleWaiting)
            else (),
        )
        for operator in engine.graph.operators.values()
    }


def _readers_by_source(engine: Engine) -> dict[Operator, list[str]]:
    """The queries that read each stream, in the order of their making."""
    readers: dict[Operator, list[str]] = {}
    for query in engine.queries_by_name.values():
        for stream in query.plan.reads_streams:
            if stream in engine.streams_by_name:
                readers.setdefault(engine.source(stream), []).append(query.plan.name)
    return readers


def idle_us(operator: Operator, position: int, now_us: int) -> int:
    """How long an input has held its operator's tuples back, until now."""
    assert isinstance(operator, IdleWaiting)
    since = operator.idle_since[position]
    return operator.idle_us[position] + (0 if since is None else now_us - since)
