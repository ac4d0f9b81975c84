"""Worlds of clocks: honest clients who are asked for the time, connections that break, clocks that jump.

Unlike the worlds of `world.py` these answer: what a client says depends on what the engine asked. So a world is played
by a driver that moves time from one happening to the next, and three plays are compared.

    plain    dfs(1), all work done before the next happening; what was handed to the engine is written down
    again    what was written down, by every strategy and both ways of propagation: the same rows at the same time, and
             the same registers at every operator that waits
    wild     a play of its own, with cuts, strategies, break points, saves and restores by chance

In every play the laws of `auditors.py` hold, and nothing that could be given is withheld once all have said what they
can say.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from millrace.engine import credit
from millrace.engine.engine import Engine
from millrace.engine.events import (
    AlterStream,
    Answered,
    Arrived,
    AskTimestamp,
    ClockStepped,
    Command,
    Effects,
    Event,
    FeedClosed,
    FeedHeld,
    FeedOpened,
    Heard,
    Punctuated,
    WithholdCredit,
)
from millrace.engine.plan import StreamDefinition
from millrace.operators.frame.idle_waiting import IdleWaiting
from millrace.operators.source.feeds import Feed
from millrace.values.batch import Batch
from millrace.values.eventtime import MIN_TIME
from tests.oracles import graph
from tests.oracles.stream import END, AcceptedTuple
from tests.simulation.auditors import Asks, Broken, asking, grammar, quiet, restful
from tests.simulation.clients import Client, Message
from tests.simulation.odds import draw
from tests.simulation.simulator import Play, Rows
from tests.simulation.world import BEGIN_US, EXTERNAL, SCHEMA, QueryModel, World, _Maker

# The time between two happenings of a world, and how long the engine is left alone in the end.
LENGTH_US: Final = 400
REST_US: Final = 2_000
ENDLESS: Final = 20_000
NEVER: Final = 1 << 62


class _Streams(_Maker):
    """Worlds of the same graphs, with every policy of time; what happens in them is not written down beforehand."""

    def _stream(self, name: str) -> StreamDefinition:
        rng = self.rng
        common: dict[str, Any] = {
            "ets": draw(rng, "clocks.ets"),
            "ets_interval_us": draw(rng, "clocks.ets interval"),
            "ets_retry_us": draw(rng, "clocks.ets retry"),
            "grace_us": draw(rng, "clocks.grace"),
            "propagation": draw(rng, "clocks.propagation"),
        }
        kind = draw(rng, "clocks.timestamps")
        if kind != "external":
            return StreamDefinition(name, SCHEMA, kind, **common)
        disorder = draw(rng, "clocks.disorder")
        skew = draw(rng, "clocks.max skew")
        return StreamDefinition(
            name,
            EXTERNAL,
            "external",
            "ts",
            disorder_us=disorder,
            max_skew_us=disorder if skew == "disorder" else skew,
            progress=draw(rng, "clocks.progress"),
            ahead_us=draw(rng, "clocks.ahead"),
            **common,
        )

    def _log(self, later: tuple[str, ...], dropped: tuple[str, ...], paused: list[str]) -> tuple[Any, ...]:
        return ()


def clocks_of(seed: int) -> World:
    made = _Streams(seed).make()
    return replace(made, later=(), dropped=())


@dataclass
class Handed:
    """What the driver handed to the engine: when by its clock, and until when it had read its sockets (None: now).

    `reached` is the clock until when the engine's appointments were kept: not `now` when the clock jumps. `current`
    marks the answers that came to the request that was under way.
    """

    now: int
    reached: int
    events: list[Event]
    heard: int | None
    current: list[bool]


@dataclass
class Seen:
    """What a play shows when all work is done: rows by query, and the registers of the operators that wait."""

    rows: dict[str, Rows]
    registers: dict[str, list[int]]


class Timed(Play):
    """A play in which the driver's clock and what it has read matter."""

    def __init__(self, world: World, style: int | None) -> None:
        super().__init__(world, style)
        self.asks = Asks()
        self.heard: int | None = None
        self.seen: list[Seen] = []

    def _step(self, events: Sequence[Event], work: int | None = None) -> None:
        if self.heard is not None:
            events = [Heard(self.heard), *events]
        self.asks.before(self.engine, events)
        super()._step(events, work)

    def _took(self, effects: Effects) -> None:
        self.asks.after(effects)

    def _settle(self) -> None:
        """Do all work, and say what there is to see."""
        self._drain()
        restful(self.engine, self._wake)
        self.seen.append(self._look())

    def _look(self) -> Seen:
        """What must be the same however the work was done: not what followed from the stamps of latent tuples."""
        stamped = self.world.stamped
        rows = self._rows()
        return Seen(
            {query.name: rows[query.name] for query in self.world.queries if query.output.name not in stamped},
            {name: found for name, found in registers(self.engine).items() if name not in stamped},
        )

    def _serve(self, through: int) -> None:
        """Keep the engine's appointments, each at its time."""
        for _ in range(ENDLESS):
            if self._wake is None or self._wake > through:
                return
            self._now = max(self._now, self._wake)
            self._step([])
            self._drain()
        raise Broken("the engine asks again and again to be woken")


def registers(engine: Engine) -> dict[str, list[int]]:
    """The registers of the operators that are idle-waiting, without what is of no use to them."""
    return {
        operator.name: [grain.rounded(register) for register in operator.registers()]
        for operator in engine.graph.operators.values()
        if isinstance(operator, IdleWaiting) and operator.blocked() and (grain := operator.declares()) is not None
    }


class Live(Timed):
    """A driver with clients."""

    def __init__(self, world: World, style: int | None) -> None:
        super().__init__(world, style)
        self.chance = random.Random(f"clients {world.seed} {style}")
        self.time = BEGIN_US
        self.shift = 0
        self.handed: list[Handed] = []
        self.taken: dict[str, list[AcceptedTuple]] = {stream.name: [] for stream in world.streams}
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._count = self._ids = 0
        self._held: dict[tuple[str, str], list[Event]] = {}
        self._waiting: list[Event] = []
        self._resting = False
        self._asked: dict[tuple[str, str], list[AskTimestamp]] = {}
        self.clients: dict[tuple[str, str], Client] = {}
        for stream in world.streams:
            for feed in draw(self.chance, "clocks.feeds"):
                self.clients[stream.name, feed] = self._client(stream, feed)

    def _client(self, stream: StreamDefinition, feed: str) -> Client:
        rng = self.chance
        external = stream.timestamps == "external"
        disorder = stream.disorder_us if external else 0
        skew = stream.max_skew_us
        transit = draw(rng, "clocks.transit") if skew is None else max(skew - disorder, 0)
        return Client(
            stream.name,
            feed,
            rng,
            disorder,
            transit,
            external and draw(rng, "clocks.can answer"),
            draw(rng, "clocks.temper"),
            draw(rng, "clocks.offset"),
        )

    # -- the world's time --------------------------------------------------------------------------------------------

    def play(self) -> None:
        with grammar(), asking():
            self._begin()
            for client in self.clients.values():
                self._at(self.time + draw(self.chance, "clocks.opens"), partial(self._open, client))
            for _ in range(draw(self.chance, "clocks.accidents")):
                self._at(self.time + self.chance.randint(1, LENGTH_US), self._accident)
            self._until(self.time + LENGTH_US)
            self._rest()
            self.asks.ended(self.engine)
            self._end()
        self.outcome.digest = self._hash.hexdigest()

    def _at(self, time: int, do: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (time, self._count, do))

    def _soon(self, most: int, do: Callable[[], None]) -> None:
        self._at(self.time + self.chance.randint(0, most), do)

    def _after(self, name: str, do: Callable[[], None]) -> None:
        """Do it after a time with this name in the table of odds."""
        self._at(self.time + draw(self.chance, name), do)

    def _until(self, time: int) -> None:
        """Let time pass: what happens happens, and the engine's appointments are kept, each at its time."""
        for _ in range(ENDLESS):
            wake = NEVER if self._wake is None else max(self._wake - self.shift, self.time)
            happens = self._agenda[0][0] if self._agenda else NEVER
            if min(wake, happens) > time:
                self._pass(time)
                return
            self._pass(min(wake, happens))
            if wake <= happens:
                self._step([])
                self._drain()
                self._answer()
            else:
                heapq.heappop(self._agenda)[2]()
        raise Broken("the engine asks again and again to be woken")

    def _pass(self, time: int) -> None:
        self.time = time
        self._now = time + self.shift

    def _hand(self, events: list[Event], reached: int | None = None) -> None:
        """Give events to the engine, and let it work."""
        current = [
            isinstance(event, Answered) and self._feed(event.stream, event.feed, "request") == event.request
            for event in events
        ]
        self.handed.append(Handed(self._now, self._now if reached is None else reached, events, self.heard, current))
        self._step(events)
        for event in events:
            if isinstance(event, Arrived):
                self._took_in(event)
        if not self.wild:
            self._settle()
        elif self._resting:
            self._drain()
        else:
            self._meddle()
        self._answer()

    def _feed(self, stream: str, feed: str, what: str) -> Any:
        found = self.engine.source(stream).feeds.get(feed)
        return None if found is None else getattr(found, what)

    def _took_in(self, event: Arrived) -> None:
        """What of these is on time, by what the engine said of them: clients are honest, so only joining makes late."""
        refused = self.asks.refused
        kind = self.engine.streams_by_name[event.stream].definition.timestamps
        now = self.engine.clock.now_us
        for ts, number, v in event.batch.rows():
            if number not in refused:
                at = {"external": ts, "internal": now, "latent": None}[kind]
                self.taken[event.stream].append(AcceptedTuple(0, at, number, v))

    # -- clients -----------------------------------------------------------------------------------------------------

    def _open(self, client: Client) -> None:
        client.connected = True
        client.last_arrival = max(client.last_arrival, self.time)
        self._hand([FeedOpened(client.stream, client.feed, client.can_answer)])
        self._soon(draw(self.chance, "clocks.first rows within"), partial(self._make, client, client.epoch))
        if draw(self.chance, "clocks.leaves"):
            self._after("clocks.leaves after", lambda: self._leave(client))

    def _make(self, client: Client, epoch: int) -> None:
        if not client.connected or client.epoch != epoch:
            return
        rng = self.chance
        for _ in range(draw(rng, "clocks.rows")):
            self._ids += 1
            v = draw(rng, "clocks.value")
            if client.make(self.time, self._ids, None if draw(rng, "clocks.null value") else v):
                self._soon(client.hold_us, lambda: self._flush(client, epoch))
        if draw(rng, "clocks.punctuation") and self._is_external(client.stream):
            self._send(client, client.punctuation(self.time))
        self._soon(draw(rng, "clocks.next rows within"), lambda: self._make(client, epoch))

    def _is_external(self, stream: str) -> bool:
        return self.engine.streams_by_name[stream].definition.timestamps == "external"

    def _flush(self, client: Client, epoch: int) -> None:
        message = client.flush() if client.epoch == epoch else None
        if message is not None:
            self._send(client, message)

    def _send(self, client: Client, message: Message) -> None:
        self._at(client.arrival(self.time), lambda: self._come(client, message))

    def _come(self, client: Client, message: Message) -> None:
        """A message reaches the server; what was under way when the connection broke does not, but for some answers."""
        if message.epoch != client.epoch and not (
            message.kind == "answer" and draw(self.chance, "clocks.answer survives")
        ):
            return
        event = self._event(client, message)
        held = self._held.get((client.stream, client.feed))
        if held is not None:
            held.append(event)
        elif self.heard is not None:
            self._waiting.append(event)
        else:
            self._hand([event])

    def _event(self, client: Client, message: Message) -> Event:
        match message.kind:
            case "rows":
                external = self._is_external(client.stream)
                schema, times = (EXTERNAL if external else SCHEMA), [ts if external else 0 for ts, _, _ in message.rows]
                return Arrived(client.stream, client.feed, Batch.from_rows(schema, message.rows, times))
            case "punctuation":
                return Punctuated(client.stream, client.feed, message.value)
            case "answer":
                return Answered(client.stream, client.feed, message.request, message.value)

    def _took(self, effects: Effects) -> None:
        super()._took(effects)
        for order in effects.orders:
            if isinstance(order, AskTimestamp):
                self._asked.setdefault((order.stream, order.feed), []).append(order)

    def _answer(self) -> None:
        """The clients who were asked decide what to do."""
        asked, self._asked = self._asked, {}
        for who, orders in asked.items():
            client = self.clients[who]
            for order in orders:
                if client.temper != "deaf":
                    after = "clocks.slow reply after" if client.temper == "slow" else "clocks.reply after"
                    self._after(after, partial(self._reply, client, order, client.epoch))

    def _reply(self, client: Client, order: AskTimestamp, epoch: int) -> None:
        if client.connected and client.epoch == epoch:
            self._send(client, client.answer(self.time, order.request))

    def _leave(self, client: Client) -> None:
        """The connection breaks, or the client says goodbye; it may come back."""
        if not client.connected:
            return
        events: list[Event] = []
        if self._held.pop((client.stream, client.feed), None) is not None:
            events.append(FeedHeld(client.stream, client.feed, held=False))
        gone = (client.stream, client.feed)
        self._waiting = [event for event in self._waiting if (event.stream, event.feed) != gone]  # type: ignore[union-attr]
        client.lose()
        self._hand([*events, FeedClosed(*gone, lost=draw(self.chance, "clocks.lost"))])
        if draw(self.chance, "clocks.comes back"):
            self._after("clocks.comes back after", lambda: self._open(client))

    # -- accidents ---------------------------------------------------------------------------------------------------

    def _accident(self) -> None:
        accidents = {"hold": self._hold, "lag": self._lag, "jump": self._jump, "alter": self._alter}
        accidents[draw(self.chance, "clocks.accident")]()

    def _hold(self) -> None:
        """A feed's bytes stay unread for a while."""
        who = self.chance.choice(list(self.clients))
        if who in self._held or not self.clients[who].connected:
            return
        self._held[who] = []
        self._hand([FeedHeld(*who, held=True)])
        self._after("clocks.read some after", lambda: self._read_some(who))
        self._after("clocks.release after", lambda: self._release(who))

    def _read_some(self, who: tuple[str, str]) -> None:
        events = self._held.get(who)
        if events:
            self._held[who] = events[1:]
            self._hand_over(events[:1])

    def _release(self, who: tuple[str, str]) -> None:
        events = self._held.pop(who, None)
        if events is not None:
            self._hand_over([*events, FeedHeld(*who, held=False)])

    def _hand_over(self, events: list[Event]) -> None:
        if self.heard is not None:
            self._waiting += events
        else:
            self._hand(events)

    def _lag(self) -> None:
        """The loop is behind: for a while it steps the engine without reading its sockets."""
        if self.heard is None:
            self.heard = self._now
            self._hand([])
            self._after("clocks.catch up after", self._catch_up)

    def _catch_up(self) -> None:
        events, self._waiting = self._waiting, []
        self.heard = None
        self._hand(events)

    def _jump(self) -> None:
        """Somebody sets the server's clock forward; a clock that is set back is held by the driver."""
        by = draw(self.chance, "clocks.jump")
        reached = self._now
        self.shift += by
        self._now += by
        if self.heard is not None:
            self.heard += by
        self._hand([ClockStepped(by)], reached)

    def _alter(self) -> None:
        rng = self.chance
        stream = self.engine.streams_by_name[rng.choice(self.world.streams).name].definition
        changes = {
            "ets": draw(rng, "clocks.new ets"),
            "ets_interval_us": draw(rng, "clocks.ets interval"),
            "ets_retry_us": draw(rng, "clocks.ets retry"),
            "grace_us": draw(rng, "clocks.new grace"),
            "propagation": draw(rng, "clocks.propagation"),
        }
        policy = draw(rng, "clocks.altered")
        self._commands += 1
        self._hand([Command(self._commands, AlterStream(stream.name, ((policy, changes[policy]),)))])

    # -- the end -----------------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """All clients stop sending, slow readers and the loop catch up, and clients answer: all that is due leaves."""
        self._agenda.clear()
        for name in credit.slow(self.engine):
            self._command(WithholdCredit(name, False, False), work=0)
        self._resting = True
        for who in list(self._held):
            self._release(who)
        if self.heard is not None:
            self._catch_up()
        for client in self.clients.values():
            if client.unsent:
                message = client.flush()
                assert message is not None
                self._hand([self._event(client, message)])
            if client.temper in ("slow", "low"):
                client.temper = "prompt"
        self._drain()
        since = self.time
        self._until(self.time + REST_US)
        self._drain()
        quiet(self.engine)
        self._compare_given(since)

    def _compare_given(self, since: int) -> None:
        """Liveness: what the streams could promise when everybody stopped sending has released what waited for it."""
        bounds = {stream.name: self._bound(stream.name, since) for stream in self.world.streams}
        given = self._rows()
        for query in self.world.queries:
            if query.output.name in self.world.stamped or _reads_late(self.world, query):
                continue
            withheld = self._expected(query, bounds) - given[query.name]
            if withheld:
                raise Broken(f"{query.name} withholds {dict(withheld)}; the streams can promise {bounds}")

    def _bound(self, name: str, since: int) -> int:
        stream = self.engine.streams_by_name[name]
        definition, source = stream.definition, stream.source
        if definition.timestamps == "latent":
            return END
        if definition.ets == "none":
            return source.mark
        now = since + self.shift
        if definition.timestamps == "internal":
            return max(source.mark, now)
        feeds = [max(feed.mark, self._could_promise(definition, feed, since)) for feed in source.feeds]
        return max([source.mark, *([min(feeds)] if feeds else [])])

    def _could_promise(self, definition: StreamDefinition, feed: Feed, since: int) -> int:
        client = self.clients[definition.name, feed.name]
        if client.can_answer and client.temper == "prompt" and client.connected:
            return client.bound(since)
        if definition.max_skew_us is None or feed.newest == MIN_TIME:
            return feed.mark
        return feed.newest + max(since + self.shift - feed.heard_us, 0) - definition.max_skew_us

    def _expected(self, query: QueryModel, bounds: dict[str, int]) -> Rows:
        given: dict[str, graph.NodeOutput] = {}
        for name, taken in self.taken.items():
            given[f"{name}.source"] = graph.source(taken, bounds[name], lambda _: True)
        for other in self.world.queries:
            if not _reads_late(self.world, other):
                for node in other.nodes:
                    given[node.name] = graph.compute(node, [given[name] for name in node.inputs])
        timeless = query.output.name in self.world.stamped
        return Counter((None if timeless else ts, number, v) for ts, number, v in given[query.output.name].rows)

    def _end(self) -> None:
        """Every stream ends: every row that was on time has come out once."""
        events: list[Event] = []
        for name, stream in list(self.engine.streams_by_name.items()):
            events += [FeedClosed(name, feed, ended=True) for feed in list(stream.source.feeds.by_name) or ["main"]]
        self._hand(events)
        self._drain()
        quiet(self.engine)
        given = self._rows()
        for query in self.world.queries:
            if not _reads_late(self.world, query):
                wanted = self._expected(query, dict.fromkeys(self.taken, END))
                if wanted != given[query.name]:
                    raise Broken(
                        f"in the end {query.name} gave {dict(given[query.name] - wanted)} too much, "
                        f"{dict(wanted - given[query.name])} too little"
                    )


def _reads_late(world: World, query: QueryModel) -> bool:
    return any(name.endswith(".late") for name in query.reads_streams) or any(
        _reads_late(world, world.query(name)) for name in query.reads_queries
    )


class Again(Timed):
    """What was handed to the engine in a plain play, by another strategy and another way of propagation."""

    def __init__(self, world: World, handed: Sequence[Handed], strategy: str, propagation: str | None) -> None:
        if propagation is not None:
            streams = tuple(replace(stream, propagation=propagation) for stream in world.streams)  # type: ignore[arg-type]
            world = replace(world, streams=streams)
        super().__init__(world, None)
        self._handed = handed
        self.strategy = strategy
        self.propagation = propagation

    def play(self) -> None:
        with grammar(), asking():
            self._begin()
            for handed in self._handed:
                self._serve(handed.reached)
                self._now = handed.now
                self.heard = handed.heard
                self._step([self._event(*item) for item in zip(handed.events, handed.current, strict=True)])
                self._settle()

    def _event(self, event: Event, current: bool) -> Event:
        """The same, but an answer is to this engine's own request, and the way of propagation is not changed."""
        match event:
            case Answered(stream, feed):
                found = self.engine.source(stream).feeds.get(feed)
                request = found.request if current and found is not None else None
                return replace(event, request=-1 if request is None else request)
            case Command(id, AlterStream(name, changes)) if self.propagation is not None:
                kept = tuple(change for change in changes if change[0] != "propagation")
                return Command(id, AlterStream(name, kept))
        return event


def simulate_clocks(seed: int, styles: int = 1) -> int:
    """Play a world of clocks in every way and compare; how many steps it took."""
    world = clocks_of(seed)
    plain = Live(world, None)
    plain.play()
    steps = plain.outcome.steps
    chance = random.Random(f"ways {seed}")
    ways = [("dfs(1)", "arcs"), ("dfs(1)", "punctuation"), (draw(chance, "play.strategy"), None)]
    ways += [(draw(chance, "play.strategy"), draw(chance, "clocks.propagation")) for _ in range(styles)]
    for strategy, propagation in ways:
        again = Again(world, plain.handed, strategy, propagation)
        again.play()
        steps += again.outcome.steps
        _same(plain.seen, again.seen, f"{strategy} by {propagation}")
    for style in range(styles):
        wild = Live(world, style)
        wild.play()
        steps += wild.outcome.steps
        if not style:
            twice = Live(world, style)
            twice.play()
            if twice.outcome.digest != wild.outcome.digest:
                raise Broken("the same seed gave other effects")
    return steps


def _same(plain: Sequence[Seen], other: Sequence[Seen], how: str) -> None:
    for number, (one, two) in enumerate(zip(plain, other, strict=True)):
        for query, rows in one.rows.items():
            if rows != two.rows[query]:
                raise Broken(
                    f"{how}, happening {number}: {query} gave {dict(two.rows[query] - rows)} too much, "
                    f"withheld {dict(rows - two.rows[query])}"
                )
        if one.registers != two.registers:
            raise Broken(f"{how}, happening {number}: registers {two.registers}, plainly {one.registers}")
