"""A world of slow readers: a runner, an engine and real outlets, with peers whose pace a seed decides.

Feeds obey their credit, readers take rows when the seed lets them, queries are paused, renamed and made while it runs.
Auditors hold each reader against the rows that its outlet got: one under `wait` has every row once, in order; no other
has a row twice; and what is held stays within what limits and credit allow.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    Arrived,
    Late,
    PauseQuery,
    RenameQuery,
    ResumeQuery,
)
from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.net.sink import OnSlow, Outlet, Retention, Sender, Slow, Subscription
from millrace.protocol import Refuse
from millrace.run.runner import FeedPeer, Runner, Stopwatch
from millrace.sql import Catalog, parse, plan_all
from millrace.sql.planned import CreateQuery, CreateStream
from millrace.values.batch import Batch
from tests.simulation.odds import draw

CREDIT: Final = 40
CREDIT_BYTES: Final = 200_000
ROWS: Final = 400  # of each feed
TEXT_BYTES: Final = 10_000
MOST_READERS: Final = 20
RETAINED_BYTES: Final = 100_000

STATEMENTS: Final = """
CREATE STREAM a (n BIGINT, text TEXT) WITH (timestamps = 'internal');
CREATE STREAM b (ts TIMESTAMP, n BIGINT) WITH (timestamps = 'external', time = 'ts');
CREATE STREAM c (ts TIMESTAMP, n BIGINT) WITH (timestamps = 'external', time = 'ts', disorder = '5 us');
CREATE QUERY plain AS SELECT n, text FROM a;
CREATE QUERY above AS SELECT n FROM plain WHERE n >= 0;
CREATE QUERY merged WITH (order = 'event') AS SELECT n FROM b UNION ALL SELECT n FROM c;
CREATE QUERY pairs AS SELECT b.n AS n, c.n AS m FROM b [RANGE '5 us'] JOIN c [RANGE '5 us'] ON b.n = c.n;
CREATE QUERY totals AS SELECT n % 7 AS k, count(*) AS total FROM c GROUP BY n % 7;
CREATE QUERY thirds AS SELECT n FROM b WHERE n % 3 = 0;
"""


class Clock:
    """Time passes as the world says."""

    held_back_us = 0

    def __init__(self) -> None:
        self.us = 1_000

    def now_us(self) -> int:
        return self.us

    def notice(self) -> int:
        return 0


class Idle(Stopwatch):
    """Readings of a wall clock would make each run another one."""

    def start(self) -> None: ...

    def stop(self, operator: str, tuples: int) -> None: ...


@dataclass
class Feed(FeedPeer):
    """A client that sends as much as its credit allows, sooner or later."""

    stream: StreamDefinition
    credit: int = 0
    sent: int = 0

    def granted(self, tuples: int) -> None:
        self.credit += tuples

    def asked(self, request: int, need_us: int, group: tuple[Any, ...]) -> None: ...

    def late(self, late: Late) -> None:
        raise AssertionError("a feed sends in order")

    def next_rows(self, count: int, size: int) -> Batch:
        numbers = range(self.sent, self.sent + count)
        self.sent += count
        self.credit -= count
        rows = [(n, "x" * size) if self.stream.name == "a" else (n * 3, n) for n in numbers]
        return Batch.from_rows(self.stream.schema, rows, [n * 3 for n in numbers])


@dataclass
class Reader(Sender):
    """A subscriber that takes rows when it is let, and what its outlet got since it came."""

    policy: OnSlow
    outlet: Outlet
    room_left: int = 0
    rows: list[tuple[int, Any]] = field(default_factory=list)
    ended: str | None = None
    first: int = 0
    earlier: int = 0  # rows that were retained when it came: no limit applies to them
    subscription: Subscription = field(init=False)

    def room(self) -> int:
        return self.room_left

    def writable(self) -> bool:
        return True

    def send_rows(self, sequence: int, batch: Batch) -> None:
        self.room_left -= len(batch)
        self.rows += enumerate(batch.rows(), sequence)

    def send_progress(self, value_us: int) -> None: ...

    def end(self, code: str, reason: str) -> None:
        self.ended = code
        self.outlet.remove(self.subscription)


class World:
    """One seed's run. `play` ends when all has been sent and taken; the auditors have looked after each step."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.engine = Engine(
            share=draw(random, "slow.share"),
            credit=CREDIT,
            credit_bytes=CREDIT_BYTES,
            most_queued=draw(random, "slow.most queued"),
            most_queued_bytes=draw(random, "slow.most queued bytes"),
        )
        self.clock = Clock()
        self.limit = draw(random, "slow.limit")
        self.most_bytes = draw(random, "slow.most bytes")
        budget = draw(random, "slow.budget")
        retain = Retention(draw(random, "slow.retained"), RETAINED_BYTES)
        self.runner = Runner(self.engine, Idle(), budget=budget, retain=retain, clock=self.clock)
        self.runner.on_delivery = self.delivered
        self.feeds: dict[str, Feed] = {}
        self.plans: dict[str, QueryPlan] = {}
        self.readers: list[Reader] = []
        self.all_rows: dict[Outlet, dict[int, Any]] = {}
        self.paused: str | None = None
        self.renamed = 0
        self.waits = 0
        self.skipped = False

    async def play(self) -> None:
        await self.begin()
        for _ in range(20_000):
            if self.done():
                break
            self.do_something()
            self.step()
            await asyncio.sleep(0)
        assert self.done(), f"it is stuck: {self.engine.withheld()}, {[feed.sent for feed in self.feeds.values()]}"
        for reader in self.readers:
            self.audit_rows(reader)
            self.audit_end(reader)
        self.waits = sum(outlet.waits for outlet in self.runner.outlets.values())
        assert not self.engine.slow

    async def begin(self) -> None:
        steps, _ = plan_all(parse(STATEMENTS), Catalog())
        for step in steps:
            match step:
                case CreateStream(stream):
                    asked = self.runner.command(AddStream(stream))
                    self.feeds[stream.name] = Feed(stream)
                case CreateQuery(made):
                    asked = self.runner.command(AddQuery(made))
                    self.plans[made.name] = made
                case _:
                    raise AssertionError(step)
            self.runner.step()
            await asked
        for name, made in self.plans.items():
            outlet = self.runner.add_outlet(made)
            self.all_rows[outlet] = {}
            for _ in range(draw(self.random, "slow.readers")):
                self.subscribe(outlet)
            assert outlet.query == name
        for fed, feed in self.feeds.items():
            self.runner.open_feed(fed, "f", feed, can_answer=False)

    def subscribe(self, outlet: Outlet) -> None:
        reader = Reader(draw(self.random, "slow.policy"), outlet)
        reader.subscription = Subscription("r", Slow(reader.policy, self.limit, self.most_bytes), reader)
        oldest = outlet.oldest_retained if draw(self.random, "slow.from") == "retained" else None
        reader.first = outlet.add(reader.subscription, oldest)
        reader.earlier = outlet.next_sequence - reader.first
        self.readers.append(reader)

    def delivered(self, outlet: Outlet, now_us: int, batch: Batch) -> None:
        self.all_rows[outlet] |= dict(enumerate(batch.rows(), outlet.next_sequence - len(batch)))

    # -- what happens ------------------------------------------------------------------------------

    def do_something(self) -> None:
        doing = draw(self.random, "slow.event")
        self.clock.us += draw(self.random, "slow.time passes")
        if doing == "subscribe" and len(self.readers) >= MOST_READERS:
            doing = "leave"
        if doing == "leave" and not self.readers:
            doing = "pause"
        match doing:
            case "feed":
                self.feed()
            case "read":
                self.let_read()
            case "subscribe":
                self.subscribe(self.random.choice(list(self.runner.outlets.values())))
            case "leave":
                self.leave(self.random.choice(self.readers))
            case "pause":
                self.pause_or_resume()
            case "rename":
                self.rename()

    def feed(self) -> None:
        name = self.random.choice(list(self.feeds))
        feed = self.feeds[name]
        rows = draw(self.random, "slow.rows")
        count = min(feed.credit, ROWS - feed.sent, CREDIT if rows == "credit" else rows)
        if count > 0:
            text = draw(self.random, "slow.text")
            size = TEXT_BYTES if text == "long" else text
            self.runner.submit(Arrived(name, "f", feed.next_rows(count, size)))

    def let_read(self) -> None:
        """Some read more, some much more, some nothing for long."""
        sent = all(feed.sent == ROWS for feed in self.feeds.values())
        for reader in tuple(self.readers):
            if reader.ended is None and draw(self.random, "slow.reads"):
                room = draw(self.random, "slow.room")
                reader.room_left = room if room != "much" else 10_000 if sent else 60
                reader.subscription.pump()

    def leave(self, reader: Reader) -> None:
        self.audit_rows(reader)
        reader.outlet.remove(reader.subscription)
        self.readers.remove(reader)

    def pause_or_resume(self) -> None:
        if self.paused is not None:
            self.ask(ResumeQuery(self.paused))
            self.paused = None
        elif not all(feed.sent == ROWS for feed in self.feeds.values()):
            self.paused = self.random.choice(list(self.plans))
            self.skipped = True
            self.ask(PauseQuery(self.paused))

    def rename(self) -> None:
        if self.paused is not None:
            return
        before = self.random.choice([name for name in self.plans if name not in ("plain",)])
        self.renamed += 1
        after = f"z{self.renamed}"
        self.ask(RenameQuery(before, after, ()), lambda: self.runner.rename_outlet(before, after))
        self.plans = {after if name == before else name: made for name, made in self.plans.items()}

    def ask(self, body: Any, obeyed: Any = None) -> None:
        def look(answer: asyncio.Future[Any]) -> None:
            error = answer.exception()
            assert error is None or isinstance(error, Refuse), error

        self.runner.command(body, obeyed).add_done_callback(look)
        self.runner.step()

    def step(self) -> None:
        self.runner.step()
        for reader in self.readers:
            self.audit(reader)

    def done(self) -> bool:
        """All has been sent, worked through and taken, and nobody is paused."""
        return (
            self.paused is None
            and all(feed.sent == ROWS for feed in self.feeds.values())
            and self.runner.worked_off
            and not any(consumer.held for outlet in self.runner.outlets.values() for consumer in outlet.consumers)
        )

    # -- auditors ----------------------------------------------------------------------------------

    def audit(self, reader: Reader) -> None:
        """After each step: nothing is missing, and memory is bounded.

        A reader that is waited for may hold twice its limit, and what the credit of its feeds still brings: a pair at
        most for each tuple here, and what one step made before the engine knew.
        """
        subscription, outlet, policy = reader.subscription, reader.outlet, reader.subscription.slow.policy
        assert outlet.retained_bytes <= RETAINED_BYTES
        if reader.ended is not None:
            assert policy == "disconnect"
            return
        here = len(reader.rows) + subscription.held
        missing = subscription.dropped + subscription.superseded
        assert here + missing == outlet.next_sequence - reader.first, "a row was lost, or came twice"
        assert policy != "wait" or not subscription.dropped
        if policy in ("drop_oldest", "disconnect"):
            assert subscription.held <= reader.earlier + self.limit
            assert subscription.held_bytes <= RETAINED_BYTES + self.most_bytes
        else:
            slack = 4 * CREDIT * len(self.feeds)
            assert subscription.held <= reader.earlier + 2 * self.limit + slack
            assert subscription.held_bytes <= RETAINED_BYTES + 2 * self.most_bytes + slack * (TEXT_BYTES + 1_000)

    def audit_rows(self, reader: Reader) -> None:
        """At the end of a reader: its rows are those of its query, each once, in order, and under `wait` all."""
        numbers = [number for number, _ in reader.rows]
        everything = self.all_rows[reader.outlet]
        assert all(everything[number] == row for number, row in reader.rows), "a row is another one"
        if reader.subscription.slow.policy in ("wait", "disconnect"):
            assert numbers == list(range(reader.first, reader.first + len(numbers))), "a row was left out"
        else:
            assert numbers == sorted(set(numbers)), "a row came twice, or out of order"

    def audit_end(self, reader: Reader) -> None:
        """At the end of all a reader under `wait` has all, and one under `latest` the last row of each key."""
        policy, following = reader.subscription.slow.policy, reader.outlet.next_sequence
        if policy == "wait":
            assert len(reader.rows) == following - reader.first
        if policy == "latest":
            everything = self.all_rows[reader.outlet]
            wanted = {everything[number][0]: number for number in range(reader.first, following)}
            assert {row[0]: number for number, row in reader.rows} == wanted
