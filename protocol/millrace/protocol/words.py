"""Words in messages: a received value, a count, a kind of operator.

Rule: plain text for people; programs do not parse it.
"""

from __future__ import annotations

import re
from typing import Final

# Enough of a wrong value to recognise it, and a short answer.
SHOWN_CHARACTERS: Final = 60
_JSON: Final = {None: "null", True: "true", False: "false"}

# Characters that control a terminal: control characters (C0, C1 and delete), line and paragraph separators, marks that
# change the direction of text, and halves of surrogate pairs.
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROLS_IN_LINES: Final = re.compile(_CONTROLS.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def printable(text: str, *, lines: bool = False) -> str:
    """Text of another user, such as a feed's name, safe for a terminal or a log.

    Characters that control the terminal are escaped as in JSON, `\\u001b`. `lines` keeps newlines and tabs, for text
    that the caller has laid out.
    """
    return (_CONTROLS_IN_LINES if lines else _CONTROLS).sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def spelt(value: object) -> str:
    """A received value, shortened to fit a line; null, true and false are written as in JSON."""
    text = repr(value) if value is not None and not isinstance(value, bool) else _JSON[value]
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def counted(number: int, word: str) -> str:
    """A count with its noun: 1 row, 2 rows."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def readable_bytes(size: int) -> str:
    """A size for people, with one decimal: 3.2 KiB, 512.0 MiB."""
    return f"{size / 2**20:,.1f} MiB" if size >= 2**20 else f"{size / 1024:,.1f} KiB"


def article(kind: str) -> str:
    """A kind of operator with its article: a join, an aggregate, a union."""
    return f"an {kind}" if kind[0] in "aeio" else f"a {kind}"
