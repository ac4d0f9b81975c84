"""What a module of user functions imports: `function` and `aggregate`.

    from millrace.functions import aggregate, function

    @function("double", returns="double")
    def celsius(fahrenheit):
        return (fahrenheit - 32) / 1.8

The server is told the module's name (`functions` in its configuration) and loads what the module's namespace holds
(`loading.py`). `docs/functions.md` says what is promised.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from millrace.operators.aggregates.registry import Aggregate, user_aggregate
from millrace.operators.functions.library import Function
from millrace.operators.functions.user import UserFunction
from millrace.protocol import Refuse, Type

__all__ = ["aggregate", "function"]

# The attribute under which a decorated object carries its rows.
DECLARED: Final = "__millrace__"
_TYPES: Final = {str(type): type for type in Type}
_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def function(
    *arguments: str, returns: str, name: str | None = None, vectorised: bool = False, nulls: bool = False
) -> Callable[[_Decorated], _Decorated]:
    """Make a Python function a function of SQL: the types of its arguments, and what it gives.

    name         what SQL calls it; else its own name
    vectorised   it takes a numpy array per argument and gives an array as long as they are
    nulls        it is called for null arguments too (None, or masked arrays); else null gives null
    """
    types = _types(arguments)
    result = _type(returns)

    def decorate(call: _Decorated) -> _Decorated:
        called = (name or call.__name__).lower()
        if vectorised and not types:
            raise Refuse(f"{called}: a vectorised function needs an argument, which says how long its result is")
        _check_callable(called, call, len(types))
        _declare(call, UserFunction(called, types, result, call, vectorised, nulls).row())
        return call

    return decorate


def aggregate(
    *arguments: str, returns: str, name: str | None = None, vectorised: bool = False
) -> Callable[[_Decorated], _Decorated]:
    """Make a class of the functions init, iterate, terminate and perhaps merge an aggregate of SQL.

    name         what SQL calls it; else the class's own name
    vectorised   iterate takes a numpy array per argument, with some of the group's rows
    """
    types = _types(arguments)
    result = _type(returns)

    def decorate(made: _Decorated) -> _Decorated:
        called = (name or made.__name__).lower()
        if vectorised and not types:
            raise Refuse(f"{called}: a vectorised aggregate needs an argument")
        wanted = {"init": 0, "iterate": 1 + len(types), "terminate": 1, "merge": 2}
        calls = {part: getattr(made, part, None) for part in wanted}
        for part, count in wanted.items():
            if calls[part] is None and part != "merge":
                raise Refuse(f"{called}: expected the functions init, iterate and terminate, and {part} is missing")
            if calls[part] is not None:
                _check_callable(f"{called}.{part}", calls[part], count)
        _declare(made, user_aggregate(called, types, result, vectorised=vectorised, **calls))  # type: ignore[arg-type]
        return made

    return decorate


def _declare(target: Any, row: Function | Aggregate) -> None:
    """Let the object carry one more row; decorated twice, it has two signatures."""
    setattr(target, DECLARED, (row, *vars(target).get(DECLARED, ())))


def _types(names: Sequence[str]) -> tuple[Type, ...]:
    return tuple(map(_type, names))


def _type(name: str) -> Type:
    found = _TYPES.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        raise Refuse(f"expected a type ({', '.join(_TYPES)}), got {name!r}")
    return found


def _check_callable(called: str, call: Any, count: int) -> None:
    """Refuse what cannot be called with so many arguments: better now than with the first tuple."""
    if not callable(call):
        raise Refuse(f"{called}: expected a function, got {type(call).__name__}")
    try:
        signature = inspect.signature(call)
    except ValueError:
        return  # some functions written in C do not tell
    try:
        signature.bind(*[None] * count)
    except TypeError:
        many = "1 argument" if count == 1 else f"{count} arguments"
        raise Refuse(f"{called} will be called with {many}, and takes {signature}") from None
