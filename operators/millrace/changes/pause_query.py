"""Pause a query."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from millrace.changes.change import Change, Planned, Route, Verb
from millrace.changes.fields import QueryName
from millrace.changes.state import ControlState
from millrace.engine import events
from millrace.engine.engine import Engine
from millrace.protocol.admin.changes import PauseReply
from millrace.sql import Planned as Step

REASON = "paused by an admin"


class PauseQuery(Change):
    """Pause a query. Until it is resumed it skips its input and counts the skipped tuples."""

    label: ClassVar[str] = "pause"
    answers: ClassVar[type] = PauseReply
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "POST",
            "queries/{name}/pause",
            "Pause a query; it skips what arrives meanwhile",
            Verb(
                "Queries",
                "query pause",
                "millrace query pause diary --reason maintenance",
                "paused query {name}",
            ),
        ),
    )

    name: QueryName
    reason: Annotated[
        str,
        Field(description="The reason; `query show`, `why` and the log show it.", min_length=1, max_length=1_000),
    ] = REASON

    def holds(self, engine: Engine) -> bool:
        query = engine.queries_by_name.get(self.name)
        return query is not None and query.paused == self.reason and not query.failed

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        from millrace.changes.resume_query import ResumeQuery

        return Planned(
            self,
            state.definitions,
            commands=(events.PauseQuery(self.name, self.reason),),
            inverse=(ResumeQuery(name=self.name),),
            lost="the tuples that it skipped meanwhile stay skipped",
            sentence=f"paused query {self.name}",
        )
