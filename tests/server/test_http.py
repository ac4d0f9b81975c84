"""The HTTP port against peers that are slow, silent, or do not speak HTTP."""

import asyncio
import json
from contextlib import suppress
from types import SimpleNamespace

import pytest
import uvloop
from structlog.testing import capture_logs

from millrace.http import web
from millrace.http.protocol import ANSWER_SECONDS, BODY_SECONDS, HEAD_BYTES, HEAD_SECONDS
from tests.patience import HANG_SECONDS
from tests.server.harness import FakeTimers, running, settle, until

EPSILON = 0.001
HEAD = b"GET /-/healthy HTTP/1.1\r\nhost: localhost\r\n"
POST = b"POST /api/v1/sql HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def timed(test):
    """A test of a running daemon, its timers, and a way to connect to its HTTP port."""

    async def play():
        timers, writers = FakeTimers(), []
        async with asyncio.timeout(HANG_SECONDS), running("CREATE STREAM s (k BIGINT)", timers=timers) as daemon:

            async def connect(data=b""):
                reader, writer = await asyncio.open_connection(daemon.admin.host, daemon.admin.port)
                writer.write(data)
                writers.append(writer)
                await settle()
                return reader, writer

            await test(daemon, timers, connect)
            for writer in writers:
                writer.close()

    def wrapped():
        uvloop.run(play())

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


def refused(daemon, reason):
    return daemon.metrics.refusals.counts["admin", reason]


async def answer(reader):
    """Status, and the code of a problem, of all that comes until the connection ends."""
    said = await reader.read()
    head, _, body = said.partition(b"\r\n\r\n")
    return (int(head.split()[1]), json.loads(body)["code"]) if said else None


@timed
async def test_a_silent_peer_is_gone_after_five_seconds(daemon, timers, connect):
    reader, _ = await connect()
    timers.advance(HEAD_SECONDS - EPSILON)
    await settle()
    assert not reader.at_eof()
    timers.advance(2 * EPSILON)
    assert await answer(reader) is None
    assert refused(daemon, "silent") == 1


@timed
async def test_a_head_that_trickles_in_has_five_seconds(daemon, timers, connect):
    reader, writer = await connect()
    for byte in HEAD[:20]:
        writer.write(bytes((byte,)))
        await settle(5)
        timers.advance((HEAD_SECONDS + EPSILON) / 20)
    assert await answer(reader) == (408, "too_slow")
    assert refused(daemon, "too_slow") == 1


@timed
async def test_a_body_has_thirty_seconds(daemon, timers, connect):
    tasks = asyncio.all_tasks()
    reader, writer = await connect(POST + b"content-length: 100\r\n\r\n")
    for _ in range(10):
        writer.write(b" ")
        await settle(5)
        timers.advance((BODY_SECONDS - EPSILON) / 10)
    assert not reader.at_eof()
    timers.advance(2 * EPSILON)
    assert await answer(reader) == (408, "too_slow")
    await until(lambda: asyncio.all_tasks() <= tasks)


@timed
async def test_a_body_that_was_refused_is_not_read_for_long(daemon, timers, connect):
    reader, _ = await connect(POST + b"content-length: 999999999\r\n\r\n" + b"x" * 100_000)
    assert b"413" in await reader.readline()
    timers.advance(BODY_SECONDS + EPSILON)
    with suppress(ConnectionError):
        await reader.read()


@timed
async def test_the_next_request_of_a_connection_has_the_same_limits(daemon, timers, connect):
    reader, writer = await connect(HEAD + b"\r\n")
    assert b"200" in await reader.readline()
    writer.write(HEAD)
    await settle()
    timers.advance(HEAD_SECONDS + EPSILON)
    assert (await reader.read()).count(b"HTTP/1.1 408 ") == 1


def test_a_reader_that_never_reads_is_gone(monkeypatch):
    begun = asyncio.Event()

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * (64 * 2**20), "more_body": True})
        begun.set()
        await send({"type": "http.response.body", "body": b"the end"})

    monkeypatch.setattr(web, "build", lambda _: application)

    @timed
    async def play(daemon, timers, connect):
        tasks = asyncio.all_tasks()
        reader, writer = await connect()
        writer.transport.pause_reading()
        writer.write(HEAD + b"\r\n")
        await begun.wait()
        timers.advance(ANSWER_SECONDS)
        await settle()
        assert not refused(daemon, "not_read")  # a large answer has time
        assert not asyncio.all_tasks() <= tasks
        timers.advance(64 * ANSWER_SECONDS)
        await until(lambda: refused(daemon, "not_read") == 1)
        await until(lambda: asyncio.all_tasks() <= tasks)
        writer.transport.resume_reading()
        with suppress(ConnectionError):
            assert not (await reader.read()).endswith(b"the end")

    play()


@timed
async def test_a_head_has_a_limit_in_one_piece_and_in_many(daemon, timers, connect):
    for data in (
        HEAD + b"x: " + b"a" * HEAD_BYTES + b"\r\n\r\n",
        HEAD + b"".join(b"x%d: y\r\n" % number for number in range(4_000)) + b"\r\n",
        b"GET /" + b"a" * HEAD_BYTES + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        HEAD + b"x: " + b"a" * (HEAD_BYTES + 1_000),
    ):
        reader, _ = await connect(data)
        assert await answer(reader) == (431, "too_large")
    reader, _ = await connect(HEAD + b"x: " + b"a" * (HEAD_BYTES - 100) + b"\r\nconnection: close\r\n\r\n")
    assert b" 200 " in await reader.readline()


MALFORMED = {
    "chunk": POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    "later chunk": POST + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\nzz\r\n",
    "encoding": POST + b"transfer-encoding: gzip\r\n\r\nx",
    "negative length": POST + b"content-length: -1\r\n\r\n",
    "two lengths": POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\n{}",
    "length of 30 digits": POST + b"content-length: " + b"1" * 30 + b"\r\n\r\n{}",
    "http 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http 3": b"GET / HTTP/3.0\r\nhost: localhost\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x80" * 200,
    "noise": b"\xff\xfe" * 100 + b"\r\n\r\n",
    "no colon": HEAD + b"no colon\r\n\r\n",
    "nul": HEAD + b"x: a\x00b\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_not_http_costs_one_answer_and_one_line(name, capfd):
    @timed
    async def play(daemon, timers, connect):
        tasks = asyncio.all_tasks()
        with capture_logs() as logs:
            reader, _ = await connect(MALFORMED[name])
            assert await answer(reader) == (400, "malformed")
            await until(lambda: asyncio.all_tasks() <= tasks)
        assert len(logs) == 1
        assert refused(daemon, "malformed") == 1

    play()
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
def test_a_request_to_speak_something_else_is_an_ordinary_request(upgrade, capfd):
    @timed
    async def play(daemon, timers, connect):
        reader, _ = await connect(HEAD + f"connection: upgrade\r\nupgrade: {upgrade}\r\n\r\n".encode())
        assert b" 200 " in await reader.readline()

    play()
    assert "nsupported" not in capfd.readouterr().err


def test_too_many_connections_are_told_so(monkeypatch):
    """Only where all others wait for an answer: idle ones go, the oldest first, also those that were answered."""
    asked = 0

    async def application(scope, receive, send):
        nonlocal asked
        asked += 1
        if scope["path"] == "/slow":
            await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    monkeypatch.setattr(web, "build", lambda _: application)
    slow = HEAD.replace(b"/-/healthy", b"/slow")
    assert slow != HEAD

    async def play():
        async with asyncio.timeout(HANG_SECONDS), running(limits={"admin_connections": 3}) as daemon:
            address = daemon.admin.host, daemon.admin.port
            opened = []

            async def connect(*parts):
                reader, writer = await asyncio.open_connection(*address)
                opened.append(writer)
                for part in parts:
                    writer.write(part)
                return reader

            half = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n"  # its body never comes
            silent, begun, answered = await connect(), await connect(HEAD), await connect(half)
            assert b" 200 " in await answered.readline()
            waiting = []
            for number, gone in enumerate((silent, begun, answered), 1):
                waiting.append(await connect(slow + b"\r\n"))
                with suppress(ConnectionResetError):
                    assert not (await gone.read()).startswith(b"HTTP")
                await until(lambda number=number: asked == number + 1)
                assert refused(daemon, "evicted") == number
            assert await answer(await connect()) == (503, "too_many_connections")
            assert refused(daemon, "too_many_connections") == 1
            for writer in opened:
                writer.close()

    uvloop.run(play())


@timed
async def test_nobody_says_for_others_who_they_are(daemon, timers, connect):
    with capture_logs() as logs:
        head = b"GET / HTTP/1.1\r\nhost: evil.example\r\nx-forwarded-for: 10.9.8.7\r\nconnection: close\r\n\r\n"
        reader, _ = await connect(head)
        await reader.read()
    assert "10.9.8.7" not in str(logs)


def test_the_http_port_ends_at_once_when_nobody_is_connected(monkeypatch):
    """uvicorn would look ten times a second whether it is to end, and then wait for connections that are not there."""

    async def asleep(seconds):
        raise AssertionError(f"uvicorn waits for {seconds} s")

    monkeypatch.setattr("uvicorn.server.asyncio", SimpleNamespace(sleep=asleep, wait_for=asyncio.wait_for))

    async def play():
        async with running():
            pass

    uvloop.run(play())


def test_an_answer_that_is_being_written_is_written_to_its_end(monkeypatch):
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def application(scope, receive, send):
        begun.set()
        await goes_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})

    monkeypatch.setattr(web, "build", lambda _: application)

    async def play():
        async with asyncio.timeout(HANG_SECONDS), running() as daemon:
            reader, writer = await asyncio.open_connection(daemon.admin.host, daemon.admin.port)
            writer.write(HEAD + b"\r\n")
            await begun.wait()
            daemon.stop()
            ended = asyncio.create_task(daemon.wait_ended())
            with suppress(ConnectionRefusedError):  # then the port is ending
                while True:
                    _, late = await asyncio.open_connection(daemon.admin.host, daemon.admin.port)
                    late.close()
                    await asyncio.sleep(0.001)
            goes_on.set()
            assert (await reader.read()).endswith(b"done")
            writer.close()
            await ended

    uvloop.run(play())
