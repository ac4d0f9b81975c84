"""What can follow in a text of SQL: the words that the grammar accepts there, and the names that fit its place.

Rule: the grammar decides, by its parser's state at the cursor, never a list of phrases. A new clause completes by
itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, Literal, NamedTuple

from lark import Token
from lark.exceptions import UnexpectedInput
from lark.parsers.lalr_analysis import Reduce
from lark.parsers.lalr_interactive_parser import InteractiveParser

from millrace.engine.plan import LATE
from millrace.protocol import Schema
from millrace.sql.errors import SqlError
from millrace.sql.limits import DEFAULT, WORD, Limits, pieces
from millrace.sql.options import QUERY_OPTIONS, SINK_OPTIONS, STREAM_OPTIONS, OptionKind
from millrace.sql.parser import grammar, written
from millrace.sql.planned import Catalog
from millrace.values.aggregates.registry import AGGREGATES
from millrace.values.functions import LIBRARY

Kind = Literal["keyword", "stream", "query", "sink", "column", "function", "option"]

# Items at the most: a list that a person can still scroll through.
MOST: Final = 300
# The word that the cursor is at, perhaps in quotes that are still open.
_WORD: Final = re.compile(r'"[^"]*\Z|[^\W\d][\w$]*\Z|\Z')
# A number, which a word cannot follow directly.
_NUMBER: Final = re.compile(r"[\w$]\Z")
# A comment that the cursor is in.
_COMMENT: Final = re.compile(r"--[^\n]*\Z")
# A name before a dot at the end.
_NAME: Final = re.compile(r'"(?:[^"]++|"")++"|(?<![\w$])[^\W\d][\w$]*+')
_OWNER: Final = re.compile(rf"({_NAME.pattern})\s*+\.\s*+\Z")
# The characters after the cursor that are looked at: a FROM is near.
AFTER: Final = 4_000
# Rules that read a word of the language as a name.
_NAMES: Final = frozenset(
    ("_free_word", "_any_word", "name", "column_word", "table_word", "function_word", "alias_name", "option_name")
)
_OPTIONS: Final[Mapping[str, Sequence[OptionKind]]] = {
    "STREAM": STREAM_OPTIONS,
    "QUERY": QUERY_OPTIONS,
    "SINK": SINK_OPTIONS,
}

# By the word before a name, what it names.
_OBJECTS: Final[Mapping[str, Sequence[Kind]]] = {
    "STREAM": ("stream",),
    "INTO": ("stream",),
    "QUERY": ("query",),
    "EXPLAIN": ("query",),
    "ANALYZE": ("query",),
    "FROM": ("query",),
    "SINK": ("sink",),
    "DESCRIBE": ("stream", "query", "sink"),
    "DESC": ("stream", "query", "sink"),
}


class Item(NamedTuple):
    """A text that can stand at the cursor, its kind, and a word about it."""

    text: str
    kind: Kind
    detail: str = ""


class Completion(NamedTuple):
    """The items, and where the text begins that they replace."""

    start: int
    items: Sequence[Item]


def complete(text: str, offset: int, known: Catalog, limits: Limits = DEFAULT) -> Completion:
    """What can stand at an offset of a text. Nothing in a comment or a string, and after an error."""
    before = text[:offset]
    match = _WORD.search(before)
    start = offset if match is None else match.start()
    word = before[start:].lower()
    if not word and _NUMBER.search(before):
        return Completion(start, [])
    try:
        begin = _begin(text[:start], limits)
        parser = grammar().parse_interactive(text[begin:start])
        tokens = parser.exhaust_lexer()
    except (SqlError, UnexpectedInput):
        return Completion(start, [])
    gap = text[begin + (tokens[-1].end_pos or 0) if tokens else begin : start]
    if _COMMENT.search(gap):
        return Completion(start, [])
    end = text.find(";", start, start + AFTER)
    place = _Place(parser, text[begin:start], text[begin : start + AFTER if end < 0 else end], known)
    quoted = word.startswith('"')
    found = [
        item
        for item in (*place.named(), *(() if quoted else place.keywords()))
        if item.text.lower().startswith(word) or (quoted and item.text.lower().startswith(word[1:]))
    ]
    unique = {item.text: item for item in reversed(found)}
    return Completion(start, [item for item in found if unique[item.text] is item and item.text.lower() != word][:MOST])


def _begin(text: str, limits: Limits) -> int:
    """Where the statement at the end of a text begins. Raises SqlError."""
    done = pieces(text, limits)
    if not done:
        return 0
    last = done[-1]
    return last.end if text[: last.end].endswith(";") else last.start


class _Place:
    """The cursor's place: the parser's state there, the text of the statement before it, and the whole statement."""

    def __init__(self, parser: InteractiveParser, before: str, statement: str, known: Catalog) -> None:
        self._parser = parser
        self._before = before
        self._statement = statement
        self._known = known
        self._accepts = _accepted(parser)

    def keywords(self) -> Iterator[Item]:
        """The words that the grammar accepts as more than a name."""
        for terminal in sorted(self._accepts & _keywords().keys(), key=lambda one: one.lstrip("_")):
            if "IDENTIFIER" not in self._accepts or not self._is_name(terminal):
                yield Item(_keywords()[terminal], "keyword")

    def _is_name(self, terminal: str) -> bool:
        """Whether the grammar can read a word here as nothing but a name."""
        choices: dict[str, Any] = self._after(terminal).choices()  # type: ignore[no-untyped-call]
        return all(action is Reduce and rule.origin.name in _NAMES for action, rule in choices.values())

    def _after(self, terminal: str) -> InteractiveParser:
        after: InteractiveParser = self._parser.copy()  # type: ignore[no-untyped-call]
        after.feed_token(Token(terminal, "x"))
        return after

    def named(self) -> Iterator[Item]:
        """The names that fit the place: what the grammar accepts after a name says what it names."""
        if "IDENTIFIER" not in self._accepts:
            return
        after = _accepted(self._after("IDENTIFIER"))
        owner = _OWNER.search(self._before, max(len(self._before) - WORD, 0))
        if after == {"EQUAL"}:
            yield from self._options()
        elif owner is not None:
            yield from self._parts(owner[1], "LSQB" in after)
        elif "LSQB" in after and "LPAR" in after:
            yield from self._tables()
        elif "__ANON_0" in after and "LPAR" in after:
            yield from self._columns(self._mentioned())
            yield from _functions()
        elif "COMPARISON" not in after:
            yield from self._objects()

    # -- names -----------------------------------------------------------------------------------------

    def _tables(self) -> Iterator[Item]:
        for name, stream in self._known.streams.items():
            yield Item(written(name), "stream", _described(stream.schema))
        for name, query in self._known.queries.items():
            yield Item(written(name), "query", _described(query.schema))

    def _parts(self, owner: str, table: bool) -> Iterator[Item]:
        """What follows a name and a dot: a stream's late tuples as a table, or columns."""
        name = _folded(owner)
        if table:
            if name in self._known.streams:
                yield Item(LATE.removeprefix("."), "stream", "its late tuples")
            return
        tables = self._mentioned()
        alias = rf"({_NAME.pattern})\s++(?:as\s++)?{re.escape(owner)}(?![\w$])"
        aliased = (_folded(match[1]) for match in re.finditer(alias, self._statement, re.IGNORECASE))
        wanted = name if name in tables else next((table for table in aliased if table in tables), name)
        yield from self._columns({wanted: tables[wanted]} if wanted in tables else tables)

    def _columns(self, tables: Mapping[str, Schema]) -> Iterator[Item]:
        for name, schema in tables.items():
            for field in schema:
                yield Item(written(field.name), "column", f"{field.type} of {name}")

    def _mentioned(self) -> dict[str, Schema]:
        """The tables whose names are in the statement, also after the cursor."""
        words = dict.fromkeys(_folded(match[0]) for match in _NAME.finditer(self._statement))
        known = {name: stream.schema for name, stream in self._known.streams.items()}
        known |= {name: query.schema for name, query in self._known.queries.items()}
        return {word: known[word] for word in words if word in known}

    def _options(self) -> Iterator[Item]:
        for word in _NAME.finditer(self._before):
            if (rows := _OPTIONS.get(word[0].upper())) is not None:
                for row in rows:
                    yield Item(row.name, "option", row.meaning)
                return

    def _objects(self) -> Iterator[Item]:
        """Objects of the kind that the word before the cursor names, unless it is to be a new one."""
        words = [word[0].upper() for word in _NAME.finditer(self._before)]
        words = [word for word in words if word not in ("IF", "NOT", "EXISTS")]
        if words and (words[0] != "CREATE" or words[-1] == "FROM"):
            for kind in _OBJECTS.get(words[-1], ()):
                for name in self._objects_of(kind):
                    yield Item(written(name), kind)

    def _objects_of(self, kind: Kind) -> Iterable[str]:
        known = self._known
        return known.streams if kind == "stream" else known.queries if kind == "query" else known.sinks


def _accepted(parser: InteractiveParser) -> set[str]:
    """The terminals that can be next."""
    accepted: set[str] = parser.accepts()  # type: ignore[no-untyped-call]
    return accepted


def _functions() -> Iterator[Item]:
    for library in (LIBRARY, AGGREGATES):
        for name in library.names:
            if _identifier().fullmatch(name):  # operators are functions, too
                yield Item(name, "function", "; ".join(row.key for row in library.named(name)[:3]))


def _described(schema: Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)[:200]


def _folded(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


@cache
def _identifier() -> re.Pattern[str]:
    """A name without quotes: no reserved word."""
    return re.compile(grammar().get_terminal("IDENTIFIER").pattern.value, re.IGNORECASE)


@cache
def _keywords() -> Mapping[str, str]:
    """By terminal, the word in capitals."""
    patterns = ((one.name, re.fullmatch(r"([a-z]+)\\b", one.pattern.value)) for one in grammar().terminals)
    return {name: match[1].upper() for name, match in patterns if match is not None}
