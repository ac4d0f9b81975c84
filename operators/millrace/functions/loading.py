"""Loading the module of user functions that a configuration names. Never anything that came over a network."""

from __future__ import annotations

import importlib
import sys
import traceback
from types import ModuleType

from millrace.functions import DECLARED
from millrace.operators.aggregates.registry import Aggregate
from millrace.operators.functions.library import Function
from millrace.protocol import MillraceError

Declared = list[Function | Aggregate]


class FunctionsError(MillraceError):
    """A module of functions that cannot be used."""

    code = "configuration"


def load(name: str) -> Declared:
    """Import a module, from the current folder or wherever Python finds it, and say which functions it has."""
    module = _imported(name)
    found: Declared = []
    for item in vars(module).values():
        # `vars` of the item: a class does not hand its functions on to those made from it.
        rows = getattr(item, "__dict__", {}).get(DECLARED, ())
        found += [row for row in rows if row not in found]
    if not found:
        raise FunctionsError(
            f"functions: {name} has none: decorate them with function or aggregate of millrace.functions"
        )
    return found


def _imported(name: str) -> ModuleType:
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
                f"functions: there is no module {error.name}, neither in the current folder nor where Python looks "
                "(PYTHONPATH)"
            ) from None
        raise FunctionsError(f"functions: {name} cannot be imported: {_told(error)}") from None
    except MillraceError as error:
        raise FunctionsError(f"functions: {name}{_line(error)}: {error.text}") from None
    except (Exception, SystemExit) as error:
        raise FunctionsError(f"functions: {name} cannot be imported: {_told(error)}") from None


def _told(error: BaseException) -> str:
    what = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' + what if what else ''}{_line(error)}"


def _line(error: BaseException) -> str:
    """Where in a user's file it happened."""
    if isinstance(error, SyntaxError):
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if "/millrace/" not in frame.filename.replace("\\", "/")]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
