"""Statements of a catalog in other words, when what they name has changed its name.

Rule: a rewritten text means the same plan. Whoever rewrites plans the new text and compares; nothing is kept that has
not been found equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from millrace.engine.plan import QueryPlan
from millrace.operators.functions import Library
from millrace.protocol import MillraceError
from millrace.sql import syntax as s
from millrace.sql.parser import grammar, parse
from millrace.sql.planned import Catalog
from millrace.sql.queries import QueryPlanner

# A place in a text, and what is written there instead.
Change = tuple[s.Span, str]


def changed(text: str, changes: Sequence[Change]) -> str:
    """The text with these places exchanged; none of them overlap."""
    for span, words in sorted(changes, reverse=True):
        text = text[: span.start] + words + text[span.end :]
    return text


def written(name: str) -> str:
    """A name as any statement may have it: in quotes if it could be taken for a word of the language."""
    words = {terminal.name.strip("_").lower() for terminal in grammar().terminals}
    plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in words
    return name if plain else '"' + name.replace('"', '""') + '"'


def renamed_query(sql: str, to: str) -> str:
    """CREATE QUERY under another name. A bare SELECT has none to change."""
    body = parse(sql)[0].body
    return changed(sql, [(body.name.span, written(to))]) if isinstance(body, s.CreateQueryStatement) else sql


def renamed_input(sql: str, to: str) -> str:
    """CREATE SINK over a query of another name."""
    body = parse(sql)[0].body
    assert isinstance(body, s.CreateSinkStatement)
    return changed(sql, [(body.query.span, written(to))])


def reading(query: QueryPlan, before: str, after: str, catalog: Catalog, library: Library) -> QueryPlan | None:
    """A query that reads one of another name now; None if no text was found that says so.

    The catalog has the other query under its new name. A column may be written `before.x`, so the new name may have to
    be given the old one as an alias.
    """
    wanted = query.renamed(before, after)
    others = {name: plan for name, plan in catalog.queries.items() if name != query.name}
    for alias in (False, True):
        sql = _reading(query.sql, before, after, alias)
        found = planned_again(replace(wanted, sql=sql), replace(catalog, queries=others), library)
        if found is not None and unannotated(found) == unannotated(replace(wanted, sql=sql)):
            return found
    return None


def planned_again(query: QueryPlan, catalog: Catalog, library: Library) -> QueryPlan | None:
    """What a query's text would come to now, with the options that it has; None if it would be refused."""
    try:
        statement = parse(query.sql)[0]
        assert isinstance(statement.body, s.CreateQueryStatement | s.SelectStatement)
        return QueryPlanner(statement, catalog, query.name, query.options, library).run(statement.body.query)
    except MillraceError:
        return None


def unannotated(query: QueryPlan) -> QueryPlan:
    """A plan without what it has to say of itself, to compare what it does."""
    return replace(query, warnings=(), notes=())


# -- where a text names a query ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """Where FROM names it, and where its alias would go if it has none."""

    span: s.Span
    alias_at: int | None


def _reading(sql: str, before: str, after: str, alias: bool) -> str:
    body = parse(sql)[0].body
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
