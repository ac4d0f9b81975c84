"""What `make docs` makes from the table of changes: the commands of the command line, and rows of documents."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc
from pprint import pformat
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from millrace.changes.change import Change, Route, Verb
from millrace.changes.table import CHANGES
from millrace.observe.metrics import RECONFIGURATIONS

HEAD: Final = '''"""The commands of changes, which `verbs.py` reads. `make docs` writes this file."""

# fmt: off
from typing import Any, Final

VERBS: Final[tuple[dict[str, Any], ...]] = '''
# Placeholders for values of options.
VALUES: Final = {"integer": "N", "number": "X", "text": "TEXT"}


def _routes() -> Iterator[tuple[type[Change], Route]]:
    for change in CHANGES:
        for route in change.routes:
            yield change, route


# -- the command line --------------------------------------------------------------------------------------------------


def verbs() -> str:
    """The module of the commands of changes."""
    data = tuple(_verb(change, route) for change, route in _routes())
    return f"{HEAD}{pformat(data, width=118, sort_dicts=False)}\n"


def _verb(change: type[Change], route: Route) -> dict[str, Any]:
    verb = route.verb
    fields = [_field(name, field, verb) for name, field in change.body(route).items()]
    arguments = [field for field in fields if field["argument"]]
    return {
        "section": verb.section,
        "path": verb.path,
        "summary": route.summary,
        "help": _help(change, route),
        "example": verb.example,
        "method": route.method,
        "kind": change.about,
        "rest": route.path.partition("{name}")[2],
        "fields": arguments + [field for field in fields if not field["argument"]],
        "one_of": list(verb.one_of),
        "needs": dict(verb.needs),
        "done": verb.done,
    }


def _help(change: type[Change], route: Route) -> str:
    return cleandoc(change.__doc__ or "") if len(change.routes) == 1 else f"{route.summary}."


def _field(name: str, field: FieldInfo, verb: Verb) -> dict[str, Any]:
    kind, choices = _type(field.annotation)
    argument = name in verb.arguments
    return {
        "name": name,
        "argument": argument,
        "type": kind,
        "choices": choices,
        "metavar": verb.metavars.get(name),
        "help": field.description,
        "required": kind != "texts" and (argument or field.is_required()),
        "default": None if field.is_required() or field.default_factory else field.default,
        "bounds": _bounds(field),
    }


def _type(annotation: Any) -> tuple[str, list[str]]:
    """The type of a field on the command line, and its words if it accepts no others."""
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    if get_origin(annotation) is Literal:
        return "text", list(get_args(annotation))
    if get_origin(annotation) is list:
        return "texts", []
    if kinds:
        (annotation,) = kinds
        return _type(annotation)
    return {str: "text", int: "integer", float: "number"}[annotation], []


def _bounds(field: FieldInfo) -> dict[str, Any]:
    named = {Ge: "ge", Gt: "gt", Le: "le", Lt: "lt"}
    return {named[type(limit)]: getattr(limit, named[type(limit)]) for limit in field.metadata if type(limit) in named}


def commands() -> str:
    """A row for each command of a change."""
    lines = ["| command | what it does |", "|---|---|"]
    for verb in (_verb(change, route) for change, route in _routes()):
        words = [f"millrace {verb['path']}", verb["kind"].upper(), *map(_usage, verb["fields"]), "[--plan]"]
        lines.append(f"| `{' '.join(words)}` | {_cell(verb['help'])} |")
    return "\n".join(lines) + "\n"


def _usage(field: dict[str, Any]) -> str:
    """A field in the line of its command."""
    if field["argument"]:
        word = "\\|".join(field["choices"]) or field["metavar"] or field["name"].upper()
        word += "..." if field["type"] == "texts" else ""
    else:
        word = f"--{field['name']} {field['metavar'] or VALUES[field['type']]}"
    return word if field["required"] else f"[{word}]"


# -- metrics -----------------------------------------------------------------------------------------------------------


def labels() -> str:
    """The kinds of changes in metrics."""
    return ", ".join(f"`{kind}`" for kind in RECONFIGURATIONS) + "\n"


# -- the HTTP API ------------------------------------------------------------------------------------------------------


def routes() -> str:
    """A row for each route of a change."""
    lines = ["| method | path | what it does | body |", "|---|---|---|---|"]
    for change, route in _routes():
        body = " ".join(_explained(name, field) for name, field in change.body(route).items())
        if one_of := " and ".join(f"`{name}`" for name in route.verb.one_of):
            body = f"Exactly one of {one_of}. {body}"
        lines.append(f"| {route.method} | `/api/v1/{route.path}` | {_cell(_help(change, route))} | {body} |")
    return "\n".join(lines) + "\n"


def _explained(name: str, field: FieldInfo) -> str:
    default = "" if field.is_required() or not field.default or field.default_factory else f" (`{field.default}`)"
    optional = "" if field.is_required() or default else " (optional)"
    return f"`{name}`{optional}{default}: {_cell(field.description or '')}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
