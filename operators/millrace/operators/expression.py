"""Typed expressions: what a select tests and a map computes.

The binder makes them from SQL; `evaluate.py` computes them over batches. They are plain frozen data, so a plan can
be compared, saved and sent. Types are decided when an expression is made, never while it runs.
"""

from __future__ import annotations

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
