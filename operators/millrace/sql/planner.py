"""Plans statements: definitions of streams and sinks, drops, and query plans (from `queries.py`).

Planning changes nothing. A statement is planned in a catalog. It is either refused as a whole, or it returns the next
catalog.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Literal

from millrace.engine.plan import CHANGE_STREAM, LATE, LATE_FIELDS, QueryOptions, QueryPlan, StreamDefinition
from millrace.protocol import TOMBSTONE_NAMES, Field, Refuse, Schema, Type
from millrace.sql import syntax as s
from millrace.sql.binder import TIME_NAME, Binder
from millrace.sql.errors import SqlError, WrongField, did_you_mean
from millrace.sql.existing import (
    added_fields,
    changed_policies,
    definition,
    same_plan,
    same_query,
    same_sink,
    same_stream,
)
from millrace.sql.explain import explain
from millrace.sql.facts import facts_of
from millrace.sql.inserting import insert
from millrace.sql.limits import KNOWN
from millrace.sql.options import (
    POLICY_OPTIONS,
    QUERY_OPTIONS,
    ROTATION_OPTIONS,
    SINK_OPTIONS,
    STREAM_OPTIONS,
    check_kind,
    read_options,
)
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
    Planned,
    RenameStatement,
    Show,
    ShowCreate,
    SinkDefinition,
    Unchanged,
    is_changes,
)
from millrace.sql.queries import QueryPlanner, upstream
from millrace.sql.renamed_column import rename_in_readers as rename_column_in_readers
from millrace.sql.renamed_column import renamed_reader, renamed_stream
from millrace.sql.rewriting import (
    rename_in_readers,
    replace_places,
    widen_readers,
    with_column,
    with_names,
    without_stars,
)
from millrace.values.functions import LIBRARY, Library

# Names appear in operators' names, URLs, file names and metrics' labels.
_NAME: Final = re.compile(r"[^\W\d][\w-]{0,127}")
# The number of names that an error lists if no known name is similar.
_NAMES_SHOWN: Final = 5

# The statements that alter a stream.
_ALTERS: Final = (s.AlterStreamStatement, s.AddColumnStatement, s.RenameColumnStatement)

Kind = Literal["stream", "query", "sink"]


def plan(
    statement: s.Statement,
    catalog: Catalog,
    name: str = "q",
    library: Library = LIBRARY,
    *,
    idempotent: bool = False,
) -> Planned:
    """Plan a statement in this catalog. Raises SqlError.

    `name` is the name of a bare SELECT or EXPLAIN; if it is in use, q2, q3 and so on. With `idempotent`, a CREATE with
    the definition of an existing object changes nothing; else it is refused.
    """
    body = statement.body
    if catalog.kind_of(name):
        name = bare_name(catalog)
    match body:
        case s.CreateStreamStatement():
            return _create_stream(statement, body, catalog, library, idempotent)
        case s.CreateQueryStatement():
            return _create_query(statement, body, catalog, library, idempotent)
        case s.CreateSinkStatement():
            return _create_sink(statement, body, catalog, idempotent)
        case s.AlterStreamStatement():
            return _alter_stream(statement, body, catalog)
        case s.AddColumnStatement():
            return _add_column(statement, body, catalog, library)
        case s.RenameColumnStatement():
            with _located(statement, {"name": body.name, "column": body.column, "to": body.to}):
                return rename_column(body.name.text, (body.column.text, body.to.text), catalog, library)
        case s.AlterQueryStatement():
            with _located(statement, {"name": body.name, "to": body.to}):
                return rename(body.name.text, body.to.text, catalog, library)
        case s.DropStatementNode():
            return _drop(statement, body, catalog)
        case s.InsertStatement():
            return insert(statement, body, catalog, library)
        case s.ShowStatement():
            return Show(body.of)
        case s.ShowCreateStatement():
            return _show_create(statement, body, catalog)
        case s.DescribeStatement():
            return _describe(statement, body, catalog)
        case s.ExplainStatement():
            planned_query = QueryPlanner(statement, catalog, name, QueryOptions(), library).run(body.query)
            return Explain(planned_query, explain(planned_query, catalog))
        case s.ExplainRunningStatement():
            return _explain_running(statement, body, catalog)
        case s.SelectStatement():
            return QueryPlanner(statement, catalog, name, QueryOptions(), library).run(body.query)


def plan_all(
    statements: Sequence[s.Statement],
    catalog: Catalog,
    library: Library = LIBRARY,
    *,
    name: str = "q",
    idempotent: bool = False,
) -> tuple[list[Planned], Catalog]:
    """Plan all statements of a file, each in the catalog after the previous ones. Bare SELECTs are q, q2 and so on."""
    planned: list[Planned] = []
    applied = _applied(statements, catalog, library) if idempotent else {}
    for position, statement in enumerate(statements):
        step = applied.get(position) or plan(statement, catalog, name, library, idempotent=idempotent)
        planned.append(step)
        catalog = catalog.with_(step)
    return planned, catalog


def _applied(statements: Sequence[s.Statement], catalog: Catalog, library: Library) -> dict[int, Unchanged]:
    """The statements that define objects as they already are, by way of ALTER STREAM.

    These are a CREATE STREAM and the ALTERs of the stream that follow, and the queries between them: ADD COLUMN has
    replaced their * by the columns of that time, and RENAME COLUMN their names of columns.
    """
    unchanged: dict[int, Unchanged] = {}
    bodies = [statement.body for statement in statements]
    altered = {body.name.text for body in bodies if isinstance(body, _ALTERS)}
    versions: dict[int, StreamDefinition] = {}
    for position, body in enumerate(bodies):
        if isinstance(body, s.CreateStreamStatement) and body.name.text in altered & catalog.streams.keys():
            versions |= _versions(body.name.text, statements, position, catalog, library)
    past = catalog
    for position, (statement, body) in enumerate(zip(statements, bodies, strict=True)):
        version = versions.get(position)
        if version is not None:
            unchanged[position] = _unchanged_stream(body, version.name)
            past = _with_columns(past, catalog, version)
        elif isinstance(body, s.CreateQueryStatement):
            later = [(statements[at].body, versions[at]) for at in sorted(versions) if at > position]
            if _is_altered(statement, body, catalog, past, later, library):
                unchanged[position] = _exists("query", body.name.text, same=True)
    return unchanged


def _with_columns(past: Catalog, catalog: Catalog, version: StreamDefinition) -> Catalog:
    """The catalog in which a stream is as it is, with the columns of an earlier version."""
    now = catalog.streams[version.name]
    then = replace(
        now,
        schema=version.schema,
        time=version.time,
        update_key=version.update_key,
        punctuation_key=version.punctuation_key,
    )
    return replace(past, streams={**past.streams, version.name: then})


def _unchanged_stream(body: s.Body, name: str) -> Unchanged:
    if isinstance(body, s.CreateStreamStatement):
        return _exists("stream", name, same=True)
    return Unchanged("alter_stream", "stream", name, f"stream {name} has these columns and options")


def _versions(
    name: str, statements: Sequence[s.Statement], created: int, catalog: Catalog, library: Library
) -> dict[int, StreamDefinition]:
    """The stream after each of its statements, as far as these come to the stream as it is, with ALTERs."""
    existing, alone = _as_written(catalog.streams[name]), Catalog()
    versions: dict[int, StreamDefinition] = {}
    matching = 0
    for position in range(created, len(statements)):
        body = statements[position].body
        if isinstance(body, s.DropStatementNode) and body.name.text == name:
            return {}
        alters = isinstance(body, _ALTERS) and body.name.text == name
        if position > created and not alters:
            continue
        try:
            alone = alone.with_(plan(statements[position], alone, library=library))
        except SqlError:
            break  # planned in the real catalog, it raises an error that a person can act on
        versions[position] = alone.streams[name]
        if same_stream(_as_written(alone.streams[name]), existing):
            matching = len(versions)
    # A CREATE without ALTERs is compared when it is planned.
    return dict(list(versions.items())[:matching]) if matching > 1 else {}


def _is_altered(
    statement: s.Statement,
    body: s.CreateQueryStatement,
    catalog: Catalog,
    past: Catalog,
    later: Sequence[tuple[s.Body, StreamDefinition]],
    library: Library,
) -> bool:
    """Whether a query of this text, created in the `past` catalog and rewritten by the `later` versions of streams, is
    the query as it is."""
    before = catalog.queries.get(body.name.text)
    if before is None or past is catalog:
        return False
    try:
        options = QueryOptions(**read_options(statement.text, body.options, QUERY_OPTIONS, "a query")[0])
    except SqlError:
        return False
    query: QueryPlan | None = replace(before, sql=definition(statement, body, "QUERY"))
    for alter, version in later:
        after = _with_columns(past, catalog, version)
        if query is not None:
            query = _rewritten(query, alter, past, after, library)
        past = after
    if query is None:
        return False
    text = without_stars(query, past, library)
    return any(_defines(sql, before, options) for sql in (query.sql, text) if sql is not None)


def _rewritten(query: QueryPlan, alter: s.Body, past: Catalog, after: Catalog, library: Library) -> QueryPlan | None:
    """The query after a stream was altered; its plan in the `past` catalog has the schema to keep."""
    if isinstance(alter, s.AddColumnStatement):
        sql = without_stars(query, past, library)
    elif isinstance(alter, s.RenameColumnStatement):
        sql = renamed_reader(query, (alter.column.text, alter.to.text), past, after, library)
    else:
        sql = query.sql
    return None if sql is None else replace(query, sql=sql)


def _defines(sql: str, before: QueryPlan, options: QueryOptions) -> bool:
    body = parse(sql, KNOWN)[0].body
    assert isinstance(body, s.CreateQueryStatement)
    return same_query(before, options, body.query)


def bare_name(catalog: Catalog) -> str:
    """The name of the next bare SELECT."""
    number = 1
    while catalog.kind_of(name := "q" if number == 1 else f"q{number}"):
        number += 1
    return name


# -- streams, sinks, drops ---------------------------------------------------------------------------------------------


def _new_name(statement: s.Statement, name: s.Name, catalog: Catalog) -> None:
    with _located(statement, {"name": name}):
        _refuse_name("name", name.text, catalog)


def _refuse_name(field: str, name: str, catalog: Catalog) -> None:
    """Refuse the name of a new stream or query."""
    _check_name(field, name)
    kind = catalog.kind_of(name)
    if kind is not None:
        raise WrongField(field, f"there is already {'a stream' if kind == 'stream' else 'a query'} called {name}")


def _check_name(field: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise WrongField(field, f"expected a name of letters, digits, '_' and '-' (at most 128), got {name!r:.60}")


def _create_stream(
    statement: s.Statement, body: s.CreateStreamStatement, catalog: Catalog, library: Library, idempotent: bool
) -> CreateStream | AlterStatement | Unchanged:
    sql, name = statement.text, body.name.text
    before = catalog.streams.get(name)
    if before is None:
        _new_name(statement, body.name, catalog)
        return CreateStream(_stream(statement, body))
    _refuse_both(sql, body)
    after = _stream(statement, body)
    written_before = _as_written(before)
    same = same_stream(written_before, after)
    if body.unless_exists or (same and (idempotent or body.replace)):
        return _exists("stream", name, same)
    if body.replace:
        return _replace_stream(statement, body, catalog, library, before, after)
    hint = "CREATE OR REPLACE STREAM changes it if the definitions are compatible"
    raise SqlError(
        sql, body.name.span.start, f"there is already a stream called {name}{_create_hint(same, 'STREAM', hint)}"
    )


def _refuse_both(sql: str, body: s.CreateStreamStatement | s.CreateQueryStatement) -> None:
    if body.replace and body.unless_exists:
        raise SqlError(sql, body.span.start, "OR REPLACE and IF NOT EXISTS contradict each other: remove one")


def _create_hint(same: bool, kind: str, hint: str) -> str:
    """A hint for a CREATE with an existing name."""
    if same:
        return f", with this definition; CREATE {kind} IF NOT EXISTS leaves it as it is"
    return f", with another definition; {hint}"


def _exists(kind: Kind, name: str, same: bool) -> Unchanged:
    """CREATE with an existing name, which changes nothing."""
    if same:
        return Unchanged(f"create_{kind}", kind, name, f"{kind} {name} exists with this definition")
    warning = f"{kind} {name} exists with another definition, which is unchanged"
    return Unchanged(f"create_{kind}", kind, name, f"{kind} {name} exists", (warning,))


def _as_written(stream: StreamDefinition) -> StreamDefinition:
    """A stream as its statement alone defines it. A server sets the options that the statement omits."""
    if not stream.sql:
        return stream
    statement = parse(stream.sql, KNOWN)[0]
    assert isinstance(statement.body, s.CreateStreamStatement)
    return _stream(statement, statement.body)


def _replace_stream(
    statement: s.Statement,
    body: s.CreateStreamStatement,
    catalog: Catalog,
    library: Library,
    before: StreamDefinition,
    after: StreamDefinition,
) -> AlterStatement:
    """CREATE OR REPLACE of a stream as one change: its policies, and its columns as ADD COLUMN would add them."""
    changes = changed_policies(statement.text, body, _as_written(before), after)
    stream, queries = before, dict[str, QueryPlan]()
    added: list[Field] = []
    for column in added_fields(statement.text, body, before, after):
        as_added = s.AddColumnStatement(body.span, body.name, column, None)
        field, wider, rewritten = _widen(statement, as_added, stream, catalog, library)
        added.append(field)
        stream = wider
        queries |= rewritten
        catalog = replace(
            catalog, streams={**catalog.streams, stream.name: stream}, queries={**catalog.queries, **rewritten}
        )
    return AlterStatement(before.name, changes, after, tuple(added), queries)


def _stream(statement: s.Statement, body: s.CreateStreamStatement) -> StreamDefinition:
    """The stream that a statement defines."""
    sql = statement.text
    name = body.name.text
    with _located(statement, {"name": body.name}):
        _check_name("name", body.name.text)
    values, seen = read_options(sql, body.options, STREAM_OPTIONS, "a stream")
    if "time" in values:
        values.setdefault("timestamps", "external")
    fields = _fields(sql, body, values.get("time"))
    for option in ("time", "update_key", "punctuation_key"):
        _check_columns(sql, seen.get(option), values.get(option), fields)
    check_kind(sql, seen, name, values.get("timestamps", "internal"))
    if values.get("time") in values.get("punctuation_key", ()):
        at = seen["punctuation_key"].value_span.start
        raise SqlError(sql, at, f"punctuation_key: expected columns other than the time field {values['time']}")
    if values.get("timestamps") == "external" and "time" not in values:
        at = seen["timestamps"].value_span.start
        times = [field.name for field in fields if field.type is Type.TIMESTAMP]
        hint = f": add time = '{times[0]}'" if times else " of type TIMESTAMP"
        raise SqlError(sql, at, f"an external stream needs a time column{hint}")
    try:
        return StreamDefinition(name, Schema(tuple(fields)), **values, sql=definition(statement, body, "STREAM"))
    except Refuse as error:
        raise SqlError(sql, body.name.span.start, error.text) from None


def _fields(sql: str, body: s.CreateStreamStatement, time: str | None) -> list[Field]:
    if not body.fields:
        raise SqlError(sql, body.name.span.start, "a stream needs at least one column")
    return _fields_of(sql, body.fields, time)


def _fields_of(sql: str, written: Sequence[s.FieldDef], time: str | None) -> list[Field]:
    binder = Binder(sql, None)
    fields: list[Field] = []
    names: set[str] = set()
    for column in written:
        if column.name.text in TOMBSTONE_NAMES:
            raise SqlError(sql, column.name.span.start, f"{column.name.text} marks deleted rows: choose another name")
        if column.name.text in names:
            raise SqlError(sql, column.name.span.start, f"two columns are called {column.name.text}")
        type = binder.resolve_type(column.type)
        if type is Type.INTERVAL:
            raise SqlError(
                sql, column.type.span.start, "a column cannot be an interval: make it a bigint of microseconds"
            )
        # A tuple without its time cannot enter the stream, so downstream operators need not expect a null there.
        names.add(column.name.text)
        fields.append(Field(column.name.text, type, not (column.not_null or column.name.text == time)))
    return fields


def _check_columns(sql: str, option: s.Option | None, value: Any, fields: Sequence[Field]) -> None:
    if option is None:
        return
    known = [field.name for field in fields]
    for name in (value,) if isinstance(value, str) else value:
        if name not in known:
            hint = did_you_mean(name, known) or f"; the columns are {', '.join(known)}"
            raise SqlError(sql, option.value_span.start, f"{option.name.text}: the column {name} does not exist{hint}")


def _alter_stream(statement: s.Statement, body: s.AlterStreamStatement, catalog: Catalog) -> AlterStatement:
    sql = statement.text
    name = body.name.text
    before = _altered_stream(statement, body.name, catalog)
    if not body.options:
        raise SqlError(sql, body.span.end, "expected the options to set: (option = value, ...)")
    _refuse_fixed(sql, body, name)
    values, seen = read_options(sql, body.options, POLICY_OPTIONS, "ALTER STREAM")
    check_kind(sql, seen, name, before.timestamps)
    after = replace(before, **values, sql=_rewrite_create(before.sql, statement, body))
    return AlterStatement(name, tuple(values.items()), after)


def _altered_stream(statement: s.Statement, name: s.Name, catalog: Catalog) -> StreamDefinition:
    before = catalog.streams.get(name.text)
    if before is None:
        is_query = name.text in catalog.queries
        why = f"{name.text} is a query, not a stream" if is_query else f"the stream {name.text} does not exist"
        raise SqlError(statement.text, name.span.start, f"{why}{did_you_mean(name.text, catalog.streams)}")
    return before


def _add_column(
    statement: s.Statement, body: s.AddColumnStatement, catalog: Catalog, library: Library
) -> AlterStatement:
    before = _altered_stream(statement, body.name, catalog)
    added, after, queries = _widen(statement, body, before, catalog, library)
    return AlterStatement(before.name, (), after, (added,), queries)


def _widen(
    statement: s.Statement,
    body: s.AddColumnStatement,
    before: StreamDefinition,
    catalog: Catalog,
    library: Library,
) -> tuple[Field, StreamDefinition, Mapping[str, QueryPlan]]:
    """ADD COLUMN: the column, the new definition of the stream, and the rewritten queries that read the stream."""
    sql = statement.text
    added = _new_field(statement, body, before)
    after = replace(before.with_fields([added]), sql=with_column(before.sql, _text_of(sql, body.field)))
    queries, stuck = widen_readers(before, after, added.name, catalog, library)
    if stuck:
        raise SqlError(
            sql,
            body.field.name.span.start,
            f"{added.name} could refer to another column than before in {', '.join(stuck)}, or a * in it "
            "could not be expanded: choose another name, or replace that query with one that qualifies its "
            "columns",
        )
    return added, after, queries


def _new_field(statement: s.Statement, body: s.AddColumnStatement, stream: StreamDefinition) -> Field:
    """A column for a stream that may already have tuples."""
    sql, column = statement.text, body.field
    if column.not_null:
        raise SqlError(
            sql,
            column.span.start,
            f"an added column must be nullable: existing tuples have no {column.name.text}, nor do tuples of "
            "connected feeds",
        )
    if body.default is not None and not (isinstance(body.default, s.Constant) and body.default.value is None):
        raise SqlError(
            sql, body.default.span.start, "an added column is null where a feed does not send it: write DEFAULT NULL"
        )
    (added,) = _fields_of(sql, (column,), None)
    if added.name in stream.schema.names:
        raise SqlError(sql, column.name.span.start, f"{stream.name} already has a column {added.name}")
    if added.name in stream.late.schema.names:
        raise SqlError(
            sql,
            column.name.span.start,
            f"{stream.name}.late already has a column {added.name}, which describes each late tuple: choose "
            "another name",
        )
    if added.name == TIME_NAME and stream.timestamps != "external":
        raise SqlError(
            sql,
            column.name.span.start,
            f"{stream.name} already has a column {TIME_NAME}, the time that the server sets",
        )
    return added


def _text_of(sql: str, node: s.Node) -> str:
    return sql[node.span.start : node.span.end]


def _refuse_fixed(sql: str, body: s.AlterStreamStatement, stream: str) -> None:
    """Refuse options that are fixed for the life of a stream, because its tuples and readers depend on them."""
    changeable = [row.name for row in POLICY_OPTIONS]
    fixed = {row.name for row in STREAM_OPTIONS} - set(changeable)
    for option in body.options:
        if option.name.text in fixed:
            raise SqlError(
                sql,
                option.name.span.start,
                f"{option.name.text} cannot change after {stream} was created; the options that can change "
                f"are {', '.join(changeable)}",
            )


def _rewrite_create(created: str, statement: s.Statement, body: s.AlterStreamStatement) -> str:
    """The equivalent CREATE STREAM, which a catalog stores and `show` prints."""
    if not created:
        return created
    before = parse(created, KNOWN)[0].body
    assert isinstance(before, s.CreateStreamStatement)
    there = {option.name.text: option for option in before.options}
    changes: list[tuple[s.Span, str]] = []
    added: list[str] = []
    for option in body.options:
        old = there.get(option.name.text)
        if old is None:
            added.append(statement.text[slice(*option.span)])
        else:
            changes.append((old.value_span, statement.text[slice(*option.value_span)]))
    if added:
        changes.append(_addition(before, ", ".join(added)))
    return replace_places(created, changes)


def _addition(before: s.CreateStreamStatement, options: str) -> tuple[s.Span, str]:
    """The edit that adds options to a CREATE STREAM: its place and its text."""
    if before.options_span is None:
        return s.Span(before.span.end, before.span.end), f" WITH ({options})"
    if not before.options:
        return s.Span(before.options_span.start + 1, before.options_span.start + 1), options
    end = before.options[-1].span.end
    return s.Span(end, end), f", {options}"


def _create_sink(
    statement: s.Statement, body: s.CreateSinkStatement, catalog: Catalog, idempotent: bool
) -> CreateSink | Unchanged:
    with _located(statement, {"name": body.name}):
        _check_name("name", body.name.text)
    sink = _sink(statement, body, catalog)
    name = sink.name
    before = catalog.sinks.get(name)
    if before is None:
        return CreateSink(sink)
    same = same_sink(before, sink)
    if body.unless_exists or (same and idempotent):
        return _exists("sink", name, same)
    hint = f"DROP SINK {name} first to replace it"
    message = f"there is already a sink called {name}{_create_hint(same, 'SINK', hint)}"
    raise SqlError(statement.text, body.name.span.start, message)


def _sink(statement: s.Statement, body: s.CreateSinkStatement, catalog: Catalog) -> SinkDefinition:
    """The sink that a statement defines."""
    sql = statement.text
    name, query = body.name.text, body.query.text
    if body.part is not None:
        first = f"CREATE QUERY name AS SELECT * FROM {query}.{body.part.text}"
        raise SqlError(sql, body.query.span.start, f"a sink takes the rows of a query: write {first} first")
    if query not in catalog.queries:
        is_stream = query in catalog.streams
        why = f"{query} is a stream, not a query" if is_stream else f"the query {query} does not exist"
        hint = did_you_mean(query, catalog.queries) or (": create a query that reads it first" if is_stream else "")
        raise SqlError(sql, body.query.span.start, f"{why}{hint}")
    values, seen = read_options(sql, body.options, SINK_OPTIONS, "a sink")
    if "type" not in values:
        raise SqlError(sql, body.name.span.start, "a sink needs a type: WITH (type = 'file' or 'stdout', ...)")
    if values["type"] == "file":
        if "path" not in values:
            raise SqlError(sql, seen["type"].span.start, "a file sink needs a path: add path = '...'")
        values.setdefault("format", _format_of(values["path"]))
    elif "path" in values:
        raise SqlError(sql, seen["path"].span.start, "only a file sink has a path")
    rotating = next((seen[option] for option in ROTATION_OPTIONS if option in seen), None)
    if rotating is not None and values.get("format") not in ("parquet", "arrow"):
        raise SqlError(
            sql,
            rotating.name.span.start,
            f"{rotating.name.text} applies to sinks of Parquet and Arrow, which complete a file when it is "
            "full; lines are written as they arrive: remove it, or add format = 'parquet'",
        )
    if values.get("on_slow") == "latest" and catalog.queries[query].update_key is None:
        raise SqlError(
            sql,
            seen["on_slow"].value_span.start,
            f"on_slow = 'latest' keeps the newest row of each key, but {query} is not an update stream, so "
            "its rows replace nothing; expected 'wait', 'drop_oldest' or 'disconnect'",
        )
    return SinkDefinition(name, query, **values, sql=definition(statement, body, "SINK"))


def _format_of(path: str) -> str:
    ending = path.rstrip("/").rpartition(".")[2].lower()
    return ending if ending in ("csv", "parquet", "arrow") else "jsonl"


def _drop(statement: s.Statement, body: s.DropStatementNode, catalog: Catalog) -> DropStatement | Unchanged:
    name = body.name.text
    if body.if_exists and name not in _known(catalog)[body.kind]:
        return Unchanged(f"drop_{body.kind}", body.kind, name, f"the {body.kind} {name} does not exist")
    with _located(statement, {"name": body.name}):
        return drop(body.kind, name, catalog)


def drop(kind: Kind, name: str, catalog: Catalog) -> DropStatement:
    """DROP, if the object exists and nothing reads it."""
    known = _known(catalog)[kind]
    if name not in known:
        hint = did_you_mean(name, known) or _names_hint(known)
        raise WrongField("name", f"the {kind} {name} does not exist{hint}")
    users = [] if kind == "sink" else _readers_of(catalog, kind, name)
    if users:
        them = "that" if len(users) == 1 else "them"
        raise WrongField("name", f"{name} is still read by {', '.join(users)}: drop {them} first")
    return DropStatement(kind, name)


def _known(catalog: Catalog) -> Mapping[Kind, Mapping[str, Any]]:
    return {"stream": catalog.streams, "query": catalog.queries, "sink": catalog.sinks}


@contextmanager
def _located(statement: s.Statement, places: Mapping[str, s.Node]) -> Iterator[None]:
    """Refusals of a field as errors at its place in the text."""
    try:
        yield
    except WrongField as error:
        raise SqlError(statement.text, places[error.field].span.start, error.text) from None


def _names_hint(known: Iterable[str]) -> str:
    """A hint for a name that is near none: some of the names that exist."""
    names = list(known)
    if not names:
        return "; none exist yet"
    more = ", ..." if len(names) > _NAMES_SHOWN else ""
    return f"; there are {', '.join(names[:_NAMES_SHOWN])}{more}" if len(names) > 1 else f"; there is {names[0]}"


def _readers_of(catalog: Catalog, kind: str, name: str) -> list[str]:
    names = {name, name + LATE}
    queries = [
        f"query {query.name}"
        for query in catalog.queries.values()
        if not names.isdisjoint(query.reads_streams if kind == "stream" else query.reads_queries)
    ]
    sinks = [f"sink {sink.name}" for sink in catalog.sinks.values() if kind == "query" and sink.query == name]
    return queries + sinks


# -- show and describe -------------------------------------------------------------------------------------------------


def _show_create(statement: s.Statement, body: s.ShowCreateStatement, catalog: Catalog) -> ShowCreate:
    name = body.name.text
    known: Mapping[str, Any] = {"stream": catalog.streams, "query": catalog.queries, "sink": catalog.sinks}[body.kind]
    if name not in known:
        hint = did_you_mean(name, known) or _names_hint(known)
        raise SqlError(statement.text, body.name.span.start, f"the {body.kind} {name} does not exist{hint}")
    return ShowCreate(body.kind, name, known[name].sql)


def _describe(statement: s.Statement, body: s.DescribeStatement, catalog: Catalog) -> Describe:
    name = body.name.text
    if body.kind in (None, "stream") and is_changes(body.name, body.part):
        return Describe("stream", CHANGE_STREAM.name)
    kinds: Mapping[Kind, Mapping[str, Any]] = {
        "stream": catalog.streams,
        "query": catalog.queries,
        "sink": catalog.sinks,
    }
    if body.kind is not None:
        kinds = {body.kind: kinds[body.kind]}
    kind = next((kind for kind, known in kinds.items() if name in known), None)
    if kind is None:
        names = [known for there in kinds.values() for known in there]
        what = "stream, query or sink" if body.kind is None else body.kind
        hint = did_you_mean(name, names) or _names_hint(names)
        raise SqlError(statement.text, body.name.span.start, f"no {what} is called {name}{hint}")
    if body.part is None:
        return Describe(kind, name)
    if kind != "stream" or body.part.text != LATE.removeprefix("."):
        message = f"{name} has no part {body.part.text}: a stream has {LATE.removeprefix('.')}, its late tuples"
        raise SqlError(statement.text, body.part.span.start, message)
    if catalog.streams[name].timestamps != "external":
        message = f"{name} has no late tuples: the server sets the time of its tuples"
        raise SqlError(statement.text, body.part.span.start, message)
    return Describe(kind, name + LATE)


def _explain_running(statement: s.Statement, body: s.ExplainRunningStatement, catalog: Catalog) -> ExplainRunning:
    name = body.name.text
    query = catalog.queries.get(name)
    if query is None:
        why = f"{name} is a stream" if name in catalog.streams else f"the query {name} does not exist"
        hint = did_you_mean(name, catalog.queries) or "; EXPLAIN takes the name of a query, or a SELECT"
        raise SqlError(statement.text, body.name.span.start, f"{why}{hint}")
    return ExplainRunning(name, body.analyze, explain(query, catalog))


# -- queries -----------------------------------------------------------------------------------------------------------


def _create_query(
    statement: s.Statement, body: s.CreateQueryStatement, catalog: Catalog, library: Library, idempotent: bool
) -> CreateQuery | Unchanged:
    sql = statement.text
    name = body.name.text
    before = catalog.queries.get(name)
    replaces = body.replace and before is not None
    if before is None:
        _new_name(statement, body.name, catalog)
    _refuse_both(sql, body)
    values, seen = read_options(sql, body.options, QUERY_OPTIONS, "a query")
    same = False
    if before is not None:
        same = same_query(before, QueryOptions(**values), body.query)
        if body.unless_exists or (same and idempotent and not body.replace):
            return _exists("query", name, same)
        if not body.replace:
            hint = "CREATE OR REPLACE QUERY replaces it"
            raise SqlError(
                sql, body.name.span.start, f"there is already a query called {name}{_create_hint(same, 'QUERY', hint)}"
            )
    if "max_delay_us" in values and values.get("flush", "none") == "none":
        raise SqlError(
            sql, seen["max_delay"].name.span.start, "max_delay applies to spread results: add flush = 'slow'"
        )
    if "slots" in values and values.get("aggregate") != "bounded":
        raise SqlError(
            sql, seen["slots"].name.span.start, "slots is the size of a low-level table: add aggregate = 'bounded'"
        )
    for option in ("join", "alpha"):
        if option in seen and values.get("order") != "event":
            raise SqlError(
                sql,
                seen[option].name.span.start,
                f"{option} applies to joins that emit their rows in order of time: add order = 'event'",
            )
    planned_query = QueryPlanner(statement, catalog, name, QueryOptions(**values), library).run(body.query)
    if values.get("on_max_state") == "backpressure" and len(_streams_of(planned_query, catalog)) < 2:
        raise SqlError(
            sql,
            seen["on_max_state"].name.span.start,
            "backpressure holds back the streams that are ahead until another stream frees state, but this "
            "query reads only one stream: use on_max_state = 'fail'",
        )
    if before is not None and same and idempotent and same_plan(before, planned_query):
        return _exists("query", name, same)
    if replaces:
        _check_readers(statement, body.name, catalog, planned_query)
    if body.unless_exists:
        planned_query = replace(planned_query, sql=definition(statement, body, "QUERY"))
    return CreateQuery(planned_query, replaces)


def rename(name: str, to: str, catalog: Catalog, library: Library = LIBRARY) -> RenameStatement:
    """ALTER QUERY ... RENAME TO, with the rewritten texts of its readers."""
    _refuse_name("to", to, catalog)
    if name not in catalog.queries:
        why = f"{name} is a stream, not a query" if name in catalog.streams else f"the query {name} does not exist"
        raise WrongField("name", f"{why}{did_you_mean(name, catalog.queries)}")
    queries, stuck = rename_in_readers(name, to, catalog, library)
    if stuck:
        raise WrongField(
            "name",
            f"{name} is read by {', '.join(stuck)}, whose text cannot refer to {to} without changing its "
            "meaning: drop that first, or replace it with a text that adds an alias to the table",
        )
    sinks = {
        sink.name: replace(sink, query=to, sql=with_names(sink.sql, {name: to}))
        for sink in catalog.sinks.values()
        if sink.query == name
    }
    return RenameStatement(name, to, queries, sinks)


def rename_column(
    name: str,
    renamed: tuple[str, str],
    catalog: Catalog,
    library: Library = LIBRARY,
    texts: Mapping[str, str] | None = None,
) -> AlterStatement:
    """ALTER STREAM ... RENAME COLUMN, with the rewritten texts of the queries that read the stream. `texts` are texts
    that these had before, for an undo."""
    column, to = renamed
    before = catalog.streams.get(name)
    if before is None:
        why = f"{name} is a query, not a stream" if name in catalog.queries else f"the stream {name} does not exist"
        raise WrongField("name", f"{why}{did_you_mean(name, catalog.streams)}")
    _refuse_column(before, column, to)
    after = before.with_renamed(column, to)
    after = replace(after, sql=renamed_stream(before.sql, after, column))
    if not same_stream(_as_written(after), _as_written(before).with_renamed(column, to)):
        raise WrongField("to", f"expected the name of a column, got {to!r:.60}")
    queries, stuck = rename_column_in_readers(before, after, renamed, catalog, library, texts or {})
    if stuck:
        raise WrongField(
            "column",
            f"{column} is read by {', '.join(stuck)}, whose text cannot refer to {to} without changing its meaning or "
            "the names of its columns: drop that first, or replace it with a text that does not name the column",
        )
    return AlterStatement(name, (), after, queries=queries, renamed=renamed)


def _refuse_column(stream: StreamDefinition, column: str, to: str) -> None:
    """Refuse a column that cannot be renamed, or a new name that it cannot have."""
    name, names = stream.name, stream.schema.names
    if column not in names:
        hint = did_you_mean(column, names) or f"; the columns are {', '.join(names)}"
        raise WrongField("column", f"the column {column} does not exist in {name}{hint}")
    if stream.history:
        raise WrongField(
            "column",
            f"{name} has history, whose files call the column {column}: their values would be lost under another name. "
            "Create a stream with the new name, or end the history first with SET (history = false)",
        )
    if column in (own for own, _ in LATE_FIELDS):
        raise WrongField(
            "column", f"{name}.late calls a column of its own late_{column} because of it, so it keeps its name"
        )
    if to in TOMBSTONE_NAMES:
        raise WrongField("to", f"{to} marks deleted rows: choose another name")
    if to in names:
        raise WrongField("to", f"{name} already has a column {to}")
    if to in stream.late.schema.names:
        raise WrongField(
            "to", f"{name}.late already has a column {to}, which describes each late tuple: choose another name"
        )
    if to == TIME_NAME and stream.timestamps != "external":
        raise WrongField("to", f"{name} already has a column {TIME_NAME}, the time that the server sets")


def _streams_of(plan: QueryPlan, catalog: Catalog) -> set[str]:
    """The streams that a query reads, directly and through other queries."""
    streams = set(plan.reads_streams)
    for name in plan.reads_queries:
        for query in upstream(name, catalog).values():
            streams.update(query.reads_streams)
    return streams


def _check_readers(statement: s.Statement, name: s.Name, catalog: Catalog, after: QueryPlan) -> None:
    """Refuse a replacement that changes the form of its rows while other queries read them."""
    before = catalog.queries[after.name]
    readers = [user for user in _readers_of(catalog, "query", after.name) if user.startswith("query ")]
    if readers and reader_properties(before, catalog) != reader_properties(after, catalog):
        raise SqlError(
            statement.text,
            name.span.start,
            f"{after.name} is read by {', '.join(readers)}. Its readers need the same columns in the same kind of "
            "order: keep them, or drop the readers first",
        )


def reader_properties(query: QueryPlan, catalog: Catalog) -> tuple[object, ...]:
    """The properties that readers of a query rely on."""
    facts = facts_of(query, catalog)
    return query.schema, query.update_key, facts.orders[query.output], facts.lags
