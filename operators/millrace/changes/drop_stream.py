"""DROP STREAM."""

from __future__ import annotations

from typing import Any, ClassVar

from millrace.changes.change import Change, Planned, Route, Verb
from millrace.changes.effects import ForgetStream
from millrace.changes.fields import StreamName
from millrace.changes.state import ControlState
from millrace.engine import events
from millrace.protocol.admin.changes import StatementView, StreamDropReply
from millrace.sql import DropStatement, drop
from millrace.sql import Planned as Step


class DropStream(Change):
    """Drop a stream that no query reads."""

    answers: ClassVar[type] = StreamDropReply
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "DELETE",
            "streams/{name}",
            "Drop a stream that no query reads",
            Verb("Data", "stream drop", "millrace stream drop door", "dropped stream {name}"),
        ),
    )

    name: StreamName

    def step(self, state: ControlState) -> Step:
        state.must_know("stream", self.name)
        return drop("stream", self.name, state.definitions)

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        from millrace.changes.create_stream import CreateStream
        from millrace.changes.texts import creating

        assert isinstance(step, DropStatement)
        before = state.definitions.streams[self.name]
        return Planned(
            self,
            state.definitions.with_(step),
            StatementView(kind=self.action, name=self.name),
            (events.DropStream(self.name),),
            (ForgetStream(self.name),),
            (CreateStream(sql=creating(before.sql), id=before.id),) if before.sql else None,
            lost="the stream starts empty: its marks, counters and feeds are gone" if before.sql else "no statement",
            reply=StreamDropReply(stream=self.name, dropped=True),
            sentence=f"dropped stream {self.name}",
        )
