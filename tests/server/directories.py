"""Data directories for tests: made by a server that runs, and copied as a kill would leave them."""

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from millrace.protocol.messages import Result
from millrace.sql.planned import KINDS
from tests.server.harness import peer, running, until

SQL = """
CREATE STREAM s (k BIGINT);
CREATE QUERY q AS SELECT k FROM s WHERE k % 2 = 0;
CREATE QUERY totals AS SELECT k % 3 AS r, count(*) AS n FROM s GROUP BY k % 3;
"""


async def feed(daemon, first, count, stream="s"):
    """Rows with one number each, in as many steps; returns when the server has taken them all."""
    before = daemon.runner.steps
    async with peer(daemon) as client:
        opened = await client.open(stream, producer="p")
        number = opened.next_sequence
        for k in range(first, first + count):
            client.data(number + k - first, [(k,)])
            await client.writer.drain()
            fed = daemon.runner.steps
            await until(lambda fed=fed: daemon.runner.steps > fed)
    assert daemon.runner.steps >= before + count


def killed(folder, image, count=20, more=None, sql=SQL, **sections):
    """Make in `image` what a server would have left that was killed after it was fed `count` rows, and perhaps did
    `more`. Returns how it was."""

    Path(folder).mkdir(exist_ok=True)

    async def play():
        async with running(sql, server={"data_dir": str(folder)}, **sections) as daemon:
            await feed(daemon, 0, count)
            if more is not None:
                await more(daemon)
            recorder = daemon.durability.recorder
            await recorder.wait_synced(recorder.recorded)
            await daemon.results.sync()
            shutil.copytree(folder, image)
            return state(daemon)

    found = asyncio.run(play())
    with closing(sqlite3.connect(Path(image) / "catalog.sqlite")) as catalog:
        catalog.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # what any later reader does
    return found


def ids(daemon):
    """The ids of streams, queries and sinks by kind and name, and the newest id."""
    known = daemon.catalog.known
    found = {(kind, name): one.id for kind in KINDS for name, one in getattr(known, kind).items()}
    assert sorted({0, *found.values()}) == sorted([0, *found.values()]), "an id that is missing or is there twice"
    for name, query in daemon.engine.queries_by_name.items():
        assert query.plan.id in (0, found["queries", name]), "the engine has another id"
    return found, known.last_id


def state(daemon):
    """What must be the same after a restart."""
    return {
        "ids": ids(daemon),
        "sequences": {name: outlet.next_sequence for name, outlet in daemon.runner.outlets.items()},
        "histories": {name: outlet.history for name, outlet in daemon.runner.outlets.items()},
        "state": [(at.name, at.state_tuples) for at in daemon.operators()],
    }


def restarted(folder, play=None, **sections):
    """Start a server in a directory, and return how it is."""

    async def live():
        async with running(server={"data_dir": str(folder)}, **sections) as daemon:
            found = state(daemon)
            if play is not None:
                await play(daemon)
            return found

    return asyncio.run(live())


async def rows(daemon, query, count):
    """The first rows of a query, from its retained ones."""
    found: list[tuple[object, ...]] = []
    async with peer(daemon) as client:
        await client.subscribe(query, from_sequence=0)
        while len(found) < count:
            found += (await client.hear(Result)).rows
    return found


def contents(folder):
    """Every file of a directory, for comparisons."""
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()
    }
