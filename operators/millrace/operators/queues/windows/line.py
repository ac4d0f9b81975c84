"""The line of keys whose update waits, in the order of the key scheduler (UPS, sections 5.2 and 5.3)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

from millrace.operators.queues.queue import Key
from millrace.operators.queues.update import Scheduler
from millrace.operators.queues.windows.key_state import KeyState


class Line:
    """FIFO sends an updated key to the end, IN-PLACE keeps its place, LINECUTTING puts keys that rarely change first.

    servable   keys in line of which no earlier window is being processed
    cost_us    cost of a tuple, as measured
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.cost_us = 0.0
        self.servable = 0
        self._states: OrderedDict[Key, KeyState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._states)

    def update(self, key: Key, state: KeyState, arrival_us: int) -> bool:
        """Place a key that has a new update; whether the update supersedes one in line."""
        cuts = self._cuts(state.turn.update(arrival_us))
        superseded = key in self._states
        if not superseded:
            state.turn.since_us = arrival_us
            self._states[key] = state
            self.servable += state.processing.start_us is None
        if cuts:
            self._states.move_to_end(key, last=False)
        elif superseded and self.scheduler == "fifo":
            self._states.move_to_end(key)
        return superseded

    def _cuts(self, gap_us: int | None) -> bool:
        """Whether a key with this mean time between updates goes to the front."""
        if self.scheduler != "linecutting" or gap_us is None:
            return False
        return self.cost_us > 0 and gap_us > self.cost_us * len(self._states)

    def leave(self) -> tuple[Key, KeyState] | None:
        """Remove the first key of which no window is being processed."""
        if not self.servable:
            return None
        key = next(key for key, state in self._states.items() if state.processing.start_us is None)
        self.servable -= 1
        return key, self._states.pop(key)

    def restore(self, keys: Iterable[Key], states: Mapping[Key, KeyState]) -> None:
        self._states = OrderedDict((key, states[key]) for key in keys)
        self.servable = sum(state.processing.start_us is None for state in self._states.values())
