"""DROP SINK."""

from __future__ import annotations

from typing import Any, ClassVar

from millrace.changes.change import Change, Planned, Route, Verb
from millrace.changes.effects import CloseSink
from millrace.changes.fields import SinkName
from millrace.changes.state import ControlState
from millrace.protocol.admin.changes import SinkDropReply, StatementView
from millrace.sql import DropStatement, drop
from millrace.sql import Planned as Step


class DropSink(Change):
    """Finish a sink's file and drop the sink."""

    answers: ClassVar[type] = SinkDropReply
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "DELETE",
            "sinks/{name}",
            "Finish a sink's file and drop it",
            Verb("Data", "sink drop", "millrace sink drop alerts", "dropped sink {name}"),
        ),
    )

    name: SinkName

    def step(self, state: ControlState) -> Step:
        state.must_know("sink", self.name)
        return drop("sink", self.name, state.definitions)

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        from millrace.changes.create_sink import CreateSink

        assert isinstance(step, DropStatement)
        before = state.definitions.sinks[self.name]
        return Planned(
            self,
            state.definitions.with_(step),
            StatementView(kind=self.action, name=self.name),
            effects=(CloseSink(self.name),),
            inverse=(CreateSink(sql=before.sql, id=before.id),),
            lost="the sink starts with the rows from then on",
            reply=SinkDropReply(sink=self.name, dropped=True),
            sentence=f"dropped sink {self.name}",
        )
