"""Views as JSON data, and back.

Rule: a view is a frozen dataclass, and its fields are the keys of a JSON object, in order. A field may contain other
views: one, a sequence, or a mapping by name, each also optional. Where Python reserves a key, the field has an
underscore at its end (`key`). A field that has a new name is written under the old one too, until 0.3 (`former`). A
field that does not apply to each object is left out where it does not (`sparse`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import partial
from types import UnionType
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from millrace.protocol.errors import MillraceError

T = TypeVar("T")

# The entry of a field's metadata that has its new name.
NEW_NAME: Final = "new_name"
# The entry of a sparse field's metadata: the value that it has where it is left out.
ABSENT: Final = "absent"


def key(name: str) -> dict[str, Any]:
    """The metadata of a field whose key is a reserved word."""
    return {"alias": name}


def former(new_name: str) -> dict[str, Any]:
    """The metadata of a key that has the value of a renamed field; nobody sets or reads its own."""
    return {NEW_NAME: new_name}


class _Absent:
    """The value of a field that is left out, where None is written."""

    def __repr__(self) -> str:
        return "absent"


_ABSENT: Final = _Absent()


def sparse(*, nullable: bool = False) -> Any:
    """A field that is left out where it does not apply: while it is None, or if `nullable`, until it is set."""
    if nullable:
        return field(default_factory=lambda: _ABSENT, metadata={ABSENT: _ABSENT})
    return field(default=None, metadata={ABSENT: None})


def former_names(view: type) -> dict[str, str]:
    """By former name, the present name of a field."""
    return {field.name: field.metadata[NEW_NAME] for field in fields(view) if NEW_NAME in field.metadata}


class _Inner(NamedTuple):
    """The views in a field: their class, and whether there are many, in a row or by name."""

    view: type
    many: bool = False
    by_name: bool = False


class _Shape(NamedTuple):
    """How the views of a class are written and read.

    write     makes the object of a view, as if its keys and fields were written out
    inner     by key, the views in its value
    reads     the key and the field of each value that is read
    optional  the keys that may be missing: an older server does not send them
    """

    write: Callable[[Any], dict[str, Any]]
    inner: Mapping[str, _Inner]
    reads: Sequence[tuple[str, str]]
    optional: frozenset[str]


_SHAPES: Final[dict[type, _Shape]] = {}


def _shape(view: type) -> _Shape:
    found = _SHAPES.get(view)
    if found is None:
        found = _SHAPES[view] = _shape_of(view)
    return found


def _shape_of(view: type) -> _Shape:
    hints = get_type_hints(view)
    found = {_key(field): field for field in fields(view)}
    names = {name: field.metadata.get(NEW_NAME, field.name) for name, field in found.items()}
    inner = {name: inside for name, field in found.items() if (inside := _inner(hints[field.name])) is not None}
    reads = [(name, field.name) for name, field in found.items() if field.init]
    optional = frozenset(
        name for name, field in found.items() if field.default is not MISSING or field.default_factory is not MISSING
    )
    left_out = [(name, field.metadata[ABSENT]) for name, field in found.items() if ABSENT in field.metadata]
    write = _writer(names, inner)
    return _Shape(_leaving_out(write, left_out) if left_out else write, inner, reads, optional)


def _writer(names: Mapping[str, str], inner: Mapping[str, _Inner]) -> Callable[[Any], dict[str, Any]]:
    """A function from a view to an object: by key, the name of a field. Loops would take three times as long, and lists
    have thousands of views."""
    writers: dict[str, Any] = {}
    entries = []
    for number, (key, name) in enumerate(names.items()):
        value = f"view.{name}"
        if key in inner:
            writers[f"write{number}"] = _shape(inner[key].view).write
            value = _written(inner[key], f"write{number}", value)
        entries.append(f"{key!r}: {value}")
    write: Callable[[Any], dict[str, Any]] = eval(f"lambda view: {{{', '.join(entries)}}}", writers)
    return write


def _written(inner: _Inner, write: str, value: str) -> str:
    """The expression that writes the views in a value. Mostly there is none."""
    each = f"None if part is None else {write}(part)"
    if inner.by_name:
        found = f"{{name: {write}(part) for name, part in value.items()}}"
    else:
        found = f"[{each} for part in value]" if inner.many else f"{write}(value)"
    return f"({found} if (value := {value}) else value)"


def _leaving_out(write: Callable[[Any], dict[str, Any]], sparse: Sequence[tuple[str, object]]) -> Any:
    """The same without the keys that have these values."""

    def written(view: Any) -> dict[str, Any]:
        data = write(view)
        for name, absent in sparse:
            if data[name] is absent:
                del data[name]
        return data

    return written


def _key(field: Field[Any]) -> str:
    name: str = field.metadata.get("alias", field.name)
    return name


def _inner(annotation: Any) -> _Inner | None:
    """The views in a field of this type."""
    if is_dataclass(annotation):
        assert isinstance(annotation, type)
        return _Inner(annotation)
    found = next((inside for part in get_args(annotation) if (inside := _inner(part)) is not None), None)
    if found is None or get_origin(annotation) is UnionType:
        return found
    return _Inner(found.view, True, get_origin(annotation) is Mapping)


def to_data(view: Any) -> dict[str, Any]:
    """The JSON object of a view."""
    return _shape(type(view)).write(view)


def to_body(request: Any) -> dict[str, Any]:
    """The JSON object of a request. What has its default is left out, because an older server may not know it."""
    return {_key(field): value for field in fields(request) if (value := getattr(request, field.name)) != field.default}


def from_data(view: type[T], data: Any) -> T:
    """The view of a JSON object. Keys that only a newer server sends are left out."""
    shape = _shape(view)
    try:
        found = {field: data[name] for name, field in shape.reads if name in data or name not in shape.optional}
        for name, field in shape.reads:
            if name in shape.inner and field in found:
                inner = shape.inner[name]
                found[field] = _each(inner, found[field], partial(from_data, inner.view))
    except (KeyError, TypeError, AttributeError) as error:
        lacks = f"lacks {error}" if isinstance(error, KeyError) else "has another form"
        raise MillraceError(
            f"the server's answer {lacks} ({view.__name__}): use the `millrace` command of the server's version",
            code="unknown_answer",
        ) from None
    return view(**found)


def _each(inner: _Inner, value: Any, convert: Callable[[Any], Any]) -> Any:
    """A field's value with each of its views, or objects, converted."""
    if value is None:
        return None
    if inner.by_name:
        return {name: convert(part) for name, part in value.items()}
    if inner.many:
        return [None if part is None else convert(part) for part in value]
    return convert(value)
