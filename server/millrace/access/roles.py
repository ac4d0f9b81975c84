"""Roles, what each of them may do, and for which streams and queries: the one decision about access.

Rule: whatever is not allowed here is refused. `needs.py` says which action each route, message, line and statement is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from typing import Final, NamedTuple

from millrace.engine.plan import CHANGE_STREAM, origin_of
from millrace.protocol import MillraceError


class Role(StrEnum):
    """What a client is there for."""

    FEED = "feed"
    READ = "read"
    OPERATE = "operate"
    CHANGE = "change"
    ADMIN = "admin"


class Action(StrEnum):
    """What a client wants to do.

    MEET     learn that the server is there, its version and its addresses
    LOOK     see the definition of a stream, as its feeds and its readers must
    FEED     send tuples
    READ     see rows, definitions, plans and measurements
    OPERATE  change when something runs, never what it computes
    CHANGE   change what is computed: streams, queries, sinks and operators
    ADMIN    the server itself: its standbys, promotion and tokens
    """

    MEET = "meet"
    LOOK = "look"
    FEED = "feed"
    READ = "read"
    OPERATE = "operate"
    CHANGE = "change"
    ADMIN = "admin"


_READING: Final = frozenset({Action.MEET, Action.LOOK, Action.READ})

ACTIONS: Final[Mapping[Role, frozenset[Action]]] = {
    Role.FEED: frozenset({Action.MEET, Action.LOOK, Action.FEED}),
    Role.READ: _READING,
    Role.OPERATE: _READING | {Action.OPERATE},
    Role.CHANGE: _READING | {Action.OPERATE, Action.CHANGE},
    Role.ADMIN: frozenset(Action),
}

# The role that an action needs, in the words of a refusal.
NEEDED: Final[Mapping[Action, str]] = {
    Action.MEET: "any role",
    Action.LOOK: "the role feed or read",
    Action.FEED: "the role feed",
    Action.READ: "the role read",
    Action.OPERATE: "the role operate",
    Action.CHANGE: "the role change",
    Action.ADMIN: "the role admin",
}


class Extent(Enum):
    """An object that is not one stream or query.

    WHOLE      the server, or what belongs to several streams and queries: components, operators, the catalog
    SOMEWHERE  any stream or query: a list shows those that the client may see
    """

    WHOLE = "all streams and queries"
    SOMEWHERE = "a stream or query"


WHOLE, SOMEWHERE = Extent.WHOLE, Extent.SOMEWHERE


class SinkOf(NamedTuple):
    """A sink, which belongs to its query: to none if there is no such sink."""

    name: str
    query: str | None


# The name of a stream or query, a sink, or an extent.
Object = str | SinkOf | Extent
# The names of streams and queries that a role is limited to. None: it is not limited.
Scope = frozenset[str] | None


def allowed(role: Role, scope: Scope, action: Action, of: Object) -> bool:
    """Whether a role for these streams and queries includes this action on this object."""
    if action not in ACTIONS[role]:
        return False
    if isinstance(of, SinkOf):
        of = of.query or WHOLE
    return scope is None or of is SOMEWHERE or (isinstance(of, str) and _owner(of) in scope)


def _owner(name: str) -> str:
    """The stream whose late tuples a side stream has, or the name itself."""
    return origin_of(name) or name


class Grant(NamedTuple):
    """A role, and the names that it is limited to. Its text is `read`, or `read:board,trams`."""

    role: Role
    scope: Scope = None

    def __str__(self) -> str:
        return self.role if self.scope is None else f"{self.role}:{','.join(sorted(self.scope))}"

    def allows(self, action: Action, of: Object) -> bool:
        return allowed(self.role, self.scope, action, of)


EVERYTHING: Final = (Grant(Role.ADMIN),)

_NAME: Final = re.compile(rf"[\w-]{{1,128}}|{re.escape(CHANGE_STREAM.name)}", re.ASCII)


class BadGrantError(MillraceError):
    """A text that names no role."""

    code = "bad_role"


def parse_grant(text: str) -> Grant:
    """`ROLE` or `ROLE:NAME,NAME`. Raises BadGrantError."""
    word, colon, names = text.partition(":")
    if word not in tuple(Role):
        raise BadGrantError(f"expected a role ({', '.join(Role)}), perhaps with names as in read:board, got {text!r}")
    role = Role(word)
    if not colon:
        return Grant(role)
    scope = frozenset(names.split(","))
    wrong = sorted(name for name in scope if not _NAME.fullmatch(name))
    if wrong:
        raise BadGrantError(f"{text}: expected names of streams and queries with commas between, got {wrong[0]!r}")
    if role is Role.FEED and CHANGE_STREAM.name in scope:
        raise BadGrantError(
            f"{text}: only the server writes {CHANGE_STREAM.name}; read:{CHANGE_STREAM.name} lets a client read it"
        )
    if role is Role.ADMIN:
        raise BadGrantError(f"{text}: the role admin is for the whole server; use change:{names}, or admin alone")
    return Grant(role, scope)


def shown(grants: Sequence[Grant]) -> str:
    """Grants as a person reads them."""
    return " ".join(map(str, grants))
