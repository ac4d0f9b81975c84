"""A component: connected operators with one scheduler.

The scheduler is the papers' two-step cycle. The execution step runs an operator on at most k tuples; the continuation
step asks the operator's row in the state table for the next one. Nothing else decides: a cycle starts at the operator
that `Ready` names, and moves on as the rows say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from millrace.engine.events import Deliver, Effects, Execution, Progressed, RowsFailed
from millrace.engine.faults import OperatorError, ask
from millrace.engine.scheduler.table import Role, Row, Strategy, StrategyKind
from millrace.operators.fork.fork import Fork
from millrace.operators.frame.idle_waiting import IdleWaiting
from millrace.operators.frame.operator import Operator
from millrace.operators.frame.order_switching import OrderSwitching
from millrace.operators.sink.sink import Sink
from millrace.operators.source.source import Source

# Executions of one cycle after which the others that are ready have their turn. Where more arrives meanwhile, a cycle
# may never come to its end by itself.
LONGEST_CYCLE: Final = 1_024
# Under `chain`, cycles of the steepest after which the one that has waited longest has its turn.
PATIENCE: Final = 64


class Stopwatch(Protocol):
    """The driver's clock around an execution, opaque to the engine: nothing that it shows may steer a step."""

    def start(self) -> None: ...

    def stop(self, operator: str, tuples: int) -> None: ...


class Ready:
    """The operators at which a cycle may start.

    queue      sources, and operators after a break point or left with tuples, in the order of their arrival
    slopes     by operator under `chain`: the steepest in the queue has the next turn
    preferred  how often the steepest has gone before the one that has waited longest
    _first     the first ones of the queue, in reverse: a dict whose first entries were deleted looks at all of these to
               find its first
    """

    __slots__ = ("_first", "preferred", "queue", "slopes")

    def __init__(self) -> None:
        self.queue: dict[Operator, None] = {}
        self.slopes: dict[Operator, float] = {}
        self.preferred = 0
        self._first: list[Operator] = []

    def __bool__(self) -> bool:
        return bool(self.queue)

    def add(self, operator: Operator) -> None:
        self.queue[operator] = None

    def refill(self, operators: Iterable[Operator]) -> None:
        self._first.clear()
        self.queue.clear()
        self.queue.update(dict.fromkeys(operators))

    def take(self) -> Operator:
        """The operator whose turn it is, which leaves the queue."""
        if self.slopes:
            self._first.clear()
            operator = self._steepest()
        else:
            if not self._first:
                self._first.extend(self.queue)
                self._first.reverse()
            operator = self._first.pop()
        del self.queue[operator]
        return operator

    def keep(self, row: Row, taken: int) -> None:
        """Keep an operator that may have stopped short: a cycle that moves on into another fragment never returns."""
        operator = row.operator
        if taken >= row.limit or ((operator.paced or row.leaves) and operator.more()):
            self.queue[operator] = None

    def rotate(self, row: Row) -> bool:
        """Put the operator that a cycle would execute next after the others; returns whether there are any.

        More may arrive meanwhile. Where tuples arrive faster than a branch takes them, its cycle would never end, and
        no other branch would get its turn; nor would operators downstream of one that takes all before it moves on.
        """
        if row.ahead is not None and row.yields():
            self.queue[row.ahead.operator] = None
        if not self.queue:
            return False
        self._first.clear()
        self.queue.pop(row.operator, None)
        self.queue[row.operator] = None
        return True

    def _steepest(self) -> Operator:
        """Under `chain`: the steepest, and now and then the one that has waited longest."""
        self.preferred += 1
        if self.preferred > PATIENCE:
            self.preferred = 0
            return next(iter(self.queue))
        return max(self.queue, key=self._slope)

    def _slope(self, operator: Operator) -> float:
        """An operator that is not under `chain` waits for none; among equals the first in the queue has the turn."""
        return self.slopes.get(operator, math.inf)


class Component:
    """A connected set of operators.

    table     the state table, by operator
    ready     where a cycle may start
    current   the operator to execute next, if a step's budget ended inside a cycle
    cycled    executions of the present cycle so far
    worked_us    measured work since `chain` last looked, and `decisions`: how often it has decided again
    failed    the operator that raised, and what: the run ended there
    """

    __slots__ = (
        "current",
        "cycled",
        "decisions",
        "deficit",
        "failed",
        "has_work",
        "name",
        "ready",
        "sinks",
        "sources",
        "steps",
        "strategy",
        "switching",
        "table",
        "waiters",
        "weight",
        "worked_us",
    )

    def __init__(self, name: str, strategy: Strategy, weight: int = 1) -> None:
        self.name = name
        self.strategy = strategy
        self.weight = weight
        self.deficit = 0
        self.steps = 0
        self.table: dict[Operator, Row] = {}
        self.ready = Ready()
        self.current: Operator | None = None
        self.cycled = 0
        self.worked_us = 0.0
        self.decisions = 0
        self.failed: tuple[Operator, Exception] | None = None
        self.has_work = False
        self.sources: tuple[Source, ...] = ()
        self.waiters: tuple[IdleWaiting, ...] = ()
        self.switching: tuple[OrderSwitching, ...] = ()
        self.sinks: tuple[Sink, ...] = ()

    def __repr__(self) -> str:
        return f"<component {self.name}>"

    def busy(self) -> bool:
        """Whether a run would do anything."""
        return self.has_work or self.current is not None or bool(self.ready)

    def rows(self, rows: Iterable[Row], sinks: Sequence[Sink], stopped: Mapping[Operator, None]) -> None:
        """Take a new state table. What lies unseen anywhere will be found again, but not by those that are stopped."""
        self.table = {row.operator: row for row in rows}
        self.members(self.table, sinks, stopped)
        self.changed(stopped)
        for operator in self.table:
            operator.output.ready = self.ready.queue

    def members(self, operators: Iterable[Operator], sinks: Sequence[Sink], stopped: Mapping[Operator, None]) -> None:
        """Have these operators and sinks."""
        listed = list(operators)
        self.sources = tuple(one for one in listed if isinstance(one, Source))
        self.waiters = tuple(one for one in listed if isinstance(one, IdleWaiting) and one not in stopped)
        self.switching = tuple(one for one in listed if isinstance(one, OrderSwitching))
        self.sinks = tuple(sinks)

    def leave(self, gone: Mapping[Operator, None]) -> None:
        """Have these operators no longer."""
        for operator in gone:
            self.table.pop(operator, None)
        self.waiters = tuple(one for one in self.waiters if one not in gone)
        self.switching = tuple(one for one in self.switching if one not in gone)
        self.sinks = tuple(one for one in self.sinks if one not in gone)

    def changed(self, stopped: Mapping[Operator, None]) -> None:
        """Rows are others. What lies unseen anywhere will be found again, but not by those that are stopped."""
        self.ready.slopes = dict(_slopes(self.table))
        if self.current not in self.table:
            self.current = None
        sinks = [sink for sink in self.sinks if sink.inputs[0].unseen or sink.watched]
        self.ready.refill(one for one in (*self.table, *sinks) if one not in stopped)
        self.has_work = True

    def grow(self, new: Sequence[Operator]) -> None:
        """Take new operators, whose rows are in the table already."""
        operators = [operator for operator in new if not isinstance(operator, Sink)]
        sinks = [operator for operator in new if isinstance(operator, Sink)]
        self.sources += tuple(one for one in operators if isinstance(one, Source))
        self.waiters += tuple(one for one in operators if isinstance(one, IdleWaiting))
        self.switching += tuple(one for one in operators if isinstance(one, OrderSwitching))
        self.sinks += tuple(sinks)
        for operator in (*operators, *sinks):
            self.ready.add(operator)
        for operator in operators:
            operator.output.ready = self.ready.queue
        self.has_work = True

    def run(
        self,
        budget: int,
        executions: int,
        effects: Effects,
        demand: Callable[[Component, Effects], bool],
        propagate_demand: Callable[[IdleWaiting], None],
        watch: Stopwatch | None,
        trace: bool,
    ) -> tuple[int, int]:
        """Execute until nothing is left or the budget is used; say how many tuples and executions it took.

        An execution that takes no tuple counts as one, so that a step with punctuation alone ends.
        """
        used = done = taken = 0
        table = self.table
        while used < budget and done < executions:
            if self.cycled >= LONGEST_CYCLE:
                self.rotate()
            operator = self.current
            try:
                if operator is None:
                    operator = self._begin(effects)
                if operator is None:
                    if demand(self, effects):
                        continue
                    self.has_work = False
                    break
                row = table[operator]
                counts = operator.counts
                errors = counts.errors
                done += 1
                if watch is None:
                    taken = operator.execute(row.limit)
                else:
                    watch.start()
                    taken = operator.execute(row.limit)
                    watch.stop(operator.name, taken)
                used += max(taken, operator.state_scanned) or 1
                self.ready.keep(row, taken)
                if counts.errors != errors:
                    effects.orders.append(RowsFailed(operator.name, counts.errors - errors, counts.last_error))
                if row.sinks:
                    self._drain(row, effects)
                following = self._choose(row)
                if following is None and self.ready and isinstance(operator, IdleWaiting):
                    propagate_demand(operator)
                self.current = following
                self.cycled = 0 if following is None else self.cycled + 1
            except OperatorError as raised:
                self.fail(raised.operator, raised.error)
            except Exception as error:
                if operator is None:
                    raise
                self.fail(operator, error)
            if operator is None or self.failed is not None:
                used += 1  # a step in which queries fail one after the other comes to its end too
                break
            if trace:
                effects.executions.append(
                    Execution(
                        operator.name,
                        row.transition,
                        taken,
                        operator.emitted,
                        None if following is None else following.name,
                        operator.traced(),
                    )
                )
        self.steps += done
        return used, done

    def fail(self, operator: Operator, error: Exception) -> None:
        """Whatever an operator has raised, it must cost its own query alone."""
        self.failed = operator, error
        self.current = None
        self.cycled = 0

    def rotate(self) -> None:
        """Let other cycles go before the present one, when a step's budget or its own length has ended it."""
        self.cycled = 0
        if self.current is not None and self.ready.rotate(self.table[self.current]):
            self.current = None

    def _begin(self, effects: Effects) -> Operator | None:
        """The first operator of a new cycle."""
        while self.ready:
            operator = self.ready.take()
            row = self.table.get(operator)
            if row is None:
                assert isinstance(operator, Sink)
                try:
                    self._empty(operator, effects)
                except Exception as error:
                    raise OperatorError(operator, error) from error
                continue
            try:
                operator.settle()
                if operator.fresh():
                    return operator
            except Exception as error:
                raise OperatorError(operator, error) from error
            if row.yields():
                following = self._choose(row)
                if following is not None:
                    return following
        return None

    def _choose(self, row: Row) -> Operator | None:
        """The continuation step: follow the moves of rows until one names an operator to execute, or none leads on."""
        while True:
            following = None
            try:
                for move in row.moves:
                    following = move(row)
                    if following is not None:
                        break
            except Exception as error:
                raise OperatorError(row.operator, error) from error
            if following is None:
                return None
            if following.execute:
                return following.operator
            row = self.table[following.operator]
            try:
                row.operator.settle()
            except Exception as error:
                raise OperatorError(row.operator, error) from error

    def _drain(self, row: Row, effects: Effects) -> None:
        for sink in row.sinks:
            reader = sink.inputs[0]
            if reader.unseen or sink.watched:
                self._empty(sink, effects)

    def _empty(self, sink: Sink, effects: Effects) -> None:
        reader = sink.inputs[0]
        if reader.unseen:
            drained = sink.drain()
            if drained is not None:
                effects.orders.append(Deliver(sink.query, *drained))
        if sink.watched and (reached := sink.progressed()) is not None:
            effects.orders.append(Progressed(sink.query, reached))

    def _held(self) -> int:
        """Tuples that operators took and keep in line."""
        return sum(ask(waiter, waiter.held_tuples) for waiter in self.waiters)

    def queued(self) -> int:
        """Tuples that wait anywhere in the component, shared ones once."""
        on_arcs = sum(row.operator.output.queued for row in self.table.values() if row.role is not Role.FORK)
        return on_arcs + self._held()

    def pressing(self) -> int:
        """The same, without update queues: those cannot grow beyond their keys, however many tuples arrive."""
        on_arcs = sum(row.operator.output.pressing for row in self.table.values() if row.role is not Role.FORK)
        return on_arcs + self._held()

    def queued_bytes(self, most: int, *, pressing: bool = False) -> int:
        """Bytes of the tuples that wait anywhere in the component, counted no further than `most`.

        Those in line at an operator are estimated by the largest that the sources took of late.
        """
        held = self._held()
        held *= max((source.tuple_bytes for source in self.sources), default=0)
        for row in self.table.values():
            if held >= most:
                break
            if row.role is not Role.FORK:
                held += row.operator.output.queued_bytes(most - held, pressing=pressing)
        return held

    def save(self) -> list[Any]:
        return [
            self.name,
            str(self.strategy),
            self.weight,
            self.deficit,
            self.steps,
            [operator.name for operator in self.ready.queue],
            None if self.current is None else self.current.name,
            self.cycled,
            self.ready.preferred,
            self.has_work,
            self.worked_us,
            self.decisions,
        ]


def _slopes(table: Mapping[Operator, Row]) -> Iterator[tuple[Operator, float]]:
    """Of the rows under `chain`. Sources and forks have the slope of their steepest successor, undecided ones 0."""
    for operator, row in table.items():
        if row.strategy.kind is not StrategyKind.CHAIN:
            continue
        if isinstance(operator, Source | Fork):
            links = [table[succ].link for succ in row.succs]
            yield operator, max((link.slope for link in links if link is not None), default=0.0)
        else:
            yield operator, 0.0 if row.link is None else row.link.slope
