"""`make check-spark`: several processes, a program that is killed, and many queries. It takes minutes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.backfill import backfill
from millrace.backfill.job import flow_of_text
from millrace.backfill.layout import OWN_TIME
from millrace.backfill.outputs import Destination
from millrace.backfill.splitting import Extent, Mode, plan_split
from millrace.backfill.verifying import read_backfill
from millrace.formats.arrow import to_arrow
from millrace.protocol import Refuse
from millrace.spark.status import verify
from millrace.sql import Catalog
from tests.backfill.test_equality import CASES, arrived, compare, everything
from tests.comparison import same_rows
from tests.conformance.rows import events_of, sql_of
from tests.running import run_events, run_script
from tests.spark.cluster import LOOPBACK, cluster
from tests.spark.test_job import rows_of as live_rows

ROWS = 200_000
BEGIN = 1_767_225_600_000_000
SQL = """CREATE STREAM packets (ts TIMESTAMP, src BIGINT, len BIGINT) WITH (time = 'ts');
CREATE QUERY talkers AS SELECT src, count(*) AS n, sum(len) AS bytes, window_end
  FROM TUMBLE(packets, ts, INTERVAL '10 seconds') GROUP BY src, window_end;
"""


@pytest.fixture(scope="module")
def packets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packets")
    rng = random.Random(3)
    rows = [(BEGIN + number * 1_000, rng.randrange(500), rng.randrange(1_500)) for number in range(ROWS)]
    ts, src, len_ = zip(*rows, strict=True)
    table = pa.table({"ts": pa.array(ts, pa.timestamp("us", "UTC")), "src": src, "len": len_})
    pq.write_table(table, folder / "packets.parquet", row_group_size=20_000)
    (folder / "q.sql").write_text(SQL)
    return folder


@pytest.fixture(scope="module")
def right(packets, tmp_path_factory):
    inputs = [("packets", str(packets / "packets.parquet"))]
    return run_script(SQL, tmp_path_factory.mktemp("right"), inputs=inputs).rows["talkers"]


def command(packets, out, *flags):
    source = f"packets={packets / 'packets.parquet'}"
    program = [sys.executable, "-m", "millrace.cli.main", "backfill", "start", "--sql", str(packets / "q.sql")]
    return [*program, "--input", source, "--out", str(out), *flags]


def rows_of(out):
    return [{name: value for name, value in row.items() if name != OWN_TIME} for row in read_backfill(str(out))]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["key", "time"])
def test_two_workers_of_their_own(packets, right, tmp_path, mode):
    """Executors are processes that have Millrace only from the archive."""
    with cluster(tmp_path) as master:
        flags = ("--master", master, "--mode", mode, "--tasks", "6", "--conf", "spark.executor.memory=600m")
        environment = {**os.environ, **LOOPBACK}
        done = subprocess.run(
            command(packets, tmp_path / "out", *flags), capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr[-3_000:]
    assert same_rows(rows_of(tmp_path / "out"), right) is None
    used = {path.name for path in tmp_path.glob("work*/app-*/*")}
    assert used == {"0", "1"}, "both workers had an executor"


@pytest.mark.timeout(600)
def test_a_live_job_on_two_workers(packets, right, tmp_path):
    """Where the rows are read and where they are computed, Millrace comes from the archive."""
    inputs = f"packets={packets / 'packets.parquet'}?most=90000"
    program = [sys.executable, "-m", "millrace.cli.main", "spark", "run", str(packets / "q.sql"), "--until-end"]
    flags = ["--input", inputs, "--checkpoint", str(tmp_path / "job"), "--buckets", "8", "--tasks", "4"]
    with cluster(tmp_path) as master:
        flags += ["--master", master, "--conf", "spark.executor.memory=600m"]
        done = subprocess.run(
            [*program, *flags], capture_output=True, text=True, check=False, env={**os.environ, **LOOPBACK}
        )
        assert done.returncode == 0, done.stderr[-3_000:]
    assert len(done.stdout.splitlines()) >= 4, "several epochs, and the end"
    assert same_rows(live_rows(tmp_path / "job" / "rows" / "talkers"), right) is None
    assert verify(str(tmp_path / "job"))[1] == []


@pytest.mark.timeout(900)
def test_killed_again_and_again(packets, right, tmp_path):
    """SIGKILL to the whole group after each finished task: the backfill continues, and no task repeats or is lost."""
    out = tmp_path / "out"
    killed = 0
    for _ in range(12):
        process = subprocess.Popen(
            command(packets, out, "--master", "local[2]", "--mode", "key", "--tasks", "5"),
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        before = len(Destination(out).done())
        while process.poll() is None and len(Destination(out).done()) == before:
            time.sleep(0.005)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        process.communicate()
        if Destination(out).manifest() is not None:
            break
    assert killed >= 2
    assert Destination(out).manifest() is not None
    assert same_rows(rows_of(out), right) is None
    on_disk = {path.relative_to(out).as_posix() for path in out.glob("date=*/*")}
    assert on_disk == {file["path"] for file in json.loads((out / "_manifest.json").read_bytes())["files"]}


# Spark's workers do not know an aggregate that the tests define in their own process.
EVERYWHERE = [case for case in CASES if "sorted_list" not in sql_of(case)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", EVERYWHERE, ids=lambda case: case["id"])
def test_conformance_on_spark(spark, case, tmp_path):
    """Every case, in every way that it can be split."""
    sql = sql_of(case)
    flow = flow_of_text(sql)
    result = run_events(sql + ";" + everything(flow.catalog.streams), events_of(case, case["feed"]), tmp_path)
    inputs = arrived(Catalog(flow.catalog.streams), result, flow.streams)
    frames = {}
    for name, batch in inputs.items():
        table = pa.Table.from_batches([to_arrow(batch)])
        flagged = table.append_column("__seq", pa.array(range(len(batch)), pa.int64()))
        frames[name] = spark.createDataFrame(flagged.append_column("__late", pa.array([False] * len(batch))))
    ways: list[tuple[Mode, int]] = [("auto", 1), ("key", 3), ("time", 3)]
    for mode, tasks in ways:
        try:
            plan_split(flow, Extent(0, 10), mode=mode, tasks=tasks)
        except Refuse:
            continue
        frame = backfill(spark, flow, frames, mode=mode, tasks=tasks)
        rows = plain(frame.toArrow())
        assert compare(flow, rows, result.rows[flow.name]) is None, mode


def plain(table: pa.Table) -> list[dict]:
    """Comparable rows: times as integers, without the column that only backfills have."""
    table = table.drop_columns([OWN_TIME])
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(at, field.name, table.column(at).cast(pa.int64()))
    return table.to_pylist()
