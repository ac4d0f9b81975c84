"""Rewrites statements of a catalog after a rename or an added column, and those of records (`with_names`).

Rule: a rewritten text has the same plan. Every rewrite of a definition is planned and compared, and used only if the
plans are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.protocol import MillraceError, Refuse
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


def rewrite_reader(query: QueryPlan, before: str, after: str, catalog: Catalog, library: Library) -> QueryPlan | None:
    """A query whose input has a new name, which it has in the catalog; None if its text would change its meaning."""
    try:
        expected = replace(query.renamed(before, after), sql=with_names(query.sql, {before: after}))
    except Refuse:
        return None
    planned = _plan_again(expected, catalog, library)
    if planned is None or not _equivalent(planned[0], expected):
        return None
    return expected if _is_narrowed(expected) else planned[0]


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


# -- names of streams and queries in texts -----------------------------------------------------------------------------


class _Scope(NamedTuple):
    """The names of tables in one SELECT: of those in its FROM, and those with which columns are written."""

    tables: frozenset[str] = frozenset()
    qualifiers: frozenset[str] = frozenset()


_OUTSIDE: Final = _Scope()


@dataclass(frozen=True, slots=True)
class _Table:
    """The name of a stream or query in a statement.

    end     the place after it in FROM, where an alias may follow; None elsewhere
    alias   the one that it has
    hidden  the queries of WITH, to which a name refers there
    scope   the names of tables in its SELECT
    """

    name: s.Name
    end: int | None = None
    alias: s.Name | None = None
    hidden: frozenset[str] = frozenset()
    scope: _Scope = _OUTSIDE


def objects_of(sql: str) -> list[str]:
    """The streams and queries that a statement names, without the one that it creates."""
    return list(dict.fromkeys(table.name.text for table in _objects(parse(sql, KNOWN)[0].body)))


def with_names(sql: str, names: Mapping[str, str]) -> str:
    """A statement about objects that have other names now. Raises Refuse if it cannot be written.

    A table whose columns are written with its name keeps it as its alias, and loses it again when it is called so.
    """
    body = parse(sql, KNOWN)[0].body
    changes: list[Change] = []
    for table in _objects(body):
        before = table.name.text
        to = names.get(before)
        if to is None:
            continue
        if to in table.hidden:
            raise Refuse(f"{before} is called {to} now, as a query of WITH is: rename it first", code="not_undoable")
        changes.append((table.name.span, written(to)))
        if table.end is None:
            continue
        if table.alias is not None and table.alias.text == to:
            changes.append((s.Span(table.end, table.alias.span.end), ""))
        elif table.alias is None and (before in table.scope.qualifiers or to in table.scope.tables):
            changes.append((s.Span(table.end, table.end), f" AS {written(before)}"))
    return replace_places(sql, changes)


def _objects(body: s.Node) -> Iterator[_Table]:
    """The places of these names: its own, if the object exists already, and those that it reads."""
    match body:
        case s.CreateQueryStatement(name=name, replace=replaces, query=query):
            if replaces:
                yield _Table(name)
            yield from _tables(query)
        case s.SelectStatement(query=query):
            yield from _tables(query)
        case s.CreateStreamStatement(name=name, replace=True):
            yield _Table(name)
        case s.CreateSinkStatement(query=query):
            yield _Table(query)
        case _:
            pass


def _tables(node: s.Node, hidden: frozenset[str] = frozenset(), scope: _Scope = _OUTSIDE) -> Iterator[_Table]:
    """Every table that reads a stream or a query. A query of WITH hides what has the same name."""
    if isinstance(node, s.QueryBody):
        for cte in node.ctes:
            yield from _tables(cte.query, hidden)
            hidden |= {cte.name.text}
        for term in (node.first, *(arm.term for arm in node.arms)):
            yield from _tables(term, hidden)
        return
    if isinstance(node, s.Select):
        scope = _scope_of(node)
    if isinstance(node, s.TablePrimary):
        name = _name_of(node.source)
        if name is not None and name.text not in hidden:
            yield _Table(name, node.source.span.end, node.alias, hidden, scope)
    for child in s.children(node):
        yield from _tables(child, hidden, scope)


def _scope_of(select: s.Select) -> _Scope:
    parts = [] if select.table is None else s.walk(select.table)
    tables = [one.alias or _name_of(one.source) for one in parts if isinstance(one, s.TablePrimary)]
    columns = [one.table for one in nodes_of(select) if isinstance(one, s.ColumnRef | s.Star)]
    return _Scope(*(frozenset(name.text for name in names if name is not None) for names in (tables, columns)))


def _name_of(source: s.TableSource) -> s.Name | None:
    """The stream or query that a source of rows reads."""
    match source:
        case s.NamedTable(name=name):
            return name
        case s.TableFunction(arguments=(s.ColumnRef(table=None, name=name), *_)):
            return name
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
