"""Files: what was written reads back, whatever the types."""

import csv
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.formats.writers import CsvWriter, JsonLinesWriter, json_lines, row_lines
from millrace.offline.files import create
from millrace.operators.frame.spec import retracting
from millrace.protocol import Refuse, Schema, format_timestamp
from millrace.store.places import SinkFolders
from millrace.store.sinkfiles import Label, Rotation, line_file, whole_files
from millrace.values.batch import Batch
from tests.server.harness import served

SCHEMA = Schema.of(ts="timestamp", b="boolean", i="bigint", d="double", t="text", y="bytes")
INT64 = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(
    st.tuples(
        st.none() | INT64,
        st.none() | st.booleans(),
        st.none() | INT64,
        st.none() | st.floats(allow_nan=False, allow_infinity=False),
        st.none() | st.text(max_size=6),
        st.none() | st.binary(max_size=6),
    ),
    max_size=6,
)


class Kept(io.BytesIO):
    """A file whose content outlives it."""

    def close(self):
        self.content = self.getvalue()


def batch(rows):
    return Batch.from_rows(SCHEMA, rows, [0] * len(rows))


def written(writer_of, rows):
    file = Kept()
    writer = writer_of(file)
    writer.write(batch(rows))
    writer.write(batch(rows))
    writer.flush()
    writer.close()
    return file.content


@given(ROWS)
def test_json_lines_read_back(rows):
    from base64 import b64encode

    found = [json.loads(line) for line in written(JsonLinesWriter, rows).decode().split("\n") if line]
    expected = [
        {
            "ts": None if ts is None else format_timestamp(ts),
            "b": b,
            "i": i,
            "d": d,
            "t": t,
            "y": None if y is None else b64encode(y).decode(),
        }
        for ts, b, i, d, t, y in rows
    ]
    assert found == expected * 2


@given(ROWS)
def test_csv_reads_back(rows):
    text = written(CsvWriter, rows).decode()
    found = list(csv.reader(io.StringIO(text, newline="")))
    expected = [
        [
            "" if ts is None else format_timestamp(ts),
            "" if b is None else str(b).lower(),
            "" if i is None else str(i),
            "" if d is None else repr(d),
            "" if t is None else t,
            "" if y is None else y.hex(),
        ]
        for ts, b, i, d, t, y in rows
    ]
    assert found == expected * 2


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@given(ROWS)
def test_typed_files_read_back(tmp_path_factory, ending, rows):
    path = tmp_path_factory.mktemp(ending) / f"x.{ending}"
    writer = create(str(path), SCHEMA)
    writer.write(batch(rows))
    writer.write(batch(rows))
    assert not path.exists()
    writer.close()
    table = pq.read_table(path) if ending == "parquet" else pa.ipc.open_file(str(path)).read_all()
    assert table.set_column(0, "ts", table["ts"].cast("int64")).to_pylist() == [
        dict(zip(SCHEMA.names, row, strict=True)) for row in rows * 2
    ]
    assert [part.name for part in path.parent.iterdir()] == [path.name]


def test_a_tombstone_is_its_key_and_both_marks(tmp_path):
    schema = retracting(Schema.of(k="bigint", n="bigint", t="text").fields, (0,))
    rows = [(1, 5, "a", False), (2, None, None, False), (1, None, None, True), (None, None, None, True)]
    made = Batch.from_rows(schema, rows, [0, 1, 2, 3])
    assert [json.loads(line) for line in json_lines(made).splitlines()] == [
        {"k": 1, "n": 5, "t": "a"},
        {"k": 2, "n": None, "t": None},
        {"k": 1, "$gone": True, "$deleted": True},
        {"$gone": True, "$deleted": True},
    ]
    assert json.loads(row_lines("q", 7, made, "a").splitlines()[2]) == {
        "query": "q",
        "seq": 9,
        "row": {"k": 1, "$gone": True, "$deleted": True},
        "history": "a",
    }


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv"])
@pytest.mark.parametrize("iso", [True, False])
def test_files_with_columns_mark_tombstones_in_both_columns(tmp_path, ending, iso):
    schema = retracting(Schema.of(k="bigint", n="bigint").fields, (0,))
    batch = Batch.from_rows(schema, [(1, 5, False), (1, None, True)], [0, 1])
    path = tmp_path / f"rows.{ending}"
    writer = create(str(path), schema, iso=iso)
    writer.write(batch)
    writer.close()
    if ending == "csv":
        assert path.read_text() == "k,n,$gone,$deleted\n1,5,false,false\n1,,true,true\n"
        return
    table = pq.read_table(path) if ending == "parquet" else pa.ipc.open_file(str(path)).read_all()
    assert table.to_pylist() == [
        {"k": 1, "n": 5, "$gone": False, "$deleted": False},
        {"k": 1, "n": None, "$gone": True, "$deleted": True},
    ]


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ("", "k,n,$gone,$deleted\n1,5,false,false\n1,,true,true\n"),
        ("k,n,$gone,$deleted\n", "k,n,$gone,$deleted\n1,5,false,false\n1,,true,true\n"),
        ("k,n,$gone\n", "k,n,$gone\n1,5,false\n1,,true\n"),
    ],
)
def test_a_csv_sink_keeps_the_columns_of_the_file_that_it_continues(tmp_path, header, rows):
    """A file that a server before 0.2 started has the column `$gone` alone. The next file has both."""
    schema = retracting(Schema.of(k="bigint", n="bigint").fields, (0,))
    batch = Batch.from_rows(schema, [(1, 5, False), (1, None, True)], [0, 1])
    path = tmp_path / "rows.csv"
    if header:
        path.write_text(header)
    places = SinkFolders(tmp_path)
    file = line_file(places, places.locate("rows.csv"), schema, "csv")
    file.open(makes=True)
    file.write(0, batch)
    assert path.read_text() == rows
    path.rename(tmp_path / "rotated.csv")
    file.write(2, batch)
    assert path.read_text() == "k,n,$gone,$deleted\n1,5,false,false\n1,,true,true\n"
    file.close()


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_whole_files_of_a_sink_mark_tombstones_in_both_columns(tmp_path, ending):
    schema = retracting(Schema.of(k="bigint").fields, (0,))
    places = SinkFolders(tmp_path)
    label, rotation = Label("f", "q", ending), Rotation(rows=2, bytes=1 << 20, age_us=1_000_000)
    files = whole_files(places, places.locate(f"out.{ending}"), schema, label, rotation)
    files.open(makes=True)
    files.write(0, Batch.from_rows(schema, [(1, False), (1, True)], [0, 1]))
    files.close()
    (path,) = (tmp_path / f"out.{ending}").glob(f"*.{ending}")
    table = pq.read_table(path) if ending == "parquet" else pa.ipc.open_file(str(path)).read_all()
    assert table.to_pylist() == [
        {"k": 1, "$gone": False, "$deleted": False},
        {"k": 1, "$gone": True, "$deleted": True},
    ]


@served("CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s")
async def test_two_sinks_do_not_share_a_file(daemon, tmp_path):
    path = tmp_path / "out.jsonl"
    await daemon.catalog.execute(f"CREATE SINK one FROM q WITH (type = 'file', path = '{path}')")
    with pytest.raises(Refuse, match=r"sink two: sink one already writes .*out.jsonl"):
        await daemon.catalog.execute(f"CREATE SINK two FROM q WITH (type = 'file', path = '{tmp_path}/./out.jsonl')")
    assert [sink.name for sink in daemon.catalog.sinks()] == ["one"]


@served("CREATE STREAM s (k BIGINT, w BIGINT); CREATE QUERY q AS SELECT k FROM s")
async def test_a_sink_of_the_same_text_keeps_a_query_from_other_columns(daemon, tmp_path):
    sink = f"CREATE SINK one FROM q WITH (type = 'file', path = '{tmp_path}/out.jsonl')"
    other = "CREATE OR REPLACE QUERY q AS SELECT k, w FROM s"
    with pytest.raises(Refuse, match="query q would have other columns than one writes"):
        await daemon.catalog.execute(f"{sink}; {other}")
    assert daemon.catalog.sinks() == []
    await daemon.catalog.execute(f"{sink}; DROP SINK one; {other}")
    assert daemon.catalog.sinks() == []


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("CREATE SINK two FROM q WITH (type = 'file', path = '{0}/a.jsonl')", "sink one already writes"),
        ("CREATE SINK two FROM q WITH (type = 'file', path = '{0}/no/a.jsonl')", "no such file or directory"),
        ("CREATE OR REPLACE QUERY q AS SELECT k, w FROM s", "would have other columns than one writes"),
    ],
)
@served("CREATE STREAM s (k BIGINT, w BIGINT); CREATE QUERY q AS SELECT k FROM s;")
async def test_a_plan_refuses_what_cannot_be_done_and_nothing_is_left_of_it(daemon, tmp_path, sql, words):
    wanted = f"CREATE SINK one FROM q WITH (type = 'file', path = '{tmp_path}/a.jsonl'); {sql.format(tmp_path)}"
    for carry_out in (daemon.catalog.plan, daemon.catalog.execute):
        with pytest.raises(Refuse, match=words):
            await carry_out(wanted)
    assert list(tmp_path.iterdir()) == []
