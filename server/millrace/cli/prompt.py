"""The interactive prompt: `millrace` without arguments, on a terminal, with a server running.

A statement ends with a semicolon and may take several lines. A line that starts with a backslash is a shortcut, or any
other command of `millrace`. Completion knows SQL words, commands, and the names of the server's objects.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.cli import admin, show
from millrace.cli.commands import COMMANDS
from millrace.cli.link import Link
from millrace.cli.names import names_of
from millrace.protocol.admin.queries import QueryView
from millrace.protocol.admin.server import ServerView
from millrace.protocol.admin.streams import StreamView
from millrace.protocol.errors import MillraceError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

HISTORY_FILE: Final = "millrace/history"
# Words that start a statement, and those that shape the rest of it; the server's error messages know them all.
STATEMENTS: Final = (
    *("CREATE STREAM", "CREATE QUERY", "CREATE SINK", "CREATE OR REPLACE QUERY", "ALTER STREAM", "DROP STREAM"),
    *("DROP QUERY", "DROP SINK", "CREATE OR REPLACE STREAM", "INSERT INTO", "SHOW STREAMS", "SHOW QUERIES"),
    *("SHOW SINKS", "SHOW COMPONENTS", "SHOW OPERATORS", "SHOW CREATE STREAM", "SHOW CREATE QUERY", "DESCRIBE"),
    *("EXPLAIN", "EXPLAIN ANALYZE", "SELECT", "WITH"),
)
CLAUSES: Final = (
    *("FROM", "WHERE", "GROUP BY", "HAVING", "JOIN", "LEFT JOIN", "FULL JOIN", "JOIN LATEST", "UNION ALL"),
    *("FOLLOWED BY", "WITHIN", "LATEST", "TUMBLE(", "HOP(", "SESSION(", "INTERVAL", "WITH (", "order = 'event'"),
    *(
        "timestamps = 'external'",
        "time = 'ts'",
        "time_unit = 'ms'",
        "AS",
        "BIGINT",
        "DOUBLE",
        "TEXT",
        "TIMESTAMP",
        "BOOLEAN",
        "BYTES",
    ),
    *("BETWEEN", "AND", "OR", "NOT", "CASE", "CAST(", "count(*)", "sum(", "avg(", "min(", "max(", "first(", "last("),
)


class Shortcut(NamedTuple):
    """`expand` turns the words after it into a command line of `millrace`."""

    name: str
    arguments: str
    summary: str
    expand: Callable[[Sequence[str]], Sequence[Sequence[str]]]


def _describe(words: Sequence[str]) -> Sequence[Sequence[str]]:
    if not words:
        return [["stream", "list"], ["query", "list"], ["sink", "list"]]
    return [["stream|query|sink", "show", *words]]


SHORTCUTS: Final = (
    Shortcut("d", "[NAME]", "list streams, queries and sinks, or show one", _describe),
    Shortcut("t", "COMPONENT", "print a component's state table", lambda words: [["component", "table", *words]]),
    Shortcut("w", "QUERY", "say what a query waits for", lambda words: [["why", *words]]),
    Shortcut("x", "QUERY", "explain a running query", lambda words: [["explain", *words]]),
    Shortcut("i", "FILE.sql", "apply a file of statements", lambda words: [["apply", *words]]),
)

HELP: Final = (
    "SQL statements end with a semicolon. Ctrl-C clears the line, or ends a running command. Ctrl-D leaves.\n"
    + "".join(f"  \\{shortcut.name + ' ' + shortcut.arguments:<14} {shortcut.summary}\n" for shortcut in SHORTCUTS)
    + "  \\COMMAND ...    any command of millrace, such as \\tail diary or \\top\n"
    "  \\?  \\q          this help; leave"
)


def run_prompt(link: Link) -> None:
    """Read statements and shortcuts until Ctrl-D."""
    version = link.view(ServerView, "server").version
    show.out(f"Millrace {version} at {link.admin}. \\? explains the shortcuts, Ctrl-D leaves.")
    session = _session(link)
    while True:
        try:
            text = session.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        try:
            if execute(link, text):
                return
        except MillraceError as error:
            show.tell(error.text)
        except KeyboardInterrupt:
            show.tell("interrupted")


def execute(link: Link, text: str) -> bool:
    """Run a typed line; True if it ends the prompt."""
    text = text.strip()
    if text in ("\\q", "exit", "quit", "exit;", "quit;"):
        return True
    if text in ("\\?", "\\h", "help", "help;"):
        show.out(HELP)
    elif text.startswith("\\"):
        for arguments in _command_lines(link, text[1:]):
            _run_command(arguments)
    elif text:
        admin.run_statements(link, text)
    return False


def _command_lines(link: Link, line: str) -> Iterator[Sequence[str]]:
    try:
        word, *rest = shlex.split(line) or [""]
    except ValueError as error:
        raise MillraceError(f"{error}: close the quotation") from None
    for shortcut in SHORTCUTS:
        if shortcut.name == word:
            for arguments in shortcut.expand(rest):
                yield [_kind_of(link, rest[0]), *arguments[1:]] if "|" in arguments[0] else arguments
            return
    if word not in {command.path.split()[0] for command in COMMANDS}:
        raise MillraceError(f"\\{word} is neither a shortcut nor a command of millrace; \\? lists them")
    yield [word, *rest]


def _kind_of(link: Link, name: str) -> str:
    for kind, plural in (("stream", "streams"), ("query", "queries"), ("sink", "sinks")):
        if name in names_of(link, plural):
            return kind
    raise MillraceError(f"no stream, query or sink is called {name}; \\d lists them")


def _run_command(arguments: Sequence[str]) -> None:
    """A command of `millrace`. It finds the server as the prompt does; its usage errors do not end the prompt."""
    from millrace.cli.main import application

    with contextlib.suppress(SystemExit):
        application(arguments)(list(arguments), prog_name="millrace")


# -- the line editor ---------------------------------------------------------------------------------------------------


def is_complete(text: str) -> bool:
    """Whether Enter runs the text: a shortcut, a word that leaves, nothing, or a statement that ends with `;`."""
    stripped = text.strip()
    return not stripped or stripped.startswith("\\") or stripped in ("exit", "quit", "help") or stripped.endswith(";")


def _session(link: Link) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: Any) -> None:
        if is_complete(event.current_buffer.text):
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.insert_text("\n")

    history: History = InMemoryHistory()
    file = _history_file()
    if file is not None:
        history = FileHistory(str(file))
    return PromptSession(
        "millrace> ",
        multiline=True,
        prompt_continuation=lambda width, _number, _wrapped: "...> ".rjust(width),
        completer=_completer(link),
        complete_while_typing=False,
        history=history,
        key_bindings=keys,
    )


def _history_file() -> Path | None:
    """The history is private to the user; without a place to write, it lasts as long as the prompt."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    file = folder / HISTORY_FILE
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
    except OSError:
        return None
    return file


def candidates(before: str, names: Callable[[], Mapping[str, Sequence[str]]]) -> tuple[str, list[str]]:
    """The word before the cursor, and the words that may complete it."""
    line = before.rpartition("\n")[2]
    word = line.rpartition(" ")[2]
    if line.startswith("\\"):
        if " " not in line:
            words = [f"\\{shortcut.name}" for shortcut in SHORTCUTS]
            words += sorted({f"\\{command.path.split()[0]}" for command in COMMANDS})
            return word, [each for each in words if each.startswith(word)]
        verbs = [
            command.path.split()[1] for command in COMMANDS if command.path.startswith(line[1:].partition(" ")[0] + " ")
        ]
        if verbs and line.count(" ") == 1:
            return word, [verb for verb in verbs if verb.startswith(word)]
    else:
        statement = before.rpartition(";")[2].lstrip()
        starting = _matching(statement, STATEMENTS)
        if starting:
            return statement, starting
        return word, _matching(word, CLAUSES) + _named(word, names())
    return word, _named(word, names())


def _matching(word: str, phrases: Sequence[str]) -> list[str]:
    return [phrase for phrase in phrases if word and phrase.lower().startswith(word.lower())]


def _named(word: str, names: Mapping[str, Sequence[str]]) -> list[str]:
    every = {*names, *(field for fields in names.values() for field in fields)}
    return sorted(each for each in every if each.startswith(word))


def _completer(link: Link) -> Any:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    def names() -> Mapping[str, Sequence[str]]:
        """Streams and queries with their columns, components and operators; nothing if the server does not answer."""
        try:
            streams, queries = link.views(StreamView, "streams"), link.views(QueryView, "queries")
            tables: list[StreamView | QueryView] = [*streams, *queries]
            known = {table.name: [str(field[0]) for field in table.fields] for table in tables}
            return known | {name: [] for plural in ("components", "operators") for name in names_of(link, plural)}
        except MillraceError:
            return {}

    class Names(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
            word, words = candidates(document.text_before_cursor, names)
            return [Completion(each, start_position=-len(word)) for each in words]

    return Names()
