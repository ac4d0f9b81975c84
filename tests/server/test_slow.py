"""Slow consumers: each policy, with its counters; and a long queue does not block the admin API."""

import asyncio
import re
import threading
from typing import Any

import pytest

from millrace.changes.pause_query import PauseQuery
from millrace.changes.resume_query import ResumeQuery
from millrace.net.sink import CHUNK_BYTES, Backpressure, Consumer, Outlet, Retention, Sender, Slow, Subscription
from millrace.protocol import Refuse, Schema
from millrace.protocol.messages import Ack, Closed, Ping, Pong, Result
from millrace.store.sinkfiles import LineFile
from millrace.values.batch import Batch
from tests.patience import HANG_SECONDS
from tests.server.harness import lines, peer, served, until

SCHEMA = Schema.of(k="bigint")


def batch(first, count):
    return Batch.from_rows(SCHEMA, [(k,) for k in range(first, first + count)], [0] * count)


NONE, SOFT, STRICT = Backpressure


class Hand(Sender):
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


FIVE = Retention(5)


class Outlets:
    """An outlet and its requests to its query."""

    def __init__(self, retain=FIVE, schema=SCHEMA):
        self.pressed: list[Backpressure] = []
        self.outlet = Outlet("q", schema, retain, self.pressed.append)

    def subscribe(self, policy, limit, room=0, start=None, most_bytes=2**40):
        hand = Hand(room)
        subscription = Subscription("x", Slow(policy, limit, most_bytes), hand)
        self.outlet.add(subscription, start)
        return hand, subscription


def test_feeds_wait_for_a_slow_consumer_until_half_of_its_rows_have_left():
    made = Outlets()
    hand, slow = made.subscribe("wait", 10)
    fast, _ = made.subscribe("wait", 10, room=1_000)
    made.outlet.deliver(0, batch(0, 9))
    assert made.pressed == []
    made.outlet.deliver(9, batch(9, 1))
    assert made.pressed == [SOFT]
    hand.left = 4
    slow.pump()
    assert made.pressed == [SOFT]
    hand.left = 1
    slow.pump()
    assert made.pressed == [SOFT, NONE]
    assert hand.rows == [(k, k) for k in range(5)]
    assert len(fast.rows) == 10


def test_feeds_go_on_when_the_slow_consumer_leaves():
    made = Outlets()
    _, slow = made.subscribe("wait", 2)
    made.outlet.deliver(0, batch(0, 5))
    made.outlet.remove(slow)
    assert made.pressed == [STRICT, NONE]


def test_who_is_behind_by_twice_the_limit_is_waited_for_whatever_others_wait_for():
    made = Outlets()
    hand, slow = made.subscribe("wait", 10)
    made.outlet.deliver(0, batch(0, 19))
    made.outlet.deliver(19, batch(19, 1))
    hand.left = 9
    slow.pump()
    assert made.pressed == [SOFT, STRICT]
    hand.left = 2
    slow.pump()
    assert made.pressed == [SOFT, STRICT, SOFT]
    assert made.outlet.slowest == slow
    hand.left = 4
    slow.pump()
    assert made.pressed == [SOFT, STRICT, SOFT, NONE]
    assert made.outlet.slowest is None


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
    made = Outlets(Retention(5))
    for first in range(0, 12, 3):
        made.outlet.deliver(first, batch(first, 3))
    assert made.outlet.oldest_retained == 6
    with pytest.raises(Refuse, match="retains sequences 6 to 11, and the next sequence is 12"):
        made.subscribe("wait", 10, start=5)
    hand, _ = made.subscribe("wait", 10, room=100, start=8)
    made.outlet.deliver(12, batch(12, 1))
    assert hand.rows == [(k, k) for k in range(8, 13)]


@pytest.mark.parametrize("policy", ["wait", "drop_oldest", "disconnect"])
def test_retained_rows_do_not_make_a_new_subscriber_slow(policy):
    made = Outlets(Retention(100))
    made.outlet.deliver(0, batch(0, 50))
    hand, slow = made.subscribe(policy, 10, room=0, start=0)
    made.outlet.deliver(50, batch(50, 5))
    assert (slow.held, slow.dropped, hand.why, made.pressed) == (55, 0, None, [])
    hand.left = 45
    slow.pump()
    assert not slow.too_slow
    hand.left = 10
    slow.pump()
    assert hand.rows == [(k, k) for k in range(55)]
    made.outlet.deliver(55, batch(55, 11))  # now it is as slow as any other
    assert slow.too_slow or slow.dropped


def test_skipped_rows_are_not_passed_off_as_retained():
    made = Outlets(Retention(100))
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


TEXTS = Schema.of(k="bigint", text="text")
KIB = 1024


def texts(first, count, size=64 * KIB):
    return Batch.from_rows(TEXTS, [(k, "x" * size) for k in range(first, first + count)], [0] * count)


def test_retained_rows_are_bounded_in_bytes():
    made = Outlets(Retention(10_000, KIB * KIB), TEXTS)
    for first in range(0, 100, 5):
        made.outlet.deliver(first, texts(first, 5))
        assert made.outlet.retained_bytes <= KIB * KIB
    assert made.outlet.oldest_retained == 85
    assert made.outlet.retained_tuples == 15
    hand, _ = made.subscribe("wait", 10**6, room=100, start=85)
    assert [number for number, _ in hand.rows] == list(range(85, 100))


def test_of_one_batch_that_is_too_large_to_be_retained_its_newest_rows_are():
    made = Outlets(Retention(10_000, KIB * KIB), TEXTS)
    made.outlet.deliver(0, texts(0, 100))
    assert 80 < made.outlet.oldest_retained < 90
    assert 0 < made.outlet.retained_bytes <= KIB * KIB
    made.outlet.deliver(100, texts(100, 1, size=2 * KIB * KIB))
    assert (made.outlet.oldest_retained, made.outlet.retained_bytes, made.outlet.retained_tuples) == (101, 0, 0)


def test_feeds_wait_for_a_consumer_that_holds_too_many_bytes():
    made = Outlets(schema=TEXTS)
    hand, slow = made.subscribe("wait", 10**6, most_bytes=KIB * KIB)
    made.outlet.deliver(0, texts(0, 15))
    assert made.pressed == []
    made.outlet.deliver(15, texts(15, 2))
    assert made.pressed == [SOFT]
    hand.left = 10
    slow.pump()
    assert made.pressed == [SOFT, NONE]
    hand.left = 10
    slow.pump()
    assert (slow.held, slow.held_bytes, len(hand.rows)) == (0, 0, 17)


def test_drop_oldest_holds_the_newest_in_bytes():
    made = Outlets(schema=TEXTS)
    hand, slow = made.subscribe("drop_oldest", 10**6, most_bytes=KIB * KIB)
    for first in range(0, 100, 20):
        made.outlet.deliver(first, texts(first, 20))
        assert slow.held_bytes <= KIB * KIB
    assert slow.dropped + slow.held == 100
    assert slow.held >= 15
    hand.left = 100
    slow.pump()
    assert [number for number, _ in hand.rows] == list(range(slow.dropped, 100))


def test_disconnect_ends_a_subscription_that_holds_too_many_bytes():
    made = Outlets(schema=TEXTS)
    hand, slow = made.subscribe("disconnect", 10**6, most_bytes=KIB * KIB)
    made.outlet.deliver(0, texts(0, 20))
    assert hand.why == "too_slow"
    assert (slow.held, slow.held_bytes, slow.dropped) == (0, 0, 20)


def test_rows_leave_in_chunks_of_bounded_bytes():
    made = Outlets(schema=TEXTS)
    hand, slow = made.subscribe("wait", 10**6, room=0)
    made.outlet.deliver(0, texts(0, 100))
    sizes = []
    hand.send_rows = lambda sequence, rows: sizes.append(rows.weight)
    hand.left = 1_000
    slow.pump()
    assert sum(sizes) == texts(0, 100).weight
    assert max(sizes) <= CHUNK_BYTES
    assert slow.held_bytes == 0


def test_the_newest_rows_of_each_key_count_their_bytes():
    outlet, hand, slow = newest()
    outlet.deliver(0, pairs(("a" * 1_000, 0), ("b" * 1_000, 1)))
    assert 2_000 < slow.held_bytes < 4_000
    hand.left = 10
    slow.pump()
    assert (slow.held, slow.held_bytes) == (0, 0)


def test_a_consumer_hands_out_slices():
    consumer = Subscription("x", Slow(), Hand())
    consumer.put(7, batch(0, 5))
    assert isinstance(consumer, Consumer)
    taken = [consumer.take(2), consumer.take(2), consumer.take(2), consumer.take(2)]
    assert [None if part is None else (part[0], len(part[1])) for part in taken] == [(7, 2), (9, 2), (11, 1), None]


WAITING = {"limits": {"on_slow": "wait", "slow_limit": 50}, "engine": {"credit": 40}}


async def answered(feeder):
    """Everything that the server wrote before was heard."""
    feeder.say(Ping(1))
    await feeder.hear(Pong)


async def fill(feeder, daemon, rows=10):
    """Feed stream s until the server grants no more credit; the number of rows fed."""
    sent = 0
    while True:
        state = feeder.session.channels[0]
        if state.credit < rows:
            await answered(feeder)  # the server has read what was fed,
            await daemon.runner.wait_drained()  # the engine has taken it,
            await answered(feeder)  # the resulting credit has arrived
            if state.credit < rows:
                return sent
        feeder.data(sent, [(sent + at, 0.0, "") for at in range(rows)])
        sent += rows


@served(**WAITING)
async def test_a_slow_subscriber_holds_back_the_feeds_and_nobody_loses_a_row(daemon):
    await daemon.catalog.execute(
        "CREATE STREAM t (k BIGINT, v DOUBLE, name TEXT); CREATE QUERY other AS SELECT k FROM t"
    )
    async with peer(daemon) as feeder, peer(daemon) as slow, peer(daemon) as fast, peer(daemon) as apart:
        await feeder.open()
        await slow.subscribe("q", credit=0)
        await fast.subscribe("q", credit=100_000)
        sent = await fill(feeder, daemon)
        assert 50 <= sent < 50 + 40 + 40
        (query, _) = daemon.queries()
        assert (query.state, query.skipped, query.rows) == ("running", 0, sent)
        assert [row[0] for row in await rows_of(fast, sent)] == list(range(sent))

        await apart.open("t")
        for first in range(0, 400, 10):
            apart.data(first, [(first, 0.0, "")] * 10)
            while apart.session.channels[0].credit < 10:
                await apart.hear()
        await until(lambda: daemon.queries()[1].rows == 400)

        slow.credit(100_000)
        while feeder.session.channels[0].credit < 10:
            await feeder.hear()
        feeder.data(sent, [(sent, 0.0, "last")])
        assert [row[0] for row in await rows_of(slow, sent + 1)] == list(range(sent + 1))
        assert [row[0] for row in await rows_of(fast, 1)] == [sent]


async def rows_of(subscriber, count):
    """The next rows of a subscriber, this many."""
    found: list[tuple[object, ...]] = []
    while len(found) < count:
        found += (await subscriber.hear(Result)).rows
    return found


@served(**WAITING)
async def test_a_slow_subscriber_that_leaves_releases_the_feeds(daemon):
    async with peer(daemon) as feeder, peer(daemon) as slow:
        await feeder.open()
        await slow.subscribe("q", credit=0)
        await fill(feeder, daemon)
        assert daemon.engine.withheld() == {"s": ["q"]}
        await slow.close()
        while feeder.session.channels[0].credit < 10:
            await feeder.hear()
        assert daemon.engine.withheld() == {}


@served(**WAITING)
async def test_a_new_feed_of_a_stream_that_waits_gets_its_credit_with_the_others(daemon):
    async with peer(daemon) as feeder, peer(daemon) as slow, peer(daemon) as second:
        await feeder.open()
        await slow.subscribe("q", credit=0)
        await fill(feeder, daemon)
        await second.open(producer="second")
        assert second.session.channels[0].credit == 0
        slow.credit(100_000)
        while second.session.channels[0].credit < 40:
            await second.hear()


@served(**WAITING)
async def test_a_query_that_an_admin_pauses_holds_back_no_feed_and_does_so_again_when_it_is_resumed(daemon):
    async with peer(daemon) as feeder, peer(daemon) as slow:
        await feeder.open()
        await slow.subscribe("q", credit=0)
        sent = await fill(feeder, daemon)
        await daemon.catalog.change(PauseQuery(name="q"))
        while feeder.session.channels[0].credit < 10:
            await feeder.hear()
        feeder.data(sent, [(1, 0.0, "")] * 10)
        slow.credit(10)
        await until(lambda: daemon.queries()[0].skipped == 10)
        assert daemon.queries()[0].state == "paused"
        await daemon.catalog.change(ResumeQuery(name="q"))
        assert daemon.engine.withheld() == {"s": ["q"]}


@served(**WAITING)
async def test_a_query_that_is_dropped_or_replaced_holds_back_no_feed(daemon):
    async with peer(daemon) as feeder, peer(daemon) as slow:
        await feeder.open()
        await slow.subscribe("q", credit=0)
        await fill(feeder, daemon)
        await daemon.catalog.execute("CREATE OR REPLACE QUERY q AS SELECT k FROM s")
        await until(lambda: daemon.engine.withheld() == {})
        await slow.hear(Closed)
        await slow.subscribe("q", channel=101, credit=0)
        await fill(feeder, daemon)
        assert daemon.engine.withheld() == {"s": ["q"]}
        await daemon.catalog.execute("DROP QUERY q; CREATE QUERY q AS SELECT k FROM s")
        await until(lambda: daemon.engine.withheld() == {})


@served(**WAITING)
async def test_a_reader_of_late_tuples_holds_back_their_stream(daemon):
    await daemon.catalog.execute("CREATE STREAM e (ts TIMESTAMP, k BIGINT) WITH (timestamps = 'external', time = 'ts')")
    async with peer(daemon) as feeder, peer(daemon) as slow:
        await feeder.open("e")
        await slow.subscribe("e.late", credit=0)
        feeder.data(0, [(1_000_000, 0)])
        sent = 1
        while feeder.session.channels[0].credit >= 10:
            feeder.data(sent, [(sent, sent) for sent in range(sent, sent + 10)])
            sent += 10
            await feeder.hear(Ack)
        await until(lambda: daemon.engine.withheld() == {"e": ["e.late"]})
        slow.credit(1_000)
        assert [row[1] for row in await rows_of(slow, sent - 1)] == list(range(1, sent))


@served(**WAITING)
async def test_json_lines_feeds_wait_unread(daemon):
    async with lines(daemon) as feeder, peer(daemon) as slow:
        await slow.subscribe("q", credit=0)
        for k in range(20_000):
            feeder.say(f'{{"stream": "s", "tuple": {{"k": {k}}}}}')
        await until(lambda: daemon.engine.withheld() == {"s": ["q"]})
        await asyncio.sleep(0.05)
        assert daemon.queries()[0].rows < 20_000
        slow.credit(100_000)
        assert [row[0] for row in await rows_of(slow, 20_000)] == list(range(20_000))
        assert daemon.queries()[0].skipped == 0


HEAVY: dict[str, Any] = {
    "limits": {"on_slow": "wait", "slow_bytes": 256 * KIB},
    "engine": {"credit_bytes": 256 * KIB},
}


@served(**HEAVY)
async def test_a_feed_of_large_rows_is_not_read_any_further(daemon):
    """Its credit in tuples would be enough for 2.5 GB."""
    async with peer(daemon) as feeder, peer(daemon) as slow:
        await feeder.open()
        await slow.subscribe("q", credit=0)
        for first in range(0, 1_000, 10):
            feeder.data(first, [(first + at, 0.0, "x" * 10 * KIB) for at in range(10)])
        await until(lambda: daemon.engine.withheld() == {"s": ["q"]})
        await asyncio.sleep(0.1)
        consumer = daemon.runner.outlets["q"].consumers[0]
        assert 256 * KIB <= consumer.held_bytes < 8 * 256 * KIB
        rows = 0
        while rows < 1_000:
            slow.credit(10)
            found = await rows_of(slow, 10)
            assert [row[0] for row in found] == list(range(rows, rows + 10))
            rows += 10
            assert consumer.held_bytes < 8 * 256 * KIB


@served(**HEAVY)
async def test_large_json_lines_are_not_read_any_further(daemon):
    async with lines(daemon) as feeder, peer(daemon) as slow:
        await slow.subscribe("q", credit=0)
        for k in range(1_000):
            feeder.say(f'{{"stream": "s", "tuple": {{"k": {k}, "name": "{"x" * 10 * KIB}"}}}}')
        await until(lambda: daemon.engine.withheld() == {"s": ["q"]})
        await asyncio.sleep(0.1)
        # Of 10 MiB; one read of a socket may bring a quarter of a mebibyte.
        assert daemon.runner.outlets["q"].consumers[0].held_bytes < 8 * 256 * KIB
        slow.credit(1_000)
        assert [row[0] for row in await rows_of(slow, 1_000)] == list(range(1_000))


@served(**HEAVY)
async def test_a_client_that_feeds_large_rows_and_subscribes_is_not_stuck(daemon):
    async with peer(daemon) as both:
        await both.open()
        await both.subscribe("q", credit=0)
        for first in range(0, 100, 10):
            both.data(first, [(first + at, 0.0, "x" * 10 * KIB) for at in range(10)])
        await until(lambda: daemon.engine.withheld() == {"s": ["q"]})
        both.credit(1_000)
        assert [row[0] for row in await rows_of(both, 100)] == list(range(100))


@served(engine={"credit_bytes": 256 * KIB})
async def test_a_feed_of_large_rows_that_nobody_waits_for_is_not_held_up(daemon):
    async with peer(daemon) as feeder:
        await feeder.open()
        for first in range(0, 1_000, 10):
            feeder.data(first, [(first + at, 0.0, "x" * 10 * KIB) for at in range(10)])
        await until(lambda: daemon.queries()[0].rows == 1_000)


@served(**WAITING)
async def test_a_client_that_feeds_and_subscribes_is_not_stuck(daemon):
    async with peer(daemon) as both:
        await both.open()
        await both.subscribe("q", credit=0)
        sent = await fill(both, daemon)
        both.credit(100_000)
        while both.session.channels[0].credit < 10:
            await both.hear()
        both.data(sent, [(sent, 0.0, "last")])
        rows = [row[0] for message in both.heard if isinstance(message, Result) for row in message.rows]
        while len(rows) <= sent:
            rows += [row[0] for row in (await both.hear(Result)).rows]
        assert rows == list(range(sent + 1))


def measured(daemon, metric):
    (line,) = (one for one in daemon.metrics.text().decode().splitlines() if one.startswith(f"millrace_{metric}"))
    return float(line.split()[-1])


@served(**WAITING)
async def test_why_and_the_metrics_name_the_slow_reader(daemon):
    await daemon.catalog.execute("CREATE QUERY neighbour AS SELECT v FROM s")
    async with peer(daemon) as feeder, peer(daemon) as slow:
        await feeder.open()
        await slow.subscribe("q", credit=0)
        assert measured(daemon, 'query_waiting{query="q"}') == 0
        sent = await fill(feeder, daemon)
        host, port = slow.writer.get_extra_info("sockname")
        name = f"{host}:{port} (test)#100"
        why = daemon.why("q")
        assert (why.reason, why.stream, why.held) == ("slow_reader", "s", sent)
        assert re.match(
            rf"The feeds of s wait since 20\S+ for subscriber {re.escape(name)} of query q: it has {sent} rows "
            r"\([\d.]+ KiB\) to read \(on_slow = 'wait'\)\. No row is lost\. .*limits\.on_slow = 'disconnect'",
            why.text,
        )
        assert daemon.why("neighbour").text == why.text
        reader = daemon.query("q").slow_reader
        assert (reader.kind, reader.name, reader.rows, reader.streams) == ("subscriber", name, sent, ["s"])
        assert daemon.query("neighbour").slow_reader is None
        assert daemon.streams()[0].withheld_for == ["q"]
        assert measured(daemon, 'query_waiting{query="q"}') == 1
        assert measured(daemon, 'query_waits_total{query="q"}') == 1
        assert measured(daemon, 'query_wait_seconds_total{query="q"}') > 0
        assert measured(daemon, 'source_withheld{stream="s"}') == 1
        assert measured(daemon, 'query_retained_tuples{query="q"}') == sent
        assert measured(daemon, 'query_retained_bytes{query="q"}') > 50 * sent
        assert measured(daemon, 'sink_unacked_bytes{query="q",sink="subscriptions"}') > 50 * sent
        await daemon.catalog.change(PauseQuery(name="q"))
        assert daemon.why("q").reason == "paused"
        assert daemon.why("neighbour").reason == "flowing"
        await daemon.catalog.change(ResumeQuery(name="q"))
        slow.credit(100_000)
        await until(lambda: daemon.why("q").reason == "flowing")
        assert measured(daemon, 'source_withheld{stream="s"}') == 0


@served(**WAITING)
async def test_a_sink_that_cannot_write_holds_back_the_feeds_and_says_why(daemon, tmp_path, monkeypatch):
    goes_on = threading.Event()
    monkeypatch.setattr(LineFile, "write", lambda self, *rows: goes_on.wait(HANG_SECONDS) and write(self, *rows))
    path = tmp_path / "rows.jsonl"
    await daemon.catalog.execute(f"CREATE SINK f FROM q WITH (type = 'file', path = '{path}', slow_limit = 50)")
    async with peer(daemon) as feeder:
        await feeder.open()
        sent = await fill(feeder, daemon)
        (sink,) = daemon.catalog.sinks()
        assert (sink.held, sink.dropped) == (sent, 0)
        assert sink.held_bytes > 50 * sent
        daemon.runner.outlets["q"].consumers[0].obstacle = "no space left on device"
        text = daemon.why("q").text
        assert f"for sink f of query q: it has {sent} rows" in text
        assert "cannot write: no space left on device (on_slow = 'wait')" in text
        goes_on.set()
        while feeder.session.channels[0].credit < 10:
            await feeder.hear()
        await until(lambda: path.read_text().count("\n") == sent)


write = LineFile.write


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
    """Counted in steps of the engine, because the API may have to wait for a step."""
    async with peer(daemon) as feeder:
        await feeder.open()
        rows = [(1, 0.0, "")] * 50_000
        for number in range(10):
            feeder.data(number * 50_000, rows)
        await until(lambda: daemon.engine.components()[0].queued > 100_000)
        reader, writer = await asyncio.open_connection(daemon.admin.host, daemon.admin.port)
        before = daemon.runner.steps
        writer.write(b"GET /api/v1/streams HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        answer = await reader.readline()
        waited = daemon.runner.steps - before
        assert b"200" in answer
        assert daemon.engine.components()[0].queued > 1_000, "the queue was worked off: this shows nothing"
        # A turn of the loop each for: reading the request, running the route, writing the answer; and some to spare.
        assert waited <= 12
        writer.close()


# -- the newest --------------------------------------------------------------------------------------------------------

PAIRS = Schema.of(k="text", v="bigint")


def pairs(*rows):
    """Rows of an update stream at times 0, 1, 2 and so on, by their own numbers."""
    return Batch.from_rows(PAIRS, rows, [v for _, v in rows])


def newest(room=0, press=lambda _: None, key=(0,)):
    hand = Hand(room)
    outlet = Outlet("q", PAIRS, Retention(5), press, key)
    slow = Subscription("x", Slow("latest", 2), hand)
    outlet.add(slow)
    return outlet, hand, slow


def test_who_is_slow_gets_the_newest_row_of_each_key_under_its_own_number():
    outlet, hand, slow = newest()
    outlet.deliver(0, pairs(("a", 0), ("b", 1), ("c", 2), ("a", 3)))
    outlet.deliver(4, pairs(("c", 4), ("d", 5)))
    assert (slow.held, slow.superseded, slow.dropped, slow.fill) == (4, 2, 0, 0)
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
    _, _, slow = newest(key=None)
    assert slow.slow.policy == "wait"


def test_rows_that_are_no_updates_any_more_replace_nothing():
    pressed: list[Backpressure] = []
    outlet, hand, slow = newest(press=pressed.append)
    outlet.deliver(0, pairs(("a", 0), ("b", 1), ("a", 2)))
    outlet.rekey(None)
    outlet.deliver(3, pairs(("a", 3), ("a", 4), ("a", 5)))
    assert (slow.held, slow.superseded, slow.slow.policy, pressed) == (5, 1, "wait", [SOFT, STRICT])
    hand.left = 10
    slow.pump()
    assert hand.rows == [(1, "b"), (2, "a"), (3, "a"), (4, "a"), (5, "a")]
    assert (slow.held, slow.delivered, pressed) == (0, 5, [SOFT, STRICT, NONE])


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
        await until(lambda: daemon.queries()[0].rows == 5)
        slow.credit(10)
        assert [tuple(row) for row in (await slow.hear(Result)).rows] == [("a", v) for v in range(5)]
