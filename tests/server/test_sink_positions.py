"""Sinks after a restart: rows arrive again from a position on, and each is where it belongs exactly once."""

import asyncio
import csv
import errno
import io
import json
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from millrace.net.sink import Outlet, Retention, Slow, WriterSink
from millrace.protocol import Schema
from millrace.standby.sinkfence import OPEN
from millrace.store import resultlog
from millrace.store import results as results_module
from millrace.store.places import SinkFolders
from millrace.store.results import Results
from millrace.store.sinkfiles import Folder, Label, NotDurableError, Rotation, SinkPosition, line_file, whole_files
from millrace.values.batch import Batch
from millrace.values.retention import parse_retain
from tests.server.harness import until

SCHEMA = Schema.of(k="bigint", t="text")
HISTORY = "ab" * 8
LINES = ["jsonl", "csv"]
WHOLE = ["parquet", "arrow"]


def rows_of(first, count):
    rows = [(k, ('line\n"' if k % 3 else "äö,") * (k % 4)) for k in range(first, first + count)]
    return Batch.from_rows(SCHEMA, rows, [k * 3 for k in range(first, first + count)], arrival=1)


def opened(folder, ending, rows=7, fence=OPEN):
    places = SinkFolders(folder)
    place = places.locate(f"out.{ending}")
    if ending in LINES:
        return line_file(places, place, SCHEMA, ending, fence)
    return whole_files(places, place, SCHEMA, Label("f", "q", ending), Rotation(rows, 1 << 40, 10**12), fence)


def content(folder, ending):
    """The numbers of all rows, in the order of the file or of the files' names."""
    path = folder / f"out.{ending}"
    if ending == "jsonl":
        return [json.loads(line)["k"] for line in path.read_text().split("\n")[:-1]]
    if ending == "csv":
        return [int(row[0]) for row in list(csv.reader(io.StringIO(path.read_text(), newline="")))[1:]]
    found = []
    for file in sorted(path.glob(f"*.{ending}")):
        table = pq.read_table(file) if ending == "parquet" else pa.ipc.open_file(str(file)).read_all()
        found += table["k"].to_pylist()
    return found


class Killed(BaseException):
    """The process ends here."""


def restarted(folder, ending, position, *, makes=False, complete=True, fence=OPEN):
    file = opened(folder, ending, fence=fence)
    file.history = HISTORY
    file.prepare(position, complete=complete)
    file.open(makes=makes)
    return file


@pytest.mark.parametrize("ending", [*LINES, *WHOLE])
@pytest.mark.parametrize("seed", range(8))
def test_kills_lose_and_double_no_row(tmp_path, ending, seed, monkeypatch):
    """Whatever was written after the newest position, torn at any byte, and whatever step a file had reached."""
    rng = random.Random(f"{ending} {seed}")
    steps = [0]
    for name in ("write", "rename", "add_line"):
        method = getattr(Folder, name)

        def step(self, *arguments, method=method):
            steps[0] -= 1
            if steps[0] == 0:
                raise Killed
            found = method(self, *arguments)
            if steps[0] == -1:
                raise Killed
            return found

        monkeypatch.setattr(Folder, name, step)
    stored, emitted = SinkPosition(HISTORY, 0), 0
    for life in range(12):
        steps[0] = rng.randrange(1, 8)
        file = None
        at = stored.next
        try:
            file = restarted(tmp_path, ending, stored, makes=not life)
            for _ in range(rng.randrange(1, 9)):
                if at < emitted:
                    count = min(rng.randrange(1, 12), emitted - at)
                else:
                    count = rng.randrange(1, 12)
                emitted = max(emitted, at + count)
                file.write(at, rows_of(at, count))
                at += count
                if rng.random() < 0.3:
                    stored = file.committed()
        except Killed:
            pass
        if file is not None:
            file.abandon()
        if ending in LINES and rng.random() < 0.7:
            path, least = tmp_path / f"out.{ending}", stored.offset or 0
            os.truncate(path, rng.randint(least, max(path.stat().st_size, least)))
    steps[0] = 10**9
    file = restarted(tmp_path, ending, stored)
    if stored.next < emitted:
        file.write(stored.next, rows_of(stored.next, emitted - stored.next))
    file.close()
    assert file.notice is None
    assert content(tmp_path, ending) == list(range(emitted))
    if ending in WHOLE:
        listed = [json.loads(line) for line in (tmp_path / f"out.{ending}/_f.manifest.jsonl").read_text().splitlines()]
        assert [one["file"] for one in listed] == sorted(
            file.name for file in (tmp_path / f"out.{ending}").glob(f"*.{ending}")
        )
        assert [row for one in listed for row in range(one["first_seq"], one["last_seq"] + 1)] == list(range(emitted))
        assert not list((tmp_path / f"out.{ending}").glob("*.part"))


@pytest.mark.parametrize("ending", LINES)
def test_a_sink_that_drops_rows_starts_again_at_its_position(tmp_path, ending):
    """Lines do not say which numbers were dropped, so those after the position are cut off and come again."""
    file = restarted(tmp_path, ending, SinkPosition(HISTORY, 0), makes=True, complete=False)
    file.write(0, rows_of(0, 3))
    stored = file.committed()
    file.write(10, rows_of(10, 2))
    file.abandon()
    file = restarted(tmp_path, ending, stored, complete=False)
    file.write(11, rows_of(11, 3))
    file.close()
    assert content(tmp_path, ending) == [0, 1, 2, 11, 12, 13]


@pytest.mark.parametrize("ending", LINES)
def test_log_rotation_and_a_kill_double_no_row(tmp_path, ending):
    file = restarted(tmp_path, ending, SinkPosition(HISTORY, 0), makes=True)
    path, moved = tmp_path / f"out.{ending}", tmp_path / "moved" / f"out.{ending}"
    moved.parent.mkdir()
    file.write(0, rows_of(0, 10))
    stored = file.committed()
    file.write(10, rows_of(10, 5))
    path.rename(moved)
    file.write(15, rows_of(15, 5))
    file.abandon()
    file = restarted(tmp_path, ending, stored)
    file.write(10, rows_of(10, 15))
    file.close()
    assert file.notice is None
    assert content(moved.parent, ending) == list(range(15))
    assert content(tmp_path, ending) == list(range(15, 25))


@pytest.mark.parametrize("ending", LINES)
@pytest.mark.parametrize("how", ["no file", "empty", "header", "rotated twice", "copied", "torn"])
@pytest.mark.parametrize("committed", [0, 4])
def test_log_rotation_and_a_kill_before_the_next_file_double_no_row(tmp_path, ending, how, committed):
    file = restarted(tmp_path, ending, SinkPosition(HISTORY, 0), makes=True)
    stored = SinkPosition(HISTORY, 0, **file.start())
    path, moved = tmp_path / f"out.{ending}", tmp_path / f"out.{ending}.1"
    if committed:
        file.write(0, rows_of(0, committed))
        stored = file.committed()
    file.write(committed, rows_of(committed, 10 - committed))
    header = path.read_bytes().partition(b"0")[0] if ending == "csv" else b""
    if how == "copied":
        if not committed:
            pytest.skip("nothing says which file was copied")
        moved.write_bytes(path.read_bytes())
        os.truncate(path, 0)
    else:
        path.rename(moved)
    if how == "rotated twice":
        file.write(10, rows_of(10, 5))
        moved.rename(tmp_path / f"out.{ending}.2")
        path.rename(moved)
    elif how == "empty":
        path.touch()
    elif how == "header":
        path.write_bytes(header)
    elif how == "torn":
        os.truncate(moved, moved.stat().st_size - 1)
    written = 15 if how == "rotated twice" else 9 if how == "torn" else 10
    file.abandon()
    file = restarted(tmp_path, ending, stored)
    file.write(stored.next, rows_of(stored.next, 20 - stored.next))
    file.close()
    assert file.notice is None
    assert content(tmp_path, ending) == list(range(written, 20))


@pytest.mark.parametrize("ending", LINES)
def test_a_new_file_has_its_label_before_its_rows(tmp_path, ending, monkeypatch):
    """A label that cannot be stored because the disk is full is tried again, and no row precedes it."""
    file = restarted(tmp_path, ending, SinkPosition(HISTORY, 0), makes=True)
    path, set_label = tmp_path / f"out.{ending}", os.setxattr
    header = path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "setxattr", full)
    with pytest.raises(OSError, match="No space"):
        file.write(0, rows_of(0, 3))
    assert path.read_bytes() in (b"", header)
    monkeypatch.setattr(os, "setxattr", set_label)
    file.write(0, rows_of(0, 3))
    assert os.getxattr(path, "user.millrace") == f"{HISTORY} 0".encode()
    assert content(tmp_path, ending) == [0, 1, 2]
    file.close()


@pytest.mark.parametrize("ending", LINES)
def test_a_rotated_file_that_cannot_be_made_durable_ends_the_sink(tmp_path, ending, monkeypatch):
    """A second sync would report success without what the first one has lost."""
    file = restarted(tmp_path, ending, SinkPosition(HISTORY, 0), makes=True)
    file.write(0, rows_of(0, 3))
    (tmp_path / f"out.{ending}").rename(tmp_path / f"out.{ending}.1")

    def broken(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(NotDurableError, match="could not be made durable: Input/output error; restart the server"):
        file.write(3, rows_of(3, 3))
    monkeypatch.undo()
    file.abandon()


@pytest.mark.parametrize("ending", LINES)
@pytest.mark.parametrize("how", ["deleted", "other", "shrunk", "changed", "row"])
def test_what_another_program_does_while_the_server_is_down_is_reported(tmp_path, ending, how):
    file = restarted(tmp_path, ending, SinkPosition(HISTORY, 0), makes=True)
    path = tmp_path / f"out.{ending}"
    file.write(0, rows_of(0, 10))
    stored = file.committed()
    file.write(10, rows_of(10, 5))
    file.abandon()
    before = path.read_bytes()
    if how == "deleted":
        path.unlink()
    elif how == "other":
        path.unlink()
        path.write_bytes(b"x" * len(before) + b"\n")
    elif how == "shrunk":
        os.truncate(path, stored.offset - 1)
    elif how == "changed":
        path.write_bytes(before[: stored.offset - 3] + b"?" + before[stored.offset - 2 :])
    elif how == "row":
        at = before.index(b"12", stored.offset)
        path.write_bytes(before[:at] + b"99" + before[at + 2 :])
    file = restarted(tmp_path, ending, stored)
    file.write(10, rows_of(10, 8))
    if how == "row":
        assert file.notice.startswith(f"row 12 in {path} is not the one that the query emitted")
        assert content(tmp_path, ending) == [*range(12), 99, 13, 14, 15, 16, 17]
    else:
        assert f"{path} is" in file.notice
        assert "continues with row 10" in file.notice
        written = content(tmp_path, ending) if how == "deleted" else []
        assert written in ([], list(range(10, 18)))
        assert path.read_bytes().endswith(before[-3:]) or how != "changed" or path.read_bytes().count(b"17") == 1
    file.close()


@pytest.mark.parametrize("ending", LINES)
def test_what_another_program_does_to_an_open_file_is_reported(tmp_path, ending):
    file = restarted(tmp_path, ending, SinkPosition(HISTORY, 0), makes=True)
    path = tmp_path / f"out.{ending}"
    file.write(0, rows_of(0, 10))
    size = path.stat().st_size
    os.truncate(path, size - 4)
    file.write(10, rows_of(10, 1))
    assert file.notice.startswith(f"{path} was shrunk from {size} to {size - 4} bytes")
    with path.open("ab") as other:
        other.write(b"hello")
    file.write(11, rows_of(11, 1))
    assert file.notice == f"another program wrote 5 bytes to {path}"
    path.unlink()
    file.write(12, rows_of(12, 3))
    assert "was deleted with the rows 0 to 11; a new file starts at row 12" in file.notice
    assert content(tmp_path, ending) == [12, 13, 14]
    file.close()


def test_a_position_is_data_for_a_checkpoint():
    position = SinkPosition(HISTORY, 7, 100, 3, 4)
    assert SinkPosition.from_data(json.loads(json.dumps(position.to_data()))) == position


# -- with a log and its query ------------------------------------------------------------------------------------------


class Life:
    """A server from a restart to its kill: one query, its log, and one sink."""

    def __init__(self, folder, ending, checkpoint, retain, policy="wait", place=None, **sink):
        self.results = Results(folder)
        next_sequence, position = checkpoint
        self.log = self.results.open(HISTORY, SCHEMA, parse_retain(retain), next_sequence)
        self.outlet = Outlet(
            "q", SCHEMA, Retention(0), lambda _: None, history=HISTORY, next_sequence=next_sequence, log=self.log
        )
        self.following = next_sequence
        file = opened(place or folder, ending, 40, sink.pop("fence", OPEN))
        self.sink = WriterSink("f", Slow(policy, 1_000), file, **sink)
        if position is None:
            self.sink.prepare(SinkPosition(HISTORY, next_sequence))
            self.outlet.add(self.sink)
        else:
            self.sink.prepare(SinkPosition.from_data(position))
            self.outlet.add(self.sink, self.outlet.resume_at(self.sink, position["next"]))
        self.sink.start()

    def emit(self, count):
        self.outlet.deliver(self.following, rows_of(self.following, count))
        self.following += count

    async def checkpoint(self):
        following = self.following
        await self.results.sync()
        await self.sink.commit()
        assert self.sink.position is not None
        return following, self.sink.position.to_data()

    async def kill(self):
        vars(self.results)["work"] = lambda final=False: True
        await self.results.close()
        self.sink._closing = True
        self.sink._cancel_timer()
        if self.sink._reading is not None:
            self.sink._reading.cancel()
        self.sink._thread.shutdown(wait=True)
        self.sink._writer.abandon()

    async def end(self):
        await self.sink.close(resumes=True)
        following = self.following
        await self.results.close()
        assert self.sink.position is not None
        return following, self.sink.position.to_data()


@pytest.mark.parametrize("retain", ["1 GB", "50 rows", "none"])
@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_a_sink_of_a_query_gets_every_row_once_over_kills_and_restarts(tmp_path, ending, retain, monkeypatch):
    monkeypatch.setattr(resultlog, "LEAST_FILE_BYTES", 2_000)
    monkeypatch.setattr(resultlog, "ORDINARY_FILE_BYTES", 2_000)
    monkeypatch.setattr(results_module, "WRITE_SECONDS", 0.01)
    monkeypatch.setattr("millrace.net.sink.LIVE_BYTES", 4_000)
    monkeypatch.setattr("millrace.net.sink.PIECE_BYTES", 2_000)
    rng = random.Random(f"{ending} {retain}")

    async def play():
        checkpoint, emitted = (0, None), 0
        for _ in range(12):
            life = Life(tmp_path, ending, checkpoint, retain)
            while life.following < emitted:  # the replay
                life.emit(min(rng.randrange(1, 60), emitted - life.following))
            for _ in range(rng.randrange(15)):
                life.emit(rng.randrange(1, 60))
                if rng.random() < 0.5:
                    await asyncio.sleep(0)
                if rng.random() < 0.2:
                    checkpoint = await life.checkpoint()
            emitted = life.following
            if rng.random() < 0.3:
                checkpoint = await life.end()
            else:
                await life.kill()
        life = Life(tmp_path, ending, checkpoint, retain)
        while life.following < emitted:
            life.emit(emitted - life.following)
        await until(lambda: life.sink.held == 0 and life.sink._writing is None)
        await life.end()
        assert life.sink.reason is None
        assert content(tmp_path, ending) == list(range(emitted))

    with capture_logs() as logs:
        asyncio.run(play())
    assert [one["event"] for one in logs if one["log_level"] == "error"] == []


def test_rows_that_were_trimmed_before_a_sink_wrote_them_are_counted(tmp_path):
    async def play():
        life = Life(tmp_path, "jsonl", (0, None), "1 GB")
        life.emit(100)
        await life.checkpoint()
        await life.kill()
        (tmp_path / "results" / HISTORY / f"{0:019d}.rows").unlink()
        with capture_logs() as logs:
            life = Life(tmp_path, "jsonl", (100, SinkPosition(HISTORY, 60).to_data()), "1 GB")
        assert life.sink.dropped == 40
        assert [one["event"] for one in logs][-1] == "rows that a sink had not written are no longer retained"
        await life.end()

    asyncio.run(play())


def test_a_file_that_cannot_be_made_durable_keeps_its_position(tmp_path, monkeypatch):
    async def play():
        life = Life(tmp_path, "jsonl", (0, None), "1 GB")
        life.emit(10)
        await until(lambda: life.sink.held == 0)
        stored = await life.checkpoint()
        life.emit(10)
        await until(lambda: life.sink.held == 0)

        def broken(handle):
            raise OSError(5, "Input/output error")

        await life.results.sync()
        monkeypatch.setattr(os, "fsync", broken)
        with capture_logs():
            position = await life.sink.commit()
        assert position is not None
        assert position.to_data() == stored[1]
        assert life.sink.state == "failed"
        assert "could not be made durable" in (life.sink.problem() or "")
        monkeypatch.undo()
        await life.kill()
        life = Life(tmp_path, "jsonl", stored, "1 GB")
        life.emit(15)
        await until(lambda: life.sink.held == 0)
        await life.end()
        assert content(tmp_path, "jsonl") == list(range(25))

    asyncio.run(play())
