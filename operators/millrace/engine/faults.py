"""Calls into operators: whatever one raises costs its own queries, and nothing else.

In a step the fault becomes an `OperatorError`, and `failing.contain` stops the operator's queries. Between steps
nothing may change: a view has a cautious answer instead, and a save marks the queries, which stop when it is restored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from millrace.operators.frame.operator import Operator

T = TypeVar("T")


class OperatorError(Exception):
    """An operator raised when it was queried, rather than executed."""

    def __init__(self, operator: Operator, error: Exception) -> None:
        super().__init__(str(error))
        self.operator, self.error = operator, error


def ask(operator: Operator, question: Callable[[], T]) -> T:
    """Ask an operator in a step."""
    try:
        return question()
    except Exception as error:
        raise OperatorError(operator, error) from error


def ask_quietly(question: Callable[[], T], otherwise: T) -> T:
    """Ask between steps, or an operator that is about to go."""
    try:
        return question()
    except Exception:
        return otherwise
