"""The time that a window uses: the rows' own, or a column at a bounded distance from it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.operators.retime.spec import RetimeSpec
from millrace.sql import syntax as s
from millrace.sql.binder import TIME_NAME, Relation
from millrace.values import expression as e
from millrace.values.lags import EXACT, lag_of

if TYPE_CHECKING:
    from millrace.sql.queries import QueryPlanner


def retime_for_window(planner: QueryPlanner, node: s.Expr, relation: Relation) -> Relation:
    """The rows at the time that a window uses: their own, or a column at a bounded distance from it."""
    if isinstance(node, s.ColumnRef):
        column = relation.column(node.name.text)
        if column is None and node.name.text == TIME_NAME:
            return relation
        lag = None if column is None else lag_of(column, relation.lags)
        if column is not None and lag is not None:
            own = column.position == e.TIME or (lag == EXACT and not column.nullable)
            return relation if own else _retime(planner, node, column, lag[1], relation)
    legal = [relation.schema.names[position] for position in relation.lags]
    if not legal and relation.schema.index(TIME_NAME) is None:
        legal = [TIME_NAME]
    words = f"expected {' or '.join(legal)} here" if legal else "select ts in the inner query, and name it here"
    raise planner.error(node, f"a window uses the rows' own time: {words}")


def _retime(planner: QueryPlanner, node: s.Expr, column: e.Column, lag_us: int | None, relation: Relation) -> Relation:
    if lag_us is None:
        raise planner.error(
            node,
            f"{column.name} may be earlier than the rows' time by any amount, so its windows would never "
            "end: bound the join's times with ranges or conditions, or use the rows' own time for the "
            "window",
        )
    if column.nullable:
        raise planner.error(
            node,
            f"{column.name} may be null, but a row in a window needs a time: select coalesce({column.name}, ...)",
        )
    retimed = planner.add(RetimeSpec(column.position, lag_us), [relation])
    return replace(retimed, alias=relation.alias, time_name=column.name)
