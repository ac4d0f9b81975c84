"""What every kind of operator says about itself: a definition as plain frozen data, and facts without defaults.

A spec knows neither buffers nor neighbours. Two operators with equal specs over equal inputs compute the same rows, so
a plan can be compared, shared, saved and shipped. Each kind has its spec in its folder, in `spec.py`. A fact is a claim
about the rows: the planner, the engine and a backfill rely on it, so `Spec` answers none of them. A family (`RowSpec`,
`PassingSpec`) answers what follows from its definition. If in doubt, take the cautious answer: no order, no lags, all
columns, no key, all earlier rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple, Self

from millrace.protocol import GONE, Field, Schema, Type
from millrace.values import expression as e
from millrace.values.definitions import Definition
from millrace.values.lags import Lags
from millrace.values.reach import HERE, Reaches

if TYPE_CHECKING:
    from millrace.operators.frame.operator import Operator, Site

Positions = set[int]
# Expressions over inputs: pairs of (input, expression) whose values agree in all rows of one state.
Shared = Sequence[tuple[int, e.Expression]]
# When a row leaves: `at once` with the newest tuple in it, or when the mark (watermark) of all its streams has
# reached its time plus so many microseconds.
Leaving = int | Literal["at once", "unknown"]
# How its rows relate to the input's. `passed`: the same, at their own times. `extended`: the same, with more
# columns at the end. `made`: separate columns; fields that an input gains do not show in them.
Derivation = Literal["passed", "extended", "made", "other"]
# An expression in an input; None if it is not known there.
Origin = tuple[int, e.Expression | None]


class Updates(NamedTuple):
    """How an operator treats the rows of an update stream, which replace each other.

    takes             it takes each row in the place of an earlier one
    reads_all         every row of a key counts, not only the current one
    emits             whether its own rows replace each other: `updates` do, `rows` do not, `input`: as its input's
    depends_on_steps  which rows of a key it emits depends on how its input is batched
    by_order          which rows of a key it emits depends on the order of its input: it needs them in order of time
    retracts          it emits tombstones itself if its schema has them, and does not only pass them on
    """

    takes: bool
    reads_all: bool
    emits: Literal["rows", "updates", "input"]
    depends_on_steps: bool
    by_order: bool
    retracts: bool


# Rows are rows: nothing here depends on whether they replace each other.
INDIFFERENT: Final = Updates(
    takes=False, reads_all=False, emits="rows", depends_on_steps=False, by_order=False, retracts=False
)
PASSED_ON: Final = INDIFFERENT._replace(emits="input")


class State(NamedTuple):
    """Properties of an operator's state.

    shared  whether a later query may read it. `always`: it passes tuples on at once, each with its time, and has no
            state. `from its start`: only before it has taken a tuple
    lost    what a restart without the state means for the rows; None if nothing
    start   from when on it reads a stream that has rows already: as its `query` says, from above the `newest`, or
            from the `beginning`
    counts  whether its rows depend on how many rows arrived before them
    """

    shared: Literal["always", "from its start", "never"]
    lost: str | None
    start: Literal["query", "newest", "beginning"]
    counts: bool


STATELESS: Final = State("always", None, "query", counts=False)
STATEFUL: Final = State("from its start", "its state has no earlier rows", "query", counts=False)


class Edits(NamedTuple):
    """What an admin may do with it in a running query.

    filters  it only drops rows, so it may be inserted and removed
    share    the share of the rows that it passes at random; None if the rows decide
    instead  the operator that takes its place if another one that filters is to replace it; None if none can
    """

    filters: bool
    share: float | None
    instead: Callable[[Spec], Spec | None]


FIXED: Final = Edits(False, None, lambda spec: None)


@dataclass(frozen=True, slots=True)
class Spec(Definition, ABC):
    """The definition of an operator, and facts about it. Reports call it `kind`; names start with SQL's `word`."""

    kind: ClassVar[str]
    word: ClassVar[str]

    @abstractmethod
    def schema(self, inputs: Sequence[Schema]) -> Schema:
        """The schema of its rows."""

    @abstractmethod
    def derivation(self) -> Derivation:
        """How its rows relate to the input's."""

    @abstractmethod
    def gives_order(self, inputs: Sequence[bool]) -> bool:
        """Whether its rows are in order of time, if these of its inputs are."""

    @abstractmethod
    def lags(self, inputs: Sequence[Lags], schemas: Sequence[Schema]) -> Lags:
        """The progressing columns of its rows, and how far each may be from the row's time."""

    @abstractmethod
    def window_bound(self, column: int, width: int) -> bool | tuple[int, int]:
        """Whether a column is the bound of a window of time, or the (input, position) that it is copied from. `width`
        is how many columns it has."""

    @abstractmethod
    def used_columns(self, used: Positions, widths: Sequence[int]) -> list[Positions]:
        """The positions of each input that it reads, if these of its rows are used."""

    @abstractmethod
    def state_keys(self, schemas: Sequence[Schema]) -> Sequence[Shared] | str | None:
        """What all rows of one of its states share, per component of the key; the reason if they share nothing; None if
        it keeps no rows together."""

    @abstractmethod
    def origins(self, key: e.Expression, schemas: Sequence[Schema]) -> list[Origin]:
        """What an expression over its rows is in each input: the same for all rows that went into one."""

    @abstractmethod
    def reaches(self, lags: Sequence[Lags]) -> Reaches:
        """How far from a row's time the input lies that it depends on, if these are the lags of the inputs."""

    @abstractmethod
    def leaving(self, inputs: Sequence[Leaving]) -> Leaving:
        """When its rows leave, if the inputs' rows leave so. A report in slices relies on it."""

    @abstractmethod
    def updates(self) -> Updates:
        """How it treats an update stream."""

    @abstractmethod
    def every(self) -> Self:
        """The same operator, which emits every row of a key."""

    @abstractmethod
    def state(self) -> State:
        """Properties of its state."""

    @abstractmethod
    def edits(self) -> Edits:
        """What an admin may do with it in a running query."""

    @abstractmethod
    def words(self, inputs: Sequence[str]) -> str:
        """Its description in EXPLAIN; `inputs` are short names of the inputs."""

    @abstractmethod
    def build(self, site: Site) -> Operator:
        """The operator."""


class RowSpec(Spec):
    """An operator that processes each row alone and has no state."""

    __slots__ = ()

    def gives_order(self, inputs: Sequence[bool]) -> bool:
        return all(inputs)

    def state_keys(self, schemas: Sequence[Schema]) -> None:
        return None

    def reaches(self, lags: Sequence[Lags]) -> Reaches:
        return Reaches([HERE])

    def leaving(self, inputs: Sequence[Leaving]) -> Leaving:
        return inputs[0]

    def updates(self) -> Updates:
        return PASSED_ON

    def every(self) -> Self:
        return self

    def state(self) -> State:
        return STATELESS


class PassingSpec(Spec):
    """An operator of one input whose rows are rows of that input, unchanged."""

    __slots__ = ()

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        return inputs[0]

    def derivation(self) -> Derivation:
        return "passed"

    def lags(self, inputs: Sequence[Lags], schemas: Sequence[Schema]) -> Lags:
        return inputs[0]

    def window_bound(self, column: int, width: int) -> tuple[int, int]:
        return 0, column

    def used_columns(self, used: Positions, widths: Sequence[int]) -> list[Positions]:
        return [set(used)]

    def origins(self, key: e.Expression, schemas: Sequence[Schema]) -> list[Origin]:
        return [(0, key)]


# -- answers that several kinds have in common -------------------------------------------------------------------------


def if_at_once(inputs: Sequence[Leaving], leaving: Leaving) -> Leaving:
    """The answer of an operator that is known where its inputs do not wait."""
    return leaving if all(at == "at once" for at in inputs) else "unknown"


def all_columns(widths: Sequence[int]) -> list[Positions]:
    """The positions of all columns of each input."""
    return [set(range(width)) for width in widths]


def column_at(schema: Schema, position: int) -> e.Column:
    field = schema.fields[position]
    return e.Column(field.type, field.nullable, position, field.name)


def within(key: e.Expression, width: int) -> list[Origin]:
    """The origin of an expression over rows whose first columns are the input's."""
    return [(0, key if all(column.position < width for column in e.columns_of(key)) else None)]


def computed(key: e.Expression, columns: Sequence[e.Expression | None]) -> list[Origin]:
    """The origin of an expression over rows whose first columns are computed so; None is not known."""
    return [(0, substituted(key, columns))]


def substituted(key: e.Expression, columns: Sequence[e.Expression | None]) -> e.Expression | None:
    if any(column.position >= len(columns) or columns[column.position] is None for column in e.columns_of(key)):
        return None
    return e.rewrite(key, lambda part: columns[part.position] if isinstance(part, e.Column) else None)


def retracting(fields: Sequence[Field], key: Collection[int]) -> Schema:
    """Fields that are null in a tombstone unless they belong to the key, and the field that marks tombstones."""
    data_fields = [
        field if position in key else Field(field.name, field.type)
        for position, field in enumerate(fields)
        if field.name != GONE
    ]
    return Schema((*data_fields, Field(GONE, Type.BOOLEAN, False)))
