"""Lines of JSON that are alike, read from their bytes straight into columns.

A program writes its lines with one call of one library: they differ in their values alone. `Template.of` learns from a
line that was read by the book what stands between the values; `read` takes all further lines that are like it at once.
A line that is not alike is left to its reader's ordinary way, which reads it or says what is wrong with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from millrace.protocol import Refuse, RowError, Type
from millrace.server.source import StreamDecoder, checked_texts
from millrace.server.timeunits import BeyondError, micros_of
from millrace.values.batch import Batch, Bools, Int64s, Values
from millrace.values.kernels import compiled, reading

# Uncompiled, the kernel takes longer than the ordinary way.
WORTHWHILE: Final = compiled()

# Templates that a connection may have.
MOST: Final = 64
# Lines that are looked at together: few where many are not alike, as what was read behind such a line is read again.
WINDOW: Final = 128
LONGEST_WINDOW: Final = 8_192
# A run of fewer lines that are alike was not worth looking for.
RUN: Final = 16
LONGEST_PATIENCE: Final = 1_024
# Bytes that arrive together: of fewer the ordinary way takes less time.
WORTH_BYTES: Final = 512

_POWERS: Final = np.array(reading.POWERS)
_BLANK: Final = re.compile(rb"[ \t\r]*")
_KEY: Final = re.compile(rb'[ \t\r]*("(?:[^"\\\x00-\x1f]|\\.)*")[ \t\r]*:[ \t\r]*')
_SCALAR: Final = re.compile(rb'"(?:[^"\\\x00-\x1f]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null')
_KINDS: Final = {
    Type.BIGINT: reading.INTEGER,
    Type.DOUBLE: reading.DOUBLE,
    Type.BOOLEAN: reading.BOOLEAN,
    Type.TEXT: reading.TEXT,
    Type.TIMESTAMP: reading.TIME,
}


class Piece:
    """Whole lines as they arrived, `number` being that of the first: their bytes, and where each starts and ends."""

    __slots__ = ("array", "data", "ends", "number", "starts", "writers")

    def __init__(self, data: bytes, number: int) -> None:
        self.data = data
        self.number = number
        self.array = np.frombuffer(data, np.uint8)
        lines = data.count(b"\n")
        self.starts, self.ends = np.empty(lines, np.int64), np.empty(lines, np.int64)
        reading.find_lines(self.array, self.starts, self.ends)
        self.writers: tuple[int, Int64s] | None = None

    def length(self, lines: Int64s) -> int:
        """Bytes of these lines, without their ends."""
        return int((self.ends[lines] - self.starts[lines]).sum())

    def line(self, at: int) -> bytes:
        return self.data[self.starts[at] : self.ends[at]]


class Template:
    """What the lines of one writer have in common.

    head       what a line begins with, up to its first value
    decoder    the wrapper of the stream that the rows are for
    """

    def __init__(self, decoder: StreamDecoder, literals: Sequence[bytes], kinds: Sequence[int], fields: Sequence[int]):
        self.decoder = decoder
        self.head = literals[0]
        self._fields = fields
        self._literals = np.frombuffer(b"".join(literals), np.uint8)
        self._bounds = np.cumsum([0, *map(len, literals)], dtype=np.int64)
        self._kinds = np.array(kinds, np.int64)
        self._nullable = np.array([decoder.nullable(at) for at in fields], np.int64)

    @classmethod
    def of(cls, line: bytes, decoder: StreamDecoder, within: str | None = None) -> Template | None:
        """What a tuple's line shows of its writer; None where its like cannot be read.

        The fields of the row are those of the line's object, or of the object that this key of it holds.
        """
        places: list[tuple[str, int, int]] = []
        if not WORTHWHILE or _members(line, 0, within, places) is None or not places:
            return None
        names = decoder.schema.names
        literals, kinds, fields = [], [], []
        begin = 0
        for name, start, end in places:
            if name not in names:
                return None  # an extra field, whose values may be anything
            at = names.index(name)
            kind = _kind(decoder, at, line[start:end])
            if kind is None:
                return None
            literals.append(line[begin:start])
            kinds.append(kind)
            fields.append(at)
            begin = end
        required = {at for at in range(len(names)) if not decoder.nullable(at)}
        if len(set(fields)) < len(fields) or not required.issubset(fields):
            return None
        return cls(decoder, [*literals, line[begin:]], kinds, fields)

    def read(self, piece: Piece, starts: Int64s, ends: Int64s) -> Batch:
        """The rows of these lines up to the first that is not alike."""
        count, width = len(starts), len(self._fields)
        values = np.empty(count * width, np.int64)
        lengths, valid = np.empty(count * width, np.int64), np.empty(count * width, np.uint8)
        doubles = values.view(np.float64)
        taken = reading.read_lines(
            piece.array,
            starts,
            ends,
            self._literals,
            self._bounds,
            self._kinds,
            self._nullable,
            _POWERS,
            values,
            doubles,
            lengths,
            valid,
        )
        columns: dict[int, tuple[Values, Bools | None]] = {}
        try:
            for number, (at, kind) in enumerate(zip(self._fields, self._kinds.tolist(), strict=True)):
                span = slice(number * count, number * count + taken)
                made: Values = doubles[span] if kind == reading.DOUBLE else values[span]
                if kind == reading.TEXT:
                    made = checked_texts(piece.array, made, lengths[span], Type.TEXT)
                elif kind == reading.BOOLEAN:
                    made = made.astype(np.bool_)
                elif self.decoder.counts(at):
                    made = micros_of(self.decoder.unit, made)
                mask = None
                if self._nullable[number]:
                    mask = valid[span].view(np.bool_)
                    mask = None if mask.all() else mask
                columns[at] = made, mask
            return self.decoder.from_columns(columns, taken)
        except (BeyondError, RowError) as error:  # a time beyond event time: the rows before it, if there are any
            return self.read(piece, starts[: error.row], ends[: error.row]) if error.row else self.none
        except UnicodeDecodeError:
            return self.read(piece, starts[: taken // 2], ends[: taken // 2]) if taken > 1 else self.none

    @property
    def none(self) -> Batch:
        return Batch.empty(self.decoder.schema)


class Alike(NamedTuple):
    """Rows of lines that are alike: where they belong, and the lines' indices in their piece."""

    stream: str
    feed: str
    batch: Batch
    lines: Int64s


class Writers:
    """The templates of the lines of one connection, by what the lines begin with.

    patience   lines to read the ordinary way before templates are tried again
    """

    def __init__(self, source: Callable[[str], StreamDecoder]) -> None:
        self.patience = 1
        self._source = source
        self._known: dict[bytes, tuple[str, str, Template]] = {}
        self._version = 0
        self._window = WINDOW

    def learn(self, line: bytes, stream: str, feed: str) -> None:
        """Look at a tuple's line, which may still turn out not to fit."""
        template = Template.of(line, self._source(stream), "tuple")
        if template is not None and (template.head in self._known or len(self._known) < MOST):
            self._known[template.head] = stream, feed, template
            self._version += 1

    def read(self, piece: Piece, at: int) -> tuple[int, list[Alike]]:
        """The lines from this one on that are alike, a window of them at most, and the first line that is not read."""
        writers = self._writers(piece)[at : at + self._window]
        strange = (writers < 0).nonzero()[0]
        stop = int(strange[0]) if len(strange) else len(writers)
        known = tuple(self._known.values())
        found = []
        feeds: dict[tuple[str, str], int] = {}
        present, firsts = np.unique(writers[:stop], return_index=True)
        for number in present[firsts.argsort()].tolist():
            lines = (writers[:stop] == number).nonzero()[0] + at
            if not len(lines):
                continue
            if feeds.setdefault(known[number][:2], number) != number:
                stop = int(lines[0]) - at  # another writer of the same feed, whose rows come after these
            else:
                batch = self._read(known[number], piece, lines)
                found.append((number, batch, lines[: len(batch)]))
                if len(batch) < len(lines):
                    stop = int(lines[len(batch)]) - at
        self._adapt(stop, len(writers))
        return at + stop, [
            Alike(known[number][0], known[number][1], batch.slice(0, kept), lines[:kept])
            for number, batch, lines in found
            if (kept := int(lines.searchsorted(at + stop)))
        ]

    def _read(self, writer: tuple[str, str, Template], piece: Piece, lines: Int64s) -> Batch:
        stream, _, template = writer
        try:
            current = self._source(stream) is template.decoder
        except Refuse:
            current = False
        if not current:  # the stream was altered or dropped
            del self._known[template.head]
            self._version += 1
            return template.none
        return template.read(piece, piece.starts[lines], piece.ends[lines])

    def _adapt(self, read: int, wanted: int) -> None:
        """Look further ahead while all is alike; leave more to the ordinary way while little is."""
        if read == wanted:
            self._window = min(2 * self._window, LONGEST_WINDOW)
        else:
            self._window = max(self._window // 2, WINDOW)
        if read >= RUN:
            self.patience = 1
        else:
            self.disappoint()

    def disappoint(self) -> None:
        """It was not worth while: leave twice as many lines to the ordinary way."""
        self.patience = min(2 * self.patience, LONGEST_PATIENCE)

    def _writers(self, piece: Piece) -> Int64s:
        """By line of a piece: the number of its template, or -1."""
        if piece.writers is None or piece.writers[0] != self._version:
            found = np.full(len(piece.starts), -1, np.int64)
            if self._known:
                heads = np.frombuffer(b"".join(self._known), np.uint8)
                bounds = np.cumsum([0, *map(len, self._known)], dtype=np.int64)
                reading.find_heads(piece.array, piece.starts, piece.ends, heads, bounds, found)
            piece.writers = self._version, found
        return piece.writers[1]


def _kind(decoder: StreamDecoder, at: int, value: bytes) -> int | None:
    if not decoder.counts(at):
        return _KINDS.get(decoder.schema.fields[at].type)
    if value.startswith(b'"'):
        return None
    if value.lstrip(b"-").isdigit():
        return reading.INTEGER
    return reading.DOUBLE if decoder.unit.fractions else None


def _members(line: bytes, at: int, within: str | None, places: list[tuple[str, int, int]]) -> int | None:
    """Note where the values of an object stand, or of the object that one of its keys holds; return where it ends."""
    at = _blank(line, at)
    if line[at : at + 1] != b"{":
        return None
    at += 1
    while key := _KEY.match(line, at):
        name = json.loads(key[1])
        at = key.end()
        if name == within:
            end = _members(line, at, None, places)
        else:
            value = _SCALAR.match(line, at)
            end = None if value is None else value.end()
            if end is not None and within is None:
                places.append((name, at, end))
        if end is None:
            return None
        at = _blank(line, end)
        if line[at : at + 1] != b",":
            break
        at += 1
    return at + 1 if line[at : at + 1] == b"}" else None


def _blank(line: bytes, at: int) -> int:
    blank = _BLANK.match(line, at)
    assert blank is not None
    return blank.end()
