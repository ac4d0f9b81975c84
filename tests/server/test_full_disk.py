"""A sink that cannot write waits, retries and continues by itself; no row that it can hold is lost or torn."""

import asyncio
import csv
import errno
import io
import json
import os
import shutil
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from millrace.formats.writers import csv_lines, csv_names, json_lines
from millrace.net import sink as sink_module
from millrace.net.sink import Slow, WriterSink
from millrace.protocol import Schema
from millrace.store import sinkfiles
from millrace.store.sinkfiles import Disk, Folder, LineFile, StandardOutput
from millrace.values.batch import Batch
from tests.cli.conftest import Server
from tests.patience import HANG_SECONDS, wait_until
from tests.server.harness import lines, served, until
from tests.server.test_api import get
from tests.warm.start import COLD

SCHEMA = Schema.of(k="bigint", t="text")
TEXTS = st.text(st.sampled_from('a",\n\r\\ä'), max_size=4)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(sink_module, "LEAST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(sink_module, "MOST_PAUSE_SECONDS", 0.01)


@pytest.fixture
def disk(monkeypatch):
    """A disk on which a test sets the number of free bytes (None: unlimited), and the error after that."""

    class State:
        room: int | None = None
        error = errno.ENOSPC
        tries = 0

        @classmethod
        def grant(cls, size):
            if cls.room is None:
                return size
            if cls.room <= 0:
                cls.tries += 1
                raise OSError(cls.error, os.strerror(cls.error))
            size = min(size, cls.room)
            cls.room -= size
            return size

    class SmallDisk(Disk):
        def write(self, data):
            return super().write(data[: State.grant(len(data))])

    class SmallFolder(Folder):
        def write(self, name, data):
            if State.grant(len(data)) < len(data):
                super().write(name, data[:10])  # an incomplete file
                raise OSError(State.error, os.strerror(State.error))
            super().write(name, data)

    monkeypatch.setattr(sinkfiles, "Disk", SmallDisk)
    monkeypatch.setattr(sinkfiles, "Folder", SmallFolder)
    return State


class Memory:
    """A file in memory that fails after so many bytes; truncating may fail, too."""

    identity = None

    def __init__(self, content=b"", room=0, *, truncates=True):
        self.content = bytearray(content)
        self.room = room
        self.truncates = truncates

    def size(self):
        return len(self.content)

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "full")
        part = bytes(data[: self.room])
        self.room -= len(part)
        self.content += part
        return len(part)

    def truncate(self, size):
        if not self.truncates:
            raise OSError(errno.EIO, "broken")
        del self.content[size:]

    def read(self, size, at):
        return bytes(self.content[at : at + size])

    def moved(self):
        return False

    def deleted(self):
        return False

    def sync(self): ...

    def settle(self): ...

    def label(self): ...

    def set_label(self, text): ...

    def rotated(self):
        return iter(())

    def epoch(self): ...

    def leave_epoch(self, text): ...

    def close(self): ...


def batch(rows):
    return Batch.from_rows(SCHEMA, rows, list(range(len(rows))))


ROWS = st.lists(st.tuples(st.integers(0, 99), TEXTS), min_size=1, max_size=8)


@given(rows=ROWS, room=st.integers(0, 60), truncates=st.booleans(), as_csv=st.booleans())
def test_wherever_the_disk_ends_the_file_ends_with_a_whole_row(rows, room, truncates, as_csv):
    memory = Memory(room=room, truncates=truncates)
    file = (
        LineFile(Path("x"), lambda _: memory, csv_lines, csv_names(SCHEMA), quoted=True)
        if as_csv
        else LineFile(Path("x"), lambda _: memory, json_lines)
    )
    left = batch(rows)
    for _ in range(20):
        try:
            file.write(len(rows) - len(left), left)
            break
        except OSError:
            left = left.slice(file.taken, len(left))
            if memory.truncates:
                assert len(read(memory.content, as_csv)) == len(rows) - len(left)
            memory.room += 13
            memory.truncates = True
    else:
        memory.room = 10_000
        file.write(len(rows) - len(left), left)
    assert read(memory.content, as_csv) == [[str(k), t] for k, t in rows]


def read(content, as_csv):
    text = bytes(content).decode()
    if as_csv:
        found = list(csv.reader(io.StringIO(text, newline="")))
        assert found[:1] in ([], [["k", "t"]])
        return found[1:]
    return [[str(row["k"]), row["t"]] for row in map(json.loads, text.split("\n")[:-1])]


@given(rows=ROWS, cut=st.integers(0, 30), as_csv=st.booleans())
def test_what_a_kill_has_torn_is_cut_off_at_the_next_start(rows, cut, as_csv):
    encode = csv_lines if as_csv else json_lines
    whole = (csv_names(SCHEMA) if as_csv else b"") + encode(batch(rows))
    torn = whole + encode(batch([(7, 'x"\ny')]))[:cut]
    memory = Memory(torn, room=10_000)
    made = LineFile(Path("x"), lambda _: memory, encode, csv_names(SCHEMA) if as_csv else b"", quoted=as_csv)
    made.open()
    made.write(0, batch([(8, "z")]))
    found = read(memory.content, as_csv)
    assert found[: len(rows)] == [[str(k), t] for k, t in rows]
    assert found[-1] == ["8", "z"]
    assert len(found) - len(rows) in (1, 2)


def test_a_file_of_another_program_loses_nothing():
    memory = Memory(b'{"k": 1}\n{"k": 2', room=1_000)
    file = LineFile(Path("x"), lambda _: memory, json_lines)
    file.open(makes=True)
    file.write(0, batch([(3, "a")]))
    assert bytes(memory.content) == b'{"k": 1}\n{"k": 2\n{"k":3,"t":"a"}\n'


ERRORS = ["ENOSPC", "EDQUOT", "EIO", "EACCES", "EROFS", "EFBIG", "ESTALE", "ENODEV"]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
@served(limits={"retained_tuples": 100_000})
async def test_a_sink_waits_for_the_disk_and_loses_nothing(daemon, tmp_path, disk, ending, error):
    path = tmp_path / f"out.{ending}"
    with capture_logs() as logs:
        more = ", rotate_rows = 5" if ending == "parquet" else ""
        await daemon.catalog.execute(f"CREATE SINK f FROM q WITH (type = 'file', path = '{path}'{more})")
        shown = lambda: daemon.catalog.sinks()[0]  # noqa: E731
        async with lines(daemon) as nc:

            def feed(first, last):
                for k in range(first, last):
                    nc.say(json.dumps({"stream": "s", "tuple": {"k": k, "v": 0.5, "name": f"n{k}"}}))

            feed(0, 20)
            await until(lambda: shown().delivered == 20)
            disk.room, disk.error = 40, getattr(errno, error)
            feed(20, 100)
            await until(lambda: shown().state == "waiting" and disk.tries > 3)
            found = shown()
            assert found.reason == os.strerror(disk.error)
            assert found.since_us is not None
            assert found.dropped == 0
            health = await get(daemon, "/-/healthy")
            assert health.startswith("degraded\nsink f cannot write since ")
            assert "has lost 0, and retries" in health
            assert 'millrace_sink_waiting{query="q",sink="f"} 1' in await get(daemon, "/metrics")
            if ending == "jsonl":
                assert [json.loads(line)["k"] for line in path.read_text().splitlines()] == list(range(found.delivered))
            disk.room = None
            await until(lambda: shown().state == "running" and shown().delivered == 100)
            assert shown().reason is None
            assert await get(daemon, "/-/healthy") == "healthy\n"
            feed(100, 110)
            await until(lambda: shown().delivered == 110)
        await daemon.catalog.execute("DROP SINK f")
    assert rows_in(path, ending) == list(range(110))
    told = [line["event"] for line in logs if line.get("sink") == "f"]
    assert told == ["a sink cannot write: it waits and retries", "a sink writes again"]


def rows_in(path, ending):
    if ending == "parquet":
        assert not [name for name in os.listdir(path) if name.startswith(".")]
        return [k for file in sorted(path.glob("*.parquet")) for k in pq.read_table(file)["k"].to_pylist()]
    if ending == "csv":
        with path.open(newline="") as file:
            return [int(row["k"]) for row in csv.DictReader(file)]
    return [json.loads(line)["k"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("policy", "dropped"), [("drop_oldest", 92), ("disconnect", 100)])
@served()
async def test_other_policies_say_what_is_lost_meanwhile(daemon, tmp_path, disk, policy, dropped):
    disk.room = 0
    await daemon.catalog.execute(
        f"CREATE SINK f FROM q WITH (type = 'file', path = '{tmp_path}/x.jsonl', on_slow = '{policy}', slow_limit = 8)"
    )
    state = "waiting" if policy == "drop_oldest" else "failed"
    async with lines(daemon) as nc:
        shown = lambda: daemon.catalog.sinks()[0]  # noqa: E731
        nc.say(json.dumps({"stream": "s", "tuple": {"k": 0}}))
        await until(lambda: shown().state == "waiting")  # from now on one row at a time is tried
        for k in range(1, 100):
            nc.say(json.dumps({"stream": "s", "tuple": {"k": k}}))
        await until(lambda: (shown().state, shown().dropped) == (state, dropped))
        assert str(dropped) in await get(daemon, "/-/healthy")
        disk.room = None
        if policy == "drop_oldest":
            await until(lambda: daemon.catalog.sinks()[0].delivered == 8)
            rows = [json.loads(line)["k"] for line in (tmp_path / "x.jsonl").read_text().splitlines()]
            assert rows[1:] == list(range(93, 100))  # the first may be the one that was being tried


@served()
async def test_a_sink_that_is_dropped_while_it_waits_says_what_is_lost(daemon, tmp_path, disk):
    disk.room = 0
    await daemon.catalog.execute(f"CREATE SINK f FROM q WITH (type = 'file', path = '{tmp_path}/x.jsonl')")
    async with lines(daemon) as nc:
        nc.say('{"stream": "s", "tuple": {"k": 1}}')
        await until(lambda: daemon.catalog.sinks()[0].state == "waiting")
    with capture_logs() as logs:
        await daemon.catalog.execute("DROP SINK f")
    (told,) = [line for line in logs if "last rows" in line["event"]]
    assert (told["sink"], told["rows"]) == ("f", 1)


@served()
async def test_a_folder_that_is_deleted_or_moved_is_waited_for(daemon, tmp_path):
    folder = tmp_path / "there"
    folder.mkdir()
    await daemon.catalog.execute(
        f"CREATE SINK f FROM q WITH (type = 'file', path = '{folder}/x.jsonl');"
        f"CREATE SINK g FROM q WITH (type = 'file', path = '{folder}/y.parquet', rotate_rows = 1)"
    )
    async with lines(daemon) as nc:

        async def feed(k, count):
            nc.say(json.dumps({"stream": "s", "tuple": {"k": k}}))
            await until(lambda: [found.delivered for found in daemon.catalog.sinks()] == [count, count])

        await feed(0, 1)
        shutil.rmtree(folder)
        nc.say('{"stream": "s", "tuple": {"k": 1}}')
        await until(lambda: [found.state for found in daemon.catalog.sinks()] == ["waiting", "waiting"])
        folder.mkdir()
        await feed(2, 3)
        # A file that was moved away, as log rotation does, is created again.
        (folder / "x.jsonl").rename(folder / "x.old")
        await feed(3, 4)
        assert [json.loads(line)["k"] for line in (folder / "x.old").read_text().splitlines()] == [1, 2]
        assert [json.loads(line)["k"] for line in (folder / "x.jsonl").read_text().splitlines()] == [3]
        # A file that replaces it is never written to unless it is a regular file.
        (folder / "x.jsonl").unlink()
        os.mkfifo(folder / "x.jsonl")
        nc.say('{"stream": "s", "tuple": {"k": 4}}')
        await until(lambda: daemon.catalog.sinks()[0].state == "waiting")
        assert "got a named pipe" in daemon.catalog.sinks()[0].reason
        (folder / "x.jsonl").unlink()
        await feed(5, 6)


def test_standard_output_is_not_torn(monkeypatch):
    """It cannot be truncated: the rest of a row goes first."""
    written, room = bytearray(), [25]

    class Output(StandardOutput):
        def _put(self, data):
            if not room[0]:
                raise OSError(errno.ENOSPC, "full")
            part = data[: room[0]]
            room[0] -= len(part)
            written.extend(part)
            return len(part)

    output = Output()
    rows = batch([(k, "abc") for k in range(5)])
    for _ in range(20):
        try:
            output.write(0, rows)
            break
        except OSError:
            rows = rows.slice(output.taken, len(rows))
            room[0] = 7
    assert [json.loads(line)["k"] for line in written.decode().splitlines()] == list(range(5))


@pytest.mark.parametrize("bounded_by", ["rows", "bytes"])
def test_rows_being_written_leave_the_newest_rows_their_place(bounded_by):
    """A write in flight cannot be undone, so `drop_oldest` drops the oldest of the other rows."""
    written: list[int] = []
    may_write = threading.Event()

    class Stuck(StandardOutput):
        def write(self, sequence, batch):
            assert may_write.wait(HANG_SECONDS)
            written.extend(k for k, _ in batch.rows())
            self.taken = len(batch)

        def flush(self): ...

    first = batch([(k, "x") for k in range(3)])
    slow = Slow("drop_oldest", 3) if bounded_by == "rows" else Slow("drop_oldest", 100, first.weight)

    async def play():
        sink = WriterSink("f", slow, Stuck())
        sink.put(0, first)
        for k in range(3, 20):
            sink.put(k, batch([(k, "x")]))
        may_write.set()
        await sink.close()
        return sink.dropped

    dropped = asyncio.run(play())
    assert written == [0, 1, 2, *range(3 + dropped, 20)]
    assert len(written) > 3


def test_an_error_that_is_no_disks_ends_the_sink():
    class Broken(StandardOutput):
        def write(self, sequence, batch):
            raise ValueError("no such column")

    async def play():
        sink = WriterSink("f", Slow(), Broken())
        sink.put(0, batch([(1, "a")]))
        await until(lambda: sink.failed is not None)
        assert (sink.failed, sink.dropped, sink.held) == ("no such column", 1, 0)
        await sink.close()

    asyncio.run(play())


def test_a_journal_that_cannot_be_written_ends_the_server(tmp_path):
    """The process may not write files beyond a size: `setrlimit` needs no privileges. The next server has every row
    that this one has let out."""
    resource = pytest.importorskip("resource")
    data = tmp_path / "data"
    data.mkdir()
    rows = "".join(json.dumps({"k": k, "name": "x" * 50}) + "\n" for k in range(20_000))
    with Server(data, command=COLD) as server:
        sql = """CREATE STREAM s (k BIGINT, name TEXT); CREATE QUERY q AS SELECT k, name FROM s;
                 CREATE SINK f FROM q WITH (type = 'file', path = 'out.jsonl')"""
        assert server.millrace("sql", sql).returncode == 0
        hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (200_000, hard))
        assert server.millrace("feed", "s", "--no-reconnect", stdin=rows).returncode == 1
        _, said = server.process.communicate()
    assert server.process.returncode == 1
    assert "the journal cannot be written: the server stops" in said
    assert "Traceback" not in said
    (data / "addresses.json").unlink(missing_ok=True)
    with Server(data) as server:
        count = server.json("query", "show", "q")["next_sequence"]
        assert 0 < count < 20_000
        wait_until(lambda: server.json("sink", "show", "f")["held"] == 0)
        assert server.end()[0] == 0
    found = [json.loads(line)["k"] for line in (data / "sinks/out.jsonl").read_text().splitlines()]
    assert found == list(range(count))
