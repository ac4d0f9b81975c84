"""Typed expressions: what a select tests and a map computes.

The binder makes them from SQL; `evaluate.py` computes them over batches. They are plain frozen data, so a plan can
be compared, saved and sent. Types are decided when an expression is made, never while it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


def substitute(expression: Expression, columns: Sequence[Expression]) -> Expression:
    """The same over the rows that `columns` are computed from: what comes of folding a map into what reads it."""
    match expression:
        case Column(position=position):
            return expression if position == TIME else columns[position]
        case Call(type, nullable, function, arguments):
            return Call(type, nullable, function, tuple(substitute(one, columns) for one in arguments))
        case Case(type, nullable, branches, otherwise):
            folded = tuple((substitute(test, columns), substitute(value, columns)) for test, value in branches)
            return Case(type, nullable, folded, substitute(otherwise, columns))
        case Cast(type, nullable, argument):
            return Cast(type, nullable, substitute(argument, columns))
        case _:
            return expression
