"""Set the queue of an operator's input."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from millrace.changes.change import Change, Planned, Route, Verb
from millrace.changes.fields import InputNumber, OperatorName
from millrace.changes.state import ControlState
from millrace.engine import events
from millrace.engine.engine import Engine
from millrace.operators.queues.edge import QueueKind
from millrace.protocol.admin.changes import QueueReply
from millrace.sql import Planned as Step


class SetQueue(Change):
    """Change the queue of an operator's input while it runs."""

    label: ClassVar[str] = "queue"
    answers: ClassVar[type] = QueueReply
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "PUT",
            "operators/{name}/queue",
            "Change the queue of an operator's input while it runs",
            Verb(
                "Tune",
                "operator queue",
                "millrace operator queue prices.filter1 inplace",
                "input {input} of {name} now has a queue of kind {kind}[; it superseded {superseded:tuple}|]",
                arguments=("kind",),
            ),
        ),
    )

    name: OperatorName
    kind: Annotated[
        QueueKind,
        Field(
            description="append keeps all rows, the others the newest row of each key. fifo puts it at the end, "
            "inplace in the old row's place. linecutting prefers rare keys, deadline the keys that readers look at "
            "next. auto supersedes rows only under overload.",
        ),
    ]
    input: InputNumber = 0

    def facts(self, engine: Engine) -> Any:
        """The kind of queue that the input has."""
        from millrace.changes.restoring import queue_of

        return queue_of(engine, self.name, self.input)

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        inverse = None if facts is None else (SetQueue(name=self.name, kind=facts, input=self.input),)
        return Planned(
            self,
            state.definitions,
            commands=(events.SetQueue(self.name, self.kind, self.input),),
            inverse=inverse,
            lost="superseded rows are gone",
            sentence=f"set the queue of input {self.input} of {self.name} to {self.kind}",
        )
