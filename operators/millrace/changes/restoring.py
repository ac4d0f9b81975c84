"""The changes that make a query what it is now: a DROP or a replacement loses them, and an undo repeats them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from millrace.changes.change import Change
from millrace.engine.engine import Engine
from millrace.engine.graph.edges import find
from millrace.engine.plan import Edit
from millrace.engine.queries import Query
from millrace.operators.queues.edge import QueueKind
from millrace.operators.sample.spec import SampleSpec
from millrace.protocol import Refuse


def restored(engine: Engine, name: str) -> tuple[Change, ...]:
    """A query as it is now: its statement, and the decisions about it. Nothing if there is no such query."""
    from millrace.changes.create_query import CreateQuery
    from millrace.changes.texts import replacing

    query = engine.queries_by_name.get(name)
    if query is None or not query.plan.sql:
        return ()
    return CreateQuery(sql=replacing(query.plan.sql)), *decisions_about(engine, name)


def decisions_about(engine: Engine, name: str) -> tuple[Change, ...]:
    """The decisions about a query that end with it, in an order in which they can be repeated."""
    query = engine.queries_by_name.get(name)
    return () if query is None else tuple(_decisions(engine, query))


def _decisions(engine: Engine, query: Query) -> Iterator[Change]:
    from millrace.changes.pause_query import PauseQuery
    from millrace.changes.set_break import SetBreak
    from millrace.changes.set_order import SetOrder
    from millrace.changes.set_queue import SetQueue
    from millrace.changes.unshare_query import UnshareQuery

    plan = query.plan
    yield from map(edit_change, plan.edits)
    if query.separate:
        yield UnshareQuery(name=plan.name, operators=list(query.separate))
    for operator in query.operators:
        if operator in engine.graph.breaks and operator.name.startswith(f"{plan.name}."):
            yield SetBreak(name=operator.name, on=True)
    join = query.switches
    if join is not None and not join.as_planned:
        yield SetOrder(name=plan.name, join=join.order, alpha=join.pacing.alpha)
    if query.requeued:
        for node in plan.nodes:
            for position in range(len(node.inputs)):
                yield SetQueue(name=node.name, kind=node.edge(position).kind, input=position)
    if query.paused is not None and not query.failed and not query.catching_up:
        yield PauseQuery(name=plan.name, reason=query.paused)


def edit_change(edit: Edit) -> Change:
    """An edit of an operator, as the change that makes it."""
    from millrace.changes.insert_operator import InsertOperator
    from millrace.changes.remove_operator import RemoveOperator
    from millrace.changes.replace_operator import ReplaceOperator

    if edit.change == "remove":
        return RemoveOperator(name=edit.operator)
    drawn = edit.spec if isinstance(edit.spec, SampleSpec) else None
    share, seed = (None, None) if drawn is None else (drawn.share, drawn.seed)
    if edit.change == "replace":
        return ReplaceOperator(name=edit.operator, where=edit.where, sample=share, seed=seed)
    assert edit.before is not None
    return InsertOperator(
        before=edit.before,
        input=edit.input,
        name=edit.operator,
        id=edit.id,
        where=edit.where,
        sample=share,
        seed=seed,
    )


def queue_of(engine: Engine, operator: str, position: int) -> QueueKind | None:
    """The kind of queue at an input; None if there is no such input."""
    with suppress(Refuse):
        _, node, _ = find(engine, operator, position)
        return node.edge(position).kind
    return None
