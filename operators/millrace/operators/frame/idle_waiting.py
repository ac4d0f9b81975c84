"""Idle-waiting-prone operators: those that may have to wait for a time (the papers' IWP).

Such an operator has registers, states its need, announces its low water and passes promises by ETS arcs. How it holds
what waits is its own affair: a union or a join keeps tuples in order (`waiting.py`), an aggregate keeps open windows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from millrace.operators.frame.buffer import Buffer
from millrace.operators.frame.ets_arcs import Arc, announce
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator, StepClock
from millrace.operators.frame.punctuation_grain import EVERY, PunctuationGrain
from millrace.values.eventtime import MIN_TIME


class IdleWaiting(Operator):
    """An operator that can be blocked until its inputs promise enough.

    arcs         where its promises go, past the operators that do not need them
    idle_since   per input, since when it has held back what the operator would do next
    idle_us      per input, how long it had held the operator back before that
    awaited      the need at the last look: another one means that it has acted in between
    """

    waits: ClassVar[bool] = True

    def __init__(self, name: str, inputs: Sequence[Inlet], output: Buffer, clock: StepClock) -> None:
        super().__init__(name, inputs, output)
        self.clock = clock
        self.ets_arcs: tuple[Arc, ...] = ()
        self.idle_since: list[int | None] = [None] * len(self.inputs)
        self.idle_us = [0] * len(self.inputs)
        self.awaited: int | None = None

    @abstractmethod
    def need(self) -> int | None:
        """The least promise that would let it act, or None if it does not wait."""

    def declares(self) -> PunctuationGrain | None:
        return EVERY

    def horizon(self) -> int:
        """The least time that a tuple to come can have."""
        return min([reader.promise for reader in self.inputs])

    def registers(self) -> list[int]:
        """The papers' registers: per input the time of its head, else the last time known."""
        return [reader.promise for reader in self.inputs]

    def blocked(self) -> bool:
        """Whether something waits here and nothing may be done: idle-waiting."""
        return self.need() is not None

    def holding(self) -> list[int]:
        """The inputs that hold it back: those that promise less than it needs."""
        need = self.need()
        return [] if need is None else [p for p, reader in enumerate(self.inputs) if reader.promise < need]

    def past_its_tuples(self) -> bool:
        """Whether it waits for the microsecond after a tuple's own, which the clock may not have reached yet."""
        return False

    def stamps(self) -> bool:
        """Whether nothing but the clock holds it back: it stamps the tuples that it waits for itself."""
        return False

    def idle(self) -> list[int]:
        """The inputs for which it counts as idle-waiting."""
        return self.holding()

    def empty_input(self) -> int:
        """The input whose promise is least: it is the one that holds the others back."""
        least = at = 0
        for position, reader in enumerate(self.inputs):
            promise = reader.promise
            if promise < least or not position:
                least, at = promise, position
        return at

    def held_tuples(self) -> int:
        """Tuples that it took from its arcs and still keeps in line."""
        return 0

    def announce(self, low_us: int | None = None) -> bool:
        """With the rows just emitted, or by arc if there are none."""
        if low_us is None:
            low_us = self.low_water()
        if not self.emitted and self.ets_arcs:
            return announce(low_us, self.output, self.ets_arcs)
        return self.output.punctuate(low_us)

    def reach(self) -> bool:
        """Promise what the clock allows now; say whether that was news to anyone."""
        self.emitted = 0
        return self.output.punctuates and self.announce()

    def clear(self) -> None:
        """Let go of what waits, when the operator leaves the graph."""

    def clock_idle(self, now_us: int) -> None:
        """Account for idle-waiting at the boundary of a step: per input, the time in which it held tuples back."""
        self.settle()
        holding = self.idle()
        if not holding and self.idle_since.count(None) == len(self.idle_since):
            return
        need = self.need() if holding else None
        for position, since in enumerate(self.idle_since):
            if since is not None and (position not in holding or need != self.awaited):
                self.idle_us[position] += now_us - since
                since = None
            self.idle_since[position] = (now_us if since is None else since) if position in holding else None
        self.awaited = need

    def step_clock(self, by_us: int) -> None:
        """The clock has jumped by so much, and that was no waiting."""
        self.idle_since = [None if since is None else since + by_us for since in self.idle_since]

    def reset_idle_timer(self, now_us: int) -> None:
        """Its state comes from elsewhere: nobody has waited here for what it holds back until now."""
        self.idle_since = [None if since is None else now_us for since in self.idle_since]
        self.idle_us = [0] * len(self.idle_us)

    def save(self) -> Any:
        return [self.idle_since, self.idle_us, self.awaited]

    def restore(self, data: Any) -> None:
        self.idle_since, self.idle_us, self.awaited = data


class WindowWaiting(IdleWaiting):
    """An operator that needs the end of a window. Until a tuple at or past that end has arrived, the window is not
    over, so the operator is not idle-waiting."""

    newest_us: int = MIN_TIME

    def blocked(self) -> bool:
        need = self.need()
        return need is not None and self.newest_us >= need

    def idle(self) -> list[int]:
        return self.holding() if self.blocked() else []
