"""Limits the cost of a text of SQL before it is parsed: its length, its tokens, and its depth of nesting.

Rule: one pass of one regular expression without backtracking decides. It stops at the first token over the limit. A
refused text costs milliseconds and little memory, however long it is. An accepted text takes time in proportion to its
tokens in the parser, the binder and the planner, and its nesting fits Python's stack in all of them.

To change with this file: the terminals of `grammar.lark`. A token that is counted differently here only makes the limit
less accurate.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace.sql.errors import SqlError

# A text may have this many times the tokens of a statement by default: a file of definitions is long and flat, and only
# one of its trees is in memory at a time.
STATEMENTS: Final = 4
# No valid name or number is longer: streams and queries have at most 128 characters, a double 17 digits.
WORD: Final = 1_000
# From this many constants on, a list in IN is one token of the grammar, whose LITERALS has the same number. Here it
# counts as one for each `MEMBERS` of them, which takes as long.
LIST: Final = 32
MEMBERS: Final = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """The size limits of a text.

    characters  of the whole text
    tokens      of one statement; four constants of a list after IN are one
    depth       of parentheses, brackets, CASE and signs inside each other
    statements  times the tokens of a statement that a text may have
    """

    characters: int = 1_000_000
    tokens: int = 25_000
    depth: int = 100
    statements: int = STATEMENTS

    @property
    def all_tokens(self) -> int:
        return self.statements * self.tokens


DEFAULT: Final = Limits()
# For statements that a server has already accepted, perhaps under other limits.
KNOWN: Final = Limits(characters=2**31, tokens=2**31)

_LITERAL: Final = r"(?:-?(?:\d++(?:\.\d*+)?+|\.\d++)(?:e[+-]?\d++)?+(?![\w$.])|'(?:[^']++|'')*+'|(?:true|false|null)\b)"
_TOKEN: Final = re.compile(
    rf"""
      \s++ | --[^\n]*+ | /\*(?:[^*]++|\*(?!/))*+\*/
    | (?P<in>in\s*+\(\s*+{_LITERAL}(?:\s*+,\s*+{_LITERAL}){{{LIST - 1},}}+(?=\s*+\)))
    | (?P<sign>[-+]|not\b)
    | (?P<word>[^\W\d][\w$]*+|"(?:[^"]++|"")++"|(?:\d++(?:\.\d*+)?+|\.\d++)(?:e[+-]?\d++)?+)
    | (?P<text>'(?:[^']++|'')*+')
    | (?P<never>/\*|["'])
    | (?P<open>[(\[]) | (?P<close>[)\]]) | (?P<end>;)
    | (?P<other><>|!=|<=|>=|\|\||::|.)
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_MEMBER: Final = re.compile(_LITERAL, re.IGNORECASE)


class Piece(NamedTuple):
    """The place of a statement in the text, with the semicolon that ends it."""

    start: int
    end: int


def pieces(text: str, limits: Limits) -> Sequence[Piece]:
    """Split a text into statements. Raises SqlError at the first place that exceeds a limit."""
    if len(text) > limits.characters:
        raise SqlError(
            text,
            limits.characters,
            f"expected at most {limits.characters:,} characters of SQL, got {len(text):,}: send the statements in "
            "several requests",
        )
    return _Scan(text, limits).run()


class _Scan:
    """One pass over a text."""

    def __init__(self, text: str, limits: Limits) -> None:
        self._text = text
        self._limits = limits
        self._depth = 0
        self._signs = 0  # directly before this place
        self._tokens = 0  # of this statement
        self._found: list[Piece] = []

    def run(self) -> list[Piece]:
        start = before = 0
        most, all_tokens = self._limits.tokens, self._limits.all_tokens
        for match in _TOKEN.finditer(self._text):
            kind = match.lastgroup
            if kind is None:
                continue
            if kind == "never":
                break  # a quote or a comment without an end: the parser reports it
            self._tokens += 1 if kind != "in" else self._text.count(",", *match.span()) // MEMBERS
            if self._tokens > most or before + self._tokens > all_tokens:
                raise self._too_many(match.start(), self._tokens > most)
            if kind == "end":
                if self._tokens > 1:
                    self._found.append(Piece(start, match.end()))
                start, before = match.end(), before + self._tokens
                self._tokens = self._depth = self._signs = 0
            elif kind != "other":
                self._nest(kind, match)
            else:
                self._signs = 0
        if self._tokens or start == 0 or kind == "never":
            self._found.append(Piece(start, len(self._text)))
        return self._found

    def _nest(self, kind: str, match: re.Match[str]) -> None:
        """Update the depth of nesting with one token."""
        self._signs = self._signs + 1 if kind == "sign" else 0
        if kind == "word":
            self._check_word(match)
            word = match[0] if match.end() - match.start() <= len("case") else ""
            self._depth += {"case": 1, "end": -1}.get(word.lower(), 0)
        elif kind in ("open", "in"):
            self._depth += 1
        elif kind == "close":
            self._depth -= 1
        if self._depth + self._signs > self._limits.depth:
            raise SqlError(
                self._text,
                match.start(),
                f"expected at most {self._limits.depth} levels of nesting here: compute the inner part in a "
                "separate query, and read from it",
            )

    def _check_word(self, match: re.Match[str]) -> None:
        length = match.end() - match.start()
        if length > WORD:
            raise SqlError(
                self._text, match.start(), f"expected a name or a number of at most {WORD:,} characters, got {length:,}"
            )

    def _too_many(self, at: int, statement: bool) -> SqlError:
        if statement:
            most, what = self._limits.tokens, "a statement"
            hint = "split it, or write `x IN (1, 2, ...)` for many ORs: four constants count as one token"
        else:
            most, what = self._limits.all_tokens, "a text"
            hint = "send the statements in several requests"
        return SqlError(
            self._text,
            at,
            f"expected at most {most:,} tokens in {what}, got more: {hint}. limits.sql_tokens allows more",
        )


def members(text: str) -> Sequence[tuple[int, str]]:
    """The constants of a list, each with its offset."""
    return [(match.start(), match[0]) for match in _MEMBER.finditer(text)]
