"""The control state: the definitions of statements, and facts about a server beyond its engine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from millrace.changes.names import nearest
from millrace.engine.plan import StreamDefinition
from millrace.protocol import Refuse
from millrace.sql import AlterStatement, Catalog, CreateStream, Planned
from millrace.sql.limits import KNOWN, Limits


@dataclass(frozen=True, slots=True)
class StreamDefaults:
    """Policies of streams that set none."""

    grace_us: int = 0
    ahead_us: int | None = None

    def settle(self, stream: StreamDefinition) -> StreamDefinition:
        if stream.timestamps != "external":
            return stream
        grace_us = self.grace_us if stream.grace_us is None else stream.grace_us
        ahead_us = self.ahead_us if stream.ahead_us is None else stream.ahead_us
        return replace(stream, grace_us=grace_us, ahead_us=ahead_us)

    def settle_step(self, step: Planned) -> Planned:
        match step:
            case CreateStream(stream):
                return CreateStream(self.settle(stream))
            case AlterStatement(_, changes, stream):
                settled = self.settle(stream)
                changes = tuple((policy, getattr(settled, policy)) for policy, _ in changes)
                return replace(step, changes=changes, stream=settled)
            case _:
                return step


@dataclass(frozen=True, slots=True)
class ControlState:
    """The control state of a server.

    definitions  its streams, queries and sinks
    strategy     the one of a new component
    temporary    the queries that end with their readers
    catching_up  the queries that lack their past: they start with closed gates
    """

    definitions: Catalog = field(default_factory=Catalog)
    strategy: str | None = None
    defaults: StreamDefaults = StreamDefaults()
    temporary: frozenset[str] = frozenset()
    catching_up: frozenset[str] = frozenset()
    limits: Limits = KNOWN

    def with_(self, definitions: Catalog) -> ControlState:
        return replace(self, definitions=definitions)

    def must_know(self, kind: str, name: str) -> None:
        """Refuse a name that no object has; there may be a similar one."""
        known = {
            "stream": self.definitions.streams,
            "query": self.definitions.queries,
            "sink": self.definitions.sinks,
        }[kind]
        if name not in known:
            raise Refuse(f"{kind} {name} does not exist{nearest(name, list(known))}", code=f"unknown_{kind}")

    def refuse_temporary(self, *queries: str) -> None:
        """Nothing that stays may depend on a query that ends with its reader."""
        for name in queries:
            if name in self.temporary:
                raise Refuse(
                    f"{name} is a temporary query, which ends when its reader leaves: write CREATE QUERY name AS "
                    "and its SELECT for one that stays",
                    code="temporary",
                )
