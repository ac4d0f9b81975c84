"""What nondeterministic functions returned in a step, so that a replay of the step reads it instead of calling them.

Rule: the engine puts a tape in for the time of a step. A user's function that is declared nondeterministic leaves its
results there, and the driver records them with the step. In a replay every user's function looks there first, whatever
it is declared as now, and is called only if the step has no result of it at all.

Expressions are compiled once and shared by the engines of a process, which may be stepped in several threads. So the
tape is a variable of the context, which each thread has for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

from millrace.protocol import Refuse, Type
from millrace.values.batch import Bools, Values
from millrace.values.functions.faults import REASONS, Fault
from millrace.values.functions.vectors import Faults, Vector


class Result(NamedTuple):
    """What a function returned for a batch: a vector, and the sentence about the last row for which it raised."""

    type: Type
    values: Values
    valid: Bools | None
    faults: Faults | None
    sentence: str | None


# By the key of each function, its results in the order of its calls.
Results = Mapping[str, Sequence[Result]]


class Tape:
    """The results of one step. `given` are those of a step that is replayed; None: the step is a new one.

    made    the results of this step, in a replay those that were read
    wrong   why the replay cannot be what was recorded
    """

    def __init__(self, given: Results | None = None) -> None:
        self.made: dict[str, list[Result]] = {}
        self.wrong: str | None = None
        self._given = given
        self._left = {key: iter(results) for key, results in given.items()} if given else {}

    @property
    def replays(self) -> bool:
        return self._given is not None

    def read(self, key: str, count: int) -> Vector | None:
        """The recorded result of the function's next call, for so many rows; None if the step has none of it."""
        left = self._left.get(key)
        if left is None:
            return None
        result = next(left, None)
        if result is None or len(result.values) != count:
            self.fail(f"the recorded results of {key} are not those of this step")
        assert result is not None
        self._note(key, result)
        if result.sentence is not None:
            REASONS[Fault.USER_FUNCTION] = result.sentence
        return result.values, result.valid, result.faults

    def write(self, key: str, type: Type, vector: Vector) -> None:
        """The result of a call."""
        values, valid, faults = vector
        raised = faults is not None and bool((faults == Fault.USER_FUNCTION).any())
        sentence = REASONS[Fault.USER_FUNCTION] if raised else None
        self._note(key, Result(type, values, valid, faults, sentence))

    def _note(self, key: str, result: Result) -> None:
        self.made.setdefault(key, []).append(result)

    def fail(self, reason: str) -> None:
        """This replay is over. An operator's error would only stop its query, so the reason is kept for `check`."""
        self.wrong = self.wrong or reason
        raise Refuse(reason, code="bad_state")

    def check(self) -> None:
        """At the end of a step: a replay has called what the step called, as often."""
        unread = [key for key, left in self._left.items() if next(left, None) is not None]
        if unread and self.wrong is None:
            self.wrong = f"the step has recorded results of {', '.join(unread)} that its replay did not ask for"
        if self.wrong is not None:
            raise Refuse(self.wrong, code="bad_state")


_PLAYING: Final[ContextVar[Tape | None]] = ContextVar("tape", default=None)


def playing() -> Tape | None:
    """The tape of the present step, if there is one."""
    return _PLAYING.get()


@contextmanager
def played(tape: Tape) -> Iterator[Tape]:
    """Use the tape for the time of a step, or of restoring the engine that steps will be replayed on."""
    token = _PLAYING.set(tape)
    try:
        yield tape
    finally:
        _PLAYING.reset(token)
