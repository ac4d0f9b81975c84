"""The offline driver: steps the engine with a virtual clock that only the input and the price of work move.

Rule: events of one time enter in the order of the input, and all work is done before the clock moves. With a price per
tuple, work itself moves the clock. The engine then runs one execution per step. Its output leaves when the execution's
time is over. Events that arrive meanwhile enter at their own time, before the next execution. The same input always
produces the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple, Protocol

from millrace.engine.engine import Engine
from millrace.engine.events import Answer, Effect, Event, Execution, Measured, Rejected, WakeAt

MANY: Final = 1 << 62

# Virtual microseconds: whole ones, which are cheap, until the price of work has a fraction.
Time = Fraction | int


class Instant(NamedTuple):
    """The events of one time, in order."""

    at_us: int
    events: Sequence[Event]


class Watcher(Protocol):
    """Carries out the engine's orders."""

    def ordered(self, at_us: Time, order: Effect) -> None:
        """An order of the engine; `at_us` is when it leaves."""

    def executed(self, step: int, at_us: Time, execution: Execution) -> None:
        """An execution (only with a trace), the time before it, and its number from 1."""

    def stepped(self) -> None:
        """A step is over: the engine's gauges may be read."""


@dataclass(slots=True)
class _Reading:
    """The input of the last execution."""

    operator: str | None = None
    tuples: int = 0


class Price:
    """A stopwatch with a fixed cost of executions: a number of microseconds per tuple."""

    def __init__(self, us_per_tuple: Fraction) -> None:
        self._us_per_tuple = us_per_tuple
        self._reading = _Reading()

    def start(self) -> None:
        """Nothing: the price does not depend on the start of the execution."""

    def stop(self, operator: str, tuples: int) -> None:
        self._reading = _Reading(operator, tuples)

    def take(self) -> tuple[Fraction, list[Event]]:
        """The cost of the last execution, and the reading for the engine."""
        reading, self._reading = self._reading, _Reading()
        if reading.operator is None:
            return Fraction(0), []
        cost = self._us_per_tuple * reading.tuples
        return cost, [Measured(reading.operator, reading.tuples, float(cost))]


class Driver:
    """Runs an engine over instants.

    clock_us   the virtual clock
    single     one execution per step: for traces, and wherever work has a price
    """

    def __init__(self, watcher: Watcher, *, price: Price | None = None, trace: bool = False) -> None:
        self.engine = Engine(stopwatch=price, trace=trace, share=True, index=price is None)
        self.clock_us: Time = 0
        self._watcher = watcher
        self._price = price
        self._single = trace or price is not None
        self._more = False
        self._wake: int | None = None
        self._measured: list[Event] = []
        self._executions = 0

    def begin(self, at_us: int) -> None:
        """Set the clock before the first event."""
        self.clock_us = at_us
        self.engine.clock.now_us = at_us

    def run(self, instants: Iterable[Instant]) -> None:
        """Process the instants in order of time, and finish all work."""
        for instant in instants:
            self._work_until(instant.at_us)
            self._enter(instant)
        self.finish()

    def finish(self) -> None:
        """Work until nothing is left to do at this time. Work may have moved the time past a wake-up."""
        while self._more or (self._wake is not None and self._wake <= self.clock_us):
            self._execute()

    def _work_until(self, at_us: int) -> None:
        """Work, and wake the engine when it requested that, until the clock reaches a time."""
        while True:
            if self._more:
                if self._price is not None and self.clock_us >= at_us:
                    return
                self._execute()
            elif self._wake is not None and self._wake < at_us:
                self._move_to(self._wake)
                self._execute()
            else:
                self._move_to(at_us)
                return

    def _move_to(self, at_us: int) -> None:
        if at_us > self.clock_us:
            self.clock_us = at_us

    def _enter(self, instant: Instant) -> None:
        """Pass events in at their own time, which with a price may be earlier than the clock."""
        if self._single:
            self._step(instant.at_us, instant.events, 0)
        else:
            self._step(instant.at_us, instant.events, MANY)

    def _execute(self) -> None:
        self._step(int(self.clock_us), (), 1 if self._single else MANY)

    def _step(self, now_us: int, events: Sequence[Event], executions: int) -> None:
        before = self.clock_us
        measured, self._measured = self._measured, []
        effects = self.engine.step(now_us, [*measured, *events] if measured else events, executions=executions)
        self._more = effects.more
        self._wake = None
        if self._price is not None:
            cost, self._measured = self._price.take()
            self.clock_us += cost
        for execution in effects.executions:
            self._executions += 1
            self._watcher.executed(self._executions, before, execution)
        for order in effects.orders:
            match order:
                case WakeAt(at_us):
                    self._wake = at_us
                case Answer(refused=refused) | Rejected(refused=refused) if refused is not None:
                    raise refused
                case _:
                    self._watcher.ordered(self.clock_us, order)
        self._watcher.stepped()
