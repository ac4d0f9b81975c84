"""Rewrites statements after ALTER STREAM ... RENAME COLUMN: the stream's own, and those of its readers.

Rule: a reader emits the same columns under the same names. The planner finds the places: it refuses the first name
that the stream no longer has, and that place is replaced, until the text can be planned. The result is compared with
the plan from before, in which every column has its position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace

from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.protocol import MillraceError
from millrace.sql import syntax as s
from millrace.sql.edges import only_names
from millrace.sql.errors import SqlError
from millrace.sql.limits import KNOWN
from millrace.sql.parser import parse, written
from millrace.sql.planned import Catalog, schemas_of
from millrace.sql.rewriting import Change, nodes_of, plan_again, replace_places, without_stars
from millrace.values.expression import Constant
from millrace.values.functions import Library

# Options of a stream that name columns, by the attribute that has the names.
_NAMING = ("time", "update_key", "punctuation_key")


def renamed_stream(created: str, after: StreamDefinition, column: str) -> str:
    """CREATE STREAM with the new name of the column, also in options."""
    if not created:
        return created
    body = parse(created, KNOWN)[0].body
    assert isinstance(body, s.CreateStreamStatement)
    position = next(at for at, field in enumerate(body.fields) if field.name.text == column)
    changes: list[Change] = [(body.fields[position].name.span, written(after.schema.names[position]))]
    for option in body.options:
        if option.name.text in _NAMING:
            named = getattr(after, option.name.text)
            names = named if isinstance(named, str) else ", ".join(named)
            changes.append((option.value_span, "'" + names.replace("'", "''") + "'"))
    return replace_places(created, changes)


def rename_in_readers(
    before: StreamDefinition,
    after: StreamDefinition,
    renamed: tuple[str, str],
    catalog: Catalog,
    library: Library,
    texts: Mapping[str, str],
) -> tuple[Mapping[str, QueryPlan], list[str]]:
    """The readers of a stream with their new texts, and the readers that cannot be rewritten. `texts` are preferred if
    they mean the same: an undo has the texts from before."""
    then = replace(catalog, streams={**catalog.streams, after.name: after})
    rewrites: dict[str, QueryPlan] = {}
    stuck: list[str] = []
    for name, query in catalog.queries.items():
        if not {before.name, before.late.name} & set(query.reads_streams):
            continue
        sql = renamed_reader(query, renamed, catalog, then, library)
        if sql is None:
            stuck.append(name)
            continue
        if name in texts and _same_text(query, texts[name], sql, renamed, then, library):
            sql = texts[name]
        plan = query.reading_of(before.source, before.schema, after.schema)
        plan = plan.reading_of(before.late.source, before.late.schema, after.late.schema)
        rewrites[name] = replace(plan, sql=sql)
    return rewrites, stuck


def renamed_reader(
    query: QueryPlan, renamed: tuple[str, str], before: Catalog, after: Catalog, library: Library
) -> str | None:
    """The text of a query with the column's new name; None if none with the same meaning was found. A * that would emit
    the column under its new name is written out."""
    nodes = list(nodes_of(parse(query.sql, KNOWN)[0].body))
    named = any(isinstance(node, s.Name) and node.text in renamed for node in nodes)
    if not named and not any(isinstance(node, s.Star) for node in nodes):
        return query.sql
    for sql in (query.sql, without_stars(query, before, library)):
        if sql is None:
            return None
        text = _renamed(replace(query, sql=sql), renamed, after, library)
        if text is not None and _same(query, (sql, before), (text, after), renamed, library):
            return text
    return None


def _renamed(query: QueryPlan, renamed: tuple[str, str], catalog: Catalog, library: Library) -> str | None:
    """The text after replacing each name that the planner misses."""
    for _ in nodes_of(parse(query.sql, KNOWN)[0].body):
        try:
            plan_again(query, catalog, library)
        except SqlError as error:
            changes = _at_place(query.sql, error.at, *renamed)
            if not changes:
                return None
            query = replace(query, sql=replace_places(query.sql, changes))
        else:
            return query.sql
    return None


def _at_place(sql: str, at: int, column: str, to: str) -> Sequence[Change]:
    """The changes for the name at this place. A column of the SELECT list keeps its name."""
    nodes = list(nodes_of(parse(sql, KNOWN)[0].body))
    place = next(
        (node.span for node in nodes if isinstance(node, s.Name) and node.span.start == at and node.text == column),
        None,
    )
    if place is None:
        return ()
    changes: list[Change] = [(place, written(to))]
    for item in nodes:
        if isinstance(item, s.Item) and _naming(item.expression) == place:
            end = item.expression.span.end
            if item.alias is None:
                changes.append((s.Span(end, end), f" AS {written(column)}"))
            elif item.alias.text == to:
                changes.append((s.Span(end, item.alias.span.end), ""))
    return changes


def _naming(expression: s.Expr) -> s.Span | None:
    """The place of the name that a column of a SELECT list without alias takes from another column."""
    while isinstance(expression, s.CastExpr):
        expression = expression.argument
    return expression.name.span if isinstance(expression, s.ColumnRef) else None


def _same_text(
    query: QueryPlan, text: str, sql: str, renamed: tuple[str, str], catalog: Catalog, library: Library
) -> bool:
    """Whether a text means the same as a rewritten one, which may have its * written out."""
    return any(
        found is not None and _same(query, (found, catalog), (sql, catalog), renamed, library)
        for found in (text, without_stars(replace(query, sql=text), catalog, library))
    )


def _same(
    query: QueryPlan,
    first: tuple[str, Catalog],
    other: tuple[str, Catalog],
    renamed: tuple[str, str],
    library: Library,
) -> bool:
    """Whether two texts have the same plan, each in its catalog, and emit the query's columns."""
    shapes = []
    for sql, catalog in (first, other):
        try:
            plan, _ = plan_again(replace(query, sql=sql), catalog, library)
        except MillraceError:
            return False
        if (plan.schema, plan.update_key) != (query.schema, query.update_key):
            return False
        shapes.append(list(_plan_shape(plan, catalog, renamed)))
    return shapes[0] == shapes[1]


def _plan_shape(plan: QueryPlan, catalog: Catalog, renamed: tuple[str, str]) -> Iterator[object]:
    """A plan without the names that contain one of both: columns have positions besides. Operators that only give names
    are left out, because a written-out * has one where the * has none."""
    schemas = schemas_of(plan, catalog)
    numbers: dict[str, object] = {}
    kept = 0
    for node in plan.nodes:
        inputs = [numbers.get(name, name) for name in node.inputs]
        if only_names(node, len(schemas[node.inputs[0]])):
            numbers[node.name] = inputs[0]
            continue
        numbers[node.name], kept = kept, kept + 1
        yield inputs
        yield from _shape((node.spec, node.edges), renamed)
    yield numbers.get(plan.output, plan.output)


def _shape(value: object, renamed: tuple[str, str]) -> Iterator[object]:
    if is_dataclass(value):
        yield type(value).__name__
        for part in fields(value):
            if part.compare:
                given = getattr(value, part.name)
                yield from [repr(given)] if isinstance(value, Constant) else _shape(given, renamed)
    elif isinstance(value, tuple | list):
        yield len(value)
        for item in value:
            yield from _shape(item, renamed)
    else:
        yield "" if isinstance(value, str) and any(name in value for name in renamed) else value
