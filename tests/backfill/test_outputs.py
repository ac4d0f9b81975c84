"""A task is killed at any moment and runs again: no missing, incomplete or duplicate row, after any last step."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millrace.backfill import outputs, packing
from millrace.backfill.job import flow_of_text, job_of, write_task
from millrace.backfill.outputs import ASIDE, MANIFEST, PLAN, Destination
from millrace.backfill.running import BackfillRequest, check_asked
from millrace.backfill.splitting import Extent, plan_split
from millrace.backfill.verifying import read_backfill
from millrace.protocol import Refuse
from millrace.values.batch import Batch
from millrace.values.eventtime import MAX_TIME
from tests.backfill.local import packed

DAY = 86_400_000_000
SQL = """CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts');
SELECT k, count(*) AS n, window_end FROM TUMBLE(s, ts, INTERVAL '1 h') GROUP BY k"""
IDENTITY = {"query": "q", "sql": [SQL], "from_us": 0, "to_us": 1, "inputs": []}


class Killed(BaseException):
    """The process has ended: no later step runs."""


@pytest.fixture
def work():
    flow = flow_of_text(SQL)
    rows = [(n * DAY // 4, n % 3) for n in range(10)]
    batch = Batch.from_rows(flow.streams["s"].schema, rows, [ts for ts, _ in rows])
    split = plan_split(flow, Extent(0, rows[-1][0] + 1), mode="key", tasks=2)
    job = job_of(flow, split)
    tasks = packed(job, {"s": batch})

    def run(out: Path) -> list:
        place = Destination(out)
        if place.begun(IDENTITY) is None:
            place.begin(IDENTITY, split.to_data(), {"mode": "key", "tasks": 2})
        for number in range(split.tasks):
            if number not in place.done():
                write_task(job, number, tasks[number], str(out))
        place.finish(flow.schema)
        return sorted(map(str, read_backfill(str(out))))

    return run


def steps(monkeypatch, last: int):
    """Allow this many steps on the disk, then fail."""
    left = [last]

    def counted(function):
        def step(*arguments, **named):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return function(*arguments, **named)

        return step

    for name in ("rename", "unlink", "mkdir"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    monkeypatch.setattr(pq.ParquetWriter, "write_batch", counted(pq.ParquetWriter.write_batch))
    monkeypatch.setattr("shutil.rmtree", counted(shutil.rmtree))
    for name in ("sync_file", "sync_folder"):
        monkeypatch.setattr(outputs, name, counted(getattr(outputs, name)))
    return left


def test_killed_at_every_step(work, tmp_path):
    right = work(tmp_path / "right")
    kills = 0
    for last in range(200):
        out = tmp_path / f"out{last}"
        with pytest.MonkeyPatch.context() as patch:
            left = steps(patch, last)
            try:
                work(out)
            except Killed:
                kills += 1
            if left[0]:
                break
        assert work(out) == right
        manifest = Destination(out).manifest()
        assert manifest is not None
        files = {path.relative_to(out).as_posix() for path in out.glob("date=*/*")}
        assert files == {file["path"] for file in manifest["files"]}
        assert not (out / ASIDE).exists()
        shutil.rmtree(out)
    assert kills > 25


def test_what_is_there_is_whole_before_the_manifest_is(work, tmp_path):
    work(tmp_path)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(Refuse, match="is not finished"):
        list(read_backfill(str(tmp_path)))


@pytest.mark.parametrize("keep_folder", [True, False])
def test_what_is_given_up_leaves_nothing_behind(work, tmp_path, keep_folder):
    out = tmp_path / "out"
    work(out)
    (out / MANIFEST).unlink()
    (out / ASIDE / "00000-x").mkdir(parents=True)
    (out / f".{PLAN}.half").write_text("{")
    Destination(out).abandon(keep_folder)
    assert out.exists() is keep_folder
    assert not keep_folder or not list(out.iterdir())
    work(out)
    (out / "mine.txt").write_text("x")
    (out / MANIFEST).unlink()
    Destination(out).abandon(keep_folder)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


def asked(tmp_path, flow, **more):
    return BackfillRequest(flow, {}, str(tmp_path), **more)


def test_other_tasks_than_those_that_have_begun_are_refused(tmp_path):
    """The same flags are always accepted, even if they had no effect (one key, nothing to split)."""
    flow = flow_of_text(SQL)
    split = plan_split(flow, Extent(0, 2 * DAY), mode="key", tasks=3)
    for begun in ({"split": split.to_data(), "asked": {"mode": "time", "tasks": 8}}, {"split": split.to_data()}):
        check_asked(begun, asked(tmp_path, flow))
        check_asked(begun, asked(tmp_path, flow, mode="key", tasks=3))
        with pytest.raises(Refuse, match=r"--tasks 4: the backfill .* has 3 tasks; omit --tasks to continue it"):
            check_asked(begun, asked(tmp_path, flow, tasks=4))
    check_asked(
        {"split": split.to_data(), "asked": {"mode": "time", "tasks": 8}}, asked(tmp_path, flow, mode="time", tasks=8)
    )
    with pytest.raises(Refuse, match=r"--mode time: the backfill .* is split by key; omit --mode"):
        check_asked({"split": split.to_data()}, asked(tmp_path, flow, mode="time"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"query": "other"}, "already contains a backfill of query q, not one of query other"),
        (
            {"to_us": 2},
            "with --to 1970-01-01T00:00:00.000001Z, not one with --to 1970-01-01T00:00:00.000002Z",
        ),
        ({"to_us": MAX_TIME}, "000001Z, not one without --to"),
        ({"sql": ["SELECT 2"]}, "already contains a backfill of other statements; use another directory"),
        ({"inputs": [1]}, "already contains a backfill with other input files"),
    ],
)
def test_another_plan_is_not_mixed_in(work, tmp_path, changed, said):
    work(tmp_path)
    with pytest.raises(Refuse) as refused:
        Destination(tmp_path).begun({**IDENTITY, **changed})
    assert said in refused.value.text


def test_a_plan_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / PLAN).write_text("{")
    with pytest.raises(Refuse, match="expected a file written by a backfill"):
        Destination(tmp_path).begun(IDENTITY)


def test_tombstones_are_marked_in_both_columns(tmp_path, monkeypatch):
    """`read_backfill` returns the rows as the query has them, with the column of its schema."""
    flow = flow_of_text(
        "CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts');"
        "SELECT k, count(*) AS n FROM s GROUP BY k HAVING count(*) < 2"
    )
    batch = Batch.from_rows(flow.streams["s"].schema, [(1, 7), (2, 7)], [1, 2])
    split = plan_split(flow, Extent(0, 3), mode="auto", tasks=1)
    place = Destination(tmp_path / "out")
    place.begin(IDENTITY, split.to_data(), {"mode": "auto", "tasks": 1})
    job = job_of(flow, split)
    # A row that went into the engine together with its successor would never be emitted.
    monkeypatch.setattr(packing, "CHUNK", 1)
    (packages,) = packed(job, {"s": batch}, 1)
    write_task(job, 0, packages, str(tmp_path / "out"))
    manifest = place.finish(flow.schema)
    assert [name for name, _, _ in manifest["schema"]] == ["k", "n", "$gone", "$deleted", "__ts"]
    rows = [row for file in manifest["files"] for row in pq.read_table(tmp_path / "out" / file["path"]).to_pylist()]
    assert [row["$deleted"] for row in rows] == [row["$gone"] for row in rows]
    assert rows[-1]["$deleted"]
    assert "$deleted" not in list(read_backfill(str(tmp_path / "out")))[-1]
