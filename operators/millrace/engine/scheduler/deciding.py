"""An admin's decisions about scheduling: strategies, break points, weights, orders of joins, watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace.engine.events import SetBreak, SetOrder, SetStrategy, SetWeight, WatchProgress
from millrace.engine.queries import refuse_catching_up
from millrace.engine.scheduler.table import Strategy
from millrace.operators.frame.order_switching import OrderSwitching
from millrace.protocol import Refuse
from millrace.protocol.admin.changes import BreakReply, OrderReply, StrategyReply, WeightReply

if TYPE_CHECKING:
    from millrace.engine.engine import Engine


def set_strategy(engine: Engine, command: SetStrategy) -> StrategyReply:
    strategy = Strategy.parse(command.strategy)
    engine.graph.set_strategy(command.component, strategy, command.operator)
    return StrategyReply(component=command.component, strategy=str(strategy), operator=command.operator)


def set_break(engine: Engine, command: SetBreak) -> BreakReply:
    engine.graph.set_break(command.operator, command.on)
    return BreakReply(operator=command.operator, break_=command.on)


def set_weight(engine: Engine, command: SetWeight) -> WeightReply:
    if command.weight < 1:
        raise Refuse(
            f"component {command.component}: expected a weight (a whole number of at least 1), got {command.weight}"
        )
    engine.graph.set_weight(command.component, command.weight)
    return WeightReply(component=command.component, weight=command.weight)


def set_order(engine: Engine, command: SetOrder) -> OrderReply:
    query = engine.query(command.query)
    refuse_catching_up(query)
    joins = [operator for operator in query.operators if isinstance(operator, OrderSwitching)]
    if not joins:
        raise Refuse(f"query {command.query} has no join whose order could be changed", code="no_join")
    for join in joins:
        join.check_order(command.order, command.alpha)
    for join in joins:
        join.set_order(command.order, command.alpha)
        component = engine.graph.component_of(join)
        component.ready.add(join)
        component.has_work = True
    return OrderReply(
        query=command.query,
        orders={join.name: join.order for join in joins},
        alpha=joins[0].pacing.alpha,
    )


def watch(engine: Engine, command: WatchProgress) -> dict[str, Any]:
    sink = engine.query(command.name).sink
    sink.watched = command.wanted
    engine.graph.touch([engine.graph.producer(sink.inputs[0])])
    return {"query": command.name, "watched": command.wanted}
