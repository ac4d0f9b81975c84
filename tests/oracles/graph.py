"""What a graph of selects, maps, unions and sorts has given, computed from scratch out of what its streams took in.

Dull on purpose: rows are tuples in lists, nothing is incremental, order is a filter. Shares no code with the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.oracles.stream import END, Taken

Row = tuple[int | None, int, int | None]  # time, id, v


@dataclass(frozen=True)
class NodeModel:
    """An operator: its kind, the names of what it reads, and for select and map its constant.

    below, divisor   select v < c; select c % v = 0 (a row with v = 0 cannot be computed)
    plus, quotient   map v + c; map c / v (likewise)
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    constant: int = 0

    @property
    def ordered(self) -> bool:
        return self.kind in ("merge", "sort")


class Impossible(Exception):  # noqa: N818 - an outcome of a row
    """The row cannot be computed."""


def below(row: Row, c: int) -> Row | None:
    return row if row[2] is not None and row[2] < c else None


def divisor(row: Row, c: int) -> Row | None:
    if row[2] == 0:
        raise Impossible
    return row if row[2] is not None and c % row[2] == 0 else None


def plus(row: Row, c: int) -> Row | None:
    return (row[0], row[1], None if row[2] is None else row[2] + c)


def quotient(row: Row, c: int) -> Row | None:
    if row[2] == 0:
        raise Impossible
    return (row[0], row[1], None if row[2] is None else c // row[2])


ROW_WISE: Mapping[str, Callable[[Row, int], Row | None]] = {
    "below": below,
    "divisor": divisor,
    "plus": plus,
    "quotient": quotient,
}


@dataclass(frozen=True)
class Given:
    """What a node has given, what it promises, and how many rows could not be computed on the way."""

    rows: list[Row]
    bound: int
    impossible: int = 0


def source(taken: Sequence[Taken], bound: int, admitted: Callable[[Taken], bool]) -> Given:
    """A stream's tuples, as one query reads them."""
    return Given([(one.ts, one.id, one.v) for one in taken if admitted(one)], bound)


def compute(node: NodeModel, inputs: Sequence[Given]) -> Given:
    """What a node gives when nothing is left to do."""
    bound = min((given.bound for given in inputs), default=END)
    if node.kind in ROW_WISE:
        return _row_wise(node, inputs[0])
    rows = [row for given in inputs for row in given.rows]
    if node.ordered:
        # Rows without a time wait for nobody.
        rows = [row for row in rows if row[0] is None or row[0] <= bound]
    return Given(rows, bound, sum(given.impossible for given in inputs))


def _row_wise(node: NodeModel, given: Given) -> Given:
    function = ROW_WISE[node.kind]
    rows, impossible = [], given.impossible
    for row in given.rows:
        try:
            made = function(row, node.constant)
        except Impossible:
            impossible += 1
        else:
            if made is not None:
                rows.append(made)
    return Given(rows, given.bound, impossible)
