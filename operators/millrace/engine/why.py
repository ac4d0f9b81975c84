"""Why a query emits no rows: one sentence for a person, and the same as data.

Evaluated between two steps. The first situation that applies is reported: paused, still working, blocked by an input,
without any input, waiting for the end of a window, or filtered. The text names the state first, then the cause. The
answer also has the times of the last request for a timestamp, and a command to try.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from millrace.engine import views
from millrace.engine.faults import OperatorError
from millrace.engine.graph.edges import auto_of
from millrace.engine.plan import CHANGE_STREAM, origin_of
from millrace.engine.queries import Query
from millrace.engine.views import ignored
from millrace.operators.frame.idle_waiting import IdleWaiting
from millrace.operators.frame.operator import Operator
from millrace.operators.queues.inlet import QueueInlet
from millrace.operators.source.feeds import Feed
from millrace.operators.source.groups import Group
from millrace.operators.source.source import Source
from millrace.protocol import Refuse
from millrace.protocol.admin.queries import Why
from millrace.protocol.timestamps import format_timestamp
from millrace.protocol.words import counted
from millrace.values.eventtime import MIN_TIME

if TYPE_CHECKING:
    from millrace.engine.engine import Engine
    from millrace.engine.plan import StreamDefinition

# A feed that sent something within this time is not reported as silent.
SILENT_US: Final = 1_000_000


def why(engine: Engine, name: str, now_us: int | None = None) -> Why:
    """Why a query emits no rows, if that has a reason; `now_us` is the clock, where it is later than the engine's."""
    query = engine.query(name)
    now_us = max(now_us or 0, engine.clock.now_us)
    kept, waiting = partial(_kept_waiting, now_us=now_us), partial(_waiting, now_us=now_us)
    for look in (_catching_up, _paused, kept, _working, waiting, _nothing_came, _gathering, _last_tuple):
        try:
            reason = look(engine, query)
        except Refuse:
            raise
        except Exception as error:
            return _unknown(name, error)
        if reason is not None:
            more = _superseding(query) + _ahead(engine, query) + _ignored(engine, query)
            return replace(reason, text=reason.text + more)
    raise AssertionError(f"nothing is known of {name}")


def _unknown(name: str, error: Exception) -> Why:
    """An operator of the query, or one that it reads from, raised when it was queried."""
    fault = error.error if isinstance(error, OperatorError) else error
    at = f" {error.operator.name}" if isinstance(error, OperatorError) else ""
    text = f"{name} cannot be examined, because an operator failed:{at} {type(fault).__name__}: {fault}."
    return Why(text, "unknown", try_=f"millrace query show {name}")


def _superseding(query: Query) -> str:
    """A sentence per input whose queue supersedes under the present load."""
    text = ""
    for operator in query.operators:
        for reader in operator.inputs:
            auto = auto_of(reader)
            if isinstance(reader, QueueInlet) and auto is not None and auto.mode == "update":
                updates = "row" if reader.edge.window is None else "window"
                text += (
                    f" {operator.name} reads only the newest {updates} of each key until the load falls: "
                    f"{auto.arrived:,.0f} rows a second arrived, and it processed {auto.capacity:,.0f}."
                )
    return text


def _ahead(engine: Engine, query: Query) -> str:
    """A sentence per stream about the groups whose windows punctuation has closed before the others'."""
    text = ""
    for source in engine.graph.sources(*query.operators):
        found = engine.streams_by_name.get(source.stream)
        if source.groups and found is not None:
            (first, *_) = views.groups(found)
            which = f", for example {_group(first.group)} at "
            reached = "" if first.mark_us is None else f"{which}{_time(first.mark_us)}"
            groups = counted(source.groups.ahead, "group")
            text += f" Punctuation is ahead of {source.stream}'s time for {groups}{reached}."
            drops = _drops(engine, query, source)
            if drops is not None:
                text += f" {drops.name} drops promises about groups: what follows it waits for the time of all rows."
    return text


def _drops(engine: Engine, query: Query, source: Source) -> Operator | None:
    """The first operator of the query that passes no promise about the source's groups on."""
    keys: dict[Operator, set[int]] = {source: set(source.clocking.key)}
    for operator in _below(engine, query, source):
        for side, reader in enumerate(operator.inputs):
            key = keys.get(engine.graph.producer(reader))
            if key is None:
                continue
            read = reader.columns or range(len(reader.schema))
            own = {at for at, column in enumerate(read) if column in key and not reader.drops_clauses}
            passed = {at: operator.copied_from(at, side) for at in range(len(operator.output.schema))}
            if len(own.intersection(passed.values())) < len(key):
                return operator
            keys[operator] = {at for at, column in passed.items() if column in own}
    return None


def _ignored(engine: Engine, query: Query) -> str:
    """A sentence about tuples that arrived after the query was created and are older than where it starts to read."""
    counts = ignored(engine, engine.entries(query))
    if not counts:
        return ""
    starts = {
        source.stream: reader.since_us
        for reader in engine.entries(query)
        if reader.ignored and reader.since_us is not None
        for source in engine.graph.sources(engine.graph.producer(reader))
    }
    parts = []
    for stream, count in counts.items():
        since = f" earlier than {_time(starts[stream])}" if stream in starts else ""
        parts.append(f"{counted(count, 'tuple')} of {stream}{since}")
    return (
        f" {query.plan.name} ignored {' and '.join(parts)}: a query reads only tuples that are newer than all tuples "
        "that arrived before it was created. With start = 'watermark' it reads every tuple that is on time."
    )


# -- the situations, in the order in which they are checked ------------------------------------------------------------


def _catching_up(engine: Engine, query: Query) -> Why | None:
    if not query.catching_up:
        return None
    queued = sum(reader.waiting for reader in engine.entries(query))
    doing = (
        "is processing the history of its streams"
        if query.paused is not None
        else f"is switching from history to live input, with {counted(queued, 'tuple')} queued"
    )
    text = f"Catching up: {query.plan.name} {doing}."
    return Why(text, "catching_up", held=queued, try_=f"millrace query show {query.plan.name}")


def _paused(engine: Engine, query: Query) -> Why | None:
    for name in (query.plan.name, *query.plan.reads_queries):
        found = engine.query(name)
        if found.paused is not None:
            state = "failed" if found.failed else "paused"
            stopped = "failed" if found.failed else "is paused"
            who = f"{name} {stopped}" if found is query else f"{query.plan.name} reads {name}, which {stopped}"
            text = f"{who}: {found.paused}."
            if found.failed and "max_state" in found.paused:
                text += (
                    " Resuming starts it with empty state, and it fails again when its state reaches the limit. "
                    "Shorten its ranges or windows, or raise max_state, with CREATE OR REPLACE QUERY."
                )
                return Why(text, state, try_=f"millrace explain {name}")
            return Why(text, state, try_=f"millrace query resume {name}")
    return None


def _kept_waiting(engine: Engine, query: Query, now_us: int) -> Why | None:
    """A wait for a silent stream that has lasted: work on what else flows, however much there is, does not end it."""
    reason = _waiting(engine, query, now_us)
    if reason is None or reason.stream is None or reason.reason in ("clock", "unread") or reason.since is None:
        return None
    return reason if now_us - reason.since > SILENT_US else None


def _working(engine: Engine, query: Query) -> Why | None:
    component = engine.graph.component_of(query.operators[0])
    queued = sum(operator.queue_tuples(at) for operator in query.operators for at in range(len(operator.inputs)))
    if not component.busy() or not queued:
        return None
    text = f"Running: {query.plan.name} still has {counted(queued, 'tuple')} to process."
    return Why(text, "working", held=queued, try_=f"millrace component show {component.name}")


def _waiting(engine: Engine, query: Query, now_us: int) -> Why | None:
    for waiter in _waiters(engine, query):
        need = waiter.need()
        if need is None or not waiter.blocked():
            continue
        position = waiter.holding()[0]
        held = sum(waiter.queue_tuples(at) for at in range(len(waiter.inputs)))
        since = waiter.idle_since[position]
        holders = engine.time.holders(waiter, need, waiter.holding())
        sources = [source for source in holders if isinstance(source, Source)]
        # One that has promised the group enough does not hold it back.
        owing = [source for source in sources if source.holding(*holders[source])]
        holder = next(iter(owing or sources), None)
        blocked = "Blocked" if since is None else f"Blocked since {_time(since)}"
        where = f"{blocked}: {waiter.name} {_holds(waiter, held)}"
        if holder is None:
            text = f"{where} until the clock reaches {_time(need)}."
            return Why(text, "clock", waiter.name, since=since, held=held)
        group = holders[holder][1]
        return _Held(engine, waiter, position, where, since, held, need, holder, group, now_us).explain()
    return None


def _holds(waiter: IdleWaiting, held: int) -> str:
    """The tuples that are delayed: queued ones, or the state that the operator built from processed ones."""
    if held:
        return f"holds {counted(held, 'tuple')}"
    return f"holds {counted(waiter.state_tuples, 'tuple')} in its state"


def _gathering(engine: Engine, query: Query) -> Why | None:
    """No input lags: a window is still open, or a row may still match. Of several such operators the answer names
    the one whose input has the earliest time, because the others are ahead of it."""
    gathering = [
        (waiter.inputs[waiter.holding()[0]].promise, waiter, need)
        for waiter in _waiters(engine, query)
        if (need := waiter.need()) is not None and waiter.state_tuples and waiter.holding()
    ]
    if not gathering:
        return None
    promise, waiter, need = min(gathering, key=lambda found: found[0])
    producer = engine.graph.producer(waiter.inputs[waiter.holding()[0]]).name
    text = (
        f"Not blocked: {waiter.name} holds {counted(waiter.state_tuples, 'tuple')} in its state and emits rows when "
        f"its input from {producer} reaches {_time(need)}; {_reached(promise)}"
    )
    advice = f"millrace explain {query.plan.name} --analyze"
    holders = [source for source in engine.time.holders(waiter, need, waiter.holding()) if isinstance(source, Source)]
    unfed = next((source.stream for source in holders if not len(source.feeds)), None)
    if unfed is not None:
        text += f", and no client is feeding {unfed}"
        advice = _feeding(unfed)
    text += f". {query.plan.name} has emitted {counted(query.sink.sequence, 'row')}."
    stream = unfed or next((source.stream for source in holders), None)
    return Why(text, "gathering", waiter.name, producer, stream, try_=advice)


def _nothing_came(engine: Engine, query: Query) -> Why | None:
    sources = list(_sources(engine, query))
    if any(source.counts.output_tuples for source in sources):
        return None
    source = sources[0]
    if source.counts.input_tuples:
        text = (
            f"No input: of {counted(source.counts.input_tuples, 'tuple')} of {source.stream}, {source.late} "
            f"{'was' if source.late == 1 else 'were'} late and {source.far} too far in the future."
        )
        # The ledger of late tuples has none that were too far in the future.
        advice = f"millrace late {source.stream}" if source.late else f"millrace stream show {source.stream}"
        return Why(text, "late", stream=source.stream, try_=advice)
    feeds = len(source.feeds)
    origin = origin_of(source.stream)
    if source.stream == CHANGE_STREAM.name:
        clients = "it receives the changes of this server"
    elif origin is not None:
        clients = f"it receives only the late tuples of {origin}"
    else:
        clients = f"{feeds} {'feed is' if feeds == 1 else 'feeds are'} open" if feeds else "no client is feeding it"
    text = f"No input yet: {source.stream} has received no tuples; {clients}."
    return Why(text, "no_tuples", stream=source.stream, try_=_feeding(source.stream))


def _last_tuple(engine: Engine, query: Query) -> Why | None:
    source = max(_sources(engine, query), key=lambda found: found.last_us)
    arrived = f"Not blocked: the last tuple of {source.stream} arrived at {_time(source.last_us)}"
    for operator in _below(engine, query, source):
        if operator.counts.last_taken and not operator.counts.last_given:
            passed, received = operator.counts.output_tuples, operator.counts.input_tuples
            share = f"{passed} of {counted(received, 'tuple')}"
            text = f"{arrived}, and {operator.name} filtered it out; it has passed {share}."
            if operator.counts.errors:
                text += f" {operator.counts.errors} of them could not be computed: {operator.counts.last_error}."
            return Why(
                text, "filtered", operator.name, stream=source.stream, try_=f"millrace explain {query.plan.name}"
            )
    text = f"{arrived}; {query.plan.name} has emitted {counted(query.sink.sequence, 'row')}."
    return Why(text, "flowing", stream=source.stream, try_=f"millrace tail {query.plan.name}")


# -- who holds a waiting operator back ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Held:
    """An operator that waits, the input that holds it back, and the source above that."""

    engine: Engine
    waiter: IdleWaiting
    position: int
    where: str
    since: int | None
    held: int
    need: int
    source: Source
    group: Group
    now_us: int

    def explain(self) -> Why:
        definition = self.engine.streams_by_name[self.source.stream].definition
        if definition.lull_us is not None and not any(feed.held_since is not None for feed in self.source.feeds):
            seconds = definition.lull_us / 1e6
            return self._say("lull", f"{definition.name} is silent, and the server waits {seconds:g} s for it (lull)")
        if definition.ets == "none" or self._between_two_reports(definition):
            return self._by_policy(definition)
        if definition.timestamps == "internal":
            return self._say("clock", f"the clock has not reached {_time(self.need)}")
        feeds = self.source.holding(self.need, self.group)
        if not feeds:
            advice = _feeding(self.source.stream)
            return self._say("no_feed", f"no client is feeding {self.source.stream}", advice)
        return self._by_feed(definition, min(feeds, key=lambda feed: (feed.mark, feed.number)))

    def _between_two_reports(self, definition: StreamDefinition) -> bool:
        """Whether the interval of a stream with ets = 'periodic' explains the wait."""
        return definition.ets == "periodic" and (
            self.since is None or self.now_us - self.since <= definition.ets_interval_us
        )

    def _by_policy(self, definition: StreamDefinition) -> Why:
        name = definition.name
        advice = f"millrace sql \"ALTER STREAM {name} SET (ets = 'on-demand')\""
        if definition.ets == "none":
            return self._say(
                "ets_none", f"{name} is silent, and the server never requests its time (ets = 'none')", advice
            )
        seconds = definition.ets_interval_us / 1e6
        return self._say(
            "periodic", f"{name} is silent and its time advances only every {seconds:g} s (ets = 'periodic')", advice
        )

    def _by_feed(self, definition: StreamDefinition, feed: Feed) -> Why:
        name = definition.name
        who = f"client {feed.name} of {name}"
        now_us = self.engine.clock.now_us
        if feed.leaves_us is not None:
            rest = (feed.leaves_us - now_us) / 1e6
            reason = f"{who} lost its connection, and the server waits another {rest:g} s for it (grace)"
            return self._say("grace", reason, None, feed)
        if feed.held_since is not None:
            return self._say("unread", f"{who} may have sent tuples that the server has not read yet", None, feed)
        if feed.request is not None:
            return self._say("asked", f"{who} has not answered the last request for its time", None, feed)
        if feed.can_answer:
            return self._by_answer(definition, feed, who)
        if feed.newest != MIN_TIME and self.now_us - feed.heard_us < SILENT_US:
            late = f", less a disorder of {definition.disorder_us / 1e6:g} s" if definition.disorder_us else ""
            return self._say("sending", f"{who} is sending and has reached {_time(feed.newest)}{late}", None, feed)
        skew = f"millrace sql \"ALTER STREAM {name} SET (max_skew = '2 seconds')\""
        if definition.max_skew_us is None:
            reason = f"{who} is silent and cannot answer requests for its time, and {name} has no max_skew"
            return self._say("silent", reason, skew, feed)
        clock = feed.clock(self.engine.time.heard_us)
        if clock is None:
            return self._say("no_first_tuple", f"{who} has sent nothing yet, so its clock is unknown", None, feed)
        delta = max(definition.max_skew_us, definition.disorder_us)
        reason = f"{who} is silent and may be {delta / 1e6:g} s late (max_skew), so the server waits that long"
        return self._say("skew", reason, skew, feed)

    def _by_answer(self, definition: StreamDefinition, feed: Feed, who: str) -> Why:
        if feed.asked_us is not None and feed.answered_us is None:
            reason = f"{who} did not answer the request of {_time(feed.asked_us)} in time"
            return self._say("no_answer", reason, None, feed)
        if feed.answered_us is not None:
            return self._say("answered_below", f"{who} answered with {_time(feed.mark)}", None, feed)
        return self._say("clock_behind", f"the clock of {who} cannot have reached {_time(self.need)} yet", None, feed)

    def _say(self, reason: str, because: str, advice: str | None = None, feed: Feed | None = None) -> Why:
        promise = self.waiter.inputs[self.position].promise
        producer = self.engine.graph.producer(self.waiter.inputs[self.position]).name
        key = self.engine.streams_by_name[self.source.stream].definition.punctuation_key
        group = dict(zip(key, self.group, strict=True)) if self.group else None
        longest = "" if group is None else f" The group that has waited the longest is {_group(group)}."
        return Why(
            f"{self.where} until its input from {producer} reaches {_time(self.need)} "
            f"({_reached(promise)}); {because}.{longest}",
            reason,
            self.waiter.name,
            producer,
            self.source.stream,
            None if feed is None else feed.name,
            self.since,
            self.held,
            None if feed is None else feed.asked_us,
            None if feed is None else feed.answered_us,
            group,
            advice,
        )


# -- walking the graph -------------------------------------------------------------------------------------------------


def _upward(engine: Engine, query: Query) -> Iterator[Operator]:
    """The operators whose rows the query's come from, the nearest first."""
    seen: dict[Operator, None] = {}
    todo: list[Operator] = [engine.graph.producer(query.sink.inputs[0])]
    while todo:
        operator = todo.pop(0)
        if operator not in seen:
            seen[operator] = None
            yield operator
            todo.extend(engine.graph.producer(reader) for reader in operator.inputs)


def _waiters(engine: Engine, query: Query) -> Iterator[IdleWaiting]:
    return (operator for operator in _upward(engine, query) if isinstance(operator, IdleWaiting))


def _sources(engine: Engine, query: Query) -> Iterator[Source]:
    return (operator for operator in _upward(engine, query) if isinstance(operator, Source))


def _below(engine: Engine, query: Query, source: Source) -> Iterator[Operator]:
    """The query's operators between a source and its sink, from the source on."""
    above = list(_upward(engine, query))
    reached: dict[Operator, None] = {source: None}
    for operator in reversed(above):
        if operator is not source and any(engine.graph.producer(reader) in reached for reader in operator.inputs):
            reached[operator] = None
            yield operator


def _feeding(stream: str) -> str:
    """The command to try for a stream without a feed; a stream of late tuples has none, its origin has."""
    if stream == CHANGE_STREAM.name:
        return "millrace changes"
    origin = origin_of(stream)
    return f"millrace feed {stream} FILE" if origin is None else f"millrace stream show {origin}"


def _group(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _reached(promise: int) -> str:
    """How far an input has promised its time."""
    return "it has no time yet" if promise == MIN_TIME else f"it is at {_time(promise)}"


def _time(value_us: int) -> str:
    return "no time" if value_us == MIN_TIME else format_timestamp(value_us)
