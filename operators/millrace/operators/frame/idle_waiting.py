"""Idle-waiting-prone operators: those that may have to wait for a time (the papers' IWP).

Such an operator has registers, states its need, announces its low water and passes promises by ETS arcs. Its state
differs: a union or a join holds tuples in order (`waiting.py`), an aggregate holds open windows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from millrace.operators.frame.clause import Equal
from millrace.operators.frame.ets_arcs import Arc, announce
from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.punctuation_grain import EVERY, PunctuationGrain
from millrace.values.eventtime import MIN_TIME


class IdleWaiting(Operator):
    """An operator that can be blocked until its inputs promise enough.

    by_group     whether it may act on a promise about one group (`blocked_group`)
    ets_arcs     where its promises go, past the operators that do not need them
    idle_since   per input, since when it has held back the operator's next tuple
    idle_us      per input, how long it had held the operator back before that
    awaited      the need at the last step's end: another one means that it has acted in between
    """

    waits: ClassVar[bool] = True
    by_group: bool = False

    def __init__(self, site: Site) -> None:
        super().__init__(site.name, site.inputs, site.output)
        self.clock = site.clock
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
        """Whether a tuple waits here and may not be taken: idle-waiting."""
        return self.need() is not None

    def holding(self) -> list[int]:
        """The inputs that hold it back: those that promise less than it needs."""
        need = self.need()
        return [] if need is None else [p for p, reader in enumerate(self.inputs) if reader.promise < need]

    def needs(self) -> list[tuple[int, list[int]]]:
        """Every promise that by itself would let it act, and the inputs that owe it."""
        need = self.need()
        return [] if need is None else [(need, self.holding())]

    def blocked_group(self, position: int) -> Equal:
        """The group that waits the longest for this promise of an input, as columns of that input and their values: a
        promise about it alone would let the operator act. Nothing if only a promise about all rows would."""
        return ()

    def past_its_tuples(self) -> bool:
        """Whether it waits for the microsecond after a tuple's own, which the clock may not have reached yet."""
        return False

    def stamps(self, holding: Sequence[int]) -> bool:
        """Whether only the clock holds it back: it stamps the tuples of the inputs that it waits for."""
        return False

    def idle(self) -> list[int]:
        """The inputs for which it counts as idle-waiting."""
        return self.holding()

    def empty_input(self) -> int:
        """The input whose promise is least, which holds the others back."""
        least = at = 0
        for position, reader in enumerate(self.inputs):
            promise = reader.promise
            if promise < least or not position:
                least, at = promise, position
        return at

    def held_tuples(self) -> int:
        """Tuples that it took from its arcs and holds in line."""
        return 0

    def announce(self, low_us: int | None = None) -> bool:
        """With the rows just emitted, or by ETS arc if there are none."""
        if low_us is None:
            low_us = self.low_water()
        if not self.emitted and self.ets_arcs:
            return announce(low_us, self.output, self.ets_arcs)
        return self.output.punctuate(low_us)

    def reach(self) -> bool:
        """Promise as much as the clock allows now; say whether a reader has a use for it."""
        self.emitted = 0
        return self.output.punctuates and self.announce()

    def clear(self) -> None:
        """Drop queued tuples, because the operator leaves the graph."""

    def clock_idle(self, now_us: int) -> None:
        """Account for idle-waiting at the end of a step: per input, the time in which it held tuples back."""
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
        """Do not count a jump of the clock as waiting."""
        self.idle_since = [None if since is None else since + by_us for since in self.idle_since]

    def reset_idle_timer(self, now_us: int) -> None:
        """Count idle-waiting from now on, because its state is from another engine."""
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
