"""Parses a standalone condition over the columns of an arc, which an admin adds to a running query."""

from __future__ import annotations

from typing import Final

from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.operators.filter.spec import SelectSpec
from millrace.protocol import Schema
from millrace.sql import syntax as s
from millrace.sql.errors import SqlError
from millrace.sql.limits import DEFAULT, Limits
from millrace.sql.parser import parse
from millrace.sql.planned import Catalog
from millrace.sql.planner import plan
from millrace.values.expression import Expression

# The condition has a separate line, so that positions in it can be mapped back.
BEFORE: Final = "SELECT * FROM arc WHERE\n"


def condition(text: str, schema: Schema, limits: Limits = DEFAULT) -> Expression:
    """A WHERE condition over these columns and `ts`. Raises SqlError, which shows the place in the condition."""
    try:
        return _condition(text, schema, limits)
    except SqlError as error:
        raise _relocate(text, error) from None


def _condition(text: str, schema: Schema, limits: Limits) -> Expression:
    statements = parse(BEFORE + text, limits)
    body = statements[0].body
    if len(statements) > 1 or not isinstance(body, s.SelectStatement):
        raise SqlError(text, 0, "expected one condition, as after WHERE")
    query = plan(statements[0], Catalog(streams={"arc": StreamDefinition("arc", schema)}))
    assert isinstance(query, QueryPlan)
    if len(query.nodes) != 1 or not isinstance(query.nodes[0].spec, SelectSpec):
        raise SqlError(text, 0, "expected one condition, as after WHERE, and nothing after it")
    return query.nodes[0].spec.predicate


def _relocate(text: str, error: SqlError) -> SqlError:
    if error.line == 1:
        return SqlError(text, 0, error.message)
    begin = 0
    for _ in range(error.line - 2):
        begin = text.find("\n", begin) + 1
    return SqlError(text, begin + error.column - 1, error.message)
