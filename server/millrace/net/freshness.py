"""A sink's contract about how old its rows may get: breaches counted, with the keys that were oldest.

A row that is too old when written breaks it. A row that still waits, in the query or for the sink, breaks it as soon
as it is too old, even if it is never delivered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from millrace.protocol.admin.queries import FreshnessView, StaleRowView
from millrace.values.batch import Batch
from millrace.values.intervals import format_interval

# How many keys are reported, those with the oldest rows.
WORST: Final = 10

# The parts of a key by their columns, as JSON has them; rows without an update key are all of the key ().
Key = tuple[tuple[str, Any], ...]


class Freshness:
    """`bound_us` is how old a row may be: from the arrival of the newest tuple in it until it has been written.

    A breach belongs to one key: it starts when the first of its rows gets too old, and ends when no such row of the
    key waits any more.

    key        the columns of the rows' update key, by position; another one if the query is replaced
    breaches   how many have started
    late       rows that were too old when they were written
    waiting    the keys that wait for too long at present, with the age of the oldest that was seen of each
    last_us    when the last breach started
    worst      the keys with the greatest age seen of each, oldest first
    """

    def __init__(self, bound_us: int, key: Sequence[int] = ()) -> None:
        self.bound_us = bound_us
        self.breaches = 0
        self.late = 0
        self.waiting: dict[Key, int] = {}
        self.last_us: int | None = None
        self.worst: list[tuple[Key, int]] = []
        self.key = tuple(key)
        self._told: set[Key] = set()

    def written(self, batch: Batch, now_us: int) -> None:
        """Look at rows that have just been written."""
        found = self.overdue(batch, now_us)
        self.late += int(((now_us - batch.arrival) > self.bound_us).sum())
        self._begin(found, now_us)
        # What else waits of these keys is of the same breach: the next look says whether anything does.
        self._told.update(found)

    def look(self, now_us: int, waiting: Iterable[tuple[Key, int]]) -> None:
        """Look at what waits for too long: its keys, and ages."""
        found: dict[Key, int] = {}
        for key, age in waiting:
            found[key] = max(found.get(key, 0), age)
        self._begin(found, now_us)
        self.waiting = found
        self._told = set(found)

    def overdue(self, batch: Batch, now_us: int) -> dict[Key, int]:
        """The keys of the rows that are too old, with the greatest age of each."""
        ages = now_us - batch.arrival
        stale = np.flatnonzero(ages > self.bound_us)
        if not len(stale):
            return {}
        found: dict[Key, int] = {}
        rows = batch.take(stale)
        names = [rows.schema.fields[at].name for at in self.key]
        columns = [
            [in_json(value) if there else None for value, there in zip(values, mask, strict=True)]
            for at in self.key
            for values, mask in [(rows.columns[at].tolist(), _mask(rows, at))]
        ]
        keys = zip(*columns, strict=True) if columns else [()] * len(rows)
        for values, age in zip(keys, ages[stale].tolist(), strict=True):
            key = tuple(zip(names, values, strict=True))
            found[key] = max(found.get(key, 0), age)
        return found

    def _begin(self, found: dict[Key, int], now_us: int) -> None:
        new = sum(key not in self._told for key in found)
        if new:
            self.breaches += new
            self.last_us = now_us
        if found:
            worst = dict(self.worst)
            for key, age in sorted(found.items(), key=lambda one: -one[1])[:WORST]:
                worst[key] = max(worst.get(key, 0), age)
            self.worst = sorted(worst.items(), key=lambda one: -one[1])[:WORST]

    def view(self) -> FreshnessView:
        waiting = sorted(self.waiting.items(), key=lambda one: -one[1])[:WORST]
        return FreshnessView(
            bound_us=self.bound_us,
            breaches=self.breaches,
            late=self.late,
            last_us=self.last_us,
            worst=[StaleRowView(key=dict(key), age_us=age) for key, age in self.worst],
            waiting=len(self.waiting),
            waiting_worst=[StaleRowView(key=dict(key), age_us=age) for key, age in waiting],
        )

    def sentence(self, sink: str, *, keys: bool = True) -> str | None:
        """A sentence about the breaches, if there were any; without `keys` where data must not go, such as the log."""
        if not self.breaches:
            return None
        times = "once" if self.breaches == 1 else f"{self.breaches} times"
        said = (
            f"The sink {sink} promises rows no older than {format_interval(self.bound_us)}. It broke this {times}, "
            f"{self._whose(*self.worst[0], keys)}."
        )
        if not self.waiting:
            return said
        keyed = any(self.waiting)
        who = f"{len(self.waiting)} key{'s' * (len(self.waiting) != 1)}" if keyed else "rows"
        wait = "waits" if keyed and len(self.waiting) == 1 else "wait"
        oldest = max(self.waiting.items(), key=lambda one: one[1])
        return f"{said} Now {who} {wait} for longer than that, {self._whose(*oldest, keys)}."

    def _whose(self, key: Key, age: int, keys: bool) -> str:
        who = " of " + ", ".join(f"{name} = {value}" for name, value in key) if key and keys else ""
        return f"the oldest{who} by {format_interval(age - self.bound_us)}"


def _mask(batch: Batch, at: int) -> list[bool]:
    mask = batch.valid[at]
    return [True] * len(batch) if mask is None else mask.tolist()


def in_json(value: Any) -> Any:
    """A part of a key as JSON: bytes as SQL writes them, and doubles that JSON has no number for as text."""
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
