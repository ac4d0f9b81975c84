"""Time in a running server: requests for timestamps, feeds that delay a stream, late and refused tuples."""

import array
import asyncio
import fcntl
import json
import os
import termios
import time

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from millrace.client import AsyncClient
from millrace.observe.advice import Snapshot, advise
from millrace.observe.logs import sparing
from millrace.protocol import encode
from millrace.protocol.admin.data import from_data
from millrace.protocol.admin.streams import StreamView
from millrace.protocol.frames import frame
from millrace.protocol.messages import (
    Ack,
    Bye,
    Close,
    Closed,
    Data,
    DataArrow,
    Error,
    Ets,
    EtsRequest,
    Open,
    Opened,
    Punctuation,
    Result,
)
from millrace.run.clock import Clock
from tests.patience import HANG_SECONDS
from tests.server.harness import lines, peer, running, served, until
from tests.server.test_api import ask, get

DAY = 86_400_000_000
BUSY = "CREATE STREAM a (ts TIMESTAMP, k BIGINT) WITH (time = 'ts');"
QUERY = "CREATE QUERY u WITH (order = 'event') AS SELECT ts, k FROM a UNION ALL SELECT ts, k FROM b"


def union(with_=""):
    """A busy stream and a silent one, in one order of time. No request times out unless a test says when."""
    with_ += "" if "ets_retry" in with_ or "ets = " in with_ else ", ets_retry = '1 h'"
    return f"{BUSY} CREATE STREAM b (ts TIMESTAMP, k BIGINT) WITH (time = 'ts'{with_}); {QUERY}"


def stream(daemon, name):
    return next(found for found in daemon.streams() if found.name == name)


def rows(daemon, query="u"):
    return next(found for found in daemon.queries() if found.name == query).rows


def asked(daemon, name="b"):
    """How the requests of a stream ended."""
    requests = next(one for one in daemon.metrics.collect() if one.name == "millrace_ets_request_seconds")
    return {
        sample.labels["outcome"]: sample.value
        for sample in requests.samples
        if sample.name.endswith("_count") and sample.labels["stream"] == name and sample.value
    }


def punctuations(daemon, cause):
    return daemon.metrics.registry.get_sample_value("millrace_punctuation_total", {"cause": cause})


async def feeding(peer, *rows, stream="a", channel=0, **options):
    """A separate feed, with these rows sent."""
    await opening(peer, stream, channel, **options)
    peer.data(0, list(rows), channel=channel)
    await peer.hear(Ack)


async def opening(peer, stream, channel=0, producer="p", **options):
    """A feed that is open, whatever else is said meanwhile."""
    peer.say(Open(channel, stream, None, producer, **options))
    return await peer.hear(Opened)


# -- requests and answers ----------------------------------------------------------------------------------------------


@served(union())
async def test_a_client_is_asked_and_its_answer_frees_what_waits(daemon):
    async with peer(daemon) as busy, peer(daemon) as silent:
        await silent.open("b", answers=True)
        await feeding(busy, (100, 1), (200, 2))
        request = await silent.hear(EtsRequest)
        assert (request.channel, request.need_us) == (0, 100)
        silent.say(Ets(0, request.request, 150))
        again = await silent.hear(EtsRequest)
        assert (again.request > request.request, again.need_us) == (True, 200)
        silent.say(Ets(0, again.request, 500))
        await until(lambda: rows(daemon) == 2)
        await until(lambda: asked(daemon) == {"answered": 2})
        assert stream(daemon, "b").punctuations_by_cause["ets"] == 2


@served(union(", ets_retry = '5 ms'"))
async def test_a_client_that_never_answers_is_asked_again_and_counted(daemon):
    async with peer(daemon) as busy, peer(daemon) as silent:
        await silent.open("b", answers=True)
        await feeding(busy, (100, 1))
        first = await silent.hear(EtsRequest)
        second = await silent.hear(EtsRequest)
        assert second.request > first.request
        assert asked(daemon)["timeout"] >= 1
        assert rows(daemon) == 0
        why = await get(daemon, "/api/v1/queries/u/why")
        assert why["reason"] in ("no_answer", "asked")
        assert (why["operator"], why["input"], why["feed"]) == ("u.union1", "b.source", "p")


@served(union(", ets_retry = '5 ms'"))
async def test_an_answer_that_comes_late_counts_all_the_same(daemon):
    async with peer(daemon) as busy, peer(daemon) as silent:
        await silent.open("b", answers=True)
        await feeding(busy, (100, 1))
        request = await silent.hear(EtsRequest)
        await until(lambda: asked(daemon).get("timeout"))
        silent.say(Ets(0, request.request, 100))
        await until(lambda: rows(daemon) == 1)


@served(union(", ets_retry = '1 h'"))
async def test_answers_below_the_need_below_what_was_sent_and_none_at_all(daemon):
    async with peer(daemon) as busy, peer(daemon) as silent:
        await feeding(silent, (90, 0), stream="b", answers=True)
        await feeding(busy, (100, 1))
        request = await silent.hear(EtsRequest)
        silent.say(Ets(0, request.request, 50))
        await until(lambda: asked(daemon) == {"below": 1})
        assert stream(daemon, "b").mark_us == 90, "a promise that was kept already changes nothing"
        # The same need is not asked for again so soon, and nothing has been released by less than it.
        assert rows(daemon) == 1
        why = await get(daemon, "/api/v1/queries/u/why")
        assert why["reason"] == "answered_below"
        silent.say(Punctuation(0, 100))
        await until(lambda: rows(daemon) == 2)
        busy.data(1, [(300, 3)])
        request = await silent.hear(EtsRequest)
        silent.say(Ets(0, request.request, None))
        await until(lambda: asked(daemon) == {"below": 2})


@served(union())
async def test_a_client_that_leaves_while_it_is_asked_no_longer_holds_anything(daemon):
    async with peer(daemon) as busy, peer(daemon) as one, peer(daemon) as other:
        await one.open("b", producer="one", answers=True)
        await feeding(other, (150, 5), stream="b", producer="other")
        await feeding(busy, (100, 1))
        await one.hear(EtsRequest)
        one.writer.transport.abort()
        await until(lambda: rows(daemon) >= 1)
        assert asked(daemon) == {"closed": 1}


@served(union() + "; CREATE STREAM c (k BIGINT)")
async def test_an_answer_on_a_channel_that_was_not_asked_breaks_the_rules(daemon):
    async with peer(daemon) as busy, peer(daemon) as silent:
        await silent.open("b", answers=True)
        await opening(silent, "c", 1, answers=True)
        await feeding(busy, (100, 1))
        request = await silent.hear(EtsRequest)
        silent.say_body(Ets(1, request.request, 500))
        error = await silent.hear(Error)
        assert error.code == "unexpected_message"
        assert await silent.hear() is None


@served(union())
async def test_nobody_is_asked_while_nobody_waits(daemon):
    async with peer(daemon) as busy, peer(daemon) as other:
        await feeding(other, (500, 0), stream="b", answers=True)
        await feeding(busy, (100, 1), (200, 2), answers=True)
        await until(lambda: rows(daemon) == 2)
        await daemon.runner.wait_drained()
        steps = daemon.runner.steps
        for _ in range(200):
            await asyncio.sleep(0)
        # The server requests a's time once, because b's row at 500 waits; it does not request b's.
        assert not any(isinstance(message, EtsRequest) for message in other.heard)
        assert daemon.runner.steps - steps <= 2


@pytest.mark.parametrize("answer", ["clock", "callback"])
@served(union())
async def test_the_client_answers(daemon, answer):
    now_us = time.time_ns() // 1_000
    needs = []

    def called(need_us):
        needs.append(need_us)
        return need_us

    address = str(daemon.listen)
    async with AsyncClient(address) as client:
        silent = await client.open("b", answer="clock" if answer == "clock" else called)
        busy = await client.open("a")
        await busy.send([(now_us, 1)])
        await until(lambda: rows(daemon) == 1)
        assert needs == ([] if answer == "clock" else [now_us])
        await silent.close()
        await busy.close()


@served(union(), engine={"credit": 1})
async def test_the_client_never_answers_above_a_row_that_it_still_holds(daemon):
    """Its credit is used up: the second row waits in the client, and the answer must not overtake it."""
    now_us = time.time_ns() // 1_000
    async with AsyncClient(str(daemon.listen)) as client:
        silent = await client.open("b", answer=lambda need_us: need_us + 10_000_000)
        busy = await client.open("a")
        await silent.send([(now_us + row, row) for row in range(20)])
        await busy.send([(now_us + 10, 99)])
        await silent.flush()
        await busy.flush()
        await until(lambda: rows(daemon) >= 12)
        assert stream(daemon, "b").late == 0
        await silent.close()
        await busy.close()


# -- feeds that go and come --------------------------------------------------------------------------------------------

GRACE = "CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', grace = '1 h'); CREATE QUERY q AS SELECT k FROM s"


@served(GRACE)
async def test_a_broken_connection_holds_for_the_grace_and_comes_back(daemon):
    async with peer(daemon) as stays:
        async with peer(daemon) as goes:
            await feeding(goes, (100, 2), stream="s", producer="goes")
            await feeding(stays, (1_000, 1), stream="s", producer="stays")
            goes.writer.transport.abort()
        await until(lambda: stream(daemon, "s").connections == 1)
        await daemon.runner.wait_drained()
        assert stream(daemon, "s").mark_us == 100
        assert [feed.leaves_at_us is None for feed in stream(daemon, "s").feeds] == [False, True]
        async with peer(daemon) as back:
            opened = await back.open("s", producer="goes")
            assert isinstance(opened, Opened)
            assert opened.next_sequence == 1
            assert opened.credit > 0
            back.data(1, [(110, 3)])
            await back.hear(Ack)
            assert (stream(daemon, "s").mark_us, stream(daemon, "s").late) == (110, 0)
            back.say(Close(0))
            await back.hear(Closed)
            await until(lambda: stream(daemon, "s").mark_us == 1_000)


@served(GRACE)
async def test_who_says_goodbye_holds_nothing(daemon):
    async with peer(daemon) as stays, lines(daemon) as nc:
        async with peer(daemon) as goes:
            await feeding(goes, (100, 2), stream="s", producer="goes")
            await feeding(stays, (1_000, 1), stream="s", producer="stays")
            assert stream(daemon, "s").mark_us == 100
            goes.say(Bye(""))
            await until(lambda: stream(daemon, "s").mark_us == 1_000)
        nc.say('{"stream": "s", "tuple": {"ts": 1500, "k": 1}}')
        await until(lambda: stream(daemon, "s").connections == 2)
        stays.data(1, [(2_000, 1)])
        await until(lambda: stream(daemon, "s").mark_us == 1_500)
        nc.writer.write_eof()
        await until(lambda: stream(daemon, "s").mark_us == 2_000)


@served(GRACE.replace(", grace = '1 h'", ""), engine={"grace": "20 ms"})
async def test_the_servers_own_grace_ends_by_itself(daemon):
    assert stream(daemon, "s").grace_us == 20_000
    async with peer(daemon) as stays, peer(daemon) as goes:
        await feeding(goes, (100, 2), stream="s", producer="goes")
        await feeding(stays, (1_000, 1), stream="s", producer="stays")
        goes.writer.transport.abort()
        await until(lambda: stream(daemon, "s").mark_us == 1_000)


@served(GRACE)
async def test_a_feed_that_is_taken_over_releases_nothing(daemon):
    async with peer(daemon) as stays, peer(daemon) as first, peer(daemon) as second:
        await feeding(first, (100, 2), stream="s", producer="p")
        await feeding(stays, (1_000, 1), stream="s", producer="stays")
        assert (await second.open("s", producer="p")).next_sequence == 1
        assert (await first.hear(Closed)).code == "taken_over"
        assert stream(daemon, "s").mark_us == 100
        assert stream(daemon, "s").connections == 2
        # A feed without tuples can be taken over as well: the new connection gets its credit.
        await opening(first, "s", 1, "idle")
        assert (await opening(second, "s", 1, "idle")).credit > 0


# -- guesses by the clock ----------------------------------------------------------------------------------------------


class Watch:
    """A clock that a test moves."""

    def __init__(self, us=1_000):
        self.us = us
        self.held_back_us = 0

    def now_us(self):
        return self.us

    def notice(self):
        return 0


def by_watch(test):
    """A test with a silent stream whose feeds may be guessed at, and a clock that the test moves."""

    async def play():
        watch = Watch()
        async with asyncio.timeout(HANG_SECONDS), running(union(", max_skew = '0 s'"), clock=watch) as daemon:
            await test(daemon, watch)

    def wrapped():
        import uvloop

        uvloop.run(play())

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


def unacknowledged(writer):
    """How many bytes have been written to this connection and are not in the server's socket yet."""
    count = array.array("i", [0])
    fcntl.ioctl(writer.get_extra_info("socket").fileno(), termios.TIOCOUTQ, count)
    return count[0]


@by_watch
async def test_a_guess_never_overtakes_bytes_that_have_arrived(daemon, watch):
    """The server is busy for long between its last look at the sockets and a step; meanwhile an honest tuple comes."""
    async with peer(daemon) as busy, peer(daemon) as silent:
        await feeding(silent, (1_000, 1), stream="b")
        await feeding(busy, (5_000, 2))
        await daemon.runner.wait_drained()
        said = silent.session.say(Data(0, 1, [(1_500, 3)]))
        notice = watch.notice

        def busy_meanwhile():
            watch.notice = notice
            watch.us = 1_500
            os.write(silent.writer.get_extra_info("socket").fileno(), said)
            while unacknowledged(silent.writer):
                pass
            watch.us = 20_000
            return notice()

        watch.notice = busy_meanwhile
        daemon.runner.watch(daemon.runner.outlets["u"], True)
        await until(lambda: stream(daemon, "b").tuples == 2)
        assert stream(daemon, "b").late == 0
        await until(lambda: rows(daemon) == 2)
        # After that was read, the clock may answer: 1,500 and the time that passes from now on.
        while rows(daemon) < 3:
            watch.us += 100
            await asyncio.sleep(0)
        assert stream(daemon, "b").punctuations_by_cause["ets"] >= 1


@by_watch
async def test_half_a_frame_stops_the_clock_of_its_feed(daemon, watch):
    async with peer(daemon) as busy, peer(daemon) as silent:
        await feeding(silent, (1_000, 1), stream="b")
        await feeding(busy, (5_000, 2))
        said = silent.session.say(Data(0, 1, [(1_500, 3)]))
        silent.say_raw(said[:7])
        await until(lambda: daemon.engine.source("b").feeds.get("p").held_since is not None)
        watch.us = 50_000
        daemon.runner.watch(daemon.runner.outlets["u"], True)
        await daemon.runner.wait_drained()
        assert stream(daemon, "b").mark_us == 1_000
        assert (await get(daemon, "/api/v1/queries/u/why"))["reason"] == "unread"
        silent.say_raw(said[7:])
        await silent.hear(Ack)
        await until(lambda: rows(daemon) == 2)
        assert stream(daemon, "b").late == 0
        assert daemon.engine.source("b").feeds.get("p").held_since is None


@by_watch
async def test_half_a_frame_of_a_connection_that_was_taken_over_holds_nothing(daemon, watch):
    async with peer(daemon) as first, peer(daemon) as second:
        await feeding(first, (1_000, 1), stream="b")
        first.say_raw(first.session.say(Data(0, 1, [(1_500, 3)]))[:7])
        feed = daemon.engine.source("b").feeds.get("p")
        await until(lambda: feed.held_since is not None)
        assert (await opening(second, "b")).next_sequence == 1
        assert feed.held_since is None
        assert daemon.engine.source("b").feeds.get("p") is feed


@by_watch
async def test_half_a_line_stops_the_clock_of_its_feed_until_the_policy_is_lifted(daemon, watch):
    async with lines(daemon) as nc:
        nc.say('{"stream": "b", "tuple": {"ts": 1000, "k": 1}}')
        nc.writer.write(b'{"stream": "b", "tu')
        feeds = daemon.engine.source("b").feeds
        await until(lambda: len(feeds) == 1 and all(feed.held_since is not None for feed in feeds))
        await daemon.catalog.execute("ALTER STREAM b SET (max_skew = 'none')")
        assert not daemon.runner.guessing
        nc.say('ple": {"ts": 2000, "k": 1}}')
        await until(lambda: stream(daemon, "b").tuples == 2 and all(feed.held_since is None for feed in feeds))


@served(union(", max_skew = '10 ms'"))
async def test_a_timer_alone_releases_what_waits(daemon):
    """No more input arrives, so the server must check the clock itself. It cannot request timestamps by JSON lines."""
    now_us = time.time_ns() // 1_000
    async with lines(daemon) as busy, lines(daemon) as silent:
        silent.say(json.dumps({"stream": "b", "tuple": {"ts": now_us, "k": 1}}))
        await until(lambda: stream(daemon, "b").tuples == 1)
        busy.say(json.dumps({"stream": "a", "tuple": {"ts": now_us + 5_000, "k": 2}}))
        await until(lambda: rows(daemon) == 2)
        await daemon.runner.wait_drained()
        steps = daemon.runner.steps
        for _ in range(200):
            await asyncio.sleep(0)
        assert daemon.runner.steps == steps, "and then nothing is left to do"


# -- the system's clock is set -----------------------------------------------------------------------------------------


def test_the_clock_is_set_a_day_forward_and_two_back():
    sql = "CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k, ts FROM s"

    async def play():
        off_us = 0
        clock = Clock(lambda: time.time_ns() // 1_000 + off_us)
        async with asyncio.timeout(HANG_SECONDS), running(sql, clock=clock) as daemon:
            with capture_logs() as logs:
                async with peer(daemon) as feeder, peer(daemon) as reader:
                    await reader.subscribe("q")
                    await feeder.open("s")
                    found = []
                    for number, by_us in enumerate((0, DAY, -2 * DAY, 0)):
                        off_us += by_us
                        feeder.data(number, [(number,)])
                        found += (await reader.hear(Result)).rows
            assert len(daemon.context.connections) >= 0
            stamps = [ts for _, ts in found]
            assert [k for k, _ in found] == [0, 1, 2, 3]
            assert stamps == sorted(stamps)
            assert DAY <= stamps[1] - stamps[0] < DAY + 60_000_000
            assert 0 <= stamps[3] - stamps[1] < 60_000_000
            told = [line["event"] for line in logs if "clock" in line["event"]]
            assert len(told) == 2
            assert "jumped forward" in told[0]
            assert "set back" in told[1]

    import uvloop

    uvloop.run(play())


def test_a_jump_of_the_clock_is_no_silence_and_no_absence():
    """A feed in its grace stays, and a guess does not take the jump for time that has passed."""

    async def play():
        off_us = 0
        clock = Clock(lambda: time.time_ns() // 1_000 + off_us)
        sql = union(", max_skew = '1 min', grace = '1 h'")
        async with asyncio.timeout(HANG_SECONDS), running(sql, clock=clock) as daemon:
            now_us = daemon.runner.now_us()
            async with peer(daemon) as busy, peer(daemon) as silent:
                await feeding(silent, (now_us, 1), stream="b")
                silent.writer.transport.abort()
                await until(lambda: stream(daemon, "b").connections == 0)
                await feeding(busy, (now_us + 30_000_000, 2))
                off_us = DAY // 2
                daemon.runner.watch(daemon.runner.outlets["u"], True)
                await until(lambda: daemon.runner.now_us() - now_us > DAY // 2)
                await daemon.runner.wait_drained()
                assert stream(daemon, "b").mark_us == now_us
                assert len(stream(daemon, "b").feeds) == 1

    import uvloop

    uvloop.run(play())


# -- late, and too far -------------------------------------------------------------------------------------------------

LATE = "CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts'); CREATE QUERY q AS SELECT k FROM s"


@served(LATE)
async def test_late_tuples_are_told_counted_listed_and_tailed(daemon):
    async with lines(daemon) as nc, lines(daemon) as reader:
        reader.say('{"subscribe": "s.late"}')
        await until(lambda: daemon.runner.outlets["s.late"].consumers)
        nc.say('{"stream": "s", "feed": "f", "tuple": {"ts": "2026-01-01T00:00:09Z", "k": 1}}')
        nc.say('{"stream": "s", "feed": "f", "tuple": {"ts": "2026-01-01T00:00:07Z", "k": 2}}')
        told = (await nc.hear())["late"]
        assert told.pop("at").startswith("20")
        assert told == {
            "stream": "s",
            "tuple": {"ts": "2026-01-01T00:00:07Z", "k": 2},
            "ts": "2026-01-01T00:00:07Z",
            "mark": "2026-01-01T00:00:09Z",
            "late_by_us": 2_000_000,
            "feed": "f",
        }
        said = await reader.hear()
        assert (said["query"], said["seq"]) == ("s.late", 0)
        assert (said["row"]["k"], said["row"]["late_by_us"]) == (2, 2_000_000)
        assert said["row"]["feed"].endswith("/f")
    listed = {found["name"]: found for found in await get(daemon, "/api/v1/streams")}
    assert list(listed) == ["s", "s.late"]
    assert (listed["s"]["late"], listed["s.late"]["tuples"]) == (1, 1)
    assert [field[0] for field in listed["s.late"]["fields"]] == ["ts", "k", "late_by_us", "mark", "feed", "at"]
    assert 'millrace_source_late_tuples_total{stream="s"} 1.0' in await get(daemon, "/metrics")


@served(LATE)
async def test_a_client_that_breaks_its_own_word_is_named(daemon):
    with capture_logs() as logs:
        async with peer(daemon) as feeder:
            await feeder.open("s", producer="sensor-7")
            feeder.say(Punctuation(0, 1_000))
            for number in range(5):
                feeder.data(number, [(900 + number, 1)])
                await feeder.hear(Ack)
            assert stream(daemon, "s").feeds[0].broke_promise == 5
            assert stream(daemon, "s").broke_promise == 5
    broke = [line for line in logs if "older than its punctuation" in line["event"]]
    assert len(broke) == 1, "told once in a while, not for each tuple"
    assert (broke[0]["stream"], broke[0]["feed"]) == ("s", "sensor-7")


@served(LATE, limits={"max_ahead": "1 h"})
async def test_a_time_absurdly_far_ahead_is_refused_with_its_frame(daemon):
    now_us = time.time_ns() // 1_000
    async with peer(daemon) as feeder:
        await feeder.open("s")
        bodies = [
            Data(0, 0, [(now_us, 1)]),
            Data(0, 1, [(now_us + 1, 2), (now_us + DAY, 3)]),
            Data(0, 3, [(now_us, 4)]),
        ]
        feeder.say_raw(b"".join(frame(encode(body)) for body in bodies))
        feeder.session.channels[0].next_sequence = 4
        error = await feeder.hear(Error)
        assert (error.code, error.sequence, error.row) == ("bad_value", 1, 1)
        assert error.expected.startswith("at most 20")
        assert "max_ahead" in error.expected
        assert error.got.startswith("20")
        assert (await feeder.hear(Ack)).sequence == 4
        found = stream(daemon, "s")
        assert (found.tuples, found.rejected, found.newest_us) == (2, 2, now_us)


@served(LATE + "; CREATE STREAM far (ts TIMESTAMP) WITH (time = 'ts', max_ahead = '10000 days')")
async def test_by_default_a_day_ahead_is_as_far_as_a_tuple_may_be(daemon):
    now_us = time.time_ns() // 1_000
    async with lines(daemon) as nc:
        nc.say(json.dumps({"stream": "s", "tuple": {"ts": now_us + 2 * DAY, "k": 1}}))
        error = (await nc.hear())["error"]
        assert (error["code"], error["line"]) == ("bad_value", 1)
        assert "field ts: expected at most" in error["text"]
        nc.say(json.dumps({"stream": "s", "tuple": {"ts": now_us, "k": 1}}))
        nc.say(json.dumps({"stream": "far", "tuple": {"ts": now_us + 2 * DAY}}))
        await until(lambda: stream(daemon, "s").tuples == stream(daemon, "far").tuples == 1)
        await daemon.catalog.execute("ALTER STREAM s SET (max_ahead = '3 days')")
        nc.say(json.dumps({"stream": "s", "tuple": {"ts": now_us + 2 * DAY, "k": 1}}))
        await until(lambda: stream(daemon, "s").tuples == 2)


FIT_AND_FAR = LATE.replace("(time = 'ts')", "(time = 'ts', max_ahead = '1 h')")
FAR = "tuples too far in the future were refused"


async def by_lines(daemon, rows):
    async with lines(daemon) as nc:
        for ts, k in rows:
            nc.say(json.dumps({"stream": "s", "feed": "f", "tuple": {"ts": ts, "k": k}}))
            assert "error" in await nc.hear()


async def by_frames(daemon, rows):
    async with peer(daemon) as feeder:
        await feeder.open("s", producer="f")
        for number, row in enumerate(rows):
            feeder.data(number, [row])
            await feeder.hear(Error)


async def by_arrow(daemon, rows):
    async with peer(daemon) as feeder:
        await feeder.open("s", producer="f")
        for number, (ts, k) in enumerate(rows):
            table = pa.table({"ts": pa.array([ts], pa.timestamp("us", "UTC")), "k": [k]})
            payload = pa.BufferOutputStream()
            with pa.ipc.new_stream(payload, table.schema) as writer:
                writer.write_table(table)
            feeder.say(DataArrow(0, number, 1, payload.getvalue().to_pybytes()))
            await feeder.hear(Error)


@pytest.mark.parametrize("feed", [by_lines, by_frames, by_arrow])
def test_what_is_refused_is_counted_told_and_logged_alike_by_all_ways_in(feed):
    """Two tuples a day ahead and one that does not fit its columns."""

    @served(FIT_AND_FAR)
    async def play(daemon):
        far_us = time.time_ns() // 1_000 + DAY
        with capture_logs() as logs:
            await feed(daemon, [(far_us, 1), (far_us, 2), (5, "five")])
            sparing.flush(everything=True)
        shown = {one["name"]: one for one in await get(daemon, "/api/v1/streams")}["s"]
        assert (shown["tuples"], shown["too_far_ahead"], shown["rejected"]) == (0, 2, 3)
        assert 'millrace_source_rejected_total{stream="s"} 3.0' in await get(daemon, "/metrics")
        far = [line for line in logs if line["event"] == FAR]
        assert sum(line["tuples"] for line in far) == 2
        assert {(line["stream"], line["feed"].rpartition("/")[2]) for line in far} == {("s", "f")}
        (refused,) = [line for line in logs if line["event"] == "a client was refused"]
        assert refused["times"] == 1
        advice = [one.code for one in advise(Snapshot(daemon.describe(), streams=[from_data(StreamView, shown)]))]
        assert [code for code in advice if code in ("clock_ahead", "rejected")] == ["clock_ahead", "rejected"]
        await daemon.catalog.execute("DROP QUERY q; DROP STREAM s; CREATE STREAM s (ts TIMESTAMP) WITH (time = 'ts')")
        assert (stream(daemon, "s").too_far_ahead, stream(daemon, "s").rejected) == (0, 0), (
            "another stream of that name"
        )

    play()


# -- what is shown -----------------------------------------------------------------------------------------------------


@served(union())
async def test_why_and_the_measures_of_waiting(daemon):
    async with peer(daemon) as busy, peer(daemon) as silent:
        await feeding(silent, (90, 0), stream="b", producer="sensor-7")
        await feeding(busy, (100, 1), (200, 2))
        why = await get(daemon, "/api/v1/queries/u/why")
        assert set(why) == {
            "text", "reason", "operator", "input", "stream", "feed", "since", "held", "asked", "answered", "group",
            "try",
        }  # fmt: skip
        assert (why["reason"], why["stream"], why["feed"], why["held"]) == ("sending", "b", "sensor-7", 2)
        async with asyncio.timeout(HANG_SECONDS):
            while why["reason"] != "silent":  # a second after its last tuple
                why = await get(daemon, "/api/v1/queries/u/why")
        assert (why["stream"], why["feed"], why["held"]) == ("b", "sensor-7", 2)
        status, _, said = await ask(daemon, "GET", "/api/v1/queries/v/why")
        assert (status, said["code"]) == (404, "unknown_query")
        (component,) = await get(daemon, "/api/v1/components")
        inputs = {(given["operator"], given["from"]): given for given in component["inputs"]}
        holding, held = inputs["u.union1", "b.source"], inputs["u.union1", "a.source"]
        assert (held["queue_tuples"], held["peak_queue_tuples"], held["register_us"]) == (2, 2, 100)
        assert (holding["queue_tuples"], holding["register_us"]) == (0, 90)
        silent.say(Punctuation(0, 1_000))
        await until(lambda: rows(daemon) == 3)
        text = await get(daemon, "/metrics")
        assert 'millrace_punctuation_total{cause="client"} 1.0' in text
        assert 'millrace_ets_request_seconds_count{outcome="timeout",stream="a"} 0.0' in text
        waited = next(line for line in text.splitlines() if "idle_wait" in line and 'input="b.source"' in line)
        assert float(waited.split()[-1]) > 0
        before = punctuations(daemon, "client")
    await daemon.catalog.execute("DROP QUERY u; DROP STREAM b")
    assert punctuations(daemon, "client") == before == 1, "counters never go back, whatever is dropped"


@served(union())
async def test_a_stream_with_no_feed_at_all(daemon):
    async with peer(daemon) as busy:
        await feeding(busy, (100, 1))
        why = await get(daemon, "/api/v1/queries/u/why")
        assert (why["reason"], why["feed"], why["try"]) == ("no_feed", None, "millrace feed b FILE")


@served(union())
async def test_thousands_of_feeds_over_few_connections(daemon):
    """Progress is the least over all of them, whichever it is."""
    async with peer(daemon) as one, peer(daemon) as two:
        for number in range(500):
            for speaker, name in ((one, "x"), (two, "y")):
                await opening(speaker, "b", number, f"{name}{number}")
                speaker.data(0, [(1_000 + number, 0)], channel=number)
        await until(lambda: stream(daemon, "b").tuples == 1_000)
        assert stream(daemon, "b").mark_us == 1_000
        for number in range(500):
            one.say(Punctuation(number, 5_000))
            two.say(Close(number))
        await until(lambda: stream(daemon, "b").mark_us == 5_000)
        assert stream(daemon, "b").connections == 500
