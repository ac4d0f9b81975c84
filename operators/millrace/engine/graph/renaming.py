"""A query under another name: its operators, forks, costs and decisions are called after it, and nothing else changes.

The rows go on with their numbers, and who reads the query reads on: readers know operators, not names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millrace.engine.plan import moved_name

if TYPE_CHECKING:
    from millrace.engine.engine import Engine


def rename_query(engine: Engine, name: str, to: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """Give a query another name; refused, nothing has changed."""
    query = engine.query(name)
    engine.refuse_taken(to)
    names = {
        operator: moved_name(operator.name, name, to)
        for operator in (*engine.graph.all_operators(), *engine.graph.resting.values())
        if operator.name.startswith(f"{name}.")
    }
    engine.called(names)
    query.sink.query = to
    engine.slow = {to if one == name else one: strict for one, strict in engine.slow.items()}
    query.apart = {moved_name(node, name, to): why for node, why in query.apart.items()}
    for other in engine.queries_by_name.values():
        if other is query or name in other.plan.reads_queries:
            plan = other.plan.renamed(name, to)
            other.plan = replace(plan, sql=texts.get(plan.name, plan.sql))
    engine.queries_by_name = {other.plan.name: other for other in engine.queries_by_name.values()}
    engine.queries_changed()
    return {"query": to, "was": name}
