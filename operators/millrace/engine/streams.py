"""Streams, and what their feeds send: tuples, promises and answers enter the graph at a stream's source.

Every tuple passes `arrive`, so this module is compiled (build_hook.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from millrace.engine import credit
from millrace.engine.events import (
    AddStream,
    AlterStream,
    Answered,
    Archived,
    Arrived,
    ClockStepped,
    DropStream,
    Effects,
    Event,
    FeedClosed,
    FeedHeld,
    FeedOpened,
    Heard,
    HistoryHeld,
    Late,
    Measured,
    MemoryExceeded,
    MemoryHeld,
    Passed,
    ProducerForgotten,
    Punctuated,
    Sequenced,
    TooFar,
)
from millrace.engine.faults import ask
from millrace.engine.graph import edges
from millrace.engine.graph.rewire import failing, widening
from millrace.engine.graph.rewire.rewiring import Rewiring, carry_out
from millrace.engine.plan import CHANGE_STREAM, POLICIES, StreamDefinition, names
from millrace.engine.producers import Producers
from millrace.engine.scheduler.table import Strategy
from millrace.operators.frame.buffer import Buffer
from millrace.operators.source.source import Clocking, Source
from millrace.protocol import Refuse
from millrace.protocol.admin.changes import AlterReply, NewStreamReply, StreamDropReply
from millrace.values.batch import Batch

if TYPE_CHECKING:
    from millrace.engine.engine import Engine


@dataclass(slots=True)
class Stream:
    """A stream and its source. A client that reconnects continues where `producers` has its feed."""

    definition: StreamDefinition
    source: Source
    producers: Producers = field(default_factory=Producers)


def clocking_of(definition: StreamDefinition) -> Clocking:
    """What of a stream's definition its source needs to know."""
    by_tuples = definition.progress == "tuples"
    return Clocking(
        definition.timestamps,
        definition.disorder_us,
        by_tuples,
        definition.ahead_us,
        definition.history,
        tuple(definition.schema.names.index(name) for name in definition.punctuation_key),
    )


# -- events ------------------------------------------------------------------------------------------------------------


def arrive(engine: Engine, event: Arrived, effects: Effects) -> None:
    """Tuples of a feed: those on time enter the graph, the others are put aside."""
    stream = engine.streams_by_name.get(event.stream) or engine.stream(event.stream)
    batch = event.batch
    if not len(batch.ts):
        return
    if len(batch.columns) < len(stream.definition.schema.fields):
        batch = batch.widened(stream.definition.schema)  # its feed was opened before the stream had all its fields
    now_us = engine.clock.now_us
    source = stream.source
    late, far = source.arrive(event.feed, batch, now_us, engine.time.heard_us, event.at_us, event.before_us)
    credit.used(engine, event.stream, source.feeds.by_name[event.feed])
    engine.graph.component_of(source).has_work = True
    if source.judged is not None:
        effects.orders.append(Archived(event.stream, event.feed, source.judged, source.mark))
        source.judged = None
    if far is not None:
        effects.orders.append(TooFar(event.stream, event.feed, far.batch, int(far.marks[0])))
    if late is not None:
        order = Late(event.stream, event.feed, now_us, late.batch, late.marks, late.broken)
        effects.orders.append(order)
        _put_aside(engine, order)


def _put_aside(engine: Engine, late: Late) -> None:
    """Late tuples go to the stream's side stream, if any query reads it."""
    aside = engine.streams_by_name.get(f"{late.stream}.late")
    if aside is None:
        return
    now_us = engine.clock.now_us
    rows = late.told(aside.definition.schema, max(now_us, aside.source.mark))
    aside.source.arrive("late", rows, now_us, now_us)
    engine.graph.component_of(aside.source).has_work = True


def put_change(engine: Engine, row: tuple[Any, ...]) -> None:
    """An applied change goes to the stream of changes, if any query reads it."""
    stream = engine.streams_by_name.get(CHANGE_STREAM.name)
    if stream is None:
        return
    now_us = engine.clock.now_us
    stream.source.arrive("server", Batch.from_rows(CHANGE_STREAM.schema, [row], [now_us]), now_us, now_us)
    engine.graph.component_of(stream.source).has_work = True


def _punctuated(engine: Engine, event: Punctuated, effects: Effects) -> None:
    source = engine.source(event.stream)
    feed = source.open(event.feed)
    if event.group:
        source.promise_group(feed, event.group, event.value_us, "client")
    else:
        source.promise(feed, event.value_us, "client")
    engine.graph.component_of(source).has_work = True


def _passed(engine: Engine, event: Passed, effects: Effects) -> None:
    source = engine.source(event.stream)
    source.passed(source.open(event.feed), event.newest_us, engine.time.heard_us)
    engine.graph.component_of(source).has_work = True


def _measured(engine: Engine, event: Measured, effects: Effects) -> None:
    operator = engine.graph.operators.get(event.operator)
    if operator is not None:
        tuples, us = engine.costs.get(operator, (0, 0.0))
        engine.costs[operator] = (tuples + event.tuples, us + event.us)
        ask(operator, partial(edges.measured, engine, event))
        ask(operator, partial(operator.measured, event.tuples, event.us))
        engine.graph.component_of(operator).worked_us += event.us


def _feed_opened(engine: Engine, event: FeedOpened, effects: Effects) -> None:
    source = engine.source(event.stream)
    known = source.feeds.get(event.feed)
    feed = source.open(event.feed)
    feed.can_answer = event.can_answer
    engine.time.timers.unset("leave", event.stream, event.feed)
    if known is not None:
        # Another connection has it now: that one has not been asked, nothing of it lies unread, and what was sent
        # before has used up credit that it does not know of.
        engine.time.forget_request(source, feed, effects)
        feed.release(engine.time.heard_us)
        feed.owed = feed.owed_bytes = 0
    credit.first(engine, event, source, feed, effects)


def _feed_closed(engine: Engine, event: FeedClosed, effects: Effects) -> None:
    stream = engine.stream(event.stream)
    feed = stream.source.feeds.get(event.feed)
    if feed is not None:
        engine.time.forget_request(stream.source, feed, effects)
        if event.lost and stream.definition.grace_us:
            feed.leaves_us = engine.clock.now_us + stream.definition.grace_us
            engine.time.timers.set(feed.leaves_us, "leave", event.stream, event.feed)
            return
    stream.source.close(event.feed, ended=event.ended)
    engine.graph.component_of(stream.source).has_work = True


def _feed_held(engine: Engine, event: FeedHeld, effects: Effects) -> None:
    feed = engine.source(event.stream).feeds.get(event.feed)
    if feed is not None:
        (feed.hold if event.held else feed.release)(engine.time.heard_us)
    engine.graph.component_of(engine.source(event.stream)).has_work = True


def _heard(engine: Engine, event: Heard, effects: Effects) -> None:
    engine.time.heard_us = min(event.until_us, engine.clock.now_us)


def _clock_stepped(engine: Engine, event: ClockStepped, effects: Effects) -> None:
    engine.time.step_clock(event.by_us)


def _answered(engine: Engine, event: Answered, effects: Effects) -> None:
    engine.time.answered(event, effects)
    engine.graph.component_of(engine.source(event.stream)).has_work = True


def _sequenced(engine: Engine, event: Sequenced, effects: Effects) -> None:
    stream, now_us = engine.stream(event.stream), engine.clock.now_us
    stream.producers.took(event.feed, event.next_sequence, now_us)
    is_open = stream.source.feeds.by_name
    for feed, next_sequence in stream.producers.forget(
        now_us, engine.producers_kept, engine.producers_kept_us, is_open
    ):
        effects.orders.append(ProducerForgotten(event.stream, feed, next_sequence))


def _history_held(engine: Engine, event: HistoryHeld, effects: Effects) -> None:
    if event.held:
        engine.stream(event.stream)
        engine.history_held[event.stream] = None
    else:
        engine.history_held.pop(event.stream, None)


def _memory_held(engine: Engine, event: MemoryHeld, effects: Effects) -> None:
    engine.memory_held = event.held
    if event.held and event.shed:
        edges.supersede(engine)


def _memory_exceeded(engine: Engine, event: MemoryExceeded, effects: Effects) -> None:
    query = engine.query(event.query)
    if not query.failed:
        failing.fail(engine, query, event.reason, effects)


# By the kind of event, commands aside: what it does.
EVENTS: Final[Mapping[type[Event], Callable[[Engine, Any, Effects], None]]] = {
    Arrived: arrive,
    Punctuated: _punctuated,
    Passed: _passed,
    Measured: _measured,
    FeedOpened: _feed_opened,
    FeedClosed: _feed_closed,
    FeedHeld: _feed_held,
    Heard: _heard,
    ClockStepped: _clock_stepped,
    Answered: _answered,
    Sequenced: _sequenced,
    HistoryHeld: _history_held,
    MemoryHeld: _memory_held,
    MemoryExceeded: _memory_exceeded,
}


# -- commands ----------------------------------------------------------------------------------------------------------


def add(engine: Engine, command: AddStream) -> NewStreamReply:
    engine.refuse_taken(command.stream.name)
    make(engine, command.stream, None if command.strategy is None else Strategy.parse(command.strategy))
    return NewStreamReply(stream=command.stream.name)


def make(engine: Engine, definition: StreamDefinition, chosen: Strategy | None = None) -> None:
    """A stream without readers."""
    output = Buffer(definition.schema, ordered=definition.always_ordered, gauge=engine.gauge)
    source = Source(definition.source, definition.name, clocking_of(definition), output, engine.clock.now_us)
    engine.streams_by_name[definition.name] = Stream(definition, source)
    if definition.propagation == "punctuation":
        engine.graph.punctuating[source] = None
    engine.graph.add([source], chosen)


def alter(engine: Engine, command: AlterStream) -> AlterReply:
    name, changes = command.name, dict(command.changes)
    stream = engine.stream(name)
    unknown = [option for option in changes if option not in POLICIES]
    if unknown:
        raise Refuse(f"stream {name}: {names(unknown)} cannot be changed while it runs", code="not_a_policy")
    widening.check(stream.definition, command.fields)
    text = stream.definition.sql if command.sql is None else command.sql
    after = stream.definition.with_fields(command.fields)
    if command.renamed is not None:
        widening.check_renamed(stream.definition, *command.renamed)
        after = after.with_renamed(*command.renamed)
    if after != stream.definition:
        widening.widen(engine, stream, after, dict(command.texts))
        if any(
            {name, f"{name}.late"}.intersection(query.plan.reads_streams) for query in engine.queries_by_name.values()
        ):
            engine.queries_changed()
            engine.graph.rewire()
    before_us = stream.definition.disorder_us
    stream.definition = definition = replace(stream.definition, **changes, sql=text)
    stream.source.clocking = clocking_of(definition)
    if definition.disorder_us != before_us:
        # The lateness under another disorder does not show which one is needed now.
        stream.source.late_by_max_us = 0
        stream.source.reopen_ledger(engine.clock.now_us)
    if (definition.propagation == "punctuation") != (stream.source in engine.graph.punctuating):
        engine.graph.punctuating.pop(stream.source, None)
        if definition.propagation == "punctuation":
            engine.graph.punctuating[stream.source] = None
        engine.graph.rewire()
    engine.time.timers.unset("beat", name)
    engine.graph.rule_again([stream.source])
    return AlterReply(stream=name, changed=sorted(changes), added=[field.name for field in command.fields])


def drop(engine: Engine, command: DropStream) -> StreamDropReply:
    name = command.name
    engine.stream(name)
    both = (name, f"{name}.late")
    readers = [
        query.plan.name
        for query in engine.queries_by_name.values()
        if any(stream in query.plan.reads_streams for stream in both)
    ]
    if readers:
        raise Refuse(f"stream {name} is read by {names(readers)}: drop them first", code="in_use")
    sources = []
    for stream in both:
        gone = engine.streams_by_name.pop(stream, None)
        if gone is not None:
            engine.slow.pop(gone.source, None)
            engine.history_held.pop(stream, None)
            engine.time.timers.forget(stream)
            sources.append(gone.source)
    carry_out(engine, Rewiring(sources=sources))
    return StreamDropReply(stream=name, dropped=True)
