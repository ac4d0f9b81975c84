"""Helping with names that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint to end a sentence with: the name that was probably meant, or those that exist."""
    close = difflib.get_close_matches(name, known, 1)
    if close:
        return f"; did you mean {close[0]}?"
    if not known:
        return "; there are none yet"
    return f"; there {'is' if len(known) == 1 else 'are'} {', '.join(sorted(known)[:8])}"
