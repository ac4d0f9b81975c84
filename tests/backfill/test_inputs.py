"""An error in an input or a destination is one line, before Spark starts. These tests do not start Spark."""

from __future__ import annotations

import datetime
import gzip
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from millrace.backfill import session
from millrace.backfill.inputs import Times, find_history, find_input, notes_of, refuse_bad_rows, times_of
from millrace.backfill.job import flow_of_text
from millrace.backfill.reading import pieces_of
from millrace.backfill.splitting import Extent
from millrace.cli.main import app
from millrace.history.files import Gap, Reach, write_reach
from millrace.protocol import MillraceError, Refuse
from millrace.values.eventtime import MAX_TIME

SQL = "CREATE STREAM s (ts TIMESTAMP, k BIGINT, v DOUBLE) WITH (time = 'ts'); SELECT k, v FROM s WHERE v > 1"
TIME = pa.timestamp("us", "UTC")


def table(**columns):
    made = {"ts": pa.array([1, 2, 3], TIME), "k": [1, 2, 3], "v": [1.0, 2.0, None], **columns}
    return pa.table({name: values for name, values in made.items() if values is not None})


def write(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(**columns), path)
    return path


def reach(folder, **told):
    """The metadata of an archive."""
    write_reach(folder, replace(Reach.begun(flow_of_text(SQL).streams["s"]), **told))


def refusal(path, sql=SQL, stream="s"):
    with pytest.raises(Refuse) as refused:
        find_input(flow_of_text(sql), stream, str(path))
    assert "\n" not in refused.value.text
    return refused.value.text


def test_columns_that_are_missing_or_of_another_type(tmp_path):
    text = refusal(write(tmp_path / "a.parquet", v=None))
    assert "expected the columns of stream s (ts, k, v), got no v; the columns are: ts, k" in text
    assert "column k: expected bigint, got string" in refusal(write(tmp_path / "b.parquet", k=["a", "b", "c"]))
    assert "column ts: expected timestamp, got date32" in refusal(
        write(tmp_path / "c.parquet", ts=[datetime.date(2026, 1, 1)] * 3)
    )
    internal = "CREATE STREAM s (k BIGINT); SELECT k FROM s"
    assert "got no ts" in refusal(write(tmp_path / "d.parquet", ts=None), internal)
    assert "expected a column __seq as well as __late" in refusal(write(tmp_path / "e.parquet", __late=[False] * 3))


def test_a_column_that_a_stream_got_while_it_was_archived(tmp_path):
    place = tmp_path / "s"
    write(place / "a.parquet", v=None, __seq=[0, 1, 2])
    assert "v" not in find_input(flow_of_text(SQL), "s", str(place)).columns
    write(place / "b.parquet", __seq=[3, 4, 5])
    found = find_input(flow_of_text(SQL), "s", str(place))
    assert "v" in found.columns
    write(place / "c.parquet", v=["x", "y", "z"], __seq=[6, 7, 8])
    assert "have different columns" in refusal(place)
    strict = "CREATE STREAM s (ts TIMESTAMP, k BIGINT, v DOUBLE NOT NULL) WITH (time = 'ts'); SELECT k FROM s"
    assert "got no v" in refusal(place / "a.parquet", strict)


def test_wider_types_and_more_columns_are_taken(tmp_path):
    path = write(tmp_path / "a.parquet", k=pa.array([1, 2, 3], pa.int16()), v=pa.array([1, 2, 3]), more=["x", "y", "z"])
    found = find_input(flow_of_text(SQL), "s", str(path))
    assert found.known
    assert not found.flagged


def test_files_that_are_none(tmp_path):
    assert "the file or directory does not exist" in refusal(tmp_path / "gone.parquet")
    (tmp_path / "empty").mkdir()
    assert "got no such file" in refusal(tmp_path / "empty")
    (tmp_path / "a.txt").write_text("x")
    assert "expected files of one kind" in refusal(tmp_path / "a.txt")
    (tmp_path / "b.parquet").write_text("not parquet")
    assert "expected a Parquet file, got something else" in refusal(tmp_path / "b.parquet")
    (tmp_path / "c.csv").write_text("ts,v,k\n")
    assert "expected the header ts,k,v, got ts,v,k" in refusal(tmp_path / "c.csv")
    assert "the query reads no stream t; it reads s" in refusal(tmp_path / "c.csv", stream="t")


def test_files_whose_metadata_has_no_times(tmp_path):
    """Their times are read. A row group without rows has none, and counts for the places of others."""
    rows = pa.table({"ts": pa.array([5, 1, 9, 7], TIME), "k": [1, 2, 3, 4], "v": [0.5] * 4})
    with pq.ParquetWriter(tmp_path / "a.parquet", rows.schema, write_statistics=False) as writer:
        for part in (rows.slice(0, 0), rows.slice(0, 3), rows.slice(0, 0), rows.slice(3)):
            writer.write_table(part)
    found = find_input(flow_of_text(SQL), "s", str(tmp_path / "a.parquet"))
    assert [part.spans for part in found.parts] == [((1, 9, 3), (7, 7, 1))]
    assert [(group.group, group.rows) for group in pieces_of(found, 6, 8)] == [(1, 3), (3, 1)]
    assert [(group.group, group.rows) for group in pieces_of(found, 2, 6)] == [(1, 3)]
    nothing = pa.table({"ts": pa.array([5, None], TIME), "k": [1, 2], "v": [0.5] * 2})
    pq.write_table(nothing, tmp_path / "b.parquet", write_statistics=False)
    assert "b.parquet, row 2, field ts: expected timestamp, not null, got null" in refusal(tmp_path / "b.parquet")


def test_rows_without_a_time(tmp_path):
    told = refusal(write(tmp_path / "a.parquet", ts=pa.array([1, None, 3], TIME)))
    assert "a.parquet, row 2: ts is null; 1 row has no time" in told
    groups = pa.table({"ts": pa.array([1, 2, 3, 4, None, None], TIME), "k": range(6)})
    pq.write_table(groups, tmp_path / "b.parquet", row_group_size=4)
    assert "b.parquet, row 5: ts is null; 2 rows have no time" in refusal(tmp_path / "b.parquet")


def test_files_of_one_input_that_differ(tmp_path):
    write(tmp_path / "in" / "a.parquet")
    write(tmp_path / "in" / "b.parquet", k=pa.array([1, 2, 3], pa.int32()))
    assert "have different columns" in refusal(tmp_path / "in")


def test_what_is_being_written_is_passed_over(tmp_path):
    write(tmp_path / "in" / "date=1970-01-01" / "a.parquet")
    (tmp_path / "in" / "date=1970-01-01" / ".b.parquet").write_text("half")
    (tmp_path / "in" / "_aside").mkdir()
    (tmp_path / "in" / "_aside" / "c.parquet").write_text("half")
    reach(tmp_path / "in", reach_us=3)
    found = find_input(flow_of_text(SQL), "s", str(tmp_path / "in"))
    assert len(found.parts) == 1
    assert found.reach_us == 3


def test_history_says_what_it_lacks_and_how_far_it_reaches(tmp_path):
    flow = flow_of_text(SQL)
    with pytest.raises(Refuse, match="the directory does not exist"):
        find_history(flow, str(tmp_path / "gone"), ["s"])
    write(tmp_path / "other" / "a.parquet")
    with pytest.raises(Refuse, match=r"it has no rows of stream s \(it has: other\)"):
        find_history(flow, str(tmp_path), ["s"])
    write(tmp_path / "s" / "a.parquet", __seq=[0, 1, 2], __late=[False] * 3)
    reach(tmp_path / "s", reach_us=2)
    found = find_history(flow, str(tmp_path), ["s"])
    assert notes_of(flow, found, MAX_TIME) == []
    assert notes_of(flow, found, 3, whole=True) == []
    (note,) = notes_of(flow, found, 3)
    assert "the archive is complete up to 1970-01-01T00:00:00.000002Z" in note


def test_gaps_are_counted_as_people_do(tmp_path):
    flow = flow_of_text(SQL)
    write(tmp_path / "s" / "a.parquet", __seq=[0, 1, 2], __late=[False] * 3)
    for count, said in ((1, "the archive has 1 gap, where"), (2, "the archive has 2 gaps, where")):
        reach(tmp_path / "s", reach_us=9, gaps=(Gap(0, None, "off", 0),) * count)
        (note,) = notes_of(flow, find_history(flow, str(tmp_path), ["s"]), 3)
        assert said in note
        assert note.endswith(f"({tmp_path}/s/_reach.json)")


GOOD = '{"ts": 1, "k": 2, "v": 0.5, "more": true}'


@pytest.mark.parametrize(
    ("name", "lines", "said"),
    [
        (
            "a.jsonl",
            [GOOD, '{"ts": 1, "k": "x", "v": 1}'],
            ", line 2, field k: expected bigint (an integer of 64 bits), got 'x'",
        ),
        ("a.jsonl", ['{"k": 1, "v": 1}'], ", line 1: missing field ts (timestamp, not null)"),
        ("a.json", [GOOD, GOOD, '{"ts": 176'], ", line 3: expected a JSON object, got half an object"),
        ("a.jsonl.gz", [GOOD, "[]"], ", line 2: expected a JSON object, got '[]'"),
        ("a.csv", ["ts,k,v", "1,2,0.5", "1,2,x"], ", line 3, field v: expected double (a finite number), got 'x'"),
        ("a.csv", ["ts,k,v", "1,2"], ", line 2: expected 3 values, got 2"),
        ("a.csv", ["ts,k,v", ",2,0.5"], ", line 2, field ts: expected timestamp"),
        ("a.csv", ["k,v", "2,0.5"], ", line 1: expected the header ts,k,v, got k,v"),
        ("a.csv.gz", ["ts,k", "1,2"], ", line 1: expected the header ts,k,v, got ts,k"),
    ],
)
def test_rows_of_text_that_do_not_fit_are_told_with_their_line(tmp_path, name, lines, said):
    path = tmp_path / name
    data = "\n".join([*lines, ""]).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    assert f"{path}{said}" in refusal(path)


def test_text_is_read_before_spark_as_far_as_that_is_cheap(tmp_path, monkeypatch):
    """Large files are checked at their start; the rest is searched after Spark has reported an error."""
    monkeypatch.setattr("millrace.backfill.inputs.LOOKED_AT", 100)
    monkeypatch.setattr("millrace.offline.files.CHUNK", 50)
    for name in ("a", "b"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{name}.jsonl").write_text(f"{GOOD}\n" * 9)
    (tmp_path / "in" / "b.jsonl").write_text(f"{GOOD}\n" * 9 + '{"ts": 5, "k": 1.5}\n')
    flow = flow_of_text(SQL)
    found = find_input(flow, "s", str(tmp_path / "in"))
    with pytest.raises(Refuse, match=r"b\.jsonl, line 10, field k: expected bigint .*, got 1\.5"):
        refuse_bad_rows([found], flow)
    (tmp_path / "in" / "b.jsonl").write_text('{"ts": 5, "k": 1.5}\n' + f"{GOOD}\n" * 9)
    assert "b.jsonl, line 1, field k: expected bigint (an integer of 64 bits), got 1.5" in refusal(tmp_path / "in")
    broken = tmp_path / "c.jsonl.gz"
    broken.write_bytes(gzip.compress(GOOD.encode())[:-9])
    assert f"{broken}: cannot be read: " in refusal(broken)


def test_rows_of_parquet_are_told_with_their_number(tmp_path):
    strict = flow_of_text(SQL.replace("v DOUBLE", "v DOUBLE NOT NULL"))
    found = find_input(strict, "s", str(write(tmp_path / "a.parquet")))
    with pytest.raises(Refuse, match=r"a\.parquet, row 3, field v: expected double, not null, got null"):
        refuse_bad_rows([found], strict)


def test_times_in_any_unit(tmp_path):
    for unit, scale in (("s", 1_000_000), ("ms", 1_000), ("us", 1)):
        ts = pa.array([1, 2, 5], pa.timestamp(unit, "UTC"))
        found = find_input(flow_of_text(SQL), "s", str(write(tmp_path / f"{unit}.parquet", ts=ts)))
        times = times_of([found])
        assert times is not None
        assert times.extent(-(2**63), 2**63 - 1) == Extent(scale, 5 * scale + 1)


def test_cuts_put_about_as_many_rows_into_each_slice():
    times = Times(((0, 99, 900), (100, 999, 100)))
    extent = times.extent(0, 1_000)
    assert extent == Extent(0, 1_000)
    cuts = times.cuts(extent, 4)
    counts = [sum(rows * (min(last + 1, high) - max(first, low)) / (last + 1 - first)
                  for first, last, rows in times.spans if min(last + 1, high) > max(first, low))
              for low, high in zip([0, *cuts], [*cuts, 1_000], strict=True)]  # fmt: skip
    assert all(abs(count - 250) < 20 for count in counts)
    assert times.extent(2_000, 3_000) is None


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture
def no_spark(monkeypatch):
    """Starting Spark fails the test."""

    def started(*arguments):
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "open_session", started)


def call(*arguments):
    return CliRunner().invoke(app, ["backfill", *map(str, arguments)], env={"MILLRACE_ADMIN": "127.0.0.1:1"})


@pytest.fixture
def sql(tmp_path):
    path = tmp_path / "q.sql"
    path.write_text(SQL)
    return path


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--out", "o"], "name a query of a running server"),
        (["--out", "o", "--sql", "SQL"], "say where the rows are"),
        (["--sql", "SQL", "--input", "s=IN"], "Missing option '--out'"),
        (["--out", "o", "--sql", "SQL", "--input", "s"], "expected STREAM=PATH"),
        (["--out", "o", "--sql", "SQL", "--input", "s=IN", "--input", "s=IN"], "appears twice"),
        (["--out", "o", "--sql", "SQL", "--input", "s=IN", "--from", "yesterday"], "expected ISO 8601"),
        (["--out", "o", "--sql", "SQL", "--input", "s=IN", "--mode", "fast"], "fast"),
        (["--out", "o", "--sql", "SQL", "--input", "s=IN", "--tasks", "0"], "1"),
        (["--out", "o", "--then-live"], "--then-live creates a query: put its CREATE QUERY"),
        (
            ["--out", "o", "--sql", "SQL", "--then-live", "--history", "h"],
            "its own history is the input: remove --history",
        ),
        (["--out", "o", "--sql", "SQL", "--then-live", "--to", "9", "--input", "s=IN"], "remove --to and --input"),
    ],
)
def test_flags_that_cannot_be_meant_exit_2(no_spark, sql, tmp_path, flags, said):
    path = write(tmp_path / "in.parquet")
    done = call("start", *(flag.replace("SQL", str(sql)).replace("IN", str(path)) for flag in flags))
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


def test_what_cannot_be_done_is_refused_before_spark_starts(no_spark, sql, tmp_path):
    path = write(tmp_path / "in" / "a.parquet")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    for flags, said in (
        (["--from", "2026-01-02", "--to", "2026-01-01", "--out", tmp_path / "o"], "the span is empty"),
        (["--from", "2026-01-02", "--out", tmp_path / "o"], "no rows from 2026-01-02"),
        (["--out", tmp_path / "in" / "o"], "are nested"),
        (["--out", tmp_path], "are nested"),
        (["--out", tmp_path / "full"], "the directory contains other files"),
        (["--out", tmp_path / "o", "--mode", "key"], "cannot be split by key, because no operator has a key"),
        (["--out", sql], "expected a directory, got a file"),
        (["nothing", "--out", tmp_path / "o"], "query nothing does not exist; the queries are: q"),
    ):
        done = call("start", "--sql", sql, "--input", f"s={path.parent}", *flags)
        assert isinstance(done.exception, MillraceError), (flags, done.output)
        assert said in done.exception.text


def test_status_of_what_is_no_backfill(tmp_path):
    done = call("status", tmp_path)
    assert isinstance(done.exception, MillraceError)
    assert "is not a backfill" in done.exception.text


def test_times_that_make_sense_in_another_unit_alone_are_noted(tmp_path):
    seconds = [1_770_588_380, 1_770_588_381, 1_770_588_382]
    flow = flow_of_text(SQL)
    found = find_input(flow, "s", str(write(tmp_path / "a.parquet", ts=seconds)))
    assert any(
        note.startswith("s: its first time, 1770588380, is 1970-01-01T00:29:30.588380Z; it looks like seconds (2026-")
        for note in notes_of(flow, {"s": found}, MAX_TIME)
    )
    declared = flow_of_text(SQL.replace("time = 'ts'", "time = 'ts', time_unit = 's'"))
    found = find_input(declared, "s", str(tmp_path / "a.parquet"))
    assert not any("looks like" in note for note in notes_of(declared, {"s": found}, MAX_TIME))
    made_up = find_input(flow, "s", str(write(tmp_path / "b.parquet")))
    assert not any("looks like" in note for note in notes_of(flow, {"s": made_up}, MAX_TIME))
