"""Translates a SELECT with groups or aggregates: binding collects the aggregate calls, then every expression is
rewritten over the output of the aggregate operator.

A bound expression first holds columns of the input and placeholders. The window's bounds have placeholders, and so has
each call. Of the columns, only the GROUP BY columns may remain after the rewrite.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from millrace.operators.aggregate.spec import AggregateCall
from millrace.sql.windows import BOUNDS
from millrace.values import expression as e

_FIRST_CALL: Final = min(BOUNDS.values()) - 1


class Calls:
    """The aggregates of one SELECT, each once, and their placeholder columns."""

    def __init__(self) -> None:
        self._places: dict[AggregateCall, int] = {}

    @property
    def calls(self) -> list[AggregateCall]:
        return list(self._places)

    def column(self, call: AggregateCall, name: str) -> e.Column:
        """The placeholder of a call."""
        at = self._places.setdefault(call, len(self._places))
        return e.Column(call.type, call.nullable, _FIRST_CALL - at, name)


class Ungrouped(Exception):  # noqa: N818 - carries a column to the caller, which knows its place in the text
    def __init__(self, column: e.Column) -> None:
        super().__init__(column.name)
        self.column = column


class Output:
    """The output row of the aggregate operator: keys, calls, and the window bounds that the SELECT uses."""

    def __init__(self, keys: Sequence[e.Expression], calls: Sequence[AggregateCall]) -> None:
        self.keys = keys
        self._places: dict[e.Expression, int] = {}
        for at, key in enumerate(keys):
            self._places.setdefault(key, at)
        self.calls = calls
        self.bounds: list[str] = []

    def column(self, expression: e.Expression) -> e.Expression:
        """The expression over the output row instead of the input row. Raises Ungrouped."""
        return e.rewrite(expression, self._part)

    def _part(self, part: e.Expression) -> e.Expression | None:
        at = self._places.get(part)
        if at is not None:
            name = part.name if isinstance(part, e.Column) else "key"
            return e.Column(part.type, part.nullable, at, name)
        if not isinstance(part, e.Column):
            return None
        if is_bound(part):
            if part.name not in self.bounds:
                self.bounds.append(part.name)
            return replace(part, position=len(self.keys) + len(self.calls) + self.bounds.index(part.name))
        if part.position <= _FIRST_CALL:
            return replace(part, position=len(self.keys) + _FIRST_CALL - part.position)
        raise Ungrouped(part)

    def names(self, selected: Sequence[tuple[str, e.Expression]]) -> list[str]:
        """The names of its columns: the names in the select list, else the names of the key, function or bound."""
        names: dict[int, str] = {}
        for name, column in selected:
            if isinstance(column, e.Column) and column.position not in names:
                names[column.position] = name
        used = set(names.values())
        last: dict[str, int] = {}
        own = [key.name if isinstance(key, e.Column) else "key" for key in self.keys]
        own += [call.function.partition("(")[0] for call in self.calls]
        own += self.bounds
        for position, name in enumerate(own):
            if position not in names:
                names[position] = free_name(name, used, last)
                used.add(names[position])
        return [names[position] for position in range(len(own))]


def free_name(name: str, used: Collection[str], last: dict[str, int] | None = None) -> str:
    """The name, with a number if it is in use. `last` caches the last number of each name across calls."""
    last = {} if last is None else last
    number = last.get(name, 1)
    free = name if number == 1 else f"{name}{number}"
    while free in used:
        number += 1
        free = f"{name}{number}"
    last[name] = number
    return free


def is_bound(part: e.Expression) -> bool:
    """Whether a part is the placeholder of a window's bound."""
    return isinstance(part, e.Column) and part.position in BOUNDS.values()


def has_bound(expression: e.Expression) -> bool:
    return any(map(is_bound, e.columns_of(expression)))
