"""Which action each route, message, line, change and statement is, and on which object.

Rule: the tables are total, which a test checks against the routes, the session's messages, the lines' forms, the
changes and the statements. What has no row needs the role admin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from millrace.access.callers import Caller
from millrace.access.roles import SOMEWHERE, WHOLE, Action, Extent, Object, SinkOf
from millrace.changes.change import Change
from millrace.changes.statements import Draft
from millrace.changes.table import CHANGES
from millrace.engine.plan import LATE
from millrace.protocol import jsonlines, messages
from millrace.sql import (
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
    Planned,
    RenameStatement,
    Show,
    ShowCreate,
    Unchanged,
)
from millrace.sql.temporary import CreateTemporary

# An object, or where its name is: in a route's path (NAMED), and there it may be a sink's, which belongs to a query.
NAMED: Final = "named"
SINK: Final = "sink"
_Of = Literal["named", "sink"] | Extent


class Need(NamedTuple):
    """An action, and its object."""

    action: Action
    of: _Of


# -- changes and routes ------------------------------------------------------------------------------------------------

_CHANGE: Final = Need(Action.CHANGE, NAMED)
_OPERATE: Final = Need(Action.OPERATE, NAMED)
_READ: Final = Need(Action.READ, NAMED)
_READ_ALL: Final = Need(Action.READ, WHOLE)
_OPERATE_ALL: Final = Need(Action.OPERATE, WHOLE)
_CHANGE_ALL: Final = Need(Action.CHANGE, WHOLE)
_ADMIN: Final = Need(Action.ADMIN, WHOLE)

# By the change's name. Components and operators may belong to several queries, and a new name could be another scope's.
CHANGES_NEED: Final[Mapping[str, Need]] = {
    "create_stream": _CHANGE,
    "alter_stream": _CHANGE,
    "rename_column": _CHANGE,
    "drop_stream": _CHANGE,
    "create_query": _CHANGE,
    "select": _CHANGE_ALL,
    "rename_query": _CHANGE_ALL,
    "drop_query": _CHANGE,
    "pause_query": _OPERATE,
    "resume_query": _OPERATE,
    "unshare_query": _OPERATE,
    "set_order": _OPERATE,
    "create_sink": Need(Action.CHANGE, SINK),
    "drop_sink": Need(Action.CHANGE, SINK),
    "set_strategy": _OPERATE_ALL,
    "set_weight": _OPERATE_ALL,
    "set_break": _OPERATE_ALL,
    "set_queue": _OPERATE_ALL,
    "insert_operator": _CHANGE_ALL,
    "replace_operator": _CHANGE_ALL,
    "remove_operator": _CHANGE_ALL,
}

_MEET: Final = Need(Action.MEET, SOMEWHERE)
# By method and path. The routes of changes follow from the changes; those of /-/ need no token.
ROUTES: Final[Mapping[tuple[str, str], Need]] = {
    ("GET", "/metrics"): _READ_ALL,
    ("GET", "/api/v1/openapi.json"): _MEET,
    ("GET", "/api/v1/server"): _MEET,
    ("POST", "/api/v1/sql"): _MEET,  # each statement is decided by itself
    ("POST", "/api/v1/sql/check"): _MEET,  # likewise, and a plan shows the graph
    ("POST", "/api/v1/sql/preview"): _READ_ALL,  # it changes nothing, whatever the text says
    ("POST", "/api/v1/sql/complete"): _MEET,  # of what the caller may see
    ("GET", "/api/v1/catalog"): _READ_ALL,
    ("GET", "/api/v1/streams"): Need(Action.LOOK, SOMEWHERE),
    ("GET", "/api/v1/streams/{name}"): Need(Action.LOOK, NAMED),
    ("GET", "/api/v1/streams/{name}/stale"): _READ,
    ("GET", "/api/v1/streams/{name}/late"): _READ,
    ("POST", "/api/v1/streams/{name}/archive"): _OPERATE,
    ("GET", "/api/v1/queries"): Need(Action.READ, SOMEWHERE),
    ("GET", "/api/v1/queries/{name}"): _READ,
    ("GET", "/api/v1/queries/{name}/explain"): _READ,
    ("GET", "/api/v1/queries/{name}/time"): _READ,
    ("GET", "/api/v1/queries/{name}/why"): _READ,
    ("POST", "/api/v1/backfills"): _CHANGE_ALL,
    ("GET", "/api/v1/backfills/{name}"): _READ,
    ("PUT", "/api/v1/backfills/{name}"): _CHANGE_ALL,
    ("DELETE", "/api/v1/backfills/{name}"): _CHANGE_ALL,
    ("GET", "/api/v1/sinks"): Need(Action.READ, SOMEWHERE),
    ("GET", "/api/v1/sinks/{name}"): Need(Action.READ, SINK),
    ("GET", "/api/v1/components"): _READ_ALL,
    ("GET", "/api/v1/components/{name}"): _READ_ALL,
    ("GET", "/api/v1/components/{name}/table"): _READ_ALL,
    ("GET", "/api/v1/components/{name}/graph"): _READ_ALL,
    ("GET", "/api/v1/components/{name}/strategy"): _READ_ALL,
    ("GET", "/api/v1/advice"): _READ_ALL,
    ("GET", "/api/v1/trials"): _READ_ALL,
    ("POST", "/api/v1/components/{name}/trial"): _OPERATE_ALL,
    ("GET", "/api/v1/components/{name}/trial"): _READ_ALL,
    ("DELETE", "/api/v1/components/{name}/trial"): _OPERATE_ALL,
    ("GET", "/api/v1/operators"): _READ_ALL,
    ("GET", "/api/v1/operators/{name}"): _READ_ALL,
    ("GET", "/api/v1/changes"): _READ_ALL,
    ("POST", "/api/v1/changes"): _MEET,  # each change is decided by itself
    ("POST", "/api/v1/changes/undo"): _READ_ALL,  # and its inverse
    ("GET", "/api/v1/configuration"): _READ_ALL,
    ("GET", "/api/v1/log"): _OPERATE_ALL,
    ("GET", "/api/v1/events"): Need(Action.READ, SOMEWHERE),
    ("GET", "/api/v1/tail/{name}"): _READ,
    ("GET", "/api/v1/operators/{name}/tap"): _READ_ALL,
    ("POST", "/api/v1/reload"): _ADMIN,
    ("GET", "/api/v1/console/session"): _MEET,
    ("POST", "/api/v1/console/link"): _MEET,
    ("POST", "/api/v1/console/logout"): _MEET,
    ("GET", "/api/v1/standby/copy"): _ADMIN,
    ("GET", "/api/v1/standby/journal"): _ADMIN,
    ("POST", "/api/v1/standby/heard"): _ADMIN,
    ("POST", "/api/v1/standby/promote"): _ADMIN,
    ("POST", "/api/v1/standby/alone"): _ADMIN,
    **{
        (route.method, f"/api/v1/{route.path}"): CHANGES_NEED[change.action]
        for change in CHANGES
        for route in change.routes
    },
}


# The console's page and its files, which hold nothing, and its login.
OPEN_ROUTES: Final[frozenset[tuple[str, str]]] = frozenset(
    {
        ("GET", "/"),
        ("GET", "/console/login"),
        ("GET", "/console/{file:path}"),
        ("POST", "/api/v1/console/login"),
    }
)


def is_open(method: str, path: str) -> bool:
    """Whether a request reaches one of these."""
    return (method, path) in OPEN_ROUTES or (method == "GET" and path.startswith("/console/"))


def check_route(caller: Caller, method: str, path: str, name: str | None, known: Catalog) -> None:
    """Refuse a request that the caller may not make: by the route's path, and the name in the request's."""
    need = ROUTES.get((method, path))
    if need is None:
        caller.must(Action.ADMIN, WHOLE)
    else:
        caller.must(need.action, _object(need, name, known))


def _object(need: Need, name: str | None, known: Catalog) -> Object:
    if isinstance(need.of, Extent):
        return need.of
    assert name is not None
    return _sink(name, known) if need.of == SINK else name


def _sink(name: str, known: Catalog) -> SinkOf:
    return SinkOf(name, known.sinks[name].query if name in known.sinks else None)


def check_changes(caller: Caller, changes: list[Change]) -> None:
    """Refuse changes that come as data: their texts are not planned yet, so a scope is not enough for them."""
    for change in changes:
        caller.must(CHANGES_NEED[change.action].action, WHOLE)


# -- messages and lines ------------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """What a message or line needs: the action, and the field with the name of the object. Without a field it needs
    no more than a known client."""

    action: Action
    field: str | None = None


_KNOWN: Final = Said(Action.MEET)
_FEEDS: Final = Said(Action.FEED, "stream")
_READS: Final = Said(Action.READ, "query")

# By the type of a client's message. Messages on a channel follow the one that has opened it.
MESSAGES: Final[Mapping[type, Said]] = {
    messages.Hello: _KNOWN,
    messages.Open: _FEEDS,
    messages.Data: _KNOWN,
    messages.DataArrow: _KNOWN,
    messages.Punctuation: _KNOWN,
    messages.Ets: _KNOWN,
    messages.Subscribe: _READS,
    messages.Credit: _KNOWN,
    messages.Close: _KNOWN,
    messages.Ping: _KNOWN,
    messages.Pong: _KNOWN,
    messages.Error: _KNOWN,
    messages.Bye: _KNOWN,
}

# By the type of a line. Without channels, each line names its stream or query.
LINES: Final[Mapping[type, Said]] = {
    jsonlines.Token: _KNOWN,
    jsonlines.EpochLine: _KNOWN,
    jsonlines.TupleLine: _FEEDS,
    jsonlines.PunctuationLine: _FEEDS,
    jsonlines.OpenLine: _FEEDS,
    jsonlines.AnswersLine: _FEEDS,
    jsonlines.AnswerLine: _FEEDS,
    jsonlines.CloseLine: _FEEDS,
    jsonlines.SubscribeLine: _READS,
    jsonlines.UnsubscribeLine: _READS,
}


def check_said(caller: Caller, said: Any, table: Mapping[type, Said]) -> None:
    """Refuse a message or line that the caller may not send."""
    need = table.get(type(said))
    if need is None:
        caller.must(Action.ADMIN, WHOLE)
    elif need.field is not None:
        caller.must(need.action, getattr(said, need.field))


# -- statements --------------------------------------------------------------------------------------------------------

_Needs = Iterator[tuple[Action, Object]]


def _reads(step: Any) -> _Needs:
    for name in (*step.plan.reads_streams, *step.plan.reads_queries):
        yield Action.READ, name


def _creates_query(step: CreateQuery, _: Catalog) -> _Needs:
    yield Action.CHANGE, step.plan.name
    yield from _reads(step)


def _about(action: Action, of_stream: Action | None = None) -> Callable[[Any, Catalog], _Needs]:
    """A statement about an object of its `kind` and `name`; about a stream it may need less."""

    def needs(step: Any, known: Catalog) -> _Needs:
        if step.kind == "stream":
            yield of_stream or action, step.name
        else:
            yield action, _sink(step.name, known) if step.kind == "sink" else step.name

    return needs


# By the type of a planned statement: what it needs, in the catalog before it.
STATEMENTS: Final[Mapping[type, Callable[[Any, Catalog], _Needs]]] = {
    CreateStream: lambda step, _: iter([(Action.CHANGE, step.stream.name)]),
    AlterStatement: lambda step, _: iter([(Action.CHANGE, step.name)]),
    CreateTemporary: lambda *_: iter([(Action.CHANGE, WHOLE)]),
    CreateQuery: _creates_query,
    RenameStatement: lambda *_: iter([(Action.CHANGE, WHOLE)]),
    CreateSink: lambda step, _: iter([(Action.CHANGE, step.sink.query)]),
    DropStatement: _about(Action.CHANGE),
    Unchanged: _about(Action.CHANGE),
    Insert: lambda step, _: iter([(Action.FEED, step.stream)]),
    Show: lambda *_: iter([(Action.READ, WHOLE)]),
    ShowCreate: _about(Action.READ, Action.LOOK),
    Describe: _about(Action.READ, Action.LOOK),
    Explain: lambda step, _: _reads(step),
    ExplainRunning: lambda step, _: iter([(Action.READ, step.name)]),
}


def check_statement(caller: Caller, step: Planned, known: Catalog) -> None:
    """Refuse a statement that the caller may not send."""
    needs = STATEMENTS.get(type(step))
    if needs is None:
        caller.must(Action.ADMIN, WHOLE)
        return
    for action, of in needs(step, known):
        caller.must(action, of)


def check_text(caller: Caller, text: Draft, known: Catalog) -> None:
    """Refuse a text of statements of which the caller may not send one."""
    if caller.unlimited:
        return
    for drafted in text.statements:
        check_statement(caller, drafted.step, known)


def visible(caller: Caller, known: Catalog) -> Catalog:
    """The part of a catalog in which a caller's statements are planned first, so that no error names anything else:
    what it may see, and whatever those queries read."""
    queries = {name for name in known.queries if caller.may(Action.READ, name)}
    waiting = list(queries)
    while waiting:
        read = set(known.queries[waiting.pop()].reads_queries) - queries
        queries |= read
        waiting += read
    read_streams = {name for query in queries for name in known.queries[query].reads_streams}
    streams = {
        name for name in known.streams
        if caller.may(Action.LOOK, name) or {name, f"{name}{LATE}"} & read_streams
    }  # fmt: skip
    return Catalog(
        streams={name: one for name, one in known.streams.items() if name in streams},
        queries={name: one for name, one in known.queries.items() if name in queries},
        sinks={name: one for name, one in known.sinks.items() if one.query in queries},
    )
