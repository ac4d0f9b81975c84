"""The archive imports by itself and computes what the installation computes."""

from __future__ import annotations

import pickle
import subprocess
import sys
import zipfile

from millrace.backfill.job import flow_of_text, job_of
from millrace.backfill.shipping import write_archive
from millrace.backfill.splitting import Extent, plan_split
from millrace.values.batch import Batch
from tests.backfill.local import packed

SQL = """CREATE STREAM s (ts TIMESTAMP, k BIGINT, t TEXT) WITH (time = 'ts');
SELECT k, upper(t) AS t, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '10 us') GROUP BY k, upper(t)"""
PROGRAM = """
import pickle, sys
archive, sent = sys.argv[1:]
# The installation goes: only the archive has the package, only the environment the libraries.
sys.path[:] = [archive, *(path for path in sys.path if "site-packages" in path or "lib/python" in path)]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in str(finder).lower()]
sys.modules.pop("millrace", None)
with open(sent, "rb") as file:
    job, packages = pickle.load(file)
import millrace.backfill.job, millrace.values.kernels as kernels
assert kernels.__file__.startswith(archive), kernels.__file__
assert millrace.backfill.job.__file__.startswith(archive)
assert not kernels.compiled()
task, batches = job.task(0, packages, lambda rows: None)
print([row for batch in batches for row in batch.rows()])
"""


def test_the_archive_runs_a_task(tmp_path):
    flow = flow_of_text(SQL)
    batch = Batch.from_rows(flow.streams["s"].schema, [(n, n % 2, "ab"[n % 2]) for n in range(30)], range(30))
    job = job_of(flow, plan_split(flow, Extent(0, 30)))
    (packages,) = packed(job, {"s": batch}, 8)
    here = [row for made in job.task(0, packages, lambda rows: None)[1] for row in made.rows()]
    (tmp_path / "sent").write_bytes(pickle.dumps((job, packages)))
    archive = write_archive(tmp_path / "millrace.zip")
    program = [sys.executable, "-c", PROGRAM, str(archive), str(tmp_path / "sent")]
    done = subprocess.run(program, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(here)


def test_the_archive_is_the_same_each_time_and_names_its_folders(tmp_path):
    one, other = write_archive(tmp_path / "a.zip"), write_archive(tmp_path / "b.zip")
    assert one.read_bytes() == other.read_bytes()
    names = zipfile.ZipFile(one).namelist()
    assert {"millrace/", "millrace/backfill/", "millrace/values/kernels/"} <= set(names)
    assert not any(name.endswith((".so", ".pyc")) for name in names)
    assert not any(part.is_file() for part in tmp_path.glob("*.part"))
