"""An engine that was saved goes on for a while beside the one restored from it, and must do the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millrace.engine.engine import Engine
from millrace.engine.events import Effects, Event
from millrace.operators.batch import Batch
from tests.simulation.auditors import Broken


class Twin:
    """The engine that was saved last, as long as it is looked at."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._left = 0

    def part(self, engine: Engine, steps: int, **options: Any) -> Engine:
        """An engine restored from this one, which is looked at for so many steps."""
        saved = engine.save()
        restored = Engine.restore(saved, trace=True, **options)
        if restored.save() != saved:
            raise Broken("a restored engine, saved again, gives other bytes")
        self._engine, self._left = engine, steps
        return restored

    def check(self, now: int, events: Sequence[Event], effects: Effects, *, budget: int, executions: int) -> None:
        """Let it take the step of which the restored one has told the effects."""
        if self._engine is None:
            return
        its = self._engine.step(now, events, budget=budget, executions=executions)
        if described(its) != described(effects):
            raise Broken(f"a restored engine did otherwise than the saved one:\n{effects}\n{its}")
        self._left -= 1
        if not self._left:
            self._engine = None


def described(effects: Effects) -> bytes:
    """Effects as bytes, the same for the same effects."""
    return repr([effects.more, effects.executions, [_described(order) for order in effects.orders]]).encode()


def _described(order: Any) -> Any:
    fields = [getattr(order, name) for name in order.__dataclass_fields__]
    return [type(order).__name__, *(_plain(value) for value in fields)]


def _plain(value: Any) -> Any:
    if isinstance(value, Batch):
        return [value.ts.tolist(), value.arrival.tolist(), value.rows()]
    return value.tolist() if hasattr(value, "tolist") else str(value)
