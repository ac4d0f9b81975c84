"""Shell completion: the scripts that a shell loads, and the words that they ask for.

Rule: completion never prints an error and never waits long: without a server it offers only commands and
options.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from millrace.cli import show
from millrace.cli.commands import COMMANDS
from millrace.cli.link import Link
from millrace.cli.names import names_of
from millrace.protocol.errors import MillraceError

# The scripts call this; `main` passes the words on before it looks for a command.
HIDDEN: Final = "complete-words"
TIMEOUT_SECONDS: Final = 1.0

BASH: Final = """_millrace() {
  local IFS=$'\\n'
  COMPREPLY=($(millrace complete-words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _millrace millrace"""
ZSH: Final = """#compdef millrace
_millrace() {
  local -a answers
  answers=("${(@f)$(millrace complete-words -- "${words[@]:1:$((CURRENT-1))}" 2>/dev/null)}")
  if [[ -n "$answers" ]]; then compadd -a answers; else _files; fi
}
compdef _millrace millrace"""
FISH: Final = "complete -c millrace -a '(millrace complete-words -- (commandline -opc)[2..] (commandline -ct))'"

_IN_COMPONENT: Final = ("components", "streams", "queries", "operators")
# Which objects an argument names: by the argument's name, or by the group for a plain NAME.
LISTS: Final = {
    "stream": ("streams",),
    "query": ("queries",),
    "sink": ("sinks",),
    "component": _IN_COMPONENT,
    "strategy": _IN_COMPONENT,
    "operator": ("operators",),
    "break": ("operators",),
}
STRATEGIES: Final = ("dfs", "bfs", "rr", "chain")


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell that loads the script.")]) -> None:
    """Print a script that completes commands, options and the names of streams, queries and operators.

    Load it in the shell's start-up file: `source <(millrace completion bash)`, `source <(millrace completion zsh)`, or
    `millrace completion fish | source`.
    """
    show.out({Shell.BASH: BASH, Shell.ZSH: ZSH, Shell.FISH: FISH}[shell])


def print_words(words: Sequence[str]) -> None:
    """A line for each possible completion of the last word."""
    with contextlib.suppress(MillraceError, BrokenPipeError):
        for word in complete(words or [""]):
            show.out(word)


def complete(words: Sequence[str]) -> Iterator[str]:
    *before, partial = words
    paths = [command.path.split() for command in COMMANDS]
    matching = [path for path in paths if path[: len(before)] == before and len(path) > len(before)]
    if matching:
        yield from sorted({path[len(before)] for path in matching if path[len(before)].startswith(partial)})
        return
    command = next(
        (command for command in COMMANDS if command.path.split() == before[: len(command.path.split())]), None
    )
    if command is None:
        return
    parameters = _parameters(command.path)
    if partial.startswith("-"):
        yield from sorted(option for parameter in parameters for option in parameter.opts if option.startswith(partial))
        return
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    position = _position(before[len(command.path.split()) :], parameters)
    if position < len(arguments):
        yield from (word for word in _values(command.path, arguments[position]) if word.startswith(partial))


def _parameters(path: str) -> Sequence[Any]:
    from millrace.cli.main import application

    node: Any = typer.main.get_command(application(path.split()))
    for word in path.split():
        node = node.get_command(None, word)
    parameters: Sequence[Any] = node.params
    return parameters


def _position(words: Sequence[str], parameters: Sequence[Any]) -> int:
    """The number of arguments before the word, without options and their values."""
    takes_value = {option for each in parameters for option in each.opts if option.startswith("-") and not each.is_flag}
    position, skip = 0, False
    for word in words:
        if skip:
            skip = False
        elif word.startswith("-") and word != "-":
            skip = word in takes_value
        else:
            position += 1
    return position


def _values(path: str, argument: Any) -> Sequence[str]:
    kind_of_value = argument.type_descriptor.annotation
    if issubclass(kind_of_value, StrEnum):
        return [choice.value for choice in kind_of_value]
    kind = argument.name if argument.name in LISTS else path.split()[0]
    if argument.name == "strategy":
        return STRATEGIES
    if argument.name not in (*LISTS, "name") or kind not in LISTS:
        return []
    link = Link.from_environment().within(TIMEOUT_SECONDS)
    return list(dict.fromkeys(name for plural in LISTS[kind] for name in names_of(link, plural)))
