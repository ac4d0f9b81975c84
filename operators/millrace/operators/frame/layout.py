"""The versions of saved states: each kind of operator has one, next to its class.

Rule: a change of a saved state raises its kind's version and says how a state of the previous version is upgraded.
Older states, and newer ones, are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from millrace.protocol import Refuse

if TYPE_CHECKING:
    from millrace.operators.frame.operator import Operator


class Layout(NamedTuple):
    """The version of a kind's saved state.

    `upgrade` turns a state of the previous version into one of this version; the first version has none.
    """

    version: int
    upgrade: Callable[[Operator, Any], Any] | None = None

    def read(self, operator: Operator, version: int, state: Any) -> Any:
        """A saved state in this version's layout."""
        if version == self.version:
            return state
        if version == self.version - 1 and self.upgrade is not None:
            return self.upgrade(operator, state)
        known = f"version {self.version}" if self.upgrade is None else f"versions {self.version - 1} and {self.version}"
        way = "a newer Millrace" if version > self.version else "an older Millrace, and save it again"
        raise Refuse(
            f"the saved state of operator {operator.name} ({operator.kind}) has version {version}, and this Millrace "
            f"reads {known}: restore it with {way}",
            code="bad_state",
        )
