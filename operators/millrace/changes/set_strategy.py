"""Set the strategy of a component or of one operator."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from millrace.changes.change import Change, ChangeLabel, Planned, Route, Verb
from millrace.changes.decisions import ComponentDecisions, decided_of
from millrace.changes.fields import ComponentName, StrategyText
from millrace.changes.state import ControlState
from millrace.engine import events
from millrace.engine.engine import Engine
from millrace.protocol.admin.changes import StrategyReply
from millrace.sql import Planned as Step


class SetStrategy(Change):
    """Set the strategy of a component, or of one of its operators, while it runs."""

    label: ClassVar[str] = "strategy"
    refers: ClassVar[tuple[str, ...]] = ("name", "operator")
    answers: ClassVar[type] = StrategyReply
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "PUT",
            "components/{name}/strategy",
            "Set the strategy of a component or of one operator",
            Verb(
                "Tune",
                "strategy set",
                "millrace strategy set door bfs",
                "[{operator}|{name}] now runs {strategy}",
                arguments=("strategy",),
                metavars={"operator": "OPERATOR"},
            ),
        ),
    )

    name: ComponentName
    strategy: StrategyText
    operator: Annotated[str | None, Field(description="Change only this operator's row.", max_length=1_000)] = None

    @property
    def labelled(self) -> ChangeLabel:
        return ChangeLabel(self.label, self.operator or self.name)

    def facts(self, engine: Engine) -> Any:
        """The strategies of the component and of its operators."""
        return decided_of(engine, self.name)

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        return Planned(
            self,
            state.definitions,
            commands=(events.SetStrategy(self.name, self.strategy, self.operator),),
            inverse=None if facts is None else self._back(facts),
            sentence=f"set the strategy of {self.operator or self.name} to {self.strategy}",
        )

    def _back(self, was: ComponentDecisions) -> tuple[Change, ...]:
        own = {row.operator: row.strategy for row in was.operators}
        if self.operator is not None:
            return (SetStrategy(name=self.name, strategy=own.get(self.operator, was.strategy), operator=self.operator),)
        rows = (SetStrategy(name=self.name, strategy=text, operator=operator) for operator, text in own.items())
        return SetStrategy(name=self.name, strategy=was.strategy), *rows
