"""CREATE SINK."""

from __future__ import annotations

from typing import Any, ClassVar

from millrace.changes.change import Planned
from millrace.changes.drop_sink import DropSink
from millrace.changes.effects import OpenSink
from millrace.changes.state import ControlState
from millrace.changes.texts import TextChange
from millrace.protocol.admin.changes import StatementView
from millrace.sql import CreateSink as NewSink
from millrace.sql import Planned as Step


class CreateSink(TextChange):
    """Write the rows of a query into files."""

    steps: ClassVar[tuple[type, ...]] = (NewSink,)

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        assert isinstance(step, NewSink)
        after = state.definitions.with_(step)
        sink = after.sinks[step.sink.name]
        state.refuse_temporary(sink.query)
        return Planned(
            self,
            after,
            StatementView(kind=self.action, name=sink.name, query=sink.query),
            effects=(OpenSink(sink, state.definitions.queries[sink.query].schema),),
            inverse=(DropSink(name=sink.name),),
            lost="the file stays" if sink.path is not None else None,
            sentence=f"created sink {sink.name}",
        )
