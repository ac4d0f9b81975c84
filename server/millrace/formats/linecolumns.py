"""Tuples in lines of JSON, read from their bytes straight into columns.

A kernel reads the lines that carry a tuple of a known feed with values of plain types. Every other line is left to the
ordinary way, which accepts it or says what is wrong with it: a rule of JSON that the kernel does not know costs time,
and no row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from millrace.formats.decoder import StreamDecoder, from_json
from millrace.formats.timeunits import BeyondError, micros_of
from millrace.protocol import Field, Refuse, RowError, Type
from millrace.protocol.jsonlines import MAIN_FEED
from millrace.values.batch import Batch, Bools, Int64s, Values, column_of
from millrace.values.kernels import compiled, reading
from millrace.values.texts import texts_at

# Uncompiled, the kernel takes longer than the ordinary way.
WORTHWHILE: Final = compiled()

# Feeds whose lines the kernel of a connection knows.
MOST_FEEDS: Final = 64
# Values that are read together at the most: 18 bytes each.
MOST_VALUES: Final = 1 << 20
# Bytes from which numpy counts lines: for fewer its calls take longer.
LONG: Final = 8_192
NEWLINE: Final = ord("\n")
# Types whose values stand in columns as the kernel reads them.
PLAIN: Final = (Type.BIGINT, Type.TIMESTAMP)
# In JSON a name with one of these is not spelt as it is.
ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')

_KINDS: Final = {
    Type.BIGINT: reading.INTEGER,
    Type.DOUBLE: reading.DOUBLE,
    Type.BOOLEAN: reading.BOOLEAN,
    Type.TEXT: reading.TEXT,
    Type.BYTES: reading.TEXT,
    Type.TIMESTAMP: reading.TIME,
}


def newlines(data: bytes, start: int = 0) -> int:
    """How many newlines there are from a byte on. Of many bytes numpy counts them twenty times as fast."""
    if len(data) - start < LONG:
        return data.count(b"\n", start)
    return int(np.count_nonzero(np.frombuffer(data, np.uint8)[start:] == NEWLINE))


class Tuples(NamedTuple):
    """Rows of one feed: where they belong, and the lines that they stand in."""

    stream: str
    feed: str
    batch: Batch
    lines: Int64s


class Read(NamedTuple):
    """Lines that were read together: where each starts and the last one ends, how long they are without their ends,
    their rows, and the lines left over."""

    starts: Int64s
    sizes: Int64s
    tuples: Sequence[Tuples]
    left: Sequence[int]

    def line(self, data: bytes, at: int) -> bytes:
        """A line without its end."""
        return data[self.starts[at] : self.starts[at] + self.sizes[at]]


class LineColumns:
    """Reads the tuples of one connection's lines, or of a file's."""

    def __init__(
        self, source: Callable[[str], StreamDecoder], version: Callable[[], int] = lambda: 0, *, bare: bool = False
    ) -> None:
        self._source = source
        self._version = version  # of the streams: as long as it is the one seen last, they are what they were
        self._seen = version()
        self._bare = bare
        self._known: dict[tuple[str, str], StreamDecoder] = {}
        self._feeds: list[tuple[str, str]] = []
        self._decoders: list[StreamDecoder] = []
        self._names = np.empty(0, np.uint8)
        self._table = np.zeros(2, np.int64)
        self._widest = 0

    def learn(self, stream: str, feed: str = MAIN_FEED) -> bool:
        """Read this feed's lines from now on; whether that is new."""
        if (stream, feed) in self._known or len(self._known) >= MOST_FEEDS:
            return False
        decoder = self._source(stream)
        if not WORTHWHILE or any(ESCAPED.search(name) for name in decoder.schema.names):
            return False
        self._known[stream, feed] = decoder
        self._lay_out()
        return True

    def is_current(self) -> bool:
        """Whether the streams are what they were; they may have been altered or dropped."""
        version = self._version()
        if version == self._seen:
            return True
        for (stream, _), decoder in zip(self._feeds, self._decoders, strict=True):
            if not self._is_current(stream, decoder):
                return False
        self._seen = version
        return True

    def _forget_changed(self) -> None:
        if self.is_current():
            return
        self._seen = self._version()
        self._known = {key: decoder for key, decoder in self._known.items() if self._is_current(key[0], decoder)}
        self._lay_out()

    def _is_current(self, stream: str, decoder: StreamDecoder) -> bool:
        try:
            return self._source(stream) is decoder
        except Refuse:
            return False

    def _lay_out(self) -> None:
        """Tell the kernel what it knows: see `reading.read_tuples`."""
        names = bytearray(MAIN_FEED.encode())
        places: dict[bytes, int] = {bytes(names): 0}

        def named(name: bytes) -> tuple[int, int]:
            if name not in places:
                places[name] = len(names)
                names.extend(name)
            return places[name], places[name] + len(name)

        feeds: list[int] = []
        fields: list[int] = []
        first = 2 + 6 * len(self._known)
        for (stream, feed), decoder in self._known.items():
            feeds += [*named(stream.encode()), *named(feed.encode()), first + len(fields), len(decoder.schema)]
            for position, field in enumerate(decoder.schema):
                name = named(f'{field.name}"'.encode())
                fields += [*name, _kind(decoder, position), decoder.nullable(position)]
        self._feeds, self._decoders = list(self._known), list(self._known.values())
        self._widest = max((len(decoder.schema) for decoder in self._known.values()), default=0)
        self._names = np.frombuffer(bytes(names), np.uint8)
        self._table = np.array([len(self._known), *feeds, self._widest, *fields], np.int64)

    def read_all(self, data: bytes) -> Batch | None:
        """The rows of these lines; None if there are others among them."""
        if not self._known:
            return None
        read = self.read(data)
        if read.left or len(read.tuples) != 1 or read.starts[-1] < len(data):
            return None
        return read.tuples[0].batch

    def read(self, data: bytes, start: int = 0) -> Read:
        """Read lines from this byte on, each of which ends with a newline: all of them, or a great many."""
        self._forget_changed()
        width = self._widest
        count = min(newlines(data, start), max(MOST_VALUES // max(width, 1), 1))
        numbers = np.empty(3 * count + 1 + 2 * width * count, np.int64)
        valid = np.empty(width * count, np.uint8)
        text = np.frombuffer(bytearray(data), np.uint8)
        alone = reading.read_tuples(
            data,
            text,
            start,
            count,
            self._names,
            self._table,
            self._bare,
            not _is_utf8(data),
            numbers,
            numbers.view(np.float64),
            valid,
        )
        starts, owners = numbers[: count + 1], numbers[count + 1 : 2 * count + 1]
        sizes = numbers[2 * count + 1 : 3 * count + 1]
        grid = _Grid(text, numbers[3 * count + 1 :], valid, count, width)
        if alone:
            number = owners.item(0)
            if (batch := grid.batch(self._decoders[number], None)) is not None:
                return Read(starts, sizes, (Tuples(*self._feeds[number], batch, np.arange(count)),), ())
            owners[:] = reading.UNREAD
        found = []
        for number in _in_order(owners):
            lines = (owners == number).nonzero()[0]
            if (batch := grid.batch(self._decoders[number], lines)) is not None:
                found.append(Tuples(*self._feeds[number], batch, lines))
            else:
                owners[lines] = reading.UNREAD
        return Read(starts, sizes, found, (owners == reading.UNREAD).nonzero()[0].tolist())


def _in_order(owners: Int64s) -> list[int]:
    """The feeds of lines, in the order of their first lines."""
    numbers, firsts = np.unique(owners, return_index=True)
    return [number for number in numbers[firsts.argsort()].tolist() if number >= 0]


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _kind(decoder: StreamDecoder, position: int) -> int:
    if not decoder.counts(position):
        return _KINDS[decoder.schema.fields[position].type]
    return reading.FRACTION if decoder.unit.fractions else reading.COUNT


class _Unfit(Exception):  # noqa: N818 - a signal inside this file
    """A value does not fit its field."""


class _Grid:
    """What the kernel has read of some lines: a value and a length for each field and line, and which are not null."""

    def __init__(
        self, text: npt.NDArray[np.uint8], numbers: Int64s, valid: npt.NDArray[np.uint8], count: int, width: int
    ):
        self._text = text
        self._values, self._lengths = numbers[: width * count], numbers[width * count :]
        self._valid = valid
        self._count = count
        self._nulls = valid.tobytes().find(0) >= 0

    def batch(self, decoder: StreamDecoder, lines: Int64s | None) -> Batch | None:
        """The rows of these lines, or of all; None if a value does not fit."""
        columns: list[Values] = []
        valid: list[Bools | None] = []
        try:
            for position, field in enumerate(decoder.schema.fields):
                span = slice(position * self._count, (position + 1) * self._count)
                values, mask = self._values[span], None
                if lines is not None:
                    values = values[lines]
                if self._nulls and decoder.nullable(position):
                    mask = self._valid[span].view(np.bool_)
                    mask = mask if lines is None else mask[lines]
                valid.append(None if mask is None or mask.all() else mask)
                if field.type in PLAIN and not decoder.counts(position):
                    columns.append(values)
                    continue
                lengths = self._lengths[span] if lines is None else self._lengths[span][lines]
                if decoder.counts(position):
                    columns.append(_times(decoder, values, lengths))
                else:
                    columns.append(self._column(field, values, lengths))
            return decoder.timed(columns, valid)
        except (BeyondError, RowError, _Unfit):
            return None

    def _column(self, field: Field, values: Int64s, lengths: Int64s) -> Values:
        match field.type:
            case Type.DOUBLE:
                return values.view(np.float64)
            case Type.BOOLEAN:
                return values.astype(np.bool_)
            case Type.TEXT:
                return cast(Values, texts_at(self._text, values, lengths, False))
            case Type.BYTES:
                found = [from_json(field, text) for text in texts_at(self._text, values, lengths, False).tolist()]
                if any(isinstance(value, str) for value in found):
                    raise _Unfit
                return column_of(Type.BYTES, found)
        raise AssertionError(f"no column of {field.type}")


def _times(decoder: StreamDecoder, values: Int64s, forms: Int64s) -> Values:
    """Times in another unit than microseconds, by the form of each."""
    if not forms.any():
        return micros_of(decoder.unit, values)
    times = values.copy()
    whole, fractional = forms == reading.WHOLE, forms == reading.FRACTIONAL
    times[whole] = micros_of(decoder.unit, values[whole])
    times[fractional] = micros_of(decoder.unit, values[fractional].view(np.float64))
    return times
