"""The interactive prompt: the Enter that runs a statement, completion, and each shortcut."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import sys

import pytest

from millrace.cli import prompt
from millrace.cli.link import Link
from millrace.protocol.errors import MillraceError
from tests.cli.conftest import clean_environment
from tests.patience import HANG_SECONDS

NAMES = {"door": ["ts", "visitor"], "till": ["ts", "cents"], "diary": ["ts", "what"]}


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", True),
        ("\\d", True),
        ("SELECT 1", False),
        ("SELECT 1\n  FROM s;", True),
        ("SELECT 1;  ", True),
        ("quit", True),
    ],
)
def test_enter_runs_complete_input_only(text, complete):
    assert prompt.is_complete(text) is complete


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("create o", ["CREATE OR REPLACE QUERY", "CREATE OR REPLACE STREAM"]),
        ("create q", ["CREATE QUERY"]),
        ("SELECT vis", ["visitor"]),
        ("SELECT * FROM d", ["DOUBLE", "diary", "door"]),
        ("SELECT *\n  FROM til", ["till"]),
        ("DROP QUERY diary; drop s", ["DROP STREAM", "DROP SINK"]),
        ("\\wh", ["\\why"]),
        ("\\query pa", ["pause"]),
        ("\\query pause di", ["diary"]),
        ("\\w d", ["diary", "door"]),
        ("zzz", []),
    ],
)
def test_completion(before, expected):
    assert prompt.candidates(before, lambda: NAMES)[1] == expected


def run(server, text):
    return prompt.execute(Link(server.admin), text)


def test_shortcuts_and_statements(server, capfd, monkeypatch):
    monkeypatch.setenv("MILLRACE_ADMIN", server.admin)
    run(server, "CREATE STREAM door (visitor TEXT);\nCREATE QUERY diary AS SELECT visitor FROM door;")
    assert "create query diary" in capfd.readouterr().err
    run(server, "\\d")
    listed = capfd.readouterr().out
    assert "door" in listed
    assert "diary" in listed
    run(server, "\\d diary")
    assert "SELECT visitor FROM door" in capfd.readouterr().out
    run(server, "\\w diary")
    assert capfd.readouterr().out
    run(server, "\\t door")
    assert "door.source" in capfd.readouterr().out
    run(server, "\\query list")
    assert "diary" in capfd.readouterr().out
    run(server, "\\query nonsense")
    assert "No such command" in capfd.readouterr().err
    run(server, "DROP QUERY diary; DROP STREAM door;")


def test_an_error_is_one_line(server):
    with pytest.raises(MillraceError, match="neither a shortcut nor a command"):
        run(server, "\\nonsense")
    with pytest.raises(MillraceError, match="no stream, query or sink is called nothing"):
        run(server, "\\d nothing")
    with pytest.raises(MillraceError, match="close the quotation"):
        run(server, "\\sql 'SELECT")
    with pytest.raises(MillraceError, match="line 1"):
        run(server, "SELEC 1;")


@pytest.mark.parametrize("text", ["\\q", "quit", "exit;"])
def test_leaving(text):
    assert prompt.execute(Link("127.0.0.1:1"), text)


def test_the_prompt_opens_on_a_terminal(server, tmp_path):
    """Text typed at a real terminal: a statement of two lines, then Ctrl-D."""
    outer, inner = pty.openpty()
    environment = {
        **clean_environment(),
        "MILLRACE_ADMIN": server.admin,
        "XDG_STATE_HOME": str(tmp_path),
        "TERM": "dumb",
    }
    command = [sys.executable, "-m", "millrace.cli.main"]
    process = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=environment)
    os.close(inner)
    try:
        seen = read_until(outer, r"Ctrl-D leaves.*millrace> ")
        os.write(outer, b"CREATE STREAM typed\r(k BIGINT);\r")
        seen = read_until(outer, r"create stream typed.*millrace> ")
        while process.poll() is None:  # a Ctrl-D before the prompt reads keys is lost
            with contextlib.suppress(OSError):  # how a terminal reports that its program has ended
                os.write(outer, b"\x04")
                while select.select([outer], [], [], 0.2)[0]:
                    seen += os.read(outer, 65_536).decode(errors="replace")
        assert process.returncode == 0, seen
    finally:
        process.kill()
        process.wait()
        os.close(outer)
    assert "CREATE STREAM typed" in (tmp_path / "millrace" / "history").read_text()


def read_until(terminal, pattern):
    seen = ""
    while not re.search(pattern, seen, re.DOTALL):
        ready, _, _ = select.select([terminal], [], [], HANG_SECONDS)
        assert ready, seen
        seen += os.read(terminal, 65_536).decode(errors="replace")
    return seen
