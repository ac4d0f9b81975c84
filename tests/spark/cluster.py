"""A Spark of several processes on this machine: a master, two workers, and an executor on each, all on the loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.patience import HANG_SECONDS

HOME = Path(pyspark.__file__).parent
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_MASTER_HOST": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """The master's URL; all processes end with the block."""
    started = []
    try:
        master, log = _start(
            folder, "master", "org.apache.spark.deploy.master.Master", "--port", "0", "--webui-port", "0"
        )
        started.append(master)
        url = _said(log, r"(spark://127\.0\.0\.1:\d+)", master)
        for number in range(workers):
            flags = (
                "--cores",
                "1",
                "--memory",
                "900m",
                "--webui-port",
                "0",
                "--work-dir",
                str(folder / f"work{number}"),
            )
            worker, log = _start(folder, f"worker{number}", "org.apache.spark.deploy.worker.Worker", *flags, url)
            started.append(worker)
            _said(log, r"Successfully registered", worker)
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(HANG_SECONDS)


def _start(folder: Path, name: str, kind: str, *flags: str) -> tuple[subprocess.Popen, Path]:
    log = folder / f"{name}.log"
    # The executors of a worker import Millrace only from the shipped archive.
    environment = {**os.environ, **LOOPBACK, "SPARK_HOME": str(HOME)}
    environment.pop("PYTHONPATH", None)
    with log.open("wb") as opened:
        command = [str(HOME / "bin" / "spark-class"), kind, "--host", "127.0.0.1", *flags]
        process = subprocess.Popen(command, stdout=opened, stderr=opened, env=environment)
    return process, log


def _said(log: Path, pattern: str, process: subprocess.Popen) -> str:
    """The output of a process when it is ready."""
    until = time.monotonic() + HANG_SECONDS
    while time.monotonic() < until:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found is not None:
            return found[0]
        assert process.poll() is None, log.read_text(errors="replace")[-2_000:]
        time.sleep(0.05)
    raise AssertionError(f"{log.name}: nothing like {pattern} after {HANG_SECONDS} s")
