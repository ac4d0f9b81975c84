"""The turns of the components in a step, by weighted deficit: what each may take before the others.

Every tuple passes `work`, so this module is compiled (build_hook.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from millrace.engine.events import AggregateTurned, Effects, JoinTurned, QueueTurned
from millrace.engine.faults import OperatorError
from millrace.engine.graph.rewire import failing
from millrace.engine.scheduler.component import Component

if TYPE_CHECKING:
    from millrace.engine.engine import Engine

# Tuples that a component of weight 1 may take before its neighbours have their turn: one long execution.
QUANTUM: Final = 16_384


def work(engine: Engine, effects: Effects, budget: int, executions: int) -> None:
    """Let the components take turns until the budget is used or nothing is left to do."""
    components = engine.graph.components
    worked = [component for component in components if component.busy()]
    while worked and budget > 0 and executions > 0:
        component = worked[0] if len(worked) == 1 else _next(engine, components)
        if component is None:
            break
        if component.deficit <= 0:
            component.deficit += QUANTUM * component.weight
        used, done = component.run(
            min(component.deficit, budget),
            executions,
            effects,
            engine.time.demand,
            engine.time.propagate_demand,
            engine.stopwatch,
            engine.trace,
        )
        if component.failed is not None:
            failing.broken(engine, component, effects)
        left = component.busy()
        component.deficit = component.deficit - used if left else 0
        if component.deficit <= 0:
            engine.turn += 1
        if not left and len(worked) == 1:
            break  # no other has had anything to do, and none gets it from this one
        budget -= used
        executions -= done
        if budget <= 0:
            component.rotate()
    if engine.remembering:
        failing.check_states(engine, worked, effects)
        _report_switches(engine, worked, effects)
    if engine.clock.requeued:
        _report_queues(engine, effects)
    for component in worked:
        if component.busy():
            _demand_nevertheless(engine, component, effects)
        for waiter in component.waiters:
            try:
                waiter.clock_idle(engine.clock.now_us)
            except Exception as error:
                component.fail(waiter, error)
                failing.broken(engine, component, effects)


def _demand_nevertheless(engine: Engine, component: Component, effects: Effects) -> None:
    """Request timestamps although work is left: under load it always is, and requests would be late or never sent."""
    try:
        engine.time.demand(component, effects, busy=True)
    except OperatorError as raised:
        component.fail(raised.operator, raised.error)
        failing.broken(engine, component, effects)


def _next(engine: Engine, components: Sequence[Component]) -> Component | None:
    """Whose turn it is among those with work."""
    for step in range(len(components)):
        turn = (engine.turn + step) % len(components)
        if components[turn].busy():
            engine.turn = turn
            return components[turn]
    return None


def _report_switches(engine: Engine, worked: Sequence[Component], effects: Effects) -> None:
    for name, panes in engine.clock.turned:
        effects.orders += [AggregateTurned(name, pane._asdict()) for pane in panes]
    engine.clock.turned.clear()
    for component in worked:
        for operator in component.switching:
            if operator.pacing.untold:
                for switch in operator.pacing.tell():
                    effects.orders.append(JoinTurned(operator.name, switch._asdict()))


def _report_queues(engine: Engine, effects: Effects) -> None:
    for reader, switch in engine.clock.requeued:
        if (consumer := reader.consumer) is not None:
            effects.orders.append(QueueTurned(consumer.name, consumer.inputs.index(reader), switch._asdict()))
    engine.clock.requeued.clear()
