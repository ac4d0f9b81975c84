"""Registers a user's functions with SQL, next to Millrace's functions, or refuses them.

The tables of functions belong to the process, like its code. All queries of the process use the same functions, which
are installed before any statement is planned.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from millrace.functions.loading import FunctionsError, load
from millrace.sql import syntax as s
from millrace.sql.binder import CLOCKS
from millrace.sql.errors import SqlError
from millrace.sql.parser import parse
from millrace.sql.windows import FUNCTIONS
from millrace.values.aggregates import AGGREGATES, Aggregate
from millrace.values.functions import LIBRARY, Function

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# Names that the binder handles itself.
_OWN: Final = frozenset([*CLOCKS, *FUNCTIONS, "extract", "date_part"])


def install_module(name: str) -> None:
    """Load a module of functions and register them. Raises FunctionsError with the reason."""
    install(load(name))


def install(rows: Sequence[Function | Aggregate]) -> None:
    """Register all functions or none. Functions that are already registered stay."""
    fresh = [row for row in rows if not _is_installed(row)]
    names: dict[str, type] = {}
    keys: set[str] = set()
    for row in fresh:
        _check_name(row.name)
        if names.setdefault(row.name, type(row)) is not type(row):
            raise FunctionsError(f"functions: {row.name} is both a function and an aggregate: rename one of them")
        if row.key in keys:
            raise FunctionsError(f"functions: {row.key} is defined twice")
        keys.add(row.key)
    for row in fresh:
        if isinstance(row, Function):
            LIBRARY.add(row)
        else:
            AGGREGATES.add(row)


def uninstall(rows: Iterable[Function | Aggregate]) -> None:
    """Unregister functions: for tests, which share a process."""
    for row in rows:
        if _is_installed(row):
            if isinstance(row, Function):
                LIBRARY.remove(row)
            else:
                AGGREGATES.remove(row)


def _is_installed(row: Function | Aggregate) -> bool:
    return any(installed is row for installed in (LIBRARY if isinstance(row, Function) else AGGREGATES).named(row.name))


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise FunctionsError(
            f"functions: expected a name of the letters a to z, digits and '_' (at most 63), got {name!r}"
        )
    if LIBRARY.named(name) or AGGREGATES.named(name) or name in _OWN:
        raise FunctionsError(f"functions: {name} is a function of Millrace: choose another name (name=...)")
    try:
        called = _called_function(parse(f"SELECT {name}()")[0])
    except SqlError:
        called = None
    if called != name:
        raise FunctionsError(f"functions: {name} is a word of SQL: choose another name (name=...)")


def _called_function(statement: s.Statement) -> str | None:
    """The function of a SELECT that consists of one call."""
    assert isinstance(statement.body, s.SelectStatement)
    assert isinstance(statement.body.query.first, s.Select)
    (item,) = statement.body.query.first.items
    if isinstance(item, s.Item) and isinstance(item.expression, s.FunctionCall):
        return item.expression.name.text
    return None
