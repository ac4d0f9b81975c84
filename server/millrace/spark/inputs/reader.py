"""What a stream of a live job is read from, as parts and positions in them.

A part is a sequence of rows in order: a partition of Kafka, files in order of name, an archive, a query of a server. An
offset says of every part how far it has been read. Spark logs offsets before it reads, and they are the only truth:
a reader reports nothing to the outside, and the same two offsets always yield the same rows in the same order.

Rule: `look` alone sees what is new outside. `latest` and `pieces` are functions of their arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple, Self

import pyarrow as pa

from millrace.engine.plan import StreamDefinition
from millrace.formats.arrow import to_arrow
from millrace.history.files import IMPLICIT_TIME
from millrace.protocol import Refuse
from millrace.sql import Catalog
from millrace.values.batch import Batch, constant_int64

# Rows of a stream that an epoch reads at the most, if the input does not say: about a second of work on a few cores.
MOST_ROWS: Final = 1_000_000

# A value of JSON: the number of the next row, or what else a kind of input needs.
Position = Any


@dataclass(frozen=True)
class Offset:
    """How far a stream has been read.

    of        the identity of the input: a checkpoint does not continue with another
    at        the time of the epoch, in microseconds; 0 before the first
    parts     by part, the position of the next row
    ended     the parts that had nothing more at that time
    promises  by part, the time below which none of its rows follow
    """

    of: str
    at: int
    parts: Mapping[str, Position]
    ended: tuple[str, ...] = ()
    promises: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "of": self.of,
            "at": self.at,
            "parts": self.parts,
            "ended": list(self.ended),
            "promises": self.promises,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Offset:
        return Offset(value["of"], value["at"], value["parts"], tuple(value["ended"]), value["promises"])


@dataclass(frozen=True)
class Piece:
    """The work of a task: rows of a part that follow each other, and the promise after them.

    rows     which, as the reader understands it: for numbers the first, and the first of the next piece
    promise  the time below which no rows follow; None: nothing is promised
    at_us    the time of the epoch
    silent   whether it has no rows
    """

    part: str
    rows: Any
    promise: int | None
    at_us: int
    silent: bool = False


class Portion(NamedTuple):
    """Rows of a part that follow each other, the place of the first one, and a promise about later rows.

    The table has the stream's columns, and `ts` if none of them is its time. Places rise within a part.
    """

    table: Any
    first: int
    promise: int | None = None


class End(NamedTuple):
    """Where a part ends now, and the time below which no rows follow there, if it is known."""

    position: int
    promise: int | None = None


@dataclass(frozen=True)
class Reader(ABC):
    """The input of one stream. Readers are sent to other processes: connections are opened where they are used."""

    stream: StreamDefinition
    most: int | None

    # Whether the input itself promises how far it has come, so that its rows do not move the stream's mark.
    punctuated: ClassVar[bool] = False
    # The options that an input of this kind has, with an example of each.
    options: ClassVar[Mapping[str, str]] = {}

    @classmethod
    @abstractmethod
    def parsed(cls, stream: StreamDefinition, source: str, options: Mapping[str, str], most: int | None) -> Self:
        """The reader that a text describes; Refuse if the text is wrong."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Which input it is, however it is reached."""

    @abstractmethod
    def check(self) -> None:
        """Refuse what can be seen to be wrong before anything starts."""

    @abstractmethod
    def first(self) -> Mapping[str, Position]:
        """The parts, and where each starts."""

    @abstractmethod
    def look(self, parts: Mapping[str, Position]) -> Any:
        """What there is outside now, as `advance` takes it."""

    @abstractmethod
    def advance(
        self, parts: Mapping[str, Position], seen: Any, most: int | None
    ) -> tuple[dict[str, Position], list[str], dict[str, int]]:
        """How far to read: positions, the parts that end there, and the promises there that are known."""

    @abstractmethod
    def read(self, piece: Piece) -> Iterator[Portion]:
        """The rows of a piece, in order."""

    def newest(self, seen: Any) -> dict[str, Position] | None:
        """By part, the position of its end; None if that is unknown."""
        return None

    def initial(self) -> Offset:
        return Offset(self.identity, 0, dict(self.first()))

    def latest(self, start: Offset, seen: Any, at_us: int, most: int | None) -> Offset:
        """The offset to read to; the same one if there is nothing to do.

        A part that ends promises what the stream's `max_skew` says of the clock.
        """
        if start.of != self.identity:
            raise Refuse(
                f"stream {self.stream.name}: the checkpoint has read {start.of}, and the input is {self.identity} now: "
                "continue with the former input, or start with a new checkpoint",
                code="bad_input",
            )
        at_us = max(at_us, start.at)
        parts, ended, promises = self.advance(start.parts, seen, most)
        skew = self.stream.max_skew_us
        if skew is not None and self.stream.time is not None:
            promises |= {part: max(promises.get(part, at_us - skew), at_us - skew) for part in ended}
        for part, promise in start.promises.items():  # a clock may have been set back
            promises[part] = max(promises.get(part, promise), promise)
        if start.at and parts == start.parts and promises == start.promises:
            return start
        return Offset(self.identity, at_us, parts, tuple(sorted(ended)), promises)

    @abstractmethod
    def pieces(self, start: Offset, end: Offset) -> list[Piece]:
        """One or more of each part, also of those that are silent: what they promise lets others continue."""


class Numbered(Reader):
    """A reader whose positions are numbers of rows. A part that appears later starts at 0."""

    def advance(
        self, parts: Mapping[str, Position], seen: Mapping[str, End], most: int | None
    ) -> tuple[dict[str, Position], list[str], dict[str, int]]:
        starts = {part: parts.get(part, 0) for part in {**parts, **seen}}
        ends = {part: seen[part] if part in seen else End(start) for part, start in starts.items()}
        counts = {part: max(ends[part].position - start, 0) for part, start in starts.items()}
        taken = shared(counts, most)
        ended = [part for part in seen if taken[part] == counts[part]]  # a part out of reach may have more
        promises = {part: promise for part in ended if (promise := ends[part].promise) is not None}
        return {part: start + taken[part] for part, start in starts.items()}, ended, promises

    def newest(self, seen: Mapping[str, End]) -> dict[str, Position]:
        return {part: end.position for part, end in seen.items()}

    def pieces(self, start: Offset, end: Offset) -> list[Piece]:
        return [
            Piece(part, (first, below), end.promises.get(part), end.at, silent=first == below)
            for part, below in end.parts.items()
            for first in [start.parts.get(part, 0)]
        ]


def shared(counts: Mapping[str, int], most: int | None) -> dict[str, int]:
    """How many rows of each part to take so that there are at most so many: each its share, the longest the rest."""
    total = sum(counts.values())
    if most is None or total <= most:
        return dict(counts)
    taken = {part: count * most // total for part, count in counts.items()}
    rest = most - sum(taken.values())
    for part in sorted(counts, key=lambda one: (taken[one] - counts[one], one))[:rest]:
        taken[part] += 1
    return taken


def as_read(catalog: Catalog, punctuated: Collection[str]) -> Catalog:
    """The catalog with streams as their inputs deliver them: rows of punctuated ones move no mark.

    Groups are made of this catalog.
    """
    streams = {
        name: replace(stream, progress="punctuation") if name in punctuated and stream.time is not None else stream
        for name, stream in catalog.streams.items()
    }
    return replace(catalog, streams=streams)


def punctuated(readers: Mapping[str, Reader]) -> tuple[str, ...]:
    """The streams whose inputs say how far they have come."""
    return tuple(name for name, reader in readers.items() if reader.punctuated)


def table_of(batch: Batch, stream: StreamDefinition, at_us: int) -> Any:
    """Decoded rows as a table. Rows of a stream without a time column get the epoch's time."""
    table = pa.Table.from_batches([to_arrow(batch)])
    if stream.time is None and IMPLICIT_TIME not in table.schema.names:
        times = pa.array(constant_int64(at_us, len(batch)))
        table = table.append_column(IMPLICIT_TIME, times)
    return table


def refuse_option(name: str, value: str, expected: str, code: str = "bad_input") -> Refuse:
    return Refuse(f"option {name} of an input: expected {expected}, got {value!r:.60}", code=code)


def whole_number(options: Mapping[str, str], name: str, default: int | None, least: int = 1) -> int | None:
    """An option that is a number."""
    text = options.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise refuse_option(name, text, f"a whole number of {least} or more")
    return int(text)
