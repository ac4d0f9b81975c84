"""A daemon inside the test's own event loop, and peers that speak to it over real sockets."""

import asyncio
import functools
import inspect
import json
import shutil
import threading
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import gettempdir

import uvloop

from millrace.engine.events import Change, Command
from millrace.protocol import FrameReader, Session, Side, decode
from millrace.protocol.frames import frame
from millrace.protocol.messages import PROTOCOL, Credit, Data, Hello, Open, Subscribe, encode
from millrace.run.config import Settings
from millrace.run.daemon import Daemon
from tests.patience import HANG_SECONDS

ANY_PORT = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "allow_paths": [gettempdir()]}
SCHEMA_SQL = "CREATE STREAM s (k BIGINT, v DOUBLE, name TEXT); CREATE QUERY q AS SELECT k, v, name FROM s WHERE k >= 0"


def settings(**sections):
    return Settings(**{**sections, "server": {**ANY_PORT, **sections.get("server", {})}})


@asynccontextmanager
async def running(sql=None, clock=None, timers=None, **sections):
    """A daemon that is ready, ended at the end."""
    daemon = Daemon(settings(**sections), clock, timers)
    await daemon.start()
    try:
        if sql:
            await daemon.catalog.execute(sql)
        yield daemon
    finally:
        daemon.stop()
        await daemon.wait_ended()


def played(test):
    """A test in an event loop that ends."""

    @functools.wraps(test)
    def play(*args, **kwargs):
        async def limited():
            async with asyncio.timeout(HANG_SECONDS):
                await test(*args, **kwargs)

        uvloop.run(limited())

    return play


def forget_journal(folder):
    """Make a data directory what a version without a journal left."""
    for part in ("journal", "checkpoints"):
        shutil.rmtree(Path(folder) / part)


def served(sql=SCHEMA_SQL, **sections):
    """A test with a running daemon as its first argument."""

    def decorate(test):
        def wrapped(*args, **kwargs):
            async def play():
                async with asyncio.timeout(HANG_SECONDS), running(sql, **sections) as daemon:
                    await test(daemon, *args, **kwargs)

            uvloop.run(play())

        # What `functools.wraps` does, but for the daemon, which pytest would take for a fixture.
        wrapped.__name__, wrapped.__doc__, wrapped.__module__ = test.__name__, test.__doc__, test.__module__
        wrapped.__dict__.update(test.__dict__)
        parameters = list(inspect.signature(test).parameters.values())
        vars(wrapped)["__signature__"] = inspect.Signature(parameters[1:])
        return wrapped

    return decorate


class FakeTimers:
    """Timers of connections that a test advances."""

    def __init__(self):
        self._now = 1_000.0
        self._calls = []

    def time(self):
        return self._now

    def call_later(self, delay, callback, /, *args):
        call = _Call(self._now + delay, callback, args)
        self._calls.append(call)
        return call

    def advance(self, seconds):
        """Advance the time, and make each call that is due, in order."""
        end = self._now + seconds
        while due := [call for call in self._calls if call.at <= end and not call.cancelled]:
            call = min(due, key=lambda one: one.at)
            self._calls.remove(call)
            self._now = max(self._now, call.at)
            call.callback(*call.args)
        self._calls = [call for call in self._calls if not call.cancelled]
        self._now = end


class _Call:
    def __init__(self, at, callback, args):
        self.at, self.callback, self.args, self.cancelled = at, callback, args, False

    def cancel(self):
        self.cancelled = True


class Peer:
    """A client that sends exactly the messages of a test.

    Reading at the end of a connection never suspends. A loop that continued to read there would spin, and no timeout of
    the event loop would end it. Hence the second read after the end raises an error.
    """

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer
        self.frames = FrameReader()
        self.session = Session(Side.CLIENT)
        self.heard = []
        self.closed = False

    def say(self, message):
        """By the rules: an assertion says if the test breaks them."""
        self.writer.write(self.session.say(message))

    def say_raw(self, data):
        self.writer.write(data)

    def say_body(self, message):
        """A message, whatever the rules say of it."""
        self.writer.write(frame(encode(message)))

    async def hear(self, kind=None):
        """The next message, or the next of a kind; None when the server has closed."""
        while True:
            for body in self.frames.bodies():
                message = decode(body)
                self.session.receive(message)
                self.heard.append(message)
                if kind is None or isinstance(message, kind):
                    return message
            data = await self.reader.read(65536)
            if not data:
                assert not self.closed, "the server has closed this connection: nothing more will come"
                self.closed = True
                return None
            self.frames.feed(data)

    async def greet(self, token=None):
        self.say(Hello(PROTOCOL, "test", token))
        return await self.hear()

    async def open(self, stream="s", channel=0, producer="p", **options):
        self.say(Open(channel, stream, None, producer, **options))
        return await self.hear()

    async def subscribe(self, query="q", channel=100, **options):
        self.say(Subscribe(channel, query, **options))
        return await self.hear()

    def data(self, sequence, rows, channel=0):
        self.say(Data(channel, sequence, rows))

    def credit(self, tuples, channel=100):
        self.say(Credit(channel, tuples))

    async def close(self):
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


@asynccontextmanager
async def peer(daemon, *, greet=True, ssl=None):
    """A connected peer."""
    reader, writer = await asyncio.open_connection(daemon.listen.host, daemon.listen.port, ssl=ssl)
    made = Peer(reader, writer)
    try:
        if greet:
            await made.greet()
        yield made
    finally:
        await made.close()


class Lines:
    """Someone with `nc`."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer
        self.closed = False

    def say(self, text):
        self.writer.write(text.encode() + b"\n")

    async def hear(self):
        line = await self.reader.readline()
        if not line:
            assert not self.closed, "the server has closed this connection: nothing more will come"
            self.closed = True
        return json.loads(line) if line else None

    async def hear_until(self, words):
        """Read up to the line with these words."""
        async for line in self.reader:
            if words in line:
                return line
        raise AssertionError(f"the server has closed this connection without saying {words!r}")

    async def close(self):
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


@asynccontextmanager
async def lines(daemon):
    made = Lines(*await asyncio.open_connection(daemon.listen.host, daemon.listen.port))
    try:
        yield made
    finally:
        await made.close()


async def request(app, method, path, body=b"", state=None, **headers):
    """A request to the API without a socket: status, headers and content of its answer."""
    sent = []
    head = {"host": "localhost", "content-length": str(len(body)), "content-type": "application/json", **headers}

    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return unread.pop() if unread else await asyncio.Future()  # the client stays until it has its answer

    async def send(message):
        sent.append(message)

    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in head.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 7421),
        "state": state or {},
    }
    await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent)


class Held:
    """An engine whose steps with a change stop in their middle until `open` is set."""

    def __init__(self, daemon, kinds=(Change,)):
        self.entered = threading.Event()
        self.open = threading.Event()
        self.threads: list[int] = []
        self.failure: Exception | None = None
        self._engine = daemon.runner.engine
        self._kinds = kinds
        daemon.runner.engine = self

    def step(self, now_us, events, *, budget):
        if any(isinstance(event, Command) and self._heavy(event.body) for event in events):
            self.threads.append(threading.get_ident())
            self.entered.set()
            assert self.open.wait(HANG_SECONDS)
            if self.failure is not None:
                raise self.failure
        return self._engine.step(now_us, events, budget=budget)

    def _heavy(self, body):
        return isinstance(body, self._kinds) and body != Change(())

    async def wait_entered(self):
        await until(self.entered.is_set)


async def settle(turns=20):
    """Let the loop poll its sockets a number of times: earlier writes have been read then, on any machine."""
    for _ in range(turns):
        await asyncio.sleep(0.001)


async def until(true):
    """Let the loop turn until something holds."""
    end = time.monotonic() + HANG_SECONDS
    while not true():
        assert time.monotonic() < end, "it did not come true"
        await asyncio.sleep(0.001)
