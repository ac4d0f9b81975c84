"""Set or unset a break point."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from millrace.changes.change import Change, Planned, Route, Verb
from millrace.changes.fields import OperatorName
from millrace.changes.state import ControlState
from millrace.engine import events
from millrace.engine.engine import Engine
from millrace.protocol.admin.changes import BreakReply
from millrace.sql import Planned as Step


class SetBreak(Change):
    """Set or remove a break point at an operator's output."""

    label: ClassVar[str] = "break"
    answers: ClassVar[type] = BreakReply
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "PUT",
            "operators/{name}/break",
            "Set a break point at an operator's output",
            Verb(
                "Tune",
                "break set",
                "millrace break set diary.filter1",
                "set a break point at {name}",
            ),
            statuses=(404, 409, 412),
            fixed={"on": True},
        ),
        Route(
            "DELETE",
            "operators/{name}/break",
            "Unset a break point",
            Verb(
                "Tune",
                "break unset",
                "millrace break unset diary.filter1",
                "removed the break point at {name}",
            ),
            statuses=(404, 409, 412),
            fixed={"on": False},
        ),
    )

    name: OperatorName
    on: Annotated[bool, Field(description="Whether there is a break point.")]

    def facts(self, engine: Engine) -> Any:
        return engine.graph.has_break(self.name)

    def holds(self, engine: Engine) -> bool:
        return engine.knows(self.name) and engine.graph.has_break(self.name) == self.on

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        return Planned(
            self,
            state.definitions,
            commands=(events.SetBreak(self.name, self.on),),
            inverse=(SetBreak(name=self.name, on=facts),),
            sentence=f"{'set' if self.on else 'removed'} the break point at {self.name}",
        )
