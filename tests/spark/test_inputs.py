"""Inputs of live jobs without Spark: however offsets are cut, each row is read once, in order, and again as before."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import pickle
import random
import socket
from dataclasses import replace

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadMaxRows

from millrace.backfill.bucket import Bucket, groups_of
from millrace.backfill.parts import LIVE, parcels_of
from millrace.history import files as history
from millrace.offline.script import plan_script
from millrace.protocol import Refuse
from millrace.spark.inputs import files
from millrace.spark.inputs.files import FilesReader
from millrace.spark.inputs.kafka import KafkaReader, kafka
from millrace.spark.inputs.parsing import parse_input
from millrace.spark.inputs.rate import RateReader
from millrace.spark.inputs.reader import End, Offset, Piece, as_read, punctuated, shared
from millrace.spark.inputs.source import INPUT, StreamInput, StreamReader, live_frame, refusal_in
from millrace.sql import Catalog
from millrace.values.batch import Batch
from millrace.values.eventtime import MIN_TIME
from tests.cli.conftest import Server
from tests.depth import examples
from tests.patience import wait_until

BEGIN = 1_767_225_600_000_000
SQL = """CREATE STREAM packets (ts TIMESTAMP, src BIGINT, note TEXT) WITH (time = 'ts', disorder = '2 s');
CREATE QUERY talkers AS SELECT src, count(*) AS n FROM TUMBLE(packets, ts, INTERVAL '10 seconds') GROUP BY src;
"""
NOTES = ["", "a", 'say "hi"', "two\nlines", "comma, too", "Zürich", None]


def catalog_of(sql=SQL):
    script = plan_script(sql)
    return Catalog(script.streams, script.queries)


CATALOG = catalog_of()
PACKETS = CATALOG.streams["packets"]


def rows_of(seed, count):
    rng = random.Random(seed)
    return [
        {"ts": BEGIN + number * 1_000 - rng.randrange(3_000), "src": number, "note": rng.choice(NOTES)}
        for number in range(count)
    ]


def plain(table):
    """A table's rows as they went in; an empty text of CSV is null."""
    columns = [
        table.column(name).cast(pa.int64()) if name == "ts" else table.column(name) for name in ("ts", "src", "note")
    ]
    return [
        dict(zip(("ts", "src", "note"), row, strict=True))
        for row in zip(*(one.to_pylist() for one in columns), strict=True)
    ]


def through_json(offset):
    return Offset.from_json(json.loads(json.dumps(offset.to_json())))


def read_piece(reader, piece):
    """The rows of a piece, which is read twice, as by a task that is repeated elsewhere."""
    first, second = (
        [*one.read(pickle.loads(pickle.dumps(piece)))] for one in (reader, pickle.loads(pickle.dumps(reader)))
    )
    assert [(one.first, one.promise) for one in first] == [(one.first, one.promise) for one in second]
    assert all(one.table.equals(other.table) for one, other in zip(first, second, strict=True))
    return first


def read_all(reader, mosts, start=None, at_us=BEGIN):
    """All rows by part, in epochs of at most so many, until nothing is new; and the last offset."""
    found: dict[str, list] = {}
    places: dict[str, int] = {}
    offset = through_json(reader.initial()) if start is None else start
    for epoch in range(10_000):
        most = mosts[epoch % len(mosts)]
        end = through_json(reader.latest(offset, reader.look(offset.parts), at_us, most))
        if end == offset:
            return found, offset
        rows = 0
        pieces = reader.pieces(offset, end)
        assert {piece.part for piece in pieces} == set(end.parts), "silent parts have pieces, too"
        for piece in pieces:
            for portion in read_piece(reader, piece):
                assert portion.first > places.get(piece.part, -1), "places rise"
                places[piece.part] = portion.first
                found.setdefault(piece.part, []).extend(plain(portion.table))
                rows += portion.table.num_rows
        assert most is None or rows <= most
        offset = end
    raise AssertionError("it never ends")


CUTS = st.lists(st.one_of(st.integers(1, 400), st.none()), min_size=1, max_size=5)


# -- files -------------------------------------------------------------------------------------------------------------


def write_file(path, rows, kind, pack=lambda data: data):
    if kind == "parquet":
        table = pa.Table.from_pylist(rows, pa.schema([("ts", pa.int64()), ("src", pa.int64()), ("note", pa.string())]))
        pq.write_table(table, path, row_group_size=37)
        return
    if kind == "csv":
        out = io.StringIO()
        writer = csv.DictWriter(out, ("ts", "src", "note"))
        writer.writeheader()
        writer.writerows(rows)
        text = out.getvalue()
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(pack(text.encode()))


KINDS = [("a.parquet", "parquet", None), ("a.csv", "csv", None), ("a.ndjson", "json", None)]
PACKED = [("a.csv.gz", "csv", gzip.compress), ("a.jsonl.bz2", "json", bz2.compress)]


@pytest.fixture(scope="module")
def folder_of_files(tmp_path_factory):
    """Files of each kind that can be cut, and the rows in order of name."""
    folder = tmp_path_factory.mktemp("files")
    rows = rows_of(1, 900)
    sizes = [0, 1, 250, 3, 400, 246]
    begin = 0
    for number, size in enumerate(sizes):
        _, kind, _ = KINDS[number % 3]
        suffix = {"parquet": "parquet", "csv": "csv", "json": "ndjson"}[kind]
        inside = folder / f"day{number // 3}"
        inside.mkdir(exist_ok=True)
        write_file(inside / f"{number:03d}.{suffix}", rows[begin : begin + size], kind)
        begin += size
    assert begin == len(rows)
    (folder / ".hidden.csv").write_text("not complete")
    return folder, [{**row, "note": row["note"] or None} for row in rows]


@given(CUTS)
@settings(max_examples=examples(60))
def test_files_are_read_once_in_order_of_name(folder_of_files, mosts):
    folder, rows = folder_of_files
    for text in (str(folder), f"{folder}/**/*.*"):
        found, end = read_all(parse_input(f"packets={text}", PACKETS), mosts)
        assert [{**row, "note": row["note"] or None} for row in found["packets-files"]] == rows
        assert end.ended == ("packets-files",)


@pytest.mark.parametrize("most", [None, 250, 61])
def test_row_groups_of_a_large_file_are_read_at_the_same_time(tmp_path, monkeypatch, most):
    monkeypatch.setattr(files, "TASK_ROWS", 100)
    rows = rows_of(7, 400)
    write_file(tmp_path / "0.parquet", rows[:380], "parquet")
    write_file(tmp_path / "1.parquet", rows[380:], "parquet")
    reader = parse_input(f"packets={tmp_path}", PACKETS)
    found, end = read_all(reader, [most])
    assert [row["src"] for row in found["packets-files"]] == [row["src"] for row in rows]
    sizes = [sum(span.end - span.start for span in piece.rows) for piece in reader.pieces(reader.initial(), end)]
    assert len(sizes) == 4
    assert sum(sizes) == 400


@pytest.mark.parametrize(("name", "kind", "pack"), PACKED)
def test_compressed_files_are_read_as_a_whole(tmp_path, name, kind, pack):
    rows = rows_of(2, 300)
    write_file(tmp_path / name, rows, kind, pack)
    found, _ = read_all(parse_input(str(tmp_path / name), PACKETS), [None])
    assert [row["src"] for row in found["packets-files"]] == list(range(300))


def test_a_new_file_is_read_next_and_a_late_one_refused(tmp_path):
    rows = rows_of(3, 30)
    write_file(tmp_path / "b.ndjson", rows[:10], "json")
    reader = parse_input(f"{tmp_path}?most=4", PACKETS)
    found, end = read_all(reader, [reader.most])
    assert found["packets-files"] == rows[:10]
    write_file(tmp_path / "c.parquet", rows[10:], "parquet")
    found, end = read_all(reader, [7], end)
    assert found["packets-files"] == rows[10:]
    (tmp_path / "b.ndjson").unlink()  # files that were read may go
    found, end = read_all(reader, [7], end)
    assert found == {}
    write_file(tmp_path / "a.csv", rows[:2], "csv")
    with pytest.raises(Refuse, match=r"a\.csv appeared after .*c\.parquet had been read"):
        read_all(reader, [7], end)


def test_files_that_change_while_they_are_read_are_refused(tmp_path):
    path = tmp_path / "a.ndjson"
    write_file(path, rows_of(4, 20), "json")
    reader = parse_input(str(tmp_path), PACKETS)
    start = reader.initial()
    half = reader.latest(start, reader.look({}), BEGIN, 10)
    whole = reader.latest(start, reader.look({}), BEGIN, None)
    with path.open("a") as file:
        file.write(json.dumps(rows_of(4, 1)[0]) + "\n")
    with pytest.raises(Refuse, match=r"a\.ndjson has changed since it was read: write a file under a name"):
        reader.latest(whole, reader.look({}), BEGIN, None)
    path.unlink()
    with pytest.raises(Refuse, match=r"a\.ndjson was removed before it had been read to its end"):
        reader.latest(half, reader.look({}), BEGIN, None)
    with pytest.raises(Refuse, match=r"expected the 1 files up to .*a\.ndjson that the epoch is made of, got 0"):
        reader.pieces(start, half)


def test_an_error_in_a_part_of_a_file_names_its_line(tmp_path):
    rows = rows_of(5, 50)
    for name, kind in (("a.csv", "csv"), ("a.ndjson", "json")):
        path = tmp_path / name
        write_file(path, [{**row, "note": "n"} for row in rows], kind)
        lines = path.read_text().splitlines()
        at = 40
        lines[at - 1] = lines[at - 1].replace(
            str(rows[at - (2 if kind == "csv" else 1)]["ts"]), '"x"' if kind == "json" else "x"
        )
        path.write_text("\n".join(lines) + "\n")
        reader = FilesReader(PACKETS, 7, str(path))
        start = reader.initial()
        middle = reader.latest(start, reader.look({}), BEGIN, 30)
        end = reader.latest(middle, reader.look({}), BEGIN, 15)
        list(reader.read(reader.pieces(start, middle)[0]))
        with pytest.raises(Refuse, match=rf"{name}, line {at}, field ts: expected"):
            list(reader.read(reader.pieces(middle, end)[0]))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "ts,src\nx,1\n", "a.csv, line 2, field ts: expected"),
        ("a.csv", "time,src\n1,1\n", "a.csv, line 1: expected a column ts"),
        ("a.ndjson", '{"src": 1}\n', "a.ndjson, line 1"),
        ("a.parquet", "PAR", "a.parquet: expected a Parquet file, got something else"),
        ("a.txt", "x", "a.txt: expected a file of .parquet, .csv"),
    ],
)
def test_wrong_files_are_refused_before_anything_starts(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(Refuse) as refusal:
        parse_input(str(tmp_path / name), PACKETS)
    assert message in refusal.value.text
    assert "\n" not in refusal.value.text


def test_a_parquet_file_without_the_columns_is_refused(tmp_path):
    pq.write_table(pa.table({"ts": [1], "source": [2]}), tmp_path / "a.parquet")
    with pytest.raises(Refuse, match=r"expected the columns of stream packets \(ts, src, note\), got no src, note"):
        parse_input(str(tmp_path), PACKETS)


def test_rows_of_a_stream_without_a_time_get_the_time_of_the_epoch(tmp_path):
    stream = catalog_of("CREATE STREAM logins (who TEXT)").streams["logins"]
    (tmp_path / "a.csv").write_text("who\nann\nbob\n")
    reader = parse_input(str(tmp_path), stream)
    start = reader.initial()
    end = reader.latest(start, reader.look({}), BEGIN, None)
    (portion,) = reader.read(reader.pieces(start, end)[0])
    assert portion.table.to_pydict() == {"who": ["ann", "bob"], "ts": [BEGIN, BEGIN]}


# -- archives ----------------------------------------------------------------------------------------------------------


def archive(folder, count, file_rows, begin=0):
    """An archive of so many rows, some of them late, over two days, as a server writes it; the rows on time."""
    rng = random.Random(6)
    ts = (
        BEGIN
        + np.arange(count, dtype=np.int64) * 1_000_000_000
        - np.array([rng.randrange(3_000_000_000) for _ in range(count)])
    )
    marks = np.maximum.accumulate(np.concatenate((np.array([MIN_TIME]), ts[:-1] - 2_000_000_000)))
    late = ts < marks
    numbers = np.arange(count, dtype=np.int64)
    batch = Batch(PACKETS.schema, ts, [ts, numbers, np.array(["n"] * count, object)], [None] * 3, ts.copy())
    reach = history.Reach.begun(PACKETS)
    for first in range(begin, count, file_rows):
        end = min(first + file_rows, count)
        rows = history.ArchivedRows(
            first, batch.slice(first, end), late[first:end], marks[first:end], (("f", end - first),)
        )
        history.write_rows(folder / "packets", PACKETS, rows)
    reach = replace(reach, last_seq=count - 1, reach_us=int(marks[-1]))
    history.write_reach(folder / "packets", reach)
    return [int(number) for number in numbers[~late]], int(marks[-1])


@pytest.fixture(scope="module")
def archived(tmp_path_factory):
    folder = tmp_path_factory.mktemp("history")
    return folder, *archive(folder, 700, 90)


@given(st.lists(st.one_of(st.integers(15, 400), st.none()), min_size=1, max_size=5))
@settings(max_examples=examples(60))
def test_an_archive_is_read_once_in_the_order_of_arrival(archived, mosts):
    folder, on_time, mark = archived
    reader = parse_input(f"archive:{folder}", PACKETS)
    numbers, offset, promised = [], reader.initial(), MIN_TIME
    for epoch in range(10_000):
        end = through_json(reader.latest(offset, reader.look(offset.parts), BEGIN, mosts[epoch % len(mosts)]))
        if end == offset:
            break
        for portion in read_piece(reader, reader.pieces(offset, end)[0]):
            table = portion.table.filter(pa.compute.invert(portion.table.column("__late")))
            least = pa.compute.min(table.column("ts").cast(pa.int64())).as_py()
            assert least is None or least >= promised, "no row is below an earlier promise"
            promised = max(promised, portion.promise or promised)
            numbers += table.column("src").to_pylist()
        offset = end
    assert numbers == on_time
    assert offset.promises == {"packets-archive": mark}


@pytest.mark.parametrize("most", [700, 41])
def test_a_bucket_finds_an_archives_rows_on_time(archived, most):
    """With the stream's own disorder many would be late: the job trusts the server's marks."""
    folder, on_time, _ = archived
    readers = {"packets": parse_input(f"archive:{folder}?most={most}", PACKETS)}
    (group,) = groups_of(as_read(CATALOG, punctuated(readers)), 3)
    buckets = [Bucket(group) for _ in range(3)]
    counted: dict[int, int] = {}

    def collect(stepped):
        assert stepped.late == {}
        for batch in stepped.rows.get("talkers", []):
            for src, count in zip(batch.columns[0].tolist(), batch.columns[1].tolist(), strict=True):
                counted[src] = counted.get(src, 0) + count

    at = BEGIN
    for _, parcels in as_spark_calls(StreamInput(readers["packets"], ((0, group, 0),)), most):
        at += 1_000_000
        for number, bucket in enumerate(buckets):
            collect(bucket.step(at, [parcel for parcel in parcels if parcel.bucket == number]))
    assert counted, "the server's marks have closed windows"
    for bucket in buckets:
        collect(bucket.end(at))
    assert counted == dict.fromkeys(on_time, 1)


def test_an_archive_without_the_stream_or_its_rows_is_refused(tmp_path):
    with pytest.raises(Refuse, match="archive:nowhere: the directory does not exist"):
        parse_input("archive:nowhere", PACKETS)
    archive(tmp_path, 100, 10)
    other = catalog_of("CREATE STREAM others (ts TIMESTAMP) WITH (time = 'ts')").streams["others"]
    with pytest.raises(Refuse, match=r"it has no rows of stream others \(it has: packets\)"):
        parse_input(f"archive:{tmp_path}", other)
    with pytest.raises(Refuse, match=r"is the archive of a stream: read it .* with archive:"):
        parse_input(str(tmp_path / "packets"), PACKETS)
    reader = parse_input(f"archive:{tmp_path}", PACKETS)
    start = reader.initial()
    end = reader.latest(start, reader.look(start.parts), BEGIN, 50)
    for path in history.files(tmp_path / "packets")[:3]:
        path.unlink()
    with pytest.raises(Refuse, match=r"rows 0 to .* have been removed before they were read"):
        list(reader.read(reader.pieces(start, end)[0]))


# -- made-up rows ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 300), st.lists(st.integers(1, 90), min_size=1, max_size=4))
def test_made_up_rows_are_the_same_however_they_are_cut(parts, rows, mosts):
    reader = parse_input(f"rate:500?rows={rows}&parts={parts}&keys=9", PACKETS)
    found, end = read_all(reader, mosts)
    together = sorted((row for part in found.values() for row in part), key=lambda row: row["ts"])
    assert [row["ts"] for row in together] == [BEGIN + number * 2_000 for number in range(rows)]
    assert {row["src"] for row in together} <= set(range(9))
    assert len(end.parts) == parts
    assert read_all(reader, [None])[0] == found


def test_rows_of_now_continue_after_a_restart():
    reader = parse_input("rate:1000", PACKETS)
    assert isinstance(reader, RateReader)
    start = reader.initial()
    end = reader.latest(start, reader.due(reader_time := 2_000_000_000_000_000), reader_time, None)
    again = parse_input("rate:1000", PACKETS)
    assert again == reader
    (piece,) = reader.pieces(replace(end, parts={"packets-0": end.parts["packets-0"] - 10}), end)
    (portion,) = again.read(piece)
    assert [row["ts"] for row in plain(portion.table)] == [reader_time - 1_000 * back for back in range(10, 0, -1)]


# -- Kafka -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker():
    """A broker inside the client library, with four partitions per topic: a producer and its address."""
    producer = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    (found,) = producer.list_topics(timeout=5).brokers.values()
    return producer, f"{found.host}:{found.port}"


def send(producer, topic, rows, pack):
    sent: dict[str, list] = {}
    for row in rows:
        partition = row["src"] * 7 % 3  # one partition stays silent
        producer.produce(topic, pack(row), partition=partition)
        sent.setdefault(f"{topic}-{partition}", []).append(row)
    producer.flush()
    return sent


def csv_line(row):
    out = io.StringIO()
    csv.writer(out).writerow(row.values())
    return out.getvalue().encode()


PACKERS = {
    "json": lambda row: json.dumps(row).encode(),
    "json, indented": lambda row: json.dumps(row, indent=1).encode(),
    "msgpack": lambda row: msgpack.packb(list(row.values()) if row["src"] % 2 else row),
    "msgpack, arrays": lambda row: msgpack.packb(list(row.values())),
    "csv": csv_line,
}


@pytest.mark.parametrize("form", PACKERS)
def test_a_topic_is_read_once_per_partition_in_order(broker, form):
    producer, address = broker
    topic = "rows-" + form.replace(", ", "-")
    rows = [row if form != "csv" else {**row, "note": row["note"] or None} for row in rows_of(8, 600)]
    sent = send(producer, topic, rows, PACKERS[form])
    reader = parse_input(kafka(address, topic, format=form.split(",")[0]), PACKETS)
    rng = random.Random(9)
    for mosts in ([None], [rng.randrange(1, 200) for _ in range(4)]):
        found, end = read_all(reader, mosts)
        assert found == sent
        assert end.parts == {f"{topic}-{part}": len(sent.get(f"{topic}-{part}", [])) for part in range(4)}
        assert len(end.ended) == 4


def test_a_new_job_may_start_at_the_end_of_a_topic(broker):
    producer, address = broker
    send(producer, "later", rows_of(10, 50), PACKERS["json"])
    reader = parse_input(kafka(address, "later", **{"from": "latest"}), PACKETS)
    start = through_json(reader.initial())
    more = rows_of(11, 20)
    sent = send(producer, "later", more, PACKERS["json"])
    found, _ = read_all(reader, [6], start)
    assert found == sent


@pytest.mark.parametrize(
    ("form", "value", "message"),
    [
        ("json", b'{"ts": 1, "src": "x"}', "field src: expected bigint"),
        ("json", b"", "expected a row, got a message without a value"),
        ("json", None, "expected a row, got a message without a value"),
        ("json", b"{", "expected a JSON object, got half an object"),
        ("json", b'{"ts": 1}\n{"ts": 2}', "expected a JSON object"),
        ("msgpack", b"\xc1", "expected msgpack, got something else"),
        ("msgpack", msgpack.packb([1]), "expected"),
        ("msgpack", msgpack.packb(7), "expected"),
        ("csv", b"1,x,", "field src: expected bigint"),
        ("csv", b"1,2", "expected 3 values, got 2"),
        ("csv", b"1,2,a\n3,4,b", "expected one row"),
    ],
)
def test_a_bad_message_is_refused_with_its_place(broker, form, value, message):
    producer, address = broker
    topic = f"bad-{form}-{hash(value) & 0xFFFF}"
    good = PACKERS[form](rows_of(12, 1)[0])
    for one in (good, good, value, good):
        producer.produce(topic, one, partition=2)
    producer.flush()
    reader = parse_input(kafka(address, topic, format=form), PACKETS)
    with pytest.raises(Refuse) as refusal:
        read_all(reader, [None])
    assert f"kafka://{address}/{topic}, partition 2, offset 2" in refusal.value.text
    assert message in refusal.value.text
    assert "\n" not in refusal.value.text


def test_wrong_topics_and_brokers_are_refused(broker, monkeypatch):
    producer, address = broker
    send(producer, "there", rows_of(13, 5), PACKERS["json"])
    with pytest.raises(Refuse, match=r"/packet: the topic does not exist \(the broker has: .*\)"):
        parse_input(f"kafka://{address}/packet", PACKETS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        monkeypatch.setattr("millrace.spark.inputs.kafka.FIRST_SECONDS", 0.3)
        with pytest.raises(Refuse, match=r"no answer from the broker within .* s \(.*\): check the address"):
            parse_input(f"kafka://127.0.0.1:{port}/packets", PACKETS)
    reader = parse_input(f"kafka://{address}/there", PACKETS)
    assert isinstance(reader, KafkaReader)
    with pytest.raises(Refuse, match=r"partition 0 ends at offset \d+, and it has been read up to 99: was the topic"):
        reader.look({"there-0": 99})
    with pytest.raises(Refuse, match=r"offsets 99 to 109 of partition 0 are not there any more"):
        list(reader.read(Piece("there-0", (99, 110), None, 0)))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "confluent_kafka", None)
    with pytest.raises(Refuse, match=r"not installed: pip install 'millrace\[kafka\]'"):
        parse_input("kafka://localhost:9092/packets", PACKETS)


def test_settings_of_the_client_come_from_a_file_too(tmp_path, broker):
    producer, address = broker
    send(producer, "set", rows_of(14, 5), PACKERS["json"])
    path = tmp_path / "client.properties"
    path.write_text("# of the cluster\nclient.id = a\n\n")
    reader = parse_input(f"kafka://{address}/set?config={path}&kafka.client.rack=b", PACKETS)
    assert isinstance(reader, KafkaReader)
    assert reader.settings == (("client.id", "a"), ("client.rack", "b"))
    assert "client.rack" not in repr(reader)
    path.write_text("client.id\n")
    with pytest.raises(Refuse, match="line 1: expected name=value"):
        parse_input(f"kafka://{address}/set?config={path}", PACKETS)
    with pytest.raises(Refuse, match=r'No such configuration property: "no\.such"'):
        parse_input(f"kafka://{address}/set?kafka.no.such=1", PACKETS)


# -- servers -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server") / "data") as running:
        made = running.millrace("sql", SQL + "CREATE QUERY raw AS SELECT ts, src, note FROM packets;")
        assert made.returncode == 0, made
        yield running


def feed(server, rows):
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    assert server.millrace("feed", "packets", stdin=lines).returncode == 0


def test_a_query_of_a_server_is_read_once_in_order(server):
    rows = sorted(rows_of(15, 500), key=lambda row: row["ts"])
    feed(server, rows[:300])
    reader = parse_input(f"millrace://{server.listen}/raw", PACKETS)
    (part,) = reader.first()
    wait_until(lambda: reader.look({part: 0})[part].position == 300)
    found, end = read_all(reader, [70, 3, None])
    assert found == {part: rows[:300]}
    feed(server, rows[300:])
    progress = rows[-1]["ts"] - 2_000_000
    wait_until(lambda: reader.look({part: 0})[part] == (500, progress))
    found, end = read_all(reader, [150], end)
    assert found == {part: rows[300:]}
    assert end.promises == {part: progress}
    later = parse_input(f"millrace://{server.listen}/raw?from=400", PACKETS)
    assert read_all(later, [None])[0] == {part: rows[400:]}
    assert read_all(parse_input(f"millrace://{server.listen}/raw?from=next", PACKETS), [None])[0] == {}


def test_wrong_servers_and_queries_are_refused(server):
    at = server.listen
    other = catalog_of("CREATE STREAM others (ts TIMESTAMP, size BIGINT NOT NULL) WITH (time = 'ts')").streams["others"]
    for text, stream, message in [
        (f"millrace://{at}/none", PACKETS, "a stream is read through a query: CREATE QUERY"),
        (f"millrace://{at}/raw", other, "expected the columns of stream others (ts, size), got no size"),
        (f"millrace://{at}", PACKETS, "expected millrace://host:port/QUERY"),
        (f"millrace://{at}/raw?from=x", PACKETS, "expected the number of a row, or next"),
        ("millrace://127.0.0.1:1/raw", PACKETS, "millrace://127.0.0.1:1/raw: "),
    ]:
        with pytest.raises(Refuse) as refusal:
            parse_input(text, stream)
        assert message in refusal.value.text
        assert "\n" not in refusal.value.text
    gone = parse_input(f"millrace://{at}/raw?from=100000", PACKETS)
    with pytest.raises(Refuse, match="start with from=next or from=NUMBER, and let the server keep more"):
        gone.first()


# -- what all have in common -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s3://bucket/x", "expected the path of files or one of archive:, kafka:, millrace:, rate:, got s3:"),
        ("nowhere.csv", "nowhere.csv: the file or directory does not exist"),
        ("rate:fast", "rate:fast: expected rows per second from 1 to 1000000"),
        ("rate:10?keys=none", "option keys of an input: expected a whole number of 1 or more, got 'none'"),
        ("rate:10?speed=2", "it has no option speed; its options are most, from, rows, parts, keys"),
        ("rate:10?from=noon", "option from of an input: expected a time such as"),
        ("kafka:broker/topic", "kafka:broker/topic: expected kafka://host:port/topic"),
        ("kafka://b/t?format=xml", "option format of an input: expected json, msgpack, csv, got 'xml'"),
    ],
)
def test_wrong_texts_are_refused_in_one_line(text, message):
    with pytest.raises(Refuse) as refusal:
        parse_input(f"packets={text}", PACKETS)
    assert message in refusal.value.text


@given(st.dictionaries(st.text(max_size=2), st.integers(0, 1_000)), st.integers(1, 500))
def test_rows_are_shared_among_parts(counts, most):
    taken = shared(counts, most)
    assert sum(taken.values()) == min(sum(counts.values()), most)
    assert all(0 <= taken[part] <= count for part, count in counts.items())


def test_a_part_out_of_reach_has_not_ended():
    """A partition without a leader may have more rows than anyone knows."""
    stream = replace(PACKETS, max_skew_us=3_000_000)
    reader = parse_input("rate:100?rows=100&parts=2", stream)
    start = reader.initial()
    end = reader.latest(start, {"packets-0": End(50)}, BEGIN, None)
    assert end.parts == {"packets-0": 50, "packets-1": 0}
    assert end.ended == ("packets-0",)
    assert set(end.promises) == {"packets-0"}
    assert [piece.silent for piece in reader.pieces(start, end)] == [False, True]


def test_a_part_that_ends_promises_what_the_skew_allows():
    stream = catalog_of(SQL.replace("disorder = '2 s'", "max_skew = '3 s'")).streams["packets"]
    reader = parse_input("rate:100?rows=100&parts=2", stream)
    start = reader.initial()
    part = reader.latest(start, reader.look(start.parts), BEGIN, 99)
    assert part.ended == ("packets-0",) or part.ended == ("packets-1",)
    assert part.promises == {part.ended[0]: BEGIN - 3_000_000}
    whole = reader.latest(part, reader.look(part.parts), BEGIN - 1, None)
    assert whole.at == BEGIN, "a clock that was set back"
    with pytest.raises(Refuse, match=r"the checkpoint has read rate:100.*, and the input is rate:101.* now"):
        parse_input("rate:101?rows=100&parts=2", stream).latest(part, {}, BEGIN, None)
    later = reader.latest(whole, reader.look(whole.parts), BEGIN + 7, None)
    assert later.parts == whole.parts
    assert set(later.promises.values()) == {BEGIN + 7 - 3_000_000}, "silent parts promise in every epoch"
    plain = parse_input("rate:100?rows=100", PACKETS)
    end = read_all(plain, [None])[1]
    assert plain.latest(end, plain.look(end.parts), BEGIN + 7, None) is end, "nothing to say"


def as_spark_calls(one, most):
    """What Spark does with a data source, without Spark; the parcels of each epoch."""
    reader = StreamReader(one)
    start = json.loads(json.dumps(reader.initialOffset()))
    reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(most)
    while (end := json.loads(json.dumps(reader.latestOffset(start, limit)))) != start:
        batches = []
        for partition in reader.partitions(start, end):
            found = list(pickle.loads(pickle.dumps(reader)).read(partition))
            assert found
            batches += found
        assert all(batch.schema == LIVE for batch in batches)
        yield end, list(parcels_of(batches))
        start = end


def test_parcels_have_every_row_once_in_its_bucket():
    groups = groups_of(CATALOG, 4)
    reader = parse_input("rate:1000?rows=1000&parts=3&keys=50&most=300", PACKETS)
    one = StreamInput(reader, ((0, groups[0], 0),))
    rows, epochs = [], 0
    for end, parcels in as_spark_calls(one, 300):
        epochs += 1
        assert {(parcel.part, parcel.bucket) for parcel in parcels} == {
            (part, bucket) for part in end["parts"] for bucket in range(4)
        }
        for parcel in parcels:
            if parcel.data is not None:
                rows += parcel.table().column("ts").to_pylist()
    assert epochs == 4
    assert sorted(rows) == [BEGIN + number * 1_000 for number in range(1_000)]


def test_what_an_input_promises_decides_what_moves_the_mark(archived):
    folder, *_ = archived
    readers = {"packets": parse_input(f"archive:{folder}", PACKETS)}
    assert as_read(CATALOG, punctuated(readers)).streams["packets"].progress == "punctuation"
    assert as_read(CATALOG, punctuated({"packets": parse_input("rate:10", PACKETS)})) == CATALOG


def test_a_refusal_is_found_in_what_another_process_said():
    text = (
        "Traceback (most recent call last):\n  File x\nmillrace.protocol.errors.Refuse: a.csv, line 2: no\n\n\tat org"
    )
    assert refusal_in(RuntimeError(text)) == "a.csv, line 2: no"
    assert refusal_in(RuntimeError("else")) is None


def test_spark_reads_streams_packed_to_their_ends(spark, folder_of_files, tmp_path):
    """Two streams, one of files and one made up: every row of both in a parcel, at most so many in an epoch."""
    folder, rows = folder_of_files
    catalog = catalog_of(
        SQL.split(";")[0]
        + """; CREATE STREAM logins (ts TIMESTAMP, src BIGINT) WITH (time = 'ts');
        CREATE QUERY pairs AS SELECT p.src FROM packets p JOIN logins l ON p.src = l.src
          AND l.ts BETWEEN p.ts - INTERVAL '1 s' AND p.ts + INTERVAL '1 s';"""
    )
    inputs = {"packets": f"{folder}?most=400", "logins": "rate:100?rows=300&parts=2"}
    readers = {name: parse_input(text, catalog.streams[name]) for name, text in inputs.items()}
    groups = groups_of(as_read(catalog, punctuated(readers)), 3)
    found: dict[str, list] = {}
    epochs: list[int] = []

    def take(frame, epoch):
        parcels = list(parcels_of(frame.toArrow().to_batches()))
        epochs.append(sum(parcel.rows for parcel in parcels if parcel.lane == 0))
        for parcel in sorted(parcels, key=lambda parcel: (parcel.lane, parcel.part, parcel.first)):
            if parcel.data is not None:
                found.setdefault(parcel.part, []).extend(parcel.table().column("ts").to_pylist())

    def run(groups):
        frame = live_frame(spark, groups, readers)
        assert f"{INPUT}=*********(redacted)" in frame._jdf.queryExecution().toString(), "it may contain a password"
        writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / str(len(epochs)))).start()
        query.awaitTermination()
        return query

    query = run(groups)
    ends = [json.loads(source["latestOffset"] or "null") for source in query.lastProgress["sources"]]
    assert {"parts": {"logins-0": 150, "logins-1": 150}} in ends
    assert sorted(found["packets-files"]) == sorted(row["ts"] for row in rows)
    assert sorted(found["logins-0"] + found["logins-1"]) == [BEGIN + 10_000 * number for number in range(300)]
    assert sum(epochs) == len(rows)
    assert max(epochs) <= 400
    readers["packets"] = FilesReader(catalog.streams["packets"], None, str(tmp_path / "none"))
    with pytest.raises(StreamingQueryException) as error:
        run(groups_of(CATALOG, 1))
    assert refusal_in(error.value) == f"{tmp_path / 'none'}: the directory is gone"
