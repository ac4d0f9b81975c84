"""What the engine asks of the world about time: clocks, clients, and to be woken.

Timestamps on demand (ETS, section 5), by need: when a cycle ends at an idle-waiting operator, or nothing is left to do,
the least promise that would let it act is carried to the sources that hold it back. A stream that the engine stamps
answers with the clock. An external one asks its feeds when the step ends: the clients that can answer get a request, at
most one under way for each; for the others the clock guesses, newest time + time passed - declared skew, if a skew is
declared. A guess never makes an honest tuple late, so time in which something of a feed's may lie unread does not count
as passed. A stream with a lull has promised never to lag the clock by more than that, whichever client feeds it and
whatever its policy: the clock less the lull answers for it, as soon as that is enough.

What cannot be answered yet is tried again at a time that is known: every wait in here has a timer, and no request is
sent and no timer is set while no operator waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from millrace.engine.events import Answered, AskEnded, AskTimestamp, Effects
from millrace.engine.faults import OperatorError, ask
from millrace.engine.plan import StreamDefinition
from millrace.engine.scheduler.component import Component
from millrace.operators.frame.clause import Equal
from millrace.operators.frame.idle_waiting import IdleWaiting
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator
from millrace.operators.source.feeds import Feed
from millrace.operators.source.groups import Group
from millrace.operators.source.source import Source
from millrace.values.eventtime import MIN_TIME

if TYPE_CHECKING:
    from millrace.engine.engine import Engine

Kind = Literal["need", "beat", "ask", "leave"]


class Timers:
    """Timers. Each has a kind, a stream and perhaps a feed; setting it again moves it.

    Timers of one time are due in the order in which they were set. An entry of the heap counts while it has
    its timer's number; entries of timers that were unset or moved stay until they reach the top.

    at   when each is due
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, tuple[Kind, str, str]]] = []
        self.at: dict[tuple[Kind, str, str], int] = {}
        self._numbers: dict[tuple[Kind, str, str], int] = {}
        self._count = 0

    def set(self, at_us: int, kind: Kind, stream: str, feed: str = "") -> None:
        key = (kind, stream, feed)
        self.at[key] = at_us
        self._numbers[key] = self._count
        heapq.heappush(self._heap, (at_us, self._count, key))
        self._count += 1

    def keep(self, at_us: int | None, kind: Kind, stream: str) -> None:
        """Have it due then, or not at all; nothing is done if it is so already."""
        if at_us is None:
            self.unset(kind, stream)
        elif self.at.get((kind, stream, "")) != at_us:
            self.set(at_us, kind, stream)

    def forget(self, stream: str) -> None:
        """The stream is gone."""
        for kind, name, feed in list(self.at):
            if name == stream:
                self.unset(kind, name, feed)

    def unset(self, kind: Kind, stream: str, feed: str = "") -> None:
        if self.at.pop((kind, stream, feed), None) is not None:
            del self._numbers[kind, stream, feed]

    def is_set(self, kind: Kind, stream: str, feed: str = "") -> bool:
        return (kind, stream, feed) in self.at

    def first(self) -> int | None:
        """When the next one is due."""
        heap = self._heap
        while heap and self._numbers.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_us: int) -> Iterator[tuple[Kind, str, str]]:
        """Take those that are due, in order."""
        while (first := self.first()) is not None and first <= now_us:
            key = heapq.heappop(self._heap)[2]
            self.unset(*key)
            yield key

    def save(self) -> list[Any]:
        there = [(at, key) for at, number, key in sorted(self._heap) if self._numbers.get(key) == number]
        return [[at, place, list(key)] for place, (at, key) in enumerate(there)]

    def restore(self, data: Sequence[Any]) -> None:
        self._heap = [(at, number, tuple(key)) for at, number, key in data]
        self.at = {key: at for at, _, key in self._heap}
        self._numbers = {key: number for _, number, key in self._heap}
        self._count = 1 + max((number for _, number, _ in self._heap), default=-1)


def _needs(waiter: IdleWaiting) -> list[tuple[int, list[int]]]:
    try:
        waiter.settle()
        return waiter.needs()
    except Exception as error:
        raise OperatorError(waiter, error) from error


def _read(reader: Inlet, group: Equal) -> Equal:
    """A group in the columns of the arc that a reader reads; nothing if no promise about groups passes the edge."""
    if reader.drops_clauses:
        return ()
    return group if reader.columns is None else tuple((reader.columns[at], value) for at, value in group)


def _both(one: tuple[int, Group], other: tuple[int, Group]) -> tuple[int, Group]:
    """What meets two needs."""
    return max(one[0], other[0]), one[1] if one[1] == other[1] else ()


class WatermarkCoordinator:
    """The engine's side that deals with clocks and clients.

    heard_us   everything that came before it has been handed over by the driver
    requests   the number of the last request for a timestamp
    _again     when to look again at the streams whose component is being looked at
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.timers = Timers()
        self.heard_us = 0
        self.requests = 0
        self._again: dict[str, int] = {}

    # -- need ----------------------------------------------------------------------------------------------------------

    def demand(self, component: Component, effects: Effects, *, busy: bool = False) -> bool:
        """Carry the needs of a component's blocked operators to the sources; say whether any of them could help.

        In a busy component the needs may be met by what is queued, so no timer follows from them. Only clients are
        asked: the clock answers when a cycle ends (`propagate_demand`), because an operator that has not been executed
        since may need less than it seems.
        """
        if not component.waiters and not self.timers.at:
            return False
        helped = False
        self._again = {}
        # The least need first: a feed has one request at a time, and no rule may change who is served by that.
        # Of equal needs, one that no promise about a group meets.
        waiters = component.waiters
        needs = [((need, one.by_group), one, holding) for one in waiters for need, holding in _needs(one)]
        if not needs and not self.timers.at:
            return False
        for (need, _), waiter, holding in sorted(needs, key=itemgetter(0)) if len(needs) > 1 else needs:
            try:
                helped |= self._carry(waiter, need, holding, effects, busy=busy)
            except OperatorError:
                raise
            except Exception as error:
                raise OperatorError(waiter, error) from error
        for source in () if busy else component.sources:
            # Who is not waited for any more is not looked at again.
            self.timers.keep(self._again.get(source.stream), "need", source.stream)
        return helped

    def propagate_demand(self, waiter: IdleWaiting) -> None:
        """Carry the need of an operator at which a cycle has ended while other work is left, to the clock alone.

        It answers at once, and the same for every operator. Clients are asked when the step ends, for the least need.
        """
        for need, holding in waiter.needs():
            self._carry(waiter, need, holding, None, busy=True)

    def _carry(
        self, waiter: IdleWaiting, need: int, holding: Sequence[int], effects: Effects | None, *, busy: bool
    ) -> bool:
        helped = False
        # Another input is past the need: this one's clock is late for a reason that only its clients know.
        passed = any(reader.promise > need for reader in waiter.inputs)
        use_clock = effects is None or not busy
        for holder, (enough, group) in self.holders(waiter, need, holding).items():
            if busy and (not isinstance(holder, Source) or holder.output.queued):
                # What lies at a source comes by itself; a stamper may have tuples before it that it has not seen.
                continue
            if isinstance(holder, Source):
                if use_clock and self._ask_clock(holder, enough, waiter):
                    helped = True
                elif effects is not None:
                    helped |= self._ask_clients(holder, enough, group, passed, effects)
            else:
                helped |= self._ask_stamper(holder, enough)
        return helped

    def _try_again(self, at_us: int, source: Source) -> None:
        """What cannot be answered yet can be then."""
        self._again[source.stream] = min(at_us, self._again.get(source.stream, at_us))

    def holders(
        self, waiter: IdleWaiting, need_us: int, holding: Sequence[int]
    ) -> dict[Source | IdleWaiting, tuple[int, Group]]:
        """What holds an operator back, above these inputs, each once, in order, and how much it would have to promise:
        of which group, if that would be enough.

        It is a source, or an operator that stamps latent tuples: it promises no more than the clock.
        """
        operator: Operator = waiter
        try:
            if waiter.stamps(holding):
                return {waiter: (need_us, ())}
            graph = self._engine.graph
            needs: dict[Source | IdleWaiting, tuple[int, Group]] = {}
            # An answer to another need may have met this one meanwhile.
            owing = [at for at in holding if waiter.inputs[at].promise < need_us]
            todo = []
            for at in owing:
                reader, group = waiter.inputs[at], waiter.blocked_group(at) if waiter.by_group else ()
                todo.append((graph.producer(reader), need_us, group and _read(reader, group)))
            while todo:
                operator, need, group = todo.pop(0)
                if isinstance(operator, Source):
                    own = operator.group_of(group) if group else ()
                    before = needs.get(operator)
                    needs[operator] = (need, own) if before is None else _both(before, (need, own))
                    continue
                enough = operator.demand(need)
                above = []
                for reader in operator.lacking(enough):
                    behind = group and operator.behind(group, operator.inputs.index(reader))
                    above.append((graph.producer(reader), enough, behind and _read(reader, behind)))
                if not above and isinstance(operator, IdleWaiting):
                    needs[operator] = max(need, enough, needs.get(operator, (need, ()))[0]), ()
                todo.extend(above)
            return needs
        except Exception as error:
            raise OperatorError(operator, error) from error

    def _ask_stamper(self, waiter: IdleWaiting, need_us: int) -> bool:
        now_us = self._engine.clock.now_us
        if now_us < need_us:
            self._try_again(need_us, self._engine.graph.component_of(waiter).sources[0])
            return False
        if not ask(waiter, waiter.reach):
            return False
        self._engine.graph.component_of(waiter).ready.add(waiter)
        return True

    def _ask_clock(self, source: Source, need_us: int, waiter: IdleWaiting) -> bool:
        """Promise as much as is needed if the clock or an earlier promise allows it."""
        definition = self._definition(source)
        if source.mark >= need_us:
            # A later operator, or one that was bypassed, does not know this promise yet.
            return source.reach(source.mark, "ets")
        if definition.lull_us is not None and self._lulled(source, definition.lull_us, need_us):
            return True
        if definition.ets != "on-demand" or definition.timestamps != "internal":
            return False
        # Later tuples are stamped at or above the mark: this microsecond may be declared over.
        now_us = self._engine.clock.now_us
        if now_us + waiter.past_its_tuples() < need_us:
            self._try_again(need_us, source)
            return False
        return source.reach(max(now_us, need_us), "ets")

    def _ask_clients(self, source: Source, need_us: int, group: Group, passed: bool, effects: Effects) -> bool:
        definition = self._definition(source)
        if source.mark >= need_us or definition.ets != "on-demand" or definition.timestamps != "external":
            return False
        helped = False
        for feed in source.holding(need_us, group):
            helped |= self._ask_feed(source, definition, feed, need_us, group, passed, effects)
        return helped

    def _lulled(self, source: Source, lull_us: int, need_us: int) -> bool:
        """By the user's promise: the clock less the lull. What the server has not read yet may be older than that."""
        held = [feed.held_since for feed in source.feeds if feed.held_since is not None]
        bound = min((self.heard_us, *held)) - lull_us
        if bound >= need_us:
            return source.reach(bound, "lull")
        if not held:
            self._try_again(self._engine.clock.now_us + need_us - bound, source)
        return False

    def _ask_feed(
        self,
        source: Source,
        definition: StreamDefinition,
        feed: Feed,
        need_us: int,
        group: Group,
        passed: bool,
        effects: Effects,
    ) -> bool:
        if not feed.can_answer or feed.leaves_us is not None:
            return self._guess(source, definition, feed, need_us)
        if feed.request is not None:
            # Another operator may have requested more than is needed here, though the feed had not answered before.
            return feed.silent and self._guess(source, definition, feed, need_us)
        if feed.answered_us is None and feed.asked_us is not None and self._guess(source, definition, feed, need_us):
            return True
        now_us = self._engine.clock.now_us
        before, asked_us = feed.requests.get(group, (MIN_TIME, 0))
        if need_us <= before and now_us < asked_us + definition.ets_retry_us:
            self._try_again(asked_us + definition.ets_retry_us, source)
            return False
        clock = feed.clock(self.heard_us)
        if clock is not None and clock < need_us and not passed:
            if feed.held_since is None:
                self._try_again(now_us + need_us - clock, source)
            return False
        self._request(source, definition, feed, need_us, group, effects)
        return False

    def _request(
        self, source: Source, definition: StreamDefinition, feed: Feed, need_us: int, group: Group, effects: Effects
    ) -> None:
        now_us = self._engine.clock.now_us
        self.requests += 1
        feed.request = self.requests
        feed.silent = feed.asked_us is not None and feed.answered_us is None
        feed.asked(group, need_us, now_us, definition.ets_retry_us)
        self.timers.set(now_us + definition.ets_retry_us, "ask", source.stream, feed.name)
        effects.orders.append(AskTimestamp(source.stream, feed.name, feed.request, need_us, group))

    def _guess(self, source: Source, definition: StreamDefinition, feed: Feed, need_us: int) -> bool:
        """By the clock alone: t + tau - delta, once that is as much as is needed."""
        clock = feed.clock(self.heard_us)
        if definition.max_skew_us is None or clock is None:
            return False
        bound = clock - max(definition.max_skew_us, definition.disorder_us)
        if bound >= need_us:
            return source.promise(feed, bound, "ets")
        if feed.held_since is None:
            self._try_again(self._engine.clock.now_us + need_us - bound, source)
        return False

    # -- answers -------------------------------------------------------------------------------------------------------

    def answered(self, event: Answered, effects: Effects) -> None:
        """A client's word: a promise like any other, whenever it comes."""
        source = self._engine.source(event.stream)
        feed = source.feeds.get(event.feed)
        if feed is None:
            return
        if not event.group:
            feed.promised = max(feed.promised, event.value_us)
        if feed.request == event.request:
            assert feed.asked_need is not None
            feed.answered_us = self._engine.clock.now_us
            self._end_request(source, feed, "answered" if event.value_us >= feed.asked_need else "below", effects)
        if event.group:
            source.promise_group(feed, event.group, event.value_us, "ets")
        else:
            source.promise(feed, event.value_us, "ets")

    def forget_request(self, source: Source, feed: Feed, effects: Effects) -> None:
        """The feed has left during a request."""
        if feed.request is not None:
            self._end_request(source, feed, "closed", effects)

    def _end_request(
        self, source: Source, feed: Feed, outcome: Literal["answered", "below", "timeout", "closed"], effects: Effects
    ) -> None:
        assert feed.request is not None
        assert feed.asked_us is not None
        took_us = self._engine.clock.now_us - feed.asked_us
        effects.orders.append(AskEnded(source.stream, feed.name, feed.request, outcome, took_us))
        feed.request = None
        self.timers.unset("ask", source.stream, feed.name)

    # -- timers --------------------------------------------------------------------------------------------------------

    def ring(self, effects: Effects) -> None:
        """Do what is due."""
        now_us = self._engine.clock.now_us
        for kind, stream, name in self.timers.due(now_us):
            found = self._engine.streams_by_name.get(stream)
            if found is None:
                continue
            source = found.source
            feed = source.feeds.get(name)
            if kind == "beat":
                self._beat(source, effects)
            elif kind == "ask" and feed is not None and feed.request is not None:
                self._end_request(source, feed, "timeout", effects)
            elif kind == "leave" and feed is not None and feed.leaves_us is not None:
                source.close(name, ended=False)
            self._engine.graph.component_of(source).has_work = True

    def keep_beating(self) -> None:
        """Set the heartbeats of periodic streams whose punctuation is used downstream, and of no others."""
        for stream in self._engine.streams_by_name.values():
            definition, source = stream.definition, stream.source
            if definition.ets != "periodic" or not source.output.punctuates:
                self.timers.unset("beat", definition.name)
            elif not self.timers.is_set("beat", definition.name):
                self.timers.set(self._engine.clock.now_us + definition.ets_interval_us, "beat", definition.name)

    def _beat(self, source: Source, effects: Effects) -> None:
        """A heartbeat: what the stream can promise now, whether anybody waits or not."""
        definition = self._definition(source)
        now_us = self._engine.clock.now_us
        self.timers.set(now_us + definition.ets_interval_us, "beat", source.stream)
        if definition.timestamps == "internal":
            source.reach(now_us, "heartbeat")
        elif definition.timestamps == "external":
            for feed in list(source.feeds):
                self._beat_feed(source, definition, feed, effects)

    def _beat_feed(self, source: Source, definition: StreamDefinition, feed: Feed, effects: Effects) -> None:
        if feed.request is not None:
            return
        clock = feed.clock(self.heard_us)
        asks = feed.can_answer and feed.leaves_us is None
        answers = asks and (feed.asked_us is None or feed.answered_us is not None)
        if asks:
            self._request(source, definition, feed, feed.mark if clock is None else clock, (), effects)
        if not answers and definition.max_skew_us is not None and clock is not None:
            skew = max(definition.max_skew_us, definition.disorder_us)
            source.promise(feed, clock - skew, "heartbeat")

    def step_clock(self, by_us: int) -> None:
        """The clock has jumped by so much, which counts as no silence, request, absence or wait."""
        for stream in self._engine.streams_by_name.values():
            for feed in stream.source.feeds:
                self._step_feed(stream.definition, feed, by_us)
        for component in self._engine.graph.components:
            for waiter in component.waiters:
                waiter.step_clock(by_us)

    def _step_feed(self, definition: StreamDefinition, feed: Feed, by_us: int) -> None:
        feed.heard_us += by_us
        if feed.held_since is not None:
            feed.held_since += by_us
        feed.requests = {group: (need_us, at_us + by_us) for group, (need_us, at_us) in feed.requests.items()}
        if feed.asked_us is not None:
            feed.asked_us += by_us
            if feed.request is not None:
                self.timers.set(feed.asked_us + definition.ets_retry_us, "ask", definition.name, feed.name)
        if feed.leaves_us is not None:
            feed.leaves_us += by_us
            self.timers.set(feed.leaves_us, "leave", definition.name, feed.name)

    def _definition(self, source: Source) -> StreamDefinition:
        return self._engine.streams_by_name[source.stream].definition

    def serve(self, engine: Engine) -> None:
        """Belong to another engine."""
        self._engine = engine

    def save(self) -> list[Any]:
        return [self.requests, self.timers.save()]

    def restore(self, data: Sequence[Any]) -> None:
        self.heard_us = self._engine.clock.now_us  # as at the start of a step
        self.requests, timers = data
        self.timers.restore(timers)
