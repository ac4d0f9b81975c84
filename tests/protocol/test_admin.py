"""Views as JSON data and back."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.protocol import MillraceError, admin
from millrace.protocol.admin.bodies import TrialRequest, UndoRequest
from millrace.protocol.admin.changes import StatementView
from millrace.protocol.admin.data import ABSENT, former_names, from_data, to_body, to_data
from millrace.protocol.admin.operators import OperatorView
from millrace.protocol.admin.queries import Why
from millrace.protocol.admin.streams import FeedView, StreamView
from tests.depth import examples


def views() -> Iterator[type]:
    for module in pkgutil.iter_modules(admin.__path__):
        made = importlib.import_module(f"{admin.__name__}.{module.name}")
        yield from (one for one in vars(made).values() if isinstance(one, type) and one.__module__ == made.__name__)


VIEWS = [view for view in views() if is_dataclass(view)]
SCALARS: Mapping[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=5),
    int: st.integers(-5, 5),
    float: st.integers(-5, 5).map(float),
    bool: st.booleans(),
    NoneType: st.none(),
    object: st.none() | st.integers(0, 3) | st.text(max_size=3),
    Any: st.none() | st.integers(0, 3) | st.text(max_size=3),
}


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type. A new form of type needs a case here, and perhaps one in `data.py`."""
    if annotation in SCALARS:
        return SCALARS[annotation]
    if is_dataclass(annotation):
        assert isinstance(annotation, type)
        return made(annotation)
    inner = get_args(annotation)
    if get_origin(annotation) is UnionType:
        return st.one_of(*map(values, inner))
    if get_origin(annotation) in (Mapping, dict):
        return st.dictionaries(st.text(max_size=3), values(inner[1]), max_size=2)
    if get_origin(annotation) is Literal:
        return st.sampled_from(inner)
    assert get_origin(annotation) in (Sequence, list), annotation
    return st.lists(values(inner[0]), max_size=2)


def made(view: type) -> st.SearchStrategy[Any]:
    hints = get_type_hints(view)
    drawn = {field: values(hints[field.name]) for field in fields(view) if field.init}
    always = {field.name: inner for field, inner in drawn.items() if ABSENT not in field.metadata}
    sometimes = {field.name: inner for field, inner in drawn.items() if ABSENT in field.metadata}
    return st.fixed_dictionaries(always, optional=sometimes).map(lambda found: view(**found))


@settings(max_examples=examples(100))
@given(st.data())
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_a_view_survives_the_way_through_json(view: type, data: st.DataObject) -> None:
    one = data.draw(made(view))
    text = msgspec.json.encode(to_data(one))
    read = msgspec.json.decode(text)
    assert from_data(view, read) == one
    assert msgspec.json.encode(to_data(from_data(view, read))) == text
    for old, new in former_names(view).items():
        assert read[old] == read[new]
    there = [field for field in fields(view) if _applies(one, field)]
    assert list(read) == [field.name.removesuffix("_") for field in there]


def _applies(one: Any, field: Field[Any]) -> bool:
    return ABSENT not in field.metadata or getattr(one, field.name) is not field.metadata[ABSENT]


def test_renamed_fields_are_written_under_both_names() -> None:
    assert former_names(StreamView) == {"far": "too_far_ahead", "broken": "broke_promise"}
    assert former_names(OperatorView) == {"left_out": "filtered"}
    assert len(former_names(FeedView)) == 6


def test_what_does_not_apply_is_left_out_and_null_is_not() -> None:
    selected = StatementView(kind="select", name="q", limit=None, warnings=[])
    assert to_data(selected) == {"kind": "select", "name": "q", "warnings": [], "limit": None}


def test_a_request_has_what_differs_from_its_defaults() -> None:
    """An older server refuses fields that it does not know."""
    assert to_body(UndoRequest()) == {}
    assert to_body(TrialRequest(strategy="bfs", for_="1s")) == {"strategy": "bfs", "for": "1s"}


def test_an_answer_of_another_version() -> None:
    """Keys of a newer server are left out; one that an older server lacks has its default, or is named."""
    data = to_data(Why("Nothing is blocked.", "flowing"))
    assert from_data(Why, {**data, "newer": 1, "held": 3}).held == 3
    assert from_data(Why, {key: value for key, value in data.items() if key != "group"}).group is None
    with pytest.raises(MillraceError, match=r"lacks 'reason' \(Why\): use the `millrace` command"):
        from_data(Why, {key: value for key, value in data.items() if key != "reason"})
    other: tuple[Any, ...] = ([], "text", None, 7)
    for nonsense in other:
        with pytest.raises(MillraceError, match="has another form"):
            from_data(Why, nonsense)
