"""The table of commands: complete, true to the code, and cheap to print."""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import Any

import pytest
import typer

from millrace.cli import application
from millrace.cli.commands import COMMANDS, GROUPS, SECTIONS
from millrace.cli.main import app
from millrace.cli.overview import overview

CLICK = typer.main.get_command(app)


def test_the_overview_names_every_command():
    lines = overview().splitlines()
    for command in COMMANDS:
        group, _, name = command.path.rpartition(" ")
        assert any(line.split()[:1] == [group or name] and name in line for line in lines), command.path


def test_every_group_and_section_has_commands():
    assert {command.section for command in COMMANDS} == set(SECTIONS)
    assert {command.path.split()[0] for command in COMMANDS if " " in command.path} == {group.name for group in GROUPS}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.path)
def test_the_example_of_a_command_parses(command):
    assert command.example.startswith(f"millrace {command.path}")
    words = shlex.split(
        command.example.partition(" > ")[0] if command.path in ("export", "completion") else command.example
    )[1:]
    context, node = None, CLICK
    while hasattr(node, "get_command"):
        context = node.make_context(node.name, [words[0]], parent=context, resilient_parsing=True)
        node = node.get_command(context, words.pop(0))
    node.make_context(node.name, words, parent=context)
    assert node.epilog == f"Example: {command.example}"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.path)
def test_every_command_explains_itself(command):
    assert (application.load(command).__doc__ or command.summary).strip()
    assert not command.summary.endswith(".")


def test_the_overview_and_the_version_import_no_command():
    code = (
        "import sys; sys.argv = ['millrace', *sys.argv[1:]]; from millrace.cli.main import main; main();"
        "print([name for name in sys.modules if name in ('typer', 'rich', 'json', 'asyncio', 'http.client')])"
    )
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n[]\n")


def test_arguments_are_named_after_their_objects():
    for info in COMMANDS:
        node: Any = CLICK
        for word in info.path.split():
            node = node.get_command(None, word)
        context = node.make_context(info.path, [], resilient_parsing=True)
        usage = " ".join(node.collect_usage_pieces(context))
        assert "{" not in usage, info.path
        assert "NAME" not in usage.replace("NEW_NAME", ""), info.path
        assert all(param.help for param in node.params if param.param_type_name == "option" and param.name != "help"), (
            info.path
        )


def test_help_is_a_command_too():
    def run(*arguments):
        command = [sys.executable, "-m", "millrace.cli.main", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert run("help") == run("--help") == run()
    assert run("help", "query", "pause") == run("query", "pause", "--help")
    assert run("--version") == run("version")
