"""The control state as plain data: whole in a checkpoint, and what a change has changed of it in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from millrace.sql import Catalog as Definitions

_KINDS: Final = ("streams", "queries", "sinks")


def as_data(definitions: Definitions) -> dict[str, list[Any]]:
    """All definitions, each kind in its order."""
    return {kind: list(getattr(definitions, kind).values()) for kind in _KINDS}


def from_data(data: Mapping[str, list[Any]]) -> Definitions:
    return Definitions(**{kind: {one.name: one for one in data[kind]} for kind in _KINDS})


def difference(before: Definitions, after: Definitions) -> dict[str, list[Any]]:
    """By kind, the names after a change, each with its definition if that is new or another one."""
    changed = {}
    for kind in _KINDS:
        old, new = getattr(before, kind), getattr(after, kind)
        if old is not new:
            changed[kind] = [[name, None if old.get(name) is one else one] for name, one in new.items()]
    return changed


def changed(before: Definitions, difference: Mapping[str, list[Any]]) -> Definitions:
    """The definitions after a change."""
    parts = {}
    for kind in _KINDS:
        old = getattr(before, kind)
        entries = difference.get(kind)
        parts[kind] = old if entries is None else {name: old[name] if one is None else one for name, one in entries}
    return Definitions(**parts)
