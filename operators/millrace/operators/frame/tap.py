"""The newest rows that passed a place of the graph, for those who look at it.

Rule: a tap holds back nothing and is no part of the state: no operator, schedule, save or journal knows of it. A place
without one pays a comparison per batch.
"""

from __future__ import annotations

from collections import deque

from millrace.values.batch import Batch


class Tap:
    """The newest rows: at least `most`, if there were so many, and at most a batch more, or `most_bytes`.

    end       the number of the next row, counted by the place
    watchers  how many look at it: without one it is taken away
    """

    __slots__ = ("_batches", "_bytes", "_tuples", "end", "most", "most_bytes", "watchers")

    def __init__(self, end: int, most_bytes: int) -> None:
        self.end = end
        self.most = 0
        self.most_bytes = most_bytes
        self.watchers = 0
        self._batches: deque[tuple[int, Batch]] = deque()
        self._tuples = self._bytes = 0

    def add(self, end: int, batch: Batch) -> None:
        """Rows have passed; `end` is the number of the next one."""
        batches, count = self._batches, len(batch.ts)
        batches.append((end - count, batch))
        self.end = end
        self._tuples += count
        self._bytes += batch.weight
        while len(batches) > 1 and (self._tuples - len(batches[0][1].ts) >= self.most or self._bytes > self.most_bytes):
            _, oldest = batches.popleft()
            self._tuples -= len(oldest.ts)
            self._bytes -= oldest.weight

    def newest(self, first: int, most: int) -> list[tuple[int, Batch]]:
        """The newest rows from a number on, at most so many, oldest first: batches with the number of their first."""
        found: list[tuple[int, Batch]] = []
        for start, batch in reversed(self._batches):
            count = len(batch.ts)
            skip = max(first - start, count - most, 0)
            if skip >= count:
                break
            found.append((start + skip, batch.slice(skip, count)))
            most -= count - skip
        return found[::-1]
