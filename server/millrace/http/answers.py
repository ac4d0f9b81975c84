"""Answers in JSON: views and data, written once and as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import Query, Response

from millrace.protocol.admin.data import to_data
from millrace.run.threads import in_thread

About = Annotated[
    str | None, Query(max_length=1_000, description="Only those that have this name in some text of theirs, as a word.")
]


def mentions(data: Any, name: str) -> bool:
    """Whether a text in some data has this name as a word. An operator's name has those of its stream or query."""
    match data:
        case str():
            return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", data) is not None
        case Mapping():
            return any(mentions(value, name) for value in data.values())
        case Sequence():
            return any(mentions(value, name) for value in data)
        case _:
            return False


def answer(data: Any, status: int = 200, etag: str | None = None) -> Response:
    """The answer with this data. Its model in the API's document is not applied to it, which would take as long again;
    a test compares them."""
    headers = None if etag is None else {"etag": etag}
    return Response(msgspec.json.encode(data), status, headers, media_type="application/json")


def shown(view: object, status: int = 200, etag: str | None = None) -> Response:
    """The answer with one view."""
    return answer(to_data(view), status, etag)


def listed(views: Sequence[object]) -> Response:
    """The answer with a list of views."""
    return answer([to_data(view) for view in views])


async def listed_aside(views: Sequence[object]) -> Response:
    """The same of a list that may take long to write: a thread does."""
    return await in_thread(lambda: listed(views))
