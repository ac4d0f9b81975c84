"""ALTER QUERY ... RENAME TO."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from millrace.changes.change import Change, Planned, Route, Verb
from millrace.changes.effects import RenameOutlet, RetargetSink
from millrace.changes.fields import QueryName
from millrace.changes.state import ControlState
from millrace.engine.engine import Engine
from millrace.protocol.admin.changes import RenameReply, StatementView
from millrace.sql import Planned as Step
from millrace.sql import RenameStatement, rename


class RenameQuery(Change):
    """Rename a query. Sequence numbers continue, and subscribers stay connected."""

    answers: ClassVar[type] = RenameReply
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "POST",
            "queries/{name}/rename",
            "Rename a query; its sequence numbers continue",
            Verb(
                "Queries",
                "query rename",
                "millrace query rename diary journal",
                "renamed query {name} to {to}",
                arguments=("to",),
                metavars={"to": "NEW_NAME"},
            ),
            after="to",
        ),
    )

    name: QueryName
    to: Annotated[
        str, Field(description="Letters, digits, '_' and '-'; no stream or query may have it.", max_length=1_000)
    ]

    def holds(self, engine: Engine) -> bool:
        return self.name == self.to and self.name in engine.queries_by_name

    def step(self, state: ControlState) -> Step:
        state.must_know("query", self.name)
        return rename(self.name, self.to, state.definitions)

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        assert isinstance(step, RenameStatement)
        state.refuse_temporary(self.name)
        rewritten = [query for query in step.queries if query != self.to] + list(step.sinks)
        return Planned(
            self,
            state.definitions.with_(step),
            StatementView(kind=self.action, name=self.to, was=self.name, rewritten=rewritten),
            (step.command,),
            (RenameOutlet(self.name, self.to), *map(RetargetSink, step.sinks.values())),
            (RenameQuery(name=self.to, to=self.name),),
            reply=RenameReply(query=self.to, was=self.name),
            sentence=f"renamed query {self.name} to {self.to}",
        )
