"""Set a component's share of the processor."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from millrace.changes.change import Change, Planned, Route, Verb
from millrace.changes.fields import ComponentName
from millrace.changes.state import ControlState
from millrace.engine import events
from millrace.engine.engine import Engine
from millrace.protocol.admin.changes import WeightReply
from millrace.sql import Planned as Step


class SetWeight(Change):
    """Set a component's share of the processor relative to the other components."""

    label: ClassVar[str] = "weight"
    answers: ClassVar[type] = WeightReply
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "PUT",
            "components/{name}/weight",
            "Set a component's share of the processor",
            Verb(
                "Tune",
                "component weight",
                "millrace component weight door 2",
                "{name} now weighs {weight}",
                arguments=("weight",),
            ),
        ),
    )

    name: ComponentName
    weight: Annotated[
        int, Field(ge=1, le=1_000_000, description="The share, relative to the other components' weights.")
    ]

    def facts(self, engine: Engine) -> Any:
        return next((one.weight for one in engine.graph.components if one.name == self.name), None)

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        return Planned(
            self,
            state.definitions,
            commands=(events.SetWeight(self.name, self.weight),),
            inverse=None if facts is None else (SetWeight(name=self.name, weight=facts),),
            sentence=f"set the weight of component {self.name} to {self.weight}",
        )
