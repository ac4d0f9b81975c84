"""DEDUPLICATE BY k WITHIN '10 minutes': the first row of each key per span of time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.operators.deduplicate.spec import DeduplicateSpec
from millrace.operators.sort.spec import SortSpec
from millrace.sql import syntax as s
from millrace.sql.binder import Relation
from millrace.sql.edges import settle_edge
from millrace.sql.ordering import stamp_rows
from millrace.sql.updates import append_rows
from millrace.sql.windows import interval_us
from millrace.values import expression as e

if TYPE_CHECKING:
    from millrace.sql.queries import QueryPlanner


def deduplicate_rows(planner: QueryPlanner, clause: s.Deduplicate, relation: Relation) -> Relation:
    """The table with its DEDUPLICATE, which reads rows in order of time. A window is cut after it."""
    within_us = interval_us(planner.statement.text, clause.within)
    if within_us <= 0:
        raise planner.error(clause.within, "expected a time above 0 after WITHIN, such as WITHIN '10 minutes'")
    rows = stamp_rows(planner, append_rows(planner, settle_edge(planner, relation)))
    keys = tuple(dict.fromkeys(_key(planner, node, rows) for node in clause.keys))
    if not planner.ordered[rows.node]:
        rows = planner.add(SortSpec(), [rows])
    rows = planner.add(DeduplicateSpec(keys, within_us), [rows])
    return replace(
        rows, alias=relation.alias, time_name=relation.time_name, window=relation.window, tables=relation.tables
    )


def _key(planner: QueryPlanner, node: s.Expr, relation: Relation) -> e.Expression:
    key = planner.binder(relation, instead="DEDUPLICATE reads rows before aggregation").bind(node)
    planner.check_runs(node, key)
    if not any(e.columns_of(key)):
        raise planner.error(node, "expected a column or an expression of columns after BY, got a constant")
    return key
