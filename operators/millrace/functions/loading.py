"""Imports the module of user functions that the configuration names. Nothing received from the network is imported."""

from __future__ import annotations

import importlib
import sys
import traceback
from types import ModuleType

from millrace.functions import DECLARED
from millrace.protocol import MillraceError
from millrace.values.aggregates.registry import Aggregate
from millrace.values.functions.library import Function

Registrations = list[Function | Aggregate]


class FunctionsError(MillraceError):
    """A module of functions is not usable."""

    code = "configuration"


def load(name: str) -> Registrations:
    """Import a module from the current folder or Python's path, and return the functions that it registers."""
    module = _import(name)
    registrations: Registrations = []
    for item in vars(module).values():
        # `__dict__` of the item: a subclass does not inherit a registration.
        rows = getattr(item, "__dict__", {}).get(DECLARED, ())
        registrations += [row for row in rows if row not in registrations]
    if not registrations:
        raise FunctionsError(
            f"functions: {name} registers no function: decorate them with function or aggregate of millrace.functions"
        )
    return registrations


def _import(name: str) -> ModuleType:
    plain = name.removesuffix(".py")
    if plain != name or not all(part.isidentifier() for part in name.split(".")):
        hint = f" such as {plain}" if plain.isidentifier() else ""
        raise FunctionsError(f"functions: expected the name of a module{hint}, got {name!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name + ".").startswith(error.name + "."):
            raise FunctionsError(
                f"functions: the module {error.name} does not exist in the current folder or on Python's path "
                "(PYTHONPATH)"
            ) from None
        raise FunctionsError(f"functions: cannot import {name}: {_describe(error)}") from None
    except MillraceError as error:
        raise FunctionsError(f"functions: {name}{_line(error)}: {error.text}") from None
    except (Exception, SystemExit) as error:
        raise FunctionsError(f"functions: cannot import {name}: {_describe(error)}") from None


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' + text if text else ''}{_line(error)}"


def _line(error: BaseException) -> str:
    """The file and line of the user's code that raised the error."""
    if isinstance(error, SyntaxError):
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if "/millrace/" not in frame.filename.replace("\\", "/")]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
