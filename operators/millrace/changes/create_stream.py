"""CREATE STREAM."""

from __future__ import annotations

from typing import Any, ClassVar

from millrace.changes.change import Planned
from millrace.changes.drop_stream import DropStream
from millrace.changes.effects import FollowStream
from millrace.changes.state import ControlState
from millrace.changes.texts import TextChange
from millrace.engine.events import AddStream
from millrace.protocol.admin.changes import StatementView
from millrace.sql import CreateStream as NewStream
from millrace.sql import Planned as Step


class CreateStream(TextChange):
    """Create a stream."""

    steps: ClassVar[tuple[type, ...]] = (NewStream,)

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        assert isinstance(step, NewStream)
        after = state.definitions.with_(step)
        stream = after.streams[step.stream.name]
        return Planned(
            self,
            after,
            StatementView(kind=self.action, name=stream.name, fields=stream.schema.to_data()),
            (AddStream(stream, state.strategy),),
            (FollowStream(stream),),
            (DropStream(name=stream.name),),
            sentence=f"created stream {stream.name}",
        )
