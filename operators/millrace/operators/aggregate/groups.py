"""Groups and the states of their aggregates: what a pane, a session store or a running total is made of.

A `Table` numbers groups in the order in which they first appear. Keys are rows of int64: integers, times and booleans
as they are, doubles by their bits (both zeros are one), texts and bytes by their number in an index of the table's own;
a key of one text is that number. So when a table goes, all that was learned of keys goes with it. NULL is one group: an
index of texts has a number for it, and the other nullable columns share one more int64 with a bit for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.protocol import MIN_INT64, Refuse, Type
from millrace.values.aggregates import AGGREGATES, Accumulator, Aggregates
from millrace.values.aggregates.accumulator import OBJECTS, Rows
from millrace.values.arrays import SMALLEST, resized
from millrace.values.batch import DTYPES, FILLERS, Batch, Bools, Int64s, Values
from millrace.values.evaluate import Columns, Errors, compile_columns
from millrace.values.eventtime import MIN_TIME
from millrace.values.expression import Case, Constant, Expression
from millrace.values.functions.vectors import Faults, Vector, first_fault
from millrace.values.kernels import accumulating, grouping
from millrace.values.text_index import TextIndex
from millrace.values.texts import Texts

# Groups that a new table has room for: a table of few groups stays within a page or two.
# When a row of a group reached the engine that no row has reached.
UNTOUCHED: Final = -(2**63)
# Among the bits of a key's columns: hashes are mixed (kernels/grouping.py).
MIX: Final = -1
# Words of a line of the processor's caches.
LINE: Final = 8
# A block of fewer words stays in the caches, wherever it starts.
MANY_WORDS: Final = 65_536
# Fewer groups than this are mixed: they are soon found either way, and their ranges say little of the next ones.
FEW: Final = 256


@dataclass(frozen=True, slots=True)
class Call:
    """How a call's accumulator is made, and which computed columns are its arguments."""

    make: Callable[[bool], Accumulator]
    arguments: tuple[int, ...]
    types: tuple[Type, ...]
    distinct: bool


class ComputedRows(NamedTuple):
    """Computed rows on their way into tables: keys and arguments as vectors, with time and arrival."""

    ts: Int64s
    arrival: Int64s
    columns: list[Values]
    valid: list[Bools | None]

    def take(self, rows: Int64s) -> ComputedRows:
        return ComputedRows(
            self.ts[rows],
            self.arrival[rows],
            [column[rows] for column in self.columns],
            [None if mask is None else mask[rows] for mask in self.valid],
        )

    def slice(self, start: int, stop: int) -> ComputedRows:
        return ComputedRows(
            self.ts[start:stop],
            self.arrival[start:stop],
            [column[start:stop] for column in self.columns],
            [None if mask is None else mask[start:stop] for mask in self.valid],
        )


class Grouping:
    """What a spec says of groups, ready to compute: shared by all tables of an operator.

    A FILTER becomes part of the arguments: where it is not true they are null, and nulls do not count. `kept` are
    columns that are computed in addition, and `kept_columns` has their positions.
    """

    def __init__(
        self, spec: AggregateSpec, aggregates: Aggregates = AGGREGATES, stored: Sequence[Expression] = ()
    ) -> None:
        expressions: dict[Expression, int] = {}

        def place(expression: Expression) -> int:
            return expressions.setdefault(expression, len(expressions))

        self.key_types = [key.type for _, key in spec.keys]
        self.key_columns = [place(key) for _, key in spec.keys]
        # Bits for the nullable keys that have no code for null.
        self.null_bits = [at for at, (_, key) in enumerate(spec.keys) if key.nullable and key.type not in OBJECTS]
        self.width = len(self.key_types) + bool(self.null_bits)
        self.calls = [self._call(call, place, aggregates) for _, call in spec.calls]
        self.kept_columns = [place(column) for column in stored]
        self._compute: Columns = compile_columns(list(expressions))

    def _call(self, call: AggregateCall, place: Callable[[Expression], int], aggregates: Aggregates) -> Call:
        row = aggregates[call.function]
        constants = []
        arguments = []
        for position, argument in enumerate(call.arguments):
            if position in row.constants:
                if not isinstance(argument, Constant):
                    raise Refuse(f"{call.function}: argument {position + 1} must be a constant")
                constants.append(argument.value)
            else:
                arguments.append(argument)
        if call.filter is not None:
            shown = arguments or [Constant(Type.BOOLEAN, False, True)]
            arguments = [Case(one.type, True, ((call.filter, one),), Constant(one.type, True, None)) for one in shown]
        columns = tuple(map(place, arguments))
        made = row.make(constants, True)
        del made  # an error in the constants is reported now, not when the first row arrives
        return Call(
            lambda whole: row.make(constants, whole),
            columns,
            tuple(argument.type for argument in arguments),
            call.distinct and row.distinct and bool(call.arguments),
        )

    def compute(self, batch: Batch) -> tuple[ComputedRows, int, str]:
        """Keys and arguments; rows of which any cannot be computed are left out, counted and explained."""
        rows, errors = self.evaluate(batch)
        if errors is None:
            return rows, 0, ""
        return rows.take(np.flatnonzero(~errors.rows)), int(errors.rows.sum()), errors.reason

    def evaluate(self, batch: Batch) -> tuple[ComputedRows, Errors | None]:
        """Keys and arguments of all rows, and which of them cannot be computed."""
        columns, valid, errors = self._compute(batch)
        return ComputedRows(batch.ts, batch.arrival, columns, valid), errors

    def table(self, whole: bool) -> Table:
        return Table(self, whole)


class Distinct:
    """The different values that a call has seen in each group; the aggregate itself is computed at the end."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.seen = Keys([Type.BIGINT, *call.types], ())
        self._room = 0
        self._inner: Accumulator | None = None

    def words(self) -> int:
        return 0

    def place(self, block: Int64s, at: int) -> int:
        """It keeps nothing in the rows of its table."""
        return at

    def reserve(self, room: int) -> None:
        self._room = room
        self._inner = None

    def update(self, slots: Int64s, columns: Sequence[Values], ts: Int64s) -> None:
        self.seen.find([slots, *columns], [None] * (1 + len(columns)))
        self._inner = None

    def merge(self, other: Distinct, slots: Int64s, rows: Rows) -> None:
        assert isinstance(rows, slice)  # it is not for tables whose groups leave one by one
        owners, *columns = (values for values, _ in other.seen.decode(0, other.seen.count))
        chosen = np.flatnonzero((owners >= rows.start) & (owners < rows.stop))
        # Two of the other's groups may go into one: their values meet here as equal rows.
        self.update(slots[owners[chosen] - rows.start], [column[chosen] for column in columns], owners)

    def finish(self, slots: Int64s) -> Vector:
        if self._inner is None:
            self._inner = self._call.make(True)
            self._inner.reserve(self._room)
            owners, *columns = (values for values, _ in self.seen.decode(0, self.seen.count))
            if len(owners):
                self._inner.update(owners, columns, np.zeros(len(owners), np.int64))
        return self._inner.finish(slots)

    def clear(self, slots: Int64s) -> None:
        owners, *columns = (values for values, _ in self.seen.decode(0, self.seen.count))
        others = np.flatnonzero(~np.isin(owners, slots))
        self.seen = Keys([Type.BIGINT, *self._call.types], ())
        self.update(owners[others], [column[others] for column in columns], owners)

    def save(self, count: int) -> Any:
        return self.seen.save()

    def essence(self, slots: Int64s) -> Any:
        """The values of each group, in the order in which they were seen."""
        ranks = {slot: rank for rank, slot in enumerate(slots.tolist())}
        seen = listed(self.seen.decode(0, self.seen.count))
        return sorted([(ranks[owner], values) for owner, *values in seen if owner in ranks], key=itemgetter(0))

    def restore(self, data: Any) -> None:
        self.seen.restore(data)

    @property
    def nbytes(self) -> int:
        return self.seen.nbytes


class Keys:
    """A set of rows of values, numbered."""

    def __init__(self, types: Sequence[Type], null_bits: Sequence[int]) -> None:
        self._types = types
        self._null_bits = null_bits
        self._width = len(types) + bool(null_bits)
        self.count = 0
        self.room = 0
        self._codes = [TextIndex(type is Type.BYTES) if type in OBJECTS else None for type in types]
        # The index whose numbers are the keys' own.
        self._text = self._codes[0] if self._width == 1 else None
        self._stored = np.zeros(0, np.int64)
        self._index = np.zeros(0, np.int32)
        self._row = np.zeros(self._width, np.int64)
        self._packing, self._packs = np.full(2 * self._width, MIX, np.int64), False
        # Whether the key is a single value that takes no thought; and the null bits in the row at hand.
        self._whole = len(types) == 1 and types[0] is not Type.DOUBLE
        self._null_row = 0

    def find(self, columns: Sequence[Values], valid: Sequence[Bools | None]) -> Int64s:
        """The number of each row; new rows get the next numbers."""
        if self._text is not None:
            numbers = self._text.find(columns[0], valid[0])
            self.count = self._text.count
            return numbers
        count = len(columns[0])
        if not self.room:
            self._grow()
        coded = self.encode(columns, valid, count)
        if count < FEW:
            return self._find_or_add(side_by_side(coded))
        slots, rest = np.empty(count, np.int64), np.empty(count, np.int64)
        hashes = self._hashes(coded, count)
        if self._packs:
            rest = rest[: grouping.look_packed(hashes, self._index, slots, rest)]
            keys = side_by_side([column[rest] for column in coded])
        else:
            keys = side_by_side(coded)
            flat = keys.reshape(-1)
            rest = rest[: grouping.look(flat, self._width, hashes, self._index, self._stored, slots, rest)]
            keys = keys[rest]
        if len(rest):
            slots[rest] = self._find_or_add(keys)
        return slots

    def _find_or_add(self, keys: Int64s) -> Int64s:
        """The numbers of rows of keys; new ones get the next numbers."""
        slots = np.empty(len(keys), np.int64)
        flat = keys.reshape(-1)
        done = 0
        while True:
            done, self.count = grouping.find_or_add(
                flat, self._packing, self._index, self._stored, slots, done, self.count, self.room
            )
            if done == len(keys):
                return slots
            if self.count == self.room:
                self._grow()
            else:
                self._include(keys[done:].T)

    def find_one(self, columns: Sequence[Values], valid: Sequence[Bools | None], positions: Sequence[int]) -> int:
        """The same as `find` for a single row whose key is at these positions, in fewer steps."""
        if self._text is not None:
            number: int = self._text.find(columns[positions[0]], valid[positions[0]]).item(0)
            self.count = self._text.count
            return number
        row = self._row
        if self._whole and valid[positions[0]] is None:
            row[0] = columns[positions[0]].item(0)
            if self._null_row:
                row[-1] = self._null_row = 0
        else:
            self._fill(row, columns, valid, positions)
        if self.count == self.room:
            self._grow()
        found: int = grouping.find_or_add_one(row, self._packing, self._index, self._stored, self.count)
        if found < 0:
            self._include(row.reshape(-1, 1))
            found = grouping.find_or_add_one(row, self._packing, self._index, self._stored, self.count)
        if found == self.count:
            self.count += 1
        return found

    def _fill(
        self, row: Int64s, columns: Sequence[Values], valid: Sequence[Bools | None], positions: Sequence[int]
    ) -> None:
        """Put the key of a single row into an array."""
        bits = 0
        for at, codes in enumerate(self._codes):
            position = positions[at]
            mask = valid[position]
            if codes is not None:
                row[at] = codes.find(columns[position], mask).item(0)
            elif mask is not None and not mask[0]:
                row[at] = 0
                bits |= 1 << self._null_bits.index(at)
            elif self._types[at] is Type.DOUBLE:
                row.view(np.float64)[at] = columns[position].item(0) + 0.0
            else:
                row[at] = columns[position].item(0)
        if self._null_bits:
            row[-1] = self._null_row = bits

    def _grow(self) -> None:
        self.room = max(SMALLEST, 4 * self.room if self.room < FEW else 2 * self.room)
        self._stored = resized(self._stored, self.room * self._width)
        # At most half full, so that a row that is not there is known soon.
        self._index = np.zeros(2 * self.room, np.int32)
        self._rebuild()

    def _rebuild(self) -> None:
        """Fill an empty index."""
        if self.count < FEW:
            self._packs = False
            self._packing[:] = MIX
        else:
            self._choose(_ranges(self._rows().T))
        grouping.rebuild(self._stored, self._packing, self.count, self._index)

    def _rows(self) -> Int64s:
        return self._stored[: self.count * self._width].reshape(self.count, self._width)

    def _choose(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Pack keys in these ranges if the index has a place for each; otherwise mix them."""
        bits = [(most - least).bit_length() for least, most in ranges]
        self._packs = 1 << sum(bits) <= len(self._index)
        self._packing[1::2] = bits if self._packs else MIX
        if self._packs:
            # What a range has to spare is divided: keys that fall or rise by and by leave it seldom.
            spare = [(1 << bit) - 1 - most + least for bit, (least, most) in zip(bits, ranges, strict=True)]
            low = [max(least - half // 2, MIN_INT64) for half, (least, _) in zip(spare, ranges, strict=True)]
            self._packing[::2] = low

    def _include(self, columns: Iterable[Int64s]) -> None:
        """Let keys that are outside of the ranges be packed too, or mix all."""
        before = self._packing[1::2].tolist()
        ranges = zip(_ranges(columns), _ranges(self._rows().T), strict=True)
        self._choose([(min(before_range[0], two[0]), max(before_range[1], two[1])) for before_range, two in ranges])
        if self._packing[1::2].tolist() != before:
            self._index[:] = 0
            grouping.rebuild(self._stored, self._packing, self.count, self._index)

    def encode(self, columns: Sequence[Values], valid: Sequence[Bools | None], count: int) -> list[Int64s]:
        """The columns of keys as integers."""
        coded = [self._encoded(at, columns[at], valid[at]) for at in range(len(self._types))]
        if self._null_bits:
            nulls = np.zeros(count, np.int64)
            for bit, at in enumerate(self._null_bits):
                mask = valid[at]
                if mask is not None:
                    nulls |= (~mask).astype(np.int64) << bit
            coded.append(nulls)
        return coded

    def _hashes(self, coded: Sequence[Int64s], count: int) -> Int64s:
        """The hashes of rows."""
        hashes = np.zeros(count, np.int64)
        if self._fold(coded, hashes):
            self._include(coded)
            hashes[:] = 0
            self._fold(coded, hashes)
        return hashes

    def _fold(self, coded: Sequence[Int64s], hashes: Int64s) -> bool:
        """Fold the hashes of rows; whether their keys can't be packed as they are now."""
        outside = False
        for at, column in enumerate(coded):
            low, bits = self._packing[2 * at : 2 * at + 2].tolist()
            outside |= grouping.fold(np.ascontiguousarray(column), low, bits, hashes)
        return outside

    def _encoded(self, at: int, values: Values, mask: Bools | None) -> Int64s:
        codes = self._codes[at]
        if codes is None:
            if self._types[at] is Type.DOUBLE:
                bits: Int64s = (values + 0.0).view(np.int64)
                return bits
            return values.astype(np.int64, copy=False)
        return codes.find(values, mask)

    def decode(self, start: int, stop: int) -> list[tuple[Values, Bools | None]]:
        """The rows from one number to another, as columns and masks."""
        if self._text is not None:
            return [self._text.decode(start, stop)]
        keys = self._stored[start * self._width : stop * self._width].reshape(stop - start, self._width)
        return [self._decoded(at, keys) for at in range(len(self._types))]

    def decode_at(self, slots: Int64s) -> list[tuple[Values, Bools | None]]:
        """The rows of these numbers, as columns and masks."""
        if self._text is not None:
            return [self._text.decode_at(slots)]
        return self.decode_rows(self._stored[: self.count * self._width].reshape(self.count, self._width)[slots])

    def decode_rows(self, keys: Int64s) -> list[tuple[Values, Bools | None]]:
        """Rows of `encode`, as columns and masks."""
        return [self._decoded(at, keys) for at in range(len(self._types))]

    @property
    def texts(self) -> int:
        """The most texts that a column has had."""
        return max((codes.count for codes in self._codes if codes is not None), default=0)

    def _decoded(self, at: int, keys: Int64s) -> tuple[Values, Bools | None]:
        type = self._types[at]
        column = np.ascontiguousarray(keys[:, at])
        codes = self._codes[at]
        if codes is not None:
            return codes.decode_at(column)
        mask = None
        if at in self._null_bits:
            there = (keys[:, -1] >> self._null_bits.index(at)) & 1 == 0
            mask = None if there.all() else there
        if type is Type.DOUBLE:
            return column.view(np.float64), mask
        return column.astype(DTYPES[type], copy=False), mask

    def kept(self, slots: Int64s) -> Keys:
        """A set of these rows alone, numbered in this order: the others are dropped."""
        keys = Keys(self._types, self._null_bits)
        if len(slots):
            rows = self.decode_at(slots)
            keys.find([values for values, _ in rows], [mask for _, mask in rows])
        return keys

    def save(self) -> Any:
        codes = [None if index is None else index.save() for index in self._codes]
        return [self.count, self._stored[: self.count * self._width].copy(), codes]

    def restore(self, data: Any) -> None:
        count, stored, codes = data
        for at, (index, saved) in enumerate(zip(self._codes, codes, strict=True)):
            if index is not None and len(saved) == 2 and isinstance(saved[1], Texts):
                index.restore(saved)
            elif index is not None:
                stored = self._renumbered(at, index, saved, stored.reshape(count, self._width)).reshape(-1)
        if self._text is not None:
            self.count = count
            return
        while self.room < count:
            self._grow()
        self.count = count
        self._stored[: len(stored)] = stored
        self._rebuild()

    def _renumbered(self, at: int, index: TextIndex, texts: Sequence[Any], keys: Int64s) -> Int64s:
        """Restore an index of a state of version 0.2, which has its texts in a list and -1 for null; the keys as it
        numbers them."""
        codes = keys[:, at]
        nulls = np.flatnonzero(codes < 0)
        if self._text is not None:
            filler = FILLERS[self._types[at]]
            listed = [texts[code] if code >= 0 else filler for code in codes.tolist()]
            index.restore([int(nulls[0]) if len(nulls) else -1, listed])
            return keys
        index.restore([-1, list(texts)])
        if not len(nulls):
            return keys
        keys = keys.copy()
        keys[nulls, at] = index.null()
        return keys

    @property
    def content_bytes(self) -> int:
        """The bytes of its texts."""
        return sum(codes.content_bytes for codes in self._codes if codes is not None)

    @property
    def nbytes(self) -> int:
        codes = sum(index.nbytes for index in self._codes if index is not None)
        return self._stored.nbytes + self._index.nbytes + codes


def listed(columns: Iterable[tuple[Values, Bools | None]]) -> list[tuple[Any, ...]]:
    """The rows of columns and masks as Python values."""
    lists = []
    for values, mask in columns:
        column = values.tolist()
        lists.append(column if mask is None else [v if m else None for v, m in zip(column, mask, strict=True)])
    return list(zip(*lists, strict=True))


def side_by_side(columns: Sequence[Int64s]) -> Int64s:
    """The columns of keys as rows."""
    count = len(columns[0])
    if len(columns) == 1:
        return np.ascontiguousarray(columns[0]).reshape(count, 1)
    keys = np.empty((count, len(columns)), np.int64)
    for at, column in enumerate(columns):
        keys[:, at] = column
    return keys


def _ranges(columns: Iterable[Int64s]) -> list[tuple[int, int]]:
    """The least and the greatest value of each column."""
    return [(int(column.min()), int(column.max())) for column in columns]


def _block(room: int, words: int) -> Int64s:
    """Rows of words; a large block starts where a line of the processor's caches starts."""
    if room * words < MANY_WORDS:
        return np.zeros((room, words), np.int64)
    block = np.zeros(room * words + LINE, np.int64)
    start = -(block.ctypes.data // 8) % LINE
    return block[start : start + room * words].reshape(room, words)


class Table:
    """Groups with their aggregates.

    whole     nothing is merged into it or out of it: its rows come in one by one
    arrived   by slot, when the newest of the group's rows reached the engine
    newest    the newest time of its rows
    """

    def __init__(self, grouping: Grouping, whole: bool) -> None:
        self._grouping = grouping
        self.key_set = Keys(grouping.key_types, grouping.null_bits)
        self._room = 0
        self.count = 0
        self.newest = MIN_TIME
        self.calls: list[Any] = [Distinct(call) if call.distinct else call.make(whole) for call in grouping.calls]
        # A row per group, so that a tuple touches the memory of its group in one place.
        words = 1 + sum([call.words() for call in self.calls])
        # Rows of some more words, so that none is in more of the processor's cache lines than it must be.
        self._words = 1 << (words - 1).bit_length() if words < LINE else -(-words // LINE) * LINE
        self._block = np.zeros((0, self._words), np.int64)
        self.arrived = self._block[:, 0]

    def take(self, rows: ComputedRows) -> Int64s:
        """Take rows in; the groups that they are in."""
        slots = self.groups_of(rows)
        self.update(slots, rows)
        return slots

    def groups_of(self, rows: ComputedRows) -> Int64s:
        """The groups that rows are in; new ones are added."""
        keys = self._grouping.key_columns
        return self.find([rows.columns[at] for at in keys], [rows.valid[at] for at in keys], len(rows.ts))

    def find(self, columns: Sequence[Values], valid: Sequence[Bools | None], rows: int) -> Int64s:
        """The groups of rows with these keys."""
        if not self._grouping.width:
            self.reserve(1)
            self.count = 1
            return np.zeros(rows, np.int64)
        slots = self.key_set.find(columns, valid)
        self.count = self.key_set.count
        self.reserve(self.count)
        return slots

    def reserve(self, count: int) -> None:
        """Have states for so many groups."""
        if count <= self._room:
            return
        self._room = max(count, SMALLEST if self._grouping.width else 1, 2 * self._room, self.key_set.room)
        block = _block(self._room, self._words)
        block[: len(self._block)] = self._block
        block[len(self._block) :, 0] = UNTOUCHED
        self._block = block
        self.arrived = block[:, 0]
        at = 1
        for call in self.calls:
            at = call.place(block, at)
            call.reserve(self._room)

    def update(self, slots: Int64s, rows: ComputedRows) -> None:
        """Let rows count in these groups."""
        self.newest = max(self.newest, int(rows.ts.max()))
        accumulating.raise_to(slots, rows.arrival, self.arrived)
        for call, state in zip(self._grouping.calls, self.calls, strict=True):
            there: Bools | None = None
            for at in call.arguments:
                mask = rows.valid[at]
                if mask is not None:
                    there = mask if there is None else there & mask
            columns = [rows.columns[at] for at in call.arguments]
            if there is None or there.all():
                state.update(slots, columns, rows.ts)
            elif there.any():
                state.update(slots[there], [column[there] for column in columns], rows.ts[there])

    def merge(self, other: Table, start: int, stop: int) -> None:
        """Take in another's groups, from one slot to another."""
        keys = other.keys(start, stop)
        slots = self.find([values for values, _ in keys], [mask for _, mask in keys], stop - start)
        self.merge_into(other, slots, slice(start, stop))

    def merge_into(self, other: Table, slots: Int64s, rows: Rows) -> None:
        """Take in another's groups, each into its slot here."""
        self.newest = max(self.newest, other.newest)
        accumulating.raise_to(slots, other.arrived[rows], self.arrived)
        for own, theirs in zip(self.calls, other.calls, strict=True):
            own.merge(theirs, slots, rows)

    def keys(self, start: int, stop: int) -> list[tuple[Values, Bools | None]]:
        """The keys of these groups, as columns and masks."""
        return self.key_set.decode(start, stop) if self._grouping.width else []

    def keys_of(self, slots: Int64s) -> list[tuple[Values, Bools | None]]:
        """The keys of these groups, as columns and masks."""
        return self.key_set.decode_at(slots) if self._grouping.width else []

    def finish(self, slots: Int64s) -> tuple[list[Values], list[Bools | None], Faults | None]:
        """The aggregates of these groups."""
        columns = []
        valid = []
        faults: Faults | None = None
        for call in self.calls:
            values, mask, failed = call.finish(slots)
            columns.append(values)
            valid.append(mask)
            faults = first_fault(faults, failed)
        return columns, valid, faults

    def clear(self, slots: Int64s) -> None:
        """Reset these groups."""
        self.arrived[slots] = UNTOUCHED
        for call in self.calls:
            call.clear(slots)

    @property
    def nbytes(self) -> int:
        return int(self.key_set.nbytes + self._block.nbytes + sum(call.nbytes for call in self.calls))

    @property
    def groups_bytes(self) -> int:
        """The bytes that so many groups take. What is allocated depends on the order in which they came, and on saves,
        so decisions go by this number."""
        room = max(1 << max(self.count - 1, 0).bit_length(), SMALLEST)
        keys = self.key_set.content_bytes
        return 8 * room * (int(self._words) + self._grouping.width + 1) + keys

    def save(self) -> Any:
        states = [call.save(self.count) for call in self.calls]
        return [self.count, self.newest, self.key_set.save(), self.arrived[: self.count].copy(), states]

    def essence(self, slots: Int64s) -> Any:
        """The states of these groups, in this order, whatever their slots."""
        return [self.arrived[slots], *(call.essence(slots) for call in self.calls)]

    def restore(self, data: Any) -> None:
        self.count, self.newest, keys, arrived, states = data
        if self._grouping.width:
            self.key_set.restore(keys)
        self.reserve(self.count)
        self.arrived[: self.count] = arrived
        for call, saved in zip(self.calls, states, strict=True):
            call.restore(saved)
