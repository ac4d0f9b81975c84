"""DROP QUERY."""

from __future__ import annotations

from typing import Any, ClassVar

from millrace.changes.change import Change, Planned, Route, Verb
from millrace.changes.effects import RemoveOutlet
from millrace.changes.fields import QueryName
from millrace.changes.state import ControlState
from millrace.engine import events
from millrace.engine.engine import Engine
from millrace.protocol.admin.changes import QueryDropReply, StatementView
from millrace.sql import DropStatement, drop
from millrace.sql import Planned as Step


class DropQuery(Change):
    """Drop a query that no query or sink reads."""

    answers: ClassVar[type] = QueryDropReply
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "DELETE",
            "queries/{name}",
            "Drop a query that no query reads",
            Verb("Queries", "query drop", "millrace query drop diary", "dropped query {name}"),
        ),
    )

    name: QueryName

    def step(self, state: ControlState) -> Step:
        state.must_know("query", self.name)
        return drop("query", self.name, state.definitions)

    def facts(self, engine: Engine) -> Any:
        from millrace.changes.restoring import decisions_about

        return decisions_about(engine, self.name)

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        from millrace.changes.create_query import CreateQuery
        from millrace.changes.texts import creating

        assert isinstance(step, DropStatement)
        before = state.definitions.queries[self.name]
        return Planned(
            self,
            state.definitions.with_(step),
            StatementView(kind=self.action, name=self.name),
            (events.DropQuery(self.name),),
            (RemoveOutlet(self.name),),
            None if self.name in state.temporary else (CreateQuery(sql=creating(before.sql), id=before.id), *facts),
            lasting=self.name not in state.temporary,
            lost="the query starts with empty state, and its rows are numbered from 0",
            reply=QueryDropReply(query=self.name, dropped=True),
            sentence=f"dropped query {self.name}",
        )
