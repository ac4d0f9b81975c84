"""All changes. HTTP routes, labels of metrics and the reader of records are made from this table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from millrace.changes.alter_stream import AlterStream
from millrace.changes.change import Change
from millrace.changes.create_query import CreateQuery, Select
from millrace.changes.create_sink import CreateSink
from millrace.changes.create_stream import CreateStream
from millrace.changes.drop_query import DropQuery
from millrace.changes.drop_sink import DropSink
from millrace.changes.drop_stream import DropStream
from millrace.changes.insert_operator import InsertOperator
from millrace.changes.pause_query import PauseQuery
from millrace.changes.remove_operator import RemoveOperator
from millrace.changes.rename_column import RenameColumn
from millrace.changes.rename_query import RenameQuery
from millrace.changes.replace_operator import ReplaceOperator
from millrace.changes.resume_query import ResumeQuery
from millrace.changes.set_break import SetBreak
from millrace.changes.set_order import SetOrder
from millrace.changes.set_queue import SetQueue
from millrace.changes.set_strategy import SetStrategy
from millrace.changes.set_weight import SetWeight
from millrace.changes.unshare_query import UnshareQuery
from millrace.protocol import Refuse
from millrace.sql import (
    AlterStatement,
    DropStatement,
    Planned,
    RenameStatement,
)
from millrace.sql import CreateQuery as NewQuery
from millrace.sql import CreateSink as NewSink
from millrace.sql import CreateStream as NewStream
from millrace.sql.temporary import CreateTemporary

CHANGES: Final[tuple[type[Change], ...]] = (
    CreateStream,
    AlterStream,
    RenameColumn,
    DropStream,
    CreateQuery,
    Select,
    RenameQuery,
    DropQuery,
    PauseQuery,
    ResumeQuery,
    UnshareQuery,
    SetOrder,
    CreateSink,
    DropSink,
    SetStrategy,
    SetWeight,
    SetBreak,
    SetQueue,
    InsertOperator,
    ReplaceOperator,
    RemoveOperator,
)

BY_ACTION: Final[Mapping[str, type[Change]]] = {change.action: change for change in CHANGES}


def read(record: Mapping[str, Any]) -> Change:
    """A change from its record. Raises Refuse."""
    fields = dict(record)
    action = fields.pop("change", None)
    change = BY_ACTION.get(action) if isinstance(action, str) else None
    if change is None:
        raise Refuse(f"change: expected one of {', '.join(BY_ACTION)}, got {action!r:.80}", code="invalid_request")
    try:
        return change.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the fields"
        raise Refuse(f"{action}: {where}: {first['msg']}", code="invalid_request") from None


def change_of(step: Planned, text: str) -> Change | None:
    """The change that a statement is; None if it changes no control state."""
    match step:
        case NewStream(stream):
            return CreateStream(sql=text).of(stream.name)
        case AlterStatement(name, renamed=(column, to)):
            return RenameColumn(name=name, column=column, to=to)
        case AlterStatement(name):
            return AlterStream(sql=text).of(name)
        case CreateTemporary(query):
            return Select(sql=text).of(query.name)
        case NewQuery(query):
            return CreateQuery(sql=text).of(query.name)
        case RenameStatement(name, to):
            return RenameQuery(name=name, to=to)
        case NewSink(sink):
            return CreateSink(sql=text).of(sink.name)
        case DropStatement("stream", name):
            return DropStream(name=name)
        case DropStatement("query", name):
            return DropQuery(name=name)
        case DropStatement("sink", name):
            return DropSink(name=name)
        case _:
            return None
