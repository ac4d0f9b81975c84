"""Rows that are written to files read back unchanged, and an invalid file is reported in one line."""

from __future__ import annotations

import io
import json
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from millrace.cli.main import app
from millrace.engine.plan import StreamDefinition
from millrace.offline import files
from millrace.protocol import MAX_INT64, MIN_INT64, Field, Refuse, Schema, Type
from millrace.values.batch import Batch
from millrace.values.eventtime import FIRST_US, LAST_US

SCHEMA = Schema(
    (
        Field("ts", Type.TIMESTAMP, False),
        Field("flag", Type.BOOLEAN),
        Field("n", Type.BIGINT),
        Field("x y", Type.DOUBLE),
        Field("t", Type.TEXT),
        Field("raw", Type.BYTES),
        Field("seen", Type.TIMESTAMP),
    )
)
STREAM = StreamDefinition("s", SCHEMA, "external", "ts")

INT64 = st.integers(MIN_INT64, MAX_INT64)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ROWS = st.lists(
    st.tuples(
        st.integers(FIRST_US, LAST_US),
        st.none() | st.booleans(),
        st.none() | INT64,
        st.none() | st.floats(allow_nan=False, allow_infinity=False),
        st.none() | TEXT,
        st.none() | st.binary(max_size=6),
        st.none() | INT64,
    ),
    max_size=30,
)


def batch_of(rows):
    return Batch.from_rows(SCHEMA, rows, [row[0] for row in rows])


def read(path, stream=STREAM):
    batches = list(files.read_batches(str(path), stream))
    return [row for batch in batches for row in batch.rows()], [ts for batch in batches for ts in batch.ts.tolist()]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet", "arrow"])
@pytest.mark.parametrize("iso", [True, False])
@given(rows=ROWS)
@example(rows=[(0, None, None, None, None, None, None)])
@example(rows=[(1, True, 1, 1.0, "\n\"'\r\n,", b"\n", 2)])
def test_written_rows_read_back(tmp_path_factory, ending, iso, rows):
    # CSV can neither distinguish an empty text from null nor represent NUL, so these values are omitted there.
    if ending == "csv":
        rows = [(*row[:4], (row[4] or "").replace("\0", "") or None, row[5] or None, row[6]) for row in rows]
    path = tmp_path_factory.mktemp("files") / f"rows.{ending}"
    writer = files.create(str(path), SCHEMA, iso=iso)
    if rows:
        writer.write(batch_of(rows))
    writer.flush()
    writer.close()
    got, times = read(path)
    assert got == rows
    assert times == [row[0] for row in rows]


@given(rows=ROWS, chunk=st.integers(1, 50), portion=st.integers(1, 7))
def test_how_a_file_is_cut_never_shows(tmp_path_factory, rows, chunk, portion):
    path = tmp_path_factory.mktemp("files") / "rows.jsonl"
    writer = files.create(str(path), SCHEMA)
    writer.write(batch_of(rows))
    writer.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "CHUNK", chunk)
        patch.setattr(files, "ROWS", portion)
        assert read(path)[0] == rows


def test_a_last_line_needs_no_newline_and_empty_lines_are_ignored(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('\ufeff{"ts": 1}\n\n  \n{"ts": "1970-01-01T00:00:00.000002Z", "n": -3}', "utf-8")
    assert [row[:3] for row in read(path)[0]] == [(1, None, None), (2, None, -3)]


def test_a_field_may_have_any_name(tmp_path):
    names = ['a"b', "c\\d", "e\nf", "g h"]
    stream = StreamDefinition("s", Schema(tuple(Field(name, Type.BIGINT) for name in names)))
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(dict(zip(names, (1, 2, 3, 4), strict=True))) + "\n")
    assert read(path, stream)[0] == [(1, 2, 3, 4)]
    path.write_text('{"a\\"b": "x"}\n')
    with pytest.raises(Refuse, match="line 1"):
        read(path, stream)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet", "arrow"])
def test_every_format_is_readable_from_a_pipe(tmp_path, ending):
    path = tmp_path / f"rows.{ending}"
    rows = [(1, True, 2, 0.5, "t", b"x", 3), (4, None, None, None, None, None, None)]
    writer = files.create(str(path), SCHEMA)
    writer.write(batch_of(rows))
    writer.close()
    source, sink = os.pipe()
    with os.fdopen(source, "rb") as piped:
        os.write(sink, path.read_bytes())
        os.close(sink)
        found = list(files.read_opened(piped, "-", STREAM, lambda count: None, ending))
    assert [row for batch in found for row in batch.rows()] == rows


def test_unknown_keys_may_be_ignored(tmp_path):
    lenient = StreamDefinition("s", SCHEMA, "external", "ts", extra="ignore")
    (tmp_path / "rows.jsonl").write_text('{"ts": 1, "zzz": {"deep": [1]}}\n')
    (tmp_path / "rows.csv").write_text("zzz,ts\n5,1\n")
    pq.write_table(pa.table({"ts": [1], "zzz": [5]}), tmp_path / "rows.parquet")
    for ending in ("jsonl", "csv", "parquet"):
        assert read(tmp_path / f"rows.{ending}", lenient)[0] == [(1, *[None] * 6)]


@pytest.mark.parametrize(
    ("unit", "zone"), [("s", None), ("ms", None), ("us", "UTC"), ("us", None), ("ns", None), ("ns", "Europe/Berlin")]
)
def test_arrow_times_of_any_unit_and_zone(tmp_path, unit, zone):
    path = tmp_path / "rows.parquet"
    times = pa.array([5_000_000, None], pa.timestamp("us", zone)).cast(pa.timestamp(unit, zone))
    pq.write_table(pa.table({"ts": pa.array([1, 2]), "seen": times}), path)
    assert [row[6] for row in read(path)[0]] == [5_000_000, None]


def test_arrow_streams_are_read_as_files_are(tmp_path):
    path = tmp_path / "rows.arrow"
    table = pa.table({"ts": [1, 2], "n": [3, None]})
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)
    assert [row[:3] for row in read(path)[0]] == [(1, None, 3), (2, None, None)]


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"ts": 7}\n')))
    assert read("-")[1] == [7]


# -- what is wrong -----------------------------------------------------------------------------------------------------

UNFIT_LINES = [
    ('{"ts": 1, "n": 1.5}', "line 2, field n: expected bigint (an integer of 64 bits), got 1.5"),
    ('{"ts": 1, "n": true}', "field n: expected bigint (an integer of 64 bits), got true"),
    (
        '{"ts": 1, "n": 9223372036854775808}',
        "field n: expected bigint (an integer of 64 bits), got 9223372036854775808",
    ),
    ('{"ts": 1, "x y": "1"}', "field x y: expected double (a finite number), got '1'"),
    ('{"ts": 1, "x y": 1e999}', "field x y: expected double (a finite number), got inf"),
    ('{"ts": 1, "x y": NaN}', "line 2: expected finite numbers, got NaN"),
    ('{"ts": 1, "x y": -Infinity}', "line 2: expected finite numbers, got -Infinity"),
    ('{"ts": 1, "t": 5}', "field t: expected text (valid UTF-8), got 5"),
    ('{"ts": 1, "t": "\\ud800"}', "field t: expected text (valid UTF-8), got"),
    ('{"ts": 1, "raw": "###"}', "field raw: expected bytes, got '###'"),
    ('{"ts": 1, "flag": 0}', "field flag: expected boolean (true or false), got 0"),
    ('{"ts": null}', "field ts: expected timestamp, not null, got null"),
    ('{"n": 1}', "missing field ts (timestamp, not null)"),
    ('{"ts": "yesterday"}', "field ts: expected timestamp (integer microseconds or ISO 8601 text), got 'yesterday'"),
    ('{"ts": 1, "zzz": 1}', "line 2: expected the fields ts, flag, n, x y, t, raw, seen, got unknown field 'zzz'"),
    ('{"ts": 1', "line 2: expected a JSON object, got half an object (is the file cut off?)"),
    ('{"ts": 1} {"ts": 2}', "line 2: expected a JSON object, got"),
    ("[1]", "line 2: expected a JSON object, got '[1]'"),
    ("[" * 100_000, "line 2: expected a JSON object, got"),
]


@pytest.mark.parametrize(("line", "said"), UNFIT_LINES)
def test_unfit_json_lines(tmp_path, line, said):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"ts": 0}\n' + line, "utf-8")
    with pytest.raises(Refuse) as refused:
        read(path)
    assert refused.value.text.startswith(f"{path}, line 2")
    assert said in refused.value.text
    assert "\n" not in refused.value.text
    assert len(refused.value.text) < 300 + len(str(path))


def test_json_that_is_not_utf8(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"ts": 0}\n{"ts": 1, "t": "\xff"}\n')
    with pytest.raises(Refuse, match="line 2: expected UTF-8, got bytes that are not"):
        read(path)


UNFIT_CSV = [
    ("ts,n\n1,x\n", "line 2, field n: expected bigint (an integer of 64 bits), got 'x'"),
    ("ts,n\n1,1_0\n", "line 2, field n: expected bigint (an integer of 64 bits), got '1_0'"),
    ("ts,n\n1,9223372036854775808\n", "field n: expected bigint"),
    ("ts,n\n1," + "9" * 5000 + "\n", "field n: expected bigint"),
    ("ts,x y\n1,nan\n", "field x y: expected double (a finite number), got 'nan'"),
    ("ts,x y\n1,1e999\n", "field x y: expected double (a finite number), got '1e999'"),
    ("ts,flag\n1,maybe\n", "field flag: expected boolean (true or false), got 'maybe'"),
    ("ts,raw\n1,xyz\n", "field raw: expected bytes (hexadecimal digits), got 'xyz'"),
    ("ts,n\n\n,5\n", "line 3, field ts: expected timestamp, not null, got nothing"),
    ("n\n5\n", "line 1: expected a column ts (timestamp, not null), got none"),
    ("ts,zzz\n1,1\n", "line 1: expected the columns ts, flag, n, x y, t, raw, seen, got a column 'zzz'"),
    ("ts,ts\n1,1\n", "line 1: the column 'ts' appears twice"),
    ("ts,n\n1\n", "line 2: expected 2 values, got 1"),
    ('ts,t\n1,"half\n', "line 2: unexpected end of data"),
    ("", "line 1: expected a header with the names of the columns, got an empty file"),
]


@pytest.mark.parametrize(("text", "said"), UNFIT_CSV)
def test_unfit_csv(tmp_path, text, said):
    path = tmp_path / "rows.csv"
    path.write_text(text, "utf-8")
    with pytest.raises(Refuse) as refused:
        read(path)
    assert refused.value.text.startswith(f"{path}, line ")
    assert said in refused.value.text


UNFIT_TABLES = [
    ({"ts": ["x"]}, "field ts: expected timestamp, got Arrow's"),
    ({"ts": [1], "n": [1.5]}, "field n: expected bigint, got Arrow's double"),
    ({"ts": [1, None]}, "row 2, field ts: expected timestamp, not null, got null"),
    ({"ts": [1], "x y": [float("nan")]}, "row 1, field x y: expected double (a finite number), got nan"),
    (
        {"ts": [1], "n": pa.array([2**63], pa.uint64())},
        "row 1, field n: expected bigint without loss, got 9223372036854775808",
    ),
    ({"ts": [1], "seen": pa.array([1500], pa.timestamp("ns"))}, "row 1, field seen: expected timestamp without loss"),
    ({"ts": [1], "zzz": [1]}, "expected the Arrow columns"),
]


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@pytest.mark.parametrize(("columns", "said"), UNFIT_TABLES)
def test_unfit_tables(tmp_path, ending, columns, said):
    path = tmp_path / f"rows.{ending}"
    table = pa.table(columns)
    if ending == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(Refuse) as refused:
        read(path)
    assert refused.value.text.startswith(str(path))
    assert said in refused.value.text


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@pytest.mark.parametrize("content", [b"", b"garbage", b"PAR1garbagePAR1", b"ARROW1\0\0garbage"])
def test_files_of_another_kind(tmp_path, ending, content):
    path = tmp_path / f"rows.{ending}"
    path.write_bytes(content)
    with pytest.raises(Refuse, match=rf"rows\.{ending}: expected a"):
        read(path)


def test_paths_that_cannot_be(tmp_path):
    with pytest.raises(Refuse, match=r"none\.jsonl: no such file or directory"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(Refuse, match="is a directory"):
        read(tmp_path / "folder.jsonl")
    with pytest.raises(Refuse, match=r"expected a path that ends in \.jsonl, \.csv, \.parquet, \.arrow, or -"):
        read(tmp_path / "rows.xml")
    with pytest.raises(Refuse, match="no such file or directory"):
        files.create(str(tmp_path / "none" / "rows.jsonl"), SCHEMA)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet", "arrow"])
def test_a_new_output_takes_the_place_of_an_old_one(tmp_path, ending):
    path = tmp_path / f"rows.{ending}"
    for number in (1, 2):
        writer = files.create(str(path), SCHEMA)
        writer.write(batch_of([(number, *[None] * 6)]))
        writer.close()
    assert read(path)[1] == [2]
    assert sorted(found.name for found in tmp_path.iterdir()) == [path.name]


def test_an_input_that_is_not_there_costs_no_output(tmp_path):
    script, kept = tmp_path / "q.sql", tmp_path / "q.jsonl"
    script.write_text("CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s;")
    kept.write_text("kept")
    done = CliRunner().invoke(app, ["run", str(script), "--input", f"s={tmp_path}/no.jsonl", "--output", f"q={kept}"])
    assert done.exit_code == 1
    assert "no.jsonl: no such file" in str(done.exception)
    assert kept.read_text() == "kept"
