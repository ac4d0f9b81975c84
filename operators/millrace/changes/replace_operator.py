"""Change which rows an operator passes."""

from __future__ import annotations

from typing import Any, ClassVar

from millrace.changes.change import Planned, Route, Verb
from millrace.changes.edits import ROW_CHOICES, ROW_METAVARS, ROW_NEEDS, EditFacts, RowChoice, edit_facts
from millrace.changes.fields import OperatorName
from millrace.changes.state import ControlState
from millrace.engine import events
from millrace.engine.engine import Engine
from millrace.engine.graph.rewire import editing
from millrace.protocol.admin.changes import ExchangeReply
from millrace.sql import Planned as Step


class ReplaceOperator(RowChoice):
    """Change which rows a filter or a sample keeps, until its query is replaced."""

    previews: ClassVar[bool] = True
    answers: ClassVar[type] = ExchangeReply
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "PUT",
            "operators/{name}",
            "Change the condition or sample of a filtering operator",
            Verb(
                "Tune",
                "operator replace",
                "millrace operator replace pairs.filter2 --sample 0.1",
                "replaced {name} until its query is replaced[; it dropped {forgotten:tuple} of state|]",
                metavars=ROW_METAVARS,
                one_of=ROW_CHOICES,
                needs=ROW_NEEDS,
            ),
        ),
    )

    name: OperatorName

    def facts(self, engine: Engine) -> Any:
        return edit_facts(engine, self.name, lambda: editing.rows_of(engine, self.name))

    def planned(self, state: ControlState, step: Step | None, facts: EditFacts) -> Planned:
        spec = self.spec(state, facts, f"{self.name}:0")
        return Planned(
            self,
            state.definitions,
            commands=(events.ReplaceOperator(self.name, spec, self.where),),
            inverse=facts.inverse or None,
            lost="operators that differ start with empty state",
            sentence=f"replaced operator {self.name}",
        )
