"""An engine that was saved runs on for a while in parallel with the one restored from it, and must do the same. It gets
the steps from their records in a journal: what a record lacks makes the two differ.

A play saves by chance between any two steps, and more often right after a command: what a command has done must be in
the state, whatever the command was. In each step of the two, effects are compared; in the end, their saved states.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from millrace.engine import saving
from millrace.engine.digests import all_digests, differing
from millrace.engine.engine import Engine
from millrace.engine.events import Command, Effects, Event
from millrace.engine.saving import SavedState, pack, unpack
from millrace.journal.steps import Step, StepReader, encode
from millrace.values.batch import Batch
from tests.simulation.auditors import Broken, ask
from tests.simulation.odds import draw


def in_pieces(engine: Engine) -> SavedState:
    """The state as a checkpoint has it, of which every array counts as large."""
    arrays: list[bytes] = []

    def put(data: memoryview) -> int:
        arrays.append(bytes(data))
        return len(arrays) - 1

    with patch.object(saving, "APART_BYTES", 1):
        return SavedState(engine.save_apart(put), arrays.__getitem__)


class Twin:
    """The engine that was saved last (`engine`), as long as it is looked at.

    `chance` decides after which commands the engine is saved, and for how many steps the two are compared: it differs
    from a play's, so that seeds play as they did however often they save.
    """

    def __init__(self, seed: object, **options: Any) -> None:
        self.commands = 0  # after which the engine was saved
        self._chance = random.Random(f"twins {seed}")
        self._options = options
        self.engine: Engine | None = None
        self._left = 0
        self._due = False

    def obeyed(self, events: Sequence[Event], effects: Effects) -> None:
        """Note a command: perhaps a restored engine takes the next step."""
        if _commands(events):
            self._due |= draw(self._chance, "twins.save after a command")

    def parted(self, engine: Engine, events: Sequence[Event]) -> Engine:
        """This engine, or one restored from it if a command was obeyed and these events are not another one, for which
        a play may have looked at the operators already."""
        if not self._due or _commands(events):
            return engine
        self._due = False
        self.commands += 1
        return self.part(engine, draw(self._chance, "twins.steps"))

    def part(self, engine: Engine, steps: int) -> Engine:
        """An engine restored from this one, which is looked at for so many steps."""
        saved = engine.save()
        ask(engine)
        if engine.save() != saved:
            raise Broken("questions changed the engine")
        self._compare(saved)
        restored = Engine.restore(in_pieces(engine), trace=True, **self._options)
        if restored.save() != saved:
            raise Broken("a restored engine, saved again, gives other bytes")
        self.engine, self._left = engine, steps
        return restored

    def check(
        self, engine: Engine, now: int, events: Sequence[Event], effects: Effects, *, budget: int, executions: int
    ) -> None:
        """Let it take the step that the restored one has taken with these effects."""
        if self.engine is None:
            return
        step = StepReader(self.engine).read(b"".join(encode(Step(now, budget, events, None, effects.results or {}))))
        assert isinstance(step, Step)
        its = self.engine.step(
            step.now_us, step.events, budget=step.budget, executions=executions, results=step.results
        )
        if described(its) != described(effects):
            raise Broken(f"a restored engine did otherwise than the saved one:\n{effects}\n{its}")
        self._left -= 1
        if not self._left:
            if found := differing(self.engine, all_digests(engine)):
                raise Broken(f"a replayed engine has other digests than the one that was saved: {found}")
            self._compare(engine.save())

    def _compare(self, saved: bytes) -> None:
        """End the comparison: both have the same state."""
        if self.engine is not None and self.engine.save() != saved:
            found = differences(unpack(self.engine.save()), unpack(saved))
            raise Broken("\n".join(["a restored engine has another state than the one that was saved:", *found]))
        self.engine = None


def _commands(events: Sequence[Event]) -> bool:
    return any(isinstance(event, Command) for event in events)


def differences(saved: Any, restored: Any, at: str = "state") -> list[str]:
    """Where two states differ, and how."""
    if isinstance(saved, dict) and isinstance(restored, dict) and [*saved] == [*restored]:
        return [found for key in saved for found in differences(saved[key], restored[key], f"{at}[{key!r}]")]
    if isinstance(saved, list | tuple) and isinstance(restored, list | tuple) and len(saved) == len(restored):
        pairs = enumerate(zip(saved, restored, strict=True))
        return [found for place, pair in pairs for found in differences(*pair, f"{at}[{place}]")]
    return [] if pack(saved) == pack(restored) else [f"{at}: saved {saved!r}, restored {restored!r}"]


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
