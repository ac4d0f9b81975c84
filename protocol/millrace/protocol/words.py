"""How messages spell things: a value that came, a number of things, a kind.

Rule: plain text for people; nothing reads it back.
"""

from __future__ import annotations

import json
from typing import Final

# Enough of a wrong value to recognise it, never enough to make the answer large.
SHOWN_CHARACTERS: Final = 60


def spelt(value: object) -> str:
    """A value that came: null, true and false as its sender wrote them, and no more than fits a line."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def counted(number: int, word: str) -> str:
    """So many of something: 1 row, 2 rows."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def article(kind: str) -> str:
    """A kind of operator with its article: a join, an aggregate, a union."""
    return f"an {kind}" if kind[0] in "aeio" else f"a {kind}"
