"""Typed expressions: what a select tests and a map computes.

The binder makes them from SQL; `evaluate.py` computes them over batches. They are plain frozen data, so a plan can
be compared, saved and sent. Types are decided when an expression is made, never while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace.protocol import Type

# The position that means the tuple's own time rather than one of its columns.
TIME = -1


@dataclass(frozen=True, slots=True)
class Expression:
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
    """The expression with parts exchanged; `change` sees the whole before its parts, and says None to what stays."""
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


def substitute(expression: Expression, columns: Sequence[Expression]) -> Expression:
    """The same over the rows that `columns` are computed from: what comes of folding a map into what reads it.

    Positions below zero, such as the row's own time, stay.
    """
    return rewrite(
        expression, lambda part: columns[part.position] if isinstance(part, Column) and part.position >= 0 else None
    )
