"""Remove an operator that only filters rows."""

from __future__ import annotations

from typing import Any, ClassVar

from millrace.changes.change import Change, Planned, Route, Verb
from millrace.changes.fields import OperatorName
from millrace.changes.state import ControlState
from millrace.engine import events
from millrace.engine.engine import Engine
from millrace.protocol.admin.changes import RemoveReply
from millrace.sql import Planned as Step


class RemoveOperator(Change):
    """Remove an inserted operator or a select, until its query is replaced. Its queued tuples pass."""

    previews: ClassVar[bool] = True
    answers: ClassVar[type] = RemoveReply
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "DELETE",
            "operators/{name}",
            "Remove an operator that only filters rows",
            Verb(
                "Tune",
                "operator remove",
                "millrace operator remove pairs.filter2",
                "removed {name} until its query is replaced",
            ),
            statuses=(404, 409, 412),
        ),
    )

    name: OperatorName

    def facts(self, engine: Engine) -> Any:
        from millrace.changes.restoring import restored

        return restored(engine, self.name.partition(".")[0])

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        return Planned(
            self,
            state.definitions,
            commands=(events.RemoveOperator(self.name),),
            inverse=facts or None,
            lost="operators that differ start with empty state",
            sentence=f"removed operator {self.name}",
        )
