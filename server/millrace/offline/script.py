"""FILE.sql as a run reads it: the objects to create, in order, and the default outputs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from millrace.engine.events import AddQuery, AddStream, CommandBody, DropQuery, DropStream, ReplaceQuery
from millrace.engine.plan import CHANGE_STREAM, QueryPlan, StreamDefinition
from millrace.offline.files import STANDARD, refuse_file
from millrace.protocol import Refuse
from millrace.sql import (
    AlterStatement,
    Catalog,
    CreateQuery,
    CreateStream,
    Describe,
    DropStatement,
    Explain,
    ExplainRunning,
    Insert,
    Planned,
    RenameStatement,
    Show,
    ShowCreate,
    SinkDefinition,
    SqlError,
    Statement,
    parse,
    plan,
)
from millrace.sql import syntax as s
from millrace.sql.planner import bare_name


@dataclass(frozen=True, slots=True)
class Script:
    """A planned file.

    commands   the engine's commands, in the file's order
    bare       the queries that are a SELECT alone
    shown      the output of EXPLAIN
    path       the file, if it was read from one
    """

    commands: Sequence[CommandBody]
    streams: Mapping[str, StreamDefinition]
    queries: Mapping[str, QueryPlan]
    sinks: Mapping[str, SinkDefinition] = field(default_factory=dict)
    bare: Sequence[str] = ()
    shown: Sequence[str] = ()
    path: str | None = None

    def outputs(self, requested: Sequence[tuple[str, str]]) -> list[tuple[str, str, str | None]]:
        """The destinations of rows as (query, path, format): from the flags, and the file's sinks.

        Without flags or sinks, the standard output shows the bare SELECTs, else the queries that no other query reads.
        """
        sinks: list[tuple[str, str, str | None]] = [
            (sink.query, STANDARD, None) if sink.path is None else (sink.query, sink.path, sink.format)
            for sink in self.sinks.values()
        ]
        flags: list[tuple[str, str, str | None]] = [(query, path, None) for query, path in requested]
        if flags:
            return flags + sinks
        sunk = {sink.query for sink in self.sinks.values()}
        read = {name for plan in self.queries.values() for name in plan.reads_queries}
        shown = list(self.bare) or [name for name in self.queries if name not in read and name not in sunk]
        return [*((name, STANDARD, None) for name in shown), *sinks]


def load(path: str, order: str | None = None) -> Script:
    """Read and plan a file of SQL."""
    return replace(plan_script(load_text(path), order), path=path)


def load_text(path: str) -> str:
    """A file of SQL."""
    try:
        return sys.stdin.read() if path == STANDARD else Path(path).read_text("utf-8")
    except UnicodeDecodeError:
        raise Refuse(f"{path}: expected SQL in UTF-8, got bytes that are not", code="bad_file") from None
    except OSError as error:
        raise refuse_file(path, error) from None


def plan_script(text: str, order: str | None = None) -> Script:
    """Plan statements, each on top of those before it. `order` wins over every query's own."""
    catalog = Catalog()
    commands: list[CommandBody] = []
    bare: list[str] = []
    shown: list[str] = []
    for statement in parse(text):
        name = bare_name(catalog)
        if isinstance(statement.body, s.SelectStatement):
            bare.append(name)
        planned = plan(statement if order is None else _ordered(statement, name, order), catalog, name)
        catalog = catalog.with_(planned)
        commands += _commands(planned)
        if isinstance(planned, RenameStatement):
            bare = [planned.to if known == planned.name else known for known in bare]
        _refuse_for_servers(statement, planned)
        if isinstance(planned, Explain | ExplainRunning | ShowCreate):
            shown.append(planned.sql if isinstance(planned, ShowCreate) else planned.text)
    if not catalog.streams:
        raise Refuse("the file has no stream: start with CREATE STREAM", code="sql")
    return Script(commands, catalog.streams, catalog.queries, catalog.sinks, bare, shown)


def _ordered(statement: Statement, name: str, order: str) -> Statement:
    """The statement with another order; a bare SELECT, which has no options, becomes a CREATE QUERY."""
    body = statement.body
    option = s.Option(body.span, s.Name(body.span, "order"), order, body.span)
    match body:
        case s.SelectStatement(span, query):
            return replace(statement, body=s.CreateQueryStatement(span, s.Name(span, name), False, (option,), query))
        case s.CreateQueryStatement(options=options):
            # Options of ordered joins apply to no other order.
            without = {"order"} if order == "event" else {"order", "join", "alpha"}
            others = tuple(other for other in options if other.name.text not in without)
            return replace(statement, body=replace(body, options=(*others, option)))
        case _:
            return statement


def _refuse_for_servers(statement: Statement, planned: Planned) -> None:
    """Refuse statements about what only a running server has."""
    match planned:
        case Insert(stream):
            hint = f"remove INSERT and read the rows from a file with --input {stream}=FILE"
        case Show() | Describe() | ExplainRunning(_, True):
            hint = "send it to a server with `millrace sql`"
        case CreateQuery(made) | (QueryPlan() as made) if CHANGE_STREAM.name in made.reads_streams:
            hint = f"{CHANGE_STREAM.name} has what a server changes"
        case _:
            return
    raise SqlError(statement.text, statement.body.span.start, f"this statement needs a running server: {hint}")


def _commands(planned: Planned) -> list[CommandBody]:
    match planned:
        case CreateStream(stream):
            return [AddStream(stream)]
        case AlterStatement():
            return [planned.command]
        case QueryPlan():
            return [AddQuery(planned)]
        case CreateQuery(made, replaces=replaces):
            return [ReplaceQuery(made) if replaces else AddQuery(made)]
        case RenameStatement():
            return [planned.command]
        case DropStatement("stream", name):
            return [DropStream(name)]
        case DropStatement("query", name):
            return [DropQuery(name)]
        case _:
            return []
