"""How much memory queries hold, for a driver that has a budget: read between two steps.

Queued tuples do not count for a budget: credit bounds them, and they become fewer while feeds wait.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millrace.engine.faults import ask_quietly
from millrace.operators.frame.operator import Operator

if TYPE_CHECKING:
    from millrace.engine.engine import Engine
    from millrace.engine.scheduler.component import Component


def query_bytes(engine: Engine) -> dict[str, int]:
    """By query that has not failed, the bytes of its operators' states. An operator that several queries share counts
    for each of them: only when all of them have gone is it free."""
    return {
        name: sum(_state_bytes(operator) for operator in query.operators)
        for name, query in list(engine.queries_by_name.items())
        if not query.failed
    }


def component_bytes(component: Component, most: int) -> int:
    """The bytes of a component's queued tuples, counted no further than `most`, and of its operators' states."""
    states = sum(_state_bytes(row.operator) for row in component.table.values())
    return component.queued_bytes(most) + states


def state_bytes(engine: Engine) -> int:
    """The bytes of all operators' states."""
    return sum(_state_bytes(operator) for operator in list(engine.graph.operators.values()))


def _state_bytes(operator: Operator) -> int:
    return ask_quietly(partial(getattr, operator, "state_bytes"), 0)
