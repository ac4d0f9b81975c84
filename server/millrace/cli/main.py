"""The `millrace` command: dispatches arguments to one command, and turns errors into one line and an exit code.

Rule: starting is fast. The overview and the version print without typer; a command imports its own module and no other.
Exit codes: 0 done, 1 failed, 2 wrong usage, 78 wrong configuration.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from millrace.protocol.errors import MillraceError

if TYPE_CHECKING:
    from typer import Typer

EXIT_FAILED: Final = 1
EXIT_CONFIGURATION: Final = 78  # sysexits' EX_CONFIG


def main() -> None:
    """The entry point: every error a person can meet is one clear line."""
    arguments = sys.argv[1:]
    if arguments[:2] == ["complete-words", "--"]:
        from millrace.cli.completion import print_words

        print_words(arguments[2:])
        return
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if not arguments and sys.stdin.isatty() and sys.stdout.isatty() and _prompt():
        return
    if arguments in ([], ["-h"], ["--help"]):
        from millrace.cli.overview import overview

        sys.stdout.write(overview())
        return
    if arguments in (["--version"], ["-V"], ["version"]):
        from millrace.cli.release import number

        sys.stdout.write(f"millrace {number()}\n")
        return
    # typer checks arguments with pydantic, which would look through every installed package for plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Ctrl-C can arrive between the creation of a coroutine and its start.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    try:
        application(arguments)(arguments, prog_name="millrace")
    except MillraceError as error:
        _complain(error)


def _prompt() -> bool:
    """Open the prompt if a server answers at the usual place; whether one did."""
    from millrace.cli.link import Link
    from millrace.cli.prompt import run_prompt

    link = Link.from_environment()
    try:
        link.get("server")
    except MillraceError as error:
        if error.code == "unauthorised":
            _complain(error)
        return False
    run_prompt(link)
    return True


def application(arguments: Sequence[str] = ()) -> Typer:
    """The commands that these arguments may mean: one, a group's, or all of them."""
    from millrace.cli.application import assemble
    from millrace.cli.commands import COMMANDS

    words = list(arguments[:2])
    chosen = [command for command in COMMANDS if command.path.split() == words[: len(command.path.split())]]
    return assemble(chosen or [command for command in COMMANDS if command.path.split()[:1] == words[:1]] or COMMANDS)


def __getattr__(name: str) -> Any:
    """`app`: all commands, for tests and for the documents."""
    if name == "app":
        return application()
    raise AttributeError(name)


def _complain(error: MillraceError) -> None:
    from millrace.protocol.words import printable

    for line in getattr(error, "problems", None) or [error.text]:
        sys.stderr.write(f"millrace: {printable(line, lines=True)}\n")
    sys.exit(EXIT_CONFIGURATION if error.code == "configuration" else EXIT_FAILED)


if __name__ == "__main__":
    main()
