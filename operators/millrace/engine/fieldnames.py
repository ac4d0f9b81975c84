"""Fields of views that have a new name: the old name is written too, until 0.3.

Rule: views are built with the new names, and `with_old_names` is the last step.
"""

from __future__ import annotations

from typing import Any, Final

NEW_NAMES: Final = {
    "far": "too_far_ahead",
    "broken": "broke_promise",
    "owed": "credit_used",
    "owed_bytes": "credit_used_bytes",
    "was": "previous",
    "left_out": "filtered",
    "leaves_us": "leaves_at_us",
    "asked_us": "requested_at_us",
    "asked_need_us": "requested_us",
}


def with_old_names(view: dict[str, Any]) -> dict[str, Any]:
    """The view, with each renamed field under its old name as well."""
    return view | {old: view[new] for old, new in NEW_NAMES.items() if new in view}
