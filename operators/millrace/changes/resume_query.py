"""Resume a paused or failed query."""

from __future__ import annotations

from typing import Any, ClassVar

from millrace.changes.change import Change, Planned, Route, Verb
from millrace.changes.fields import QueryName
from millrace.changes.pause_query import PauseQuery
from millrace.changes.state import ControlState
from millrace.engine import events
from millrace.engine.engine import Engine
from millrace.protocol.admin.changes import ResumeReply
from millrace.sql import Planned as Step


class ResumeQuery(Change):
    """Resume a paused query at the current end of its input. A failed query starts again."""

    label: ClassVar[str] = "resume"
    answers: ClassVar[type] = ResumeReply
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "POST",
            "queries/{name}/resume",
            "Resume a query at the current end of its streams",
            Verb(
                "Queries",
                "query resume",
                "millrace query resume diary",
                "resumed query {name}; it skipped {skipped:tuple}",
            ),
            statuses=(404, 409, 412),
        ),
    )

    name: QueryName

    def facts(self, engine: Engine) -> Any:
        """Why the query is paused, and whether it failed."""
        query = engine.queries_by_name.get(self.name)
        return None if query is None or query.failed else query.paused

    def holds(self, engine: Engine) -> bool:
        query = engine.queries_by_name.get(self.name)
        return query is not None and query.paused is None

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        return Planned(
            self,
            state.definitions,
            commands=(events.ResumeQuery(self.name),),
            inverse=None if facts is None else (PauseQuery(name=self.name, reason=facts),),
            lost="the query had failed, and a failure is not brought back" if facts is None else None,
            sentence=f"resumed query {self.name}",
        )
