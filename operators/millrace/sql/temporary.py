"""A SELECT as a temporary query: a plan without a definition, and its LIMIT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from millrace.protocol import MAX_INT64
from millrace.sql import syntax as s
from millrace.sql.errors import SqlError
from millrace.sql.planned import CreateQuery


@dataclass(frozen=True, slots=True)
class CreateTemporary(CreateQuery):
    """A query that runs while a client reads it, at most until the client has `limit` rows."""

    limit: int | None = None


def without_limit(statements: Sequence[s.Statement]) -> tuple[list[s.Statement], int | None]:
    """The statements, of which only the last may be a SELECT, without its LIMIT; and the limit. Raises SqlError."""
    for statement in statements[:-1]:
        if isinstance(statement.body, s.SelectStatement):
            raise SqlError(
                statement.text,
                statement.body.span.start,
                "a SELECT must be the last statement, because its rows are read until you stop: send the "
                "statements after it first",
            )
    if not statements:
        return [], None
    last, body = statements[-1], statements[-1].body
    clause = body.query.limit if isinstance(body, s.SelectStatement) else None
    if not isinstance(body, s.SelectStatement) or clause is None or clause.value is None:
        return list(statements), None
    limit = _count(last.text, clause.value)
    end = len(last.text[: clause.span.start].rstrip())
    query = replace(body.query, span=s.Span(body.query.span.start, end), limit=None)
    return [*statements[:-1], replace(last, body=s.SelectStatement(s.Span(body.span.start, end), query))], limit


def _count(sql: str, node: s.Expr) -> int:
    value = node.value if isinstance(node, s.Constant) else None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_INT64:
        raise SqlError(sql, node.span.start, "LIMIT: expected a whole number above 0")
    return value
