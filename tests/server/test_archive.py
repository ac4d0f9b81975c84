"""History in a running server: the archived rows are the sent rows, wherever files are cut and servers end."""

import asyncio
import errno
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.events import AddStream, Archived, Arrived, Command
from millrace.history import archive as archive_module
from millrace.history import files as history
from millrace.history.archive import Archive, Limits
from millrace.protocol import Refuse
from millrace.sql import Catalog, CreateStream, parse, plan
from millrace.values.batch import Batch
from millrace.values.eventtime import FIRST_US, LAST_US, MIN_TIME
from tests.depth import examples
from tests.patience import HANG_SECONDS
from tests.server.harness import forget_journal, lines, running, served, until

DAY = history.DAY_US
NOW = 1_792_000_000_000_000
STREAM = "CREATE STREAM s (at TIMESTAMP, k BIGINT, name TEXT) WITH (time = 'at', disorder = '1 s', history = 'true')"


def archived(folder, stream="s"):
    """All rows of an archive in order of arrival, each file checked against what it says of itself."""
    rows = []
    for path in history.files(folder / stream):
        about = history.about_file(path)
        table = pq.read_table(path, partitioning=None)
        mine = table.to_pylist()
        assert mine, path
        numbers = [row["__seq"] for row in mine]
        assert numbers == sorted(set(numbers))
        assert (about["first_seq"], about["last_seq"]) == (numbers[0], numbers[-1])
        assert path.name == str(history.Name(numbers[0], numbers[-1]))
        assert about["rows"] == len(mine)
        assert about["late_rows"] == sum(row["__late"] for row in mine)
        time = "at" if "at" in table.schema.names else "ts"
        times = table[time].cast(pa.int64()).to_pylist()
        assert (about["least_us"], about["newest_us"]) == (min(times), max(times))
        assert {history.date_folder(us // DAY) for us in times} == {path.parent.name}
        for row, us in zip(mine, times, strict=True):
            rows.append({**row, time: us, "__mark": micros(row["__mark"]), "__arrived": micros(row["__arrived"])})
    rows.sort(key=lambda row: row["__seq"])
    return rows


def reach_of(folder):
    found = history.read_reach(folder)
    assert found is not None
    return found


def ended_at(folder):
    """The last row of an archive that its server has ended; None while it is open."""
    reach = reach_of(folder)
    return None if reach.open else reach.last_seq


def micros(time):
    return None if time is None else int((time - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6 + 0.5)


def judged(tuples, disorder_us=1_000_000):
    """What lateness comes to, one tuple after the other: (feed, time) pairs; feeds open with their first tuple."""
    marks: dict[str, float] = {}
    mark, found = -math.inf, []
    for feed, us in tuples:
        marks.setdefault(feed, mark)
        found.append((us, us < mark, None if mark == -math.inf else mark))
        if us >= mark:
            marks[feed] = max(marks[feed], us - disorder_us)
            mark = max(mark, min(marks.values()))
    return found


async def feed(daemon, tuples):
    """Tuples by feeds, one after the other, each judged before the next is sent."""
    source = daemon.feeds.source("s")
    for number, (name, us) in enumerate(tuples):
        daemon.feeds.arrived("s", name, source.from_rows([(us, number, f"n{number}")]))
    await daemon.runner.wait_drained()


async def archive_now(daemon, name="s"):
    return (await daemon.archive_now(name)).archive


def play(coroutine):
    async def within():
        async with asyncio.timeout(HANG_SECONDS):
            return await coroutine

    return uvloop.run(within())


# -- everything that was sent, with the right flags --------------------------------------------------------------------


class Rig:
    """An engine and its archive, without sockets."""

    def __init__(self, folder, **limits):
        self.engine = Engine()
        self.folder = folder
        self.archive = Archive(
            Limits(folder, **limits),
            submit=lambda event: self.step([event]),
            mark_of=lambda name: self.engine.source(name).mark,
            now_us=lambda: NOW,
            at_rest=lambda: asyncio.sleep(0),
        )
        self.step([Command(1, AddStream(S))])
        with self.archive.prepared([S]):
            self.archive.follow(S, MIN_TIME)

    def step(self, events):
        for order in self.engine.step(NOW, events).orders:
            if isinstance(order, Archived):
                self.archive.take(order)

    def feed(self, tuples, first=0, together=1):
        """Tuples by feed; consecutive tuples of one feed form one batch, up to a limit."""
        numbered = [(name, us, number) for number, (name, us) in enumerate(tuples, first)]
        while numbered:
            count = 1
            while count < min(together, len(numbered)) and numbered[count][0] == numbered[0][0]:
                count += 1
            rows = [(us, number, f"n{number}") for _, us, number in numbered[:count]]
            batch = Batch.from_rows(S.schema, rows, [us for us, _, _ in rows])
            self.step([Arrived("s", numbered[0][0], batch)])
            numbered = numbered[count:]


S = replace(Catalog().with_(plan(parse(STREAM)[0], Catalog())).streams["s"], ahead_us=None)
TUPLES = st.lists(st.tuples(st.sampled_from("aab"), st.integers(NOW, NOW + 5_000_000)), max_size=60)


@given(st.lists(TUPLES, min_size=1, max_size=3), st.sampled_from([2**12, 2**30]), st.integers(1, 20))
@settings(max_examples=examples(60), deadline=None)
def test_what_is_archived_is_what_was_sent(lives, file_bytes, together):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        async def live(tuples):
            rig = Rig(folder, file_bytes=file_bytes)
            rig.feed(tuples, together=together)
            if len(tuples) % 2:
                told = await rig.archive.flush("s")
                assert told.waiting_rows == 0
                assert told.reach_us == reach_of(folder / "s").reach_us
                mark = rig.engine.source("s").mark
                reach_us = told.reach_us
                unknown = mark == MIN_TIME and len(lives) == 1
                assert reach_us is None if unknown else reach_us is not None and reach_us >= mark
            await rig.archive.close()

        expected, sent = [], 0
        for tuples in lives:
            asyncio.run(live(tuples))
            for row, (us, late, mark) in enumerate(judged(tuples)):
                expected.append((us, row, f"n{row}", sent, late, mark, tuples[row][0]))
                sent += 1
        found = archived(folder)
        reach = reach_of(folder / "s")
        assert reach.files == len(history.files(folder / "s"))
    keys = ("at", "k", "name", "__seq", "__late", "__mark", "__feed")
    assert [tuple(row[key] for key in keys) for row in found] == expected
    assert (reach.rows, reach.last_seq, reach.open, reach.gaps) == (sent, sent - 1, False, ())
    assert reach.late_rows == sum(late for *_, late, _, _ in expected)


@given(TUPLES, st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=8))
@settings(max_examples=examples(60), deadline=None)
def test_the_reach_never_promises_what_is_not_there(tuples, cuts):
    async def live(folder):
        rig = Rig(folder, file_age_us=DAY)
        sent = 0
        for count, flush in cuts:
            rig.feed(tuples[sent : sent + count], sent, together=5)
            sent += count
            if flush:
                await rig.archive.flush("s")
            there = {row["__seq"] for row in archived(folder)}
            for reach in (reach_of(folder / "s").reach_us, rig.archive.views()["s"].reach_us):
                for number, (us, late, _) in enumerate(judged(tuples[:sent])):
                    assert late or reach is None or us >= reach or number in there
        await rig.archive.close()

    with tempfile.TemporaryDirectory() as name:
        asyncio.run(live(Path(name)))


def test_streams_without_times_of_their_own(tmp_path):
    sql = """CREATE STREAM i (k BIGINT) WITH (history = 'true');
             CREATE STREAM l (k BIGINT) WITH (timestamps = 'latent', history = 'true'); CREATE STREAM no (k BIGINT)"""

    async def live():
        async with running(sql, server={"history_dir": tmp_path}) as daemon:
            for name in ("i", "l", "no"):
                daemon.feeds.arrived(name, "f", daemon.feeds.source(name).from_rows([(1,), (2,)]))
            before = await archive_now(daemon, "i"), await archive_now(daemon, "l")
            after = await archive_now(daemon, "i"), await archive_now(daemon, "l")
            with pytest.raises(Refuse, match="stream no has no history: ALTER STREAM no SET"):
                await daemon.archive_now("no")
            with pytest.raises(Refuse, match="stream nope does not exist"):
                await daemon.archive_now("nope")
            return before, after

    before, after = play(live())
    for name, earlier, later in zip("il", before, after, strict=True):
        rows = archived(tmp_path, name)
        assert [row["k"] for row in rows] == [1, 2]
        assert all(row["ts"] == row["__arrived"] for row in rows)
        # The clock alone carries the reach past all that came.
        assert rows[-1]["ts"] <= earlier.reach_us <= later.reach_us
    assert not (tmp_path / "no").exists()


def test_rows_of_several_days_lie_in_folders_of_their_days(tmp_path):
    times = [NOW, NOW + 3 * DAY, NOW + 1, FIRST_US, LAST_US, NOW + 3 * DAY + 1]

    async def live():
        sql = STREAM.replace("disorder = '1 s'", "progress = 'punctuation', max_ahead = '500000 w'")
        async with running(sql, server={"history_dir": tmp_path}) as daemon:
            await feed(daemon, [("f", us) for us in times])
            await archive_now(daemon)

    play(live())
    folders = [path.name for path in sorted((tmp_path / "s").iterdir()) if path.is_dir()]
    assert folders == ["date=0001-01-01", "date=2026-10-14", "date=2026-10-17", "date=9999-12-31"]
    found = {row["__seq"]: row for path in history.files(tmp_path / "s") for row in numbers(path)}
    assert [found[seq]["at"] for seq in range(len(times))] == times


def numbers(path):
    table = pq.read_table(path, partitioning=None)
    return [
        {"__seq": seq, "at": at}
        for seq, at in zip(table["__seq"].to_pylist(), table["at"].cast(pa.int64()).to_pylist(), strict=True)
    ]


# -- when files are closed ---------------------------------------------------------------------------------------------


def test_files_are_closed_by_size_and_by_age(tmp_path):
    async def live():
        server = {"history_dir": tmp_path, "archive_file_bytes": 2**16, "archive_file_age": "1 day"}
        async with running(STREAM, server=server) as daemon:
            await feed(daemon, [("f", NOW + number) for number in range(2_000)])
            await until(lambda: daemon.archive.view("s").files >= 2)
            assert daemon.archive.view("s").waiting_rows > 0
        server = {"history_dir": tmp_path / "b", "archive_file_age": "10 ms"}
        async with running(STREAM, server=server) as daemon:
            await feed(daemon, [("f", NOW)])
            await until(lambda: daemon.archive.view("s").rows == 1)

    play(live())


def test_single_tuples_are_merged_while_they_wait(tmp_path):
    async def live():
        async with running(STREAM, server={"history_dir": tmp_path}) as daemon:
            await feed(daemon, [("ab"[number % 2], NOW + number) for number in range(1_000)])
            waiting = daemon.archive.view("s")
            assert waiting.waiting_rows == 1_000
            assert waiting.waiting_bytes < 100 * archive_module.PIECE_BYTES + 1_000 * 100
            written = await archive_now(daemon)
            assert (written.waiting_rows, written.waiting_bytes) == (0, 0)

    play(live())
    rows = archived(tmp_path)
    assert [(row["__seq"], row["__feed"]) for row in rows] == [(n, "ab"[n % 2]) for n in range(1_000)]


# -- disks -------------------------------------------------------------------------------------------------------------


def test_a_disk_that_fails_loses_nothing(tmp_path, monkeypatch):
    """What cannot be written waits, is shown, holds the feeds back, and is written when it can be."""
    broken: list[bool] = []
    write = history.write_rows

    def maybe(*arguments):
        if broken:
            raise OSError(28, "No space left on device")
        return write(*arguments)

    monkeypatch.setattr(history, "write_rows", maybe)
    monkeypatch.setattr(archive_module, "RETRY_SECONDS", 0.001)
    server = {"history_dir": tmp_path, "archive_file_bytes": 2**16, "archive_waiting_bytes": 2**17}

    async def live():
        async with running(STREAM, server=server, engine={"credit": 64}) as daemon:
            broken.append(True)
            async with lines(daemon) as nc:
                for number in range(40_000):
                    nc.say(json.dumps({"stream": "s", "tuple": {"at": NOW + number, "k": number}}))
                await until(lambda: daemon.archive.view("s").held)
                await until(lambda: daemon.archive.view("s").error)
                shown = next(one for one in daemon.streams() if one.name == "s").archive
                assert shown.error.lower() == "no space left on device"
                assert (shown.rows, shown.errors > 0) == (0, True)
                assert "no space left" in daemon.describe().problems[0].lower()
                assert b'millrace_archive_held{stream="s"} 1.0' in daemon.metrics.text()
                # The feed has no credit: what it sends lies unread, beyond what one read of the socket may hold.
                assert shown.waiting_rows < 40_000
                with pytest.raises(history.HistoryError, match="cannot be written"):
                    await daemon.archive_now("s")
                broken.clear()
                await until(lambda: daemon.streams()[0].tuples == 40_000)
            assert (await archive_now(daemon)).error is None
            assert not daemon.archive.view("s").held

    play(live())
    assert [row["k"] for row in archived(tmp_path)] == list(range(40_000))


def test_a_file_that_fails_half_way_is_taken_back(tmp_path, monkeypatch):
    calls: list[str] = []
    fsync = os.fsync

    def once(handle):
        path = os.readlink(f"/proc/self/fd/{handle}")
        if f"{history.date_folder(NOW // DAY + 1)}/" in path and not calls:
            calls.append(path)
            raise OSError(5, "Input/output error")
        fsync(handle)

    async def live():
        async with running(STREAM, server={"history_dir": tmp_path}) as daemon:
            monkeypatch.setattr(os, "fsync", once)
            monkeypatch.setattr(archive_module, "RETRY_SECONDS", 0.001)
            await feed(daemon, [("f", NOW), ("f", NOW + DAY)])
            with pytest.raises(history.HistoryError):
                await archive_now(daemon)
            await until(lambda: daemon.archive.view("s").rows == 2)

    play(live())
    assert [row["k"] for row in archived(tmp_path)] == [0, 1]
    assert [path.name for path in tmp_path.rglob(".*")] == [history.HOLD_FILE]


def test_a_file_that_is_there_is_never_replaced(tmp_path, monkeypatch):
    async def live():
        async with running(STREAM, server={"history_dir": tmp_path}) as daemon:
            monkeypatch.setattr(archive_module, "RETRY_SECONDS", 0.001)
            path = tmp_path / "s" / history.date_folder(NOW // DAY) / str(history.Name(0, 0))
            path.parent.mkdir()
            path.write_bytes(b"of somebody else")
            await feed(daemon, [("f", NOW)])
            with pytest.raises(history.HistoryError, match="already exists with other rows"):
                await archive_now(daemon)
            assert path.read_bytes() == b"of somebody else"
            path.unlink()
            await until(lambda: daemon.archive.view("s").rows == 1)

    play(live())
    assert [row["k"] for row in archived(tmp_path)] == [0]


@pytest.mark.parametrize("there", [False, True])
def test_a_file_system_without_links_has_files_all_the_same(tmp_path, monkeypatch, there):
    def refused(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    definition = plan(parse(STREAM)[0], Catalog())
    assert isinstance(definition, CreateStream)
    batch = Batch.from_rows(definition.stream.schema, [(NOW, 7, "n")], [NOW])
    rows = history.ArchivedRows(0, batch, np.zeros(1, np.bool_), np.array([NOW]), (("f", 1),))
    for _ in range(1 + there):  # what failed half way is written again
        (written,) = history.write_rows(tmp_path / "s", definition.stream, rows)
    assert [row["k"] for row in archived(tmp_path)] == [7]
    assert os.listdir(written.path.parent) == [written.path.name]


# -- two servers -------------------------------------------------------------------------------------------------------


def beside(folder, name):
    """A server with a separate data directory, and a shared history folder."""
    (folder / name).mkdir(exist_ok=True)
    return {"data_dir": folder / name, "history_dir": folder / "h"}


def test_a_folder_has_one_server(tmp_path):
    async def live():
        async with running(STREAM, server=beside(tmp_path, "a")) as one:
            await feed(one, [("f", NOW + number) for number in range(10)])
            async with running(server=beside(tmp_path, "b")) as other:
                for sql in (STREAM, STREAM.replace("STREAM s", "STREAM other")):
                    with pytest.raises(Refuse, match=r"another server writes history to .*history_dir"):
                        await other.catalog.execute(sql)
                assert not other.engine.streams_by_name
            assert (await archive_now(one)).rows == 10

    play(live())
    assert len(archived(tmp_path / "h")) == 10

    async def later():
        # The first has ended: nothing is left of its hold.
        async with running(STREAM, server=beside(tmp_path, "c")) as daemon:
            await feed(daemon, [("f", NOW + 20)])

    play(later())
    assert [row["__seq"] for row in archived(tmp_path / "h")] == list(range(11))


def test_a_server_that_has_history_already_does_not_start_beside_another(tmp_path):
    async def begin():
        async with running(STREAM, server=beside(tmp_path, "a")):
            pass

    async def second():
        async with running(STREAM.replace("STREAM s", "STREAM other"), server=beside(tmp_path, "b")):
            with pytest.raises(Refuse, match="another server writes history to"):
                async with running(server=beside(tmp_path, "a")):
                    pass

    play(begin())
    play(second())


def test_a_killed_server_holds_nothing(tmp_path):
    code = f"from pathlib import Path\nfrom millrace.history import files\nfiles.hold(Path({str(tmp_path)!r}))\n"
    with subprocess.Popen(
        [sys.executable, "-c", code + "print('held', flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(Refuse, match="another server"):
            history.hold(tmp_path)
        child.kill()
    os.close(history.hold(tmp_path))


# -- lives -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("journal", [True, False])
def test_a_killed_server_leaves_no_half_file(tmp_path, journal):
    """Without a journal, as an earlier version left it, rows are missing, and the next server says so."""
    (tmp_path / "one").mkdir()

    async def first():
        async with running(STREAM, server={"data_dir": tmp_path / "one"}) as daemon:
            await feed(daemon, [("f", NOW + number) for number in range(10)])
            await archive_now(daemon)
            await feed(daemon, [("f", NOW + 10 + number) for number in range(10)])
            # As it would be if the power went now, in the middle of the next file.
            shutil.copytree(tmp_path / "one", tmp_path / "two")

    play(first())
    folder = tmp_path / "two" / "history" / "s"
    half = next(folder.glob("date=*")) / ".0000000000000000010-0000000000000000019.parquet"
    half.write_bytes(b"PAR1 and no more")
    before = reach_of(folder)
    assert (before.open, before.last_seq) == (True, 9)

    if not journal:
        forget_journal(tmp_path / "two")

    async def second():
        async with running(server={"data_dir": tmp_path / "two"}) as daemon:
            assert not half.exists()
            gaps = [(gap.reason, gap.after_seq, gap.from_us) for gap in daemon.archive.view("s").gaps]
            assert gaps == ([] if journal else [("killed", 9, before.reach_us)])
            await feed(daemon, [("f", NOW + 30)])

    play(second())
    rows = archived(tmp_path / "two" / "history")
    assert [row["__seq"] for row in rows] == list(range(21 if journal else 11))
    kept = 20 if journal else 10
    assert [row["k"] for row in rows[:kept]] == [row["k"] for row in archived(tmp_path / "one" / "history")][:kept]
    assert [row["__seq"] for row in archived(tmp_path / "one" / "history")] == list(range(20))


def test_files_that_the_reach_does_not_know_of_are_counted(tmp_path):
    async def life(tuples):
        async with running(None if tmp_path.joinpath("catalog.sqlite").exists() else STREAM,
                           server={"data_dir": tmp_path}) as daemon:  # fmt: skip
            await feed(daemon, tuples)
            await archive_now(daemon)
            return daemon.archive.view("s")

    play(life([("f", NOW)]))
    folder = tmp_path / "history" / "s"
    before = (folder / history.REACH_FILE).read_bytes()
    play(life([("f", NOW + 1), ("f", NOW + DAY)]))
    (folder / history.REACH_FILE).write_bytes(before)  # killed between the files and the reach
    told = play(life([("f", NOW + 2)]))
    assert (told.rows, told.files, told.last_seq) == (4, 4, 3)


def test_a_stream_that_begins_anew_takes_the_reach_back_until_it_is_true(tmp_path):
    """Without a journal the mark starts again, so tuples sent again may be on time earlier than the recorded reach."""

    async def life(sql, tuples):
        server = {"data_dir": tmp_path, "archive_file_age": "1 day"}
        async with running(sql, server=server) as daemon:
            await feed(daemon, tuples)
            if sql is None:
                await until(lambda: reach_of(tmp_path / "history" / "s").reach_us == NOW)
                assert daemon.archive.view("s").reach_us == NOW
                assert (await archive_now(daemon)).reach_us == NOW + 9_000_000

    play(life(STREAM, [("f", NOW), ("f", NOW + 10_000_000)]))
    assert reach_of(tmp_path / "history" / "s").reach_us == NOW + 9_000_000
    forget_journal(tmp_path)
    play(life(None, [("f", NOW)]))


def test_history_is_turned_on_and_off_while_a_stream_runs(tmp_path):
    async def live():
        sql = STREAM.replace(", history = 'true'", "")
        async with running(sql, server={"data_dir": tmp_path}) as daemon:
            await feed(daemon, [("f", NOW)])
            assert daemon.archive.view("s") is None
            for number in (1, 3):
                await daemon.catalog.execute("ALTER STREAM s SET (history = 'true')")
                await feed(daemon, [("f", NOW + number)])
                await daemon.catalog.execute("ALTER STREAM s SET (history = 'false')")
                await feed(daemon, [("f", NOW + number + 1)])
            await daemon.catalog.execute("ALTER STREAM s SET (history = 'true')")
            told = await archive_now(daemon)
            assert told.since_us == NOW + 1
            assert [(gap.reason, gap.after_seq) for gap in told.gaps] == [("off", 0), ("off", 1)]
        async with running(server={"data_dir": tmp_path}) as daemon:
            assert daemon.archive.view("s").rows == 2

    play(live())
    assert [row["at"] for row in archived(tmp_path / "history")] == [NOW + 1, NOW + 3]


def test_a_stream_gets_a_column_while_it_is_archived(tmp_path):
    async def live():
        async with running(STREAM, server={"data_dir": tmp_path}) as daemon:
            await feed(daemon, [("f", NOW + number) for number in range(100)])
            await daemon.catalog.execute("ALTER STREAM s ADD COLUMN size BIGINT")
            source = daemon.feeds.source("s")
            for number in range(100, 200):
                daemon.feeds.arrived("s", "f", source.from_rows([(NOW + number, number, "n", number)]))
            await archive_now(daemon)
        async with running(server={"data_dir": tmp_path}) as daemon:
            assert daemon.archive.view("s").rows == 200
            narrower = STREAM.replace("k BIGINT, ", "").replace("STREAM s", "STREAM s")
            await daemon.catalog.execute("DROP STREAM s")
            await until(lambda: ended_at(tmp_path / "history" / "s") == 199)
            with pytest.raises(Refuse, match="and other columns"):
                await daemon.catalog.execute(narrower)

    play(live())
    rows = archived(tmp_path / "history")
    assert [row["k"] for row in rows] == list(range(200))
    assert [row.get("size") for row in rows] == [None] * 100 + list(range(100, 200))


def test_a_dropped_stream_leaves_its_archive_and_may_come_back(tmp_path):
    async def live():
        async with running(STREAM, server={"data_dir": tmp_path}) as daemon:
            for us in (NOW, NOW + 1):
                await feed(daemon, [("f", us)])
                await daemon.catalog.execute("DROP STREAM s")
                await daemon.catalog.execute(STREAM)
            await daemon.catalog.execute("DROP STREAM s")
            await until(lambda: ended_at(tmp_path / "history" / "s") == 1)
            other = STREAM.replace("k BIGINT", "k DOUBLE")
            with pytest.raises(Refuse, match=r"contains the history of a stream with the same name and other columns"):
                await daemon.catalog.execute(other)
            assert not daemon.catalog.known.streams

    play(live())
    assert [(row["at"], row["__seq"]) for row in archived(tmp_path / "history")] == [(NOW, 0), (NOW + 1, 1)]


# -- what is refused ---------------------------------------------------------------------------------------------------


@served()
async def test_history_needs_a_folder(daemon):
    for ask in (daemon.catalog.plan, daemon.catalog.execute):
        with pytest.raises(Refuse, match="history = true needs a folder: start the server with --data-dir"):
            await ask(f"CREATE STREAM t (k BIGINT); {STREAM.replace('STREAM s', 'STREAM x')}")
    assert "t" not in daemon.engine.streams_by_name


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("CREATE STREAM x (__seq BIGINT) WITH (history = 'true')", "cannot have a column __seq"),
        ("CREATE STREAM x (ts TIMESTAMP) WITH (history = 'true')", "cannot have a column ts"),
        ("CREATE STREAM x (\"__LATE\" BIGINT) WITH (history = 'true')", "cannot have a column __LATE"),
    ],
)
def test_columns_of_the_archive_are_taken(tmp_path, sql, said):
    async def live():
        async with running(server={"data_dir": tmp_path}) as daemon:
            with pytest.raises(Refuse, match=said):
                await daemon.catalog.execute(sql)
            assert not (tmp_path / "history" / "x").exists()

    play(live())


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "history").write_text("a file")

    async def live():
        async with running(server={"data_dir": tmp_path}) as daemon:
            with pytest.raises(Refuse, match=r"cannot write .*: Not a directory"):
                await daemon.catalog.execute(STREAM)
            assert "s" not in daemon.engine.streams_by_name

    play(live())


def test_an_archive_that_a_stranger_has_written_in(tmp_path):
    folder = tmp_path / "history" / "s"
    folder.mkdir(parents=True)
    (folder / history.REACH_FILE).write_text("{}")

    async def live():
        async with running(server={"data_dir": tmp_path}) as daemon:
            with pytest.raises(history.HistoryError, match=r"_reach.json: expected a file written by a server"):
                await daemon.catalog.execute(STREAM)

    play(live())


def test_a_refused_change_leaves_no_history(tmp_path):
    async def live():
        async with running("CREATE STREAM t (k BIGINT)", server={"data_dir": tmp_path}) as daemon:
            with pytest.raises(Refuse):
                await daemon.catalog.execute(f"{STREAM}; CREATE QUERY t2 AS SELECT nope FROM t")
            assert daemon.archive.views() == {}

    play(live())


# -- reading it with others' tools -------------------------------------------------------------------------------------


def test_duckdb_and_arrow_read_the_folder(tmp_path):
    duckdb = pytest.importorskip("duckdb")

    async def live():
        async with running(STREAM, server={"history_dir": tmp_path}) as daemon:
            await feed(daemon, [("f", NOW), ("g", NOW + DAY), ("f", NOW + 2 * DAY), ("f", NOW)])
            await archive_now(daemon)

    play(live())
    found = duckdb.sql(
        f"SELECT k, __late, date FROM read_parquet('{tmp_path}/s/date=*/*.parquet', hive_partitioning = true)"
        " ORDER BY __seq"
    ).fetchall()
    assert [(k, late, str(date)) for k, late, date in found] == [
        (0, False, "2026-10-14"),
        (1, False, "2026-10-15"),
        (2, False, "2026-10-16"),
        (3, True, "2026-10-14"),
    ]
    table = pq.read_table(tmp_path / "s")
    assert np.sort(table["__seq"].to_numpy()).tolist() == [0, 1, 2, 3]


def test_nothing_is_begun_for_streams_without_history(tmp_path):
    before = set(threading.enumerate())

    async def live():
        async with running("CREATE STREAM s (k BIGINT)", server={"data_dir": tmp_path}) as daemon:
            daemon.feeds.arrived("s", "f", daemon.feeds.source("s").from_rows([(1,)]))
            await daemon.runner.wait_drained()
            assert isinstance(daemon.archive, Archive)
            assert "history" not in {thread.name for thread in set(threading.enumerate()) - before}
            assert daemon.engine.source("s").judged is None

    play(live())


def test_a_stream_that_comes_back_while_its_end_is_written_loses_nothing(tmp_path, monkeypatch):
    ends, go_on = threading.Event(), threading.Event()
    write_reach = history.write_reach

    def slow(folder, reach):
        write_reach(folder, reach)
        if not reach.open and not ends.is_set():
            ends.set()
            go_on.wait(HANG_SECONDS)

    async def live():
        async with running(STREAM, server={"data_dir": tmp_path}) as daemon:
            await feed(daemon, [("f", NOW)])
            await daemon.catalog.execute("DROP STREAM s")
            await until(ends.is_set)
            await daemon.catalog.execute(STREAM)
            await feed(daemon, [("f", NOW + 1)])
            await daemon.catalog.execute("DROP STREAM s")
            go_on.set()
            await until(lambda: ended_at(tmp_path / "history" / "s") == 1)

    monkeypatch.setattr(history, "write_reach", slow)
    play(live())
    assert [(row["at"], row["__seq"]) for row in archived(tmp_path / "history")] == [(NOW, 0), (NOW + 1, 1)]
