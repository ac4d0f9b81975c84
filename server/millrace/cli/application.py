"""The typer application, built from the table of commands. Only the modules of the chosen commands are imported."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperCommand

from millrace.cli import verbs
from millrace.cli.commands import GROUPS, VERB, CommandInfo
from millrace.cli.options import linked


class Command(TyperCommand):
    """A command whose usage line shows `QUERY` for a required argument, not `{QUERY}`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


def assemble(commands: Iterable[CommandInfo]) -> typer.Typer:
    application = typer.Typer(
        name="millrace",
        help="Millrace: continuous SQL queries over timestamped tuples.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    application.callback()(_no_options)
    groups: dict[str, typer.Typer] = {}
    for command in commands:
        group, _, name = command.path.rpartition(" ")
        if group and group not in groups:
            summary = next(info.summary for info in GROUPS if info.name == group)
            groups[group] = typer.Typer(help=f"{summary}.", no_args_is_help=True)
            application.add_typer(groups[group], name=group)
        target = groups[group] if group else application
        function = load(command)
        summary = f"{command.summary}."
        target.command(
            name,
            cls=Command,
            help=function.__doc__ or summary,
            short_help=summary,
            epilog=f"Example: {command.example}",
        )(function)
    return application


def load(command: CommandInfo) -> Any:
    """The command's function, with the options that lead to a server."""
    if command.code == VERB:
        return linked(verbs.function(command.path), command.path)
    module, _, name = command.code.partition(":")
    function = getattr(importlib.import_module(f"millrace.cli.{module}"), name)
    if command.options == "own":
        return function
    return linked(function, command.path, streaming=command.options == "tcp")


def _no_options() -> None:
    """Keeps the name of a single command part of the command line."""
