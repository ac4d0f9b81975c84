"""Names and numbers as people read them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def counted(number: int, what: str) -> str:
    """So many of something: `1 row`, `2 rows`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint to end a sentence with: the name that was probably meant, or those that exist."""
    close = difflib.get_close_matches(name, known, 1)
    if close:
        return f"; did you mean {close[0]}?"
    if not known:
        return "; there are none yet"
    return f"; there {'is' if len(known) == 1 else 'are'} {', '.join(sorted(known)[:8])}"
