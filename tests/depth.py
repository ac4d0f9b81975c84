"""The depth of searches: `make test` draws few examples, the same in every run; `make fuzz` draws all, new ones."""

from __future__ import annotations

import os
from typing import Final

DEEP: Final = bool(os.environ.get("MILLRACE_FUZZ"))
LEAST: Final = 20


def examples(number: int) -> int:
    """The number of examples that this run draws, of this many."""
    return number if DEEP else min(number, max(LEAST, number // 3))
