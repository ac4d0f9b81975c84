"""Real Spark: the same rows as in one process, whatever the split; finished tasks stay; errors are readable."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from millrace.backfill import backfill
from millrace.backfill.inputs import find_input
from millrace.backfill.job import flow_of_text
from millrace.backfill.layout import OWN_TIME
from millrace.backfill.outputs import MANIFEST
from millrace.backfill.running import BackfillRequest, start
from millrace.backfill.verifying import read_backfill
from millrace.cli.main import app
from millrace.history.files import Reach, write_reach
from millrace.offline.script import plan_script
from millrace.protocol import MillraceError, Refuse, format_timestamp
from tests.comparison import same_final, same_rows
from tests.running import run_script

BEGIN = 1_767_225_600_000_000
STREAMS = """
CREATE STREAM packets (ts TIMESTAMP, src BIGINT, name TEXT, len BIGINT) WITH (time = 'ts');
CREATE STREAM alerts (ts TIMESTAMP, src BIGINT, level DOUBLE) WITH (time = 'ts');
"""
QUERIES = {
    "tumbling": "SELECT src, count(*) AS n, sum(len) AS bytes, window_start FROM TUMBLE(packets, ts, INTERVAL '10 s') "
    "GROUP BY src, window_start",
    "nested": "SELECT name, max(n) AS most, window_end FROM TUMBLE((SELECT name, count(*) AS n, window_end FROM "
    "TUMBLE(packets, ts, INTERVAL '2 s') GROUP BY name, window_end), window_end, INTERVAL '20 s') "
    "GROUP BY name, window_end",
    "joined": "SELECT p.ts, p.name, a.level FROM packets p LEFT JOIN alerts a ON p.src = a.src "
    "AND a.ts BETWEEN p.ts - INTERVAL '1 second' AND p.ts + INTERVAL '2 seconds'",
    "sessions": "SELECT src % 3 AS k, count(*) AS n, window_start FROM SESSION(packets, ts, INTERVAL '300 ms') "
    "GROUP BY src % 3",
    "followed": "SELECT a.level, p.len, p.ts FROM alerts a FOLLOWED BY packets p RECENT ON a.src = p.src",
    "running": "SELECT src, sum(len) AS bytes FROM packets GROUP BY src",
    "everything": "SELECT count(*) AS n FROM packets",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Both streams as Parquet, and the same rows as JSON lines."""
    folder = tmp_path_factory.mktemp("inputs")
    rng = random.Random(7)
    packets, alerts = [], []
    for number in range(2_000):
        ts = BEGIN + number * 40_000 + rng.randrange(30_000)
        packets.append(
            {"ts": ts, "src": rng.randrange(7), "name": rng.choice(["a", "b", None]), "len": rng.randrange(99)}
        )
        if number % 9 == 0:
            alerts.append({"ts": ts + rng.randrange(900_000), "src": rng.randrange(7), "level": rng.random()})
    alerts.sort(key=itemgetter("ts"))
    for name, rows in (("packets", packets), ("alerts", alerts)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        table = pa.Table.from_pylist(rows)
        times = table["ts"].cast(pa.timestamp("us", "UTC"))
        pq.write_table(table.set_column(0, "ts", times), folder / f"{name}.parquet", row_group_size=300)
    return folder


def expected(files: Path, query: str, folder: Path) -> list[dict]:
    """The rows of `millrace run`."""
    inputs = [(name, str(files / f"{name}.jsonl")) for name in ("packets", "alerts")]
    return run_script(STREAMS + QUERIES[query], folder, inputs=inputs, sorted=True).rows["q"]


def wanted(files: Path, query: str, out: Path, **more) -> BackfillRequest:
    flow = flow_of_text(STREAMS + QUERIES[query])
    names = dict.fromkeys(name for name in flow.streams)
    return BackfillRequest(
        flow, {name: find_input(flow, name, str(files / f"{name}.parquet")) for name in names}, str(out), **more
    )


def run(made: BackfillRequest) -> dict:
    return start(made, lambda line: None, lambda done, total: None)


def rows_of(out: Path) -> list[dict]:
    return [{name: value for name, value in row.items() if name != OWN_TIME} for row in read_backfill(str(out))]


def check(made: BackfillRequest, rows: list[dict], right: list[dict]) -> None:
    key = made.flow.query.update_key
    if key is None:
        assert same_rows(rows, right) is None
    else:
        assert same_final(rows, right, lambda row: tuple(row[name] for name in key)) is None


WAYS = [
    ("tumbling", "key"),
    ("tumbling", "time"),
    ("nested", "time"),
    ("joined", "time"),
    ("sessions", "key"),
    ("followed", "key"),
    ("running", "key"),
    ("everything", "auto"),
]


@pytest.mark.parametrize(("query", "mode"), WAYS)
def test_the_rows_are_those_of_millrace_run(spark, files, tmp_path, query, mode):
    made = wanted(files, query, tmp_path / "out", mode=mode, tasks=3)
    manifest = run(made)
    rows = rows_of(tmp_path / "out")
    check(made, rows, expected(files, query, tmp_path))
    assert manifest["rows"] == len(rows)
    assert manifest["split"]["how"] == ("one" if query == "everything" else mode)


def test_a_span_has_the_rows_of_the_whole_whose_time_lies_in_it(spark, files, tmp_path):
    low, high = BEGIN + 21_000_000, BEGIN + 52_000_000
    inputs = {name: spark.read.parquet(str(files / f"{name}.parquet")) for name in ("packets", "alerts")}
    text = STREAMS + QUERIES["joined"]
    whole = backfill(spark, text, inputs, tasks=2).toArrow().to_pylist()
    part = backfill(spark, text, inputs, tasks=2, from_us=low, to_us=high).toArrow().to_pylist()
    inside = [row for row in whole if low <= int(row[OWN_TIME].timestamp() * 1_000_000) < high]
    assert same_rows(part, inside) is None
    assert 0 < len(part) < len(whole)


def test_one_dataframe_will_do_for_one_stream(spark, files):
    frame = backfill(spark, STREAMS + QUERIES["tumbling"], spark.read.parquet(str(files / "packets.parquet")), tasks=2)
    assert frame.columns == ["src", "n", "bytes", "window_start", OWN_TIME]
    assert sum(row["n"] for row in frame.collect()) == 2_000


def test_what_is_done_is_not_done_again(spark, files, tmp_path):
    """A task's record and files are missing: only that task runs again, and the rows are complete."""
    out = tmp_path / "out"
    made = wanted(files, "tumbling", out, mode="key", tasks=3)
    first = run(made)
    before = {path: path.stat().st_mtime_ns for path in out.glob("date=*/*")}
    (out / MANIFEST).unlink()
    (out / "_tasks" / "00001.json").unlink()
    left = next(path for path in before if "part-00001" in path.name)
    left.rename(left.with_name("part-00001-007.parquet"))  # the files of an earlier attempt with other batches
    said: list[str] = []
    again = start(made, said.append, lambda done, total: None)
    after = {path: path.stat().st_mtime_ns for path in out.glob("date=*/*")}
    assert any("2 of 3 tasks are done" in line for line in said)
    assert after.keys() == before.keys()
    assert [path.name for path in after if after[path] != before[path]] == [left.name]
    assert again["files"] == first["files"]
    check(made, rows_of(out), expected(files, "tumbling", tmp_path))


def test_what_has_come_since_it_began_is_left_out(spark, files, tmp_path):
    """An archive grows while a backfill of it is interrupted."""
    out, history = tmp_path / "out", tmp_path / "in"
    history.mkdir()
    (history / "a.parquet").write_bytes((files / "packets.parquet").read_bytes())
    flow = flow_of_text(STREAMS + QUERIES["tumbling"])
    first = run(BackfillRequest(flow, {"packets": find_input(flow, "packets", str(history))}, str(out), tasks=2))
    (out / MANIFEST).unlink()
    (out / "_tasks" / "00001.json").unlink()
    (history / "b.parquet").write_bytes((files / "packets.parquet").read_bytes())
    again = run(BackfillRequest(flow, {"packets": find_input(flow, "packets", str(history))}, str(out), tasks=2))
    assert again["files"] == first["files"]
    (history / "a.parquet").unlink()
    with pytest.raises(Refuse, match="already contains a backfill with other input files"):
        run(BackfillRequest(flow, {"packets": find_input(flow, "packets", str(history))}, str(out), tasks=2))


def test_an_archive_says_itself_who_was_late(spark, tmp_path):
    """In order of arrival, with flags: late rows are excluded, and the side stream has them; ties stay in order."""
    history = tmp_path / "history"
    rows = [(10, 1, False), (30, 2, False), (20, 3, True), (30, 4, False), (45, 5, False), (5, 6, True)]
    write_archive(history / "s", rows)
    sql = "CREATE STREAM s (ts TIMESTAMP, v BIGINT) WITH (time = 'ts', disorder = '0 seconds');"
    done = cli(
        "start",
        "--sql",
        text(tmp_path, sql + "SELECT first(v) AS f, last(v) AS l, window_end FROM TUMBLE(s, ts, INTERVAL '40 us')"),
        "--history",
        str(history),
        "--out",
        str(tmp_path / "a"),
    )
    assert done.exit_code == 0, done.output
    assert [(row["f"], row["l"]) for row in rows_of(tmp_path / "a")] == [(1, 4), (5, 5)]
    late = "SELECT v, late_by_us, feed, ts FROM s.late"
    done = cli("start", "--sql", text(tmp_path, sql + late), "--history", str(history), "--out", str(tmp_path / "b"))
    assert done.exit_code == 0, done.output
    assert [tuple(row.values()) for row in rows_of(tmp_path / "b")] == [(3, 10, "main", 20), (6, 40, "main", 5)]
    # A late row has the time of its arrival, which is after all times of events here.
    span = ("--from", "104", "--history", str(history), "--out", str(tmp_path / "c"))
    done = cli("start", "--sql", text(tmp_path, sql + late), *span)
    assert done.exit_code == 0, done.output
    assert [tuple(row.values()) for row in rows_of(tmp_path / "c")] == [(6, 40, "main", 5)]
    frame = spark.read.parquet(str(history / "s" / "date=1970-01-01")).where("__late")
    rows = backfill(spark, sql + late, frame, tasks=2, from_us=101, to_us=104).toArrow().to_pylist()
    assert [row["v"] for row in rows] == [3]


def test_a_column_that_a_stream_got_while_it_was_archived(spark, tmp_path):
    history = tmp_path / "history"
    write_archive(history / "s", [(10, 1, False), (20, 2, False)])
    older = pq.read_table(history / "s" / "date=1970-01-01" / "0-5.parquet")
    newer = older.append_column("w", pa.array([7, None])).set_column(0, "ts", pa.array([30, 40], older["ts"].type))
    newer = newer.set_column(newer.column_names.index("__seq"), "__seq", pa.array([2, 3]))
    pq.write_table(newer, history / "s" / "date=1970-01-01" / "6-7.parquet")
    sql = "CREATE STREAM s (ts TIMESTAMP, v BIGINT, w BIGINT) WITH (time = 'ts'); SELECT v, w FROM s"
    flags = ("start", "--sql", text(tmp_path, sql), "--history", str(history))
    for name, span, wanted in (
        ("all", (), [(1, None), (2, None), (1, 7), (2, None)]),
        ("old", ("--to", "25"), [(1, None), (2, None)]),
    ):
        done = cli(*flags, *span, "--out", str(tmp_path / name))
        assert done.exit_code == 0, done.output
        assert [tuple(row.values()) for row in rows_of(tmp_path / name)] == wanted


def write_archive(folder: Path, rows) -> None:
    """An archive as the server writes it: (ts, v, late) in order of arrival."""
    place = folder / "date=1970-01-01"
    place.mkdir(parents=True)
    time = pa.timestamp("us", "UTC")
    marks = np.maximum.accumulate([0, *(ts for ts, _, late in rows[:-1])])
    table = pa.table(
        {
            "ts": pa.array([ts for ts, _, _ in rows], time),
            "v": [v for _, v, _ in rows],
            "__seq": range(len(rows)),
            "__arrived": pa.array(range(100, 100 + len(rows)), time),
            "__late": [late for _, _, late in rows],
            "__mark": pa.array(marks, time),
            "__feed": ["main"] * len(rows),
        }
    )
    pq.write_table(table, place / "0-5.parquet")
    stream = plan_script("CREATE STREAM s (ts TIMESTAMP, v BIGINT) WITH (time = 'ts')").streams["s"]
    write_reach(folder, replace(Reach.begun(stream), reach_us=45, last_seq=5, rows=6, files=1))


def text(folder: Path, sql: str) -> str:
    path = folder / "q.sql"
    path.write_text(sql)
    return str(path)


def cli(*arguments: str):
    return cli_at("127.0.0.1:1", *arguments)


def cli_at(admin: str, *arguments: str):
    return CliRunner().invoke(app, ["backfill", *arguments], env={"MILLRACE_ADMIN": admin})


def test_verify_shows_what_differs(spark, files, tmp_path):
    sql = text(tmp_path, STREAMS + "CREATE QUERY q AS " + QUERIES["tumbling"] + ";")
    live = tmp_path / "live.jsonl"
    right = expected(files, "tumbling", tmp_path)
    live.write_text("".join(json.dumps(row) + "\n" for row in right))
    flags = ("--sql", sql, "--input", f"packets={files / 'packets.parquet'}", "--against", str(live), "--tasks", "2")
    assert cli("verify", *flags).exit_code == 0
    wrong = [*right[:3], {**right[3], "n": 0}, *right[5:]]
    live.write_text("".join(json.dumps(row) + "\n" for row in wrong))
    done = cli("verify", *flags, "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert (len(told["missing"]), len(told["extra"])) == (2, 1)
    assert told["extra"] == [{**wrong[3], "window_start": format_timestamp(wrong[3]["window_start"])}]


def test_rows_that_do_not_fit_are_told_with_their_place_and_leave_nothing(spark, files, tmp_path, monkeypatch):
    bad = tmp_path / "packets.jsonl"
    lines = (files / "packets.jsonl").read_text().splitlines()
    bad.write_text("\n".join([*lines[:50], lines[50].replace('"src": ', '"src": "x'), *lines[51:]]) + "\n")
    flow = flow_of_text(STREAMS + QUERIES["tumbling"])
    monkeypatch.setattr("millrace.backfill.inputs.LOOKED_AT", 1)
    monkeypatch.setattr("millrace.offline.files.CHUNK", 1_000)
    with pytest.raises(MillraceError) as failed:
        run(BackfillRequest(flow, {"packets": find_input(flow, "packets", str(bad))}, str(tmp_path / "out")))
    assert failed.value.text.startswith(f"{bad}, line 51: expected a JSON object, got ")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    bad.write_text("\n".join([*lines[:50], lines[50].replace('"len": ', '"len": 0.'), *lines[51:]]) + "\n")
    with pytest.raises(MillraceError) as failed:
        run(BackfillRequest(flow, {"packets": find_input(flow, "packets", str(bad))}, str(tmp_path / "out")))
    assert failed.value.text.startswith(f"{bad}, line 51, field len: expected bigint")
    assert not list((tmp_path / "out").iterdir())
    table = pq.read_table(files / "packets.parquet")
    column = [None, *table["len"].to_pylist()[1:]]
    pq.write_table(table.set_column(3, "len", pa.array(column)), tmp_path / "nulls.parquet")
    strict = flow_of_text(STREAMS.replace("len BIGINT", "len BIGINT NOT NULL") + QUERIES["tumbling"])
    with pytest.raises(Refuse, match=r"nulls\.parquet, row 1, field len: expected bigint, not null, got null"):
        run(
            BackfillRequest(
                strict, {"packets": find_input(strict, "packets", str(tmp_path / "nulls.parquet"))}, str(tmp_path / "n")
            )
        )
    assert not (tmp_path / "n").exists()
