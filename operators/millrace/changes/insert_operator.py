"""Insert an operator."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from millrace.changes.change import Planned, Route, Verb
from millrace.changes.edits import ROW_CHOICES, ROW_METAVARS, ROW_NEEDS, EditFacts, RowChoice, edit_facts
from millrace.changes.fields import InputNumber, OperatorName
from millrace.changes.remove_operator import RemoveOperator
from millrace.changes.state import ControlState
from millrace.engine import events
from millrace.engine.engine import Engine
from millrace.engine.graph.rewire import editing
from millrace.protocol.admin.changes import InsertReply
from millrace.sql import Planned as Step


class InsertOperator(RowChoice):
    """Insert a filter or a sample in front of an operator's input, until its query is replaced.

    Tuples that are queued at the input stay there. Later tuples go through the new operator.
    """

    previews: ClassVar[bool] = True
    target: ClassVar[str] = "before"
    refers: ClassVar[tuple[str, ...]] = ("before", "name")
    answers: ClassVar[type] = InsertReply
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "POST",
            "operators/{name}/insert",
            "Insert an operator before an operator's input, until the query is replaced",
            Verb(
                "Tune",
                "operator insert",
                "millrace operator insert pairs.join1 --input 0 --where 'mod(src, 10) = 0'",
                "inserted {operator} in front of {name}, input {input}, until its query is replaced",
                metavars={**ROW_METAVARS, "name": "NAME"},
                one_of=ROW_CHOICES,
                needs=ROW_NEEDS,
            ),
        ),
    )

    before: OperatorName
    input: InputNumber = 0
    name: Annotated[
        str | None,
        Field(max_length=1_000, description="The name of the new operator. Default: the next free name of the query."),
    ] = None
    id: Annotated[int, Field(ge=0, description="The number of the operator; 0: the next one.")] = 0

    def facts(self, engine: Engine) -> Any:
        return edit_facts(engine, self.before, lambda: editing.arc_of(engine, self.before, self.input))

    def planned(self, state: ControlState, step: Step | None, facts: EditFacts) -> Planned:
        spec = self.spec(state, facts, f"{self.before}:{self.input}")
        name = self.name
        return Planned(
            self,
            state.definitions,
            commands=(events.InsertOperator(self.before, spec, self.input, self.where, name, self.id),),
            inverse=facts.inverse if name is None else (RemoveOperator(name=name),),
            lost=None,
            sentence=f"inserted an operator in front of {self.before}, input {self.input}",
        )
