"""What an operator is to do, as plain data: one frozen class per kind of operator.

A spec says nothing of buffers or neighbours. Two operators with equal specs over equal inputs compute the same
rows, which is what lets a plan be compared, shared, saved and shipped. `build.py` makes the operators.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from millrace.protocol import GONE, Field, Schema, Type
from millrace.values.expression import TIME, Column, Expression


@dataclass(frozen=True, slots=True)
class Spec:
    """The definition of an operator: `kind` is the one that reports give, `word` is SQL's, which names are made of."""

    kind: ClassVar[str] = ""
    word: ClassVar[str]

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        """The schema of the rows it gives, from those it takes."""
        return inputs[0]


def undecided(question: str, spec: Spec) -> AssertionError:
    """A kind of operator for which nobody has decided: a default would claim too much."""
    return AssertionError(f"{question}: nothing is decided for {type(spec).__name__}")


@dataclass(frozen=True, slots=True)
class SelectSpec(Spec):
    """Keep the rows for which the predicate is true (not false, not null)."""

    kind: ClassVar[str] = "select"
    word: ClassVar[str] = "filter"
    predicate: Expression


@dataclass(frozen=True, slots=True)
class GateSpec(Spec):
    """Keep what comes until the query behind has learnt its past; pass everything from then on."""

    kind: ClassVar[str] = "gate"
    word: ClassVar[str] = "gate"


@dataclass(frozen=True, slots=True)
class SampleSpec(Spec):
    """Keep this share of the rows, drawn at random from the seed."""

    kind: ClassVar[str] = "select"
    word: ClassVar[str] = "filter"
    share: float
    seed: int


@dataclass(frozen=True, slots=True)
class MapSpec(Spec):
    """Compute a new row from each row."""

    kind: ClassVar[str] = "map"
    word: ClassVar[str] = "project"
    columns: tuple[tuple[str, Expression], ...]

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        made = Schema(tuple(Field(name, column.type, column.nullable) for name, column in self.columns))
        if not made.retracts:
            return made
        # What is computed is null in a tombstone; what is copied may be its key.
        copied = [isinstance(column, Column) and column.position >= 0 for _, column in self.columns]
        return Schema(
            tuple(field if plain else Field(field.name, field.type) for field, plain in zip(made, copied, strict=True))
        )


@dataclass(frozen=True, slots=True)
class UnionSpec(Spec):
    """All rows of all inputs: as they come, or in event order. Names are the first input's.

    With a `key` they are update streams that share it (positions): of each key the youngest row is delivered, and what
    is older than the last delivered one is dropped.
    """

    kind: ClassVar[str] = "union"
    word: ClassVar[str] = "union"
    ordered: bool
    key: tuple[int, ...] | None = None

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        first, *others = inputs
        return (
            Schema(
                tuple(
                    Field(field.name, field.type, any(schema.fields[position].nullable for schema in inputs))
                    for position, field in enumerate(first)
                )
            )
            if others
            else first
        )


@dataclass(frozen=True, slots=True)
class SortSpec(Spec):
    """The rows in order of time; equal times in order of arrival."""

    kind: ClassVar[str] = "sort"
    word: ClassVar[str] = "sort"


# -- update streams ----------------------------------------------------------------------------------------------------


def retracting(fields: Sequence[Field], key: Collection[int]) -> Schema:
    """Fields that are null in a tombstone unless they are of the key, and the mark of tombstones behind them."""
    kept = [
        field if position in key else Field(field.name, field.type)
        for position, field in enumerate(fields)
        if field.name != GONE
    ]
    return Schema((*kept, Field(GONE, Type.BOOLEAN, False)))


@dataclass(frozen=True, slots=True)
class FilterSpec(Spec):
    """Keep the keys of an update stream whose row passes the predicate; one that passes no more gives a tombstone.

    key     the positions of the update key
    emit    as of a running total (see AggregateSpec)
    """

    kind: ClassVar[str] = "select"
    word: ClassVar[str] = "filter"
    predicate: Expression
    key: tuple[int, ...]
    emit: Literal["latest", "every"] = "latest"

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        return retracting(inputs[0].fields, self.key)


@dataclass(frozen=True, slots=True)
class Rank:
    """What rows are ordered by."""

    by: Expression
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True, slots=True)
class TopSpec(Spec):
    """Number the rows of each partition in an order, from 1, ties by arrival, and give those up to `most`.

    The result is an update stream: its key is the partition, with the number where there may be several.

    partition  columns of the input
    number     the name of the number's column, behind those of the input
    replaces   the input is an update stream with this key (positions). Else all rows stay, and no place is ever vacated
    closes_us  the input is cut in windows: `partition` holds a bound of them, at `closes_at` in the input, and a row's
               time is at most that bound plus so much. Then a partition is given once, when time has gone past that
               (emit means nothing)
    ordered, emit    as of a running total (see AggregateSpec)
    """

    kind: ClassVar[str] = "top"
    word: ClassVar[str] = "top"
    partition: tuple[Column, ...]
    order: tuple[Rank, ...]
    number: str
    most: int = 0
    replaces: tuple[int, ...] | None = None
    closes_at: int | None = None
    closes_us: int = 0
    ordered: bool = False
    emit: Literal["latest", "every"] = "latest"

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        fields = (*inputs[0].data_fields, Field(self.number, Type.BIGINT, False))
        if not self.retracts(inputs[0]):
            return Schema(fields)
        return retracting(fields, (*self.partition_at, len(fields) - 1))

    @property
    def partition_at(self) -> tuple[int, ...]:
        """The positions of the partition's columns."""
        return tuple(column.position for column in self.partition)

    def retracts(self, source: Schema) -> bool:
        """Whether places are vacated: where rows go, or move from one partition to another."""
        if self.replaces is None or self.closes_at is not None:
            return False
        return source.retracts or not set(self.partition_at) <= set(self.replaces)


# -- windows and aggregates --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Windows [start, start + size) of time, one beginning every `slide`, aligned to the epoch plus an offset.

    TUMBLE has slide = size. A slide above the size leaves gaps, whose tuples are in no window.
    """

    size_us: int
    slide_us: int
    offset_us: int = 0

    def start(self, time_us: int) -> int:
        """The start of the last window that starts at this time or earlier."""
        return time_us - (time_us - self.offset_us) % self.slide_us

    def first_start(self, time_us: int) -> int:
        """The start of the first window that starts at this time or later."""
        return self.start(time_us + self.slide_us - 1)

    def last_ended(self, time_us: int) -> int:
        """The start of the last window that ends at this time or earlier."""
        return self.start(time_us - self.size_us)


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """Per key, tuples that follow each other by less than `gap`: [first, last + gap)."""

    gap_us: int


@dataclass(frozen=True, slots=True)
class RowWindow:
    """Windows of `size` tuples in the order in which the source took them in, one beginning every `slide` tuples.

    It counts positions on the arc that it reads. So its operator reads the source itself, and what stood in between
    (selects and maps) is folded into the spec: predicates into `where`, computed columns into the expressions.
    """

    size: int
    slide: int


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One aggregate of the select list: `function` is a key of the registry (`aggregates.AGGREGATES`)."""

    type: Type
    nullable: bool
    function: str
    arguments: tuple[Expression, ...] = ()
    distinct: bool = False
    filter: Expression | None = None


@dataclass(frozen=True, slots=True)
class AggregateSpec(Spec):
    """Group rows and aggregate each group, per window or (without one) as a running total.

    The rows it gives: keys, then calls, then bounds of the window. Each bound is `start` or `end`: timestamps, or
    positions in the arc under a RowWindow. Without a window the result is an update stream whose key is `keys`.

    ordered   take tuples in order of time (IOP) instead of as they come (OOP)
    flush     `none`: a closed window is given before anything more is taken. `slow`: one row per `flush_every` tuples
              taken. `lazy`: only when nothing else waits. Both give a row at the latest when time has gone
              `max_delay_us` past the end of its window, and go on whenever no tuple waits
    partial   whether windows that began before the query did are given
    emit      of a running total: the last of a group's rows of one execution, or one row per tuple
    where     rows that count for nothing but their position (see RowWindow)
    replaces  the input is an update stream with this key (positions): a row takes the place of its key's in its group.
              A group that has no row any more gives a tombstone
    rows      of sessions: give each row that it took, when its session closes, instead of one row per session. Then
              there are no calls, `keys` only say what sessions are cut by, and a row has the input's columns and the
              bounds
    """

    kind: ClassVar[str] = "aggregate"
    word: ClassVar[str] = "aggregate"
    window: TimeWindow | SessionWindow | RowWindow | None
    keys: tuple[tuple[str, Expression], ...] = ()
    calls: tuple[tuple[str, AggregateCall], ...] = ()
    bounds: tuple[tuple[str, Literal["start", "end"]], ...] = ()
    ordered: bool = False
    flush: Literal["none", "slow", "lazy"] = "none"
    max_delay_us: int = 0
    flush_every: int = 4
    partial: Literal["skip", "emit"] = "skip"
    emit: Literal["latest", "every"] = "latest"
    where: Expression | None = None
    replaces: tuple[int, ...] | None = None
    rows: bool = False
    newest: bool = False

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        if self.rows:
            return Schema((*inputs[0], *(Field(name, Type.TIMESTAMP, False) for name, _ in self.bounds)))
        bound = Type.BIGINT if isinstance(self.window, RowWindow) else Type.TIMESTAMP
        fields = (
            *(Field(name, key.type, key.nullable) for name, key in self.keys),
            *(Field(name, call.type, call.nullable) for name, call in self.calls),
            *(Field(name, bound, False) for name, _ in self.bounds),
        )
        if self.replaces is None or not self.retracts(inputs[0]):
            return Schema(fields)
        return retracting(fields, range(len(self.keys)))

    def retracts(self, source: Schema) -> bool:
        """Whether groups may lose their last row and go: where rows go, or move from one group to another. The one
        group of all rows stays."""
        if self.replaces is None or not self.keys:
            return False
        moves = not all(isinstance(key, Column) and key.position in self.replaces for _, key in self.keys)
        return source.retracts or moves


@dataclass(frozen=True, slots=True)
class WindowSpec(Spec):
    """Each row once per window that it falls into, with the bounds behind its columns, at the row's own time.

    Under a RowWindow it reads the source itself, and what stood in between is folded into the spec, as with aggregates:
    `columns` (None: the input's) and `where`. Bounds are positions then. For sessions see AggregateSpec.
    """

    kind: ClassVar[str] = "map"
    word: ClassVar[str] = "window"
    window: TimeWindow | RowWindow
    bounds: tuple[tuple[str, Literal["start", "end"]], ...]
    partial: Literal["skip", "emit"] = "skip"
    columns: tuple[tuple[str, Expression], ...] | None = None
    where: Expression | None = None

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        bound = Type.BIGINT if isinstance(self.window, RowWindow) else Type.TIMESTAMP
        fields = inputs[0].fields
        if self.columns is not None:
            fields = tuple(Field(name, column.type, column.nullable) for name, column in self.columns)
        return Schema((*fields, *(Field(name, bound, False) for name, _ in self.bounds)))


@dataclass(frozen=True, slots=True)
class RetimeSpec(Spec):
    """The same rows at the time that a column carries, as when a window reads a join by one side's time.

    The planner vouches that no row's column is more than `lag_us` below its time: that is what promises lose. Rows
    whose column is null have no time: they are counted as failed.
    """

    kind: ClassVar[str] = "map"
    word: ClassVar[str] = "retime"
    position: int
    lag_us: int


# -- joins and sequences -----------------------------------------------------------------------------------------------

# A column of a joined row: its name, the input that it comes from, its position there (TIME is that row's own time).
Picked = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Band:
    """How far apart rows of two inputs may be: low_us <= right's time - left's time <= high_us.

    None is no bound. Both ends belong to it: times are whole microseconds, so an open end is the closed one beside it.
    """

    left: int
    right: int
    low_us: int | None = None
    high_us: int | None = None


@dataclass(frozen=True, slots=True)
class Equal:
    """Two inputs' rows match where these expressions, each over its own input, are equal. NULL equals nothing."""

    left: int
    left_key: Expression
    right: int
    right_key: Expression


@dataclass(frozen=True, slots=True)
class JoinSpec(Spec):
    """Rows of several inputs put together wherever they match: one row of each input, at the latest of their times.

    columns   what the rows hold; only what is named here is kept in the state
    bands     bounds on pairs of inputs; the operator derives what follows for the other pairs
    equal     keys; inputs that none ties to the others match by time and `where` alone
    where     what else must hold, over `columns`
    outer     rows of these inputs that no row of the other can match any more are given at their own time, with nulls
              for it (two inputs only)
    rows      per input, how many of its newest rows (in order of time, then arrival) may match; None is any number.
              With it, rows are joined in order of time whatever `order`
    order     `arrival`: rows are joined as they come, and given at once (OOP-Join). Otherwise the output is in order
              of time: `sync` puts the inputs in order first, `filter` joins at once and holds the output back, and
              `adaptive` is the one or the other, by whether c |w| l1 l2 reaches `alpha` (NILE)
    """

    kind: ClassVar[str] = "join"
    word: ClassVar[str] = "join"
    columns: tuple[Picked, ...]
    bands: tuple[Band, ...] = ()
    equal: tuple[Equal, ...] = ()
    where: Expression | None = None
    outer: tuple[int, ...] = ()
    rows: tuple[int | None, ...] | None = None
    order: Literal["arrival", "sync", "filter", "adaptive"] = "arrival"
    alpha: float = 0.3

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        return picked_schema(self.columns, inputs, {1 - position for position in self.outer})

    @property
    def counts_rows(self) -> bool:
        """Whether any input's window is a number of rows."""
        return self.rows is not None and any(most is not None for most in self.rows)


@dataclass(frozen=True, slots=True)
class SequenceSpec(Spec):
    """Input 0 FOLLOWED BY input 1, in order of time: a row of 1 with a row of 0 at or before its time (EQG, section 5).

    columns     what the rows hold
    keys        pairs of expressions over input 0 and input 1 that must be equal: patterns are told apart by them.
                NULL equals nothing
    where       what must hold for the chosen pair, over `tested`, or over `columns` if that is empty. A pair is chosen
                by time and keys alone: if it fails there is no row, and under `chronicle` both are used up all the same
    mode        `recent`: the newest row of 0 with these keys, which may be chosen again. `chronicle`: the oldest that
                has not been used, and both are used up
    within_us   how much later the row of 1 may be; None is any time
    absent      instead: a row of 0 at its time + within_us (which must be given), if no row of 1 with these keys came
                by then for which `where` holds. Its `columns` are of input 0 alone; `mode` means nothing
    outer       instead of nothing, a row of 1 without a row of 0 is given with nulls, also if the chosen pair fails
                (`a LEFT JOIN LATEST b`). Not with `absent`
    tested      the columns of a pair that `where` is over, of either input; the time of such a row is input 1's
    """

    kind: ClassVar[str] = "sequence"
    word: ClassVar[str] = "followed_by"
    columns: tuple[Picked, ...]
    keys: tuple[tuple[Expression, Expression], ...] = ()
    where: Expression | None = None
    mode: Literal["recent", "chronicle"] = "recent"
    within_us: int | None = None
    absent: bool = False
    outer: bool = False
    tested: tuple[Picked, ...] = ()

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        return picked_schema(self.columns, inputs, {0} if self.outer else set())


def picked_schema(columns: Sequence[Picked], inputs: Sequence[Schema], missing: set[int]) -> Schema:
    """The fields of a joined row; those of an input that may be missing can be null."""
    fields = []
    for name, at, position in columns:
        if position == TIME:
            fields.append(Field(name, Type.TIMESTAMP, at in missing))
        else:
            field = inputs[at].fields[position]
            fields.append(Field(name, field.type, field.nullable or at in missing))
    return Schema(tuple(fields))
