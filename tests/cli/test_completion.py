"""Shell completion: commands, options, and names from a running server."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from millrace.cli.completion import complete
from tests.cli.conftest import millrace


@pytest.fixture(scope="module", autouse=True)
def objects(server):
    done = server.millrace("sql", "CREATE STREAM door (k BIGINT); CREATE QUERY diary AS SELECT k FROM door WHERE k > 0")
    assert done.returncode == 0, done


@pytest.fixture(autouse=True)
def address(server, monkeypatch):
    monkeypatch.setenv("MILLRACE_ADMIN", server.admin)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["qu"], ["query"]),
        (["query", "re"], ["rename", "resume"]),
        (["why", ""], ["diary"]),
        (["why", "x"], []),
        (["feed", ""], ["door"]),
        (["query", "pause", "d"], ["diary"]),
        (["component", "table", "d"], ["door", "diary", "door.source", "diary.filter1", "diary.sink1"]),
        (["strategy", "set", "door", "b"], ["bfs"]),
        (["strategy", "set", "--operator", "diary.filter1", "door", "d"], ["dfs"]),
        (["break", "set", "diary.fil"], ["diary.filter1"]),
        (["query", "order", "diary", "s"], ["sync"]),
        (["tail", "--fr"], ["--from"]),
        (["apply", "sh"], []),
        (["nonsense", ""], []),
        ([""], None),
    ],
)
def test_words(words, expected):
    answers = list(complete(words))
    if expected is None:
        assert {"serve", "query", "why"} <= set(answers)
    else:
        assert answers == expected


def test_without_a_server_there_are_no_names_and_no_errors():
    done = millrace("complete-words", "--", "why", "", MILLRACE_ADMIN="127.0.0.1:1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_loads_the_script_and_completes(server, tmp_path):
    command = tmp_path / "millrace"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m millrace.cli.main "$@"\n')
    command.chmod(0o755)
    script = (
        f'PATH="{tmp_path}:$PATH"; export MILLRACE_ADMIN={server.admin}; source <(millrace completion bash);'
        'COMP_WORDS=(millrace why di); COMP_CWORD=2; _millrace; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "diary\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell):
    assert "complete-words --" in millrace("completion", shell).stdout
