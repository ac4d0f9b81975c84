"""How messages spell things: a value that came, a number of things, a kind.

Rule: plain text for people; nothing reads it back.
"""

from __future__ import annotations

import re
from typing import Final

# Enough of a wrong value to recognise it, never enough to make the answer large.
SHOWN_CHARACTERS: Final = 60
_JSON: Final = {None: "null", True: "true", False: "false"}

# What acts on a terminal instead of being shown: control characters (C0, C1 and delete), line and paragraph separators,
# marks that turn the direction of the text around, and halves of surrogate pairs.
_ACTS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_ACTS_IN_LINES: Final = re.compile(_ACTS.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def printable(text: str, *, lines: bool = False) -> str:
    """A text that somebody else chose, such as a feed's name, as a terminal or a log may show it.

    What would act on the terminal is escaped as in JSON, `\\u001b`. `lines` keeps ends of lines and tabs: for text that
    the caller has laid out.
    """
    return (_ACTS_IN_LINES if lines else _ACTS).sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def spelt(value: object) -> str:
    """A value that came: null, true and false as its sender wrote them, and no more than fits a line."""
    text = repr(value) if value is not None and not isinstance(value, bool) else _JSON[value]
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def counted(number: int, word: str) -> str:
    """So many of something: 1 row, 2 rows."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def article(kind: str) -> str:
    """A kind of operator with its article: a join, an aggregate, a union."""
    return f"an {kind}" if kind[0] in "aeio" else f"a {kind}"
