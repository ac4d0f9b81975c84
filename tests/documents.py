"""Runs a page's commands as a reader would type them: in order, in one shell, against real servers on free ports.

    ```sql file=shop.sql      the block is written to that file first
    ```console                a line after `$ ` is typed, `> ` continues it; the lines that follow are expected output

In expected output the line `...` matches any number of lines, and `...` within a line any text. A command without
expected output only has to succeed. A command has to fail if and only if its expected output has a line
`millrace: ...`. The shell replaces the ports of pages (7420, 7421, and 7430, 7431 of a second server) by free ones.

    python -m tests.documents PAGE...      print the output of a page's commands
"""

from __future__ import annotations

import contextlib
import http.client
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.patience import HANG_SECONDS
from tests.warm.start import warm

FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PORTS = (7420, 7421, 7430, 7431)
SECONDS = HANG_SECONDS
END = "--- end of output:"

# netcat as the pages use it: `nc [-N] HOST PORT`.
NC = """import socket, sys, threading
at = socket.create_connection(tuple(sys.argv[-2:]))
def send():
    for line in sys.stdin.buffer:
        at.sendall(line)
    if "-N" in sys.argv:
        at.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while data := at.recv(65536):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
"""


@dataclass(frozen=True)
class File:
    """A block that the page writes to a file."""

    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command and the output that the page shows."""

    text: str
    expected: list[str]


def steps(page: str) -> Iterator[File | Command]:
    """The steps of a page, in order."""
    for language, info, body in FENCE.findall(page):
        if name := re.search(r"\bfile=(\S+)", info):
            yield File(name[1], body)
        elif language == "console":
            yield from _commands(body)


def _commands(body: str) -> Iterator[Command]:
    command: list[str] = []
    expected: list[str] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            if command:
                yield Command("\n".join(command), expected)
            command, expected = [line[2:]], []
        elif line.startswith("> ") and command and not expected:
            command.append(line[2:])
        else:
            expected.append(line)
    if command:
        yield Command("\n".join(command), expected)


def agrees(expected: list[str], got: list[str]) -> bool:
    """Whether output matches the page's."""
    if not expected:
        return not got
    if expected[0].strip() == "...":
        return any(agrees(expected[1:], got[at:]) for at in range(len(got) + 1))
    if not got:
        return False
    pattern = ".*".join(re.escape(part) for part in expected[0].split("..."))
    return re.fullmatch(pattern, got[0]) is not None and agrees(expected[1:], got[1:])


class Shell:
    """A shell in a folder, with this checkout's `millrace`, this `python` and an `nc`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
        tools = folder / ".tools"
        tools.mkdir()
        _tool(tools / "millrace", f'exec {" ".join(warm())} "$@"')
        _tool(tools / "python", f'exec {sys.executable} "$@"')
        (tools / "nc.py").write_text(NC)
        _tool(tools / "nc", f'exec {sys.executable} {tools / "nc.py"} "$@"')
        runtime = folder / ".run"  # where servers announce themselves
        runtime.mkdir(mode=0o700)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={
                **clean,
                "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
                "MILLRACE_SERVER__LISTEN": f"127.0.0.1:{self.ports[7420]}",
                "MILLRACE_SERVER__ADMIN": f"127.0.0.1:{self.ports[7421]}",
                "MILLRACE_ADMIN": f"127.0.0.1:{self.ports[7421]}",
                "XDG_RUNTIME_DIR": str(runtime),
                "COLUMNS": "120",
                "PYTHONUNBUFFERED": "1",
            },
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)  # start_new_session made it a group's leader
            self._listener.join(HANG_SECONDS)  # until no process is left that could print
            if not self._listener.is_alive():
                break
        self._process.wait(HANG_SECONDS)
        self._process.stdin.close()
        self._process.stdout.close()

    def write(self, file: File) -> None:
        path = self.folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._here(file.text))

    def type(self, command: Command) -> None:
        """Run a command and compare; an assertion shows both sides."""
        status, output = self._execute(command)
        actual = "\n".join(output)
        fails = any(line.startswith("millrace: ") for line in command.expected)
        assert (status != 0) == fails, f"$ {command.text}\n{actual}\nexit code {status}"
        if command.expected:
            expected = "\n".join(command.expected)
            assert agrees(command.expected, output), f"$ {command.text}\n{actual}\n--- the page says\n{expected}"

    def transcript(self, command: Command) -> str:
        """A command and its output, as a page would show them."""
        status, output = self._execute(command)
        return "\n".join([f"$ {command.text}", *output, *([f"(exit code {status})"] if status else [])]) + "\n"

    def _execute(self, command: Command) -> tuple[int, list[str]]:
        result = self._run(self._here(command.text))
        if "millrace serve" in command.text and command.text.rstrip().endswith("&"):
            self._wait_for_server(command.text)
        return result

    def _here(self, text: str) -> str:
        for port, free in self.ports.items():
            text = re.sub(rf"\b{port}\b", str(free), text)
        return text

    def _there(self, text: str) -> str:
        for port, free in self.ports.items():
            text = re.sub(rf"\b{free}\b", str(port), text)
        return text

    def _run(self, command: str) -> tuple[int, list[str]]:
        assert self._process.stdin
        self._process.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '\\n%s%s\\n' '{END}' $?\n")
        self._process.stdin.flush()
        output: list[str] = []
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                raise AssertionError(f"not done after {SECONDS:.0f} s: {command}\n" + "\n".join(output)) from None
            assert line is not None, f"the shell has ended: {command}\n" + "\n".join(output)
            if line.startswith(END):
                while output and not output[-1]:
                    output.pop()
                return int(line[len(END) :]), output
            output.append(self._there(line))

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _wait_for_server(self, command: str) -> None:
        port = self.ports[7431 if "7431" in command else 7421]
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
                connection.request("GET", "/-/ready")
                answer = connection.getresponse()
                ready = answer.status == 200 or b"seconds behind" in answer.read()
            except ConnectionRefusedError:
                ready = False
            except (OSError, http.client.HTTPException):
                ready = True  # it speaks TLS
            finally:
                connection.close()
            if ready:
                return
            _, running = self._run("jobs -r")
            assert any("millrace serve" in line for line in running), f"the server has ended: {command}"
            time.sleep(0.02)
        raise AssertionError(f"no server answers: {command}")


def run_page(page: Path, folder: Path, files: Path | None = None, *, show: bool = False) -> int:
    """Run a page's commands in a folder, with copies of the files in `files`; return their number.

    `show` prints transcripts instead of comparing, which helps to write a page.
    """
    if files is not None:
        shutil.copytree(files, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    count = 0
    with Shell(folder) as shell:
        for step in steps(page.read_text(encoding="utf-8")):
            if isinstance(step, File):
                shell.write(step)
            elif show:
                sys.stdout.write(shell.transcript(step))
            else:
                shell.type(step)
                count += 1
    return count


def _tool(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()


if __name__ == "__main__":
    import tempfile

    for name in sys.argv[1:]:
        page = Path(name).resolve()
        run_page(page, Path(tempfile.mkdtemp()), page.parent if page.name == "README.md" else None, show=True)
