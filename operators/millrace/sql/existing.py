"""CREATE of an existing stream, query or sink: compares the definitions, and finds the changes for OR REPLACE.

Rule: two definitions are the same if they parse to the same statement. Spaces, comments, letter case and explicit
defaults do not count. OR REPLACE of a stream never changes the columns and options that existing tuples and readers
depend on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Final

from millrace.engine.plan import POLICIES, Node, QueryOptions, QueryPlan, StreamDefinition
from millrace.protocol import Field
from millrace.sql import syntax as s
from millrace.sql.errors import SqlError
from millrace.sql.limits import KNOWN
from millrace.sql.options import STREAM_OPTIONS
from millrace.sql.parser import parse, written
from millrace.sql.planned import SinkDefinition

# These attributes do not affect the meaning of a definition.
_IGNORED: Final = frozenset(("span", "options_span", "value_span", "replace", "unless_exists"))
_OPTION_NAMES: Final = {row.becomes: row.name for row in STREAM_OPTIONS}


def same_query(before: QueryPlan, options: QueryOptions, query: s.QueryBody) -> bool:
    """Whether a statement defines the query as it already is."""
    body = parse(before.sql, KNOWN)[0].body
    assert isinstance(body, s.CreateQueryStatement | s.SelectStatement)
    return before.options == options and _shape(body.query) == _shape(query)


def same_definition(before: QueryPlan, after: QueryPlan) -> bool:
    """Whether two queries have the same definition."""
    body = parse(after.sql, KNOWN)[0].body
    assert isinstance(body, s.CreateQueryStatement | s.SelectStatement)
    return same_query(before, after.options, body.query)


def same_plan(before: QueryPlan, after: QueryPlan) -> bool:
    """Whether a statement is still lowered to the plan that a query has; a stream's newer columns do not count."""
    return (before.output, before.schema, *map(_narrow, before.nodes)) == (
        after.output,
        after.schema,
        *map(_narrow, after.nodes),
    )


def _narrow(node: Node) -> Node:
    edges = [node.edge(at) for at in range(len(node.inputs))]
    first = [edge.columns is not None and edge.columns == tuple(range(len(edge.columns))) for edge in edges]
    return replace(
        node,
        edges=tuple(edge.unnarrowed if all_ else edge for edge, all_ in zip(edges, first, strict=True)),
    )


def same_stream(before: StreamDefinition, after: StreamDefinition) -> bool:
    return replace(before, sql="") == replace(after, sql="")


def same_sink(before: SinkDefinition, after: SinkDefinition) -> bool:
    return replace(before, sql="") == replace(after, sql="")


def _shape(value: object) -> object:
    """A parsed statement without its places."""
    if isinstance(value, s.Node):
        parts = (_shape(getattr(value, part.name)) for part in fields(value) if part.name not in _IGNORED)
        return type(value).__name__, *parts
    if isinstance(value, tuple):
        return tuple(map(_shape, value))
    return type(value).__name__, value


def definition(statement: s.Statement, body: Any, kind: str) -> str:
    """A CREATE statement as the catalog stores it: without OR REPLACE and IF NOT EXISTS."""
    if not (getattr(body, "replace", False) or body.unless_exists):
        return statement.sql
    return f"CREATE {kind} {statement.text[body.name.span.start : body.span.end]}"


# -- OR REPLACE of a stream --------------------------------------------------------------------------------------------


def added_fields(
    sql: str, body: s.CreateStreamStatement, before: StreamDefinition, after: StreamDefinition
) -> Sequence[s.FieldDef]:
    """The columns that a new definition adds at the end. Raises SqlError if it changes any existing column."""
    name, fields = written(before.name), before.schema.fields
    for position, old in enumerate(fields):
        if position == len(after.schema.fields):
            raise _incompatible(sql, body.name, name, f"this definition lacks its column {_show_field(old)}")
        new = after.schema.fields[position]
        if new != old:
            what = f"column {position + 1} is {_show_field(old)} in the stream and {_show_field(new)} here"
            raise _incompatible(sql, body.fields[position], name, what)
    return body.fields[len(fields) :]


def changed_policies(
    sql: str, body: s.CreateStreamStatement, before: StreamDefinition, after: StreamDefinition
) -> tuple[tuple[str, Any], ...]:
    """The policies that a new definition changes or omits. Raises SqlError if it changes other options."""
    options = {option.name.text: option for option in body.options}
    changes: list[tuple[str, Any]] = []
    for attribute, option in _OPTION_NAMES.items():
        old, new = getattr(before, attribute), getattr(after, attribute)
        if old == new:
            continue
        if attribute not in POLICIES:
            place: s.Node = options.get(option, body.name)
            what = f"the option {option} is {_show_value(old)} in the stream and {_show_value(new)} here"
            raise _incompatible(sql, place, written(before.name), what)
        changes.append((attribute, new))
    return tuple(changes)


def _incompatible(sql: str, place: s.Node, name: str, what: str) -> SqlError:
    policies = ", ".join(option for attribute, option in _OPTION_NAMES.items() if attribute in POLICIES)
    return SqlError(
        sql,
        place.span.start,
        f"cannot replace stream {name}: {what}. A replacement may add nullable columns at the end and change "
        f"{policies}. For anything else, drop the stream and its readers first, or create a stream of another name",
    )


def _show_field(field: Field) -> str:
    return f"{field.name} {str(field.type).upper()}{'' if field.nullable else ' NOT NULL'}"


def _show_value(value: object) -> str:
    if value is None or value == ():
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(", ".join(value)) if isinstance(value, tuple) else repr(value)
