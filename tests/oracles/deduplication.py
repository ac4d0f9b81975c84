"""The first row of each key per span, by looking at all earlier kept rows again for each row."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any


def first_rows(rows: Sequence[tuple[int, Hashable, Any]], within: int) -> list[tuple[int, Any]]:
    """The times and rows that are kept of rows (time, key, row), which are in order of time."""
    kept: list[tuple[int, Hashable, Any]] = []
    for time, key, row in rows:
        if not [True for at, other, _ in kept if other == key and time - within <= at <= time]:
            kept.append((time, key, row))
    return [(time, row) for time, _, row in kept]
