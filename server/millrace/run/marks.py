"""Chooses which operators' states a mark in the journal has digests of.

Rule: a mark takes a few milliseconds of the loop at the most, so each has only some operators, in turn. Of an operator
with a large state, or one that has turned out to take long, it has the counts alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from millrace.engine.digests import ENGINE, Digest, digest, size_of
from millrace.engine.engine import Engine

# Operators of one mark: one without state takes about 20 microseconds.
OPERATORS: Final = 100
# Bytes of saved states in one mark: about a millisecond.
BYTES: Final = 2**20
# An operator that takes longer than this is not digested as a whole again.
DEAR_SECONDS: Final = 0.002


class Marks:
    def __init__(self, engine: Engine, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine = engine
        self._clock = clock
        self._next = 0
        self._dear: set[str] = set()

    def take(self) -> list[Digest]:
        """The digests of the next mark, between two steps."""
        names = list(self._engine.graph.operators)
        digests, left = [digest(self._engine, ENGINE, whole=True)], BYTES
        for _ in range(min(OPERATORS, len(names))):
            name = names[self._next % len(names)]
            size = self._size_of(name)
            whole = size <= BYTES and name not in self._dear
            if whole and size > left:
                break  # the next mark starts with it
            self._next += 1
            left -= size if whole else 0
            began = self._clock()
            digests.append(digest(self._engine, name, whole=whole))
            if whole and self._clock() - began > DEAR_SECONDS:
                self._dear.add(name)
        if names:
            self._next %= len(names)
        return digests

    def _size_of(self, name: str) -> int:
        try:
            return size_of(self._engine.graph.operators[name])
        except Exception:  # of an operator that has failed: it is left to its counts
            return BYTES + 1
