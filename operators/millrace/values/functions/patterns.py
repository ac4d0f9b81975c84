"""Regular expressions in time proportional to the text: RE2, which never backtracks.

The cost of a row is bounded: a search is bounded by the text times the pattern, all matches of a text by their
number times the text. A row above that fails. Positions in here are bytes of UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from millrace.values.functions.faults import Fault, RowFault

# RE2's own default: a pattern that needs more is refused.
MOST_MEMORY: Final = 8 << 20
# Bytes of text times instructions of the pattern: where RE2 falls back to its slowest way, about two seconds.
MOST_SEARCH: Final = 1 << 28
# Bytes of text times matches: about two seconds if every search looks at the whole rest of the text.
MOST_MATCHES: Final = 1 << 29
# Characters of a result for one row: as many bytes as a frame may have.
MOST_RESULT: Final = 1 << 24

Span = tuple[int, int]

# RE2's complaints about syntax that it lacks, and the words for a user.
_MISSING: Final = (
    (r"invalid perl operator: \(\?<?[=!]", "lookahead and lookbehind are not available"),
    (r"invalid perl operator: \(\?>|bad repetition operator", "possessive and atomic matching are not available"),
    (r"invalid escape sequence: \\[0-9]", "references back to a group are not available"),
    (r"invalid escape sequence: \\Z", r"write \z for the end of the text"),
    (r"invalid repetition size", "a repetition is at most 1000"),
    (r"pattern too large", "it is too large"),
)


class PatternFault(RowFault):
    """A pattern that is not valid, and why."""

    def __init__(self, detail: str) -> None:
        super().__init__(Fault.BAD_PATTERN)
        self.detail = detail


class Pattern:
    """A compiled pattern.

    groups   how many there are; 0 is the whole match
    """

    def __init__(self, pattern: str, flags: str = "") -> None:
        import re2  # 2 MB that a server without patterns does not need

        options = re2.Options()
        options.log_errors = False
        options.max_mem = MOST_MEMORY
        prefix, free = _prefix(flags)
        body = _without_space(pattern) if free else pattern
        try:
            compiled: Any = re2.compile(encode(f"{prefix}{body}"), options)
        except re2.error as error:
            raise PatternFault(_explained(error)) from None
        self.groups: int = compiled.groups
        self._search: Callable[[bytes, int], Any] = compiled.search
        self._most = MOST_SEARCH // compiled.programsize

    def matches(self, text: str) -> bool:
        """Whether it matches anywhere."""
        return self.search(encode(text)) is not None

    def search(self, text: bytes, at: int = 0) -> Any:
        """The first match from a byte on, or None: `span(group)` says where."""
        if len(text) > self._most:
            raise RowFault(Fault.TOO_MUCH)
        return self._search(text, at)

    def every(self, text: bytes, at: int = 0) -> Iterator[Any]:
        """All matches from a byte on; each starts where the previous one ended."""
        most = MOST_MATCHES // (len(text) + 1)
        while (match := self.search(text, at)) is not None:
            yield match
            start, end = match.span()
            at = _next_character(text, end) if start == end else end
            most -= 1
            if at > len(text):
                return
            if most < 0:
                raise RowFault(Fault.TOO_MUCH)


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def decode(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")


def _next_character(text: bytes, at: int) -> int:
    at += 1
    while at < len(text) and text[at] & 0xC0 == 0x80:
        at += 1
    return at


def _prefix(flags: str) -> tuple[str, bool]:
    """RE2's own flags, and whether blanks in the pattern count for nothing."""
    on = {"s"}
    free = False
    for flag in flags:
        match flag:
            case "i":
                on.add("i")
            case "c":
                on.discard("i")
            case "n" | "m":
                on = (on | {"m"}) - {"s"}
            case "s":
                on.add("s")
            case "x":
                free = True
            case _:
                raise RowFault(Fault.BAD_ARGUMENT)
    return (f"(?{''.join(sorted(on))})" if on else ""), free


def _without_space(pattern: str) -> str:
    """The pattern of the flag x: without blanks and comments, except in a class or after a backslash."""
    found = re.findall(r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]|#[^\n]*|\s+|.", pattern, re.DOTALL)
    return "".join(part for part in found if not part[0].isspace() and (part[0] != "#"))


def _explained(error: Exception) -> str:
    said = error.args[0] if error.args else str(error)
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    known = next((words for pattern, words in _MISSING if re.search(pattern, text)), text)
    return f"{known} (patterns have the syntax of RE2)"
