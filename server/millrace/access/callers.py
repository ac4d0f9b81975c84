"""Who a client is, and the refusal of actions that it may not take.

Rule: a refusal names the role that is missing and never says whether an object exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, TypeVar

from millrace.access.roles import EVERYTHING, NEEDED, WHOLE, Action, Extent, Grant, Object, SinkOf, shown
from millrace.protocol import MillraceError, Refuse

T = TypeVar("T")

NOT_PERMITTED: Final = "not_permitted"
# The characters of a name in a refusal: no object has a longer one.
SHOWN: Final = 128


@dataclass(frozen=True, slots=True)
class Caller:
    """A client that the server knows.

    name    of its token or certificate; None: the server requires none
    grants  what it may do
    proof   what the client showed: the hash of its token, or the name in its certificate
    """

    name: str | None
    grants: tuple[Grant, ...]
    proof: bytes | str = b""

    def may(self, action: Action, of: Object) -> bool:
        return any(grant.allows(action, of) for grant in self.grants)

    def must(self, action: Action, *objects: Object) -> None:
        """Refuse an action that is not allowed on each of the objects."""
        for of in objects:
            if not self.may(action, of):
                raise Refuse(f"this needs {NEEDED[action]}{_about(of)}; {self}", code=NOT_PERMITTED)

    def must_see_all(self) -> None:
        """Refuse what shows the whole graph, or the whole catalog."""
        self.must(Action.READ, WHOLE)

    @property
    def unlimited(self) -> bool:
        """Whether nothing needs to be decided."""
        return self.may(Action.ADMIN, WHOLE)

    @property
    def sees_all(self) -> bool:
        return self.may(Action.READ, WHOLE)

    def visible(self, action: Action, items: Iterable[T], named: Callable[[T], str]) -> list[T]:
        """The items of a list that this client may see."""
        return [item for item in items if self.may(action, named(item))]

    def told(self, error: MillraceError) -> str:
        """The text of an error for this client: without the names of objects that it may not see."""
        if self.sees_all or not error.code.startswith("unknown_"):
            return error.text
        head, found, _ = error.text.partition(" does not exist")
        return head + found

    def __str__(self) -> str:
        if self.name is None:
            return "the client is not known"
        return f"{self.name} has {shown(self.grants) or 'none'}"


def _about(of: Object) -> str:
    """The object in a refusal."""
    if of is Extent.SOMEWHERE:
        return ""
    if isinstance(of, Extent):
        return f" for {of.value}"
    name = of.name if isinstance(of, SinkOf) else of
    return f" for {name if name.isprintable() and len(name) <= SHOWN else 'that name'}"


# Every client of a server that requires no token.
ANYONE: Final = Caller(None, EVERYTHING)
# The caller of a request before it is identified.
NOBODY: Final = Caller(None, ())

current: Final[ContextVar[Caller]] = ContextVar("caller", default=NOBODY)
