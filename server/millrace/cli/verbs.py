"""The commands of changes, made from the table of changes: what each accepts, sends and prints.

The table itself takes most of a second to import, so `make docs` writes the part that is needed here to
`change_verbs.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from inspect import Parameter, Signature
from string import Formatter
from typing import Annotated, Any, Final

import typer

from millrace.cli import show
from millrace.cli.change_verbs import VERBS
from millrace.cli.link import Link
from millrace.cli.names import request
from millrace.protocol.words import counted

# The help of an argument that names an object, where its name says too little.
NAMES: Final = {"component": "A component, or a stream, query or operator in it."}
TYPES: Final[Mapping[str, Any]] = {"text": str, "texts": list[str], "integer": int, "number": float}
# A part of a sentence, and another if the fields of the first have no values.
CHOICE: Final = re.compile(r"\[(.*?)\|(.*?)\]")


def function(path: str) -> Callable[..., None]:
    """The command of this path."""
    verb = next(verb for verb in VERBS if verb["path"] == path)

    def perform(link: Link, name: str, *, plan: bool, **values: Any) -> None:
        body = {field["name"]: values[_key(field)] for field in verb["fields"]}
        _perform(link, verb, name, {field: value for field, value in body.items() if value not in (None, [])}, plan)

    parameters = [Parameter("link", Parameter.POSITIONAL_OR_KEYWORD), *_parameters(verb)]
    perform.__doc__ = verb["help"]
    vars(perform)["__signature__"] = Signature(parameters)
    return perform


def _parameters(verb: Mapping[str, Any]) -> Iterator[Parameter]:
    """What typer reads: the object's name, the fields, and --plan."""
    kind = verb["kind"]
    yield _parameter("name", Annotated[str, typer.Argument(metavar=kind.upper(), help=NAMES.get(kind))])
    for field in verb["fields"]:
        yield _field(field)
    flag = typer.Option("--plan", help="Show what would change, without changing anything.")
    yield _parameter("plan", Annotated[bool, flag], False)


def _key(field: Mapping[str, Any]) -> str:
    """The parameter of a field: `name` is the object's."""
    return "new_name" if field["name"] == "name" else str(field["name"])


def _field(field: Mapping[str, Any]) -> Parameter:
    name, choices, bounds = field["name"], field["choices"], field["bounds"]
    kind: Any = (
        StrEnum(name.capitalize(), {word.upper(): word for word in choices}) if choices else TYPES[field["type"]]
    )
    limits = {"min": bounds.get("ge"), "max": bounds.get("le")} if kind is int else {}
    described: Any = {"metavar": field["metavar"], "help": field["help"], **limits}
    if field["argument"]:
        shown = typer.Argument(**described)
    else:
        shown = typer.Option(f"--{name}", **described)
    if field["required"]:
        return _parameter(_key(field), Annotated[kind, shown])
    return _parameter(_key(field), Annotated[kind | None, shown], field["default"])


def _parameter(name: str, annotation: Any, default: Any = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _perform(link: Link, verb: Mapping[str, Any], name: str, body: Mapping[str, Any], plan: bool) -> None:
    """Check the options, send the request, and print its answer."""
    for field in verb["fields"]:
        if field["type"] == "number" and field["name"] in body:
            _check_number(field["name"], body[field["name"]], field["bounds"])
    choices = [f"--{option}" for option in verb["one_of"]]
    given = [option for option in choices if option[2:] in body]
    if choices and len(given) != 1:
        hint = ", not both; make two changes for both" if given else ""
        raise typer.BadParameter(f"use {' or '.join(choices)}{hint}", param_hint=(given or choices)[-1])
    for option, other in verb["needs"].items():
        if option in body and other not in body:
            raise typer.BadParameter(f"only --{other} uses it", param_hint=f"--{option}")
    rest = verb["rest"] + ("?dry_run=true" if plan else "")
    answer, meant = request(link, verb["method"], verb["kind"], name, rest, body or None)
    if link.as_json:
        show.as_json(answer)
    elif plan:
        from millrace.cli.planned import show_plan
        from millrace.protocol.admin.changes import PlannedView
        from millrace.protocol.admin.data import from_data

        show_plan(from_data(PlannedView, answer).plan)
    else:
        show.tell(sentence(verb["done"], {**body, **answer, "name": meant}))


def _check_number(name: str, value: float, bounds: Mapping[str, float]) -> None:
    low, high = bounds.get("ge", bounds.get("gt", -math.inf)), bounds.get("lt", math.inf)
    above = value > low if "gt" in bounds else value >= low
    if not (above and value < high):
        first = "above" if "gt" in bounds else "from"
        text = f"expected a number {first} {low:g} to below {high:g}, got {value:g}"
        raise typer.BadParameter(text, param_hint=f"--{name}")


class _Words(Formatter):
    """Counts if the place names a noun, as `{skipped:tuple}` does."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec:
            return counted(value, format_spec)
        return ", ".join(value) if isinstance(value, list) else str(value)


def sentence(template: str, values: Mapping[str, Any]) -> str:
    """The sentence after a change (`Verb.done`)."""

    def choose(match: re.Match[str]) -> str:
        fields = [field for _, field, _, _ in Formatter().parse(match[1]) if field]
        return match[1] if all(values.get(field) for field in fields) else match[2]

    return _Words().vformat(CHOICE.sub(choose, template), (), values)
