"""The output of `millrace --help`: every command by section, with no import beyond the table of commands."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.cli.commands import COMMANDS, GROUPS, SECTIONS

HEAD = """Millrace: continuous SQL queries over timestamped tuples.

Usage: millrace COMMAND [ARGUMENTS]
       millrace COMMAND --help        explains a command, with an example
"""
FOOT = """
First steps: millrace serve, then millrace apply FILE.sql, millrace feed STREAM FILE and millrace tail QUERY.
"""


def overview() -> str:
    sections = (f"\n{section}\n" + "".join(_lines(section)) for section in SECTIONS)
    return HEAD + "".join(sections) + FOOT


def _lines(section: str) -> Iterator[str]:
    """One-word commands, then one line for each group of two-word commands: `query  list|show|drop`."""
    commands = [command for command in COMMANDS if command.section == section]
    for command in commands:
        if " " not in command.path:
            yield f"  {command.path:<16} {command.summary}\n"
    for name in dict.fromkeys(command.path.split()[0] for command in commands if " " in command.path):
        verbs = [command.path.split()[1] for command in commands if command.path.startswith(f"{name} ")]
        summary = next(group.summary for group in GROUPS if group.name == name)
        yield f"  {name:<16} {summary}: {', '.join(verbs)}\n"
