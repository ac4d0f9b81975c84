"""What a peer may cost before the server knows it, and how long a silent one stays."""

import asyncio
import threading

import pytest
import uvloop

from millrace.client import AsyncClient, Client
from millrace.net.connection import GREETING_BYTES, GREETING_SECONDS, Connection
from millrace.net.frames import PING_SECONDS, PONG_SECONDS
from millrace.net.guesses import ADDRESSES, DELAY_SECONDS, UNDER_WAY, Guesses, address_of
from millrace.net.lines import LINE_SECONDS
from millrace.protocol import encode, frame
from millrace.protocol.messages import Error, Hello, Open, Ping, Pong, Welcome
from tests.patience import HANG_SECONDS
from tests.server.harness import SCHEMA_SQL, FakeTimers, lines, peer, running, settle, until

TOKEN = "a-long-token"
EPSILON = 0.001


def timed(sql=SCHEMA_SQL, **sections):
    """A test of a running daemon whose connections go by timers that the test advances."""

    def decorate(test):
        def wrapped(tmp_path):
            timers = FakeTimers()
            given = dict(sections)
            if given.pop("token", False):
                (tmp_path / "token").write_text(TOKEN)
                given["server"] = {**given.get("server", {}), "token_file": tmp_path / "token"}

            async def play():
                async with asyncio.timeout(HANG_SECONDS), running(sql, timers=timers, **given) as daemon:
                    await test(daemon, timers)

            uvloop.run(play())

        wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
        return wrapped

    return decorate


async def connected(daemon, number=1):
    await until(lambda: len(daemon.context.connections) == number)


async def is_open(stranger):
    """Whether the server still has the connection, once it has heard what was said."""
    await settle()
    return not stranger.reader.at_eof()


# -- frames ------------------------------------------------------------------------------------------------------------


@timed()
async def test_a_peer_that_says_nothing_is_gone_after_five_seconds(daemon, timers):
    async with peer(daemon, greet=False) as stranger:
        await connected(daemon)
        timers.advance(GREETING_SECONDS - EPSILON)
        assert await is_open(stranger)
        timers.advance(2 * EPSILON)
        assert await stranger.hear() is None
    assert daemon.metrics.refusals.counts["listen", "silent"] == 1
    assert not daemon.context.strangers


@timed()
async def test_half_a_greeting_gives_no_more_time(daemon, timers):
    async with peer(daemon, greet=False) as stranger:
        await connected(daemon)
        for byte in frame(encode(Hello(1, "slow")))[:8]:
            stranger.say_raw(bytes((byte,)))
            await is_open(stranger)
            timers.advance((GREETING_SECONDS + EPSILON) / 8)
        assert (await stranger.hear(Error)).code == "too_slow"
        assert await stranger.hear() is None


@pytest.mark.parametrize("size", [GREETING_BYTES + 1, 2**20, 16 * 2**20])
def test_a_stranger_announces_four_kibibytes_at_the_most(size, tmp_path):
    @timed()
    async def play(daemon, timers):
        async with peer(daemon, greet=False) as stranger:
            stranger.say_raw(size.to_bytes(4, "big") + b"\x94\x01")
            error = await stranger.hear(Error)
            assert error.code == "frame_too_large"
            assert str(GREETING_BYTES) in error.text
            assert await stranger.hear() is None

    play(tmp_path)


@timed()
async def test_what_follows_the_greeting_in_one_write_has_the_usual_limit(daemon, timers):
    async with peer(daemon, greet=False) as stranger:
        hello, wish = Hello(1, "quick"), Open(0, "s", None, "p" * (2 * GREETING_BYTES))
        stranger.session.say(hello)
        stranger.say_raw(frame(encode(hello)) + frame(encode(wish)))
        assert isinstance(await stranger.hear(), Welcome)
        # It was read as a whole: what is wrong is in it.
        assert (await stranger.hear(Error)).code == "bad_value"


@timed()
async def test_a_silent_peer_is_asked_and_then_given_up(daemon, timers):
    async with peer(daemon) as silent:
        timers.advance(PING_SECONDS - EPSILON)
        assert await is_open(silent)
        assert len(silent.heard) == 1
        timers.advance(2 * EPSILON)
        assert isinstance(await silent.hear(), Ping)
        timers.advance(PONG_SECONDS - 2 * EPSILON)
        assert await is_open(silent)
        timers.advance(4 * EPSILON)
        assert (await silent.hear(Error)).code == "silent"
        assert await silent.hear() is None
    assert daemon.metrics.refusals.counts["listen", "silent"] == 1


@timed()
async def test_a_peer_that_answers_stays(daemon, timers):
    async with peer(daemon) as idle:
        for _ in range(5):
            timers.advance(PING_SECONDS)
            ping = await idle.hear(Ping)
            timers.advance(PONG_SECONDS - EPSILON)
            idle.say(Pong(ping.token))
            await is_open(idle)
        idle.say(Ping(7))
        assert (await idle.hear(Pong)).token == 7


@timed()
async def test_half_a_frame_byte_by_byte_keeps_nobody(daemon, timers):
    async with peer(daemon) as trickling:
        trickling.say_raw((2**20).to_bytes(4, "big"))
        for _ in range(18):
            trickling.say_raw(b"x")
            await is_open(trickling)
            timers.advance((PING_SECONDS + PONG_SECONDS + EPSILON) / 18)
        assert (await trickling.hear(Error)).code == "silent"
        assert await trickling.hear() is None


@timed()
async def test_a_peer_that_the_server_does_not_read_is_not_given_up(daemon, timers):
    async with peer(daemon) as held:
        (connection,) = daemon.context.connections
        connection.hold_reading("a test")
        timers.advance(10 * PING_SECONDS)
        connection.let_read("a test")
        timers.advance(PING_SECONDS - EPSILON)
        held.say(Ping(1))
        assert (await held.hear(Pong)).token == 1


@timed(limits={"idle_seconds": 200})
async def test_an_answer_to_a_ping_does_not_make_a_peer_busy(daemon, timers):
    async with peer(daemon) as idle:
        (connection,) = daemon.context.connections
        before = connection.heard_at
        timers.advance(PING_SECONDS)
        idle.say(Pong((await idle.hear(Ping)).token))
        await is_open(idle)
        assert connection.heard_at == before


@timed()
async def test_idle_python_clients_answer(daemon, timers):
    heard_at = {}
    receive = Connection.data_received

    def received(connection, data):
        receive(connection, data)
        heard_at[connection] = timers.time()

    address = f"{daemon.listen.host}:{daemon.listen.port}"
    ready, over = threading.Event(), threading.Event()
    failures = []

    def idle():
        try:
            with Client(address, heartbeat=1_000) as client:
                client.subscribe("q")
                ready.set()
                over.wait()  # the program is elsewhere
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=idle)
    patch = pytest.MonkeyPatch()
    patch.setattr(Connection, "data_received", received)
    thread.start()
    try:
        async with AsyncClient(address, heartbeat=1_000, reconnect=None) as client:
            await client.open("s")
            await until(ready.is_set)
            both = tuple(daemon.context.connections)
            for _ in range(12):
                timers.advance(PONG_SECONDS - EPSILON)
                # A thread answers when it has its turn; one that does not answer keeps this test waiting.
                await until(lambda: all(timers.time() - heard_at[each] < PING_SECONDS for each in both))
            assert tuple(daemon.context.connections) == both
    finally:
        over.set()
        await asyncio.to_thread(thread.join)
        patch.undo()
    assert not failures


# -- JSON lines --------------------------------------------------------------------------------------------------------


@timed()
async def test_a_person_who_types_is_never_cut_off_between_lines(daemon, timers):
    async with lines(daemon) as nc:
        await connected(daemon)
        timers.advance(GREETING_SECONDS - EPSILON)
        nc.writer.write(b'{"subscribe": ')
        await is_open(nc)
        timers.advance(LINE_SECONDS - EPSILON)
        nc.writer.write(b'"q"}\n')
        await until(lambda: daemon.queries()[0].subscribers == 1)
        timers.advance(100_000)
        nc.writer.write(b'{"stream": "s"')
        await is_open(nc)
        timers.advance(LINE_SECONDS - EPSILON)
        nc.writer.write(b', "tuple": {"k": 1}}\n')
        assert (await nc.hear())["row"]["k"] == 1


@timed()
async def test_a_line_has_thirty_seconds(daemon, timers):
    async with lines(daemon) as nc:
        nc.say('{"unsubscribe": "q"}')
        await nc.hear()
        for byte in b'{"subscribe": "':
            nc.writer.write(bytes((byte,)))
            await is_open(nc)
            timers.advance((LINE_SECONDS + EPSILON) / 15)
        error = (await nc.hear())["error"]
        assert (error["code"], error["line"]) == ("too_slow", 2)
        assert await nc.hear() is None


@timed()
async def test_each_line_has_its_own_thirty_seconds(daemon, timers):
    async with lines(daemon) as nc:
        for _ in range(4):
            nc.writer.write(b'{"unsubscribe": ')
            await is_open(nc)
            timers.advance(LINE_SECONDS - 1)
            nc.writer.write(b'"q"}\n{')  # and the next line has started
            assert (await nc.hear())["error"]["code"] == "not_open"
            nc.writer.write(b'"unsubscribe": "q"}\n')
            assert (await nc.hear())["error"]["code"] == "not_open"


@timed(token=True)
async def test_the_line_with_the_token_is_short_and_soon(daemon, timers):
    async with lines(daemon) as slow, lines(daemon) as long, lines(daemon) as other:
        await connected(daemon, 3)
        long.writer.write(b'{"token": "' + b"x" * GREETING_BYTES)
        assert (await long.hear())["error"]["code"] == "frame_too_large"
        assert await long.hear() is None
        other.say('{"subscribe": "q"}')
        other.say('{"subscribe": "q"}')
        assert (await other.hear())["error"]["code"] == "unauthorised"
        assert await other.hear() is None
        slow.writer.write(b'{"token": ')
        await is_open(slow)
        timers.advance(GREETING_SECONDS + EPSILON)
        assert (await slow.hear())["error"]["code"] == "too_slow"
        assert await slow.hear() is None


@timed(token=True)
async def test_lines_after_the_token_have_the_usual_limit(daemon, timers):
    async with lines(daemon) as nc:
        name = "x" * (3 * GREETING_BYTES)
        feed = f'{{"stream": "s", "tuple": {{"k": 1, "name": "{name}"}}}}'
        nc.writer.write(f'{{"token": "{TOKEN}"}}\n{{"subscribe": "q"}}\n{feed}\n'.encode())
        assert (await nc.hear())["row"]["name"] == name
        timers.advance(100_000)
        nc.say(feed)
        assert (await nc.hear())["seq"] == 1


# -- how many ----------------------------------------------------------------------------------------------------------


@timed(limits={"unauthenticated_connections": 3})
async def test_silent_connections_give_way_to_newer_ones(daemon, timers):
    async with peer(daemon) as known, peer(daemon, greet=False) as oldest:
        await connected(daemon, 2)
        silent = [await asyncio.open_connection(daemon.listen.host, daemon.listen.port) for _ in range(30)]
        async with peer(daemon) as newest:
            assert await oldest.hear() is None
            known.say(Ping(1))
            newest.say(Ping(2))
            assert (await known.hear(Pong)).token == 1
            assert (await newest.hear(Pong)).token == 2
            await until(lambda: len(daemon.context.strangers) == 2)
        assert daemon.metrics.refusals.counts["listen", "evicted"] == 29
        for _, writer in silent:
            writer.close()


@timed(limits={"connections": 1})
async def test_too_many_connections_are_told_so_in_their_dialect(daemon, timers):
    async with peer(daemon), peer(daemon, greet=False) as frames, lines(daemon) as nc, lines(daemon) as silent:
        frames.say(Hello(1, "one too many"))
        error = await frames.hear(Error)
        assert error.code == "too_many_connections"
        assert "limits.connections" in error.text
        nc.say('{"subscribe": "q"}')
        assert (await nc.hear())["error"]["code"] == "too_many_connections"
        await until(lambda: len(daemon.context.turned_away) == 1)
        timers.advance(GREETING_SECONDS)
        with pytest.raises((ConnectionError, AssertionError)):
            assert await silent.hear()
        assert not daemon.context.turned_away


# -- wrong tokens ------------------------------------------------------------------------------------------------------


@timed(token=True)
async def test_the_answer_to_a_wrong_token_waits(daemon, timers):
    async with peer(daemon, greet=False) as guessing, lines(daemon) as nc:
        guessing.say(Hello(1, "guess", "wrong"))
        nc.say('{"token": "wrong"}')
        await until(lambda: daemon.guesses.counts["listen", "answered"] == 2)
        timers.advance(DELAY_SECONDS - EPSILON)
        assert await is_open(guessing)
        assert len(guessing.heard) == 0
        async with peer(daemon, greet=False) as right:
            assert isinstance(await right.greet(TOKEN), Welcome)  # at once
        timers.advance(2 * EPSILON)
        assert (await guessing.hear(Error)).code == "unauthorised"
        assert await guessing.hear() is None
        assert (await nc.hear())["error"]["code"] == "unauthorised"
        assert await nc.hear() is None


@timed(token=True)
async def test_a_crowd_of_guesses_gets_few_answers_and_locks_nobody_out(daemon, timers):
    async def guess():
        reader, writer = await asyncio.open_connection(daemon.listen.host, daemon.listen.port)
        writer.write(frame(encode(Hello(1, "guess", "wrong"))))
        return reader, writer

    guesses = [await guess() for _ in range(5 * UNDER_WAY)]
    await until(lambda: sum(daemon.guesses.counts.values()) == len(guesses))
    assert daemon.guesses.counts["listen", "answered"] == UNDER_WAY
    async with peer(daemon, greet=False) as right:
        assert isinstance(await right.greet(TOKEN), Welcome)
    for _, writer in guesses:
        writer.close()  # who does not wait for the answer has no further guess for it
    _, writer = await guess()
    await until(lambda: daemon.guesses.counts["listen", "cut_off"] == 4 * UNDER_WAY + 1)
    timers.advance(DELAY_SECONDS)
    _, again = await guess()
    await until(lambda: daemon.guesses.counts["listen", "answered"] == UNDER_WAY + 1)
    writer.close()
    again.close()
    assert b'millrace_wrong_tokens_total{outcome="answered",port="listen"} 9.0' in daemon.metrics.text()


def test_addresses_are_bounded_and_forgotten():
    timers = FakeTimers()
    guesses = Guesses(timers)
    for number in range(ADDRESSES + 100):
        guesses.wrong("admin", f"10.{number // 65536}.{number // 256 % 256}.{number % 256}")
    assert guesses.counts["admin", "answered"] == ADDRESSES
    assert guesses.counts["admin", "cut_off"] == 100
    assert guesses.wrong("admin", "10.0.0.1") == DELAY_SECONDS, "an address that has answers under way"
    timers.advance(DELAY_SECONDS)
    for number in range(ADDRESSES):
        assert guesses.wrong("admin", f"11.0.{number // 256}.{number % 256}") == DELAY_SECONDS
    assert guesses.wrong("admin", "10.0.0.1") is None, "forgotten, and other addresses took its place"


def test_an_ipv6_client_pays_with_its_network():
    assert address_of("2001:db8:1:2:3::4") == address_of("2001:db8:1:2:ffff::1%eth0") == "2001:db8:1:2::/64"
    assert address_of("::ffff:10.0.0.1") == address_of("10.0.0.1") == "10.0.0.1"
    assert address_of("?") == "?"
