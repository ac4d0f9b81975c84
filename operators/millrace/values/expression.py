"""Typed expressions: the conditions of selects and the columns of maps.

The binder makes them from SQL; `evaluate.py` computes them over batches. They are plain frozen data, so a plan can
be compared, saved and sent. Types are decided when an expression is made, never while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

from millrace.protocol import Type
from millrace.values.definitions import Definition

# The position that means the tuple's own time rather than one of its columns.
TIME = -1


@dataclass(frozen=True, slots=True)
class Expression(Definition):
    """An expression's type, and whether it may be null."""

    type: Type
    nullable: bool


@dataclass(frozen=True, slots=True)
class Column(Expression):
    """A column of the input row; position TIME is the row's timestamp."""

    position: int
    name: str


@dataclass(frozen=True, slots=True)
class Constant(Expression):
    """A literal; None is null."""

    value: Any


@dataclass(frozen=True, slots=True)
class Call(Expression):
    """A function or an operator of the library, by its resolved name."""

    function: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Case(Expression):
    """The first branch whose condition is true, else the last expression."""

    branches: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression


@dataclass(frozen=True, slots=True)
class Cast(Expression):
    """The argument as another type."""

    argument: Expression


def rewrite(expression: Expression, change: Callable[[Expression], Expression | None]) -> Expression:
    """The expression with parts replaced; `change` sees the whole before its parts, and returns None for no change."""
    changed = change(expression)
    if changed is not None:
        return changed
    match expression:
        case Call():
            return replace(expression, arguments=tuple(rewrite(one, change) for one in expression.arguments))
        case Cast():
            return replace(expression, argument=rewrite(expression.argument, change))
        case Case():
            branches = tuple((rewrite(test, change), rewrite(value, change)) for test, value in expression.branches)
            return replace(expression, branches=branches, otherwise=rewrite(expression.otherwise, change))
    return expression


class Extent(NamedTuple):
    """The size of an expression: the number of its parts (a shared part counts at each place), and the depth of their
    nesting. Constants do not count."""

    parts: int = 1
    depth: int = 1


def extent(expression: Expression, columns: Sequence[Extent] = ()) -> Extent:
    """The extent of an expression, including the known extents of the columns that it reads."""
    known: dict[int, Extent] = {}

    def measure(part: Expression) -> Extent:
        found = known.get(id(part))
        if found is None:
            found = known[id(part)] = whole(part)
        return found

    def whole(part: Expression) -> Extent:
        if isinstance(part, Constant):
            return Extent(0, 0)
        if isinstance(part, Column):
            return columns[part.position] if 0 <= part.position < len(columns) else Extent()
        inner = [measure(one) for one in parts(part)]
        return Extent(1 + sum(one.parts for one in inner), 1 + max((one.depth for one in inner), default=0))

    return measure(expression)


def parts(expression: Expression) -> Sequence[Expression]:
    """The expressions directly in an expression, in the order in which they are written."""
    match expression:
        case Call():
            return expression.arguments
        case Cast():
            return (expression.argument,)
        case Case():
            return (*(part for branch in expression.branches for part in branch), expression.otherwise)
    return ()


def functions_in(definition: Any) -> Iterator[str]:
    """The functions that the expressions of a definition call, wherever they are in it."""
    if isinstance(definition, Call):
        yield definition.function
    if is_dataclass(definition):
        for field in fields(definition):
            yield from functions_in(getattr(definition, field.name))
    elif isinstance(definition, Mapping):
        for value in definition.values():
            yield from functions_in(value)
    elif isinstance(definition, tuple | list):
        for value in definition:
            yield from functions_in(value)


def columns_of(expression: Expression) -> Iterator[Column]:
    """The columns in an expression, in the order of the text; the row's own time is one."""
    if isinstance(expression, Column):
        yield expression
    for part in parts(expression):
        yield from columns_of(part)


def positions_of(expressions: Iterable[Expression]) -> set[int]:
    """The positions of all columns in these expressions."""
    return {column.position for expression in expressions for column in columns_of(expression)}


def substitute(expression: Expression, columns: Sequence[Expression]) -> Expression:
    """The same over the rows from which `columns` are computed, as if its reader computed the map.

    Positions below zero, such as the row's own time, stay.
    """
    return rewrite(
        expression, lambda part: columns[part.position] if isinstance(part, Column) and part.position >= 0 else None
    )


def anonymous(expression: Expression, names: Sequence[str] | None = None) -> Expression:
    """The expression without what does not change its value: whether it may be null, and names other than these."""

    def plain(part: Expression) -> Expression | None:
        if not isinstance(part, Column):
            return None
        return Column(part.type, True, part.position, "" if names is None else names[part.position])

    return rewrite(expression, plain)
