"""Whether a queue's reader keeps up: the load, and the mode of a queue that follows it (UPS, sections 2 and 8).

The load is measured over spans of at least a second of the engine's clock. While the queue appends, only a span in
which it was never empty shows the capacity: that much was served, and more could not be. If nearly as much arrived, the
reader does not keep up (a feed that waits for credit sends as much as is served, and no more). From then on the queue
supersedes. What arrives per second is compared with that capacity, superseded tuples too, because an appending queue
would have to serve them. With room to spare for long enough, it appends again. So it does when it has superseded hardly
anything for as long, whatever the capacity was.

The capacity may have grown since it was measured, and superseding hides that: it is assumed to grow a little in every
span. So under a lasting overload the queue appends for a span now and then, and measures it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

# A span lasts this long at least, and while the queue appends until this many tuples were served: fewer say nothing.
SPAN_US: Final = 1_000_000
SERVED: Final = 64
# The loads from which it supersedes, and up to which it appends again after so many spans in turn.
OVERLOAD: Final = 0.9
ROOM: Final = 0.75
CALM: Final = 3
# The share of a span's updates that may be superseded where it hardly differs from an appending queue.
HARDLY: Final = 1 / 64
# The share by which the capacity is assumed to grow per span.
GROWTH: Final = 1 / 64
# An execution takes as many tuples as last about this long. If it took all that wait, the queue would be empty after
# each one, also where more have arrived when it ends. Cheap ones may take all: beside an operator whose executions last
# for seconds, a reader that gets small ones in turn falls behind although it has little to do.
EXECUTION_US: Final = 100_000

Mode = Literal["append", "update"]


class QueueSwitch(NamedTuple):
    """The present mode, and what caused it: the load, and tuples per second that arrived and could be served."""

    mode: Mode
    load: float
    arrived: float
    capacity: float


class Load:
    """The load of a queue's reader, measured in tuples, and the mode that follows from it.

    last       the last switch of the mode
    untold     the same, if it has not been reported
    arrived    tuples of this span
    served     the same
    emptied    whether there was nothing to serve at any time of this span
    cost_us    what a tuple costs, as measured; 0 if nothing was
    """

    def __init__(self) -> None:
        self.mode: Mode = "append"
        self.last: QueueSwitch | None = None
        self.switches = 0
        self.untold: QueueSwitch | None = None
        self.arrived: float = 0
        self.served = 0
        self.emptied = True
        self.cost_us = 0.0
        self._capacity = 0.0
        self._calm = 0
        self._since_us = 0
        self._superseded = 0

    @property
    def supersedes(self) -> bool:
        return self.mode == "update"

    def most(self, limit: int) -> int:
        """How many tuples an execution takes, at most `limit`."""
        return min(limit, max(1, int(EXECUTION_US / self.cost_us))) if self.cost_us else limit

    def span_over(self, now_us: int) -> bool:
        """Whether a span is long enough. A busy one with few services continues, because it shows nothing yet."""
        return now_us - self._since_us >= SPAN_US and not (self._busy and self.served < SERVED)

    @property
    def _busy(self) -> bool:
        """Whether the queue was never empty. Without any service its reader waits for another input."""
        return self.served > 0 and not self.emptied

    def turns(self, now_us: int, superseded: int, updates: float) -> bool:
        """Whether the mode changes at the end of a span, which had so many updates. `superseded` counts all so far."""
        lasted = now_us - self._since_us
        if self._busy:
            self._capacity = self.served * SPAN_US / lasted
        arrived = self.arrived * SPAN_US / lasted
        load = arrived / self._capacity if self._capacity else 0.0
        turns = False
        if not self.supersedes:
            turns = self._busy and load >= OVERLOAD
        elif load <= ROOM or (updates and superseded - self._superseded <= HARDLY * updates):
            self._calm += lasted // SPAN_US
            turns = self._calm >= CALM
        else:
            self._calm = 0
            self._capacity += self._capacity * GROWTH
        if turns:
            self._switch(load, arrived)
        return turns

    def supersede(self, now_us: int) -> None:
        """Change to superseding in the middle of a span."""
        arrived = self.arrived * SPAN_US / max(now_us - self._since_us, 1)
        self._switch(arrived / self._capacity if self._capacity else 0.0, arrived)

    def _switch(self, load: float, arrived: float) -> None:
        self.mode = "append" if self.supersedes else "update"
        self.last = self.untold = QueueSwitch(self.mode, load, arrived, self._capacity)
        self.switches += 1
        self._calm = 0

    def start_span(self, now_us: int, superseded: int, *, empty: bool) -> None:
        self._since_us, self._superseded, self.emptied = now_us, superseded, empty
        self.arrived = self.served = 0

    def save(self) -> tuple[list[Any], list[Any]]:
        """The mode and its switches, and the numbers of the span."""
        span = [self._since_us, self.arrived, self.served, self._superseded, self.emptied, self.cost_us]
        last = None if self.last is None else list(self.last)
        return [self.supersedes, self.switches, last], [self._capacity, self._calm, *span]

    def restore(self, modes: Sequence[Any], span: Sequence[Any]) -> None:
        supersedes, self.switches, last = modes
        self.mode = "update" if supersedes else "append"
        self.last = None if last is None else QueueSwitch(*last)
        self._capacity, self._calm, self._since_us, self.arrived, self.served, *more = span
        self._superseded, self.emptied, *cost_us = more
        self.cost_us = sum(cost_us)  # older states have none
