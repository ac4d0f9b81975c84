"""Views for tests that name only the fields they are about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from millrace.protocol.admin.data import from_data

T = TypeVar("T")
BLANKS: Mapping[Any, Any] = {str: "", int: 0, float: 0.0, bool: False}


def view(kind: type[T], data: Mapping[str, Any]) -> T:
    """The view of a JSON object in which keys may be missing: they are zero, empty, or null where that is possible."""
    return from_data(kind, completed(kind, data))


def completed(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    hints, found = get_type_hints(kind), dict(data)
    for field in fields(kind):
        key = field.metadata.get("alias", field.name)
        if field.init and key in found:
            found[key] = _inside(hints[field.name], found[key])
        elif field.init and field.default is MISSING:
            found[key] = _blank(hints[field.name])
    assert set(data) <= {field.metadata.get("alias", field.name) for field in fields(kind)}, "a field that it has not"
    return found


def _inside(annotation: Any, value: Any) -> Any:
    """A value with the views in it completed."""
    if is_dataclass(annotation) and isinstance(annotation, type):
        return completed(annotation, value) if isinstance(value, Mapping) else value
    for part in get_args(annotation):
        if isinstance(value, list | tuple):
            value = [_inside(part, one) for one in value]
        elif value is not None:
            value = _inside(part, value)
    return value


def _blank(annotation: Any) -> Any:
    if get_origin(annotation) is UnionType:
        return None
    if annotation in BLANKS:
        return BLANKS[annotation]
    if is_dataclass(annotation) and isinstance(annotation, type):
        return completed(annotation, {})
    return {} if get_origin(annotation) is Mapping else []
