"""The control state as plain data: whole in a checkpoint, and what a change has changed of it in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace.sql import Catalog as Definitions
from millrace.sql.planned import KINDS, with_id


def as_data(definitions: Definitions) -> dict[str, Any]:
    """All definitions, each kind in its order, and the newest id."""
    return {kind: list(getattr(definitions, kind).values()) for kind in KINDS} | {"last_id": definitions.last_id}


def from_data(data: Mapping[str, Any]) -> Definitions:
    """The definitions. Those of earlier versions have no ids, and get them in this order: the same wherever they are
    read."""
    kinds = {kind: {one.name: one for one in data[kind]} for kind in KINDS}
    return Definitions(**kinds, last_id=data.get("last_id", 0)).identified()


def difference(before: Definitions, after: Definitions) -> dict[str, Any]:
    """By kind, the names after a change, each with its definition if that is new or another one; and the newest id."""
    changed: dict[str, Any] = {"last_id": after.last_id}
    for kind in KINDS:
        old, new = getattr(before, kind), getattr(after, kind)
        if old is not new:
            changed[kind] = [[name, None if old.get(name) is one else one] for name, one in new.items()]
    return changed


def changed(before: Definitions, difference: Mapping[str, Any]) -> Definitions:
    """The definitions after a change. Records of earlier versions have no ids: what is replaced keeps its id."""
    parts = {}
    for kind in KINDS:
        old = getattr(before, kind)
        entries = difference.get(kind)
        parts[kind] = old if entries is None else {name: _after(old.get(name), one) for name, one in entries}
    return Definitions(**parts, last_id=difference.get("last_id", before.last_id)).identified()


def _after(old: Any, new: Any) -> Any:
    if new is None:
        return old
    return new if old is None or new.id else with_id(new, old.id)
