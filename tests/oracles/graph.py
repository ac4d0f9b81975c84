"""The output of a graph of selects, maps, unions, sorts and aggregates, recomputed from the input of its streams.

Simple by design: rows are tuples in lists, nothing is incremental, order is a filter. Shares no code with the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.oracles import pairing, windows
from tests.oracles.stream import END, NEVER, AcceptedTuple

Row = tuple[int | None, int, int | None]  # time, id, v

# The number of groups of a grouping aggregate, by the ids of rows.
GROUPS = 3


@dataclass(frozen=True)
class NodeModel:
    """An operator: its kind, the names of its inputs, and for select and map its constant.

    below, divisor   select v < c; select c % v = 0 (a row with v = 0 cannot be computed)
    plus, quotient   map v + c; map c / v (likewise)
    hop, session     the sums of id and v per window (of `size`; a session's gap) and group
    total            the sums so far, one row per row
    join, recent, chronicle, absent   computed by `pairing`

    The method of an aggregate (`in_order`, `flush`, `delay`) changes nothing here.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    constant: int = 0
    size: int = 1
    slide: int = 1
    offset: int = 0
    grouped: bool = False
    in_order: bool = False
    flush: Literal["none", "slow", "lazy"] = "none"
    delay: int = 0
    partial: Literal["skip", "emit"] = "skip"
    keeps: Literal["groups", "bounded", "buffered", "adaptive"] = "groups"
    slots: int = 1
    pairing: pairing.Pairing | None = None

    @property
    def aggregates(self) -> bool:
        return self.kind in ("hop", "session", "total")

    @property
    def ordered(self) -> bool:
        if self.pairing is not None:
            return self.pairing.ordered
        return self.kind in ("merge", "sort", "hop", "session")


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
class NodeOutput:
    """The rows that a node has emitted, its bound for later rows, and the number of rows that could not be computed."""

    rows: list[Row]
    bound: int
    impossible: int = 0


def source(accepted: Sequence[AcceptedTuple], bound: int, admitted: Callable[[AcceptedTuple], bool]) -> NodeOutput:
    """A stream's tuples, as one query reads them."""
    return NodeOutput([(item.ts, item.id, item.v) for item in accepted if admitted(item)], bound)


def compute(node: NodeModel, inputs: Sequence[NodeOutput], since: int | None = None) -> NodeOutput:
    """The output of a node when no work is left; `since` is the first time that its query reads."""
    if node.pairing is not None:
        rows, bound = pairing.compute(node.pairing, [(upstream.rows, upstream.bound) for upstream in inputs])
        return NodeOutput(rows, bound, sum(upstream.impossible for upstream in inputs))
    if node.kind == "total":
        return _totals(node, inputs[0])
    if node.aggregates:
        return _windows(node, inputs[0], since if node.partial == "skip" else None)
    bound = min((upstream.bound for upstream in inputs), default=END)
    if node.kind in ROW_WISE:
        return _row_wise(node, inputs[0])
    rows = [row for upstream in inputs for row in upstream.rows]
    if node.ordered:
        # Rows without a time are never delayed.
        rows = [row for row in rows if row[0] is None or row[0] <= bound]
    return NodeOutput(rows, bound, sum(upstream.impossible for upstream in inputs))


def _sum(column: str) -> windows.Aggregate:
    return lambda rows: windows.total(rows, column, False)


def _windows(node: NodeModel, upstream: NodeOutput, since: int | None) -> NodeOutput:
    """The windows that end at or before the input's bound, and the least time of a later window."""
    rows: list[windows.Row] = [
        {"ts": ts, "place": place, "g": number % GROUPS, "id": number, "v": v}
        for place, (ts, number, v) in enumerate(upstream.rows)
    ]
    keys = ["g"] if node.grouped else []

    def results(since: int | None) -> list[windows.Result]:
        sums = (_sum("id"), _sum("v"))
        if node.kind == "session":
            return windows.sessions(rows, keys, sums, node.size, since)
        return windows.time_windows(rows, keys, sums, node.size, node.slide, node.offset, since)

    closed: list[Row] = [(time, row[-4], row[-3]) for row, time in results(since) if row[-1] <= upstream.bound]
    bound = upstream.bound
    if bound not in (NEVER, END):
        if node.kind == "session":
            bound = min([bound + node.size, *(row[-1] for row, _ in results(None) if row[-1] > bound)]) - 1
        else:
            first = node.offset + node.size
            bound = next(end for end in range(bound + 1, bound + node.slide + 1) if (end - first) % node.slide == 0) - 1
    return NodeOutput(closed, bound, upstream.impossible)


def _totals(node: NodeModel, upstream: NodeOutput) -> NodeOutput:
    """The sums up to each row, at the newest time of its group so far."""
    totals: list[Row] = []
    groups: dict[int, list[Row]] = {}
    for row in upstream.rows:
        group = groups.setdefault(row[1] % GROUPS if node.grouped else 0, [])
        group.append(row)
        vs = [v for _, _, v in group if v is not None]
        time = max(ts for ts, _, _ in group if ts is not None)
        totals.append((time, sum(number for _, number, _ in group), sum(vs) if vs else None))
    return NodeOutput(totals, upstream.bound, upstream.impossible)


def _row_wise(node: NodeModel, upstream: NodeOutput) -> NodeOutput:
    function = ROW_WISE[node.kind]
    rows, impossible = [], upstream.impossible
    for row in upstream.rows:
        try:
            result = function(row, node.constant)
        except Impossible:
            impossible += 1
        else:
            if result is not None:
                rows.append(result)
    return NodeOutput(rows, upstream.bound, impossible)
