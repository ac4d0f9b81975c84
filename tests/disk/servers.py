"""A whole server on a disk that is recorded: copies of the disk are taken at random moments of its work, each with what
was promised by then, and each is cut off and started again.

The auditor is a client: it resends everything, and reads every query from its first row on.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from millrace.client import AsyncClient, RowBatch
from millrace.engine import saving
from millrace.journal.checkpoints import Checkpoints
from millrace.run.daemon import Daemon
from millrace.run.durability import Durability
from tests.disk.calls import Recording
from tests.disk.model import Folder, crash, store
from tests.server.harness import peer, running, settle, until

SQL = """
CREATE STREAM s (k BIGINT) WITH (history = 'true');
CREATE QUERY even AS SELECT k FROM s WHERE k % 2 = 0;
CREATE QUERY totals AS SELECT k % 3 AS r, count(*) AS n FROM s GROUP BY k % 3;
CREATE SINK lines FROM even WITH (type = 'file', path = 'even.jsonl');
CREATE SINK files FROM even WITH (type = 'file', path = 'even', format = 'parquet', rotate_rows = 7);
"""
SETTINGS: dict[str, Any] = {"journal": {"follower": "off"}, "limits": {"retained_tuples": 100_000}}
ROWS = 60


@dataclass
class Promised:
    """What was promised at a moment: that the definitions are there, acknowledged rows, and rows received by query."""

    defined: bool = False
    acknowledged: int = 0
    received: dict[str, int] = field(default_factory=lambda: {"even": 0, "totals": 0})


@dataclass
class Moment:
    """A copy of the disk."""

    disk: Folder
    promised: Promised


def save_here(self: Durability, lsn: int) -> int:
    """What a child process does, in the process that is recorded."""
    self._checkpoints.write_state(lsn, self._daemon.engine.save_apart)
    return os.posix_spawn("/bin/true", ["true"], os.environ)


def record(path: Path, random: Random, moments: int, monkeypatch: pytest.MonkeyPatch) -> list[Moment]:
    """Play a server, and return copies of its disk: at most so many, each moment with the same chance."""
    path.mkdir()
    disk, promised = Folder(), Promised()
    found: list[Moment] = []
    seen = 0

    def before(_call: str, _name: str) -> None:
        nonlocal seen
        seen += 1
        place = len(found) if len(found) < moments else random.randrange(seen)
        if place < moments:
            found[place : place + 1] = [Moment(copy.deepcopy(disk), copy.deepcopy(promised))]

    with monkeypatch.context() as patch, Recording(path, disk, random, before) as recording:
        patch.setattr(Durability, "_fork", save_here)
        patch.setattr(saving, "APART_BYTES", 8)
        patch.setattr(Checkpoints, "chunk_bytes", 16)
        asyncio.run(_play(path, promised, random))
    recording.check()
    return found


async def _play(path: Path, promised: Promised, random: Random) -> None:
    async with running(server={"data_dir": str(path)}, **SETTINGS) as daemon:
        await daemon.catalog.execute(SQL)
        promised.defined = True
        async with AsyncClient(str(daemon.listen)) as client:
            readers = [asyncio.create_task(_read(client, query, promised)) for query in promised.received]
            async with await client.open("s", producer="p") as feed:
                while promised.acknowledged < ROWS:
                    count = min(random.choice((1, 3, 10)), ROWS - promised.acknowledged)
                    await feed.send([(k,) for k in range(promised.acknowledged, promised.acknowledged + count)])
                    await feed.flush()
                    promised.acknowledged += count
                    if random.random() < 0.3:
                        await daemon.durability.make()
            for reader in readers:
                reader.cancel()


async def _read(client: AsyncClient, query: str, promised: Promised) -> None:
    subscription = await client.subscribe(query, from_sequence=0)
    async for batch in subscription.batches():
        assert isinstance(batch, RowBatch)
        promised.received[query] += len(batch.rows)


def audit(moment: Moment, path: Path, random: Random) -> None:
    """Cut the power at this moment, start the server again, and hold it to what was promised."""
    crash(moment.disk, random)
    store(moment.disk, path)
    asyncio.run(_audit(path, moment.promised))


async def _audit(path: Path, promised: Promised) -> None:
    async with running(server={"data_dir": str(path)}, **SETTINGS) as daemon:
        if not daemon.catalog.known.sinks:
            assert not promised.defined, "definitions are lost"
            return
        there = {name: outlet.next_sequence for name, outlet in daemon.runner.outlets.items()}
        for query, count in promised.received.items():
            assert there[query] >= count, f"rows of {query} that a subscriber received are lost"
        async with peer(daemon) as feed:
            opened = await feed.open("s", producer="p")
            assert opened.next_sequence >= promised.acknowledged, "acknowledged rows are lost"
            feed.data(0, [(k,) for k in range(ROWS)])  # the server knows which of these it has
            counts = daemon.engine.source("s").counts
            await until(lambda: counts.input_tuples >= ROWS)
            await settle()
            assert counts.input_tuples == ROWS, "rows are taken twice"
        await daemon.runner.wait_drained()
        async with AsyncClient(str(daemon.listen)) as client:
            assert await _rows(client, "even", ROWS // 2) == [(k,) for k in range(0, ROWS, 2)]
            totals = await _rows(client, "totals", daemon.runner.outlets["totals"].next_sequence)
            assert dict(totals) == Counter(k % 3 for k in range(ROWS))
        assert daemon.catalog.writers.problems() == []
        await _settled(daemon)
    rows = [{"k": k} for k in range(0, ROWS, 2)]
    lines = (path / "sinks" / "even.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows, "lines"
    entries = [
        json.loads(line) for line in (path / "sinks" / "even" / "_files.manifest.jsonl").read_text().splitlines()
    ]
    tables = [pq.read_table(path / "sinks" / "even" / entry["file"]) for entry in entries]
    assert [row for table in tables for row in table.to_pylist()] == rows, "files"
    archived = [pq.read_table(file, partitioning=None) for file in (path / "history" / "s").glob("date=*/*.parquet")]
    assert sorted(k for table in archived for k in table["k"].to_pylist()) == list(range(ROWS)), "history"


async def _rows(client: AsyncClient, query: str, count: int) -> list[tuple[Any, ...]]:
    subscription = await client.subscribe(query, from_sequence=0)
    found: list[tuple[Any, ...]] = []
    async for batch in subscription.batches():
        assert isinstance(batch, RowBatch)
        assert batch.sequence == len(found)
        found += [tuple(row) for row in batch.rows]
        if len(found) >= count:
            break
    return found


async def _settled(daemon: Daemon) -> None:
    await until(lambda: all(not view.held for view in daemon.catalog.writers.views()))
