"""The metrics of the journal, and what a full disk looks like from outside."""

import asyncio
import re

from millrace.journal.segments import FIRST_SEGMENT_BYTES
from millrace.journal.writer import Full
from tests.server.directories import SQL, feed
from tests.server.harness import running, served
from tests.server.test_api import get

SECOND_US = 1_000_000


def samples(text):
    """The values of the series without labels, and of those with one."""
    return {
        name: float(value) for name, value in re.findall(r"^millrace_(journal_\S+|problems) (\S+)$", text, re.MULTILINE)
    }


def counted(daemon):
    """What the journal has counted so far, by the names of the series."""
    found = daemon.durability.statistics
    return {
        "journal_records_total": found.records,
        "journal_bytes_total": found.bytes,
        "journal_sync_seconds_count": found.syncs,
        "journal_sync_seconds_sum": found.sync_seconds,
    }


@served(SQL)
async def test_without_a_data_directory_there_is_no_series(daemon):
    text = await get(daemon, "/metrics")
    assert samples(text) == {"problems": 0}
    assert "# TYPE millrace_journal_bytes_total counter" in text


def test_the_series_count_what_the_journal_does(tmp_path):
    async def play():
        async with running(SQL, server={"data_dir": str(tmp_path)}) as daemon:
            first = samples(await get(daemon, "/metrics"))
            await feed(daemon, 0, 10)
            await daemon.durability.recorder.wait_synced(daemon.durability.recorder.recorded)
            before = counted(daemon)
            seen = samples(await get(daemon, "/metrics"))
            after = counted(daemon)
            for name, least in before.items():
                assert first[name] < least <= seen[name] <= after[name]
            assert seen["journal_records_total"] >= first["journal_records_total"] + 10
            assert seen['journal_sync_seconds_bucket{le="+Inf"}'] == seen["journal_sync_seconds_count"]
            assert (seen["journal_segments"], seen["journal_disk_bytes"]) == (1, FIRST_SEGMENT_BYTES)
            assert seen["journal_oldest_lsn"] == 1
            assert seen["journal_newest_lsn"] == seen["journal_replay_steps"] >= seen["journal_records_total"]
            assert seen['journal_checkpoints_total{result="done"}'] == 1
            assert seen["journal_full_seconds"] == seen["journal_recovery_steps"] == 0
            assert seen["journal_waiting_bytes"] < 1_000
            await daemon.durability.make()
            seen = samples(await get(daemon, "/metrics"))
            assert seen["journal_replay_steps"] == 0
            assert seen['journal_checkpoints_total{result="done"}'] == 2
            size = sum(
                path.stat().st_size
                for path in (tmp_path / "checkpoints").iterdir()
                if path.name.startswith(f"{daemon.durability.checkpoint:020}")
            )
            # Without the head of its file of chunks.
            assert size - 100 < seen["journal_checkpoint_bytes"] <= size

    asyncio.run(play())


def test_a_full_disk_is_visible_everywhere(tmp_path):
    async def play():
        async with running(SQL, server={"data_dir": str(tmp_path)}) as daemon:
            recorder, now_us = daemon.durability.recorder, daemon.runner.now_us()
            recorder._look_at_full(Full(now_us - 90 * SECOND_US, "creating the next segment failed"))
            seen = samples(await get(daemon, "/metrics"))
            assert seen["journal_full_seconds"] >= 90
            assert seen["problems"] == 1
            assert (await get(daemon, "/-/healthy")).startswith("degraded\nthe journal's disk is full")
            assert (await get(daemon, "/api/v1/server"))["journal"]["full"]["since_us"] == now_us - 90 * SECOND_US
            text = (await get(daemon, "/api/v1/queries/q/why"))["text"]
            assert "All feeds wait: the disk of the data directory has been full since " in text
            assert text.endswith(f"(df -h {tmp_path}).")
            recorder._look_at_full(None)
            seen = samples(await get(daemon, "/metrics"))
            assert seen["journal_full_seconds"] == seen["problems"] == 0
            assert "full" not in (await get(daemon, "/api/v1/queries/q/why"))["text"]

    asyncio.run(play())
