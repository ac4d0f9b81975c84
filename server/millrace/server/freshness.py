"""A sink's contract about how old a row may be when it is written: breaches counted, with the keys that were oldest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from millrace.operators.batch import Batch
from millrace.operators.intervals import format_interval

# So many keys are told, those whose rows were oldest.
WORST: Final = 10


class Freshness:
    """`bound_us` is how old a row may be: from the arrival of the newest tuple in it until it has been written.

    breaches   rows that were older
    last_us    when the last of them was written
    worst      their keys with the greatest age seen of each, oldest first
    """

    def __init__(self, bound_us: int, key: Sequence[int]) -> None:
        self.bound_us = bound_us
        self.breaches = 0
        self.last_us: int | None = None
        self.worst: list[tuple[tuple[Any, ...], int]] = []
        self._key = tuple(key)
        self._names: list[str] = []

    def written(self, batch: Batch, now_us: int) -> None:
        """Look at rows that have just been written."""
        ages = now_us - batch.arrival
        stale = np.flatnonzero(ages > self.bound_us)
        if not len(stale):
            return
        self.breaches += len(stale)
        self.last_us = now_us
        self._names = [batch.schema.fields[at].name for at in self._key]
        oldest = stale[np.argsort(-ages[stale], kind="stable")][: 4 * WORST]
        found = dict(self.worst)
        for row, age in zip(batch.take(oldest).rows(), ages[oldest].tolist(), strict=True):
            key = tuple(row[at] for at in self._key)
            found[key] = max(found.get(key, 0), age)
        self.worst = sorted(found.items(), key=lambda one: -one[1])[:WORST]

    def to_data(self) -> dict[str, Any]:
        """As the API shows it."""
        keys = [
            {"key": {name: in_json(value) for name, value in zip(self._names, key, strict=True)}, "age_us": age}
            for key, age in self.worst
        ]
        return {"bound_us": self.bound_us, "breaches": self.breaches, "last_us": self.last_us, "worst": keys}

    def sentence(self, sink: str) -> str | None:
        """What is to be said of it, if it was ever broken."""
        if not self.breaches:
            return None
        key, age = self.worst[0]
        who = ", ".join(f"{name} = {value}" for name, value in zip(self._names, key, strict=True))
        whose = f", the oldest of {who}" if who else ", the oldest"
        return (
            f"The sink {sink} promises rows no older than {format_interval(self.bound_us)}: {self.breaches} were older"
            f"{whose} by {format_interval(age - self.bound_us)}."
        )


def in_json(value: Any) -> Any:
    """A part of a key as JSON: bytes as SQL writes them, and doubles that JSON has no number for as text."""
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
