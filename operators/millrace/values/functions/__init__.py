"""The functions and operators that expressions may use: one table, a file per subject."""

from __future__ import annotations

from millrace.values.functions import arithmetic, comparison, logic, mathematics, text, times
from millrace.values.functions.library import Function, Library

# What Millrace itself brings. `Library([*LIBRARY, *more])` has a user's functions beside them.
LIBRARY = Library(
    [row for subject in (arithmetic, comparison, logic, mathematics, text, times) for row in subject.FUNCTIONS]
)

__all__ = ["LIBRARY", "Function", "Library"]
