"""The kinds of operators: every class of specs in the folder of an operator."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import isabstract
from pkgutil import iter_modules

from millrace import operators
from millrace.operators.frame.spec import Spec
from millrace.values.definitions import DEFINITIONS


@cache
def kinds() -> list[type[Spec]]:
    """Every kind, by name. Importing them makes saved plans readable."""
    for folder in iter_modules(operators.__path__):
        module = f"millrace.operators.{folder.name}.spec"
        if folder.ispkg and find_spec(module) is not None:
            import_module(module)
    specs = [kind for _, kind in sorted(DEFINITIONS.items()) if issubclass(kind, Spec)]
    return [kind for kind in specs if not isabstract(kind)]
