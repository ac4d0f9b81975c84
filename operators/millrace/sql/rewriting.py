"""Statements of a catalog in other words, when what they name has changed its name.

Rule: a rewritten text means the same plan. Whoever rewrites plans the new text and compares; nothing is kept that has
not been found equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.operators.functions import Library
from millrace.protocol import MillraceError
from millrace.sql import syntax as s
from millrace.sql.limits import KNOWN
from millrace.sql.parser import parse, written
from millrace.sql.planned import Catalog
from millrace.sql.queries import QueryPlanner

# A place in a text, and what is written there instead.
Change = tuple[s.Span, str]


def changed(text: str, changes: Sequence[Change]) -> str:
    """The text with these places exchanged; none of them overlap."""
    made, at = [], 0
    for span, words in sorted(changes):
        made += [text[at : span.start], words]
        at = span.end
    return "".join([*made, text[at:]])


def renamed_query(sql: str, to: str) -> str:
    """CREATE QUERY under another name. A bare SELECT has none to change."""
    body = parse(sql, KNOWN)[0].body
    return changed(sql, [(body.name.span, written(to))]) if isinstance(body, s.CreateQueryStatement) else sql


def renamed_input(sql: str, to: str) -> str:
    """CREATE SINK over a query of another name."""
    body = parse(sql, KNOWN)[0].body
    assert isinstance(body, s.CreateSinkStatement)
    return changed(sql, [(body.query.span, written(to))])


def reading(query: QueryPlan, before: str, after: str, catalog: Catalog, library: Library) -> QueryPlan | None:
    """A query that reads one of another name now; None if no text was found that says so.

    The catalog has the other query under its new name. A column may be written `before.x`, so the new name may have to
    be given the old one as an alias.
    """
    for alias in (False, True):
        wanted = replace(query.renamed(before, after), sql=_reading(query.sql, before, after, alias))
        found = _planned_again(wanted, catalog, library)
        if found is not None and _same(found[0], wanted):
            return wanted if _narrowed(wanted) else found[0]
    return None


def _planned_again(query: QueryPlan, catalog: Catalog, library: Library) -> tuple[QueryPlan, QueryPlanner] | None:
    """What a query's text would come to now, with the options that it has; None if it would be refused."""
    try:
        statement = parse(query.sql, KNOWN)[0]
        assert isinstance(statement.body, s.CreateQueryStatement | s.SelectStatement)
        others = {name: plan for name, plan in catalog.queries.items() if name != query.name}
        planner = QueryPlanner(
            statement, replace(catalog, queries=others, facts={}), query.name, query.options, library
        )
        return planner.run(statement.body.query), planner
    except MillraceError:
        return None


def _same(found: QueryPlan, wanted: QueryPlan) -> bool:
    """Whether two plans do the same. One that reads less of a stream than there is now has no equal: its rows look the
    same at least, and every name in it has been found to mean what it did when the stream got more."""
    if _narrowed(wanted):
        return _looks(found) == _looks(wanted)
    return replace(found, warnings=(), notes=()) == replace(wanted, warnings=(), notes=())


def _looks(query: QueryPlan) -> tuple[object, ...]:
    return query.schema, query.update_key, query.reads_streams, query.reads_queries


def _narrowed(query: QueryPlan) -> bool:
    return any(edge.columns is not None for node in query.nodes for edge in node.edges)


# -- where a text names a query ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """Where FROM names it, and where its alias would go if it has none."""

    span: s.Span
    alias_at: int | None


def _reading(sql: str, before: str, after: str, alias: bool) -> str:
    body = parse(sql, KNOWN)[0].body
    assert isinstance(body, s.CreateQueryStatement | s.SelectStatement)
    changes: list[Change] = []
    for place in _places(body.query, before, hidden=False):
        changes.append((place.span, written(after)))
        if alias and place.alias_at is not None:
            changes.append((s.Span(place.alias_at, place.alias_at), f" AS {written(before)}"))
    return changed(sql, changes)


def _places(node: s.Node, name: str, hidden: bool) -> Iterator[_Place]:
    """Every table that is the query of this name; one of WITH that is called so hides it."""
    if isinstance(node, s.QueryBody):
        for cte in node.ctes:
            yield from _places(cte.query, name, hidden)
            hidden = hidden or cte.name.text == name
        for term in (node.first, *(arm.term for arm in node.arms)):
            yield from _places(term, name, hidden)
        return
    if isinstance(node, s.TablePrimary) and not hidden:
        span = _named(node.source, name)
        if span is not None:
            yield _Place(span, None if node.alias is not None else node.source.span.end)
    for child in s.children(node):
        yield from _places(child, name, hidden)


def _named(source: s.TableSource, name: str) -> s.Span | None:
    """Where a source of rows says this name."""
    match source:
        case s.NamedTable(name=s.Name(span=span, text=text), part=None) if text == name:
            return span
        case s.TableFunction(arguments=(s.ColumnRef(table=None, name=s.Name(span=span, text=text)), *_)):
            return span if text == name else None
    return None


def renaming(before: str, after: str, catalog: Catalog, library: Library) -> tuple[Mapping[str, QueryPlan], list[str]]:
    """The queries as they read when one has another name, by their new names, and those that cannot be rewritten."""
    own = catalog.queries[before].renamed(before, after)
    own = replace(own, sql=renamed_query(own.sql, after))
    queries = {after if name == before else name: own if name == before else plan
               for name, plan in catalog.queries.items()}  # fmt: skip
    stuck: list[str] = []
    found: dict[str, QueryPlan] = {after: own}
    for name, plan in catalog.queries.items():
        if before in plan.reads_queries:
            rewritten = reading(plan, before, after, replace(catalog, queries=queries), library)
            if rewritten is None:
                stuck.append(name)
            else:
                queries[name] = found[name] = rewritten
    return found, stuck


# -- more columns ------------------------------------------------------------------------------------------------------


def with_column(created: str, column: str) -> str:
    """CREATE STREAM with one column more."""
    if not created:
        return created
    body = parse(created, KNOWN)[0].body
    assert isinstance(body, s.CreateStreamStatement)
    end = body.fields[-1].span.end
    return changed(created, [(s.Span(end, end), f", {column}")])


def widening(
    before: StreamDefinition, after: StreamDefinition, column: str, catalog: Catalog, library: Library
) -> tuple[Mapping[str, QueryPlan], list[str]]:
    """The queries that read a stream as they read when it has one column more, and those whose text would not mean the
    same any more."""
    wider = replace(catalog, streams={**catalog.streams, after.name: after})
    found: dict[str, QueryPlan] = {}
    stuck: list[str] = []
    for name, query in catalog.queries.items():
        if not {before.name, before.late.name} & set(query.reads_streams):
            continue
        sql = _without_stars(query, catalog, library)
        rewritten = None if sql is None else _widened(replace(query, sql=sql), before, after, column, wider, library)
        if rewritten is None:
            stuck.append(name)
        else:
            found[name] = rewritten
    return found, stuck


def _without_stars(query: QueryPlan, catalog: Catalog, library: Library) -> str | None:
    """The query's text with every * written out, as it stands now."""
    found = _planned_again(query, catalog, library)
    return None if found is None else changed(query.sql, list(found[1].stars.items()))


def _widened(
    query: QueryPlan, before: StreamDefinition, after: StreamDefinition, column: str, catalog: Catalog, library: Library
) -> QueryPlan | None:
    """The plan as it is, which reads what it has read, if its text still means it."""
    found = _planned_again(query, catalog, library)
    if found is None or _looks(found[0]) != _looks(query):
        return None
    if found[0].nodes != query.nodes and _names(query.sql, column):
        return None  # its columns stand elsewhere now, so nothing shows which of them the name means
    plan = query.reading_of(before.source, before.schema, after.schema)
    return plan.reading_of(before.late.source, before.late.schema, after.late.schema)


def _names(sql: str, column: str) -> bool:
    """Whether a column is called so anywhere in a text."""
    return any(isinstance(node, s.ColumnRef) and node.name.text == column for node in _all(parse(sql, KNOWN)[0].body))


def _all(node: s.Node) -> Iterator[s.Node]:
    yield node
    for child in s.children(node):
        yield from _all(child)
