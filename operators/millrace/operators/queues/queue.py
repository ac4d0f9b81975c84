"""The interface of an edge's queues, and their staleness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.operators.queues.load import Load
from millrace.values.batch import Batch
from millrace.values.eventtime import MAX_TIME

# The values of an update key.
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Paging:
    """Pages of a queue: in use, in its pool, and returned to it; used slots; and the bytes of everything."""

    taken: int = 0
    free: int = 0
    returned: int = 0
    in_use: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Staleness:
    """How far behind results are (UPS, section 3.3): 0 for a key without pending update, else the age of the oldest.

    For the queue alone an update is pending until it is served, for the application until its result is out. Means are
    over time and keys. A histogram counts updates by the number of binary digits of their wait in microseconds. `worst`
    are the keys that wait longest at present.
    """

    keys: int = 0
    queue_mean_us: float = 0.0
    application_mean_us: float = 0.0
    queue_histogram: Sequence[int] = ()
    application_histogram: Sequence[int] = ()
    oldest_us: int = 0
    worst: Sequence[tuple[Key, int]] = field(default=())


class Floor:
    """A time below which nothing is queued. It may lag: a look at all queued tuples is paid for by those served.

    It is exact when nothing is queued any more, so what depends on it is late for a while, never for good. `gone`
    counts the tuples served since the last look.
    """

    __slots__ = ("gone", "value_us")

    def __init__(self) -> None:
        self.value_us = MAX_TIME
        self.gone = 0

    def met(self, least_us: int) -> None:
        """Tuples have arrived, none of them below this."""
        if least_us < self.value_us:
            self.value_us = least_us

    def tighten(self, waiting: int, least: Callable[[], int]) -> None:
        """Look at all queued tuples if enough were served since the last look."""
        if not waiting:
            self.value_us, self.gone = MAX_TIME, 0
        elif self.gone * 4 >= waiting:
            self.value_us, self.gone = least(), 0

    def save(self) -> list[int]:
        return [self.value_us, self.gone]

    def restore(self, data: Sequence[int]) -> None:
        self.value_us, self.gone = data


class Queue(ABC):
    """A queue between an arc and one reader.

    superseded   tuples that a newer one has replaced: they are neither read nor lost
    shed         tuples dropped at random
    floor        a time below which nothing is queued
    bounded      whether its size is bounded, so that feeds need not wait for it
    load         the load that decides whether it supersedes; None if nothing does
    """

    bounded: bool = True
    load: Load | None = None
    floor: Floor
    superseded: int = 0
    shed: int = 0

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Queued tuples that can be served now or later."""

    @property
    def holds(self) -> bool:
        """Whether it will still serve anything, now or later."""
        return self.waiting > 0

    @abstractmethod
    def enqueue(self, batch: Batch, now_us: int) -> None:
        """Add tuples in order of their arrival."""

    @abstractmethod
    def dequeue(self, limit: int, now_us: int) -> Batch | None:
        """The next tuples to be served, at most `limit`."""

    def floor_us(self) -> int:
        """No queued tuple is below this time; it may lag."""
        return self.floor.value_us if self.held else MAX_TIME

    def tighten(self) -> None:
        """Bring the floor up to date, after tuples were served."""
        self.floor.tighten(self.held, self._least)

    @property
    def pending(self) -> bool:
        """Whether it can serve anything."""
        return self.waiting > 0

    @property
    def held(self) -> int:
        """Tuples that the floor is about."""
        return self.waiting

    @abstractmethod
    def _least(self) -> int:
        """The least time of the queued tuples, of which there are some."""

    def promised(self, value_us: int, now_us: int) -> None:
        """No later tuple will be below this time."""

    def measured(self, us: float, now_us: int) -> None:
        """The result of the last served tuples is out, and cost this much."""

    def costs(self, us_per_tuple: float) -> None:
        """The measured cost of serving a tuple."""

    @property
    def paging(self) -> Paging:
        return Paging()

    def staleness(self, now_us: int, worst: int = 0) -> Staleness:
        return Staleness()

    @abstractmethod
    def older(self, now_us: int, than_us: int) -> list[tuple[Key, int]]:
        """The keys whose update has waited for longer, and how long; tuples without a key have the key ()."""

    @abstractmethod
    def save(self) -> Any:
        """Its state as plain data."""

    @abstractmethod
    def restore(self, data: Any) -> None:
        """Restore the result of `save`."""


class TupleQueue(Queue):
    """A queue of single tuples, from which another kind of queue can take over."""

    @abstractmethod
    def drain(self) -> Batch | None:
        """Remove all queued tuples, in order of service. They count as neither served nor lost."""
