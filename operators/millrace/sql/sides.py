"""The parts of a join: its sides with their tables, and the columns that it keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from millrace.operators.frame.picked import Picked
from millrace.sql import syntax as s
from millrace.sql.binder import TIME_NAME, Named, Relation
from millrace.sql.conditions import Wide
from millrace.values import expression as e


@dataclass(frozen=True, slots=True)
class Table:
    """One table of FROM in the rows of a side.

    clock   the position of its time; None if no downstream operator needs it
    stays   how long its rows are kept, if it has a RANGE
    """

    named: Named
    clock: int | None
    stays: int | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """An input of a join: rows, and the tables that they were joined from.

    rows   the number of newest rows that may match (ROWS)
    alike  of a join of update streams, per part of its key the positions that hold it in every row
    """

    relation: Relation
    tables: tuple[Table, ...]
    rows: int | None = None
    alike: tuple[tuple[int, ...], ...] = ()

    @property
    def title(self) -> str:
        return " and ".join(table.named.alias or "a query" for table in self.tables)


@dataclass(frozen=True, slots=True)
class Operand:
    """A link of a chain of joins: the joined table and its condition."""

    table: s.Table
    condition: s.Expr | None = None


class Picks:
    """The columns that an operator keeps of the wide row, each once."""

    def __init__(self, wide: Wide, tables: Sequence[Table]) -> None:
        self._wide = wide
        self._tables = tables
        self._places: dict[int, int] = {}
        self._named: list[str] = []  # the names for the number of columns at the last call

    @property
    def order(self) -> list[int]:
        return list(self._places)

    def add(self, position: int) -> None:
        self._places.setdefault(position, len(self._places))

    def index(self, position: int | None) -> int | None:
        """The position of a column of the wide row among the kept columns."""
        return None if position is None else self._places.get(position)

    def over(self, expression: e.Expression) -> e.Expression:
        """An expression over the wide row as one over the kept columns."""
        names = self.names()

        def placed(part: e.Expression) -> e.Expression | None:
            if not isinstance(part, e.Column) or part.position == e.TIME:
                return None
            at = self._places[part.position]
            return replace(part, position=at, name=names[at])

        return e.rewrite(expression, placed)

    def names(self) -> list[str]:
        """The names of the columns, with their table where two have the same name."""
        if len(self._named) != len(self._places):
            self._named = self._make_names()
        return self._named

    def _make_names(self) -> list[str]:
        own = {position: name for position, _, name in self._known()}
        plain = [own.get(position, TIME_NAME) for position in self.order]
        full = {
            position: f"{table.named.alias}.{name}" if table.named.alias else name
            for position, table, name in self._known()
        }
        counts = Counter(plain)
        names: dict[str, None] = {}
        for position, name in zip(self.order, plain, strict=True):
            chosen = full.get(position, name) if counts[name] > 1 else name
            while chosen in names:
                chosen = f"{chosen}{len(names) + 1}"
            names[chosen] = None
        return list(names)

    def _known(self) -> Iterator[tuple[int, Table, str]]:
        for table in self._tables:
            for name, position in (*table.named.columns.items(), (TIME_NAME, table.named.time)):
                if position is not None:
                    yield position, table, name
            if table.clock is not None and table.clock not in table.named.columns.values():
                yield table.clock, table, TIME_NAME

    def columns(self) -> tuple[Picked, ...]:
        return tuple(
            (name, *self._wide.place(position)) for name, position in zip(self.names(), self.order, strict=True)
        )


def shifted(side: Side, wide: Wide, at: int) -> list[Table]:
    """The tables of a side, with their positions in the wide row."""
    return [
        replace(
            table,
            named=wide.named(table.named, at),
            clock=None if table.clock is None else wide.position(at, table.clock),
        )
        for table in side.tables
    ]
