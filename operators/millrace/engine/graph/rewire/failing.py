"""Queries that fail: an operator raises, or its state exceeds the query's limit.

Such a query stops alone, and its state says why. Its readers leave the arcs that it shares with others, its operators
are created again with empty state, and its neighbours continue. After a resume it starts like a new query, at the
present end of its inputs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from millrace.engine.events import Effects, QueryFailed
from millrace.engine.faults import OperatorError, ask, ask_quietly
from millrace.engine.graph.rewire import sharing
from millrace.engine.graph.rewire.rewiring import Rewiring, carry_out
from millrace.engine.queries import Query
from millrace.engine.scheduler.component import Component
from millrace.operators.build import build
from millrace.operators.frame.idle_waiting import IdleWaiting
from millrace.operators.frame.operator import Operator
from millrace.operators.sink.sink import Sink
from millrace.operators.source.source import Source
from millrace.values.eventtime import MIN_TIME

if TYPE_CHECKING:
    from millrace.engine.engine import Engine


def broken(engine: Engine, component: Component, effects: Effects) -> None:
    """An execution raised: stop its queries."""
    assert component.failed is not None
    operator, error = component.failed
    component.failed = None
    stop(engine, operator, error, effects)


def stop(engine: Engine, operator: Operator, error: Exception, effects: Effects) -> None:
    """Stop the queries of an operator that raised."""
    owners = engine.owners(operator)
    if not owners:
        raise error  # a source belongs to no query
    if isinstance(operator, Sink):
        operator.inputs[0].discard()
    detail = "".join(traceback.format_exception(error))
    for query in owners:
        fail(engine, query, reason_of(operator, error), effects, detail)


def reason_of(operator: Operator, error: Exception) -> str:
    return f"{operator.name} failed: {type(error).__name__}: {error}"


def contain(engine: Engine, effects: Effects, phase: Callable[[], None]) -> None:
    """Carry out a part of a step. Queries whose operators raise in it stop, and it is carried out without them."""
    while True:
        try:
            return phase()
        except OperatorError as raised:
            stop(engine, raised.operator, raised.error, effects)


def stop_faulty(engine: Engine, effects: Effects) -> None:
    """Stop the queries of the operators that raised while the graph was derived."""
    while engine.graph.faults:
        operator, error = engine.graph.faults.popitem()
        if not all(query.failed for query in engine.owners(operator)):
            stop(engine, operator, error, effects)


def check_states(engine: Engine, worked: Sequence[Component], effects: Effects) -> None:
    """Stop the queries whose state exceeds their limit, unless they wait until it has shrunk."""
    for query in list(engine.remembering.values()):
        if query.failed or engine.graph.component_of(query.operators[0]) not in worked:
            continue
        contain(engine, effects, partial(_check_state, engine, query, effects))


def _check_state(engine: Engine, query: Query, effects: Effects) -> None:
    most = query.plan.options.max_state
    held = 0 if query.failed else state_tuples(query)
    if held <= most:
        return
    if query.plan.options.on_max_state == "fail":
        fail(engine, query, f"its state grew to {held} tuples, and max_state is {most}", effects)
    elif held > 2 * (most + engine.credit):
        # What clients were allowed to send has come, and more with it: no stream that waits will free this.
        reason = f"its state grew to {held} tuples although its streams waited, and max_state is {most}"
        fail(engine, query, reason, effects)


def withheld(engine: Engine) -> dict[Source, None]:
    """The sources that get no credit because a state is too large: those ahead of the one that could free it."""
    found: dict[Source, None] = {}
    for query in engine.remembering.values():
        options = query.plan.options
        if query.failed or options.on_max_state != "backpressure" or state_tuples(query) <= options.max_state:
            continue
        sources = engine.graph.sources(*query.operators)
        least = min((source.mark for source in sources), default=MIN_TIME)
        found |= {source: None for source in sources if source.mark > least}
    return found


def state_tuples(query: Query) -> int:
    """The tuples in the state of a query's operators."""
    held = 0
    for operator in query.operators:
        held += ask(operator, lambda: operator.state_tuples)  # noqa: B023 (called at once)
    return held


def fail(engine: Engine, query: Query, reason: str, effects: Effects, detail: str = "") -> None:
    """Stop a query and delete its state."""
    engine.graph.settle()
    held = ask_quietly(lambda: state_tuples(query), 0)
    for operator in query.operators:
        held += sum(ask_quietly(partial(operator.queue_tuples, at), 0) for at in range(len(operator.inputs)))
    sharing.unshare(engine, query, remembering=False)
    # What still lies on the arcs that it shares with others is skipped, like in a pause, and counted there.
    entries = engine.entries(query)
    lost = max(held - sum(inlet.waiting for inlet in entries), 0)
    if query.paused is None:
        for inlet in entries:
            inlet.detach()
    known = query.failed
    query.paused = reason
    query.failed = True
    query.lost += lost
    _renew(engine, query)
    stand_still(engine, query)
    engine.graph.derive()
    if not known:
        effects.orders.append(QueryFailed(query.plan.name, reason, lost, detail))


def stand_still(engine: Engine, query: Query) -> None:
    """Let a failed query's operators have no turn, whatever is queued. Its sink still delivers earlier rows."""
    engine.graph.stopped |= dict.fromkeys(query.operators)


def begin_again(engine: Engine, query: Query) -> None:
    """Let a failed query read like a new one."""
    for inlet in engine.entries(query):
        producer = engine.graph.producer(inlet)
        if isinstance(producer, Source) and producer.newest > MIN_TIME:
            inlet.since_us = producer.first_read(query.plan.options.start)
    _renew(engine, query)
    for operator in query.operators:
        engine.graph.stopped.pop(operator, None)
    query.failed = False


def _renew(engine: Engine, query: Query) -> None:
    """Replace the operators by new ones: same names, same arcs, same counts, empty state."""
    inner = {reader for operator in query.operators for reader in operator.inputs} - set(engine.entries(query))
    renewed: dict[Operator, Operator] = {}
    for node, old in zip(query.plan.nodes, query.operators, strict=True):
        if isinstance(old, IdleWaiting):
            ask_quietly(old.clear, None)
        for reader in old.inputs:
            if reader in inner:
                reader.discard()
        output = old.output
        new = build(node.name, node.spec, old.inputs, engine.gauge, engine.clock, engine.graph.beginning(old))
        new.output = output
        new.counts = old.counts
        decision = ask_quietly(old.decision, None)
        if decision is not None:
            new.decide(decision)
        if isinstance(new, IdleWaiting) and isinstance(old, IdleWaiting):
            new.idle_us = old.idle_us
        renewed[old] = new
    carry_out(engine, Rewiring([(query, query.plan, list(renewed.values()))], instead=renewed))
