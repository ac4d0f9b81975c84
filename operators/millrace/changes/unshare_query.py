"""Separate a query from operators that it shares."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from millrace.changes.change import Change, Planned, Route, Verb
from millrace.changes.fields import QueryName
from millrace.changes.state import ControlState
from millrace.engine import events
from millrace.protocol.admin.changes import UnshareReply
from millrace.sql import Planned as Step


class UnshareQuery(Change):
    """Make separate copies of the operators that a query shares with others. No row is lost or repeated. They stay
    separate until the query is replaced."""

    label: ClassVar[str] = "unshare"
    refers: ClassVar[tuple[str, ...]] = ("name", "operators")
    answers: ClassVar[type] = UnshareReply
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "POST",
            "queries/{name}/unshare",
            "Create separate copies of shared operators for a query, with their state",
            Verb(
                "Queries",
                "query unshare",
                "millrace query unshare diary",
                "query {name} [has separate copies of: {operators}|shared nothing]",
                arguments=("operators",),
            ),
        ),
    )

    name: QueryName
    operators: Annotated[
        list[Annotated[str, Field(max_length=1_000)]],
        Field(
            default_factory=list,
            description="Operators by their names in the query's plan, with all operators that read them; all "
            "operators if empty.",
            max_length=1_000,
        ),
    ]

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        return Planned(
            self,
            state.definitions,
            commands=(events.UnshareQuery(self.name, tuple(self.operators)),),
            inverse=None,
            lost="operators are shared again when the query is replaced",
            sentence=f"separated operators of query {self.name}",
        )
