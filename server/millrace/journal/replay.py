"""Takes recorded steps again, on an engine that was restored from a checkpoint.

Rule: a start and a follower replay a journal in the same way. At each mark the engine's state is compared with the
server's. A difference does not end the replay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from millrace.engine.digests import differing
from millrace.engine.engine import Engine
from millrace.engine.events import Effects
from millrace.journal.steps import Mark, Start, Step, StepReader


class Untimed:
    """A stopwatch whose readings nobody wants: a replay has those that were recorded. An engine with one works as the
    server's does."""

    def start(self) -> None:
        """Nothing is measured."""

    def stop(self, operator: str, tuples: int) -> None:
        """Nothing is measured."""


class Taken(NamedTuple):
    """A step that was taken again."""

    step: Step
    effects: Effects


class Differs(NamedTuple):
    """Operators whose state is not the server's after a step."""

    lsn: int
    operators: list[str]


class Replay:
    """`difference` is the first one; None: no state has differed. `epochs` is what the newest start that was replayed
    recorded of promotions; None: nothing."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.difference: Differs | None = None
        self.epochs: Any = None
        self._reader = StepReader(engine)

    def take(self, lsn: int, record: bytes) -> Taken | Mark | None:
        """One record: a step, a mark, or the limits of a server that started."""
        match self._reader.read(record):
            case Step() as step:
                effects = self.engine.step(step.now_us, step.events, budget=step.budget, results=step.results)
                return Taken(step, effects)
            case Mark() as mark:
                if self.difference is None and (found := differing(self.engine, mark.digests)):
                    self.difference = Differs(lsn, found)
                return mark
            case Start(limits=limits, epochs=epochs):
                self.epochs = epochs or self.epochs
                for name, limit in limits.items():
                    setattr(self.engine, name, limit)
        return None
