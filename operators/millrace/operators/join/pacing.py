"""The rates and costs of a join's tuples, and whether it should wait for order before it joins or after.

NILE's rule: join at once and hold the results back (Filter-Order) where c |w| l1 l2 reaches alpha, else put the inputs
in order first (Sync-Filter). c is the time to join two tuples, |w| the window, l1 and l2 are the rates of the slowest
and the fastest input. Rates are counted in event time. Costs come from the driver's stopwatch, as events, so that a
replay decides the same.

The paper compares at every tuple. Here rates and costs cover the last one or two periods, and the comparison is
made at the end of each: a rate near the border does not make the join change its way at every tuple. And what has gone
over at alpha goes back below BACK * alpha only: what is measured near the border scatters to both sides of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from millrace.values.eventtime import MIN_TIME

Mode = Literal["sync", "filter"]

# A period is as long as the window, within these bounds: long enough to count, short enough to follow.
SHORTEST_US: Final = 1_000_000
LONGEST_US: Final = 60_000_000
# The part of alpha below which a join goes back to Sync-Filter. At a tuple a second and a window of a minute, the rate
# of two periods scatters by a tenth; twice that lies outside.
BACK: Final = 0.8
# The number of last switches that are reported.
REMEMBERED: Final = 16


class Switch(NamedTuple):
    """A change of mode: when (event time), to what, and the numbers that caused it."""

    at_us: int
    mode: str
    cost_us: float
    window_s: float
    rates: tuple[float, ...]
    value: float
    alpha: float


class Period:
    """What was counted since `begun_us`: tuples per input, and measured executions."""

    def __init__(self, inputs: int, begun_us: int = MIN_TIME) -> None:
        self.begun_us = begun_us
        self.counts = [0] * inputs
        self.measured = 0
        self.spent_us = 0.0

    def save(self) -> list[Any]:
        return [self.begun_us, self.counts, self.measured, self.spent_us]

    @staticmethod
    def restore(data: Sequence[Any]) -> Period:
        period = Period(0)
        period.begun_us, period.counts, period.measured, period.spent_us = data
        return period


class JoinPacing:
    """Rates, costs and the choice that follows from them."""

    def __init__(self, inputs: int, window_us: int | None, alpha: float) -> None:
        self.alpha = alpha
        self.switches = 0
        self.last: list[Switch] = []
        self.untold = 0
        self.newest = MIN_TIME
        self._window_us = window_us
        self._period_us = min(LONGEST_US, max(SHORTEST_US, window_us or 0))
        self._inputs = inputs
        self._first_us = MIN_TIME
        self._past: Period | None = None
        self._now = Period(inputs)

    # -- measuring -----------------------------------------------------------------------------------------------------

    def took(self, position: int, count: int, least: int, greatest: int) -> None:
        """So many tuples of an input were taken, with times from one to another."""
        self._now.counts[position] += count
        if greatest > self.newest:
            if self.newest == MIN_TIME:
                self._first_us = self._now.begun_us = least
            self.newest = greatest

    def took_row(self, position: int, time: int) -> bool:
        """`took`, of one tuple, and whether `turned` has something to do."""
        now = self._now
        now.counts[position] += 1
        if time > self.newest:
            if self.newest == MIN_TIME:
                self._first_us = now.begun_us = time
            self.newest = time
        return self.newest - now.begun_us >= self._period_us

    def measured(self, tuples: int, us: float) -> None:
        """Executions that took so many tuples cost so much."""
        self._now.measured += tuples
        self._now.spent_us += us

    def turned(self) -> bool:
        """Whether a period is over; then the next one starts."""
        if self.newest == MIN_TIME or self.newest - self._now.begun_us < self._period_us:
            return False
        self._past = self._now
        self._now = Period(self._inputs, self.newest)
        return True

    @property
    def window_s(self) -> float:
        """|w|; of an unlimited window, what it has grown to."""
        window_us = self.newest - self._first_us if self._window_us is None else self._window_us
        return max(window_us, 0) / 1e6

    def rates(self) -> list[float]:
        """Tuples per second of event time, per input."""
        periods = self._periods()
        span_us = self.newest - periods[0].begun_us
        if span_us <= 0:
            return [0.0] * self._inputs
        return [sum(period.counts[at] for period in periods) / span_us * 1e6 for at in range(self._inputs)]

    def _periods(self) -> list[Period]:
        return [self._now] if self._past is None else [self._past, self._now]

    def cost_us(self) -> float:
        """c: the measured cost of a tuple over the tuples in the windows that it looks through."""
        periods = self._periods()
        tuples = sum(period.measured for period in periods)
        rates = self.rates()
        total = sum(rates)
        if not tuples or not total or not self.window_s:
            return 0.0
        others = sum(rate * (total - rate) for rate in rates) / total * self.window_s
        return sum(period.spent_us for period in periods) / tuples / others if others else 0.0

    # -- choosing ------------------------------------------------------------------------------------------------------

    def value(self) -> float:
        """c |w| l1 l2, which is compared with alpha."""
        rates = self.rates()
        return self.cost_us() / 1e6 * self.window_s * min(rates) * max(rates)

    def choose(self, mode: str) -> Mode:
        """The mode to continue in, for a join in this mode."""
        border = BACK * self.alpha if mode == "filter" else self.alpha
        return "filter" if self.value() >= border else "sync"

    def switched(self, mode: str) -> None:
        """Record a switch with its cause. Before the first tuple the mode is set, not switched."""
        if self.newest == MIN_TIME:
            return
        self.switches += 1
        self.untold += 1
        self.last = [
            *self.last[1 - REMEMBERED :],
            Switch(self.newest, mode, self.cost_us(), self.window_s, tuple(self.rates()), self.value(), self.alpha),
        ]

    def tell(self) -> list[Switch]:
        """The switches since this was last asked."""
        untold, self.untold = self.untold, 0
        return self.last[-untold:] if untold else []

    def numbers(self) -> dict[str, Any]:
        """Measurements, and NILE's predictions: response times (equations 3 and 5) and gain (7)."""
        rates = self.rates()
        slow, fast = min(rates), max(rates)
        report: dict[str, Any] = {"rates": rates, "cost_us": self.cost_us(), "window_s": self.window_s}
        value = self.value()
        report |= {"value": value, "alpha": self.alpha, "gain": value / (1 + value)}
        report |= {"sync_response_s": None, "filter_response_s": None}
        if slow > 0:
            share = fast / slow
            waiting = 1 / slow - (share - 1) / (2 * fast)
            cost_s = self.cost_us() / 1e6 * self.window_s * slow
            report |= {"sync_response_s": waiting + (share + 1) / 2 * cost_s, "filter_response_s": waiting}
        return report

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self) -> Any:
        past = None if self._past is None else self._past.save()
        last = [list(switch) for switch in self.last]
        return [self.alpha, self.switches, last, self.newest, self._first_us, past, self._now.save()]

    def restore(self, data: Any) -> None:
        self.alpha, self.switches, last, self.newest, self._first_us, past, now = data
        self.last = [Switch(*one) for one in last]
        self._past = None if past is None else Period.restore(past)
        self._now = Period.restore(now)
