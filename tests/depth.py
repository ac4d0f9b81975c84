"""How far a search goes: `make test` draws few examples, the same in every run; `make fuzz` draws all, new ones."""

from __future__ import annotations

import os
from typing import Final

DEEP: Final = bool(os.environ.get("MILLRACE_FUZZ"))
LEAST: Final = 20


def examples(number: int) -> int:
    """How many of so many examples this run draws."""
    return number if DEEP else min(number, max(LEAST, number // 3))
