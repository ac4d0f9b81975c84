"""`make demo` works as its output and the README describe, while rows flow."""

from __future__ import annotations

import importlib
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.cli.conftest import clean_environment, millrace
from tests.patience import HANG_SECONDS

ROOT = Path(__file__).parents[2]


class Demo:
    """A running demo, and its output so far."""

    def __init__(self, folder: Path, *flags: str) -> None:
        # The server tells commands its address and token here.
        self.variables = {"XDG_RUNTIME_DIR": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "examples/demo.py", "--free-ports", *flags],
            cwd=ROOT,
            env=clean_environment(**self.variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""
        self.read_until(r"HTTP API at http://\S+")
        address = re.search(r"HTTP API at http://(\S+)", self.output)
        assert address
        self.admin = address[1]

    def read_until(self, pattern: str) -> None:
        assert self.process.stdout
        out: IO[str] = self.process.stdout
        while not re.search(pattern, self.output):
            line = out.readline()
            assert line, self.output
            self.output += line

    def millrace(self, command: str) -> str:
        """A command that the demo proposes."""
        done = millrace(*shlex.split(command)[1:], MILLRACE_ADMIN=self.admin, **self.variables)
        assert done.returncode == 0, done
        return done.stdout + done.stderr

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        out, _ = self.process.communicate(timeout=HANG_SECONDS)
        self.output += out


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    running = Demo(tmp_path_factory.mktemp("runtime"))
    running.read_until(r"\n\d\d:\d\d:\d\d\.\d+ +(office|branch)")
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.communicate()


def test_rows_and_the_scheduler(demo: Demo) -> None:
    assert f'export PATH="{Path(sys.executable).parent}:$PATH"' in demo.output
    assert f"Web page: http://{demo.admin}/" in demo.output
    proposed = re.findall(r"^  (millrace .*?)(?:   .*)?$", demo.output, re.MULTILINE)
    assert [command.split()[1] for command in proposed] == [
        *("tail", "top", "why", "component", "strategy", "apply", "apply", "doctor"),
    ]
    assert "office" in demo.millrace("millrace top --once")
    assert "alarms" in demo.millrace("millrace why alarms")
    assert "DFS-IWP" in demo.millrace("millrace component table office")
    tried = demo.millrace("millrace strategy try office bfs --for 1s --revert-if 'p99 > 100x'")
    assert re.search(r"latency p99 +[\d.]+ [um]?s +[\d.]+ [um]?s", tried), tried


def test_a_query_is_replaced_while_it_runs(demo: Demo) -> None:
    first = demo.millrace("millrace tail alarms --from 0 --limit 1")
    assert '"owner":"' in first
    change = str(ROOT / "examples" / "demo-change.sql")
    assert f"millrace apply {change}" in demo.output
    planned = demo.millrace(f"millrace apply {change} --plan")
    assert re.search(r"alarms.latest_join1 +stays +kept, \d+ tuples", planned), planned
    before = demo.millrace("millrace query show alarms --all")
    demo.millrace(f"millrace apply {change}")
    after = demo.millrace("millrace query show alarms --all")
    assert "IN (22, 23, 3389)" in after
    number = int(re.search(r"next sequence +(\d+)", before)[1])  # type: ignore[index]
    assert number >= 1
    assert f'"seq":{number}' in demo.millrace(f"millrace tail alarms --from {number} --limit 1 --json")


def test_the_end(demo: Demo) -> None:
    demo.end()
    assert demo.process.returncode == 0, demo.output
    assert "Traceback" not in demo.output
    assert re.search(r"Fed \d+ on office, \d+ on branch; \d+ rows of watch, \d+ of alarms", demo.output)


def test_a_port_in_use_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    program = importlib.import_module("demo")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert program.available(port) == 0
    assert program.available(port) == port


def test_it_ends_by_itself(tmp_path: Path) -> None:
    short = Demo(tmp_path, "--seconds", "2")
    out, _ = short.process.communicate(timeout=HANG_SECONDS)
    assert short.process.returncode == 0, out
    assert "rows of watch" in out
