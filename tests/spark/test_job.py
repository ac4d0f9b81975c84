"""A live job on real Spark: the rows of `millrace run`, whatever is repeated; errors are one line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql.streaming.query import StreamingQuery

from millrace.backfill.layout import OWN_TIME
from millrace.backfill.running import in_plain_words
from millrace.protocol import Refuse
from millrace.spark import Job
from millrace.spark.asking import ask
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.epochs import Outdated
from millrace.spark.livequery import LiveQuery
from millrace.spark.lock import Lock
from millrace.spark.records import CommitRecord
from millrace.spark.status import verify
from tests.comparison import same_rows
from tests.running import run_script

BEGIN = 1_767_225_600_000_000
SQL = """CREATE STREAM packets (ts TIMESTAMP, src BIGINT, len BIGINT) WITH (time = 'ts', disorder = '100 ms');
CREATE QUERY talkers AS SELECT src, count(*) AS n, sum(len) AS bytes, window_end
  FROM TUMBLE(packets, ts, INTERVAL '1 second') GROUP BY src, window_end;
CREATE QUERY total AS SELECT count(*) AS n, window_end FROM TUMBLE(packets, ts, INTERVAL '1 second');
"""
SIZES = """CREATE QUERY sizes AS SELECT src, max(len) AS most, count(*) AS n, window_end
  FROM TUMBLE(packets, ts, INTERVAL '1 second') GROUP BY src, window_end;"""


@pytest.fixture(scope="module")
def packets(tmp_path_factory):
    """Three files of rows, of which some are late."""
    folder = tmp_path_factory.mktemp("packets")
    rng = Random(5)
    for number in range(3):
        rows = []
        for place in range(number * 100, number * 100 + 100):
            late = rng.randrange(500_000) if rng.random() < 0.1 else 0
            rows.append({"ts": BEGIN + place * 20_000 - late, "src": rng.randrange(9), "len": rng.randrange(99)})
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def right(packets, tmp_path_factory):
    folder = tmp_path_factory.mktemp("right")
    whole = folder / "packets.jsonl"
    whole.write_text("".join(path.read_text() for path in sorted(packets.iterdir())))
    return run_script(SQL, folder, inputs=[("packets", str(whole))])


def rows_of(folder: Path) -> list[dict]:
    found = []
    for path in sorted(folder.glob("epoch-*.parquet")):
        table = pq.read_table(path).drop_columns([OWN_TIME])
        at = table.schema.get_field_index("window_end")
        found += table.set_column(at, "window_end", table["window_end"].cast("int64")).to_pylist()
    return found


def test_a_job_has_the_rows_of_millrace_run(spark, packets, right, tmp_path):
    """Read to the end in several epochs, one query into a folder and one into a function."""
    seen: Counter = Counter()
    reports: list[CommitRecord] = []

    def take(frame, epoch):
        seen.update((epoch, *row) for row in frame.drop(OWN_TIME).collect())

    job = Job(
        spark,
        SQL,
        {"packets": f"{packets}?most=110"},
        tmp_path / "job",
        {"total": take},
        buckets=3,
        report=reports.append,
    )
    job.run_to_end()
    assert same_rows(rows_of(tmp_path / "job" / "rows" / "talkers"), right.rows["talkers"]) is None
    totals = Counter((n, int(end.timestamp() * 1_000_000)) for _, n, end in seen.elements())
    assert totals == Counter((row["n"], row["window_end"]) for row in right.rows["total"])
    assert [report.epoch for report in reports] == list(range(len(reports)))
    assert len(reports) > 3
    assert sum(report.counts.late["packets"] for report in reports[:-1]) == len(right.late["packets"]) > 0
    assert verify(str(tmp_path / "job"))[1] == []
    job.run_to_end()
    assert len(reports) == reports[-1].epoch + 1, "it has ended: nothing runs again"
    with pytest.raises(Refuse, match="the job has ended"):
        job.start()


def test_a_query_that_is_stopped_continues(spark, packets, right, tmp_path):
    """A second driver is refused meanwhile, and an epoch that fails runs again."""
    inputs = {"packets": str(tmp_path / "in")}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.jsonl").write_bytes((packets / "0.jsonl").read_bytes())
    job = Job(spark, SQL, inputs, tmp_path / "job", buckets=3, tasks=3)
    query = job.start("100 milliseconds")
    query.processAllAvailable()
    with pytest.raises(Refuse, match=r"job is in use by process .*; stop that driver first"):
        Job(spark, SQL, inputs, tmp_path / "job", buckets=3).start()
    query.stop()

    broken = tmp_path / "in" / "1.jsonl"
    broken.write_text((packets / "1.jsonl").read_text().replace("{", "[", 1))
    query = job.start("100 milliseconds")
    with pytest.raises(Refuse, match=r"1\.jsonl, line 1"):
        query.awaitTermination(60)
    broken.write_bytes((packets / "1.jsonl").read_bytes())
    (tmp_path / "in" / "2.jsonl").write_bytes((packets / "2.jsonl").read_bytes())
    Job(spark, SQL, inputs, tmp_path / "job", buckets=3, tasks=1).run_to_end()
    for name in ("talkers", "total"):
        assert same_rows(rows_of(tmp_path / "job" / "rows" / name), right.rows[name]) is None


def test_a_job_changes_while_it_runs(spark, packets, right, tmp_path):
    """A query joins the buckets of another, one gets its own, one is dropped: the job continues without a new start."""
    (tmp_path / "in").mkdir()
    folder = tmp_path / "job"
    job = Job(spark, SQL, {"packets": str(tmp_path / "in")}, folder, buckets=3)
    query = job.start("100 milliseconds")

    def add(number: int, changes: int) -> None:
        """Wait until a further file is read with so many changes."""
        (tmp_path / "in" / f"{number}.jsonl").write_bytes((packets / f"{number}.jsonl").read_bytes())
        checkpoint = Checkpoint(folder)
        while (last := checkpoint.last()) is None or last.totals.input["packets"] < 100 * (number + 1):
            query.awaitTermination(1)
        record = checkpoint.epoch(last.epoch)
        assert record is not None
        assert record.changes == changes

    try:
        add(0, 0)
        ask(str(folder), SIZES)
        ask(str(folder), "DROP QUERY total;")
        add(1, 0)  # the epoch of the request, or the first after it
        add(2, 2)
    finally:
        query.stop()
    job.run_to_end()
    assert same_rows(rows_of(folder / "rows" / "talkers"), right.rows["talkers"]) is None
    assert sum(row["n"] for row in rows_of(folder / "rows" / "sizes")) <= 100
    assert rows_of(folder / "rows" / "sizes")
    assert verify(str(folder))[1] == []


def test_an_old_failure_does_not_hide_a_new_one():
    """A query that made way for a change is followed by one whose source fails."""
    wrapped = [Refuse("the job has changed, says Spark"), Refuse("the broker is gone")]
    lock = SimpleNamespace(released=0)

    def release():
        lock.released += 1

    lock.release = release

    class Ended:
        def awaitTermination(self):  # noqa: N802 - Spark's name
            raise wrapped.pop(0)

    query = LiveQuery(lambda: StreamingQuery(Ended()), [Outdated("the job has changed")], cast(Lock, lock))
    with pytest.raises(Refuse, match="the broker is gone"):
        query.awaitTermination()
    assert (wrapped, lock.released) == ([], 1)


@pytest.mark.parametrize("lost", [ConnectionRefusedError(111, "refused"), Py4JNetworkError("empty answer")], ids=repr)
def test_a_java_process_that_has_ended_is_one_line(lost):
    with pytest.raises(Refuse, match="the Java process of Spark has ended"), in_plain_words():
        raise lost
