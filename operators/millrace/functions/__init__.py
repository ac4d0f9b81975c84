"""The decorators for user functions: `function` and `aggregate`.

    from millrace.functions import aggregate, function

    @function("double", returns="double")
    def celsius(fahrenheit):
        return (fahrenheit - 32) / 1.8

The setting `functions` of the server names the module, and `loading.py` imports it. `docs/functions.md` describes the
guarantees.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from millrace.protocol import Refuse, Type
from millrace.values.aggregates.registry import Aggregate, user_aggregate
from millrace.values.functions.library import Function
from millrace.values.functions.user import UserFunction

__all__ = ["aggregate", "function"]

# The attribute of a decorated object that has its registrations.
DECLARED: Final = "__millrace__"
_TYPES: Final = {str(type): type for type in Type}
_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def function(
    *arguments: str,
    returns: str,
    name: str | None = None,
    vectorised: bool = False,
    nulls: bool = False,
    deterministic: bool = True,
) -> Callable[[_Decorated], _Decorated]:
    """Register a Python function for SQL, with the types of its arguments and of its result.

    name            its name in SQL; default: the Python name
    vectorised      it takes a numpy array per argument and returns an array of the same length
    nulls           it is also called for null arguments (None, or masked arrays); default: null if an argument is null
    deterministic   it returns the same for the same arguments; False: it is called once for each row, and a server with
                    a journal records its results
    """
    types = _types(arguments)
    result = _type(returns)

    def decorate(call: _Decorated) -> _Decorated:
        called = (name or call.__name__).lower()
        if vectorised and not types:
            raise Refuse(f"{called}: a vectorised function needs an argument, which sets the length of its result")
        _check_callable(called, call, len(types))
        _declare(call, UserFunction(called, types, result, call, vectorised, nulls, deterministic).row())
        return call

    return decorate


def aggregate(
    *arguments: str, returns: str, name: str | None = None, vectorised: bool = False
) -> Callable[[_Decorated], _Decorated]:
    """Register a class with the functions init, iterate, terminate and optionally merge as an aggregate for SQL.

    name         its name in SQL; default: the name of the class
    vectorised   iterate takes a numpy array per argument, with some of the group's rows
    """
    types = _types(arguments)
    result = _type(returns)

    def decorate(target: _Decorated) -> _Decorated:
        called = (name or target.__name__).lower()
        if vectorised and not types:
            raise Refuse(f"{called}: a vectorised aggregate needs an argument")
        arities = {"init": 0, "iterate": 1 + len(types), "terminate": 1, "merge": 2}
        calls = {part: getattr(target, part, None) for part in arities}
        for part, count in arities.items():
            if calls[part] is None and part != "merge":
                raise Refuse(f"{called}: expected the functions init, iterate and terminate, and {part} is missing")
            if calls[part] is not None:
                _check_callable(f"{called}.{part}", calls[part], count)
        _declare(target, user_aggregate(called, types, result, vectorised=vectorised, **calls))  # type: ignore[arg-type]
        return target

    return decorate


def _declare(target: Any, row: Function | Aggregate) -> None:
    """Add a registration to the object. An object that is decorated twice has two signatures."""
    setattr(target, DECLARED, (row, *vars(target).get(DECLARED, ())))


def _types(names: Sequence[str]) -> tuple[Type, ...]:
    return tuple(map(_type, names))


def _type(name: str) -> Type:
    type_ = _TYPES.get(name.lower()) if isinstance(name, str) else None
    if type_ is None:
        raise Refuse(f"expected a type ({', '.join(_TYPES)}), got {name!r}")
    return type_


def _check_callable(called: str, call: Any, count: int) -> None:
    """Refuse a function that does not accept `count` arguments, before the first tuple arrives."""
    if not callable(call):
        raise Refuse(f"{called}: expected a function, got {type(call).__name__}")
    try:
        signature = inspect.signature(call)
    except ValueError:
        return  # some functions written in C have no signature
    try:
        signature.bind(*[None] * count)
    except TypeError:
        many = "1 argument" if count == 1 else f"{count} arguments"
        raise Refuse(f"{called}: expected a function of {many}, got {signature}") from None
