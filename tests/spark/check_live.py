"""`make check-spark`: a live job whose driver, JVM or workers are killed at random moments. It takes minutes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from millrace.spark.checkpoint import COMMITS, EPOCHS
from millrace.spark.status import verify
from tests.comparison import same_rows
from tests.patience import HANG_SECONDS
from tests.running import run_script
from tests.spark.test_job import BEGIN, SQL, rows_of

ROWS, MOST = 12_000, 150
# How often something is killed; each time at least one epoch has started since the last time.
KILLS = int(os.environ.get("MILLRACE_KILLS", "50"))
VICTIMS = ("all", "driver", "java", "workers")


@pytest.fixture(scope="module")
def packets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packets")
    rng = random.Random(11)
    for number in range(4):
        rows = []
        for place in range(number * ROWS // 4, (number + 1) * ROWS // 4):
            late = rng.randrange(500_000) if rng.random() < 0.1 else 0
            rows.append({"ts": BEGIN + place * 2_000 - late, "src": rng.randrange(50), "len": rng.randrange(99)})
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_killed_again_and_again(packets, tmp_path):
    """After all kills the published rows are those of `millrace run`, and the checkpoint is whole."""
    whole = tmp_path / "packets.jsonl"
    whole.write_text("".join(path.read_text() for path in sorted(packets.iterdir())))
    (tmp_path / "right").mkdir()
    right = run_script(SQL, tmp_path / "right", inputs=[("packets", str(whole))])
    (tmp_path / "q.sql").write_text(SQL)
    job = tmp_path / "job"
    command = [sys.executable, "-m", "millrace.cli.main", "spark", "run", str(tmp_path / "q.sql"), "--until-end"]
    command += ["--input", f"packets={packets}?most={MOST}", "--checkpoint", str(job), "--buckets", "4"]
    command += ["--master", "local[2]", "--conf", "spark.driver.memory=700m"]
    rng = random.Random(KILLS)
    killed = dict.fromkeys(VICTIMS, 0)
    while sum(killed.values()) < KILLS:
        victim = rng.choice(VICTIMS)
        if not run_and_kill(command, job, victim, rng):
            break
        killed[victim] += 1
    done = subprocess.run(command, capture_output=True, text=True, timeout=20 * HANG_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert verify(str(job))[1] == []
    for name in ("talkers", "total"):
        assert same_rows(rows_of(job / "rows" / name), right.rows[name]) is None, name
    assert sum(killed.values()) == KILLS, f"the input ended before the last kill: {killed}"


def run_and_kill(command: list[str], job: Path, victim: str, rng: random.Random) -> bool:
    """Start the job, and kill a part of it at a random moment after it has started a new epoch. False: it ended."""
    before = records(job)
    process = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and records(job) == before:
        time.sleep(0.005)
    moment = time.monotonic() + rng.uniform(0, 1.5)
    while process.poll() is None and time.monotonic() < moment:
        time.sleep(0.005)
    if process.poll() is not None:
        _, errors = process.communicate()
        assert process.returncode == 0, errors[-3_000:]
        return False
    family = descendants(process.pid)
    workers = [pid for pid in family if "pyspark" in command_of(pid) and "java" not in command_of(pid)]
    java = [pid for pid in family if "java" in command_of(pid)]
    kill({"all": [process.pid, *family], "driver": [process.pid], "java": java, "workers": workers}[victim])
    after = records(job)
    while process.poll() is None and records(job) == after:
        time.sleep(0.005)
    survived = process.poll() is None  # Spark has started other workers
    if survived:
        kill([process.pid, *descendants(process.pid)])
    _, errors = process.communicate(timeout=20 * HANG_SECONDS)
    if victim in ("java", "workers") and not survived and process.returncode:
        assert process.returncode == 1
        # Workers that lose their JVM say so themselves.
        assert victim == "java" or "Traceback" not in errors, errors[-3_000:]
        assert errors.splitlines()[-1].startswith("millrace: "), errors[-3_000:]
    return True


def kill(processes: list[int]) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def records(job: Path) -> set[str]:
    return {path.name for folder in (EPOCHS, COMMITS) for path in (job / folder).glob("[0-9]*.json")}


def descendants(pid: int) -> list[int]:
    """The processes below one, from the kernel's table."""
    found = []
    for child in children_of(pid):
        found += [child, *descendants(child)]
    return found


def children_of(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        text = ""
    if text:
        return [int(child) for child in text.split()]
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
