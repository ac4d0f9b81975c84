"""A query's lowered plan as text: JSON in which every definition names its class and its fields.

A plan is stored when its query is created and read again at a restart, so that a query keeps its plan until it is
replaced, even if the planner has changed. `VERSION` changes when the same text would mean something else. A field
that a later class adds has its default in older texts; a class or a field that is gone makes a text unreadable.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

from millrace.engine.plan import QueryPlan
from millrace.engine.saving import CLASSES
from millrace.protocol import Refuse

VERSION: Final = 1

_CLASS: Final = "is"


def write(plan: QueryPlan) -> str:
    """The plan as text; equal plans have equal texts."""
    return json.dumps({"version": VERSION, "plan": _data(plan)}, ensure_ascii=False, separators=(",", ":"))


def read(text: str) -> QueryPlan:
    """The plan of a text. Refuse says why it cannot be read."""
    try:
        document = json.loads(text)
        version = document["version"]
        if version > VERSION:
            raise Refuse(
                f"a newer Millrace wrote it (plan format {version}; this one reads up to {VERSION})", code="bad_plan"
            )
        plan = _value(document["plan"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refuse(f"it does not fit this version ({type(error).__name__}: {error})", code="bad_plan") from None
    if not isinstance(plan, QueryPlan):
        raise Refuse("it is not the plan of a query", code="bad_plan")
    return plan


def ids(text: str) -> dict[str, int]:
    """The numbers of a plan's operators by name, also of a plan that cannot be read; none if they cannot be found."""
    try:
        return {str(node["name"]): int(node["id"]) for node in json.loads(text)["plan"]["nodes"]}
    except (KeyError, TypeError, ValueError):
        return {}


def _data(value: Any) -> Any:
    if isinstance(value, Enum):
        return {_CLASS: type(value).__name__, "value": value.value}
    if isinstance(value, tuple):
        return [_data(item) for item in value]
    if isinstance(value, bytes):
        return {_CLASS: "bytes", "value": b64encode(value).decode()}
    if is_dataclass(value):
        return {_CLASS: type(value).__name__} | {
            field.name: _data(getattr(value, field.name)) for field in fields(value) if field.init
        }
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a plan contains a {type(value).__name__}: {value!r}")


def _value(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_value(item) for item in data)
    if not isinstance(data, dict):
        return data
    arguments = {name: _value(value) for name, value in data.items() if name != _CLASS}
    if data[_CLASS] == "bytes":
        return b64decode(arguments["value"])
    return CLASSES[data[_CLASS]](**arguments)
