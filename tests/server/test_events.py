"""The lines of `/api/v1/events`: a mirror of them is what the lists say, whoever watches and however slowly."""

import asyncio
import json
import random

import pytest

from millrace.access.callers import ANYONE, Caller
from millrace.access.roles import parse_grant
from millrace.access.tokens import create, revoke
from millrace.http.api import build
from millrace.protocol.admin.data import to_data
from millrace.protocol.admin.events import SECTIONS, Mirror
from tests.server.harness import SCHEMA_SQL, FakeTimers, played, request, running, until


class StillClock:
    """A clock that stands, so that two looks at an idle server see the same."""

    held_back_us = 0

    def __init__(self):
        self.at_us = 1_700_000_000_000_000

    def now_us(self):
        return self.at_us

    def notice(self):
        return 0


class Watcher:
    """Reads lines of a daemon, one at a time."""

    def __init__(self, daemon, caller=ANYONE, holds=lambda: True, interval=1.0):
        self.lines = daemon.broadcasts.lines(caller, holds, interval)
        self.mirror = Mirror()

    async def next(self):
        line = json.loads(await anext(self.lines))
        self.mirror.take(line)
        return line

    async def until(self, event):
        while (line := await self.next())["event"] != event:
            pass
        return line

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.lines.aclose()


def pauses(timers):
    """The calls that end a pause of a task."""
    return [call for call in timers._calls if call.callback.__name__ == "set_result"]


async def look_again(daemon, timers):
    """Let the next interval pass, and everything be looked at."""
    (broadcast,) = daemon.broadcasts._running.values()
    version = broadcast.version
    await until(lambda: pauses(timers))
    timers.advance(max(pauses(timers), key=lambda call: call.at).at - timers.time())
    await until(lambda: broadcast.version > version)


async def lists(app, **headers):
    found = {}
    for section in SECTIONS:
        status, _, content = await request(app, "GET", f"/api/v1/{section}", **headers)
        assert status == 200
        found[section] = {one["name"]: one for one in json.loads(content)}
    return found


STEPS = (
    "CREATE STREAM t{n} (ts TIMESTAMP, k BIGINT) WITH (time = 'ts')",
    "CREATE QUERY r{n} AS SELECT k, count(*) AS n FROM s GROUP BY k",
    "CREATE QUERY u{n} WITH (fuse = 'off') AS SELECT k FROM s WHERE k > {n}",
    "CREATE SINK f{n} FROM q WITH (type = 'stdout')",
    "DROP QUERY r{n}",
    "DROP QUERY u{n}",
    "DROP SINK f{n}",
    "DROP STREAM t{n}",
    "ALTER STREAM s ADD COLUMN c{n} BIGINT",
    "INSERT INTO s (k) VALUES (1), (2)",
    "INSERT INTO s (k) VALUES (3)",
    "pause",
    "strategy",
    "nothing",
)


@pytest.mark.parametrize("seed", range(4))
@played
async def test_a_mirror_of_the_lines_is_what_the_lists_say(seed):
    chance, timers = random.Random(seed), FakeTimers()
    async with (
        running(SCHEMA_SQL, clock=StillClock(), timers=timers) as daemon,
        Watcher(daemon) as watcher,
        Watcher(daemon) as slow,
    ):
        app = build(daemon)
        assert (await watcher.next())["event"] == (await slow.next())["event"] == "state"
        sizes = []
        for _ in range(25):
            step = chance.choice(STEPS).format(n=chance.randrange(3))
            match step:
                case "pause":
                    await request(app, "POST", f"/api/v1/queries/q/{chance.choice(('pause', 'resume'))}")
                case "strategy":
                    body = json.dumps({"strategy": chance.choice(("bfs", "dfs", "chain"))}).encode()
                    await request(app, "PUT", "/api/v1/components/s/strategy", body)
                case "nothing":
                    pass
                case _:
                    await request(app, "POST", "/api/v1/sql", json.dumps({"sql": step}).encode())
            await daemon.runner.wait_drained()
            await until(lambda: all(sink.held == 0 for sink in daemon.catalog.sinks()))
            await look_again(daemon, timers)
            sizes.append(len(json.dumps(await watcher.until("numbers"))))
            assert watcher.mirror._by_name == await lists(app)
            assert watcher.mirror.data["changes"] == (daemon.catalog.ledger.newest() or 0)
        assert min(sizes) < 1_000, "what does not change is not sent"
        # One that has read nothing meanwhile gets the newest state, at once and whole.
        assert (await slow.until("state"))["event"] == "state"
        assert slow.mirror._by_name == watcher.mirror._by_name
        assert to_data(slow.mirror.view())["queries"] == list(slow.mirror._by_name["queries"].values())


@played
async def test_looks_are_shared_and_end_with_the_last_watcher():
    timers = FakeTimers()
    async with running(SCHEMA_SQL, timers=timers) as daemon:
        looks = 0
        describe = daemon.describe

        def counted():
            nonlocal looks
            looks += 1
            return describe()

        daemon.describe = counted
        watchers = [Watcher(daemon, interval=1.0 - number / 100) for number in range(10)]
        for watcher in watchers:
            await watcher.next()
        for _ in range(3):
            await look_again(daemon, timers)
            texts = {await anext(watcher.lines) for watcher in watchers}
            assert len(texts) == 1
        assert looks == 4
        (task,) = [one._task for one in daemon.broadcasts._running.values()]
        for watcher in watchers:
            assert not task.done()
            await watcher.lines.aclose()
        await until(task.done)
        assert daemon.broadcasts._running == {}


@played
async def test_a_large_server_is_looked_at_less_often(monkeypatch):
    timers = FakeTimers()
    async with running(SCHEMA_SQL, timers=timers) as daemon, Watcher(daemon) as watcher:
        await watcher.next()
        (broadcast,) = daemon.broadcasts._running.values()
        look = broadcast._look

        async def slow():
            await look()
            return 0.5

        monkeypatch.setattr(broadcast, "_look", slow)
        await look_again(daemon, timers)
        await until(lambda: pauses(timers))
        (call,) = pauses(timers)
        assert call.at - timers.time() == 10.0, "twenty times as long"


@played
async def test_a_change_is_said_before_the_numbers_that_show_it():
    timers = FakeTimers()
    async with running(SCHEMA_SQL, timers=timers) as daemon, Watcher(daemon) as watcher:
        state = await watcher.next()
        await daemon.catalog.execute("CREATE QUERY r AS SELECT k FROM s; DROP QUERY q")
        changed = await watcher.next()
        assert (changed["event"], changed["number"]) == ("changed", state["changes"] + 1)
        assert "inverse" in changed
        await look_again(daemon, timers)
        numbers = await watcher.next()
        assert [one["name"] for one in numbers["queries"]] == ["r"]
        assert numbers["gone"]["queries"] == ["q"]
        daemon.stop()
        assert await watcher.next() == {"event": "end", "reason": "stopping"}
        with pytest.raises(StopAsyncIteration):
            await anext(watcher.lines)


@played
async def test_a_limited_client_sees_its_objects(tmp_path):
    sql = f"{SCHEMA_SQL}; CREATE STREAM other (k BIGINT); CREATE QUERY r AS SELECT k FROM other"
    sql += "; CREATE SINK f FROM q WITH (type = 'stdout'); CREATE SINK g FROM r WITH (type = 'stdout')"
    path, timers = tmp_path / "tokens.json", FakeTimers()
    create(path, "root", [parse_grant("admin")], 1)
    token = create(path, "ann", [parse_grant("read:q,s")], 1).token
    async with running(sql, timers=timers, clock=StillClock(), server={"tokens_file": path}) as daemon:
        caller = daemon.access.named("admin", token, "")
        async with (
            Watcher(daemon, caller, lambda: daemon.access.holds("admin", caller)) as watcher,
            Watcher(daemon, Caller("root", ANYONE.grants)) as root,
        ):
            state = await watcher.next()
            whole = await root.next()
            shown = {section: [one["name"] for one in state[section]] for section in SECTIONS}
            assert shown == {"streams": ["s"], "queries": ["q"], "sinks": ["f"], "components": [], "operators": []}
            assert state["server"] == to_data(daemon.introduce()) | {"steps": state["server"]["steps"]}
            assert whole["server"] != state["server"]
            await daemon.catalog.execute("DROP SINK f; DROP SINK g; DROP QUERY r; DROP STREAM other")
            await look_again(daemon, timers)
            numbers = await watcher.next()
            assert numbers["event"] == "numbers", "whose changes it may not see"
            assert numbers["gone"] == {"sinks": ["f"]}
            assert (await root.until("numbers"))["gone"]["streams"] == ["other"]
            revoke(path, "ann")
            daemon.hang_up()
            assert await watcher.next() == {"event": "end", "reason": "token"}


async def ask(daemon, path, *lines):
    reader, writer = await asyncio.open_connection(daemon.admin.host, daemon.admin.port)
    writer.write("\r\n".join([f"GET {path} HTTP/1.1", "host: localhost", *lines, "", ""]).encode())
    return reader, writer


@played
async def test_lines_over_http():
    async with running(SCHEMA_SQL) as daemon:
        reader, writer = await ask(daemon, "/api/v1/events?interval=0.2&lines=3", "connection: close")
        head, _, content = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"content-type: application/x-ndjson" in head.lower()
        said = [json.loads(line) for line in content.split(b"\r\n") if line.startswith(b"{")]
        assert [line["event"] for line in said] == ["state", "numbers", "numbers"]
        writer.close()

        reader, writer = await ask(daemon, "/api/v1/events?interval=60")
        await reader.readuntil(b'"event":"state"')
        assert daemon.runner.requests == 0, "nothing hurries for an answer without an end"
        assert daemon.broadcasts._running
        writer.transport.abort()
        await until(lambda: not daemon.broadcasts._running)

        for wrong in ("interval=0.1", "interval=61", "interval=soon", "lines=0"):
            reader, writer = await ask(daemon, f"/api/v1/events?{wrong}", "connection: close")
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 422"), wrong
            writer.close()

        reader, writer = await ask(daemon, "/api/v1/events?interval=60", "connection: close")
        await reader.readuntil(b'"event":"state"')
        daemon.stop()
        assert b'{"event":"end","reason":"stopping"}' in await reader.read()
        writer.close()
