"""Answers in JSON: views and data, written once and as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import Response

from millrace.protocol.admin.data import to_data
from millrace.run.threads import in_thread


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
