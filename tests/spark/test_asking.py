"""Changes of a live job, and why its queries wait: asked of the checkpoint, whether the job runs or not."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millrace.backfill.bucket import groups_of
from millrace.protocol import Refuse
from millrace.spark.asking import ask, plan_of, why
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.epochs import Plan
from millrace.spark.inputs.reader import as_read
from millrace.spark.status import verify
from tests.backfill.test_bucket import catalog_of
from tests.spark.sparkloop import Killed, SimulatedJob, job_of, killed_at
from tests.spark.test_epochs import BUCKETS, SQL, epochs_of, states_of

MORE = """CREATE QUERY sizes AS SELECT src, max(bytes) AS most, window_end
  FROM TUMBLE(packets, ts, INTERVAL '2 seconds') GROUP BY src;"""
PORTS = """CREATE QUERY ports AS SELECT port, count(*) AS n, window_end
  FROM TUMBLE(packets, ts, INTERVAL '2 seconds') GROUP BY port;"""
CHANGES = (MORE, ("strategy", "traffic", "bfs(3)"), PORTS, "DROP QUERY total;", "DROP QUERY traffic;")


def begun(folder: Path, epochs: int = 2) -> SimulatedJob:
    job = job_of(folder, SQL, epochs_of(3, cuts=5, rows=120), BUCKETS)
    job.run(epochs)
    return job


def change(job: SimulatedJob, made: str | tuple[str, ...]) -> int:
    path = str(job.checkpoint.path)
    return (ask(path, made) if isinstance(made, str) else ask(path, decision=made))[1]


def published(out: Path) -> dict[str, Counter]:
    found: dict[str, Counter] = {}
    for path in sorted(out.glob("*/epoch-*.parquet")):
        rows = pq.read_table(path).to_pylist()
        found.setdefault(path.parent.name, Counter()).update(
            (path.name.split("-task")[0], *row.values()) for row in rows
        )
    return found


def test_changes_take_effect_between_epochs(tmp_path):
    job = begun(tmp_path)
    assert [change(job, made) for made in CHANGES[:2]] == [1, 2]
    job.run(3)
    assert [change(job, made) for made in CHANGES[2:]] == [3, 4, 5]
    job.run(ended=True)
    records = [job.checkpoint.epoch(number) for number in range(len(job.epochs))]
    assert [record.changes for record in records if record is not None] == [0, 0, 2, 5, 5, 5]
    rows = published(job.folder / "out")
    assert rows.keys() == {"traffic", "large", "total", "sizes", "ports"}
    assert min(row[0] for row in rows["sizes"]) > "epoch-0000001"
    assert max(row[0] for row in rows["traffic"]) < "epoch-0000003", "it was dropped"
    assert verify(str(job.checkpoint.path))[1] == []


def test_a_death_at_any_operation_applies_a_change_once(tmp_path):
    before = begun(tmp_path / "before")
    for made in CHANGES[:3]:
        change(before, made)

    def copy(name: str) -> SimulatedJob:
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        shutil.copytree(before.folder, tmp_path / name)
        return job_of(tmp_path / name, SQL, epochs_of(3, cuts=5, rows=120), BUCKETS)

    whole = copy("whole")
    with killed_at(1 << 30) as operations:
        whole.run(3)
    for at in range(0, len(operations), 3):
        job = copy("killed")
        with pytest.raises(Killed), killed_at(at):
            job.run(3)
        if at % 2:
            change(job, "DROP QUERY sizes;")  # an epoch that has started ends without it
            dropped = job.checkpoint.started() is None and job.checkpoint.commit(2) is None
        else:
            dropped = False
        job.run(3)
        if not dropped:
            assert published(job.folder / "out") == published(whole.folder / "out"), at
            assert states_of(job.checkpoint)[2] == states_of(whole.checkpoint)[2], at
        job.run(ended=True)
        assert verify(str(job.checkpoint.path))[1] == [], at


def test_the_plan_of_a_job_is_read_from_its_checkpoint(tmp_path):
    job = begun(tmp_path)
    told = job.checkpoint.job()
    assert told is not None
    assert plan_of(job.checkpoint, told).fingerprint == job.plan.fingerprint


def test_why_names_the_part_that_holds(tmp_path):
    job = begun(tmp_path)
    path = str(job.checkpoint.path)
    assert "part packets-1 of packets is at" in why(path, "traffic")
    assert "promises nothing, because packets has no max_skew" in why(path, "total")
    assert why(path, "large").startswith("Not blocked: large has emitted ")
    change(job, ("pause", "large"))
    job.run(3)
    assert "paused" in why(path, "large")


def test_why_of_streams_that_no_part_holds(tmp_path):
    """Late tuples have the time of the engine."""
    sql = SQL + "CREATE QUERY lost AS SELECT count(*) AS n, window_end FROM TUMBLE(packets.late, at, '3 s');"
    job = job_of(tmp_path, sql, epochs_of(3, cuts=5, rows=120), BUCKETS)
    job.run(3)
    assert "packets.late has the time of the newest epoch" in why(str(job.checkpoint.path), "lost")


def test_a_job_of_a_punctuated_input_is_read_from_its_checkpoint(tmp_path):
    """Also of a stream that has no time column, where punctuation changes nothing."""
    sql = SQL + "CREATE STREAM beats (id BIGINT); CREATE QUERY all_beats AS SELECT id FROM beats;"
    catalog = as_read(catalog_of(sql), ("packets", "beats"))
    plan = Plan(sql, catalog, tuple(groups_of(catalog, BUCKETS)), (), BUCKETS, ("packets", "beats"))
    checkpoint = Checkpoint(tmp_path / "job")
    checkpoint.open(plan.identity()).release()
    told = checkpoint.job()
    assert told is not None
    assert plan_of(checkpoint, told).groups[0].flow.catalog.streams["packets"].progress == "punctuation"


@pytest.mark.parametrize(
    ("sql", "decision", "told"),
    [
        ("DROP QUERY nothing;", (), "nothing does not exist"),
        ("CREATE STREAM x (ts TIMESTAMP);", (), "a live job can create, replace and drop queries"),
        ("", ("strategy", "traffic", "fifo"), "fifo"),
        ("", ("pause", "other"), "query other does not exist; the queries are: traffic, large, total"),
        ("SELEC", (), "SELEC"),
    ],
)
def test_a_bad_change_stores_nothing(tmp_path, sql, decision, told):
    job = begun(tmp_path, 1)
    with pytest.raises(Refuse, match=told):
        ask(str(job.checkpoint.path), sql, decision)
    assert job.checkpoint.changes() == []


def test_other_folders_and_ended_jobs_are_refused(tmp_path):
    with pytest.raises(Refuse, match="is not a checkpoint of a live job"):
        ask(str(tmp_path / "none"), MORE)
    job = begun(tmp_path)
    job.run(ended=True)
    with pytest.raises(Refuse, match="has ended"):
        ask(str(job.checkpoint.path), MORE)


def test_of_two_changes_at_once_one_is_stored(tmp_path, monkeypatch):
    job = begun(tmp_path, 1)
    monkeypatch.setattr(Checkpoint, "changes", lambda _: [])
    assert change(job, MORE) == 1
    with pytest.raises(Refuse, match="at the same time"):
        change(job, PORTS)
