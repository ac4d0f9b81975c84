"""The functions and operators that expressions may use: one table, a file per subject."""

from __future__ import annotations

from millrace.values.functions import arithmetic, comparison, logic, mathematics, text, times
from millrace.values.functions.library import Function, Library

# The built-in functions. `Library([*LIBRARY, *more])` adds a user's functions.
LIBRARY = Library(
    [row for subject in (arithmetic, comparison, logic, mathematics, text, times) for row in subject.FUNCTIONS]
)

__all__ = ["LIBRARY", "Function", "Library"]
