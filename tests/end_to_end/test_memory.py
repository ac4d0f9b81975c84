"""A server with a small memory budget, in a process that the system would kill, or refuse memory, above a limit."""

import asyncio
import contextlib
import json
import sys
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from millrace.protocol.messages import Ack, Credit, Result
from tests.cli.conftest import Server
from tests.patience import HANG_SECONDS, wait_until
from tests.server.harness import Peer
from tests.warm.start import COLD

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and measures as Linux does")

MB = 10**6
BUDGET = 170 * MB
LIMIT = 300 * MB
CGROUPS = (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max")
SQL = """
CREATE STREAM a (k BIGINT, t TEXT);
CREATE STREAM b (k BIGINT, t TEXT);
CREATE STREAM c (k BIGINT);
CREATE QUERY pairs AS SELECT a.k, a.t, b.t AS u FROM a JOIN b ON a.k = b.k;
CREATE QUERY wide AS SELECT k, t FROM a;
CREATE QUERY steady AS SELECT k FROM c;
"""
STEADY = 500
ROWS = 1_000


@contextlib.contextmanager
def limited(process):
    """Let a process have so much memory: in a memory cgroup if this user may make one, else in its data segment."""
    for top, name in CGROUPS:
        folder = top / f"millrace-test-{process.pid}"
        try:
            folder.mkdir()
            (folder / name).write_text(str(LIMIT))
            (folder / "cgroup.procs").write_text(str(process.pid))
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
            continue
        try:
            yield "cgroup"
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            wait_until(partial(_is_empty, folder))
            folder.rmdir()
        return
    resource = pytest.importorskip("resource")
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (LIMIT, LIMIT))
    yield "data segment"


def _is_empty(cgroup):
    return not (cgroup / "cgroup.procs").read_text()


async def connected(server):
    host, _, port = server.listen.rpartition(":")
    client = Peer(*await asyncio.open_connection(host, int(port)))
    await client.greet()
    return client


async def grow(server, stream, first):
    """Feed rows that nothing of the other stream matches, within the credit, until cancelled."""
    client = await connected(server)
    credit = (await client.open(stream, producer="p")).credit
    at = 0
    try:
        while True:
            while credit < ROWS:
                credit += (await client.hear(Credit)).tuples
            client.data(at, [(2 * (at + row) + first, "x" * 1_000) for row in range(ROWS)])
            at, credit = at + ROWS, credit - ROWS
            await client.writer.drain()
    finally:
        client.writer.transport.abort()


async def read_slowly(server, ended):
    """A subscriber with endless credit that reads hardly anything."""
    client = await connected(server)
    await client.subscribe("wide", credit=2**31)
    client.writer.transport.pause_reading()
    await ended.wait()
    await client.close()


async def feed_steadily(server, ended):
    """Rows of a query that has nothing to do with it, each as soon as the last one is taken: all come out, in order."""
    reader, client = await connected(server), await connected(server)
    await reader.subscribe("steady", credit=2**31)
    await client.open("c", producer="p")
    sent = 0
    while sent < STEADY or not ended.is_set():
        while client.session.channels[0].credit < 10:  # withheld while memory is short
            await client.hear(Credit)
        client.data(sent, [(k,) for k in range(sent, sent + 10)])
        sent += 10
        while (await client.hear(Ack)).sequence < sent:
            pass
    found: list[int] = []
    while len(found) < sent:
        found += [k for (k,) in (await reader.hear(Result)).rows]
    assert found == list(range(sent))
    for one in (reader, client):
        await one.close()


async def watch(server, ended, growing):
    """Wait until the query has failed, and end what lets it grow; all queries then."""
    while True:
        queries = {one["name"]: one for one in await asyncio.to_thread(server.json, "query", "list")}
        assert server.process.poll() is None
        if queries["pairs"]["state"] == "failed":
            ended.set()
            for one in growing:
                one.cancel()
            assert all(
                isinstance(end, asyncio.CancelledError)
                for end in await asyncio.gather(*growing, return_exceptions=True)
            )
            return queries


async def play(server):
    ended = asyncio.Event()
    async with asyncio.timeout(HANG_SECONDS):
        idle = [await connected(server) for _ in range(100)]
        growing = [asyncio.create_task(grow(server, stream, first)) for first, stream in enumerate("ab")]
        try:
            others = read_slowly(server, ended), feed_steadily(server, ended)
            found, *_ = await asyncio.gather(watch(server, ended, growing), *others)
        finally:
            for task in growing:
                task.cancel()
            for one in idle:
                await one.close()
        return found


def test_the_query_that_grows_fails_and_the_server_and_the_rows_of_others_do_not(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    variables = {"MILLRACE_SERVER__MEMORY": f"{BUDGET // MB} MB", "MILLRACE_LIMITS__ON_SLOW": "drop_oldest"}
    with Server(data, command=COLD, **variables) as server, limited(server.process):
        assert server.millrace("sql", SQL).returncode == 0
        queries = asyncio.run(play(server))
        status = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
        peak = next(line for line in status if line.startswith("VmHWM:"))
        assert int(peak.split()[1]) * 1024 < LIMIT
        assert {name: one["state"] for name, one in queries.items() if name != "pairs"} == {
            "wide": "running",
            "steady": "running",
        }
        reason = server.json("query", "show", "pairs")["reason"]
        assert "the server's memory was used up" in reason
        assert reason.endswith("millrace query resume pairs")
        with urllib.request.urlopen(f"http://{server.admin}/api/v1/server", timeout=HANG_SECONDS) as answer:
            assert json.load(answer)["memory"]["failed"] == ["pairs"]
        code, _, said = server.end()
    assert code == 0
    assert "memory is used up: the query that has grown most fails" in said
    (data / "addresses.json").unlink(missing_ok=True)
    with Server(data) as server:
        assert server.json("query", "show", "pairs")["reason"] == reason
        assert server.json("query", "show", "steady")["state"] == "running"
