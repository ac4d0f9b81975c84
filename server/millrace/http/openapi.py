"""The API's promises about its answers, for its OpenAPI document.

Rule: every status that a route can answer with is in the document, problems in their own media type. A test asks every
route thousands of strange questions and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.datastructures import DefaultPlaceholder
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from fastapi.utils import create_model_field

from millrace.protocol.admin.data import former_names
from millrace.protocol.admin.operators import OperatorView, TrialView
from millrace.protocol.admin.streams import FeedView, StreamView

PROBLEM: Final = "application/problem+json"
TITLES: Final[Mapping[int, str]] = {
    400: "The statement cannot be used",
    401: "A token is required",
    403: "This is not allowed",
    404: "It does not exist",
    405: "This cannot be done here",
    408: "The request took too long",
    409: "This cannot be done now",
    410: "It is gone",
    412: "It has changed meanwhile",
    413: "The request is too large",
    422: "The request is malformed",
    429: "Too many wrong tokens",
    431: "The head of the request is too large",
    500: "The server failed",
    503: "The server is not available",
}
# What can happen to any request: a missing or wrong token, a page of another site, another name for the server, a body
# that is too large, internal errors, too many at once.
ALWAYS: Final = (401, 403, 413, 422, 429, 500, 503)
SCHEMA: Final = {
    "title": "Problem",
    "description": "A refused request and the reason (RFC 9457).",
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string", "description": "urn:millrace: and the code."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "A sentence for people, with a remedy."},
        "code": {"type": "string", "description": "The word for programs."},
        "line": {"type": "integer", "description": "Where in the SQL, counted from 1."},
        "column": {"type": "integer"},
        "etag": {"type": "string", "description": "The present tag of the changed item."},
        "now": {"type": "object", "description": "The present item."},
    },
}
# The views with fields that have had another name.
RENAMED: Final = (FeedView, OperatorView, StreamView, TrialView)
UNTIL: Final = "The former name of `%s`, until 0.3."
Responses = dict[int | str, dict[str, Any]]


def refusals(*statuses: int) -> Responses:
    """The problems that a route can answer with."""
    content = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": TITLES[status], "content": content} for status in statuses}


def tagged(*statuses: int, status: int = 200) -> Responses:
    """A route whose answer carries the thing's tag, and its problems."""
    head = {"ETag": {"description": "The tag of the item's decisions.", "schema": {"type": "string"}}}
    return {status: {"description": "Done", "headers": head}, **refusals(*statuses)}


class ViewRoute(APIRoute):
    """A route whose answer is only described, in the document. FastAPI would prepare the descriptions at the start,
    which takes a tenth of a second and 4 MB."""

    def __init__(self, path: str, endpoint: Callable[..., Any], *, response_model: Any, **options: Any) -> None:
        described = not isinstance(response_model, DefaultPlaceholder)
        super().__init__(path, endpoint, response_model=None if described else response_model, **options)
        self._view = response_model if described else None

    def describe(self) -> None:
        if self._view is not None:
            name = f"Response_{self.unique_id}"
            self.response_field = create_model_field(name=name, type_=self._view, mode="serialization")


def document(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """The function that returns the document, built once."""
    made: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not made:
            for route in app.routes:
                if isinstance(route, ViewRoute):
                    route.describe()
            made.update(get_openapi(title=app.title, version=app.version, routes=app.routes))
            schemas = made.setdefault("components", {}).setdefault("schemas", {})
            schemas["Problem"] = SCHEMA
            for view in RENAMED:
                properties = schemas[view.__name__]["properties"]
                for old, new in former_names(view).items():
                    properties[old] = {**properties[new], "title": old, "deprecated": True, "description": UNTIL % new}
            for gone in ("HTTPValidationError", "ValidationError"):
                schemas.pop(gone, None)  # the framework's own form, which is never sent
        return made

    return openapi
