"""`rate:N`: N made-up rows per second, the same for the same number each time, to try a job out.

A row's time follows from its number, and so do its values. Rows are counted from `from` on, and without it from the
epoch: a new job starts with a large number, and a job that continues has the same rows as before. Parts
share the numbers in turn: of two parts one has the even ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Self

import numpy as np

from millrace.engine.plan import StreamDefinition
from millrace.protocol import Refuse, TimestampError, Type, parse_timestamp
from millrace.spark.inputs.reader import End, Numbered, Piece, Portion, Position, refuse_option, table_of, whole_number
from millrace.values.batch import Batch, Int64s, Values, column_of

SECOND: Final = 1_000_000
# Rows that are made together.
ROWS: Final = 65_536
# The time of the first of a limited number of rows.
FIRST: Final = "2026-01-01T00:00:00Z"
# A factor that spreads numbers over all bits (the golden ratio's).
SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class RateReader(Numbered):
    """N rows per second.

    from_now  whether a new job starts with the rows of this moment
    from_us   the time of row 0
    rows      how many there are in all; None: no end
    """

    per_second: int
    from_now: bool
    from_us: int
    rows: int | None
    parts: int
    keys: int

    options: ClassVar[Mapping[str, str]] = {
        "from": FIRST,
        "rows": "5000000",
        "parts": "4",
        "keys": "65536",
    }

    @classmethod
    def parsed(cls, stream: StreamDefinition, source: str, options: Mapping[str, str], most: int | None) -> Self:
        if not source.isascii() or not source.isdigit() or not 0 < int(source) <= SECOND:
            raise Refuse(f"rate:{source}: expected rows per second from 1 to {SECOND}", code="bad_input")
        rows = whole_number(options, "rows", None)
        since = options.get("from", FIRST if rows is not None else None)
        try:
            from_us = 0 if since is None else parse_timestamp(since)
        except TimestampError:
            raise refuse_option("from", options["from"], f"a time such as {FIRST}") from None
        parts, keys = whole_number(options, "parts", 1), whole_number(options, "keys", 1_000)
        assert parts is not None
        assert keys is not None
        return cls(stream, most, int(source), since is None, from_us, rows, parts, keys)

    @property
    def identity(self) -> str:
        return f"rate:{self.per_second}?from={self.from_us}&rows={self.rows}&parts={self.parts}&keys={self.keys}"

    def check(self) -> None:
        """Nothing outside can be wrong."""

    def first(self) -> Mapping[str, Position]:
        due = self.due(time.time_ns() // 1_000 if self.from_now else self.from_us)
        return {part: end.position for part, end in due.items()}

    def look(self, parts: Mapping[str, Position]) -> dict[str, End]:
        return self.due(time.time_ns() // 1_000)

    def due(self, now_us: int) -> dict[str, End]:
        """The rows whose time has come."""
        count = max(-(-(now_us - self.from_us) * self.per_second // SECOND), 0)
        count = count if self.rows is None else min(count, self.rows)
        return {self._name(part): End((count - part + self.parts - 1) // self.parts) for part in range(self.parts)}

    def _name(self, part: int) -> str:
        return f"{self.stream.name}-{part}"

    def read(self, piece: Piece) -> Iterator[Portion]:
        part = int(piece.part.rpartition("-")[2])
        start, end = piece.rows
        for first in range(start, end, ROWS):
            numbers = np.arange(first, min(first + ROWS, end), dtype=np.int64) * self.parts + part
            yield Portion(table_of(self._made(numbers), self.stream, piece.at_us), first)

    def _made(self, numbers: Int64s) -> Batch:
        seconds, rest = np.divmod(numbers, self.per_second)
        ts: Int64s = self.from_us + seconds * SECOND + rest * SECOND // self.per_second
        columns = [
            ts if field.name == self.stream.time else self._values(field.type, numbers, at)
            for at, field in enumerate(self.stream.schema)
        ]
        return Batch(self.stream.schema, ts, columns, [None] * len(columns))

    def _values(self, kind: Type, numbers: Int64s, at: int) -> Values:
        """A column's values: one of so many keys each, in another order in each column."""
        mixed = (numbers.astype(np.uint64) + np.uint64(1)) * SPREAD * np.uint64(2 * at + 1)
        mixed ^= mixed >> np.uint64(29)
        keys: Int64s = (mixed * SPREAD >> np.uint64(20)).astype(np.int64) % self.keys
        match kind:
            case Type.DOUBLE:
                eighths: Values = keys / 8
                return eighths
            case Type.BOOLEAN:
                even: Values = keys % 2 == 0
                return even
            case Type.TEXT:
                return column_of(kind, [f"k{key}" for key in keys.tolist()])
            case Type.BYTES:
                return column_of(kind, [key.to_bytes(8, "big") for key in keys.tolist()])
            case Type.TIMESTAMP:
                return self.from_us + keys * SECOND
        return keys
