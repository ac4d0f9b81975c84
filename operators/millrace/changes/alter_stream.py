"""ALTER STREAM ... SET, ALTER STREAM ... ADD COLUMN, and CREATE OR REPLACE STREAM."""

from __future__ import annotations

from typing import Any, ClassVar

from millrace.changes.change import Planned
from millrace.changes.effects import AlterFeeds
from millrace.changes.state import ControlState
from millrace.changes.texts import TextChange, replacing
from millrace.protocol.admin.changes import StatementView
from millrace.sql import AlterStatement
from millrace.sql import Planned as Step


class AlterStream(TextChange):
    """Change policies of a stream, or add columns, while feeds are connected."""

    steps: ClassVar[tuple[type, ...]] = (AlterStatement,)

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        assert isinstance(step, AlterStatement)
        name = step.name
        columns = [field.name for field in step.fields]
        outcome = StatementView(
            kind=self.action,
            name=name,
            added=columns or None,
            rewritten=list(step.queries) if columns else None,
            changes=dict(step.changes) if step.changes or not columns else None,
        )
        added = ", ".join(columns)
        before = state.definitions.streams[name].sql
        # A statement that replaces a stream by itself is refused, so what has changed nothing undoes itself.
        back = self if step.stream.sql == before else AlterStream(sql=replacing(before))
        after = state.definitions.with_(step)
        return Planned(
            self,
            after,
            outcome,
            (step.command,),
            (AlterFeeds(after.streams[name]),),
            None if step.fields else (back,),
            lost="an added column is never removed" if step.fields else None,
            sentence=f"added {added} to stream {name}" if step.fields else f"altered stream {name}",
        )
