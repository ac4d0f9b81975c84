"""SQL: text to statements (`parse`), statements to plans and definitions (`plan`). Nothing here runs anything."""

from millrace.sql.arcs import condition
from millrace.sql.errors import SqlError
from millrace.sql.explain import equality, explain
from millrace.sql.parser import parse
from millrace.sql.planned import (
    AlterStatement,
    Catalog,
    CreateQuery,
    CreateSink,
    CreateStream,
    Describe,
    DropStatement,
    Explain,
    ExplainRunning,
    Insert,
    Inspection,
    Planned,
    RenameStatement,
    Show,
    ShowCreate,
    SinkDefinition,
    Unchanged,
)
from millrace.sql.planner import drop, plan, plan_all, rename, rename_column
from millrace.sql.syntax import Statement

__all__ = [
    "AlterStatement",
    "Catalog",
    "CreateQuery",
    "CreateSink",
    "CreateStream",
    "Describe",
    "DropStatement",
    "Explain",
    "ExplainRunning",
    "Insert",
    "Inspection",
    "Planned",
    "RenameStatement",
    "Show",
    "ShowCreate",
    "SinkDefinition",
    "SqlError",
    "Statement",
    "Unchanged",
    "condition",
    "drop",
    "equality",
    "explain",
    "parse",
    "plan",
    "plan_all",
    "rename",
    "rename_column",
]
