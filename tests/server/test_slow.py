"""Consumers that do not keep up: each policy, counted; and a long queue beside the admin API."""

import asyncio

import pytest

from millrace.operators.batch import Batch
from millrace.protocol import Refuse, Schema
from millrace.protocol.messages import Ack, Closed, Result
from millrace.server.sink import Consumer, Outlet, Slow, Subscription
from tests.server.harness import peer, served, until

SCHEMA = Schema.of(k="bigint")


def batch(first, count):
    return Batch.from_rows(SCHEMA, [(k,) for k in range(first, first + count)], [0] * count)


class Hand:
    """A sender whose room a test decides."""

    def __init__(self, room=0):
        self.left = room
        self.rows = []
        self.why = None

    def room(self):
        return self.left

    def writable(self):
        return True

    def send_rows(self, sequence, rows):
        self.left -= len(rows)
        self.rows += [(sequence + at, row[0]) for at, row in enumerate(rows.rows())]

    def send_progress(self, value_us):
        self.rows.append(("progress", value_us))

    def end(self, code, reason):
        self.why = code


class Outlets:
    """An outlet and what it asked of its query."""

    def __init__(self, retain=5):
        self.waits: list[bool] = []
        self.outlet = Outlet("q", SCHEMA, retain, lambda wait, reason: self.waits.append(wait))

    def subscribe(self, policy, limit, room=0, start=None):
        hand = Hand(room)
        subscription = Subscription("x", Slow(policy, limit), hand)
        self.outlet.add(subscription, start)
        return hand, subscription


def test_wait_pauses_the_query_and_lets_it_go_on_at_half():
    made = Outlets()
    hand, slow = made.subscribe("wait", 10)
    fast, _ = made.subscribe("wait", 10, room=1_000)
    made.outlet.deliver(0, batch(0, 9))
    assert made.waits == []
    made.outlet.deliver(9, batch(9, 1))
    assert made.waits == [True]
    hand.left = 4
    slow.pump()
    assert made.waits == [True]
    hand.left = 1
    slow.pump()
    assert made.waits == [True, False]
    assert hand.rows == [(k, k) for k in range(5)]
    assert len(fast.rows) == 10


def test_a_query_goes_on_when_the_slow_one_leaves():
    made = Outlets()
    _, slow = made.subscribe("wait", 2)
    made.outlet.deliver(0, batch(0, 5))
    made.outlet.remove(slow)
    assert made.waits == [True, False]


def test_drop_oldest_holds_the_newest_and_counts():
    made = Outlets()
    hand, slow = made.subscribe("drop_oldest", 3)
    for first in range(0, 20, 4):
        made.outlet.deliver(first, batch(first, 4))
        assert slow.held <= 3
    assert slow.dropped == 17
    hand.left = 100
    slow.pump()
    assert hand.rows == [(17, 17), (18, 18), (19, 19)]
    assert slow.delivered == 3


def test_disconnect_ends_the_subscription():
    made = Outlets()
    hand, slow = made.subscribe("disconnect", 3)
    made.outlet.deliver(0, batch(0, 4))
    assert hand.why == "too_slow"
    assert (slow.held, slow.dropped) == (0, 4)


def test_retained_rows_are_the_newest_and_come_first():
    made = Outlets(retain=5)
    for first in range(0, 12, 3):
        made.outlet.deliver(first, batch(first, 3))
    assert made.outlet.oldest_retained == 6
    with pytest.raises(Refuse, match="holds the rows from 6 to 12"):
        made.subscribe("wait", 10, start=5)
    hand, _ = made.subscribe("wait", 10, room=100, start=8)
    made.outlet.deliver(12, batch(12, 1))
    assert hand.rows == [(k, k) for k in range(8, 13)]


def test_skipped_rows_are_not_passed_off_as_retained():
    made = Outlets(retain=100)
    made.outlet.deliver(0, batch(0, 3))
    made.outlet.deliver(10, batch(10, 3))
    assert made.outlet.oldest_retained == 10


def test_progress_waits_for_the_rows_before_it():
    made = Outlets()
    hand, slow = made.subscribe("wait", 10)
    made.outlet.deliver(0, batch(0, 2))
    made.outlet.progressed(5)
    made.outlet.progressed(6)
    assert hand.rows == []
    hand.left = 10
    slow.pump()
    assert hand.rows == [(0, 0), (1, 1), ("progress", 6)]


def test_a_consumer_hands_out_slices():
    consumer = Subscription("x", Slow(), Hand())
    consumer.put(7, batch(0, 5))
    assert isinstance(consumer, Consumer)
    taken = [consumer.take(2), consumer.take(2), consumer.take(2), consumer.take(2)]
    assert [None if part is None else (part[0], len(part[1])) for part in taken] == [(7, 2), (9, 2), (11, 1), None]


@served(limits={"on_slow": "wait", "slow_limit": 50})
async def test_a_subscriber_without_credit_pauses_its_query_alone(daemon):
    await daemon.catalog.execute("CREATE QUERY other AS SELECT k FROM s")
    async with peer(daemon) as feeder, peer(daemon) as slow, peer(daemon) as fine:
        await feeder.open()
        await slow.subscribe("q", credit=0)
        await fine.subscribe("other", credit=100_000)
        sent = 0
        while daemon.engine.queries()[0]["state"] == "running":
            feeder.data(sent, [(sent, 0.0, "")] * 10)
            sent += 10
            await feeder.hear(Ack)
        assert 50 <= daemon.queries()[0]["rows"] <= 70
        feeder.data(sent, [(sent, 0.0, "")] * 10)
        sent += 10
        await until(lambda: daemon.queries()[1]["rows"] == sent)
        slow.credit(1_000)
        await until(lambda: daemon.engine.queries()[0]["state"] == "running")
        assert daemon.queries()[0]["skipped"] >= 10
        feeder.data(sent, [(-1, 0.0, ""), (99, 0.0, "back")])
        while (await slow.hear(Result)).rows[-1] != (99, 0.0, "back"):
            pass


@served(limits={"on_slow": "wait", "slow_limit": 50})
async def test_what_an_admin_paused_stays_paused(daemon):
    async with peer(daemon) as feeder, peer(daemon) as slow:
        await feeder.open()
        await slow.subscribe("q", credit=0)
        feeder.data(0, [(1, 0.0, "")] * 60)
        await until(lambda: daemon.engine.queries()[0]["state"] == "paused")
        await daemon.catalog.pause("q")
        slow.credit(1_000)
        await until(lambda: daemon.runner.outlets["q"].consumers[0].held == 0)
        await asyncio.sleep(0)
        assert daemon.engine.queries()[0]["state"] == "paused"
        await daemon.catalog.resume("q")
        assert daemon.engine.queries()[0]["state"] == "running"


@served(limits={"on_slow": "disconnect", "slow_limit": 50})
async def test_a_slow_subscription_is_ended_and_its_connection_stays(daemon):
    async with peer(daemon) as both:
        await both.open()
        await both.subscribe(credit=0)
        both.data(0, [(1, 0.0, "")] * 60)
        assert (await both.hear(Closed)).code == "too_slow"
        both.data(60, [(1, 0.0, "")])
        assert (await both.hear(Ack)).sequence == 61


@served(limits={"on_slow": "drop_oldest", "slow_limit": 50, "write_buffer_bytes": 4096})
async def test_a_subscriber_that_does_not_read_costs_a_bounded_amount(daemon):
    async with peer(daemon) as feeder, peer(daemon) as deaf:
        await feeder.open()
        await deaf.subscribe(credit=10**9)
        deaf.writer.transport.pause_reading()
        sent = 0
        outlet = daemon.runner.outlets["q"]
        while not outlet.consumers[0].dropped:
            feeder.data(sent, [(sent, 0.0, "x" * 1_000)] * 50)
            sent += 50
            await feeder.hear(Ack)
        assert outlet.consumers[0].held <= 50
        deaf.writer.transport.resume_reading()
        while outlet.consumers[0].held:
            await deaf.hear(Result)


@served(engine={"budget": 1_000, "credit": 2_000_000, "most_queued": 5_000_000})
async def test_a_long_queue_does_not_keep_the_admin_api_waiting(daemon):
    """Counted in steps of the engine, because a step is what the API may have to wait for."""
    async with peer(daemon) as feeder:
        await feeder.open()
        rows = [(1, 0.0, "")] * 50_000
        for number in range(10):
            feeder.data(number * 50_000, rows)
        await until(lambda: daemon.engine.components()[0]["queued"] > 100_000)
        reader, writer = await asyncio.open_connection(daemon.admin.host, daemon.admin.port)
        before = daemon.runner.steps
        writer.write(b"GET /api/v1/streams HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = await reader.readline()
        waited = daemon.runner.steps - before
        assert b"200" in answer
        assert daemon.engine.components()[0]["queued"] > 1_000, "the queue was worked off: this shows nothing"
        # A turn of the loop each for: reading the request, running the route, writing the answer; and some to spare.
        assert waited <= 12
        writer.close()


# -- the newest --------------------------------------------------------------------------------------------------------

PAIRS = Schema.of(k="text", v="bigint")


def pairs(*rows):
    """Rows of an update stream at times 0, 1, 2 and so on, by their own numbers."""
    return Batch.from_rows(PAIRS, rows, [v for _, v in rows])


def newest(room=0, wait=lambda *_: None, key=(0,)):
    hand = Hand(room)
    outlet = Outlet("q", PAIRS, 5, wait, key)
    slow = Subscription("x", Slow("latest", 2), hand)
    outlet.add(slow)
    return outlet, hand, slow


def test_who_is_slow_gets_the_newest_row_of_each_key_under_its_own_number():
    outlet, hand, slow = newest()
    outlet.deliver(0, pairs(("a", 0), ("b", 1), ("c", 2), ("a", 3)))
    outlet.deliver(4, pairs(("c", 4), ("d", 5)))
    assert (slow.held, slow.superseded, slow.dropped, slow.waits) == (4, 2, 0, False)
    outlet.progressed(6)
    hand.left = 2
    slow.pump()
    assert hand.rows == [(1, "b"), (3, "a")]
    outlet.deliver(6, pairs(("c", 6)))
    hand.left = 10
    slow.pump()
    assert hand.rows[2:] == [(5, "d"), (6, "c"), ("progress", 6)]
    assert (slow.held, slow.delivered, slow.superseded) == (0, 4, 3)
    outlet.remove(slow)
    assert outlet.counts(10)["subscriptions"].superseded == 3


def test_who_keeps_up_gets_every_row():
    outlet, hand, slow = newest(room=100)
    for at in range(10):
        outlet.deliver(at, pairs(("a", at)))
    assert hand.rows == [(at, "a") for at in range(10)]
    assert (slow.held, slow.superseded) == (0, 0)


def test_of_rows_that_replace_nothing_none_is_the_newest():
    waits = []
    _, _, slow = newest(wait=lambda wait, reason: waits.append(wait), key=None)
    assert slow.slow.policy == "wait"


def test_rows_that_are_no_updates_any_more_replace_nothing():
    waits = []
    outlet, hand, slow = newest(wait=lambda wait, reason: waits.append(wait))
    outlet.deliver(0, pairs(("a", 0), ("b", 1), ("a", 2)))
    outlet.rekey(None)
    outlet.deliver(3, pairs(("a", 3), ("a", 4), ("a", 5)))
    assert (slow.held, slow.superseded, slow.slow.policy, waits) == (5, 1, "wait", [True])
    hand.left = 10
    slow.pump()
    assert hand.rows == [(1, "b"), (2, "a"), (3, "a"), (4, "a"), (5, "a")]
    assert (slow.held, slow.delivered, waits) == (0, 5, [True, False])


def test_rows_of_another_key_are_the_newest_by_that_one():
    outlet, hand, slow = newest()
    outlet.deliver(0, pairs(("a", 0), ("a", 1)))
    outlet.rekey((1,))
    outlet.deliver(2, pairs(("a", 2), ("a", 3), ("a", 3)))
    assert (slow.held, slow.superseded) == (3, 2)
    hand.left = 10
    slow.pump()
    assert hand.rows == [(1, "a"), (2, "a"), (4, "a")]


def test_whoever_asked_for_the_newest_gets_it_as_soon_as_there_is_one():
    outlet, _, slow = newest(key=None)
    outlet.deliver(0, pairs(("a", 0)))
    outlet.rekey((0,))
    outlet.deliver(1, pairs(("a", 1), ("a", 2)))
    assert (slow.held, slow.superseded, slow.slow.policy) == (2, 1, "latest")


@served(
    "CREATE STREAM s (k TEXT, v BIGINT) WITH (timestamps = 'internal', update_key = 'k');"
    "CREATE QUERY q AS SELECT k, v FROM s LATEST",
    limits={"on_slow": "latest"},
)
async def test_a_query_that_is_replaced_by_one_without_a_key_loses_no_rows_of_a_slow_subscriber(daemon):
    async with peer(daemon) as feeder, peer(daemon) as slow:
        await feeder.open()
        await slow.subscribe("q", credit=0)
        await daemon.catalog.execute("CREATE OR REPLACE QUERY q AS SELECT k, v FROM s")
        feeder.data(0, [("a", v) for v in range(5)])
        await until(lambda: daemon.queries()[0]["rows"] == 5)
        slow.credit(10)
        assert [tuple(row) for row in (await slow.hear(Result)).rows] == [("a", v) for v in range(5)]
