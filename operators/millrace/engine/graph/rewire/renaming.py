"""Rename a query: its operators, forks, costs and decisions get its new name, and nothing else changes.

The rows' numbers continue, and so do the query's readers: they refer to operators, not to names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.engine.events import RenameQuery
from millrace.engine.graph.rewire.rewiring import Rewiring, carry_out
from millrace.engine.plan import moved_name
from millrace.engine.queries import refuse_catching_up
from millrace.protocol.admin.changes import RenameReply

if TYPE_CHECKING:
    from millrace.engine.engine import Engine


def rename_query(engine: Engine, command: RenameQuery) -> RenameReply:
    """Rename a query; a refusal changes nothing."""
    name, to, texts = command.name, command.to, dict(command.texts)
    query = engine.query(name)
    refuse_catching_up(query)
    engine.refuse_taken(to)
    change = Rewiring()
    for other in engine.queries_by_name.values():
        if other is query or name in other.plan.reads_queries:
            plan = other.plan.renamed(name, to)
            change.after.append((other, replace(plan, sql=texts.get(plan.name, plan.sql)), other.operators))
    query.sink.query = to
    query.separate = {moved_name(node, name, to): None for node in query.separate}
    query.apart = {moved_name(node, name, to): why for node, why in query.apart.items()}
    carry_out(engine, change)
    return RenameReply(query=to, was=name)
