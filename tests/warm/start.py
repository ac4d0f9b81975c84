"""Starts `millrace` in a separate process without importing it again.

Most of the time that a command takes is spent importing. One process for each of pytest's workers imports Millrace once
and forks for every command (`source.py`); a small launcher replaces the command's process (`launch.py`): it
hands over its arguments, environment, folder and descriptors, passes signals on, and ends as the command ends. A
launcher that is killed takes its command along a moment later; `serve`, which tests kill and start again, is therefore
a separate process.

A test of the start itself uses COLD.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
COLD: Final = [sys.executable, "-m", "millrace.cli.main"]


@cache
def warm() -> list[str]:
    """The words that start a command, before its arguments."""
    if not hasattr(os, "fork"):
        return COLD
    folder = tempfile.mkdtemp(prefix="millrace-warm-")
    path = f"{folder}/socket"
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MILLRACE_") or name == "MILLRACE_NO_KERNELS"
    }
    source = subprocess.Popen(
        [sys.executable, str(HERE / "source.py"), path],
        env=environment,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # signals of the terminal are for launchers
    )
    assert source.stdin
    assert source.stdout
    atexit.register(_end, source, folder)
    assert source.stdout.readline() == b"ready\n", "the process that imports Millrace for the tests does not start"
    return [sys.executable, "-I", "-S", str(HERE / "launch.py"), path]


def _end(source: subprocess.Popen[bytes], folder: str) -> None:
    source.communicate()  # the end of its input ends it
    os.rmdir(folder)
