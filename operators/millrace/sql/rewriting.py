"""Rewrites statements of a catalog after a rename or an added column.

Rule: a rewritten text has the same plan. Every rewrite is planned and compared, and used only if the plans are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.protocol import MillraceError
from millrace.sql import syntax as s
from millrace.sql.limits import KNOWN
from millrace.sql.parser import parse, written
from millrace.sql.planned import Catalog
from millrace.sql.queries import QueryPlanner
from millrace.values.functions import Library

# A place in a text, and its replacement.
Change = tuple[s.Span, str]


def replace_places(text: str, changes: Sequence[Change]) -> str:
    """The text with these places replaced; they do not overlap."""
    parts, at = [], 0
    for span, words in sorted(changes):
        parts += [text[at : span.start], words]
        at = span.end
    return "".join([*parts, text[at:]])


def renamed_query(sql: str, to: str) -> str:
    """CREATE QUERY under another name. A bare SELECT has no name to change."""
    body = parse(sql, KNOWN)[0].body
    return replace_places(sql, [(body.name.span, written(to))]) if isinstance(body, s.CreateQueryStatement) else sql


def renamed_input(sql: str, to: str) -> str:
    """CREATE SINK over a query of another name."""
    body = parse(sql, KNOWN)[0].body
    assert isinstance(body, s.CreateSinkStatement)
    return replace_places(sql, [(body.query.span, written(to))])


def rewrite_reader(query: QueryPlan, before: str, after: str, catalog: Catalog, library: Library) -> QueryPlan | None:
    """A query whose input has a new name; None if no equivalent text was found.

    The catalog has the input under its new name. A column may be written `before.x`, so the new name may need the old
    one as an alias.
    """
    for alias in (False, True):
        expected = replace(query.renamed(before, after), sql=_replace_input(query.sql, before, after, alias))
        planned = _plan_again(expected, catalog, library)
        if planned is not None and _equivalent(planned[0], expected):
            return expected if _is_narrowed(expected) else planned[0]
    return None


def _plan_again(query: QueryPlan, catalog: Catalog, library: Library) -> tuple[QueryPlan, QueryPlanner] | None:
    """The plan of a query's text in this catalog, with the query's options; None if it is refused."""
    try:
        return plan_again(query, catalog, library)
    except MillraceError:
        return None


def plan_again(query: QueryPlan, catalog: Catalog, library: Library) -> tuple[QueryPlan, QueryPlanner]:
    """The plan of a query's text in this catalog, with the query's options. Raises SqlError."""
    statement = parse(query.sql, KNOWN)[0]
    assert isinstance(statement.body, s.CreateQueryStatement | s.SelectStatement)
    others = {name: plan for name, plan in catalog.queries.items() if name != query.name}
    planner = QueryPlanner(statement, replace(catalog, queries=others, facts={}), query.name, query.options, library)
    return planner.run(statement.body.query), planner


def _equivalent(planned: QueryPlan, expected: QueryPlan) -> bool:
    """Whether two plans are equivalent. A plan that reads fewer columns than the stream now has cannot be compared
    exactly. Then the schemas must be equal: ADD COLUMN has already checked that every name keeps its meaning."""
    if _is_narrowed(expected):
        return _schema_and_inputs(planned) == _schema_and_inputs(expected)
    return replace(planned, warnings=(), notes=()) == replace(expected, warnings=(), notes=())


def _schema_and_inputs(query: QueryPlan) -> tuple[object, ...]:
    return query.schema, query.update_key, query.reads_streams, query.reads_queries


def _is_narrowed(query: QueryPlan) -> bool:
    return any(edge.columns is not None for node in query.nodes for edge in node.edges)


# -- names of queries in texts -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """The edits of FROM: the name, and the alias if it has none."""

    span: s.Span
    alias_at: int | None


def _replace_input(sql: str, before: str, after: str, alias: bool) -> str:
    body = parse(sql, KNOWN)[0].body
    assert isinstance(body, s.CreateQueryStatement | s.SelectStatement)
    changes: list[Change] = []
    for place in _places(body.query, before, hidden=False):
        changes.append((place.span, written(after)))
        if alias and place.alias_at is not None:
            changes.append((s.Span(place.alias_at, place.alias_at), f" AS {written(before)}"))
    return replace_places(sql, changes)


def _places(node: s.Node, name: str, hidden: bool) -> Iterator[_Place]:
    """Every table that reads the query of this name. A query of WITH with the same name hides it."""
    if isinstance(node, s.QueryBody):
        for cte in node.ctes:
            yield from _places(cte.query, name, hidden)
            hidden = hidden or cte.name.text == name
        for term in (node.first, *(arm.term for arm in node.arms)):
            yield from _places(term, name, hidden)
        return
    if isinstance(node, s.TablePrimary) and not hidden:
        span = _place_of(node.source, name)
        if span is not None:
            yield _Place(span, None if node.alias is not None else node.source.span.end)
    for child in s.children(node):
        yield from _places(child, name, hidden)


def _place_of(source: s.TableSource, name: str) -> s.Span | None:
    """The place of this name in a source of rows."""
    match source:
        case s.NamedTable(name=s.Name(span=span, text=text), part=None) if text == name:
            return span
        case s.TableFunction(arguments=(s.ColumnRef(table=None, name=s.Name(span=span, text=text)), *_)):
            return span if text == name else None
    return None


def rename_in_readers(
    before: str, after: str, catalog: Catalog, library: Library
) -> tuple[Mapping[str, QueryPlan], list[str]]:
    """The rewritten queries after a rename, by their new names, and the queries that cannot be rewritten."""
    own = catalog.queries[before].renamed(before, after)
    own = replace(own, sql=renamed_query(own.sql, after))
    queries = {after if name == before else name: own if name == before else plan
               for name, plan in catalog.queries.items()}  # fmt: skip
    stuck: list[str] = []
    rewrites: dict[str, QueryPlan] = {after: own}
    for name, plan in catalog.queries.items():
        if before in plan.reads_queries:
            rewritten = rewrite_reader(plan, before, after, replace(catalog, queries=queries), library)
            if rewritten is None:
                stuck.append(name)
            else:
                queries[name] = rewrites[name] = rewritten
    return rewrites, stuck


# -- added columns -----------------------------------------------------------------------------------------------------


def with_column(created: str, column: str) -> str:
    """CREATE STREAM with the added column."""
    if not created:
        return created
    body = parse(created, KNOWN)[0].body
    assert isinstance(body, s.CreateStreamStatement)
    end = body.fields[-1].span.end
    return replace_places(created, [(s.Span(end, end), f", {column}")])


def widen_readers(
    before: StreamDefinition, after: StreamDefinition, column: str, catalog: Catalog, library: Library
) -> tuple[Mapping[str, QueryPlan], list[str]]:
    """The rewritten readers of a stream after ADD COLUMN, and the readers whose text would change its meaning."""
    wider = replace(catalog, streams={**catalog.streams, after.name: after})
    rewrites: dict[str, QueryPlan] = {}
    stuck: list[str] = []
    for name, query in catalog.queries.items():
        if not {before.name, before.late.name} & set(query.reads_streams):
            continue
        sql = without_stars(query, catalog, library)
        rewritten = None if sql is None else _keep_plan(replace(query, sql=sql), before, after, column, wider, library)
        if rewritten is None:
            stuck.append(name)
        else:
            rewrites[name] = rewritten
    return rewrites, stuck


def without_stars(query: QueryPlan, catalog: Catalog, library: Library) -> str | None:
    """The query's text with every * expanded to its columns in this catalog; None if it is refused."""
    planned = _plan_again(query, catalog, library)
    return None if planned is None else replace_places(query.sql, list(planned[1].stars.items()))


def _keep_plan(
    query: QueryPlan, before: StreamDefinition, after: StreamDefinition, column: str, catalog: Catalog, library: Library
) -> QueryPlan | None:
    """The unchanged plan, which reads the same columns as before, if its text keeps its meaning."""
    planned = _plan_again(query, catalog, library)
    if planned is None or _schema_and_inputs(planned[0]) != _schema_and_inputs(query):
        return None
    if planned[0].nodes != query.nodes and _mentions(query.sql, column):
        return None  # its columns have moved, so the plans do not show which column the name refers to
    plan = query.reading_of(before.source, before.schema, after.schema)
    return plan.reading_of(before.late.source, before.late.schema, after.late.schema)


def _mentions(sql: str, column: str) -> bool:
    """Whether a text uses this column name anywhere."""
    return any(
        isinstance(node, s.ColumnRef) and node.name.text == column for node in nodes_of(parse(sql, KNOWN)[0].body)
    )


def nodes_of(node: s.Node) -> Iterator[s.Node]:
    yield node
    for child in s.children(node):
        yield from nodes_of(child)
