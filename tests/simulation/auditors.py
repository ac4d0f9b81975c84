"""What must hold whatever happens: looked at on every arc at every put, and over the whole engine after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

from millrace.engine import streams
from millrace.engine.engine import Engine
from millrace.engine.events import (
    AskEnded,
    AskTimestamp,
    CommandBody,
    Deliver,
    Effects,
    Event,
    FeedOpened,
    Late,
    Progressed,
    TooFar,
)
from millrace.engine.plan import StreamDefinition
from millrace.engine.shadow import shadow_of
from millrace.engine.time.watermarks import WatermarkCoordinator
from millrace.operators import build
from millrace.operators.frame.buffer import Buffer
from millrace.operators.frame.idle_waiting import IdleWaiting
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator
from millrace.operators.frame.waiting import TimeOrdered
from millrace.operators.join.join import Join
from millrace.operators.project.map import Map
from millrace.operators.queues.inlet import QueueInlet
from millrace.operators.sink.sink import Sink
from millrace.operators.source.feeds import Feed
from millrace.operators.source.groups import Group
from millrace.operators.source.source import Source
from millrace.protocol import Refuse
from millrace.values.batch import Batch
from millrace.values.eventtime import MIN_TIME


class Broken(AssertionError):  # noqa: N818 - what a law is then
    """A law is broken; the text says which and where."""


class GrammaticalBuffer(Buffer):
    """An arc that takes no tuple below what it promised, and no promise that goes back."""

    __slots__ = ()

    def put(self, batch: Batch) -> None:
        before = self.promise
        # Below a floor nothing gets through (the operator's own promise is lower): put leaves it out.
        if self.floor > MIN_TIME:
            batch = batch.take(batch.ts >= self.floor)
        timed = batch.ts[batch.ts != MIN_TIME]
        if len(timed) and int(timed.min()) < before:
            raise Broken(f"a tuple at {int(timed.min())} on an arc that promised {before}")
        if self.ordered and (batch.ts[1:] < batch.ts[:-1]).any():
            raise Broken(f"an ordered arc got the times {batch.ts.tolist()}")
        if self.ordered and len(timed) < len(batch) and before > MIN_TIME:
            raise Broken(f"a tuple without a time on an ordered arc that promised {before}")
        super().put(batch)
        _rises(before, self.promise)

    def punctuate(self, value_us: int) -> bool:
        before = self.promise
        told = super().punctuate(value_us)
        _rises(before, self.promise)
        return told


@contextmanager
def grammar() -> Iterator[None]:
    """While this holds, every new arc is a grammatical one."""
    with patch.object(streams, "Buffer", GrammaticalBuffer), patch.object(build, "Buffer", GrammaticalBuffer):
        yield


def _rises(before: int, after: int) -> None:
    if after < before:
        raise Broken(f"a promise went back from {before} to {after}")


@contextmanager
def asking() -> Iterator[None]:
    """While this holds, a stream whose time is asked on demand is asked only for what somebody blocked needs of it.

    Who is blocked is different at the end of the step that orders the request, so the method is wrapped.
    """
    request = WatermarkCoordinator._request

    def checked(
        self: WatermarkCoordinator,
        source: Source,
        definition: StreamDefinition,
        feed: Feed,
        need_us: int,
        group: Group,
        effects: Effects,
    ) -> None:
        if definition.ets == "on-demand" and not any(
            self.holders(waiter, need, holding).get(source) == (need_us, group)
            for waiter in self._engine.graph.component_of(source).waiters
            for need, holding in waiter.needs()
        ):
            raise Broken(f"{source.stream}, {feed.name} was asked for {need_us}, which nobody waits for")
        if not feed.can_answer or feed.leaves_us is not None:
            raise Broken(f"{source.stream}, {feed.name} was asked, and cannot answer")
        request(self, source, definition, feed, need_us, group, effects)

    WatermarkCoordinator._request = checked  # type: ignore[method-assign]
    try:
        yield
    finally:
        WatermarkCoordinator._request = request  # type: ignore[method-assign]


class Asks:
    """Requests for timestamps, and what they promise: no honest client's tuple is late because of an ETS.

    A feed that joins begins at the stream's mark, and while it is there the stream goes no further than it has promised
    itself. So what an honest client sends meets no mark but the one at which it joined.

    under_way   the request of each feed that has not ended
    refused     the ids of tuples that were late or too far in the future
    """

    def __init__(self) -> None:
        self.under_way: dict[tuple[str, str], int] = {}
        self.refused: set[int] = set()
        self.outcomes: Counter[str] = Counter()
        self._joined: dict[tuple[str, str], int] = {}
        self._numbers = 0

    def before(self, engine: Engine, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, FeedOpened):
                source = engine.source(event.stream)
                if source.feeds.get(event.feed) is None:
                    self._joined[event.stream, event.feed] = source.mark

    def after(self, effects: Effects) -> None:
        for order in effects.orders:
            match order:
                case AskTimestamp(stream, feed, request):
                    self._asked(stream, feed, request)
                case AskEnded(stream, feed, request, outcome, took_us):
                    if self.under_way.pop((stream, feed), None) != request or took_us < 0:
                        raise Broken(f"{order} ends what is not under way")
                    self.outcomes[outcome] += 1
                case Late(stream, feed, _, batch, marks, broken):
                    self._late(stream, feed, batch, int(marks.max()), broken)
                case TooFar(batch=batch):
                    self.refused.update(row[1] for row in batch.rows())

    def _asked(self, stream: str, feed: str, request: int) -> None:
        if (stream, feed) in self.under_way:
            raise Broken(f"{stream}, {feed} was asked again while it was asked")
        if request <= self._numbers:
            raise Broken(f"request {request} came after request {self._numbers}")
        self._numbers = self.under_way[stream, feed] = request

    def _late(self, stream: str, feed: str, batch: Batch, mark: int, broken: int) -> None:
        self.refused.update(row[1] for row in batch.rows())
        joined = self._joined[stream, feed]
        if mark > joined:
            raise Broken(f"{stream}, {feed}: late against {mark}, it joined at {joined}: {batch.rows()}")
        if broken:
            raise Broken(f"{stream}, {feed}: {broken} honest tuples broke its word")

    def ended(self, engine: Engine) -> None:
        """Every request has ended once or is under way still."""
        held = {
            (name, feed.name): feed.request
            for name, stream in engine.streams_by_name.items()
            for feed in stream.source.feeds
            if feed.request is not None
        }
        if held != self.under_way:
            raise Broken(f"under way are {self.under_way}, the engine says {held}")


class Books:
    """Tuples in and out of every operator, and the order of every result.

    starts   by operator and input: how many tuples the arc had had when the operator began to read it
    """

    def __init__(self) -> None:
        self._starts: dict[str, list[int]] = {}
        self._next: dict[str, int] = {}
        self._progress: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._looks = 0
        self.delivered: dict[str, list[tuple[int, tuple[Any, ...]]]] = {}

    def began(self, operator: Operator) -> None:
        """A new operator, before anything has reached it."""
        self._starts[operator.name] = [reader.position for reader in operator.inputs]

    def ended(self, query: str) -> None:
        """A query is gone, and with it what was known of it."""
        for name in [name for name in self._starts if name.startswith(f"{query}.")]:
            del self._starts[name]

    def forget(self, query: str) -> None:
        """Another query gets the name: its rows are numbered anew."""
        self._next.pop(query, None)
        self.delivered.pop(query, None)

    @contextmanager
    def replacing(self, engine: Engine, query: str) -> Iterator[None]:
        """While this holds, the query gets another plan: operators go on under the same name or another, or begin."""
        before = {one: self._starts.pop(one.name) for one in _block(engine, query)}
        yield
        for operator in _block(engine, query):
            if isinstance(operator, Sink):
                self._starts[operator.name] = [_taken(operator.inputs[0], operator.counts.input_tuples)]
            elif operator in before:
                self._starts[operator.name] = before[operator]
            else:
                self.began(operator)

    @contextmanager
    def editing(self, engine: Engine) -> Iterator[None]:
        """While this holds, operators are put in or taken out: those that stay have taken what they had before."""
        before = {one: [reader.arc for reader in one.inputs] for one in engine.graph.operators.values()}
        yield
        there = engine.graph.operators
        self._starts = {name: starts for name, starts in self._starts.items() if name in there}
        for operator in there.values():
            if isinstance(operator, Source):
                continue
            if operator not in before:
                self.began(operator)
                continue
            starts = self._starts[operator.name]
            for at, (reader, home) in enumerate(zip(operator.inputs, before[operator], strict=True)):
                if reader.arc is not home:
                    # It counts on from where the other arc stood; what it has taken in all is what it makes of it.
                    others = sum(_taken(one, starts[i]) for i, one in enumerate(operator.inputs) if i != at)
                    starts[at] = reader.position - reader.skipped - (_had(operator) - others)

    def begins_anew(self, query: str) -> None:
        """The query's rows are about something else from now on; their numbers go on."""
        self._progress.pop(query, None)
        self._last.pop(query, None)

    def step(self, engine: Engine, effects: Effects, ordered: dict[str, bool]) -> None:
        """Look at what a step ordered and at what it left behind."""
        for order in effects.orders:
            if isinstance(order, Deliver):
                self._deliver(order, ordered[order.query])
            elif isinstance(order, Progressed):
                _rises(self._progress.get(order.query, order.value_us), order.value_us)
                self._progress[order.query] = order.value_us
        self._looks += 1
        if self._looks % 4 == 0:
            engine.graph.settle()  # looking wakes all filters, so this is not done after each step
        for operator in engine.graph.operators.values():
            if not any(_asleep(reader) for reader in operator.inputs):
                self._balance(operator)
        self._gauge(engine)

    def _deliver(self, order: Deliver, ordered: bool) -> None:
        name, batch = order.query, order.batch
        if order.sequence != self._next.get(name, 0):
            raise Broken(f"{name}: row {order.sequence} came after {self._next.get(name, 0)} rows")
        self._next[name] = order.sequence + len(batch)
        times = batch.ts.tolist()
        for ts in times:
            if ts != MIN_TIME and ts < self._progress.get(name, ts):
                raise Broken(f"{name}: a row at {ts} after progress {self._progress[name]}")
            if ordered and ts < self._last.get(name, ts):
                raise Broken(f"{name}: a row at {ts} after one at {self._last[name]}")
            self._last[name] = ts
        self.delivered.setdefault(name, []).extend(zip(times, batch.rows(), strict=True))

    def _balance(self, operator: Operator) -> None:
        """Tuples in = out + late + too far + queued + dropped."""
        counts = operator.counts
        if isinstance(operator, Source):
            refused = operator.late + operator.far
            self._equal(operator, counts.input_tuples, counts.output_tuples + refused, "taken in", "queued or refused")
            return
        if operator.name not in self._starts:
            raise Broken(f"{operator.name}: nobody saw it begin")
        taken = sum(map(_taken, operator.inputs, self._starts[operator.name]))
        self._equal(operator, taken, _had(operator), "taken from its arcs", "consumed or held")
        if isinstance(operator, Map):
            self._equal(operator, counts.input_tuples, counts.output_tuples + counts.errors, "in", "out or failed")
        elif operator.kind in ("aggregate", "join", "sequence"):
            pass  # so many rows per window as there are groups, or per row as there are partners
        elif len(operator.inputs) > 1 or isinstance(operator, TimeOrdered | Sink):
            self._equal(operator, counts.input_tuples, counts.output_tuples, "in", "out")
        elif counts.input_tuples < counts.output_tuples + counts.errors:
            raise Broken(f"{operator.name}: {counts.input_tuples} tuples in, {counts.output_tuples} out")

    @staticmethod
    def _equal(operator: Operator, one: int, other: int, first: str, second: str) -> None:
        if one != other:
            raise Broken(f"{operator.name}: {one} tuples {first}, {other} {second}")

    @staticmethod
    def _gauge(engine: Engine) -> None:
        """The gauge of queued tuples says what counting them says."""
        buffers = {id(o.output): o.output for o in engine.graph.operators.values() if not isinstance(o, Sink)}
        queued = sum(len(batch) for buffer in buffers.values() for batch in buffer.segments)
        queued += sum(o.held_tuples() for o in engine.graph.operators.values() if isinstance(o, IdleWaiting))
        readers = [reader for operator in engine.graph.operators.values() for reader in operator.inputs]
        queued += sum(reader.queue.waiting for reader in readers if isinstance(reader, QueueInlet))
        if queued != engine.gauge.tuples:
            raise Broken(f"the gauge says {engine.gauge.tuples} queued tuples, counting says {queued}")


def _block(engine: Engine, query: str) -> list[Operator]:
    found = engine.queries_by_name[query]
    return [*found.operators, found.sink]


def _had(operator: Operator) -> int:
    """Tuples that an operator has consumed or holds."""
    had = operator.counts.input_tuples + (operator.held_tuples() if isinstance(operator, IdleWaiting) else 0)
    if isinstance(operator, Join):
        had -= sum(rows.count for rows in operator.rest)  # taken, and not done with
    return had


def _taken(reader: Inlet, start: int) -> int:
    return reader.position - start - reader.skipped


def ask(engine: Engine) -> None:
    """Ask every operator everything, and the engine for every view."""
    for operator in engine.graph.operators.values():
        operator.more(), operator.fresh(), operator.low_water(), operator.declares(), operator.decision()
        operator.empty_input(), operator.state_tuples, operator.state_bytes, operator.superseded, operator.shed
        for at, inlet in enumerate(operator.inputs):
            operator.queue_tuples(at), inlet.low_water(), inlet.waiting, inlet.drained, inlet.presses, inlet.promise
        for time in (MIN_TIME, engine.clock.now_us, operator.output.promise):
            operator.lacking(time), operator.demand(time)
        if isinstance(operator, IdleWaiting):
            operator.need(), operator.holding(), operator.needs(), operator.blocked(), operator.idle()
            operator.registers(), operator.horizon(), operator.stamps([0])
            operator.past_its_tuples(), operator.held_tuples()
    engine.operators(), engine.components(), engine.queries(), engine.streams(), engine.withheld()
    for name in engine.queries_by_name:
        engine.why(name, engine.clock.now_us + 1_000_000)
        engine.older(name, engine.clock.now_us, 0)
    for name in engine.streams_by_name:
        engine.stale(name)


def restful(engine: Engine, wake_us: int | None) -> None:
    """An engine in which nobody waits, nobody leaves and nothing is periodic asks for no timer."""
    if wake_us is None:
        return
    for stream in engine.streams_by_name.values():
        if stream.definition.ets == "periodic" and stream.source.output.punctuates:
            return
        if any(feed.request is not None or feed.leaves_us is not None for feed in stream.source.feeds):
            return
    if all(
        operator.need() is None for operator in engine.graph.operators.values() if isinstance(operator, IdleWaiting)
    ):
        raise Broken(f"nobody waits, and the engine wants to be woken at {wake_us}: {engine.time.timers.save()}")


def quiet(engine: Engine) -> None:
    """An engine that says that nothing is left has nothing left, and does nothing when it is stepped again at the same
    time."""
    for operator in (one for component in engine.graph.components for one in component.table):
        if operator not in engine.graph.stopped and operator.fresh():
            raise Broken(f"{operator.name} has something to do in an idle engine")
    effects = engine.step(engine.clock.now_us, ())
    if effects.more or effects.executions or any(isinstance(order, Deliver) for order in effects.orders):
        raise Broken(f"an idle engine had something left: {effects.orders} {effects.executions}")


def faithful(engine: Engine) -> None:
    """A shadow has all that a refusal may depend on: it obeys exactly what the engine obeys."""
    shadow = shadow_of(engine)
    if (mine := _refusable(engine)) != (theirs := _refusable(shadow)):
        raise Broken(f"the shadow is not the engine:\n{mine}\n{theirs}")


def foreseen(engine: Engine, body: CommandBody) -> object:
    """What a command makes of the shadow, if it is not refused."""
    shadow = shadow_of(engine)
    with suppress(Refuse):
        shadow.carry_out(body)
    return made(shadow)


def made(engine: Engine) -> object:
    """What queries there are, with their plans, and whose the operators are."""
    plans = {name: query.plan for name, query in engine.queries_by_name.items()}
    owners = {
        name: [query.plan.name for query in engine.owners(operator)]
        for name, operator in engine.graph.operators.items()
    }
    return plans, owners


def _refusable(engine: Engine) -> list[Any]:
    components = [
        [getattr(found, key) for key in ("name", "strategy", "strategies", "weight", "operators", "breaks")]
        for found in engine.components()
    ]
    arcs = [
        [one.name, one.output.ordered, one.output.promise]
        for one in engine.graph.operators.values()
        if not isinstance(one, Sink)
    ]
    queries = [[getattr(query, key) for key in ("name", "state", "reason", "joins")] for query in engine.queries()]
    return [components, [engine.table(name) for name, *_ in components], arcs, queries]


def _asleep(reader: Inlet) -> bool:
    """Whether a predicate index reads for it: what it has taken is counted when it reads again."""
    return reader.arc.routing is not None and reader.buffer is reader.arc.routing.quiet
