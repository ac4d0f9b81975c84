"""Epochs without Spark: each happens exactly once, wherever a driver dies; a checkpoint has one driver and one job."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from millrace.protocol import Refuse
from millrace.spark.checkpoint import EPOCHS, JOB, SPARK, STATES, Checkpoint, read_states
from millrace.spark.records import PartProgress
from millrace.spark.request import LiveRequest
from millrace.spark.status import parts_behind, status, verify
from tests.backfill.epochs import Read, cut, run_epochs
from tests.backfill.test_bucket import catalog_of, reads_of
from tests.depth import DEEP
from tests.spark.sparkloop import Killed, SimulatedJob, job_of, killed_at

SQL = """CREATE STREAM packets (ts TIMESTAMP, src TEXT, bytes BIGINT, port BIGINT) WITH (time = 'ts', disorder = '1 s');
    CREATE QUERY traffic AS SELECT src, sum(bytes) AS bytes, count(*) AS n, window_end
      FROM TUMBLE(packets, ts, INTERVAL '3 seconds') GROUP BY src;
    CREATE QUERY large AS SELECT ts, src, bytes FROM packets WHERE bytes > 50;
    CREATE QUERY total AS SELECT count(*) AS n, window_end FROM TUMBLE(packets, ts, INTERVAL '3 seconds');
"""
QUERIES = ("traffic", "large", "total")
BUCKETS = 3


def epochs_of(seed: int, cuts: int = 2, rows: int = 60) -> list[tuple[int, list[Read]]]:
    """Rows of two parts, some of them late, cut into epochs."""
    rng = Random(seed)
    events = []
    for number in range(rows):
        at = number * 200_000 - (rng.randrange(4_000_000) if rng.random() < 0.2 else 0)
        row = {"ts": max(at, 0), "src": rng.choice("abcdefgh"), "bytes": rng.randrange(100), "port": rng.randrange(3)}
        events.append({"stream": "packets", "tuple": row})
    reads = [
        read._replace(part=f"packets-{number}")
        for number in range(2)
        for read in reads_of(catalog_of(SQL), events[number::2])
    ]
    return cut(rng, reads, cuts)


def states_of(checkpoint: Checkpoint) -> dict[int, dict[tuple[int, int], bytes]]:
    """The states that are there, by epoch and bucket."""
    found = {}
    for number in checkpoint.commits()[-2:]:
        commit = checkpoint.commit(number)
        assert commit is not None
        found[number] = dict(read_states(checkpoint.path / STATES, commit.states))
    return found


def rows_of(out: Path) -> dict[str, Counter]:
    """The published rows of each query, with their epochs."""
    found = {}
    for query in QUERIES:
        found[query] = Counter(
            (path.name.split("-task")[0], *row.values())
            for path in sorted((out / query).glob("epoch-*.parquet"))
            for row in pq.read_table(path).to_pylist()
        )
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    job = job_of(tmp_path_factory.mktemp("undisturbed"), SQL, epochs_of(1), BUCKETS)
    job.run(ended=True)
    return job


def test_all_rows_of_all_buckets_are_published(undisturbed):
    """The same rows as from the buckets alone, and verify finds nothing."""
    outcome = run_epochs(undisturbed.plan.groups, epochs_of(1))
    published = rows_of(undisturbed.folder / "out")
    for query in QUERIES:
        assert sum(published[query].values()) == len(outcome.rows[query])
    last = undisturbed.checkpoint.last()
    assert last.totals.rows == {query: len(outcome.rows[query]) for query in QUERIES}
    assert last.totals.input == {"packets": 60}
    late = sum(count for stream, count in outcome.late.items() if stream == "packets")
    groups = len(undisturbed.plan.groups)
    assert last.totals.late["packets"] * groups == late > 0
    counts, problems = verify(str(undisturbed.checkpoint.path))
    assert problems == []
    assert counts == {
        "commits": len(undisturbed.epochs) + 1,
        "states": len(undisturbed.plan.units),
        "files": len(list((undisturbed.folder / "out").glob("*/*.parquet"))),
        "rows": sum(last.totals.rows.values()),
    }


def test_a_death_at_any_operation_loses_and_doubles_nothing(undisturbed, tmp_path):
    """Wherever the driver dies: after a new start the states are the same bytes, and the rows the same rows."""
    expected, states = rows_of(undisturbed.folder / "out"), states_of(undisturbed.checkpoint)
    for begun in (0, 2):
        before = job_of(tmp_path / "before", SQL, epochs_of(1), BUCKETS)
        before.run(begun) if begun else before.folder.mkdir()
        with killed_at(1 << 30) as operations:
            copy_of(before, tmp_path / "whole").run(begun + 1, ended=bool(begun))
        for at in range(0 if DEEP else begun % 3, len(operations), 1 if DEEP else 3):
            job = copy_of(before, tmp_path / "killed")
            with pytest.raises(Killed), killed_at(at):
                job.run(begun + 1, ended=bool(begun))
            job.tasks = 1 + at % 3
            with killed_at(1 << 30):
                job.run(ended=True)
            assert rows_of(job.folder / "out") == expected, at
            assert states_of(job.checkpoint) == states, at
            assert verify(str(job.checkpoint.path))[1] == [], at
            kept = [commit for number in states if (commit := job.checkpoint.commit(number))]
            named = {place.file for commit in kept for place in commit.states.values()}
            assert {path.name for path in (job.checkpoint.path / STATES).iterdir()} == named, (
                "no orphans, no older ones"
            )
            assert not list((job.folder / "out").glob(".staged-*/*")), "all rows are published"
        shutil.rmtree(before.folder)


def copy_of(job: SimulatedJob, folder: Path) -> SimulatedJob:
    """The same job in a copy of its folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(job.folder, folder)
    return SimulatedJob(folder, job.plan, job.epochs)


# -- one driver, one job -----------------------------------------------------------------------------------------------


def test_a_second_driver_is_refused_with_the_name_of_the_first(tmp_path):
    job = job_of(tmp_path, SQL, epochs_of(1), BUCKETS)
    with request_of_job(job).open():
        before = files_of(tmp_path)
        with pytest.raises(
            Refuse, match=rf"checkpoint {job.checkpoint.path} is in use by process {os.getpid()} on .* since"
        ):
            job.run()
        assert files_of(tmp_path) == before
    job.run(1)
    assert job.checkpoint.commits() == [0]


def test_the_lock_of_a_dead_driver_is_free(tmp_path):
    """The lock ends with the process, however that ends."""
    job = job_of(tmp_path, SQL, epochs_of(1), BUCKETS)
    job.run(1)
    hold = (
        "import sys; from pathlib import Path; from millrace.spark.lock import Lock; "
        "lock = Lock(Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold, str(job.checkpoint.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(Refuse, match=f"in use by process {other.pid} "):
            job.run()
        other.kill()
    job.run(2)
    assert job.checkpoint.commits() == [0, 1]


def test_of_two_drivers_without_a_lock_one_commits(tmp_path, monkeypatch):
    """On a file system whose locks do nothing, a commit is still created once."""
    monkeypatch.setattr("millrace.spark.lock.fcntl.flock", lambda *_: None)
    slow, fast = (job_of(tmp_path, SQL, epochs_of(1), BUCKETS) for _ in range(2))
    real = slow._execute

    def overtaken(work):
        fast.run()
        return real(work)

    slow._execute = overtaken
    with pytest.raises(Refuse, match="another driver has committed epoch 0; this driver stops"):
        slow.run()
    assert verify(str(slow.checkpoint.path))[1] == []


def request_of_job(job: SimulatedJob) -> LiveRequest:
    return LiveRequest(job.plan, {}, job.sinks, job.checkpoint)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


OTHERS = {
    "another number of buckets": (SQL, 5, "it has buckets: 3, not 5"),
    "another key": (
        SQL.replace("GROUP BY src;", "GROUP BY port;").replace("SELECT src, sum", "SELECT port, sum"),
        3,
        "has the key packets by src, not packets by port",
    ),
    "another window": (SQL.replace("3 seconds", "4 seconds"), 3, "has another plan"),
    "other queries": (SQL.replace("QUERY large", "QUERY big"), 3, "it runs large, not big"),
    "fewer queries": (SQL[: SQL.index("CREATE QUERY total")], 3, "it runs traffic, large, total"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_another_job_is_refused_and_not_touched(other, tmp_path):
    job_of(tmp_path, SQL, epochs_of(1), BUCKETS).run(1)
    before = files_of(tmp_path)
    sql, buckets, reason = OTHERS[other]
    with pytest.raises(Refuse, match=f"belongs to another job: .*{reason}.*; use a new folder, or start it as before"):
        job_of(tmp_path, sql, epochs_of(1), buckets).run()
    assert files_of(tmp_path) == before


def test_another_version_and_another_folder_are_refused(tmp_path):
    job = job_of(tmp_path, SQL, epochs_of(1), BUCKETS)
    job.run(1)
    path = job.checkpoint.path / JOB
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
    with pytest.raises(Refuse, match="has version 99, and this Millrace writes version 1: continue it with"):
        job.run()
    path.unlink()
    with pytest.raises(Refuse, match=r"the folder has other files and no job\.json"):
        job.run()
    with pytest.raises(Refuse, match="object stores are not supported"):
        Checkpoint("s3://bucket/job")


# -- folders that do not belong together, and damage -------------------------------------------------------------------


def test_a_log_of_spark_that_is_older_or_newer_is_refused(tmp_path):
    """Otherwise Spark would read rows again, or never."""
    job = job_of(tmp_path, SQL, epochs_of(1), BUCKETS)
    job.run(2)
    log = job.checkpoint.path / SPARK
    shutil.copytree(log, tmp_path / "log")
    shutil.rmtree(log)
    with pytest.raises(Refuse, match="the last commit is of epoch 1, and Spark's log ends with -1: one of its folders"):
        job.run()
    shutil.copytree(tmp_path / "log", log)
    for number in (2, 3):
        (log / "offsets" / str(number)).write_text("v1")
    with pytest.raises(Refuse, match="the last commit is of epoch 1, and Spark's log ends with 3"):
        job.run()


def test_an_epoch_that_runs_again_over_other_offsets_is_refused(tmp_path):
    job = job_of(tmp_path / "job", SQL, epochs_of(1), BUCKETS)
    job.run(1)

    class Dead(SimulatedJob):
        def _execute(self, work):
            raise Killed

    dead = Dead(job.folder, job.plan, job.epochs)
    with pytest.raises(Killed):
        dead.run(2)
    log = job.checkpoint.path / SPARK / "offsets" / "1"
    log.write_text(log.read_text() + "\n{}")
    with pytest.raises(Refuse, match="epoch 1 started with other offsets than Spark's log has"):
        job.run(2)


def test_damage_is_found(tmp_path):
    """By verify, and by the next epoch before it computes anything."""
    job = job_of(tmp_path, SQL, epochs_of(1), BUCKETS)
    job.run(2)
    assert verify(str(job.checkpoint.path))[1] == []
    state = max((job.checkpoint.path / STATES).iterdir(), key=lambda path: path.name)
    whole = state.read_bytes()
    state.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(Refuse, match=f"{state.name}: damaged at byte"):
        job.run()
    assert [problem for problem in verify(str(job.checkpoint.path))[1] if "damaged at byte" in problem]
    state.write_bytes(whole)
    published = next((job.folder / "out" / "large").iterdir())
    published.unlink()
    (job.checkpoint.path / EPOCHS / "0000000000.json").unlink()
    problems = verify(str(job.checkpoint.path))[1]
    assert any(problem.endswith(f"{published.name}: it is missing") for problem in problems)
    assert "commit 0: its epoch record is missing" in problems
    assert len(problems) == 2


def test_old_records_go_and_totals_stay(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.spark.checkpoint.KEPT", 2)
    job = job_of(tmp_path, SQL, epochs_of(1, cuts=6), BUCKETS)
    job.run(ended=True)
    assert job.checkpoint.commits() == [6, 7]
    assert len(list((job.checkpoint.path / EPOCHS).iterdir())) == 2
    assert job.checkpoint.last().totals.input == {"packets": 60}
    assert verify(str(job.checkpoint.path))[1] == []


# -- what it reports ---------------------------------------------------------------------------------------------------


def test_status_of_a_job(tmp_path):
    job = job_of(tmp_path, SQL, epochs_of(1), BUCKETS)
    with request_of_job(job).open():
        assert status(str(job.checkpoint.path))["epoch"] is None
    job.run(2)
    told, last = status(str(job.checkpoint.path)), job.checkpoint.last()
    assert (told["epoch"], told["queries"], told["ended"]) == (1, list(QUERIES), False)
    assert told["totals"] == last.totals.to_data()
    assert told["mark_us"] == last.marks["packets"]
    assert told["behind_us"] == max(last.at_us - last.marks["packets"], 0)
    assert [commit["epoch"] for commit in told["commits"]] == [0, 1]
    assert {part["part"] for part in told["parts"]} == {"packets-0", "packets-1"}
    assert min(part["behind_us"] for part in told["parts"]) == 0
    with pytest.raises(Refuse, match="is not a checkpoint of a live job"):
        status(str(tmp_path / "out"))


def test_parts_that_are_behind(tmp_path):
    """One of them has said nothing yet."""
    job = job_of(tmp_path, SQL, epochs_of(1), BUCKETS)
    job.run(1)
    last = job.checkpoint.last()
    parts = {
        "first": PartProgress(9_000_000, None, 5),
        "close": PartProgress(8_000_000, None, 5),
        "far": PartProgress(2_000_000, 7_999_999, 5),
        "silent": PartProgress(None, None, 0),
    }
    behind = parts_behind(replace(last, parts={"packets": parts}))
    assert [(part["part"], part["behind_us"]) for part in behind] == [("silent", None), ("far", 1_000_001)]
