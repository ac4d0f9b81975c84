"""Parquet and Arrow sinks: whole files, named by their rows, complete as soon as they are full or old enough."""

import asyncio
import json
import os
import re
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.net.sink import Slow, WriterSink
from millrace.protocol import Refuse, Schema
from millrace.store.places import SinkFolders
from millrace.store.sinkfiles import KEY, BufferedRows, Folder, Label, Rotation, WholeFiles
from millrace.values.batch import Batch
from tests.depth import examples
from tests.server.harness import lines, served, until

SCHEMA = Schema.of(k="bigint", t="text")
NAME = re.compile(r"f(-[0-9a-f]{16})?-(\d{19})-(\d{19})\.(parquet|arrow)")


def batch(first, count, text="x"):
    return Batch.from_rows(SCHEMA, [(k, text) for k in range(first, first + count)], [0] * count)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def made(folder, rotation, ending="parquet", history=None, clock=time.monotonic):
    places = SinkFolders(folder)
    place = places.locate(f"out.{ending}")

    def opened(makes):
        return Folder(places, places.find_folder(place), "f", makes=makes)

    file = WholeFiles(place.path, opened, Label("f", "q", ending), SCHEMA, rotation, clock)
    file.history = history
    file.open(makes=True)
    return file


def read(path):
    return (pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(str(path)).read_all()).to_pylist()


def names(folder, ending="parquet"):
    return sorted(name for name in os.listdir(folder / f"out.{ending}") if not name.startswith("_"))


def number(first, last, ending="parquet", more=""):
    return f"f{more}-{first:019d}-{last:019d}.{ending}"


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_file_is_full_at_so_many_rows(tmp_path, ending):
    file = made(tmp_path, Rotation(4, 1 << 30, 10**9), ending)
    file.write(0, batch(0, 10))
    assert names(tmp_path, ending) == [number(0, 3, ending), number(4, 7, ending)]
    assert file.unfinished == 2
    file.write(10, batch(10, 1))
    file.close()
    assert names(tmp_path, ending)[-1] == number(8, 10, ending)
    found = [row["k"] for name in names(tmp_path, ending) for row in read(tmp_path / f"out.{ending}" / name)]
    assert found == list(range(11))


def test_a_file_is_full_at_so_many_bytes(tmp_path):
    file = made(tmp_path, Rotation(1 << 30, 10_000, 10**9))
    for first in range(50):
        file.write(first, batch(first, 1, "x" * 1_000))
    assert len(names(tmp_path)) == 5
    assert file.unfinished < 10


def test_a_file_is_due_at_an_age(tmp_path):
    clock = Clock()
    file = made(tmp_path, Rotation(1 << 30, 1 << 30, 60_000_000), clock=clock)
    assert file.due_seconds() is None
    file.write(0, batch(0, 1))
    clock.now = 59.0
    file.write(1, batch(1, 1))
    file.flush()
    assert (names(tmp_path), file.due_seconds()) == ([], 1.0)
    clock.now = 60.0
    file.flush()
    assert names(tmp_path) == [number(0, 1)]
    assert file.due_seconds() is None


@served()
async def test_a_due_file_appears_although_no_row_arrives(daemon, tmp_path):
    await daemon.catalog.execute(
        f"CREATE SINK f FROM q WITH (type = 'file', path = '{tmp_path}/out.parquet', rotate_age = '20 ms')"
    )
    async with lines(daemon) as nc:
        nc.say('{"stream": "s", "tuple": {"k": 7}}')
        await until(lambda: names(tmp_path) == [number(0, 0)])
        await until(lambda: daemon.catalog.sinks()[0].unfinished == 0)


def test_numbers_that_begin_again_replace_nothing(tmp_path):
    """A restart counts from 0 again: the history distinguishes its files from earlier ones."""
    for history in ("a" * 16, "b" * 16, "c" * 16):
        file = made(tmp_path, Rotation(2, 1 << 30, 10**9), history=history)
        file.write(0, batch(0, 4, history[0]))
        file.close()
    assert names(tmp_path) == sorted(
        number(first, first + 1, more=more) for first in (0, 2) for more in ("", "-" + "b" * 16, "-" + "c" * 16)
    )
    assert sorted(row["t"] for name in names(tmp_path) for row in read(tmp_path / "out.parquet" / name)) == sorted(
        "abc" * 4
    )
    about = json.loads(pq.read_schema(tmp_path / "out.parquet" / number(2, 3)).metadata[KEY])
    assert about == {"sink": "f", "query": "q", "history": "a" * 16, "first_seq": 2, "last_seq": 3, "rows": 2}


def test_a_file_of_somebody_else_is_not_replaced(tmp_path):
    file = made(tmp_path, Rotation(2, 1 << 30, 10**9))
    file.write(0, batch(0, 2))
    (tmp_path / "out.parquet" / number(2, 3)).write_text("mine")
    file.write(2, batch(2, 2))
    assert (tmp_path / "out.parquet" / number(2, 3)).read_text() == "mine"
    (mine,) = [name for name in names(tmp_path) if re.match(r"f-[0-9a-f]{16}-", name)]
    assert [row["k"] for row in read(tmp_path / "out.parquet" / mine)] == [2, 3]


def test_a_last_step_that_failed_is_not_done_twice(tmp_path, monkeypatch):
    file = made(tmp_path, Rotation(2, 1 << 30, 10**9))
    synced = os.fsync

    def fails(handle):
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(5, "Input/output error")
        synced(handle)

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="output error"):
        file.write(0, batch(0, 2))
    assert file.taken == 2
    monkeypatch.undo()
    file.write(2, batch(2, 2))
    assert names(tmp_path) == [number(0, 1), number(2, 3)]


def test_leftovers_of_a_killed_server_are_removed(tmp_path):
    folder = tmp_path / "out.parquet"
    folder.mkdir()
    (folder / f".{number(0, 1)}.part").write_text("torn")
    (folder / ".other").write_text("mine")
    made(tmp_path, Rotation(2, 1 << 30, 10**9))
    assert names(tmp_path) == [".other"]


def test_a_whole_file_of_an_older_server_stays(tmp_path):
    (tmp_path / "out.parquet").write_text("old")
    for history in ("a" * 16, "b" * 16):
        file = made(tmp_path, Rotation(2, 1 << 30, 10**9), history=history)
        file.write(0, batch(0, 2))
        assert file.path == tmp_path / "out-2.parquet"
        file.close()
    assert (tmp_path / "out.parquet").read_text() == "old"
    assert len(list((tmp_path / "out-2.parquet").glob("*.parquet"))) == 2


@settings(max_examples=examples(30))
@given(st.lists(st.integers(1, 40), max_size=20))
@example([1] * 20)
def test_rows_keep_their_order_however_they_come(counts):
    rows, at = BufferedRows(), 0
    for count in counts:
        rows.add(at, batch(at, count))
        at += count
    if counts:
        assert rows.table()["k"].to_pylist() == list(range(at))
        assert (rows.first, rows.last, rows.count) == (0, at - 1, at)
        assert rows.table()["k"].num_chunks < 10


def test_options_are_for_whole_files_alone():
    @served()
    async def play(daemon):
        for option in ("rotate_rows = 5", "rotate_bytes = 5", "rotate_age = '1 second'"):
            with pytest.raises(Refuse, match="applies to sinks of Parquet and Arrow"):
                await daemon.catalog.execute(f"CREATE SINK f FROM q WITH (type = 'file', path = 'x.csv', {option})")

    play()


def test_a_consumer_hands_over_what_follows_as_one(tmp_path):
    """Single rows are not written singly, and numbers that do not follow stay apart."""
    file = made(tmp_path, Rotation(1_000, 1 << 30, 10**9))
    calls = []
    write = file.write

    def noted(sequence, rows):
        calls.append((sequence, len(rows)))
        write(sequence, rows)

    file.write = noted

    async def play():
        sink = WriterSink("f", Slow(), file)
        for at in (0, 1, 2, 7, 8):
            sink.put(at, batch(at, 1))
        await until(lambda: sink.delivered == 5)
        await sink.close()

    asyncio.run(play())
    assert sum(count for _, count in calls) == 5
    assert len(calls) <= 3
    assert names(tmp_path) == [number(0, 8)]
