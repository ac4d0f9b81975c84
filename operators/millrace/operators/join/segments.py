"""The stored tuples of one input of a join: in segments of time, found by key and time, dropped a segment at once.

A segment covers a span of time, as long as the widest interval that anybody looks at, so that a probe touches few of
them; longer when few tuples come, and an eighth of it when many do, so that what is over takes little memory. It has
room for as many tuples as the segment before it makes likely. It holds arrays only: time, arrival, the columns that the
join gives or compares, and per index the 64-bit identities of the keys with a hash over (identity, bucket of time).
Disorder between the inputs or within them makes no probe longer, and nothing is ever moved to drop what is over: a
segment goes when its newest tuple can match nothing more, and the kernel tests every tuple's time exactly.

A store of the n newest rows has segments by number of tuples instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import Any, Final, cast

import numpy as np

from millrace.operators.join import kernel as joining
from millrace.protocol import Type
from millrace.values.batch import DTYPES, TEXTS, Bools, Int64s, Values, cells, cells_of, take_times
from millrace.values.eventtime import MAX_TIME, MIN_TIME
from millrace.values.text_cells import are_cells
from millrace.values.texts import as_texts

# Tuples that a new segment has room for at least: a page or two.
SMALLEST: Final = 64
# The last segment is made longer instead of opening another one until it holds so many.
FEW: Final = 64
# A span in which more tuples come than this is divided into so many segments, or more if they would be larger than
# LARGEST.
MANY: Final = 65_536
PARTS: Final = 8
# So many tuples of a segment show how dense they are.
ENOUGH: Final = 4096
# Of tuples that come together, so many share a segment, however short the band is.
TOGETHER: Final = 1024
# A segment of so many is not made larger if those to come are all later: the next one takes them. Looking through one
# more segment costs less than the pause in which this many are hashed again.
LARGEST: Final = 262_144
# A segment with room for fewer tuples than this is not worth clearing of what is over.
WORTH_CLEARING: Final = 4096
# Pairs that are looked for at a time, unless a single tuple has more.
MOST_PAIRS: Final = 65_536
# Rows that look into a segment together.
PART: Final = 512
# Initial room for pairs.
FEW_PAIRS: Final = 256
# What an unlimited store's segment, and one of a one-sided band, spans if nothing else says so.
SOME_TIME_US: Final = 1_000_000

# Places in a stored row: its time and its arrival come first.
TIME: Final = 0
ARRIVAL: Final = 1

NOTHING: Final = np.empty(0)
NONE_UNLINKED: Final = np.empty(0, np.uint8)
NO_HINTS: Final = np.empty(0, np.uint8)
# A sieve's byte has a bit for each of so many segments, or a segment has them all.
BITS: Final = 8
ALL: Final = -1

# Keys as 64-bit identities: from their columns, and how many rows those have.
Identify = Callable[[Sequence[Values], int], Int64s]
# The same of the first row alone, from all its columns and which of them are the key.
IdentifyRow = Callable[[tuple[Values, ...], tuple[int, ...]], int]


def bits(type: Type, values: Values) -> Int64s:
    """A column as int64: equal values give equal numbers, and only of texts and bytes do others give equal ones.

    No result of a join depends on the numbers of texts: they are compared, never stored or sorted by.
    """
    if type is Type.DOUBLE:
        numbers: Int64s = (values + 0.0).view(np.int64)
        return numbers
    if values.dtype.hasobject:
        return as_texts(values, type is Type.BYTES).hashes()
    return values.astype(np.int64, copy=False)


def identity_of(types: Sequence[Type]) -> tuple[Identify, bool]:
    """How keys of these types become 64-bit identities, and whether equal identities mean equal keys."""
    if not types:
        return lambda columns, rows: np.zeros(rows, np.int64), True
    (first, *others) = types
    if not others:
        return lambda columns, rows: bits(first, columns[0]), not DTYPES[first].hasobject

    plain = all(DTYPES[type] == np.int64 for type in types)

    def identify(columns: Sequence[Values], rows: int) -> Int64s:
        states = np.zeros(rows, np.int64)
        if plain:
            joining.fold(states, list(columns))
        else:
            joining.fold(states, [bits(type, column) for type, column in zip(types, columns, strict=True)])
        return states

    return identify, False


def identity_of_row(types: Sequence[Type]) -> IdentifyRow:
    """The same for one row at a time."""
    if not types:
        return lambda columns, key: 0
    if all(DTYPES[type] == np.int64 for type in types):
        return joining.fold_row if len(types) > 1 else lambda columns, key: columns[key[0]].item(0)
    identify, _ = identity_of(types)
    return lambda columns, key: identify([columns[at] for at in key], 1).item(0)


class Strip:
    """Rows of one input, by the columns that its store keeps; a column that is not needed further on is empty."""

    __slots__ = ("arrival", "columns", "ts", "valid")

    def __init__(self, ts: Int64s, arrival: Int64s, columns: Sequence[Values], valid: Sequence[Bools | None]) -> None:
        self.ts = ts
        self.arrival = arrival
        self.columns = columns
        self.valid = valid

    def take(self, rows: Int64s, columns: Sequence[int]) -> Strip:
        """These rows, with these columns."""
        taken = [NOTHING] * len(self.columns)
        valid: list[Bools | None] = [None] * len(self.columns)
        for at in columns:
            mask = self.valid[at]
            taken[at] = self.columns[at][rows]
            valid[at] = None if mask is None else mask[rows]
        return Strip(self.ts[rows], take_times(self.arrival, rows), taken, valid)

    def part(self, start: int, stop: int) -> Strip:
        """The rows from one to another."""
        columns = [column[start:stop] for column in self.columns]
        valid = [None if mask is None else mask[start:stop] for mask in self.valid]
        return Strip(self.ts[start:stop], self.arrival[start:stop], columns, valid)


@dataclass(frozen=True, slots=True)
class Shape:
    """What is the same in all segments of a store.

    types     of the columns
    indexes   per index the columns that are its key
    span_us   how much time a segment covers at least, None for all
    shift     of the buckets in segments of several spans
    newest    how many of the newest rows count, None for all
    watched   whether it is to be known which rows have matched
    """

    types: tuple[Type, ...]
    indexes: tuple[tuple[int, ...], ...]
    span_us: int | None
    shift: int
    newest: int | None = None
    watched: bool = False
    # Where a segment's rows have the columns of eight bytes (None for others) and the keys, and how wide they are.
    places: tuple[int | None, ...] = field(init=False)
    keys: tuple[int, ...] = field(init=False)
    width: int = field(init=False)

    def __post_init__(self) -> None:
        width = ARRIVAL + 1
        places: list[int | None] = []
        for type in self.types:
            packed = DTYPES[type].itemsize == 8 and type not in TEXTS
            places.append(width if packed else None)
            width += packed
        keys = []
        for columns in self.indexes:
            types = [self.types[at] for at in columns]
            place = places[columns[0]] if columns else None
            if place is None or not identity_of(types)[1] or DTYPES[types[0]] != np.int64:
                place, width = width, width + 1
            keys.append(place)
        object.__setattr__(self, "places", tuple(places))
        object.__setattr__(self, "keys", tuple(keys))
        object.__setattr__(self, "width", width)


class Sieve:
    """Bytes per index in which up to eight large segments mark the hashes of their tuples, each in its own bit.

    A bit is never used again: the sieve goes with its last segment.
    """

    __slots__ = ("bits", "places", "room")

    def __init__(self, room: int, indexes: int) -> None:
        self.room = room
        self.bits = 0
        # As many bits per tuple as in a segment's own sieve.
        self.places = [np.zeros(2 * BITS * room, np.uint8) for _ in range(indexes)]

    @property
    def nbytes(self) -> int:
        return sum(places.nbytes for places in self.places)


class Segment:
    """The tuples of a span of time, `start` <= time < `end`, in order of arrival.

    rows      a row per tuple with its time, arrival, columns of eight bytes and keys next to each other, because the
              processor waits for each line of memory. `ts`, `arrival`, `keys` and most `columns` are views into it
    number    of the segment, and `first_row` that of its first row in its store
    shift     its buckets are 2 ** shift microseconds
    least     the least time in it, `greatest` the greatest
    masked    whether there may be nulls
    unlinked  which rows can never match (they are kept for their own sake), None while there are none
    over      which rows can match nothing more before their time, None while there are none; `dropped` counts them
    shared    the sieve that it shares with others, None if it has its own ones
    """

    __slots__ = (
        "arrival",
        "columns",
        "count",
        "dropped",
        "end",
        "finders",
        "first_row",
        "greatest",
        "keys",
        "least",
        "links",
        "masked",
        "matched",
        "number",
        "over",
        "room",
        "rows",
        "shape",
        "shared",
        "shift",
        "sieves",
        "start",
        "tables",
        "ts",
        "unlinked",
        "valid",
    )

    def __init__(
        self,
        shape: Shape,
        number: int,
        first_row: int,
        start: int,
        end: int,
        room: int,
        shift: int,
        shared: Sieve | None = None,
    ) -> None:
        self.shape = shape
        self.number = number
        self.first_row = first_row
        self.start = start
        self.end = end
        self.shift = shift
        self.count = self.room = 0
        self.least, self.greatest = MAX_TIME, MIN_TIME
        self.rows: Int64s = np.empty((0, shape.width), np.int64)
        self.columns: list[Values] = [cells(type) for type in shape.types]
        self.valid: list[Bools | None] = [None] * len(shape.types)
        self.masked = False
        self.unlinked: Values | None = None
        self.matched: Bools | None = np.zeros(0, np.bool_) if shape.watched else None
        self.over: Bools | None = None
        self.dropped = 0
        self.tables: list[Values] = []
        self.sieves: list[Values] = []
        self.links: list[Values] = []
        self.finders: list[joining.Finder] = []
        self.reserve(room, shared)

    def reserve(self, room: int, shared: Sieve | None = None) -> None:
        """Have room for so many tuples. A segment that shares a sieve leaves it if it needs more room."""
        count = self.room = max(SMALLEST, room)
        self.rows = rows = self._longer(self.rows, count)
        self.ts, self.arrival = rows[:, TIME], rows[:, ARRIVAL]
        self.keys = [rows[:, place] for place in self.shape.keys]
        self.columns = [
            self._longer(column, count) if place is None else rows[:, place].view(DTYPES[type])
            for type, place, column in zip(self.shape.types, self.shape.places, self.columns, strict=True)
        ]
        self.valid = [None if mask is None else self._longer(mask, count) for mask in self.valid]
        if self.unlinked is not None:
            self.unlinked = self._longer(self.unlinked, count)
        if self.matched is not None:
            self.matched = self._longer(self.matched, count)
        if self.over is not None:
            self.over = self._longer(self.over, count)
            self.over[self.count :] = False
        # At least a quarter more places than tuples: most chains have one tuple.
        places = 1 << (count + count // 4 - 1).bit_length()
        self.tables = [np.zeros(places, np.int32) for _ in self.keys]
        self.links = [np.empty(count, np.int32) for _ in self.keys]
        self.shared = shared
        if shared is None:
            bit = ALL
            self.sieves = [np.zeros(places, np.uint8) for _ in self.keys]
        else:
            bit = shared.bits
            self.sieves = shared.places
            shared.bits += 1
        self.finders = [
            joining.Finder(keys, self.ts, table, sieve, links, self.shift, bit)
            for keys, table, sieve, links in zip(self.keys, self.tables, self.sieves, self.links, strict=True)
        ]
        self._link(0)

    def _longer(self, array: Values, room: int) -> Values:
        if are_cells(array):
            return cast(Values, array.resize(room))
        longer = np.empty((room, *array.shape[1:]), array.dtype)
        longer[: self.count] = array[: self.count]
        return longer

    def _link(self, start: int) -> None:
        if self.count > start:
            for finder in self.finders:
                finder.link(self.unlinked, start, self.count)

    def append(
        self, rows: Strip, least: int, greatest: int, keys: Sequence[Int64s], unlinked: Values, matched: Bools | None
    ) -> None:
        """Add rows, whose times are within [least, greatest]; there is room for them."""
        start = self.count
        stop = self.count = start + len(rows.ts)
        if least < self.least:
            self.least = least
        if greatest > self.greatest:
            self.greatest = greatest
        self.ts[start:stop] = rows.ts
        self.arrival[start:stop] = rows.arrival
        for own, theirs in zip(self.keys, keys, strict=True):
            own[start:stop] = theirs
        for own, theirs in zip(self.columns, rows.columns, strict=True):
            own[start:stop] = theirs
        for at, mask in enumerate(rows.valid):
            if mask is not None or self.valid[at] is not None:
                self._append_mask(at, mask, start, stop)
        if len(unlinked) and self.unlinked is None:
            self.unlinked = np.zeros(self.room, np.uint8)
        if self.unlinked is not None:
            self.unlinked[start:stop] = unlinked if len(unlinked) else 0
        if self.matched is not None:
            self.matched[start:stop] = False if matched is None else matched
        self._link(start)

    def _append_mask(self, at: int, mask: Bools | None, start: int, stop: int) -> None:
        own = self.valid[at]
        if own is None:
            own = self.valid[at] = np.ones(self.room, np.bool_)
            self.masked = True
        own[start:stop] = True if mask is None else mask

    def strip(self, slots: Int64s) -> Strip:
        """These rows, with all columns."""
        return Strip(self.ts, self.arrival, self.columns, self.valid).take(slots, range(len(self.columns)))

    def live(self, floor: int) -> Int64s:
        """The rows that may still match, if those below the floor may not."""
        live: Bools = self.ts[: self.count] >= floor
        return np.flatnonzero(live if self.over is None else live & ~self.over[: self.count])

    def drop(self, slots: Int64s) -> int:
        """Count these rows as dropped, though they stay for the time being; how many of them were not."""
        if self.over is None:
            self.over = np.zeros(self.room, np.bool_)
        before = self.dropped
        self.over[slots] = True
        self.dropped = int(np.count_nonzero(self.over))
        return self.dropped - before

    def keep(self, rows: Int64s) -> None:
        """Drop all rows but these."""
        count = len(rows)
        self.over, self.dropped = None, 0
        self.rows = self.rows[rows]
        self.columns = [
            cells_of(type, column[rows]) if place is None else column
            for type, place, column in zip(self.shape.types, self.shape.places, self.columns, strict=True)
        ]
        self.valid = [None if mask is None else mask[rows] for mask in self.valid]
        self.unlinked = None if self.unlinked is None else self.unlinked[rows]
        self.count = count
        self.least = int(self.rows[:, TIME].min()) if count else MAX_TIME
        self.reserve(count)

    @property
    def nbytes(self) -> int:
        arrays = [self.rows, *self.tables, *self.links]
        arrays += [column for column, place in zip(self.columns, self.shape.places, strict=True) if place is None]
        arrays += self.sieves if self.shared is None else []
        arrays += [array for array in (*self.valid, self.unlinked, self.matched, self.over) if array is not None]
        return sum(array.nbytes for array in arrays)

    def save(self) -> list[Any]:
        def rows(array: Values | None) -> Values | None:
            return None if array is None else array[: self.count].copy()

        head = [self.number, self.first_row, self.start, self.end, self.room, self.shift, self.least, self.greatest]
        return [
            head,
            rows(self.ts),
            rows(self.arrival),
            [rows(column) for column in self.columns],
            [rows(mask) for mask in self.valid],
            rows(self.unlinked),
            rows(self.matched),
            rows(self.over),
        ]


class Found:
    """Pairs of rows (of what was looked up) with stored tuples, up to the row `stop`.

    parts   per segment the slots of its tuples; `rows` has the rows of all parts
    """

    __slots__ = ("_stored", "parts", "rows", "stop")

    def __init__(self, rows: Int64s, parts: list[tuple[Segment, Int64s]], stop: int) -> None:
        self.rows = rows
        self.parts = parts
        self.stop = stop
        self._stored: Int64s | None = None

    def _gather(self, pieces: list[Values]) -> Values:
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _place(self, place: int) -> Int64s:
        """What the stored rows have at a place."""
        if self._stored is None:
            pieces = [segment.rows.take(slots, 0) for segment, slots in self.parts]
            self._stored = np.ascontiguousarray(self._gather(pieces).T)
        stored: Int64s = self._stored[place]
        return stored

    def column(self, at: int) -> Values:
        shape = self.parts[0][0].shape
        place = shape.places[at]
        if place is not None:
            return self._place(place).view(DTYPES[shape.types[at]])
        return self._gather([segment.columns[at][slots] for segment, slots in self.parts])

    def mask(self, at: int) -> Bools | None:
        if all(segment.valid[at] is None for segment, _ in self.parts):
            return None
        pieces = []
        for segment, slots in self.parts:
            mask = segment.valid[at]
            pieces.append(np.ones(len(slots), np.bool_) if mask is None else mask[slots])
        return self._gather(pieces)

    def strip(self, columns: Sequence[int], width: int) -> Strip:
        """The stored tuples, with these columns."""
        taken = [NOTHING] * width
        valid: list[Bools | None] = [None] * width
        for at in columns:
            taken[at], valid[at] = self.column(at), self.mask(at)
        return Strip(self._place(TIME), self._place(ARRIVAL), taken, valid)

    def keep(self, kept: Bools) -> None:
        """Drop the other pairs."""
        parts = []
        at = 0
        for segment, slots in self.parts:
            parts.append((segment, slots[kept[at : at + len(slots)]]))
            at += len(slots)
        self.parts = parts
        self.rows = self.rows[kept]
        self._stored = None if self._stored is None else self._stored[:, kept]

    def mark(self, mask: Bools | None) -> None:
        """The stored tuples of these pairs have matched."""
        at = 0
        for segment, slots in self.parts:
            assert segment.matched is not None
            segment.matched[slots if mask is None else slots[mask[at : at + len(slots)]]] = True
            at += len(slots)


def _width(span: int, count: int, covered: int) -> int:
    """How much time of a span a segment covers if so much time has so many tuples."""
    rows = count * span // covered
    return span if rows <= MANY else max(1, span // max(PARTS, rows // LARGEST + 1))


class SegmentStore:
    """The stored tuples of one input, in segments that do not overlap, in order of time.

    floor    tuples below it can match nothing more
    rows     how many rows were ever put
    closed   how many were dropped before the floor passed them
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.segments: list[Segment] = []
        self.floor = MIN_TIME
        self.tuples = 0
        self.rows = self.closed = 0
        self._numbers = 0
        self._pairs = np.empty((2, FEW_PAIRS), np.int64)
        self._slots = np.empty(FEW_PAIRS, np.int64)
        self._work = np.empty((3, PART), np.int32)
        self.identify = [identity_of([shape.types[at] for at in columns])[0] for columns in shape.indexes]

    # -- putting -------------------------------------------------------------------------------------------------------

    def put(
        self,
        rows: Strip,
        least: int,
        greatest: int,
        keys: Sequence[Int64s],
        unlinked: Values = NONE_UNLINKED,
        matched: Bools | None = None,
    ) -> list[tuple[Segment, int]]:
        """Add rows, whose times are within [least, greatest]; each segment that got some, and its first new slot."""
        if self.shape.newest is None:
            for segment in reversed(self.segments):
                if least >= segment.start:
                    if greatest < segment.end and not self._sealed(segment, least, len(rows.ts)):
                        return [self._append(segment, rows, least, greatest, keys, unlinked, matched)]
                    break
            return self._place(rows, keys, unlinked, matched)
        last = self.segments[-1] if self.segments else None
        if last is None or last.count >= max(TOGETHER, self.shape.newest):
            last = self._open_at(len(self.segments), MIN_TIME, MAX_TIME, len(rows.ts))
        return [self._append(last, rows, least, greatest, keys, unlinked, matched)]

    def put_row(self, time: int, arrival: int, columns: Sequence[Values], stored: Sequence[int], key: int) -> bool:
        """Add a row, the first of those columns that are kept, if the last segment is its own and has room. None of its
        columns is null, and there is one index."""
        segments = self.segments
        if not segments:
            return False
        last = segments[-1]
        slot = last.count
        if not (last.start <= time < last.end and slot < last.room) or last.masked:
            return False
        last.count = slot + 1
        if time < last.least:
            last.least = time
        if time > last.greatest:
            last.greatest = time
        last.arrival[slot] = arrival
        for column, at in zip(last.columns, stored):  # noqa: B905 (both are the shape's)
            column[slot] = columns[at][0]
        last.finders[0].put(slot, key, time)
        self.tuples += 1
        self.rows += 1
        return True

    def _sealed(self, segment: Segment, least: int, count: int) -> bool:
        """End a segment that is full and large before rows that are all later."""
        if segment.count + count <= segment.room or segment.room < LARGEST or self.shape.span_us is None:
            return False
        if segment.count == 0 or least <= segment.greatest:
            return False
        segment.end = segment.greatest + 1
        return True

    def _append(
        self,
        segment: Segment,
        rows: Strip,
        least: int,
        greatest: int,
        keys: Sequence[Int64s],
        unlinked: Values,
        matched: Bools | None,
    ) -> tuple[Segment, int]:
        count = len(rows.ts)
        full = segment.count + count > segment.room
        if full:
            self._make_room(segment, count)
        self.tuples += count
        self.rows += count
        start = segment.count
        segment.append(rows, least, greatest, keys, unlinked, matched)
        if full:
            self._cut(segment)
        return segment, start

    def _make_room(self, segment: Segment, count: int) -> None:
        """Room for more: a segment that came to span too much gives up what is over, if that is half of it."""
        if segment.room >= WORTH_CLEARING and segment.least < self.floor and not self._numbered:
            live = segment.live(self.floor)
            if 2 * len(live) <= segment.count:
                self.tuples -= segment.count - segment.dropped - len(live)
                segment.keep(live)
                if segment.count + count <= segment.room:
                    return
        likely = self._likely(self.segments.index(segment), segment.start, segment.end)
        least = segment.count + count
        double = 1 << (max(2 * segment.room, least) - 1).bit_length()
        segment.reserve(likely if least <= likely < double else double)

    def _likely(self, at: int, start: int, end: int) -> int:
        """How many tuples such a segment gets if they are as dense as in the one before it: so many, and three standard
        deviations of random arrivals."""
        if not at:
            return 0
        before = self.segments[at - 1]
        count = before.count * (end - start) // (before.end - before.start)
        return min(count + 3 * isqrt(count), max(LARGEST, before.count))

    def _cut(self, segment: Segment) -> None:
        """End the last segment soon after its newest tuple if they turn out to be dense."""
        span = self.shape.span_us
        if span is None or segment is not self.segments[-1] or segment.count < ENOUGH:
            return
        width = _width(span, segment.count, segment.greatest - segment.least + 1)
        if width < span:
            segment.end = min(segment.end, segment.greatest - segment.greatest % width + width)

    @property
    def _numbered(self) -> bool:
        """Whether slots are known elsewhere, so that no tuple may move."""
        return self.shape.watched or self.shape.newest is not None

    def _place(
        self, rows: Strip, keys: Sequence[Int64s], unlinked: Values, matched: Bools | None
    ) -> list[tuple[Segment, int]]:
        """Add rows that are not all in one segment."""
        ts = rows.ts
        disordered = (ts[1:] < ts[:-1]).any()
        ordered = np.sort(ts) if disordered else ts
        while len(outside := self._outside(ordered)):
            self._open(outside)
        if disordered:
            # By their segments; within one they keep the order of their arrival.
            starts = np.array([segment.start for segment in self.segments], np.int64)
            order = np.argsort(np.searchsorted(starts, ts, "right"), kind="stable")
            rows = rows.take(order, range(len(rows.columns)))
            keys = [key[order] for key in keys]
            unlinked = unlinked[order] if len(unlinked) else unlinked
            matched = None if matched is None else matched[order]
        placed = []
        for segment in self.segments:
            start, stop = np.searchsorted(ordered, (segment.start, segment.end)).tolist()
            if start == stop:
                continue
            part = rows.part(start, stop)
            placed.append(
                self._append(
                    segment,
                    part,
                    int(ordered[start]),
                    int(ordered[stop - 1]),
                    [key[start:stop] for key in keys],
                    unlinked[start:stop],
                    None if matched is None else matched[start:stop],
                )
            )
        return placed

    def _outside(self, ts: Int64s) -> Int64s:
        """Of times that are in order, those that are in no segment."""
        pieces = []
        done = 0
        for segment in self.segments:
            start, stop = np.searchsorted(ts, (segment.start, segment.end)).tolist()
            if start > done:
                pieces.append(ts[done:start])
            done = stop
        if done < len(ts):
            pieces.append(ts[done:])
        return np.concatenate(pieces) if len(pieces) > 1 else pieces[0] if pieces else ts[:0]

    def _open(self, ts: Int64s) -> None:
        """Have a segment for the first of these times, which have none and are in order."""
        segments = self.segments
        first = int(ts[0])
        at = bisect_right([segment.start for segment in segments], first)
        before = segments[at - 1].end if at else MIN_TIME
        after = segments[at].start if at < len(segments) else MAX_TIME
        span = self._span(at)
        if span is None:
            self._open_at(at, before, after, len(ts))
            return
        mine = ts[: int(np.searchsorted(ts, after))]
        reached = int(mine[min(len(mine), TOGETHER) - 1])
        end = min(after, reached - reached % span + span)
        if at and at == len(segments) and segments[-1].count < FEW:
            segments[-1].end = end
        else:
            self._open_at(at, max(before, first - first % span), end, int(np.searchsorted(mine, end)))

    def _span(self, at: int) -> int | None:
        """How much time a new segment covers, if tuples are as dense as in the one before it."""
        span = self.shape.span_us
        if span is None or not at:
            return span
        before = self.segments[at - 1]
        return _width(span, before.count, before.end - before.start)

    def _open_at(self, at: int, start: int, end: int, count: int) -> Segment:
        room = max(count, self._likely(at, start, end))
        span = self.shape.span_us
        # Within a segment that is no longer than a few intervals, one bucket finds as much as several.
        shift = 63 if span is None or end - start <= 2 * span else self.shape.shift
        shared = self._sieve_for(at, start, room, shift)
        segment = Segment(self.shape, self._numbers, self.rows, start, end, room, shift, shared)
        self._numbers += 1
        self.segments.insert(at, segment)
        return segment

    def _sieve_for(self, at: int, start: int, room: int, shift: int) -> Sieve | None:
        """The sieve for a segment to share, if it is large and all its tuples are in bucket 0."""
        if room < LARGEST // 2 or shift != 63 or start < 0:
            return None
        before = self.segments[at - 1].shared if at else None
        if before is not None and before.room >= room and before.bits < BITS:
            return before
        return Sieve(1 << (room - 1).bit_length(), len(self.shape.indexes))

    # -- forgetting ----------------------------------------------------------------------------------------------------

    def expire(self, floor: int) -> None:
        """Drop the segments whose tuples are all below the floor, or are not among the newest any more."""
        self.floor = floor
        segments = self.segments
        newest = self.shape.newest
        # They are in order of time, or of arrival: the first goes first.
        while segments:
            first = segments[0]
            if first.greatest >= floor and (newest is None or first.first_row + first.count > self.rows - newest):
                return
            self.tuples -= first.count - first.dropped
            del segments[0]

    def drop(self, segment: Segment, slots: Int64s) -> None:
        """Drop tuples that can match nothing more. Their memory is free once half of a segment's are dropped, unless
        slots are known elsewhere."""
        dropped = segment.drop(slots)
        self.tuples -= dropped
        self.closed += dropped
        if 2 * segment.dropped >= segment.count and not self._numbered:
            if segment.dropped == segment.count:
                self.segments.remove(segment)
            else:
                segment.keep(segment.live(MIN_TIME))

    # -- looking up ----------------------------------------------------------------------------------------------------

    def probe(
        self, index: int, keys: Int64s, low: Int64s, high: Int64s | None, below: int, above: int, start: int, stop: int
    ) -> Found:
        """Pairs of the rows from `start` on with the tuples of their key in [low - below, high + above].

        `high` is None if it is `low`.
        It may stop before `stop`, where pairs become too many: the result says where. What is given is void once more
        is asked for.
        """
        stop, spans = self._look(index, keys, low, high, below, above, start, stop)
        pairs = self._pairs
        if not spans:
            return Found(pairs[0, :0], [], stop)
        parts = [(segment, pairs[1, first:last]) for segment, first, last in spans]
        pieces = [pairs[0, first:last] for _, first, last in spans]
        return Found(pieces[0] if len(pieces) == 1 else np.concatenate(pieces), parts, stop)

    def of_keys(self, index: int, keys: Int64s, low: Int64s, high: Int64s) -> Iterator[tuple[Segment, Int64s]]:
        """The tuples of keys, each in [low, high]; perhaps others whose keys have the same identity."""
        at = 0
        while at < len(keys):
            found = self.probe(index, keys, low, high, 0, 0, at, len(keys))
            yield from [(segment, slots.copy()) for segment, slots in found.parts]
            at = found.stop

    def probe_row(self, key: int, begin: int, end: int) -> Found | None:
        """The tuples of a key in [begin, end], by the only index, as pairs of row 0."""
        slots = self._slots
        while True:
            count = 0
            spans = []
            for segment in self.segments:
                first = count
                count = segment.finders[0].find(key, begin, end, segment.least, segment.greatest, slots, first)
                if count != first:
                    if count < 0:
                        break
                    spans.append((segment, slots[first:count]))
            if count >= 0:
                return Found(np.zeros(count, np.int64), spans, 1) if count else None
            slots = self._slots = np.empty(2 * len(slots), np.int64)

    def _look(
        self, index: int, keys: Int64s, low: Int64s, high: Int64s | None, below: int, above: int, start: int, stop: int
    ) -> tuple[int, list[tuple[Segment, int, int]]]:
        """Pairs of rows from `start` on: the row before which it stopped, and per segment from where to where."""
        if len(self._pairs[0]) > MOST_PAIRS:  # a single row had more
            self._pairs = np.empty((2, MOST_PAIRS), np.int64)
        count = 0
        spans: list[tuple[Segment, int, int]] = []
        sieve: Sieve | None = None
        hints = NO_HINTS
        for segment in self.segments:
            first, at = count, start
            least = 0 if self.shape.newest is None else max(0, self.rows - self.shape.newest - segment.first_row)
            if segment.shared is not None and segment.shared is not sieve:
                sieve, hints = segment.shared, np.empty(stop, np.uint8)
                joining.sift(keys, start, stop, sieve.places[index], hints)
            finder = segment.finders[index]
            while True:
                at, count = finder.probe(
                    keys,
                    low,
                    high,
                    below,
                    above,
                    at,
                    stop,
                    segment.least,
                    segment.greatest,
                    least,
                    hints,
                    self._work,
                    self._pairs,
                    count,
                )
                if at == stop:
                    break
                if at > start and len(self._pairs[0]) >= MOST_PAIRS:
                    stop = at
                    spans = self._without(spans, stop)
                    break
                longer = np.empty((2, 2 * len(self._pairs[0])), np.int64)
                longer[:, :count] = self._pairs[:, :count]
                self._pairs = longer
            if count > first:
                spans.append((segment, first, count))
        return stop, spans

    def _without(self, spans: list[tuple[Segment, int, int]], stop: int) -> list[tuple[Segment, int, int]]:
        """The pairs of rows before `stop`."""
        rows = self._pairs[0]
        cut = [(s, first, first + int(np.searchsorted(rows[first:last], stop))) for s, first, last in spans]
        return [span for span in cut if span[1] < span[2]]

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        sieves = {segment.shared for segment in self.segments if segment.shared is not None}
        return sum(segment.nbytes for segment in self.segments) + sum(sieve.nbytes for sieve in sieves)

    def save(self) -> Any:
        return [self.floor, self.rows, self._numbers, self.closed, [segment.save() for segment in self.segments]]

    def restore(self, data: Any) -> None:
        self.floor, rows, self._numbers, self.closed, segments = data
        self.segments = []
        self.tuples = 0
        for saved in segments:
            self._restore_segment(saved)
        self.rows = rows

    def _restore_segment(self, data: Any) -> None:
        head, ts, arrival, columns, valid, unlinked, matched, over = data
        number, first_row, start, end, room, shift, least, greatest = head
        shared = self._sieve_for(len(self.segments), start, room, shift)
        segment = Segment(self.shape, number, first_row, start, end, room, shift, shared)
        self.segments.append(segment)
        strip = Strip(ts, arrival, columns, valid)
        marks = NONE_UNLINKED if unlinked is None else unlinked
        keys = [
            identify([columns[at] for at in index], len(ts))
            for identify, index in zip(self.identify, self.shape.indexes, strict=True)
        ]
        self._append(segment, strip, least, greatest, keys, marks, matched)
        if over is not None:
            self.tuples -= segment.drop(np.flatnonzero(over))
