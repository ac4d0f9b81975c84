"""What a start reports: state that could not be restored, and a server that did not end cleanly."""

import asyncio
import os
import shutil
import signal

import pytest
from structlog.testing import capture_logs

from millrace.store.restarts import MARKER, Marker
from tests.cli.conftest import Server, millrace
from tests.server.directories import killed, restarted
from tests.server.harness import forget_journal, peer, running, served, until
from tests.warm.start import COLD

EMPTY = "restarted without operator state"
UNCLEAN = "the previous server did not end cleanly"
SQL = """
CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (timestamps = 'external', time = 'ts');
CREATE STREAM t (ts TIMESTAMP, k BIGINT) WITH (timestamps = 'external', time = 'ts');
CREATE QUERY plain AS SELECT k FROM s WHERE k > 0;
CREATE QUERY merged WITH (order = 'event') AS SELECT k FROM s UNION ALL SELECT k FROM t;
CREATE QUERY windows WITH (order = 'event') AS SELECT count(*) AS n FROM TUMBLE(s, ts, '1 minute') GROUP BY window_end;
CREATE QUERY totals AS SELECT k, count(*) AS n FROM s GROUP BY k;
CREATE QUERY pairs AS SELECT s.k FROM s JOIN t ON s.k = t.k AND s.ts BETWEEN t.ts AND t.ts + INTERVAL '1 minute';
"""
MEANINGS = {
    "windows": "windows that were open at the restart contain only later rows",
    "totals": "totals and current rows start again without the earlier rows",
    "pairs": "joins find no partners among earlier rows",
}


def told(logs, event):
    return [line for line in logs if line["event"] == event]


def test_lost_state_of_a_folder_without_a_journal_is_reported(tmp_path):
    async def play():
        sections = {"server": {"data_dir": str(tmp_path)}}
        with capture_logs() as logs:
            async with running(SQL, **sections) as daemon:
                assert [query.restarted for query in daemon.queries()] == [None] * 5
        assert not told(logs, EMPTY)
        forget_journal(tmp_path)
        with capture_logs() as logs:
            async with running(**sections) as daemon:
                found = {query.name: query.restarted for query in daemon.queries()}
                assert {name: found[name] and found[name].text for name in found} == {
                    "plain": None,
                    "merged": None,
                    **{name: f"{EMPTY}: {meaning}" for name, meaning in MEANINGS.items()},
                }
                await daemon.catalog.execute("ALTER QUERY totals RENAME TO sums; DROP QUERY windows")
                await daemon.catalog.execute("CREATE QUERY windows AS SELECT k, count(*) AS n FROM s GROUP BY k")
                assert daemon.query("sums").restarted == found["totals"]
                assert daemon.query("windows").restarted is None
        assert {line["query"]: line["meaning"] for line in told(logs, EMPTY)} == MEANINGS
        with capture_logs() as logs:
            async with running(**sections) as daemon:
                assert [query.restarted for query in daemon.queries()] == [None] * 5
        assert not told(logs, EMPTY)

    asyncio.run(play())


def starts(folder):
    """Start a server in the folder and end it; what it reported of the one before."""

    async def play():
        with capture_logs() as logs:
            async with running(server={"data_dir": str(folder)}) as daemon:
                said = daemon.describe().unclean_end
                assert (folder / MARKER).exists()
        assert (said is not None) == bool(told(logs, UNCLEAN))
        assert not (folder / MARKER).exists()
        return said

    return asyncio.run(play())


def test_a_marker_speaks_of_its_own_folder_only(tmp_path):
    here, copy, moved = (tmp_path / name for name in ("here", "copy", "moved"))
    here.mkdir()
    assert starts(here) is None
    assert starts(here) is None, "the first one ended cleanly"
    Marker(here).write(1_000_000)
    shutil.copytree(here, copy)
    here.rename(moved)
    assert starts(copy) is None
    said = starts(moved)
    assert (said.pid, said.started_us, said.replayed) == (os.getpid(), 1_000_000, 0)
    assert said.text.endswith("Its state was recovered: 0 steps replayed after the last checkpoint.")
    assert starts(moved) is None
    forget_journal(moved)
    Marker(moved).write(1_000_000)
    assert "Tuples that it acknowledged since 1970-01-01T00:00:01Z may be lost" in starts(moved).text


def test_what_history_was_writing_is_named(tmp_path):
    part = tmp_path / "history" / "s" / "date=2026-01-01" / ".part-7"
    part.parent.mkdir(parents=True)
    part.touch()
    Marker(tmp_path).write(1)
    assert str(part) in starts(tmp_path).text


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"inode": 1}', "\xff"])
def test_a_marker_that_nobody_wrote_is_no_alarm(tmp_path, content):
    (tmp_path / MARKER).write_text(content)
    assert starts(tmp_path) is None


@served(SQL)
async def test_without_a_folder_there_is_nothing_to_report(daemon):
    assert daemon.describe().unclean_end is None


def test_records_that_a_start_replays_count_for_the_next_checkpoint(tmp_path):
    """Else a server that is killed again and again replays more and more."""

    async def more(daemon):
        async with peer(daemon) as client:
            await client.open("big", producer="p")
            client.data(0, [("x" * 2**20,)])
            await until(lambda: daemon.runner.outlets["q"].next_sequence == 1)

    async def look(daemon):
        assert daemon.durability.recovery.bytes > 2**20
        assert daemon.durability.made or daemon.durability._is_due()

    sql = "CREATE STREAM s (k BIGINT); CREATE STREAM big (t TEXT); CREATE QUERY q AS SELECT t FROM big;"
    killed(tmp_path / "data", tmp_path / "image", more=more, sql=sql)
    restarted(tmp_path / "image", look, journal={"checkpoint_bytes": 2**20, "checkpoint_seconds": 86_400})


def test_a_killed_server_is_reported_once(tmp_path):
    with Server(tmp_path, command=COLD) as first:
        first.millrace("sql", "CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k, count(*) AS n FROM s GROUP BY k")
        second = millrace("serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir", str(tmp_path))
        assert "is another server using the folder?" in second.stderr
        first.process.send_signal(signal.SIGKILL)
        first.process.communicate()
    (tmp_path / "addresses.json").unlink()
    with Server(tmp_path) as third:
        advice = {one["code"]: one for one in third.json("doctor")}
        assert (
            f"The previous server (process {first.process.pid}) was killed or crashed" in advice["unclean_end"]["text"]
        )
        assert "Its state was recovered: " in advice["unclean_end"]["text"]
        assert "restarted" not in advice
        _, _, err = third.end()
        assert UNCLEAN in err
        assert EMPTY not in err
    with Server(tmp_path) as fourth:
        assert fourth.json("doctor") == []
        _, _, err = fourth.end()
        assert UNCLEAN not in err
