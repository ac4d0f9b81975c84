"""Entity tags: two admins who change the same thing at once do not undo each other unawares.

Rule: a tag covers an object's definition and the decisions about it, never its counters, so it stays the same while
tuples flow. A change with `If-Match` is refused if the object has another tag when it is that change's turn.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from millrace.protocol import MillraceError

# What of each kind's view an admin decides. A stream's policies are all in its statement, ALTER rewrites it.
DECIDED: Final[Mapping[str, tuple[str, ...]]] = {
    "stream": ("name", "fields", "timestamps", "sql"),
    "query": ("name", "fields", "order", "joins", "operators", "state", "reason", "sql"),
    "sink": ("name", "query", "type", "path", "format", "on_slow", "slow_limit", "slow_bytes", "sql"),
    "component": ("name", "operators", "strategy", "strategies", "weight", "breaks"),
    "operator": (
        "name",
        "kind",
        "component",
        "queries",
        "strategy",
        "break",
        "queues",
        "reads",
        "inserted",
        "where",
        "sample",
    ),
    "catalog": ("statements", "decisions"),
}
# Half of SHA-256: definitions are not hostile, and a person can still compare it by eye.
DIGITS: Final = 32


class Changed(MillraceError):  # noqa: N818 - not an error: an answer
    """The object is not as its editor saw it; `etag` and `now` describe its present state."""

    code = "changed"

    def __init__(self, kind: str, name: str, wanted: str, etag: str, now: Mapping[str, Any]) -> None:
        super().__init__(
            f"{f'{kind} {name}'.strip()} has changed since you read it: "
            f"If-Match has {wanted[:200]}, and the present tag is {etag}. "
            "Read it again, and repeat the change if it is still right"
        )
        self.etag = etag
        self.now = now


def etag(kind: str, item: Mapping[str, Any]) -> str:
    """The strong tag of a thing as a view shows it."""
    decided = {key: item[key] for key in DECIDED[kind]}
    text = json.dumps([kind, decided], sort_keys=True, separators=(",", ":"), default=str)
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"'


def matches(if_match: str, tag: str) -> bool:
    """Whether a header `If-Match` names this tag. Weak tags never match (RFC 9110, 13.1.1)."""
    return if_match.strip() == "*" or tag in (part.strip() for part in if_match.split(","))
